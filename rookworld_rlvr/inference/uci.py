"""A UCI engine for any chess program: the model's answer is the search.

The model thinks in a thread of its own, and is asked between two tokens whether its time is over, or
`stop` or `quit` has come; then its best candidate so far is played. torch is loaded with the model, at
the first `isready` or `go`.

A line that makes no sense never ends the engine. What is left out of it is said in an ``info string``.
"""

from __future__ import annotations

import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import chess

from ..common.errors import RookWorldError
from ..common.terminal import printable, show
from ..tasks import rules
from ..tasks.policy import parse_policy_answer
from ..tasks.text import parse_fen
from ..tasks.types import MATE_CP, PolicyAnswer
from .arguments import model_parser, run, start
from .lookahead import look_ahead
from .replies import Choice, Reply, choose, choose_so_far, no_answer, read_legal_move, reply_of

Analyse = Callable[[chess.Board], Reply[PolicyAnswer]]
"""A position, with the moves before it → what a model says of it."""

Load = Callable[[str, Callable[[], bool]], Analyse]
"""A model's name, and whether to give up → the model; it raises `Stopped` when it is to give up."""

COMMANDS = (
    *("uci", "debug", "isready", "setoption", "register", "ucinewgame", "position", "go"),
    *("stop", "ponderhit", "quit"),
)
"""All commands of UCI, those that change nothing here included: their arguments are no commands."""

_LONGEST = 500  # characters of an `info string`, which may quote a line of any length

OVERHEAD_MS = 100  # that an answer needs to arrive, at most; of less than a second, a tenth


class Stopped(Exception):
    """The model gave up before it had answered.

    Args:
        text: What it had written.
    """

    def __init__(self, text: str = "") -> None:
        self.text = text
        super().__init__(text)


# --------------------------------------------------------------------------------------------------
# What a line says
# --------------------------------------------------------------------------------------------------
NUMBERS = ("wtime", "btime", "winc", "binc", "movestogo", "depth", "nodes", "mate", "movetime")

_OF_GO = {*NUMBERS, "searchmoves", "infinite", "ponder"}

_MOST = 2**31 - 1  # of a number, as in Stockfish


@dataclass
class Go:
    """What `go` asks for.

    Args:
        numbers: By name; times in milliseconds.
        searchmoves: As written.
        is_infinite: The move is given at `stop`.
        is_pondering: The move is given at `ponderhit` or `stop`.
        faults: What is ignored, a sentence each.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    searchmoves: list[str] = field(default_factory=list)
    is_infinite: bool = False
    is_pondering: bool = False
    faults: list[str] = field(default_factory=list)


def parse_go(words: Sequence[str]) -> Go:
    """Read the words after `go`; what cannot be read is a fault, and the rest counts.

    As in Stockfish, a number is read as far as it goes, and one that is too large is the largest.

    >>> parse_go(
    ...     "infinite searchmoves e2e4 wtime 1.5 depth x".split()
    ... )  # doctest: +NORMALIZE_WHITESPACE
    Go(numbers={'wtime': 1}, searchmoves=['e2e4'], is_infinite=True, is_pondering=False,
       faults=["go: depth needs a number, not 'x'; it is ignored"])
    """
    go, waiting = Go(), list(words)
    while waiting:
        match waiting.pop(0):
            case "infinite":
                go.is_infinite = True
            case "ponder":
                go.is_pondering = True
            case "searchmoves":
                while waiting and waiting[0] not in _OF_GO:
                    go.searchmoves.append(waiting.pop(0))
            case name if name in NUMBERS:
                text = waiting.pop(0) if waiting and waiting[0] not in _OF_GO else ""
                if number := re.match(r"[+-]?[0-9]+", text):
                    go.numbers[name] = int(max(-_MOST, min(_MOST, float(number[0]))))
                else:
                    go.faults.append(f"go: {name} needs a number, not {_cut(text)}; it is ignored")
            case word:
                go.faults.append(f"go: {_cut(word)} is unknown; it is ignored")
    return go


def _cut(text: str) -> str:
    """A text as it is quoted, its first characters only."""
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def seconds_for(numbers: Mapping[str, int], turn: chess.Color) -> float | None:
    """How long the model may take: half of the clock at most, as more moves are to come.

    Args:
        numbers: Of `go`, by name; times in milliseconds.
        turn: Whose clock runs.

    Returns:
        None if there is no clock. As in Stockfish, neither a move time of 0 is one, nor two clocks of 0.
    """
    if movetime := numbers.get("movetime"):
        left = movetime
    elif not any(numbers.get(name) for name in ("wtime", "btime")):
        return None
    elif (clock := numbers.get("wtime" if turn else "btime")) is not None:
        left = min(clock, clock // 2 + numbers.get("winc" if turn else "binc", 0))
    else:
        return None
    return max(0, left - min(OVERHEAD_MS, left // 10)) / 1000


def option_name(words: Sequence[str]) -> str:
    """The name in the words after `setoption`, which may have blanks.

    >>> option_name("name Move Overhead value 30".split())
    'Move Overhead'
    """
    named = itertools.dropwhile(lambda word: word != "name", words)
    return " ".join([*itertools.takewhile(lambda word: word != "value", named)][1:])


def parse_position(words: Sequence[str]) -> tuple[chess.Board, list[str]]:
    """The board of ``startpos`` or ``fen FEN``, and ``moves ...`` after it.

    As in Stockfish, the moves count up to the first illegal one.

    Returns:
        The board, and what was left out, a sentence each.

    Raises:
        RookWorldError: There is no such position.
    """
    end = list(words).index("moves") if "moves" in words else len(words)
    faults = []
    match words[:end]:
        case ["startpos", *rest]:
            fen = chess.STARTING_FEN
            if rest:
                faults.append(
                    f"position: {_cut(' '.join(rest))} is left out; moves begin with 'moves'"
                )
        case ["fen", *fields]:
            fen = " ".join(fields)
        case other:
            said = f"position: {_cut(' '.join(other))} is neither startpos nor fen FEN"
            raise RookWorldError(said)
    board = rules.board_of(fen)
    faults += left_out(fen, board)
    for number, text in enumerate(words[end + 1 :], 1):
        try:
            board.push(read_legal_move(board, text))
        except RookWorldError as error:
            faults.append(f"move {number} is left out, with those after it: {error}")
            break
    rules.board_of(parse_fen(board.fen()))  # the model must be able to read it
    return board, faults


def left_out(fen: str, board: chess.Board) -> Iterator[str]:
    """What of a FEN its board does not have, a sentence each; an engine has to play all the same.

    Nothing is said of an en passant square behind a pawn that has just gone two squares.

    >>> fen = "4k3/8/8/8/8/8/8/4K2R w KQ e6 0 1"
    >>> [*left_out(fen, rules.board_of(fen))][0]
    "fen: 'KQ' needs king and rook at home; the castling rights are 'K'"
    """
    given, kept = fen.split(), board.fen().split()
    for name, value in itertools.islice(zip(_FIELDS, kept, strict=False), len(given), None):
        yield f"fen: no {name}; {value!r} is taken"
    asked = chess.Board(fen)
    if asked.castling_rights != asked.clean_castling_rights():
        yield f"fen: {given[2]!r} needs king and rook at home; the castling rights are {kept[2]!r}"
    if asked.status() & chess.STATUS_INVALID_EP_SQUARE:
        yield f"fen: en passant square {given[3]!r} is left out, because no pawn has just passed it"


_FIELDS = ("board", "side to move", "castling rights", "en passant square")


# --------------------------------------------------------------------------------------------------
# The engine
# --------------------------------------------------------------------------------------------------
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
        self._writing = threading.Lock()  # the search's thread writes as well
        self._deadline: float | None = None  # of the clock `time.monotonic`
        self._seconds: float | None = None  # for the move, from `ponderhit` on
        self._stop = threading.Event()
        self._may_move = threading.Event()  # not while an infinite search or pondering goes on
        self._search: threading.Thread | None = None
        self._is_pondering = False
        self._failure: OSError | None = None  # in the search's thread

    def run(self, lines: Iterable[str]) -> None:
        """Carry out lines until `quit`, or until the end of the input.

        At the end of the input the model finishes its answer, which no `stop` can ask for any more.

        Raises:
            RookWorldError: The model could not be loaded.
            OSError: What it says cannot be written.
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
                case ["setoption", *option]:
                    self._note([f"no such option: {_cut(option_name(option))}"])
                case ["position", *where]:
                    self._set(where)
                case ["go", *how]:
                    self._go(parse_go(how))
                case ["stop", *_]:
                    self._end_search()
                case ["ponderhit", *_]:
                    self._end_pondering()
                case ["quit", *_]:
                    self._end_search()
                    return
                case [] if line.strip():
                    self._note([f"unknown command: {_cut(line.strip())}"])
        self._finish()

    def say(self, *lines: str) -> None:
        """Write lines, all at once."""
        with self._writing:
            self._write("\n".join(lines))

    def _note(self, faults: Sequence[str]) -> None:
        """Say what is left out of a line, or wrong with a move."""
        if faults:
            self.say(*(f"info string {' '.join(fault.split())[:_LONGEST]}" for fault in faults))

    # ----------------------------------------------------------------------------------------------
    # Commands
    # ----------------------------------------------------------------------------------------------
    def _set(self, words: list[str]) -> None:
        try:
            self.board, faults = parse_position(words)
        except RookWorldError as error:
            faults = [f"{error}"]
        if faults:
            self._note([*faults, f"the position is {self.board.fen()}"])

    def _go(self, go: Go) -> None:
        self._end_search()
        board, analyse = self.board, self._loaded()
        legal = {text: rules.legal_move(board, text) for text in go.searchmoves}
        allowed = {move.uci() for move in legal.values() if move}
        if illegal := " ".join(text for text, move in legal.items() if not move):
            left = "; it is left out" if allowed else "; all moves are allowed"
            go.faults.append(f"go: searchmoves {_cut(illegal)} cannot be played{left}")
        self._note(go.faults)
        self._seconds = seconds_for(go.numbers, board.turn)
        self._is_pondering = go.is_pondering
        self._start_clock()
        self._stop.clear()
        self._may_move.clear()
        if not (go.is_infinite or go.is_pondering):
            self._may_move.set()

        def search() -> None:
            *infos, best = self._report(board, analyse, allowed)
            try:
                self.say(*infos)
                self._may_move.wait()
                self.say(best)
            except OSError as error:  # what reads it is gone, or a disk is full
                self._failure = error

        self._search = threading.Thread(target=search, daemon=True)
        self._search.start()

    def _start_clock(self) -> None:
        """Set the deadline; while the model ponders, the other side's clock runs."""
        has_clock = self._seconds is not None and not self._is_pondering
        self._deadline = time.monotonic() + (self._seconds or 0.0) if has_clock else None

    def _end_pondering(self) -> None:
        if self._is_pondering:
            self._is_pondering = False
            self._start_clock()
            self._may_move.set()

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
        self._stop.set()
        self._finish()

    def _finish(self) -> None:
        """Wait for the move of the search, if there is one."""
        if self._search is not None:
            self._may_move.set()
            self._search.join()
            self._search = None
        if self._failure is not None:
            raise self._failure

    def _report(self, board: chess.Board, analyse: Analyse, allowed: set[str]) -> list[str]:
        """The lines of an answer; the last is the move that is played, of `allowed` if there are any."""
        if not any(board.legal_moves):
            score = "mate 0" if board.is_check() else "cp 0"
            return [f"info depth 0 score {score}", "bestmove 0000"]
        began = time.monotonic()
        try:
            choice = choose(board, analyse(board))
        except Stopped as stopped:
            choice = choose_so_far(board, stopped.text)
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
        comment = [f"info string {choice.comment}"] if choice.comment else []
        return [line, *comment, f"bestmove {move}"]


# --------------------------------------------------------------------------------------------------
# The command
# --------------------------------------------------------------------------------------------------
def load(name: str, give_up: Callable[[], bool], lookahead: bool = False) -> Analyse:
    """A model that can be stopped between two tokens; see `Load`.

    If it is stopped while it looks ahead, what it had said before counts.
    """
    model = start(name)
    written: list[int] = []

    def check(_: object, args: tuple[Any, ...]) -> None:
        tokens = args[0].flatten().tolist()
        if len(tokens) == 1:  # else it is the prompt
            written.extend(tokens)
        if give_up():
            raise Stopped(model.tokenizer.decode(written))

    # The decoder calls the network once, for the prompt, and the embedding of every token.
    model.network.get_input_embeddings().register_forward_pre_hook(check)

    def analyse(board: chess.Board) -> Reply[PolicyAnswer]:
        written.clear()
        (reply,) = model.analyse_all([board])
        if not lookahead:
            return reply
        try:
            (text,) = look_ahead([board], [reply.text], model.complete)
        except Stopped:
            return reply
        return reply_of(text, parse_policy_answer)

    return analyse


def main() -> None:
    """Carry out the lines of the input until `quit` or its end."""
    parser = model_parser("uci", (__doc__ or "").split("\n")[0], looks_ahead=True)
    args = parser.parse_args()
    opened = partial(load, lookahead=args.lookahead)
    engine = Engine(args.model, opened, lambda text: show(printable(text)))
    raise SystemExit(run("uci", lambda: engine.run(sys.stdin)))


if __name__ == "__main__":
    main()
