"""Part 10 of a diagnosis: what is wrong, what causes it, and which YAML key to change.

Pure: reads the other parts, without torch. The health rules judge the step's own logs; the rules here
judge what only a diagnosis sees. A finding that another one explains is its consequence, and the verdict
names the first cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..common.stats import Proportion
from ..training.health import Finding, HealthArguments, HealthMonitor, Severity

Parts = Mapping[str, Any]


P_FELL = 0.005  # for each of two tasks, so that one healthy step in a hundred is accused at most


KL_SHARE = 0.9  # the predecessors' failed runs stood at 94% to 100%


LOSS_GAP = 1e-3


IDENTICAL = 0.75  # of the pairs in a group; the packaged recipe has 0.3


DRIFT = 0.5  # nats a token: after one step, half of what was sampled is 1.6 times likelier or rarer


FEWEST_REPETITIONS = 20  # of one batch, before its reward must have risen


_NOTHING_TO_COMPARE = ("reward_raised", "identical_completions", "reward_constant")


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
    "zero_variance": _NOTHING_TO_COMPARE,
    "zero_variance_most": _NOTHING_TO_COMPARE,
    "advantage_std": _NOTHING_TO_COMPARE,
    "advantage_range": _NOTHING_TO_COMPARE,
    "gradient_not_finite": (),
    "gradient_zero": (
        "frozen_weights",
        *_NOTHING_TO_COMPARE,
        "zero_variance_most",
        "advantage_std",
    ),
    "layers_without_gradient": ("frozen_weights", "gradient_zero"),
    "kl_dominates": ("update_too_large",),
    "update_too_large": ("gradient_not_finite", "identical_completions"),
    "heldout_fell": ("gradient_not_finite", "update_too_large", "dropout_active"),
    "batch_not_learnt": (
        *("reward_raised", "frozen_weights", "identical_completions", "reward_constant"),
        *("zero_variance_most", "gradient_zero", "kl_dominates", "update_too_large"),
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
    own = list(_own_findings({**parts, "repetitions": repetitions}))
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
    """What the rules say of the first step.

    The evaluations around it are judged in pairs instead: a few points are chance on so few rows.
    """
    batch = parts["completions"]
    sizes = dict.fromkeys(_SHARES_OF_COMPLETIONS, batch["completions"])
    sizes |= {name: len(batch["groups"]) for name in _SHARES_OF_GROUPS}
    monitor = HealthMonitor(health or HealthArguments(), patience=1)
    step = next((dict(entry) for entry in logs if "loss" in entry), None)
    if step is None:
        return
    step |= parts["advantages"]["batch"]
    limit = parts["shares"]["max_grad_norm"]
    for finding in monitor.observe(int(step.get("step", 1)), step, limit):
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
class Found(NamedTuple):
    """What a rule has found."""

    value: float
    bound: float | None
    message: str
    severity: Severity | None = None  # where it is not the rule's


_Look = Callable[[Parts], Found | None]


_RULES: list[tuple[_Look, Severity, tuple[str, ...]]] = []


def _rule(severity: Severity, *keys: str) -> Callable[[_Look], _Look]:
    """The function is a rule of its own name: of this severity, with these keys to change."""

    def register(look: _Look) -> _Look:
        _RULES.append((look, severity, keys))
        return look

    return register


def _own_findings(parts: Parts) -> Iterator[Finding]:
    for look, severity, keys in _RULES:
        found = look(parts)
        if found is not None:
            value, bound, message, graver = found
            yield Finding(look.__name__, graver or severity, 1, value, bound, message, keys)


@_rule("stop", "rewards")
def reward_raised(parts: Parts) -> Found | None:
    """One finding for all: part 4 lists them."""
    for fault in parts["rewards"]["faults"][:1]:
        where = (
            f"on {fault['rows']} of the completions, first on {fault['completion'][:80]!r} after "
            f"{fault['prompt'][:100]!r}"
            if fault["rows"]
            else "on the batch, though on no row of it alone"
        )
        return Found(
            fault["rows"],
            0,
            f"the reward {fault['name']} raised {fault['error']} {where}; training would end here: "
            "return None for a row that cannot be judged",
        )
    return None


@_rule("stop", "disable_dropout", "lora_dropout")
def dropout_active(parts: Parts) -> Found | None:
    dropout, tolerance = parts["setup"]["dropout"], parts["setup"]["parity"]["tolerance"]
    modules, gap = dropout["active_modules"], dropout["repeat_gap"]
    if not modules and not gap > tolerance:
        return None
    what = (
        f"{modules} modules drop out up to {dropout['largest']:.0%} of their inputs"
        if modules
        else "two forwards of one batch differ"
    )
    return Found(
        gap,
        tolerance,
        f"{what}: two forwards of one batch in training differ by {gap:.3g} nats, over {tolerance:g}; "
        "set disable_dropout: true, and lora_dropout: 0",
    )


@_rule("stop", "model_name_or_path")
def positions_ignored(parts: Parts) -> Found | None:
    parity = parts["setup"]["parity"]
    gap, tolerance = parity["position_gap"], parity["tolerance"]
    if gap <= tolerance:  # nan is over
        return None
    return Found(
        gap,
        tolerance,
        "a padded batch is scored by other position ids than its mask's: log-probs are off by up to "
        f"{gap:.3g} nats, over {tolerance:g}; give a model whose positions "
        "models.number_positions_from_mask sets under model_name_or_path",
    )


@_rule("stop", "dtype", "preflight_tolerance")
def preflight_gap(parts: Parts) -> Found | None:
    parity = parts["setup"]["parity"]
    gaps = {name: parity[name] for name in ("alone_gap", "sampler_gap", "reference_kl")}
    over = {n: v for n, v in gaps.items() if not abs(v) <= parity["tolerance"]}  # nan is over
    if not over:
        return None
    name, value = max(over.items(), key=lambda item: abs(item[1]))
    return Found(
        value,
        parity["tolerance"],
        f"{name} is {value:.3g} nats, over {parity['tolerance']:g}: the preflight would stop the run; "
        "check dtype and model_name_or_path, or raise preflight_tolerance if you know why",
    )


@_rule("warning", "model_name_or_path", "use_peft")
def frozen_weights(parts: Parts) -> Found | None:
    gradients, setup = parts["gradients"], parts["setup"]["model"]
    share = gradients["frozen_parameters"] / max(1, gradients["parameters"])
    if not share or (setup["adapters"] and setup["trained_parameters"]):  # as adapters want it
        return None
    names = [layer["layer"] for layer in gradients["layers"] if layer["frozen_parameters"]]
    return Found(
        share,
        0.0,
        f"{share:.1%} of the parameters are frozen ({_first(names)}), over 0%; they never move: load a "
        "model whose weights require gradients under model_name_or_path, or train adapters by use_peft",
        "stop" if share == 1 else None,
    )


def _first(names: Sequence[str]) -> str:
    return ", ".join([*names[:4], *(["..."] if len(names) > 4 else [])])


@_rule("warning", "temperature", "task_sampling")
def identical_completions(parts: Parts) -> Found | None:
    share = parts["completions"]["identical_pairs"]
    if share is None or share <= IDENTICAL:
        return None
    heat = ", ".join(f"{t} {v:g}" for t, v in parts["setup"]["step"]["temperature"].items())
    return Found(
        share,
        IDENTICAL,
        f"of the pairs of a group's completions {share:.0%} are one text, over {IDENTICAL:.0%}, at "
        f"temperature {heat}: there is little to compare; raise temperature",
    )


@_rule("warning", "rewards", "tasks")
def reward_constant(parts: Parts) -> Found | None:
    total = parts["rewards"]["total"]
    if total["n"] <= 1 or total["lowest"] != total["highest"]:
        return None
    return Found(
        0.0,
        0.0,
        f"all {total['n']} completions have the reward {total['mean']:g}, a deviation of 0, not over 0: "
        "nothing is taught; give rewards that tell completions apart, see --dry_run",
    )


@_rule("stop", "learning_rate", "bf16")
def gradient_not_finite(parts: Parts) -> Found | None:
    value = parts["gradients"]["norm"]
    if parts["gradients"]["finite"] and value is not None:
        return None
    return Found(
        math.nan if value is None else value,
        None,
        f"the gradient norm is {value}, not finite: the step destroys the weights; lower "
        "learning_rate, or set bf16 in place of fp16",
    )


@_rule("warning", "temperature", "num_generations")
def gradient_zero(parts: Parts) -> Found | None:
    if not parts["gradients"]["finite"] or parts["gradients"]["norm"] != 0:
        return None
    return Found(
        0.0,
        0.0,
        "the gradient norm is 0, not over 0: the step moves no weight; raise temperature or "
        "num_generations",
    )


@_rule("warning", "model_name_or_path")
def layers_without_gradient(parts: Parts) -> Found | None:
    gradients = parts["gradients"]
    dead = [
        layer["layer"]
        for layer in gradients["layers"]
        if layer["zero"] and layer["frozen_parameters"] < layer["parameters"]
    ]
    if not dead or not gradients["finite"] or not gradients["norm"]:  # another rule tells
        return None
    return Found(
        len(dead),
        0,
        f"{len(dead)} layers are trained but get no gradient ({', '.join(dead[:4])}), over 0; check the "
        "model under model_name_or_path",
    )


@_rule("warning", "beta", "kl_target")
def kl_dominates(parts: Parts) -> Found | None:
    """In the step, or one step on: before the first update KL is 0 whatever its coefficient."""
    for key, words in (("step", "in the step"), ("one_step_on", "one step on")):
        shares = parts["shares"][key]
        if shares is None:
            continue
        values = [shares["kl_share"], shares["kl_share_of_gradient"] or 0.0]
        if max(values) > KL_SHARE:
            return Found(
                max(values),
                KL_SHARE,
                f"KL is {values[0]:.0%} of the loss and {values[1]:.0%} of the gradient {words}, over "
                f"{KL_SHARE:.0%}, at a coefficient of {shares['kl_coefficient']:g}: the rewards "
                "hardly count; lower beta",
            )
    return None


@_rule("warning", "learning_rate", "max_grad_norm")
def update_too_large(parts: Parts) -> Found | None:
    shares, rate = parts["shares"]["one_step_on"], parts["gradients"]["learning_rate"]
    if shares is None or shares["mean_log_ratio"] <= DRIFT:  # nan is over
        return None
    return Found(
        shares["mean_log_ratio"],
        DRIFT,
        f"one step moves the log-prob of a sampled token by {shares['mean_log_ratio']:.2g} nats on "
        f"average, over {DRIFT:g}, at a learning rate of {rate:g}; lower learning_rate",
    )


@_rule("warning", "loss_type")
def loss_terms_gap(parts: Parts) -> Found | None:
    gap = parts["loss_terms"]["relative_gap"]
    if gap <= LOSS_GAP:  # nan is over
        return None
    return Found(
        gap,
        LOSS_GAP,
        f"policy gradient, KL and entropy miss the trainer's loss by {gap:.2g} of their size, over "
        f"{LOSS_GAP:g}: this report takes apart something else than the step with this loss_type",
    )


@_rule("stop", "learning_rate", "beta")
def heldout_fell(parts: Parts) -> Found | None:
    """Not of one batch repeated: what learns that by heart may well forget others."""
    before, after = parts["heldout_before"]["metrics"], parts["heldout_after"]["metrics"]
    for name, pair in parts["heldout_after"]["paired"].items():
        if pair["p_fell"] < P_FELL and not parts["repetitions"]:
            return Found(
                pair["p_fell"],
                P_FELL,
                f"{name} falls from {before[name]['value']:.1%} to {after[name]['value']:.1%} of "
                f"{pair['n']} held-out rows in one step: {pair['right_to_wrong']} become wrong, "
                f"{pair['wrong_to_right']} right (p = {pair['p_fell']:.2g} by sign test, under "
                f"{P_FELL:g}); lower learning_rate from {parts['gradients']['learning_rate']:g}",
            )
    return None


@_rule("warning", "learning_rate", "rewards")
def batch_not_learnt(parts: Parts) -> Found | None:
    """The mean reward of the last quarter of the repetitions against that of the first."""
    rewards = [r["reward"] for r in parts["repetitions"] if r["reward"] is not None]
    if len(rewards) < FEWEST_REPETITIONS:
        return None
    quarter = len(rewards) // 4
    rise = (sum(rewards[-quarter:]) - sum(rewards[:quarter])) / quarter
    if rise > 0:
        return None
    return Found(
        rise,
        0.0,
        f"{len(rewards)} steps on one batch change its reward by {rise:.3g}, not over 0: what cannot be "
        "learnt by heart is not learnt at all; raise learning_rate, or check rewards",
    )
