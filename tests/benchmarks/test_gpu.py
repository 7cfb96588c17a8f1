"""What `make gpu` does, without a GPU; and both trainers of its benchmarks, tiny."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ..support import REPOSITORY


def benchmark(name: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPOSITORY / "benchmarks"))
        return importlib.import_module(name)


def started(name: str, *words: str) -> int:
    """The exit code of a script of `benchmarks/` that is run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *words])
        code: int = benchmark(name).main()
    return code


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert started("gpu", "--output", str(tmp_path / "gpu.md")) == 2
    assert len(capsys.readouterr().out.splitlines()) == 1 and not list(tmp_path.iterdir())


def test_a_failed_part_is_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = benchmark("gpu")
    late = "import subprocess; subprocess.run(['sleep', '600'])"
    parts = [
        gpu.Part("good", ["-c", "print('1.5')"], 60, lambda text: [("speed", text.strip())]),
        gpu.Part("bad", ["-c", "raise SystemExit(3)"], 60, lambda text: []),
        gpu.Part("late", ["-c", late], 0.3, lambda text: []),
        gpu.Part("odd", ["-c", ""], 60, lambda text: [("x", text.splitlines()[-1])]),
    ]
    monkeypatch.setattr(gpu, "parts", lambda *_: parts)
    assert started("gpu", "--device", "cpu", "--output", str(tmp_path / "gpu.md")) == 1
    head, _, *rows = (tmp_path / "gpu.md").read_text().splitlines()
    assert head == "| what | value | card | versions |"
    assert rows[0].startswith("| speed | 1.5 | none (CPU) | torch ")
    found = {row.split(" | ")[0].strip("| "): row.split(" | ")[1] for row in rows}
    assert found["bad"] == f"**failed**: exit code 3; see {tmp_path}/gpu/bad.log"
    assert "not done after 0 seconds" in found["late"] and "could not be read" in found["odd"]

    monkeypatch.setattr(gpu, "SECONDS", 0.0)
    rows, failed = gpu.run_all(parts[:1], tmp_path)
    assert failed and "the time was up" in rows[0][1]


def test_only_files_with_marked_tests_are_collected() -> None:
    """Without any file, pytest would collect all of them."""
    assert [Path(name).name for name in benchmark("gpu").marked_files()] == ["test_trainer.py"]


@pytest.mark.slow
def test_all_parts_run_tiny_on_a_cpu(tmp_path: Path) -> None:
    assert started("gpu", "--device", "cpu", "--small", "--output", str(tmp_path / "gpu.md")) == 0
    text = (tmp_path / "gpu.md").read_text()
    wanted = "tests marked gpu;2 x 4: step, s;grpo_lora: step, s;grpo_lora: tokens a second"
    wanted += ";peak memory, 2 x 4;completion tokens | plain TRL 64, ours 64 "  # no text ends early
    assert "failed" not in text and all(what in text for what in wanted.split(";"))
