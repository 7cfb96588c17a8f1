import itertools
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import Trainer, TrainingArguments
from trl.trainer.utils import RepeatSampler

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.training.arguments import StepArguments
from rookworld_rlvr.training.prompt_sampler import PromptSampler, TaskPhase, phases_of

from ..support import ON_CPU


def rows(environment: int = 30, policy: int = 20) -> Dataset:
    """Environment rows first, then policy rows."""
    tasks = ["environment"] * environment + ["policy"] * policy
    prompts = [f"{task} {index}" for index, task in enumerate(tasks)]
    return Dataset.from_dict({"task": tasks, "prompt": prompts})


def sampler(data: Dataset | None = None, batch_size: int = 8, **options: Any) -> PromptSampler:
    repeats = {"mini_repeat_count": 1, "repeat_count": 1}
    return PromptSampler(data or rows(), batch_size=batch_size, **{**repeats, **options})


def phases(*entries: dict[str, float]) -> tuple[TaskPhase, ...]:
    return phases_of(StepArguments(task_phases=[*entries]))


MIXTURE = phases({"policy": 0.5, "environment": 0.5})


def tasks_of(data: Dataset, batch: list[int]) -> Counter[str]:
    return Counter(data["task"][batch])


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_layout_is_that_of_trls_sampler(shuffle: bool) -> None:
    shape: dict[str, Any] = {"mini_repeat_count": 4, "batch_size": 8, "repeat_count": 3}
    both = [kind(rows(), **shape, shuffle=shuffle) for kind in (PromptSampler, RepeatSampler)]
    ours, theirs = map(list, both)
    assert len(both[0]) == len(ours) == len(theirs)
    for indices in (ours, theirs):
        for block, whole in ((1, 4), (8 * 4, 8 * 4 * 3)):
            for start in range(0, len(indices), whole):
                parts = [indices[at : at + block] for at in range(start, start + whole, block)]
                assert all(part == parts[0] for part in parts)
    assert shuffle or ours == theirs


@pytest.mark.parametrize(
    ("share", "batch_size"), [(0.5, 5), (0.3, 4), (0.1, 8), (1 / 3, 8), (0.35, 20), (0, 3)]
)
def test_shares_hold_in_every_batch_and_exactly_over_all(share: float, batch_size: int) -> None:
    data, mean, total = rows(), share * batch_size, 0
    drawn = sampler(data, batch_size, phases=phases({"policy": share, "environment": 1 - share}))
    for number in range(120):
        batch = drawn.batch(number)
        policy = tasks_of(data, batch)["policy"]
        assert len(batch) == batch_size and abs(policy - mean) < 1
        total += policy
        assert abs(total - mean * (number + 1)) <= 0.5 + 1e-3
    assert total == round(mean * 120)


def test_phases_switch_at_their_step_and_come_again_but_for_a_last_one_without_steps() -> None:
    data, first = rows(400, 400), {"steps": 2, "policy": 1}
    in_turn = phases(first, {"steps": 3, "environment": 1.0})
    # Of two steps each, batches are those of the steps 0, 2, 4, 6, ...
    for steps, expected in ((1, "ppeeeppeeepp"), (2, "peepepeepepe"), (0.5, "ppppeeeeeepp")):
        drawn = sampler(data, phases=in_turn, steps_per_batch=Fraction(steps))
        kinds = ["".join({task[0] for task in data["task"][drawn.batch(n)]}) for n in range(12)]
        assert "".join(kinds) == expected
    drawn = sampler(data, phases=phases(first, {"policy": 0.25, "environment": 0.75}))
    counts = [tasks_of(data, drawn.batch(number))["policy"] for number in range(40)]
    assert counts == [8, 8] + [2] * 38


def test_a_task_of_the_mixture_without_rows_is_refused() -> None:
    with pytest.raises(RookWorldError, match=r"no policy rows .* add some"):
        sampler(rows(30, 0), phases=MIXTURE)


def test_each_prompt_comes_once_a_pass_over_the_borders_of_epochs() -> None:
    drawn = sampler()  # 50 rows, 6 batches of 8 an epoch
    indices = list(itertools.chain(*map(drawn.batch, range(50))))
    passes = [indices[at : at + 50] for at in range(0, 400, 50)]
    assert all(sorted(part) == list(range(50)) for part in passes)
    assert len({tuple(part) for part in passes}) == 8
    drawn = sampler(phases=phases({"policy": 0.3, "environment": 0.7}))
    indices = list(itertools.chain(*map(drawn.batch, range(100))))
    for first, last, size in ((0, 30, 30), (30, 50, 20)):
        own = [index for index in indices if first <= index < last]
        for at in range(0, len(own) - size, size):
            assert sorted(own[at : at + size]) == list(range(first, last))


def test_extra_rows_are_new_and_their_own_function() -> None:
    data = rows()
    drawn = sampler(data, phases=MIXTURE)
    first = drawn.batch(0)
    extra = drawn.extra(6, step=0, round_=0, exclude=data["prompt"][first])
    assert tasks_of(data, extra) == {"policy": 3, "environment": 3}
    assert len({*first, *extra}) == 14
    others = [drawn.extra(6, step, round_) for step, round_ in ((0, 0), (0, 1), (1, 0))]
    assert len({tuple(other) for other in others}) == 3
    assert drawn.batch(1) == sampler(data, phases=MIXTURE).batch(1), "the batches stay as they are"
    policy = [tasks_of(data, drawn.extra(1, step, 0))["policy"] for step in range(400)]
    assert 0.4 < sum(policy) / 400 < 0.6, "shares hold on average"


def test_extra_rows_of_all_that_is_left() -> None:
    data = rows()
    assert sorted(sampler(data).extra(50, 1, 0, data["prompt"][:44])) == list(range(44, 50))
    twice = Dataset.from_dict({"prompt": ["a", "b", "a", "c"]})
    texts = twice["prompt"][sampler(twice, 2).extra(4, 0, 0, exclude=["a"])]
    assert sorted(texts) == ["b", "c"], "nor another row of an excluded prompt"


class _Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.seen: list[list[int]] = []

    def forward(self, index: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(index.tolist())
        return {"loss": self.weight.square().sum()}


@pytest.mark.parametrize("step", [3, 6, 15])
def test_transformers_goes_on_with_the_same_rows(tmp_path: Path, step: int) -> None:
    """Six steps an epoch: within the first, at its end, within the third."""

    def seen(checkpoint: str | None = None) -> list[list[int]]:
        sizes = {"per_device_train_batch_size": 8, "max_steps": 20, "save_steps": step}
        args = TrainingArguments(str(tmp_path), **sizes, **ON_CPU)
        prompts = sampler(phases=phases({"policy": 0.4, "environment": 0.6}))
        trainer = Trainer(_Linear(), args, train_dataset=Dataset.from_dict({"index": range(50)}))
        trainer._get_train_sampler = lambda *_, **__: prompts  # type: ignore[assignment]
        trainer.train(resume_from_checkpoint=checkpoint)
        return trainer.model.seen

    whole = seen()
    assert len({tuple(batch) for batch in whole}) == 20
    assert seen(str(tmp_path / f"checkpoint-{step}")) == whole[step:]
