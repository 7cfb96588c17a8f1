"""End all processes of a run when one of them fails.

A launcher ends the processes of its own machine. Those on other machines would go on to their next
collective, and with NCCL they would wait there until it times out.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta

_POLL_S = 3.0


_PATIENCE_S = 20.0  # how long a process may take to end by itself: W&B, engines, a last collective


_AFTER_THE_FIRST_S = 1.0  # its message and its exit code are those of the run


_CONNECT_S = 30.0


class Others:
    """The other processes of a run, by the store of torch's launcher, which outlives them.

    A thread looks in the store for the failure of another process, and ends this one if it does not end
    by itself, such as in a collective that will never come to an end.
    """

    def __init__(self) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self._rank = int(os.environ["RANK"])
        # `torchrun` may restart a run's processes, under the same store.
        self._key = f"rookworld/failed/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        wait = timedelta(seconds=_CONNECT_S)
        self._store = TCPStore(address, port, is_master=False, timeout=wait)
        self._ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    @classmethod
    def of_this_run(cls) -> Others | None:
        """The others; None for a single process, and without torch's launcher."""
        has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return cls() if has_store and int(os.environ.get("WORLD_SIZE", "1")) > 1 else None

    def end(self) -> None:
        """This process ends by itself."""
        self._ended.set()

    def told(self, error: Exception, code: int) -> str | None:
        """Tell the others that this process fails, and ends with `code` within some seconds.

        Returns:
            What failed before on another process, empty if it was the same; None if this is the first.
        """
        self._ended.set()
        last = threading.Timer(_PATIENCE_S, os._exit, [code])
        last.daemon = True
        last.start()
        said = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        mine = f"process {self._rank} failed ({said})"
        try:
            first = self._store.compare_set(self._key, "", mine).decode(errors="replace")
        except Exception:  # the launcher is gone, and nobody is left to listen
            return None
        if first == mine:
            return None
        time.sleep(_AFTER_THE_FIRST_S)
        return "" if first.endswith(f"failed ({said})") else first

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_S):
            try:
                if not self._store.check([self._key]):
                    continue
                first = self._store.get(self._key).decode(errors="replace")
            except Exception:  # the launcher is gone
                return
            if not self._ended.wait(_PATIENCE_S):
                say_why(first)
                os._exit(1)


def say_why(first: str) -> None:
    """Print in one line why this process ends because of another one."""
    print(f"process {os.environ['RANK']} ends, because {first}", file=sys.stderr, flush=True)
