"""A W&B offline run of the real recipe, read back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wandb.proto.wandb_internal_pb2 import Record

from rookworld_rlvr.extras.workspace.boards import Curves, WandbDashboard
from rookworld_rlvr.rewards.registry import known_rewards
from rookworld_rlvr.tasks.metrics import metrics
from rookworld_rlvr.training.glossary import GLOSSARY, dashboard_key, explain

from ... import killed
from ...recipes.test_recipes import SMALL, run_apart
from ...recipes.test_resume import SMALL as RESUMED
from ...recipes.test_resume import folder

__all__ = ["folder"]


def records(run: Path, kind: str) -> Iterator[Any]:
    """What a run left behind for `wandb sync`, of a kind, in LevelDB's log format.

    Source: https://github.com/google/leveldb/blob/main/doc/log_format.md; blocks of 32 KiB, before
    each fragment its checksum (4 bytes), length (2) and type (1: whole, 2 to 4: first to last). W&B's
    file starts with 7 bytes of its own.
    """
    (path,) = run.glob("wandb/offline-run-*/*.wandb")
    data, place, pending = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := 32_768 - place % 32_768) < 7:
            place += left
            continue
        length, fragment = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        pending += data[place + 7 : place + 7 + length]
        place += 7 + length
        if fragment in (1, 4):
            record, pending = Record.FromString(pending), b""
            if record.WhichOneof("record_type") == kind:
                yield getattr(record, kind)


def keys_of(run: Path) -> set[str]:
    """Keys logged, of tables only their names, and those set beside the history."""
    items = [item for row in records(run, "history") for item in row.item]
    logged = {item.key or "/".join(item.nested_key) for item in items}
    tables = {key.split("/")[0] for key in logged if key.endswith("/_type")}
    rest = {key for key in logged if key[0] != "_" and key.split("/")[0] not in tables}
    beside = {item.key for row in records(run, "summary") for item in row.update}
    return rest | tables | {key for key in beside if "/" in key}


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the packaged recipe, two steps, with W&B and without a key."""
    folder = tmp_path_factory.mktemp("offline")
    words = "--output_dir run --max_completion_length 64 --report_to wandb".split()
    printed = run_apart("grpo.py", *SMALL, *words, cwd=folder)
    assert "W&B runs offline; its files are in run/wandb" in printed
    return folder / "run"


def test_every_key_of_a_run_is_documented_and_the_other_way_round(offline: Path) -> None:
    logged = keys_of(offline)
    assert len(logged) > 60
    explained = {key: explain(key) for key in sorted(logged)}
    assert [key for key, entry in explained.items() if entry is None] == []
    entries = {entry.key for entry in explained.values() if entry is not None}
    assert sorted({m.key for m in GLOSSARY if m.always} - entries) == []
    of_others = {f"eval/{name}" for name, (task, _) in metrics().items() if task.name == "fill_in"}
    assert {f"eval/{name}" for name in metrics()} - of_others <= logged
    assert not of_others & logged, "a run without such rows"
    assert not any(key.startswith(("train/reward", "train/health", "train/eval")) for key in logged)


def test_tables_hold_pictures_and_lie_in_the_run_s_folder(offline: Path) -> None:
    artifacts = list(records(offline, "artifact"))
    assert any(one.name.endswith("-completions") for one in artifacts), "TRL's table"
    (boards,) = (one for one in artifacts if one.name.endswith("-boards"))  # the last step's alone
    files = {entry.path: Path(entry.local_path) for entry in boards.manifest.contents}
    assert sum(path.stat().st_size for path in files.values()) < 400_000
    assert all(path.is_relative_to(offline) for path in files.values())
    table = json.loads(files["boards.table.json"].read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert len(rows) == 8
    for row in rows:
        assert row["prompt"].startswith("P:" if row["task"] == "policy" else "A:")
        assert isinstance(row["advantage"], float)
        judged = {name for name in known_rewards() if row.get(name) is not None}
        assert judged and all(name.startswith(row["task"]) for name in judged)
        picture = files[row["board"]["path"]].read_text()
        assert row["board"]["_type"] == "html-file" and picture.startswith("<svg")
        if row["task"] == "environment":
            assert f"python-chess, after {row['prompt'].split('+')[1]}" in picture
        else:  # the row's own values are the truth
            assert any(word in picture for word in ("engine ", ": best", "unreadable"))


def test_the_summary_has_the_result_and_no_constant_is_a_curve(offline: Path) -> None:
    updates = [item for row in records(offline, "summary") for item in row.update]
    summary = {
        item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in updates
    }
    result = json.loads((offline / "results.json").read_text())
    assert summary["train/kept_step"] == result["best_step"]
    for name in ("environment/exact", "policy/expected_score"):
        sides = {s: summary[f"eval/change/{name}/{s}"] for s in ("before", "after", "difference")}
        assert sides["before"] == pytest.approx(result["heldout"][name]["before"])
        assert sides["difference"] == pytest.approx(sides["after"] - sides["before"])
        assert summary[f"eval/change/{name}/low"] <= summary[f"eval/change/{name}/high"]
    logged: dict[str, set[str]] = {}
    for row in records(offline, "history"):
        for item in row.item:
            logged.setdefault(item.key or "/".join(item.nested_key), set()).add(item.value_json)
    assert "health/skipped_steps" not in logged and summary["health/skipped_steps"] == 0
    steps = ("health/", "train/clip_ratio")
    flat = [key for key, values in logged.items() if key.startswith(steps) and len(values) == 1]
    assert set(flat) <= {"health/unreadable"}, "the overview shows it from the first step on"


def test_a_number_becomes_a_curve_when_it_changes() -> None:
    curves = Curves()
    key, at = "health/skipped_steps", "train/global_step"
    for step in (1, 2, 3):
        assert curves.take({key: 0.0}, step) == ([{at: step}], {key: 0.0})
    ends = [{at: 1, key: 0.0}, {at: 3, key: 0.0}]
    assert curves.take({key: 1.0}, 4) == ([*ends, {at: 4, key: 1.0}], {})
    assert curves.take({key: 1.0}, 5) == ([{at: 5, key: 1.0}], {}), "a curve from now on"
    nan = float("nan")
    assert curves.take({"train/grad_norm": nan}, 1)[0] == [{at: 1}]
    assert curves.take({"train/grad_norm": nan}, 2)[0] == [{at: 2}], "no number is no change"
    rows, _ = curves.take({"train/grad_norm": 0.5}, 3)
    assert [row[at] for row in rows] == [1, 2, 3] and rows[-1]["train/grad_norm"] == 0.5
    for shown in ("eval/overall", "reward/policy", "kl/share_of_loss"):
        assert curves.take({shown: 0.5}, 1) == ([{at: 1, shown: 0.5}], {})


def test_curves_of_a_resumed_run_go_on() -> None:
    history = [{"health/skipped_steps": 0.0, "kl": 0.1 * step, "step": step} for step in (1, 2, 3)]
    board = WandbDashboard.__new__(WandbDashboard)
    board.curves, board.is_new = Curves(), True
    board._take_earlier(history)
    board._take_earlier([*history, *history])  # only once
    rows, flat = board.curves.take({dashboard_key("kl"): 0.3, "health/skipped_steps": 0.0}, 4)
    assert rows[-1][dashboard_key("kl")] == 0.3, "it was a curve before"
    assert flat == {"health/skipped_steps": 0.0}
    rows, _ = board.curves.take({"health/skipped_steps": 1.0}, 5)
    assert rows[0] == {"train/global_step": 1, "health/skipped_steps": 0.0}


@pytest.mark.slow
def test_wandb_goes_on_with_the_same_run(folder: Path) -> None:
    code, said = killed.run("grpo.py", RESUMED, folder, killed.Kill("update", 3, 0.0))
    assert code == -9, said[-3000:]
    first = (folder / "run" / "wandb_run_id.txt").read_text()
    code, said = killed.run("grpo.py", RESUMED, folder)
    assert code == 0, said[-3000:]
    assert (folder / "run" / "wandb_run_id.txt").read_text() == first
    logged = list((folder / "run" / "wandb").glob("offline-run-*"))
    assert sum(f"wandb sync run/wandb/{path.name}\n" in said for path in logged) == 1
    assert len(logged) == 2 and all(path.name.endswith(first) for path in logged)
    sessions = json.loads((folder / "run" / "provenance.json").read_text())["sessions"]
    assert [session["resumed_from"] for session in sessions] == [None, "run/checkpoint-2"]
