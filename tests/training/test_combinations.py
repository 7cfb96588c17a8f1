"""Features that may be on together: the gradient of their sum is the sum of their gradients.

What the advantages are made of changes the gradient of the policy, so each way to make them is a base
of its own. On each, the terms are switched on alone and in pairs, on the same batch.
"""

from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any

import pytest
import torch

from rookworld_rlvr.data.loading import LoadedData
from rookworld_rlvr.models import loading

from ..support import NOT_KEPT, mixed_rows, sampled

TERMS = ("kl", "entropy", "supervised", "moves", "keep")
ALL_ON = {
    "beta": 0.3,
    "entropy_coef": 0.05,
    "sft_coef": 0.5,
    "sft_extra": 1,
    "expected_score_coef": 2.0,
    "soft_moves_coef": 0.5,
    "keep_coef": 3.0,
    "keep_rows": {"environment": 2},
}
BASES: dict[str, dict[str, Any]] = {
    "group mean": {},
    "leave one out, by sequence": {
        "baseline": "leave_one_out",
        "importance_sampling_level": "sequence",
    },
    "value head": {"advantage_estimator": "gae"},
    "skip, mean of rows": {"zero_variance": "skip", "loss_type": "grpo"},
    "skip, mean of tokens": {"zero_variance": "skip", "loss_type": "bnpo"},
    "resample": {"zero_variance": "resample", "moves_extra": 1},
    "teach": {"zero_variance": "teach", "loss_type": "dr_grpo"},
    "teach, mean of tokens": {"zero_variance": "teach", "loss_type": "bnpo"},
    "several rewards": {"multi_objective_aggregation": "normalize_then_sum"},
    "task sampling": {"task_sampling": {"policy": {"temperature": 0.7}}, "loss_type": "cispo"},
}


def length(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [float(len(ids)) for ids in completion_ids]


def first_token(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [float(ids[0] % 3) for ids in completion_ids]


@pytest.fixture
def moved(
    build: Callable[..., Any], packaged: LoadedData
) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """A trainer whose policy has left its reference, and a batch."""

    def make(**options: Any) -> tuple[Any, dict[str, Any]]:
        rows = mixed_rows(packaged.train, each=8)
        defaults = {"rewards": None, "reward_funcs": [length, first_token], "train_dataset": rows}
        sizes = {"max_completion_length": 24, "num_generations": 2, "temperature": 1.0}
        trainer = build(
            loading.load_model(loading.PACKAGED_MODEL),
            **{**defaults, **sizes, **NOT_KEPT, **ALL_ON, **options},
        )
        trainer.prompt_sampler = trainer._get_train_sampler()
        torch.manual_seed(0)
        batch = sampled(trainer, [row for row in list(rows)[:4] for _ in range(2)])
        with torch.no_grad():
            for weight in trainer.model.parameters():
                weight += 0.05 * torch.randn_like(weight) * weight.norm() / weight.numel() ** 0.5
        return trainer, batch

    return make


def gradient(trainer: Any, batch: dict[str, Any], on: Iterable[str]) -> torch.Tensor:
    """The gradient of the loss of a batch with some of the terms."""
    on = {*on}
    batch = dict(batch)
    left_out = {"kl": ("ref_per_token_logps",), "supervised": ("answers",)}
    for term in left_out.keys() - on:
        for column in left_out[term]:
            batch.pop(column, None)
    kept = {name: getattr(trainer, name) for name in ("kl", "moves", "kept", "entropy_coef")}
    trainer.kl = trainer.kl if "kl" in on else None
    trainer.moves = trainer.moves if "moves" in on else None
    trainer.kept = trainer.kept if "keep" in on else None
    trainer.entropy_coef = trainer.entropy_coef if "entropy" in on else 0.0
    kept["kept"]._step = -1  # the same rows each time
    trainer.model.zero_grad()
    try:
        trainer._compute_loss(trainer.model, batch).backward()
    finally:
        for name, value in kept.items():
            setattr(trainer, name, value)
    found = [
        (torch.zeros_like(weight) if weight.grad is None else weight.grad).flatten()
        for weight in trainer.model.parameters()
    ]
    return torch.cat(found).double()


@pytest.mark.parametrize("base", BASES)
def test_terms_add_up(moved: Callable[..., Any], base: str) -> None:
    trainer, batch = moved(**BASES[base])
    alone = gradient(trainer, batch, ())
    own = {name: gradient(trainer, batch, [name]) - alone for name in TERMS}
    assert min(change.abs().max() for change in own.values()) > 1e-5, "each does something"
    for pair in combinations(TERMS, 2):
        together = gradient(trainer, batch, pair) - alone
        gap = (together - own[pair[0]] - own[pair[1]]).abs().max().item()
        assert gap < 2e-6 * max(1.0, together.abs().max().item()), (pair, gap)
    every = gradient(trainer, batch, TERMS) - alone
    assert (every - sum(own.values())).abs().max() < 5e-6 * max(1.0, every.abs().max().item())
