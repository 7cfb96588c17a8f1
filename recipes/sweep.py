"""Run a W&B sweep file without W&B's server: one trial after the other, then a ranking.

rookworld sweep --config sweep_nano --count 8     # eight trials
rookworld sweep --config sweep_nano --count 12    # four more; also continues after a stop

To use W&B's server instead: `wandb sweep recipes/sweep_nano.yaml`, then `wandb agent` with the id it
prints.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpo

from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.common.terminal import cells
from rookworld_rlvr.extras.sweep.trials import (
    SweepArguments,
    describe,
    outcome,
    ranking,
    run_trial,
)
from rookworld_rlvr.training.config import check_recipe

RECIPE = Path(__file__).with_name("sweep_nano.yaml")
GROUPS = [SweepArguments]


def main(argv: Sequence[str]) -> None:
    ################
    # Sweep
    ################
    (sweep,) = StrictParser(GROUPS, RECIPE).parse_strictly(argv)
    trials = sweep.trials()
    recipes = check_trials(sweep, trials)

    ################
    # Trials
    ################
    for word in (signal.SIGINT, signal.SIGTERM):  # the trial ends too
        signal.signal(word, stop)
    records = []
    for number, (values, recipe) in enumerate(zip(trials, recipes, strict=True)):
        lines = cells(f"trial {number + 1} of {len(trials)}: ", describe(values))
        log = sweep.trial_folder(number).with_suffix(".log")
        print("\n".join([*lines, f"    log: {log}"]), flush=True)
        records.append(run_trial(sweep, number, values, recipe))
        minutes = records[-1]["minutes"]
        print(f"    {outcome(records[-1])} ({minutes:.1f} minutes)", flush=True)

    ################
    # Ranking
    ################
    print(ranking(sweep, records))


def stop(number: int, _: object) -> None:
    """End the sweep, and say how it goes on."""
    print("interrupted; run the same command again, and the trial goes on", file=sys.stderr)
    sys.exit(128 + number)


def check_trials(sweep: SweepArguments, trials: Sequence[dict[str, Any]]) -> list[str]:
    """Check every trial's keys before any is run; returns their resolved recipes.

    Raises:
        ConfigurationError: With the faults of all trials, each once.
    """
    faults: dict[str, None] = {}
    recipes = []
    for values in trials:
        parser = StrictParser(grpo.GROUPS, grpo.RECIPE)
        words = sweep.command_of(values, sweep.trial_folder(0).with_name("trial"))
        if Path(sweep.script).name != "grpo.py":
            raise ConfigurationError(
                [f"program: {sweep.program!r} cannot be swept; leave it out, or give a grpo.py"]
            )
        if sweep.script not in words:
            raise ConfigurationError(["command: ${program} is missing; put it before ${args}"])
        try:  # a dry run asks no Hub
            words = [*words[words.index(sweep.script) + 1 :], "--dry_run"]
            recipes.append(parser.resolved(*parser.parse_strictly(words, check_recipe)))
        except ConfigurationError as error:
            said = (fault.replace("command line: ", "parameters: ") for fault in error.faults)
            faults |= dict.fromkeys(said)
    if faults:
        raise ConfigurationError(list(faults))
    return recipes


if __name__ == "__main__":
    run_cli(main)
