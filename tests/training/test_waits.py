"""How often a step waits for the GPU, counted on a CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from transformers import TrainerCallback

from rookworld_rlvr.models import graphs
from rookworld_rlvr.training import scoring
from rookworld_rlvr.training.config import RookWorldGRPOConfig

from ..support import NOT_KEPT
from .waits import GPU, Waits, is_marked

TERMS = {"expected_score_coef": 1.0, "soft_moves_coef": 0.1}
FOUR = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
SHORT = {**NOT_KEPT, **FOUR, "eval_strategy": "no", "max_completion_length": 24, "preflight": False}


class OneStep(TrainerCallback):  # type: ignore[misc]
    """Counts a step alone, without what comes before and after training."""

    def __init__(self, waits: Waits) -> None:
        self.waits = waits

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.waits.reads.clear()
        self.waits.copies.clear()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.found = {"reads": +self.waits.reads, "copies": +self.waits.copies}


@pytest.fixture
def waited(build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The package's own waits in one step of a trainer, by their lines."""

    def found(**options: Any) -> dict[str, int]:
        trainer = build(**{**SHORT, "cuda_graphs": True, **options})
        with monkeypatch.context() as patch:
            patch.setattr(graphs, "obstacle", graphs.network_obstacle)
            for kind in (Accelerator, RookWorldGRPOConfig):
                patch.setattr(kind, "device", property(lambda self: GPU))
            waits = Waits(*trainer.networks())
            trainer.add_callback(step := OneStep(waits))
            with waits:
                trainer.train()
        assert is_marked(next(trainer.model.parameters()))
        assert not +waits.mixed, "a GPU would refuse these"
        return {
            f"{kind} {line}": number
            for kind, lines in step.found.items()
            for (owner, line), number in lines.items()
            if owner == "rookworld_rlvr"
        }

    return found


@pytest.mark.parametrize(
    "options",
    [
        TERMS,
        {"task_sampling": {"policy": {"temperature": 0.7}}},
        {"advantage_estimator": "gae"},
        {"zero_variance": "skip", "sft_coef": 0.1},
    ],
    ids=lambda options: ", ".join(options),
)
def test_a_step_waits_at_most_25_times(waited: Callable[..., Any], options: Any) -> None:
    found = waited(**options)
    assert 5 < sum(found.values()) <= 25, found


def test_no_token_is_waited_for(waited: Callable[..., Any]) -> None:
    """The loop's own waits grow with the tokens; those of graphs do not."""

    def more(**options: Any) -> int:
        few, many = (
            sum(waited(max_completion_length=length, **options).values()) for length in (12, 48)
        )
        return many - few

    assert more() <= (48 - 12) // graphs.LATE
    assert more(cuda_graphs=False) >= 2 * (48 - 12)


def test_copies_that_block_are_counted(
    waited: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: as packing and terms over moves were."""
    before = sum(waited(**TERMS).values())
    monkeypatch.setattr(scoring, "on_device", lambda tensor, device: tensor.to(device))
    assert sum(waited(**TERMS).values()) > before + 9 * 4
    monkeypatch.undo()
    pack = scoring.pack
    monkeypatch.setattr(
        scoring, "pack", lambda ids, mask, length: pack(ids.to(GPU), mask.to(GPU), length)
    )
    assert sum(waited(**TERMS).values()) > before + 9 * 4


def test_the_counter_sees_what_waits() -> None:
    waits = Waits(torch.nn.Linear(2, 2))
    with waits:
        numbers = torch.zeros(3, device=GPU)
        asked: list[Callable[[], object]] = [
            lambda: numbers.tolist(),
            lambda: (numbers + 1)[0].item(),
            lambda: bool(numbers.sum() > 0),
            lambda: numbers.nonzero(),
            lambda: numbers[numbers > 0],
            lambda: numbers.unique(),
            lambda: numbers.cpu(),
            lambda: numbers.to("cpu"),
            lambda: numbers.repeat_interleave(torch.ones(3, dtype=torch.long, device=GPU)),
        ]
        for number, ask in enumerate(asked, start=1):
            ask()
            assert sum(waits.reads.values()) >= number, f"the {number}th"
        assert not +waits.mixed
        numbers + torch.ones(3)
        assert sum(waits.mixed.values()) == 1
        waits.reads.clear()
        waits.copies.clear()
        torch.arange(3).to(GPU)
        torch.tensor([1.0], device=GPU)
        assert sum(waits.copies.values()) == 2
        free = [
            numbers * 2,
            numbers[1:],
            numbers[torch.zeros(1, dtype=torch.long, device=GPU)],
            torch.arange(3).to(GPU, non_blocking=True),
            numbers.where(numbers > 0, 1.0),
            torch.full((), 1.0, device=GPU),
        ]
        assert all(map(is_marked, free)) and torch.arange(3).tolist() == [0, 1, 2]
    assert sum(waits.reads.values()) == 0 and sum(waits.copies.values()) == 2
