"""The health monitor: its rules, their readings of a run's logs, and the callback that reports."""
