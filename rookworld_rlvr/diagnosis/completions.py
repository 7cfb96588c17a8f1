"""Part 3 of a diagnosis: the completions, their log-probs side by side, and their gaps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import torch
from accelerate.utils import gather_object

from ..common.errors import NotationError
from ..tasks.registry import TASKS, task_of
from .record import Generation, StepRecord
from .sections import mean, taught_of
from .trainer import DiagnosedTrainer

Part = dict[str, Any]


def completion_groups(trainer: DiagnosedTrainer, record: StepRecord) -> list[Part]:
    """The step's prompts with their completions, of all processes; every process has to call it."""
    groups = []
    for generation in record.generations:
        rows = gather_object(_rows(trainer, generation))
        for first in range(0, len(rows), trainer.num_generations):
            (prompt, *_), completions = zip(
                *rows[first : first + trainer.num_generations], strict=True
            )
            groups.append({"prompt": prompt, **_position(prompt), "completions": list(completions)})
    return groups


def _position(prompt: str) -> Part:
    """The task of a prompt, and its position if it can be read."""
    task = task_of(prompt)
    try:
        position = TASKS[task].position(prompt)
    except NotationError:
        return {"task": task, "fen": None, "action": None}
    return {"task": task, "fen": position.fen, "action": position.action or None}


def _rows(trainer: DiagnosedTrainer, generation: Generation) -> list[tuple[str, Part]]:
    """This process's completions, each with its prompt."""
    batch, tokenizer = generation.batch, trainer.processing_class
    columns: dict[str, torch.Tensor | None] = {
        "sampler": batch.get("sampling_per_token_logps"),
        "reference": batch.get("ref_per_token_logps"),
        **{name: generation.tables.get(name) for name in _TABLES},
    }
    if trainer.parts.teaching is not None:
        columns["teach_term"] = generation.tables.get("teach_term")
    ends = set(trainer.eos_token_ids)
    rows = []
    for index, mask in enumerate(batch["completion_mask"].bool()):
        ids = batch["completion_ids"][index][mask].tolist()
        prompt = batch["prompt_ids"][index][batch["prompt_mask"][index].bool()]
        values = {name: _list(column, index, mask) for name, column in columns.items()}
        row = {
            "text": generation.texts[index],
            "tokens": [tokenizer.decode([token]) for token in ids],
            "left_out": not ids,  # with a group that has no signal
            "ended": ids[-1] in ends if ids else None,
            **_rewards_of(trainer, generation, index),
            "advantage": _advantage(batch, index, mask),
            **values,
            "sampler_gap": _largest_gap(values["policy"], values["sampler"]),
            "reference_gap": _largest_gap(values["policy"], values["reference"]),
            "policy_term_mean": mean(values["policy_term"] or []),
            "kl_term_mean": mean(values["kl_term"] or []),
        }
        if trainer.parts.teaching is not None:  # what was put in has no log-probs of the sampler
            row["source"] = "sampled" if values["sampler"] else "taught"
        rows.append((tokenizer.decode(prompt, skip_special_tokens=True), row))
    return rows


_TABLES = ("policy", "policy_term", "policy_term_unclipped", "kl_term", "entropy")


def _list(column: torch.Tensor | None, index: int, mask: torch.Tensor) -> list[float] | None:
    """A completion's values by token; None if there are none, as before a row is trained on."""
    if column is None:
        return None
    values: list[float] = column[index][mask].float().tolist()
    return None if values and all(map(math.isnan, values)) else values


def _advantage(batch: Mapping[str, torch.Tensor], index: int, mask: torch.Tensor) -> float | None:
    advantages = batch["advantages"][index]
    if "taught_advantages" in batch:  # those of taught answers stand there
        advantages = advantages + batch["taught_advantages"][index]
    return mean((advantages[mask] if advantages.dim() else advantages.unsqueeze(0)).tolist())


def _rewards_of(trainer: DiagnosedTrainer, generation: Generation, index: int) -> Part:
    numbers = [None if math.isnan(n) else n for n in generation.rewards[index].tolist()]
    rewards = dict(zip(trainer.reward_func_names, numbers, strict=True))
    weights = zip(trainer.reward_weights.tolist(), numbers, strict=True)  # names may be the same
    weighted = [weight * number for weight, number in weights if number is not None]
    return {"rewards": rewards, "reward": sum(weighted) if weighted else None}


def _largest_gap(ours: list[float] | None, theirs: list[float] | None) -> float | None:
    if not ours or not theirs:
        return None
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def completions_part(groups: list[Part]) -> Part:
    """What was sampled, its log-probs side by side, and their gaps, in nats."""
    rows = [row for group in groups for row in group["completions"]]
    texts = [[row["text"] for row in group["completions"]] for group in groups]
    pairs = [[a == b for a, b in combinations(group, 2)] for group in texts]
    return {
        "completions": len(rows),
        **taught_of(rows),
        "tokens": sum(len(row["tokens"]) for row in rows),
        "ended_share": mean(None if r["ended"] is None else float(r["ended"]) for r in rows),
        "identical_groups": mean(float(len(set(group)) == 1) for group in texts),
        "identical_pairs": mean(sum(same) / len(same) for same in pairs if same),
        "sampler_gap_largest": _largest(rows, "sampler"),
        "reference_gap_largest": _largest(rows, "reference"),
        "groups": groups,
    }


def _largest(rows: list[Part], name: str) -> float | None:
    """The largest gap of the rows that were trained on; None if the other side is not known."""
    gaps = [row[f"{name}_gap"] or 0.0 for row in rows if row["policy"] is not None]
    return max(gaps, default=None) if any(row[name] for row in rows) else None
