"""What the rows are is judged with python-chess itself, not with `rules`."""

import contextlib
import hashlib
import json
from collections import Counter
from itertools import islice

import chess
import pytest

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.data import synthesis
from rookworld_rlvr.data.loading import made_rows
from rookworld_rlvr.data.sources import RowArguments
from rookworld_rlvr.data.synthesis import environment_prompts, fill_in_rows, opening_positions


def rows_of(kind: str, n: int, opening_plies: int = 12) -> list:
    return list(islice(environment_prompts(0, {kind: 1.0}, opening_plies), n))


def board_and_move(prompt) -> tuple[chess.Board, chess.Move]:
    """Position and move of a row whose action is legal."""
    board, move = chess.Board(prompt.fen), chess.Move.from_uci(prompt.action)
    assert board.is_valid()
    assert board.is_legal(move)
    return board, move


def test_openings_are_reached_by_their_history_from_the_start() -> None:
    rows = rows_of("openings", 60, opening_plies=5)
    lengths = set()
    for prompt in rows:
        board, _ = board_and_move(prompt)
        replayed = chess.Board()
        for played in prompt.history[:-1]:
            replayed.push_uci(played)
        assert replayed.fen() == board.fen()
        lengths.add(len(prompt.history))
    assert lengths == {1, 2, 3, 4, 5}  # from before the first ply to after the fourth


def special_kind(board: chess.Board, move: chess.Move) -> str:
    if board.is_castling(move):
        return "castling"
    if board.is_en_passant(move):
        return "en passant"
    return {chess.QUEEN: "promotion", None: "none"}.get(move.promotion, "under-promotion")


def test_special_moves_are_of_all_four_kinds_and_double_steps_are_pawns_moving_two_ranks() -> None:
    for board, move in map(board_and_move, rows_of("double_steps", 40)):
        assert board.piece_type_at(move.from_square) == chess.PAWN
        assert chess.square_distance(move.from_square, move.to_square) == 2
    kinds = [special_kind(*board_and_move(prompt)) for prompt in rows_of("special_moves", 40)]
    assert set(kinds) == {"castling", "en passant", "promotion", "under-promotion"}


def test_games_end_in_all_four_ways_and_equal_parts() -> None:
    ends: Counter[str] = Counter()
    for prompt in rows_of("game_ends", 100):
        board, move = board_and_move(prompt)
        assert not board.is_game_over()
        board.push(move)
        ends[board.outcome().termination.name] += 1  # type: ignore[union-attr]
    assert set(ends) == {"CHECKMATE", "STALEMATE", "INSUFFICIENT_MATERIAL", "SEVENTYFIVE_MOVES"}
    assert all(8 < count < 42 for count in ends.values())  # four standard deviations


def test_illegal_actions_are_illegal_moves_and_unreadable_text() -> None:
    readable = []
    for prompt in rows_of("illegal_actions", 1_000):
        with contextlib.suppress(ValueError):
            readable.append(chess.Move.from_uci(prompt.action))
            assert not chess.Board(prompt.fen).is_legal(readable[-1])
    assert 600 < len(readable) < 730  # two in three


def test_a_seed_has_the_rows_that_it_always_had() -> None:
    """The digests are of the code before playing was made faster: a recipe's rows must not change."""
    games = {"openings": 0.3, "special_moves": 0.4, "game_ends": 0.3}
    others = {"double_steps": 0.5, "illegal_actions": 0.5}
    seven = {"synthetic_seed": 7, "synthetic_shares": games, "synthetic_opening_plies": 5}
    for options, digest in (
        ({"synthetic_seed": 0}, "7298016f4e8da8f7"),
        (seven, "901bd0622589ca2e"),
        ({"synthetic_seed": 3, "synthetic_shares": others}, "fd75788d9917f995"),
    ):
        args = RowArguments(synthetic_rows=80, synthetic_fill_in_rows=40, **options)
        rows = json.dumps(list(made_rows(args)))
        assert hashlib.sha256(rows.encode()).hexdigest()[:16] == digest


def test_a_field_that_no_row_can_hide_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthesis, "_FILL_IN_TRIES", 20)
    for field, kind in (("history", "game_ends"), ("action", "illegal_actions")):
        with pytest.raises(RookWorldError, match=f"nothing to hide as '{field}' .*'{kind}'"):
            next(fill_in_rows(0, {field: 1.0}, {kind: 1.0}))


def test_opening_positions_are_valid_unfinished_and_short() -> None:
    plies = set()
    for fen in islice(opening_positions(0, 4), 80):
        board = chess.Board(fen)
        assert board.is_valid() and not board.is_game_over() and board.fen() == fen
        plies.add(board.ply())
    assert plies == {1, 2, 3, 4}
