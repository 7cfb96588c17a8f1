"""Evaluate models on fixed suites, with 95% intervals; several models are compared with the first.

rookworld evaluate                                      # rookworld-nano
rookworld evaluate runs/grpo_nano --suites environment policy
rookworld evaluate rookworld-nano runs/grpo_nano --output_file runs/grpo_nano/evaluation.json
rookworld evaluate random                               # chance
rookworld evaluate runs/grpo_nano --suites versus_model \
    --opponent rookworld-nano --suite_games 200 --pgn_file games.pgn
rookworld evaluate rookworld-nano runs/grpo_nano --suites elo    # rated together, in one pool
rookworld evaluate runs/grpo_nano --json                # results for a program
"""

from __future__ import annotations

import rookworld_rlvr.common.machine  # noqa: F401  # before torch is loaded

# isort: split
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.cli.run import POSITIONAL, run_cli
from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.common.files import check_writable, json_text, naming, write_json
from rookworld_rlvr.common.machine import machine
from rookworld_rlvr.common.settings import each, setting
from rookworld_rlvr.engine import EngineArguments
from rookworld_rlvr.evaluation.models import ModelArguments, open_model
from rookworld_rlvr.evaluation.registry import SUITE_HEADLINES, SuiteArguments
from rookworld_rlvr.evaluation.results import ModelResults, results_document, results_text
from rookworld_rlvr.evaluation.suite import (
    PromptSuite,
    check_training_data,
    keep_apart,
    open_suites,
    suite_class,
)
from rookworld_rlvr.evaluation.suites.elo import EloSuite
from rookworld_rlvr.evaluation.suites.games import PlayedSuite


@dataclass
class EvaluateArguments(SuiteArguments):
    """Which suites to run, and where the results go."""

    suites: list[str] = setting(
        ["environment", "policy"],
        f"The evaluation suites to run: {', '.join(SUITE_HEADLINES)}.",
        among=SUITE_HEADLINES,
        of="suite",
        filled=True,
    )
    training_data: list[str] = setting(
        [],
        "Recipes (.yaml) or data sets that the models were trained on. Test items with positions from "
        "them are left out and counted.",
        check=each(check_training_data),
    )
    pass_samples: int = setting(
        0,
        "Sampled answers to each item, for pass@k with k up to this number, in the suites whose items "
        "are prompts with one answer: by `decoding`, or with decoding: greedy at temperature 1. 0 "
        "measures no pass@k.",
        least=0,
    )
    output_file: str = setting("", "The JSON file for the results; none by default.")
    pgn_file: str = setting(
        "", "The PGN file that the suites' games are added to; none by default."
    )
    json: bool = setting(
        False, "Print the results as one JSON object, for programs; all else goes to stderr."
    )


GROUPS = [EvaluateArguments, ModelArguments, EngineArguments]


def check_games(args: EvaluateArguments, kinds: Iterable[type]) -> None:
    """Refuse a file for games if none are played."""
    if args.pgn_file and not any(issubclass(kind, PlayedSuite) for kind in kinds):
        asked = ", ".join(args.suites)
        raise ConfigurationError(
            [f"pgn_file: no games are played by {asked}; add self_play to suites, or leave it out"]
        )


def main(argv: Sequence[str]) -> None:
    parser = StrictParser(GROUPS, positional=POSITIONAL["evaluate"])
    args, model_args, engine_args = parser.parse_strictly(argv)
    with redirect_stdout(sys.stderr) if args.json else nullcontext():
        document = evaluate(args, model_args, engine_args, parser.values)
    if args.json and PartialState().is_main_process:
        print(json_text(document), end="")


def evaluate(
    args: EvaluateArguments,
    model_args: ModelArguments,
    engine_args: EngineArguments,
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """Run the suites, print and write what the keys ask for; the results for a program.

    Args:
        args: The suites, and the files.
        model_args: The models.
        engine_args: The engine.
        given: All keys that were given.
    """
    check_games(args, map(suite_class, args.suites))
    state = PartialState(cpu=not torch.accelerator.is_available())
    files = {"output_file": args.output_file, "pgn_file": args.pgn_file}
    for key, name in files.items() if state.is_main_process else ():
        if name:
            check_writable(Path(name), key)

    names = ", ".join(model_args.model_name_or_path)
    state.print(f"evaluating {names} on {', '.join(args.suites)}")

    ################
    # Suites
    ################
    suites, left_out = open_suites(args, engine_args, model_args)
    for name, reason in left_out.items():
        state.print(f"suite {name} is left out: {reason}")
    for suite in suites:
        suite.pass_samples = args.pass_samples if isinstance(suite, PromptSuite) else 0
    trained_on = [keep_apart(suites, name) for name in args.training_data]
    for found in trained_on:
        state.print(
            "{training_data}: {rows} training rows; test items left out because their positions are "
            "among these: {left_out}".format(**found)
        )
    for suite in [suite for suite in suites if not suite.items]:
        suites.remove(suite)
        left_out[suite.name] = "all of its items are among the training rows"
        state.print(f"suite {suite.name} is left out: {left_out[suite.name]}")
    if not suites:
        raise ConfigurationError([f"suites: {name}: {why}" for name, why in left_out.items()])
    check_games(args, map(type, suites))

    ################
    # Models
    ################
    results, games, pooled = [], [], []
    pools = [suite for suite in suites if isinstance(suite, EloSuite)]
    alone = [suite for suite in suites if suite not in pools]
    for name in model_args.model_name_or_path:
        model = open_model(name, model_args)
        answered = {suite.name: suite.run(model) for suite in alone}
        results.append(ModelResults(name, answered, left_out))
        games += [suite.pgn(name) for suite in alone if isinstance(suite, PlayedSuite)]
        pooled += [model] if pools else []  # all of them meet there
    for pool in pools:
        rated = zip(results, pool.rate(pooled), strict=True)
        results = [replace(one, suites={**one.suites, pool.name: found}) for one, found in rated]
        games.append(pool.pgn(""))

    ################
    # Results
    ################
    document = results_document(results, trained_on, {"arguments": given, **machine()})
    if state.is_main_process:
        if args.output_file:
            write_json(Path(args.output_file), document)
        print(results_text(results))
        if args.pgn_file:
            path = Path(args.pgn_file)
            with naming(path), path.open("a", encoding="utf-8") as pgn:  # as chess programs do
                pgn.write("\n\n" if pgn.tell() else "")
                pgn.write("\n".join(games))
            print(f"\ngames: {args.pgn_file}")
        if args.output_file:
            print(f"\nresults: {args.output_file}")
    return document


if __name__ == "__main__":
    run_cli(main)
