"""Rows are written by hand, one fault at a time, and the numbers expected are counted by hand."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.data.audit import AuditArguments, audit
from rookworld_rlvr.data.audit_text import advice, table
from rookworld_rlvr.tasks.types import FILL_IN_FIELDS

from ..conftest import REPOSITORY, recipe

Row = dict[str, Any]

REAL_ROWS = REPOSITORY.parent / "shared" / "data" / "rook_val_500.txt"

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
AFTER_E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
E4 = f"{START}+e2e4+e2e4+{AFTER_E4}+0.001+0+0"
E5 = (
    f"{AFTER_E4}+e7e5+e2e4 e7e5+"
    "rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2+0.001+0+0"
)

# Three pawns up, each with seven legal moves: f one or two, g one or two, h one or two, the king.
WHITE_UP = "7k/8/8/8/8/8/5PPP/7K w - - 0 {n}"
BLACK_UP = "7k/5ppp/8/8/8/8/8/7K b - - 0 {n}"
BLACK_DOWN = "7k/8/8/8/8/8/5PPP/7K b - - 0 {n}"  # the king alone: three moves
BLACK_EVEN = "7k/7p/8/8/8/8/7P/7K b - - 0 {n}"
BLACK_VALUES = {
    "g7g5": 100,
    "f7f5": 90,
    "h7h5": 50,
    "f7f6": 0,
    "g7g6": 0,
    "h8g8": -10,
    "h7h6": -300,
}


def policy(fen: str, moves: str, evaluations: str, best: str) -> str:
    return f"P: {fen} M: {moves} E: {evaluations} B: {best}"


def white(
    n: int, evaluations: str = "1.0 0.5", best: str = "g2g4", moves: str = "g2g4 f2f4"
) -> str:
    return policy(WHITE_UP.format(n=n), moves, evaluations, best)


def black(
    n: int, evaluations: str = "1.0 0.5", best: str = "g7g5", moves: str = "g7g5 f7f5"
) -> str:
    return policy(BLACK_UP.format(n=n), moves, evaluations, best)


def labelled(text: str, values: dict[str, int] = BLACK_VALUES) -> Row:
    column = [{"move": move, "cp": cp} for move, cp in values.items()]
    return {"text": text, "action_values": column}


def rows_file(path: Path, rows: Iterable[str | Row]) -> str:
    raws = [{"text": row, "action_values": None} if isinstance(row, str) else row for row in rows]
    path.write_text("".join(json.dumps(raw) + "\n" for raw in raws))
    return str(path)


@pytest.fixture
def audited(tmp_path: Path) -> Any:
    """Audit rows that are given as text, or with their action values."""

    def run(*rows: str | Row, **options: Any) -> Row:
        name = rows_file(tmp_path / "rows.jsonl", rows)
        return audit(AuditArguments(dataset_name=name, **options))

    return run


def counted(rows: int, share: float | None) -> Row:
    return {"rows": rows, "share": None if share is None else pytest.approx(share)}


# --------------------------------------------------------------------------------------------------
# Rows
# --------------------------------------------------------------------------------------------------
def test_rows_are_counted_by_task_and_side_and_the_malformed_by_reason(audited: Any) -> None:
    result = audited(white(1), white(2), black(1), E4, E4, E5, "hello", "P: x", "you", "")
    assert result["rows"]["read"] == 9  # an empty line is no row
    assert result["rows"]["white"] == {"environment": 2, "policy": 2, "fill_in": 0}
    assert result["rows"]["black"] == {"environment": 1, "policy": 1, "fill_in": 0}
    assert result["rows"]["malformed"] == counted(3, 1 / 3)
    assert list(result["rows"]["malformed_reasons"].items()) == [
        ("neither a RookWorld row, a FEN nor an EPD", 2),
        ("no section 'M:' in the policy row", 1),
    ]
    assert (result["policy"]["rows"], result["environment"]["rows"]) == (3, 3)


def test_fill_in_rows_are_counted_by_field_and_the_corrupted_as_unjudgeable(audited: Any) -> None:
    record = f"{START}+e2e4+e2e4+{AFTER_E4}+0.001+0+0+"
    action = record.replace("+e2e4+e2e4+", "+[MASK]+[MASK]+")
    result = audited(
        f"F: {record.replace('+0.001', '+[MASK]')} 0.001",
        f"F: {action} e2e4",
        f"F: {action} e2e3",  # not what was hidden
        f"F: {action.replace('4P3', '3P4')} e2e4",  # nothing leads there
    )
    assert result["rows"]["white"]["fill_in"] == 2
    assert result["rows"]["malformed"] == counted(0, 0.0)
    assert result["rows"]["unjudgeable"] == counted(2, 1 / 2)
    assert result["rows"]["unjudgeable_kinds"] == {
        "no answer is consistent with the record": 1,
        "the answer is not consistent with the record": 1,
    }
    fields = {**dict.fromkeys(FILL_IN_FIELDS, 0), "action": 1, "reward": 1}
    assert result["fill_in"] == {
        "rows": 2,
        "fields": {field: counted(rows, rows / 2) for field, rows in fields.items()},
    }
    assert re.search(r"^Fill in$.*^ +action +1 +50\.0%$", table(result), re.M | re.S)


def test_positions_are_policy_prompts_without_an_answer(tmp_path: Path) -> None:
    fens, games = tmp_path / "positions.fen", tmp_path / "games.pgn"
    fens.write_text(f"{START}\n{AFTER_E4}\n")
    games.write_text("1. e4 e5 *\n")
    result = audit(AuditArguments(dataset_name=str(games), eval_dataset_name=str(fens)))
    assert result["rows"]["malformed"] == counted(0, 0.0)
    assert result["policy"]["without_answer"] == counted(2, 1.0)
    assert result["overlap"]["positions"] == 2
    assert "2 policy rows without action_values" in advice_text(result)
    result = audit(AuditArguments(dataset_name=str(games), tasks=["environment"]))
    assert (result["policy"]["rows"], result["environment"]["rows"]) == (0, 2)
    assert result["environment"]["without_answer"] == counted(2, 1.0)
    assert result["environment"]["right"] == counted(0, None), (
        "no answer is neither right nor wrong"
    )


def test_a_position_without_a_move_is_counted(tmp_path: Path) -> None:
    mate = tmp_path / "mate.fen"
    mate.write_text("R5k1/5ppp/8/8/8/8/8/7K b - - 0 1\n")
    rows = audit(AuditArguments(dataset_name=str(mate), tasks=["policy", "environment"]))["rows"]
    assert (rows["read"], rows["unjudgeable"]) == (1, counted(1, 1.0))


def test_rows_may_be_in_another_column(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"line": row, "text": "x"}) + "\n" for row in (E4, E4)))
    name = str(path)
    result = audit(AuditArguments(dataset_name=name, text_column="line"))
    assert result["rows"]["malformed"] == counted(0, 0.0)
    assert f"--dataset_name {name} --text_column line --output_file" in advice_text(result)
    with pytest.raises(RookWorldError, match=r"no column 'lien' in .*found: line, text"):
        audit(AuditArguments(dataset_name=name, text_column="lien"))


# --------------------------------------------------------------------------------------------------
# Policy: what rows name
# --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("answer", "changed"),
    [
        (("g2g4 e2e4", "1.0 0.5", "g2g4"), {"all_moves_legal": 2}),
        (("g2g4 f2f4", "1.0 0.5", "e2e4"), {"best_is_legal": 2, "best_in_moves": 2}),
        (("g2g4 f2f4", "1.0 0.5", "h2h4"), {"best_in_moves": 2}),
        (("g2g4 g2g4", "1.0 0.5", "g2g4"), {"move_twice": 1}),
        (("g2g4 f2f4", "1.0", "g2g4"), {"evaluations_not_one_a_move": 1}),
        (("g2g4", "1.0 0.5", "g2g4"), {"evaluations_not_one_a_move": 1}),
    ],
)
def test_each_fault_of_form_is_counted_alone(
    audited: Any, answer: tuple[str, str, str], changed: dict[str, int]
) -> None:
    result = audited(white(1), white(2), policy(WHITE_UP.format(n=3), *answer))["policy"]
    clean = {
        "all_moves_legal": 3,
        "best_is_legal": 3,
        "best_in_moves": 3,
        "move_twice": 0,
        "evaluations_not_one_a_move": 0,
    }
    for name, rows in (clean | changed).items():
        assert result[name] == counted(rows, rows / 3), name


def test_best_moves_beside_evaluations_by_side(audited: Any) -> None:
    three = {"moves": "g2g4 f2f4 h2h4", "best": "f2f4"}
    result = audited(
        white(1),
        white(2, "1.0 0.9"),
        white(3, "-1.0 -2.0"),
        white(4, "0.2 0.5 0.9", **three),  # neither the highest nor the lowest
        white(5, "0.5 0.5"),  # a tie
        white(6, "0.5 1.0 1.0", **three),  # a tie of two
        white(7, "1.0", moves="g2g4"),  # one alone
        white(8, "1.0 0.5 0.2"),  # more evaluations than moves
        black(1),
        black(2, "0.5 1.0"),
        black(3, "-1.5 1.0"),
        black(4, "-3.0 -2.9"),
        black(5, "0.0 0.0"),
    )["policy"]
    assert result["white"] == {
        "distinct_evaluations": 4,
        "best_is_argmax_e": 0.75,
        "best_is_argmin_e": 0.0,
    }
    assert result["black"] == {
        "distinct_evaluations": 4,
        "best_is_argmax_e": 0.25,
        "best_is_argmin_e": 0.75,
    }


# --------------------------------------------------------------------------------------------------
# Policy: beside the values of all moves
# --------------------------------------------------------------------------------------------------
def test_rows_beside_their_action_values(audited: Any) -> None:
    result = audited(
        # Best of all, and three of the top five (two moves tie for the fourth place).
        labelled(black(1, "1.0 0.9 0.7", "g7g5", "g7g5 f7f5 h7h5")),
        # Best of its own, the third best of all; one of the top five.
        labelled(black(2, "-0.1 -3.0", "h7h5", "h7h5 h7h6")),
        # The worst of its own; all five.
        labelled(black(3, "0.0 0.0 0.5 0.9 1.0", "g7g6", "f7f6 g7g6 h7h5 f7f5 g7g5")),
        white(1),
    )["policy"]["action_values"]
    assert result["labelled"] == counted(3, 0.75)
    assert result["black"] == {
        "rows": 3,
        "best_is_best_of_five": pytest.approx(2 / 3),
        "best_is_best_of_all": pytest.approx(1 / 3),
        "top_five_named": pytest.approx((3 / 5 + 1 / 5 + 1) / 3),
        "evaluation_error_pawns": pytest.approx((0.2 + 0.6) / 10),
        # Nought has no sign: eight of the ten pairs have two, and one of these differ.
        "evaluation_sign_right": pytest.approx(7 / 8),
    }
    assert result["white"] == {
        "rows": 0,
        "best_is_best_of_five": None,
        "best_is_best_of_all": None,
        "top_five_named": None,
        "evaluation_error_pawns": None,
        "evaluation_sign_right": None,
    }


# --------------------------------------------------------------------------------------------------
# Environment
# --------------------------------------------------------------------------------------------------
KINDS = {
    "board": E4.replace("/4P3/8/PPPP1PPP", "/3P4/8/PPPP1PPP"),
    "side_to_move": E4.replace(" b KQkq", " w KQkq"),
    "castling_rights": E4.replace("b KQkq", "b KQk"),
    "en_passant": E4.replace("b KQkq -", "b KQkq e3"),
    "halfmove_clock": E4.replace("b KQkq - 0 1", "b KQkq - 1 1"),
    "fullmove_number": E4.replace("b KQkq - 0 1", "b KQkq - 0 2"),
    "reward": E4.replace("0.001", "0.01"),
    "terminated": E4.replace("+0+0", "+1+0"),
    "truncated": E4.replace("+0+0", "+0+1"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_difference_from_python_chess_is_counted_alone(audited: Any, kind: str) -> None:
    assert KINDS[kind] != E4
    result = audited(E5, KINDS[kind], E5, E5)["environment"]
    assert result["right"] == counted(3, 0.75)
    assert list(result["differences"]) == list(KINDS)
    for name, found in result["differences"].items():
        assert found == (counted(1, 0.25) if name == kind else counted(0, 0.0)), name
    assert result["en_passant_without_capture"]["rows"] == (kind == "en_passant")
    assert result["history_without_action"] == counted(0, 0.0)


def test_en_passant_squares_that_no_capture_or_no_truth_names(audited: Any) -> None:
    before, after = "4k3/3p4/8/4P3/8/8/8/4K3 b - - 0 1", "4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 2"
    right = f"{before}+d7d5+d7d5+{after}+0.001+0+0"
    result = audited(right, right.replace(" d6 ", " - "), right.replace(" d6 ", " e6 "))
    environment = result["environment"]
    assert environment["right"]["rows"] == 1
    assert environment["differences"]["en_passant"]["rows"] == 2
    assert environment["en_passant_without_capture"]["rows"] == 1
    idle = policy(AFTER_E4.replace(" - ", " e3 "), "e7e5", "0.1", "e7e5")
    result = audited(right, idle, policy(after, "e5d6", "0.1", "e5d6"), E5)
    assert result["rows"]["idle_en_passant_in_prompt"] == counted(1, 0.25)


@pytest.mark.parametrize("history", ["", "d2d4", "e2e4 e7e5"])
def test_a_history_that_does_not_end_with_the_action(audited: Any, history: str) -> None:
    result = audited(E4, E4.replace("+e2e4+e2e4+", f"+e2e4+{history}+"))["environment"]
    assert result["history_without_action"] == counted(1, 0.5)
    assert result["right"] == counted(2, 1.0)


# Rows of RookWorld's public generator, which plays on after illegal moves.
KINGS_LEAP = (
    "6k1/8/5p2/8/8/8/8/4K3 w - - 16 77+e1g4+d1e1 h7g8 e1g4+"
    "6k1/8/5p2/8/6K1/8/8/8 b - - 17 77+0.001+0+0"
)
EMPTY_SQUARE = (
    "8/8/8/2P5/3K4/4Q3/3k4/8 b - - 4 58+a5d6+e2d2 b3e3 a5d6+"
    "8/8/8/2P5/3K4/4Q3/3k4/8 b - - 5 59+-1.0+0+1"
)
NO_KING = (
    "8/3q4/1K4P1/8/8/7p/8/2p5 b - - 5 77+d7e7+a4d7 b7b6 d7e7+"
    "8/4q3/1K4P1/8/8/7p/8/2p5 w - - 6 78+0.001+0+0"
)
AFTER_A_LEAP = KINGS_LEAP.replace("h7g8", "h7f8").replace("6k1/8", "5k2/8")


def test_illegal_moves_that_are_played_on(audited: Any) -> None:
    clocks = E4.replace("b KQkq - 0 1", "b KQkq - 1 1")
    rows = [KINGS_LEAP, EMPTY_SQUARE, NO_KING, AFTER_A_LEAP, E4, clocks, NO_KING[:20]]
    result = audited(*rows, "P: 8/8/8/8/8/8/8/8 w - - 0 1 M: e2e4 E: 0.1 B: e2e4")
    assert result["rows"]["unjudgeable"] == counted(2, 2 / 8)
    assert result["rows"]["unjudgeable_kinds"] == {"a king is missing": 2}
    environment = result["environment"]
    assert environment["illegal_move_played_on"] == {
        "rows_after": counted(2, 2 / 6),  # NO_KING and AFTER_A_LEAP
        "answers": counted(3, 3 / 5),  # the first two and AFTER_A_LEAP
    }
    assert environment["right"] == counted(1, 1 / 5)
    differing = {kind for kind, found in environment["differences"].items() if found["rows"]}
    assert differing == {"halfmove_clock"}, "of the answer that no generator's rule explains"
    told = advice_text(result)
    assert "illegal move played on: 2 rows from such a move, 3 answers by the public" in told
    assert "1 environment answer (20.0%) that python-chess contradicts: halfmove clock 1" in told


def test_the_real_generators_rows(real_data: Path) -> None:
    """Every wrong answer is by the generator's rule."""
    result = audit(AuditArguments(dataset_name=str(real_data / "arbiter_rows_2000.jsonl")))
    assert result["rows"]["malformed"]["rows"] == 0
    assert result["rows"]["unjudgeable"]["rows"] == 136
    environment = result["environment"]
    assert environment["rows"] - environment["right"]["rows"] == 46
    assert environment["illegal_move_played_on"]["answers"]["rows"] == 46
    assert environment["illegal_move_played_on"]["rows_after"]["rows"] == 136 + 12
    assert not any(found["rows"] for found in environment["differences"].values())


# --------------------------------------------------------------------------------------------------
# Duplicates and overlap
# --------------------------------------------------------------------------------------------------
def test_duplicates_and_those_that_conflict_with_the_first(audited: Any) -> None:
    wrong = E4.replace("0.001", "1.0")
    result = audited(
        E4,
        black(1),
        f"A: {E4}",  # the same
        wrong,  # conflicts
        black(1, "0.5 1.0", moves="f7f5 g7g5"),  # the same in another order
        wrong,  # conflicts with the first, though not with the one before
        black(1, best="f7f5"),  # conflicts
        E5,
        black(2),
    )["duplicates"]
    assert result == {"repeated": counted(5, 5 / 9), "conflicting": counted(3, 3 / 9)}


def test_positions_shared_with_an_evaluation_set(audited: Any, tmp_path: Path) -> None:
    idle = AFTER_E4.replace(" - 0 1", " e3 0 9")  # the position of E5, spelt otherwise
    rows = [E4, black(9), policy(idle, "e7e5", "0.1", "e7e5"), white(1), "nonsense"]
    name = rows_file(tmp_path / "tested.jsonl", rows)
    result = audited(E4, E4, E5, black(7), max_rows=3, eval_dataset_name=name)
    trained = result["dataset_name"]
    assert result["overlap"] == {
        "first": trained,
        "second": name,
        "positions": 2,
        "rows_of_first": 3,
        "rows_of_second": 2,
        "malformed_of_second": 1,
    }
    assert result["rows"]["read"] == 3  # the evaluation set's are not counted
    assert f"{trained} and {name}: 2 positions, in 3 and 2 rows" in table(result)
    assert f"evaluate only on the rest of {name} (leave 2 rows out), or do not train on 3 rows" in (
        advice_text(result)
    )


def test_an_evaluation_set_that_cannot_be_read_is_no_set_without_overlap(
    audited: Any, tmp_path: Path
) -> None:
    name = rows_file(tmp_path / "puzzles.jsonl", ["hello", "you"])
    with pytest.raises(RookWorldError, match=r"no row of .*puzzles\.jsonl"):
        audited(E4, eval_dataset_name=name)


# --------------------------------------------------------------------------------------------------
# The script
# --------------------------------------------------------------------------------------------------
def advice_text(result: Row) -> str:
    return "\n".join(advice(result))


def test_the_script_prints_a_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = rows_file(tmp_path / "rows.jsonl", [E4, KINDS["reward"], black(1), white(1), "nonsense"])
    output = tmp_path / "new" / "folder" / "audit.json"
    argv = ["--dataset_name", name, "--output_file", str(output)]
    recipe("audit_data").main(argv)
    printed = capsys.readouterr().out
    for row in (
        "read 5",
        "malformed 1 20.0%",
        "policy 1 1",  # White's and Black's
        "answers right in every field 1 50.0%",
        "B has the highest E 100.0% 100.0%",
        "prompt appeared before 1 25.0%",
    ):
        assert row in [" ".join(line.split()) for line in printed.splitlines()], row
    table = printed.split("What to do")[0].splitlines()
    assert len({len(line) for line in table if line.endswith("%")}) == 1  # one below the other
    assert printed.index("What to do") < printed.index("--repairs environment duplicates")
    result = json.loads(output.read_text())
    assert result == audit(AuditArguments(dataset_name=name, output_file=str(output)))
    output.write_text("old")
    recipe("audit_data").main(argv)
    assert json.loads(output.read_text()) == result


# --------------------------------------------------------------------------------------------------
# What to do
# --------------------------------------------------------------------------------------------------
def test_where_nothing_is_wrong_it_says_so(audited: Any) -> None:
    five = {"moves": "f7f6 g7g5 h7h5 f7f5 g7g6", "evaluations": "0.0 1.0 0.5 0.9 0.0"}
    result = audited(E4, E5, *(labelled(black(n, **five)) for n in range(5)))
    assert advice_text(result) == "  Nothing: no fault was found in 7 rows."


def test_the_black_bug_is_named_with_its_share_and_remedy(audited: Any) -> None:
    wrong = [black(n, best="f7f5") for n in range(30)]
    result = audited(*wrong, black(40), *(white(n) for n in range(30)))
    assert result["policy"]["black"]["best_is_argmin_e"] == pytest.approx(30 / 31)
    text = advice_text(result)
    assert "Black's B is the worst of its five in 97% and the best in 3% of 31 rows" in text
    assert "White's B" not in text
    assert "61 policy rows without action_values" in text
    name = result["dataset_name"]
    assert text.splitlines()[-1] == (
        f"  rookworld prepare --dataset_name {name} --output_file rows_prepared.parquet "
        "--repairs best_move"
    )


@pytest.mark.parametrize(
    ("row", "words", "repair"),
    [
        (white(9, moves="g2g4 e2e4"), "1 policy row with an illegal move in M", "candidates"),
        (white(9, "1.0"), "1 policy row with more or fewer items in E", "evaluations"),
        (white(9, best="h2h4"), "1 policy row with a B that is not in M", "best_move"),
        (
            KINDS["en_passant"],
            "1 environment answer (50.0%) that python-chess contradicts: en passant 1 (1 name",
            "environment",
        ),
        (E5, "1 row (5.0%) with the prompt of an earlier one, 0 of them", "duplicates"),
    ],
)
def test_each_finding_names_its_repair(audited: Any, row: str, words: str, repair: str) -> None:
    clean = [white(n) for n in range(100, 118)]
    text = advice_text(audited(E5, *clean, row))
    assert words in text
    assert f"repair with --repairs {repair}\n" in text
    assert repair in text.splitlines()[-1].split("--repairs ")[1].split()
    assert "--repairs" not in advice_text(audited(E5, *clean))


def test_values_that_contradict_are_named(audited: Any) -> None:
    worst = [labelled(black(n, "-0.1 -3.0", "h7h6", "h8g8 h7h6")) for n in range(5)]
    text = advice_text(audited(*worst))
    assert "Black's M names 0% of the top five in 5 rows, by the stored action_values" in text
    negated = [labelled(black(n, "-1.0 -0.9")) for n in range(5)]
    text = advice_text(audited(*negated))
    assert "Black's E has the right sign in 0% of the moves in 5 rows" in text
    assert text.splitlines()[-1].endswith(" evaluations")
    far = [labelled(black(n, "5.0 3.9")) for n in range(5)]
    text = advice_text(audited(*far))
    assert "Black's E is 3.5 pawns off on average in 5 rows, by the stored action_values" in text
    tied = [labelled(black(n, "0.5 0.5", "f7f6", "g7g5 f7f6")) for n in range(5)]
    text = advice_text(audited(*tied))
    assert "Black's B is the best of its five in 0% of 5 rows, by the stored action_values" in text


def test_a_repair_that_was_made_is_not_advised_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stockfish: str
) -> None:
    """The printed command runs from the folder of the audit, as it stands, whatever the rows are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my data").mkdir()
    rows = [
        *(black(n, best="f7f5") for n in range(8)),
        *(white(n, "0.5 1.0", moves="g2g4 e2e4") for n in range(8)),
        white(9, "1.0"),
        KINDS["en_passant"],
        *(KINGS_LEAP, EMPTY_SQUARE, NO_KING, AFTER_A_LEAP),
        E4,
        E4,
        "neither a row",
        "nor a position",
    ]
    name = rows_file(tmp_path / "my data" / "it's.jsonl", rows)
    result = audit(AuditArguments(dataset_name=str(Path(name).relative_to(tmp_path))))
    program, command, *words = shlex.split(advice_text(result).splitlines()[-1])
    assert (program, command) == ("rookworld", "prepare")
    recipe("prepare_data").main([*words, "--engine_depth", "2", "--engine_cache", "values.db"])
    text = advice_text(audit(AuditArguments(dataset_name="it's_prepared.parquet")))
    assert "--repairs" not in text


# --------------------------------------------------------------------------------------------------
# Real data
# --------------------------------------------------------------------------------------------------
@pytest.mark.skipif(not REAL_ROWS.is_file(), reason="the real rows are not beside the repository")
def test_the_real_rows_have_the_black_bug() -> None:
    """Counted independently: B is argmax E in 164 of White's 166 rows, argmin in 157 of Black's 165."""
    result = audit(AuditArguments(dataset_name=str(REAL_ROWS)))["policy"]
    assert result["rows"] == 500
    assert result["white"] == {
        "distinct_evaluations": 166,
        "best_is_argmax_e": 164 / 166,
        "best_is_argmin_e": 0.0,
    }
    assert result["black"] == {
        "distinct_evaluations": 165,
        "best_is_argmax_e": 0.0,
        "best_is_argmin_e": 157 / 165,
    }
    assert result["all_moves_legal"] == result["best_in_moves"] == counted(500, 1.0)


def test_the_packaged_data_have_nothing_wrong() -> None:
    result = audit(AuditArguments(dataset_name="rookworld-nano-openings", max_rows=13_000))
    assert result["rows"]["malformed"]["rows"] == 0
    assert result["environment"]["right"] == counted(1_000, 1.0)
    assert result["policy"]["action_values"]["labelled"] == counted(12_000, 1.0)
    assert advice_text(result) == "  Nothing: no fault was found in 13,000 rows."
