"""Run by two processes, with PLACE RANK [busy] ...: the GRPO recipe with an exception in one of them.

With `busy`, the other process does not come to a collective for a long time.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

from accelerate import PartialState

from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.training.heldout import HeldoutEvaluation
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

from ..support import recipe

PLACES: dict[str, tuple[type, str]] = {
    "sampling": (RookWorldGRPOTrainer, "_generate_single_turn"),
    "reward": (RookWorldGRPOTrainer, "_calculate_rewards"),
    "loss": (RookWorldGRPOTrainer, "_compute_loss"),
    "evaluation": (HeldoutEvaluation, "evaluate"),
    "saving": (RookWorldGRPOTrainer, "_save_checkpoint"),
}
"""Where a run can fail: the method that raises at its second call on one process."""


def plant(place: str, rank: int, busy: bool) -> None:
    owner, name = PLACES[place]
    method, calls = getattr(owner, name), []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        if len(calls) == 2 and PartialState().process_index == rank:
            raise KeyError(f"planted in {place}")
        if len(calls) == 2 and busy:
            time.sleep(3_600)
        return method(*args, **kwargs)

    setattr(owner, name, failing)


def run(argv: Sequence[str]) -> None:
    """In one of two processes."""
    place, rank, *words = argv
    plant(place, int(rank), "busy" in words)
    sys.argv[1:] = [word for word in words if word != "busy"]
    run_cli(recipe("grpo").main)


if __name__ == "__main__":
    run(sys.argv[1:])
