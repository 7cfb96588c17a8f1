"""Where rows come from: data sets by name, the keys that name them, and what a row is.

A parsed row has the columns

- `task`: ``environment``, ``policy``, ``fill_in`` or another of `tasks.registry`;
- `prompt`, `completion`: text as the row's task writes it. The completion is the data's, not the
  truth; only a prompt that came alone gets the truth as completion, empty if it is not known;
- `fen`, `action`, `history`: the prompt's fields; action and history are empty for policy rows, and
  unmasked for fill-in rows;
- `action_values`: list of ``{"move": UCI, "cp": centipawns from the side to move}``, best first, one
  for every legal move, or None if the data have none.

A row that cannot be parsed is `Malformed`: it is kept with its reason, never repaired silently. It
either cannot be read, or it can but no rule of chess can judge it: a king is missing, say. A line of
comment is counted in the same way, but it is no fault.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features, List, Value

from ..common.errors import close_matches
from ..common.files import asset_path, is_hub_id, read_asset
from ..common.settings import Checked, setting, share_bounds

PACKAGED_DATA = {
    "rookworld-nano-openings": "nano_openings.parquet",
    "rookworld-nano-fill-in": "nano_fill_in.parquet",
    "rookworld-evaluation": "evaluation_positions.parquet",  # held-out positions only
}


FILE_LOADERS = {
    **dict.fromkeys((".jsonl", ".json"), "json"),
    ".parquet": "parquet",
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".txt", ".fen", ".epd"), "text"),
    ".pgn": "",  # python-chess reads it
}


COLUMNS = ("text", "prompt", "fen", "fault")  # of a raw row, one at least; fault: a broken game


OTHER_COLUMNS = ("completion", "action", "history", "action_values")  # of a raw row, optional


FEATURES = Features(
    {
        **dict.fromkeys(("task", "prompt", "completion", "fen", "action"), Value("string")),
        "history": List(Value("string")),
        "action_values": List({"move": Value("string"), "cp": Value("int64")}),
    }
)


_SHARES: Mapping[str, Mapping[str, float]] = read_asset("shares.yaml")


KIND_SHARES, FIELD_SHARES = (_SHARES[name] for name in ("kinds", "fields"))
"""Default shares of kinds of synthetic rows, and of hidden fields."""


# In a Parquet file's metadata, beside the key that datasets writes.
PROVENANCE_KEY = b"rookworld_rlvr"


Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Malformed:
    """A raw row that could not be parsed, that no rule of chess can judge, or that is a comment."""

    number: int  # of the row or line in its data set, from 1
    reason: str  # short; rows are counted by it
    message: str  # the reason with the offending text
    text: Mapping[str, Any]  # the raw row's text columns
    kind: Literal["unreadable", "unjudgeable", "comment"] = "unreadable"


def check_dataset_name(name: str, key: str = "dataset_name") -> list[str]:
    """Faults of a data set's name, found without loading anything.

    Args:
        name: A packaged name, a file, a Hub id, or empty for no data set.
        key: The configuration key that names it.
    """
    if name in PACKAGED_DATA or name == "":
        return []
    path = Path(name)
    if path.is_dir():
        return [f"{key}: {name!r} is a folder; give a file in it"]
    if path.suffix.lower() in FILE_LOADERS:
        if path.is_file():
            return []
        close = close_matches(name, map(str, path.parent.glob("*")))
        made = "if a recipe names it, rookworld recipes show RECIPE says how it is made"
        return [f"{key}: no file {name!r} ({made}){close}"]
    if is_hub_id(name) and not path.exists():
        return []
    return [
        f"{key}: {name!r} is neither packaged, a Hub id (owner/name), nor a file that ends in "
        f"{', '.join(FILE_LOADERS)}{close_matches(name, PACKAGED_DATA)}"
    ]


@dataclass
class SourceArguments(Checked):
    """Which data set to read."""

    dataset_name: str = setting(
        "rookworld-nano-openings",
        "Data to read: a packaged name, a Hub id, or a file. JSONL, Parquet, CSV, TSV and text files "
        "hold RookWorld rows, prompts, FENs or EPDs; PGN files hold games. `tasks` decides what is "
        "asked about a position.",
        check=check_dataset_name,
    )
    text_column: str = setting(
        "text", "Column that holds the rows; FENs may be in a column `fen` instead.", filled=True
    )
    dataset_split: str = setting("train", "Split to read of a Hub data set.")
    max_rows: int | None = setting(
        None, "Read at most this many rows; a Hub data set is then streamed.", least=1
    )


@dataclass
class RowArguments(SourceArguments):
    """Where rows come from: a data set, and random games."""

    max_quarantined_share: float = setting(
        0.01,
        "Stop if more than this share of the rows cannot be read. Up to it, they are left out and kept "
        "in a file with their reasons. Rows that no rule of chess can judge are left out without limit.",
        least=0,
        most=1,
    )
    synthetic_rows: int = setting(
        0, "Number of environment rows to make from random games and add.", least=0
    )
    synthetic_seed: int = setting(
        0, "Seed of all synthetic rows; the same seed makes the same rows."
    )
    synthetic_opening_plies: int = setting(
        12, "Openings of synthetic rows are shorter than this, in plies.", least=1
    )
    synthetic_shares: dict[str, float] | str | None = setting(
        None,
        "Share of each kind of synthetic environment row, {openings: 0.6, game_ends: 0.4}. Without it, "
        "the shares of assets/shares.yaml.",
        **share_bounds(KIND_SHARES, "kind"),
    )
    synthetic_fill_in_rows: int = setting(
        0,
        "Number of fill-in rows to make and add; kinds, openings and seed are those of synthetic "
        "environment rows.",
        least=0,
    )


def dataset_file(name: str) -> Path | None:
    """The file behind a data set's name; None for a Hub id."""
    if name in PACKAGED_DATA:
        return Path(asset_path(PACKAGED_DATA[name]))
    return Path(name) if Path(name).suffix.lower() in FILE_LOADERS else None


def read_provenance(path: str | Path | None) -> dict[str, Any] | None:
    """The provenance that `parquet.write_parquet` wrote; None for other files, and without a file."""
    if path is None or Path(path).suffix != ".parquet":
        return None
    try:
        note = (pq.read_metadata(path).metadata or {}).get(PROVENANCE_KEY)
    except (OSError, pa.ArrowException):
        return None  # loading the rows reports what is wrong with the file
    return None if note is None else dict(json.loads(note))


def values_line(path: str | Path | None) -> str:
    """Who valued the moves in a file, how and when; empty if the file does not say."""
    note, said = read_provenance(path), []
    while note is not None:
        if note["engine"] is not None:
            said.append(f"{note['engine']}, {note['limit']}, {note['date']}")
        note = note["dataset_provenance"]  # of the file that it was made from: it keeps the values
    return "; ".join(dict.fromkeys(said))
