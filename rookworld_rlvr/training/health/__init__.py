"""The health monitor: rules over a run's logs, what they find, and the callback that passes it on."""
