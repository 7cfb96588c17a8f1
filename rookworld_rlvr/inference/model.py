"""A RookWorld model that answers: it analyses positions and simulates moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import torch

from ..common.errors import NotationError
from ..models import loading
from ..models.decoding import complete
from ..tasks import rules
from ..tasks.environment import (
    parse_environment_answer,
    write_environment_prompt,
)
from ..tasks.policy import parse_policy_answer, write_policy_prompt
from ..tasks.text import MAX_HISTORY, parse_fen
from ..tasks.types import EnvironmentAnswer, EnvironmentPrompt, PolicyAnswer, PolicyPrompt

ANSWER_TOKENS = 144  # of a complete answer, in tokens of GPT-2


Record = TypeVar("Record", PolicyAnswer, EnvironmentAnswer)


@dataclass(frozen=True, slots=True)
class Reply(Generic[Record]):
    """What a model said, and what of it can be read.

    Args:
        text: As the model wrote it.
        record: The same, read; None where it cannot be.
        fault: Why not; empty where it can.
    """

    text: str
    record: Record | None
    fault: str = ""


class RookWorld:
    """A model of the family with its tokenizer.

    Prompts are padded as the data have it, so that a position and no more is what you give.

    Args:
        network: A causal language model; it is put into evaluation mode.
        tokenizer: Its own.
        name: For messages.
    """

    def __init__(self, network: Any, tokenizer: Any, name: str = "") -> None:
        self.network = network.eval()
        self.tokenizer = tokenizer
        self.name = name

    @classmethod
    def from_pretrained(
        cls, name: str, *, revision: str = "main", device: str | None = None, dtype: str = "float32"
    ) -> Self:
        """Load a model.

        Args:
            name: ``rookworld-nano``, a run's folder, or a Hub id.
            revision: On the Hub.
            device: As PyTorch names it; None takes a GPU where there is one.
            dtype: As PyTorch names it.

        Raises:
            RookWorldError: There is no such model, or it cannot be had.
        """
        if device is None:
            found = torch.accelerator.current_accelerator(check_available=True)
            device = "cpu" if found is None else found.type
        tokenizer = loading.load_tokenizer(name, revision=revision)
        network: Any = loading.load_model(name, revision=revision, dtype=dtype)
        return cls(network.to(device), tokenizer, name)

    # --------------------------------------------------------------------------------------------
    # One answer
    # --------------------------------------------------------------------------------------------
    def analyse(self, fen: str) -> PolicyAnswer:
        """Candidates, their evaluations in pawns from the side to move, and the best move.

        Moves are the model's: they may be illegal.

        Raises:
            NotationError: `fen` is malformed, nothing can be moved there, or the answer is unreadable.
            IllegalPositionError: `fen` is no position.

        >>> from rookworld_rlvr import RookWorld
        >>> model = RookWorld.from_pretrained("rookworld-nano", device="cpu")
        >>> answer = model.analyse("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1")
        >>> len(answer.moves)
        5
        """
        return _record(self.analyse_all([fen])[0])

    def step(self, fen: str, move: str, history: Sequence[str] = ()) -> EnvironmentAnswer:
        """The next state as the model sees it, with reward and end of the game.

        Args:
            fen: The position.
            move: In UCI notation; what is illegal there is a question too.
            history: The moves before it; the last nine are what the model is told.

        Raises:
            NotationError: `fen` is malformed, or the answer is unreadable.
            IllegalPositionError: `fen` is no position.
        """
        return _record(self.step_all([(fen, move, history)])[0])

    # --------------------------------------------------------------------------------------------
    # Many
    # --------------------------------------------------------------------------------------------
    def analyse_all(
        self,
        fens: Sequence[str],
        batch_size: int = 64,
        progress: Callable[[int], object] | None = None,
    ) -> list[Reply[PolicyAnswer]]:
        """A reply a position, the same in a batch as alone; what it cannot do is in the reply.

        Raises:
            NotationError: A FEN is malformed, or nothing can be moved there.
            IllegalPositionError: One is no position.
        """
        prompts = [policy_prompt(fen) for fen in fens]
        texts = self.complete(prompts, batch_size, progress)
        return [_reply(text, parse_policy_answer) for text in texts]

    def step_all(
        self,
        steps: Sequence[tuple[str, str, Sequence[str]]],
        batch_size: int = 64,
        progress: Callable[[int], object] | None = None,
    ) -> list[Reply[EnvironmentAnswer]]:
        """A reply a position, move and history; see `step` and `analyse_all`."""
        prompts = [environment_prompt(*step) for step in steps]
        texts = self.complete(prompts, batch_size, progress)
        return [_reply(text, parse_environment_answer) for text in texts]

    def complete(
        self,
        prompts: Sequence[str],
        batch_size: int = 64,
        progress: Callable[[int], object] | None = None,
    ) -> list[str]:
        """Greedy completions of prompts, as evaluation decodes them."""
        return complete(
            self.network,
            self.tokenizer,
            prompts,
            max_new_tokens=ANSWER_TOKENS,
            batch_size=batch_size,
            progress=progress,
        )


def policy_prompt(fen: str) -> str:
    """The prompt that asks for an analysis.

    Raises:
        NotationError: The FEN is malformed, or the game is over there.
        IllegalPositionError: It is no position.
    """
    position = rules.canonical_fen(parse_fen(fen))
    if not rules.legal_moves(position):
        raise NotationError(f"nothing to analyse: {over(position)}", position)
    return write_policy_prompt(PolicyPrompt(position))


def environment_prompt(fen: str, move: str, history: Sequence[str] = ()) -> str:
    """The prompt that asks for the state after a move.

    Raises:
        NotationError: The FEN is malformed.
        IllegalPositionError: It is no position.
    """
    position = rules.canonical_fen(parse_fen(fen))
    told = (*history, move)[-MAX_HISTORY:]
    return write_environment_prompt(EnvironmentPrompt(position, move, told))


def over(fen: str) -> str:
    """How a game has ended, in a word or two."""
    outcome = rules.board_of(fen).outcome()
    return (
        "the game goes on"
        if outcome is None
        else outcome.termination.name.lower().replace("_", " ")
    )


def _reply(text: str, read: Callable[[str], Record]) -> Reply[Record]:
    try:
        return Reply(text, read(text))
    except NotationError as error:
        return Reply(text, None, error.reason)


def _record(reply: Reply[Record]) -> Record:
    if reply.record is None:
        raise NotationError(f"the model's answer is unreadable ({reply.fault})", reply.text)
    return reply.record
