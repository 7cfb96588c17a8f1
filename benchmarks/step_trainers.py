"""Plain TRL's trainer and ours with the same work to do, for `grpo_step.py` and `memory.py`.

Plain TRL is `GRPOTrainer` with position ids from the mask and without dropout, so that both do right
work. Model, prompts, group size, lengths and rewards are the same. The learning rate is 0, so both
sample from the same policy in every step. On a GPU both train in bf16, else in fp32.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from rookworld_rlvr.common.stats import draw
from rookworld_rlvr.data.loading import DataArguments, load_data
from rookworld_rlvr.models import gpt2, loading
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

PHASES = ("sampling", "scoring", "update", "step")


# --------------------------------------------------------------------------------------------------
# The work
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Work:
    """What a step has to do.

    Args:
        model: A key of `DEFAULTS`.
        prompts: In a step.
        completions: Of each prompt.
        new_tokens: Of the longest completion.
        beta: Weight of the KL term.
    """

    model: str
    prompts: int
    completions: int
    new_tokens: int
    beta: float = 0.0


DEFAULTS = {
    "nano": Work("nano", 16, 8, 64),  # the packaged model
    "small": Work("small", 4, 8, 64),  # GPT-2 small's shape, random weights
    "tiny": Work("tiny", 2, 4, 8),  # for tests
}
PROMPT_TOKENS = 96  # of models with random weights: what prompts take in GPT-2's own tokenizer
CHESS = [{"name": "environment_exact"}, {"name": "policy_best_move"}]
DRAWN = [{"name": f"{Path(__file__).resolve()}:drawn"}]


def add_work(parser: argparse.ArgumentParser) -> None:
    """Add the options that `work_of` reads."""
    parser.add_argument("--model", choices=DEFAULTS, default="nano")
    parser.add_argument("--prompts", type=int, help="of a step")
    parser.add_argument("--completions", type=int, help="of each prompt")
    parser.add_argument("--new_tokens", type=int, help="of the longest completion")
    parser.add_argument("--beta", type=float, help="weight of the KL term")


def work_of(args: argparse.Namespace) -> Work:
    """The work that was asked for; what was left out is the model's default."""
    usual = DEFAULTS[args.model]
    given = {
        name: getattr(usual, name) if getattr(args, name) is None else getattr(args, name)
        for name in Work.__slots__
    }
    return Work(**given)


def drawn(completion_ids: Any, prompts: Any, **columns: Any) -> list[float]:
    """A number drawn from each completion's tokens: random weights earn nothing else.

    With equal rewards we would leave out the whole update.
    """
    return [draw(repr(list(ids))) for ids in completion_ids]


def random_model(kind: str, tokenizer: Any) -> GPT2LMHeadModel:
    """A GPT-2 with random weights, ``small`` or ``tiny``, whose tokens include the tokenizer's."""
    tiny = {"vocab_size": len(tokenizer), "n_layer": 2, "n_embd": 32, "n_head": 2}
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            **(tiny if kind == "tiny" else {}),
        )
    )


def long_prompts(tokenizer: Any, rows: Dataset) -> Dataset:
    """Rows with prompts of about `PROMPT_TOKENS` tokens, each its own text several times."""

    def lengthen(row: dict[str, Any]) -> dict[str, Any]:
        ids = tokenizer(row["prompt"])["input_ids"]
        repeated = (ids * (PROMPT_TOKENS // len(ids) + 1))[:PROMPT_TOKENS]
        return {"prompt": tokenizer.decode(repeated)}

    return rows.select(range(2000)).map(lengthen)


# --------------------------------------------------------------------------------------------------
# The trainers
# --------------------------------------------------------------------------------------------------
class Stopwatch(TrainerCallback):  # type: ignore[misc]
    """What each step took and did.

    Attributes:
        seconds: Of each step, by phase.
        prompts: Of each step.
        tokens: Of each step's completions.
        rewards: The mean of each step.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.seconds: list[dict[str, float]] = []
        self.prompts: list[list[str]] = []
        self.tokens: list[float] = []
        self.rewards: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._now = {"sampling": 0.0, "batch": 0.0}
        self._started = now()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        whole = now() - self._started
        sampling, batch = self._now["sampling"], self._now["batch"]
        step = {"sampling": sampling, "scoring": batch - sampling, "update": whole - batch}
        self.seconds.append({**step, "step": whole})

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = now()
        yield
        self._now[name] += now() - started


def now() -> float:
    """Seconds, when the device has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Timed:
    """A trainer whose sampling and whole preparation of a batch are timed and noted."""

    stopwatch: Stopwatch

    def _generate(self, prompts: Any) -> Any:
        with self.stopwatch.phase("sampling"):
            return super()._generate(prompts)  # type: ignore[misc]

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        rewards = super()._calculate_rewards(*args, **kwargs)  # type: ignore[misc]
        self.stopwatch.rewards.append(rewards.nansum(1).mean().item())
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        if not self.model.training:  # type: ignore[attr-defined]
            return super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        with self.stopwatch.phase("batch"):
            batch = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        self.stopwatch.prompts.append([row["prompt"] for row in inputs])
        self.stopwatch.tokens.append(batch["completion_mask"].sum().item())
        return batch


class Plain(Timed, GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer."""


class Static(Plain):
    """TRL's trainer with a cache of fixed size, with which `generate` compiles the model on a GPU."""


class Ours(Timed, RookWorldGRPOTrainer):
    """This package's trainer."""


class ByGraphs(Ours):
    """This package's trainer, sampling by CUDA graphs."""


KINDS: dict[str, type[Any]] = {"plain": Plain, "static": Static, "ours": Ours, "graphs": ByGraphs}
USUAL_KINDS = ("plain", "ours")
TITLES = {"plain": "plain TRL", "static": "TRL, static", "ours": "ours", "graphs": "graphs"}


def trainer_of(kind: str, work: Work, steps: int, folder: Path, reward: Any = None) -> Any:
    """A trainer of either kind, with a `stopwatch`.

    Args:
        kind: A key of `KINDS`.
        work: What a step has to do.
        steps: How many `train` takes.
        folder: The run's folder.
        reward: A reward function instead of the usual ones.
    """
    disable_progress_bars()
    tokenizer = loading.load_tokenizer(loading.PACKAGED_MODEL)
    data = load_data(DataArguments(task_shares={"environment": 0.5, "policy": 0.5}, heldout_rows=4))
    if work.model == "nano":
        model: Any = loading.load_model(loading.PACKAGED_MODEL)
        rows, rewards = data.train, CHESS
    else:
        model = random_model(work.model, tokenizer)
        rows, rewards = long_prompts(tokenizer, data.train), DRAWN
    on_gpu = torch.cuda.is_available()
    config: dict[str, Any] = {
        "output_dir": str(folder),
        "report_to": [],
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
        "dataloader_pin_memory": on_gpu,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": work.prompts * work.completions,
        "num_generations": work.completions,
        "max_completion_length": work.new_tokens,
        "max_steps": steps,
        "learning_rate": 0.0,
        "beta": work.beta,
        "logging_steps": steps,
        "eval_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
        "disable_dropout": True,
        "log_completions": False,
        "remove_unused_columns": False,
    }
    if kind == "static":
        config["cache_implementation"] = "static"
    is_ours = issubclass(KINDS[kind], Ours)
    if is_ours:
        config |= {"rewards": rewards, "preflight": False, "load_best_model_at_end": False}
        config["cuda_graphs"] = kind == "graphs"
    trainer = KINDS[kind](
        model=model,
        reward_funcs=get_reward_funcs(rewards) if reward is None else reward,
        args=(RookWorldGRPOConfig if is_ours else GRPOConfig)(**config),
        train_dataset=rows,
        eval_dataset=data.heldout,
        processing_class=tokenizer,
    )
    for network in filter(None, (trainer.model, trainer.ref_model)):
        gpt2.number_positions_from_mask(network)
    trainer.remove_callback(PrinterCallback)
    trainer.stopwatch = Stopwatch()
    trainer.add_callback(trainer.stopwatch)
    return trainer
