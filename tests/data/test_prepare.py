"""Labelled data sets: nothing lost, nothing twice, the same values whatever dies on the way."""

import contextlib
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from rookworld_rlvr.common.errors import ConfigurationError, EngineError, RookWorldError
from rookworld_rlvr.data import prepare as prepare_module
from rookworld_rlvr.data import synthesis
from rookworld_rlvr.data.prepare import PrepareArguments, PrepareReport, read_rows, write_labelled
from rookworld_rlvr.data.sources import dataset_file, read_provenance, values_line
from rookworld_rlvr.engine import EngineArguments
from rookworld_rlvr.engine.labeller import Labeller
from rookworld_rlvr.tasks.policy import parse_policy_answer
from rookworld_rlvr.tasks.registry import split_row
from rookworld_rlvr.tasks.types import values_by_move

from ..engines import valued, wait_until, wait_until_valued
from ..rows import write_jsonl
from ..support import REPOSITORY, recipe, script, started

SCRIPT = REPOSITORY / "recipes" / "prepare.py"
ASKED = "A: 6k1/5ppp/8/8/8/8/7P/R6K w - - 0 1+h2h4+h2h4+"
ENVIRONMENT = f"{ASKED}6k1/5ppp/8/8/7P/8/8/R6K b - h3 0 1+0.001+0+0"
MATE = "P: 6k1/5ppp/8/8/8/8/7P/R6K w - - 0 1 M: a1a8 a1a7 h2h4 E: 1.0 5.0 3.0 B: h2h4"
Table = list[dict[str, Any]]
pytestmark = pytest.mark.usefixtures("stockfish")


def policy_lines(count: int) -> list[str]:
    """Openings with an answer that names the first legal moves, as good as any."""
    fens = dict.fromkeys(islice(synthesis.opening_positions(5, 6), count))
    return [f"P: {fen} M: a2a3 E: 0.0 B: a2a3" for fen in fens]


def prepare(tmp_path: Path, lines: list[str], **options: Any) -> tuple[Table, PrepareReport, dict]:
    """The story of `recipes/prepare.py` in this process, at depth 2."""
    source_file, output = tmp_path / "rows.txt", tmp_path / "out.parquet"
    source_file.write_text("\n".join(lines) + "\n")
    usual = {"dataset_name": str(source_file), "output_file": str(output), "engine_depth": 2}
    usual["engine_cache"] = str(tmp_path / "values.sqlite")
    args, report = PrepareArguments(**{**usual, **options}), PrepareReport()
    write_labelled(output, read_rows(args, report, tmp_path / "quarantine.jsonl"), args, report)
    return pq.read_table(output).to_pylist(), report, read_provenance(output) or {}


def test_rows_keep_their_order_and_only_policy_rows_get_values(tmp_path: Path) -> None:
    rows, report, _ = prepare(tmp_path, [ENVIRONMENT, MATE, ENVIRONMENT, MATE])
    assert [row["text"][0] for row in rows] == ["A", "P", "A", "P"]
    assert rows[0]["action_values"] is rows[2]["action_values"] is None
    assert (values_by_move(rows[1]["action_values"]) or {})["a1a8"] == 99_999
    assert rows[1] == rows[3], "the same position, the same values"
    assert len(rows[1]["action_values"]) == 17  # 13 of the rook, 2 of the king, 2 of the pawn
    assert report.searches["done"] == 1 and not report.repaired
    stored = rows[1]["action_values"]
    stored[0]["cp"] = 77_777  # still the best: it would be seen if it were asked anew
    name = write_jsonl(tmp_path / "rows.jsonl", [{"text": MATE, "action_values": stored}])
    for labels in ("stored_or_engine", "stored"):
        (row,), _, _ = prepare(tmp_path, [], dataset_name=name, labels=labels)
        assert (values_by_move(row["action_values"]) or {})["a1a8"] == 77_777, labels


def test_repairs_are_made_and_counted(tmp_path: Path) -> None:
    wanted = ["best_move", "environment", "duplicates"]
    rows, report, note = prepare(tmp_path, [ENVIRONMENT, MATE, ENVIRONMENT, MATE], repairs=wanted)
    assert [row["text"][0] for row in rows] == ["A", "P"]
    assert " b - - 0 1+" in rows[0]["text"]
    assert parse_policy_answer(split_row(rows[1]["text"])[2]).best_move == "a1a8"
    assert report.repaired == {"best_move": 1, "environment": 1, "duplicates": 2}
    assert note["counts"]["repaired"] == dict(report.repaired) and note["repairs"] == wanted


def test_a_file_made_from_another_says_who_valued_that_one(tmp_path: Path) -> None:
    _, _, note = prepare(tmp_path, [MATE])
    first = (tmp_path / "out.parquet").rename(tmp_path / "first.parquet")
    prepare(tmp_path, [MATE], dataset_name=str(first), repairs=["duplicates"])
    said = values_line(str(tmp_path / "out.parquet"))
    assert said == values_line(first) and said.startswith(f"{note['engine']}, {note['limit']}")
    prepare(tmp_path, [MATE], dataset_name=str(first), synthetic_policy_rows=1, engine_depth=3)
    new, old = values_line(str(tmp_path / "out.parquet")).split("; ")
    assert old == said and new != old, "the file has rows of both"


def test_no_engine_is_asked_where_no_row_needs_one(tmp_path: Path) -> None:
    rows, report, note = prepare(tmp_path, [ENVIRONMENT], engine_path="/nowhere/stockfish")
    assert len(rows) == 1 and not report.searches and note["engine"] is None
    with pytest.raises(EngineError, match="no program '/nowhere/stockfish'"):
        prepare(tmp_path, [MATE], engine_path="/nowhere/stockfish")


def test_openings_are_made_with_answers_by_the_engine(tmp_path: Path) -> None:
    made = {"dataset_name": "", "synthetic_policy_rows": 6, "synthetic_rows": 3}
    rows, report, note = prepare(tmp_path, [MATE], **made)
    assert [row["text"][0] for row in rows] == ["P"] * 6 + ["A"] * 3
    assert report.rows["made"] == 9 and report.repaired == {"answer": 6}
    for row in rows[:6]:
        values = values_by_move(row["action_values"])
        assert values is not None
        answer = parse_policy_answer(split_row(row["text"])[2])
        assert values[answer.best_move] == max(values.values())
        assert answer.evaluations == tuple(values[move] / 100 for move in answer.moves)
    assert read_provenance(tmp_path / "out.parquet") == note
    assert note["engine"].startswith("Stockfish") and note["limit"] == "depth 2"


def test_the_packaged_values_are_the_engines(packaged) -> None:
    note = read_provenance(dataset_file("rookworld-nano-openings"))
    assert note is not None and note["limit"].startswith("depth 10 ")
    assert note["counts"]["positions"]["given up"] == 0  # its name when they were valued
    assert packaged.report.values.startswith(note["engine"])
    rows = [row for row in packaged.heldout if row["task"] == "policy"][::12]
    with Labeller(EngineArguments(engine_depth=10, engine_cache=":memory:")) as labeller:
        if labeller.source.engine != note["engine"]:
            pytest.skip(f"labelled by {note['engine']}, but here is {labeller.source.engine}")
        found = labeller.values([row["fen"] for row in rows])
    for row, values in zip(rows, found, strict=True):
        assert values is not None
        stored = [(value["move"], value["cp"]) for value in row["action_values"]]
        assert stored == list(values.items())


def test_batches_put_together_are_the_whole(tmp_path: Path, monkeypatch) -> None:
    lines = [*policy_lines(9), ENVIRONMENT, MATE, ENVIRONMENT]
    whole, report, _ = prepare(tmp_path, lines, repairs=["duplicates"])
    (tmp_path / "values.sqlite").unlink()
    monkeypatch.setattr(prepare_module, "ROW_GROUP", 4)
    again, by_chunks, _ = prepare(tmp_path, lines, repairs=["duplicates"])
    assert again == whole and by_chunks == report
    assert pq.ParquetFile(tmp_path / "out.parquet").num_row_groups == -(-len(whole) // 4) > 2


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Table]:
    """Rows, and what a run that nothing happens to makes of them."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "rows.txt").write_text("\n".join([ENVIRONMENT, *policy_lines(36)]) + "\n")
    recipe("prepare").main(argv(folder, folder / "rows.txt"))
    return folder / "rows.txt", pq.read_table(folder / "out.parquet").to_pylist()


def argv(folder: Path, rows: Path) -> list[str]:
    files = ["--dataset_name", str(rows), "--output_file", str(folder / "out.parquet")]
    return [*files, "--engine_cache", str(folder / "values.sqlite"), "--engine_depth", "8"]


def start(folder: Path, rows: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), *argv(folder, rows), "--engine_workers", "2"]
    return started(*command, stderr=subprocess.STDOUT, start_new_session=True)


def kill_an_engine(process: subprocess.Popen[str]) -> None:
    def engines() -> Any:
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name() == "stockfish":
                    yield child

    wait_until(lambda: any(engines()))
    next(engines()).kill()


@pytest.mark.slow
def test_killed_engines_are_replaced_and_a_killed_run_goes_on(tmp_path: Path, undisturbed) -> None:
    rows, expected = undisturbed
    with start(tmp_path, rows) as process:
        for done in (3, 6):
            wait_until_valued(tmp_path, done)
            kill_an_engine(process)
        wait_until_valued(tmp_path, 10)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert not (tmp_path / "out.parquet").exists()
    before = valued(tmp_path)
    assert 10 <= before < len(expected) - 6
    with start(tmp_path, rows) as process:
        for more in (2, 4):
            wait_until_valued(tmp_path, before + more)
            kill_an_engine(process)
        printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    assert "engine replaced at" in printed
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == expected
    counts = (read_provenance(tmp_path / "out.parquet") or {})["counts"]["searches"]
    assert counts["not needed"] >= before
    assert counts["not needed"] + counts["done"] == len(expected) - 1


def test_faults_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"output_file": "rows.txt", "repairs": ["best_mov"], "hub_dataset_id": "nobody"}
    with pytest.raises(ConfigurationError) as caught:
        PrepareArguments(dataset_name="", **wrong)
    for words in ("output_file: 'rows.txt'", "best_move?", "hub_dataset_id: 'nobody'", "missing"):
        assert words in "\n".join(caught.value.faults)
    with pytest.raises(ConfigurationError, match=r"output_file: '' does .*--output_file rows"):
        PrepareArguments(dataset_name="rookworld-nano-openings")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigurationError, match="num_processes: prepare is one process"):
        recipe("prepare").main(["--synthetic_rows", "4", "--output_file", "x.parquet"])


def test_bad_input_ends_with_exit_code_2_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text(MATE + "\n")
    mated = "P: R5k1/5ppp/8/8/8/8/8/7K b - - 0 1 M: a2a3 E: 0.0 B: a2a3\n"
    (tmp_path / "mated.txt").write_text(mated)
    options = "--dataset_name rows.txt --output_file out.parquet --engine_cache values.sqlite"
    for more, words in (
        ("--engine_path /bin/true", "'/bin/true' is not a UCI engine"),
        ("--dataset_name mated.txt", "no legal move to choose"),
        ("--engine_cache rows.txt", "engine_cache: cannot use 'rows.txt'"),
    ):
        done = script("prepare.py", *f"{options} {more}".split(), cwd=tmp_path, code=2)
        assert words in done.stderr, done.stdout + done.stderr
        assert not (tmp_path / "out.parquet").exists()


def test_a_failed_upload_keeps_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "rows.txt").write_text(ENVIRONMENT + "\n")
    push = ["--hub_dataset_id", "nobody/nothing"]
    with pytest.raises(RookWorldError, match=r"'nobody/nothing' could not be written .* complete"):
        recipe("prepare").main([*argv(tmp_path, tmp_path / "rows.txt"), *push])
    assert read_provenance(tmp_path / "out.parquet") is not None
