"""The fill-in task: restore what is hidden in an environment record.

`fill_in_text` reads and writes its text. `fill_in_truth` finds the truth: every answer that fits.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from types import MappingProxyType

from rapidfuzz.distance import Levenshtein

from ..common.errors import NotationError
from . import boards, fill_in_truth, rules
from .fill_in_text import (
    MASK,
    fen_parts,
    parse_fill_in_answer,
    parse_fill_in_prompt,
    write_fill_in_answer,
    write_fill_in_prompt,
)
from .scoring import BELOW_EXACT, Values
from .task import Component, Metric, Row, Sampling, Task
from .text import FILL_IN_PREFIX
from .types import FILL_IN_FIELDS, EnvironmentPrompt, FillInPrompt, Score

FILL_IN_COMPONENTS = ("format", "exact", "similarity")


# --------------------------------------------------------------------------------------------------
# Scores
# --------------------------------------------------------------------------------------------------
def score_fill_in(prompt: FillInPrompt, completion: str) -> Score:
    """Score the text written for a mask against every answer that fits, see `fill_in_truth`.

    Components:

    - `format`: 1 if the completion has the form of the field.
    - `exact`: 1 if it is one of the answers that fit.
    - `similarity`: 1 if exact; else 0.95 times the normalised similarity (1 minus edit distance) to the
      nearest answer.

    Args:
        prompt: The masked record.
        completion: What the policy wrote; any text is accepted.

    Raises:
        NotationError: No answer fits, see `fill_in_truth.truth`.
    """
    fitting = fill_in_truth.truth(prompt)
    try:
        answer = parse_fill_in_answer(prompt.field, completion)
    except NotationError:
        return dict.fromkeys(FILL_IN_COMPONENTS, 0.0)
    exact = answer in fitting
    nearest = max(Levenshtein.normalized_similarity(answer, right) for right in fitting)
    similarity = 1.0 if exact else BELOW_EXACT * nearest
    return {"format": 1.0, "exact": float(exact), "similarity": similarity}


@lru_cache(maxsize=4_096)
def _judged_prompt(text: str) -> FillInPrompt | None:
    """Parse a prompt; None if it is malformed or no answer fits, so that nothing is scored."""
    try:
        prompt = parse_fill_in_prompt(text)
        fill_in_truth.truth(prompt)
    except NotationError:
        return None
    return prompt


def clear_cache() -> None:
    """Empty the caches of prompts and answers, for measurements."""
    _judged_prompt.cache_clear()
    fill_in_truth.truth.cache_clear()


# --------------------------------------------------------------------------------------------------
# Chance
# --------------------------------------------------------------------------------------------------
def guesses(prompt: FillInPrompt) -> Sequence[str]:
    """The answers that a random guess chooses from: texts that have the form of the hidden field.

    They are the legal moves, the states after a legal move, the ranks of the other board, clocks below
    100, or all values of the other fields.
    """
    if prompt.field == "action":
        return rules.legal_moves(prompt.state)
    if prompt.field == "history":
        before = fill_in_truth.replay(prompt.history[: prompt.part])
        return rules.legal_moves(before) if before is not None else []
    if prompt.field == "next_state":
        moves = rules.legal_moves(prompt.state)
        return [rules.transition(prompt.state, move).fen for move in moves]
    if prompt.field == "rank":
        other = prompt.next_state if prompt.column == "state" else prompt.state
        return fen_parts(other)[:8]
    if prompt.field == "clocks":
        return [str(number) for number in range(100)]
    return fill_in_truth.VALUES[prompt.field]


# --------------------------------------------------------------------------------------------------
# The task
# --------------------------------------------------------------------------------------------------
class FillInTask(Task):
    """``F: state+action+history+next_state+reward+terminated+truncated+`` with a mask to fill in."""

    name = "fill_in"
    prefix = FILL_IN_PREFIX
    ability = "fills in what is hidden in a record (`F:` prompts)"
    components = FILL_IN_COMPONENTS
    rewards = ("exact", "similarity", "format")
    meanings = MappingProxyType(
        {
            "exact": Component("0 or 1", "The answer is consistent with the rest of the record."),
            "similarity": Component(
                meaning="1 if exact, else below 0.95 by edit distance to the nearest consistent answer."
            ),
            "format": Component("0 or 1", "The answer has the form of the hidden field."),
        }
    )
    metrics = MappingProxyType(
        {
            "exact": Metric("exact"),
            **{f"exact_{field}": Metric("exact", field) for field in FILL_IN_FIELDS},
            "format": Metric("format"),
        }
    )
    quality_words = "similarity to the nearest answer that fits"
    sampling = Sampling(temperature=0.95, top_p=0.95)  # as for the environment task

    def split(self, row: str) -> tuple[str, str]:
        """See `Task`."""
        fields = row.split("+", 7)
        if len(fields) < 8:
            raise NotationError("fewer than eight fields in the fill-in row", row)
        prompt = parse_fill_in_prompt("+".join(fields[:7]) + "+")
        answer = parse_fill_in_answer(prompt.field, fields[7])
        return write_fill_in_prompt(prompt), write_fill_in_answer(answer)

    def parse_answer(self, prompt: str, completion: str) -> str:
        """See `Task`; the answer must have the form of the hidden field."""
        return parse_fill_in_answer(parse_fill_in_prompt(prompt).field, completion)

    def position(self, prompt: str) -> EnvironmentPrompt:
        """See `Task`; the mask is replaced by an answer that fits."""
        record = parse_fill_in_prompt(prompt)
        return fill_in_truth.filled(record, fill_in_truth.truth(record)[0])[0]

    def ask(self, position: EnvironmentPrompt) -> None:
        """See `Task`; always None: `data.synthesis` chooses what to hide."""

    def read_prompt(self, text: str) -> str:
        """See `Task`."""
        return write_fill_in_prompt(parse_fill_in_prompt(text))

    def check(self, prompt: str, completion: str) -> EnvironmentPrompt:
        """See `Task`; the mask is replaced by the row's answer, which must fit."""
        record = parse_fill_in_prompt(prompt)
        answer = parse_fill_in_answer(record.field, completion)
        fill_in_truth.check_answer(record, answer)
        return fill_in_truth.filled(record, answer)[0]

    def part(self, row: Row) -> str:
        """See `Task`: the hidden field."""
        return parse_fill_in_prompt(row["prompt"]).field

    def score(self, prompt: str, completion: str, values: Values | None = None) -> Score | None:
        """See `Task`."""
        record = _judged_prompt(prompt)
        return None if record is None else score_fill_in(record, completion)

    def errors(self, prompt: str, completion: str, values: Values | None = None) -> Sequence[str]:
        """See `Task`: a wrong answer's kind is the hidden field."""
        kinds = super().errors(prompt, completion, values)
        return [_field(parse_fill_in_prompt(prompt)) if k == "wrong" else k for k in kinds]

    def truth(self, prompt: str, values: Values | None = None) -> str:
        """See `Task`; the first of the answers that fit."""
        return write_fill_in_answer(fill_in_truth.truth(parse_fill_in_prompt(prompt))[0])

    def right_answer(self, prompt: str, values: Values | None, draw: random.Random) -> str:
        """See `Task`."""
        fitting = fill_in_truth.truth(parse_fill_in_prompt(prompt))
        return write_fill_in_answer(draw.choice(fitting))

    def reference(self, row: Row) -> str:
        """The data's own completion, which was checked when the row was read."""
        return str(row["completion"])

    def broken(self, row: Row) -> str:
        """An answer of the right form that does not fit; the mask itself if all of them fit."""
        record = parse_fill_in_prompt(row["prompt"])
        fits = fill_in_truth.answers(record)
        wrong = (guess for guess in guesses(record) if guess not in fits)
        return write_fill_in_answer(next(wrong, MASK))

    def guess(self, prompt: str, draw: random.Random) -> str:
        """One of `guesses`."""
        return write_fill_in_answer(draw.choice(guesses(parse_fill_in_prompt(prompt))))

    def quality(self, score: Score) -> float:
        """See `Task`."""
        return score["similarity"]

    def board(self, row: Row, completion: str, values: Values | None = None) -> str:
        """See `Task`: the record's state and action; the caption has the answer and one that fits."""
        record = parse_fill_in_prompt(row["prompt"])
        fits = fill_in_truth.answers(record)
        if not fits:
            words = f"no {_field(record)} fits the record"
            return boards.picture([boards.blank("nothing fits")], [words], words)
        asked, _ = fill_in_truth.filled(record, fits[0])
        try:
            answer = parse_fill_in_answer(record.field, completion)
        except NotationError as error:
            words, best = f"unreadable: {error.reason}", fits[0]
        else:
            best = answer if answer in fits else fits[0]
            words = f"{'right' if answer in fits else 'wrong'}: {_field(record)} {answer}"
        others = f", or {len(fits) - 1} more" if len(fits) > 1 else ""
        words += f"; fits: {best}{others}"
        return boards.position_board(asked.fen, boards.action_arrows(asked.action), caption=words)


def _field(record: FillInPrompt) -> str:
    return record.field.replace("_", " ")


FILL_IN = FillInTask()
