"""The arguments of `recipes/prepare_data.py`, and the synthetic rows that they ask for."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...common.progress import Progress
from ...common.settings import setting, with_default
from ...engine.truth import LabelArguments, LabelSource
from ...tasks import rules
from ...tasks.environment import ENVIRONMENT
from ...tasks.policy import POLICY, write_policy_prompt
from ...tasks.rules import PHASES
from ...tasks.types import EnvironmentPrompt
from .. import synthesis
from ..loading import is_held_out
from ..sources import Row, SourceArguments, check_dataset_name
from .repair import REPAIRS


def _parquet_faults(name: str, where: str) -> list[str]:
    if Path(name).suffix == ".parquet":
        return []
    return [f"{where}: {name!r} is not the name of a .parquet file; give one"]


def _phase_faults(shares: Mapping[str, float], where: str) -> list[str]:
    if any(share > 0 for share in shares.values() if isinstance(share, int | float)):
        return []
    return [f"{where}: no share in {shares!r} is above 0; give at least one"]


@dataclass
class PrepareArguments(SourceArguments):
    """The data set to make; see `SourceArguments` for the rows that it is made from."""

    dataset_name: str = setting(
        "",
        "Data to label and repair: a packaged name, a Hub id, or a file of RookWorld rows, prompts, "
        "FENs, EPDs or PGN games. Leave it out to make synthetic rows only.",
        check=check_dataset_name,
    )
    tasks: list[str] = setting(
        [POLICY.name],
        "What to ask about each position of a FEN, EPD or PGN file: policy, an analysis; environment, "
        "what a move leads to. Rows and prompts keep the task that they have.",
        among=(POLICY.name, ENVIRONMENT.name),
        of="task for positions",
        filled=True,
        once=True,
    )
    output_file: str = setting("", "Parquet file to write.", check=_parquet_faults)
    synthetic_policy_rows: int = setting(
        0,
        "Number of random positions to add as policy rows; their answers are written from the engine's "
        "values.",
        least=0,
    )
    synthetic_policy_plies: int = setting(
        6,
        "Longest random game that leads to such a position, in plies; ignored if "
        "synthetic_policy_phases is given.",
        least=1,
    )
    synthetic_policy_phases: dict[str, float] | str | None = setting(
        None,
        "Draw these positions from phases of the game, in proportion: {middlegame: 0.5, endgame: 0.5}. "
        "Without it, from openings.",
        among=PHASES,
        of="phase",
        least=0,
        check=_phase_faults,
    )
    synthetic_heldout_share: float | None = setting(
        None,
        "Make synthetic rows only from positions that a heldout_share of this size holds out, for a "
        "test set. Without it, from all positions.",
        above=0,
        most=1,
    )
    repairs: list[str] = setting(
        [],
        "Repairs to make: candidates, evaluations and best_move rewrite M, E and B by the values of "
        "moves, environment recomputes answers with python-chess, duplicates drops repeated prompts.",
        among=REPAIRS,
        of="repair",
    )
    num_proc: int = setting(
        1, "Number of worker processes; each starts engine_workers engines.", least=1
    )
    cluster: Literal["local", "slurm", "ray"] | None = setting(
        None,
        "Divide the rows into cluster_tasks tasks, which datatrove runs: num_proc at a time on this "
        "machine (local), as jobs of Slurm, or on a Ray cluster. None labels all rows in one run.",
    )
    cluster_tasks: int = setting(
        100,
        "Number of tasks with `cluster`. If one is stopped, its rows are gone through again, without "
        "the searches that were done. Give several times as many as there are cores.",
        least=1,
    )
    cluster_options: dict[str, Any] | str | None = setting(
        None,
        "Further arguments of datatrove's executor; Slurm needs {time: '08:00:00', partition: cpu}.",
    )
    push_to_hub: bool = setting(False, "Upload the file and a data card to hub_dataset_id.")
    hub_dataset_id: str | None = setting(
        None, "Data set on the Hub to upload to, owner/name; needed for push_to_hub."
    )
    hub_private: bool = setting(False, "Make the Hub repository private, if it has to be created.")

    def faults(self) -> list[str]:
        """Faults that only several keys together show, one sentence each."""
        faults = super().faults()
        made = self.synthetic_rows, self.synthetic_policy_rows, self.synthetic_fill_in_rows
        if not (self.dataset_name or any(made)):
            faults.append("dataset_name: missing, and no synthetic rows to make; give one of them")
        if self.push_to_hub and (self.hub_dataset_id or "").count("/") != 1:
            faults.append(
                f"hub_dataset_id: {self.hub_dataset_id!r} is not a Hub id (owner/name); push_to_hub "
                "needs one"
            )
        return faults


@dataclass
class PrepareLabelArguments(LabelArguments):
    """`LabelArguments` with another default: rows that have values keep them."""

    labels: LabelSource = with_default(LabelArguments, "labels", "stored_or_engine")

    def faults(self) -> list[str]:
        """Faults that matter only because workers share a cache, one sentence each."""
        faults = super().faults()
        if self.engine_cache == ":memory:":
            faults.append(
                "engine_cache: workers share the cache, so it must be a file, not ':memory:'"
            )
        return faults


def made_rows(args: PrepareArguments) -> Iterator[Row]:
    """Synthetic rows of all tasks; a policy row has no answer yet."""
    share = args.synthetic_heldout_share

    def is_wanted(fen: str) -> bool:
        return share is None or is_held_out(fen, share)

    positions = filter(is_wanted, _made_positions(args))
    seen: set[str] = set()
    with Progress("making policy rows", args.synthetic_policy_rows) as progress:
        while len(seen) < args.synthetic_policy_rows:
            fen = next(positions)
            if (key := rules.position_key(fen)) not in seen:
                seen.add(key)
                progress.update()
                prompt = write_policy_prompt(fen)
                yield POLICY.row(prompt, "", EnvironmentPrompt(fen))
    yield from args.made_rows(is_wanted, "all" if share is None else f"held out {share!r}")


def _made_positions(args: PrepareArguments) -> Iterator[str]:
    seed, shares = args.synthetic_seed, args.synthetic_policy_phases
    if not shares:
        yield from synthesis.opening_positions(seed, args.synthetic_policy_plies)
        return
    assert isinstance(shares, dict)
    streams = {phase: synthesis.phase_positions(seed, phase) for phase in PHASES if phase in shares}
    rng = random.Random(seed)
    while True:
        (phase,) = rng.choices(list(streams), [shares[phase] for phase in streams])
        yield next(streams[phase])
