"""How torch's threads on a CPU wait for each other. Import this before torch, which reads it once.

A thread of GNU OpenMP that has nothing to do spins 300,000 times before it sleeps: several
milliseconds. Where another process wants its core, the threads then wait for each other at every small
operation, and a step takes twenty times as long. 1,500 spins bridge the gap between two operations.
"""

from __future__ import annotations

import os

SPINS = 1500

if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():  # else the user decides
    os.environ["GOMP_SPINCOUNT"] = str(SPINS)


def threads_line() -> str:
    """How many threads compute on the CPU, and which variables say so, for the start of a run."""
    import torch  # not above: see the module

    names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    given = ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)
    return f"threads on the CPU: {torch.get_num_threads()} ({given})"
