"""Looking ahead: what is asked, what a candidate is worth, and that all who ask get the same."""

from collections.abc import Sequence

import chess
import pytest

from rookworld_rlvr import RookWorld
from rookworld_rlvr.evaluation.models import ModelArguments, open_model
from rookworld_rlvr.inference.lookahead import look_ahead
from rookworld_rlvr.inference.replies import environment_prompt
from rookworld_rlvr.inference.uci import Stopped, load
from rookworld_rlvr.tasks.policy import (
    write_policy_answer,
    write_policy_prompt,
)
from rookworld_rlvr.tasks.types import PolicyAnswer

NANO = "rookworld-nano"
AFTER_E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
AFTER_D4 = "rnbqkbnr/pppppppp/8/8/3P4/8/PPP1PPPP/RNBQKBNR b KQkq - 0 1"
CONTINUES = "+0.001+0+0"


class Said:
    """Answers by prompt, and what was asked."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []

    def __call__(self, prompts: Sequence[str]) -> list[str]:
        self.asked.append(list(prompts))
        return [self.answers[prompt] for prompt in prompts]


def after(move: str, board: chess.Board) -> str:
    return environment_prompt(board, move, board.move_stack)


def answer(moves: str, values: Sequence[float], best: str) -> str:
    return write_policy_answer(PolicyAnswer((*moves.split(),), (*values,), best))


def test_a_candidate_is_worth_the_opposite_of_the_best_reply() -> None:
    board = chess.Board()
    said = Said(
        {
            after("e2e4", board): AFTER_E4 + CONTINUES,
            after("d2d4", board): AFTER_D4 + CONTINUES,
            after("g1f3", board): "nonsense",
            write_policy_prompt(AFTER_E4): answer("e7e5 c7c5", (-0.2, 0.5), "c7c5"),
            write_policy_prompt(AFTER_D4): answer("d7d5 g8f6", (-0.4, 0.0), "d7d5"),
        }
    )
    asked = answer("e2e4 e2e5 d2d4 g1f3", (0.9, 3.0, 0.1, 0.3), "e2e4")
    (found,) = look_ahead([board], [asked], said)
    # 1. e5 is illegal, and what follows 1. Nf3 cannot be read.
    assert found == answer("e2e4 d2d4", (-0.5, 0.0), "d2d4") and "-0.0 " not in found
    assert list(map(len, said.asked)) == [3, 2], "a batch for the states, and one for the replies"


def test_the_last_moves_are_told() -> None:
    board = chess.Board()
    for move in ("g1f3 g8f6 f3g1 f6g8 " * 3).split():
        board.push_uci(move)
    said = Said({})
    with pytest.raises(KeyError):
        look_ahead([board], [answer("e2e4", (0.1,), "e2e4")], said)
    ((prompt,),) = said.asked
    assert "+f6g8 g1f3 g8f6 f3g1 f6g8 g1f3 g8f6 f3g1 f6g8 e2e4+" in prompt, "nine before it"


def test_a_mate_is_worth_most_and_a_draw_nothing() -> None:
    board = chess.Board("7k/5Q2/6K1/8/8/8/8/8 w - - 0 1")
    said = Said(
        {
            after("f7f6", board): "7k/8/5QK1/8/8/8/8/8 b - - 1 1+0.5+1+0",
            after("f7g7", board): "7k/6Q1/6K1/8/8/8/8/8 b - - 1 1+1.0+1+0",
        }
    )
    (found,) = look_ahead([board], [answer("f7f6 f7g7", (9.0, 1.0), "f7f6")], said)
    assert found == answer("f7f6 f7g7", (0.0, 999.99), "f7g7")
    assert len(said.asked) == 1, "nothing is asked where the game is over"


@pytest.mark.parametrize(
    "refused",
    [f"{chess.STARTING_FEN}+-1.0+0+1", f"{AFTER_E4}+-1.0+0+1", f"{chess.STARTING_FEN}{CONTINUES}"],
)
def test_a_move_that_the_model_calls_illegal_has_no_value(refused: str) -> None:
    # The same side would be asked, so that its own -9.0 would be worth +9.0.
    board = chess.Board()
    said = Said(
        {
            after("e2e4", board): refused,
            after("d2d4", board): AFTER_D4 + CONTINUES,
            write_policy_prompt(chess.STARTING_FEN): answer("e2e4", (-9.0,), "e2e4"),
            write_policy_prompt(AFTER_E4): answer("e7e5", (-9.0,), "e7e5"),
            write_policy_prompt(AFTER_D4): answer("d7d5", (0.4,), "d7d5"),
        }
    )
    (found,) = look_ahead([board], [answer("e2e4 d2d4", (0.3, 0.2), "e2e4")], said)
    assert found == answer("d2d4", (-0.4,), "d2d4")
    only = answer("e2e4", (0.3,), "e2e4")
    assert look_ahead([board], [only], said) == [only]


@pytest.mark.parametrize("said", ["nonsense", answer("e2e5", (0.3,), "d2d4")])
def test_an_answer_without_candidates_stays_as_it_is(said: str) -> None:
    assert look_ahead([chess.Board()], [said], Said({})) == [said]


def test_whoever_asks_gets_the_same() -> None:
    board = chess.Board()
    for move in ("e4", "e5", "Nf3"):
        board.push_san(move)
    model = RookWorld.from_pretrained(NANO, device="cpu")
    reply, _ = model.analyse_all([board, board], lookahead=True)
    assert model.analyse(board, lookahead=True) == reply.record
    measured = open_model(NANO, ModelArguments(lookahead=True))
    assert measured.policy_answers([board]) == [reply.text]
    assert measured.decoding == {"name": "greedy", "lookahead": True}
    # Without the moves before, and beside another task's prompt, which is answered as usual.
    prompts = [environment_prompt(board, "b8c6"), write_policy_prompt(board.fen())]
    (alone,) = model.analyse_all([board.fen()], lookahead=True)
    state, plain = model.complete(prompts)
    assert measured.answers(prompts) == [state, alone.text]
    assert alone.text != plain, "other values than the answer's own"
    unreadable = ["P: nonsense", "P: 8/8/8/8/8/8/8/8 w - - 0 1"]
    assert measured.answers(unreadable) == model.complete(unreadable)


def test_a_board_of_chess960_castles_as_the_model_writes_it() -> None:
    fen = "r3k2r/pppq1ppp/2npbn2/4p3/4P3/2NPBN2/PPPQ1PPP/R3K2R w KQkq - 4 8"
    model = RookWorld.from_pretrained("rookworld-games", device="cpu")
    usual = model.analyse(fen, lookahead=True)
    assert "e1g1" in usual.moves
    assert model.analyse(chess.Board(fen, chess960=True), lookahead=True) == usual


class Clock:
    """Runs out after some tokens."""

    def __init__(self) -> None:
        self.asked, self.wanted = 0, 10_000

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked > self.wanted

    def start(self, wanted: int) -> None:
        self.asked, self.wanted = 0, wanted


def test_an_engine_that_is_stopped_keeps_the_answer_it_has() -> None:
    clock, board = Clock(), chess.Board()
    plain = load(NANO, clock)(board)
    needed = clock.asked
    clock.start(10_000)
    analyse = load(NANO, clock, lookahead=True)
    ahead = analyse(board)
    all_of_it = clock.asked
    assert all_of_it > 2 * needed and ahead.text != plain.text
    for wanted in (needed, needed + 5, all_of_it - 1):
        clock.start(wanted)
        assert analyse(board) == plain
    clock.start(3)
    with pytest.raises(Stopped):
        analyse(board)
