"""Files that cannot be written: what is said, and that it is said before the work."""

import errno
import os
from pathlib import Path

import pytest

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.common.files import (
    check_writable,
    folder_faults,
    message_of,
    replace_text,
    write_json,
    write_text,
)

# Nothing can be made in these folders, not even by root, whom permissions do not stop.
UNWRITABLE = [Path("/proc"), Path("/proc/none"), Path("/dev/null"), Path("/dev/null/below")]


@pytest.mark.parametrize("folder", UNWRITABLE, ids=str)
def test_a_folder_or_file_that_cannot_be_made_is_found_before_the_work(folder: Path) -> None:
    (fault,) = folder_faults(str(folder), "output_dir")
    assert fault.startswith(f"output_dir: cannot write to {str(folder)!r} (")
    with pytest.raises(RookWorldError, match=f"pgn_file: cannot write '{folder}/x.json'"):
        check_writable(folder / "x.json", "pgn_file")


def test_looking_leaves_nothing_behind(tmp_path: Path) -> None:
    assert folder_faults(str(tmp_path / "runs/new"), "output_dir") == []
    check_writable(tmp_path / "new.json")
    with pytest.raises(RookWorldError, match="File name too long"):
        check_writable(tmp_path / f"{'x' * 300}.json")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old.json").write_text("kept")
    check_writable(tmp_path / "old.json")
    assert (tmp_path / "old.json").read_text() == "kept"


def test_a_write_that_fails_leaves_the_earlier_file_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_text(tmp_path / "taken", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("write", [replace_text, write_text, lambda path, _: write_json(path, {})])
@pytest.mark.parametrize("folder", UNWRITABLE, ids=str)
def test_a_failed_write_is_said_with_path_and_reason(folder: Path, write) -> None:
    with pytest.raises(OSError, match="Errno") as failed:
        write(folder / "x.json", "text")
    said = message_of(failed.value) or ""
    assert (
        said.startswith(f"cannot use '{folder}/x.json") and os.strerror(failed.value.errno) in said
    )
    assert said.endswith("; give another path, or mend this one")


def test_a_full_disk_names_the_file() -> None:
    with pytest.raises(OSError, match="Errno") as failed:
        write_text(Path("/dev/full"), "text")
    said = message_of(failed.value) or ""
    assert said.startswith("the disk is full ") and said.endswith(": '/dev/full'); free some space")


def test_only_errors_of_files_are_messages() -> None:
    for error in (
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        PermissionError(errno.EPERM, "Operation not permitted"),  # of a signal
        TimeoutError("timed out"),
        ValueError("planted"),
    ):
        assert message_of(error) is None
    assert message_of(RookWorldError("known")) == "known"
    two = OSError(errno.EXDEV, "Invalid cross-device link", "a", None, "b")
    assert "cannot use 'a' or 'b' (Invalid cross-device link)" in (message_of(two) or "")
