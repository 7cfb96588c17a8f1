"""A RookWorld model that answers.

torch is imported with the model's weights, as programs that ask for a move first speak without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import chess

from ..common.errors import NotationError, RookWorldError
from ..models import loading
from ..tasks import rules
from ..tasks.environment import parse_environment_answer, parse_environment_prompt, wrong_fields
from ..tasks.policy import parse_policy_answer
from ..tasks.types import EnvironmentAnswer, EnvironmentPrompt, PolicyAnswer
from .lookahead import look_ahead
from .replies import (
    Move,
    Position,
    Record,
    Reply,
    environment_prompt,
    policy_prompt,
    read_board,
    reply_of,
)


@dataclass(frozen=True, slots=True)
class Analysis(PolicyAnswer):
    """A model's answer about a position, with the moves in it that the rules forbid.

    Args:
        illegal: The illegal ones among the candidates and the best move, each once.
    """

    illegal: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step(EnvironmentAnswer):
    """A model's answer about a move, with the fields in which it contradicts the rules.

    Args:
        wrong: Some of board, side to move, castling, en passant, halfmoves, move number, reward,
            terminated, truncated; empty if python-chess says the same.
    """

    wrong: tuple[str, ...] = ()


class RookWorld:
    """A model of the family with its tokenizer.

    You give a position; the prompt is written and padded for you, as in the data.

    Args:
        network: A causal language model; it is put into evaluation mode.
        tokenizer: The tokenizer of this model.
        name: Its name; by default where its weights came from.
    """

    def __init__(self, network: Any, tokenizer: Any, name: str | None = None) -> None:
        self.network = network.eval()
        self.tokenizer = tokenizer
        self.name = name or network.name_or_path

    def __repr__(self) -> str:
        """For example ``RookWorld('rookworld-nano', device='cpu', dtype='float32')``."""
        device, dtype = str(self.network.device), str(self.network.dtype).removeprefix("torch.")
        return f"{type(self).__name__}({self.name!r}, device={device!r}, dtype={dtype!r})"

    @classmethod
    def from_pretrained(
        cls, name: str, *, revision: str = "main", device: str | None = None, dtype: str = "float32"
    ) -> Self:
        """Load a model.

        Args:
            name: A packaged name (``rookworld-games``, ``rookworld-nano``), a run's folder, or a Hub id.
            revision: A revision on the Hub.
            device: As PyTorch names it; None takes a GPU if there is one.
            dtype: As PyTorch names it.

        Raises:
            RookWorldError: There is no such model, device or dtype, or it could not be loaded.
        """
        import torch

        is_known = dtype == "auto" or isinstance(getattr(torch, str(dtype), dtype), torch.dtype)
        if not is_known:
            raise RookWorldError(
                f"dtype: {dtype!r} is not one of PyTorch's; give float32, bfloat16 or float16"
            )
        if device is None:
            found = torch.accelerator.current_accelerator(check_available=True)
            device = "cpu" if found is None else found.type
        network: Any = loading.load_model(name, revision=revision, dtype=dtype)
        try:
            network.to(device)
        except (AssertionError, RuntimeError) as error:  # the first is CUDA's, where there is none
            raise RookWorldError(f"device: {device!r} cannot be used here: {error}") from error
        return cls(network, loading.load_tokenizer(name, revision=revision), name)

    # --------------------------------------------------------------------------------------------
    # One answer
    # --------------------------------------------------------------------------------------------
    def analyse(self, position: Position, *, lookahead: bool = False) -> Analysis:
        """Candidates, their evaluations in pawns from the side to move, and the best move.

        The moves are the model's own and may be illegal; `illegal` names those.

        Args:
            position: A FEN or a `chess.Board`, whose moves looking ahead also tells the model.
            lookahead: Whether candidates are valued by what the model says of the positions after them,
                see `inference.lookahead`; the legal ones are left, and the best one follows from it.

        Raises:
            NotationError: The FEN is malformed or has no legal move, or the answer is unreadable.
            IllegalPositionError: The position is not legal.

        >>> from rookworld_rlvr import RookWorld
        >>> model = RookWorld.from_pretrained("rookworld-nano", device="cpu")
        >>> answer = model.analyse("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1")
        >>> len(answer.moves)
        5
        """
        return _record(self.analyse_all([position], lookahead=lookahead)[0])

    def step(self, position: Position, move: Move, history: Sequence[Move] = ()) -> Step:
        """The next state as the model sees it, with reward and end of the game.

        It is the model's own and may contradict the rules; `wrong` names the fields that do.

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
    def analyse_all(
        self, positions: Sequence[Position], *, lookahead: bool = False
    ) -> list[Reply[Analysis]]:
        """One reply for each position, the same in a batch as alone; an unreadable one has a `fault`.

        Args:
            positions: See `analyse`.
            lookahead: See `analyse`.

        Raises:
            RookWorldError: See `analyse`.
        """
        if isinstance(positions, str):
            raise RookWorldError("positions: a text is given; write a list, [position]")
        texts = self.complete([policy_prompt(position) for position in positions])
        boards = list(map(read_board, positions))
        if lookahead:
            texts = look_ahead(boards, texts, self.complete)
        return [
            reply_of(text, partial(_analysis, board))
            for board, text in zip(boards, texts, strict=True)
        ]

    def step_all(self, steps: Sequence[tuple[Position, Move, Sequence[Move]]]) -> list[Reply[Step]]:
        """One reply for each position, move and history; see `step` and `analyse_all`."""
        prompts = [environment_prompt(*step) for step in steps]
        return [
            reply_of(text, partial(_step, parse_environment_prompt(prompt)))
            for prompt, text in zip(prompts, self.complete(prompts), strict=True)
        ]

    def complete(self, prompts: Sequence[str], **how: Any) -> list[str]:
        """Completions of prompts, as evaluation decodes them.

        Args:
            prompts: Any number of texts.
            how: See `models.decoding.complete`, which decodes greedily unless it is told otherwise.

        Raises:
            RookWorldError: A single text is given, which would be read letter by letter, or one is
                empty.
        """
        if isinstance(prompts, str):
            raise RookWorldError("prompts: a text is given; write a list of texts, [prompt]")
        if not all(prompts):
            raise RookWorldError(
                "prompts: one of them is empty; write policy or environment prompts"
            )
        if not prompts:
            return []
        from ..models.decoding import ANSWER_TOKENS, complete

        return complete(self.network, self.tokenizer, prompts, max_new_tokens=ANSWER_TOKENS, **how)


def _analysis(board: chess.Board, text: str) -> Analysis:
    said = parse_policy_answer(text)
    moves = dict.fromkeys((*said.moves, said.best_move))
    illegal = (move for move in moves if rules.legal_move(board, move) is None)
    return Analysis(said.moves, said.evaluations, said.best_move, tuple(illegal))


def _step(asked: EnvironmentPrompt, text: str) -> Step:
    said = parse_environment_answer(text)
    wrong = wrong_fields(said, rules.transition(asked.fen, asked.action))
    return Step(said.fen, said.reward, said.terminated, said.truncated, tuple(wrong))


def _record(reply: Reply[Record]) -> Record:
    if reply.record is None:
        raise NotationError(f"the model's answer is unreadable ({reply.fault})", reply.text)
    return reply.record
