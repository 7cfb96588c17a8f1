"""Terms over all legal moves at once: the expected score of `B`, and soft targets.

The values of all legal moves are known, so the expected score of the policy's last choice needs no
sampling: it is the sum of each move's probability times the win probability that it keeps. Its gradient
is that of REINFORCE over `B`, without its variance. The term is its logarithm, which divides that by the
score: otherwise positions in which the policy is sure of an illegal move would hardly teach. The soft
target is a softmax of the same values, as in distillation. Both follow one of the policy's own
completions up to `B`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...common.errors import RookWorldError
from ...engine.truth import PolicyTruth, policy_values
from ...models.choices import choice_logps
from ...models.decoding import on_device
from ...tasks.registry import TASKS, asked, row_task, task_of
from ...tasks.task import Task
from ...tasks.types import Values
from .. import losses
from ..rollouts import Batch, Rollouts
from ..sampling import encode, sample
from ..scoring import obstacle
from .right_answers import truth_of

if TYPE_CHECKING:
    from ..step import Step

# Forwards that the choices of a micro-batch are shared among, by length: in one, a third of it is
# padding. A GPU is faster with that third than with more launches.
PARTS, GPU_PARTS = 3, 1


class AllMoves:
    """The moves of a round's prompts, and the terms of the loss over them.

    Args:
        trainer: Whose policy chooses.

    Raises:
        RookWorldError: The network cannot take the attention mask that this needs, or no row has moves.
    """

    def __init__(self, trainer: Step) -> None:
        self._trainer = trainer
        if reason := obstacle(trainer):
            raise RookWorldError(f"expected_score_coef, soft_moves_coef: {reason}; leave them out")
        rows = trainer.train_dataset.select_columns("prompt") if trainer.args.moves_extra else []
        self._places = [place for place, row in enumerate(rows) if has_choices(row)]
        if trainer.args.moves_extra and not self._places:
            raise RookWorldError("moves_extra: no training row has moves to choose; leave it out")

    def columns(self, sampled: Rollouts) -> Batch:
        """The choices of each group for its first row, and those of further prompts for all rows.

        ``moves`` has of each row a list: the tokens before a choice, those of each choice, what each is
        worth, and the temperature at which it is made; ``moves_rows`` ``(B,)`` is its length;
        ``moves_items`` is their sum on all processes.
        """
        trainer, size = self._trainer, self._trainer.num_generations
        moves: list[list[Any]] = [[] for _ in sampled.rows]
        groups = [
            (place, row, sampled.texts[place : place + size])
            for place, row in enumerate(sampled.rows)
            if place % size == 0 and has_choices(row)
        ]
        for number, (row, text) in enumerate(self._extra(len(sampled.rows) // size)):
            groups.append((number % len(moves), row, [text]))
        truth = truth_of(trainer.reward_funcs) or PolicyTruth()
        prompts = [asked(row) for _, row, _ in groups]
        values = policy_values(truth, prompts, [row.get("action_values") for _, row, _ in groups])
        found = [
            (place, row, start, worth)
            for (place, row, texts), of_moves in zip(groups, values, strict=True)
            for start, worth in _choices(asked(row), texts, of_moves)
        ]
        # All texts at once: a call of the tokeniser takes longer than a text.
        before = begun(trainer, [(row["prompt"], start) for _, row, start, _ in found])
        texts = list({text for *_, worth in found for text in worth})
        encoded = trainer.processing_class(texts, add_special_tokens=False) if found else {}
        tokens = encoded["input_ids"] if found else []
        written = dict(zip(texts, tokens, strict=True))
        for (place, row, _, worth), tokens in zip(found, before, strict=True):
            choices = [written[text] for text in worth]
            heat = trainer.sampling_of(row_task(row)).temperature
            moves[place].append((tokens, choices, [*worth.values()], heat))
        rows = torch.tensor([len(of_row) for of_row in moves])
        rows = on_device(rows, trainer.accelerator.device)
        return {"moves": moves, "moves_rows": rows, "moves_items": trainer.on_all(rows)}

    def _extra(self, groups: int) -> list[tuple[Mapping[str, Any], str]]:
        """Rows of further prompts, each with a completion, for so many groups."""
        trainer = self._trainer
        if not (count := trainer.args.moves_extra * groups):
            return []
        seed = trainer.args.seed, trainer.micro_steps, trainer.accelerator.process_index
        drawn = random.Random(f"moves {seed}").choices(self._places, k=count)
        rows = [trainer.train_dataset[place] for place in drawn]
        with trainer.clock.phase("sampling"):
            ids = sample(trainer, rows)
        texts = trainer.processing_class.batch_decode(ids, skip_special_tokens=True)
        return [*zip(rows, texts, strict=True)]

    def term(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """The terms of `losses.over_choices`, a mean over the positions of a step."""
        trainer, args = self._trainer, self._trainer.args
        found = [choices for row in batch["moves"] for choices in row]
        found.sort(key=lambda choices: len(choices[0]))
        device = trainer.accelerator.device
        total = torch.zeros((), device=device)
        parts = GPU_PARTS if device.type == "cuda" else PARTS
        for part in range(parts):
            some = found[part * len(found) // parts : (part + 1) * len(found) // parts]
            # With sharded weights, every process has to take part.
            columns = zip(*(some or [([0], [[0]], [0.0], 1.0)]), strict=True)
            contexts, choices, worth, heats = columns
            with trainer.accelerator.autocast():
                logps = choice_logps(trainer.model_wrapped, contexts, choices, heats)
            if not some:
                total = total + 0 * logps[0].sum()
                continue
            whole = on_device(torch.tensor([number for one in worth for number in one]), device)
            worths = whole.split([len(one) for one in worth])
            total = total + losses.over_choices(
                logps, worths, args.expected_score_coef, args.soft_moves_coef
            )
            self._tally([one.detach() for one in logps], worths)
        return trainer.normaliser.over_items(total, batch["moves_items"])

    def _tally(self, logps: Sequence[torch.Tensor], worths: Sequence[torch.Tensor]) -> None:
        pairs = [*zip(logps, worths, strict=True)]
        expected = torch.stack([losses.expected_score(*pair) for pair in pairs])
        legal = torch.stack([one.exp().sum() for one in logps])
        self._trainer.tally("moves/expected_score", expected.sum(), len(pairs))
        self._trainer.tally("moves/legal", legal.sum(), len(pairs))


def has_choices(row: Mapping[str, Any]) -> bool:
    """Whether answers to a row end with a choice among moves that are worth something."""
    task = row_task(row)
    return task is not None and type(TASKS[task]).choices is not Task.choices


def begun(trainer: Step, texts: Sequence[tuple[Any, str]]) -> list[list[int]]:
    """Token ids of prompts, texts or chats, each with the start of its completion.

    They begin with the tokens of the prompt, after which the policy wrote the start.
    """
    if not texts:
        return []
    before = encode(trainer, [prompt for prompt, _ in texts])
    starts = trainer.processing_class([start for _, start in texts], add_special_tokens=False)
    apart = [a + b for a, b in zip(before, starts["input_ids"], strict=True)]
    if not isinstance(texts[0][0], str):
        return apart
    together = encode(trainer, [prompt + start for prompt, start in texts])
    found = zip(before, apart, together, strict=True)
    return [both if both[: len(ids)] == ids else two for ids, two, both in found]


def _choices(
    prompt: str, texts: Sequence[str], values: Values | None
) -> list[tuple[str, Mapping[str, float]]]:
    """The start of one of a prompt's completions, and what each end of it is worth; or nothing."""
    task = TASKS[task_of(prompt)]
    found = next(filter(None, (task.choices(text, values) for text in texts)), None)
    found = found or task.choices(task.truth(prompt, values) or "", values)
    return [] if found is None else [found]
