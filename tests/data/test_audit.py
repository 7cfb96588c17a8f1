"""Rows are written by hand, one fault at a time, and the numbers expected are counted by hand."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.common.files import read_asset
from rookworld_rlvr.data.audit import AuditArguments, advice, audit, table
from rookworld_rlvr.data.prepare import REPAIRS

from ..rows import AFTER_E4, RIGHT_E4, START, column, write_jsonl
from ..support import recipe

Row = dict[str, Any]
E4 = f"{START}+e2e4+e2e4+{RIGHT_E4}"
E5 = (
    f"{AFTER_E4}+e7e5+e2e4 e7e5+"
    "rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2+0.001+0+0"
)

# Three pawns up, each with seven legal moves: f one or two, g one or two, h one or two, the king.
WHITE_UP = "7k/8/8/8/8/8/5PPP/7K w - - 0 {n}"
BLACK_UP = "7k/5ppp/8/8/8/8/8/7K b - - 0 {n}"
MOVES = "g7g5 f7f5 h7h5 f7f6 g7g6 h8g8 h7h6".split()
BLACK_VALUES = dict(zip(MOVES, (100, 90, 50, 0, 0, -10, -300), strict=True))


def policy(fen: str, moves: str, evaluations: str, best: str) -> str:
    return f"P: {fen} M: {moves} E: {evaluations} B: {best}"


def white(n: int, evaluations="1.0 0.5", best="g2g4", moves="g2g4 f2f4") -> str:
    return policy(WHITE_UP.format(n=n), moves, evaluations, best)


def black(n: int, evaluations="1.0 0.5", best="g7g5", moves="g7g5 f7f5") -> str:
    return policy(BLACK_UP.format(n=n), moves, evaluations, best)


def labelled(text: str) -> Row:
    return {"text": text, "action_values": column(BLACK_VALUES)}


@pytest.fixture
def audited(tmp_path: Path) -> Any:
    """Audit rows that are given as text, or with their action values."""
    return lambda *rows: audit(AuditArguments(write_jsonl(tmp_path / "rows.jsonl", rows)))


def share(mean: float, rows: int) -> Row:
    return {"mean": pytest.approx(mean), "rows": rows}


def advice_text(result: Row) -> str:
    return "\n".join(advice(result))


def test_rows_are_counted_by_task_and_side_and_the_malformed_by_reason(audited: Any) -> None:
    result = audited(white(1), white(2), black(1), E4, E4, E5, "hello", "P: x", "you", "")
    assert result["read"] == 9  # an empty line is no row
    checks = result["checks"]
    assert checks["policy"]["unlabelled"] == {"white": share(1, 2), "black": share(1, 1)}
    assert checks["environment"]["wrong_answer"] == {"white": share(0, 2), "black": share(0, 1)}
    neither, no_moves = (
        "neither a RookWorld row, a FEN nor an EPD",
        "no section 'M:' in the policy row",
    )
    assert list(result["malformed"].items()) == [(neither, 2), (no_moves, 1)]


def test_fill_in_rows_are_counted_by_field_and_the_corrupted_as_unjudgeable(audited: Any) -> None:
    action = f"{E4}+".replace("+e2e4+e2e4+", "+[MASK]+[MASK]+")
    result = audited(
        f"F: {E4.replace('+0.001', '+[MASK]')}+ 0.001",
        f"F: {action} e2e4",
        f"F: {action} e2e3",  # not what was hidden
        f"F: {action.replace('4P3', '3P4')} e2e4",  # nothing leads there
    )
    inconsistent = ("no answer is", "the answer is not")
    assert result["malformed"] == {}
    assert result["unjudgeable"] == {f"{it} consistent with the record": 1 for it in inconsistent}
    hidden = {name for name, sides in result["checks"]["fill_in"].items() if sides["white"]["mean"]}
    assert hidden == {"action", "reward"}
    assert result["checks"]["fill_in"]["action"] == {"white": share(0.5, 2)}
    assert re.search(r"^fill in .*^ +action +50\.0% of 2 +-$", table(result), re.M | re.S)


def test_positions_are_prompts_without_an_answer(tmp_path: Path) -> None:
    (tmp_path / "games.pgn").write_text("1. e4 e5 *\n")
    tasks = ["policy", "environment"]
    result = audit(AuditArguments(str(tmp_path / "games.pgn"), tasks=tasks))
    for task in tasks:
        assert result["checks"][task]["without_answer"]["white"] == share(1, 1)
    assert "rows without action_values: White 100.0% of 1" in advice_text(result)
    assert "wrong_answer" not in result["checks"]["environment"], "neither right nor wrong"


def test_rows_may_be_in_another_column(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    name = write_jsonl(path, [{"line": E4, "text": "x"}] * 2)
    result = audit(AuditArguments(dataset_name=name, text_column="line"))
    assert result["malformed"] == {}
    assert f"--dataset_name {name} --text_column line --output_file" in advice_text(result)
    with pytest.raises(RookWorldError, match=r"no column 'lien' in .*found: line, text"):
        audit(AuditArguments(dataset_name=name, text_column="lien"))
    path.with_suffix(".csv").write_text(f"prompt;completion\n{E4};x\n")
    with pytest.raises(RookWorldError, match=r"found: prompt;completion.*put commas between them"):
        audit(AuditArguments(dataset_name=str(path.with_suffix(".csv"))))


def test_faults_of_form_are_counted(audited: Any) -> None:
    """Each row has one fault of its own; a best move that is illegal is not in M either."""
    answers = (
        *(("g2g4 e2e4", "1.0 0.5", "g2g4"), ("g2g4 f2f4", "1.0 0.5", "e2e4")),
        *(("g2g4 f2f4", "1.0 0.5", "h2h4"), ("g2g4 g2g4", "1.0 0.5", "g2g4")),
        *(("g2g4 f2f4", "1.0", "g2g4"), ("g2g4", "1.0 0.5", "g2g4")),
    )
    rows = [policy(WHITE_UP.format(n=n), *answer) for n, answer in enumerate(answers, 3)]
    result = audited(white(1), white(2), *rows)["checks"]["policy"]
    ones, twos = ("illegal_move", "illegal_best_move", "move_twice"), ("best_not_in_moves",)
    for name in (*ones, *twos, "evaluations_not_one_a_move"):
        assert result[name]["white"] == share((1 if name in ones else 2) / 8, 8), name


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
        *(black(1), black(2, "0.5 1.0"), black(3, "-1.5 1.0")),
        *(black(4, "-3.0 -2.9"), black(5, "0.0 0.0")),
    )["checks"]["policy"]
    assert result["best_has_highest_e"] == {"white": share(0.75, 4), "black": share(0.25, 4)}
    assert result["best_has_lowest_e"] == {"white": share(0, 4), "black": share(0.75, 4)}


def test_rows_beside_their_action_values(audited: Any) -> None:
    result = audited(
        # Best of all, and three of the top five (two moves tie for the fourth place).
        labelled(black(1, "1.0 0.9 0.7", "g7g5", "g7g5 f7f5 h7h5")),
        # Best of its own, the third best of all; one of the top five.
        labelled(black(2, "-0.1 -3.0", "h7h5", "h7h5 h7h6")),
        # The worst of its own; all five.
        labelled(black(3, "0.0 0.0 0.5 0.9 1.0", "g7g6", "f7f6 g7g6 h7h5 f7f5 g7g5")),
        white(1),
    )["checks"]["policy"]
    assert result["unlabelled"] == {"white": share(1, 1), "black": share(0, 3)}
    for name, mean in (
        ("best_of_five", 2 / 3),
        ("best_of_all", 1 / 3),
        ("top_five_named", (3 / 5 + 1 / 5 + 1) / 3),
        ("evaluation_error_pawns", (0.2 / 3 + 0.6 / 2) / 3),  # of each row
        ("evaluation_sign_right", (1 + 1 / 2 + 1) / 3),  # zero has no sign
    ):
        assert result[name] == {"black": share(mean, 3)}, name


KINDS = {
    "board": E4.replace("/4P3/8/PPPP1PPP", "/3P4/8/PPPP1PPP"),
    "side to move": E4.replace(" b KQkq", " w KQkq"),
    "castling": E4.replace("b KQkq", "b KQk"),
    "en passant": E4.replace("b KQkq -", "b KQkq e3"),
    "halfmoves": E4.replace("b KQkq - 0 1", "b KQkq - 1 1"),
    "move number": E4.replace("b KQkq - 0 1", "b KQkq - 0 2"),
    "reward": E4.replace("0.001", "0.01"),
    "terminated": E4.replace("+0+0", "+1+0"),
    "truncated": E4.replace("+0+0", "+0+1"),
}


def test_each_difference_from_python_chess_is_counted_alone(audited: Any) -> None:
    result = audited(E4, *KINDS.values(), E5)["checks"]["environment"]
    assert result["wrong_answer"] == {"white": share(0.9, 10), "black": share(0, 1)}
    for name in KINDS:
        assert result[name]["white"] == share(0.1, 10), name


def test_idle_en_passant_squares_and_histories_without_the_action(audited: Any) -> None:
    after = "4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 2"
    idle = policy(AFTER_E4.replace(" - ", " e3 "), "e7e5", "0.1", "e7e5")
    result = audited(idle, policy(after, "e5d6", "0.1", "e5d6"))["checks"]["policy"]
    assert result["idle_en_passant_in_prompt"] == {"white": share(0, 1), "black": share(1, 1)}
    rows = [E4.replace("+e2e4+e2e4+", f"+e2e4+{moves}+") for moves in ("", "d2d4", "e2e4 e7e5")]
    result = audited(E4, *rows)["checks"]["environment"]
    assert result["history_without_action"]["white"] == share(0.75, 4)
    assert result["wrong_answer"]["white"] == share(0, 4)


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
    result = audited(KINGS_LEAP, EMPTY_SQUARE, NO_KING, AFTER_A_LEAP, E4, KINDS["halfmoves"])
    assert result["unjudgeable"] == {"a king is missing": 1}
    environment = result["checks"]["environment"]
    assert environment["illegal_move_played_on"] == {"white": share(0.5, 4), "black": share(1, 1)}
    assert environment["after_illegal_move"]["white"] == share(0.25, 4)  # AFTER_A_LEAP
    assert environment["wrong_answer"]["white"] == share(0.25, 4)  # no generator's rule explains it
    differing = {kind for kind in KINDS if any(s["mean"] for s in environment[kind].values())}
    assert differing == {"halfmoves"}


def test_the_real_generators_rows(real_data: Path) -> None:
    """Every wrong answer is by the generator's rule."""
    result = audit(AuditArguments(dataset_name=str(real_data / "arbiter_rows_2000.jsonl")))
    assert result["malformed"] == {} and sum(result["unjudgeable"].values()) == 136
    counts = {
        name: round(sum(side["mean"] * side["rows"] for side in sides.values()))
        for name, sides in result["checks"]["environment"].items()
    }
    assert (counts["illegal_move_played_on"], counts["after_illegal_move"]) == (46, 12)
    assert not any(counts[kind] for kind in ("wrong_answer", *KINDS))


def test_the_script_prints_a_table_and_writes_json(tmp_path: Path, capsys) -> None:
    rows = [E4, KINDS["reward"], black(1), white(1), "nonsense"]
    name = write_jsonl(tmp_path / "rows.jsonl", rows)
    output = tmp_path / "new" / "folder" / "audit.json"
    recipe("audit").main(["--dataset_name", name, "--output_file", str(output)])
    printed = capsys.readouterr().out
    assert {" ".join(line.split()) for line in printed.splitlines()} >= {
        *("rows read 5", "policy White Black", "prompt appeared before 1"),
        "answer contradicts python-chess 50.0% of 2 -",
        "B has the highest E 100.0% of 1 100.0% of 1",
    }
    assert max(map(len, printed.split("What to do")[0].splitlines()[1:])) <= 80
    assert printed.index("What to do") < printed.index("--repairs environment duplicates")
    result = json.loads(output.read_text())
    assert result == audit(AuditArguments(dataset_name=name, output_file=str(output)))


def test_every_finding_names_a_check_and_its_repair(audited: Any) -> None:
    checked = audited(E4, white(1), labelled(black(1)))["checks"]
    names = {name for checks in checked.values() for name in checks}
    for name, entry in read_asset("templates/audit.yaml").items():
        assert name in names | {"malformed", "unjudgeable"}, name
        assert entry.get("repair") in (None, *REPAIRS), name


def test_each_finding_names_its_repair(audited: Any) -> None:
    clean = [E5, *(white(n) for n in range(100, 118))]
    assert "--repairs" not in advice_text(audited(*clean))
    for row, words, repair in (
        (white(9, moves="g2g4 e2e4"), "M names an illegal move: White 5.3% of 19", "policy"),
        (KINDS["en passant"], "contradicts python-chess: White 100.0% of 1", "environment"),
        (E5, "rows with the prompt of an earlier one: 1", "duplicates"),
        (labelled(black(1, "5.0 3.9")), "error of E, in pawns: Black 3.50 of 1", "policy"),
        (labelled(black(1, "-1.0 -0.9")), "E has the right sign: Black 0.0% of 1", "policy"),
        (labelled(black(1, best="f7f5")), "best of its five: Black 0.0% of 1", "best_move"),
    ):
        text = advice_text(audited(*clean, row))
        unwrapped = " ".join(text.partition("\n\n  rookworld")[0].split())
        (finding,) = (finding for finding in unwrapped.split(" - ") if words in finding)
        assert finding.endswith(f"repair with --repairs {repair}")
        assert repair in text.splitlines()[-1].split("--repairs ")[1].split()


def test_a_repair_that_was_made_is_not_advised_again(tmp_path, monkeypatch, stockfish: str) -> None:
    """The printed command runs from the folder of the audit, as it stands, whatever the rows are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my data").mkdir()
    rows = [
        *(black(n, best="f7f5") for n in range(8)),
        *(white(n, "0.5 1.0", moves="g2g4 e2e4") for n in range(8)),
        *(white(9, "1.0"), KINDS["en passant"], KINGS_LEAP, EMPTY_SQUARE, NO_KING, AFTER_A_LEAP),
        *(E4, E4, "neither a row", "nor a position"),
    ]
    name = write_jsonl(tmp_path / "my data" / "it's.jsonl", rows)
    result = audit(AuditArguments(dataset_name=str(Path(name).relative_to(tmp_path))))
    program, command, *words = shlex.split(advice_text(result).splitlines()[-1])
    assert (program, command) == ("rookworld", "prepare")
    recipe("prepare").main([*words, "--engine_depth", "2", "--engine_cache", "values.db"])
    text = advice_text(audit(AuditArguments(dataset_name="it's_prepared.parquet")))
    assert "--repairs" not in text


def test_the_real_rows_have_the_black_bug(real_data: Path) -> None:
    """Counted independently: B is argmax E in 164 of White's 166 rows, argmin in 157 of Black's 165."""
    result = audit(AuditArguments(str(real_data / "rook_val_500.txt")))["checks"]["policy"]
    assert result["best_has_highest_e"] == {"white": share(164 / 166, 166), "black": share(0, 165)}
    assert result["best_has_lowest_e"] == {"white": share(0, 166), "black": share(157 / 165, 165)}
    for name in ("illegal_move", "best_not_in_moves"):
        assert [side["mean"] for side in result[name].values()] == [0, 0]


@pytest.mark.parametrize("rows", [800, pytest.param(13_000, marks=pytest.mark.slow)])
def test_the_packaged_data_have_nothing_wrong(rows: int) -> None:
    result = audit(AuditArguments(dataset_name="rookworld-nano-openings", max_rows=rows))
    sides = result["checks"]["policy"]["unlabelled"].values()
    assert sum(side["rows"] for side in sides) == min(rows, 12_000)
    assert advice_text(result) == f"  Nothing: no fault was found in {rows:,} rows."
