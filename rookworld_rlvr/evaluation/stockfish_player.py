"""Opponents of a model: Stockfish at a skill level, or a random mover."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from subprocess import DEVNULL
from typing import Any, TypeVar

import chess.engine
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from ..common.errors import EngineError
from ..engine.pool import EngineArguments, find_engine

SKILL_LEVELS = range(6)


_SKILL = "Skill Level"


T = TypeVar("T")


def random_move(board: chess.Board, seed: int) -> chess.Move:
    """A random legal move, decided by seed and position; `RandomMover` chooses differently."""
    return random.Random(f"opponent {seed} {board.fen()}").choice(list(board.legal_moves))


class SkilledEngine:
    """Stockfish at its skill levels, started once, by the main process; a context manager.

    At level `n`, Stockfish chooses among its best four moves of depth 1 + `n`, so searches go to that
    depth. The weaker the level, the more chance decides. The time is its seed, so a second game differs
    from the first. It forgets each position before the next.

    Args:
        args: The program, its hash table, and the seconds after which it counts as hanging.

    Attributes:
        name: The engine's.

    Raises:
        EngineError: No engine was found, or it has no skill levels.

    Source: `Skill` in the code of Stockfish's search, https://github.com/official-stockfish/Stockfish.
    """

    def __init__(self, args: EngineArguments) -> None:
        self._args = args
        self._engine: chess.engine.SimpleEngine | None = None
        self.name = from_main(self._start)

    def moves(self, asked: Sequence[tuple[int, chess.Board]]) -> list[chess.Move]:
        """A move for each level and position; the same on every process.

        Raises:
            EngineError: The engine died, hangs, or gives no move.
        """
        if not asked:
            return []
        return from_main(lambda: [self._move(level, board) for level, board in asked])

    def close(self) -> None:
        """End the engine's process."""
        if self._engine is not None:
            self._engine.close()

    def _start(self) -> str:
        path = find_engine(self._args.engine_path)
        try:
            # A process group of its own: Ctrl-C is for the program that asks.
            engine = chess.engine.SimpleEngine.popen_uci(path, stderr=DEVNULL, setpgrp=True)
            self._engine = engine
            wanted = {"Threads": 1, "Hash": self._args.engine_hash_mb}
            engine.configure({key: value for key, value in wanted.items() if key in engine.options})
        except (TimeoutError, OSError, chess.engine.EngineError) as error:
            self.close()
            raise EngineError(
                f"{path!r} does not run here as a UCI engine ({str(error) or 'no answer'}); give another"
            ) from error
        if _SKILL not in engine.options:
            self.close()
            raise EngineError(f"{path!r} has no option {_SKILL!r}; give Stockfish")
        return str(engine.id.get("name", "unnamed engine"))

    def _move(self, level: int, board: chess.Board) -> chess.Move:
        assert self._engine is not None  # this is the main process
        protocol = self._engine.protocol
        search = protocol.play(
            board,
            chess.engine.Limit(depth=1 + level),
            game=object(),  # a new one, so that the engine forgets the last
            options={_SKILL: level},
        )
        # Not `SimpleEngine.play`, which waits for ever if the limit is not a time.
        future = asyncio.run_coroutine_threadsafe(search, protocol.loop)
        try:
            move = future.result(self._args.engine_timeout).move
        except TimeoutError as error:
            limit = self._args.engine_timeout
            raise EngineError(
                f"no move within {limit:g} s at {board.fen()!r}; give another engine, or a larger "
                "engine_timeout"
            ) from error
        except chess.engine.EngineError as error:
            raise EngineError(f"the engine failed at {board.fen()!r} ({error})") from error
        if move is None:
            raise EngineError(f"the engine gave no move at {board.fen()!r}; give another")
        return move

    def __enter__(self) -> SkilledEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def from_main(ask: Callable[[], T]) -> T:
    """Call `ask` on the main process alone, and return its result on every process.

    Raises:
        EngineError: On every process, if `ask` raised it; the others would wait for ever.
    """
    found: list[Any] = [None, None]
    if PartialState().is_main_process:
        try:
            found[0] = ask()
        except EngineError as error:
            found[1] = str(error)
    answer, failure = broadcast_object_list(found)
    if failure is not None:
        raise EngineError(failure)
    return answer
