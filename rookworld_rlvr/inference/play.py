"""Play a game against a model in the terminal; its PGN is kept."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import NoReturn

import chess
import chess.pgn

from ..common.errors import RookWorldError
from ..common.files import check_writable, naming
from ..common.terminal import printable
from ..tasks import positions
from ..tasks.types import PolicyAnswer
from .analyse import board_text
from .arguments import model_parser, run, start
from .replies import Reply, choose, over, read_legal_move, read_position, record_of

HELP = """\
  a move  as Nf3, exd5, O-O, e8=Q, or as g1f3, e7e8q
  moves   list the legal moves
  resign  give the game up
  quit    leave; the game so far is kept
  help    this list"""


class TerminalGame:
    """A game between the model and a human at the terminal.

    Args:
        board: Where it starts.
        human: The human's colour.
        name: The model's.
        analyse: The board, with the game's moves → what the model says of it.
        say: Shows text.
    """

    def __init__(
        self,
        board: chess.Board,
        human: chess.Color,
        name: str,
        analyse: Callable[[chess.Board], Reply[PolicyAnswer]],
        say: Callable[[str], object] = lambda text: print(printable(text)),
    ) -> None:
        self.board = board
        self.human = human
        self.name = name
        self.result = "*"
        self.comments: dict[int, str] = {}  # ply after it → why it is not the model's best move
        self._analyse = analyse
        self._say = say

    def play(self, ask: Callable[[str], str]) -> None:
        """Play until the game is over or left.

        Args:
            ask: Shows a prompt and returns the answer, as `input` does.
        """
        self._show()
        while self.result == "*":
            if outcome := self.board.outcome():
                self._end(outcome.result(), over(self.board))
            elif self.board.turn != self.human:
                self._answer()
            elif (text := ask(self._number()).strip()).lower() == "quit":
                return
            else:
                self._obey(text)

    def _obey(self, text: str) -> None:
        """Carry out what the human has typed."""
        match text.lower():
            case "":
                pass
            case "moves":
                self._say(" ".join(map(self.board.san, self.board.legal_moves)))
            case "resign":
                self._end("0-1" if self.human else "1-0", "you resign")
            case "help":
                self._say(HELP)
            case _:
                try:
                    self.board.push(read_legal_move(self.board, text))
                except RookWorldError as error:
                    self._say(f"{error}, or type moves for a list")

    def _show(self) -> None:
        self._say(f"\n{board_text(self.board, self.human)}\n")

    def _end(self, result: str, how: str) -> None:
        self.result = result
        self._say(f"{result} ({how})")

    def _answer(self) -> None:
        choice = choose(self.board, self._analyse(self.board))
        if choice.comment:
            self.comments[self.board.ply() + 1] = choice.comment
            self._say(f"  ({choice.comment})")
        self._say(f"{self.name}: {self._number()}{self.board.san(choice.move)}")
        self.board.push(choice.move)
        self._show()

    def _number(self) -> str:
        return f"{self.board.fullmove_number}{'. ' if self.board.turn else '... '}"

    def pgn(self) -> chess.pgn.Game:
        """The game so far, with a comment where the model's best move was not played."""
        players = ("Human", self.name) if self.human else (self.name, "Human")
        headers = {"Date": date.today().strftime("%Y.%m.%d"), "Result": self.result}
        return record_of(self.board, *players, self.comments, Event="rookworld play", **headers)


# --------------------------------------------------------------------------------------------------
# The command
# --------------------------------------------------------------------------------------------------
def _play(args: argparse.Namespace) -> None:
    board = chess.Board(read_position(" ".join(args.fen)))
    if how := over(board):
        raise RookWorldError(f"--fen: the game is already over ({how}); give another position")
    check_writable(args.pgn, "--pgn")
    print(f"loading {args.model} …", flush=True)
    model = start(args.model)
    name = Path(args.model).name
    game = TerminalGame(
        board,
        args.colour == "white",
        name,
        lambda asked: model.analyse_all([asked], lookahead=args.lookahead)[0],
    )
    print(f"You are {args.colour} against {name}. Type a move, or help.")
    try:
        with contextlib.suppress(EOFError):
            game.play(input)
    finally:  # Ctrl-C, too
        if board.move_stack:
            _keep(game.pgn(), args.pgn)


def _keep(game: chess.pgn.Game, path: Path) -> None:
    """Append a game to a file, or show it if the file cannot be written any more."""
    try:
        with naming(path), path.open("a", encoding="utf-8") as file:
            file.write(f"\n\n{game}\n" if file.tell() else f"{game}\n")
    except OSError:
        print(f"\n{printable(str(game))}\n")
        raise
    print(f"\nthe game is in {path}")


def main() -> NoReturn:
    """Play a game; bad input ends it with one message and exit code 2."""
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # makes input lines editable; Windows has no readline
    parser = model_parser("play", __doc__ or "", fen="where the game starts", looks_ahead=True)
    add = parser.add_argument
    add("--colour", "--color", choices=positions.SIDES, default="white", help="your colour")
    add("--pgn", type=Path, default="play.pgn", help="file to append the game to (play.pgn)")
    args = parser.parse_args()
    raise SystemExit(run("play", lambda: _play(args)))


if __name__ == "__main__":
    main()
