"""A UCI engine for any chess program: the model's answer is the search.

One thread reads, another asks the model, so that `stop`, `isready` and `quit` are answered at once.
torch is loaded with the model, at the first `isready` or `go`.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import chess

from ..common.errors import RookWorldError
from ..common.terminal import printable
from ..tasks import rules
from ..tasks.policy import MAX_CANDIDATES
from ..tasks.text import parse_fen
from ..tasks.types import MATE_CP, PolicyAnswer
from . import moves
from .arguments import Arguments, start

if TYPE_CHECKING:
    from .prompts import Reply

Analyse = Callable[[str], "Reply[PolicyAnswer]"]
"""FEN → what a model says of it."""

Load = Callable[[str, Callable[[], bool]], Analyse]
"""A model's name, and whether to give up → the model; it raises `Stopped` when told to give up."""

SPINS = {"MultiPV": (1, 1, MAX_CANDIDATES), "Move Overhead": (100, 0, 5000)}
"""Options that are whole numbers → default, least, most. The overhead is in milliseconds."""

_WHOLE = re.compile(r"-?[0-9]{1,12}")

_NUMBERS = ("wtime", "btime", "winc", "binc", "movestogo", "movetime", "depth", "nodes", "mate")

_WORDS = (*_NUMBERS, "searchmoves", "ponder", "infinite")


class Stopped(Exception):
    """The model was told to give up before it had answered."""


@dataclass(frozen=True, slots=True)
class Go:
    """What `go` asks for.

    Args:
        numbers: As they were given; times in milliseconds.
        searchmoves: The only moves that may be played; empty for all.
        held: Whether the best move waits for `stop`, or for `ponderhit`.
    """

    numbers: Mapping[str, int] = field(default_factory=dict)
    searchmoves: tuple[chess.Move, ...] = ()
    held: bool = False

    def seconds(self, turn: chess.Color, overhead: int) -> float | None:
        """How long the model may take: half of the clock at most, as more moves are to come.

        Args:
            turn: Whose clock runs.
            overhead: Milliseconds that an answer needs to arrive.

        Returns:
            None if there is no clock.
        """
        left = self.numbers.get("movetime")
        if left is None:
            left = self.numbers.get("wtime" if turn else "btime")
            if left is None:
                return None
            increment = self.numbers.get("winc" if turn else "binc", 0)
            shares = min(2, max(1, self.numbers.get("movestogo", 2)))
            left = min(left, left // shares + increment)
        return max(0, left - overhead) / 1000


def parse_go(words: Sequence[str]) -> Go:
    """Read the words after `go`; malformed and unknown ones are ignored."""
    numbers: dict[str, int] = {}
    only: list[chess.Move] = []
    for index, word in enumerate(words):
        behind = words[index + 1 :]
        if word in _NUMBERS and behind and _WHOLE.fullmatch(behind[0]):
            numbers[word] = int(behind[0])
        if word == "searchmoves":
            named = itertools.takewhile(lambda text: text not in _WORDS, behind)
            only += [move for text in named if (move := _move(text))]
    return Go(numbers, tuple(only), "infinite" in words or "ponder" in words)


def _move(text: str) -> chess.Move | None:
    try:
        return chess.Move.from_uci(text)
    except ValueError:
        return None


# --------------------------------------------------------------------------------------------------
# One search
# --------------------------------------------------------------------------------------------------
class Search:
    """One `go`: it says `bestmove` once, at the answer, at the end of its time or at `stop`.

    Args:
        board: The position; it is never changed.
        go: What is asked for.
        overhead: See `Go.seconds`.
        say: Writes lines.
    """

    def __init__(
        self, board: chess.Board, go: Go, overhead: int, say: Callable[..., object]
    ) -> None:
        self.board = board
        self.go = go
        self.began = time.monotonic()
        self.over = threading.Event()
        self._say = say
        self._held = go.held
        self._choice: moves.Choice | None = None
        self._lock = threading.Lock()
        self._seconds = go.seconds(board.turn, overhead)
        self._timer: threading.Timer | None = None

    def start_clock(self) -> None:
        """Start the clock, unless there is none or the best move waits for `stop` or `ponderhit`."""
        if self._seconds is not None and not self._held:
            why = f"the model has not answered within {1000 * self._seconds:.0f} ms"
            self._timer = threading.Timer(self._seconds, self.stop, [why])
            self._timer.daemon = True
            self._timer.start()

    def answer(self, choice: moves.Choice, lines: Sequence[str]) -> None:
        """Take the model's answer: the move, and the lines to write about it."""
        with self._lock:
            if self.over.is_set():
                return
            self._choice = choice
            self._say(*lines)
            if not self._held:
                self._finish(choice)

    def ponderhit(self) -> None:
        """The move that was pondered on has been played: the clock runs."""
        with self._lock:
            if self.over.is_set() or not self._held:
                return
            self._held = False
            if self._choice is None:
                self.start_clock()
            else:
                self._finish(self._choice)

    def stop(self, why: str = "the model was stopped before it had answered") -> None:
        """Say the best move now; the first legal one if the model has not answered."""
        with self._lock:
            if self.over.is_set():
                return
            choice = self._choice
            if choice is None:
                allowed = moves.allowed_moves(self.board, self.go.searchmoves)
                choice = moves.no_answer(allowed, why)
                self._say(f"info string {choice.fault}")
            self._finish(choice)

    def _finish(self, choice: moves.Choice) -> None:
        self.over.set()
        if self._timer is not None:
            self._timer.cancel()
        self._say(f"bestmove {choice.move.uci()}")


# --------------------------------------------------------------------------------------------------
# The engine
# --------------------------------------------------------------------------------------------------
class Engine:
    """Carries out the commands of a chess program.

    Args:
        model: Packaged name, folder or Hub id.
        load: Loads a model.
        write: Takes text; called by several threads, one at a time.
        fail: Called with a message if the model cannot be asked.
    """

    def __init__(
        self, model: str, load: Load, write: Callable[[str], object], fail: Callable[[str], object]
    ) -> None:
        self.model = model
        self.spins = {name: default for name, (default, _, _) in SPINS.items()}
        self.board = chess.Board()
        self.debug = False
        self.answers = 0
        self.replaced = 0
        self._load = load
        self._loaded: tuple[str, Analyse] | None = None
        self._write = write
        self._writing = threading.Lock()
        self._fail = fail
        self._search: Search | None = None  # the latest that was asked for
        self._asking: Search | None = None  # the one that the model works on
        self._thinker = ThreadPoolExecutor(1)
        self._commands: dict[str, Callable[[list[str]], object]] = {
            "uci": self._uci,
            "debug": self._debug,
            "isready": self._isready,
            "setoption": self._setoption,
            "register": lambda words: None,  # there is nothing to register
            "ucinewgame": lambda words: None,  # nothing is remembered from a game to the next
            "position": self._position,
            "go": self._go,
            "stop": lambda words: self._stop(),
            "ponderhit": self._ponderhit,
            "quit": lambda words: self._stop(),
        }

    def handle(self, line: str) -> bool:
        """Carry out a line; words before its first known command are ignored.

        Returns:
            False after `quit`.
        """
        words = list(itertools.dropwhile(lambda word: word not in self._commands, line.split()))
        if not words:
            if line.strip() and self.debug:
                self._tell(f"unknown command: {line}")
            return True
        self._commands[words[0]](words[1:])
        return words[0] != "quit"

    def finish(self) -> None:
        """Let the model answer the last `go`; no more commands will come."""
        self._ponderhit([])
        self._thinker.shutdown()

    def say(self, *lines: str) -> None:
        """Write lines together; other threads write before or after them."""
        with self._writing:
            self._write("".join(f"{line}\n" for line in lines))

    def _tell(self, text: str) -> None:
        self.say(f"info string {' '.join(text.split())}")

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

    def _debug(self, words: list[str]) -> None:
        self.debug = words[:1] == ["on"]

    def _isready(self, words: list[str]) -> None:
        thinking = self._search is not None and not self._search.over.is_set()
        if thinking or (self._loaded is not None and self._loaded[0] == self.model):
            self.say("readyok")
        else:
            self._submit(self._get_ready)

    def _setoption(self, words: list[str]) -> None:
        found = re.fullmatch(r"name (.*?)(?: value ?(.*))?", " ".join(words), re.IGNORECASE)
        name, value = found.groups() if found else ("", None)
        spin = next((known for known in SPINS if known.lower() == name.lower()), None)
        if name.lower() == "model" and value:
            self.model = value
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
        self._stop()
        board = self.board.copy()
        if not any(board.legal_moves):
            score = "mate 0" if board.is_check() else "cp 0"
            self.say(f"info depth 0 score {score}", "bestmove 0000")
            return
        self._search = Search(board, parse_go(words), self.spins["Move Overhead"], self.say)
        self._search.start_clock()
        search = self._search
        self._submit(lambda: self._think(search))

    def _stop(self) -> None:
        if self._search is not None:
            self._search.stop()

    def _ponderhit(self, words: list[str]) -> None:
        if self._search is not None:
            self._search.ponderhit()

    # ----------------------------------------------------------------------------------------------
    # In the thread that thinks
    # ----------------------------------------------------------------------------------------------
    def _submit(self, work: Callable[[], object]) -> None:
        self._thinker.submit(self._run, work)

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Stopped:
            pass
        except RookWorldError as error:
            self._fail(str(error))
        except Exception:  # a chess program would wait for ever for a thread that has died
            self._fail(traceback.format_exc())

    def _get_ready(self) -> None:
        self._analyse()
        self.say("readyok")

    def _think(self, search: Search) -> None:
        if search.over.is_set():
            return
        self._asking = search
        reply = self._analyse()(search.board.fen())
        choice = moves.choose(search.board, reply, search.go.searchmoves)
        lines = self._report(search, choice)
        if self.debug:
            lines.insert(0, f"info string the model says: {' '.join(reply.text.split())}")
        search.answer(choice, lines)

    def _analyse(self) -> Analyse:
        name = self.model
        if self._loaded is None or self._loaded[0] != name:
            self._loaded = None  # makes room for the next
            self._loaded = name, self._load(name, self._give_up)
        return self._loaded[1]

    def _give_up(self) -> bool:
        return self._asking is not None and self._asking.over.is_set()

    def _report(self, search: Search, choice: moves.Choice) -> list[str]:
        """The lines of an answer, the move that is played first."""
        self.answers += 1
        milliseconds = int(1000 * (time.monotonic() - search.began))
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


def _score(candidate: moves.Candidate) -> str:
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
        try:
            move = board.parse_uci(text)
        except ValueError as error:
            raise RookWorldError(f"illegal move {text!r} ({error})") from error
        if not move:  # python-chess also reads a null move
            raise RookWorldError(f"illegal move {text!r}")
        board.push(move)
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
    """End now: an orderly exit would wait for the model, or for torch, which is still loading."""
    sys.stderr.flush()
    os._exit(code)


def _fail(message: str) -> None:
    _write(f"info string {' '.join(message.split())}\n")
    print(f"rookworld uci: {message}", file=sys.stderr)
    _end(2)


def main() -> None:
    """Read lines until `quit` or the end of the input."""
    model = Arguments("uci", (__doc__ or "").split("\n")[0]).parse_args().model
    engine = Engine(model, load, _write, _fail)
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        for line in sys.stdin:
            if not engine.handle(line):
                _end(0)
        engine.finish()
    except KeyboardInterrupt:
        _end(130)
    _end(0)


if __name__ == "__main__":
    main()
