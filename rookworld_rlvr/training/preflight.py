"""The preflight: compares the trainer's log-probs with those of each row alone and with the sampler's.

TRL 1.16 scores left-padded batches without position ids. GPT-2 then counts positions from the padding,
while `generate` counts them from the text, so the trainer's log-probs differ from the sampler's
(huggingface/trl issue 6800 describes the same for other trainers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from datasets import IterableDataset
from transformers import Trainer, TrainerCallback
from trl import GRPOTrainer
from trl.trainer.utils import get_config_model_id, pad

from ..common.errors import RookWorldError
from ..common.terminal import wrapped
from ..models import loading
from ..models.decoding import pad_rows
from ..models.gpt2 import position_ids_from_mask
from ..tasks.task import Sampling
from .parts.part import Rows
from .parts.sampling import draw, own_settings

PREFLIGHT_ROWS = 8
_LOOKED_AT = 256  # rows of the training set
LogProbs = Callable[..., Any]


TOLERANCE_FP32 = 1e-3


TOLERANCE_HALF = 5e-2


# vLLM rounds in other places; a wrong weight or temperature shows by whole nats.
TOLERANCE_HALF_VLLM = 0.5


class PreflightError(RookWorldError):
    """The trainer's log-probs differ from the sampler's, or the policy from the reference."""


@dataclass(frozen=True, slots=True)
class Parity:
    """What the preflight measures, in nats. At step 0 all three are 0, up to rounding."""

    # Largest |trainer's log-prob - that of the row alone, unpadded|, over tokens, also of right answers
    # if the trainer teaches them.
    alone_gap: float
    sampler_gap: float  # largest |trainer's log-prob - sampler's|, over tokens
    reference_kl: float  # KL from policy to reference by the k3 estimator, mean over tokens

    def describe(self) -> str:
        """The three numbers in words."""
        return (
            f"gap to each row alone {self.alone_gap:.2g}, gap to the sampler {self.sampler_gap:.2g}, "
            f"KL to the reference {self.reference_kl:.2g}"
        )

    def faults(self, tolerance: float, sampler: float | None = None) -> list[str]:
        """The numbers that are over the tolerance or not finite, as phrases.

        Args:
            tolerance: In nats.
            sampler: The tolerance of `sampler_gap`; None takes the others'.
        """
        allowed = {"sampler_gap": tolerance if sampler is None else sampler}
        return [
            f"{name} = {value:.3g}"
            for name, value in asdict(self).items()
            if not math.isfinite(value) or abs(value) > allowed.get(name, tolerance)
        ]


class PreflightCallback(TrainerCallback):
    """Measures the gaps before the first update, once the model is on its device and wrapped."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        prompts = mixed_length_prompts(trainer)
        parity = measure_parity(trainer, [*prompts, *prompts])  # so that completions share prompts
        trainer.preflight = parity
        if state.global_step == 0:  # a resumed run has logged it
            Trainer.log(trainer, {f"preflight/{name}": v for name, v in asdict(parity).items()})
        tolerance = preflight_tolerance(trainer)
        sampler = sampler_tolerance(trainer, tolerance)
        allowed = f"{tolerance:g}" + (f", to vLLM {sampler:g}" if sampler != tolerance else "")
        resumed = "; the KL is not checked, as the run is resumed" if state.global_step else ""
        said = f"preflight: {parity.describe()} (tolerance {allowed} nats{resumed})"
        trainer.accelerator.print(wrapped(said))
        # The policy of a resumed run differs from its reference, as it should.
        checked = parity if state.global_step == 0 else replace(parity, reference_kl=0.0)
        if faults := checked.faults(tolerance, sampler):
            raise PreflightError(
                f"preflight: {', '.join(faults)}, over the tolerance of {allowed} nats: the "
                "trainer's log-probs are not those that completions were sampled with, so GRPO would "
                f"not learn from them. {_remedy(trainer, checked, tolerance)}"
            )


def _remedy(trainer: GRPOTrainer, parity: Parity, tolerance: float) -> str:
    """What to do about gaps over the tolerance."""
    same = replace(parity, sampler_gap=0.0).faults(tolerance) == []  # but for the sampler
    if same and (changes := _changes_of_sampling(trainer)):
        said = ", ".join(f"{name}: {value}" for name, value in changes.items())
        return (
            f"The sampler's distribution is changed by {said}, which the trainer's log-probs do not "
            "follow; leave that out, or set preflight: false if you accept biased updates"
        )
    return (
        "Check the model's dropout, position ids and precision; or set "
        "preflight: false if you know the reason"
    )


def _changes_of_sampling(trainer: GRPOTrainer) -> dict[str, Any]:
    """Settings that may change how tokens are sampled, but not the trainer's log-probs."""
    args = trainer.args
    changes = dict(args.generation_kwargs or {})
    if args.repetition_penalty != 1:
        changes["repetition_penalty"] = args.repetition_penalty
    return changes | own_settings(trainer)


def preflight_tolerance(trainer: GRPOTrainer) -> float:
    """The largest gap that the precision allows, in nats."""
    is_full = trainer.accelerator.mixed_precision == "no" and (
        next(trainer.model.parameters()).dtype == torch.float32
    )
    return TOLERANCE_FP32 if is_full else max(TOLERANCE_HALF, _rounding(trainer))


@torch.no_grad()
def _rounding(trainer: Any) -> float:
    """How far apart two roundings of a likely token's logit can be in 16 bits, in nats.

    Trainer and sampler compute the same logit in another order, and each rounds it. The spacing of
    16-bit numbers grows with their size: between 16 and 32 it is 0.125 in bf16.
    """
    of_weights = next(trainer.model.parameters()).dtype
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    dtype = kinds.get(trainer.accelerator.mixed_precision, of_weights)
    longest = trainer.processing_class(mixed_length_prompts(trainer)[-1])["input_ids"]
    with trainer.accelerator.autocast():
        logits = trainer.model_wrapped(
            input_ids=torch.tensor([longest], device=trainer.accelerator.device)
        ).logits  # (1, T, V)
    size: float = logits.amax(-1).abs().max().item()
    return torch.finfo(dtype).eps * size / trainer.temperature


def sampler_tolerance(trainer: GRPOTrainer, tolerance: float) -> float:
    """The largest gap to the sampler allowed, in nats; in half precision vLLM may have more.

    Args:
        trainer: The trainer.
        tolerance: That of the other gaps, from `preflight_tolerance`.
    """
    if not trainer.args.use_vllm or tolerance < TOLERANCE_HALF:
        return tolerance
    return max(tolerance, TOLERANCE_HALF_VLLM)


def mixed_length_prompts(trainer: GRPOTrainer) -> list[str]:
    """Prompts from all over the training set, evenly from the shortest to the longest."""
    prompts = sorted(_rows_by_prompt(trainer))
    prompts.sort(key=lambda prompt: len(trainer.processing_class(prompt)["input_ids"]))
    if len(prompts) <= PREFLIGHT_ROWS:
        return prompts
    last = PREFLIGHT_ROWS - 1
    return [prompts[rank * (len(prompts) - 1) // last] for rank in range(PREFLIGHT_ROWS)]


def _rows_by_prompt(trainer: GRPOTrainer) -> dict[str, Mapping[str, Any]]:
    """Rows from all over the training set, or the first ones of a stream, by prompt."""
    rows = trainer.train_dataset
    if isinstance(rows, IterableDataset):
        return {row["prompt"]: row for row in rows.take(_LOOKED_AT)}
    stride = max(1, len(rows) // _LOOKED_AT)
    return {(row := rows[index])["prompt"]: row for index in range(0, len(rows), stride)}


@torch.no_grad()
def measure_parity(
    trainer: GRPOTrainer, prompts: Sequence[str], log_probs: LogProbs | None = None
) -> Parity:
    """Compare a trainer's log-probs with those of the sampler and of each row alone.

    It works for any `GRPOTrainer`, so that TRL's own can be measured too. Every process measures the
    same batch, and the random state is left as it was. The sampler's log-probs are taken at the row's
    temperature and before top-k and top-p, because TRL's loss ignores these two.

    If the trainer teaches right answers, it also scores those to the prompts, in the way of each part
    that teaches. They were not sampled, so they are compared with each row alone only.

    Without a reference in memory (``beta`` 0) the starting model is loaded for the comparison. If it has
    no path, the policy is compared with itself.

    Args:
        trainer: The trainer; its model may be wrapped already.
        prompts: `B` texts of different lengths.
        log_probs: How the trainer scores, like `RookWorldGRPOTrainer.log_probs`; None: its own.
    """
    devices = [trainer.accelerator.device] if trainer.accelerator.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        batch, sampler = _sample(trainer, prompts)
    _, mask, length, _ = batch
    kept = mask[:, -length:].bool()  # (B, C)
    score = log_probs or trainer.log_probs
    ours = _score(score, trainer.model, batch)
    alone = _logps_alone(trainer, batch)
    reference = _reference_logps(trainer, score, batch)
    ratio = (reference - ours)[kept]
    of_answers = _answer_gaps(trainer, prompts, batch)
    gaps = torch.stack(
        [
            torch.stack([(ours - alone)[kept].abs().max(), *of_answers]).max(),
            (ours - sampler)[kept].abs().max(),
            (ratio.exp() - ratio - 1).mean(),
        ]
    )
    # All processes use the largest gaps of any of them, so that they stop together.
    worst = trainer.accelerator.gather(gaps.unsqueeze(0)).amax(dim=0).tolist()
    return Parity(*worst)


def _sample(trainer: GRPOTrainer, prompts: Sequence[str]) -> tuple[Rows, torch.Tensor]:
    """Sample as the trainer does; gives the completions and their log-probs ``(B, C)``."""
    alike = [Sampling(trainer.temperature, trainer.top_p, trainer.top_k or 0)] * len(prompts)
    rows = trainer.samplings(prompts) if hasattr(trainer, "samplings") else alike
    device = trainer.accelerator.device
    encoded = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
    engine: Any = getattr(trainer, "parts", {}).get("vllm")
    drawn = engine.draw(encoded) if engine else draw(trainer, encoded, rows, keep_logps=True)
    completions, logps = drawn
    assert logps is not None
    temperatures = torch.tensor([row.temperature for row in rows], device=device)
    sampled = pad([torch.tensor(row) for row in logps], 0.0, padding_side="right").to(device)
    return _batch(trainer, prompts, completions, temperatures), sampled


def _batch(
    trainer: GRPOTrainer,
    prompts: Sequence[str],
    completions: Sequence[Sequence[int]],
    temperatures: torch.Tensor,
) -> Rows:
    """Prompts and the tokens of a completion of each, padded as the trainer pads them."""
    tokenizer, device = trainer.processing_class, trainer.accelerator.device
    encoded = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    left = pad_rows(encoded, tokenizer.pad_token_id)
    right = {"padding_side": "right"}
    ids = pad([torch.tensor(row) for row in completions], tokenizer.pad_token_id, **right)
    text = pad([torch.ones(len(row), dtype=torch.long) for row in completions], 0, **right)
    sequences = torch.cat([left["input_ids"], ids], dim=1).to(device)
    mask = torch.cat([left["attention_mask"], text], dim=1).to(device)
    return Rows(sequences, mask, ids.size(1), temperatures)


def _answer_gaps(trainer: Any, prompts: Sequence[str], sampled: Rows) -> list[torch.Tensor]:
    """For each part that teaches, the largest gap of right answers to those of each row alone.

    Args:
        trainer: The trainer.
        prompts: Those of the sampled completions.
        sampled: The completions.
    """
    parts = [part for part in getattr(trainer, "parts", {}).values() if part.teaches]
    answers = _right_answers(trainer, prompts) if parts else {}
    if not answers:
        return []
    places, device = list(answers), sampled.ids.device
    asked = [prompts[place] for place in places]
    heat = _heat(sampled)[torch.tensor(places, device=device)]
    rows = _batch(trainer, asked, list(answers.values()), heat)
    alone, kept = _logps_alone(trainer, rows), rows.mask[:, -rows.length :].bool()
    found = (part.answer_logps(sampled, places, rows).float() for part in parts)
    return [(ours - alone)[kept].abs().max() for ours in found]


def _heat(rows: Rows) -> torch.Tensor:
    """The temperatures ``(B,)``, which this file's rows always have."""
    assert rows.temperatures is not None
    return rows.temperatures


def _right_answers(trainer: Any, prompts: Sequence[str]) -> dict[int, list[int]]:
    """The tokens of right answers by place; without those that the trainer would not teach either."""
    from .parts.teaching import taught_answer  # most runs teach none

    rows = _rows_by_prompt(trainer)
    asked = [(place, rows[prompt]) for place, prompt in enumerate(prompts) if prompt in rows]
    answers = {place: taught_answer(trainer, row, str(place)) for place, row in asked}
    return {place: answer[1] for place, answer in answers.items() if answer is not None}


def _gather_logps(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probs ``(B, C)`` of tokens ``(B, C)`` under logits ``(B, C, V)``."""
    return logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def _score(score: LogProbs, network: torch.nn.Module, batch: Rows) -> torch.Tensor:
    """Log-probs ``(B, C)`` as the trainer computes them for its loss."""
    logps: torch.Tensor = score(network, *batch)[0]
    return logps.float()


def _logps_alone(trainer: GRPOTrainer, batch: Rows) -> torch.Tensor:
    """Log-probs ``(B, C)`` of each row by itself, without padding or dropout."""
    sequences, mask, length, _ = batch
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
            logits = logits[:, prompt - 1 : -1] / _heat(batch)[row]  # (1, c, V)
            logps[row, : logits.size(1)] = _gather_logps(logits, tokens[:, prompt:])[0]
    finally:
        trainer.model.train(training)
    return logps


def _reference_logps(trainer: GRPOTrainer, score: LogProbs, batch: Rows) -> torch.Tensor:
    if trainer.ref_model is not None:
        return _score(score, trainer.ref_model, batch)
    network = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(network, "peft_config"):
        with network.disable_adapter():
            return _score(score, trainer.model, batch)
    path = get_config_model_id(network.config)
    if not path:
        return _score(score, trainer.model, batch)
    revision = (trainer.args.model_init_kwargs or {}).get("revision", "main")
    reference = loading.load_model(
        path,
        revision=revision,
        dtype=next(network.parameters()).dtype,
        trust_remote_code=trainer.args.trust_remote_code,
    )
    sequences, mask, length, _ = batch
    reference = reference.to(sequences.device).eval()
    positions = position_ids_from_mask(mask)
    with trainer.accelerator.autocast():
        logits = reference(input_ids=sequences, attention_mask=mask, position_ids=positions).logits
    logits = logits[:, -length - 1 : -1].float() / _heat(batch).view(-1, 1, 1)
    return _gather_logps(logits, sequences[:, -length:])
