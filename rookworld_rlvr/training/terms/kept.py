"""What the start knew, kept: the KL from the starting model to the policy on tasks that must not suffer.

A step that improves one task moves weights that another one needs. Here, some right answers to training
prompts of the other task go through both models in every step, and the policy is held to the start's
whole distribution at each of their tokens. The KL term of sampled completions sees one token of that
distribution, and only what is sampled.

Source: Z. Li and D. Hoiem, "Learning without forgetting", 2016, arXiv 1606.09282, with rows of the old
task in place of new ones.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch

from ...common.errors import RookWorldError
from ...models.decoding import pad_rows
from ..losses import distribution_kl
from ..sampling import encode, starting_model
from .right_answers import known_answer

if TYPE_CHECKING:
    from ..step import Step


class Kept:
    """The KL from the start to the policy on rows of `keep_rows`.

    Args:
        trainer: Whose policy is held to its start.

    Raises:
        RookWorldError: The training rows have none of a task.
    """

    def __init__(self, trainer: Step) -> None:
        self._trainer = trainer
        self._places: dict[str, list[int]] = {task: [] for task in trainer.args.keep_rows}
        for place, task in enumerate(trainer.train_dataset["task"][:]):
            self._places.get(task, []).append(place)
        if lacking := [task for task, places in self._places.items() if not places]:
            raise RookWorldError(
                f"keep_rows: there are no training rows of {lacking[0]!r}; add them to tasks, or leave "
                "it out"
            )
        self._step = -1

    def term(self) -> torch.Tensor:
        """The KL in nats times its coefficient, a mean over the answers' tokens and micro-batches."""
        trainer = self._trainer
        texts, lengths = self._texts()
        device = trainer.accelerator.device
        rows = pad_rows(texts, trainer.processing_class.pad_token_id)
        rows = {name: column.to(device) for name, column in rows.items()}
        longest = int(lengths.max())
        asked = torch.arange(longest) >= longest - lengths.unsqueeze(1)  # (N, L)

        def logps(network: Any) -> torch.Tensor:
            with trainer.accelerator.autocast():
                logits = network(**rows, logits_to_keep=longest + 1, use_cache=False).logits
            return logits[:, :-1][asked.to(device)].float().log_softmax(-1)  # type: ignore[no-any-return]

        with torch.no_grad(), starting_model(trainer) as network:
            start = logps(network)
        kl = distribution_kl(start, logps(trainer.model_wrapped))  # (tokens,)
        trainer.tally("keep/kl", kl.detach().sum(), len(kl))
        coefficient = trainer.args.keep_coef / trainer.current_gradient_accumulation_steps
        return coefficient * kl.mean()

    def _texts(self) -> tuple[list[list[int]], torch.Tensor]:
        """Tokens of `N` prompts with right answers, and the answers' lengths ``(N,)``."""
        trainer = self._trainer
        if self._step != trainer.state.global_step:  # a resumed run draws as one that goes on
            self._step, rank = trainer.state.global_step, trainer.accelerator.process_index
            self._draw = random.Random(f"keep {trainer.args.seed} {self._step} {rank}")
        drawn = [
            trainer.train_dataset[place]
            for task, count in trainer.args.keep_rows.items()
            for place in self._draw.choices(self._places[task], k=count)
        ]
        texts, lengths = [], []
        for row in drawn:
            if found := known_answer(trainer, row, "keep"):
                (prompt,) = encode(trainer, [row["prompt"]])
                texts.append([*prompt, *found[1]])
                lengths.append(len(found[1]))
        if not texts:
            raise RookWorldError("keep_rows: the right answers are not known; label the rows first")
        return texts, torch.tensor(lengths)
