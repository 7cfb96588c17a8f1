"""What a step takes on a GPU, beside plain TRL, and in what it takes the time.

    make gpu                                          # in at most 240 seconds
    make gpu ARGS=--all                               # tests, memory and LoRA too: under nine minutes
    python benchmarks/gpu.py --device cpu --small     # tries this script: a tiny model, few steps

It needs no network: the weights are random, in GPT-2 small's shape, with the packaged tokenizer and
data. `runs/gpu.md` gets a table after each part, and `runs/gpu/` the parts' output. It exits with 1 if a
part failed or ran out of time, which the table says too, and with 2 if there is no GPU.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
SECONDS, ALL_SECONDS, REHEARSAL_SECONDS = 240.0, 520.0, 1800.0
"""For all parts together: the usual ones, with `--all`, without a GPU; the last ones get the rest."""

# What `own_trainers.py` does. A GPU's first steps load kernels and grow the memory's pools, so they
# are not counted.
WARM_UP, TIMED, PROFILED = 2, 3, 2  # steps
PROFILE, LIMITED = "profile.json", "time_limit.json"  # in a run's folder
TRAINING_SECONDS, ENDS = "TRAINING_SECONDS", "PROCESS_ENDS"  # variables of the environment
RESERVED = 30.0
"""Seconds that are kept for what follows training, before a process is killed."""

SIZES = ((8, 8), (32, 16))  # prompts x completions
PHASES = ("sampling", "rewards", "update")
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
        environment: Variables for the command.
    """

    name: str
    words: list[str]
    seconds: float
    rows: Callable[[str], Iterable[Row]]
    environment: Mapping[str, str] = field(default_factory=dict)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, Path("runs/gpu.md"))
    parser.add_argument("--all", action="store_true", help="all parts")
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)  # only make the model
    args = parser.parse_args()
    if args.weights:
        return write_weights("tiny" if args.small else "small", args.weights)
    with tempfile.TemporaryDirectory() as folder:
        found = parts(args.device == "cuda", args.small, args.all, Path(folder))
        return run_and_write(args, [[part] for part in found], ALL_SECONDS if args.all else SECONDS)


def add_options(parser: argparse.ArgumentParser, output: Path) -> None:
    """Add the options that `run_and_write` reads, and ``--small``."""
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny model, a few steps")
    parser.add_argument("--seconds", type=float, help="for all parts together")
    parser.add_argument("--output", type=Path, default=output)


def run_and_write(args: argparse.Namespace, groups: Iterable[Sequence[Part]], usual: float) -> int:
    """Run parts, and write their table after each group of them; the exit code.

    Args:
        args: The options of `add_options`.
        groups: The parts of a group run at the same time.
        usual: Seconds for all together on a GPU, unless the options give others.
    """
    on_gpu = args.device == "cuda"
    if on_gpu and (missing := what_is_missing()):
        print(f"{Path(sys.argv[0]).name}: {missing}")
        return 2
    logs, on = args.output.with_suffix(""), card() if on_gpu else "none (CPU)"
    logs.mkdir(parents=True, exist_ok=True)

    def write(rows: Iterable[Row]) -> None:
        args.output.write_text(table(rows, on))

    seconds = args.seconds or (usual if on_gpu else REHEARSAL_SECONDS)
    _, failed = run_all(groups, logs, seconds, on_gpu, write)
    print(args.output.read_text(), end="")
    return 1 if failed else 0


def run_all(
    groups: Iterable[Sequence[Part]],
    logs: Path,
    seconds: float,
    on_gpu: bool = True,
    write: Callable[[list[Row]], None] = lambda rows: None,
) -> tuple[list[Row], bool]:
    """The rows of all parts, and whether one failed.

    Args:
        groups: The parts of a group run at the same time.
        logs: A folder for each part's output.
        seconds: For all together.
        on_gpu: Whether the parts may use a GPU.
        write: Called with the rows so far after each group.
    """
    rows: list[Row] = []
    failed = False
    ends = time.time() + seconds
    for group in groups:
        print(f"{', '.join(part.name for part in group)} ...", flush=True)
        began = time.time()
        with ThreadPoolExecutor(len(group)) as pool:
            faults = list(pool.map(partial(run, logs=logs, ends=ends, on_gpu=on_gpu), group))
        for part, fault in zip(group, faults, strict=True):
            log = logs / f"{part.name}.log"
            try:
                rows += part.rows(log.read_text(errors="replace"))
            except (LookupError, OSError, ValueError) as error:
                fault = fault or f"its output could not be read ({error!r})"
            if fault:
                failed = True
                rows.append((part.name, f"**failed**: {fault}; see {log}"))
            print(f"  {part.name}: {fault or 'done'}, {time.time() - began:.0f} s", flush=True)
        write(rows)
    return rows, failed


def run(part: Part, logs: Path, ends: float, on_gpu: bool) -> str | None:
    """Run a part until it is done, or its or all parts' time is up; why it failed, or None."""
    log = logs / f"{part.name}.log"
    seconds = min(part.seconds, ends - time.time())
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "PYTHONWARNINGS": "ignore"}
    environment |= {ENDS: str(time.time() + seconds), **part.environment}
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
def parts(on_gpu: bool, small: bool, all_parts: bool, folder: Path) -> list[Part]:
    """The parts, the more telling ones first; what they write but for their output goes to `folder`."""
    size = (2, 4) if small else SIZES[-1]
    model = ["--model", "tiny" if small else "small", "--new_tokens", "8" if small else "144"]
    turns = ["--turns", "1", "--steps", "2"] if small else ["--turns", "2", "--steps", "3"]
    tests = ["-m", "pytest", "-m", "gpu", "-q", "-o", "minversion=0", *marked_files()]
    mixed, policy, lora = (recipe_part(name, on_gpu, small, folder) for name in RECIPES)
    found = [
        graphs_part(on_gpu, small),
        Part("weights", weights_words(small, folder), 60, lambda text: ()),
        mixed,
        step_part("step", size, ("plain", "ours"), [*model, *turns], folder),
        step_part("step by graphs", size, ("ours", "graphs"), [*model, *turns], folder),
        step_part("step beside a static cache", size, ("static", "ours"), [*model, *turns], folder),
        policy,
    ]
    if all_parts:
        found += [
            lora,
            Part("tests", tests if on_gpu else [*tests, "--collect-only"], 100, tests_row),
            memory_part([size], model, folder),  # a size takes over a minute
        ]
        if not small:
            found.append(step_part("step", SIZES[0], ("plain", "ours"), [*model, *turns], folder))
    return found


def weights_words(small: bool, folder: Path) -> list[str]:
    return [__file__, "--weights", str(folder / "model"), *(["--small"] if small else [])]


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


def step_part(
    title: str, size: tuple[int, int], kinds: Sequence[str], words: list[str], folder: Path
) -> Part:
    """Seconds of a step of some kinds of trainers; `title` is what the table and the log call it."""
    prompts, completions = size
    name = f"{title.replace(' ', '_')}_{prompts}x{completions}"
    output = folder / f"{name}.json"
    shown_as = f"GRPO {title}, {prompts} x {completions}"

    def rows(_: str) -> Iterable[Row]:
        for phase, row in json.loads(output.read_text()).items():
            yield f"{shown_as}: {phase}", compared(row)

    given = ["--prompts", str(prompts), "--completions", str(completions), "--output", str(output)]
    given += ["--kinds", *kinds]
    return Part(name, ["benchmarks/grpo_step.py", *words, *given], 130, rows)


def graphs_part(on_gpu: bool, small: bool) -> Part:
    """Whether CUDA graphs draw what the loop draws; on a CPU, whether their steps do."""

    def rows(text: str) -> Iterable[Row]:
        for line in text.splitlines():
            if " (wanted " in line:
                what, _, value = line.partition(": ")
                yield f"graphs: {what}", value

    words = ["benchmarks/graph_check.py", "--device", "cuda" if on_gpu else "cpu"]
    return Part("graphs", [*words, *(["--small"] if small else [])], 60, rows)


def memory_part(sizes: Iterable[tuple[int, int]], words: list[str], folder: Path) -> Part:
    """Peak memory of a step."""
    output = folder / "memory.json"

    def rows(_: str) -> Iterable[Row]:
        for size, row in json.loads(output.read_text()).items():
            gib = {kind: number and number / 2**30 for kind, number in row.items()}
            yield f"peak memory, {size.replace('x', ' x ')}: GiB", compared(gib)

    given = ["--sizes", *(f"{a}x{b}" for a, b in sizes), "--output", str(output)]
    return Part("memory", ["benchmarks/memory.py", *words, *given], 150, rows)


TITLES = {"plain": "plain TRL", "static": "TRL with a static cache", "ours": "ours"}
TITLES["graphs"] = "by CUDA graphs"


def compared(row: dict[str, Any]) -> str:
    """Two trainers' numbers, and the last by the first; what is missing ran out of memory."""
    kinds = [kind for kind in TITLES if kind in row]
    numbers = ", ".join(f"{TITLES[kind]} {shown(row[kind])}" for kind in kinds)
    first, last = row[kinds[0]], row[kinds[-1]]
    return f"{numbers} ({last / first:.2f} x)" if first and last else numbers


def shown(number: float | None) -> str:
    if number is None:
        return "out of memory"
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def recipe_part(name: str, on_gpu: bool, small: bool, folder: Path) -> Part:
    """Steps of a recipe as it is, but for weights, data and the rows that are evaluated."""
    steps = str(WARM_UP + 1 if small else WARM_UP + TIMED + PROFILED)
    run = folder / name
    words = ["recipes/grpo.py", "--config", f"recipes/{name}.yaml", "--output_dir", str(run)]
    words += ["--model_name_or_path", str(folder / "model")]
    words += ["--dataset_name", "rookworld-nano-openings", "--synthetic_rows", "500"]
    words += ["--heldout_rows", "32", "--pass_samples", "0", "--max_steps", steps]
    words += ["--report_to", "none", "--save_only_model", "true"]
    words += ["--save_steps", steps, "--eval_steps", steps]
    words += ["--trainer_from", f"{REPOSITORY / 'benchmarks' / 'own_trainers.py'}:Profiled"]
    if small:
        words += ["--per_device_train_batch_size", "8", "--num_generations", "4"]
        words += ["--gradient_accumulation_steps", "1", "--max_completion_length", "8"]
        words += ["--heldout_rows", "4"]
    if not on_gpu:
        words += CPU_WORDS

    def rows(_: str) -> Iterable[Row]:
        states = run.glob("checkpoint-*/trainer_state.json")  # a guarded run has the start's, too
        state = max(states, key=lambda path: int(path.parent.name.split("-")[1]))
        logs = json.loads(state.read_text())["log_history"]
        steps = [log for log in logs if "step_time" in log]
        profile = run / PROFILE
        yield from recipe_rows(name, steps, json.loads(profile.read_text()) if on_gpu else None)

    return Part(name, words, 90, rows)


CPU_WORDS = ["--bf16", "false", "--use_cpu", "--dataloader_pin_memory", "false"]


def recipe_rows(
    name: str, steps: Sequence[Mapping[str, float]], profile: Mapping[str, Any] | None
) -> Iterable[Row]:
    """The rows of a recipe.

    Args:
        name: The recipe's.
        steps: The logs of all steps, of which those after the warming up are counted.
        profile: What `own_trainers.Profiled` wrote; None without a GPU.
    """
    counted = steps[WARM_UP : WARM_UP + TIMED]
    median = {
        key: statistics.median(step[key] for step in counted)
        for key in ("step_time", *(f"time/{phase}" for phase in PHASES))
    }
    yield f"{name}: step, s (median of {len(counted)})", shown(median["step_time"])
    seconds_of = ", ".join(shown(median[f"time/{phase}"]) for phase in PHASES)
    yield f"{name}: {', '.join(PHASES)}, s", seconds_of
    seconds = sum(step["step_time"] for step in counted)
    tokens = counted[-1]["num_tokens"] - steps[WARM_UP - 1]["num_tokens"]
    yield f"{name}: tokens a second, prompts' too", shown(tokens / seconds)
    yield f"{name}: peak memory, GiB", shown(steps[-1]["peak_memory"])
    if profile is None:
        return
    totals = {
        (part["phase"], what): sum(
            other[what] for other in profile["parts"] if other["phase"] == part["phase"]
        )
        for part in profile["parts"]
        for what in ("seconds", "kernels", "launches")
    }
    sampling, update = totals["sampling", "seconds"], totals["update", "seconds"]
    whole = (sampling + update) / profile["steps"] / median["step_time"]
    yield f"{name}: share of a step in which the GPU works", f"{whole:.0%}"
    whole = sampling / profile["steps"] / median["time/sampling"]
    yield f"{name}: share of sampling in which it works", f"{whole:.0%}"
    for what in ("kernels", "launches"):
        a_token = totals["sampling", what] / profile["positions"]
        yield f"{name}: {what} for a token of all rows", shown(a_token)
        rest = totals["update", what] / profile["steps"]
        yield f"{name}: {what} of a step's rest", shown(rest)


if __name__ == "__main__":
    sys.exit(main())
