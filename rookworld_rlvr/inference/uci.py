"""A UCI engine for any chess program: the model's answer is the search.

The model thinks in a thread of its own, and is asked between two tokens whether its time is over, or
`stop` or `quit` has come. torch is loaded with the model, at the first `isready` or `go`.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import chess

from ..common.errors import RookWorldError
from ..common.terminal import printable
from ..tasks import rules
from ..tasks.text import parse_fen
from ..tasks.types import MATE_CP, PolicyAnswer
from .arguments import model_parser, run, start
from .model import Choice, Reply, choose, no_answer, read_legal_move

Analyse = Callable[[str], Reply[PolicyAnswer]]
"""FEN → what a model says of it."""

Load = Callable[[str, Callable[[], bool]], Analyse]
"""A model's name, and whether to give up → the model; it raises `Stopped` when it is to give up."""

COMMANDS = ("uci", "isready", "position", "go", "stop", "quit")

OVERHEAD_MS = 100  # that an answer needs to arrive, at most; of less than a second, a tenth


class Stopped(Exception):
    """The model gave up before it had answered."""


def seconds_for(numbers: Mapping[str, int], turn: chess.Color) -> float | None:
    """How long the model may take: half of the clock at most, as more moves are to come.

    Args:
        numbers: Of `go`, by name; times in milliseconds.
        turn: Whose clock runs.

    Returns:
        None if there is no clock.
    """
    if "movetime" in numbers:
        left = numbers["movetime"]
    elif (clock := numbers.get("wtime" if turn else "btime")) is not None:
        left = min(clock, clock // 2 + numbers.get("winc" if turn else "binc", 0))
    else:
        return None
    return max(0, left - min(OVERHEAD_MS, left // 10)) / 1000


def numbers_of(words: Sequence[str]) -> dict[str, int]:
    """The numbers after `go` by the word before them; malformed ones are ignored."""
    return {
        name: int(number)
        for name, number in itertools.pairwise(words)
        if number.removeprefix("-").isdecimal()
    }


class Engine:
    """Carries out the commands of a chess program.

    Args:
        model: Packaged name, folder or Hub id.
        load: Loads a model.
        write: Takes lines of text.
    """

    def __init__(self, model: str, load: Load, write: Callable[[str], object]) -> None:
        self.model = model
        self.board = chess.Board()
        self._load = load
        self._analyse: Analyse | None = None
        self._write = write
        self._deadline: float | None = None  # of the clock `time.monotonic`
        self._stop = threading.Event()
        self._search: threading.Thread | None = None
        self._is_infinite = False  # its move waits for `stop`

    def run(self, lines: Iterable[str]) -> None:
        """Carry out lines until `quit`, or until the end of the input.

        Raises:
            RookWorldError: The model could not be loaded.
        """
        for line in lines:
            # As UCI demands, unknown words before a command are ignored.
            words = list(itertools.dropwhile(lambda word: word not in COMMANDS, line.split()))
            match words:
                case ["uci", *_]:
                    name = f"id name RookWorld {Path(self.model).name}"
                    self.say(name, "id author rookworld-rlvr", "uciok")
                case ["isready", *_]:
                    self._loaded()
                    self.say("readyok")
                case ["position", *where]:
                    self._set(where)
                case ["go", *how]:
                    self._go(how)
                case ["stop", *_]:
                    self._end_search()
                case ["quit", *_]:
                    self._end_search()
                    return
        if self._search is not None and not self._is_infinite:
            self._search.join()
        self._end_search()

    def say(self, *lines: str) -> None:
        """Write lines, all at once."""
        self._write("".join(f"{line}\n" for line in lines))

    # ----------------------------------------------------------------------------------------------
    # Commands
    # ----------------------------------------------------------------------------------------------
    def _set(self, words: list[str]) -> None:
        try:
            self.board = parse_position(words)
        except RookWorldError as error:
            text = f"{error}; the position is still {self.board.fen()}"
            self.say(f"info string {' '.join(text.split())}")

    def _go(self, words: list[str]) -> None:
        self._end_search()
        board, analyse = self.board, self._loaded()
        limit = seconds_for(numbers_of(words), board.turn)
        self._deadline = None if limit is None else time.monotonic() + limit
        self._is_infinite = "infinite" in words
        allowed = {word for word in words if word in {move.uci() for move in board.legal_moves}}
        self._stop.clear()

        def search() -> None:
            *infos, best = self._report(board, analyse, allowed)
            self.say(*infos)
            if self._is_infinite:
                self._stop.wait()
            self.say(best)

        self._search = threading.Thread(target=search, daemon=True)
        self._search.start()

    # ----------------------------------------------------------------------------------------------
    # The model
    # ----------------------------------------------------------------------------------------------
    def _loaded(self) -> Analyse:
        if self._analyse is None:
            self._analyse = self._load(self.model, self._is_over)
        return self._analyse

    def _is_over(self) -> bool:
        """Called between two tokens: whether the search is to end."""
        late = self._deadline is not None and time.monotonic() >= self._deadline
        return late or self._stop.is_set()

    def _end_search(self) -> None:
        if self._search is not None:
            self._stop.set()
            self._search.join()
            self._search = None

    def _report(self, board: chess.Board, analyse: Analyse, allowed: set[str]) -> list[str]:
        """The lines of an answer; the last is the move that is played, of `allowed` if there are any."""
        if not any(board.legal_moves):
            score = "mate 0" if board.is_check() else "cp 0"
            return [f"info depth 0 score {score}", "bestmove 0000"]
        began = time.monotonic()
        try:
            choice = choose(board, analyse(board.fen()))
        except Stopped:
            choice = no_answer(board, "the model had not answered when it was stopped")
        except Exception as error:  # a program that asks waits for a move, whatever happens
            choice = no_answer(board, f"the model failed ({type(error).__name__}: {error})")
        if allowed and choice.move.uci() not in allowed:  # by searchmoves
            first = next(one for one in board.legal_moves if one.uci() in allowed)
            why = f"{choice.move.uci()} is not among searchmoves; {first.uci()} is played"
            choice = Choice(first, fault=why)
        took, score, move = int(1000 * (time.monotonic() - began)), "", choice.move.uci()
        if choice.pawns is not None:  # the model's numbers have no bounds, those of a mate have
            score = f" score cp {max(1 - MATE_CP, min(MATE_CP - 1, round(100 * choice.pawns)))}"
        line = f"info depth 1{score} nodes 1 time {took} pv {move}"
        fault = [f"info string {choice.fault}"] if choice.fault else []
        return [line, *fault, f"bestmove {move}"]


def parse_position(words: Sequence[str]) -> chess.Board:
    """The board of ``startpos`` or ``fen FEN``, and ``moves ...`` after it.

    Raises:
        RookWorldError: There is no such position, or a move is illegal.
    """
    end = list(words).index("moves") if "moves" in words else len(words)
    fen = chess.STARTING_FEN if words[:1] == ["startpos"] else " ".join(words[1:end])
    board = rules.board_of(fen)
    for text in words[end + 1 :]:
        board.push(read_legal_move(board, text))
    rules.board_of(parse_fen(board.fen()))  # the model must be able to read it
    return board


# --------------------------------------------------------------------------------------------------
# The command
# --------------------------------------------------------------------------------------------------
def load(name: str, give_up: Callable[[], bool]) -> Analyse:
    """A model that can be stopped between two tokens; see `Load`."""
    model = start(name)

    def check(*_: object) -> None:
        if give_up():
            raise Stopped

    # The decoder calls the network once, for the prompt, and the embedding of every token.
    model.network.get_input_embeddings().register_forward_pre_hook(check)
    return lambda fen: model.analyse_all([fen])[0]


def main() -> None:
    """Carry out the lines of the input until `quit` or its end."""
    model = model_parser("uci", (__doc__ or "").split("\n")[0]).parse_args().model

    def write(text: str) -> None:
        sys.stdout.write(printable(text))
        sys.stdout.flush()

    raise SystemExit(run("uci", lambda: Engine(model, load, write).run(sys.stdin)))


if __name__ == "__main__":
    main()
