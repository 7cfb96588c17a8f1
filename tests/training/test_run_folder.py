import json
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import chess
import pytest

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.common.stats import Estimate
from rookworld_rlvr.data.loading import LoadedData
from rookworld_rlvr.engine.truth import PolicyTruth
from rookworld_rlvr.tasks.metrics import evaluate_completions
from rookworld_rlvr.tasks.registry import TASKS
from rookworld_rlvr.training.checkpoints import seal
from rookworld_rlvr.training.results import HELDOUT_BEFORE, write_results
from rookworld_rlvr.training.resuming import starting_point
from rookworld_rlvr.training.run_folder import (
    close_provenance,
    foreign_faults,
    goes_on,
    open_folder,
    open_provenance,
    quarantine_path,
    resume_point,
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "checkpoint-20"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text('{"global_step": 20}')
    seal(folder)
    return folder


def test_the_last_checkpoint_a_folder_or_none(checkpoint: Path, tmp_path: Path) -> None:
    run, other = checkpoint.parent, tmp_path / "other"
    (run / "resolved_config.yaml").write_text("a: 1")
    (run / "trainer_state.json").write_text("{}")  # its whole log, without an optimiser's state
    for wish, folder, expected in (
        (None, run, None),
        ("false", run, None),
        ("true", run, checkpoint),
        ("auto", run, checkpoint),
        (str(checkpoint), other, checkpoint),
        ("auto", other, None),
    ):
        assert resume_point(wish, folder, "a: 1") == expected
    for wish, folder, words in (
        ("true", other, "give auto to start a new run"),
        (str(tmp_path / "missing"), tmp_path, r"missing' is damaged or no checkpoint"),
        (str(run), run, r"run' is damaged or no checkpoint \(manifest"),
    ):
        with pytest.raises(RookWorldError, match=words):
            resume_point(wish, folder, "a: 1")
    assert goes_on(run, checkpoint)
    assert not goes_on(other, checkpoint) and not goes_on(run, None), "another run"


def test_auto_knows_a_finished_run(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = checkpoint.parent
    (run / "resolved_config.yaml").write_text("# from step 2: max_steps 1 -> 2\na: 1\n")
    assert resume_point("auto", run, "a: 1") == checkpoint, "it was killed"
    (run / "README.md").write_text("the card, which is written last")
    with pytest.raises(SystemExit) as ended:
        resume_point("auto", run, "a: 1")
    assert ended.value.code == 0 and "is finished; see its README.md" in capsys.readouterr().out
    assert resume_point("true", run, "a: 1") == checkpoint
    assert resume_point("auto", run, "a: 2") is None
    assert "had other keys (a 1 -> 2): a new run starts" in capsys.readouterr().out
    open_folder(run, keep=True, resolved="a: 1", quarantine=run / "none")  # more steps, by true
    assert resume_point("auto", run, "a: 1") == checkpoint


def test_an_earlier_run_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "nano"
    for text in ("one", "two", "three"):
        quarantine_path(run).parent.mkdir(exist_ok=True)
        quarantine_path(run).write_text("a bad row\n")
        (run.parent / "nano.quarantine.eval.jsonl").write_text("of the evaluation\n")
        open_folder(run, keep=False, resolved=text, quarantine=quarantine_path(run))
        assert (run / "quarantine.jsonl").read_text() == "a bad row\n"
        assert (run / "quarantine.eval.jsonl").read_text() == "of the evaluation\n"
        assert not [*run.parent.glob("*.jsonl")]
    written = {path.parent.name: path.read_text() for path in run.parent.glob("*/*.yaml")}
    assert written == {"nano.1": "one", "nano.2": "two", "nano": "three"}
    open_folder(run, keep=True, resolved="four", quarantine=quarantine_path(run))
    assert (run / "resolved_config.yaml").read_text() == "three", "until it is noted what changed"
    assert not (tmp_path / "runs" / "nano.3").exists()


def test_a_folder_that_another_run_writes_to_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "nano"
    open_folder(run, keep=False, resolved="one", quarantine=tmp_path / "none")
    code = "import sys, pathlib, rookworld_rlvr.common.terminal as terminal; "
    code += f"terminal.keep_log(pathlib.Path({str(run)!r})); print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=PIPE, stdout=PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "ready\n"
        for keep in (False, True):
            with pytest.raises(RookWorldError, match="another run is writing to"):
                open_folder(run, keep=keep, resolved="two", quarantine=tmp_path / "none")
        other.kill()
    open_folder(run, keep=False, resolved="two", quarantine=tmp_path / "none")
    assert (tmp_path / "nano.1" / "resolved_config.yaml").read_text() == "one"


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RookWorldError, match="not from a run"):
        open_folder(tmp_path, keep=False, resolved="", quarantine=tmp_path / "none")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_kill_while_the_first_file_is_written_leaves_a_folder_to_start_in(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "resolved_config.yaml.incomplete").write_text("half of")
    assert foreign_faults(run) == []
    open_folder(run, keep=False, resolved="whole", quarantine=tmp_path / "none")
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "resolved_config.yaml"]


def test_a_run_that_goes_on_remembers_where_it_began(
    checkpoint: Path, packaged: LoadedData
) -> None:
    run, rows = checkpoint.parent, packaged.heldout
    assert starting_point(checkpoint, rows) is None, "nothing was kept"
    texts = [TASKS[row["task"]].reference(row) for row in rows]
    before: dict[str, Any] = {**evaluate_completions(rows, texts)}
    before["rewards/short"] = Estimate(-2.5, -3.0, -2.0, 9)  # of a reward that gives None for some
    write_results(run / HELDOUT_BEFORE, {"before": before})
    assert starting_point(checkpoint, rows) == before
    with pytest.raises(RookWorldError, match="other held-out rows"):
        starting_point(checkpoint, rows.select(range(30)))


def test_each_start_of_a_run_is_a_session(packaged: LoadedData, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint-2"
    checkpoint.mkdir()
    (checkpoint / "trainer_state.json").write_text('{"global_step": 2}')
    first, second = "save_steps: 1\n", "save_steps: 2\n"
    open_provenance(tmp_path, first, packaged, PolicyTruth(), processes=1)
    line = "from step 2: save_steps 1 -> 2"
    at = 2, checkpoint
    assert open_provenance(tmp_path, second, packaged, PolicyTruth(), *at) == [line]
    assert (tmp_path / "resolved_config.yaml").read_text() == f"# {line}\n{second}"
    close_provenance(tmp_path, started=0.0, parameters=7)
    killed, ended = json.loads((tmp_path / "provenance.json").read_text())["sessions"]
    assert killed["resumed_from"] is None and "seconds" not in killed
    assert ended["resumed_from"] == str(checkpoint) and ended["parameters"] == 7
    assert (ended["from_step"], ended["changed"]) == (2, {"save_steps": [1, 2]})
    assert ended["versions"]["chess"] == chess.__version__
    assert ended["data"]["heldout"] == dict(packaged.report.heldout)
    open_provenance(tmp_path, "a: 1", packaged, PolicyTruth(), processes=1)
    assert len(json.loads((tmp_path / "provenance.json").read_text())["sessions"]) == 1
