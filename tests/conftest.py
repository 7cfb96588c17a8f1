"""Loads `support` where tests run: what only hands them out to other processes has no use for torch."""

import pytest

pytest.register_assert_rewrite("tests.support")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("tx", None):
        config.pluginmanager.import_plugin("tests.support")
