"""`rookworld analyse`: what it says, what it refuses, and its JSON."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import chess
import pytest

from rookworld_rlvr.common.errors import EngineError
from rookworld_rlvr.inference import analysis as records
from rookworld_rlvr.inference.analyse import main, position_of
from rookworld_rlvr.inference.analysis import Engine, analysis, analysis_text, simulation
from rookworld_rlvr.inference.prompts import Reply
from rookworld_rlvr.tasks.environment import parse_environment_answer
from rookworld_rlvr.tasks.policy import parse_policy_answer, score_policy

MATE = "6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1"
STALEMATE = "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"
MATED = "R5k1/5ppp/8/8/8/8/8/6K1 b - - 1 1"

# The JSON of schema 1, by type; a tuple is a choice, a list holds as many as there are.
VERDICT = {"move": str, "san": str, "pawns": (float, None), "mate": (int, None)}
CANDIDATE = {
    "move": str,
    "san": (str, None),
    "legal": bool,
    "evaluation": (float, None),
    "stockfish": (VERDICT, None),
}
ANALYSIS = {
    "fen": str,
    "moves": [str],
    "side_to_move": str,
    "legal_moves": int,
    "in_check": bool,
    "mates_in_one": [str],
    "ended": (str, None),
    "answer": (str, None),
    "readable": bool,
    "candidates": [CANDIDATE],
    "best_move": (CANDIDATE, None),
    "out_of_depth": [str],
    "flaws": [str],
    "stockfish": (VERDICT, None),
}
FIELD = {
    "name": str,
    "model": (str, float, bool, None),
    "python_chess": (str, float, bool),
    "right": bool,
}
SIMULATION = {
    "fen": str,
    "moves": [str],
    "move": str,
    "san": (str, None),
    "legal": bool,
    "answer": str,
    "readable": bool,
    "right": bool,
    "fields": [FIELD],
    "out_of_depth": [str],
}
DOCUMENT = {
    "schema_version": int,
    "model": str,
    "engine": ({"engine": str, "limit": str}, None),
    "engine_absent": (str, None),
    "positions": [ANALYSIS],
    "simulations": [SIMULATION],
}


def fits(value: Any, form: Any) -> bool:
    if isinstance(form, tuple):
        return any(fits(value, one) for one in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(fits(item, form[0]) for item in value)
    if isinstance(form, dict):
        keys = isinstance(value, dict) and list(value) == list(form)
        return keys and all(fits(value[key], one) for key, one in form.items())
    return value is None if form is None else type(value) is form


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """The JSON document of a command that succeeds."""
    assert main([*words, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert fits(content, DOCUMENT), content
    assert content["schema_version"] == 1 == records.SCHEMA_VERSION
    return content


def reply(text: str) -> Reply:
    return Reply(text, parse_policy_answer(text))


# --------------------------------------------------------------------------------------------------
# Positions
# --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("moves", [[], ["e2e4"], ["1.e4 e5", "Nf3"]])
def test_openings_get_legal_moves_with_evaluations(
    moves: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    content = asked(capsys, "--no_engine", *(["--moves", *moves] if moves else []))
    (found,) = content["positions"]
    board = chess.Board()
    for move in found["moves"]:
        board.push_uci(move)
    assert found["fen"] == board.fen()
    assert content["engine"] is None and "--no_engine" in content["engine_absent"]
    legal = [row for row in found["candidates"] if row["legal"]]
    assert legal and all(row["evaluation"] is not None for row in found["candidates"])
    for row in legal:
        assert board.parse_san(row["san"]).uci() == row["move"]
    assert not any("trained on" in reason for reason in found["out_of_depth"])


def test_a_position_unlike_the_training_is_said_with_the_truth_beside_it(
    capsys: pytest.CaptureFixture[str], stockfish: str
) -> None:
    (found,) = asked(capsys, "--fen", MATE)["positions"]
    assert "6 pieces and pawns, trained on 30 to 32" in found["out_of_depth"]
    assert found["mates_in_one"] == ["a1a8"]
    assert found["stockfish"] == {"move": "a1a8", "san": "Ra8#", "pawns": None, "mate": 1}
    assert main(["--fen", MATE]) == 0
    text = capsys.readouterr().out
    assert "♜" not in text and "♖" in text, "a board"
    assert "best move of Stockfish: Ra8# (mate in 1)" in text
    assert "out of its depth: " in text


@pytest.mark.parametrize(("fen", "how"), [(STALEMATE, "stalemate"), (MATED, "checkmate")])
def test_there_is_nothing_to_analyse_where_the_game_is_over(
    fen: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = asked(capsys, "--fen", fen)["positions"]
    assert (found["ended"], found["answer"], found["candidates"]) == (how, None, [])
    assert main(["--fen", fen]) == 0
    assert f"nothing to analyse: {how}" in capsys.readouterr().out


def test_an_engine_that_is_not_there_is_said_and_no_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(path: str | None = None) -> str:
        raise EngineError("no chess engine found: install one")

    monkeypatch.setattr("rookworld_rlvr.engine.pool.find_engine", none)
    assert main([]) == 0
    assert "Stockfish: not asked (no chess engine found: install one)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fen", "8/8/8/8/8/8/8/8 w - - 0 1"], "not a legal chess position"),
        (["--fen", "e4"], "a FEN has six fields: 'e4'; a FEN is written like '"),
        (["--moves", "e4", "e4"], "'e4' cannot be played here (illegal)"),
        (["--moves", "0000"], "'0000' cannot be played here"),
        (["--model", "nowhere", "--no_engine"], "model: 'nowhere' is neither packaged"),
        (["--file", "nowhere.fen"], "cannot read 'nowhere.fen' (No such file"),
        (["--file", "x", "--fen", "y"], "--file: excludes --fen"),
        (["--environment"], "--environment and --move need each other"),
        (["--move", "e2e4"], "--environment and --move need each other"),
        (["--environment", "--move", "Qh9"], "'Qh9' cannot be played here (unreadable)"),
        (["--engine_depth", "1"], "--engine_depth: 1 is below 2"),
        (["--engine_depth", "9", "--no_engine"], "--no_engine excludes --engine_depth"),
    ],
)
def test_faults_are_one_message_and_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert said in err and err.startswith("rookworld analyse: ") and not out


# --------------------------------------------------------------------------------------------------
# A file
# --------------------------------------------------------------------------------------------------
def test_a_file_is_answered_in_batches_as_each_position_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(0)
    fens = [MATE, STALEMATE]
    while len(fens) < 1_000:
        board = chess.Board()
        for _ in range(draw.randrange(6)):
            board.push(draw.choice(list(board.legal_moves)))
        fens.append(board.fen())
    path = tmp_path / "positions.fen"
    path.write_text("\n\n".join(fens) + "\n")
    assert main(["--file", str(path)]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert [line.split("  ")[0] for line in lines] == fens
    assert "nothing to analyse: stalemate" in lines[1] and "trained on 30 to 32" in lines[0]
    assert f"{len({*fens} - {STALEMATE}):,} different positions in " in err and " a second" in err
    few = tmp_path / "few.fen"
    few.write_text("\n".join(fens[:12]))
    together = asked(capsys, "--file", str(few))["positions"]
    alone = [asked(capsys, "--no_engine", "--fen", fen)["positions"][0] for fen in fens[:12]]
    assert together == alone


def test_a_file_s_faults_are_named_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "positions.fen"
    path.write_text("\n".join([chess.STARTING_FEN, "e4", *["8/8/8/8/8/8/8/8 w - - 0 1"] * 12]))
    assert main(["--file", str(path)]) == 2
    err = capsys.readouterr().err
    assert "line 2: a FEN has six fields" in err and "line 3: not a legal chess position" in err
    assert "and 3 more lines" in err
    path.write_text("\n")
    assert main(["--file", str(path)]) == 2
    assert "holds no position" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------
# The environment
# --------------------------------------------------------------------------------------------------
CASTLING = "r1bqk1nr/pppp1ppp/2n5/2b1p3/2B1P3/5N2/PPPP1PPP/RNBQK2R w KQkq - 4 4"


@pytest.mark.parametrize(
    ("fen", "move", "uci", "true", "legal"),
    [
        (CASTLING, "O-O", "e1g1", {"castling": "kq", "reward": 0.001}, True),
        (
            "rnbqkbnr/ppp1p1pp/8/3pPp2/8/8/PPPP1PPP/RNBQKBNR w KQkq f6 0 3",
            "e5f6",
            "e5f6",
            {"board": "rnbqkbnr/ppp1p1pp/5P2/3p4/8/8/PPPP1PPP/RNBQKBNR"},
            True,
        ),
        (
            "7k/4P3/8/8/8/8/8/4K3 w - - 0 1",
            "e8=Q+",
            "e7e8q",
            {"board": "4Q2k/8/8/8/8/8/8/4K3"},
            True,
        ),
        (chess.STARTING_FEN, "e2e5", "e2e5", {"reward": -1.0, "truncated": True}, False),
    ],
)
def test_the_next_state_stands_beside_python_chess_s(
    fen: str,
    move: str,
    uci: str,
    true: dict[str, Any],
    legal: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--environment", "--fen", fen, "--move", move]
    (found,) = asked(capsys, *words)["simulations"]
    assert (found["move"], found["legal"]) == (uci, legal)
    fields = {field["name"]: field for field in found["fields"]}
    assert len(fields) == 9
    assert {name: fields[name]["python_chess"] for name in true} == true
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, field in fields.items():
        (line,) = [line for line in lines if line[2:].startswith(f"{name} ")]
        assert line.startswith("≠") == (found["readable"] and not field["right"])


def test_the_history_is_what_was_played(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--environment --move d7d5 --moves e4".split()
    (found,) = asked(capsys, *words)["simulations"]
    assert found["moves"] == ["e2e4"] and found["fields"][5]["python_chess"] == "2"
    assert found["readable"] and not found["out_of_depth"]


def test_the_right_answer_has_no_mark() -> None:
    text = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1+0.001+0+0"
    right = simulation(chess.STARTING_FEN, "e2e4", Reply(text, parse_environment_answer(text)))
    assert right.right and "≠" not in records.simulation_text(right, "m")
    wrong = text.replace("KQkq", "Kkq").replace("4P3", "3P4")
    found = simulation(chess.STARTING_FEN, "e2e4", Reply(wrong, parse_environment_answer(wrong)))
    shown = records.simulation_text(found, "m")
    assert [field.name for field in found.fields if not field.right] == ["board", "castling"]
    assert shown.count("≠♙") == 2 and shown.count("≠·") == 2 and "m is wrong in: board, ca" in shown


# --------------------------------------------------------------------------------------------------
# What is wrong with an answer
# --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "depth", "flaws"),
    [
        ("M: e2e4 d2d4 E: 0.3 0.2 B: e2e4", [], []),
        ("M: e2e4 e7e5 E: 0.3 0.2 B: e2e4", ["illegal candidate: e7e5"], []),
        (
            "M: e2e4 E: 0.3 B: e7e5",
            ["its best move is illegal: e7e5", "its best move is not among its candidates: e7e5"],
            [],
        ),
        ("M: e2e4 e2e4 E: 0.3 0.2 B: e2e4", [], ["named more than once: e2e4"]),
        ("M: e2e4 d2d4 E: 0.3 B: e2e4", [], ["2 candidates, but 1 evaluations"]),
        (
            "M: e2e4 d2d4 E: 0.3 0.4 B: e2e4",
            [],
            ["its best move has +0.30, the highest evaluation is +0.40"],
        ),
    ],
)
def test_what_is_wrong_with_an_answer_is_said_where_the_scorer_sees_it(
    text: str, depth: list[str], flaws: list[str]
) -> None:
    found = analysis(chess.STARTING_FEN, reply(text))
    assert (list(found.out_of_depth), list(found.flaws)) == (depth, flaws)
    values = {move.uci(): 0 for move in chess.Board().legal_moves}
    score = score_policy(values, text)
    assert (score["legality"] == score["consistency"] == 1) == (not depth and not flaws)


def test_an_unreadable_answer_is_shown_as_it_is() -> None:
    found = analysis(chess.STARTING_FEN, Reply(" rubbish", None, "not the three sections"))
    shown = analysis_text(found, "m", Engine(absent="not asked"))
    assert found.out_of_depth == ("the answer cannot be read: not the three sections",)
    assert "m wrote: rubbish" in shown


def test_mates_are_told_from_pawns() -> None:
    board = chess.Board(MATE)
    assert str(records.verdict(board, "a1a8", 99_999)) == "mate in 1"
    assert str(records.verdict(board, "a1a7", -99_998)) == "mated in 2"
    assert str(records.verdict(board, "a1a7", -31)) == "-0.31"


def test_moves_may_be_written_either_way() -> None:
    expected = position_of(None, ["e2e4", "e7e5", "g1f3"])
    assert position_of(None, ["1. e4 e5 2. Nf3"]) == expected
    assert expected[1] == ("e2e4", "e7e5", "g1f3")


# --------------------------------------------------------------------------------------------------
# The command
# --------------------------------------------------------------------------------------------------
def test_nothing_that_only_training_needs_is_imported(tmp_path: Path) -> None:
    code = """
import sys
from rookworld_rlvr.inference.analyse import main
main(["--no_engine"])
print("imported:", sorted({"trl", "wandb", "datasets", "peft"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.stdout.endswith("imported: []\n"), done.stderr
    assert "best move of rookworld-nano: e4" in done.stdout
    assert not done.stderr


def test_the_command_runs_it_and_lists_it(tmp_path: Path) -> None:
    (tmp_path / "chess.py").write_text("raise RuntimeError('a file of the user')")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rookworld_rlvr.cli.main", "analyse", "--fen", "e4"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 2 and done.stderr.startswith("rookworld analyse: --fen: a FEN has")
