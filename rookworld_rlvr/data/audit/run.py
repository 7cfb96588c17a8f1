"""Count in one pass what is right and what is wrong with a data set's rows.

Every share comes with its number of rows; a share of no rows is None. Only hashes of the rows are
kept, 24 bytes a row, so data sets of millions of rows fit into memory.
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...common.errors import RookWorldError
from ...common.progress import Progress, shown
from ...common.settings import Checked, each, setting
from ...engine.labeller import Labeller
from ...tasks import rules
from ...tasks.environment import ENVIRONMENT
from ...tasks.fill_in import FILL_IN
from ...tasks.policy import POLICY, parse_policy_answer
from ..sources import Malformed, Row, check_dataset_name, dataset_file, parse_rows, raw_rows
from .counts import Counts

AUDIT_VERSION = 3


def _evaluation_faults(name: str, where: str) -> list[str]:
    return check_dataset_name(name, where) if name else [f"{where}: a name is empty; leave it out"]


@dataclass
class AuditArguments(Checked):
    """Which rows to audit, and against what."""

    dataset_name: str = setting(
        "",
        "Data set to audit: a packaged name, a Hub id, or a file of RookWorld rows, prompts, FENs, EPDs "
        "or PGN games. A position counts as a policy prompt without an answer.",
        filled=True,
        check=check_dataset_name,
        remedy="give a Hub id, a file or a packaged name",
    )
    text_column: str = setting(
        "text",
        "Column of dataset_name that holds the rows; evaluation sets hold theirs in `text`.",
        filled=True,
    )
    dataset_splits: list[str] = setting(
        ["train"],
        "Splits of a Hub data set to audit; positions that two of them share are counted.",
        filled=True,
        once=True,
    )
    evaluation_names: list[str] = setting(
        [],
        "Data sets on which models are evaluated; positions that they share with dataset_name are "
        "counted.",
        check=each(_evaluation_faults),
    )
    evaluation_split: str = setting("train", "Split to read of evaluation sets on the Hub.")
    max_rows: int | None = setting(
        None,
        "Read at most this many rows of each split of dataset_name; a Hub data set is then streamed.",
        least=1,
    )
    engine_sample: int = setting(
        0,
        "Number of policy rows that the engine values, to compare E and B with; 0 needs no engine.",
        least=0,
    )
    output_file: str | None = setting(None, "JSON file to which the counts are also written.")

    def faults(self) -> list[str]:
        """Faults that only several keys together show, one sentence each."""
        if self.dataset_splits in ([], ["train"]) or dataset_file(self.dataset_name) is None:
            return []
        return [f"dataset_splits: {self.dataset_name!r} is one file without splits; leave it out"]


# --------------------------------------------------------------------------------------------------
# The story
# --------------------------------------------------------------------------------------------------
def audit(args: AuditArguments, labeller: Labeller | None = None) -> dict[str, Any]:
    """Read all rows once and return the counts as a nested dict that JSON can hold.

    Args:
        args: What to read.
        labeller: Values the sample; needed if `args.engine_sample` is above 0.

    Raises:
        RookWorldError: A data set cannot be read, no row of an evaluation set can be parsed, or the
            engine fails.
    """
    counts = Counts(args.engine_sample)
    splits = {}
    for split in args.dataset_splits:
        splits[split] = RowHashes()
        for row in _read(args.dataset_name, split, args.max_rows, args.text_column):
            counts.add(row)
            splits[split].add(row)
    engine = _ask_engine(counts, labeller) if labeller else None
    return {
        "audit_version": AUDIT_VERSION,
        "dataset_name": args.dataset_name,
        "splits": args.dataset_splits,
        "text_column": args.text_column,
        "max_rows": args.max_rows,
        "rows": counts.rows_result(),
        "largest_unreadable_share": max(split.unreadable_share for split in splits.values()),
        POLICY.name: counts.policy_result() | {"engine": engine},
        ENVIRONMENT.name: counts.environment_result(),
        FILL_IN.name: counts.fill_in_result(),
        "duplicates": _duplicates_result(list(splits.values())),
        "overlap": {
            "splits": [
                _overlap(*pair, splits[pair[0]], splits[pair[1]])
                for pair in itertools.combinations(splits, 2)
            ],
            "evaluation": list(_evaluation_overlaps(args, splits)),
        },
    }


def _read(
    name: str, split: str, max_rows: int | None = None, text_column: str = "text"
) -> Iterator[Row | Malformed]:
    rows = parse_rows(raw_rows(name, split, max_rows, text_column), tasks=[POLICY.name])
    return shown(rows, f"reading {name}, {split}")


def _ask_engine(counts: Counts, labeller: Labeller) -> dict[str, Any]:
    with Progress("valuing a sample", len(counts.sample), "positions") as progress:
        answers = labeller.values([row["fen"] for row in counts.sample], progress.update)
    for row, values in zip(counts.sample, answers, strict=True):
        if values is not None:
            counts.compare(row, values.by_move(), "engine")
    return {
        "engine": labeller.source.engine,
        "limit": labeller.source.limit,
        "sampled": len(counts.sample),
        "given_up": sum(values is None for values in answers),
        **counts.values_result("engine"),
    }


def _evaluation_overlaps(
    args: AuditArguments, splits: Mapping[str, RowHashes]
) -> Iterator[dict[str, Any]]:
    for name in args.evaluation_names:
        hashes = RowHashes()
        for row in _read(name, args.evaluation_split):
            hashes.add(row)
        if not hashes.positions:
            raise RookWorldError(
                f"evaluation_names: no row of {name!r} can be read as a RookWorld row, so its "
                "overlap cannot be counted; give another file, or leave it out"
            )
        for split in splits:
            overlap = _overlap(split, name, splits[split], hashes)
            yield overlap | {"malformed_of_second": hashes.malformed}


# --------------------------------------------------------------------------------------------------
# Hashes
# --------------------------------------------------------------------------------------------------
def hash_of(text: str) -> int:
    """A hash of 64 bits; the chance that two of 10 million texts share one is 3 in a million."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class RowHashes:
    """Position, prompt and answer of each row of a split, and how many have none."""

    def __init__(self) -> None:
        self.malformed = self.unreadable = 0
        self.positions, self.prompts, self.answers = array("Q"), array("Q"), array("Q")

    def add(self, row: Row | Malformed) -> None:
        """Keep the hashes of one row."""
        if isinstance(row, Malformed):
            self.malformed += 1
            self.unreadable += not row.is_readable
            return
        self.positions.append(hash_of(rules.position_key(row["fen"])))
        self.prompts.append(hash_of(row["prompt"]))
        self.answers.append(hash_of(_answer_text(row)))

    @property
    def unreadable_share(self) -> float:
        """The share of the split's rows that cannot be read, as `max_quarantined_share` counts it."""
        return self.unreadable / max(1, self.malformed + len(self.prompts))

    def duplicates(self) -> tuple[int, int]:
        """How many rows repeat an earlier prompt, and how many of them answer it differently."""
        answers = np.array(self.answers)
        _, first, same = np.unique(self.prompts, return_index=True, return_inverse=True)
        return len(answers) - len(first), int((answers != answers[first][same]).sum())


def _answer_text(row: Row) -> str:
    """An answer without the order of its candidates, which does not matter."""
    if row["task"] != POLICY.name or not row["completion"]:
        return str(row["completion"])
    answer = parse_policy_answer(row["completion"])
    pairs = sorted(itertools.zip_longest(answer.moves, map(str, answer.evaluations), fillvalue=""))
    return f"{pairs} {answer.best_move}"


def _duplicates_result(splits: Sequence[RowHashes]) -> dict[str, Any]:
    found = [split.duplicates() for split in splits]
    total = sum(len(split.prompts) for split in splits)
    repeated, conflicting = map(sum, zip(*found, strict=True))
    return {
        name: {"rows": rows, "share": rows / total if total else None}
        for name, rows in (("within_a_split", repeated), ("conflicting", conflicting))
    }


def _overlap(first: str, second: str, rows: RowHashes, others: RowHashes) -> dict[str, Any]:
    one, other = np.array(rows.positions), np.array(others.positions)
    return {
        "first": first,
        "second": second,
        "positions": len(np.intersect1d(one, other)),
        "rows_of_first": int(np.isin(one, other).sum()),
        "rows_of_second": int(np.isin(other, one).sum()),
    }
