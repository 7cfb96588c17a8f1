"""A RookWorld model that answers: it analyses positions and simulates moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import chess
import torch

from ..common.errors import NotationError, RookWorldError
from ..models import loading
from ..models.decoding import ANSWER_TOKENS, complete
from ..tasks.environment import parse_environment_answer
from ..tasks.policy import parse_policy_answer
from ..tasks.types import EnvironmentAnswer, PolicyAnswer
from .prompts import Move, Position, Record, Reply, environment_prompt, policy_prompt, reply_of


class RookWorld:
    """A model of the family with its tokenizer.

    You give a position; the prompt is written and padded for you, as in the data.

    Args:
        network: A causal language model; it is put into evaluation mode.
        tokenizer: The tokenizer of this model.
    """

    def __init__(self, network: Any, tokenizer: Any) -> None:
        self.network = network.eval()
        self.tokenizer = tokenizer

    @classmethod
    def from_pretrained(
        cls, name: str, *, revision: str = "main", device: str | None = None, dtype: str = "float32"
    ) -> Self:
        """Load a model.

        Args:
            name: ``rookworld-nano``, a run's folder, or a Hub id.
            revision: A revision on the Hub.
            device: As PyTorch names it; None takes a GPU if there is one.
            dtype: As PyTorch names it.

        Raises:
            RookWorldError: There is no such model, or it could not be loaded.
        """
        if faults := loading.check_model_name(name, "model"):
            raise RookWorldError(faults[0])
        if device is None:
            found = torch.accelerator.current_accelerator(check_available=True)
            device = "cpu" if found is None else found.type
        tokenizer = loading.load_tokenizer(name, revision=revision)
        network: Any = loading.load_model(name, revision=revision, dtype=dtype)
        return cls(network.to(device), tokenizer)

    # --------------------------------------------------------------------------------------------
    # One answer
    # --------------------------------------------------------------------------------------------
    def analyse(self, position: Position) -> PolicyAnswer:
        """Candidates, their evaluations in pawns from the side to move, and the best move.

        The moves are the model's own and may be illegal.

        Args:
            position: A FEN or a `chess.Board`.

        Raises:
            NotationError: The FEN is malformed or has no legal move, or the answer is unreadable.
            IllegalPositionError: The position is not legal.

        >>> from rookworld_rlvr import RookWorld
        >>> model = RookWorld.from_pretrained("rookworld-nano", device="cpu")
        >>> answer = model.analyse("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1")
        >>> len(answer.moves)
        5
        """
        return _record(self.analyse_all([position])[0])

    def step(
        self, position: Position, move: Move, history: Sequence[Move] = ()
    ) -> EnvironmentAnswer:
        """The next state as the model sees it, with reward and end of the game.

        Args:
            position: A FEN or a `chess.Board`.
            move: A `chess.Move` or UCI, which may be illegal there, or a legal move in SAN.
            history: The moves before it, in UCI or as `chess.Move`; the model is told the last nine. By
                default those that were played on a `chess.Board`.

        Raises:
            NotationError: The FEN is malformed, or the answer is unreadable.
            IllegalPositionError: The position is not legal.
            RookWorldError: A move cannot be read.
        """
        played = position.move_stack if isinstance(position, chess.Board) else ()
        return _record(self.step_all([(position, move, history or played)])[0])

    # --------------------------------------------------------------------------------------------
    # Many
    # --------------------------------------------------------------------------------------------
    def analyse_all(self, positions: Sequence[Position]) -> list[Reply[PolicyAnswer]]:
        """One reply for each position, the same in a batch as alone; an unreadable one has a `fault`.

        Raises:
            RookWorldError: See `analyse`.
        """
        texts = self.complete([policy_prompt(position) for position in positions])
        return [reply_of(text, parse_policy_answer) for text in texts]

    def step_all(
        self, steps: Sequence[tuple[Position, Move, Sequence[Move]]]
    ) -> list[Reply[EnvironmentAnswer]]:
        """One reply for each position, move and history; see `step` and `analyse_all`."""
        texts = self.complete([environment_prompt(*step) for step in steps])
        return [reply_of(text, parse_environment_answer) for text in texts]

    def complete(self, prompts: Sequence[str]) -> list[str]:
        """Greedy completions of prompts, as evaluation decodes them.

        Raises:
            RookWorldError: A single text is given, which would be read letter by letter.
        """
        if isinstance(prompts, str):
            raise RookWorldError("prompts: a text is given; write a list of texts, [prompt]")
        if not prompts:
            return []
        return complete(self.network, self.tokenizer, prompts, max_new_tokens=ANSWER_TOKENS)


def _record(reply: Reply[Record]) -> Record:
    if reply.record is None:
        raise NotationError(f"the model's answer is unreadable ({reply.fault})", reply.text)
    return reply.record
