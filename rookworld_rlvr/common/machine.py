"""Where a run runs: versions, CPU cores, devices, the commit of this package."""

from __future__ import annotations

import os
import platform
import resource
import sys
from importlib.metadata import version
from typing import Any

from .. import __version__

PACKAGES = "torch transformers trl accelerate datasets peft chess tokenizers numpy wandb".split()


def machine() -> dict[str, Any]:
    """Versions, platform, cores, devices and commit, ready for JSON.

    Keys: `versions` (by package), `python`, `platform`, `cores` (that this process may use),
    `threads` (of torch), `devices` (names of the GPUs; empty on a CPU), `commit` (of the git
    checkout that holds the package; None if the package was installed in another way).
    """
    import torch  # slow to import, and nothing else in this room needs it

    return {
        "versions": {"rookworld-rlvr": __version__, **{name: version(name) for name in PACKAGES}},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "devices": [
            torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())
        ],
        "commit": _commit(),
    }


def cores() -> int | None:
    """CPU cores that this process may use; None if the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def peak_memory() -> int:
    """The most bytes that tensors have taken on this process's GPU; without one, the process itself."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _commit() -> str | None:
    from trl.scripts.utils import get_git_commit_hash

    found: str | None = get_git_commit_hash("rookworld_rlvr")
    return (
        None if found is None or found.startswith("Error") else found
    )  # TRL returns "Error ..." without git
