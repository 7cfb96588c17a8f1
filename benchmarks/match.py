"""Games a minute of a match: all games in one batch against one game at a time.

python benchmarks/match.py --model_name_or_path runs/grpo_nano --opponent rookworld-nano

Answers have at most 64 tokens, as in the packaged model's recipes: its longest right answer has 43, and
one that rambles on holds back the games of its ply.
"""

from __future__ import annotations

import argparse
import time

from rookworld_rlvr.evaluation.models import ModelArguments, open_model
from rookworld_rlvr.evaluation.results import SuiteResult
from rookworld_rlvr.evaluation.suites.matches import VersusModelSuite


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model_name_or_path", default="rookworld-nano")
    parser.add_argument("--opponent", default="rookworld-nano")
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--alone", type=int, default=10, help="games that are played one at a time")
    parser.add_argument("--max_new_tokens", type=int, default=64)
    args = parser.parse_args()
    model_args = ModelArguments(max_new_tokens=args.max_new_tokens)
    model = open_model(args.model_name_or_path, model_args)
    suite = VersusModelSuite(args.games, 0, args.opponent, model_args)
    every = dict(suite.items)

    def played(*batches: list[str]) -> tuple[float, SuiteResult]:
        """The minutes of some batches of games, and the last one's result."""
        started = time.perf_counter()
        for names in batches:
            suite.items = {name: every[name] for name in names}
            result = suite.run(model)
        return (time.perf_counter() - started) / 60, result

    some = list(every)[:: max(1, args.games // args.alone)][: args.alone]
    played(some[:2])  # warm
    minutes, _ = played(*([name] for name in some))
    alone = len(some) / minutes
    minutes, match = played(list(every))
    together, result = len(every) / minutes, match.metrics()
    print(f"one game at a time: {alone:.1f} games a minute ({len(some)} games)")
    print(f"all in one batch:   {together:.1f} games a minute ({len(every)} games)")
    print(f"ratio: {together / alone:.1f}")
    for name in ("score", "elo_difference", "half_moves"):
        if name in result:
            value = result[name]
            print(f"{name}: {value.value:.3f} [{value.low:.3f}, {value.high:.3f}]")


if __name__ == "__main__":
    main()
