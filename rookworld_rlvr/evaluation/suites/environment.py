"""Suites of simulated moves: `environment`, `openings`, and `fill_in`, a hidden field of a record."""

from __future__ import annotations

import json
import logging
import math
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import chess

from ...common.errors import IllegalPositionError, NotationError
from ...data.parsing import parse_rows, raw_rows
from ...data.sources import Row, SourceArguments
from ...data.synthesis import fill_in_row
from ...models.decoding import ROOKWORLD
from ...tasks import environment, rules
from ...tasks.fill_in import score_fill_in
from ...tasks.fill_in_record import parse_fill_in_prompt
from ...tasks.types import FILL_IN_FIELDS, EnvironmentPrompt, FillInField
from ..suite import Answerer, Judged, PromptSuite, SuiteUnavailableError

logger = logging.getLogger(__name__)


DATASET = "rookworld-evaluation"


OPENINGS = "openings"


# Positions after fewer plies than this, as in the packaged rows that runs train on.
OPENING_PLIES = 8


_OUTCOME = ("reward", "terminated", "truncated")


FIRST_MOVES_SHARE = 0.08


FIRST_MOVE = "move_1"


# Group of items → the last of its moves.
MOVES = {FIRST_MOVE: 1, "moves_2_to_10": 10, "moves_11_to_30": 30, "moves_31_on": math.inf}


class EnvironmentSuite(PromptSuite[EnvironmentPrompt], packaged="environment"):
    """Packaged prompts of all kinds, their positions from the held-out tenth.

    Args:
        suite_rows: The largest number of prompts.
        suite_seed: Decides which.
    """

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
        score = environment.score_environment(item.fen, item.action, completion)
        values = {
            "invalid": 1 - score["format"],
            "exact": score["exact"],
            "next_state_exact": float(score["state"] == 1),
            "position": score["position"],
            "levenshtein": score["closeness"],
            **dict.fromkeys(_OUTCOME, 0.0),
        }
        if score["format"]:
            answer = environment.parse_environment_answer(completion)
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
        if row["task"] == environment.ENVIRONMENT.name
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
# Openings
# --------------------------------------------------------------------------------------------------
# Group of items → the last of its half-moves.
PLIES = {"ply_1": 1, "plies_2_to_5": 5, "plies_6_to_10": 10, "plies_11_on": math.inf}

JUDGED = ("invalid", "exact", "position")  # metrics of the suite environment


class OpeningsSuite(PromptSuite[EnvironmentPrompt], packaged="openings"):
    """Openings from a file; without one, the twenty first moves and packaged held-out openings.

    The rules say what is right; `expected_fen` and `move_num` of a file are not read.

    Args:
        suite_rows: The largest number of prompts.
        suite_seed: Decides which, and what is sampled.
        openings_file: A JSON list of objects with `prompt` (``A: state+action+history+``).

    Raises:
        SuiteUnavailableError: The file could not be read, or holds no such prompt.
    """

    groups = tuple(PLIES)

    def __init__(self, suite_rows: int, suite_seed: int, openings_file: str | None = None) -> None:
        self._sampling = replace(ROOKWORLD, seed=suite_seed)
        notes: dict[str, Any] = {"sampled": self._sampling.as_dict()}
        if openings_file is None:
            prompts = _packaged(suite_rows, suite_seed)
        else:
            prompts = _read(Path(openings_file), suite_rows, suite_seed)
            name = Path(openings_file).name
            notes |= {"positions": f"Openings of {name}.", "file": name}
        super().__init__(prompts, suite_seed, notes)

    def prompts(self) -> list[str]:
        """See `PromptSuite`."""
        return [environment.write_environment_prompt(prompt) for prompt in self.items.values()]

    def groups_of(self, name: str) -> list[str]:
        """See `PromptSuite`."""
        ply = _ply(self.items[name])
        return [next(group for group, last in PLIES.items() if ply <= last)]

    @staticmethod
    def judge(item: EnvironmentPrompt, completion: str) -> dict[str, float]:
        """See `PromptSuite`."""
        values = EnvironmentSuite.judge(item, completion)
        return {name: values[name] for name in JUDGED}

    def judged(self, model: Answerer) -> Iterator[Judged]:
        """See `Suite`; each prompt is answered once more, sampled."""
        sampled = model.samples(self.prompts(), 1, self._sampling)
        for (name, values, groups), (text,) in zip(super().judged(model), sampled, strict=True):
            more = self.judge(self.items[name], text)
            yield name, {**values, **{f"sampled_{key}": more[key] for key in JUDGED}}, groups


def _ply(prompt: EnvironmentPrompt) -> int:
    return chess.Board(prompt.fen).ply() + 1


def _packaged(rows: int, seed: int) -> dict[str, EnvironmentPrompt]:
    start = chess.Board()
    first = [EnvironmentPrompt(start.fen(), m.uci(), (m.uci(),)) for m in start.legal_moves]
    others = [
        prompt
        for prompt in heldout_prompts().values()
        if len(prompt.history) == _ply(prompt)
        and not rules.transition(prompt.fen, prompt.action).truncated
    ]
    random.Random(seed).shuffle(others)
    chosen = [*first, *others][:rows]
    return {environment.write_environment_prompt(prompt): prompt for prompt in chosen}


def _read(path: Path, rows: int, seed: int) -> dict[str, EnvironmentPrompt]:
    """The prompts of a file by ``row 17``, counted from 1; those that cannot be read are left out."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise _refused(path, f"could not be read ({error})") from error
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise _refused(path, "has another form")
    texts = [str(row.get("prompt")) for row in content]
    prompts = {}
    for number, text in enumerate(texts, start=1):
        with suppress(NotationError, IllegalPositionError):
            prompt = environment.parse_environment_prompt(text)
            rules.transition(prompt.fen, prompt.action)
            prompts[f"row {number}"] = prompt
    if not prompts:
        raise _refused(path, "holds no environment prompt")
    if left_out := len(texts) - len(prompts):
        said = "openings_file: %d of %d rows cannot be read, and are left out"
        logger.warning(said, left_out, len(texts))
    chosen = set(random.Random(seed).sample(sorted(prompts), min(rows, len(prompts))))
    return {item: prompt for item, prompt in prompts.items() if item in chosen}


def _refused(path: Path, why: str) -> SuiteUnavailableError:
    return SuiteUnavailableError(
        f"openings_file: {str(path)!r} {why}; give a JSON list of objects with prompt, such as "
        '[{"prompt": "A: state+action+history+"}]'
    )


# --------------------------------------------------------------------------------------------------
# Fill-in
# --------------------------------------------------------------------------------------------------
class FillInSuite(PromptSuite[Row], packaged="fill_in"):
    """Records of the packaged environment prompts, each field hidden equally often.

    Their positions are those of the suite `environment`, from the held-out tenth.

    Args:
        suite_rows: The largest number of records.
        suite_seed: Decides which, and what is hidden.
    """

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
