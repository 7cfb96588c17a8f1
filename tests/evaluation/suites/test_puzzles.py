"""The suites of puzzles; mates are judged with python-chess itself, not with `rules`."""

from collections.abc import Sequence
from pathlib import Path

import chess
import pyarrow
import pytest

from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.data.loading import HELDOUT_SHARE, is_held_out
from rookworld_rlvr.engine import EngineArguments
from rookworld_rlvr.evaluation.registry import SuiteArguments
from rookworld_rlvr.evaluation.suite import SuiteUnavailableError, open_suites
from rookworld_rlvr.evaluation.suites.policy import MateInOneSuite, PuzzlesSuite, read_puzzles
from rookworld_rlvr.tasks import positions, rules

from ...scripted import GARBAGE, Scripted, policy_text

HEADER = "PuzzleId,FEN,Moves,Rating,RatingDeviation,Popularity,NbPlays,Themes,GameUrl,OpeningTags"
# The first five stand at the head of Lichess's database; the last is made: a1a8 and b1b8 both mate.
ROWS = (
    "00008,r6k/pp2r2p/4Rp1Q/3p4/8/1N1P2R1/PqP2bPP/7K b - - 0 24,f2g3 e6e7 b2b1 b3c1 b1c1 h6c1,"
    "2107,78,95,9243,crushing hangingPiece long middlegame,https://lichess.org/787zsVup/black#48,",
    "0000D,5rk1/1p3ppp/pq3b2/8/8/1P1Q1N2/P4PPP/3R2K1 w - - 2 27,d3d6 f8d8 d6d8 f6d8,"
    "1535,73,95,35791,advantage endgame short,https://lichess.org/F8M8OS71#53,",
    "0008Q,8/4R3/1p2P3/p4r2/P6p/1P3Pk1/4K3/8 w - - 1 64,e7f7 f5e5 e2f1 e5e6,"
    "1385,80,92,762,advantage endgame rookEndgame short,https://lichess.org/MQSyb3KW#127,",
    "0009B,r2qr1k1/b1p2ppp/pp4n1/P1P1p3/4P1n1/B2P2Pb/3NBP1P/RN1QR1K1 b - - 1 16,"
    "b6c5 e2g4 h3g4 d1g4,1084,74,88,605,advantage middlegame short,"
    "https://lichess.org/4MWQCxQ6/black#32,Kings_Pawn_Game",
    "000Sa,2Q2bk1/5p1p/p5p1/2p3P1/2r1B3/7P/qPQ2P2/2K4R b - - 0 32,c4c2 e4c2 a2a1 c2b1,"
    "1483,75,96,1023,advantage endgame short,https://lichess.org/lTTa9lwd/black#64,",
    "twice,7k/5ppp/8/8/8/8/8/RR4K1 b - - 0 1,h8g8 a1a8,600,75,96,10,mate mateIn1 short,,",
)
# The positions to be solved, and what is played in them.
PLAYED = {
    "r6k/pp2r2p/4Rp1Q/3p4/8/1N1P2b1/PqP3PP/7K w - - 0 25": "e6e7",
    "r6k/pp2R2p/5p1Q/3p4/8/1N1P2b1/P1P3PP/1q5K w - - 1 26": "b3c1",
    "r6k/pp2R2p/5p1Q/3p4/8/3P2b1/P1P3PP/2q4K w - - 0 27": "h6c1",  # the whole line
    "5rk1/1p3ppp/pq1Q1b2/8/8/1P3N2/P4PPP/3R2K1 b - - 3 27": "f8d8",
    "3Q2k1/1p3ppp/pq3b2/8/8/1P3N2/P4PPP/3R2K1 b - - 0 28": "b6d8",  # the other piece takes
    "8/5R2/1p2P3/p4r2/P6p/1P3Pk1/4K3/8 b - - 2 64": GARBAGE,
    "r2qr1k1/b1p2ppp/p5n1/P1p1p3/4P1n1/B2P2Pb/3NBP1P/RN1QR1K1 w - - 0 17": "d2f3",  # legal
    "2Q2bk1/5p1p/p5p1/2p3P1/4B3/7P/qPr2P2/2K4R w - - 0 33": "c1a3",  # illegal
    "6k1/5ppp/8/8/8/8/8/RR4K1 w - - 1 2": "b1b8",  # a mate, but not the file's
}


def write_rows(path: Path, rows: Sequence[str] = ROWS, header: str = HEADER) -> str:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return str(path)


def test_metrics_by_hand(tmp_path: Path) -> None:
    model = Scripted(PLAYED)
    result = PuzzlesSuite(100, 0, write_rows(tmp_path / "puzzles.csv")).run(model)
    found = {name: (value.value, value.n) for name, value in result.metrics().items()}
    expected = {
        "invalid": (1 / 6, 6),  # 0008Q
        "legal": (4 / 6, 6),  # without 0008Q and 000Sa
        "first_move": (3 / 6, 6),  # 00008, 0000D and the mate
        "first_move/1000_to_1499": (0 / 3, 3),
        "whole_line": (2 / 6, 6),  # 00008 and the mate
        "whole_line/1000_to_1499": (0, 3),
        "whole_line/1500_to_1999": (0, 1),  # 0000D, wrong at the second move
    }
    groups = ("below_1000", "1000_to_1499", "1500_to_1999", "2000_on")
    of_all = {f"{name}/{one}": (1, 1) for name in ("first_move", "whole_line") for one in groups}
    assert found == of_all | expected
    assert [len(call) for call in model.calls] == [6, 2, 1], "one call a move for all that go on"


def test_a_compressed_file_is_the_same(tmp_path: Path) -> None:
    packed, file = tmp_path / "puzzles.csv.zst", write_rows(tmp_path / "puzzles.csv")
    with pyarrow.CompressedOutputStream(str(packed), "zstd") as stream:
        stream.write(Path(file).read_bytes())
    assert read_puzzles(str(packed), 100, 0) == read_puzzles(file, 100, 0)
    assert len(read_puzzles(file, 100, 0)) == 6


def test_rows_without_a_puzzle_are_left_out(tmp_path: Path) -> None:
    mate = ROWS[-1]
    rows = [
        mate,
        mate.replace("twice", "a").replace("h8g8 a1a8", "h8g8"),
        mate.replace("twice", "b").replace("a1a8", "a1b8"),
        mate.replace("twice", "c").replace("600", "6e2"),
        mate.replace("twice", "d").replace("7k/", "7q/"),
        mate.replace("twice", "e").replace("h8g8 a1a8", ""),
    ]
    (puzzle,) = read_puzzles(write_rows(tmp_path / "rows.csv", rows), 100, 0)
    assert puzzle.name == "twice"


def test_rows_of_another_form_cost_only_themselves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = read_puzzles(write_rows(tmp_path / "puzzles.csv"), 100, 0)
    rows = [f"{ROWS[0]},too,many", *ROWS[:3], "too,few", *ROWS[3:], "", "one"]
    assert read_puzzles(write_rows(tmp_path / "ragged.csv", rows), 100, 0) == plain
    assert "more or fewer than 10 columns are left out: 3" in caplog.text
    content = Path(
        write_rows(tmp_path / "bytes.csv", [*ROWS, ROWS[0].replace("00008,r", "a,\u00e9")])
    )
    content.write_bytes(content.read_text(encoding="utf-8").encode("latin-1"))
    assert read_puzzles(str(content), 100, 0) == plain
    with pytest.raises(SuiteUnavailableError, match="holds no puzzle"):
        read_puzzles(write_rows(tmp_path / "none.csv", ["only,one"]), 100, 0)


def test_without_a_readable_file_the_suite_is_left_out(tmp_path: Path) -> None:
    headless = write_rows(tmp_path / "headless.csv", ROWS[1:], ROWS[0])
    empty = write_rows(tmp_path / "empty.csv", [])
    torn = tmp_path / "torn.csv.zst"
    torn.write_bytes(b"no frame at all")
    for path, reason in (
        (None, "no puzzles are packaged"),
        (headless, "could not be read"),
        (empty, "holds no puzzle"),
        (str(torn), "could not be read"),
    ):
        asked = SuiteArguments(suites=["puzzles"], puzzles_file=path)
        suites, left_out = open_suites(asked, EngineArguments())
        assert not suites and reason in left_out["puzzles"]
        assert "give lichess_db_puzzle.csv" in left_out["puzzles"]
    with pytest.raises(ConfigurationError, match=r"puzzles_file: file .* not found"):
        SuiteArguments(puzzles_file=str(tmp_path / "nothing.csv"))


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
