"""A model that says what it is told to say, and remembers how it was asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rookworld_rlvr.evaluation.suite import Answerer
from rookworld_rlvr.tasks.policy import parse_policy_prompt, write_policy_answer
from rookworld_rlvr.tasks.registry import task_of
from rookworld_rlvr.tasks.types import PolicyAnswer

GARBAGE = "e4 is best by test"


class Scripted(Answerer):
    """Answers policy prompts by position, environment prompts by prompt.

    Args:
        moves: What it plays, by FEN: a move in UCI, or any other text as it stands.
        states: What it answers to an environment prompt.
    """

    name = "scripted"

    def __init__(
        self, moves: Mapping[str, str], states: Callable[[str], str] | None = None
    ) -> None:
        self.decoding = {"name": "none"}
        self.calls: list[list[str]] = []
        self._moves = moves
        self._states = states

    def answers(self, prompts: Sequence[str]) -> list[str]:
        """See `Answerer`."""
        self.calls.append(list(prompts))
        return [self._answer(prompt) for prompt in prompts]

    def _answer(self, prompt: str) -> str:
        if task_of(prompt) == "environment":
            assert self._states is not None
            return self._states(prompt)
        text = self._moves[parse_policy_prompt(prompt)]
        return text if " " in text else policy_text(text)


def policy_text(move: str) -> str:
    """A policy answer with one move."""
    return write_policy_answer(PolicyAnswer((move,), (0.0,), move))
