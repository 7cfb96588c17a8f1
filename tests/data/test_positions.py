"""Data sets of the user's own: prompts alone, FENs, EPDs, games, other columns, a held-out set."""

import json
import re
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import chess
import chess.pgn
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rookworld_rlvr.common.errors import NotationError, RookWorldError
from rookworld_rlvr.data.audit import AuditArguments, audit, table
from rookworld_rlvr.data.loading import DataArguments, load_data, parsed_rows, require_answers
from rookworld_rlvr.data.parsing import asked_of, fen_of, parse_rows, pgn_positions
from rookworld_rlvr.data.prepare import PrepareArguments, PrepareReport, read_rows
from rookworld_rlvr.data.sources import Malformed, RowArguments, check_dataset_name
from rookworld_rlvr.data.synthesis import environment_prompts, environment_row, opening_positions
from rookworld_rlvr.tasks.registry import is_right

from ..rows import PAWN_VALUES, PAWNS, START, column, write_jsonl

GAMES = (
    '[Event "Scholar"]\n\n1. e4 e5 2. Bc4 Nc6 3. Qh5 (3. Qf3 d6) 3... Nf6 {oh} 4. Qxf7# 1-0\n\n'
    '[Event "Broken"]\n\n1. e4 e5 2. Ke3 *\n\n[Variant "Atomic"]\n\n1. e4 *\n'
)
# A bracket behind an illegal move, which python-chess fails at; odd tags and null moves.
FAILS = '[Event "x"]\n\n1. e4 e5 2. Ke3 Nf6) 3. Nf3!\n4. d4 *\n\n[Event "y"]\n\n1. d4 d5 *\n'
ODD = '[FEN "garbage"]\n[SetUp "1"]\n\n1. e4 *\n\n1. e4 -- 2. d4 *\n\n1. d4 d5 *\n'


@cache
def prompts(count: int) -> list[str]:
    return [environment_row(asked)["prompt"] for asked in islice(environment_prompts(0), count)]


def write(folder: Path, form: str) -> str:
    """Sixty questions in a form."""
    fens, games = list(islice(opening_positions(1, 12), 60)), []
    for game in range(12):
        board = chess.Board()
        for ply in range(6):
            board.push(list(board.legal_moves)[(ply + game) % board.legal_moves.count()])
        games.append(f"{chess.pgn.Game.from_board(board)}\n")
    texts = {
        "jsonl": [json.dumps({"prompt": prompt}) for prompt in prompts(60)],
        "txt": prompts(60),
        "fen": fens,
        "epd": [chess.Board(fen).epd(id=n, c0="a check: Qd1+") for n, fen in enumerate(fens)],
        "csv": ["fen,who", *(f"{fen},me" for fen in fens)],
        "pgn": games,
    }
    (folder / f"data.{form}").write_text("\n".join(texts[form]))
    return str(folder / f"data.{form}")


def test_every_form_gives_rows_with_the_truth_to_train_on(tmp_path: Path) -> None:
    for form in ("jsonl", "txt", "fen", "epd", "csv", "pgn"):
        name = write(tmp_path, form)
        data = load_data(DataArguments(name, tasks=["environment"], heldout_share=0.3))
        assert data.report.read >= 60 and not data.report.quarantined
        assert min(data.report.train.total(), data.report.heldout.total()) > 5
        for row in [*data.train, *data.heldout]:
            assert is_right(row["prompt"], row["completion"])


def test_a_policy_prompt_alone_has_no_answer_unless_values_give_it(tmp_path: Path) -> None:
    fens = list(islice(opening_positions(3, 12), 30))
    name = write_jsonl(tmp_path / "rows.jsonl", [f"P: {fen}" for fen in fens])
    data = load_data(DataArguments(name, tasks=["policy"], heldout_share=0.3))
    assert not data.report.quarantined and data.report.unlabelled == len(set(fens))
    assert {*data.train["completion"]} == {""}
    assert {*map(len, data.train["prompt"])} == {91}, "padded as the data have it"
    with pytest.raises(RookWorldError, match="policy rows are prompts without an answer"):
        require_answers(data)
    raw = {"prompt": f"P: {PAWNS}", "action_values": column(PAWN_VALUES)}
    (row,) = parsed_rows(RowArguments(write_jsonl(tmp_path / "rows.jsonl", [raw])))
    assert isinstance(row, dict) and "B: f2f4" in row["completion"]


def test_each_task_asks_of_a_position(tmp_path: Path) -> None:
    fens = sorted(set(islice(opening_positions(4, 12), 80)))
    name = write_jsonl(tmp_path / "rows.jsonl", [{"fen": fen} for fen in fens])
    args = DataArguments(dataset_name=name, tasks=["policy", "environment"])
    data, again = load_data(args), load_data(args)
    for task in ("policy", "environment"):
        assert data.report.train[task] + data.report.heldout[task] == len(fens)
    assert again.train["prompt"][:] == data.train["prompt"][:], "the same moves are drawn"
    assert all(row["action"] in row["prompt"] for row in data.train)


def test_fens_and_epds_are_told_from_other_text() -> None:
    assert fen_of(START) == START
    assert fen_of('rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - id "x";') == START
    named = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1"
    assert fen_of(named) == named.replace("e3", "-"), "no pawn could take there"
    others = "", "hello", START.replace(" w ", " x "), START.replace("/8/", "/7/", 1), START[:-11]
    for wrong in others:
        with pytest.raises(NotationError, match="neither a RookWorld row, a FEN nor an EPD"):
            fen_of(wrong)
    for changed, said in (
        ("nrbqkbrn/pppppppp/8/8/8/8/PPPPPPPP/NRBQKBRN w GBgb - 0 1", "Chess960"),
        ("4k3/8/8/8/8/8/8/R4K1R w KQkq -", "castling rights"),
        (named.replace("e3", "e6"), "en passant"),
    ):
        with pytest.raises(NotationError, match=said):
            fen_of(changed)


# Ends of EPDs: the last operation of many files has no semicolon, and a ``+`` in one is a check.
OPERATIONS = (
    'bm Rb8+; id "x.1"',
    "bm Rb8+",
    "dm 3",
    "ce -12",
    "acd 14; bm Rb8+ Ka2; hmvc 7; fmvn 30",
    'bm Rb8+; id "a+b"; ',
    "noop",
)


def test_epds_are_read_as_python_chess_reads_them(tmp_path: Path) -> None:
    boards = [chess.Board(None) for _ in OPERATIONS]
    epds = [f"7k/8/8/8/8/8/8/KR6 w - - {end}" for end in OPERATIONS]
    for board, epd in zip(boards, epds, strict=True):
        board.set_epd(epd)
    fens = [board.fen() for board in boards]
    assert fens[4].endswith(" 7 30") and {*fens[:4], *fens[5:]} == {"7k/8/8/8/8/8/8/KR6 w - - 0 1"}
    (tmp_path / "data.epd").write_text("\n".join(epds))
    rows = parsed_rows(RowArguments(str(tmp_path / "data.epd")), ["policy"])
    assert [isinstance(row, dict) and row["fen"] for row in rows] == fens


# Lines of engines' test suites and perft files, and EPDs of the same positions for python-chess.
MATE, KINGS = "7k/8/8/8/8/8/8/KR6 w - -", "7k/8/8/8/8/8/8/K7 w - -"
NEW = START.removesuffix(" 0 1")
AS_FOUND = {
    # Perft suites, and scores
    f"{START} ;D1 20 ;D2 400": NEW,
    f"{START}; D1 20; D2 400": NEW,
    f"{NEW} 4 11 ; v=175": f"{NEW} hmvc 4; fmvn 11;",
    f"{MATE} D1 13": MATE,
    "r3k2r/8/8/8/3pP3/8/8/R3K2R b KQkq e3  0 1; D4 1": "r3k2r/8/8/8/3pP3/8/8/R3K2R b KQkq e3",
    f"{START}; a name, a comment; another": NEW,
    # Semicolons after the fields
    f"{MATE} ; bm Rb8 + ; id BK.01": MATE,
    f"{MATE}; am Ka2 + ? ; c1 diff=10": MATE,
    f"{MATE};": MATE,
    # Clocks before operations
    f"{MATE} 0 1 bm b1b8": MATE,
    f"{MATE} 3 40 bm Rb8+ dm 26": f"{MATE} hmvc 3; fmvn 40;",
    f'{MATE} 3 40 bm Rb8+; id "x";': f"{MATE} hmvc 3; fmvn 40;",
    # Operations that cannot be read
    f"{MATE} id ?; bm Rb8+;": MATE,
    f"{MATE} am Ra2?; hmvc 7; fmvn 30;": f"{MATE} hmvc 7; fmvn 30;",
    f"{MATE} acn 1028 acd ; acn 1028; pv ; pm;": MATE,
    f'{MATE} bm Qh8; id "WAC.114"; ce 547; pv Qh8 Rb9 hmvc': MATE,
    f"{MATE} bm Rb9": MATE,
    f"{MATE} fmvn ?; hmvc x; hmvc 7": f"{MATE} hmvc 7;",
    f"{MATE} depth five; fmvn 9": f"{MATE} fmvn 9;",
    f'{MATE} c0 "a; hmvc 7; \\"; fmvn 9;"; fmvn 8; bm ?': f"{MATE} fmvn 8;",
    # A stray dash, as python-chess reads it
    f'{MATE} - bm Rb8+; id "x";': f'{MATE} - bm Rb8+; id "x";',
    f"{MATE} - -": f"{MATE} - -",
    f"{MATE} dm 3; - hmvc 7": f"{MATE} dm 3; - hmvc 7",
}


def test_a_position_is_read_whatever_its_operations_are(tmp_path: Path) -> None:
    board = chess.Board(None)
    (tmp_path / "data.epd").write_text("\n".join(AS_FOUND))
    rows = parsed_rows(RowArguments(str(tmp_path / "data.epd")), ["policy"])
    for line, row in zip(AS_FOUND, rows, strict=True):
        assert isinstance(row, dict), (line, row)
        board.set_epd(AS_FOUND[line])
        assert row["fen"] == board.fen(), line


def test_a_wrong_clock_is_a_fault_and_rows_stay_rows() -> None:
    for end in (
        "x y",
        "x 1",
        "0 x",
        "x y; bm Ka2;",
        "0 x; bm Ka2;",
        "0 1 x y",
        "- 1",
        "-1 1",
        "nan nan",
        "None 1",
        "0 1 2",
        "0.5 1",
    ):
        with pytest.raises(NotationError, match="neither a RookWorld row, a FEN nor an EPD"):
            fen_of(f"{KINGS} {end}")
    policy = f"{MATE} 0 1    M: b1b8 a1a2      E: 9.0 0.0      B: b1b8"
    environment = f"{MATE} 0 1+b1b8+b1b8+1R5k/8/8/8/8/8/8/K7 b - - 1 1+0.001+0+0"
    for text, said in (
        (policy, "neither a RookWorld row"),  # its prefix is lost, and what it says is not dropped
        (f"{policy};", "neither a RookWorld row"),
        (f"P: {policy};", "not a move in UCI notation: 'b1b8;'"),
        (f"A: {MATE} 0 1; bm Rb8+", "environment row"),
        (f"{MATE} 0 1 + b1b8 +", "environment row"),
        (f"{MATE} 0 1+b1b8;", "environment row"),
    ):
        (row,) = parse_rows([{"text": text}], ["policy"])
        assert isinstance(row, Malformed) and said in row.message, (text, row)
    for text in (environment, f"A: {environment}", f"P: {policy}"):
        (row,) = parse_rows([{"text": text}], ["policy"])
        assert isinstance(row, dict) and row["completion"], (text, row)


def test_a_nul_at_the_end_of_a_line_is_passed_over(tmp_path: Path) -> None:
    lines = f'{START}\0\n{START[:-4]} id "x"; bm\0\r\n\0\n# y\0\nP: {START}\0\n\0'
    (tmp_path / "data.epd").write_text(lines)
    (tmp_path / "data.csv").write_text(f"fen,who\n{START}\0,me\0\n")
    for name in ("data.epd", "data.csv"):
        rows = parsed_rows(RowArguments(str(tmp_path / name)), ["policy"])
        fens = [row["fen"] for row in rows if isinstance(row, dict)]
        assert fens == [START] * (3 if name == "data.epd" else 1)
        assert [row.kind for row in rows if isinstance(row, Malformed)] in ([], ["comment"])
    (tmp_path / "none.epd").write_text("\0\n")
    with pytest.raises(RookWorldError, match="no rows"):
        parsed_rows(RowArguments(str(tmp_path / "none.epd")), ["policy"])


def test_comments_are_passed_over_and_counted(tmp_path: Path) -> None:
    fens = list(islice(opening_positions(5, 12), 60))
    comments = ["# Bratko+Kopec", '% 60 positions; id "x";', "  #"]
    file, kept = tmp_path / "data.epd", tmp_path / "quarantine.jsonl"
    file.write_text("\n".join([*comments, fens[0], "   ", *fens[1:], comments[0]]))
    arguments = DataArguments(str(file), tasks=["environment"], heldout_share=0.3)
    report = load_data(replace(arguments, max_quarantined_share=0), kept).report
    assert (report.read, report.comments, report.quarantined) == (60, 4, {})
    assert not kept.exists(), "comments are no faults"
    assert re.search(r"^comments passed over +4$", "\n".join(report.lines()), re.M)
    result = audit(AuditArguments(dataset_name=str(file)))
    assert (result["read"], result["comments"], result["malformed"]) == (60, 4, {})
    assert re.search(r"^ +comments passed over +4$", table(result), re.M)
    counts = PrepareReport()
    args = PrepareArguments(dataset_name=str(file), output_file="rows.parquet", labels="stored")
    assert len(read_rows(args, counts, kept)) == 60
    assert (counts.rows["read"], counts.rows["comments"], counts.rows["quarantined"]) == (60, 4, 0)


def test_a_column_that_is_not_read_is_said(caplog: pytest.LogCaptureFixture) -> None:
    row = {"fen": START, "move": "e2e4"}
    list(parse_rows([row], ["environment"]))
    assert "no column action" in caplog.text and "move" in caplog.text
    caplog.clear()
    list(parse_rows([{**row, "action": "e2e4"}], ["environment"]))
    list(parse_rows([row], ["policy"]))
    assert not caplog.text


def test_a_bad_line_is_counted_from_1_and_called_what_it_is(tmp_path: Path) -> None:
    for form in ("fen", "epd", "txt"):
        name, kept = write(tmp_path, form), tmp_path / "quarantine.jsonl"
        lines = Path(name).read_text().splitlines()
        bad = "rnbqkbnr/ppppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
        Path(name).write_text("\n".join(["", lines[0], bad, *lines[1:], "hello"]))
        said = f'neither a RookWorld row, a FEN nor an EPD: "{bad} (expected 8 columns per row'
        with pytest.raises(RookWorldError, match=re.escape(f"the first is row 3: {said}")):
            load_data(DataArguments(dataset_name=name, max_quarantined_share=0), kept)
        first, last = map(json.loads, kept.read_text().splitlines())
        assert [first["row"], first["text"], first["reason"][: len(said)]] == [3, bad, said]
        assert last["text"] == "hello"


def test_a_prompt_that_is_no_text_is_called_so() -> None:
    (row,) = parse_rows([{"prompt": [{"role": "user"}]}], ["policy"])
    assert isinstance(row, Malformed) and "a list of messages" in row.message


def test_a_move_and_the_moves_before_it_are_read_from_a_table() -> None:
    row = {"fen": chess.STARTING_FEN, "action": "e2e4", "history": "e2e4"}
    (prompt,) = asked_of(row, ["environment"])
    assert prompt["prompt"] == f"A: {chess.STARTING_FEN}+e2e4+e2e4+"
    for change, fault in (
        ({"action": "e4"}, "not a move in UCI notation: 'e4'"),
        ({"history": "g1f3"}, "a history that does not end with the action, e2e4: "),
    ):
        with pytest.raises(NotationError, match=re.escape(fault)):
            asked_of({**row, **change}, ["environment"])


def test_games_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    for text, played, faults in (
        (FAILS, "e2e4 e7e5 d2d4 d7d5", ["1: .*Ke3"]),
        (ODD, "e2e4 d2d4 d7d5", ["1: ", "2: "]),
        (GAMES, "e2e4 e7e5 f1c4 b8c6 d1h5 g8f6 h5f7 e2e4 e7e5", ["2: .*Ke3", "3: .*Atomic"]),
    ):
        (tmp_path / "games.pgn").write_text(text)
        rows = list(pgn_positions(tmp_path / "games.pgn"))
        assert [row["action"] for row in rows if "fen" in row] == played.split()
        said = [row["fault"].removeprefix("game ") for row in rows if "fault" in row]
        assert len(said) == len(faults) and all(map(re.match, faults, said)), said
    assert rows[2]["history"] == ("e2e4", "e7e5", "f1c4") and " w " in rows[2]["fen"]
    with pytest.raises(RookWorldError, match=r"cannot be read to its end: .game 2"):
        load_data(DataArguments(str(tmp_path / "games.pgn"), tasks=["environment"]))


# Chess960 without the header that says so, and positions that python-chess would change.
CHESS960 = "it is of the variant 'Chess960'"
SETUPS = {
    "bbnnqrkr/pppppppp/8/8/8/8/PPPPPPPP/BBNNQRKR w HFhf - 0 1": CHESS960,
    "nrbqkbrn/pppppppp/8/8/8/8/PPPPPPPP/NRBQKBRN w KQkq - 0 1": CHESS960,
    "4k3/8/8/8/8/8/4P3/4K3 w KQkq - 0 1": "castling rights without king and rook at home",
    "4k3/8/8/8/8/8/4P3/4K3 w - e6 0 1": "an en passant square that no pawn has just passed",
    "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1": None,
}


def test_a_game_from_a_position_is_refused_where_the_position_is(tmp_path: Path) -> None:
    file = tmp_path / "games.pgn"
    for fen, fault in SETUPS.items():
        file.write_text(f'[SetUp "1"]\n[FEN "{fen}"]\n\n1. e4 *\n\n1. d4 *\n')
        first, second = pgn_positions(file)
        assert second["action"] == "d2d4", "the next game is read"
        if fault is None:
            assert fen_of(fen) == first["fen"] == fen
            continue
        assert first["fault"].startswith(f"game 1: {fault}"), first
        with pytest.raises(NotationError, match=r"Chess960|en passant"):
            fen_of(fen)


def test_a_held_out_set_of_its_own(tmp_path: Path) -> None:
    texts = prompts(120)
    train = write_jsonl(tmp_path / "train.jsonl", [{"prompt": text} for text in texts])
    test = write_jsonl(tmp_path / "test.jsonl", [{"prompt": text} for text in texts[:30]])
    options = {"tasks": ["environment"], "heldout_share": 0}
    data = load_data(DataArguments(dataset_name=train, eval_dataset_name=test, **options))
    assert set(data.heldout["prompt"]) == set(texts[:30])
    assert not {*data.heldout["fen"]} & {*data.train["fen"]}
    assert data.report.shared >= 30 and data.report.read == 150
    lines = "\n".join(data.report.lines())
    assert "not trained on, as their positions are in eval_dataset_name" in lines
    assert "warning: only 30 held-out environment rows are measured" in lines


def test_moves_that_come_along_are_moves(tmp_path: Path) -> None:
    (row,) = asked_of({"fen": START, "history": "g1f3 g8f6 e2e4"}, ["environment"])
    assert row["prompt"].endswith("+e2e4+g1f3 g8f6 e2e4+")
    assert asked_of({"fen": START, "history": "g1f3,g8f6, e2e4"}, ["environment"]) == [row]
    for as_text in (
        "['g1f3', 'g8f6', 'e2e4']",
        '["g1f3", "g8f6", "e2e4"]',
        "['g1f3' 'g8f6' 'e2e4']",
    ):
        assert asked_of({"fen": START, "history": as_text}, ["environment"]) == [row]
    file = tmp_path / "rows.csv"
    pd.DataFrame({"fen": [START], "history": [["g1f3", "g8f6", "e2e4"]]}).to_csv(file, index=False)
    (asked,) = parsed_rows(RowArguments(str(file)), ["environment"])
    assert isinstance(asked, dict) and asked["prompt"] == row["prompt"]
    assert asked_of({"fen": START, "action": "e2e4", "history": "[]"}, ["environment"]) == asked_of(
        {"fen": START, "action": "e2e4"}, ["environment"]
    )
    long = ["g1f3", "g8f6", "f3g1", "f6g8"] * 4 + ["e2e4"]
    for history in (long, " ".join(long)):
        (asked,) = parse_rows([{"fen": START, "history": history}], ["environment"])
        assert isinstance(asked, dict) and asked["history"] == long[-10:]
    odd = (
        {"action": 5},
        {"history": [None]},
        {"history": 7},
        {"action": "e2e4", "history": ["d2d4"]},
    )
    for wrong in odd:
        with pytest.raises(NotationError):
            asked_of({"fen": START, **wrong}, ["environment"])


def test_what_editors_on_windows_write_is_read(tmp_path: Path) -> None:
    for name, text, code in (
        ("a.fen", f"{START}\r\n", "utf-8-sig"),
        ("b.txt", f"P: {START}\r\n", "utf-8-sig"),
        ("c.csv", f"fen\r\n{START}\r\n", "utf-8-sig"),
        ("d.jsonl", f'{{"fen": "{START}"}}\n', "utf-8-sig"),
        ("e.fen", f"{START}\n", "utf-16"),
        ("f.PGN", GAMES, "utf-16"),
        ("g.csv", f"fen\n{START}\n", "utf-16"),
        ("h.tsv", f"fen\taction\r\n{START}\te2e4\r\n", "utf-16"),  # Excel's "Unicode text"
        ("i.epd", f'{START[:-4]} id "x";\r\n', "utf-8-sig"),
        ("j.json", f'[{{"fen": "{START}"}}]\r\n', "utf-8-sig"),
        ("k.pgn", GAMES.replace("\n", "\r\n"), "utf-8-sig"),
    ):
        (tmp_path / name).write_bytes(text.encode(code))
        row, *_ = parsed_rows(RowArguments(str(tmp_path / name)), ["policy"])
        assert isinstance(row, dict) and row["fen"] == START, name


def test_a_file_without_rows_and_a_folder_are_called_so(tmp_path: Path) -> None:
    contents = {
        **{
            f"none.{form}": ""
            for form in ("jsonl", "csv", "tsv", "parquet", "fen", "epd", "pgn", "txt")
        },
        **{
            f"blank.{form}": "\n \n"
            for form in ("jsonl", "json", "csv", "tsv", "fen", "pgn", "txt")
        },
        "head.csv": "fen\n",
        "head.tsv": "fen\taction\n",
        "list.json": "[]",
        "comments.epd": "# nothing\n\n% at all\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    pq.write_table(pa.table({"fen": pa.array([], pa.string())}), tmp_path / "head.parquet")
    for name in (*contents, "head.parquet"):
        with pytest.raises(RookWorldError, match=rf"no rows in .*{re.escape(name)}'; give others$"):
            parsed_rows(RowArguments(str(tmp_path / name)), ["policy"])
    for folder in (tmp_path / "rows.csv", tmp_path / "rows"):
        folder.mkdir()
        (fault,) = check_dataset_name(str(folder))
        assert fault == f"dataset_name: {str(folder)!r} is a folder; give a file in it"


def test_what_is_no_text_is_called_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    utf16 = json.dumps({"fen": START}).encode("utf-16")
    for name, content, said in (
        ("a.csv", bytes(range(256)), "check what is in the file"),
        ("a.tsv", bytes(range(256)), "check what is in the file"),
        ("b.csv", b"\x89PNG\r\n\x1a\n", "no column 'text'"),
        ("a.txt", START.encode("utf-16")[:-1], "not text in UTF-8: save it in UTF-8"),
        ("a.jsonl", utf16, "not text in UTF-8"),
        ("b.jsonl", b"\x89PNG\r\n", "check what is in the file"),
        ("a.parquet", b"\x89PNG\r\n" * 9, "not a parquet file.*check what is in the file"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(RookWorldError, match=said) as caught:
            parsed_rows(RowArguments(str(tmp_path / name)), ["policy"])
        assert str(tmp_path / name) in str(caught.value) and "network" not in str(caught.value)
    warnings = [record.getMessage() for record in caplog.records]
    assert [line.partition(" ")[0][-5:] for line in warnings] == ["a.csv", "a.tsv", "b.csv"]


def test_a_name_in_another_encoding_does_not_cost_its_position(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    epd, row = f'{START[:-4]} id "Réti";', f"P: {START}"
    for name, text in (
        ("a.epd", f"# Réti\n{epd}\n"),
        ("b.fen", f"{epd}\n"),
        ("c.txt", f"{epd}\n{row}\n"),
        ("d.csv", f"fen,who\n{START},Réti\n"),
        ("e.tsv", f"Spieler\tÉlo\tFEN\nRéti\t1\t{START}\n"),
        ("f.pgn", '[White "Réti"]\n\n1. d4 *\n'),
    ):
        for encoding in ("utf-8", "cp1252"):
            caplog.clear()
            (tmp_path / name).write_bytes(text.encode(encoding))
            rows = parsed_rows(RowArguments(str(tmp_path / name)), ["policy"])
            fens = [row["fen"] for row in rows if isinstance(row, dict)]
            assert fens == [START] * (2 if name == "c.txt" else 1), name
            said = f"{name} is not in UTF-8" in caplog.text
            assert said == (encoding == "cp1252") and len(caplog.records) == said


def test_a_row_with_a_replaced_byte_is_quarantined(tmp_path: Path) -> None:
    prompt = f"P: {START}"
    for name, text in (
        ("a.txt", f"{prompt} é\n{prompt}\n{START} é\n"),
        ("b.csv", f"prompt,completion\n{prompt},é\n{prompt},\nF: é,\n"),
    ):
        (tmp_path / name).write_bytes(text.encode("latin-1"))
        first, second, third = parsed_rows(RowArguments(str(tmp_path / name)), ["policy"])
        assert isinstance(first, Malformed) and "not UTF-8, read as U+FFFD" in first.message
        assert isinstance(second, dict) and isinstance(third, Malformed)


def test_columns_are_named_in_any_case(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(f"FEN,Action,HISTORY\n{START},e2e4,g1f3 g8f6 e2e4\n")
    (row,) = parsed_rows(RowArguments(str(file)), ["environment"])
    assert isinstance(row, dict)
    assert (row["action"], row["history"]) == ("e2e4", ["g1f3", "g8f6", "e2e4"])
    raw = {"Prompt": f"P: {PAWNS}", "Completion": " M: f2f4 E: 1.0 B: f2f4"}
    raws = [{**raw, "Action_Values": column(PAWN_VALUES)}]
    (row,) = parsed_rows(RowArguments(write_jsonl(tmp_path / "rows.jsonl", raws)))
    assert isinstance(row, dict) and row["action_values"] == column(PAWN_VALUES)
    assert row["completion"].endswith("B: f2f4")
    name = write_jsonl(tmp_path / "rows.jsonl", [{"Line": f"P: {PAWNS}", "Text": "mine"}])
    for given in ("Line", "line"):
        (row,) = parsed_rows(RowArguments(name, text_column=given))
        assert isinstance(row, dict) and row["fen"] == PAWNS
    name = write_jsonl(tmp_path / "rows.jsonl", [{"FEN": "mine", "fen": PAWNS}])
    (row,) = parsed_rows(RowArguments(name), ["policy"])
    assert isinstance(row, dict) and row["fen"] == PAWNS, "the column of the very name comes first"


def test_tables_with_tabs_are_read_or_told_apart(tmp_path: Path) -> None:
    content = f"fen\taction\n{START}\te2e4\n"
    for suffix in ("tsv", "csv", "txt"):
        (tmp_path / f"rows.{suffix}").write_text(content)
    (row,) = parsed_rows(RowArguments(str(tmp_path / "rows.tsv")), ["environment"])
    assert isinstance(row, dict) and (row["fen"], row["action"]) == (START, "e2e4")
    with pytest.raises(RookWorldError, match=r"separated by tabs: name the file \.tsv$"):
        parsed_rows(RowArguments(str(tmp_path / "rows.csv")), ["environment"])
    for row in parsed_rows(RowArguments(str(tmp_path / "rows.txt")), ["environment"]):
        assert (
            isinstance(row, Malformed) and "a table with tabs belongs in a .tsv file" in row.reason
        )
    assert fen_of(START.replace(" ", "\t")) == START


def test_a_share_is_no_remedy_if_no_row_is_left(tmp_path: Path) -> None:
    (tmp_path / "rows.fen").write_text("7k/8/8/8/8/8/8/8 w - - 0 1\n")
    (tmp_path / "rows.txt").write_text("hello\n7k/8/8/8/8/8/8/8 w - - 0 1\n")
    (tmp_path / "rows.epd").write_text("hello\n")
    for name, verb, reason in (
        ("rows.fen", "judged", "a king is missing"),
        ("rows.txt", "read and judged", "neither a RookWorld row, a FEN nor an EPD"),
        ("rows.epd", "read", "neither a RookWorld row, a FEN nor an EPD"),
    ):
        for share in (0.01, 1):
            arguments = DataArguments(str(tmp_path / name), max_quarantined_share=share)
            said = rf"^no row of .*{name}' can be {verb}: {{'{reason}': 1.*Mend the data$"
            with pytest.raises(RookWorldError, match=said) as caught:
                load_data(arguments)
            assert "raise" not in str(caught.value)
