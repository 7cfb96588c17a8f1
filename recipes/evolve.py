"""Let a policy play itself, value its positions, train on them, and keep what plays better, by rounds.

rookworld evolve --config evolve_nano --model runs/grpo_nano              # the packaged rounds
rookworld evolve --config evolve_nano --model runs/grpo_nano --rounds 5   # goes on, also after a stop
"""

from __future__ import annotations

import rookworld_rlvr.common.machine  # noqa: F401  # before torch is loaded

# isort: split
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import grpo

from rookworld_rlvr.cli.main import command_line
from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.common.terminal import wrapped
from rookworld_rlvr.data.loading import DataArguments
from rookworld_rlvr.engine import EngineArguments
from rookworld_rlvr.engine.pool import find_engine
from rookworld_rlvr.extras.evolve.rounds import EvolveArguments, Round, entry_text, rounds
from rookworld_rlvr.tasks.policy import POLICY
from rookworld_rlvr.training.config import check_recipe

RECIPE = Path(__file__).with_name("evolve_nano.yaml")
GROUPS = [EvolveArguments, EngineArguments]


def main(argv: Sequence[str]) -> None:
    args, engine_args = StrictParser(GROUPS, RECIPE).parse_strictly(argv)
    find_engine(engine_args.engine_path)
    base = check_training(args, engine_args)
    if args.dry_run:
        print(plan(args))
        return
    for word in (signal.SIGINT, signal.SIGTERM):  # a training run ends too
        signal.signal(word, stop)
    accepted = args.model_name_or_path
    for entry in rounds(args, engine_args, base):
        print(wrapped(entry_text(entry)), flush=True)
        accepted = entry["model"] if entry["accepted"] else accepted
    print(f"\nmodel: {accepted}")


def check_training(args: EvolveArguments, engine_args: EngineArguments) -> DataArguments:
    """Check what the first round will train with; the recipe's own data set.

    Raises:
        ConfigurationError: With all faults.
    """
    words = Round(args, engine_args, 1, args.model_name_or_path, DataArguments()).words()
    words = [word for word in words if not word.startswith("--dataset_name")]  # not there yet
    _, line = command_line("grpo", [*words, "--dry_run"])
    try:
        parsed = StrictParser(grpo.GROUPS, grpo.RECIPE).parse_strictly(line[1:], check_recipe)
    except ConfigurationError as error:
        said = [fault.replace("command line: ", "train: ") for fault in error.faults]
        raise ConfigurationError(said) from None
    data_args: DataArguments
    (data_args,) = (group for group in parsed if isinstance(group, DataArguments))
    if POLICY.name not in data_args.tasks:
        raise ConfigurationError([f"recipe: {args.recipe} does not train the policy; give another"])
    return data_args


def plan(args: EvolveArguments) -> str:
    """What a run would do, once all is checked."""
    return wrapped(
        f"these rounds can run: {args.rounds}, each with {args.games} games of {args.plies} plies to "
        f"learn from by {args.recipe}, and {args.match_games} games to accept the result; run the same "
        "command without --dry_run",
        0,
    )


def stop(number: int, _: object) -> None:
    """End the rounds, and say how they go on."""
    print("interrupted; run the same command again, and the round goes on", file=sys.stderr)
    sys.exit(128 + number)


if __name__ == "__main__":
    run_cli(main)
