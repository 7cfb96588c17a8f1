"""The report on runs: real runs of the recipe, finished, resumed, killed and old, in a real browser."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import ImageColor

from rookworld_rlvr.common.files import asset_path
from rookworld_rlvr.common.stats import proportion
from rookworld_rlvr.evaluation.pass_at_k import RightCounts, write_counts
from rookworld_rlvr.extras.report.page import page
from rookworld_rlvr.extras.report.plots import Series, plot
from rookworld_rlvr.extras.report.record import AnswerPair, change, choose, errors, read_runs

from ...browser import HEIGHT, WIDTHS, Browser, colour, painted
from ...rows import ASKED_E4, RIGHT_E4
from ...support import script

SMALL = """
    --max_rows 400 --synthetic_rows 20 --heldout_rows 12 --max_completion_length 48
    --per_device_train_batch_size 16 --num_generations 8 --eval_steps 1 --save_steps 1
    --logging_steps 1 --use_cpu --report_to none --beta 0.01 --seed 3
""".split()

EXACT = {"exact": {"value": 0.5, "low": 0.4, "high": 0.6, "n": 500}}
SUITE = {"version": 1, "n": 500, "seed": 0, "decoding": {"name": "greedy"}, "metrics": EXACT}
PAIRED = {"difference": 0.2, "low": 0.1, "high": 0.3, "p": 0.001, "n": 500}
FIRST, SECOND = ({"model": name, "suites": {"environment": SUITE}} for name in "ab")
EVALUATION = FIRST | {"compared": [SECOND | {"paired": {"environment": {"exact": PAIRED}}}]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of `first`, a run of two steps, and `resumed`, the same gone on to three."""
    folder = tmp_path_factory.mktemp("runs")
    words = [*SMALL, "--output_dir", "resumed", "--max_steps"]
    script("grpo.py", *words, "2", cwd=folder)
    shutil.copytree(folder / "resumed", folder / "first")
    script("grpo.py", *words, "3", "--resume_from_checkpoint", "true", cwd=folder)
    return folder


@pytest.fixture
def killed(runs: Path, tmp_path: Path) -> Path:
    """What a run leaves that was killed after its first checkpoint."""
    folder = tmp_path / "killed"
    shutil.copytree(runs / "first", folder)
    for name in ("results.json", "trainer_state.json", "heldout_answers_after.jsonl"):
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoint-2")
    return folder


def test_answers_are_those_that_were_counted(runs: Path) -> None:
    (run,) = read_runs([str(runs / "first")])
    for name, component in (("environment/exact", "exact"), ("policy/best_move", "best_move_hit")):
        pairs = [pair for pair in run.answers if pair.before["task"] == name.split("/")[0]]
        for side, result in (("before", run.before[name]), ("after", run.after[name])):
            hits = [getattr(pair, side)["score"][component] == 1 for pair in pairs]
            assert proportion(sum(hits), len(hits)) == result


def points(drawn: str, shape: str) -> list[tuple[float, ...]]:
    (found,) = re.findall(rf'<{shape}[^>]* points="([^"]*)"', drawn)
    return [tuple(map(float, pair.split(","))) for pair in found.split()]


def test_a_line_and_its_band_lie_where_they_belong() -> None:
    drawn = plot("share", [Series("run", [(0, 0.2), (10, 0.8)], [(0.0, 0.4), (0.6, 1.0)])])
    (left, low), (right, high) = points(drawn, "polyline")
    assert left < right and low > high, "y grows downwards"
    band = dict(zip(("0.4", "1.0", "0.6", "0.0"), points(drawn, "polygon"), strict=True))
    assert [x for x, _ in band.values()] == [left, right, right, left]
    heights = {float(value): y for value, (_, y) in band.items()} | {0.2: low, 0.8: high}
    for value, y in heights.items():  # one scale from 0 to 1 for line and band
        assert y == pytest.approx(heights[0.0] + value * (heights[1.0] - heights[0.0]), abs=0.1)
    assert "<title>run, step 10: 0.8</title>" in drawn
    assert 'role="img" aria-label="share. run: 0.2 to 0.8"' in drawn


def test_a_long_line_keeps_its_spikes() -> None:
    drawn = plot("norm", [Series("run", [(step, 7.0 * (step == 2_345)) for step in range(5_000)])])
    assert len(drawn) < 60_000 and "step 2345: 7" in drawn
    assert len(points(drawn, "polyline")) <= 240


def test_answers_are_chosen_by_change_and_by_quality() -> None:
    changes_of = {"same": (0.5, 0.5), "better": (0.1, 0.6), "best gain": (0.0, 0.9)}
    changes_of |= {"fell": (0.9, 0.2), "right": (1.0, 1.0), "bad": (0.0, 0.0)}
    pairs = []
    for name, states in changes_of.items():
        same = {"task": "environment", "prompt": name, "completion": name}
        sides = ({**same, "score": {"state": state, "outcome": state}} for state in states)
        pairs.append(AnswerPair(*sides))
    found = {choice.title: [p.after["prompt"] for p in choice.pairs] for choice in choose(pairs, 1)}
    gained, lost = {"most gained": ["best gain"]}, {"most lost": ["fell"]}
    assert found == {**gained, **lost, "worst": ["bad"], "best": ["right"]}
    assert change(pairs[2]) == pytest.approx(0.9)


def test_errors_are_counted_by_kind() -> None:
    asked: dict[str, object] = {"task": "environment", "prompt": ASKED_E4, "values": None}
    right = {**asked, "completion": RIGHT_E4, "score": {}}
    wrong = {**right, "completion": RIGHT_E4.replace(" KQkq - ", " KQk e3 ")}
    unscored = AnswerPair(wrong, {**right, "score": None})
    pairs = [AnswerPair(wrong, right)] * 9 + [AnswerPair(right, wrong), AnswerPair(right, right)]
    (kinds,) = errors([*pairs, unscored])
    assert kinds.rows == 11
    assert kinds.kinds == {"castling": [9, 1], "en passant": [9, 1]}
    assert errors([]) == []


@pytest.fixture(scope="module")
def one(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of one run with suites' results."""
    folder = tmp_path_factory.mktemp("one") / "run"
    shutil.copytree(runs / "resumed", folder)
    (folder / "evaluation.json").write_text(json.dumps(EVALUATION))
    finding = {"step": 2, "severity": "warning", "rule": "unreadable", "message": "`B` & 40%"}
    (folder / "health.jsonl").write_text(json.dumps(finding) + "\n")
    sides = {"before": [0, 1, 3, 60] * 25, "after": [0, 9, 30, 64] * 25}
    right = {when: {"policy": RightCounts(64, some, [0] * 100)} for when, some in sides.items()}
    write_counts(folder / "heldout_pass.json", {}, right)
    path = folder / "report.html"
    path.write_text(page(read_runs([str(folder)])))
    return path


def test_the_page_tells_the_run(one: Path) -> None:
    drawn = one.read_text()
    (run,) = read_runs([str(one.parent)])
    assert "from step 2: max_steps 2 -&gt; 3" in drawn
    titles = ["Reward by component", "Reward deviation", "Loss", "Completion length"]
    titles += ["Completions cut off", "KL coefficient", "Entropy", "Groups without signal"]
    words = ["trl 1.16", "--seed 3", "957184", "rookworld-nano-openings", "policy 12"]
    words += [f"<figcaption>{title}" for title in titles]
    for result in run.after.values():
        low, high = result.interval
        words.append(f"<b>{result.value:.1%}</b> <small>[{100 * low:.1f}, {100 * high:.1f}]")
    assert [word for word in words if word not in drawn] == []
    assert f"marks the saved weights: step {run.best_step}." in drawn and "<small>p = " in drawn
    assert drawn.count('class="band') == 13, "one a share, and both headlines beside the verdict"
    assert "chosen by these rows, so its numbers are a little too good" in drawn
    run.config = {**run.config, "load_best_model_at_end": False}
    assert "chosen by these rows" not in page([run])
    assert "<code>B</code> &amp; 40%" in drawn, "the health log"
    assert not run.missing and 'id="missing"' not in drawn
    assert "environment, version 1, 500 rows, seed 0, greedy" in drawn
    assert "<b>+0.2</b> <small>[+0.1, +0.3], p 0.001</small>" in drawn
    before, after = run.right["before"]["policy"], run.right["after"]["policy"]
    found = before.compare(after)["pass@1"]
    assert f"<b>{found.difference:+.4g}</b> <small>[{found.low:+.4g}, {found.high:+.4g}]" in drawn
    assert "policy: 100 held-out rows, 64 samples each, right by best_move" in drawn


def test_a_run_that_fell_does_not_look_well(runs: Path) -> None:
    (run,) = read_runs([str(runs / "first")])
    run.health = []
    tie = page([run])
    assert '<div class="verdict tie">' in tie and "a tie: chance alone may explain it" in tie
    run.changes = {}
    zero = {name: proportion(0, result.n) for name, result in run.before.items()}
    one = {name: proportion(result.n, result.n) for name, result in run.before.items()}
    for run.before, run.after, tone in ((zero, one, ""), (one, zero, "warning")):
        assert f'<div class="verdict {tone}">' in page([run])


def test_several_runs_side_by_side_on_a_phone(runs: Path, tmp_path: Path, browser: Browser) -> None:
    out = tmp_path / "both.html"
    folders = [word for name in ("first", "resumed") for word in ("--run", str(runs / name))]
    script("report.py", *folders, cwd=tmp_path)
    drawn = (runs / "report.html").rename(out).read_text()  # not in the place of the first's own
    assert "measured on different rows" not in drawn
    assert '<th scope="col">first</th><th scope="col">resumed</th>' in drawn
    assert "Keys that differ between the runs" in drawn
    assert '<code class="name">max_<wbr>steps</code></th><td>2</td><td>3</td>' in drawn
    assert drawn.count("first</li>") >= 14, "a legend under every plot"
    browser.open(out, 390)
    assert browser.overflow() <= 0
    lines = "document.querySelectorAll('.legend line')"
    strokes = browser.ask(f"return [...{lines}].map(e => getComputedStyle(e).stroke)")
    assert len(set(strokes)) == 2


def test_runs_with_other_rows_are_said_not_to_compare(runs: Path) -> None:
    one, other = read_runs([str(runs / name) for name in ("first", "resumed")])
    other.answers = other.answers[1:]
    assert "measured on different rows: their numbers do not compare" in page([one, other])
    other.answers = ()
    assert "measured on different rows" not in page([one, other])


def test_a_killed_run_gives_what_there_is(killed: Path) -> None:
    (killed / "health.jsonl").write_text('{"rule": ')
    (run,) = read_runs([str(killed)])
    assert [step for step, _ in run.points("reward")] == [1]
    assert run.before and not run.after and not run.answers
    said = " ".join(run.missing)
    assert "checkpoint-1" in said and "results.json" in said
    assert "heldout_answers_after.jsonl" in said and "health.jsonl could not be read" in said
    drawn = page([run])
    assert "did not finish; logged up to step 1" in drawn and drawn.count('class="band') == 13


def test_answers_that_do_not_belong_together_are_not_paired(killed: Path) -> None:
    before = (killed / "heldout_answers_before.jsonl").read_text()
    after = killed / "heldout_answers_after.jsonl"
    others = "The answers before and after belong to different rows."
    for text, said in (
        ("".join(before.splitlines(keepends=True)[1:]), others),
        (before[:-20], "heldout_answers_after.jsonl could not be read"),
    ):
        after.write_text(text)
        (run,) = read_runs([str(killed)])
        assert not run.answers and not run.changes and said in " ".join(run.missing)


@pytest.mark.parametrize("config", [None, "completion_only_loss: true", "", "- a", "a: [\n"])
def test_what_is_no_run_is_one_message(config: str | None, tmp_path: Path) -> None:
    if config is not None:
        (tmp_path / "resolved_config.yaml").write_text(config)
    error = script("report.py", "--run", str(tmp_path), cwd=tmp_path, code=2).stderr
    error = " ".join(error.split())
    assert "is not a run of rookworld grpo; give the output_dir" in error
    assert ("resolved_config.yaml could not be read" in error) is (config in ("", "- a", "a: [\n"))


@pytest.mark.parametrize(("width", "scheme"), zip(WIDTHS, ("light", "dark", "light"), strict=True))
def test_plots_and_boards_are_seen(browser: Browser, one: Path, width: int, scheme: str) -> None:
    browser.console()
    browser.open(one, width, scheme)
    for left, top, wide, high in browser.boxes(".verdict, #heldout h2"):
        assert left >= 0 and left + wide <= width and top + high <= HEIGHT, "without scrolling"
    browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    shot = browser.screenshot()
    assert browser.console() == []
    assert browser.ask("return performance.getEntriesByType('resource').length") == 0
    assert browser.overflow() <= 0 and browser.strays() == []
    unnamed = "svg:not(svg svg, [aria-label], [aria-hidden]), section:not(:has(h2))"
    assert browser.ask(f"return document.querySelectorAll('{unnamed}').length") == 0
    paper = colour(browser.ask("return getComputedStyle(document.body).backgroundColor"))
    assert (sum(paper) < 150) == (scheme == "dark")
    plots, boards = browser.boxes(".plot > svg"), browser.boxes(".board > svg")
    assert len(plots) >= 17 and len(boards) >= 8
    for boxes, narrowest, least, most in ((plots, 250, 0.005, 0.9), (boards, 120, 0.8, 1.0)):
        for box in boxes:
            left, _, wide, high = box
            assert wide >= narrowest and high >= 120 and left >= 0 and left + wide <= width
            assert least < painted(shot, box, paper) <= most


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_short_until_it_is_unfolded(browser: Browser, one: Path, width: int) -> None:
    browser.open(one, width)
    assert browser.ask("return document.documentElement.scrollHeight") <= 4_000
    numbers = browser.boxes(".numbers b")
    assert len(numbers) == 2, "a large number for each headline"
    ((_, top, _, high),) = browser.boxes(".summary .plot > svg")
    assert top + high <= HEIGHT, "the main curve is beside the verdict, or right below it"
    shown = browser.ask(
        "return [...document.querySelectorAll('#heldout td:last-child')]"
        ".filter(e => e.checkVisibility()).map(e => [e.innerText, e.getBoundingClientRect().right])"
    )
    assert len(shown) == 2, "the other metrics are folded"
    assert all(re.search("p [=<] ", text) and right <= width for text, right in shown), shown


def test_shares_have_one_axis_and_another_that_leaves_out_0_says_so() -> None:
    share = plot("share", [Series("run", [(0, 0.81), (9, 0.84)])], is_share=True)
    assert ">0%</text>" in share and ">100%</text>" in share and "not from 0" not in share
    number = plot("norm", [Series("run", [(0, 1.1), (9, 1.4)])])
    assert "<figcaption>norm <small>y from 1.1, not from 0</small></figcaption>" in number
    assert "not from 0" not in plot("norm", [Series("run", [(0, 0.0), (9, 1.4)])])


def luminance(colour: str) -> float:
    """As WCAG 2.2 defines it, 0 to 1."""
    parts = [part / 255 for part in ImageColor.getrgb(colour)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def test_text_and_lines_stand_out() -> None:
    style = Path(asset_path("templates/style.css")).read_text()
    for scheme in re.findall(r":root{(.*?)}", style, re.S)[:2]:  # light, dark
        colours = dict(re.findall(r"--(\w+):(#\w+)", scheme))
        paper = luminance(colours["paper"])
        for name, value in colours.items():
            least = 4.5 if name in ("ink", "mute", "bar") else 3 if name[0] == "c" else 1
            low, high = sorted((luminance(value), paper))
            assert (high + 0.05) / (low + 0.05) >= least, f"WCAG 1.4.3 and 1.4.11: {name}"
        assert len({colours[f"c{place}"] for place in range(8)}) == 8
