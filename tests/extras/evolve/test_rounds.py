import math

import chess
import pytest

from rookworld_rlvr.common.stats import Estimate, Paired
from rookworld_rlvr.data.loading import HELDOUT_SHARE, is_held_out
from rookworld_rlvr.evaluation.models import RandomMover
from rookworld_rlvr.extras.evolve import rounds as module
from rookworld_rlvr.extras.evolve.ledger import unproven
from rookworld_rlvr.extras.evolve.rounds import is_open, new_positions, play, wrong_states
from rookworld_rlvr.tasks import rules
from rookworld_rlvr.tasks.environment import ENVIRONMENT

from ...evaluation.suites.test_games import fen_after, game_after
from ...scripted import Scripted


@pytest.fixture
def from_boards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Games start after 1. f3 e5 and after 1. e4 e5; no position is held out."""
    starts = [game_after("f3 e5"), game_after("e4 e5")]
    monkeypatch.setattr(module, "openings", lambda *given, held_out: [b.copy() for b in starts])
    monkeypatch.setattr(module, "is_held_out", lambda fen, share: False)


def scripted(is_off: bool = False) -> Scripted:
    """Mates in the first game; in the second, White's move is illegal."""
    first = fen_after("f3 e5"), fen_after("f3 e5 g4")
    second = fen_after("e4 e5"), fen_after("e4 e5 Nh3")
    moves = {first[0]: "g2g4", first[1]: "d8h4", second[0]: "e1e3", second[1]: "b8c6"}

    clock = " 9 2+" if is_off else " 1 2+"
    return Scripted(moves, lambda asked: str(ENVIRONMENT.truth(asked)).replace(" 1 2+", clock))


@pytest.mark.usefixtures("from_boards")
def test_games_end_by_the_rules_and_illegal_moves_are_replaced() -> None:
    model = scripted()
    mate, other = play(model, 2, 2, seed=0)
    assert mate.board.is_checkmate() and len(mate.plies) == 2
    assert [move.uci() for move in other.board.move_stack[2:]] == ["g1h3", "b8c6"]
    assert "e1e3 is illegal" in other.plies[0].fault and not other.plies[1].fault
    assert [len(call) for call in model.calls] == [2, 2, 2, 2], "all games are asked at once"


@pytest.mark.usefixtures("from_boards")
def test_disagreements_about_the_board_become_rows() -> None:
    assert wrong_states(play(scripted(), 2, 2, seed=0)) == {}
    games = play(scripted(is_off=True), 2, 2, seed=0)
    assert games[0].board.is_checkmate(), "the rules' board is played on"
    # Of four states, that after 2. Nh3 is the one with these counters.
    (found,) = wrong_states(games).items()
    fen = fen_after("e4 e5 Nh3")
    assert found == (f"A: {fen_after('e4 e5')}+g1h3+e2e4 e7e5 g1h3+", f"{fen}+0.001+0+0")


def test_no_game_is_learnt_from_a_held_out_position() -> None:
    games = play(RandomMover(), 40, 6, seed=1)
    assert len({game.plies[0].fen for game in games}) == 40
    assert games[0].board == play(RandomMover(), 1, 6, seed=1)[0].board
    played = [ply.fen for game in games for ply in game.plies]
    assert any(is_held_out(fen, HELDOUT_SHARE) for fen in played)
    found = new_positions(games, {rules.position_key(played[0])})
    assert len(found) > 150 and played[0] not in found
    assert not any(is_held_out(fen, HELDOUT_SHARE) for fen in found)


def test_decided_positions_are_left_out() -> None:
    assert is_open({"a2a3": -900, "e2e4": 20})
    assert not is_open({"a2a3": 900}) and not is_open({"a2a3": -900})


def test_a_row_has_the_best_move_and_all_values() -> None:
    row = module.policy_row(chess.STARTING_FEN, {"e2e4": 30, "a2a3": -10})
    assert row["prompt"].startswith(f"P: {chess.STARTING_FEN} ")
    assert row["completion"].endswith("B: e2e4")
    assert row["action_values"] == [{"move": "e2e4", "cp": 30}, {"move": "a2a3", "cp": -10}]


FELL, LOST = "the expected score fell by 0.0100", "the match was lost, with a score of 0.490"


@pytest.mark.parametrize(
    ("change", "match", "broke_guard", "said"),
    [
        ((0.0, -0.1, 0.1), (0.5, 0.4, 0.6), False, []),
        ((-0.01, -0.1, 0.1), (0.6, 0.5, 0.7), False, [FELL]),
        ((0.01, 0.0, 0.1), (0.49, 0.4, 0.6), True, ["no checkpoint kept the guard", LOST]),
        ((-0.01, -0.1, 0.1), (0.6, 0.51, 0.7), False, []),  # won beyond chance, fell within it
        ((-0.01, -0.02, -0.001), (0.6, 0.51, 0.7), False, [FELL]),
        ((0.01, 0.001, 0.02), (0.49, 0.4, 0.6), False, []),
        ((0.01, 0.001, 0.02), (0.49, 0.48, 0.499), False, [LOST]),
        ((-0.01, -0.1, 0.1), (0.49, 0.4, 0.6), False, [FELL, LOST]),
        ((-0.01, math.nan, math.nan), (0.6, 0.51, 0.7), False, [FELL]),  # too few rows to tell
    ],
)
def test_the_rule_of_acceptance(
    change: tuple[float, float, float],
    match: tuple[float, float, float],
    broke_guard: bool,
    said: list[str],
) -> None:
    found = module.reasons(Paired(*change, 0.5, 100), Estimate(*match, 10), broke_guard)
    assert found == said


@pytest.mark.parametrize(
    ("score", "change", "is_proven"),
    [
        ((0.53, 0.30, 0.75), (0.001, -0.01, 0.02), False),  # sixteen games
        ((0.53, 0.51, 0.55), (0.001, -0.01, 0.02), True),
        ((0.50, 0.45, 0.55), (0.011, 0.005, 0.017), True),
        ((0.50, 0.45, 0.55), (0.001, None, None), False),
    ],
)
def test_an_accepted_round_says_if_it_proves_nothing(
    score: tuple[float, ...], change: tuple[float | None, ...], is_proven: bool
) -> None:
    names = ("value", "low", "high")
    entry = {
        "match": {"score": {**dict(zip(names, score, strict=True)), "n": 16}},
        "expected_score": dict(zip(("difference", "low", "high"), change, strict=True)),
    }
    said = unproven(entry)
    assert (said == "") is is_proven
    assert is_proven or said.startswith(", but that proves nothing: neither the match of 16 games")
