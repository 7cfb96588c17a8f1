"""The preflight: compares the trainer's log-probs with those of each row alone and with the sampler's.

TRL 1.16 scores left-padded batches without position ids. GPT-2 then counts positions from the padding,
while `generate` counts them from the text, so the trainer's log-probs differ from the sampler's
(huggingface/trl issue 6800 describes the same for other trainers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from datasets import IterableDataset
from transformers import GenerationConfig, ProcessorMixin, Trainer, TrainerCallback
from transformers.generation import GenerationMode
from trl import GRPOTrainer
from trl.trainer.utils import pad

from ..common.errors import RookWorldError
from ..common.terminal import wrapped
from ..models.decoding import pad_rows
from ..tasks.task import Sampling
from .exchanged import draw_by_vllm
from .sampling import draw, encode, logits_alone, starting_model
from .scoring import Sequences

if TYPE_CHECKING:
    from .trainer import RookWorldGRPOTrainer

PREFLIGHT_ROWS = 8
_LOOKED_AT = 256  # rows of the training set
TOLERANCE_FP32 = 1e-3
TOLERANCE_HALF = 5e-2
# vLLM rounds in other places; a wrong weight or temperature shows by whole nats.
TOLERANCE_HALF_VLLM = 0.5


class PreflightError(RookWorldError):
    """The trainer's log-probs differ from the sampler's, or the policy from the reference."""


@dataclass(frozen=True, slots=True)
class Parity:
    """What the preflight measures, in nats. At step 0 all are 0, up to rounding."""

    alone_gap: float  # largest |trainer's log-prob - that of the row alone, unpadded|, over tokens
    sampler_gap: float  # largest |trainer's log-prob - sampler's|, over tokens
    reference_kl: float | None  # KL from policy to reference, by the k3 estimator; None without one

    def measured(self) -> dict[str, float]:
        """The numbers that there are."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def faults(self, tolerance: float, sampler: float = 0.0) -> list[str]:
        """The numbers that are over the tolerance or not finite, as phrases.

        Args:
            tolerance: In nats.
            sampler: The tolerance of `sampler_gap`, if it is larger.
        """
        return [
            f"{name} = {value:.3g}"
            for name, value in self.measured().items()
            if not abs(value) <= max(tolerance, sampler if name == "sampler_gap" else 0.0)
        ]


class PreflightCallback(TrainerCallback):
    """Measures the gaps before the first update, once the model is on its device and wrapped."""

    def __init__(self, trainer: RookWorldGRPOTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        if reason := unmeasurable(trainer):
            trainer.accelerator.print(wrapped(f"preflight: left out, because {reason}"))
            return
        # With vLLM, TRL makes no configuration for `generate`.
        if not trainer.args.use_vllm and (fault := not_drawn(trainer.generation_config)):
            raise PreflightError(
                f"preflight: generation_kwargs: {args.generation_kwargs}: {fault}, but GRPO learns from "
                "one completion drawn from the policy for each row; leave it out, or set preflight: "
                "false if you know the reason"
            )
        prompts = mixed_length_prompts(trainer)
        parity = measure_parity(trainer, [*prompts, *prompts])  # so that completions share prompts
        trainer.preflight = parity
        tolerance = sampler = preflight_tolerance(trainer)
        if args.use_vllm and tolerance >= TOLERANCE_HALF:
            sampler = max(tolerance, TOLERANCE_HALF_VLLM)
        if state.global_step == 0:  # a resumed run has logged it
            Trainer.log(trainer, {f"preflight/{name}": v for name, v in parity.measured().items()})
        allowed = f"{tolerance:g} nats"
        allowed += f", {sampler:g} for vLLM's" if sampler != tolerance else ""
        resumed = " (a resumed run's may be any)" if state.global_step else ""
        said = (
            f"preflight: gap to each row alone {parity.alone_gap:.2g}, gap to the sampler "
            f"{parity.sampler_gap:.2g}"
        )
        if parity.reference_kl is not None:
            said += f", KL to the reference {parity.reference_kl:.2g}{resumed}"
        said += f" (tolerance {allowed})"
        trainer.accelerator.print(wrapped(said))
        if resumed:  # its policy differs from its reference, as it should
            parity = replace(parity, reference_kl=None)
        if faults := parity.faults(tolerance, sampler):
            raise PreflightError(
                f"preflight: {', '.join(faults)}, over the tolerance of {allowed}: the "
                "trainer's log-probs are not those that completions were sampled with, so GRPO would "
                "not learn from them. Check the model's dropout, position ids and precision, and leave "
                "out repetition_penalty and generation_kwargs; or set preflight: false if you know the "
                "reason"
            )


def unmeasurable(trainer: GRPOTrainer) -> str | None:
    """Why no log-probs can be compared beside a step; None if they can."""
    if trainer.environment_factories is not None:
        return "environments write the prompts"
    if isinstance(trainer.processing_class, ProcessorMixin):
        return "the prompts may hold images"
    return None


def not_drawn(options: GenerationConfig) -> str | None:
    """Why options do not draw one completion a row; None if they do."""
    mode = options.get_generation_mode()
    if mode is not GenerationMode.SAMPLE:
        return f"transformers would generate by {mode.value.replace('_', ' ')}"
    if options.num_return_sequences not in (None, 1):
        return f"each row would get {options.num_return_sequences} completions"
    for name in ("return_dict_in_generate", "stop_strings"):
        if getattr(options, name, None):
            return f"TRL cannot take what {name} gives"
    return None


@torch.no_grad()
def preflight_tolerance(trainer: RookWorldGRPOTrainer) -> float:
    """The largest gap that the precision allows, in nats.

    Trainer and sampler compute a likely token's logit in another order, and round on the way, so it can
    be two of its spacings apart. The spacing of numbers grows with their size: between 16 and 32 it is
    0.125 in bf16, and the packaged model, whose logits are that large, had a gap of 0.25 on an H200
    under FSDP2, of 0.15 without.
    """
    weights = next(trainer.model.parameters())
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    dtype = kinds.get(trainer.accelerator.mixed_precision, weights.dtype)
    spacing = torch.finfo(dtype).eps  # of the numbers after 1 that layers are multiplied in
    if dtype == torch.float32:
        # transformers turns TF32 on with `tf32` and `torch_compile`; it has ten bits after the point.
        if torch.backends.cuda.matmul.fp32_precision != "tf32" or not weights.is_cuda:
            return TOLERANCE_FP32
        spacing = 2**-10
    (longest,) = encode(trainer, mixed_length_prompts(trainer)[-1:])
    logits = logits_alone(trainer, torch.tensor(longest, device=trainer.accelerator.device))
    size: float = logits.amax(-1).abs().max().item()
    return max(TOLERANCE_HALF, 2 * spacing * size / trainer.temperature)


def mixed_length_prompts(trainer: GRPOTrainer) -> list[Any]:
    """Prompts from all over the training set, evenly from the shortest to the longest."""
    rows = trainer.train_dataset
    if isinstance(rows, IterableDataset):
        found = [row["prompt"] for row in rows.take(_LOOKED_AT)]
    else:
        found = rows["prompt"][:][:: max(1, len(rows) // _LOOKED_AT)]
    prompts = [prompt for _, prompt in sorted({str(prompt): prompt for prompt in found}.items())]
    prompts.sort(key=lambda prompt: len(encode(trainer, [prompt])[0]))
    last = min(PREFLIGHT_ROWS, len(prompts)) - 1
    return [prompts[rank * (len(prompts) - 1) // max(1, last)] for rank in range(last + 1)]


@torch.no_grad()
def measure_parity(
    trainer: GRPOTrainer, prompts: Sequence[Any], score: Callable[..., Any] | None = None
) -> Parity:
    """Compare a trainer's log-probs with those of the sampler and of each row alone.

    It works for any `GRPOTrainer`, so that TRL's own can be measured too. Every process measures the
    same batch, and the random state is left as it was. The sampler's log-probs are taken at the row's
    temperature and before top-k and top-p, because TRL's loss ignores these two.

    Args:
        trainer: The trainer; its model may be wrapped already.
        prompts: `B` texts or chats of different lengths.
        score: How the trainer scores, like `RookWorldGRPOTrainer.score`; None: its own.
    """
    devices = [trainer.accelerator.device] if trainer.accelerator.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        batch, sampler = _sample(trainer, prompts)
    kept = batch.mask[:, -batch.length :].bool()  # (B, C)
    score = score or trainer.score
    reference = ours = score(trainer.model, batch)[0].float()
    network = trainer.accelerator.unwrap_model(trainer.model)
    has_reference = trainer.ref_model is not None or hasattr(network, "peft_config")
    if has_reference:
        with starting_model(trainer) as start:
            reference = score(start, batch)[0].float()
    ratio = (reference - ours)[kept]
    gaps = torch.stack(
        [
            (ours - _logps_alone(trainer, batch))[kept].abs().max(),
            (ours - sampler)[kept].abs().max(),
            (ratio.exp() - ratio - 1).mean(),
        ]
    )
    # All processes use the largest gaps of any of them, so that they stop together.
    alone, sampler, kl = trainer.accelerator.gather(gaps.unsqueeze(0)).amax(dim=0).tolist()
    return Parity(alone, sampler, kl if has_reference else None)


def _sample(trainer: GRPOTrainer, prompts: Sequence[Any]) -> tuple[Sequences, torch.Tensor]:
    """Sample as the trainer does; gives the completions and their log-probs ``(B, C)``."""
    tokenizer, device = trainer.processing_class, trainer.accelerator.device
    alike = [Sampling(trainer.temperature, trainer.top_p, trainer.top_k or 0)] * len(prompts)
    rows = trainer.samplings(prompts) if hasattr(trainer, "samplings") else alike
    encoded = encode(trainer, prompts)
    if trainer.use_vllm:
        drawn = draw_by_vllm(trainer, encoded, rows)
    else:
        drawn = draw(trainer, encoded, rows, True)
    assert drawn.logps is not None
    left = pad_rows(encoded, tokenizer.pad_token_id)
    right = pad_rows(drawn.ids, tokenizer.pad_token_id, "right")
    ids, mask = (torch.cat([left[key], right[key]], dim=1).to(device) for key in left)
    temperatures = torch.tensor([row.temperature for row in rows], device=device)
    batch = Sequences(ids, mask, right["input_ids"].size(1), temperatures)
    return batch, pad([torch.tensor(row) for row in drawn.logps], 0.0, "right").to(device)


def _logps_alone(trainer: GRPOTrainer, batch: Sequences) -> torch.Tensor:
    """Log-probs ``(B, C)`` of each row by itself, without padding or dropout."""
    sequences, mask, length, temperatures = batch
    assert temperatures is not None
    logps = torch.zeros(sequences.size(0), length, device=sequences.device)
    width = sequences.size(1) - length
    training = trainer.model.training
    trainer.model.eval()
    try:
        for row in range(sequences.size(0)):
            tokens = sequences[row][mask[row].bool()]  # (p+c,)
            prompt = int(mask[row, :width].sum())
            logits = logits_alone(trainer, tokens)[prompt - 1 : -1]
            alone = (logits / temperatures[row]).log_softmax(-1)  # (c, V)
            logps[row, : len(alone)] = alone.gather(1, tokens[prompt:, None])[:, 0]
    finally:
        trainer.model.train(training)
    return logps
