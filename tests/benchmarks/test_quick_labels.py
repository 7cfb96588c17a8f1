"""`benchmarks/quick_labels.py`, which labels positions for pretraining."""

from pathlib import Path

import chess
import pyarrow.parquet as pq
import pytest

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.data.play import Play, play_games
from rookworld_rlvr.tasks.registry import score_row
from rookworld_rlvr.tasks.types import MATE_CP, values_by_move

from .test_gpu import benchmark

quick_labels = benchmark("quick_labels")
FOOLS_MATE = "rnbqkbnr/pppp1ppp/8/4p3/6P1/5P2/PPPPP2P/RNBQKBNR b KQkq - 0 2"


def test_rows_of_games_are_labelled(tmp_path: Path, stockfish: str) -> None:
    games, rows = tmp_path / "games.parquet", tmp_path / "rows.parquet"
    play_games(games, Play(0, 4, 0.0), None, workers=1)
    given = f"--games_file {games} --rows 12 --depth 3 --workers 1 --output_file {rows}"
    quick_labels.main(given.split())
    found = pq.read_table(rows).to_pylist()
    assert len(found) == 12
    for row in found:
        prompt, _, answer = row["text"].partition("  ")
        fen = prompt.removeprefix("P: ")
        values = values_by_move(row["action_values"]) or {}
        assert values.keys() == {move.uci() for move in chess.Board(fen).legal_moves}
        score = score_row(prompt, f" {answer}", values)
        assert score and score["best_move"] == score["candidates"] == 1


def test_kings_are_exposed(tmp_path: Path, stockfish: str) -> None:
    games, rows = tmp_path / "games.parquet", tmp_path / "rows.parquet"
    play_games(games, Play(0, 8, 1.0), None, workers=1)
    given = f"--games_file {games} --exposed_kings --depth 2 --workers 1 --output_file {rows}"
    quick_labels.main([*given.split(), "--rows", "21"])
    texts = pq.read_table(rows)["text"].to_pylist()
    boards = [chess.Board(text.partition("  ")[0].removeprefix("P: ")) for text in texts]
    assert len({board.fen() for board in boards}) == 21
    others = [board for board in boards if not board.is_check()]
    assert len(others) == 10 and all(map(quick_labels.is_exposed, others))
    with pytest.raises(RookWorldError, match=r"of 50,000: in check; play more games"):
        quick_labels.main([*given.split(), "--rows", "100000"])


def test_values_are_those_of_the_side_to_move(stockfish: str) -> None:
    with quick_labels.Engine() as engine:
        values = engine.values(FOOLS_MATE, 4)
        (best, cp), *_, (_, worst) = values.items()
        assert (best, cp) == ("d8h4", MATE_CP - 1) and worst < 300
        assert engine.values(FOOLS_MATE, 4) == values, "nothing is left of the search before"


@pytest.mark.parametrize(("kind", "number", "cp"), [("cp", -31, -31), ("mate", -1, 1 - MATE_CP)])
def test_scores_are_counted_as_the_package_does(kind: str, number: int, cp: int) -> None:
    assert quick_labels.centipawns(kind, number) == cp
