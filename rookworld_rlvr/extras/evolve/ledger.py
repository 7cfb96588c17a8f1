"""The ledger of rounds: an entry each, one a line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...common.files import read_json_lines

LEDGER = "ledger.jsonl"


def read_ledger(folder: Path) -> list[dict[str, Any]]:
    """The entries of a folder's ledger; empty without one."""
    path = folder / LEDGER
    return read_json_lines(path) if path.is_file() else []


def round_cells(entry: Mapping[str, Any]) -> dict[str, str]:
    """An entry of the ledger in words, by the heads of a table."""
    before, after = entry["heldout"]["policy/expected_score"]
    change, elo = entry["expected_score"], entry["match"].get("elo_difference")
    why = "; ".join(entry["reasons"])
    return {
        "round": str(entry["round"]),
        "positions": str(entry["policy_rows"]),
        "environment rows": str(entry["environment_rows"]),
        "expected score": f"{before:.1%} → {after:.1%}",
        "change": "{difference:+.2%} [{low:+.2%}, {high:+.2%}]".format(**change),
        "Elo": "{value:+.0f} [{low:+.0f}, {high:+.0f}]".format(**elo) if elo else "not finite",
        "outcome": f"not accepted: {why}" if why else f"accepted{unproven(entry)}",
    }


def unproven(entry: Mapping[str, Any]) -> str:
    """A clause for an accepted round that may be no better than the one before; empty if it is better.

    It is better if the interval of the match's score is above a half, or that of the change of the
    expected score above 0.
    """
    score, change = entry["match"]["score"], entry["expected_score"]
    lows = (score["low"], 0.5), (change["low"], 0.0)
    if any(low is not None and low > even for low, even in lows):
        return ""
    return (
        f", but that proves nothing: neither the match of {score['n']} games nor the held-out rows tell "
        "the model from the one before; raise match_games, or train longer"
    )
