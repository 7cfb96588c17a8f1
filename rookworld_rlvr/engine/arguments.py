"""Which engine values positions, where its program is, and how a position is asked."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from ..common.errors import EngineError, IllegalPositionError
from ..common.machine import cores
from ..common.settings import Checked, setting
from ..tasks import rules

DEFAULT_DEPTH = 10


PATH_VARIABLE = "STOCKFISH_PATH"


USUAL_PLACES = (
    "/usr/games/stockfish",  # Debian
    "/usr/local/bin/stockfish",
    "/opt/homebrew/bin/stockfish",
)


HASH_MB = 16  # of each engine process; values depend on it


@dataclass
class EngineArguments(Checked):
    """Which engine values positions, and how deep it searches."""

    engine_path: str | None = setting(
        None,
        "Path of a UCI engine. None takes the variable STOCKFISH_PATH, else stockfish on the PATH, else "
        "an installed Stockfish in the usual places.",
    )
    engine_depth: int = setting(
        DEFAULT_DEPTH,
        "Search depth for each of the best five moves, in plies including the move itself; the other "
        "moves are searched two plies less deep.",
        least=2,
    )
    engine_workers: int | None = setting(
        1,
        "Engine processes, each with one thread. In a distributed run each process starts its own. null "
        "takes as many as there are CPU cores for this process.",
        least=1,
    )
    engine_timeout: float = setting(
        60.0,
        "Seconds after which the search of a position counts as failed; no search should come near it. "
        "The engine is then restarted and the position tried once more before it is given up.",
        above=0,
    )
    engine_cache: str | None = setting(
        None,
        "SQLite file that keeps searched values for all runs. None takes "
        "~/.cache/rookworld-rlvr/action_values.sqlite; :memory: keeps nothing.",
    )

    def workers(self) -> int:
        """The number of engine processes."""
        if self.engine_workers is not None:
            return self.engine_workers
        return max(1, (cores() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def find_engine(path: str | None = None) -> str:
    """Find the engine's program. If a path is given, no other is tried.

    Args:
        path: `EngineArguments.engine_path`.

    Raises:
        EngineError: No engine was found, or it is not executable. The message says what to do.
    """
    given = path or os.environ.get(PATH_VARIABLE)
    places = (os.path.expanduser(given),) if given else ("stockfish", *USUAL_PLACES)
    found = next(filter(None, map(shutil.which, places)), None)  # paths, or names on the PATH
    if found is None:
        raise EngineError(
            f"no program {' or '.join(map(repr, places))}; install one (Debian and Ubuntu: apt-get "
            f"install stockfish, macOS: brew install stockfish) or give its path in {PATH_VARIABLE} or "
            "engine_path; if it is a file, make it executable"
        )
    return found


def position_asked(fen: str) -> str:
    """The FEN under which a position is searched and cached.

    Values depend on the halfmove clock but not on the move number, which is set to 1.

    Raises:
        IllegalPositionError: The position is not legal, or has no legal move.
    """
    board = rules.board_of(fen)
    if not any(board.legal_moves):
        raise IllegalPositionError(f"no legal move to value in {fen!r}: the game is over")
    board.fullmove_number = 1
    return board.fen()
