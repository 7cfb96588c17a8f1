"""What a model answers: the same alone, in a batch, and as evaluation asks it."""

from collections.abc import Sequence
from dataclasses import astuple
from itertools import islice
from typing import Any

import chess
import pytest

from rookworld_rlvr import RookWorld
from rookworld_rlvr.common.errors import NotationError, RookWorldError
from rookworld_rlvr.data.synthesis import environment_prompts, opening_positions
from rookworld_rlvr.evaluation.models import ModelArguments, open_model
from rookworld_rlvr.inference.replies import choose, choose_so_far
from rookworld_rlvr.tasks import rules
from rookworld_rlvr.tasks.environment import parse_environment_answer, write_environment_prompt
from rookworld_rlvr.tasks.policy import parse_policy_answer, write_policy_prompt
from rookworld_rlvr.tasks.text import parse_move
from rookworld_rlvr.tasks.types import EnvironmentAnswer, PolicyAnswer

from ..rows import START
from .answers import reply


@pytest.fixture(scope="module")
def model() -> RookWorld:
    return RookWorld.from_pretrained("rookworld-nano", device="cpu")


def test_the_answers_are_those_of_the_evaluation(model: RookWorld) -> None:
    measured = open_model("rookworld-nano", ModelArguments(model_name_or_path=["rookworld-nano"]))
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
        assert _without_verdict(model.analyse, fen) == _said(parse_policy_answer, text)
    for step, text in zip(steps[:3], environment, strict=False):
        assert _without_verdict(model.step, *step) == _said(parse_environment_answer, text)


def _said(ask: Any, *given: Any) -> Any:
    """A record, or that there is none."""
    try:
        return ask(*given)
    except NotationError:
        return None


def _without_verdict(ask: Any, *given: Any) -> Any:
    """A record as the model wrote it, without what the rules say of it."""
    said = _said(ask, *given)
    kind = PolicyAnswer if ask.__name__ == "analyse" else EnvironmentAnswer
    return said and kind(*astuple(said)[:-1])


class Made(RookWorld):
    """The packaged model's network, with answers that are given."""

    said = ""

    def complete(self, prompts: Sequence[str], **how: Any) -> list[str]:
        return [self.said] * len(prompts)


def test_an_answer_says_where_it_contradicts_the_rules(model: RookWorld) -> None:
    made = Made(model.network, model.tokenizer, "made")
    board = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR"
    for said, wrong in (
        (f"{board} b KQkq - 0 1+0.001+0+0", ()),
        (f"{board} b KQkq e3 0 1+0.001+0+0", ("en passant",)),
        (
            f"{START.split()[0]} w KQkq - 0 1+-1.0+0+1",
            ("board", "side to move", "reward", "truncated"),
        ),
    ):
        made.said = said
        step = made.step(START, "e2e4")
        assert (
            step.wrong == wrong and (f"wrong={wrong!r}" in repr(step)) and str(step) == repr(step)
        )
        assert [reply.record for reply in made.step_all([(START, "e4", ())])] == [step]
    made.said = f"{START}+-1.0+0+1"
    assert made.step(START, "e2e5").wrong == (), "an illegal move has a right answer, too"
    made.said = "M: e2e5 e2e4 a1a8 E: 0.1 0.2 B: e2e5"
    answer = made.analyse(START)
    assert answer.illegal == ("e2e5", "a1a8") and "illegal=('e2e5', 'a1a8')" in repr(answer)
    made.said = "M: e2e4 E: 0.1 B: e2e4"
    assert made.analyse(START).illegal == ()
    white, black = made.analyse_all([START, START.replace(" w ", " b ")])
    assert (white.record and white.record.illegal, black.record and black.record.illegal) == (
        (),
        ("e2e4",),
    )


def test_what_python_shows_is_short(model: RookWorld) -> None:
    assert repr(model) == "RookWorld('rookworld-nano', device='cpu', dtype='float32')"
    made = Made(model.network, model.tokenizer)
    assert repr(made).startswith("Made('") and "rookworld-nano" in repr(made)
    made.said = "M: e2e4 E: 0.1 B: e2e4"
    (reply,) = made.analyse_all([START])
    assert repr(reply) == (
        "Reply(Analysis(moves=('e2e4',), evaluations=(0.1,), best_move='e2e4', illegal=()))"
    )
    made.said = "rubbish"
    (reply,) = made.analyse_all([START])
    assert repr(reply).startswith("Reply('rubbish', fault=\"not the three sections")


def _is_uci(text: str) -> bool:
    return _said(parse_move, text) is not None


def test_positions_and_moves_are_taken_as_people_have_them(model: RookWorld) -> None:
    board = chess.Board()
    assert model.analyse(board) == model.analyse(START)
    after = model.step(START, "d2d4")
    assert not after.truncated
    for move in ("d4", chess.Move.from_uci("d2d4"), board.parse_san("d4")):
        assert model.step(board, move) == after
    told = model.step(START, "d2d4", ["g1f3", "g8f6"])
    moves = [chess.Move.from_uci("g1f3"), chess.Move.from_uci("g8f6")]
    assert model.step(START, "d4", moves) == model.step(START, "d4", "g1f3 g8f6") == told
    assert model.step(START, "d2d5").truncated, "illegal, and asked as such"
    for san in ("e4", "e5", "Nf3"):
        board.push_san(san)
    (reply,) = model.step_all([(board.fen(), "b8c6", ["e2e4", "e7e5", "g1f3"])])
    assert model.step(board, "Nc6") == reply.record, "a board brings its moves"


def test_what_is_no_position_move_type_or_device_is_refused(model: RookWorld) -> None:
    asked: Any
    for asked, said in (
        (["d2d4", "e4"], "a FEN has six fields, or four without its clocks, but this has 1"),
        ([START, "e5"], "'e5' is not a legal move of White's here; give a legal move, as Nf3"),
        ([START, "a1a1"], "'a1a1' is not a legal move of White's here"),
        ([START, "rubbish"], "'rubbish' is not a move"),
        ([START, "e4", ["Nf3"]], "not a move in UCI notation: 'Nf3'"),
        *(([START, 3], "3 is not a move"), ([START, chess.Move.null()], "is not a move")),
        ([[START], "e4"], "is not a position; .* analyse_all"),
        ([chess.Board.from_chess960_pos(100), "e4"], "Chess960"),
    ):
        with pytest.raises(RookWorldError, match=said):
            model.step(*asked)
    with pytest.raises(RookWorldError, match="write a list of texts"):
        model.complete("P: ")  # type: ignore[arg-type]
    with pytest.raises(RookWorldError, match=r"write a list, \[position\]"):
        model.analyse_all(START)
    for options, said in (
        ({"dtype": "bf16"}, "'bf16' is not one of PyTorch's"),
        ({"device": "gpu"}, "device: 'gpu' cannot be used here"),
        ({"device": "cuda:99"}, "device: 'cuda:99' cannot be used here"),
    ):
        with pytest.raises(RookWorldError, match=said):
            RookWorld.from_pretrained("rookworld-nano", **options)


def test_the_best_move_or_what_replaces_it() -> None:
    for text, played, pawns, fault in (
        ("M: e2e4 d2d4 E: 0.3 0.2 B: d2d4", "d2d4", 0.2, ""),
        ("M: e2e4 E: 0.3 B: g1f3", "g1f3", None, ""),
        ("M: e2e4 e2e4 d2d4 E: 0.1 0.9 0.2 B: e2e4", "e2e4", 0.1, ""),
        ("M: e2e5 d2d4 e2e4 c2c4 E: 0.9 0.2 0.3 B: e2e5", "e2e4", 0.3, "legal candidate e2e4 is"),
        ("M: e7e5 E: 0.9 B: e2e5", "g1h3", None, "can be played; g1h3, the first legal move"),
        ("E: 0.9 B: e2e4", "g1h3", None, "the model's answer cannot be read (not the three"),
    ):
        choice = choose(chess.Board(), reply(text))
        assert (choice.move.uci(), choice.pawns) == (played, pawns)
        assert fault in choice.fault and bool(fault) == bool(choice.fault)


def test_a_move_that_repeats_a_position_is_worth_a_draw() -> None:
    """By hand: after Nf3 Nf6 Ng1, Ng8 brings back the first position, and Rg8 does not."""
    board = chess.Board()
    for move in ("g1f3", "g8f6", "f3g1"):
        board.push_uci(move)
    for text, played, pawns in (
        ("M: f6g8 h8g8 e7e5 E: 0.5 0.1 0.2 B: f6g8", "e7e5", 0.2),
        ("M: f6g8 h8g8 E: -0.5 0.1 B: f6g8", "h8g8", 0.1),
        ("M: f6g8 h8g8 E: 0.5 0.0 B: f6g8", "f6g8", 0.5),
        ("M: f6g8 h8g8 E: 0.5 -0.1 B: f6g8", "f6g8", 0.5),
        ("M: f6g8 e7e4 E: 0.5 0.9 B: f6g8", "f6g8", 0.5),
        ("M: f6g8 E: 0.5 B: f6g8", "f6g8", 0.5),
        ("M: h8g8 f6g8 E: 0.5 0.9 B: h8g8", "h8g8", 0.5),
    ):
        choice = choose(board, reply(text))
        assert (choice.move.uci(), choice.pawns, choice.fault) == (played, pawns, ""), text
        note = "" if played == text.split()[-1] else "f6g8 repeats a position; " + played
        assert note in choice.comment and bool(note) == bool(choice.note)
    assert len(board.move_stack) == 3

    for text, played, worth in (
        ("M: f6g8 h8g8 E: 0.5 0.2 B: e7e4", "h8g8", 0.2),
        ("M: f6g8 h8g8 E: 0.5 -0.2 B: e7e4", "f6g8", 0.5),
        ("M: e7e4 e7e5 f6g8 E: 0.9 B: e7e4", "e7e5", None),
        ("M: e7e4 f6g8 e7e5 E: 0.9 B: e7e4", "e7e5", None),
        ("M: e7e4 f6g8 E: 0.9 B: e7e4", "f6g8", None),
    ):
        choice = choose(board, reply(text))
        assert (choice.move.uci(), choice.pawns) == (played, worth), text
        assert choice.fault and not choice.note, "what replaces an illegal move"
    for text, played, worth in (
        ("M: f6g8 e7e5 E: 0.5 0.2 ", "e7e5", 0.2),
        ("M: f6g8 e7e5 E: 0.5 -0.", "f6g8", 0.5),
        ("M: f6g8 e7e5 ", "e7e5", None),
    ):
        choice = choose_so_far(board, text)
        assert (choice.move.uci(), choice.pawns) == (played, worth), text
    alone = chess.Board(board.fen())
    assert choose(alone, reply("M: f6g8 e7e5 E: 0.5 0.2 B: f6g8")).move.uci() == "f6g8", (
        "no history"
    )


def test_castling_is_read_in_both_forms_and_written_in_one() -> None:
    for text in ("M: e1h1 E: 0.5 B: e1h1", "M: e1g1 E: 0.5 B: e1h1"):
        choice = choose(chess.Board("4k3/8/8/8/8/8/8/4K2R w K - 0 1"), reply(text))
        assert (choice.move.uci(), choice.pawns, choice.fault) == ("e1g1", 0.5, "")
