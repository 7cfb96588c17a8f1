"""A report shows what comes from a model, a file or a user as text."""

import json
import shutil
from pathlib import Path

import yaml

from rookworld_rlvr.extras.report.page import page
from rookworld_rlvr.extras.report.record import read_runs

from ...browser import Browser
from ...nasty import NASTY, Outline, assert_runs_nothing, nasty
from ...recipes.test_security import run
from ...rows import write_jsonl

__all__ = ["run"]


def run_of(word: str, run: Path, target: Path) -> Path:
    """A run's folder with a word wherever a text comes from a model, a file or a user."""
    shutil.copytree(run, target, ignore=shutil.ignore_patterns("checkpoint-*", "*.safetensors"))
    for when, completion in (("before", word), ("after", f"x {word}")):
        path = target / f"heldout_answers_{when}.jsonl"
        first = {row["task"]: row for row in map(json.loads, path.read_text().splitlines()[::-1])}
        write_jsonl(path, [{**r, "completion": completion, "prompt": word} for r in first.values()])
    finding = {"step": 1, "severity": "warning", "rule": word, "message": f"`{word}` {word}"}
    write_jsonl(target / "health.jsonl", [finding])
    names = ("provenance", "results", "trainer_state")
    told, results, state = (json.loads((target / f"{name}.json").read_text()) for name in names)
    told["sessions"][-1]["data"]["values"] = word
    told["sessions"][-1] |= {**dict.fromkeys(("command", "platform", "commit"), word)}
    told["sessions"][-1] |= {"devices": [word], "versions": {word: word}}
    results["heldout"][f"environment/{word}"] = next(iter(results["heldout"].values()))
    results["preflight"] = {word: 0.1}
    for logs in state["log_history"]:
        logs |= {f"eval_environment/{word}": 0.5, f"rewards/{word}/mean": 0.5}
    metrics = {word: {"value": 0.5, "low": 0.4, "high": 0.6, "n": 5}}
    suite = {"version": 1, "n": 5, "seed": 0, "decoding": {"name": word}, "metrics": metrics}
    evaluation = {"schema_version": 1, "model": word, "suites": {word: suite}, "compared": []}
    evaluation["left_out"] = {word: word}
    contents = (told, results, state, evaluation)
    for name, content in zip((*names, "evaluation"), contents, strict=True):
        (target / f"{name}.json").write_text(json.dumps(content))
    config = yaml.safe_load((target / "resolved_config.yaml").read_text())
    config |= {"dataset_name": word, "model_name_or_path": word, "tasks_from": [word], word: word}
    config["rewards"] = [{"name": word, "weight": 1, "of": word}]
    (target / "resolved_config.yaml").write_text(json.dumps(config))
    return target


def run_page(word: str, run: Path, target: Path) -> str:
    (record,) = read_runs([str(run_of(word, run, target))])
    record.name = word
    return str(page([record]))  # as Markup, it would escape what is added


def test_a_report_shows_texts_as_texts(run: Path, tmp_path: Path) -> None:
    harmless = Outline(run_page("harmless words", run, tmp_path / "harmless")).found
    assert len(harmless) > 60 and ("mark", "title") in harmless
    for place, word in enumerate(nasty()):
        drawn = run_page(word, run, tmp_path / str(place))
        assert Outline(drawn).found <= harmless, repr(word)
        assert drawn.encode(errors="backslashreplace")


def test_browsers_run_nothing(browser: Browser, run: Path, tmp_path: Path) -> None:
    drawn = run_page(" ".join(NASTY), run, tmp_path / "planted")
    assert_runs_nothing(browser, drawn, tmp_path / "run.html")
