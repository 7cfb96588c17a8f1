"""Right answers in groups where no completion is right, so that these groups teach something.

GRPO moves a policy only where some completions of a group are better than others. If the policy never
finds a right answer, it never learns one. Here, a right answer takes the place of a completion of such
a group (LUFFY: J. Yan et al., "Learning to reason under off-policy guidance", 2025, arXiv 2504.14945,
mixes in answers of a stronger model). Its reward is what the rewards give it.

A taught answer was not sampled from the policy, so that it has a term of its own in the loss:
``-A log p`` by token, where `A` is its advantage in the group and `p` the token's probability. The token
thus weighs as much as a sampled one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather_object

from .aggregation import aggregate
from .part import Call, Part
from .right import taught_answer


@dataclass(slots=True)
class Taught:
    """What was taught in a batch of `B` completions of this process.

    Args:
        rows: Which completions are right answers that were put in, ``(B,)``.
        groups: For each of the `P` groups its prompt, the answer put in (None if it was not
            taught), and how many of its sampled completions are right; None if the truth is not known.
    """

    rows: torch.Tensor
    groups: list[tuple[str, str | None, int | None]]


class Teaching(Part):
    """Puts right answers into groups without any, and adds their term to the loss.

    Every process keeps the same memory, because what it remembers is gathered over all of them.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
    """

    loss_term = "taught"

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._size = trainer.num_generations
        # Hashes of taught prompts: without a right completion since, and with one.
        self._open: set[str] = set()
        self._left: set[str] = set()

    @classmethod
    def of(cls, trainer: Any) -> Teaching | None:
        """The part, if the trainer's arguments ask for it."""
        if getattr(trainer.args, "zero_variance", "keep") != "teach":
            return None
        return cls(trainer)

    # --------------------------------------------------------------------------------------------
    # Groups
    # --------------------------------------------------------------------------------------------
    def teach(
        self,
        call: Call,
        ids: list[list[int]],
        texts: list[str],
        logps: list[Any] | None,
    ) -> None:
        """Replace the last completion of each group without a right one by a right answer, in place.

        Args:
            call: The record of the call; it has the rows, and which completions are right.
            ids: Tokens of `B` completions.
            texts: Their texts.
            logps: The sampler's log-probs, if there are any; those of taught answers are not known.
        """
        assert call.right is not None
        size = self._size
        by_group = call.right.view(-1, size)
        prompts = [row["prompt"] for row in call.rows[::size]]
        counts = [None if group.isnan().any() else int(group.sum()) for group in by_group]
        hopeless = [place for place, count in enumerate(counts) if count == 0]
        rows = torch.zeros(len(ids), dtype=torch.bool)
        answers: dict[int, str] = {}  # by group
        for place in hopeless:
            answer = taught_answer(self._trainer, call.rows[place * size], "0")
            if answer is None:
                continue
            row = (place + 1) * size - 1
            rows[row], (texts[row], ids[row]) = True, answer
            answers[place] = texts[row]
            if logps is not None:
                logps[row] = [None] * len(ids[row])
        groups = zip(prompts, map(answers.get, range(len(prompts))), counts, strict=True)
        call.taught = Taught(rows, list(groups))

    # --------------------------------------------------------------------------------------------
    # Loss
    # --------------------------------------------------------------------------------------------
    def guide(self, batch: dict[str, torch.Tensor], call: Call) -> None:
        """Move the advantages of taught answers from TRL's loss to this part's term; log the step."""
        assert call.taught is not None
        advantages = batch["advantages"]  # (B,) or (B, C)
        rows = call.taught.rows.to(advantages.device)
        rows = rows.view(-1, *(1 for _ in advantages.shape[1:]))
        batch["taught"] = call.taught.rows.to(advantages.device)
        batch["taught_advantages"] = torch.where(rows, advantages, 0.0)
        batch["advantages"] = torch.where(rows, 0.0, advantages)
        groups = gather_object(call.taught.groups)
        self._trainer.record(self._remember(groups))

    def scored(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """See `Part`: the taught answers."""
        taught = inputs.get("taught_advantages", torch.zeros(len(inputs["advantages"]), 1))
        return (taught.view(taught.size(0), -1) != 0).any(1)

    def term(self, trainer: Any, call: Call, inputs: Mapping[str, Any]) -> torch.Tensor | None:
        """The taught answers' term."""
        if "taught_advantages" not in inputs:
            return None
        assert call.scores is not None
        return aggregate(
            trainer, self.per_token(call.scores.logps, inputs["taught_advantages"]), inputs
        )

    def per_token(self, logps: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        """The term ``(B, C)`` by token.

        Args:
            logps: The policy's log-probs ``(B, C)``.
            advantages: Those of taught answers, ``(B,)`` or ``(B, C)``; 0 for sampled completions.
        """
        by_token = advantages if advantages.dim() > 1 else advantages.unsqueeze(1)
        return -by_token * logps

    # --------------------------------------------------------------------------------------------
    # What becomes of it
    # --------------------------------------------------------------------------------------------
    def _remember(self, groups: Sequence[tuple[str, str | None, int | None]]) -> dict[str, float]:
        """Note how the groups of all processes went; gives the metrics of the step."""
        known = [group for group in groups if group[2] is not None]
        hopeless = sum(not right for _, _, right in known) / max(1, len(known))
        for prompt, answer, count in groups:
            key = _key(prompt)
            if count and key in self._open:
                self._open.remove(key)
                self._left.add(key)
            if answer is not None:
                self._open.add(key)
        taught = sum(answer is not None for _, answer, _ in groups)
        return {
            "teach/hopeless": hopeless,
            "teach/share": taught / len(groups),
            "teach/right": sum(count or 0 for _, _, count in known)
            / max(1, self._size * len(known)),
            "teach/left_hopeless": len(self._left),
            "teach/still_hopeless": len(self._open),
        }

    def state(self) -> dict[str, Any]:
        return {"teaching": {"open": sorted(self._open), "left": sorted(self._left)}}

    def load(self, state: Mapping[str, Any]) -> None:
        if "teaching" in state:
            self._open, self._left = (set(state["teaching"][name]) for name in ("open", "left"))


def _key(prompt: str) -> str:
    return hashlib.blake2b(prompt.encode(), digest_size=8).hexdigest()
