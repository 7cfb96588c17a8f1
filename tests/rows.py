"""Positions and rows that many tests name, and files of rows."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
AFTER_E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
ASKED_E4 = f"A: {START}+e2e4+e2e4+"
RIGHT_E4 = f"{AFTER_E4}+0.001+0+0"

PAWNS = "7k/8/8/8/8/8/5PPP/7K w - - 0 1"
PAWN_VALUES = {"f2f4": 100, "g2g4": 100, "h2h4": 50, "f2f3": 0, "g2g3": 0, "h1g1": 0, "h2h3": -300}
"""Made-up values of its seven moves, in centipawns."""


def column(values: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"move": move, "cp": cp} for move, cp in values.items()]


def write_jsonl(path: Path, rows: Iterable[Any]) -> str:
    """Write rows into a file; one that is given as text has no other column."""
    raws = ({"text": row} if isinstance(row, str) else row for row in rows)
    path.write_text("".join(json.dumps(raw) + "\n" for raw in raws))
    return str(path)
