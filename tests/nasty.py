"""Texts that a page must show as texts, what a page consists of, and what a browser makes of it."""

import random
from html.parser import HTMLParser
from pathlib import Path

from .browser import Browser

NASTY = [
    "</script><script>window.ran=1</script>",
    "<img src=x onerror=window.ran=1>",
    "</style><style>*{display:none}</style>",
    "</title><svg onload=window.ran=1>",
    "--><!--",
    "]]><![CDATA[",
    '" onmouseover="window.ran=1" x=\'',
    "' autofocus onfocus='window.ran=1",
    "` onclick=window.ran=1 `",
    "javascript:window.ran=1",
    "&lt;b&gt; &#60;i&#62; &amp",
    "{{ 7 * 7 }} {% raw %} {0.__class__} %s %(x)s",
    "a\u2028b\u2029c",
    "nul\0here",
    "\x1b[2J\x1b]0;title\x07\x9b31m",
    "\u202edesrever\u2066\u200b\ufeff",
    "lone \ud800 surrogate \udfff",
    "e1g1 \U0001f600 ♔ ﷽" + "\u0301" * 40,
]
LETTERS = "<>\"'&=/;:{}%\\`!-[]() \n\t\0\x1b\u202e\ud83d" + "abrsxscriptonloadsvg"


def nasty() -> list[str]:
    """The words in threes, one of which `javascript:` begins; all in one; and random ones."""
    draw = random.Random(0)
    drawn = ["".join(draw.choices(LETTERS, k=draw.randint(1, 60))) for _ in range(5)]
    threes = [" ".join(NASTY[place : place + 3]) for place in range(0, len(NASTY), 3)]
    return [*threes, " ".join(NASTY), *drawn]


class Outline(HTMLParser):
    """Every element with the names of its attributes, and the values of those that mean something."""

    telling = ("class", "id", "href", "style", "http-equiv", "content")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[tuple[str, ...]] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add((tag, *sorted(name for name, _ in attrs)))
        self.found |= {(tag, name, str(value)) for name, value in attrs if name in self.telling}

    def handle_comment(self, data: str) -> None:
        self.found.add(("no element", data))

    handle_decl = unknown_decl = handle_pi = handle_comment  # type: ignore[assignment]


def assert_runs_nothing(browser: Browser, drawn: str, path: Path) -> None:
    """A page with `NASTY` texts runs nothing, nor would it if one of them were not escaped."""
    path.write_text(drawn, errors="backslashreplace")
    browser.console()
    browser.open(path)
    browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.console() == [], "our own style is allowed"
    assert browser.ask("return window.ran") is None
    assert browser.ask("return document.querySelectorAll('script, img, [style]').length") == 0
    path.write_text(drawn.replace("</body>", f"{NASTY[0]}{NASTY[1]}</body>"), errors="replace")
    browser.open(path)
    assert browser.ask("return window.ran") is None
    said = browser.console()
    assert said and all("Content Security Policy" in line for line in said)
