"""Suite `policy`: an analysis of a position, against the engine's values of all legal moves."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from itertools import chain, islice, zip_longest
from typing import Any

from ...data.loading import HELDOUT_SHARE, is_held_out
from ...data.parsing import parse_rows, raw_rows
from ...data.sources import PACKAGED_DATA, SourceArguments, dataset_file, values_line
from ...tasks import positions
from ...tasks.policy import (
    POLICY,
    evaluation_pairs,
    parse_policy_answer,
    score_policy,
    win_probability,
    write_policy_prompt,
)
from ...tasks.registry import task_of
from ...tasks.types import Values, values_by_move
from ..suite import PromptSuite, packaged

MOST_CP = 1_000  # limit of a centipawn loss, as on lichess.org: a mate is not worth 1,000 pawns


@packaged
class PolicySuite(PromptSuite[Values]):
    """Positions with the values of all legal moves, a third of them from each phase of the game.

    Args:
        suite_rows: The largest number of positions.
        suite_seed: Decides which.
    """

    name = "policy"
    version = 2
    right = "best_move"
    # By side to move and phase.
    grouped = ("expected_score", "legal", "best_move", "win_probability_loss")

    groups = (*positions.SIDES, *positions.PHASES)

    def __init__(self, suite_rows: int, suite_seed: int) -> None:
        sources = {line for name in PACKAGED_DATA if (line := values_line(dataset_file(name)))}
        items = _balanced(heldout_values(), suite_rows, suite_seed)
        super().__init__(items, suite_seed, {"values": sorted(sources)})

    def prompts(self) -> list[str]:
        """See `PromptSuite`."""
        return [write_policy_prompt(fen) for fen in self.items]

    def groups_of(self, name: str) -> list[str]:
        """See `PromptSuite`."""
        return [positions.side_to_move(name), positions.phase(name)]

    @staticmethod
    def judge(item: Values, completion: str) -> dict[str, float]:
        """See `PromptSuite`.

        Args:
            item: Centipawns from the side to move by move, for every legal move.
            completion: What the model wrote.
        """
        score = score_policy(item, completion)
        values = {
            "invalid": 1 - score["format"],
            "best_move": score["best_move_hit"],
            "top_5_overlap": score["candidates"],
            **{name: score[name] for name in ("expected_score", "legal", "top_five")},
        }
        if not score["format"]:
            return values
        answer = parse_policy_answer(completion)
        if (cp := item.get(answer.best_move)) is not None:
            best = max(item.values())
            values["centipawn_loss"] = min(MOST_CP, best - cp)
            values["win_probability_loss"] = win_probability(best) - win_probability(cp)
        if pairs := evaluation_pairs(answer, item):
            values["evaluation_mae"] = sum(abs(said - true) for said, true in pairs) / len(pairs)
        return values


# --------------------------------------------------------------------------------------------------
# Positions
# --------------------------------------------------------------------------------------------------
@cache
def heldout_values() -> Mapping[str, Values]:
    """Values of the held-out positions of the packaged data, by FEN."""
    values: dict[str, Values] = {}
    for name in PACKAGED_DATA:
        raws = raw_rows(SourceArguments(dataset_name=name))
        # Before they are parsed: to check a fill-in record takes a hundred times as long.
        asked = (raw for raw in raws if task_of(raw.get("text") or raw["prompt"]) == POLICY.name)
        rows: Any = parse_rows(asked)
        for row in rows:
            if not is_held_out(row["fen"], HELDOUT_SHARE):
                continue
            if by_move := values_by_move(row["action_values"]):
                values[row["fen"]] = by_move
    return values


def _balanced(known: Mapping[str, Values], rows: int, seed: int) -> dict[str, Values]:
    """At most so many positions, spread over the phases as evenly as possible."""
    by_phase: dict[str, list[str]] = {}
    for fen in sorted(known):
        by_phase.setdefault(positions.phase(fen), []).append(fen)
    for index, phase in enumerate(sorted(by_phase)):
        random.Random(f"{seed} {index}").shuffle(by_phase[phase])
    turns = chain.from_iterable(zip_longest(*(by_phase[phase][::-1] for phase in sorted(by_phase))))
    return {fen: known[fen] for fen in islice(filter(None, turns), rows)}
