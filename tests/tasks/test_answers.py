"""Answers: right ones to learn from, and what a report says is wrong with one."""

import random

import pytest

from rookworld_rlvr.tasks.registry import TASKS, task_of
from rookworld_rlvr.tasks.text import clean

from ..rows import AFTER_E4, RIGHT_E4, START
from ..rows import ASKED_E4 as E4

VALUES = {"e2e4": 30, "d2d4": 25, "a2a3": -20}
HIDDEN = f"F: {START}+e2e4+e2e4+{AFTER_E4.replace('KQkq', '[MASK]')}+0.001+0+0+"


def test_what_is_wrong_with_an_answer() -> None:
    for prompt, answer, kinds in (
        (E4, RIGHT_E4, []),
        (E4, RIGHT_E4.replace(" - ", " e3 "), ["en passant"]),
        (E4, RIGHT_E4.replace("KQkq", "KQk"), ["castling"]),
        (E4, RIGHT_E4.replace("0 1+", "1 2+"), ["halfmoves", "move number"]),
        (E4, RIGHT_E4.replace(" b ", " w "), ["side to move"]),
        (E4, AFTER_E4.replace("4P3", "3P4") + "+1.0+1+0", ["board", "reward", "terminated"]),
        (E4, f"{START}+-1.0+0+1", ["illegal move"]),
        (E4, RIGHT_E4.replace("4P3", "4P4"), ["malformed"]),
        (f"P: {START}", " M: e2e4 d2d4 E: 0.3 0.2 B: e2e4", []),
        (f"P: {START}", " M: d2d4 e2e4 E: 0.3 0.2 B: d2d4", ["not the best move"]),
        (f"P: {START}", " M: e2e4 e2e5 E: 0.3 0.2 B: e2e4", ["illegal move"]),
        (f"P: {START}", " M: d2d4 a2a3 E: 0.3 0.2 B: e2e4", ["contradicts itself"]),
        (f"P: {START}", " M: e2e4", ["malformed"]),
        (HIDDEN, " KQkq", []),
        (HIDDEN, " KQ", ["castling"]),
        (HIDDEN, " e2e4", ["malformed"]),
    ):
        assert list(TASKS[task_of(prompt)].errors(prompt, answer, VALUES)) == kinds


PROMPTS = {
    "environment": E4,
    "policy": f"P: {START}",
    "fill_in": "F: 4k3/8/8/8/8/8/8/R3K2R w [MASK] - 0 30+e1e2+e1e2+"
    "4k3/8/8/8/8/8/4K3/R6R b - - 1 30+0.001+0+0+",
}


@pytest.mark.parametrize("name", PROMPTS)
def test_every_right_answer_may_come_and_is_right(name: str) -> None:
    task, draw = TASKS[name], random.Random(0)
    prompt = task.read_prompt(PROMPTS[name])
    answers = {task.right_answer(prompt, VALUES, draw) or "" for _ in range(30)}
    for answer in answers:
        score = task.score(prompt, answer, VALUES)
        assert score is not None and task.is_right(score)
    if name == "fill_in":
        assert {clean(answer) for answer in answers} == {"-", "K", "Q", "KQ"}
    else:
        assert len(answers) == (6 if name == "policy" else 1), "three moves in any order"
    if name == "policy":
        assert task.right_answer(prompt, None, draw) is None, "there is none without values"
