"""Games at the terminal: moves, ways to end, and the PGN that is kept."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import pytest

from rookworld_rlvr.inference import play
from rookworld_rlvr.inference.play import TerminalGame

from ..support import ran
from .answers import reply


class Played:
    """A game with a model whose answers are listed, and what was shown."""

    def __init__(self, words: str, answers: list[str], human: bool = chess.WHITE) -> None:
        self.shown: list[str] = []
        lines, replies = iter(words.split(", ")), map(reply, answers)
        model, show = (lambda _: next(replies)), self.shown.append
        self.game = TerminalGame(chess.Board(), human, "nano", model, show)
        self.game.play(lambda prompt: next(lines))
        self.text = "\n".join(self.shown)
        self.pgn: Any = chess.pgn.read_game(io.StringIO(str(self.game.pgn())))


def test_a_game_to_mate() -> None:
    answers = ["M: f2f3 E: 0.1 B: f2f3", "M: g2g4 E: -0.5 B: g2g4"]
    played = Played("e5, d8h4", answers, human=chess.BLACK)
    assert played.game.result == "0-1" and "0-1 (checkmate)" in played.text
    assert "nano: 1. f3" in played.text
    headers = played.pgn.headers
    assert (headers["White"], headers["Black"], headers["Result"]) == ("nano", "Human", "0-1")
    assert [node.san() for node in played.pgn.mainline()] == ["f3", "e5", "g4", "Qh4#"]


def test_the_models_illegal_moves_are_said_replaced_and_noted_in_the_pgn() -> None:
    played = Played("e4, resign", ["M: e7e4 c7c5 E: 1 0.2 B: e7e4"])
    fault = "the model's best move e7e4 is illegal; its best legal candidate c7c5 is played"
    assert fault in played.text
    assert [node.comment for node in played.pgn.mainline()] == ["", fault]
    assert played.pgn.headers["Result"] == "0-1" and "you resign" in played.text


def test_help_faults_moves_and_the_board_from_the_human_s_side() -> None:
    played = Played("help, Ke5, --, , moves, quit", [])
    assert "'Ke5" in played.text and "'--" in played.text and not played.game.board.move_stack
    assert played.text.count("give a legal move") == 2, "asked again"
    assert all(f"  {word} " in played.text for word in ("moves", "resign", "quit"))
    assert " e4" in played.text
    ranks = [line[0] for line in played.shown[0].splitlines() if "|" in line]
    assert ranks == list("87654321")
    black = Played("quit", ["M: e2e4 E: 0 B: e2e4"], human=chess.BLACK).shown[0]
    assert [line[0] for line in black.splitlines() if "|" in line] == ranks[::-1]


class Quick:
    """A model that answers 1... e5 to everything."""

    def analyse_all(self, boards, lookahead):
        return [reply("M: e7e5 d7d5 E: 0.1 0 B: e7e5") for _ in boards]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int | str | None]:
    """`rookworld play` in this process; its input is given, and where it ends a function is called."""

    def run(words: str, lines: str, at_the_end: Callable[[], object] | None = None):
        class Lines(io.StringIO):
            def readline(self, *args):
                line = super().readline(*args)
                if not line and at_the_end is not None:
                    at_the_end()
                return line

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["play", "--model", "rookworld-nano", *words.split()])
        monkeypatch.setattr(sys, "stdin", Lines(lines))
        monkeypatch.setattr(play, "start", lambda name: Quick())
        with pytest.raises(SystemExit) as ended:
            play.main()
        return ended.value.code

    return run


def games(path: Path) -> list[chess.pgn.Game]:
    with path.open(encoding="utf-8") as file:
        found = [game for game in iter(lambda: chess.pgn.read_game(file), None) if game]
    assert not any(game.errors for game in found)
    return found


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("at_the_end", "code"), [(None, 0), (interrupt, 130)])
def test_a_game_that_is_broken_off_is_kept(command, tmp_path: Path, at_the_end, code) -> None:
    for _ in range(2):
        assert command(f"--fen {chess.STARTING_FEN}", "e4\n", at_the_end) == code
    for game in (found := games(tmp_path / "play.pgn")):
        assert [move.uci() for move in game.mainline_moves()] == ["e2e4", "e7e5"]
        assert game.headers["Result"] == "*"
    assert len(found) == 2


def test_bad_input_is_one_message(command, capsys) -> None:
    for words, said in (
        ("--fen 8/8/8/8/8/8/8/8 w - - 0 1", "not a legal chess position"),
        ("--fen rubbish", "a FEN has six fields, or four without its clocks"),
        ("--fen 7k/8/8/8/8/8/8/7K w - - 0 1", "already over (insufficient material)"),
        ("--pgn .", "--pgn: cannot write '.' (Is a directory); give another path"),
        ("--colour green", "'green'"),
    ):
        assert command(words, "") == 2
        err = capsys.readouterr().err
        assert said in err and "Traceback" not in err


def test_a_game_that_cannot_be_kept_is_shown(command, capsys) -> None:
    assert command("--pgn /dev/full", "e4\n") == 2
    out, err = capsys.readouterr()
    assert '[White "Human"]' in out and "1. e4 e5 *" in out
    assert "the disk is full (" in err and "'/dev/full'" in err


@pytest.mark.slow
def test_a_pipe_and_the_command_itself(tmp_path: Path) -> None:
    """From the shell's word to the PGN, with a chess.py in the folder that is not python-chess."""
    (tmp_path / "chess.py").write_text("raise SystemExit('not python-chess')")
    code = "from rookworld_rlvr.cli.main import main; main()"
    line = (sys.executable, "-P", "-c", code, "play", "--model", "rookworld-nano")
    done = ran(*line, input="Nf3\nresign\n", cwd=tmp_path, encoding="utf-8")
    assert "0-1 (you resign)" in done.stdout and not done.stderr
    (game,) = games(tmp_path / "play.pgn")
    assert next(iter(game.mainline())).san() == "Nf3"
