"""Part 10 of a diagnosis: what is wrong, what causes it, and which YAML key to change.

Pure: reads the other parts, without torch. The health rules judge the step's own logs; the rules here
judge what only a diagnosis sees. A finding that another one explains is its consequence, and the verdict
names the first cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..common.stats import Proportion
from ..training.health import Finding, HealthArguments, HealthMonitor, Severity

Parts = Mapping[str, Any]


P_FELL = 0.005  # for each of two tasks, so that one healthy step in a hundred is accused at most


KL_SHARE = 0.9  # the predecessors' failed runs stood at 94% to 100%


LOSS_GAP = 1e-3


IDENTICAL = 0.75  # of the pairs in a group; the packaged recipe has 0.3


DRIFT = 0.5  # nats a token: after one step, half of what was sampled is 1.6 times likelier or rarer


FEWEST_REPETITIONS = 20  # of one batch, before its reward must have risen


CAUSES: Mapping[str, tuple[str, ...]] = {
    "reward_raised": (),
    "dropout_active": (),
    "positions_ignored": (),
    "preflight_gap": ("dropout_active", "positions_ignored"),
    "frozen_weights": (),
    "identical_completions": (),
    "reward_constant": ("reward_raised", "identical_completions"),
    "unscored": ("reward_raised",),
    "reward_failures": ("reward_raised",),
    "zero_variance": ("reward_raised", "identical_completions", "reward_constant"),
    "zero_variance_most": ("reward_raised", "identical_completions", "reward_constant"),
    "advantage_std": ("reward_raised", "identical_completions", "reward_constant"),
    "advantage_range": ("reward_raised", "identical_completions", "reward_constant"),
    "gradient_not_finite": (),
    "gradient_zero": (
        "frozen_weights",
        "reward_raised",
        "identical_completions",
        "reward_constant",
        "zero_variance_most",
        "advantage_std",
    ),
    "layers_without_gradient": ("frozen_weights", "gradient_zero"),
    "kl_dominates": ("update_too_large",),
    "kl_share": ("kl_dominates",),
    "kl_high": ("kl_dominates", "dropout_active", "positions_ignored", "preflight_gap"),
    "update_too_large": ("gradient_not_finite", "identical_completions"),
    "heldout_fell": ("gradient_not_finite", "update_too_large", "dropout_active"),
    "batch_not_learnt": (
        "reward_raised",
        "frozen_weights",
        "identical_completions",
        "reward_constant",
        "zero_variance_most",
        "gradient_zero",
        "kl_dominates",
        "update_too_large",
    ),
    "loss_terms_gap": (),
}
"""Rule → the rules that explain it, in the order in which the verdict looks for a cause."""


_OF_A_TREND = ("gradient_clipped",)  # health rules that a single step says nothing about


_SHARES_OF_COMPLETIONS = ("unreadable", "truncated", "unscored")


_SHARES_OF_GROUPS = ("zero_variance", "zero_variance_most")


_LEVEL: Mapping[Severity, int] = {"stop": 0, "warning": 1, "info": 2}


def find(
    parts: Parts,
    logs: Sequence[Mapping[str, Any]],
    health: HealthArguments | None = None,
    repetitions: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The tenth part: verdict, cause, findings.

    Args:
        parts: The other nine.
        logs: The trainer's logs: the held-out evaluation before, the step, the evaluation after.
        health: Severities and bounds of the health rules.
        repetitions: Of one batch, where it was repeated.
    """
    own = list(_own_findings(parts, repetitions))
    known = {finding.rule for finding in own} | set(_OF_A_TREND)
    found = [*own, *(f for f in _health_findings(parts, logs, health) if f.rule not in known)]
    causes = {finding.rule: _cause(finding.rule, {f.rule for f in found}) for finding in found}
    order = [*CAUSES, *(f.rule for f in found if f.rule not in CAUSES)]
    found.sort(key=lambda f: (causes[f.rule] is not None, _LEVEL[f.severity], order.index(f.rule)))
    alarms = [finding for finding in found if finding.severity != "info"]
    return {
        "verdict": _verdict(alarms),
        "cause": alarms[0].rule if alarms else None,
        "keys": list(alarms[0].remedy_keys) if alarms else [],
        "findings": [
            {
                "rule": f.rule,
                "severity": f.severity,
                "value": f.value,
                "bound": f.bound,
                "message": f.message,
                "keys": list(f.remedy_keys),
                "consequence_of": causes[f.rule],
            }
            for f in found
        ],
    }


def _verdict(alarms: Sequence[Finding]) -> str:
    if not alarms:
        return "healthy: one step on this configuration shows nothing to change"
    first = alarms[0]
    key = first.remedy_keys[0] if first.remedy_keys else "nothing in the recipe"
    return f"{first.rule}: {first.message} (change {key})"


def _cause(rule: str, found: set[str]) -> str | None:
    """The first cause of a finding, or None where it is one itself."""
    for cause in CAUSES.get(rule, ()):
        if cause in found:
            return _cause(cause, found) or cause
    return None


def has_stop(part: Parts) -> bool:
    """Whether a finding is grave enough that a run with this configuration should not start."""
    return any(finding["severity"] == "stop" for finding in part["findings"])


# --------------------------------------------------------------------------------------------------
# The health rules
# --------------------------------------------------------------------------------------------------
def _health_findings(
    parts: Parts, logs: Sequence[Mapping[str, Any]], health: HealthArguments | None
) -> Iterator[Finding]:
    """What the rules say of the first step; held-out rules compare the evaluations around it."""
    batch = parts["completions"]
    sizes = dict.fromkeys(_SHARES_OF_COMPLETIONS, batch["completions"])
    sizes |= {name: len(batch["groups"]) for name in _SHARES_OF_GROUPS}
    monitor = HealthMonitor(health or HealthArguments(), patience=1)
    is_first = True
    for entry in logs:
        numbers = dict(entry)
        if "loss" in numbers:
            if not is_first:
                continue
            is_first = False
            numbers.update(parts["advantages"]["batch"])
        elif any(name.startswith("eval_") for name in numbers):
            continue  # a few points are chance on so few rows: judged in pairs instead
        else:
            continue
        limit = parts["shares"]["max_grad_norm"]
        for finding in monitor.observe(int(numbers.get("step", 1)), numbers, limit):
            if not _may_be_chance(finding, sizes.get(finding.rule)):
                yield finding


def _may_be_chance(finding: Finding, n: int | None) -> bool:
    """Whether a share of one batch is over its bound by no more than such a sample varies."""
    if n is None or finding.bound is None:
        return False
    return Proportion(finding.value * n, n).interval[0] <= finding.bound


# --------------------------------------------------------------------------------------------------
# Rules of the diagnosis
# --------------------------------------------------------------------------------------------------
def _own_findings(parts: Parts, repetitions: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    for rule in _RULES:
        yield from rule(parts)
    if repetitions:  # what learns one batch by heart may well forget others
        yield from _batch_not_learnt(repetitions)
    else:
        yield from _heldout_fell(parts)


def _finding(
    rule: str, severity: Severity, value: float, bound: float | None, message: str, *keys: str
) -> Finding:
    return Finding(rule, severity, 1, value, bound, message, keys)


def _reward_raised(parts: Parts) -> Iterator[Finding]:
    for fault in parts["rewards"]["faults"]:
        where = (
            f"on {fault['rows']} of the completions, first on {fault['completion'][:80]!r} after "
            f"{fault['prompt'][:100]!r}"
            if fault["rows"]
            else "on the batch, though on no row of it alone"
        )
        message = (
            f"the reward {fault['name']} raised {fault['error']} {where}; training would end here: "
            "return None for a row that cannot be judged"
        )
        yield _finding("reward_raised", "stop", fault["rows"], 0, message, "rewards")
        return  # one finding; part 4 lists them all


def _dropout_active(parts: Parts) -> Iterator[Finding]:
    dropout, tolerance = parts["setup"]["dropout"], parts["setup"]["parity"]["tolerance"]
    if not dropout["active_modules"] and not dropout["repeat_gap"] > tolerance:
        return
    what = (
        f"{dropout['active_modules']} modules drop out up to {dropout['largest']:.0%} of their inputs"
        if dropout["active_modules"]
        else "two forwards of one batch differ"
    )
    yield _finding(
        "dropout_active",
        "stop",
        dropout["repeat_gap"],
        tolerance,
        f"{what}: two forwards of one batch in training differ by {dropout['repeat_gap']:.3g} nats, "
        f"over {tolerance:g}; set disable_dropout: true, and lora_dropout: 0",
        "disable_dropout",
        "lora_dropout",
    )


def _positions_ignored(parts: Parts) -> Iterator[Finding]:
    parity = parts["setup"]["parity"]
    if parity["position_gap"] > parity["tolerance"] or math.isnan(parity["position_gap"]):
        yield _finding(
            "positions_ignored",
            "stop",
            parity["position_gap"],
            parity["tolerance"],
            f"a padded batch is scored by other position ids than its mask's: log-probs are off by up "
            f"to {parity['position_gap']:.3g} nats, over {parity['tolerance']:g}; give a model whose "
            "positions models.number_positions_from_mask sets under model_name_or_path",
            "model_name_or_path",
        )


def _preflight_gap(parts: Parts) -> Iterator[Finding]:
    parity = parts["setup"]["parity"]
    gaps = {name: parity[name] for name in ("alone_gap", "sampler_gap", "reference_kl")}
    over = {n: v for n, v in gaps.items() if not abs(v) <= parity["tolerance"]}  # nan is over
    if over:
        name, value = max(over.items(), key=lambda item: abs(item[1]))
        yield _finding(
            "preflight_gap",
            "stop",
            value,
            parity["tolerance"],
            f"{name} is {value:.3g} nats, over {parity['tolerance']:g}: the preflight would stop the "
            "run; check dtype and model_name_or_path, or raise preflight_tolerance if you know why",
            "dtype",
            "preflight_tolerance",
        )


def _frozen_weights(parts: Parts) -> Iterator[Finding]:
    gradients, setup = parts["gradients"], parts["setup"]["model"]
    if setup["adapters"] and setup["trained_parameters"]:
        return  # as adapters want it
    share = gradients["frozen_parameters"] / max(1, gradients["parameters"])
    if share:
        names = [layer["layer"] for layer in gradients["layers"] if layer["frozen_parameters"]]
        yield _finding(
            "frozen_weights",
            "stop" if share == 1 else "warning",
            share,
            0.0,
            f"{share:.1%} of the parameters are frozen ({', '.join(names[:4])}"
            f"{', ...' if len(names) > 4 else ''}), over 0%; they never move: load a model whose "
            "weights require gradients under model_name_or_path, or train adapters by use_peft",
            "model_name_or_path",
            "use_peft",
        )


def _identical_completions(parts: Parts) -> Iterator[Finding]:
    share = parts["completions"]["identical_pairs"]
    if share is not None and share > IDENTICAL:
        heat = ", ".join(f"{t} {v:g}" for t, v in parts["setup"]["step"]["temperature"].items())
        yield _finding(
            "identical_completions",
            "warning",
            share,
            IDENTICAL,
            f"of the pairs of a group's completions {share:.0%} are one text, over {IDENTICAL:.0%}, at "
            f"temperature {heat}: there is little to compare; raise temperature",
            "temperature",
            "task_sampling",
        )


def _reward_constant(parts: Parts) -> Iterator[Finding]:
    total = parts["rewards"]["total"]
    if total["n"] > 1 and total["lowest"] == total["highest"]:
        yield _finding(
            "reward_constant",
            "warning",
            0.0,
            0.0,
            f"all {total['n']} completions have the reward {total['mean']:g}, a deviation of 0, not "
            "over 0: nothing is taught; give rewards that tell completions apart, see --dry_run",
            "rewards",
            "tasks",
        )


def _gradient(parts: Parts) -> Iterator[Finding]:
    gradients = parts["gradients"]
    value = gradients["norm"]
    if not gradients["finite"] or value is None:
        yield _finding(
            "gradient_not_finite",
            "stop",
            math.nan if value is None else value,
            None,
            f"the gradient norm is {value}, not finite: the step destroys the weights; lower "
            "learning_rate, or set bf16 in place of fp16",
            "learning_rate",
            "bf16",
        )
    elif value == 0:
        yield _finding(
            "gradient_zero",
            "warning",
            0.0,
            0.0,
            "the gradient norm is 0, not over 0: the step moves no weight; raise temperature or "
            "num_generations",
            "temperature",
            "num_generations",
        )
    else:
        yield from _layers_without_gradient(gradients)


def _layers_without_gradient(gradients: Parts) -> Iterator[Finding]:
    dead = [
        layer["layer"]
        for layer in gradients["layers"]
        if layer["zero"] and layer["frozen_parameters"] < layer["parameters"]
    ]
    if dead:
        yield _finding(
            "layers_without_gradient",
            "warning",
            len(dead),
            0,
            f"{len(dead)} layers are trained but get no gradient ({', '.join(dead[:4])}), over 0; "
            "check the model under model_name_or_path",
            "model_name_or_path",
        )


def _kl_dominates(parts: Parts) -> Iterator[Finding]:
    """In the step, or one step on: before the first update KL is 0 whatever its coefficient."""
    for name, words in (("step", "in the step"), ("one_step_on", "one step on")):
        shares = parts["shares"][name]
        if shares is None:
            continue
        values = [shares["kl_share"], shares["kl_share_of_gradient"] or 0.0]
        if max(values) > KL_SHARE:
            yield _finding(
                "kl_dominates",
                "warning",
                max(values),
                KL_SHARE,
                f"KL is {values[0]:.0%} of the loss and {values[1]:.0%} of the gradient {words}, over "
                f"{KL_SHARE:.0%}, at a coefficient of {shares['kl_coefficient']:g}: the rewards "
                "hardly count; lower beta",
                "beta",
                "kl_target",
            )
            return


def _update_too_large(parts: Parts) -> Iterator[Finding]:
    shares = parts["shares"]["one_step_on"]
    rate = parts["gradients"]["learning_rate"]
    if shares is not None and not shares["mean_log_ratio"] <= DRIFT:
        yield _finding(
            "update_too_large",
            "warning",
            shares["mean_log_ratio"],
            DRIFT,
            f"one step moves the log-prob of a sampled token by {shares['mean_log_ratio']:.2g} nats on "
            f"average, over {DRIFT:g}, at a learning rate of {rate:g}; lower learning_rate",
            "learning_rate",
            "max_grad_norm",
        )


def _heldout_fell(parts: Parts) -> Iterator[Finding]:
    before, after = parts["heldout_before"]["metrics"], parts["heldout_after"]["metrics"]
    for name, pair in parts["heldout_after"]["paired"].items():
        if pair["p_fell"] < P_FELL:
            yield _finding(
                "heldout_fell",
                "stop",
                pair["p_fell"],
                P_FELL,
                f"{name} falls from {before[name]['value']:.1%} to {after[name]['value']:.1%} of "
                f"{pair['n']} held-out rows in one step: {pair['right_to_wrong']} become wrong, "
                f"{pair['wrong_to_right']} right (p = {pair['p_fell']:.2g} by sign test, under "
                f"{P_FELL:g}); lower learning_rate from {parts['gradients']['learning_rate']:g}",
                "learning_rate",
                "beta",
            )
            return


def _loss_terms_gap(parts: Parts) -> Iterator[Finding]:
    gap = parts["loss_terms"]["relative_gap"]
    if not gap <= LOSS_GAP:
        yield _finding(
            "loss_terms_gap",
            "warning",
            gap,
            LOSS_GAP,
            f"policy gradient, KL and entropy miss the trainer's loss by {gap:.2g} of their size, over "
            f"{LOSS_GAP:g}: this report takes apart something else than the step with this loss_type",
            "loss_type",
        )


def _batch_not_learnt(repetitions: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """The mean reward of the last quarter of the repetitions against that of the first."""
    rewards = [r["reward"] for r in repetitions if r["reward"] is not None]
    if len(rewards) < FEWEST_REPETITIONS:
        return
    quarter = len(rewards) // 4
    rise = (sum(rewards[-quarter:]) - sum(rewards[:quarter])) / quarter
    if not rise > 0:
        yield _finding(
            "batch_not_learnt",
            "warning",
            rise,
            0.0,
            f"{len(rewards)} steps on one batch change its reward by {rise:.3g}, not over 0: what "
            "cannot be learnt by heart is not learnt at all; raise learning_rate, or check rewards",
            "learning_rate",
            "rewards",
        )


_RULES: tuple[Callable[[Parts], Iterator[Finding]], ...] = (
    _reward_raised,
    _dropout_active,
    _positions_ignored,
    _preflight_gap,
    _frozen_weights,
    _identical_completions,
    _reward_constant,
    _gradient,
    _kl_dominates,
    _update_too_large,
    _loss_terms_gap,
)
