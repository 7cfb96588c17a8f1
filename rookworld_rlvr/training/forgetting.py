"""What a run on some of the data's tasks does to the others, beside how far it moves on its own.

When training has ended, the starting model is loaded again. Both models answer held-out rows of the
tasks that were not trained, and the exact KL from the policy to the starting model is taken along the
policy's own greedy answers, also to rows of the trained tasks: how far a model moves there tells more
about what it forgets than its training reward does (RL's Razor, 2509.04259).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from accelerate.utils import gather_object
from transformers import Trainer
from trl.models.utils import unwrap_model_for_generation

from ..common.errors import RookWorldError
from ..common.progress import quiet
from ..common.settings import setting
from ..common.stats import Proportion
from ..data.loading import LoadedData, first_of_each_task
from ..evaluation.answerers import shared
from ..models.decoding import ANSWER_TOKENS, complete, complete_ids
from ..tasks.metrics import evaluate_completions
from .sharding import is_sharded

_ROWS_AT_ONCE = 8  # in a forward: a large vocabulary needs 10 MB of logits for 50 tokens


@dataclass
class ForgettingArguments:
    """Whether forgetting is measured."""

    other_task_rows: int = setting(
        200,
        "Largest number of held-out rows of each task that is in the data but not in `tasks`. At the "
        "end, the starting and the final model answer them, and the KL between both is taken, also on "
        "as many rows of each trained task; 0 measures none of it.",
        least=0,
    )


@dataclass(frozen=True, slots=True)
class Forgetting:
    """What a run did to the tasks that it did not train; empty if there are no rows of such tasks.

    Args:
        before: Held-out results of the starting model, by ``other/<task>/<metric>``.
        after: Those of the final model.
        kl: Task, trained or not → KL from the final to the starting model in nats a token, the mean
            over all tokens of the final model's greedy answers to held-out rows.
        trained: The tasks that were trained.
    """

    before: Mapping[str, Proportion] = field(default_factory=dict)
    after: Mapping[str, Proportion] = field(default_factory=dict)
    kl: Mapping[str, float] = field(default_factory=dict)
    trained: Sequence[str] = ()

    def describe(self) -> str:
        """The KLs in words."""
        found = (
            f"{task} {kl:.4f}{'' if task in self.trained else ' (not trained)'}"
            for task, kl in self.kl.items()
        )
        return f"KL to the starting model on held-out rows, nats a token: {', '.join(found)}"

    def metrics(self) -> dict[str, float]:
        """The final model's numbers, under the names of a trainer's log."""
        return {
            **{f"eval_{name}": result.value for name, result in self.after.items()},
            **{f"kl/start/{task}": kl for task, kl in self.kl.items()},
        }


class _Answered(NamedTuple):
    """What both models make of one prompt."""

    before: str  # the starting model's answer
    after: str  # the policy's answer
    kl: float  # nats, the sum over the policy's answer
    tokens: int  # of the policy's answer, with its end


def measure_forgetting(
    trainer: Any, data: LoadedData, load_start: Callable[[], torch.nn.Module]
) -> Forgetting:
    """Compare a trainer's policy with the model that it started from, and log the comparison.

    Every process takes a share of the rows. Sharded weights are not measured, because two models would
    have to be gathered.

    Args:
        trainer: The `RookWorldGRPOTrainer`, with the final weights.
        data: The rows; `others` are those of the other tasks.
        load_start: Loads the starting model.
    """
    if not data.others:
        return Forgetting()
    start: Any = None
    fault = ""
    try:
        if is_sharded(trainer):
            raise RookWorldError("the weights are sharded; set other_task_rows: 0 to leave it out")
        start = load_start()
    except RookWorldError as error:
        fault = str(error)
    if faults := list(filter(None, gather_object([fault]))):  # one process alone must not return
        trainer.accelerator.print(f"what the other tasks lost is not measured: {faults[0]}")
        return Forgetting()
    most = trainer.args.other_task_rows
    rows = [*first_of_each_task(data.heldout.to_list(), most), *data.others]
    with quiet(bool(trainer.args.disable_tqdm)):
        answered = shared(
            [row["prompt"] for row in rows], partial(_answer, trainer, start), "forgetting"
        )
    found = list(zip(rows, answered, strict=True))[-len(data.others) :]
    others = [row for row, _ in found]
    trained = list(dict.fromkeys(data.heldout["task"]))
    forgetting = Forgetting(
        _other(evaluate_completions(others, [both.before for _, both in found])),
        _other(evaluate_completions(others, [both.after for _, both in found])),
        _mean_kls([row["task"] for row in rows], answered),
        trained,
    )
    Trainer.log(trainer, forgetting.metrics())
    return forgetting


def _other(results: Mapping[str, Proportion]) -> dict[str, Proportion]:
    return {f"other/{name}": result for name, result in results.items()}


def _mean_kls(tasks: Sequence[str], answered: Sequence[_Answered]) -> dict[str, float]:
    """The KL of each task in nats a token."""
    kls: dict[str, float] = {}
    for task in dict.fromkeys(tasks):
        mine = [both for its_task, both in zip(tasks, answered, strict=True) if its_task == task]
        kls[task] = sum(both.kl for both in mine) / sum(both.tokens for both in mine)
    return kls


def _answer(
    trainer: Any,
    start: torch.nn.Module,
    prompts: Sequence[str],
    progress: Callable[[int], object],
) -> list[_Answered]:
    """Answer prompts greedily with both models, on this process."""
    tokenizer, training = trainer.processing_class, trainer.model.training
    limits: dict[str, Any] = {
        "max_new_tokens": ANSWER_TOKENS,  # the trained tasks' own limit may be lower
        "batch_size": trainer.args.per_device_eval_batch_size,
    }
    trainer.model.eval()
    try:
        with (
            unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as policy,
            trainer.accelerator.autocast(),
        ):
            start = start.to(policy.device).eval()
            before = complete(start, tokenizer, prompts, **limits)
            ids = complete_ids(policy, tokenizer, prompts, **limits)
            encoded = [tokenizer(prompt)["input_ids"] for prompt in prompts]
            kls: list[float] = []
            for first in range(0, len(ids), _ROWS_AT_ONCE):
                places = slice(first, first + _ROWS_AT_ONCE)
                kls += answer_kls(policy, start, encoded[places], ids[places])
                progress(len(ids[places]))
    finally:
        trainer.model.train(training)
    after = tokenizer.batch_decode(ids, skip_special_tokens=True)
    sizes = [len(answer) for answer in ids]
    return [_Answered(*both) for both in zip(before, after, kls, sizes, strict=True)]


@torch.no_grad()
def answer_kls(
    policy: Any, start: Any, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> list[float]:
    """KL(policy || start) of each answer's distribution, given its prompt, summed over its tokens.

    Args:
        policy: A causal language model.
        start: One with the same vocabulary.
        prompts: Token ids of `B` prompts.
        answers: Token ids of `B` answers, of which none is empty.

    Returns:
        `B` numbers, in nats.
    """
    rows = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    width = max(map(len, rows))
    # Padding is on the right, so positions count from 0 and the mask hides nothing from the text.
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=policy.device)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]).to(ids.device)
    is_asked = torch.zeros_like(mask, dtype=torch.bool)  # the token before each token of an answer
    for place, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        is_asked[place, len(prompt) - 1 : len(row) - 1] = True
    logits = (  # a prompt's virtual tokens, as in prompt tuning, come first
        network(input_ids=ids, attention_mask=mask).logits[:, -width:][is_asked]
        for network in (policy, start)
    )
    kls = kl_of_logits(*logits).split([len(answer) for answer in answers])
    return [float(kl.sum()) for kl in kls]


def kl_of_logits(policy: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Exact KL(policy || start) in nats ``(N,)``, from logits ``(N, V)``.

    >>> half, quarter = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.25, 0.75]])
    >>> round(kl_of_logits(half.log(), quarter.log()).item(), 4)  # ln(2) / 2 + ln(2 / 3) / 2
    0.1438
    """
    log_start, log_policy = start.float().log_softmax(-1), policy.float().log_softmax(-1)
    kl = torch.nn.functional.kl_div(log_start, log_policy, reduction="none", log_target=True)
    return kl.sum(-1)
