"""The suite `mate_in_one`; mates are judged with python-chess itself, not with `rules`."""

import chess

from rookworld_rlvr.data.loading import HELDOUT_SHARE, is_held_out
from rookworld_rlvr.evaluation.suites.puzzles import MateInOneSuite
from rookworld_rlvr.tasks import positions, rules

from ...scripted import GARBAGE, policy_text

TWO_ROOKS = "6k1/5ppp/8/8/8/8/8/RR4K1 w - - 0 1"  # a1a8 and b1b8


def test_any_mate_counts_as_one() -> None:
    for completion, invalid, legal, mate in (
        *((policy_text("a1a8"), 0, 1, 1), (policy_text("a1a7"), 0, 1, 0)),
        *((policy_text("a1b8"), 0, 0, 0), (GARBAGE, 1, 0, 0)),
    ):
        found = MateInOneSuite.judge(TWO_ROOKS, completion)
        assert found == {"invalid": invalid, "legal": legal, "mate": mate}, completion


def test_a_mate_by_castling_counts_however_it_is_written() -> None:
    """Ed. Lasker against Thomas, London 1912: 18. Kd2 mates, and so would have 18. O-O-O."""
    fen = "rn3r2/pbppq1p1/1p2pN2/8/3P2NP/6P1/PPP1BP1R/R3K1k1 w Q - 5 18"
    assert set(positions.mating_moves(fen)) == {"e1c1", "e1d2"}
    for move in ("e1c1", "e1a1", "e1d2"):
        assert MateInOneSuite.judge(fen, policy_text(move))["mate"] == 1


def test_positions_made_are_held_out_mates_of_games_and_endgames() -> None:
    fens = list(MateInOneSuite(30, 0).positions().values())
    assert len(fens) == 30 == len({rules.position_key(fen) for fen in fens})
    pieces = []
    for fen in fens:
        board = chess.Board(fen)
        assert board.is_valid() and is_held_out(fen, HELDOUT_SHARE) and board.fen() == fen
        assert any(board.san(move).endswith("#") for move in board.legal_moves)
        pieces.append(len(board.piece_map()))
    assert max(pieces[1::2]) <= 8, "each second one is a small endgame"
    assert sum(count > 8 for count in pieces[::2]) >= 10, "the others come from games"
    assert {chess.Board(fen).turn for fen in fens} == {True, False}
    again, others = (list(MateInOneSuite(4, seed).positions().values()) for seed in (0, 1))
    assert again == fens[:4] != others
