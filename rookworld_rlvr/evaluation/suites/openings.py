"""Suite `openings`: the first moves of games simulated, greedy and sampled, by half-move."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import chess

from ...common.errors import IllegalPositionError, NotationError
from ...models.decoding import ROOKWORLD
from ...tasks import rules
from ...tasks.environment import parse_environment_prompt, write_environment_prompt
from ...tasks.types import EnvironmentPrompt
from ..answerers import Answerer
from ..suite import Judged, Metric, Suite, SuiteUnavailableError
from .environment import EnvironmentSuite, heldout_prompts, judge

PLIES = {"ply_1": 1, "plies_2_to_5": 5, "plies_6_to_10": 10}  # group -> last of its half-moves


LATER_PLIES = "plies_11_on"


JUDGED = ("invalid", "exact", "position")  # metrics of the suite environment


SAMPLED = "sampled_"  # before the metrics of sampled answers


_FILE = "give a JSON list of objects with prompt"


class OpeningsSuite(Suite[EnvironmentPrompt]):
    """Openings from a file; without one, the twenty first moves and packaged held-out openings.

    The rules say what is right; `expected_fen` and `move_num` of a file are not read.

    Args:
        rows: The largest number of prompts.
        seed: Decides which, and what is sampled.
        file: A JSON list of objects with `prompt` (``A: state+action+history+``).

    Raises:
        SuiteUnavailableError: The file could not be read, or holds no such prompt.
    """

    name = "openings"
    summary = (
        "Simulates a move of an opening, each prompt answered greedily (or by `decoding`) and sampled; "
        "packaged openings, or your own (`openings_file`)."
    )
    version = 1
    headline = "position"
    one_answer = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        **{name: EnvironmentSuite.metrics[name] for name in JUDGED},
        "sampled_invalid": Metric("share", "As `invalid`, for the sampled answer."),
        "sampled_exact": Metric(
            "share", "As `exact`, for one answer sampled at temperature 0.6 and top-k 5."
        ),
        "sampled_position": Metric("share", "As `position`, for the sampled answer."),
    }
    grouped = ("exact", "position", "sampled_exact", "sampled_position")  # by half-move
    about = (
        "The twenty first moves, which training sets may hold, and held-out openings up to half-move "
        "10."
    )

    def __init__(self, rows: int, seed: int, file: str | None = None) -> None:
        found, notes = _packaged(rows, seed) if file is None else _read(Path(file), rows, seed)
        self._sampling = replace(ROOKWORLD, seed=seed)
        super().__init__(found, seed, {**notes, "sampled": self._sampling.as_dict()})

    def positions(self) -> dict[str, str]:
        """See `Suite`."""
        return {item: prompt.fen for item, prompt in self.items.items()}

    def groups(self) -> Iterable[str]:
        """See `Suite`."""
        return (*PLIES, LATER_PLIES)

    def judged(self, model: Answerer) -> Iterator[Judged]:
        """See `Suite`."""
        prompts = [write_environment_prompt(prompt) for prompt in self.items.values()]
        greedy = model.answers(prompts)
        sampled = model.samples(prompts, 1, self._sampling)
        answered = zip(self.items.items(), greedy, sampled, strict=True)
        for (item, prompt), completion, (drawn,) in answered:
            found, more = judge(prompt, completion), judge(prompt, drawn)
            values = {name: found[name] for name in JUDGED}
            values |= {f"{SAMPLED}{name}": more[name] for name in JUDGED}
            yield item, values, [ply_group(_ply(prompt))]


def ply_group(ply: int) -> str:
    """The group of a half-move, counted from 1.

    >>> ply_group(1), ply_group(10), ply_group(11)
    ('ply_1', 'plies_6_to_10', 'plies_11_on')
    """
    return next((name for name, last in PLIES.items() if ply <= last), LATER_PLIES)


def _ply(prompt: EnvironmentPrompt) -> int:
    return chess.Board(prompt.fen).ply() + 1


# --------------------------------------------------------------------------------------------------
# Items
# --------------------------------------------------------------------------------------------------
Items = tuple[dict[str, EnvironmentPrompt], dict[str, Any]]  # by name, and notes


def _packaged(rows: int, seed: int) -> Items:
    start = chess.Board()
    first = [EnvironmentPrompt(start.fen(), m.uci(), (m.uci(),)) for m in start.legal_moves]
    others = [
        prompt
        for prompt in heldout_prompts().values()
        if len(prompt.history) == _ply(prompt) and not _is_illegal(prompt)
    ]
    random.Random(seed).shuffle(others)
    chosen = [*first, *others][:rows]
    return {write_environment_prompt(prompt): prompt for prompt in chosen}, {}


def _is_illegal(prompt: EnvironmentPrompt) -> bool:
    return rules.transition(prompt.fen, prompt.action).truncated


def _read(path: Path, rows: int, seed: int) -> Items:
    """The prompts of a file by ``row 17``, counted from 1; rows without a readable one are counted."""
    content = _content(path)
    prompts = {f"row {number}": _prompt(row) for number, row in enumerate(content, start=1)}
    found = {name: prompt for name, prompt in prompts.items() if prompt is not None}
    if not found:
        raise SuiteUnavailableError(f"openings_file: {str(path)!r} holds no prompt; {_FILE}")
    unread = len(prompts) - len(found)
    words = f"; no readable prompt in {unread}" if unread else ""
    notes = {
        "positions": f"Openings of {path.name}, {len(content)} rows{words}.",
        "file": path.name,
        "unreadable": unread,
    }
    chosen = set(random.Random(seed).sample(sorted(found), min(rows, len(found))))
    return {item: found[item] for item in found if item in chosen}, notes


def _content(path: Path) -> list[Any]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SuiteUnavailableError(
            f"openings_file: {str(path)!r} could not be read ({error}); {_FILE}"
        ) from error
    if not isinstance(content, list):
        raise SuiteUnavailableError(f"openings_file: {str(path)!r} is not a list; {_FILE}")
    return content


def _prompt(row: Any) -> EnvironmentPrompt | None:
    """A row's prompt; None if it is malformed or its position illegal."""
    try:
        prompt = parse_environment_prompt(row["prompt"])
        rules.transition(prompt.fen, prompt.action)
    except (NotationError, IllegalPositionError, KeyError, TypeError, AttributeError):
        return None
    return prompt
