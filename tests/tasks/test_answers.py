"""Answers: right ones to learn from, and what a report says is wrong with one."""

import random

import pytest

from rookworld_rlvr.tasks.environment import ENVIRONMENT
from rookworld_rlvr.tasks.fill_in import FILL_IN
from rookworld_rlvr.tasks.policy import POLICY
from rookworld_rlvr.tasks.registry import TASKS
from rookworld_rlvr.tasks.text import clean

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
AFTER_E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
E4 = f"A: {START}+e2e4+e2e4+"
VALUES = {"e2e4": 30, "d2d4": 25, "a2a3": -20}


@pytest.mark.parametrize(
    ("fen", "suffix", "kinds"),
    [
        (AFTER_E4, "0.001+0+0", []),
        (AFTER_E4.replace(" - ", " e3 "), "0.001+0+0", ["en passant"]),
        (AFTER_E4.replace("KQkq", "KQk"), "0.001+0+0", ["castling"]),
        (AFTER_E4.replace("0 1", "1 2"), "0.001+0+0", ["halfmoves", "move number"]),
        (AFTER_E4.replace(" b ", " w "), "0.001+0+0", ["side to move"]),
        (AFTER_E4.replace("4P3", "3P4"), "1.0+1+0", ["board", "reward", "terminated"]),
        (START, "-1.0+0+1", ["illegal move"]),
        (AFTER_E4.replace("4P3", "4P4"), "0.001+0+0", ["malformed"]),
    ],
)
def test_an_environment_answer_by_field(fen: str, suffix: str, kinds: list[str]) -> None:
    assert list(ENVIRONMENT.errors(E4, f"{fen}+{suffix}")) == kinds


@pytest.mark.parametrize(
    ("answer", "kinds"),
    [
        (" M: e2e4 d2d4 E: 0.3 0.2 B: e2e4", []),
        (" M: d2d4 e2e4 E: 0.3 0.2 B: d2d4", ["not the best move"]),
        (" M: e2e4 e2e5 E: 0.3 0.2 B: e2e4", ["illegal move"]),
        (" M: d2d4 a2a3 E: 0.3 0.2 B: e2e4", ["contradicts itself"]),
        (" M: e2e4", ["malformed"]),
    ],
)
def test_a_policy_answer_by_what_falls_short(answer: str, kinds: list[str]) -> None:
    assert list(POLICY.errors(f"P: {START}", answer, VALUES)) == kinds


def test_a_hidden_field_is_the_kind() -> None:
    prompt = f"F: {START}+e2e4+e2e4+{AFTER_E4.replace('KQkq', '[MASK]')}+0.001+0+0+"
    assert list(FILL_IN.errors(prompt, " KQkq")) == []
    assert list(FILL_IN.errors(prompt, " KQ")) == ["castling"]
    assert list(FILL_IN.errors(prompt, " e2e4")) == ["malformed"]


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


def test_there_is_no_right_policy_answer_without_values() -> None:
    assert POLICY.right_answer(PROMPTS["policy"], None, random.Random(0)) is None
