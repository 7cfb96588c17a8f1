"""The rules of the health monitor: each one's severity, bound, meaning and remedy.

Pure functions: no torch, and no I/O but for reading the packaged list of rules. `monitor` applies them.
"""

from __future__ import annotations

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
        name: Its key in `health_severity` and the dashboards.
        severity: The default severity.
        bound: None if the rule has no number.
        meaning: One sentence for the documentation.
        says: What is wrong, with the placeholders ``{value}``, ``{bound}`` and ``{detail}``.
        remedy: What to change, naming the recipe's keys.
        keys: Those keys, in the order of the remedies.
        measure: Compares the history with a bound; gives None if the rule does not apply.
        share: Whether value and bound are shares in [0, 1], shown as percentages.
        patient: Whether it must be broken for several logs before a finding is raised.
        causes: The rules that explain it if they are broken as well; a diagnosis names these first.
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
    causes: tuple[str, ...] = ()

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
    causes = tuple(fields.pop("causes", ()))
    return Rule(name=name, keys=tuple(keys), measure=measure, causes=causes, **fields)


RULES: Mapping[str, Rule] = {
    name: _rule(name, **fields) for name, fields in read_asset("health_rules.yaml").items()
}
"""Every rule of ``assets/health_rules.yaml`` by name; `Rule.meaning` documents it."""


# --------------------------------------------------------------------------------------------------
# Arguments
# --------------------------------------------------------------------------------------------------
@dataclass
class HealthArguments(Checked):
    """Which problems the health monitor looks for during a run, and how severe they are; see `RULES`."""

    health: bool = setting(
        True,
        "Watch the run for problems, report them with a remedy, and stop the run if a rule of "
        "severity stop is broken.",
    )
    health_severity: dict[str, Loudness] | str | None = setting(
        None,
        "Mapping of rules to severities, {rule: off | info | warning | stop}; a rule that is not "
        "named keeps its default.",
        among=RULES,
        of="rule",
    )

    def severity(self, rule: str) -> Severity | None:
        """The severity of a rule; None if it is off."""
        severity = _given(self.health_severity).get(rule, RULES[rule].severity)
        return None if severity in (OFF, False) else cast(Severity, severity)


def _given(rules: Any) -> Mapping[str, Any]:
    return rules if isinstance(rules, Mapping) else {}
