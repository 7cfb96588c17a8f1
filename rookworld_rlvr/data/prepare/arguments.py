"""What `recipes/prepare_data.py` is told, and the synthetic rows that follow from it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...common.files import is_hub_id
from ...common.progress import Progress
from ...common.settings import setting, with_default
from ...engine.truth import LabelArguments, LabelSource
from ...tasks import rules
from ...tasks.policy import POLICY, write_policy_prompt
from ...tasks.rules import PHASES
from ...tasks.types import EnvironmentPrompt, PolicyPrompt
from .. import synthesis
from ..loading import is_held_out
from ..sources import Row, SourceArguments
from .repair import REPAIRS


def _parquet_faults(name: str, where: str) -> list[str]:
    if Path(name).suffix == ".parquet":
        return []
    return [f"{where}: {name!r} is no name of a .parquet file; give one"]


def _phase_faults(shares: Mapping[str, float], where: str) -> list[str]:
    if any(share > 0 for share in shares.values() if isinstance(share, int | float)):
        return []
    return [f"{where}: {shares!r} are no shares; give numbers from 0, one above it"]


@dataclass
class PrepareArguments(SourceArguments):
    """The data set to make; see `SourceArguments` for the rows that it is made of."""

    dataset_name: str = with_default(SourceArguments, "dataset_name", "")
    output_file: str = setting("", "Parquet file to write.", check=_parquet_faults)
    synthetic_policy_rows: int = setting(
        0,
        "So many random openings are added as policy rows, their answers written from the values.",
        least=0,
    )
    synthetic_policy_plies: int = setting(6, "Their longest game, in plies.", least=1)
    synthetic_policy_phases: dict[str, float] | str | None = setting(
        None,
        "Instead, shares of phases: {middlegame: 0.5, endgame: 0.5}.",
        among=PHASES,
        of="phase",
        least=0,
        check=_phase_faults,
    )
    synthetic_heldout_share: float | None = setting(
        None,
        "Synthetic rows of all tasks take positions of this held-out share only: a test set.",
        above=0,
        most=1,
    )
    repairs: list[str] = setting([], "Names of repair.REPAIRS.", among=REPAIRS)
    num_proc: int = setting(1, "Worker processes, each with engine_workers engines.", least=1)
    push_to_hub: bool = setting(False, "Whether to upload the file and a data card.")
    hub_dataset_id: str | None = setting(None, "Where to; needed for push_to_hub.")
    hub_private: bool = setting(False, "Whether a repository that is made for it is private.")

    def faults(self) -> list[str]:
        """What no key shows alone, one sentence each."""
        faults = super().faults()
        made = self.synthetic_rows, self.synthetic_policy_rows, self.synthetic_fill_in_rows
        if not (self.dataset_name or any(made)):
            faults.append("dataset_name: missing, and no synthetic rows to make; give one of them")
        if self.push_to_hub and not is_hub_id(self.hub_dataset_id or ""):
            faults.append(
                f"hub_dataset_id: {self.hub_dataset_id!r} is no Hub id (owner/name); push_to_hub "
                "needs one"
            )
        return faults


@dataclass
class PrepareLabelArguments(LabelArguments):
    """`LabelArguments` with another default: rows that have values keep them."""

    labels: LabelSource = with_default(LabelArguments, "labels", "stored_or_engine")

    def faults(self) -> list[str]:
        """What is wrong where workers share the values, one sentence each."""
        faults = super().faults()
        if self.engine_cache == ":memory:":
            faults.append("engine_cache: workers meet in the cache; give a file, not ':memory:'")
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
                prompt = write_policy_prompt(PolicyPrompt(fen))
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
