"""Loads `support` where tests run: what only hands them out to other processes has no use for torch."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        config.pluginmanager.import_plugin("tests.support")
