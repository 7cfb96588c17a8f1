"""The `GRPOTrainer` subclass: only what TRL gives no option for.

TRL 1.16 scores left-padded batches without position ids, and GPT-2 then counts positions from the
padding, while `generate` counts them from the text: the trainer's log-probs are not the sampler's
(huggingface/trl issue 6800 describes the same for other trainers). Here every forward gets position
ids from its attention mask, and a preflight measures the gaps before the first update.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl
from trl import GRPOTrainer
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.utils import pad

from . import model as models
from .evaluation import evaluate_completions, headline
from .generation import greedy_completions, left_pad
from .records import Proportion, RookWorldError
from .report import write_proportions
from .rollout import Sampling, TaskSamplingGRPOTrainer, draw
from .runs import HELDOUT_BEFORE
from .variance import ResamplingGRPOTrainer

PREFLIGHT_ROWS = 8
TOLERANCE_FP32 = 1e-3
TOLERANCE_HALF = 5e-2


class PreflightError(RookWorldError):
    """The trainer's log-probs do not match the sampler's, or the policy is not the reference."""


@dataclass(frozen=True, slots=True)
class Parity:
    """What the preflight measures, in nats; at step 0 all three are 0 but for rounding."""

    alone_gap: float  # largest |trainer's log-prob - that of the row alone and unpadded|, by token
    sampler_gap: float  # largest |trainer's log-prob - sampler's|, by token
    reference_kl: float  # KL of the policy to the reference, k3 estimator, mean over tokens

    def describe(self) -> str:
        """The three numbers in words."""
        return (
            f"gap to each row alone {self.alone_gap:.2g}, gap to the sampler {self.sampler_gap:.2g}, "
            f"KL to the reference {self.reference_kl:.2g}"
        )

    def faults(self, tolerance: float) -> list[str]:
        """The numbers that are over tolerance or no numbers, as phrases."""
        return [
            f"{name} = {value:.3g}"
            for name, value in asdict(self).items()
            if not math.isfinite(value) or abs(value) > tolerance
        ]


class RookWorldGRPOTrainer(ResamplingGRPOTrainer):
    """`trl.GRPOTrainer` that is right for GPT-2, with controls; the constructor is TRL's.

    - Position ids come from the attention mask in every forward, policy and reference.
    - Dropout is off in both, whatever the arguments and the model's configuration say.
    - `evaluate` decodes the held-out rows greedily, one completion a row, and scores them with the
      rewards' scorer (`evaluation.evaluate_completions`), under ``eval_<metric>``.
    - A preflight runs when training begins, see `measure_parity`; switched off by
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
            self.add_callback(_PreflightCallback(self))

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


# --------------------------------------------------------------------------------------------------
# Preflight
# --------------------------------------------------------------------------------------------------
class _PreflightCallback(TrainerCallback):
    """Measures parity once the model is on its device and wrapped, before the first update."""

    def __init__(self, trainer: RookWorldGRPOTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        parity = measure_parity(trainer, mixed_length_prompts(trainer))
        trainer.preflight = parity
        Trainer.log(trainer, {f"preflight/{name}": v for name, v in asdict(parity).items()})
        tolerance = getattr(args, "preflight_tolerance", None)
        if tolerance is None:
            full = trainer.accelerator.mixed_precision == "no" and (
                next(trainer.model.parameters()).dtype == torch.float32
            )
            tolerance = TOLERANCE_FP32 if full else TOLERANCE_HALF
        trainer.accelerator.print(f"preflight: {parity.describe()} (tolerance {tolerance:g} nats)")
        # A resumed policy has left its reference, and rightly so.
        checked = (
            parity if state.global_step == 0 else Parity(parity.alone_gap, parity.sampler_gap, 0)
        )
        if faults := checked.faults(tolerance):
            raise PreflightError(
                f"preflight: {', '.join(faults)}, over the tolerance of {tolerance:g} nats. The "
                "trainer does not score what the sampler wrote, so GRPO would not learn from it. "
                "Check dropout, position ids and precision of the model (or raise "
                "preflight_tolerance, if you know why)"
            )


def mixed_length_prompts(trainer: GRPOTrainer, count: int = PREFLIGHT_ROWS) -> list[str]:
    """Prompts from all over the training set, from the shortest to the longest, evenly by rank."""
    rows = trainer.train_dataset
    stride = max(1, len(rows) // 256)
    prompts = sorted({rows[index]["prompt"] for index in range(0, len(rows), stride)})
    prompts.sort(key=lambda prompt: len(trainer.processing_class(prompt)["input_ids"]))
    if len(prompts) <= count:
        return prompts
    return [prompts[index * (len(prompts) - 1) // (count - 1)] for index in range(count)]


@torch.no_grad()
def measure_parity(trainer: GRPOTrainer, prompts: Sequence[str], seed: int = 0) -> Parity:
    """Compare a trainer's log-probs with those of the sampler and of each row alone.

    Works for any `GRPOTrainer`, so that the plain one can be measured too. Every process measures the
    same batch, and the random state is left as it was. The sampler's log-probs are those before top-k
    and top-p, which TRL's loss does not know either, at the temperature of the row.

    Without a reference in memory (``beta`` 0) the starting model is loaded for the comparison, where
    it has a path; else the policy is compared with itself.

    Args:
        trainer: Its model may be wrapped already.
        prompts: `B` texts, of different lengths.
        seed: For the completions that are sampled.
    """
    devices = [trainer.accelerator.device] if trainer.accelerator.device.type == "cuda" else []
    rows = _samplings(trainer, prompts)
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        sequences, mask, width, sampler = _sample(trainer, prompts, rows)
    temperatures = torch.tensor([row.temperature for row in rows], device=sequences.device)
    batch = _Batch(sequences, mask, sequences.size(1) - width, temperatures)
    kept = mask[:, width:].bool()  # (B, C)
    ours = _trainer_logps(trainer, trainer.model, batch)
    alone = _logps_alone(trainer, batch)
    reference = _reference_logps(trainer, batch)
    ratio = (reference - ours)[kept]
    gaps = torch.stack(
        [
            (ours - alone)[kept].abs().max(),
            (ours - sampler)[kept].abs().max(),
            (ratio.exp() - ratio - 1).mean(),
        ]
    )
    # The worst process speaks for all, so that they stop together.
    worst = trainer.accelerator.gather(gaps.unsqueeze(0)).amax(dim=0).tolist()
    return Parity(*worst)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Completions to score: tokens and mask ``(B, P+C)``, `C`, and temperatures ``(B,)``."""

    sequences: torch.Tensor
    mask: torch.Tensor
    length: int
    temperatures: torch.Tensor


def _samplings(trainer: GRPOTrainer, prompts: Sequence[str]) -> list[Sampling]:
    if isinstance(trainer, TaskSamplingGRPOTrainer):
        return trainer.rows_sampling(prompts)
    return [Sampling(trainer.temperature, trainer.top_p, trainer.top_k or 0)] * len(prompts)


def _sample(
    trainer: GRPOTrainer, prompts: Sequence[str], rows: Sequence[Sampling]
) -> tuple[torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """Sample as the trainer does: sequences ``(B, P+C)``, mask, `P`, and log-probs ``(B, C)``."""
    tokenizer, device = trainer.processing_class, trainer.accelerator.device
    encoded = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    with unwrap_model_for_generation(
        trainer.model_wrapped,
        trainer.accelerator,
        gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
        generation_kwargs=trainer.generation_kwargs,
    ) as network:
        completions, logps = draw(network, encoded, rows, trainer.generation_config, True)
    assert logps is not None
    left = left_pad(encoded, tokenizer.pad_token_id)
    right = {"padding_side": "right"}
    ids = pad([torch.tensor(row) for row in completions], tokenizer.pad_token_id, **right)
    text = pad([torch.ones(len(row), dtype=torch.long) for row in completions], 0, **right)
    sequences = torch.cat([left["input_ids"], ids], dim=1).to(device)
    mask = torch.cat([left["attention_mask"], text], dim=1).to(device)
    sampled = pad([torch.tensor(row) for row in logps], 0.0, **right).to(device)
    return sequences, mask, left["input_ids"].size(1), sampled


def _gather_logps(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probs ``(B, C)`` of tokens ``(B, C)`` under logits ``(B, C, V)``."""
    return logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def _trainer_logps(trainer: GRPOTrainer, network: torch.nn.Module, batch: _Batch) -> torch.Tensor:
    """Log-probs ``(B, C)`` as the trainer's loss takes them."""
    with (
        trainer.at_temperatures(batch.temperatures)
        if isinstance(trainer, TaskSamplingGRPOTrainer)
        else nullcontext()
    ):
        logps, _, _ = trainer._get_per_token_logps_and_entropies(
            network, batch.sequences, batch.mask, batch.length
        )
    return logps.float()


def _logps_alone(trainer: GRPOTrainer, batch: _Batch) -> torch.Tensor:
    """Log-probs ``(B, C)`` of each row by itself: no padding, dropout off."""
    sequences, mask, length = batch.sequences, batch.mask, batch.length
    logps = torch.zeros(sequences.size(0), length, device=sequences.device)
    width = sequences.size(1) - length
    training = trainer.model.training
    trainer.model.eval()
    try:
        for row in range(sequences.size(0)):
            tokens = sequences[row][mask[row].bool()].unsqueeze(0)  # (1, p+c)
            prompt = int(mask[row, :width].sum())
            with trainer.accelerator.autocast():
                logits = trainer.model_wrapped(
                    input_ids=tokens, attention_mask=torch.ones_like(tokens)
                ).logits.float()
            logits = logits[:, prompt - 1 : -1] / batch.temperatures[row]  # (1, c, V)
            logps[row, : logits.size(1)] = _gather_logps(logits, tokens[:, prompt:])[0]
    finally:
        trainer.model.train(training)
    return logps


def _reference_logps(trainer: GRPOTrainer, batch: _Batch) -> torch.Tensor:
    if trainer.ref_model is not None:
        return _trainer_logps(trainer, trainer.ref_model, batch)
    network = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(network, "peft_config"):
        with network.disable_adapter():
            return _trainer_logps(trainer, trainer.model, batch)
    path = getattr(network.config, "_name_or_path", "")
    if not path:
        return _trainer_logps(trainer, trainer.model, batch)
    revision = (trainer.args.model_init_kwargs or {}).get("revision", "main")
    reference = models.load_model(path, revision=revision, dtype=next(network.parameters()).dtype)
    reference = reference.to(batch.sequences.device).eval()
    with trainer.accelerator.autocast():
        logits = reference(
            input_ids=batch.sequences,
            attention_mask=batch.mask,
            position_ids=models.position_ids_from_mask(batch.mask),
        ).logits
    logits = logits[:, -batch.length - 1 : -1].float() / batch.temperatures.view(-1, 1, 1)
    return _gather_logps(logits, batch.sequences[:, -batch.length :])


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
