"""The fill-in task: what a mask can stand for, and every answer that fits, worked out by hand."""

import random
import re
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from rookworld_rlvr.common.errors import NotationError
from rookworld_rlvr.common.files import asset_path
from rookworld_rlvr.data.parsing import parse_raw, parse_rows, raw_rows
from rookworld_rlvr.data.sources import Malformed, SourceArguments, read_provenance
from rookworld_rlvr.data.synthesis import fill_in_rows
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.tasks import fill_in_record
from rookworld_rlvr.tasks import text as notation
from rookworld_rlvr.tasks.environment import parse_environment_answer, parse_environment_prompt
from rookworld_rlvr.tasks.fill_in import score_fill_in
from rookworld_rlvr.tasks.fill_in_record import parse_fill_in_answer, parse_fill_in_prompt
from rookworld_rlvr.tasks.registry import join_row, score_row, split_row
from rookworld_rlvr.tasks.types import FILL_IN_FIELDS

from ..rows import AFTER_E4, START

REST = "0.001+0+0+"
GAMES = {"openings": 0.6, "illegal_actions": 0.2, "middle_games": 0.2}  # quick ones

# 1. f3 e5 2. g4 Qh4 mate.
FOOLS_MATE = "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3"
FOOLS_ASKED = (
    "rnbqkbnr/pppp1ppp/8/4p3/6P1/5P2/PPPPP2P/RNBQKBNR b KQkq - 0 2+d8h4+f2f3 e7e5 g2g4 d8h4+"
)
FOOLS = parse_environment_prompt(FOOLS_ASKED), parse_environment_answer(f"{FOOLS_MATE}+1.0+1+0")

# 1. e4 e5 2. Nf3 Nc6 3. Bc4 Bc5 4. O-O Nf6.
ITALIAN = (
    "r1bqk1nr/pppp1ppp/2n5/2b1p3/2B1P3/5N2/PPPP1PPP/RNBQ1RK1 b kq - 5 4",
    "g8f6",
    "e2e4 e7e5 g1f3 b8c6 f1c4 f8c5 e1g1 g8f6",
    "r1bqk2r/pppp1ppp/2n2n2/2b1p3/2B1P3/5N2/PPPP1PPP/RNBQ1RK1 w kq - 6 5",
)


def test_the_only_answer_to_each_place_of_the_fools_mate() -> None:
    for column, part, field, hidden in (
        *(("state", 0, "rank", "rnbqkbnr"), ("state", 8, "side_to_move", "b")),
        *(("state", 9, "castling", "KQkq"), ("state", 10, "en_passant", "-")),
        *(
            ("state", 11, "clocks", "0"),
            ("state", 12, "clocks", "2"),
            ("action", None, "action", "d8h4"),
        ),
        *(("history", 0, "history", "f2f3"), ("history", 2, "history", "g2g4")),
        *(("next_state", None, "next_state", FOOLS_MATE), ("next_state", 0, "rank", "rnb1kbnr")),
        *(("next_state", 8, "side_to_move", "w"), ("next_state", 9, "castling", "KQkq")),
        *(("next_state", 11, "clocks", "1"), ("reward", None, "reward", "1.0")),
        *(("terminated", None, "flags", "1"), ("truncated", None, "flags", "0")),
    ):
        prompt, was = fill_in_record.mask(*FOOLS, column, part)
        assert (prompt.column, prompt.part, prompt.field, was) == (column, part, field, hidden)
        assert fill_in_record.fitting(prompt) == (hidden,)
        text = fill_in_record.write_fill_in_prompt(prompt)
        assert text.count("[MASK]") == (2 if column == "action" else 1)
        assert parse_fill_in_prompt(text) == prompt
        assert fill_in_record.filled(prompt.columns, hidden) == FOOLS


KINGS = "4k3/8/8/8/8/8/8"
E4_E5 = "rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR"
KE2 = "rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPPKPPP/RNBQ1BNR"
UP_TO_149 = ",".join(map(str, range(150)))
# A record with a mask, and all its answers; where nothing else stands at its end, the game goes on.
SEVERAL_LINES = f"""\
# Castling is the king's two steps, or the king taking its rook.
{KINGS}/4K2R w K - 0 30+[MASK]+[MASK]+{KINGS}/5RK1 b - - 1 30 = e1g1,e1h1
{KINGS}/R3K3 w Q - 0 30+[MASK]+[MASK]+{KINGS}/2KR4 b - - 1 30 = e1a1,e1c1
{ITALIAN[0]}+g8f6+{ITALIAN[2].replace("e1g1", "[MASK]")}+{ITALIAN[3]} = e1g1,e1h1
# The rights that a king may have had before its first move; with the whole game, it had all.
{KINGS}/R3K2R w [MASK] - 0 30+e1e2+e1e2+4k3/8/8/8/8/8/4K3/R6R b - - 1 30 = -,K,Q,KQ
{E4_E5} w [MASK] - 0 2+e1e2+e7e5 e1e2+{KE2} b kq - 1 2 = kq,Kkq,Qkq,KQkq
{E4_E5} w [MASK] - 0 2+e1e2+e2e4 e7e5 e1e2+{KE2} b kq - 1 2 = KQkq
# Counters of a first move, but no board of one: the game began elsewhere.
{KINGS}/R3K2R w [MASK] - 0 1+e1e2+e1e2+4k3/8/8/8/8/8/4K3/R6R b - - 1 1 = -,K,Q,KQ
# A capture sets the clock back, whatever it was before; at 150 the game had been over.
4k3/8/8/3p4/4P3/8/8/4K3 w - - [MASK] 90+e4d5+e4d5+4k3/8/8/3P4/8/8/8/4K3 b - - 0 90 = {UP_TO_149}
{KINGS}/4K3 w - - [MASK] 90+e1e2+e1e2+4k3/8/8/8/8/8/4K3/8 b - - 7 90+0.5+1+0+ = 6
# What was taken on d5: anything but a king.
4k3/8/8/[MASK]/4P3/8/8/4K3 w - - 5 90+e4d5+e4d5+4k3/8/8/3P4/8/8/8/4K3 b - - 0 90 = 3p4,3n4,3b4,3r4,3q4
# ... but in passing, as the state's en passant square says, nothing stood where the pawn went.
4k3/8/[MASK]/3pP3/8/8/8/4K3 w - d6 0 90+e5d6+e5d6+4k3/8/3P4/8/8/8/8/4K3 b - - 0 90 = 8
# The same board with the move before: no knight, bishop or king goes from d7 to d5, and a pawn that
# has just moved leaves no clock but 0.
4k3/8/8/[MASK]/4P3/8/8/4K3 w - - 0 90+e4d5+d7d5 e4d5+4k3/8/8/3P4/8/8/8/4K3 b - - 0 90 = 3p4,3r4,3q4
4k3/8/8/3p4/4P3/8/8/4K3 w - - [MASK] 90+e4d5+d7d5 e4d5+4k3/8/8/3P4/8/8/8/4K3 b - - 0 90 = 0
# A rook that goes may have had its right, but not where the king has gone and come back.
{KINGS}/R3K3 w [MASK] - 4 20+a1b1+d8e8 a1b1+{KINGS}/1R2K3 b - - 5 20 = -,Q
{KINGS}/R3K3 w [MASK] - 4 20+a1b1+e1f1 e8d8 f1e1 d8e8 a1b1+{KINGS}/1R2K3 b - - 5 20 = -
# The pawn that was taken in passing stood beside the pawn that took it.
4k3/8/8/[MASK]/8/8/8/4K3 w - d6 0 90+e5d6+e5d6+4k3/8/3P4/8/8/8/8/4K3 b - - 0 90 = 3pP3
# Where a promoted piece came from there was a pawn.
7k/[MASK]/8/8/8/8/8/4K3 w - - 0 90+a7a8q+a7a8q+Q6k/8/8/8/8/8/8/4K3 b - - 0 90 = P7
# Castled: king and rook were at home.
{KINGS}/[MASK] w K - 0 90+e1g1+e1g1+{KINGS}/5RK1 b - - 1 90 = 4K2R
# Without the move before nobody knows whether d5 was a double step; with it everybody does.
4k3/8/8/3pP3/8/8/8/4K3 w - [MASK] 0 90+e1e2+e1e2+4k3/8/8/3pP3/8/8/4K3/8 b - - 1 90 = -,d6
4k3/8/8/3pP3/8/8/8/4K3 w - [MASK] 0 90+e1e2+d7d5 e1e2+4k3/8/8/3pP3/8/8/4K3/8 b - - 1 90 = d6
4k3/8/8/3pP3/8/8/8/4K3 w - [MASK] 0 90+e1e2+d6d5 e1e2+4k3/8/8/3pP3/8/8/4K3/8 b - - 1 90 = -
# An illegal move changes nothing.
{START}+e2e5+e2e5+[MASK]+-1.0+0+1+ = {START}
{START}+e2e5+e2e5+{START}+[MASK]+0+1+ = -1.0
{START.replace("PPPPPPPP", "[MASK]")}+xyz+xyz+{START}+-1.0+0+1+ = PPPPPPPP
"""
SEVERAL = {
    f"F: {record}" if record.endswith("+") else f"F: {record}+{REST}": set(answers.split(","))
    for line in SEVERAL_LINES.splitlines()
    for record, is_row, answers in [line.partition(" = ")]
    if is_row
}


@pytest.mark.parametrize("prompt", SEVERAL)
def test_every_answer_that_fits_scores_1(prompt: str) -> None:
    assert set(fill_in_record.fitting(parse_fill_in_prompt(prompt))) == SEVERAL[prompt]
    for answer in SEVERAL[prompt]:
        for name in ("fill_in_exact", "fill_in_similarity", "fill_in_format"):
            (reward,) = get_reward_funcs([{"name": name}])
            assert reward([prompt], [f" {answer}<|endoftext|>"]) == [1.0]
        row = parse_raw({"prompt": prompt, "completion": answer})
        assert row["completion"] == f" {answer}"
        assert "[MASK]" not in row["fen"] + row["action"] + "".join(row["history"])


def test_no_answer_that_fits_is_missing() -> None:
    """Against all contents of a place, tried one after the other."""
    everything = {
        8: "wb", 12: [str(n) for n in range(200)], 11: [str(n) for n in range(152)],
        9: ["".join(some) or "-" for n in range(5) for some in combinations("KQkq", n)],
        10: ["-", *(file + rank for file in "abcdefgh" for rank in "36")],
    }  # fmt: skip
    for row in islice(fill_in_rows(7, {"clocks": 0.2, "castling": 0.2, "rank": 0.6}), 40):
        prompt = parse_fill_in_prompt(row["prompt"])
        assert prompt.part is not None
        tried = everything.get(prompt.part) or near_ranks(row["completion"].strip())
        assert {text for text in tried if fill_in_record.fits(prompt, text)} == set(
            fill_in_record.fitting(prompt)
        )


def near_ranks(rank: str) -> set[str]:
    """A rank, and all ranks that differ from it in one square."""
    squares = notation.expand_placement(rank)
    return {
        notation.contract_rank(squares[:file] + content + squares[file + 1 :])
        for file in range(8)
        for content in ".pnbrqkPNBRQK"
    }


NO_FIT = "no answer is consistent with the record"
ILLEGAL = "a masked action was illegal: any illegal text would fit"
UNJUDGED = "a masked move of an incomplete history cannot be judged"
AFTER_F3 = "rnbqkbnr/pppppppp/8/8/8/5N2/PPPPPPPP/RNBQKB1R b KQkq - 1 0"
CORRUPTED = {
    f"F: {START}+[MASK]+[MASK]+{AFTER_E4.replace('4P3', '4Q3')}+{REST}": NO_FIT,
    f"F: {START}+e2e4+e2e4+{AFTER_E4}+[MASK]+1+0+": NO_FIT,
    f"F: {START}+e2e4+d2d4+{AFTER_E4}+[MASK]+0+0+": NO_FIT,  # another action in the history
    f"F: {START}+e2e4++{AFTER_E4}+[MASK]+0+0+": NO_FIT,
    f"F: {START.replace('k', '1', 1)}+e2e4+e2e4+[MASK]+{REST}": NO_FIT,  # no black king
    f"F: {START.replace(' - 0', ' e3 0')}+e2e4+e2e4+[MASK]+{REST}": NO_FIT,  # nobody can take there
    f"F: {START.replace(' 0 1', ' 150 99')}+e2e4+e2e4+[MASK]+{REST}": NO_FIT,  # 75 moves
    f"F: {ITALIAN[0]}+g8f6+[MASK] {ITALIAN[2][5:].replace('b8c6', 'b8a6')}+{ITALIAN[3]}+{REST}": NO_FIT,
    # A whole game that is none, or another one's, or ends in a move that nothing on the board has made.
    f"F: {ITALIAN[0]}+[MASK]+{'a1a1 ' * 7}[MASK]+{ITALIAN[3]}+{REST}": NO_FIT,
    f"F: {ITALIAN[0]}+g8f6+{ITALIAN[2].replace('b8c6', 'b8a6')}+[MASK]+{REST}": NO_FIT,
    f"F: {ITALIAN[0]}+g8f6+d1h5 g8f6+[MASK]+{REST}": NO_FIT,
    f"F: {START.replace('w KQkq - 0', 'b KQkq - 1')}+e7e5+0000 e7e5+[MASK]+{REST}": NO_FIT,
    f"F: {START}+g1f3+g1f3+{AFTER_F3}+[MASK]+0+0+": NO_FIT,
    f"F: {ITALIAN[0]}+g8f6+e7e5 [MASK] b8c6 f1c4 f8c5 e1g1 g8f6+{ITALIAN[3]}+{REST}": UNJUDGED,
    f"F: {START}+[MASK]+[MASK]+{START}+-1.0+0+1+": ILLEGAL,
}


@pytest.mark.parametrize("prompt", CORRUPTED)
def test_a_corrupted_record_is_quarantined_and_never_scored(prompt: str) -> None:
    with pytest.raises(NotationError, match=re.escape(CORRUPTED[prompt])):
        fill_in_record.fitting(parse_fill_in_prompt(prompt))
    forms = {"action": "e2e4", "history": "e2e4", "reward": "0.001", "next_state": AFTER_E4}
    answer = forms[parse_fill_in_prompt(prompt).field]
    (row,) = parse_rows([{"prompt": prompt, "completion": answer}])
    assert isinstance(row, Malformed) and (row.number, row.reason) == (1, CORRUPTED[prompt])
    assert score_row(prompt, answer) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"F: {START}+e2e4+e2e4+{AFTER_E4}+{REST}", "not one [MASK]"),
        (f"F: {START}+[MASK]+[MASK]+[MASK]+{REST}", "not one [MASK]"),
        (f"F: {START}+e2e4+e2e4+{AFTER_E4}+[MASK]+[MASK]+0+", "not one [MASK]"),
        (f"F: {START.replace('w KQkq', '[MASK] [MASK]')}+a+a+{START}+{REST}", "not one [MASK]"),
        (f"F: [MASK]+e2e4+e2e4+{AFTER_E4}+{REST}", "does not hide a field"),
        (f"F: {START}+e2e4+e2e4+{AFTER_E4}+0.00[MASK]+0+0+", "does not hide a field"),
        (f"F: {START}+e2[MASK]+[MASK]+{AFTER_E4}+{REST}", "does not hide a field"),
        (f"F: {START.replace('RNBQ', '[MASK]')}+e2e4+e2e4+{AFTER_E4}+{REST}", "does not hide a field"),
        (f"F: {START}+e2e4+[MASK]+{AFTER_E4}+{REST}", "the last move of the history"),
        (f"F: {START}+[MASK]+e2e4+{AFTER_E4}+{REST}", "not one [MASK]"),
        (f"F: {START}+e2e4+e2e4+[MASK]+0.001+0+", "not the seven fields"),
        (f"F: {START}+e2e4+e2e4+[MASK]+{REST}0+", "not the seven fields"),
        (f"A: {START}+e2e4+e2e4+[MASK]+{REST}", "not the seven fields"),
        (f"F: {START}+e2e4+e2e4+[MASK]+much+0+0+", "not a finite decimal"),
        (f"F: {START}+e2e4+e2e4+[MASK]+0.001+yes+0+", "a flag is neither 0 nor 1"),
        (f"F: {START[:-4]}+e2e4+e2e4+[MASK]+{REST}", "six fields"),
        (f"F: {START[:-15]}N [MASK] - - 0 1+e2e4+e2e4+{START}+{REST}", "eight ranks"),
        (f"F: {START}+e2e4+{'e2e4 ' * 11}+[MASK]+{REST}", "more than 10 moves"),
    ],
)  # fmt: skip
def test_what_is_no_fill_in_prompt(text: str, reason: str) -> None:
    with pytest.raises(NotationError) as caught:
        parse_fill_in_prompt(text)
    assert reason in caught.value.reason
    assert score_row(text, "e2e4") is None


def test_an_answer_of_another_form_has_all_components_0() -> None:
    for field, text in (
        *(("action", ""), ("action", "e2 e4"), ("action", "e2e4 e2e4"), ("history", "O-O")),
        *(("next_state", START[:-2]), ("rank", "9"), ("rank", "7"), ("rank", "8/8")),
        *(("side_to_move", "white"), ("castling", "qK"), ("castling", ""), ("en_passant", "e4")),
        *(("clocks", "-1"), ("clocks", "٣"), ("reward", "nan"), ("flags", "2"), ("flags", "0 0")),
    ):
        with pytest.raises(NotationError):
            parse_fill_in_answer(field, text)
        row = next(fill_in_rows(2, {field: 1}))
        score = score_fill_in(parse_fill_in_prompt(row["prompt"]), text)
        assert set(score.values()) == {0.0}


def test_a_row_splits_whatever_its_spaces_and_joins_again() -> None:
    prompt = f"F: {START}+[MASK]+[MASK]+{AFTER_E4}+{REST}"
    for text in (f"{prompt} e2e4", f"F:  {START} + [MASK]+  [MASK] +{AFTER_E4}+0.001+ 0+0 +e2e4"):
        assert split_row(text) == ("fill_in", prompt, " e2e4")
    assert split_row(join_row(prompt, " e2e4")) == ("fill_in", prompt, " e2e4")
    with pytest.raises(NotationError, match="fewer than eight"):
        split_row(f"F: {START}+e2e4+e2e4+[MASK]")


def test_prompts_are_prefixes_of_their_rows_in_tokens(tokenizer) -> None:
    """Also where the answer is a sign, which GPT-2's tokenizer would join to the last ``+``."""
    split = ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str  # GPT-2's own
    fields = dict.fromkeys(FILL_IN_FIELDS, 0.1)
    signs = set()
    for row in islice(fill_in_rows(4, fields, GAMES), 120):
        whole = row["prompt"] + row["completion"]
        prompt, full = tokenizer(row["prompt"])["input_ids"], tokenizer(whole)["input_ids"]
        assert full[: len(prompt)] == prompt
        assert len(full) <= 192, "inside the model's 256 positions, whatever is sampled"
        assert len(row["prompt"]) in {start for _, (start, _) in split(whole)}
        signs.add(row["completion"][1])
    assert "-" in signs


def test_the_packaged_rows() -> None:
    rows = list(raw_rows(SourceArguments("rookworld-nano-fill-in")))
    assert len(rows) == 12_057
    parsed: Any = list(parse_rows(random.Random(0).sample(rows, 150)))
    assert {row["task"] for row in parsed} == {"fill_in"}
    assert {parse_fill_in_prompt(row["prompt"]).field for row in parsed} == set(FILL_IN_FIELDS)
    path = Path(asset_path("nano_fill_in.parquet"))
    assert path.stat().st_size < 1_000_000
    assert (read_provenance(path) or {})["counts"]["rows"]["written"] == len(rows)
