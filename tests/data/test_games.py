"""Rows of whole games, judged from their text with python-chess alone."""

import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import chess
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rookworld_rlvr.common.errors import ConfigurationError, EngineError, RookWorldError
from rookworld_rlvr.data import games, play
from rookworld_rlvr.data.games import (
    GAME_SHARES,
    Found,
    check_gain,
    collect,
    environment_targets,
)
from rookworld_rlvr.data.loading import DataArguments, is_held_out, load_data
from rookworld_rlvr.data.play import Play, play_games
from rookworld_rlvr.data.prepare import PrepareArguments
from rookworld_rlvr.data.sources import read_provenance, values_line

from ..engines import misbehaving, searches, wait_until
from ..support import REPOSITORY, recipe, started

SCRIPT = REPOSITORY / "recipes" / "prepare.py"
Table = list[dict[str, Any]]


@pytest.fixture(scope="module")
def games_file(stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty games of the engine and twenty random ones."""
    path = tmp_path_factory.mktemp("games") / "games.parquet"
    play_games(path, Play(0, 40, 0.5), stockfish, 1)
    return path


def rows_of(path: Path, rows: int, workers: int = 1, **shares: float) -> list[Found]:
    targets = environment_targets(rows, shares or GAME_SHARES, 0.5)
    return [row for batch in collect(path, targets, 0.5, "0", workers) for row in batch]


@pytest.fixture(scope="module")
def rows(games_file: Path) -> list[Found]:
    return rows_of(games_file, 2_000)


# --------------------------------------------------------------------------------------------------
# Games
# --------------------------------------------------------------------------------------------------
def replayed(moves: str) -> Iterator[chess.Board]:
    """The board after each move; each is legal."""
    board = chess.Board()
    for move in moves.split(" "):
        board.push_uci(move)  # raises if it is illegal
        yield board


def test_games_are_played_to_their_end_and_are_of_both_kinds(games_file: Path) -> None:
    table = pq.read_table(games_file).to_pylist()
    assert Counter(game["kind"] for game in table) == {"played": 20, "random": 20}
    for game in table:
        *_, board = replayed(game["moves"])
        outcome = board.outcome()
        assert game["result"] == (outcome.result() if outcome else "*")
        assert game["ending"] == (outcome.termination.name.lower() if outcome else "length")
        assert outcome or board.ply() == 300
    mates = [game for game in table if game["ending"] == "checkmate"]
    assert len([game for game in mates if game["kind"] == "played"]) > 12, "the engine wins"
    assert len({game["moves"] for game in table}) == 40


def test_an_engine_that_dies_is_replaced_and_the_game_is_the_same(
    games_file: Path, stockfish: str, tmp_path: Path
) -> None:
    dying = misbehaving(tmp_path, stockfish, "dies", "count == 5")
    play_games(tmp_path / "games.parquet", Play(0, 2, 0.5), dying, 1)
    assert searches(tmp_path) > 10
    assert pq.read_table(tmp_path / "games.parquet") == pq.read_table(games_file).slice(0, 2)
    (tmp_path / "dead").mkdir()
    dead = misbehaving(tmp_path / "dead", stockfish, "dies")
    with pytest.raises(EngineError, match=r"failed at game 0 twice \(.+\); give another"):
        play_games(tmp_path / "dead" / "games.parquet", Play(0, 2, 0.5), dead, 1)


def test_a_stopped_run_goes_on_and_the_file_appears_when_it_is_complete(
    games_file: Path, stockfish: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play, "GAMES_IN_PART", 3)
    path, asked = tmp_path / "games.parquet", Play(0, 8, 0.5)
    real, done = play._play_part, list[Any]()

    def stopped(*args: Any) -> int:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(args)
        return real(*args)

    monkeypatch.setattr(play, "_play_part", stopped)
    with pytest.raises(KeyboardInterrupt):
        play_games(path, asked, stockfish, 1)
    assert not path.exists()
    with pytest.raises(RookWorldError, match=r"games of a run with other settings .*'seed': 1"):
        play_games(path, Play(1, 8, 0.5), stockfish, 1)
    del done[:]
    play_games(path, asked, stockfish, 1)
    assert len(done) == 1, "of three parts, two were there"
    assert pq.read_table(path) == pq.read_table(games_file).slice(0, 8)
    assert [*tmp_path.iterdir()] == [path]


# --------------------------------------------------------------------------------------------------
# Environment rows
# --------------------------------------------------------------------------------------------------
Step = tuple[chess.Board, chess.Move | None, chess.Board]


def step(text: str) -> Step:
    """The board before, the move unless it is illegal, and the board after; what a row says holds."""
    mark, _, body = text.partition(" ")
    fen, action, history, next_fen, *rest = body.split("+")
    before, after = chess.Board(fen), chess.Board(fen)
    assert mark == "A:" and before.is_valid() and before.fen() == fen
    assert history.split(" ")[-1] == action and len(history.split(" ")) <= 10
    try:
        move = chess.Move.from_uci(action)
    except ValueError:
        move = None
    if not move or not before.is_legal(move):
        assert (next_fen, rest) == (fen, ["-1.0", "0", "1"]), text
        return before, None, after
    after.push(move)
    assert next_fen == after.fen(), text
    if after.is_checkmate():
        assert rest == ["1.0", "1", "0"], text
    elif (
        not any(after.legal_moves) or after.is_insufficient_material() or after.halfmove_clock > 149
    ):
        assert rest == ["0.5", "1", "0"], text
    else:
        assert rest == ["0.001", "0", "0"], text
    return before, move, after


def phase(board: chess.Board) -> str:
    others = sum(board.piece_type_at(square) in (2, 3, 4, 5) for square in chess.SQUARES)
    return "endgames" if others <= 6 else "openings" if board.ply() < 20 else "middle_games"


def is_step_beside(before: chess.Board, move: chess.Move) -> bool:
    """Whether a pawn goes straight ahead to the side of a pawn of the other colour."""
    pawn = chess.Piece(chess.PAWN, not before.turn)
    files = [chess.square_file(move.to_square) + side for side in (-1, 1)]
    rank = chess.square_rank(move.to_square)
    beside = [before.piece_at(chess.square(file, rank)) for file in files if 0 <= file <= 7]
    straight = chess.square_file(move.from_square) == chess.square_file(move.to_square)
    is_pawn = before.piece_type_at(move.from_square) == chess.PAWN
    return is_pawn and straight and rank == (3 if before.turn else 4) and pawn in beside


def is_of(kind: str, before: chess.Board, move: chess.Move | None, after: chess.Board) -> bool:
    """Whether a row is of the kind that it was taken for."""
    if kind == "illegal_actions" or move is None:
        return move is None and kind == "illegal_actions"
    outcome = after.outcome()
    square = after.fen().split(" ")[3]
    return {
        "first_moves": before.ply() < 4,
        **{name: phase(before) == name for name in ("openings", "middle_games", "endgames")},
        "castling": before.is_castling(move),
        "en_passant": before.is_en_passant(move),
        "double_steps": is_step_beside(before, move) and square != "-",
        "look_alikes": is_step_beside(before, move) and square == "-",
        "promotions": move.promotion == chess.QUEEN,
        "under_promotions": move.promotion in (chess.KNIGHT, chess.BISHOP, chess.ROOK),
        "checkmates": after.is_checkmate(),
        "stalemates": after.is_stalemate(),
        "insufficient_material": after.is_insufficient_material(),
        "seventyfive_moves": outcome is not None and outcome.termination.name == kind.upper(),
    }[kind]


def test_every_row_is_right_and_of_its_kind(rows: list[Found]) -> None:
    wrong = [row for row in rows if not is_of(row.group[0], *step(row.text))]
    assert wrong == []
    assert len(rows) == len({row.text for row in rows}) == 2_000


def test_kinds_have_their_shares_and_half_of_the_ordinary_rows_are_of_random_games(
    rows: list[Found],
) -> None:
    counts = Counter(row.group[0] for row in rows)
    assert counts == {kind: round(2_000 * share) for kind, share in GAME_SHARES.items()}
    ordinary = Counter(row.source for row in rows if row.group[1])
    assert ordinary == {"played": 680, "random": 680}
    assert all(row.source == row.group[1] for row in rows if row.group[1])
    made = {row.group[0] for row in rows if row.source == "made"}
    assert made <= {"checkmates", "stalemates", "insufficient_material", "seventyfive_moves"}


def test_the_history_is_of_a_game(games_file: Path, rows: list[Found]) -> None:
    played = pq.read_table(games_file)["moves"].to_pylist()
    starts = 0
    for row in rows:
        fen, _, history = row.text[3:].split("+")[:3]
        moves = history.split(" ")
        if row.source == "made":
            assert len(moves) == 1
            continue
        off = 2 if row.group[0] == "en_passant" else 1  # a double step that was not played
        before = " ".join(moves[:-off])
        assert any(before in game for game in played), row
        if len(moves) < 10:
            starts += 1
            *_, board = (
                [chess.Board(), *replayed(" ".join(moves[:-1]))] if moves[1:] else [chess.Board()]
            )
            assert board.fen() == fen
    assert starts > 100


def test_the_same_rows_whatever_the_number_of_workers(
    games_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(games, "_ROWS_IN_BLOCK", 100)
    first = rows_of(games_file, 400)
    assert rows_of(games_file, 400, workers=2) == first
    assert {row.text for row in rows_of(games_file, 400)} != {
        row.text for row in rows_of(games_file, 600)
    }


def test_rare_kinds_are_taken_of_further_games_and_others_are_refused(games_file: Path) -> None:
    rare = rows_of(games_file, 300, castling=0.5, insufficient_material=0.5)
    assert len({row.text for row in rare}) == 300
    assert all(is_of(row.group[0], *step(row.text)) for row in rare)
    with pytest.raises(
        RookWorldError, match=r"only \d+ of 1,000 rows of the kind 'openings' .* 40 games"
    ):
        rows_of(games_file, 2_000, openings=1.0)


@pytest.mark.parametrize(("gained", "is_refused"), [(4, True), (6, False)])
def test_games_that_give_a_row_now_and_then_are_not_gone_through_for_ever(
    gained: int, is_refused: bool
) -> None:
    group = ("openings", play.PLAYED)
    missing, targets = {group: 1_000}, {group: 9_000}
    # After 8 of 160 blocks, a tenth of what is missing would be five rows.
    refusal = pytest.raises(RookWorldError, match="only 8,004 of 9,000")
    context: Any = refusal if is_refused else nullcontext()
    with context:
        check_gain(missing, {group: 8_000 + gained}, targets, 7_200, 160 / 8)


# --------------------------------------------------------------------------------------------------
# The command
# --------------------------------------------------------------------------------------------------
def prepare(folder: Path, **options: Any) -> Table:
    """The table that `rookworld prepare` writes."""
    usual = {
        "output_file": folder / "out.parquet",
        "engine_cache": folder / "values.sqlite",
        "engine_depth": 2,
    }
    words = [f"--{name}={value}" for name, value in {**usual, **options}.items()]
    recipe("prepare").main(words)
    return pq.read_table(folder / "out.parquet").to_pylist()


def test_rows_of_games_are_rows_to_train_on(games_file: Path, tmp_path: Path) -> None:
    table = prepare(tmp_path, games_file=games_file, game_rows=300, game_policy_rows=60)
    assert [row["text"][0] for row in table] == ["P"] * 60 + ["A"] * 300
    data = load_data(DataArguments(str(tmp_path / "out.parquet")))
    report = data.report
    assert report.train.total() + report.heldout.total() == report.read == 360
    assert not report.quarantined and not report.unjudgeable and not report.unlabelled
    assert set(report.heldout) == {"policy", "environment"} and report.overlap == 0
    assert (
        3 < 100 * sum(is_held_out(row["text"].split("+")[0][3:], 0.1) for row in table) / 360 < 18
    )
    note = read_provenance(tmp_path / "out.parquet") or {}
    assert note["games"]["seed"] == 0 and note["games"]["random_share"] == 0.5
    assert sum(note["counts"]["game_rows"].values()) == 300
    assert values_line(tmp_path / "out.parquet").startswith(note["engine"])


def test_policy_positions_are_of_played_games_a_third_of_each_phase(
    games_file: Path, tmp_path: Path
) -> None:
    table = prepare(tmp_path, games_file=games_file, game_policy_rows=90)
    boards = [chess.Board(row["text"][3:].split(" M:")[0].strip()) for row in table]
    assert Counter(map(phase, boards)) == {"openings": 30, "middle_games": 30, "endgames": 30}
    assert len({board.epd() for board in boards}) == 90
    reached = {
        board.fen()
        for game in pq.read_table(games_file).to_pylist()
        if game["kind"] == "played"
        for board in [chess.Board(), *(board.copy() for board in replayed(game["moves"]))]
    }
    assert {board.fen() for board in boards} <= reached
    for row, board in zip(table, boards, strict=True):
        assert {value["move"] for value in row["action_values"]} == {*map(str, board.legal_moves)}


def test_a_file_of_games_needs_no_engine_and_must_be_the_one_that_is_asked_for(
    games_file: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"games_file": games_file, "engine_path": "/nowhere/stockfish"}
    table = prepare(tmp_path, game_rows=100, **given)
    assert prepare(tmp_path, game_rows=100, games=40, random_game_share=0.5, **given) != []
    with pytest.raises(
        RookWorldError, match=r"holds games with games 40, random_game_share 0.5; give"
    ):
        prepare(tmp_path, game_rows=100, games=50, **given)
    assert len(table) == 100
    pq.write_table(pa.table({"text": ["A"]}), tmp_path / "other.parquet")
    with pytest.raises(RookWorldError, match=r"other.parquet' was not written by .*--games"):
        prepare(tmp_path, game_rows=100, games_file=tmp_path / "other.parquet")


def test_random_games_alone_need_no_engine_and_each_stage_shows_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rookworld_rlvr.common.progress.LINE_EVERY_S", 0.0)
    alone = {"random_game_share": 1, "engine_path": "/nowhere/stockfish"}
    table = prepare(tmp_path, games=4, game_rows=50, **alone)
    assert len(table) == 50 and pq.read_metadata(tmp_path / "out.games.parquet").num_rows == 4
    shown = capsys.readouterr().err
    assert "playing games: 4 of 4" in shown and "taking rows of games: 50 of 50" in shown


def test_faults_of_games_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        PrepareArguments(
            output_file=str(tmp_path / "out.parquet"),
            labels="stored",
            game_rows=5,
            game_policy_rows=5,
            random_game_share=1,
            game_shares={"endgame": 1.0},
            cluster="local",
        )
    faults = "\n".join(caught.value.faults)
    for words in (
        "games: none to play, and no file",
        "labels: 'stored' leaves game_policy_rows without answers",
        "random_game_share is 1",
        "'endgame' is not a valid kind; did you mean endgames?",
        "without cluster",
    ):
        assert len(re.findall(re.escape(words), faults)) == 1, faults
    for keys, words in (
        ({"games": 5, "synthetic_rows": 5}, "games: no rows to take of them"),
        (
            {"games": 5, "game_rows": 5, "games_file": "out.parquet"},
            "'out.parquet' is output_file too",
        ),
        (
            {"games": 5, "game_rows": 5, "games_file": "games.txt"},
            "'games.txt' does not end in .parquet",
        ),
    ):
        with pytest.raises(ConfigurationError, match=words):
            PrepareArguments(output_file="out.parquet", **keys)  # type: ignore[arg-type]


def test_a_run_that_is_stopped_while_it_takes_rows_leaves_no_file_and_makes_the_same(
    games_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(games, "_ROWS_IN_BLOCK", 100)
    real, done = games.take_rows, list[Any]()

    def stopped(block: Any) -> list[Found]:
        done.append(block)
        if len(done) == 3:
            raise KeyboardInterrupt
        return real(block)

    monkeypatch.setattr(games, "take_rows", stopped)
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path, games_file=games_file, game_rows=400)
    assert not (tmp_path / "out.parquet").exists()
    again = prepare(tmp_path, games_file=games_file, game_rows=400)
    content = (tmp_path / "out.parquet").read_bytes()
    assert prepare(tmp_path, games_file=games_file, game_rows=400) == again
    assert (tmp_path / "out.parquet").read_bytes() == content


@pytest.mark.slow
def test_a_run_that_is_killed_with_its_workers_goes_on(tmp_path: Path, stockfish: str) -> None:
    asked = "--games 260 --random_game_share 0.9 --game_rows 500 --engine_workers 2".split()
    asked += ["--output_file"]
    undisturbed, killed = tmp_path / "undisturbed.parquet", tmp_path / "killed.parquet"
    recipe("prepare").main([*asked, str(undisturbed), "--engine_workers", "1"])
    parts = tmp_path / "killed.games.parquet.parts"
    with started(
        sys.executable, str(SCRIPT), *asked, str(killed), start_new_session=True
    ) as process:
        wait_until(lambda: any(parts.glob("*.parquet")))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert not killed.exists() and not (tmp_path / "killed.games.parquet").exists()
    recipe("prepare").main([*asked, str(killed)])
    assert killed.read_bytes() == undisturbed.read_bytes()
