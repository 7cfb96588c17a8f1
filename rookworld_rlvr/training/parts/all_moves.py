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
from collections.abc import Mapping
from typing import Any

import torch

from ...common.errors import RookWorldError
from ...engine.truth import PolicyTruth, policy_values
from ...models.choices import choice_logps
from ...tasks.registry import TASKS, task_of
from ...tasks.task import Task
from .aggregation import on_all, per_item
from .part import Batch, Call, Part
from .registry import obstacle
from .sampling import draw
from .teaching import truth_of

# Of the soft targets, in win probability: a move that keeps so much less than the best has 1 / e of its
# share.
SOFT_TEMPERATURE = 0.03


def has_choices(task: Task) -> bool:
    """Whether a task's answers end with a choice among moves that are worth something."""
    return type(task).choices is not Task.choices


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
        self._places = [
            place
            for place, task in enumerate(trainer.train_dataset["task"][:])
            if has_choices(TASKS[task])
        ]
        if reason := obstacle(trainer):
            raise RookWorldError(f"expected_score_coef, soft_moves_coef: {reason}; leave them out")

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
        texts = [self._texts[place : place + size] for place in range(0, len(call.rows), size)]
        groups = [*zip(call.rows[::size], texts, strict=True)]
        moves: list[list[Any]] = [[] for _ in call.rows]
        encode = trainer.processing_class
        for number, (row, its) in enumerate([*groups, *self._extra(len(groups))]):
            if (choices := self._choices(row, its)) is not None:
                prompt, worth = choices
                tokens = encode(list(worth), add_special_tokens=False)["input_ids"]
                place = number * size if number < len(groups) else number - len(groups)
                moves[place % len(moves)].append(
                    (encode(prompt)["input_ids"], tokens, [*worth.values()])
                )
        rows = torch.tensor([len(found) for found in moves])
        batch |= {"moves": moves, "moves_rows": rows.to(trainer.accelerator.device)}
        batch["moves_items"] = on_all(trainer, batch["moves_rows"])

    def _extra(self, groups: int) -> list[tuple[Mapping[str, Any], list[str]]]:
        """Rows of further prompts, each with one completion, for so many groups."""
        trainer = self._trainer
        if not (count := trainer.args.moves_extra * groups):
            return []
        seed = trainer.args.seed, trainer.state.global_step, trainer.accelerator.process_index
        drawn = random.Random(f"moves {seed}").choices(self._places, k=count)
        rows = [trainer.train_dataset[place] for place in drawn]
        prompts = [row["prompt"] for row in rows]
        ids = trainer.processing_class(prompts)["input_ids"]
        with trainer.phase("sampling"):
            sampled = draw(trainer, ids, trainer.samplings(prompts), keep_logps=False).ids
        texts = trainer.processing_class.batch_decode(sampled, skip_special_tokens=True)
        return [(row, [text]) for row, text in zip(rows, texts, strict=True)]

    def _choices(
        self, row: Mapping[str, Any], texts: list[str]
    ) -> tuple[str, Mapping[str, float]] | None:
        """A prompt with the start of one of its completions, and what each end of it is worth."""
        prompt, task = row["prompt"], TASKS[task_of(row["prompt"])]
        if not has_choices(task):
            return None
        truth = truth_of(self._trainer.reward_funcs) or PolicyTruth()
        (values,) = policy_values(truth, [prompt], [row.get("action_values")])
        found = next(filter(None, (task.choices(text, values) for text in texts)), None)
        found = found or task.choices(task.truth(prompt, values) or "", values)
        return None if found is None else (prompt + found[0], found[1])

    def term(self, trainer: Any, call: Call, inputs: Mapping[str, Any]) -> torch.Tensor | None:
        """Minus the log of the expected score and the soft targets' log-likelihood, means of groups."""
        if "moves" not in inputs or not trainer.model.training:
            return None
        args, found = trainer.args, [choices for row in inputs["moves"] for choices in row]
        # With sharded weights, every process has to take part.
        contexts, choices, worth = zip(*(found or [([0], [[0]], [0.0])]), strict=True)
        with trainer.accelerator.autocast():
            logps = choice_logps(trainer.model_wrapped, contexts, choices)
        if not found:
            return 0 * logps[0].sum()
        worths = [torch.tensor(numbers, device=logps[0].device) for numbers in worth]
        expected = torch.stack([(p.exp() * w).sum() for p, w in zip(logps, worths, strict=True)])
        targets = [(w / SOFT_TEMPERATURE).softmax(-1) for w in worths]
        soft = torch.stack([(p * t).sum() for p, t in zip(logps, targets, strict=True)])
        legal = torch.stack([p.detach().exp().sum() for p in logps])
        trainer.tally("moves/expected_score", expected.detach().sum(), len(worths))
        trainer.tally("moves/legal", legal.sum(), len(worths))
        logs = expected.clamp(min=torch.finfo(expected.dtype).tiny).log()
        total = args.expected_score_coef * logs + args.soft_moves_coef * soft
        return per_item(trainer, -total.sum(), inputs["moves_items"])
