"""Run a W&B sweep file without W&B's server: one trial after the other, then the ranking.

python recipes/sweep.py --config recipes/sweep_nano.yaml --count 8     # eight trials
python recipes/sweep.py --config recipes/sweep_nano.yaml --count 12    # four more, or after a kill

With the server it is `wandb sweep recipes/sweep_nano.yaml`, then `wandb agent` with the id it prints.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpo

from rookworld_rlvr.cli.checks import check_recipe
from rookworld_rlvr.cli.parser import StrictParser, run_cli
from rookworld_rlvr.cli.sweep import SweepArguments, TrialTable, describe, ranking, run_trial
from rookworld_rlvr.common.errors import ConfigurationError

SWEEP = Path(__file__).with_name("sweep_nano.yaml")


def main(argv: Sequence[str]) -> None:
    ################
    # Sweep
    ################
    (sweep,) = StrictParser([SweepArguments], SWEEP).parse_strictly(argv)
    trials = sweep.trials()
    check_trials(sweep, trials)
    table = TrialTable(sweep)

    ################
    # Trials
    ################
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as for Ctrl-C: the trial ends too
    done = {trial.number for trial in table.trials}
    for number, values in enumerate(trials):
        if number in done:
            continue
        print(f"trial {number + 1} of {len(trials)}: {describe(values)}", flush=True)
        trial = run_trial(sweep, number, values)
        table.add(trial)
        outcome = trial.failure or f"{sweep.metric['name']} {trial.score:.4f}"
        print(f"    {outcome} ({trial.seconds / 60:.1f} minutes)", flush=True)

    ################
    # Ranking
    ################
    shown = [trial for trial in table.trials if trial.number < len(trials)]
    print(ranking(shown, sweep.metric["name"], sweep.metric["goal"]))


def check_trials(sweep: SweepArguments, trials: Sequence[dict[str, Any]]) -> None:
    """Parse every trial as the recipe will; nothing is run while one of them has a fault.

    Raises:
        ConfigurationError: With the faults of all trials, each once.
    """
    if Path(sweep.program).resolve() != Path(grpo.__file__).resolve():
        raise ConfigurationError(
            [
                f"program: {sweep.program!r} is not recipes/grpo.py; start the agent in its repository"
            ]
        )
    faults: dict[str, None] = {}
    for values in trials:
        parser = StrictParser(grpo.GROUPS, grpo.RECIPE)
        try:
            parser.parse_strictly(sweep.arguments(values, sweep.folder), check_recipe)
        except ConfigurationError as error:
            faults |= dict.fromkeys(error.faults)
    if faults:
        raise ConfigurationError(list(faults))


if __name__ == "__main__":
    run_cli(main)
