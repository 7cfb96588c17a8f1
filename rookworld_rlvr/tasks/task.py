"""What a task is, in one object: reading and writing text, truth, scores, metrics, sampling, board.

Each task has a file of its own and is listed in `registry.TASKS`. What every task must define is
abstract here. The rest has defaults that suit a task whose prompt is its prefix and a FEN.

Every component of a score is in [0, 1], and 0 if the answer cannot be read, unless its meaning says
otherwise. Rewards and evaluation use the same scorers, which are pure functions without I/O.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..common.errors import NotationError
from ..common.settings import setting
from ..common.stats import MetricKind
from . import rules
from .text import clean, parse_fen
from .types import EnvironmentPrompt, Score, Values, values_by_move

Row = Mapping[str, Any]


BELOW_EXACT = 0.95
"""The highest score of an answer that is almost right; only a right answer gets 1."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are sampled."""

    temperature: float = setting(
        1.0,
        "Divides the logits before sampling: below 1 sharpens the distribution, 1 leaves it as it is.",
        above=0,
    )
    top_p: float = setting(
        1.0,
        "Sample only from the likeliest tokens that together have this probability; 1 keeps all tokens.",
        above=0,
        most=1,
    )
    top_k: int = setting(
        0, "Sample only from this many of the likeliest tokens; 0 keeps all tokens.", least=0
    )
    max_completion_length: int | None = setting(
        None,
        "The largest number of tokens in a completion; None takes the trainer's max_completion_length.",
        least=1,
    )


@dataclass(frozen=True, slots=True)
class Component:
    """One number of a task's scores.

    Args:
        meaning: What it measures, for help and documents.
        of: The number, from what the task has judged.
        is_reward: Whether it is also a reward, named ``<task>_<component>``.
    """

    meaning: str
    of: Callable[[Any], float]
    is_reward: bool = True


@dataclass(frozen=True, slots=True)
class Metric:
    """A held-out metric: the share of rows whose score has a component of 1, or the component's mean.

    Args:
        component: The component of the score.
        part: Count only rows of this part, see `Task.part`; None counts all rows.
        kind: ``share`` or ``mean``.
    """

    component: str
    part: str | None = None
    kind: MetricKind = "share"

    def value(self, score: Score) -> float:
        """What one row counts."""
        value = score[self.component]
        return value if self.kind == "mean" else float(value == 1)


class Task(ABC):
    """What is asked, what is right and how answers are scored.

    Attributes:
        name: Its name in configurations and rows; the names of its rewards and metrics begin with it.
        prefix: What its rows and prompts begin with.
        ability: What a model that has learned the task can do, for a model card.
        components: The numbers of its scores by name; a task that leaves them out has `rewards` and, if
            it likes, `meanings` instead.
        rewards: The components of its scores that are also rewards, named ``<name>_<component>``.
        meanings: What components measure.
        metrics: Held-out metrics by name; dashboards show ``<name>/<metric>``.
        headline: The most important metric.
        right: The metric, a share, by which an answer is right or wrong; by default the headline.
        quality_words: What `quality` measures, in a few words.
        sampling: How completions are sampled if `task_sampling` names the task without options.
        needs_values: Whether scores need the values of all legal moves, from `action_values` or an
            engine.
        is_default: Whether the task is trained if a recipe does not set `tasks`.
    """

    name: ClassVar[str]
    prefix: ClassVar[str]
    ability: ClassVar[str]
    components: ClassVar[Mapping[str, Component]] = {}
    rewards: ClassVar[Sequence[str]] = ("exact",)
    meanings: ClassVar[Mapping[str, str]] = {}
    metrics: ClassVar[Mapping[str, Metric]] = {"exact": Metric("exact")}
    headline: ClassVar[str] = "exact"
    right: ClassVar[str] = ""
    quality_words: ClassVar[str] = "1 if right"
    sampling: ClassVar[Sampling] = Sampling()
    needs_values: ClassVar[bool] = False
    is_default: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if own := vars(cls).get("components"):
            cls.rewards = tuple(name for name, one in own.items() if one.is_reward)
            cls.meanings = {name: one.meaning for name, one in own.items()}

    # --------------------------------------------------------------------------------------------
    # Text
    # --------------------------------------------------------------------------------------------
    @abstractmethod
    def split(self, row: str) -> tuple[str, str]:
        """Split a row into prompt and completion, both as this package writes them.

        Args:
            row: A row without end-of-text and surrounding spaces, see `text.clean`.

        Raises:
            NotationError: The row does not have the fields of the task.
        """

    def vote(self, completion: str) -> str:
        """What counts as one answer when a majority is taken; by default the text."""
        return completion.strip()

    @abstractmethod
    def parse_answer(self, prompt: str, completion: str) -> Any:
        """Read an answer as written. The prompt may determine its form.

        Raises:
            NotationError: The answer cannot be read.
        """

    def is_readable(self, prompt: str, completion: str) -> bool:
        """Whether the component ``format`` is 1, without computing the others."""
        return not isinstance(self.answer_or_fault(prompt, completion), NotationError)

    def answer_or_fault(self, prompt: str, completion: str) -> Any:
        """What `parse_answer` reads, or the error that says why it cannot."""
        try:
            return self.parse_answer(prompt, completion)
        except NotationError as error:
            return error

    def position(self, prompt: str) -> EnvironmentPrompt:
        """The position that a prompt asks about, with action and history if the task has them.

        Raises:
            NotationError: The prompt is malformed, or no answer fits it.
        """
        return EnvironmentPrompt(parse_fen(clean(prompt).removeprefix(self.prefix)))

    def ask(self, position: EnvironmentPrompt) -> str | None:
        """Write the task's prompt about a position; None if the task cannot ask about it.

        Args:
            position: The position, its history, and a legal move as the action (empty without one).
        """
        return f"{self.prefix} {position.fen}"

    def read_prompt(self, text: str) -> str:
        """Read a prompt without a completion and return it as this package writes it.

        Raises:
            NotationError: The prompt is malformed, or more text follows it.
        """
        return self.ask(self.position(text)) or text

    def check(self, prompt: str, completion: str) -> EnvironmentPrompt:
        """The position that a row is about. Rows whose answers cannot be judged are refused.

        Raises:
            NotationError: See `position`, or the prompt has no right answer.
            IllegalPositionError: The position is not legal.
        """
        position = self.position(prompt)
        rules.board_of(position.fen)
        return position

    def row(
        self, prompt: str, completion: str, position: EnvironmentPrompt, values: Any = None
    ) -> dict[str, Any]:
        """Make a row with the columns that `data.sources` documents."""
        return {
            "task": self.name,
            "prompt": prompt,
            "completion": completion,
            "fen": position.fen,
            "action": position.action,
            "history": list(position.history),
            "action_values": values,
        }

    def part(self, row: Row) -> str:
        """The row's part, see `Metric.part`: by default the side to move, ``w`` or ``b``."""
        return str(row["fen"].split(" ")[1])

    # --------------------------------------------------------------------------------------------
    # Truth and scores
    # --------------------------------------------------------------------------------------------
    @abstractmethod
    def score(self, prompt: str, completion: str, values: Values | None = None) -> Score | None:
        """Score one completion; None if the truth is not known.

        Args:
            prompt: Text of a row's prompt.
            completion: What the policy wrote; no text may raise an error.
            values: Values of all legal moves, for tasks with `needs_values`.
        """

    def errors(self, prompt: str, completion: str, values: Values | None = None) -> Sequence[str]:
        """The kinds of errors in an answer; empty if it is right or cannot be scored.

        Args:
            prompt: See `score`.
            completion: See `score`.
            values: See `score`.

        Returns:
            Different kinds, worded for users; ``malformed`` alone if the answer cannot be read.
        """
        score = self.score(prompt, completion, values)
        if score is None or self.is_right(score):
            return ()
        return ("wrong",) if score["format"] else ("malformed",)

    def is_right(self, score: Score) -> bool:
        """Whether an answer is right by the task's metric `right`."""
        return score[self.metrics[self.right_by].component] == 1

    @property
    def right_by(self) -> str:
        """The metric by which an answer is right or wrong."""
        return self.right or self.headline

    def limits(self, values: Values | None) -> tuple[float, float] | None:
        """What a random and the best answer to a row get by the headline; None if that is 0 and 1.

        Args:
            values: Of the row's moves.
        """
        return None

    def truth(self, prompt: str, values: Values | None = None) -> str | None:
        """The right answer as text; None if it is not known.

        Raises:
            NotationError: The prompt is malformed, or no answer fits it.
        """
        return None

    def right_answer(self, prompt: str, values: Values | None, draw: random.Random) -> str | None:
        """A right answer to learn from, of several one at random; None if it is not known.

        Raises:
            NotationError: The prompt is malformed, or no answer fits it.
        """
        return self.truth(prompt, values)

    def reference(self, row: Row) -> str:
        """The right answer to a row; if it is not known, the data's own completion."""
        values = values_by_move(row["action_values"])
        return self.truth(row["prompt"], values) or str(row["completion"])

    def choices(
        self, completion: str, values: Values | None
    ) -> tuple[str, Mapping[str, float]] | None:
        """For a task whose answers end in a choice: the text before it, and what each choice is worth.

        Args:
            completion: What the policy wrote, or the right answer.
            values: Values of all legal moves, for tasks with `needs_values`.

        Returns:
            The start of the completion, and a worth in [0, 1] by text that may follow; None without a
            choice, or if the completion does not get so far.
        """
        return None

    def guess(self, prompt: str, draw: random.Random) -> str:
        """A random answer, as a baseline; empty by default."""
        return ""

    def quality(self, score: Score) -> float:
        """How good an answer is, in [0, 1], to rank answers."""
        return score[self.metrics[self.headline].component]

    # --------------------------------------------------------------------------------------------
    # Board
    # --------------------------------------------------------------------------------------------
    def board(self, row: Row, completion: str, values: Values | None = None) -> str:
        """Draw an answer as one SVG element, see `boards`.

        Args:
            row: A row with the columns `prompt`, `fen` and `action`, see `data.sources`.
            completion: What the model wrote; no text may raise an error.
            values: Values of all legal moves; without them the engine's move is not drawn.

        Raises:
            RookWorldError: The row's position is illegal, or its prompt is malformed.
        """
        from .boards import position_board  # only pictures need it

        return position_board(row["fen"], caption=completion)
