import base64
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

PALETTE = ("ink", "paper", "soft", "line", "bar", "other", "up", "down", "mute")
WIDTHS = (390, 1280, 1920)
HEIGHT = 900


class Browser:
    """Headless Chromium: a page at a width, in a colour scheme and a medium."""

    def __init__(self, chromium: str, chromedriver: str) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for word in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
            options.add_argument(f"--{word}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, Service(chromedriver))

    def open(self, path: Path, width: int = 1280, scheme: str = "light", medium: str = "") -> None:
        self.size(width, scheme, medium)
        self.driver.get(path.as_uri())

    def size(self, width: int, scheme: str, medium: str = "") -> None:
        shape = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": width < 600}
        self.command("Emulation.setDeviceMetricsOverride", **shape)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", media=medium, features=features)

    def command(self, name: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, arguments)

    def ask(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def console(self) -> list[str]:
        """What the console has said since it was asked last."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def screenshot(self) -> np.ndarray:
        """The whole page: ``(height, width, 3)``."""
        size = self.ask("const e=document.documentElement;return [e.scrollWidth,e.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        shot = self.command("Page.captureScreenshot", **options)
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB"))

    def overflow(self) -> float:
        """By how many pixels the page is wider than the window."""
        return float(self.ask("return document.documentElement.scrollWidth - innerWidth"))

    def strays(self) -> list[str]:
        """Elements with a colour that is none of the page's; not those of boards, nor mixed ones."""
        names = [*PALETTE, *(f"c{place}" for place in range(8))]
        return list(self.ask(_STRAYS % ",".join(f"'{name}'" for name in names)))

    def boxes(self, selector: str) -> list[list[float]]:
        """Left, top, width and height on the page of what a selector finds."""
        return self.ask(
            f"return [...document.querySelectorAll('{selector}')].map(e=>e.getBoundingClientRect())"
            ".map(r=>[r.left+scrollX,r.top+scrollY,r.width,r.height])"
        )


_STRAYS = """
const known = new Set(['none', 'rgba(0, 0, 0, 0)']), probe = document.createElement('i');
document.body.append(probe);
for (const name of [%s]) {
  probe.style.color = `var(--${name})`;
  known.add(getComputedStyle(probe).color);
}
probe.remove();
const strays = [], shapes = 'rect,circle,polyline,polygon,svg text';
for (const e of document.querySelectorAll('body, body *:not(.board svg *, .board svg)')) {
  const s = getComputedStyle(e), found = e.matches('svg *') ? [] : [s.color, s.backgroundColor];
  if (e.matches(shapes)) found.push(s.fill, s.stroke);
  for (const c of found)
    if (!known.has(c) && !c.startsWith('color('))
      strays.push(`${e.tagName}.${e.getAttribute('class')}: ${c}`);
}
return strays;
"""


def painted(shot: np.ndarray, box: Sequence[float], paper: Sequence[int]) -> float:
    """Share of a box's pixels that are not the paper's colour."""
    left, top, width, height = (round(number) for number in box)
    part = shot[top : top + height, left : left + width].astype(int)
    assert part.size, "it lies on the page"
    return float((np.abs(part - np.asarray(paper)).max(axis=2) > 12).mean())


def colour(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)[:3]]
