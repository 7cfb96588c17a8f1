"""Shares: of kinds of rows and pairs, where none are given, and of tasks in a mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..common.files import read_asset
from ..tasks.registry import TASKS

SHARES: Mapping[str, Mapping[str, float]] = read_asset("shares.yaml")


def left_out_faults(where: str, shares: Mapping[str, Any], tasks: Sequence[str]) -> list[str]:
    """Which tasks have a share though they are not trained, one sentence each.

    Args:
        where: The configuration's key that gave the shares.
        shares: By task; other keys are passed over.
        tasks: Those that are trained at all.
    """
    return [
        f"{where}: {task} has a share of {shares[task]:g}, but `tasks` leaves it out: {list(tasks)}"
        for task in shares
        if task in TASKS and shares[task] and task not in tasks
    ]
