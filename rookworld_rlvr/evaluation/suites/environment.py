"""Suite `environment`: one move simulated, by field and by move number."""

from __future__ import annotations

import math
import random
from typing import Any

import chess

from ...data.parsing import parse_rows, raw_rows
from ...data.sources import SourceArguments
from ...tasks import rules
from ...tasks.environment import ENVIRONMENT, parse_environment_answer, score_environment
from ...tasks.types import EnvironmentPrompt
from ..suite import PromptSuite, packaged

DATASET = "rookworld-evaluation"


OPENINGS = "openings"


# Positions after fewer plies than this, as in the packaged rows that runs train on.
OPENING_PLIES = 8


_OUTCOME = ("reward", "terminated", "truncated")


FIRST_MOVES_SHARE = 0.08


FIRST_MOVE = "move_1"


# Group of items → the last of its moves.
MOVES = {FIRST_MOVE: 1, "moves_2_to_10": 10, "moves_11_to_30": 30, "moves_31_on": math.inf}


@packaged
class EnvironmentSuite(PromptSuite[EnvironmentPrompt]):
    """Packaged prompts of all kinds, their positions from the held-out tenth.

    Args:
        suite_rows: The largest number of prompts.
        suite_seed: Decides which.
    """

    name = "environment"
    version = 2
    grouped = ("exact", "next_state_exact")  # by opening and move number

    groups = (OPENINGS, *MOVES)

    def __init__(self, suite_rows: int, suite_seed: int) -> None:
        super().__init__(_prompts(suite_rows, suite_seed), suite_seed)

    def groups_of(self, name: str) -> list[str]:
        """See `PromptSuite`."""
        item = self.items[name]
        plies = chess.Board(item.fen).ply()
        # The history has the whole game.
        is_opening = plies == len(item.history) - 1 < OPENING_PLIES
        return [*([OPENINGS] if is_opening else []), _moves(item.fen)]

    @staticmethod
    def judge(item: EnvironmentPrompt, completion: str) -> dict[str, float]:
        """See `PromptSuite`."""
        score = score_environment(item.fen, item.action, completion)
        values = {
            "invalid": 1 - score["format"],
            "exact": score["exact"],
            "next_state_exact": float(score["state"] == 1),
            "position": score["position"],
            "levenshtein": score["closeness"],
            **dict.fromkeys(_OUTCOME, 0.0),
        }
        if score["format"]:
            answer = parse_environment_answer(completion)
            truth = rules.transition(item.fen, item.action)
            values |= {name: getattr(answer, name) == getattr(truth, name) for name in _OUTCOME}
        return values


def _moves(fen: str) -> str:
    number = chess.Board(fen).fullmove_number
    return next(name for name, last in MOVES.items() if number <= last)


# --------------------------------------------------------------------------------------------------
# Items
# --------------------------------------------------------------------------------------------------
def heldout_prompts() -> dict[str, EnvironmentPrompt]:
    """The packaged prompts by their text; their positions are of the held-out tenth."""
    source: Any = parse_rows(raw_rows(SourceArguments(dataset_name=DATASET)))
    return {
        row["prompt"]: EnvironmentPrompt(row["fen"], row["action"], tuple(row["history"]))
        for row in source
        if row["task"] == ENVIRONMENT.name
    }


def _prompts(rows: int, seed: int) -> dict[str, EnvironmentPrompt]:
    """Prompts by their text, which is the item's name; first moves have a share of their own."""
    known = heldout_prompts()
    texts = random.Random(seed).sample(list(known), len(known))
    first = [text for text in texts if _moves(known[text].fen) == FIRST_MOVE]
    first = first[: math.ceil(FIRST_MOVES_SHARE * rows)]
    others = [text for text in texts if _moves(known[text].fen) != FIRST_MOVE]
    return {text: known[text] for text in [*first, *others][:rows]}
