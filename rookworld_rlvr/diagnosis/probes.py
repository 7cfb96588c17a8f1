"""What is measured of the policy before a diagnosed step: does the trainer score what was sampled?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..generation import left_pad
from ..model import position_ids_from_mask
from ..preflight import Parity, measure_parity, mixed_length_prompts, preflight_tolerance
from ..trainer import RookWorldGRPOTrainer


@dataclass(frozen=True, slots=True)
class Probes:
    """What is measured of the policy before the step, in nats."""

    parity: Parity
    repeat_gap: float  # largest difference of two forwards of one batch, as in training
    position_gap: float  # largest difference of a padded batch with the mask's position ids given
    # Both gaps are as of temperature 1: a low one would multiply rounding.
    tolerance: float


@torch.no_grad()
def probe(trainer: RookWorldGRPOTrainer) -> Probes:
    """Parity as the preflight measures it, and whether dropout or position ids are behind a gap."""
    prompts = mixed_length_prompts(trainer)
    rows = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
    length = min(map(len, rows)) - 1
    with _mode(trainer.model, training=True), _kept_random_state(trainer):
        parity = measure_parity(trainer, prompts)
        repeat_gap = _gap(_scores(trainer, rows, length), _scores(trainer, rows, length))
    with _mode(trainer.model, training=False):
        position_gap = _position_gap(trainer, [rows[0], rows[-1]])
    heat = min(1.0, trainer.temperature)
    return Probes(parity, heat * repeat_gap, position_gap, preflight_tolerance(trainer))


def _position_gap(trainer: Any, rows: Sequence[Sequence[int]]) -> float:
    """How far log-probs move when position ids of the mask are given: 0 where they were used anyway."""
    left = left_pad(rows, trainer.processing_class.pad_token_id)
    batch = {name: tensor.to(trainer.accelerator.device) for name, tensor in left.items()}
    positions = position_ids_from_mask(batch["attention_mask"])
    with trainer.accelerator.autocast():
        free = trainer.model_wrapped(**batch).logits.float().log_softmax(-1)
        given = trainer.model_wrapped(**batch, position_ids=positions).logits.float()
    text = batch["attention_mask"].bool()
    return _gap(free[text], given.log_softmax(-1)[text])


def _gap(first: torch.Tensor, second: torch.Tensor) -> float:
    return (first - second).abs().max().item()


def _scores(trainer: Any, rows: Sequence[Sequence[int]], length: int) -> torch.Tensor:
    """Log-probs of the last tokens ``(B, length)`` of rows that are padded on the left."""
    batch = left_pad(rows, trainer.processing_class.pad_token_id)
    device = trainer.accelerator.device
    logps, _, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, batch["input_ids"].to(device), batch["attention_mask"].to(device), length
    )
    scores: torch.Tensor = logps.float()
    return scores


@contextmanager
def _mode(model: torch.nn.Module, training: bool) -> Iterator[None]:
    before = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(before)


@contextmanager
def _kept_random_state(trainer: Any) -> Iterator[None]:
    device = trainer.accelerator.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
