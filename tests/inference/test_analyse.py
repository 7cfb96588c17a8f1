"""`rookworld analyse`: what it says of positions and moves, and what it refuses."""

import json

import chess
import pytest

from rookworld_rlvr.common.errors import EngineError
from rookworld_rlvr.inference.analyse import main, simulation_lines
from rookworld_rlvr.inference.replies import Reply
from rookworld_rlvr.tasks.environment import parse_environment_answer

from ..rows import RIGHT_E4


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command that succeeds prints."""
    assert main(words) == 0
    return capsys.readouterr().out


def test_an_opening_gets_moves_with_evaluations(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--moves", "1.e4", "e7e5", "2.", "Nf3")
    board = chess.Board()
    for move in ("e4", "e5", "Nf3"):
        board.push_san(move)
    assert text.startswith(f"{board.fen()}\n")
    assert "Black to move; 29 legal moves" in text and "trained on" not in text
    # What is behind it in the head depends on the engine.
    rows = text.partition(" model")[2].split("\n\n")[0].splitlines()[1:]
    assert rows and all(row.split()[-1][0] in "+-" for row in rows if "illegal" not in row)
    for row in rows:
        move, san = row[2:].split()[:2]
        assert san == "illegal" or board.parse_san(san).uci() == move


def test_the_truth_is_said_beside_the_answer(capsys, stockfish: str) -> None:
    text = said(capsys, *"--fen 6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1".split())  # without quotes
    assert "♜" not in text and "♖" in text, "a board"
    assert "; mate in one: a1a8\n" in text
    assert "best move of Stockfish: Ra8# (mate in 1)" in text


def test_what_cannot_be_asked_is_said_and_no_error(capsys, monkeypatch) -> None:
    stalemate, mated = "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1", "R5k1/5ppp/8/8/8/8/8/6K1 b - - 1 1"
    assert "nothing to analyse: stalemate" in said(capsys, "--fen", stalemate)
    assert "nothing to analyse: checkmate" in said(capsys, "--fen", mated)

    def none(path: str | None = None) -> str:
        raise EngineError("no chess engine found: install one")

    monkeypatch.setattr("rookworld_rlvr.engine.pool.find_engine", none)
    assert "Stockfish: not asked (no chess engine found: install one)" in said(capsys)


def test_a_fen_may_stand_alone_and_a_model_may_not(capsys, monkeypatch, tmp_path) -> None:
    stalemate = "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"
    for words in ([stalemate], stalemate.split(), ["--model", "rookworld-nano", stalemate]):
        assert said(capsys, *words).startswith(f"{stalemate}\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for name in ("rookworld-nano", "run"):
        assert main([name]) == 2
        assert f"is a model, not a position; write --model {name}" in capsys.readouterr().err


def test_a_program_gets_json(capsys, stockfish: str) -> None:
    found = json.loads(said(capsys, "--json", "6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1"))
    assert found["values"]["a1a8"] == 99_999 and found["engine"].startswith("Stockfish")
    moves = found["text"].partition("E:")[0].split()[1:]
    assert [one["move"] for one in found["candidates"]] == moves
    assert all(one["san"] is None or one["move"] in found["values"] for one in found["candidates"])
    found = json.loads(said(capsys, *"--json --moves e4 --move e5".split()))
    wrong = {name for name, right in found["right"].items() if found["said"][name] != right}
    assert (found["san"], {*found["wrong"]}) == ("e5", wrong)
    found = json.loads(said(capsys, "--json", "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1\r"))
    assert found["over"] == "stalemate" and "candidates" not in found


def test_faults_are_one_message_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words, fault in (
        ("--fen e4", "a FEN has six fields, or four without its clocks"),
        ("--moves e4 Ke3", "'Ke3' is not a legal move of Black's here"),
        ("--moves 0000", "'0000' is not a move"),
        ("--fen 8/8/8/8/8/8/8/8 w - - 0 1", "not a legal chess position"),
        ("--model nowhere", "model: there is no folder 'nowhere'"),
        ("--move Qh9", "'Qh9' is not a move"),
    ):
        assert main(words.split()) == 2
        out, err = capsys.readouterr()
        assert fault in err and err.startswith("rookworld analyse: ") and not out


CASTLING = "r1bqk1nr/pppp1ppp/2n5/2b1p3/2B1P3/5N2/PPPP1PPP/RNBQK2R w KQkq - 4 4"
PROMOTION, QUEEN = "7k/4P3/8/8/8/8/8/4K3 w - - 0 1", "4Q2k/8/8/8/8/8/8/4K3"


def test_the_next_state_is_shown_beside_python_chess_s(capsys) -> None:
    for fen, move, words, true in (
        (CASTLING, "O-O", "e1g1: O-O", {"castling": "kq", "reward": "0.001"}),
        (PROMOTION, "e8=Q+", "e7e8q: e8=Q+", {"board": QUEEN}),
        (chess.STARTING_FEN, "e2e5", "e2e5: illegal", {"reward": "-1.0", "truncated": "True"}),
    ):
        lines = said(capsys, "--fen", fen, "--move", move).splitlines()
        assert lines[1].startswith(words)
        for name, value in true.items():
            (line,) = [line for line in lines if line[2:].startswith(f"{name} ")]
            assert line.endswith(value), "right in the answer, or beside it"


def test_only_what_is_wrong_is_marked() -> None:
    def shown(text: str) -> str:
        answer = Reply(text, parse_environment_answer(text))
        return "\n".join(simulation_lines(chess.STARTING_FEN, "e2e4", "m", answer))

    assert "≠" not in shown(RIGHT_E4) and shown(RIGHT_E4).endswith("m is right")
    wrong = shown(RIGHT_E4.replace("KQkq", "Kkq").replace("4P3", "3P4"))
    assert wrong.endswith("m is wrong in: board, castling") and wrong.count("≠") == 2
    unread = simulation_lines(chess.STARTING_FEN, "e2e4", "m", Reply("rubbish", None, "no fields"))
    assert "≠" not in (text := "\n".join(unread)) and "m wrote: rubbish" in text
