"""Who answers prompts: a language model, an oracle that is always right, a random legal mover."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import chess
from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..common.errors import RookWorldError
from ..models.decoding import GREEDY, Decoding, complete
from ..tasks import fill_in_truth, rules
from ..tasks.environment import parse_environment_prompt, write_environment_answer
from ..tasks.fill_in import fen_parts, parse_fill_in_prompt, write_fill_in_answer
from ..tasks.policy import MAX_CANDIDATES, parse_policy_prompt, write_policy_answer
from ..tasks.registry import task_of
from ..tasks.scoring import Values, policy_reference
from ..tasks.types import ActionValue, FillInField, FillInPrompt, PolicyAnswer

ORACLE, RANDOM_MOVER = "oracle", "random"


MAX_NEW_TOKENS = 160  # an answer of the policy task takes up to 144 GPT-2 tokens


class Answerer(ABC):
    """A model under test.

    Attributes:
        name: As results name it.
        decoding: How it chooses its tokens, for the record.
    """

    name: str
    decoding: Mapping[str, Any]

    @abstractmethod
    def answers(self, prompts: Sequence[str]) -> list[str]:
        """One completion a prompt, in their order; on every process the same."""


class LanguageModel(Answerer):
    """A causal language model; the processes of a distributed run share the prompts.

    The same prompt gets the same answer in whatever batch and process, greedy or sampled.

    Args:
        name: As results name it.
        model: In evaluation mode.
        tokenizer: The model's.
        decoding: How tokens are chosen.
        batch_size: Prompts decoded at once by a process.
        max_new_tokens: Most tokens of a completion; fewer where the model's table of positions ends.
        progress: Called with the number of prompts answered by this process, for a progress bar.
    """

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        decoding: Decoding = GREEDY,
        batch_size: int = 64,
        max_new_tokens: int = MAX_NEW_TOKENS,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        self.name = name
        self.decoding = decoding.as_dict()
        self.progress = progress
        self._model = model
        self._tokenizer = tokenizer
        self._decoding = decoding
        self._batch_size = batch_size
        self._max_new_tokens = max_new_tokens

    def answers(self, prompts: Sequence[str]) -> list[str]:
        """See `Answerer`; a prompt that stands several times is decoded once."""
        unique = list(dict.fromkeys(prompts))
        answers = dict(zip(unique, shared(unique, self._complete), strict=True))
        return [answers[prompt] for prompt in prompts]

    def _complete(self, prompts: Sequence[str]) -> list[str]:
        return complete(
            self._model,
            self._tokenizer,
            prompts,
            decoding=self._decoding,
            max_new_tokens=self._max_new_tokens,
            batch_size=self._batch_size,
            progress=self.progress,
        )


class PolicyInTraining(Answerer):
    """A trainer's policy, greedy.

    Args:
        name: The run's.
        complete: Decodes one completion a prompt, on this process.
    """

    def __init__(self, name: str, complete: Callable[[Sequence[str]], list[str]]) -> None:
        self.name = name
        self.decoding = GREEDY.as_dict()
        self._complete = complete

    def answers(self, prompts: Sequence[str]) -> list[str]:
        """See `Answerer`."""
        return shared(prompts, self._complete)


def shared(prompts: Sequence[str], complete: Callable[[Sequence[str]], list[str]]) -> list[str]:
    """Have every process complete its share of the prompts, and give all of them to each.

    Every process gets as many, some of them a second time: under FSDP each forward is a collective,
    and a process with a batch less would leave the others waiting.

    Args:
        prompts: `N` texts, the same on every process.
        complete: Completes some of them.

    Returns:
        `N` completions.
    """
    state = PartialState()
    rank, world = state.process_index, state.num_processes
    share = [
        (rank + turn * world) % len(prompts) for turn in range(math.ceil(len(prompts) / world))
    ]
    completions = complete([prompts[index] for index in share])
    if world == 1:
        return completions
    found = dict(gather_object(list(zip(share, completions, strict=True))))
    return [found[index] for index in range(len(prompts))]


class Oracle(Answerer):
    """Always right: python-chess for environment and fill-in, the engine's values for the policy.

    Args:
        values: Values of all legal moves of positions; None where they cannot be had.
    """

    name = ORACLE

    def __init__(self, values: Callable[[Sequence[str]], list[Values | None]]) -> None:
        self.decoding = {"name": "none"}
        self._values = values

    def answers(self, prompts: Sequence[str]) -> list[str]:
        """See `Answerer`.

        Raises:
            RookWorldError: A position's values cannot be had, or nothing fits a masked record.
        """
        fens = [
            parse_policy_prompt(prompt).fen for prompt in prompts if task_of(prompt) == "policy"
        ]
        values = dict(zip(fens, self._values(fens), strict=True)) if fens else {}
        return [_truth(prompt, values) for prompt in prompts]


def _truth(prompt: str, known: Mapping[str, Values | None]) -> str:
    task = task_of(prompt)
    if task == "policy":
        return _policy_truth(prompt, known)
    if task == "environment":
        return _environment_truth(prompt)
    return write_fill_in_answer(fill_in_truth.truth(parse_fill_in_prompt(prompt))[0])


def _policy_truth(prompt: str, known: Mapping[str, Values | None]) -> str:
    fen = parse_policy_prompt(prompt).fen
    values = known[fen]
    if values is None:
        raise RookWorldError(
            f"model_name_or_path: the oracle knows no values of the moves in {fen!r}; install an "
            "engine, or leave the oracle out"
        )
    ordered = sorted(values.items(), key=lambda item: -item[1])
    return write_policy_answer(
        policy_reference(fen, [ActionValue(move, cp) for move, cp in ordered])
    )


def _environment_truth(prompt: str) -> str:
    asked = parse_environment_prompt(prompt)
    return write_environment_answer(rules.transition(asked.fen, asked.action))


class RandomMover(Answerer):
    """Legal moves at random, all worth nothing: what chance gives.

    To an environment prompt it answers as if a random legal move had been the action; what a fill-in
    prompt hides it takes from `guesses`.

    Args:
        seed: An answer follows from seed and prompt alone.
    """

    name = RANDOM_MOVER

    def __init__(self, seed: int = 0) -> None:
        self.decoding = {"name": "random", "seed": seed}
        self._seed = seed

    def answers(self, prompts: Sequence[str]) -> list[str]:
        """See `Answerer`."""
        return [self._answer(prompt, random.Random(f"{self._seed} {prompt}")) for prompt in prompts]

    @staticmethod
    def _answer(prompt: str, draw: random.Random) -> str:
        task = task_of(prompt)
        if task == "fill_in":
            record = parse_fill_in_prompt(prompt)
            return write_fill_in_answer(draw.choice(guesses(record)))
        if task == "environment":
            fen = parse_environment_prompt(prompt).fen
            action = draw.choice(rules.legal_moves(fen))
            return write_environment_answer(rules.transition(fen, action))
        moves = rules.legal_moves(parse_policy_prompt(prompt).fen)
        named = tuple(draw.sample(moves, min(MAX_CANDIDATES, len(moves))))
        return write_policy_answer(PolicyAnswer(named, (0.0,) * len(named), draw.choice(moves)))


def guesses(prompt: FillInPrompt) -> Sequence[str]:
    """What chance has to choose from where a record hides a field: texts of its form.

    A legal move, the state after one, a rank of the other board; of the other fields every value, of
    the clocks those below 100.
    """
    if prompt.field == "action":
        return rules.legal_moves(prompt.state)
    if prompt.field == "history":
        return _moves_after(prompt.history[: prompt.part])
    if prompt.field == "next_state":
        moves = rules.legal_moves(prompt.state)
        return [rules.transition(prompt.state, move).fen for move in moves]
    if prompt.field == "rank":
        other = prompt.next_state if prompt.column == "state" else prompt.state
        return fen_parts(other)[:8]
    return _VALUES[prompt.field]


def _moves_after(history: Sequence[str]) -> list[str]:
    """The legal moves after others from the standard start."""
    board = chess.Board()
    for move in history:
        board.push_uci(move)
    return [move.uci() for move in board.legal_moves]


_VALUES: Mapping[FillInField, Sequence[str]] = {
    "side_to_move": "wb",
    "castling": ["".join(held) or "-" for n in range(5) for held in combinations("KQkq", n)],
    "en_passant": ["-", *map("".join, product("abcdefgh", "36"))],
    "clocks": [str(number) for number in range(100)],
    "reward": ["0.001", "0.5", "1.0", "-1.0"],
    "flags": "01",
}
