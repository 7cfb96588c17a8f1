"""Run by two processes, with FOLDER, clean|faults, ...: the packaged recipe with an engine.

Faults, counted in `planted<rank>.json`: one reward fails on about 5% of its calls, the engines are
killed every 20 steps, the second process is slowed, and twice it gets SIGTERM.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import psutil
from accelerate import PartialState

from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.rewards import guard

from ..support import recipe

ROWS = 8  # of each process and step: two prompts
ONE_IN = 40  # prompts on which the reward fails; of calls for two prompts, one in 20
SLOWED_S = 0.03
KILLED_EVERY = 20  # steps
STOPPED_AT = (65, 130)  # steps


class Faults:
    """Plants faults around a reward, and counts them in a file, over all starts of a run."""

    def __init__(self, reward: Callable[..., Any], folder: Path) -> None:
        self.__name__ = "planted"
        self.reward = reward
        self.rank = PartialState().process_index
        self.file = folder / f"planted{self.rank}.json"
        self.counts = Counter(json.loads(self.file.read_text()) if self.file.is_file() else {})

    def __call__(self, prompts: list[str], trainer_state: Any, **columns: Any) -> Any:
        fails = any(crc32(prompt.encode()) % ONE_IN == 0 for prompt in prompts)
        if len(prompts) == ROWS:  # not asked again for the rows of one prompt
            self.counts.update(calls=1, failed=fails)
            self.disturb(trainer_state.global_step)
        elif fails and len(prompts) > 1 == len({*prompts}):  # held-out rows have different prompts
            self.counts.update(lost=len(prompts))
        self.file.write_text(json.dumps(self.counts))
        if fails:
            raise ConnectionError("planted")
        return self.reward(prompts=prompts, **columns)

    def disturb(self, step: int) -> None:
        time.sleep(SLOWED_S * self.rank)
        if step and step % KILLED_EVERY == 0:
            children = psutil.Process().children(recursive=True)
            engines = [child for child in children if "stockfish" in child.name()]
            for engine in engines:
                engine.kill()
            self.counts.update(kills=bool(engines))
        if self.rank == 1 and step in STOPPED_AT:
            self.counts.update(signals=1)
            os.kill(os.getpid(), signal.SIGTERM)


def run(argv: Sequence[str]) -> None:
    """In one of two processes."""
    folder, kind, *words = argv
    script = recipe("grpo")
    if kind == "faults":
        guard.UNSCORED_LIMIT = 0.5  # a prompt is a quarter of a batch
        open_rewards = script.open_rewards

        def planted(*args: Any) -> list[Any]:
            first, *others = open_rewards(*args)
            return [Faults(first, Path(folder)), *others]

        script.open_rewards = planted
    sys.argv[1:] = [*words, "--output_dir", str(Path(folder) / "run")]
    run_cli(script.main)
