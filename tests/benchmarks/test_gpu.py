"""What `make gpu` does, without a GPU; and both trainers of its benchmarks, tiny."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rookworld_rlvr.models import graphs

from ..support import NOT_KEPT, REPOSITORY


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

    rows, failed = gpu.run_all([parts[:1]], tmp_path, seconds=0.0)
    assert failed and "the time was up" in rows[-1][1]


def test_the_table_is_written_after_each_group_whose_parts_run_together(tmp_path: Path) -> None:
    gpu = benchmark("gpu")
    waits = "import pathlib, time\nwhile not pathlib.Path({!r}).exists(): time.sleep(0.05)"
    files = [tmp_path / name for name in "ab"]
    words = [
        ["-c", f"open({str(own)!r}, 'w').close()\n{waits.format(str(other))}"]
        for own, other in zip(files, reversed(files), strict=True)
    ]
    together = [
        gpu.Part(f"together_{number}", said, 60, lambda text: [("met", "yes")])
        for number, said in enumerate(words)
    ]
    ends = ["-c", "import os, time; print(float(os.environ['PROCESS_ENDS']) - time.time())"]
    last = gpu.Part("last", ends, 50, lambda text: [("left", text)])
    written: list[Any] = []
    rows, failed = gpu.run_all(
        [together, [last]], tmp_path, 60, False, lambda r: written.append(list(r))
    )
    assert not failed and written == [rows[:2], rows] and rows[:2] == [("met", "yes")] * 2
    assert 0 < float(rows[2][1]) < 50


def test_what_a_part_had_written_before_it_was_killed_is_in_the_table(tmp_path: Path) -> None:
    gpu = benchmark("gpu")
    file = tmp_path / "numbers"
    words = ["-c", f"import time; open({str(file)!r}, 'w').write('7'); time.sleep(600)"]
    part = gpu.Part("slow", words, 3, lambda text: [("first turn", file.read_text())])
    rows, failed = gpu.run_all([[part]], tmp_path, 60)
    assert failed and rows[0] == ("first turn", "7") and "not done after 3 seconds" in rows[1][1]


def test_a_recipes_rows_leave_out_the_steps_of_the_warming_up() -> None:
    gpu = benchmark("gpu")
    steps = [
        {
            "step_time": time,
            "time/sampling": time / 2,
            "time/rewards": time / 4,
            "time/update": time / 4,
            "num_tokens": 100.0 * number,
            "peak_memory": 5.0,
        }
        for number, time in enumerate([90.0, 80.0, 2.0, 4.0, 6.0, 70.0, 70.0])
    ]
    part = {"seconds": 0.5, "kernels": 300, "launches": 200}
    profiled = [{"phase": phase, **part} for phase in ("update", "sampling", "update") * 2]
    profile = {"parts": profiled, "steps": 2, "positions": 20}
    rows = dict(gpu.recipe_rows("x", steps, profile))
    assert rows == {
        "x: step, s (median of 3)": "4",
        "x: sampling, rewards, update, s": "2, 1, 1",
        "x: tokens a second, prompts' too": "25",
        "x: peak memory, GiB": "5",
        "x: share of a step in which the GPU works": "38%",  # 3 s of two steps of 4
        "x: share of sampling in which it works": "25%",  # 1 s of twice 2
        "x: kernels for a token of all rows": "30",
        "x: kernels of a step's rest": "600",
        "x: launches for a token of all rows": "20",
        "x: launches of a step's rest": "400",
    }
    assert len(dict(gpu.recipe_rows("x", steps[:3], None))) == 4


def test_the_profile_tells_sampling_from_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the CPU's operations in the place of a GPU's kernels."""
    own = benchmark("own_trainers")
    monkeypatch.setattr(own.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(own.torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(own.ProfilerActivity, "CUDA", own.ProfilerActivity.CPU)
    monkeypatch.setattr(
        own,
        "work_of_gpu",
        lambda rows: {"products": sum(row.count for row in rows if row.key == "aten::mm")},
    )
    clock = own.ProfilingClock(SimpleNamespace(args=SimpleNamespace()))
    args, state = SimpleNamespace(output_dir=tmp_path), SimpleNamespace(global_step=0)
    clock.on_train_begin(args, state, None)
    square = torch.ones(2, 2)
    for state.global_step in range(own.WARM_UP + own.TIMED + own.PROFILED):
        clock.on_step_begin(args, state, None)
        with clock.phase("sampling"):
            for _ in range(3):
                square @ square
        clock.note_positions(3)
        with clock.phase("rewards"):
            square @ square
        clock.on_step_end(args, state, None)
    clock.on_train_end(args, state, None)
    found = json.loads((tmp_path / own.PROFILE).read_text())
    assert [(one["phase"], one["products"]) for one in found["parts"]] == [
        ("update", 0),
        ("sampling", 3),
        ("update", 1),
    ] * 2
    assert found["steps"] == 2 and found["positions"] == 6


def test_a_profiled_trainer_notes_the_tokens_of_its_rounds(build: Any) -> None:
    trainer = build(kind=benchmark("own_trainers").Profiled, preflight=False, **NOT_KEPT)
    noted: list[int] = []
    trainer.clock.note_positions = noted.append
    trainer.train()
    (log,) = (log for log in trainer.state.log_history if "time/sampling" in log)
    assert noted == [log["completions/max_length"]] and log["time/sampling"] > 0


def test_what_the_profiler_says_of_a_gpu_is_summed() -> None:
    own = benchmark("own_trainers")

    def row(key: str, device: Any, count: int, microseconds: float, said: bool = False) -> Any:
        names = ("key", "device_type", "count", "self_device_time_total", "is_user_annotation")
        return SimpleNamespace(
            **dict(zip(names, (key, device, count, microseconds, said), strict=True))
        )

    on, off = own.DeviceType.CUDA, own.DeviceType.CPU
    rows = [
        row("gemm", on, 3, 4e6),
        row("Memcpy HtoD", on, 2, 1e6),
        row("step", on, 1, 9e6, said=True),
        row("cudaLaunchKernel", off, 2, 0.0),
        row("cudaGraphLaunch", off, 1, 0.0),
        row("cudaMemcpyAsync", off, 2, 0.0),
    ]
    assert own.work_of_gpu(rows) == {"seconds": 5.0, "kernels": 3, "launches": 3}


@pytest.mark.parametrize("fault", [None, "logits", "levels"])
def test_graphs_are_checked_on_the_device_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fault: str | None
) -> None:
    """Here on a CPU: their steps draw what the loop draws, and a fault in them shows."""
    monkeypatch.setattr(graphs, "obstacle", graphs.obstacle)  # which the script exchanges on a CPU
    logits, levels = graphs.State.logits, graphs._levels
    if fault == "logits":
        monkeypatch.setattr(graphs.State, "logits", lambda *given: logits(*given).roll(1, -1))
    if fault == "levels":
        monkeypatch.setattr(graphs, "_levels", lambda *given: levels(*given) ** 2)
    gpu, before = benchmark("gpu"), torch.backends.cuda.matmul.allow_tf32
    part = next(part for part in gpu.parts(False, True, False, Path()) if part.name == "graphs")
    assert gpu.parts(False, True, False, Path())[0].name == "graphs" and part.seconds == 60
    assert started("graph_check", *part.words[1:]) == (1 if fault else 0)
    torch.backends.cuda.matmul.allow_tf32 = before
    rows = dict(part.rows(capsys.readouterr().out))
    failed = [name for name, value in rows.items() if value.endswith("FAILED")]
    assert rows["graphs: fp32 rows alike, greedy"].startswith("100.0%") or fault == "logits"
    assert len(rows) == 10 and bool(failed) == bool(fault)
    if fault == "levels":
        assert "graphs: chi-squared of draws" in failed and "graphs: preflight" not in failed
    if fault == "logits":
        assert {"graphs: bf16 log-prob gap, nats", "graphs: preflight"} < {*failed}


def test_only_files_with_marked_tests_are_collected() -> None:
    """Without any file, pytest would collect all of them."""
    assert [Path(name).name for name in benchmark("gpu").marked_files()] == ["test_trainer.py"]


@pytest.mark.slow
def test_all_parts_run_tiny_on_a_cpu(tmp_path: Path) -> None:
    assert started("gpu", "--device", "cpu", "--small", "--output", str(tmp_path / "gpu.md")) == 0
    text = (tmp_path / "gpu.md").read_text()
    wanted = "2 x 4: step, s;grpo_mixed: step, s;grpo_policy: tokens a second"
    wanted += ";completion tokens | plain TRL 64, ours 64 "  # no text ends early
    wanted += ";completion tokens | TRL with a static cache 64, ours 64 "
    wanted += ";step by graphs, 2 x 4: step, s | ours ;graphs: preflight | gap "
    assert "failed" not in text and all(what in text for what in wanted.split(";"))
