"""When memory or disk runs out, a script says what to do, without a traceback."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import pytest
import torch

from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.training.config import RookWorldGRPOConfig

GROUPS = [RookWorldGRPOConfig]  # as in a recipe's script
MEMORY = [
    "out of memory",
    "lower max_completion_length or per_device_eval_batch_size or per_device_train_batch_size",
    "--resume_from_checkpoint auto",
]
DISK = ["the disk is full", "completions_00010.parquet", "--resume_from_checkpoint auto"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), MEMORY),
        (None, MEMORY),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "completions_00010.parquet"), DISK),
    ],
    ids=["GPU", "CPU", "disk"],
)
def test_one_message_says_what_to_lower(
    error: Exception | None, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def main(argv: Sequence[str]) -> None:
        if error is not None:
            raise error
        torch.empty(2**50)

    with pytest.raises(SystemExit) as ended:
        run_cli(main)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(words in line for words in said), line


def test_other_errors_keep_their_traceback() -> None:
    def main(argv: Sequence[str]) -> None:
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        run_cli(main)
