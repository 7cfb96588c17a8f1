"""The `GRPOTrainer` subclass: only what TRL gives no option for.

Every forward gets position ids from its attention mask, and a preflight measures, before the first
update, whether the trainer's log-probs are the sampler's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PreTrainedModel, Trainer, TrainerControl
from trl.models.utils import unwrap_model_for_generation

from . import model as models
from .evaluation import evaluate_completions, headline
from .generation import greedy_completions
from .preflight import Parity, PreflightCallback
from .records import Proportion
from .report import write_proportions
from .runs import HELDOUT_BEFORE
from .variance import ResamplingGRPOTrainer


class RookWorldGRPOTrainer(ResamplingGRPOTrainer):
    """`trl.GRPOTrainer` that is right for GPT-2, with controls; the constructor is TRL's.

    - Position ids come from the attention mask in every forward, policy and reference.
    - Dropout is off in both, whatever the arguments and the model's configuration say.
    - `evaluate` decodes the held-out rows greedily, one completion a row, and scores them with the
      rewards' scorer (`evaluation.evaluate_completions`), under ``eval_<metric>``.
    - A preflight runs when training begins, see `preflight.measure_parity`; switched off by
      ``args.preflight = False``.

    `eval_dataset` needs the columns that `data` documents.
    """

    def __init__(self, model: str | PreTrainedModel, *args: Any, **kwargs: Any) -> None:
        if isinstance(model, str):
            model = models.resolve_model_path(model)
        super().__init__(model, *args, **kwargs)
        self.preflight: Parity | None = None
        self._train_started: float | None = None
        self.heldout: Mapping[str, Proportion] = {}  # of the last evaluation
        self.heldout_before: Mapping[str, Proportion] | None = None  # of the first in training
        for network in filter(None, (self.model, self.ref_model)):
            models.disable_dropout(network)
            models.number_positions_from_mask(network)
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
        # Every process decodes as many rows, some of them twice: under FSDP each forward is a
        # collective, and a process with a batch less would leave the others waiting.
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        share = [
            (rank + turn * world) % len(dataset) for turn in range(math.ceil(len(dataset) / world))
        ]
        completions = self._decode(dataset.select(share)["prompt"][:])
        gathered = dict(gather_object(list(zip(share, completions, strict=True))))
        self.heldout = evaluate_completions(dataset, [gathered[i] for i in range(len(dataset))])
        if self.is_in_train and self.heldout_before is None:
            self.heldout_before = self.heldout
            if self.accelerator.is_main_process:
                write_proportions(Path(self.args.output_dir) / HELDOUT_BEFORE, self.heldout)
        metrics = {name: result.value for name, result in self.heldout.items()}
        metrics["overall"] = headline(self.heldout)
        metrics["runtime"] = time.perf_counter() - started
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        # GRPOTrainer's own would log the training metrics with them.
        Trainer.log(self, {**metrics, **self._elapsed()})
        self.control: TrainerControl = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

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

    def _decode(self, prompts: Sequence[str]) -> list[str]:
        training = self.model.training
        self.model.eval()
        try:
            with unwrap_model_for_generation(
                self.model_wrapped,
                self.accelerator,
                gather_deepspeed3_params=self.args.ds3_gather_for_generation,
            ) as network:
                return greedy_completions(
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
