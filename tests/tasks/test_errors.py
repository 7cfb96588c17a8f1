"""Errors by kind: what a report says is wrong with an answer."""

from __future__ import annotations

import pytest

from rookworld_rlvr.tasks.environment import ENVIRONMENT
from rookworld_rlvr.tasks.fill_in import FILL_IN
from rookworld_rlvr.tasks.policy import POLICY

from .test_fourth_task import LegalMoves

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
        (AFTER_E4.replace("0 1", "1 2"), "0.001+0+0", ["clocks"]),
        (AFTER_E4.replace(" b ", " w "), "0.001+0+0", ["side to move"]),
        (AFTER_E4.replace("4P3", "3P4"), "1.0+1+0", ["board", "outcome"]),
        (START, "-1.0+0+1", ["illegal move"]),
        (AFTER_E4.replace("4P3", "4P4"), "0.001+0+0", ["malformed"]),
    ],
)
def test_an_environment_answer_by_field(fen: str, suffix: str, kinds: list[str]) -> None:
    assert list(ENVIRONMENT.errors(E4, f"{fen}+{suffix}")) == kinds


def test_an_illegal_move_that_is_played_is_one_error() -> None:
    prompt = f"A: {START}+e2e5+e2e5+"
    assert list(ENVIRONMENT.errors(prompt, f"{AFTER_E4}+0.001+0+0")) == ["illegal move"]


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


def test_a_task_of_ones_own_has_a_default() -> None:
    task, prompt = LegalMoves(), f"N: {START}"
    assert [list(task.errors(prompt, text)) for text in (" 20", " 19", " some")] == [
        [],
        ["wrong"],
        ["malformed"],
    ]
