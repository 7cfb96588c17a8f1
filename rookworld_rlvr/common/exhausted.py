"""Errors that mean that memory or disk has run out, recognised by what libraries say."""

from __future__ import annotations

import errno

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


_NO_MEMORY = ("out of memory", "DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED")


# safetensors passes the system's words on; torch says only where in its own code a write failed.
_NOT_WRITTEN = (
    *(f"os error {number}" for number in _FULL),
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
        return error.errno in _FULL
    return any(words in str(error) for words in _NOT_WRITTEN)
