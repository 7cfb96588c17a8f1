"""Part 10 of a diagnosis: what is wrong, what causes it, and which YAML key to change.

It reads the other parts alone, without torch. The health rules judge the step's logs; the diagnosis's
own rules judge what only a diagnosis sees. A finding that another one explains is its consequence, and
the verdict names the first cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..common.files import read_asset
from ..common.stats import Proportion
from ..training.health.monitor import Finding, HealthMonitor
from ..training.health.rules import HealthArguments, Severity
from . import signs
from .signs import Parts

RULES: Mapping[str, Mapping[str, Any]] = read_asset("diagnosis_rules.yaml")
"""Every rule of ``assets/diagnosis_rules.yaml`` by name."""


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
        repetitions: Of one batch, if it was repeated.
    """
    own = list(_own_findings({**parts, "repetitions": repetitions}))
    known = {finding.rule for finding in own} | set(_OF_A_TREND)
    found = [*own, *(f for f in _health_findings(parts, logs, health) if f.rule not in known)]
    causes = {finding.rule: _cause(finding.rule, {f.rule for f in found}) for finding in found}
    order = [*RULES, *(f.rule for f in found if f.rule not in RULES)]
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
        return "healthy: one step with this configuration shows nothing to change"
    first = alarms[0]
    key = first.remedy_keys[0] if first.remedy_keys else "nothing in the recipe"
    return f"{first.rule}: {first.message} (change {key})"


def _cause(rule: str, found: set[str]) -> str | None:
    """The first cause of a finding, or None if nothing that was found explains it."""
    for cause in RULES.get(rule, {}).get("causes", ()):
        if cause in found:
            return _cause(cause, found) or cause
    return None


# --------------------------------------------------------------------------------------------------
# The health rules
# --------------------------------------------------------------------------------------------------
def _health_findings(
    parts: Parts, logs: Sequence[Mapping[str, Any]], health: HealthArguments | None
) -> Iterator[Finding]:
    """What the health rules find in the first step.

    They do not judge the evaluations around it, where a few points are chance on so few rows;
    `signs.heldout_fell` compares these row by row.
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
    """Whether a share may be over its bound by chance, in a sample of this size."""
    if n is None or finding.bound is None:
        return False
    return Proportion(finding.value * n, n).interval[0] <= finding.bound


# --------------------------------------------------------------------------------------------------
# Rules of the diagnosis
# --------------------------------------------------------------------------------------------------
def _own_findings(parts: Parts) -> Iterator[Finding]:
    for name, rule in RULES.items():
        sign = getattr(signs, name)(parts) if "severity" in rule else None
        if sign is not None:
            value, bound, words, graver, keys = sign
            message = rule["says"].format(**{**words, "value": value, "bound": bound})
            severity, keys = graver or rule["severity"], keys or tuple(rule["keys"])
            yield Finding(name, severity, 1, value, bound, message, keys)
