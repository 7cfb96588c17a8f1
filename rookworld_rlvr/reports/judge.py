"""How good a judge is on data that it was not trained on: pairs, and ranking."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from datasets import Dataset

from ..common.errors import RookWorldError
from ..common.html import render
from ..common.stats import Estimate, estimate
from ..data.judge_pairs import JudgeDataArguments, Pair
from ..models import loading
from ..models.decoding import PLAIN, complete
from ..rewards.judge import Judge
from ..rewards.registry import COMPOSITES
from ..tasks.registry import TASKS, score_row
from ..tasks.types import Score, values_by_move

RANKED_BY = "graduated, shaping continuous; for fill-in the similarity"
RANKED_COMPLETIONS = 8  # of the generator, for each prompt
_PAIRS_SHOWN = 2  # of a kind


# --------------------------------------------------------------------------------------------------
# The report
# --------------------------------------------------------------------------------------------------
def judge_report(
    judge: Judge, pairs: Sequence[Pair], heldout: Dataset, args: JudgeDataArguments
) -> dict[str, Any]:
    """What `judge_report.json` holds.

    Args:
        judge: As a recipe's reward would load it.
        pairs: Held-out pairs; those that are too long for the judge are left out.
        heldout: Held-out rows; the generator answers their prompts.
        args: The generator and how many prompts.

    Raises:
        RookWorldError: The generator cannot be loaded, or every pair is too long for the judge.
    """
    prompts = [pair.prompt for pair in pairs]
    chosen = judge.scores(prompts, [pair.chosen for pair in pairs])
    rejected = judge.scores(prompts, [pair.rejected for pair in pairs])
    differences = [
        (pair.kind, better - worse)
        for pair, better, worse in zip(pairs, chosen, rejected, strict=True)
        if better is not None and worse is not None
    ]
    if not differences:
        raise RookWorldError(
            f"{judge.name}: all {len(pairs)} held-out pairs are longer than the {judge.longest:.0f} "
            "tokens that it has positions for; give a model with more positions"
        )
    too_long = len(pairs) - len(differences)
    report: dict[str, Any] = {"pairs": {**pair_accuracy(differences), "too_long": too_long}}
    if args.ranked_prompts:
        report["ranking"] = {
            "generator": args.generator,
            "reward": RANKED_BY,
            "temperature": PLAIN.temperature,
            "completions": RANKED_COMPLETIONS,
            "by_task": ranking(judge, heldout, args),
        }
    return report


def pair_accuracy(differences: Sequence[tuple[str, float]]) -> dict[str, Any]:
    """Share of pairs whose chosen answer scores higher, in all and by kind; a tie counts as wrong.

    Args:
        differences: A pair's kind, and the score of its chosen answer less that of the rejected one.
    """
    by_kind: dict[str, list[bool]] = {}
    for kind, difference in differences:
        by_kind.setdefault(kind, []).append(difference > 0)
    return {
        **_named("accuracy", estimate("share", [difference > 0 for _, difference in differences])),
        "ties": sum(difference == 0 for _, difference in differences),
        "by_kind": {
            kind: _named("accuracy", estimate("share", found))
            for kind, found in sorted(by_kind.items())
        },
    }


def _named(name: str, result: Estimate) -> dict[str, Any]:
    return {name: result.value, "low": result.low, "high": result.high, "n": result.n}


# --------------------------------------------------------------------------------------------------
# Ranking
# --------------------------------------------------------------------------------------------------
def ranking(judge: Judge, heldout: Dataset, args: JudgeDataArguments) -> dict[str, Any]:
    """Kendall's τ by prompt between the judge and the verifiable reward, over sampled completions.

    Returns:
        By task: the mean over prompts with its bootstrap interval, the number of prompts, and how many
        were left out because the judge or the reward gave all completions the same.
    """
    network = loading.load_model(args.generator).to(judge.network.device).eval()
    tokenizer = loading.load_tokenizer(args.generator)
    found: dict[str, Any] = {}
    for task in args.tasks():
        rows = [row for row in heldout if row["task"] == task][: args.ranked_prompts]
        prompts = [row["prompt"] for row in rows]
        drawn = [
            complete(
                network,
                tokenizer,
                prompts,
                max_new_tokens=args.ranked_tokens,
                decoding=replace(PLAIN, seed=turn),
            )
            for turn in range(RANKED_COMPLETIONS)
        ]
        taus = [_tau_of_row(judge, row, texts) for row, *texts in zip(rows, *drawn, strict=True)]
        ranked = [tau for tau in taus if tau is not None]
        found[task] = {
            **(_named("tau", estimate("mean", ranked, -1.0)) if ranked else {"n": 0}),
            "without_variance": len(taus) - len(ranked),
        }
    return found


def _tau_of_row(judge: Judge, row: Mapping[str, Any], completions: Sequence[str]) -> float | None:
    """Kendall's τ of a row's completions, without those too long to judge; None if undefined."""
    prompt, values = row["prompt"], values_by_move(row["action_values"])
    scores = judge.scores([prompt] * len(completions), completions)
    truths = [score_row(prompt, text, values) for text in completions]
    both = [
        (score, _worth(row["task"], truth))
        for score, truth in zip(scores, truths, strict=True)
        if score is not None and truth is not None
    ]
    return kendall_tau([score for score, _ in both], [reward for _, reward in both])


def _worth(task: str, score: Score) -> float:
    """The verifiable reward to rank by: `graduated` where it judges the task, else its quality."""
    ranked = COMPOSITES["graduated"]
    if task in ranked.tasks:
        return ranked.number(score, shaping="continuous")
    return TASKS[task].quality(score)


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's τ-b, in [-1, 1]; None if all values of one side are the same.

    Source: M. G. Kendall, "The treatment of ties in ranking problems", Biometrika 33 (1945).

    >>> kendall_tau([1, 2, 3], [1, 3, 2])
    0.3333333333333333
    """
    one, other = (np.sign(np.subtract.outer(side, side)) for side in (first, second))  # each twice
    untied = np.count_nonzero(one) * np.count_nonzero(other)
    return float((one * other).sum() / math.sqrt(untied)) if untied else None


# --------------------------------------------------------------------------------------------------
# As text
# --------------------------------------------------------------------------------------------------
def report_text(report: Mapping[str, Any]) -> str:
    """The report as Markdown tables."""
    return str(render("judge_report.md", **{"ranking": None, **report})).rstrip("\n")


def pairs_text(pairs: Sequence[Pair]) -> str:
    """The number of pairs of each kind, and a few examples."""
    kinds = Counter(pair.kind for pair in pairs)
    lines = [f"{kind:<14}{count:>8} pairs" for kind, count in sorted(kinds.items())]
    for kind in sorted(kinds):
        for pair in [pair for pair in pairs if pair.kind == kind][:_PAIRS_SHOWN]:
            lines += ["", f"{kind}: {pair.prompt!r}", f"  chosen   {pair.chosen!r}"]
            lines.append(f"  rejected {pair.rejected!r}")
    return "\n".join(lines)
