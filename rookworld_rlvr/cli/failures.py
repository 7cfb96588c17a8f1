"""How a script fails: what it says, and how all of several processes end when one fails."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Collection
from datetime import timedelta

from ..common.errors import RookWorldError
from ..common.files import FULL, message_of
from ..common.terminal import printable

EXIT_BAD_INPUT = 2


# --------------------------------------------------------------------------------------------------
# Memory or disk that has run out, recognised by what libraries say
# --------------------------------------------------------------------------------------------------
_NO_MEMORY = ("out of memory", "DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED")


# safetensors passes the system's words on; torch says only where in its own code a write failed.
_NOT_WRITTEN = (
    *(f"os error {number}" for number in FULL),
    "PytorchStreamWriter",
    "unexpected pos",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the memory of a GPU or of the machine has run out.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    True
    """
    if isinstance(error, RuntimeError):
        return any(words in str(error) for words in _NO_MEMORY)
    return isinstance(error, MemoryError)


def is_disk_full(error: BaseException) -> bool:
    """Whether a file could not be written for lack of space, or beyond a quota or a limit.

    >>> (
    ...     is_disk_full(OSError(28, "No space left on device")),
    ...     is_disk_full(OSError(2, "No such file")),
    ... )
    (True, False)
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in FULL
    return any(words in str(error) for words in _NOT_WRITTEN)


# The same two libraries, if a file cannot be opened.
_NOT_OPENED = re.compile(r"\(os error \d+\)|open file failed|^Parent directory .* does not exist")


_OF_MEMORY = ("batch_size", "max_completion_length", "max_length")


def text_of(error: Exception, keys: Collection[str]) -> str | None:
    """What to say of bad input, files that cannot be used, memory or disk that has run out.

    Other errors give None: they are faults of the program, and need a traceback.

    Args:
        error: What was raised.
        keys: The script's.
    """
    if isinstance(error, RookWorldError):
        return str(error)
    said = " ".join(str(error).split())[:200] or type(error).__name__
    sizes = (key for key in keys if key.startswith("per_device_") or key in _OF_MEMORY)
    if is_disk_full(error):
        text = f"the disk is full ({said}); free some space"
    elif is_out_of_memory(error):
        text = f"out of memory ({said}); lower {' or '.join(sorted(sizes)) or 'the amount of work'}"
    elif isinstance(error, ImportError) and re.search("install|not available|cannot be used", said):
        return f"a package is missing ({said}); install it, or leave out the key that asks for it"
    elif _NOT_OPENED.search(str(error)):
        return f"cannot use a file ({said}); give another path, or mend this one"
    else:
        return message_of(error)
    again = (
        ", and run again with --resume_from_checkpoint auto: it goes on from the last checkpoint, or "
        "starts if none was saved yet"
    )
    return text + (again if "resume_from_checkpoint" in keys else "")


# --------------------------------------------------------------------------------------------------
# Several processes
# --------------------------------------------------------------------------------------------------
_POLL_S = 3.0


_PATIENCE_S = 20.0  # how long a process may take to end by itself: W&B, engines, a last collective


_AFTER_THE_FIRST_S = 1.0  # its message and its exit code are those of the run


_CONNECT_S = 30.0


class Others:
    """The other processes of a run, by the store of torch's launcher, which outlives them.

    When one fails, all end. A launcher ends the processes of its own machine only. Those on other
    machines would go on to their next collective, and with NCCL they would wait there until it times
    out. So a thread looks in the store for the failure of another process, and ends this one if it does
    not end by itself.
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

    def end(self) -> None:
        """This process ends by itself."""
        self._ended.set()

    def failed(self, error: Exception, command: str) -> int:
        """Print why a script ends on several processes: on the first one that fails, once.

        Args:
            error: What this process has raised.
            command: How the script is called.

        Returns:
            This process's exit code.
        """
        known = isinstance(error, RookWorldError)
        code = EXIT_BAD_INPUT if known else 1
        first = self._told(error, code)
        if first:
            self._say_why(first)
        elif first is None and known:
            print(f"{command}: {printable(str(error))}", file=sys.stderr, flush=True)
        elif first is None:
            sys.excepthook(type(error), error, error.__traceback__)  # W&B's and torch's too
        return code

    def _told(self, error: Exception, code: int) -> str | None:
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
                self._say_why(first)
                os._exit(1)

    @staticmethod
    def _say_why(first: str) -> None:
        """Print in one line why this process ends because of another one."""
        print(f"process {os.environ['RANK']} ends, because {first}", file=sys.stderr, flush=True)
