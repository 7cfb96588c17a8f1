"""Pairs for a judge: the better answer is right, the worse one has the fault of its kind."""

from collections import Counter
from functools import partial
from typing import Any

import pytest

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.data.loading import DataArguments, LoadedData, is_held_out, load_data
from rookworld_rlvr.data.parsing import parse_raw
from rookworld_rlvr.data.synthesis import environment_row
from rookworld_rlvr.extras.judge.pairs import PAIR_SHARES, Pair, make_pairs, task_of_kind
from rookworld_rlvr.tasks.environment import score_environment
from rookworld_rlvr.tasks.fill_in import FILL_IN
from rookworld_rlvr.tasks.policy import score_policy
from rookworld_rlvr.tasks.registry import is_right
from rookworld_rlvr.tasks.types import FILL_IN_FIELDS, EnvironmentPrompt

from ...rows import AFTER_E4, PAWN_VALUES, PAWNS, RIGHT_E4, START, column

# White's pawn stands on e5: after d7d5 it may take en passant, after a7a5 it may not.
EN_PASSANT = "rnbqkbnr/pppppppp/8/4P3/8/8/PPPP1PPP/RNBQKBNR b KQkq - 0 2"
AFTER_D5 = "rnbqkbnr/ppp1pppp/8/3pP3/8/8/PPPP1PPP/RNBQKBNR w KQkq d6 0 3"


def asked(fen: str, action: str) -> dict[str, Any]:
    """A row with an answer that is wrong, which must not be taken."""
    row = environment_row(EnvironmentPrompt(fen, action, (action,)))
    return {**row, "completion": f"{fen}+-1.0+0+1"}


VALUES = {**PAWN_VALUES, "h1g1": -200}
ANALYSIS = {"text": f"P: {PAWNS} M: h2h3 E: 9.0 B: h2h3", "action_values": column(VALUES)}


def one(kind: str, row: dict[str, Any], seed: int = 0) -> Pair:
    (pair,) = make_pairs([row], 1, {kind: 1.0}, seed)
    return pair


def rejected(kind: str, row: dict[str, Any], seeds: int = 40) -> set[str]:
    """All the wrong answers that some seeds give."""
    return {one(kind, row, seed).rejected for seed in range(seeds)}


def test_kinds_by_hand() -> None:
    row, right = asked(START, "e2e4"), RIGHT_E4
    assert one("flags", row).chosen == right, "the rules' answer, not the data's"
    assert rejected("side_to_move", row) == {right.replace(" b ", " w ")}
    assert rejected("flags", row) == {f"{AFTER_E4}+0.001+1+0", f"{AFTER_E4}+0.001+0+1"}
    assert rejected("reward", row) == {f"{AFTER_E4}+{n}+0+0" for n in ("0.5", "1.0", "-1.0")}
    castling = {right.replace("KQkq", rights) for rights in ("Qkq", "Kkq", "KQq", "KQk")}
    assert rejected("castling", row) == castling
    assert rejected("stale_state", row) == {f"{START}+0.001+0+0"}
    clocks = {"1 1", "0 0", "0 2", "0 3"}
    assert rejected("clocks", row) == {right.replace("0 1+", f"{two}+") for two in clocks}


def test_en_passant_is_named_where_no_capture_is_and_left_out_where_one_is() -> None:
    assert rejected("en_passant", asked(START, "e2e4")) == {RIGHT_E4.replace(" - ", " e3 ")}
    pair = one("en_passant", asked(EN_PASSANT, "d7d5"))
    assert pair.chosen == f"{AFTER_D5}+0.001+0+0"
    assert pair.rejected == f"{AFTER_D5.replace(' d6 ', ' - ')}+0.001+0+0"
    with pytest.raises(RookWorldError, match=r"no environment row \(1 found\) .* 'en_passant'"):
        one("en_passant", asked(START, "g1f3"))


def test_policy_pairs_are_right_and_wrong_by_the_values() -> None:
    # f2f4 and g2g4 are worth the same; another row's answer is what a wrong one may go on as.
    for seed in range(40):
        pair = one("policy", parse_raw(ANALYSIS), seed)
        assert is_right(pair.prompt, pair.chosen, VALUES)
        assert is_right(pair.prompt, pair.rejected, VALUES) is False
        assert score_policy(VALUES, pair.chosen)["best_move_hit"] == 1


def test_in_every_field_the_better_answer_fits_and_the_worse_does_not() -> None:
    options = {"dataset_name": "rookworld-nano-fill-in", "tasks": ["fill_in"]}
    rows = load_data(DataArguments(**options, max_rows=200, heldout_share=0.5)).heldout.to_list()
    pairs = make_pairs(rows, 80, {"fill_in": 1.0}, seed=0)
    for pair in pairs:
        assert is_right(pair.prompt, pair.chosen) and not is_right(pair.prompt, pair.rejected), pair
        assert pair.kind == f"fill_in_{FILL_IN.part({'prompt': pair.prompt})}"
    assert {pair.kind for pair in pairs} == {f"fill_in_{field}" for field in FILL_IN_FIELDS}


def test_pairs_of_the_packaged_rows(packaged: LoadedData) -> None:
    pairs = make_pairs(packaged.heldout, 400, PAIR_SHARES, seed=3)
    rows = {row["prompt"]: row for row in packaged.heldout}
    for pair in pairs:
        row = rows[pair.prompt]
        assert is_held_out(row["fen"], 0.1)
        assert row["task"] == task_of_kind(pair.kind)
        if row["task"] == "environment":
            judge = partial(score_environment, row["fen"], row["action"])
            chosen, wrong = judge(pair.chosen), judge(pair.rejected)
            assert chosen["exact"] == 1 and wrong["exact"] == 0 and wrong["format"] == 1, pair
    kinds = Counter(pair.kind for pair in pairs)
    assert set(kinds) == {kind for kind, share in PAIR_SHARES.items() if share}
    assert kinds["piece"] == pytest.approx(0.20 * 400, abs=30)
    assert make_pairs(packaged.heldout, 40, PAIR_SHARES, seed=3) == pairs[:40]
    assert make_pairs(packaged.heldout, 40, PAIR_SHARES, seed=4) != pairs[:40]
