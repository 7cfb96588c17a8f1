"""The arguments of `recipes/prepare_data.py`, and the synthetic rows that follow from them."""

from __future__ import annotations

from collections import Counter

import pytest

from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.data.loading import is_held_out
from rookworld_rlvr.data.prepare.arguments import PrepareArguments, made_rows
from rookworld_rlvr.tasks import rules


def test_a_test_set_has_its_phases_and_held_out_positions_only() -> None:
    args = PrepareArguments(
        output_file="rows.parquet",
        synthetic_policy_rows=24,
        synthetic_policy_phases={"middlegame": 0.25, "endgame": 0.75},
        synthetic_rows=10,
        synthetic_shares={"openings": 1.0},
        synthetic_heldout_share=0.3,
    )
    rows = list(made_rows(args))
    assert Counter(row["task"] for row in rows) == {"policy": 24, "environment": 10}
    assert all(is_held_out(row["fen"], 0.3) for row in rows)
    phases = Counter(rules.phase(row["fen"]) for row in rows if row["task"] == "policy")
    assert phases.keys() == {"middlegame", "endgame"}
    assert phases["endgame"] > phases["middlegame"], phases
    assert rows == list(made_rows(args)), "the same seed, the same rows"
    assert all(row["completion"] for row in rows if row["task"] == "environment")


@pytest.mark.parametrize(
    ("fen", "phase"),
    [
        ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", "opening"),
        # Seven and six queens, rooks, bishops and knights.
        ("r2qk2r/pppppppp/8/8/8/8/PPPPPPPP/R2QK1NR w KQkq - 0 20", "middlegame"),
        ("r2qk2r/pppppppp/8/8/8/8/PPPPPPPP/R2QK2R w KQkq - 0 20", "endgame"),
        # Fourteen, but White has left its first rank all but for three.
        ("rnbqkbnr/pppppppp/8/8/2NNBB2/3QP3/PPPP1PPP/R3K2R w KQkq - 0 20", "middlegame"),
    ],
)
def test_phases(fen: str, phase: str) -> None:
    assert rules.phase(fen) == phase


def test_faults_are_found_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        PrepareArguments(
            output_file="rows.parquet",
            synthetic_policy_rows=1,
            synthetic_policy_phases={"midlegame": 1.0, "endgame": -1},
            synthetic_heldout_share=0.0,
        )
    for words in ("did you mean middlegame", "endgame: -1 is too small", "0.0 is not in (0, 1]"):
        assert words in str(caught.value)
