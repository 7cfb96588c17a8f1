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
from typing import Any

import torch

from ...common.errors import RookWorldError
from ...engine.truth import PolicyTruth, policy_values
from ...models.choices import choice_logps
from ...tasks.registry import TASKS, asked, row_task, task_of
from ...tasks.task import Task
from ...tasks.types import Values
from .aggregation import on_all, per_item
from .part import Batch, Call, Part
from .registry import obstacle
from .sampling import encode, rollout
from .teaching import truth_of

# Of the soft targets, in win probability: a move that keeps so much less than the best has 1 / e of its
# share.
SOFT_TEMPERATURE = 0.03

# Forwards that the choices of a step are shared among, by length: in one, a third of it is padding.
PARTS = 3


class AllMoves(Part):
    """Adds the exact expected score over a group's legal moves, and their soft targets, to the loss.

    Raises:
        RookWorldError: The network cannot take the attention mask that this needs.
    """

    loss_term = "moves"
    scores_own_rows = True

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._texts: list[str] = []
        if reason := obstacle(trainer):
            raise RookWorldError(f"expected_score_coef, soft_moves_coef: {reason}; leave them out")
        rows = trainer.train_dataset.select_columns("prompt") if trainer.args.moves_extra else []
        self._places = [place for place, row in enumerate(rows) if has_choices(row)]
        if trainer.args.moves_extra and not self._places:
            raise RookWorldError("moves_extra: no training row has moves to choose; leave it out")

    def after_sampling(
        self, call: Call, ids: list[list[int]], texts: list[str], logps: list[Any] | None
    ) -> None:
        """Keep what was written."""
        self._texts = texts

    def extend(self, call: Call, batch: Batch) -> None:
        """Add the choices of each group to its first row, and those of further prompts to all rows.

        ``moves`` has of each row a list: the tokens before a choice, those of each choice, and what each
        is worth; ``moves_rows`` ``(B,)`` is its length; ``moves_items`` is their sum on all processes.
        """
        trainer, size = self._trainer, self._trainer.num_generations
        moves: list[list[Any]] = [[] for _ in call.rows]
        groups = [
            (place, row, self._texts[place : place + size])
            for place, row in enumerate(call.rows)
            if place % size == 0 and has_choices(row)
        ]
        for number, (row, text) in enumerate(self._extra(len(call.rows) // size)):
            groups.append((number % len(moves), row, [text]))
        truth = truth_of(trainer.reward_funcs) or PolicyTruth()
        prompts = [asked(row) for _, row, _ in groups]
        values = policy_values(truth, prompts, [row.get("action_values") for _, row, _ in groups])
        found = [
            (place, (row["prompt"], start), worth)
            for (place, row, texts), of_moves in zip(groups, values, strict=True)
            for start, worth in _choices(asked(row), texts, of_moves)
        ]
        # All texts at once: a call of the tokeniser takes longer than a text.
        before = begun(trainer, [text for _, text, _ in found])
        texts = list({text for *_, worth in found for text in worth})
        encoded = trainer.processing_class(texts, add_special_tokens=False) if found else {}
        tokens = encoded["input_ids"] if found else []
        written = dict(zip(texts, tokens, strict=True))
        for (place, _, worth), tokens in zip(found, before, strict=True):
            moves[place].append((tokens, [written[text] for text in worth], [*worth.values()]))
        rows = torch.tensor([len(of_row) for of_row in moves])
        batch |= {"moves": moves, "moves_rows": rows.to(trainer.accelerator.device)}
        batch["moves_items"] = on_all(trainer, batch["moves_rows"])

    def _extra(self, groups: int) -> list[tuple[Mapping[str, Any], str]]:
        """Rows of further prompts, each with a completion, for so many groups."""
        trainer = self._trainer
        if not (count := trainer.args.moves_extra * groups):
            return []
        seed = trainer.args.seed, trainer._step, trainer.accelerator.process_index
        drawn = random.Random(f"moves {seed}").choices(self._places, k=count)
        rows = [trainer.train_dataset[place] for place in drawn]
        prompts = [row["prompt"] for row in rows]
        with trainer.phase("sampling"):
            ids = rollout(prompts, trainer)["completion_ids"]
        texts = trainer.processing_class.batch_decode(ids, skip_special_tokens=True)
        return [*zip(rows, texts, strict=True)]

    def term(self, trainer: Any, call: Call, inputs: Mapping[str, Any]) -> torch.Tensor | None:
        """Minus the log of the expected score and the soft targets' log-likelihood, means of groups."""
        if "moves" not in inputs or not trainer.model.training:
            return None
        found = [choices for row in inputs["moves"] for choices in row]
        found.sort(key=lambda choices: len(choices[0]))
        total = torch.zeros((), device=trainer.accelerator.device)
        for part in range(PARTS):
            some = found[part * len(found) // PARTS : (part + 1) * len(found) // PARTS]
            # With sharded weights, every process has to take part.
            contexts, choices, worth = zip(*(some or [([0], [[0]], [0.0])]), strict=True)
            with trainer.accelerator.autocast():
                logps = choice_logps(trainer.model_wrapped, contexts, choices)
            total = total - (self._terms(logps, worth) if some else 0 * logps[0].sum())
        return per_item(trainer, total, inputs["moves_items"])

    def _terms(
        self, logps: Sequence[torch.Tensor], worth: Sequence[Sequence[float]]
    ) -> torch.Tensor:
        """The sum of both terms over some choices."""
        trainer, args = self._trainer, self._trainer.args
        worths = [torch.tensor(numbers, device=logps[0].device) for numbers in worth]
        expected = torch.stack([(p.exp() * w).sum() for p, w in zip(logps, worths, strict=True)])
        targets = [(w / SOFT_TEMPERATURE).softmax(-1) for w in worths]
        soft = torch.stack([(p * t).sum() for p, t in zip(logps, targets, strict=True)])
        legal = torch.stack([p.detach().exp().sum() for p in logps])
        trainer.tally("moves/expected_score", expected.detach().sum(), len(worths))
        trainer.tally("moves/legal", legal.sum(), len(worths))
        logs = expected.clamp(min=torch.finfo(expected.dtype).tiny).log()
        return (args.expected_score_coef * logs + args.soft_moves_coef * soft).sum()


def has_choices(row: Mapping[str, Any]) -> bool:
    """Whether answers to a row end with a choice among moves that are worth something."""
    task = row_task(row)
    return task is not None and type(TASKS[task]).choices is not Task.choices


def begun(trainer: Any, texts: Sequence[tuple[Any, str]]) -> list[list[int]]:
    """Token ids of prompts, texts or chats, each with the start of its completion."""
    if not texts or isinstance(texts[0][0], str):
        return encode(trainer, [prompt + start for prompt, start in texts])
    before = encode(trainer, [prompt for prompt, _ in texts])
    starts = trainer.processing_class([start for _, start in texts], add_special_tokens=False)
    return [a + b for a, b in zip(before, starts["input_ids"], strict=True)]


def _choices(
    prompt: str, texts: list[str], values: Values | None
) -> list[tuple[str, Mapping[str, float]]]:
    """The start of one of a prompt's completions, and what each end of it is worth; or nothing."""
    task = TASKS[task_of(prompt)]
    found = next(filter(None, (task.choices(text, values) for text in texts)), None)
    found = found or task.choices(task.truth(prompt, values) or "", values)
    return [] if found is None else [found]
