"""A model that says what it is told to say, and remembers how it was asked."""

from collections.abc import Callable, Mapping, Sequence

from rookworld_rlvr.evaluation.suite import Answerer
from rookworld_rlvr.evaluation.suites.policy import heldout_values
from rookworld_rlvr.tasks.policy import POLICY, write_policy_answer
from rookworld_rlvr.tasks.registry import TASKS, task_of
from rookworld_rlvr.tasks.types import PolicyAnswer, Values

GARBAGE = "e4 is best by test"


class Scripted(Answerer):
    """Answers policy prompts by FEN, with a move in UCI or any other text as it stands."""

    name = "scripted"

    def __init__(self, moves: Mapping[str, str], states: Callable[[str], str] = str) -> None:
        self.decoding = {"name": "none"}
        self.calls: list[list[str]] = []
        self._moves = moves
        self._states = states  # answers to environment prompts

    def answers(self, prompts: Sequence[str]) -> list[str]:
        self.calls.append(list(prompts))
        return [self._answer(prompt) for prompt in prompts]

    def _answer(self, prompt: str) -> str:
        if task_of(prompt) == "environment":
            return self._states(prompt)
        text = self._moves[POLICY.position(prompt).fen]
        return text if " " in text else policy_text(text)


class Oracle(Answerer):
    """Always right, by the rules and the values of the packaged data's held-out positions."""

    name = "oracle"

    def __init__(self) -> None:
        self.decoding = {"name": "none"}

    def answers(self, prompts: Sequence[str]) -> list[str]:
        return [str(TASKS[task_of(prompt)].truth(prompt, _known(prompt))) for prompt in prompts]


def _known(prompt: str) -> Values | None:
    task = TASKS[task_of(prompt)]
    return heldout_values()[task.position(prompt).fen] if task.needs_values else None


def policy_text(move: str) -> str:
    return write_policy_answer(PolicyAnswer((move,), (0.0,), move))
