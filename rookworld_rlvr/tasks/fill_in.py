"""The fill-in task: restore what is hidden in an environment record.

What a mask may hide and which answers fit is in `fill_in_record`, which only a run with such rows loads.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rapidfuzz.distance import Levenshtein

from ..common.errors import NotationError
from .task import BELOW_EXACT, Component, Metric, Row, Sampling, Task
from .text import FILL_IN_PREFIX
from .types import FILL_IN_FIELDS, EnvironmentPrompt, Score, Values

if TYPE_CHECKING:
    from .fill_in_record import FillInPrompt


class _Judged(NamedTuple):
    """The text written for a mask beside every answer that fits."""

    answer: str | None  # None if it has not the form of the field
    fits: Sequence[str]


def _exact(judged: _Judged) -> float:
    return float(judged.answer in judged.fits)


def _similarity(judged: _Judged) -> float:
    if judged.answer is None or judged.answer in judged.fits:
        return _exact(judged)
    return BELOW_EXACT * max(
        Levenshtein.normalized_similarity(judged.answer, right) for right in judged.fits
    )


def _format(judged: _Judged) -> float:
    return float(judged.answer is not None)


FILL_IN_COMPONENTS: Mapping[str, Component] = {
    "exact": Component("1 if it is one of the answers that fit.", _exact),
    "similarity": Component(
        "1 if exact; else 0.95 times the normalised similarity (1 minus edit distance) to the nearest "
        "answer.",
        _similarity,
    ),
    "format": Component("1 if the completion has the form of the field.", _format),
}
"""The numbers of a score."""


def score_fill_in(prompt: FillInPrompt, completion: str) -> Score:
    """Score the text written for a mask, see `FILL_IN_COMPONENTS`.

    Args:
        prompt: The masked record.
        completion: What the policy wrote; any text is accepted.

    Raises:
        NotationError: No answer fits, see `fill_in_record.fitting`.
    """
    from . import fill_in_record as record

    fits, answer = record.fitting(prompt), None
    with suppress(NotationError):
        answer = record.parse_fill_in_answer(prompt.field, completion)
    judged = _Judged(answer, fits)
    return {name: component.of(judged) for name, component in FILL_IN_COMPONENTS.items()}


class FillInTask(Task):
    """``F: state+action+history+next_state+reward+terminated+truncated+`` with a mask to fill in."""

    name = "fill_in"
    prefix = FILL_IN_PREFIX
    ability = "fills in what is hidden in a record (`F:` prompts)"
    components = FILL_IN_COMPONENTS
    metrics: ClassVar = {
        "exact": Metric("exact"),
        **{f"exact_{field}": Metric("exact", field) for field in FILL_IN_FIELDS},
        "format": Metric("format"),
    }
    quality_words = "similarity to the nearest answer that fits"
    sampling = Sampling(temperature=0.95, top_p=0.95)  # as for the environment task

    def split(self, row: str) -> tuple[str, str]:
        """See `Task`."""
        from . import fill_in_record as record

        fields = row.split("+", 7)
        if len(fields) < 8:
            raise NotationError("fewer than eight fields in the fill-in row", row)
        prompt = record.parse_fill_in_prompt("+".join(fields[:7]) + "+")
        answer = record.parse_fill_in_answer(prompt.field, fields[7])
        return record.write_fill_in_prompt(prompt), record.write_fill_in_answer(answer)

    def parse_answer(self, prompt: str, completion: str) -> str:
        """See `Task`; the answer must have the form of the hidden field."""
        from . import fill_in_record as record

        return record.parse_fill_in_answer(record.parse_fill_in_prompt(prompt).field, completion)

    def position(self, prompt: str) -> EnvironmentPrompt:
        """See `Task`; the mask is replaced by an answer that fits."""
        from . import fill_in_record as record

        asked = record.parse_fill_in_prompt(prompt)
        return record.filled(asked.columns, record.fitting(asked)[0])[0]

    def ask(self, position: EnvironmentPrompt) -> None:
        """See `Task`; always None: `data.synthesis` chooses what to hide."""

    def read_prompt(self, text: str) -> str:
        """See `Task`."""
        from . import fill_in_record as record

        return record.write_fill_in_prompt(record.parse_fill_in_prompt(text))

    def check(self, prompt: str, completion: str) -> EnvironmentPrompt:
        """See `Task`; the mask is replaced by the row's answer, which must fit."""
        from . import fill_in_record as record

        asked = record.parse_fill_in_prompt(prompt)
        answer = record.parse_fill_in_answer(asked.field, completion)
        record.check_answer(asked, answer)
        return record.filled(asked.columns, answer)[0]

    def part(self, row: Row) -> str:
        """See `Task`: the hidden field."""
        from . import fill_in_record as record

        return record.parse_fill_in_prompt(row["prompt"]).field

    def score(self, prompt: str, completion: str, values: Values | None = None) -> Score | None:
        """See `Task`: the text written for a mask against every answer that fits."""
        from . import fill_in_record as record

        asked = record.judged_prompt(prompt)
        return None if asked is None else score_fill_in(asked, completion)

    def errors(self, prompt: str, completion: str, values: Values | None = None) -> Sequence[str]:
        """See `Task`: a wrong answer's kind is the hidden field."""
        kinds = super().errors(prompt, completion)
        if "wrong" not in kinds:
            return kinds
        return [self.part({"prompt": prompt}).replace("_", " ")]

    def truth(self, prompt: str, values: Values | None = None) -> str:
        """See `Task`; the first of the answers that fit."""
        from . import fill_in_record as record

        return record.write_fill_in_answer(record.fitting(record.parse_fill_in_prompt(prompt))[0])

    def right_answer(self, prompt: str, values: Values | None, draw: random.Random) -> str:
        """See `Task`."""
        from . import fill_in_record as record

        fits = record.fitting(record.parse_fill_in_prompt(prompt))
        return record.write_fill_in_answer(draw.choice(fits))

    def guess(self, prompt: str, draw: random.Random) -> str:
        """See `Task`: a text that has the form of the hidden field, see `fill_in_record.guesses`."""
        from . import fill_in_record as record

        guesses = record.guesses(record.parse_fill_in_prompt(prompt))
        return record.write_fill_in_answer(draw.choice(guesses))

    def quality(self, score: Score) -> float:
        """See `Task`."""
        return score["similarity"]

    def board(self, row: Row, completion: str, values: Values | None = None) -> str:
        """See `Task`: the record's state and action; the caption has the answer and one that fits."""
        from . import fill_in_record as record
        from .boards import fill_in_board  # only pictures need it

        asked = record.parse_fill_in_prompt(row["prompt"])
        fits = record.fitting(asked)
        position, _ = record.filled(asked.columns, fits[0])
        answer = self.answer_or_fault(row["prompt"], completion)
        return fill_in_board(position, asked.field, answer, fits)


FILL_IN = FillInTask()
