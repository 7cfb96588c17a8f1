"""Games of PGN files that people have: tags that follow moves, empty lines, other alphabets."""

from itertools import pairwise
from pathlib import Path

import chess
import chess.pgn
import pytest

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.data.parsing import parse_rows, pgn_positions
from rookworld_rlvr.data.pgn import read_game, split_games, unread_move

KINGS = "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"


def read(folder: Path, text: str) -> tuple[list[str], list[str]]:
    """The moves and the faults of a file."""
    (folder / "games.pgn").write_text(text)
    rows = list(pgn_positions(folder / "games.pgn"))
    moves = [
        f"{'' if len(row['history']) > 1 else '|'}{row['action']}"
        for row in rows
        if "action" in row
    ]
    return " ".join(moves).split("|")[1:], [row["fault"] for row in rows if "fault" in row]


def test_tags_that_follow_moves_at_once_begin_the_next_game(tmp_path: Path) -> None:
    """As in exports of Lichess; the tags are not moves, and the FEN and the variant are the game's."""
    text = (
        '[Event "a"]\n\n1. e4 e5 2. Bc4 1-0[Event "b"]\n[Site "https://lichess.org/a6d6"]\n'
        f'[FEN "{KINGS}"]\n[SetUp "1"]\n\n1. e3 {{"[Event "}}\n'
        '[Event "c"]\n[Variant "Crazyhouse"]\n\n1. d4 d5 *\n'
    )
    moves, faults = read(tmp_path, text)
    assert moves == ["e2e4 e7e5 f1c4 ", "e2e3"]
    assert faults == ["game 3: it is of the variant 'Crazyhouse'"]


def test_an_empty_line_ends_a_game_only_behind_its_result_or_before_move_one(
    tmp_path: Path,
) -> None:
    text = (
        f'[Event "a"]\n[FEN "{KINGS}"]\n\n\n{{A comment.\n\nIt goes on.}}\n\n1. e4\n\n; more\n\n'
        "1... Kd7\n\n2. Kd2 *\n\n1. a4 a5\n\n1. b4 1-0\n\n{The end.}\n"
    )
    moves, faults = read(tmp_path, text)
    assert moves == ["e2e4 e8d7 e1d2 ", "a2a4 a7a5 ", "b2b4"] and not faults


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("1. e4 e5 2. Sf3 Sc6", "Sf3"),  # German
        ("1. \ufffdf3 d5", "\ufffdf3"),  # a byte in the place of a figurine
        ("1. e4 e5 2. ♘f3 ♞c6", "♘f3"),
        ("1. e4 e5 2. \u041af3", "\u041af3"),  # Cyrillic
        ("1. e4 e5 2. nf3", "nf3"),
        ("1. e4 e5 2. Nf3 Nc6 3. Bc4 Bc5 4. o-o o-o", "o-o"),
        ("1. e4 e5 2. Nf3 Nc6 3. Bc4 Bc5 4. O\u2013O", "O\u2013O"),
    ],
)
def test_moves_that_python_chess_would_read_as_others_are_refused(
    text: str, word: str, tmp_path: Path
) -> None:
    moves, faults = read(tmp_path, f"{text} *\n\n1. d4 *\n")
    assert moves == ["d2d4"]
    assert len(faults) == 1 and f"game 1: {word!r} is not standard notation" in faults[0]


def test_what_annotators_write_among_standard_moves_is_no_fault() -> None:
    text = (
        "1. e4!? d5 $1 {Sf3} 2. e5 f5 3. exf6e.p. N exf6ch D 4. Ng1-f3+- Bd6 5. Be2 (5. Bd3 {o-o}) Ne7\n"
        "6. O-O\n0-0 7. d2d4 ; ♘f3\nNbc6 8. h3= *"
    )
    assert not unread_move(text)
    game = read_game(text)
    assert not game.errors and len(list(game.mainline_moves())) == 15


def test_variations_do_not_spoil_the_main_line(tmp_path: Path) -> None:
    """After an illegal move in one, python-chess reads on from the variation's position."""
    text = "1. e4 (1. Ke5 d5) e5 (1... Qxh1) 2. Nf3) Nc6 ((2... d6) 3. Bb5 *"
    assert read(tmp_path, text) == (["e2e4 e7e5 g1f3 b8c6"], [])


def test_a_game_without_moves_is_the_position_of_its_fen(tmp_path: Path) -> None:
    text = f'[Event "a"]\n[FEN "{KINGS}"]\n\n*\n\n[Event "b"]\n\n1-0\n\n[Event "c"]\n\n1. d4 *\n'
    (tmp_path / "games.pgn").write_text(text)
    rows = list(pgn_positions(tmp_path / "games.pgn"))
    assert rows[0] == {"fen": KINGS} and [row.get("action") for row in rows] == [None, "d2d4"]
    (row,) = parse_rows(rows[:1], ["policy"])
    assert isinstance(row, dict) and row["fen"] == KINGS
    (tmp_path / "games.pgn").write_text(
        '[Event "a"]\n[Result "*"]\n\n[Event "b"]\n[Result "1-0"]\n'
    )
    with pytest.raises(RookWorldError, match=r"none of the 2 games in .* has a move or a FEN"):
        list(pgn_positions(tmp_path / "games.pgn"))


def test_games_that_python_chess_wrote_are_told_apart_as_it_does() -> None:
    boards = [chess.Board()]
    for ply in range(40):
        board = boards[-1].copy()
        board.push(list(board.legal_moves)[ply % board.legal_moves.count()])
        boards.append(board)
    games = [chess.pgn.Game.from_board(board) for board in boards]
    lines = "".join(f"{game}\n\n" for game in games).splitlines(keepends=True)
    read_back = [read_game(text) for text in split_games(lines)]
    assert [list(game.mainline_moves()) for game in read_back] == [
        board.move_stack for board in boards
    ]
    assert all(len(one.move_stack) < len(two.move_stack) for one, two in pairwise(boards))
