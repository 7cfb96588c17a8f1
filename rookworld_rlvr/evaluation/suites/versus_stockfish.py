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
from ...engine.arguments import EngineArguments
from ...engine.pool import HASH_MB, find_engine
from ..answerers import Answerer
from ..games import Game
from ..matches import MatchSuite
from ..suite import SuiteResult, SuiteUnavailableError

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
        args: The program, and the seconds after which it counts as hanging.

    Attributes:
        name: The engine's.

    Raises:
        EngineError: No engine was found, or it has no skill levels.

    Source: `Skill` in the code of Stockfish's search, https://github.com/official-stockfish/Stockfish.
    """

    def __init__(self, args: EngineArguments) -> None:
        # A time, which depth 1 never needs: without one, `play` would wait for ever.
        self._limit = chess.engine.Limit(depth=1, time=args.engine_timeout)
        self._engine: chess.engine.SimpleEngine | None = None
        self._path = args.engine_path
        self.name = from_main(self._start)

    def moves(self, boards: Sequence[chess.Board]) -> list[chess.Move]:
        """A move in each position; the same on every process.

        Raises:
            EngineError: The engine died, hangs, or gives no move.
        """
        return from_main(lambda: [self._move(board) for board in boards])

    def _start(self) -> str:
        path = find_engine(self._path)
        # A process group of its own: Ctrl-C is for the program that asks.
        self._engine = chess.engine.SimpleEngine.popen_uci(path, stderr=DEVNULL, setpgrp=True)
        try:
            self._engine.configure({"Threads": 1, "Hash": HASH_MB, "Skill Level": 0})
        except chess.engine.EngineError:
            self._engine.close()
            raise
        return str(self._engine.id.get("name", "unnamed engine"))

    def _move(self, board: chess.Board) -> chess.Move:
        assert self._engine is not None  # this is the main process
        # A new game, so that the engine forgets the last position.
        move = self._engine.play(board, self._limit, game=object()).move
        if move is None:
            raise EngineError(f"the engine gave no move at {board.fen()!r}; give another")
        return move

    def __enter__(self) -> SkilledEngine:
        return self

    def __exit__(self, *error: object) -> None:
        if self._engine is not None:
            self._engine.close()


def from_main(ask: Callable[[], T]) -> T:
    """Call `ask` on the main process alone, and return its result on every process.

    Raises:
        EngineError: On every process, if the engine failed; the others would wait for ever.
    """
    outcome: list[Any] = [None, None]
    if PartialState().is_main_process:
        try:
            outcome[0] = ask()
        except (EngineError, TimeoutError, OSError, chess.engine.EngineError) as error:
            why = str(error) or "no answer in time"
            outcome[1] = f"the engine failed ({why}); a Stockfish with skill levels is needed"
    answer, failure = broadcast_object_list(outcome)
    if failure is not None:
        raise EngineError(failure)
    return answer
