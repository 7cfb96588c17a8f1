"""Ground truth is written out by hand, or is a perft number that the chess world agrees on."""

from functools import partial

import pytest

from rookworld_rlvr.common.errors import IllegalPositionError
from rookworld_rlvr.tasks import positions, rules
from rookworld_rlvr.tasks.types import EnvironmentAnswer

from ..rows import AFTER_E4, START

# Nodes at depth 3: https://www.chessprogramming.org/Perft_Results
PERFT = {
    START: 8_902,
    # Castling both ways, en passant, pins ("kiwipete").
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1": 97_862,
    # En passant captures that uncover a check.
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1": 2_812,
    # Promotions with capture, castling rights lost to them.
    "r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1": 9_467,
}
CONTINUES = (0.001, False, False)
CHECKMATE = (1.0, True, False)
DRAW = (0.5, True, False)
ILLEGAL = (-1.0, False, True)


def perft(fen: str, depth: int) -> int:
    moves = rules.legal_moves(fen)
    if depth == 1:
        return len(moves)
    return sum(perft(rules.transition(fen, move).fen, depth - 1) for move in moves)


@pytest.mark.parametrize("fen", PERFT)
def test_perft_through_transitions(fen: str) -> None:
    assert perft(fen, 3) == PERFT[fen]


ALL_RIGHTS = "r3k2r/8/8/8/8/8/8/R3K2R {} KQkq - 3 10"
WHITE_CASTLES, BLACK_CASTLES = ALL_RIGHTS.format("w"), ALL_RIGHTS.format("b")
CASTLING = [
    (WHITE_CASTLES, "e1g1", "r3k2r/8/8/8/8/8/8/R4RK1 b kq - 4 10"),
    (WHITE_CASTLES, "e1c1", "r3k2r/8/8/8/8/8/8/2KR3R b kq - 4 10"),
    (BLACK_CASTLES, "e8g8", "r4rk1/8/8/8/8/8/8/R3K2R w KQ - 4 11"),
    (BLACK_CASTLES, "e8c8", "2kr3r/8/8/8/8/8/8/R3K2R w KQ - 4 11"),
    # The king's move loses both rights, a rook's move one, a captured rook its owner's.
    (WHITE_CASTLES, "e1e2", "r3k2r/8/8/8/8/8/4K3/R6R b kq - 4 10"),
    (WHITE_CASTLES, "a1b1", "r3k2r/8/8/8/8/8/8/1R2K2R b Kkq - 4 10"),
    (WHITE_CASTLES, "h1g1", "r3k2r/8/8/8/8/8/8/R3K1R1 b Qkq - 4 10"),
    (WHITE_CASTLES, "a1a8", "R3k2r/8/8/8/8/8/8/4K2R b Kk - 0 10"),
    (WHITE_CASTLES, "h1h8", "r3k2R/8/8/8/8/8/8/R3K3 b Qq - 0 10"),
    (BLACK_CASTLES, "a8a2", "4k2r/8/8/8/8/8/r7/R3K2R w KQk - 4 11"),
    # An attacked b1 is no hindrance: the king does not cross it.
    ("1r2k3/8/8/8/8/8/8/R3K3 w Q - 0 1", "e1c1", "1r2k3/8/8/8/8/8/8/2KR4 b - - 1 1"),
]
EN_PASSANT = [
    # No capture, no square.
    (START, "e2e4", AFTER_E4),
    (START, "d2d4", "rnbqkbnr/pppppppp/8/8/3P4/8/PPP1PPPP/RNBQKBNR b KQkq - 0 1"),
    (AFTER_E4, "c7c5", "rnbqkbnr/pp1ppppp/8/2p5/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2"),
    # A legal capture is named, for both sides.
    ("4k3/8/8/8/1p6/8/P7/4K3 w - - 0 1", "a2a4", "4k3/8/8/8/Pp6/8/8/4K3 b - a3 0 1"),
    ("4k3/p7/8/1P6/8/8/8/4K3 b - - 0 1", "a7a5", "4k3/8/8/pP6/8/8/8/4K3 w - a6 0 2"),
    # Also where it is the answer to the check that the double step gives.
    ("8/8/8/5k2/3p4/8/4P3/4K3 w - - 0 1", "e2e4", "8/8/8/5k2/3pP3/8/8/4K3 b - e3 0 1"),
    # A single step to the same square gives none.
    ("4k3/8/8/8/1p6/P7/8/4K3 w - - 0 1", "a3a4", "4k3/8/8/8/Pp6/8/8/4K3 b - - 0 1"),
    # The capturer is pinned: on its file, and on the rank that both pawns leave.
    ("3k4/8/8/8/3p4/8/4P3/3RK3 w - - 0 1", "e2e4", "3k4/8/8/8/3pP3/8/8/3RK3 b - - 0 1"),
    ("8/8/8/8/k2p3Q/8/4P3/4K3 w - - 0 1", "e2e4", "8/8/8/8/k2pP2Q/8/8/4K3 b - - 0 1"),
    # The capture takes the pawn that is not on its target square.
    ("4k3/8/8/8/Pp6/8/8/4K3 b - a3 0 1", "b4a3", "4k3/8/8/8/8/p7/8/4K3 w - - 0 2"),
    ("4k3/8/8/pP6/8/8/8/4K3 w - a6 0 2", "b5a6", "4k3/8/P7/8/8/8/8/4K3 b - - 0 2"),
    # Not taken, the square is forgotten.
    ("4k3/8/8/8/Pp6/8/8/4K3 b - a3 0 1", "e8e7", "8/4k3/8/8/Pp6/8/8/4K3 w - - 1 2"),
]
PROMOTES = "7k/P6p/8/8/8/8/8/K7 w - - 9 30"
PROMOTION = [
    *((PROMOTES, f"a7a8{to}", f"{to.upper()}6k/7p/8/8/8/8/8/K7 b - - 0 30") for to in "qrbn"),
    ("4k3/8/8/8/8/8/p7/4K2R b K - 0 1", "a2a1r", "4k3/8/8/8/8/8/8/r3K2R w K - 0 2"),
    # Capturing the rook, a promotion takes its castling right too; capturing the knight, not.
    ("r3k3/1P6/8/8/8/8/8/4K3 w q - 0 1", "b7a8q", "Q3k3/8/8/8/8/8/8/4K3 b - - 0 1"),
    ("rn2k3/P7/8/8/8/8/8/4K3 w q - 0 1", "a7b8n", "rN2k3/8/8/8/8/8/8/4K3 b q - 0 1"),
]
CLOCKS = [
    ("4k3/8/8/8/8/8/P7/R3K3 w Q - 5 9", "a1b1", "4k3/8/8/8/8/8/P7/1R2K3 b - - 6 9"),
    ("4k3/8/8/8/8/8/P7/R3K3 w Q - 5 9", "a2a3", "4k3/8/8/8/8/P7/8/R3K3 b Q - 0 9"),
    ("r3k3/8/8/8/8/8/8/R3K3 b Qq - 5 9", "a8a1", "4k3/8/8/8/8/8/8/r3K3 w - - 0 10"),
    # 50 moves are for a player to claim; nobody claims here.
    ("8/8/8/8/8/4k3/8/R3K3 w - - 99 100", "a1b1", "8/8/8/8/8/4k3/8/1R2K3 b - - 100 100"),
    ("8/8/8/8/8/4k3/8/R3K3 w - - 148 100", "a1b1", "8/8/8/8/8/4k3/8/1R2K3 b - - 149 100"),
    # A pawn's move in the last moment sets the clock back.
    ("8/8/8/8/8/4k3/P7/R3K3 w - - 149 100", "a2a3", "8/8/8/8/8/P3k3/8/R3K3 b - - 0 100"),
    # Two knights cannot force mate, but they can give it.
    ("8/8/8/8/4k3/3R4/8/3N2KN b - - 10 40", "e4d3", "8/8/8/8/8/3k4/8/3N2KN w - - 0 41"),
]
FOOLS = "rnbqkbnr/pppp1ppp/8/4p3/6P1/5P2/PPPPP2P/RNBQKBNR b KQkq - 0 2"
LAST_MOVE = "6k1/5ppp/8/8/8/8/8/R5K1 w - - 149 100"
ENDS = [
    (FOOLS, "d8h4", "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3", CHECKMATE),
    ("6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1", "a1a8", "R5k1/5ppp/8/8/8/8/8/6K1 b - - 1 1", CHECKMATE),
    ("6k1/P4ppp/8/8/8/8/8/6K1 w - - 0 1", "a7a8r", "R5k1/5ppp/8/8/8/8/8/6K1 b - - 0 1", CHECKMATE),
    # Mate on the 150th half-move is mate (FIDE laws 9.6.2).
    (LAST_MOVE, "a1a8", "R5k1/5ppp/8/8/8/8/8/6K1 b - - 150 100", CHECKMATE),
    ("8/8/8/8/8/4k3/8/R3K3 w - - 149 100", "a1b1", "8/8/8/8/8/4k3/8/1R2K3 b - - 150 100", DRAW),
    # Stalemate
    ("7k/8/8/6Q1/8/8/8/K7 w - - 0 1", "g5g6", "7k/8/6Q1/8/8/8/8/K7 b - - 1 1", DRAW),
    ("7k/5P2/8/6K1/8/8/8/8 w - - 0 1", "g5g6", "7k/5P2/6K1/8/8/8/8/8 b - - 1 1", DRAW),
    ("7k/5P1p/8/6K1/8/8/8/8 w - - 0 1", "g5f6", "7k/5P1p/5K2/8/8/8/8/8 b - - 1 1", CONTINUES),
    ("8/5P1k/8/6K1/8/8/8/8 w - - 0 1", "f7f8q", "5Q2/7k/8/6K1/8/8/8/8 b - - 0 1", DRAW),
    # Insufficient material: a bare king takes the last rook; a knight or bishop is too little.
    ("8/8/8/8/4k3/3R4/8/6K1 b - - 10 40", "e4d3", "8/8/8/8/8/3k4/8/6K1 w - - 0 41", DRAW),
    ("7k/P7/8/8/8/8/8/K7 w - - 0 1", "a7a8n", "N6k/8/8/8/8/8/8/K7 b - - 0 1", DRAW),
    ("7k/P7/8/8/8/8/8/K7 w - - 0 1", "a7a8b", "B6k/8/8/8/8/8/8/K7 b - - 0 1", DRAW),
    ("7k/P7/8/8/8/8/8/K7 w - - 0 1", "a7a8r", "R6k/8/8/8/8/8/8/K7 b - - 0 1", CONTINUES),
]
NO_MOVES = [
    *("e2e5", "e7e5", "e1e2", "a1a1", "e1g1", "d1h5"),  # well-formed, illegal
    "0000",  # the null move is no move in chess
    *("", " ", "e4", "Nf3", "O-O", "E2E4", "e2-e4", "e2e4 ", " e2e4", "e2e4e5", "e2e9", "--"),
    *("e2e4q", "e2e4k", "P@e4", "xyzzy", "é2e4", "e2e４", "\x00", "e2e4\n", "x" * 10_000),
]
FORBIDDEN = [
    ("4k3/8/8/8/8/5r2/8/4K2R w K - 0 1", "e1g1"),  # across an attacked square
    ("4k3/4r3/8/8/8/8/8/4K2R w K - 0 1", "e1g1"),  # out of check
    ("4k3/8/8/8/8/8/6r1/4K2R w K - 0 1", "e1g1"),  # into check
    ("4k3/8/8/8/8/8/8/4K2R w - - 0 1", "e1g1"),  # without the right
    ("4k3/8/8/8/8/8/8/4K2R w K - 0 1", "e1g1q"),  # castling to a queen
    ("4k3/8/8/8/8/8/8/4K2R w K - 0 1", "e1h1q"),
    ("4k3/8/8/8/8/8/8/RN2K3 w Q - 0 1", "e1c1"),  # across the own knight
    ("4k3/8/8/8/Pp6/8/8/4K3 b - - 0 1", "b4a3"),  # en passant, too late
    ("3k4/8/8/8/3pP3/8/8/3RK3 b - - 0 1", "d4e3"),  # en passant, pinned
    ("7k/P6p/8/8/8/8/8/K7 w - - 0 1", "a7a8"),  # promotion to nothing
    ("7k/P6p/8/8/8/8/8/K7 w - - 0 1", "a7a8k"),
    ("7k/P6p/8/8/8/8/8/K7 w - - 0 1", "a7a8Q"),
    ("4k3/4r3/8/8/8/8/4R3/4K3 w - - 0 1", "e2d2"),  # the rook is pinned
    ("R5k1/5ppp/8/8/8/8/8/6K1 b - - 1 1", "g8g7"),  # the game is over
]


@pytest.mark.parametrize(
    ("fen", "action", "after", "outcome"),
    [
        *((*case, CONTINUES) for case in (*CASTLING, *EN_PASSANT, *PROMOTION, *CLOCKS)),
        *ENDS,
        *((START, action, START, ILLEGAL) for action in NO_MOVES),
        *((fen, action, fen, ILLEGAL) for fen, action in FORBIDDEN),
    ],
)
def test_transitions(fen: str, action: str, after: str, outcome) -> None:
    assert rules.transition(fen, action) == EnvironmentAnswer(after, *outcome)


NO_POSITIONS = [
    *("", "hello", "9/8/8/8/8/8/8/8 w - - 0 1"),
    "8/8/8/8/8/8/8/8 w - - 0 1",  # no kings
    "4k3/8/8/8/8/8/8/4KK2 w - - 0 1",  # two of them
    "4k3/4R3/8/8/8/8/8/4K3 w - - 0 1",  # the side not to move is in check
    "4k2P/8/8/8/8/8/8/4K3 w - - 0 1",  # a pawn on the last rank
]


@pytest.mark.parametrize("fen", NO_POSITIONS)
def test_no_positions_are_errors_that_quote_them(fen: str) -> None:
    transition = partial(rules.transition, action="e2e4")
    for ask in (rules.board_of, rules.canonical_fen, rules.legal_moves, transition):
        with pytest.raises(IllegalPositionError) as caught:
            ask(fen)
        assert repr(fen) in str(caught.value)


def test_the_clocks_do_not_make_another_position_but_everything_else_does() -> None:
    fen = WHITE_CASTLES
    assert rules.position_key(fen) == rules.position_key(fen.replace("3 10", "0 99"))
    others = [fen.replace(" w ", " b "), fen.replace("KQkq", "KQ"), fen.replace("R3K2R", "R3K1R1")]
    assert len({rules.position_key(other) for other in [fen, *others]}) == 4
    # An en passant square does where a capture is legal.
    legal = "4k3/8/8/8/3pP3/8/8/4K3 b - e3 0 1"
    assert rules.position_key(legal) != rules.position_key(legal.replace("e3", "-"))
    idle = "4k3/8/8/3p4/4P3/8/8/4K3 b - e3 0 1"
    assert rules.position_key(idle) == rules.position_key(idle.replace("e3", "-"))
    impossible = "4k3/8/8/8/3p4/8/8/4K3 b - e3 0 1"  # no pawn stands on e4
    assert rules.position_key(impossible) == rules.position_key(impossible.replace("e3", "-"))


def test_phases() -> None:
    assert positions.phase(START) == "opening"
    # Seven and six queens, rooks, bishops and knights.
    seven = "r2qk2r/pppppppp/8/8/8/8/PPPPPPPP/R2QK1NR w KQkq - 0 20"
    assert positions.phase(seven) == "middlegame"
    assert positions.phase(seven.replace("1NR", "2R")) == "endgame"
    # Fourteen, but White has left its first rank all but for three.
    left = "rnbqkbnr/pppppppp/8/8/2NNBB2/3QP3/PPPP1PPP/R3K2R w KQkq - 0 20"
    assert positions.phase(left) == "middlegame"
