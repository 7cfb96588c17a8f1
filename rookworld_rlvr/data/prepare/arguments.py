"""What `recipes/prepare_data.py` is told, and the synthetic rows that follow from it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ...common.errors import ConfigurationError, close_matches, json_value
from ...common.files import is_hub_id
from ...engine.truth import LabelArguments
from ...tasks import rules
from ...tasks.policy import write_policy_prompt
from ...tasks.rules import PHASES
from ...tasks.types import PolicyPrompt
from .. import synthesis
from ..loading import is_held_out
from ..sources import Row, SourceArguments
from .repair import REPAIRS


@dataclass
class PrepareArguments(SourceArguments):
    """The data set to make; see `SourceArguments` for the rows that it is made of.

    Args:
        output_file: Parquet file to write.
        synthetic_policy_rows: So many random openings are added as policy rows, their answers written
            from the values.
        synthetic_policy_plies: Their longest game, in plies.
        synthetic_policy_phases: Instead, shares of phases: ``{middlegame: 0.5, endgame: 0.5}``.
        synthetic_heldout_share: Synthetic rows of all tasks take positions of this held-out share only:
            a test set.
        repairs: Names of `repair.REPAIRS`.
        num_proc: Worker processes, each with `engine_workers` engines.
        push_to_hub: Whether to upload the file and a data card.
        hub_dataset_id: Where to; needed for `push_to_hub`.
        hub_private: Whether a repository that is made for it is private.
    """

    dataset_name: str = ""
    output_file: str = ""
    synthetic_policy_rows: int = 0
    synthetic_policy_plies: int = 6
    synthetic_policy_phases: dict[str, Any] | str | None = None
    synthetic_heldout_share: float | None = None
    repairs: list[str] = field(default_factory=list)
    num_proc: int = 1
    push_to_hub: bool = False
    hub_dataset_id: str | None = None
    hub_private: bool = False

    def faults(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        faults = super().faults()
        if Path(self.output_file).suffix != ".parquet":
            faults.append(
                f"output_file: {self.output_file!r} is no name of a .parquet file; give one"
            )
        faults += [
            f"{name}: {getattr(self, name)!r} is too small; give at least {least}"
            for name, least in (
                ("synthetic_policy_rows", 0),
                ("synthetic_policy_plies", 1),
                ("num_proc", 1),
            )
            if getattr(self, name) < least
        ]
        faults += self._check_phases()
        share = self.synthetic_heldout_share
        if share is not None and not 0 < share <= 1:
            faults.append(
                f"synthetic_heldout_share: {share!r} is no share above 0; give a number up to 1"
            )
        faults += [
            f"repairs: {name!r} is none{close_matches(name, REPAIRS)}"
            for name in self.repairs
            if name not in REPAIRS
        ]
        made = self.synthetic_rows, self.synthetic_policy_rows, self.synthetic_fill_in_rows
        if not (self.dataset_name or any(made)):
            faults.append("dataset_name: missing, and no synthetic rows to make; give one of them")
        if self.push_to_hub and not is_hub_id(self.hub_dataset_id or ""):
            faults.append(
                f"hub_dataset_id: {self.hub_dataset_id!r} is no Hub id (owner/name); push_to_hub "
                "needs one"
            )
        return faults

    def _check_phases(self) -> list[str]:
        key = "synthetic_policy_phases"
        try:
            shares = self.synthetic_policy_phases = json_value(key, self.synthetic_policy_phases)
        except ConfigurationError as error:
            return error.faults
        if shares is None:
            return []
        if not isinstance(shares, dict):
            return [f"{key}: {shares!r} is no mapping of phases to shares"]
        faults = [
            f"{key}: unknown phase {phase!r}{close_matches(str(phase), PHASES)}"
            for phase in shares
            if phase not in PHASES
        ]
        bad = [v for v in shares.values() if isinstance(v, bool) or not isinstance(v, int | float)]
        if bad or min(shares.values(), default=0) < 0 or sum(shares.values()) <= 0:
            faults.append(f"{key}: {shares!r} are no shares; give numbers from 0, one above it")
        return faults


@dataclass
class PrepareLabelArguments(LabelArguments):
    """`LabelArguments` with another default: rows that have values keep them."""

    labels: str = "stored_or_engine"

    def faults(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
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
    while len(seen) < args.synthetic_policy_rows:
        fen = next(positions)
        if (key := rules.position_key(fen)) not in seen:
            seen.add(key)
            prompt = write_policy_prompt(PolicyPrompt(fen))
            row = {"task": "policy", "prompt": prompt, "completion": "", "fen": fen}
            yield {**row, "action": "", "history": [], "action_values": None}
    prompts = (prompt for prompt in args.made_prompts() if is_wanted(prompt.fen))
    yield from map(synthesis.environment_row, islice(prompts, args.synthetic_rows))
    masked = (row for row in args.made_fill_in_rows() if is_wanted(row["fen"]))
    yield from islice(masked, args.synthetic_fill_in_rows)


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
