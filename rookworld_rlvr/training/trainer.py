"""The `GRPOTrainer` subclass: only what TRL gives no option for.

Every forward gets position ids from its attention mask, and a preflight measures, before the first
update, whether the trainer's log-probs are the sampler's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, Trainer, TrainerControl
from trl.models.utils import unwrap_model_for_generation

from ..common.stats import Proportion
from ..evaluation.answerers import PolicyInTraining, shared
from ..evaluation.results import ModelResults
from ..evaluation.suite import Suite, SuiteResult
from ..models import loading
from ..models.decoding import complete
from ..models.gpt2 import disable_dropout, fuse_gelu, number_positions_from_mask
from ..tasks.metrics import evaluate_completions, headline
from .parts.groups import ResamplingGRPOTrainer
from .preflight import Parity, PreflightCallback
from .results import write_proportions
from .run_folder import ANSWERS_BEFORE, HELDOUT_BEFORE, write_answers

PHASES = ("sampling", "rewards")  # of a step; the rest is its update


class RookWorldGRPOTrainer(ResamplingGRPOTrainer):
    """`trl.GRPOTrainer` that is right for GPT-2, with controls; the constructor is TRL's.

    - Position ids come from the attention mask in every forward, policy and reference.
    - Dropout is off in both, whatever the arguments and the model's configuration say; GELU is fused.
    - `evaluate` decodes the held-out rows greedily, one completion a row, and scores them with the
      rewards' scorer (`evaluation.evaluate_completions`), under ``eval_<metric>``; `suites` are run
      too, under ``eval_suites/<suite>/<metric>``.
    - A preflight runs when training begins, see `preflight.measure_parity`; switched off by
      ``args.preflight = False``.

    `eval_dataset` needs the columns that `data` documents.
    """

    def __init__(self, model: str | PreTrainedModel, *args: Any, **kwargs: Any) -> None:
        if isinstance(model, str):
            model = loading.resolve_model_path(model)
        super().__init__(model, *args, **kwargs)
        self.preflight: Parity | None = None
        self._train_started: float | None = None
        self.heldout: Mapping[str, Proportion] = {}  # of the last evaluation
        self.heldout_completions: Sequence[str] = ()  # the same
        self.heldout_before: Mapping[str, Proportion] | None = None  # of the first in training
        self.suites: Sequence[Suite] = ()  # run with every evaluation
        self.suite_results: Mapping[str, SuiteResult] = {}  # of the last evaluation
        # Of the first evaluation in training.
        self.suite_results_before: Mapping[str, SuiteResult] | None = None
        # This process's rows of the batch, by prompt.
        self._sampled: dict[str, Mapping[str, Any]] = {}
        self._phase_seconds = dict.fromkeys(PHASES, 0.0)  # of the step under way
        for network in filter(None, (self.model, self.ref_model)):
            disable_dropout(network)
            fuse_gelu(network)
            number_positions_from_mask(network)
        if getattr(self.args, "preflight", True):
            self.add_callback(PreflightCallback(self))

    def evaluate(
        self,
        eval_dataset: Dataset | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Greedy held-out evaluation; every process decodes its share of the rows.

        Args:
            eval_dataset: `N` rows; the trainer's own where None.
            ignore_keys: Unused, as nothing but text comes out.
            metric_key_prefix: Put before each metric's name, with an underscore.

        Returns:
            Metrics in [0, 1] by name, ``<prefix>_overall`` among them.
        """
        started = time.perf_counter()
        dataset = eval_dataset if eval_dataset is not None else self.eval_dataset
        if not isinstance(dataset, Dataset):
            raise TypeError(f"held-out rows come as one Dataset, not {type(dataset).__name__}")
        self.heldout_completions = shared(dataset["prompt"][:], self._decode)
        self.heldout = evaluate_completions(dataset, self.heldout_completions)
        if self.is_in_train and self.heldout_before is None:
            self.heldout_before = self.heldout
            if self.accelerator.is_main_process:
                folder = Path(self.args.output_dir)
                write_proportions(folder / HELDOUT_BEFORE, self.heldout)
                write_answers(folder / ANSWERS_BEFORE, dataset, self.heldout_completions)
        metrics = {name: result.value for name, result in self.heldout.items()}
        metrics["overall"] = headline(self.heldout)
        metrics |= self._run_suites()
        metrics["runtime"] = time.perf_counter() - started
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        # GRPOTrainer's own would log the training metrics with them.
        Trainer.log(self, {**metrics, **self._elapsed()})
        self.control: TrainerControl = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def _run_suites(self) -> dict[str, float]:
        """Run `suites` on the policy as it stands; their metrics without groups."""
        policy = PolicyInTraining(str(self.args.output_dir), self._decode)
        self.suite_results = {suite.name: suite.run(policy) for suite in self.suites}
        if self.is_in_train and self.suite_results_before is None:
            self.suite_results_before = self.suite_results
        return {
            f"suites/{suite}/{metric}": found.value
            for suite, result in self.suite_results.items()
            for metric, found in result.metrics().items()
            if "/" not in metric
        }

    def suites_before_and_after(
        self, start: str, left_out: Mapping[str, str]
    ) -> list[ModelResults]:
        """The suites' results of the starting model, where it was measured, and of the last evaluation.

        Args:
            start: The starting model's name.
            left_out: Why suites were left out, by suite.
        """
        measured = ((start, self.suite_results_before), (self.args.output_dir, self.suite_results))
        return [ModelResults(str(name), r, left_out) for name, r in measured if r is not None]

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As transformers' own."""
        self._train_started = time.perf_counter()
        return super().train(*args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As TRL's own; training's seconds so far come with the metrics."""
        super().log({**logs, **self._elapsed()}, start_time)

    def _elapsed(self) -> dict[str, float]:
        if self._train_started is None:
            return {}
        return {"time/elapsed": time.perf_counter() - self._train_started}

    def preflight_numbers(self) -> dict[str, float]:
        """The preflight's three gaps by name; empty where it did not run."""
        return asdict(self.preflight) if self.preflight is not None else {}

    def sampled_rows(self, count: int) -> list[dict[str, Any]]:
        """Some of the completions that TRL's table of the last batch holds, with their data rows.

        Args:
            count: How many, at most; they lie as far apart as there is room. Only this process's, as
                the truth columns of others are not here.

        Returns:
            The row's columns by name, `completion` (what was sampled), each reward (None where it does
            not apply) and `advantage`.
        """
        logs = self._logs
        mine = [place for place, prompt in enumerate(logs["prompt"]) if prompt in self._sampled]
        chosen = mine[:: max(1, math.ceil(len(mine) / count))]
        rewards = {name: list(logs["rewards"][name]) for name in self.reward_func_names}
        columns = (list(logs[name]) for name in ("prompt", "completion", "advantages"))
        prompts, completions, advantages = columns
        return [
            {
                **self._sampled[prompts[place]],
                "completion": completions[place],
                **{
                    name: None if math.isnan(column[place]) else column[place]
                    for name, column in rewards.items()
                },
                "advantage": advantages[place],
            }
            for place in chosen
        ]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._sampled = {}
        return super()._generate_and_score_completions(inputs)

    def _calculate_rewards(self, inputs: list[dict[str, Any]], *args: Any, **kwargs: Any) -> Any:
        self._sampled |= {row["prompt"]: row for row in inputs}  # prompts that were resampled too
        with self._timed("rewards"):
            return super()._calculate_rewards(inputs, *args, **kwargs)

    def _generate(self, prompts: list) -> Any:
        with self._timed("sampling"):
            return super()._generate(prompts)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._phase_seconds[phase] += time.perf_counter() - started

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As TRL's own; the seconds of its phases are logged with those of the step."""
        loss = super().training_step(*args, **kwargs)
        if self._step % self.current_gradient_accumulation_steps == 0:
            metrics = self._metrics["train"]
            for phase, seconds in self._phase_seconds.items():
                metrics[f"time/{phase}"].append(seconds)
            metrics["time/update"].append(
                metrics["step_time"][-1] - sum(self._phase_seconds.values())
            )
            self._phase_seconds = dict.fromkeys(PHASES, 0.0)
        return loss

    def _decode(self, prompts: Sequence[str]) -> list[str]:
        training = self.model.training
        self.model.eval()
        try:
            with unwrap_model_for_generation(
                self.model_wrapped,
                self.accelerator,
                gather_deepspeed3_params=self.args.ds3_gather_for_generation,
            ) as network:
                return complete(
                    network,
                    self.processing_class,
                    prompts,
                    max_new_tokens=self.max_completion_length,
                    batch_size=self.args.per_device_eval_batch_size,
                )
        finally:
            self.model.train(training)


def save_final(trainer: Trainer, folder: Path) -> None:
    """Save a model that plain `AutoModelForCausalLM.from_pretrained` loads, adapters merged."""
    network = trainer.accelerator.unwrap_model(trainer.model)
    if not hasattr(network, "peft_config"):
        trainer.save_model(str(folder))
        return
    if trainer.accelerator.is_main_process:
        merged: PreTrainedModel = network.merge_and_unload()
        merged.save_pretrained(folder)
        trainer.processing_class.save_pretrained(folder)
    trainer.accelerator.wait_for_everyone()
