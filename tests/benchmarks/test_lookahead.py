"""`benchmarks/lookahead.py`: four players from the same weights."""

from collections.abc import Mapping, Sequence

import chess
import pytest

from rookworld_rlvr.evaluation.players import ModelPlayer, Turn
from rookworld_rlvr.evaluation.suite import Answerer
from rookworld_rlvr.tasks.environment import ENVIRONMENT
from rookworld_rlvr.tasks.policy import POLICY, write_policy_answer
from rookworld_rlvr.tasks.registry import task_of
from rookworld_rlvr.tasks.types import PolicyAnswer

from .test_gpu import benchmark

lookahead = benchmark("lookahead")
START = chess.Board()


def after(*moves: str) -> str:
    board = chess.Board()
    for move in moves:
        board.push_uci(move)
    return board.fen()


class Told(Answerer):
    """Answers by FEN; environment prompts rightly, or as it is told."""

    name = "told"

    def __init__(self, said: Mapping[str, PolicyAnswer], states: Mapping[str, str] = {}) -> None:
        self.decoding = {}
        self.said, self.states = said, states

    def answers(self, prompts: Sequence[str]) -> list[str]:
        return [self.answer(prompt) for prompt in prompts]

    def answer(self, prompt: str) -> str:
        if task_of(prompt) == "environment":
            action = ENVIRONMENT.position(prompt).action
            return self.states.get(action) or str(ENVIRONMENT.truth(prompt))
        return write_policy_answer(self.said[POLICY.position(prompt).fen])


def moves_of(model: Answerer, board: chess.Board = START) -> dict[str, str]:
    found = {}
    for name, kind in lookahead.PLAYERS.items():
        (choice,) = ModelPlayer(name, kind(model)).choices([Turn(board, "0")])
        found[name] = choice.move.uci()
    return found


OWN = PolicyAnswer(("e2e4", "d2d4", "g1f3", "e2e5"), (0.3, 0.5, 0.1, 9.0), "g1f3")
REPLIES = {
    after("e2e4"): PolicyAnswer(("e7e5", "c7c5"), (-0.9, -2.0), "e7e5"),
    after("d2d4"): PolicyAnswer(("d7d5", "g8f6"), (-3.0, 0.4), "g8f6"),
    after("g1f3"): PolicyAnswer(("d7d5",), (0.2,), "d7d5"),
}


def test_each_player_chooses_by_its_own_values() -> None:
    moves = moves_of(Told({START.fen(): OWN, **REPLIES}))
    assert moves == {"plain": "g1f3", "evaluation": "d2d4", "rules": "e2e4", "own": "e2e4"}


def test_only_the_fourth_believes_the_models_own_boards() -> None:
    # It takes 1. d4 for 1. e4 and cannot read what 1. e4 leads to.
    states = {"d2d4": f"{after('e2e4')}+0.001+0+0", "e2e4": "e5"}
    moves = moves_of(Told({START.fen(): OWN, **REPLIES}, states))
    assert (moves["rules"], moves["own"]) == ("e2e4", "d2d4")


def test_a_repeated_position_is_worth_a_draw_for_all() -> None:
    board = chess.Board()
    for move in ("g1f3", "g8f6", "f3g1"):
        board.push_uci(move)
    said = PolicyAnswer(("f6g8", "e7e5"), (2.0, 0.5), "f6g8")
    replies = {}
    for move, lost in (("f6g8", -2.0), ("e7e5", -0.5)):
        (after_it := board.copy()).push_uci(move)
        replies[after_it.fen()] = PolicyAnswer(("d2d4",), (lost,), "d2d4")
    moves = moves_of(Told({board.fen(): said, **replies}), board)
    assert set(moves.values()) == {"e7e5"}
    alone = chess.Board(board.fen())  # without the moves before
    assert set(moves_of(Told({board.fen(): said, **replies}), alone).values()) == {"f6g8"}


def test_a_mate_is_worth_most_and_a_draw_nothing() -> None:
    board = chess.Board("7k/5Q2/6K1/8/8/8/8/8 w - - 0 1")
    said = PolicyAnswer(("f7f8", "f7e8", "g6h6"), (1.0, 2.0, 3.0), "g6h6")
    assert board.is_legal(chess.Move.from_uci("f7f8"))
    replies = {}
    for move in board.legal_moves:
        later = board.copy()
        later.push(move)
        replies[later.fen()] = PolicyAnswer(("h8h7",), (-5.0,), "h8h7")
    moves = moves_of(Told({board.fen(): said, **replies}), board)
    assert moves["evaluation"] == "g6h6"
    assert moves["rules"] == moves["own"]
    later = board.copy()
    later.push_uci(moves["rules"])
    assert later.is_checkmate()


def test_without_a_candidate_it_plays_as_the_model_does(monkeypatch: pytest.MonkeyPatch) -> None:
    illegal = PolicyAnswer(("e2e5",), (1.0,), "d2d4")
    assert set(moves_of(Told({START.fen(): illegal, **REPLIES})).values()) == {"d2d4"}
