"""What is played, and what is said of it, for every kind of answer."""

import chess

from rookworld_rlvr.inference.model import choose

from .answers import reply


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


def test_castling_is_read_in_both_forms_and_written_in_one() -> None:
    board = chess.Board("4k3/8/8/8/8/8/8/4K2R w K - 0 1")
    for text in ("M: e1h1 E: 0.5 B: e1h1", "M: e1g1 E: 0.5 B: e1h1"):
        choice = choose(board, reply(text))
        assert (choice.move.uci(), choice.pawns, choice.fault) == ("e1g1", 0.5, "")
