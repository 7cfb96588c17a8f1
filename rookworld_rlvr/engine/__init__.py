"""Stockfish: values of legal moves, and the truth of policy rows. This room does not use torch."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..common.settings import Checked, setting


@dataclass
class EngineArguments(Checked):
    """Which engine values positions, and how deep it searches."""

    engine_path: str | None = setting(
        None,
        "Path of a UCI engine. None takes the variable STOCKFISH_PATH, else stockfish on the PATH, else "
        "an installed Stockfish in the usual places.",
    )
    engine_depth: int = setting(
        10,
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
    engine_cache: str | None = setting(
        None,
        "SQLite file that keeps searched values for all runs. None takes "
        "~/.cache/rookworld-rlvr/action_values.sqlite; :memory: keeps nothing.",
    )

    def workers(self) -> int:
        """The number of engine processes."""
        if self.engine_workers is not None:
            return self.engine_workers
        from ..common.machine import cores  # which sets how threads wait, as scripts want it

        return max(1, (cores() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
