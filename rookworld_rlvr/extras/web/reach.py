"""How far into a game a model's training went, where its folder says so."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import chess
import yaml
from pyarrow import parquet

from ...common.files import asset_path
from ...data.sources import dataset_file
from ...models.loading import PACKAGED_MODEL
from ...tasks.environment import ENVIRONMENT
from ...tasks.policy import POLICY

OPENINGS = "rookworld-nano-openings"  # the packaged data, whose rows are opening moves
_ONLY_OPENINGS = {"openings", "double_steps", "illegal_actions"}  # kinds of synthetic rows
_KEYS = re.compile(r"```yaml\n(.*?)```", re.S)  # in the packaged model's card
_STATE = re.compile(r"^(?:P|A): \S+ ([wb]) \S+ \S+ \d+ (\d+)")


def beyond(model: str, task: str, board: chess.Board) -> str:
    """A sentence if a position is deeper in the game than all that a model was trained on.

    Empty if it is not, or if it is not known how far the training went.

    Args:
        model: A packaged name, a run's folder, or another name, of which nothing is known.
        task: What is asked, ``policy`` or ``environment``.
        board: The position.
    """
    deepest = trained_plies(model, task)
    # A capture takes a move, so a board that lacks pieces is at least as many plies in.
    plies = max(board.ply(), 32 - chess.popcount(board.occupied))
    if deepest is None or plies <= deepest:
        return ""
    return (
        f"Beyond its training: this position comes at least {plies} half-moves into a game, and "
        f"{model} was trained on openings of at most {deepest}. Expect illegal moves and nonsense."
    )


def trained_plies(model: str, task: str, seen: frozenset[str] = frozenset()) -> int | None:
    """The half-moves before the deepest position that a model was trained on; None if unknown.

    Args:
        model: See `beyond`.
        task: See `beyond`.
        seen: Models that started from this one; runs may have been started from each other.
    """
    keys = _keys(model)
    base = keys.get("model_name_or_path")
    if keys.get("dataset_name") != OPENINGS:
        return None
    deepest = [_deepest_rows()[task]]
    if task == ENVIRONMENT.name and keys.get("synthetic_rows"):
        if not set(keys.get("synthetic_shares") or ("unknown",)) <= _ONLY_OPENINGS:
            return None
        deepest.append(keys.get("synthetic_opening_plies", 12) - 1)
    if base is not None:
        seen |= {model}
        of_base = trained_plies(base, task, seen) if base not in seen else None
        if of_base is None:
            return None
        deepest.append(of_base)
    return max(deepest)


def _keys(model: str) -> Mapping[str, Any]:
    """The keys of the run that made a model; empty if they are not known."""
    try:
        if model == PACKAGED_MODEL:
            card = Path(asset_path(PACKAGED_MODEL), "README.md").read_text("utf-8")
            text = found[1] if (found := _KEYS.search(card)) else ""
        else:
            text = Path(model, "resolved_config.yaml").read_text("utf-8")
        keys = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return keys if isinstance(keys, dict) else {}


@cache
def _deepest_rows() -> Mapping[str, int]:
    """Task → the half-moves before the deepest position of the packaged openings."""
    deepest = {POLICY.name: 0, ENVIRONMENT.name: 0}
    file = dataset_file(OPENINGS)
    for text in parquet.read_table(file, columns=["text"])["text"].to_pylist():
        if found := _STATE.match(text):
            task = POLICY.name if text.startswith("P") else ENVIRONMENT.name
            plies = 2 * (int(found[2]) - 1) + (found[1] == "b")
            deepest[task] = max(deepest[task], plies)
    return deepest
