"""Right answers to learn from: each is right by its task's own scorer."""

import random

import pytest

from rookworld_rlvr.tasks.registry import TASKS
from rookworld_rlvr.tasks.text import clean

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
VALUES = {"e2e4": 30, "d2d4": 30, "g1f3": 20, "c2c4": 10, "b1c3": 0, "f2f3": -80}
PROMPTS = {
    "environment": f"A: {START}+e2e4+e2e4+",
    "policy": f"P: {START}",
    "fill_in": "F: 4k3/8/8/8/8/8/8/R3K2R w [MASK] - 0 30+e1e2+e1e2+"
    "4k3/8/8/8/8/8/4K3/R6R b - - 1 30+0.001+0+0+",
}


def answers(task: str, values: dict[str, int] | None = VALUES, draws: int = 20) -> list[str | None]:
    prompt = TASKS[task].read_prompt(PROMPTS[task])
    return [TASKS[task].right_answer(prompt, values, random.Random(seed)) for seed in range(draws)]


@pytest.mark.parametrize("task", PROMPTS)
def test_a_right_answer_is_right(task):
    for answer in answers(task):
        score = TASKS[task].score(PROMPTS[task], answer, VALUES)
        assert TASKS[task].is_right(score)


def test_the_moves_of_a_policy_answer_come_in_any_order():
    assert len(set(answers("policy"))) > 10


def test_every_fill_in_answer_that_fits_may_come():
    assert {clean(answer) for answer in answers("fill_in")} == {"-", "K", "Q", "KQ"}


def test_there_is_no_right_policy_answer_without_values():
    assert set(answers("policy", values=None)) == {None}
