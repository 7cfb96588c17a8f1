"""All that needs a GPU, on one: tests, seconds and memory of a step, six steps of 124M recipes.

    make gpu                                          # under nine minutes
    python benchmarks/gpu.py --device cpu --small     # tries this script: a tiny model, a step each

It needs no network: the weights are random, in GPT-2 small's shape, with the packaged tokenizer and
data. `runs/gpu.md` gets a table, and `runs/gpu/` the parts' output. It exits with 1 if a part failed or
ran out of time, which the table says too, and with 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
SECONDS = 520.0
"""For all parts together; a part that begins late gets what is left."""

SIZES = ((8, 8), (32, 16))  # prompts x completions
RECIPES = ("grpo_mixed", "grpo_policy", "grpo_lora")

Row = tuple[str, str]
"""What was measured, and the value."""


@dataclass(frozen=True, slots=True)
class Part:
    """One command and what its table says.

    Args:
        name: Of its files in `runs/gpu/`.
        words: Words after ``python``.
        seconds: Its time limit.
        rows: The table's rows, from the text that the command printed.
    """

    name: str
    words: list[str]
    seconds: float
    rows: Callable[[str], Iterable[Row]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny model, a step each")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu.md"))
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)  # only make the model
    args = parser.parse_args()
    if args.weights:
        return write_weights("tiny" if args.small else "small", args.weights)
    on_gpu = args.device == "cuda"
    if on_gpu and (missing := what_is_missing()):
        print(f"benchmarks/gpu.py: {missing}")
        return 2
    logs = args.output.with_suffix("")
    logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        rows, failed = run_all(parts(on_gpu, args.small, Path(folder)), logs, on_gpu)
    args.output.write_text(table(rows, card() if on_gpu else "none (CPU)"))
    print(args.output.read_text(), end="")
    return 1 if failed else 0


def run_all(parts: Iterable[Part], logs: Path, on_gpu: bool = True) -> tuple[list[Row], bool]:
    """The rows of all parts, and whether one failed; each part's output goes to a file in `logs`."""
    rows: list[Row] = []
    failed = False
    ends = time.monotonic() + SECONDS
    for part in parts:
        print(f"{part.name} ...", flush=True)
        log = logs / f"{part.name}.log"
        began = time.monotonic()
        fault = run(part, log, min(part.seconds, ends - began), on_gpu)
        print(f"  {fault or 'done'}, {time.monotonic() - began:.0f} s", flush=True)
        try:
            rows += part.rows(log.read_text(errors="replace")) if not fault else ()
        except (LookupError, OSError, ValueError) as error:
            fault = f"its output could not be read ({error!r})"
        if fault:
            failed = True
            rows.append((part.name, f"**failed**: {fault}; see {log}"))
    return rows, failed


def run(part: Part, log: Path, seconds: float, on_gpu: bool) -> str | None:
    """Run a part; why it failed, or None."""
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "PYTHONWARNINGS": "ignore"}
    if not on_gpu:
        environment |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    if seconds <= 0:
        log.write_text("")
        return "not run, because the time was up"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *part.words],
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=REPOSITORY,
            env=environment,
            start_new_session=True,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its processes too
            process.wait()
            return f"not done after {seconds:.0f} seconds"
    return f"exit code {code}" if code else None


def table(rows: Iterable[Row], card: str) -> str:
    """A Markdown table."""
    versions = ", ".join(f"{name} {installed(name)}" for name in ("torch", "transformers", "trl"))
    lines = ["| what | value | card | versions |", "| --- | --- | --- | --- |"]
    lines += [f"| {what} | {value} | {card} | {versions} |" for what, value in rows]
    return "\n".join(lines) + "\n"


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def what_is_missing() -> str | None:
    """What keeps this machine from running the parts; None if it has a GPU."""
    try:
        import torch
    except ImportError:
        return f"torch is not installed for {sys.executable}; run make install"
    if torch.cuda.is_available():
        return None
    return f"no GPU was found by torch {torch.__version__}; run this on a machine with one"


def card() -> str:
    """The GPU's name and memory."""
    import torch

    memory = torch.cuda.get_device_properties(0).total_memory
    return f"{torch.cuda.get_device_name(0)}, {memory / 2**30:.0f} GiB"


# --------------------------------------------------------------------------------------------------
# The parts
# --------------------------------------------------------------------------------------------------
def parts(on_gpu: bool, small: bool, folder: Path) -> list[Part]:
    """All parts; what they write but for their output goes to `folder`."""
    sizes = ((2, 4),) if small else SIZES
    left_out = ("grpo_policy",) if small else ()  # it takes the same path as grpo_mixed
    model = ["--model", "tiny" if small else "small", "--new_tokens", "8" if small else "144"]
    turns = ["--turns", "1", "--steps", "2"] if small else ["--turns", "3", "--steps", "3"]
    tests = ["-m", "pytest", "-m", "gpu", "-q", "-o", "minversion=0", *marked_files()]
    found = [
        Part("tests", tests if on_gpu else [*tests, "--collect-only"], 100, tests_row),
        *(step_part(size, [*model, *turns], folder) for size in sizes),
        memory_part(sizes[-1:], model, folder),  # a size takes over a minute
        *(recipe_part(name, on_gpu, small, folder) for name in RECIPES if name not in left_out),
    ]
    weights = [__file__, "--weights", str(folder / "model"), *(["--small"] if small else [])]
    return [Part("weights", weights, 60, lambda text: ()), *found]


def write_weights(kind: str, folder: Path) -> int:
    """Save a model with random weights, and the packaged tokenizer."""
    from step_trainers import random_model  # slow to import; only this part needs it

    from rookworld_rlvr.models import loading

    tokenizer = loading.load_tokenizer(loading.PACKAGED_MODEL)
    for half in (random_model(kind, tokenizer), tokenizer):
        half.save_pretrained(folder)
    return 0


def marked_files() -> list[str]:
    """The files with tests marked `gpu`; the others may need what this machine has not installed."""
    files = sorted((REPOSITORY / "tests").rglob("test_*.py"))
    return [str(path) for path in files if "pytest.mark.gpu" in path.read_text(encoding="utf-8")]


def tests_row(text: str) -> list[Row]:
    return [("tests marked gpu", text.splitlines()[-1].strip("= "))]


def step_part(size: tuple[int, int], words: list[str], folder: Path) -> Part:
    """Seconds of a step."""
    prompts, completions = size
    name = f"step_{prompts}x{completions}"
    output = folder / f"{name}.json"

    def rows(_: str) -> Iterable[Row]:
        for phase, row in json.loads(output.read_text()).items():
            yield f"GRPO step, {prompts} x {completions}: {phase}", compared(row)

    given = ["--prompts", str(prompts), "--completions", str(completions), "--output", str(output)]
    return Part(name, ["benchmarks/grpo_step.py", *words, *given], 130, rows)


def memory_part(sizes: Iterable[tuple[int, int]], words: list[str], folder: Path) -> Part:
    """Peak memory of a step."""
    output = folder / "memory.json"

    def rows(_: str) -> Iterable[Row]:
        for size, row in json.loads(output.read_text()).items():
            gib = {kind: number and number / 2**30 for kind, number in row.items()}
            yield f"peak memory, {size.replace('x', ' x ')}: GiB", compared(gib)

    given = ["--sizes", *(f"{a}x{b}" for a, b in sizes), "--output", str(output)]
    return Part("memory", ["benchmarks/memory.py", *words, *given], 150, rows)


def tokens_a_second(steps: list[dict[str, float]]) -> float:
    """Of all steps but the first, which the warming up is part of; of one step, if there is no other."""
    seconds = sum(step["step_time"] for step in steps[1:])
    if not seconds:
        return steps[0]["num_tokens"] / steps[0]["step_time"]
    return (steps[-1]["num_tokens"] - steps[0]["num_tokens"]) / seconds


def compared(row: dict[str, Any]) -> str:
    """The two trainers' numbers and their ratio; what is missing ran out of memory."""
    plain, ours = row["plain"], row["ours"]
    ratio = f" ({ours / plain:.2f} x)" if plain and ours else ""
    return f"plain TRL {shown(plain)}, ours {shown(ours)}{ratio}"


def shown(number: float | None) -> str:
    if number is None:
        return "out of memory"
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def recipe_part(name: str, on_gpu: bool, small: bool, folder: Path) -> Part:
    """Steps of a recipe as it is, but for weights, data and the rows that are evaluated."""
    steps = "1" if small else "6"
    run = folder / name
    words = ["recipes/grpo.py", "--config", f"recipes/{name}.yaml", "--output_dir", str(run)]
    words += ["--model_name_or_path", str(folder / "model")]
    words += ["--dataset_name", "rookworld-nano-openings", "--synthetic_rows", "500"]
    words += ["--heldout_rows", "32", "--pass_samples", "0", "--max_steps", steps]
    words += ["--report_to", "none", "--save_only_model", "true"]
    words += ["--save_steps", steps, "--eval_steps", steps]
    if small:
        words += ["--per_device_train_batch_size", "8", "--num_generations", "4"]
        words += ["--gradient_accumulation_steps", "1", "--max_completion_length", "8"]
    if not on_gpu:
        words += ["--bf16", "false", "--use_cpu", "--dataloader_pin_memory", "false"]

    def rows(_: str) -> Iterable[Row]:
        states = run.glob("checkpoint-*/trainer_state.json")  # a guarded run has the start's, too
        state = max(states, key=lambda path: int(path.parent.name.split("-")[1]))
        logs = json.loads(state.read_text())["log_history"]
        steps = [log for log in logs if "step_time" in log]
        seconds = [log["step_time"] for log in steps]
        yield f"{name}: step, s (median of {len(seconds)})", shown(statistics.median(seconds))
        yield f"{name}: tokens a second, prompts' too", shown(tokens_a_second(steps))
        yield f"{name}: peak memory, GiB", shown(steps[-1]["peak_memory"])

    return Part(name, words, 90, rows)


if __name__ == "__main__":
    sys.exit(main())
