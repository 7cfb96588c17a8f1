from collections.abc import Callable
from pathlib import Path

import pytest

from rookworld_rlvr.common.errors import NotationError
from rookworld_rlvr.tasks import policy
from rookworld_rlvr.tasks import text as notation
from rookworld_rlvr.tasks.environment import parse_environment_prompt, write_environment_prompt
from rookworld_rlvr.tasks.policy import parse_policy_answer, write_policy_answer
from rookworld_rlvr.tasks.registry import join_row, split_row, task_of
from rookworld_rlvr.tasks.types import PolicyAnswer

from ..rows import AFTER_E4, START

ENVIRONMENT_ROW = f"A: {START}+e2e4+e2e4+{AFTER_E4}+0.001+0+0"

# One line of the public data, columns and all.
POLICY_FEN = "2b3k1/Q4rqn/p2p4/4p3/p6p/2PP3P/BP3PP1/R5K1 b - - 0 34"
POLICY_ROW = (
    "P: 2b3k1/Q4rqn/p2p4/4p3/p6p/2PP3P/BP3PP1/R5K1 b - - 0 34                                    "
    "M: a4a3 c8f5 h7f6 h7g5 h7f8      "
    "E: -3.06 -2.82 -3.21 -3.16 -2.3            "
    "B: h7f6"
)
POLICY_ANSWER = PolicyAnswer(
    ("a4a3", "c8f5", "h7f6", "h7g5", "h7f8"), (-3.06, -2.82, -3.21, -3.16, -2.3), "h7f6"
)


def test_every_real_row_round_trips(real_data: Path) -> None:
    rows = (real_data / "rook_val_500.txt").read_text().splitlines()
    assert len(rows) == 500
    for row in rows:
        task, prompt, completion = split_row(row)
        assert task == "policy"
        assert join_row(prompt, completion) == row
        assert write_policy_answer(parse_policy_answer(completion)) == completion
        assert policy.write_policy_prompt(policy.POLICY.position(prompt).fen) == prompt


def test_policy_row_splits_before_the_last_space_of_the_padding() -> None:
    assert split_row(POLICY_ROW) == ("policy", POLICY_ROW[:91], POLICY_ROW[91:])
    assert write_policy_answer(POLICY_ANSWER) == POLICY_ROW[91:]
    assert split_row(ENVIRONMENT_ROW)[1:] == (f"A: {START}+e2e4+e2e4+", f"{AFTER_E4}+0.001+0+0")


# The example in the README of the self-contained trainer, an earlier version of this package.
COMMAS = f"P: {START}\nM: e2e4,d2d4,g1f3,c2c4,b1c3 E: 0.3,0.2,0.1,0.2,0.1 B: e2e4"


def test_commas_are_read_in_data_but_not_in_completions() -> None:
    answer = PolicyAnswer(
        ("e2e4", "d2d4", "g1f3", "c2c4", "b1c3"), (0.3, 0.2, 0.1, 0.2, 0.1), "e2e4"
    )
    for row in (COMMAS, COMMAS.replace("\n", " "), COMMAS.replace("\n", " ").replace(",", ", ")):
        task, prompt, completion = split_row(row)
        assert (task, policy.POLICY.position(prompt).fen) == ("policy", START)
        assert parse_policy_answer(completion) == answer
    with pytest.raises(NotationError):
        parse_policy_answer(COMMAS.partition("\n")[2])
    # The earlier trainer's documentation has commas in the history, too, and one alone for none.
    for written, history in (("e7e5,b1c3,g8f6", ("e7e5", "b1c3", "g8f6")), (",", ())):
        assert parse_environment_prompt(f"A: {START}+d2d4+{written}+").history == history


def test_a_decimal_comma_is_no_separator() -> None:
    for evaluations in ("0,3 0,2", "0,3", "0,3, 0,2", "1,000.5 0.3", "1.000,5 0.3"):
        with pytest.raises(NotationError, match="not a finite decimal number"):
            split_row(f"P: {START} M: e2e4,d2d4 E: {evaluations} B: e2e4")


def test_malformed_rows_are_errors_with_their_reason() -> None:
    for row, reason in (
        *((row, "fewer than seven fields in the env") for row in ("", f"A: {START}+e2e4+e2e4")),
        (f"A: {START}+e2e4+e2e4+", "not the four fields"),
        (ENVIRONMENT_ROW.replace(" 0 1+0.001", " 0+0.001"), "a FEN has six fields"),
        (ENVIRONMENT_ROW + "+0", "not the four fields"),
        (ENVIRONMENT_ROW[:-1] + "2", "a flag is neither 0 nor 1"),
        (f"P: {POLICY_FEN}", "no section 'M:' in the policy row"),
        (f"P: {POLICY_FEN} M: a4a3", "not the three sections"),
        ("P: M: a4a3 E: 0.1 B: a4a3", "a FEN has six fields"),
    ):
        with pytest.raises(NotationError) as caught:
            split_row(row)
        assert caught.value.reason.startswith(reason)


def test_the_prefix_names_the_task() -> None:
    assert {task_of(text) for text in ("P: x", "  P:x", "<|endoftext|>P: x")} == {"policy"}
    for text in ("A: x", START, "", "p: x"):  # ranks of a FEN start with p too
        assert task_of(text) == "environment"


def test_history_is_oldest_first_and_at_most_ten() -> None:
    ten = tuple(f"a{rank}b{rank}" for rank in range(1, 6)) * 2
    text = f"A: {START}+{ten[-1]}+{' '.join(ten)}+"
    prompt = parse_environment_prompt(text)
    assert prompt.history == ten
    assert write_environment_prompt(prompt) == text
    with pytest.raises(NotationError, match="more than 10 moves of history"):
        parse_environment_prompt(f"A: {START}+e2e4+{' '.join([*ten, 'e2e4'])}+")


BOARD = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR"
MALFORMED: dict[Callable[[str], object], list[str]] = {
    parse_policy_answer: [
        *("", "M: e2e4 E: 0.1", "M:  E: 0.1 B: e2e4", "E: 0.1 M: e2e4 B: e2e4"),
        *("M: e2e4 E: 0.1 B: e2e4 and more", "so M: e2e4 E: 0.1 B: e2e4"),
        *("M: a2a3 b2b3 c2c3 d2d3 e2e3 f2f3 E: 0.1 B: a2a3", "M: a2a3 E: 1 2 3 4 5 6 B: a2a3"),
        *("M: e2e9 E: 0.1 B: e2e4", "M: e2e4\nE: 0.1 B: e2e4", "M: e2e4 E: 0.1 B: e2e4++"),
        *("M: e2e4, d2d4 E: 0.1 B: e2e4", "M: e2e４ E: 0.1 B: e2e4", "M: e2e4 E: nan B: e2e4"),
    ],
    notation.parse_fen: [
        *("", BOARD, f"{BOARD} w KQkq - 0", f"{BOARD}/8 w KQkq - 0 1"),
        f"{BOARD[:-1]} w KQkq - 0 1",  # seven squares in a rank
        f"{BOARD.replace('/8', '/9', 1)} w KQkq - 0 1",
        f"{BOARD.replace('R', 'X')} w KQkq - 0 1",
        *(f"{BOARD} white KQkq - 0 1", f"{BOARD} w qkQK - 0 1", f"{BOARD} w KQkq e4 0 1"),
        *(f"{BOARD} w KQkq - -1 1", f"{BOARD} w KQkq - 0 １", f"{BOARD} w KQkq - 0 1234567"),
        f"{BOARD}\tw\tKQkq\t-\t0\t1",
    ],
    notation.parse_decimal: [
        *("", "-", ".", ".5", "5.", "+1", "--1", "1e3", "1E-3", "0x1", "1_000", "1,5", " 1", "1\n"),
        *("nan", "NaN", "-nan", "inf", "-inf", "Infinity", "None"),
        *("٣", "１.５", "²", "½", "Ⅷ", "௧", "0.٥"),  # digits and numerals of other scripts
        *("9" * 21, "0." + "9" * 21),
    ],
}


@pytest.mark.parametrize(
    ("parse", "text"), [(parse, text) for parse, texts in MALFORMED.items() for text in texts]
)
def test_what_cannot_be_read(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(NotationError):
        parse(text)
