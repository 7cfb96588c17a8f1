"""Suite `versus_stockfish`: games against Stockfish at its lowest skill level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from subprocess import DEVNULL
from typing import Any, TypeVar

import chess
import chess.engine
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from ...common.errors import EngineError
from ...engine.arguments import HASH_MB, EngineArguments, find_engine
from ..answerers import Answerer
from ..games import Game
from ..matches import MatchSuite
from ..suite import SuiteResult, SuiteUnavailableError

_LEVEL = "Skill Level"

T = TypeVar("T")


class VersusStockfishSuite(MatchSuite):
    """Games from openings, each opening played twice, once with each colour; see `MatchSuite`.

    Args:
        suite_games: How many.
        suite_seed: Decides openings, but not Stockfish's moves, see `SkilledEngine`.
        engine_args: Which engine.

    Raises:
        SuiteUnavailableError: No engine was found, or it has no skill levels.
    """

    name = "versus_stockfish"
    summary = "Plays Stockfish at its lowest skill level, 0."
    version = 2

    def __init__(self, suite_games: int, suite_seed: int, engine_args: EngineArguments) -> None:
        super().__init__(suite_games, suite_seed)
        self._engine_args = engine_args
        try:
            with SkilledEngine(engine_args) as engine:
                self.opponent = engine.name
                self.notes["engine"] = f"{engine.name}, depth 1; it chooses by chance"
        except EngineError as error:
            raise SuiteUnavailableError(str(error)) from error

    def run(self, model: Answerer) -> SuiteResult:
        """See `MatchSuite`.

        Raises:
            EngineError: See `SkilledEngine`.
        """
        with SkilledEngine(self._engine_args) as self._engine:
            return super().run(model)

    def opponent_moves(self, games: Sequence[Game]) -> list[chess.Move]:
        """See `MatchSuite`."""
        return self._engine.moves([game.board for game in games])


# --------------------------------------------------------------------------------------------------
# The opponent
# --------------------------------------------------------------------------------------------------
class SkilledEngine:
    """Stockfish at skill level 0, started once, by the main process; a context manager.

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

    def moves(self, boards: Sequence[chess.Board]) -> list[chess.Move]:
        """A move in each position; the same on every process.

        Raises:
            EngineError: The engine died, hangs, or gives no move.
        """
        return from_main(lambda: [self._move(board) for board in boards])

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
            wanted = {"Threads": 1, "Hash": HASH_MB, _LEVEL: 0}
            engine.configure({key: value for key, value in wanted.items() if key in engine.options})
        except (TimeoutError, OSError, chess.engine.EngineError) as error:
            self.close()
            raise EngineError(
                f"{path!r} does not run here as a UCI engine ({str(error) or 'no answer'}); give another"
            ) from error
        if _LEVEL not in engine.options:
            self.close()
            raise EngineError(f"{path!r} has no option {_LEVEL!r}; give Stockfish")
        return str(engine.id.get("name", "unnamed engine"))

    def _move(self, board: chess.Board) -> chess.Move:
        assert self._engine is not None  # this is the main process
        # A time, which depth 1 never needs: without one, `play` would wait for ever.
        limit = chess.engine.Limit(depth=1, time=self._args.engine_timeout)
        try:
            # A new game, so that the engine forgets the last position.
            move = self._engine.play(board, limit, game=object()).move
        except TimeoutError as error:
            raise EngineError(
                f"no move within {limit.time:g} s at {board.fen()!r}; give another engine, or a larger "
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
    outcome: list[Any] = [None, None]
    if PartialState().is_main_process:
        try:
            outcome[0] = ask()
        except EngineError as error:
            outcome[1] = str(error)
    answer, failure = broadcast_object_list(outcome)
    if failure is not None:
        raise EngineError(failure)
    return answer
