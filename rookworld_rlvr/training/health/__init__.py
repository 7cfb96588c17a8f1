"""The health monitor: rules over a run's logs, what they find, and the callback that passes it on."""

from .monitor import HEALTH_FILE, Finding, HealthCallback, HealthMonitor, batch_health
from .rules import RULES, HealthArguments, Rule, Severity

__all__ = [
    "HEALTH_FILE",
    "RULES",
    "Finding",
    "HealthArguments",
    "HealthCallback",
    "HealthMonitor",
    "Rule",
    "Severity",
    "batch_health",
]
