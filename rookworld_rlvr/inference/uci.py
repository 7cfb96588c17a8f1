"""A UCI engine for any chess program: the model's answer is the search.

A thread reads the input. While the model thinks, it is asked between two tokens whether its time is
over, or `stop` or `quit` has come. torch is loaded with the model, at the first `isready` or `go`.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, NoReturn

import chess

from ..common.errors import RookWorldError
from ..common.terminal import printable
from ..models.loading import check_model_name
from ..tasks import rules
from ..tasks.policy import MAX_CANDIDATES
from ..tasks.text import parse_fen
from ..tasks.types import MATE_CP, PolicyAnswer
from .arguments import Arguments, run, start
from .prompts import Candidate, Choice, choose, no_answer, read_legal_move

if TYPE_CHECKING:
    from .prompts import Reply

Analyse = Callable[[str], "Reply[PolicyAnswer]"]
"""FEN → what a model says of it."""

Load = Callable[[str, Callable[[], bool]], Analyse]
"""A model's name, and whether to give up → the model; it raises `Stopped` when it is to give up."""

SPINS = {"MultiPV": (1, 1, MAX_CANDIDATES), "Move Overhead": (100, 0, 5000)}
"""Options that are whole numbers → default, least, most. The overhead is in milliseconds."""

_WHOLE = re.compile(r"-?[0-9]{1,12}")

_ENDING = {"stop", "quit", "go"}  # commands that end a search


class Stopped(Exception):
    """The model gave up before it had answered."""


def seconds_for(numbers: Mapping[str, int], turn: chess.Color, overhead: int) -> float | None:
    """How long the model may take: half of the clock at most, as more moves are to come.

    Args:
        numbers: Of `go`, by name; times in milliseconds.
        turn: Whose clock runs.
        overhead: Milliseconds that an answer needs to arrive.

    Returns:
        None if there is no clock.
    """
    left = numbers.get("movetime")
    if left is None:
        left = numbers.get("wtime" if turn else "btime")
        if left is None:
            return None
        increment = numbers.get("winc" if turn else "binc", 0)
        shares = min(2, max(1, numbers.get("movestogo", 2)))
        left = min(left, left // shares + increment)
    return max(0, left - overhead) / 1000


def numbers_of(words: Sequence[str]) -> dict[str, int]:
    """The numbers after `go` by the word before them; malformed ones are ignored."""
    return {
        name: int(number)
        for name, number in itertools.pairwise(words)
        if _WHOLE.fullmatch(number) and not _WHOLE.fullmatch(name)
    }


class Engine:
    """Carries out the commands of a chess program.

    Args:
        model: Packaged name, folder or Hub id.
        load: Loads a model.
        lines: The input, line by line; None at its end.
        write: Takes text.
    """

    def __init__(
        self,
        model: str,
        load: Load,
        lines: SimpleQueue[str | None],
        write: Callable[[str], object],
    ) -> None:
        self.model = model
        self.spins = {name: default for name, (default, _, _) in SPINS.items()}
        self.board = chess.Board()
        self.answers = 0
        self.replaced = 0
        self._load = load
        self._loaded: tuple[str, Analyse] | None = None
        self._lines = lines
        self._waiting: deque[str | None] = deque()  # what came while the model was thinking
        self._write = write
        self._deadline = math.inf  # of the clock `time.monotonic`
        self._best = ""  # the line that waits for `stop`
        self._commands: dict[str, Callable[[list[str]], object]] = {
            "uci": self._uci,
            "isready": self._isready,
            "setoption": self._setoption,
            "ucinewgame": lambda words: None,  # nothing is remembered from a game to the next
            "position": self._position,
            "go": self._go,
            "stop": lambda words: self._say_best(),
            "quit": lambda words: self._say_best(),
        }

    def run(self) -> None:
        """Carry out lines until `quit` or the end of the input.

        Raises:
            RookWorldError: The model could not be loaded.
        """
        while (line := self._waiting.popleft() if self._waiting else self._lines.get()) is not None:
            words = self._words(line)
            if words:
                self._commands[words[0]](words[1:])
            if words[:1] == ["quit"]:
                return
        self._say_best()

    def say(self, *lines: str) -> None:
        """Write lines."""
        self._write("".join(f"{line}\n" for line in lines))

    def _tell(self, text: str) -> None:
        self.say(f"info string {' '.join(text.split())}")

    def _words(self, line: str | None) -> list[str]:
        """A line's command and what follows; as UCI demands, unknown words before it are ignored."""
        return list(
            itertools.dropwhile(lambda word: word not in self._commands, (line or "").split())
        )

    # ----------------------------------------------------------------------------------------------
    # Commands
    # ----------------------------------------------------------------------------------------------
    def _uci(self, words: list[str]) -> None:
        spins = (
            f"option name {name} type spin default {default} min {least} max {most}"
            for name, (default, least, most) in SPINS.items()
        )
        self.say(
            f"id name RookWorld {Path(self.model).name}",
            "id author rookworld-rlvr",
            f"option name Model type string default {self.model}",
            *spins,
            "uciok",
        )

    def _isready(self, words: list[str]) -> None:
        self._analyse()
        self.say("readyok")

    def _setoption(self, words: list[str]) -> None:
        found = re.fullmatch(r"name (.*?)(?: value ?(.*))?", " ".join(words), re.IGNORECASE)
        name, value = found.groups() if found else ("", None)
        spin = next((known for known in SPINS if known.lower() == name.lower()), None)
        if name.lower() == "model" and value:
            for fault in (faults := check_model_name(value, "Model")):
                self._tell(f"{fault}; the model is still {self.model}")
            self.model = self.model if faults else value
        elif spin is None:
            self._tell(f"no option {name!r} with value {value!r}; uci lists the options")
        else:
            _, least, most = SPINS[spin]
            if _WHOLE.fullmatch(value or "") and least <= int(value or "") <= most:
                self.spins[spin] = int(value or "")
            else:
                self._tell(f"{spin}: {value!r} is not a whole number from {least} to {most}")

    def _position(self, words: list[str]) -> None:
        try:
            self.board = parse_position(words)
        except RookWorldError as error:
            self._tell(f"{error}; the position is still {self.board.fen()}")

    def _go(self, words: list[str]) -> None:
        self._say_best()
        board = self.board
        if not any(board.legal_moves):
            score = "mate 0" if board.is_check() else "cp 0"
            self.say(f"info depth 0 score {score}", "bestmove 0000")
            return
        began = time.monotonic()
        limit = seconds_for(numbers_of(words), board.turn, self.spins["Move Overhead"])
        self._deadline = math.inf if limit is None else began + limit
        try:
            choice = choose(board, self._analyse()(board.fen()))
        except Stopped:
            choice = no_answer(
                board,
                f"the model has not answered within {1000 * (limit or 0):.0f} ms"
                if time.monotonic() >= self._deadline
                else "the model was stopped before it had answered",
            )
        self.say(*self._report(choice, began))
        self._best = f"bestmove {choice.move.uci()}"
        if "infinite" not in words:
            self._say_best()

    def _say_best(self) -> None:
        if self._best:
            self.say(self._best)
            self._best = ""

    # ----------------------------------------------------------------------------------------------
    # The model
    # ----------------------------------------------------------------------------------------------
    def _analyse(self) -> Analyse:
        name = self.model
        if self._loaded is None or self._loaded[0] != name:
            self._loaded = None  # makes room for the next
            self._loaded = name, self._load(name, self._give_up)
        return self._loaded[1]

    def _give_up(self) -> bool:
        """Called between two tokens: whether the search is to end; `isready` is answered at once."""
        while not self._lines.empty():
            line = self._lines.get()
            if not self._waiting and self._words(line)[:1] == ["isready"]:
                self.say("readyok")
            else:
                self._waiting.append(line)
        ended = any(not _ENDING.isdisjoint(self._words(line)[:1]) for line in self._waiting)
        return ended or time.monotonic() >= self._deadline

    def _report(self, choice: Choice, began: float) -> list[str]:
        """The lines of an answer, the move that is played first."""
        self.answers += 1
        milliseconds = int(1000 * (time.monotonic() - began))
        lines = [
            f"info depth 1 seldepth 1 multipv {number}{_score(candidate)} nodes 1 "
            f"time {milliseconds} pv {candidate.move.uci()}"
            for number, candidate in enumerate(choice.candidates[: self.spins["MultiPV"]], 1)
        ]
        if choice.fault:
            self.replaced += 1
            count = f"{self.replaced} of {self.answers} answers so far"
            lines.append(f"info string {choice.fault} ({count})")
        return lines


def _score(candidate: Candidate) -> str:
    """In centipawns, kept within those of a mate, as the model's numbers have no bounds."""
    if candidate.pawns is None:
        return ""
    return f" score cp {max(1 - MATE_CP, min(MATE_CP - 1, round(100 * candidate.pawns)))}"


def parse_position(words: Sequence[str]) -> chess.Board:
    """The board of ``startpos`` or ``fen FEN``, and ``moves ...`` after it.

    Raises:
        RookWorldError: There is no such position, or a move is illegal.
    """
    if not words or words[0] not in ("startpos", "fen"):
        raise RookWorldError(
            f"position {' '.join(words)!r} cannot be read; write startpos or fen FEN"
        )
    end = list(words).index("moves") if "moves" in words else len(words)
    fen = " ".join(words[1:end]) if words[0] == "fen" else chess.STARTING_FEN
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

    model.network.register_forward_pre_hook(check)
    return lambda fen: model.analyse_all([fen])[0]


def _write(text: str) -> None:
    try:
        sys.stdout.write(printable(text))
        sys.stdout.flush()
    except OSError:  # the chess program is gone
        _end(0)


def _end(code: int) -> NoReturn:
    """End now: an orderly exit would wait for the thread that reads."""
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Read lines until `quit` or the end of the input."""
    model = Arguments("uci", (__doc__ or "").split("\n")[0]).parse_args().model
    lines: SimpleQueue[str | None] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        lines.put(None)

    def answer() -> None:
        threading.Thread(target=read, daemon=True).start()
        try:
            Engine(model, load, lines, _write).run()
        except RookWorldError as error:
            _write(f"info string {' '.join(str(error).split())}\n")
            raise

    try:
        code = run("uci", answer)
    except Exception:  # `_end` would hide it
        traceback.print_exc()
        code = 1
    _end(code)


if __name__ == "__main__":
    main()
