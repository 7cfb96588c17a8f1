"""The rules of ``assets/diagnosis_rules.yaml``: for each, a function of the rule's name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..common.stats import Proportion
from ..training.health.rules import Severity
from .lines import STEPS

Parts = Mapping[str, Any]


P_FELL = 0.005  # for each of two tasks, so that one healthy step in a hundred is accused at most


KL_SHARE = 0.9  # it was 94% to 100% in the predecessors' failed runs


LOSS_GAP = 1e-3


PARSES = 0.01


HALF = 0.5


IDENTICAL = 0.75  # of the pairs in a group; the packaged recipe has 0.3


DRIFT = 0.5  # nats a token: after one step, half of what was sampled is 1.6 times likelier or rarer


FEWEST_REPETITIONS = 20  # of one batch, before its reward must have risen


class Sign(NamedTuple):
    """What a rule has found."""

    value: float
    bound: float | None
    words: Mapping[str, Any] = {}  # what the message names beside them
    severity: Severity | None = None  # None takes the rule's
    keys: tuple[str, ...] = ()  # empty takes the rule's


def reward_raised(parts: Parts) -> Sign | None:
    """One finding for all: part 4 lists them."""
    for fault in parts["rewards"]["faults"][:1]:
        where = (
            f"on {fault['rows']} of the completions, first on {fault['completion'][:80]!r} after "
            f"{fault['prompt'][:100]!r}"
            if fault["rows"]
            else "on the whole batch, but on no row of it alone"
        )
        return Sign(fault["rows"], 0, {**fault, "where": where})
    return None


def dropout_active(parts: Parts) -> Sign | None:
    """Active dropout, or two forwards that differ."""
    dropout, tolerance = parts["setup"]["dropout"], parts["setup"]["parity"]["tolerance"]
    modules, gap = dropout["active_modules"], dropout["repeat_gap"]
    if not modules and not gap > tolerance:
        return None
    what = (
        f"{modules} modules drop out up to {dropout['largest']:.0%} of their inputs"
        if modules
        else "two forwards of one batch differ"
    )
    return Sign(gap, tolerance, {"what": what})


def positions_ignored(parts: Parts) -> Sign | None:
    """Log-probs of a padded batch that change when the mask's position ids are given."""
    parity = parts["setup"]["parity"]
    gap, tolerance = parity["position_gap"], parity["tolerance"]
    return None if gap <= tolerance else Sign(gap, tolerance)  # nan is over


def preflight_gap(parts: Parts) -> Sign | None:
    """The largest of the preflight's gaps."""
    parity = parts["setup"]["parity"]
    gaps = {name: parity[name] for name in ("alone_gap", "sampler_gap", "reference_kl")}
    over = {n: v for n, v in gaps.items() if not abs(v) <= parity["tolerance"]}  # nan is over
    if not over:
        return None
    name, value = max(over.items(), key=lambda item: abs(item[1]))
    return Sign(value, parity["tolerance"], {"name": name})


def frozen_weights(parts: Parts) -> Sign | None:
    """Parameters that require no gradient, unless adapters are trained."""
    gradients, setup = parts["gradients"], parts["setup"]["model"]
    share = gradients["frozen_parameters"] / max(1, gradients["parameters"])
    if not share or (setup["adapters"] and setup["trained_parameters"]):
        return None
    names = [layer["layer"] for layer in gradients["layers"] if layer["frozen_parameters"]]
    shown = ", ".join([*names[:4], *(["..."] if len(names) > 4 else [])])
    return Sign(share, 0.0, {"layers": shown}, "stop" if share == 1 else None)


def nothing_parses(parts: Parts) -> Sign | None:
    """Held-out and sampled answers that do not have the form of their task."""
    metrics = parts["heldout_before"]["metrics"]
    shares = [found["value"] for name, found in metrics.items() if name.endswith("/format")]
    sampled = 1 - parts["advantages"]["batch"]["health/unreadable"]
    if not shares or max(*shares, sampled) > PARSES:
        return None
    return Sign(max(shares), PARSES, {"sampled": sampled})


def mostly_unreadable(parts: Parts) -> Sign | None:
    """Sampled completions that cannot be read, with the remedy that held-out answers suggest."""
    share, n = (
        parts["advantages"]["batch"]["health/unreadable"],
        parts["completions"]["completions"],
    )
    if Proportion(share * n, n).interval[0] <= HALF:
        return None
    metrics = parts["heldout_before"]["metrics"].items()
    greedy = max((found["value"] for name, found in metrics if name.endswith("/format")), default=0)
    if greedy > HALF:
        remedy = f"{greedy:.0%} of the greedy held-out answers can: lower temperature"
        return Sign(share, HALF, {"remedy": remedy}, keys=("temperature", "top_p"))
    remedy = (
        "teach the model to answer such rows with rookworld sft first, or give rows that it knows; if "
        "answers are cut off, raise max_completion_length"
    )
    return Sign(share, HALF, {"remedy": remedy})


def identical_completions(parts: Parts) -> Sign | None:
    """Pairs of equal completions in a group."""
    share = parts["completions"]["identical_pairs"]
    if share is None or share <= IDENTICAL:
        return None
    heat = ", ".join(f"{t} {v:g}" for t, v in parts["setup"]["step"]["temperature"].items())
    return Sign(share, IDENTICAL, {"heat": heat})


def reward_constant(parts: Parts) -> Sign | None:
    """One reward for all completions."""
    total = parts["rewards"]["total"]
    if total["n"] <= 1 or total["lowest"] != total["highest"]:
        return None
    return Sign(0.0, 0.0, total)


def gradient_not_finite(parts: Parts) -> Sign | None:
    """A gradient norm that is not a finite number."""
    norm = parts["gradients"]["norm"]
    if parts["gradients"]["finite"] and norm is not None:
        return None
    return Sign(math.nan if norm is None else norm, None, {"norm": norm})


def gradient_zero(parts: Parts) -> Sign | None:
    """A gradient norm of 0."""
    is_zero = parts["gradients"]["finite"] and parts["gradients"]["norm"] == 0
    return Sign(0.0, 0.0) if is_zero else None


def layers_without_gradient(parts: Parts) -> Sign | None:
    """Trained layers without a gradient, while others have one."""
    gradients = parts["gradients"]
    dead = [
        layer["layer"]
        for layer in gradients["layers"]
        if layer["zero"] and layer["frozen_parameters"] < layer["parameters"]
    ]
    if not dead or not gradients["finite"] or not gradients["norm"]:  # another rule tells
        return None
    return Sign(len(dead), 0, {"layers": ", ".join(dead[:4])})


def kl_dominates(parts: Parts) -> Sign | None:
    """In the step or one step later: before the first update KL is 0 whatever its coefficient."""
    for key, when in STEPS.items():
        shares = parts["shares"][key]
        if shares is None:
            continue
        of_gradient = shares["kl_share_of_gradient"] or 0.0
        largest = max(shares["kl_share"], of_gradient)
        if largest > KL_SHARE:
            return Sign(largest, KL_SHARE, {**shares, "of_gradient": of_gradient, "when": when})
    return None


def update_too_large(parts: Parts) -> Sign | None:
    """How far one step moves the log-probs of what was sampled."""
    shares, rate = parts["shares"]["one_step_on"], parts["gradients"]["learning_rate"]
    if shares is None or shares["mean_log_ratio"] <= DRIFT:  # nan is over
        return None
    return Sign(shares["mean_log_ratio"], DRIFT, {"rate": rate})


def loss_terms_gap(parts: Parts) -> Sign | None:
    """A loss of the trainer's that the terms do not add up to."""
    gap = parts["loss_terms"]["relative_gap"]
    return None if gap <= LOSS_GAP else Sign(gap, LOSS_GAP)  # nan is over


def heldout_fell(parts: Parts) -> Sign | None:
    """More right answers lost than gained; not for a repeated batch, which may cost others."""
    before, after = parts["heldout_before"]["metrics"], parts["heldout_after"]["metrics"]
    for name, pair in parts["heldout_after"]["paired"].items():
        if pair["p_fell"] < P_FELL and not parts["repetitions"]:
            words = {
                "name": name,
                "before": before[name]["value"],
                "after": after[name]["value"],
                "rate": parts["gradients"]["learning_rate"],
            }
            return Sign(pair["p_fell"], P_FELL, {**pair, **words})
    return None


def batch_not_learnt(parts: Parts) -> Sign | None:
    """The mean reward of the last quarter of the repetitions against that of the first."""
    rewards = [r["reward"] for r in parts["repetitions"] if r["reward"] is not None]
    if len(rewards) < FEWEST_REPETITIONS:
        return None
    quarter = len(rewards) // 4
    rise = (sum(rewards[-quarter:]) - sum(rewards[:quarter])) / quarter
    return None if rise > 0 else Sign(rise, 0.0, {"steps": len(rewards)})
