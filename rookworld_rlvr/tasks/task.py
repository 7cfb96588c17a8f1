"""What a task is, in one object: text both ways, truth, scores, metrics, sampling, board.

A task stands in a file of its own and is listed in `registry.TASKS`. What every task has to say is
abstract here; the rest has a default that is right for a task whose prompt is its prefix and a FEN.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..common.errors import NotationError
from ..common.settings import setting
from . import rules
from .boards import position_board
from .scoring import Values, values_by_move
from .text import clean, parse_fen
from .types import EnvironmentPrompt, Score

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn."""

    temperature: float = setting(1.0, "Logits are divided by it.", above=0)
    top_p: float = setting(
        1.0,
        "Only the likeliest tokens that have this probability together are drawn; 1 for all.",
        above=0,
        most=1,
    )
    top_k: int = setting(0, "Only so many of the likeliest tokens are drawn; 0 for all.", least=0)
    max_completion_length: int | None = setting(
        None, "Most tokens of a completion; None for the trainer's bound.", least=1
    )


@dataclass(frozen=True, slots=True)
class Metric:
    """The share of held-out rows whose score has a component of 1.

    Args:
        component: Which.
        part: Count rows of this part only, see `Task.part`; None counts all.
    """

    component: str
    part: str | None = None


class Task(ABC):
    """What is asked, what is right and how it is scored.

    Attributes:
        name: In configurations and rows; its rewards' and metrics' names begin with it.
        prefix: Of its rows and prompts.
        ability: What a model can do that has learned it, for a model card.
        components: Of its scores, each in [0, 1]; ``format`` is 1 where the answer can be read.
        rewards: The components that are rewards by themselves, ``<name>_<component>``.
        metrics: Held out, by name; dashboards show ``<name>/<metric>``.
        headline: The metric that says most.
        quality_words: What `quality` is, in a few words.
        sampling: How completions are drawn where `task_sampling` names the task without more.
        needs_values: Whether the truth is what all legal moves are worth, of `action_values` or the
            engine.
        is_default: Whether it is trained where a recipe names no `tasks`.
    """

    name: ClassVar[str]
    prefix: ClassVar[str]
    ability: ClassVar[str]
    components: ClassVar[Sequence[str]] = ("format", "exact")
    rewards: ClassVar[Sequence[str]] = ("exact",)
    metrics: ClassVar[Mapping[str, Metric]] = {"exact": Metric("exact")}
    headline: ClassVar[str] = "exact"
    quality_words: ClassVar[str] = "1 where right"
    sampling: ClassVar[Sampling] = Sampling()
    needs_values: ClassVar[bool] = False
    is_default: ClassVar[bool] = False

    # --------------------------------------------------------------------------------------------
    # Text
    # --------------------------------------------------------------------------------------------
    @abstractmethod
    def split(self, row: str) -> tuple[str, str]:
        """Prompt and completion of a row, both as this package writes them.

        Args:
            row: Without end-of-text and surrounding spaces, see `text.clean`.

        Raises:
            NotationError: The row does not have the fields of the task.
        """

    @abstractmethod
    def parse_answer(self, prompt: str, completion: str) -> Any:
        """Read an answer as written; the prompt may say which form it has.

        Raises:
            NotationError: It cannot be read.
        """

    def is_readable(self, prompt: str, completion: str) -> bool:
        """What the component ``format`` says, without scoring the rest."""
        try:
            self.parse_answer(prompt, completion)
        except NotationError:
            return False
        return True

    def position(self, prompt: str) -> EnvironmentPrompt:
        """What a prompt asks about; without an action and history where the task knows none.

        Raises:
            NotationError: The prompt is malformed, or nothing fits it.
        """
        return EnvironmentPrompt(parse_fen(clean(prompt).removeprefix(self.prefix)))

    def ask(self, position: EnvironmentPrompt) -> str | None:
        """The task's prompt about a position, with a legal move (empty where there is none) and history.

        None where the task cannot ask anything of it.
        """
        return f"{self.prefix} {position.fen}"

    def read_prompt(self, text: str) -> str:
        """A prompt alone, as this package writes it.

        Raises:
            NotationError: It is malformed, or more than a prompt.
        """
        return self.ask(self.position(text)) or text

    def check(self, prompt: str, completion: str) -> EnvironmentPrompt:
        """What a row is about; the row is refused where its prompt is none that could be judged.

        Raises:
            NotationError: See `position`, or the task cannot be done.
            IllegalPositionError: The position is none.
        """
        position = self.position(prompt)
        rules.board_of(position.fen)
        return position

    def row(
        self, prompt: str, completion: str, position: EnvironmentPrompt, values: Any = None
    ) -> dict[str, Any]:
        """A row of the columns that `data.sources` documents."""
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
        """What `Metric.part` tells rows apart by: the side to move, ``w`` or ``b``."""
        return str(row["fen"].split(" ")[1])

    # --------------------------------------------------------------------------------------------
    # Truth and scores
    # --------------------------------------------------------------------------------------------
    @abstractmethod
    def score(self, prompt: str, completion: str, values: Values | None = None) -> Score | None:
        """Score one completion; None where the truth cannot be had, nothing in `completion` raises.

        Args:
            prompt: Text of a row's prompt.
            completion: What the policy wrote.
            values: What the legal moves are worth, for tasks that need it.
        """

    def errors(self, prompt: str, completion: str, values: Values | None = None) -> Sequence[str]:
        """What is wrong with an answer, by kind; nothing where it is right or has no score.

        Args:
            prompt: See `score`, like the others.
            completion: Nothing in it raises.
            values: What the legal moves are worth, for tasks that need it.

        Returns:
            Kinds in a user's words, none twice; ``malformed`` alone where the answer cannot be read.
        """
        score = self.score(prompt, completion, values)
        if score is None or score[self.metrics[self.headline].component] == 1:
            return ()
        return ("wrong",) if score["format"] else ("malformed",)

    def truth(self, prompt: str, values: Values | None = None) -> str | None:
        """The right answer as text; None where it is not known.

        Raises:
            NotationError: The prompt is malformed, or nothing fits it.
        """
        return None

    def reference(self, row: Row) -> str:
        """The right answer to a row; the data's own where it is not known."""
        values = values_by_move(row["action_values"])
        return self.truth(row["prompt"], values) or str(row["completion"])

    def broken(self, row: Row) -> str:
        """The reference with one thing wrong, to show how that is scored; nothing at all by default."""
        return ""

    def guess(self, prompt: str, draw: random.Random) -> str:
        """What chance would answer; nothing, where chance has nothing to choose from."""
        return ""

    def quality(self, score: Score) -> float:
        """How good an answer is, in [0, 1], to order answers by."""
        return score[self.metrics[self.headline].component]

    # --------------------------------------------------------------------------------------------
    # Board
    # --------------------------------------------------------------------------------------------
    def board(self, row: Row, completion: str, values: Values | None = None) -> str:
        """An answer as one SVG element, see `boards`.

        Args:
            row: With the columns `prompt`, `fen` and `action` that `data.sources` documents.
            completion: What the model wrote; nothing in it raises.
            values: What the legal moves are worth; None leaves the engine out.

        Raises:
            RookWorldError: The row's position or prompt is none.
        """
        return position_board(row["fen"], caption=completion)
