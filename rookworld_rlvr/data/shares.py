"""Default shares of kinds of rows and pairs, and faults of the shares of tasks in a mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..common.files import read_asset
from ..tasks.registry import TASKS

SHARES: Mapping[str, Mapping[str, float]] = read_asset("shares.yaml")


def left_out_faults(where: str, shares: Mapping[str, Any], tasks: Sequence[str]) -> list[str]:
    """The tasks that have a share although they are not trained, one sentence each.

    Args:
        where: The configuration's key that gave the shares.
        shares: By task; other keys are ignored.
        tasks: The tasks that are trained.
    """
    return [
        f"{where}: {task} has a share of {shares[task]:g}, but `tasks` leaves it out: {list(tasks)}; "
        "add it there, or drop its share"
        for task in shares
        if task in TASKS and shares[task] and task not in tasks
    ]
