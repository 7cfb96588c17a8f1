"""Suite `openings`: the first moves of games simulated, greedy and sampled, by half-move."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import chess

from ...common.errors import IllegalPositionError, NotationError
from ...models.decoding import ROOKWORLD
from ...tasks import rules
from ...tasks.environment import parse_environment_prompt, write_environment_prompt
from ...tasks.types import EnvironmentPrompt
from ..suite import Answerer, Judged, PromptSuite, SuiteUnavailableError, packaged
from .environment import EnvironmentSuite, heldout_prompts

logger = logging.getLogger(__name__)

# Group of items → the last of its half-moves.
PLIES = {"ply_1": 1, "plies_2_to_5": 5, "plies_6_to_10": 10, "plies_11_on": math.inf}

JUDGED = ("invalid", "exact", "position")  # metrics of the suite environment


@packaged
class OpeningsSuite(PromptSuite[EnvironmentPrompt]):
    """Openings from a file; without one, the twenty first moves and packaged held-out openings.

    The rules say what is right; `expected_fen` and `move_num` of a file are not read.

    Args:
        suite_rows: The largest number of prompts.
        suite_seed: Decides which, and what is sampled.
        openings_file: A JSON list of objects with `prompt` (``A: state+action+history+``).

    Raises:
        SuiteUnavailableError: The file could not be read, or holds no such prompt.
    """

    name = "openings"
    version = 1
    grouped = ("exact", "position", "sampled_exact", "sampled_position")  # by half-move

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
        return [write_environment_prompt(prompt) for prompt in self.items.values()]

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


# --------------------------------------------------------------------------------------------------
# Items
# --------------------------------------------------------------------------------------------------
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
    return {write_environment_prompt(prompt): prompt for prompt in [*first, *others][:rows]}


def _read(path: Path, rows: int, seed: int) -> dict[str, EnvironmentPrompt]:
    """The prompts of a file by ``row 17``, counted from 1; those that cannot be read are left out."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        texts = [str(row.get("prompt")) for row in content]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise _refused(path, f"could not be read ({error})") from error
    prompts = {}
    for number, text in enumerate(texts, start=1):
        with contextlib.suppress(NotationError, IllegalPositionError):
            prompt = parse_environment_prompt(text)
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
        f"openings_file: {str(path)!r} {why}; give a JSON list of objects with prompt, 'A: ...'"
    )
