"""Suites `environment`, one move simulated, and `fill_in`, a hidden field of a record of one."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import chain, islice, zip_longest
from typing import Any

import chess

from ...data.parsing import parse_rows, raw_rows
from ...data.sources import Row, SourceArguments
from ...data.synthesis import fill_in_row
from ...tasks import rules
from ...tasks.environment import ENVIRONMENT, parse_environment_answer, score_environment
from ...tasks.fill_in_record import parse_fill_in_prompt, score_fill_in
from ...tasks.types import FILL_IN_FIELDS, EnvironmentPrompt, FillInField
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


# --------------------------------------------------------------------------------------------------
# Fill-in
# --------------------------------------------------------------------------------------------------
@packaged
class FillInSuite(PromptSuite[Row]):
    """Records of the packaged environment prompts, each field hidden equally often.

    Their positions are those of the suite `environment`, from the held-out tenth.

    Args:
        suite_rows: The largest number of records.
        suite_seed: Decides which, and what is hidden.
    """

    name = "fill_in"
    version = 1
    grouped = ("exact",)  # by hidden field

    groups = FILL_IN_FIELDS

    def __init__(self, suite_rows: int, suite_seed: int) -> None:
        super().__init__(_records(suite_rows, suite_seed), suite_seed)

    def positions(self) -> dict[str, str]:
        """See `Suite`."""
        return {item: row["fen"] for item, row in self.items.items()}

    def groups_of(self, name: str) -> list[str]:
        """See `PromptSuite`."""
        return [parse_fill_in_prompt(name).field]

    @staticmethod
    def judge(item: Row, completion: str) -> dict[str, float]:
        """See `PromptSuite`."""
        score = score_fill_in(parse_fill_in_prompt(item["prompt"]), completion)
        values = {name: score[name] for name in ("exact", "similarity")}
        return {"invalid": 1 - score["format"], **values}


def _records(rows: int, seed: int) -> dict[str, Row]:
    """Rows by their prompt, which names the item; the fields take turns, no record is used twice."""
    known = list(heldout_prompts().values())
    used: set[EnvironmentPrompt] = set()
    streams = [_masked(known, field, used, seed) for field in FILL_IN_FIELDS]
    turns = filter(None, chain.from_iterable(zip_longest(*streams)))
    return {row["prompt"]: row for row in islice(turns, rows)}


def _masked(
    known: list[EnvironmentPrompt], field: FillInField, used: set[EnvironmentPrompt], seed: int
) -> Iterator[Row]:
    rng = random.Random(f"{seed} {field}")
    for asked in rng.sample(known, len(known)):
        row = None if asked in used else fill_in_row(rng, asked, field)
        if row is not None:
            used.add(asked)
            yield row
