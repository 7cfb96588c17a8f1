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
from rookworld_rlvr.training import run_folder
from rookworld_rlvr.training.results import HELDOUT_BEFORE, write_results
from rookworld_rlvr.training.resuming import starting_point

from .test_resuming import write


def reopen(run: Path, resolved: str, keep: bool = False) -> None:
    run_folder.open_folder(run, keep, resolved, run_folder.quarantine_path(run))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write(tmp_path / "run", "a: 1", step=20)


def test_the_last_checkpoint_a_folder_or_none(checkpoint: Path, tmp_path: Path) -> None:
    run, other = checkpoint.parent, tmp_path / "other"
    (run / "trainer_state.json").write_text("{}")  # its whole log, without an optimiser's state
    for copy in ("checkpoint-50.bak", "damaged-checkpoint-60"):
        (run / copy).mkdir()
    for wish, folder in ((None, run), ("false", run), ("auto", other)):
        assert run_folder.resume_point(wish, folder, "a: 1") is None
    for wish, folder in (("true", run), ("auto", run), (str(checkpoint), other)):
        assert run_folder.resume_point(wish, folder, "a: 1") == checkpoint
    for wish, folder, words in (
        ("true", other, "give auto to start a new run"),
        (str(tmp_path / "missing"), tmp_path, r"missing' is damaged or no checkpoint"),
        (str(run), run, r"run' is damaged or no checkpoint \(manifest"),
    ):
        with pytest.raises(RookWorldError, match=words):
            run_folder.resume_point(wish, folder, "a: 1")
    assert run_folder.goes_on(run, checkpoint)
    assert not run_folder.goes_on(other, checkpoint), "another run"
    assert not run_folder.goes_on(run, None)


def test_auto_knows_a_finished_run(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = checkpoint.parent
    (run / "resolved_config.yaml").write_text("# from step 2: max_steps 1 -> 2\na: 1\n")
    assert run_folder.resume_point("auto", run, "a: 1") == checkpoint, "it was killed"
    (run / "README.md").write_text("the card, which is written last")
    with pytest.raises(SystemExit) as ended:
        run_folder.resume_point("auto", run, "a: 1")
    assert ended.value.code == 0 and "is finished; see its README.md" in capsys.readouterr().out
    assert run_folder.resume_point("true", run, "a: 1") == checkpoint
    assert run_folder.resume_point("auto", run, "a: 2") is None
    assert "had other keys (a 1 -> 2): a new run starts" in capsys.readouterr().out
    reopen(run, "a: 1", keep=True)  # more steps, by true
    assert run_folder.resume_point("auto", run, "a: 1") == checkpoint


def test_an_earlier_run_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "nano"
    for text in ("one", "two", "three"):
        run_folder.quarantine_path(run).parent.mkdir(exist_ok=True)
        run_folder.quarantine_path(run).write_text("a bad row\n")
        (run.parent / "nano.quarantine.eval.jsonl").write_text("of the evaluation\n")
        reopen(run, text)
        assert (run / "quarantine.jsonl").read_text() == "a bad row\n"
        assert (run / "quarantine.eval.jsonl").read_text() == "of the evaluation\n"
        assert not [*run.parent.glob("*.jsonl")]
    written = {path.parent.name: path.read_text() for path in run.parent.glob("*/*.yaml")}
    assert written == {"nano.1": "one", "nano.2": "two", "nano": "three"}
    reopen(run, "four", keep=True)
    assert (run / "resolved_config.yaml").read_text() == "three", "until it is noted what changed"
    assert not (run.parent / "nano.3").exists()


def test_a_folder_that_another_run_writes_to_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "nano"
    reopen(run, "one")
    code = "import pathlib, rookworld_rlvr.common.terminal as terminal; "
    code += f"terminal.keep_log(pathlib.Path({str(run)!r})); print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE, text=True) as one:
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
        for keep in (False, True):
            with pytest.raises(RookWorldError, match="another run is writing to"):
                reopen(run, "two", keep)
        one.kill()
    reopen(run, "two")
    assert (tmp_path / "nano.1" / "resolved_config.yaml").read_text() == "one"


def test_a_kill_while_the_first_file_is_written_leaves_a_folder_to_start_in(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "resolved_config.yaml.incomplete").write_text("half of")
    reopen(run, "whole")
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "resolved_config.yaml"]
    with pytest.raises(RookWorldError, match="not from a run"):
        reopen(tmp_path, "of a folder that is none")
    assert (run / "resolved_config.yaml").read_text() == "whole"


def test_a_run_remembers_where_it_began(checkpoint: Path, packaged: LoadedData) -> None:
    run, rows = checkpoint.parent, packaged.heldout
    assert starting_point(checkpoint, rows) is None, "nothing was kept"
    texts = [TASKS[row["task"]].reference(row) for row in rows]
    before: dict[str, Any] = {**evaluate_completions(rows, texts)}
    before["rewards/short"] = Estimate(-2.5, -3.0, -2.0, 9)  # of a reward that gives None for some
    write_results(run / HELDOUT_BEFORE, {"before": before})
    assert starting_point(checkpoint, rows) == before
    with pytest.raises(RookWorldError, match="other held-out rows"):
        starting_point(checkpoint, rows.select(range(30)))


def test_each_start_of_a_run_is_a_session(checkpoint: Path, packaged: LoadedData) -> None:
    run, data = checkpoint.parent, (packaged, PolicyTruth())
    run_folder.open_provenance(run, "save_steps: 1\n", *data, processes=1)
    line = "from step 20: save_steps 1 -> 2"
    assert run_folder.open_provenance(run, "save_steps: 2\n", *data, 2, checkpoint) == [line]
    assert (run / "resolved_config.yaml").read_text() == f"# {line}\nsave_steps: 2\n"
    run_folder.close_provenance(run, started=0.0, parameters=7)
    killed, ended = json.loads((run / "provenance.json").read_text())["sessions"]
    assert killed["resumed_from"] is None and "seconds" not in killed
    assert ended["resumed_from"] == str(checkpoint) and ended["parameters"] == 7
    assert (ended["from_step"], ended["changed"]) == (20, {"save_steps": [1, 2]})
    assert ended["versions"]["chess"] == chess.__version__
    assert ended["data"]["heldout"] == dict(packaged.report.heldout)
    run_folder.open_provenance(run, "a: 1", *data, processes=1)
    assert len(json.loads((run / "provenance.json").read_text())["sessions"]) == 1
