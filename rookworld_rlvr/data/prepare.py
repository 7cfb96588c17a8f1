"""Make labelled data sets: read rows, value policy positions with engines, repair answers.

Each position that has been valued is in the engine's cache on disk. A run that was stopped goes on
from there.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from datasets import Dataset, Features, Value
from datasets.arrow_writer import ArrowWriter

from ..common.errors import RookWorldError
from ..common.files import check_writable, render
from ..common.progress import Progress
from ..common.settings import setting, with_default
from ..engine.labeller import Labeller
from ..engine.truth import LabelArguments
from ..tasks import rules
from ..tasks.environment import ENVIRONMENT
from ..tasks.policy import POLICY, parse_policy_answer, write_policy_answer, write_policy_prompt
from ..tasks.registry import TASKS, join_row
from ..tasks.types import EnvironmentPrompt, ValueSource, action_values_column, values_by_move
from . import play, sources, synthesis
from .games import GAME_SHARES, GameArguments, collect, environment_targets, policy_targets
from .loading import made_rows
from .parquet import write_parquet
from .parsing import PositionArguments, parse_rows, quarantine, raw_rows
from .sources import Malformed, Row, RowArguments

_BEST_MOVE = "best_move"


REPAIRS = (POLICY.name, _BEST_MOVE, ENVIRONMENT.name, "duplicates")
"""Names of `repairs`.

- `policy`: policy answers rewritten by the values of the moves.
- `best_move`: B set to the best of the moves of M; the rest of the answer stays.
- `environment`: answers recomputed by python-chess.
- `duplicates`: rows dropped if their prompt has appeared before.
"""


ROW_GROUP = 500  # rows, whose values are in memory at once


_POLICY_PLIES = 6  # of the longest game before a synthetic policy row


_WRITTEN = Features({"text": Value("string"), "action_values": sources.FEATURES["action_values"]})


# --------------------------------------------------------------------------------------------------
# Arguments
# --------------------------------------------------------------------------------------------------
@dataclass
class PrepareArguments(PositionArguments, RowArguments, LabelArguments, GameArguments):
    """The data set to make."""

    dataset_name: str = setting(
        "",
        "Data to label and repair: a packaged name, a Hub id, or a file of RookWorld rows, prompts, "
        "FENs, EPDs or PGN games. Leave it out to make synthetic rows only.",
        check=sources.check_dataset_name,
    )
    output_file: str = setting("", "Parquet file to write.")
    labels: Literal["stored", "stored_or_engine"] = with_default(
        LabelArguments, "labels", "stored_or_engine"
    )
    synthetic_policy_rows: int = setting(
        0,
        "Number of random positions, after up to six plies, to add as policy rows; their answers are "
        "written from the engine's values.",
        least=0,
    )
    repairs: list[str] = setting(
        [],
        "Repairs to make: policy rewrites policy answers by the values of moves, best_move only B, "
        "environment recomputes answers by python-chess, duplicates drops repeated prompts.",
        among=REPAIRS,
        of="repair",
    )
    cluster: Literal["local", "slurm"] | None = setting(
        None,
        "Divide the rows into cluster_tasks tasks, which datatrove runs: one after the other on this "
        "machine (local), or as jobs of Slurm; each has engine_workers engines. None labels all rows in "
        "one run.",
    )
    cluster_tasks: int = setting(
        100,
        "Number of tasks with `cluster`. If one is stopped, its rows are gone through again, without "
        "the searches that were done. Give several times as many as run at a time.",
        least=1,
    )
    cluster_options: dict[str, Any] | str | None = setting(
        None,
        "Further arguments of datatrove's executor; Slurm needs {time: '08:00:00', partition: cpu}.",
    )
    hub_dataset_id: str | None = setting(
        None, "Upload the file and a data card to this data set on the Hub, owner/name."
    )

    @property
    def games_path(self) -> Path:
        """The file of games."""
        return Path(self.games_file or Path(self.output_file).with_suffix(".games.parquet"))

    def faults(self) -> list[str]:
        """Faults that only several keys together show, one sentence each."""
        faults = super().faults()
        if not self.output_file.endswith(".parquet"):
            faults.append(
                f"output_file: {self.output_file!r} does not end in .parquet; give the file to write, "
                "such as --output_file rows.parquet"
            )
        made = self.synthetic_rows, self.synthetic_policy_rows, self.synthetic_fill_in_rows
        of_games = self.game_rows, self.game_policy_rows
        if not (self.dataset_name or any(made) or any(of_games)):
            faults.append(
                "dataset_name: missing, and no synthetic rows or rows of games to make; give one of them"
            )
        for name in ("synthetic_policy_rows", "game_policy_rows"):
            if self.labels == "stored" and getattr(self, name):
                faults.append(
                    f"labels: 'stored' leaves {name} without answers; set labels: stored_or_engine, or "
                    f"leave {name} out"
                )
        faults += self._game_faults()
        if self.hub_dataset_id is not None and self.hub_dataset_id.count("/") != 1:
            faults.append(f"hub_dataset_id: {self.hub_dataset_id!r} is not a Hub id (owner/name)")
        return faults

    def _game_faults(self) -> list[str]:
        faults = []
        if self.games and not self.takes_games:
            faults.append("games: no rows to take of them; give game_rows or game_policy_rows")
        if self.games_file and not self.games_file.endswith(".parquet"):
            faults.append(f"games_file: {self.games_file!r} does not end in .parquet")
        if self.games_file and self.games_file == self.output_file:
            faults.append(f"games_file: {self.games_file!r} is output_file too; give another file")
        must_exist = self.takes_games and not self.games
        if must_exist and self.output_file and not self.games_path.is_file():
            faults.append(
                f"games: none to play, and no file {str(self.games_path)!r} to read them from; give "
                "games or games_file"
            )
        if self.game_policy_rows and self.random_game_share == 1:
            faults.append(
                "game_policy_rows: they are taken of games that the engine played, but "
                "random_game_share is 1; give less"
            )
        if self.cluster and self.game_rows:
            faults.append(
                "game_rows: environment rows need no labels; make them in a run without cluster"
            )
        return faults


# --------------------------------------------------------------------------------------------------
# Counts
# --------------------------------------------------------------------------------------------------
@dataclass
class PrepareReport:
    """What was done, counted."""

    rows: Counter[str] = field(default_factory=Counter)  # read, quarantined, written and so on
    searches: Counter[str] = field(default_factory=Counter)  # of the rows that need values
    repaired: Counter[str] = field(default_factory=Counter)  # rows by repair
    not_repairable: Counter[str] = field(default_factory=Counter)  # rows by repair that failed
    rows_of_games: Counter[str] = field(default_factory=Counter)  # by where they are from
    game_rows: Counter[str] = field(default_factory=Counter)  # environment rows of games by kind


def report_lines(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The counts of a `PrepareReport` as lines for a terminal."""
    return [
        f"{f'{group}, {name}'.replace('_', ' '):<34}{count:>10,}"
        for group, numbers in counts.items()
        for name, count in numbers.items()
    ]


# --------------------------------------------------------------------------------------------------
# Reading
# --------------------------------------------------------------------------------------------------
def read_rows(args: PrepareArguments, report: PrepareReport, quarantine_file: Path) -> Dataset:
    """The parsed rows in their order, without the malformed ones, then the made ones; kept on disk.

    Args:
        args: What to read.
        report: Counted into.
        quarantine_file: Where malformed rows go.

    Raises:
        RookWorldError: The data set cannot be read, or too much of it is malformed.
    """
    rows = _on_disk(_rows(args, report, quarantine_file), sources.FEATURES)
    if "duplicates" in args.repairs:
        first = _first_of_equal(rows)
        report.repaired["duplicates"] += len(rows) - len(first)
        rows = rows.select(first)
    return rows


def _rows(args: PrepareArguments, report: PrepareReport, quarantine_file: Path) -> Iterator[Row]:
    malformed = []
    if args.dataset_name:
        report.rows.update(dict.fromkeys(("read", "quarantined", "unjudgeable"), 0))
    for row in parse_rows(raw_rows(args), args.tasks):
        if isinstance(row, Malformed) and row.kind == "comment":
            report.rows["comments"] += 1
            continue
        report.rows["read"] += 1
        if isinstance(row, Malformed):
            malformed.append(row)
            report.rows["unjudgeable" if row.kind == "unjudgeable" else "quarantined"] += 1
        else:
            yield row
    quarantine(malformed, report.rows["read"], args, quarantine_file)
    for row in _made_rows(args):
        report.rows["made"] += 1
        yield row


def _made_rows(args: PrepareArguments) -> Iterator[Row]:
    """Synthetic rows of all tasks, and policy rows of games; a policy row has no answer yet."""
    positions = synthesis.opening_positions(args.synthetic_seed, _POLICY_PLIES)
    seen: set[str] = set()
    with Progress("making policy rows", args.synthetic_policy_rows) as progress:
        while len(seen) < args.synthetic_policy_rows:
            fen = next(positions)
            if (key := rules.position_key(fen)) not in seen:
                seen.add(key)
                progress.update()
                yield _policy_row(fen)
    yield from map(_policy_row, _game_positions(args))
    yield from made_rows(args)


def _policy_row(fen: str) -> Row:
    return POLICY.row(write_policy_prompt(fen), "", EnvironmentPrompt(fen))


def _game_positions(args: PrepareArguments) -> Iterator[str]:
    """FENs of positions of games."""
    targets, seed = policy_targets(args.game_policy_rows), f"{args.synthetic_seed} policy"
    with Progress("taking positions of games", args.game_policy_rows) as progress:
        for batch in collect(args.games_path, targets, 0.0, seed, args.workers(), is_policy=True):
            yield from (found.text for found in batch)
            progress.update(len(batch))


def _on_disk(rows: Iterable[Row], features: Features) -> Dataset:
    """Rows in a temporary file that is mapped into memory, and removed when the process ends."""
    folder = tempfile.mkdtemp(prefix="rookworld-rows-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with ArrowWriter(path=str(Path(folder) / "rows.arrow"), features=features) as writer:
        for row in rows:
            writer.write(row)
        writer.finalize()
    return Dataset.from_file(str(Path(folder) / "rows.arrow"))


def _first_of_equal(rows: Dataset) -> npt.NDArray[np.int64]:
    """The indices of the rows whose prompt has not come before, in eight bytes for each row."""
    # Of five million different prompts, two share a hash of 64 bits once in a million data sets.
    asked = zip(rows["task"], rows["prompt"], strict=True)
    hashes = np.fromiter(map(hash, asked), np.int64, len(rows))
    return np.sort(np.unique(hashes, return_index=True)[1])


# --------------------------------------------------------------------------------------------------
# Games
# --------------------------------------------------------------------------------------------------
def play_missing_games(args: PrepareArguments) -> None:
    """Play the games that rows are taken of, unless their file is there.

    Raises:
        EngineError: No engine was found, or it fails at a game again and again.
        RookWorldError: The file or its parts hold other games than those that are asked for.
    """
    path = args.games_path
    if not path.exists():
        check_writable(path, "games_file")
        asked = play.Play(args.synthetic_seed, args.games, args.random_game_share)
        play.play_games(path, asked, args.engine_path, args.workers())
        return
    note = play.read_play(path)
    given = {"synthetic_seed": "seed", "games": "games", "random_game_share": "random_share"}
    other = [
        f"{key} {note[name]}" for key, name in given.items() if note[name] != getattr(args, key)
    ]
    if args.games and other:
        raise RookWorldError(
            f"games_file: {str(path)!r} holds games with {', '.join(other)}; give the same, leave "
            "`games` out to take rows of these games, or give another games_file"
        )


def game_rows(args: PrepareArguments, report: PrepareReport) -> Iterator[pa.Table]:
    """The environment rows of games as they are written, block by block.

    Args:
        args: Which rows to take.
        report: Counted into.

    Raises:
        RookWorldError: The games have fewer rows of a kind than were asked for.
    """
    shares: Any = args.game_shares or GAME_SHARES
    share, seed = args.random_game_share, f"{args.synthetic_seed} environment"
    targets = environment_targets(args.game_rows, shares, share)
    report.game_rows.update({kind: 0 for kind in shares if shares[kind]})
    with Progress("taking rows of games", args.game_rows) as progress:
        for batch in collect(args.games_path, targets, share, seed, args.workers()):
            report.rows_of_games.update(found.source for found in batch)
            report.game_rows.update(found.group[0] for found in batch)
            report.rows["written"] += len(batch)
            rows = [{"text": found.text, "action_values": None} for found in batch]
            yield pa.Table.from_pylist(rows, _WRITTEN.arrow_schema)
            progress.update(len(batch))


# --------------------------------------------------------------------------------------------------
# Labelling
# --------------------------------------------------------------------------------------------------
def write_labelled(
    path: Path,
    rows: Dataset,
    args: PrepareArguments,
    report: PrepareReport,
    more: Iterable[pa.Table] = (),
) -> None:
    """Value the positions of rows, repair their answers, and write them with their provenance.

    This is done batch by batch, so memory does not grow with the number of rows. The columns are `text`
    and `action_values`.

    Args:
        path: The Parquet file.
        rows: Of `read_rows`.
        args: Which repairs to make, which values to take, and whom to ask for them.
        report: Counted into.
        more: Rows to write after them as they are, such as `game_rows`.

    Raises:
        EngineError: No engine was found, or it fails at position after position.
        RookWorldError: The cache cannot be used.
    """
    needs_engine = args.labels != "stored" and any(
        map(_needs_values, rows.select_columns(["task", "action_values"]))
    )
    with Labeller(args) if needs_engine else nullcontext() as labeller:

        def tables() -> Iterator[pa.Table]:
            with Progress("labelling", len(rows)) as progress:
                for group in rows.with_format("arrow").iter(ROW_GROUP):
                    batch = group.to_pylist()
                    if labeller is not None:
                        _value(batch, labeller, report)
                    written = [_written(row, args, report) for row in batch]
                    yield pa.Table.from_pylist(written, _WRITTEN.arrow_schema)
                    progress.update(len(batch))
            yield from more  # which has its own progress

        report.rows.update({"written": 0, "policy rows without values": 0})
        source = None if labeller is None else labeller.source
        write_parquet(
            path,
            _WRITTEN.arrow_schema,
            tables(),
            lambda: provenance(args, source, report),
        )


def _needs_values(row: Mapping[str, Any]) -> bool:
    return TASKS[row["task"]].needs_values and row["action_values"] is None


def _value(rows: list[Row], labeller: Labeller, report: PrepareReport) -> None:
    """Put values into the rows that need them; None where the engine gave up."""
    asked = [row for row in rows if _needs_values(row)]
    answers = labeller.values([row["fen"] for row in asked])
    for row, found in zip(asked, answers, strict=True):
        row["action_values"] = found and action_values_column(found)
    # The others were in the cache, or their position came before.
    done, given_up = labeller.searched, len(labeller.given_up)
    total = report.searches.total() + len(asked)
    counts = {"not needed": total - done - given_up, "done": done, "given up": given_up}
    report.searches = Counter(counts)


def _written(row: Row, args: PrepareArguments, report: PrepareReport) -> Row:
    """A row as it is written, with its answer repaired."""
    repaired = repair_row(row, args.repairs)
    report.repaired.update(filter(None, [repaired.done]))
    report.not_repairable.update(filter(None, [repaired.refused]))
    report.rows["written"] += 1
    report.rows["policy rows without values"] += _needs_values(row)
    text = join_row(row["prompt"], repaired.completion)
    return {"text": text, "action_values": row["action_values"]}


def provenance(
    args: PrepareArguments, source: ValueSource | None, report: PrepareReport
) -> dict[str, Any]:
    """Where the rows come from and how they were made, for `write_parquet`."""
    before = sources.read_provenance(sources.dataset_file(args.dataset_name))
    return {
        "dataset_name": args.dataset_name,
        "dataset_split": args.dataset_split,
        "dataset_provenance": before,
        "engine": source and source.engine,
        "limit": source and source.limit,
        "date": datetime.now(UTC).date().isoformat(),
        "games": sources.read_provenance(args.games_path) if args.takes_games else None,
        "repairs": list(args.repairs),
        "counts": {group: dict(counts) for group, counts in vars(report).items()},
    }


def data_card(provenance: Mapping[str, Any]) -> str:
    """The README.md of a data set on the Hub."""
    note = json.dumps(provenance, indent=2)
    return f"{render('data_card.md', values=provenance, provenance=note)}\n"


# --------------------------------------------------------------------------------------------------
# Repairing
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Repaired:
    """A row's answer after repair."""

    completion: str
    done: str = ""  # the repair that changed it
    refused: str = ""  # a repair that it needs, but that its values do not allow


def repair_row(row: Mapping[str, Any], repairs: Collection[str]) -> Repaired:
    """Repair the answer of one row; a row without an answer gets the right one, if that is known.

    Args:
        row: With the columns that `sources` documents.
        repairs: Names of `REPAIRS`; ``duplicates`` has no effect on a single row.
    """
    task, completion = TASKS[row["task"]], row["completion"]
    values = values_by_move(row["action_values"])
    if not completion or task.name in repairs:
        name = task.name if completion else "answer"
        truth = task.truth(row["prompt"], values)
        if truth is None:
            return Repaired(completion, refused=name)
        return Repaired(truth, done=name if truth != completion else "")
    if task is not POLICY or _BEST_MOVE not in repairs:
        return Repaired(completion)
    answer = parse_policy_answer(completion)
    worth = {move: values[move] for move in answer.moves if move in values} if values else {}
    if not worth:
        return Repaired(completion, refused=_BEST_MOVE)
    best = max(worth, key=worth.__getitem__)
    if worth.get(answer.best_move) == worth[best]:
        return Repaired(completion)
    return Repaired(write_policy_answer(replace(answer, best_move=best)), done=_BEST_MOVE)
