"""From the records of a diagnosed step to the ten parts: plain numbers and texts, ready for JSON."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from accelerate.utils import gather_object

from ..common.stats import Proportion, sign_test
from ..tasks.metrics import evaluate_completions, headline, headlines
from ..tasks.registry import TASKS
from ..training.health.monitor import batch_health
from .loss_terms import norm
from .record import StepRecord, TermSums
from .trainer import DiagnosedTrainer, Heldout

Part = dict[str, Any]


OF_ANSWERS = ("teach", "supervised")  # terms of right answers, if the recipe asks for them


# --------------------------------------------------------------------------------------------------
# 1: set-up
# --------------------------------------------------------------------------------------------------
def setup_part(trainer: DiagnosedTrainer) -> Part:
    """Model, tokenizer, dropout, precision and the step, as the trainer has them."""
    network = trainer.accelerator.unwrap_model(trainer.model)
    weights = list(network.parameters())
    dropout = {
        name: module.p
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.Dropout) and module.p > 0
    }
    tokenizer, args, parity = trainer.processing_class, trainer.args, dict(trainer.probes)
    own = trainer.parts.task_sampling
    samplings = dict.fromkeys(TASKS, trainer.sampling) if own is None else own.samplings
    return {
        "model": {
            "name": getattr(network.config, "_name_or_path", ""),
            "class": type(network).__name__,
            "parameters": sum(w.numel() for w in weights),
            "trained_parameters": sum(w.numel() for w in weights if w.requires_grad),
            "adapters": hasattr(network, "peft_config"),
            "layers": getattr(network.config, "n_layer", None),
            "positions": getattr(network.config, "n_positions", None),
        },
        "tokenizer": {
            "class": type(tokenizer).__name__,
            "tokens": len(tokenizer),
            "pad": tokenizer.pad_token,
            "end": tokenizer.eos_token,
            "padding_side": tokenizer.padding_side,
        },
        "dropout": {
            "active_modules": len(dropout),
            "largest": max(dropout.values(), default=0.0),
            "names": list(dropout)[:5],
            "repeat_gap": parity.pop("repeat_gap"),
        },
        "precision": {
            "weights": str(weights[0].dtype).removeprefix("torch."),
            "mixed_precision": trainer.accelerator.mixed_precision,
            "device": str(trainer.accelerator.device),
            "processes": trainer.accelerator.num_processes,
        },
        "parity": parity,
        "step": {
            "seed": args.seed,
            "learning_rate": args.learning_rate,
            "optimiser": str(getattr(args.optim, "value", args.optim)),
            "loss_type": trainer.loss_type,
            "beta": trainer.args.beta,
            "kl_estimator": trainer.args.kl_estimator,
            "baseline": trainer.args.baseline,
            "scale_rewards": str(trainer.scale_rewards),
            "temperature": {task: s.temperature for task, s in samplings.items()},
            "num_generations": trainer.num_generations,
            "gradient_accumulation_steps": args.gradient_accumulation_steps,
            "max_completion_length": trainer.max_completion_length,
            "max_grad_norm": args.max_grad_norm,
        },
    }


# --------------------------------------------------------------------------------------------------
# 2 and 9: held-out rows
# --------------------------------------------------------------------------------------------------
def heldout_part(trainer: DiagnosedTrainer, heldout: Heldout) -> Part:
    """Shares by metric with their 95% Wilson intervals."""
    results, _ = heldout
    prompts = trainer.eval_dataset["prompt"]
    return {
        "overall": headline(results),
        "rows": len(prompts),
        "fingerprint": hashlib.sha256("\n".join(prompts).encode()).hexdigest()[:8],
        "metrics": {
            name: {"value": result.value, "n": result.n, "interval": result.interval}
            for name, result in results.items()
            if isinstance(result, Proportion)
        },
    }


def heldout_after_part(trainer: DiagnosedTrainer, before: Heldout, after: Heldout) -> Part:
    """As `heldout_part`, with each task's headline metric compared row by row."""
    old, new = (
        [evaluate_completions([row], [text]) for row, text in zip(rows, texts, strict=True)]
        for rows, texts in ((trainer.eval_dataset, texts) for _, texts in (before, after))
    )
    changes = {}
    for name in headlines().values():
        pairs = Counter(
            (mine[name].value, other[name].value)
            for mine, other in zip(old, new, strict=True)
            if name in mine
        )
        if pairs:
            fell, rose = pairs[1, 0], pairs[0, 1]
            changes[name] = {
                "n": pairs.total(),
                "right_to_wrong": fell,
                "wrong_to_right": rose,
                "p_fell": sign_test(fell, rose),
            }
    return {**heldout_part(trainer, after), "paired": changes}


# --------------------------------------------------------------------------------------------------
# 4 and 5: rewards and advantages
# --------------------------------------------------------------------------------------------------
def rewards_part(trainer: DiagnosedTrainer, groups: list[Part]) -> Part:
    """Each reward's spread over the step and its mean by task, and the rewards that raised."""
    rows = [(group["task"], row) for group in groups for row in group["completions"]]
    weights = trainer.reward_weights.tolist()
    components = {}
    for name, weight in zip(trainer.reward_func_names, weights, strict=True):
        numbers = [row["rewards"][name] for _, row in rows]
        by_task = {
            task: mean(row["rewards"][name] for mine, row in rows if mine == task)
            for task in sorted({task for task, _ in rows})
        }
        components[name] = {"weight": weight, **_spread(numbers), "mean_by_task": by_task}
    faults = gather_object([asdict(fault) for fault in trainer.reward_faults])
    return {
        "components": components,
        "total": _spread([row["reward"] for _, row in rows]),
        "faults": faults,
    }


def _spread(numbers: Sequence[float | None]) -> Part:
    known = _known(numbers)
    return {
        "n": len(known),
        "none": len(numbers) - len(known),
        "mean": mean(known),
        "deviation": sample_deviation(known),
        "lowest": min(known, default=None),
        "highest": max(known, default=None),
    }


def advantages_part(trainer: DiagnosedTrainer, groups: list[Part]) -> Part:
    """Means, sample deviations and the trainer's advantages by group; numbers of the whole batch."""
    rows = [row for group in groups for row in group["completions"]]
    tasks = [group["task"] for group in groups for _ in group["completions"]]
    table = []
    for index, group in enumerate(groups):
        rewards = [row["reward"] for row in group["completions"]]
        spread = sample_deviation(rewards)
        table.append(
            {
                "group": index,
                "task": group["task"],
                "rewards": rewards,
                "mean": mean(rewards),
                "deviation": spread,
                "advantages": [row["advantage"] for row in group["completions"]],
                "without_spread": not spread,
                **taught_of(group["completions"]),
            }
        )
    numbers = [math.nan if row["reward"] is None else row["reward"] for row in rows]
    return {
        "scale_rewards": str(trainer.scale_rewards),
        "baseline": trainer.args.baseline,
        "without_spread": mean(float(entry["without_spread"]) for entry in table),
        "batch": batch_health(
            torch.tensor(numbers, dtype=torch.float64),
            torch.tensor([row["advantage"] or 0.0 for row in rows], dtype=torch.float64),
            [row["text"] for row in rows],
            tasks,
            trainer.num_generations,
            prompts=[group["prompt"] for group in groups for _ in group["completions"]],
        ),
        "groups": table,
    }


def taught_of(completions: Sequence[Part]) -> Part:
    """How many completions were put in, as ``{taught}``; empty if the trainer does not teach."""
    sources = [row["source"] for row in completions if "source" in row]
    return {"taught": sources.count("taught")} if sources else {}


# --------------------------------------------------------------------------------------------------
# 6 and 7: terms of the loss
# --------------------------------------------------------------------------------------------------
def loss_terms_part(trainer: DiagnosedTrainer, record: StepRecord, groups: list[Part]) -> Part:
    """The terms, summed as the trainer sums them and compared with its loss; and means by prompt.

    On policy, advantages cancel out and the loss is near 0, so the gap is relative to the terms' sizes.
    """
    terms, sizes = record.terms.in_loss, record.terms.sizes
    ours = sum(terms.values())
    size = sizes["policy"] + sizes["kl"] + abs(terms["entropy"]) + terms["value"]
    size += sum(sizes[name] for name in OF_ANSWERS if name in sizes)
    gap = abs(ours - record.loss)
    by_process = {
        **terms,
        "sum": ours,
        "loss": record.loss,
        "relative_gap": gap / size if size else gap,
    }
    prompts = [
        {
            "group": index,
            "task": group["task"],
            "policy": mean(_all_tokens(group, "policy_term")),
            "kl": mean(_all_tokens(group, "kl_term")),
            **({"teach": mean(_all_tokens(group, "teach_term"))} if "teach" in terms else {}),
        }
        for index, group in enumerate(groups)
    ]
    return {
        **mean_of(trainer, by_process),
        "kl_coefficient": record.terms.coefficient,
        "prompts": prompts,
    }


def _all_tokens(group: Part, name: str) -> list[float]:
    """One of the tables for all tokens of a prompt's completions."""
    return [value for row in group["completions"] for value in row[name] or ()]


def mean_of(trainer: DiagnosedTrainer, numbers: Mapping[str, float]) -> dict[str, float]:
    """The mean over processes of numbers by name."""
    everyone: list[Mapping[str, float]] = gather_object([dict(numbers)])
    return {name: sum(n[name] for n in everyone) / len(everyone) for name in numbers}


def shares_part(trainer: DiagnosedTrainer, record: StepRecord) -> Part:
    """Shares of policy gradient and KL in loss and gradient, in the step and one step later."""
    return {
        "step": _shares(trainer, record.terms),
        "one_step_on": None if record.one_step_on is None else _shares(trainer, record.one_step_on),
        "gradient_norm": record.gradient_norm,
        "gradient_norm_after_clip": record.gradient_norm_after_clip,
        "max_grad_norm": trainer.args.max_grad_norm,
        "no_separate_gradients": record.no_separate_gradients,
    }


def _shares(trainer: DiagnosedTrainer, sums: TermSums) -> Part:
    tokens = max(1, sums.tokens)
    means = {name: number / tokens for name, number in sums.by_token.items()}
    numbers = mean_of(trainer, {**sums.sizes, **means})
    norms = {name: norm([gradient]) for name, gradient in sums.gradients.items()}
    policy, kl = norms.get("policy"), norms.get("kl")
    of_answers = [name for name in OF_ANSWERS if name in numbers]
    answers = sum(numbers[name] for name in of_answers)
    pulls = None if policy is None else policy + sum(norms[name] for name in of_answers)
    return {
        **numbers,
        "kl_coefficient": sums.coefficient,
        "kl_share": _share(numbers["kl"], numbers["policy"] + answers),
        "kl_share_unclipped": _share(numbers["kl"], numbers["policy_unclipped"] + answers),
        "policy_gradient_norm": policy,
        "kl_gradient_norm": kl,
        "kl_share_of_gradient": None if pulls is None or kl is None else _share(kl, pulls),
        **{f"{name}_gradient_norm": norms.get(name) for name in of_answers},
    }


def _share(part: float, other: float) -> float:
    return part / (part + other) if part + other else 0.0


# --------------------------------------------------------------------------------------------------
# 8: gradients
# --------------------------------------------------------------------------------------------------
def gradients_part(record: StepRecord) -> Part:
    """Gradient norm and update by layer."""
    layers = record.layers
    weights = math.sqrt(sum(layer["weight_norm"] ** 2 for layer in layers))
    updates = math.sqrt(sum(layer["update_norm"] ** 2 for layer in layers))
    return {
        "norm": record.gradient_norm,
        "norm_after_clip": record.gradient_norm_after_clip,
        "learning_rate": record.learning_rate,
        "update_to_weight": updates / weights if weights else None,
        "finite": math.isfinite(record.gradient_norm or 0.0),
        "without_graph": record.without_graph,
        "frozen_parameters": sum(layer["frozen_parameters"] for layer in layers),
        "parameters": sum(layer["parameters"] for layer in layers),
        "layers": layers,
    }


def repetitions(logs: Sequence[Mapping[str, Any]]) -> list[Part]:
    """A row for each step, as the trainer logged it."""
    names = ("step", "reward", "reward_std", "loss", "grad_norm", "kl", "entropy")
    return [{name: log.get(name) for name in names} for log in logs if "loss" in log]


# --------------------------------------------------------------------------------------------------
# Arithmetic
# --------------------------------------------------------------------------------------------------
def clean(value: Any) -> Any:
    """Numbers rounded to six digits, None for one that is not finite; containers recursively.

    >>> clean({"a": (1 / 3, float("nan"))})
    {'a': [0.333333, None]}
    """
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


def mean(numbers: Iterable[float | None]) -> float | None:
    """The mean of the known numbers; None if there are none."""
    known = _known(numbers)
    return sum(known) / len(known) if known else None


def sample_deviation(numbers: Iterable[float | None]) -> float | None:
    """The sample deviation, as in TRL; None for fewer than two known numbers."""
    known = _known(numbers)
    if len(known) < 2:
        return None
    centre = sum(known) / len(known)
    return math.sqrt(sum((n - centre) ** 2 for n in known) / (len(known) - 1))


def _known(numbers: Iterable[float | None]) -> list[float]:
    return [n for n in numbers if n is not None and not math.isnan(n)]
