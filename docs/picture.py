"""Draw the picture of the front page from a run: a held-out curve, a mended board, rewards of a group.

python docs/picture.py --run runs/grpo_nano    # writes docs/quickstart.png; needs Chromium
"""

from __future__ import annotations

import argparse
import base64
import shutil
import sys
import tempfile
from pathlib import Path

import chess
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from rookworld_rlvr.common.files import asset_path
from rookworld_rlvr.common.stats import wilson
from rookworld_rlvr.extras.report.plots import Series, plot
from rookworld_rlvr.extras.report.record import AnswerRecord, RunRecord, read_runs
from rookworld_rlvr.extras.web.backend import Backend
from rookworld_rlvr.extras.web.render import rewards_shown
from rookworld_rlvr.inference.model import RookWorld, policy_prompt
from rookworld_rlvr.models.decoding import ANSWER_TOKENS, Decoding, complete
from rookworld_rlvr.tasks.registry import TASKS

METRIC = "environment/exact"
MODEL, POSITION = "rookworld-nano", chess.STARTING_FEN
BLOCK = "[{name: policy_best_move, weight: 1.0}, {name: policy_candidates, weight: 0.5}]"
WIDTH, SCALE = 960, 2
STYLE = """
body { margin: 0; padding: 14px; background: #fff; color: #1c1f23; font: 14px sans-serif;
  display: grid; grid-template-columns: 10fr 11fr; gap: 28px; align-items: start; }
figure { margin: 0; } figcaption, p { font-weight: 600; margin: 0 0 8px; line-height: 1.3; }
svg { width: 100%; height: auto; }
.plot text { font-size: 10px; fill: #5b6470; } .note { display: none; }
.plot polyline { fill: none; stroke: #1f5fbf; stroke-width: 2; }
.plot .band { fill: #1f5fbf; opacity: .15; } .plot circle { fill: #1f5fbf; }
.below { grid-column: 1 / -1; font-size: 12px } .below p:nth-of-type(n+2) { font-weight: 400 }
.wide table { width: 100% } tr.other { display: none }
.grid { stroke: #e3e5e8; } .chosen { stroke: #9aa1aa; stroke-dasharray: 3 3; }
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", default="runs/grpo_nano")
    parser.add_argument(
        "--output_file", type=Path, default=Path(__file__).with_name("quickstart.png")
    )
    args = parser.parse_args()
    (run,) = read_runs([args.run])
    args.output_file.write_bytes(screenshot(page(run)))
    print(f"written to {args.output_file}")
    return 0


def page(run: RunRecord) -> str:
    """The curve on the left; on the right the model's board before training beside the true one."""
    points = run.points(f"eval_{METRIC}")
    rows = run.rows[METRIC]
    band = [wilson(value, rows) for _, value in points]
    line = Series("", points, band, chosen=run.best_step)
    title = f"Held-out moves simulated without a mistake ({rows} rows, 95% interval)"
    before = mended(run)
    boards = TASKS["environment"].board(before, before["completion"])
    action = before["action"]
    page_style = Path(asset_path("web.css")).read_text("utf-8")
    words = f"{action}: the model's board before GRPO, and the true one. After GRPO it is right."
    return (
        f'<!doctype html><meta charset="utf-8"><style>{page_style}{STYLE}</style>'
        f"{plot(title, [line], is_share=True)}<div><p>{words}</p>{boards}</div>"
        '<div class="below"><p>Eight samples for the first move with their rewards, as '
        f"<code>rookworld web</code> shows them while you type</p>{group()}</div>"
    )


def group() -> str:
    """The page's table of a group of samples."""
    model = RookWorld.from_pretrained(MODEL, device="cpu")
    prompt = policy_prompt(POSITION)
    how = {"max_new_tokens": ANSWER_TOKENS, "decoding": Decoding("sampled", temperature=1.0)}
    answers = complete(model.network, model.tokenizer, [prompt] * 8, **how)
    backend = Backend([MODEL], Path("runs"), is_private=True)
    return str(rewards_shown(backend, MODEL, prompt, answers, BLOCK, "group"))


def mended(run: RunRecord) -> AnswerRecord:
    """A legal move that left a wrong board before training, and none after it."""
    task = TASKS["environment"]
    for pair in run.answers:
        if pair.before["task"] == task.name and pair.before["score"]["format"] == 1:
            old, new = (
                task.errors(answer["prompt"], answer["completion"])
                for answer in (pair.before, pair.after)
            )
            if "board" in old and not new and "+-1.0+" not in pair.after["completion"]:
                return pair.before
    sys.exit(f"{run.name}: no board was mended; give another run")


def screenshot(html: str) -> bytes:
    """The page as PNG, twice as large as it is shown."""
    binary, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver_path is None:
        sys.exit("chromium or chromedriver was not found; apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for word in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{word}")
    with (
        tempfile.TemporaryDirectory() as folder,
        webdriver.Chrome(options, Service(driver_path)) as driver,
    ):
        path = Path(folder) / "picture.html"
        path.write_text(html, encoding="utf-8")
        size = {"width": WIDTH, "height": 10, "deviceScaleFactor": SCALE, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get(path.as_uri())
        height = driver.execute_script("return document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
        shot = driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
        )
    return base64.b64decode(shot["data"])


if __name__ == "__main__":
    sys.exit(main())
