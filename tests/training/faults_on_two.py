"""Run by two processes: the GRPO recipe, small, with an exception planted in one of them.

accelerate launch --cpu --num_processes 2 --module tests.training.faults_on_two PLACE RANK [busy] ...

With `busy`, the other process does not come to a collective for a long time.
"""

import sys
import time
from typing import Any

from accelerate import PartialState

from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.training.heldout import HeldoutEvaluation
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

from ..conftest import recipe

PLACES: dict[str, tuple[type, str]] = {
    "sampling": (RookWorldGRPOTrainer, "_generate"),
    "reward": (RookWorldGRPOTrainer, "_calculate_rewards"),
    "loss": (RookWorldGRPOTrainer, "compute_loss"),
    "evaluation": (HeldoutEvaluation, "evaluate"),
    "saving": (RookWorldGRPOTrainer, "_save_checkpoint"),
}
"""Where a run can fail: the method that raises at its second call."""


def plant(place: str, rank: int, busy: bool) -> None:
    """Let a method raise on one process, at its second call."""
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


if __name__ == "__main__":
    place, rank, *words = sys.argv[1:]
    plant(place, int(rank), "busy" in words)
    sys.argv[1:] = [word for word in words if word != "busy"]
    run_cli(recipe("grpo").main)
