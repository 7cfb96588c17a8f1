"""Engines that move and judge, as the suites ask them: on the main process alone, for all processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from subprocess import DEVNULL
from types import MappingProxyType
from typing import Any, Self, TypeVar

import chess
import chess.engine
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from ..common.errors import EngineError
from ..engine import EngineArguments
from ..engine.pool import HASH_MB, TIMEOUT_S, find_engine, find_fairy_stockfish

T = TypeVar("T")


class SkilledEngine:
    """Stockfish at skill level 0, started once, by the main process; a context manager.

    At level `n`, Stockfish chooses among its best four moves of depth 1 + `n`, so searches go to that
    depth. The weaker the level, the more chance decides. The time is its seed, so a second game differs
    from the first. It forgets each position before the next.

    Args:
        args: The program.

    Attributes:
        name: The engine's.
        options: Its options beside threads and hash.
        depth: Of its searches, in plies.
        needed: What an engine must be, for errors.

    Raises:
        EngineError: No engine was found, or it has no skill levels.

    Source: `Skill` in the code of Stockfish's search, https://github.com/official-stockfish/Stockfish.
    """

    options: Mapping[str, Any] = MappingProxyType({"Skill Level": 0})
    depth = 1
    needed = "a Stockfish with skill levels"

    def __init__(self, args: EngineArguments) -> None:
        # A time, which no such depth needs: without one, `play` would wait for ever.
        self._limit = chess.engine.Limit(depth=self.depth, time=TIMEOUT_S)
        self._engine: chess.engine.SimpleEngine | None = None
        self._path = args.engine_path
        self.name = self._asked(self._start)

    def moves(self, boards: Sequence[chess.Board]) -> list[chess.Move]:
        """A move in each position; the same on every process.

        Raises:
            EngineError: The engine died, hangs, or gives no move.
        """
        return self._asked(lambda: [self._move(board) for board in boards])

    def _asked(self, ask: Callable[[], T]) -> T:
        return from_main(ask, self.needed)

    def _start(self) -> str:
        path = self._find()
        # A process group of its own: Ctrl-C is for the program that asks.
        self._engine = chess.engine.SimpleEngine.popen_uci(path, stderr=DEVNULL, setpgrp=True)
        try:
            self._engine.configure({"Threads": 1, "Hash": HASH_MB, **self.options})
        except chess.engine.EngineError:
            self._engine.close()
            raise
        return str(self._engine.id.get("name", "unnamed engine"))

    def _find(self) -> str:
        return find_engine(self._path)

    def _move(self, board: chess.Board) -> chess.Move:
        assert self._engine is not None  # this is the main process
        # A new game, so that the engine forgets the last position.
        move = self._engine.play(board, self._limit, game=object()).move
        if move is None:
            raise EngineError(f"the engine gave no move at {board.fen()!r}; give another")
        return move

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._engine is not None:
            self._engine.close()


class FullEngine(SkilledEngine):
    """A UCI engine at its full strength for some plies of search; a context manager.

    It forgets each position before the next, so that an answer depends on the game alone.
    """

    options: Mapping[str, Any] = MappingProxyType({})
    depth = 6
    needed = "a UCI engine"
    verdict_depth = 10

    def verdicts(self, boards: Sequence[chess.Board]) -> list[int]:
        """What each position is worth to White, in centipawns; the same on every process.

        Raises:
            EngineError: The engine died, or hangs.
        """
        return self._asked(lambda: [self._verdict(board) for board in boards])

    def _verdict(self, board: chess.Board) -> int:
        assert self._engine is not None  # this is the main process
        limit = chess.engine.Limit(depth=self.verdict_depth, time=TIMEOUT_S)
        found = self._engine.analyse(board, limit, game=object())["score"]
        return found.white().score(mate_score=100_000)


class FairyEngine(SkilledEngine):
    """Fairy-Stockfish at a rating of its own scale, ``UCI_Elo``; a context manager.

    As Stockfish at a skill level, it chooses by chance among its best moves, with the time as its seed;
    at these ratings among those of depth 1 or 2, so it searches no deeper.

    Args:
        elo: From 500; from 1350 in Debian's version 11.1.
    """

    depth = 2

    def __init__(self, elo: int) -> None:
        self.needed = f"a Fairy-Stockfish whose UCI_Elo may be {elo}"
        self.options = {"UCI_LimitStrength": True, "UCI_Elo": elo}
        super().__init__(EngineArguments())

    def _find(self) -> str:
        return find_fairy_stockfish()


def open_referee(args: EngineArguments) -> FullEngine | None:
    """The engine that judges games that are cut off; None if none is installed.

    Args:
        args: The program.

    Raises:
        EngineError: The one that `engine_path` names is not there, or an engine is there and fails.
    """
    if args.engine_path is None and not from_main(_is_installed, FullEngine.needed):
        return None
    return FullEngine(args)


def _is_installed() -> bool:
    try:
        find_engine()
    except EngineError:
        return False
    return True


def from_main(ask: Callable[[], T], needed: str) -> T:
    """Call `ask` on the main process alone, and return its result on every process.

    Args:
        ask: Asks an engine.
        needed: What the engine must be, for the error.

    Raises:
        EngineError: On every process, if the engine failed; the others would wait for ever.
    """
    outcome: list[Any] = [None, None]
    if PartialState().is_main_process:
        try:
            outcome[0] = ask()
        except (EngineError, TimeoutError, OSError, chess.engine.EngineError) as error:
            why = str(error) or "no answer in time"
            outcome[1] = f"the engine failed ({why}); {needed} is needed"
    answer, failure = broadcast_object_list(outcome)
    if failure is not None:
        raise EngineError(failure)
    return answer
