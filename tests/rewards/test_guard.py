import functools
import logging
import math
from typing import Any

import pytest
import torch

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.rewards.guard import RewardGuard

from ..rows import ASKED_E4, START
from ..support import sampled

PROMPTS = ["a"] * 4 + ["b"] * 4 + ["c"] * 4
COMPLETIONS = [f"{prompt}{turn % 4}" for turn, prompt in enumerate(PROMPTS)]
A, B, C = range(4), range(4, 8), range(8, 12)


def numbers(completions: list[str], **_: Any) -> list[float | None]:
    return [float(text[1]) for text in completions]


def failing_at(text: str) -> Any:
    def reward(completions: list[str], **_: Any) -> list[float | None]:
        if text in completions:
            raise KeyError("planted")
        return numbers(completions)

    return reward


class Scored:
    """Rewards of the batch by functions, as TRL asks for them, after the guard."""

    def __init__(self, *funcs: Any, limit: float = 1.0) -> None:
        guard = RewardGuard()
        guard.limit = limit
        self.metrics: dict[str, float] = {}
        self.funcs = guard.around(list(funcs))
        columns = [func(prompts=PROMPTS, completions=COMPLETIONS) for func in self.funcs]
        given = [[math.nan if n is None else n for n in column] for column in columns]
        self.rewards = guard.settle(torch.tensor(given).T, self.metrics.update)

    @property
    def lost(self) -> list[int]:
        assert (self.rewards.isnan().all(1) == self.rewards.isnan().any(1)).all()
        return self.rewards.isnan().all(1).nonzero().flatten().tolist()


def test_a_failure_costs_the_completions_of_its_prompt_in_all_rewards() -> None:
    scored = Scored(numbers, failing_at("b2"))
    assert scored.lost == [*B], "no sum without the reward that failed"
    assert scored.rewards[0].tolist() == [0, 0] and scored.rewards[11].tolist() == [3, 3]
    assert scored.metrics == {
        "rewards/numbers/unscored": 0.0,
        "rewards/reward/unscored": pytest.approx(1 / 3),
        "rewards/unscored": pytest.approx(1 / 3),
    }


@pytest.mark.parametrize(
    "bad", ["0.5", math.nan, math.inf, [1.0], torch.ones(2), pytest.param(10**400, id="huge")]
)
def test_what_is_no_number_costs_its_row(bad: Any) -> None:
    scored = Scored(lambda completions, **_: [bad if text == "b1" else 1.0 for text in completions])
    assert scored.lost == [5]


def test_a_wrong_number_of_values_costs_the_rows_of_that_prompt() -> None:
    skipping = Scored(lambda completions, **_: torch.ones(sum(t != "c0" for t in completions)))
    assert skipping.lost == [*C], "tensors are lists of numbers"


def test_above_the_limit_the_first_failure_is_the_message() -> None:
    said = r"the reward reward raised KeyError: 'planted' \(test_guard.py, line \d+\); 4 of 12 "
    with pytest.raises(RookWorldError, match=said + ".* more than 30% of the batch"):
        Scored(numbers, failing_at("a0"), limit=0.3)


def test_a_reward_that_is_asked_in_two_calls_fails_on_the_rows_of_both_and_is_shown_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard = RewardGuard()
    guard.limit = 0.5
    (func,) = guard.around([failing_at("a0")])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            func(prompts=PROMPTS[:8], completions=COMPLETIONS[:8])
    assert guard.failures(16) == {"reward": {*A, *range(8, 12)}}
    (shown,) = caplog.records
    assert shown.exc_info is not None and "raised KeyError: 'planted'" in shown.getMessage()


def test_rewards_of_our_own_are_not_asked_again() -> None:
    calls = []

    def reward(completions: list[str], **_: Any) -> list[float]:
        calls.append(len(completions))
        raise RookWorldError("the engine is gone")

    vars(reward)["is_packaged"] = True
    assert Scored(reward).lost == [*range(12)] and calls == [12]


def test_rows_of_other_tasks_are_not_lost() -> None:
    guard, reward = RewardGuard(), failing_at("bad")
    guard.limit = 0.5
    metrics: dict[str, float] = {}
    vars(reward)["tasks"] = ("environment",)
    (func,) = guard.around([reward])
    func(prompts=[ASKED_E4, f"P: {START}"], completions=["bad", "bad"])
    rewards = guard.settle(torch.tensor([[math.nan], [math.nan]]), metrics.update)
    assert metrics["rewards/reward/unscored"] == 0.5 and rewards.isnan().all()


def test_a_call_that_logs_nothing_does_not_leave_an_earlier_batch_beside_its_rows() -> None:
    turns, extra = iter((False, True)), []

    def reward(completions: list[str], log_extra: Any, **_: Any) -> Any:
        if len(completions) == len(COMPLETIONS) and next(turns):
            raise KeyError("planted")
        log_extra("text", completions)
        return numbers(completions)

    (guarded,) = RewardGuard().around([reward])
    for _ in range(2):
        log = {"log_extra": lambda name, values: extra.append(values)}
        guarded(prompts=PROMPTS, completions=COMPLETIONS, **log)
    assert extra == [COMPLETIONS, [None] * len(COMPLETIONS)]


def test_two_functions_of_one_name_fail_on_rows_of_their_own() -> None:
    first, second = (functools.partial(failing_at(text)) for text in ("zz", "b0"))
    scored = Scored(first, second)
    assert [func.__name__ for func in scored.funcs] == ["reward", "reward_2"]
    assert scored.lost == [*B]


def test_a_group_leaves_out_what_is_unscored(build: Any) -> None:
    def uneven(completions: list[str], **_: Any) -> list[Any]:
        return [float(turn % 4) if turn % 4 else "?" for turn, _ in enumerate(completions)]

    def constant(completions: list[str], **_: Any) -> list[float]:
        return [100.0] * len(completions)

    trainer = build(reward_funcs=[uneven, constant])
    trainer.reward_guard.limit = 0.25
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    by_group = sampled(trainer, next(iter(trainer.get_train_dataloader())))["advantages"].view(
        -1, 4
    )
    assert by_group[:, 0].tolist() == [0, 0], "not that of a reward of 0"
    assert by_group[0].tolist() == pytest.approx([0, -1, 0, 1], abs=1e-3)
    logged = trainer._metrics["train"]
    assert logged["reward"] == [102] and logged["health/unscored"] == [0.25]
    unscored = [logged[f"rewards/{name}unscored"] for name in ("", "uneven/", "constant/")]
    assert unscored == [[0.25], [0.25], [0]]
