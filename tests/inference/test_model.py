"""What a model answers: the same alone, in a batch, and as evaluation asks it."""

from itertools import islice
from typing import Any

import chess
import pytest

from rookworld_rlvr import RookWorld
from rookworld_rlvr.common.errors import NotationError, RookWorldError
from rookworld_rlvr.data.synthesis import environment_prompts, opening_positions
from rookworld_rlvr.evaluation.models import ModelArguments, open_model
from rookworld_rlvr.tasks import rules
from rookworld_rlvr.tasks.environment import parse_environment_answer, write_environment_prompt
from rookworld_rlvr.tasks.policy import parse_policy_answer, write_policy_prompt
from rookworld_rlvr.tasks.text import parse_move

from ..rows import START


def test_the_answers_are_those_of_the_evaluation() -> None:
    name = "rookworld-nano"
    model = RookWorld.from_pretrained(name, device="cpu")
    measured = open_model(name, ModelArguments(model_name_or_path=[name]))
    fens = [fen for fen in islice(opening_positions(7, 10), 5) if rules.legal_moves(fen)]
    made = environment_prompts(3)  # some moves are unreadable, which only `complete` can ask about
    asked = list(islice((a for a in made if all(map(_is_uci, (a.action, *a.history)))), 5))
    steps = [(a.fen, a.action, a.history[:-1]) for a in asked]
    policy = measured.answers([write_policy_prompt(fen) for fen in fens])
    environment = measured.answers([write_environment_prompt(prompt) for prompt in asked])
    assert model.analyse_all([]) == model.step_all([]) == model.complete([]) == []
    assert [reply.text for reply in model.analyse_all(fens)] == policy
    assert [reply.text for reply in model.step_all(steps)] == environment
    for fen, text in zip(fens[:3], policy, strict=False):
        assert _said(model.analyse, fen) == _said(parse_policy_answer, text)
    for step, text in zip(steps[:3], environment, strict=False):
        assert _said(model.step, *step) == _said(parse_environment_answer, text)


def _is_uci(text: str) -> bool:
    try:
        return bool(parse_move(text))
    except NotationError:
        return False


def _said(ask: Any, *given: Any) -> Any:
    """A record, or that there is none."""
    try:
        return ask(*given)
    except NotationError:
        return "unreadable"


def test_positions_and_moves_are_taken_as_people_have_them() -> None:
    model = RookWorld.from_pretrained("rookworld-nano", device="cpu")
    board = chess.Board()
    assert model.analyse(board) == model.analyse(START)
    after = model.step(START, "d2d4")
    assert not after.truncated
    for move in ("d4", chess.Move.from_uci("d2d4"), board.parse_san("d4")):
        assert model.step(board, move) == after
    told = [chess.Move.from_uci("g1f3"), chess.Move.from_uci("g8f6")]
    assert model.step(START, "d4", told) == model.step(START, "d2d4", ["g1f3", "g8f6"])
    assert model.step(START, "d2d5").truncated, "illegal, and asked as such"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["d2d4", "e4"], "a FEN has six fields"),
        ([START, "e5"], "illegal san: 'e5'.*; give a legal move, as Nf3"),
        ([START, "a1a1"], "no matching legal move"),
        ([START, "rubbish"], "invalid san: 'rubbish'"),
        ([START, "e4", ["Nf3"]], "not a move in UCI notation: 'Nf3'"),
        ([START, 3], "3 is not a move"),
        ([START, chess.Move.null()], "is not a move"),
        ([[START], "e4"], "is not a position; .* analyse_all"),
        ([chess.Board.from_chess960_pos(100), "e4"], "Chess960"),
    ],
)
def test_what_is_no_position_or_move_is_refused(asked: list[Any], said: str) -> None:
    model = RookWorld.from_pretrained("rookworld-nano", device="cpu")
    with pytest.raises(RookWorldError, match=said):
        model.step(*asked)


def test_a_board_brings_its_moves_and_a_text_is_not_a_list() -> None:
    model, board = RookWorld.from_pretrained("rookworld-nano"), chess.Board()
    for move in ("e4", "e5", "Nf3"):
        board.push_san(move)
    played = ["e2e4", "e7e5", "g1f3"]
    (told,) = model.step_all([(board.fen(), "b8c6", played)])
    assert model.step(board, "Nc6") == told.record
    with pytest.raises(RookWorldError, match="write a list of texts"):
        model.complete("P: ")  # type: ignore[arg-type]
    with pytest.raises(RookWorldError, match=r"write a list, \[position\]"):
        model.analyse_all(START)
    with pytest.raises(RookWorldError, match="'bf16' is not one of PyTorch's"):
        RookWorld.from_pretrained("rookworld-nano", dtype="bf16")
    for device in ("gpu", "cuda:99"):
        with pytest.raises(RookWorldError, match=f"device: '{device}' cannot be used here"):
            RookWorld.from_pretrained("rookworld-nano", device=device)
    assert model.step(START, "d4", "g1f3 g8f6") == model.step(START, "d4", ["g1f3", "g8f6"])
