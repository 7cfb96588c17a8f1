"""Which completions are right, by the tasks' own truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rookworld_rlvr.engine.truth import PolicyTruth
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.tasks.registry import TASKS
from rookworld_rlvr.training.parts.teaching import right, truth_of

from ...conftest import mixed_rows
from ...engines import FakeLabeller, fake_values


def test_right_goes_by_the_headline_of_each_rows_task(packaged: Any) -> None:
    environment, policy = mixed_rows(packaged.train, each=1)
    answers = {row["task"]: TASKS[row["task"]].reference(row) for row in (environment, policy)}
    rows = [environment, policy, environment, policy, {**policy, "action_values": None}]
    texts = [answers["environment"], answers["policy"], "", "?", answers["policy"]]
    found = right(rows, texts).tolist()
    assert found[:4] == [1, 1, 0, 0] and math.isnan(found[4]), "no values, no truth"
    # An answer that is partly right is not right.
    assert right([environment], [answers["environment"].replace(" b ", " w ")]).tolist() == [0]
    assert right([{"prompt": environment["prompt"]}], [answers["environment"]]).tolist() == [1]


def test_values_come_from_where_the_rewards_take_them(
    packaged: Any, build: Callable[..., Any]
) -> None:
    _, policy = mixed_rows(packaged.train, each=1)
    answer = TASKS["policy"].truth(policy["prompt"], fake_values(policy["fen"]))
    assert answer is not None
    bare, truth = {**policy, "action_values": None}, PolicyTruth(FakeLabeller())
    rewards = [{"name": "policy_best_move"}]
    trainer = build(rewards=rewards, reward_funcs=get_reward_funcs(rewards, truth))
    assert truth_of(trainer.reward_funcs) is truth, "although the trainer guards its rewards"
    assert right([bare], [answer], truth).tolist() == [1]
    assert truth_of([lambda **_: [0.0], torch.nn.Linear(1, 1)]) is None
    assert right([bare], [answer]).isnan().all()


@pytest.mark.parametrize("text", ["", "\x00", "M: E: B:", "+" * 500])
def test_no_text_is_an_error(packaged: Any, text: str) -> None:
    rows = list(mixed_rows(packaged.train, each=2))
    assert right(rows, [text] * 4).tolist() == [0] * 4
