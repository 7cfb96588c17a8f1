"""The rules of the health monitor: each one's severity, bound, meaning and remedy.

Pure: no torch, and no I/O but for the packaged list of rules. `monitor` feeds them and says what they
find.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from ...common.files import read_asset
from ...common.settings import Checked, setting
from . import readings
from .readings import Measure, Reading, compared

Severity = Literal["info", "warning", "stop"]


OFF = "off"


Loudness = Literal["off", "info", "warning", "stop", False]  # YAML reads a bare `off` as false


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition of a run, and what to do about it.

    Args:
        name: Key of `health_severity`, `health_bounds` and the dashboards.
        severity: Its default.
        bound: Its default; None where there is no number to set.
        meaning: One sentence for the glossary.
        says: What is the matter, with ``{value}``, ``{bound}`` and ``{detail}``.
        remedy: What to change, by its YAML keys.
        keys: Those keys, the first remedy first.
        measure: Reads the history against a bound; None where the rule does not apply.
        share: Whether value and bound are shares, in [0, 1], that are shown as percentages.
        patient: Whether it must hold for `health_patience` logs before it is raised.
        saves: Whether a stop asks for a checkpoint.
    """

    name: str
    severity: Severity
    bound: float | None = None
    meaning: str
    says: str
    remedy: str
    keys: tuple[str, ...]
    measure: Measure = field(repr=False)
    share: bool = True
    patient: bool = True
    saves: bool = True

    def message(self, reading: Reading, bound: float) -> str:
        """One sentence that names the number, the bound and the remedy."""
        said = self.says.format(
            value=self._shown(reading.value), bound=self._shown(bound), detail=reading.detail
        )
        return f"{said}; {self.remedy}"

    def _shown(self, value: float) -> str:
        return f"{100 * value:.3g}%" if self.share else f"{value:.4g}"


# --------------------------------------------------------------------------------------------------
# The rules
# --------------------------------------------------------------------------------------------------
_COMPARISONS = {"over": operator.gt, "under": operator.lt, "not_over": operator.le}


def _rule(name: str, keys: Sequence[str], **fields: Any) -> Rule:
    metrics = [
        compared(is_broken, fields.pop(word))
        for word, is_broken in _COMPARISONS.items()
        if word in fields
    ]
    (measure,) = metrics or [getattr(readings, name)]
    return Rule(name=name, keys=tuple(keys), measure=measure, **fields)


RULES: Mapping[str, Rule] = {
    name: _rule(name, **fields) for name, fields in read_asset("health_rules.yaml").items()
}
"""Every rule of ``assets/health_rules.yaml`` by name. Names are dashboard keys; `Rule.meaning` is their
glossary."""


# --------------------------------------------------------------------------------------------------
# Arguments
# --------------------------------------------------------------------------------------------------
@dataclass
class HealthArguments(Checked):
    """What the health monitor looks for, and how loud it is; see `RULES`."""

    health: bool = setting(True, "Whether to watch the run at all.")
    health_severity: dict[str, Loudness] | str | None = setting(
        None,
        "{rule: off, info, warning or stop}, in place of a rule's own severity.",
        among=RULES,
        of="rule",
    )
    health_bounds: dict[str, float] | str | None = setting(
        None,
        "{rule: number}, in place of a rule's own bound; shares are in [0, 1].",
        among=RULES,
        of="rule",
    )
    health_patience: int = setting(
        3,
        "Logs in a row that a condition must hold for before it is raised, where chance could make it "
        "hold once; and that it must be gone for before it can be raised again.",
        least=1,
    )

    def severity(self, rule: str) -> Severity | None:
        """How loud a rule is; None where it is off."""
        severity = _given(self.health_severity).get(rule, RULES[rule].severity)
        return None if severity in (OFF, False) else cast(Severity, severity)

    def bound(self, rule: str) -> float | None:
        """A rule's bound; None where it has no number."""
        bound = _given(self.health_bounds).get(rule, RULES[rule].bound)
        return None if bound is None else float(bound)

    def faults(self) -> list[str]:
        """Bounds that their rules do not take, one sentence each."""
        faults = []
        for name, value in _given(self.health_bounds).items():
            if name not in RULES or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            rule = RULES[name]
            if rule.bound is None:
                faults.append(f"health_bounds: {name} has no bound to set; see health_severity")
            elif not math.isfinite(value) or (rule.share and not 0 <= value <= 1):
                kind = "share; give a number from 0 to 1" if rule.share else "finite number"
                faults.append(f"health_bounds: {value!r} of {name} is no {kind}")
        return faults


def _given(rules: Any) -> Mapping[str, Any]:
    return rules if isinstance(rules, Mapping) else {}
