"""Credit by place: which tokens of a completion are praised or blamed.

TRL gives all tokens of a completion the same advantage. A wrong answer is often right for most of its
tokens, so these are blamed together with the token that went wrong. The task tells where that is, in
characters; here characters become tokens, whatever the tokenizer.

``first_error``
    An answer that is read from the left to the right goes wrong at one token. Only that token is blamed;
    the tokens before it may be praised, and those after it, which follow from the error, are neither.

``field``
    An answer consists of fields with scores of their own. A token's advantage is its field's score
    compared with the same field's scores in the group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from accelerate.utils import gather_object
from rapidfuzz.distance import Prefix
from trl import GRPOConfig

from ...common.settings import setting
from ...engine.truth import PolicyTruth, policy_values
from ...tasks.registry import TASKS, task_of
from ...tasks.scoring import Values
from ...tasks.task import FieldSpan, Task
from .advantages import STD_EPSILON, nanstd
from .groups import torn_groups
from .part import Part, arguments_of
from .right import truth_of

CreditKind = Literal["completion", "first_error", "field"]
Span = tuple[int, int]  # characters [start, end) of a completion

_END = ""  # the end token's field: whether the answer can be read


@dataclass
class CreditArguments:
    """Which tokens of a completion its advantage is given to."""

    credit: CreditKind = setting(
        "completion",
        "Which tokens get a completion's advantage: completion gives it to all (as in TRL); "
        "first_error blames only the token at which the answer departs from every right one, and "
        "praises only those before it; field compares each field of an answer with the same field "
        "of the group's other answers, whatever the rewards are. Completions whose task has no such "
        "places, or whose row has no values of moves although its task needs them (see labels), are "
        "treated as with completion.",
    )

    def credit_faults(self, args: GRPOConfig, processes: int) -> list[str]:
        """Faults that show only when several keys are compared, one sentence each."""
        if self.credit == "completion":
            return []
        by_token = {
            "advantage_estimator: gae": args.advantage_estimator == "gae",
            f"loss_type: {args.loss_type}": args.loss_type == "vespo",
            "off_policy_mask_threshold": args.off_policy_mask_threshold is not None,
            "importance_sampling_level: sequence": args.importance_sampling_level == "sequence",
        }
        faults = [
            f"credit: {self.credit} gives each token its own advantage, which {name} does not allow; "
            "leave one of the two out"
            for name, clash in by_token.items()
            if clash
        ]
        return faults + (self._field_faults(args, processes) if self.credit == "field" else [])

    def _field_faults(self, args: GRPOConfig, processes: int) -> list[str]:
        faults = []
        if args.multi_objective_aggregation != "sum_then_normalize":
            faults.append("credit: field needs multi_objective_aggregation: sum_then_normalize")
        if args.baseline != "group_mean":
            faults.append(
                "credit: field compares with the group's mean, not with "
                f"baseline: {args.baseline}; leave one of the two out"
            )
        if args.scale_rewards == "batch" and args.zero_variance == "resample":
            faults.append(
                "credit: field cannot divide by the deviation of a batch whose groups come from several "
                "rounds; set scale_rewards: group, or zero_variance: keep"
            )
        return faults + torn_groups("credit: field", args, processes)


# --------------------------------------------------------------------------------------------------
# Characters and tokens
# --------------------------------------------------------------------------------------------------
class Spans:
    """Finds the characters that each token of a completion stands for.

    Args:
        tokenizer: Any tokenizer that decodes.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[int, str] = {}

    def of(self, ids: Sequence[int]) -> tuple[str, list[Span]]:
        """The text of a completion without special tokens, and the span of each token.

        A token covers the characters that it adds to the text. One that adds none covers the next
        character: the end token ``[len, len + 1)``, and the first bytes of a character the character.
        """
        text = self._decode(ids)
        lengths = self._lengths(ids, text)
        starts = [0, *lengths[:-1]] if ids else []
        return text, [(a, max(b, a + 1)) for a, b in zip(starts, lengths, strict=True)]

    def _lengths(self, ids: Sequence[int], text: str) -> list[int]:
        """How many characters of the text are there after each token."""
        pieces = [self._piece(token) for token in ids]
        lengths, done = [], 0
        if "".join(pieces) == text:
            for piece in pieces:
                done += len(piece)
                lengths.append(done)
            return lengths
        for end in range(1, len(ids) + 1):  # decoding depends on the tokens before
            done = max(done, int(Prefix.similarity(self._decode(ids[:end]), text)))
            lengths.append(done)
        return lengths

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = self._decode([token])
        return self._pieces[token]

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)  # as TRL does
        return text


# --------------------------------------------------------------------------------------------------
# Advantages by token
# --------------------------------------------------------------------------------------------------
def by_first_error(advantage: float, error: int, text: str, spans: Sequence[Span]) -> list[float]:
    """Advantages of a completion's tokens, given where it goes wrong, see `Task.first_error`.

    >>> by_first_error(-1.0, 3, "abcd", [(0, 2), (2, 4), (4, 5)])
    [0.0, -1.0, 0.0]
    """
    if error > len(text):
        return [advantage] * len(spans)
    praise, blame = max(advantage, 0.0), min(advantage, 0.0)
    return [praise if end <= error else blame if start <= error else 0.0 for start, end in spans]


def by_field(
    advantages: Mapping[str, float], fields: Sequence[FieldSpan], text: str, spans: Sequence[Span]
) -> list[float]:
    """Advantages of a completion's tokens, given those of its fields and of its end token, ``""``.

    A token gets the mean of the fields that it covers, by characters. Separators count only in tokens
    that hold nothing else; they belong to the field before them. Without fields, that is in a text that
    cannot be read, all tokens get the mean of all advantages.

    >>> spans = [FieldSpan("a", 0, 2, 1.0), FieldSpan("b", 3, 4, 0.0)]
    >>> by_field({"a": 1.0, "b": -1.0, "": 0.5}, spans, "xx y", [(0, 2), (2, 3), (3, 4), (4, 5)])
    [1.0, 1.0, -1.0, 0.5]
    """
    if not fields:
        return [sum(advantages.values()) / len(advantages)] * len(spans)
    owners = [fields[0].name] * (len(text) + 1)
    inside = [False] * len(text) + [True]
    for span in fields:
        owners[span.start :] = [span.name] * (len(owners) - span.start)
        inside[span.start : span.end] = [True] * (span.end - span.start)
    owners[-1] = _END
    numbers = []
    for start, end in spans:
        covered = [place for place in range(start, end) if inside[place]] or [start]
        numbers.append(sum(advantages[owners[place]] for place in covered) / len(covered))
    return numbers


def field_scores(
    answers: Sequence[Sequence[FieldSpan]], scored: Sequence[bool]
) -> dict[str, torch.Tensor]:
    """Scores ``(G,)`` of each field in the answers of one group; the field ``""`` is 1 if readable.

    An answer that cannot be read has 0 in every field. One that has no reward counts nowhere: nan.
    """
    names = dict.fromkeys(span.name for answer in answers for span in answer)
    table = [
        {_END: 1.0, **{span.name: span.score for span in answer}}
        if answer
        else dict.fromkeys([*names, _END], 0.0)
        for answer in answers
    ]
    counts = torch.tensor(scored)
    return {
        name: torch.tensor([row.get(name, torch.nan) for row in table], dtype=torch.float64).where(
            counts, torch.nan
        )
        for name in [*names, _END]
    }


# --------------------------------------------------------------------------------------------------
# The part
# --------------------------------------------------------------------------------------------------
class Credit(Part):
    """Spreads advantages over the tokens of completions.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
        kind: ``first_error`` or ``field``.
    """

    def __init__(self, trainer: Any, kind: CreditKind) -> None:
        self.kind = kind
        self._trainer = trainer
        self._spans = Spans(trainer.processing_class)

    @classmethod
    def of(cls, trainer: Any) -> Credit | None:
        """The part, unless all tokens of a completion have its advantage."""
        kind = arguments_of(trainer.args, CreditArguments).credit
        return None if kind == "completion" else cls(trainer, kind)

    def advantages(
        self,
        batch: Mapping[str, torch.Tensor],
        rewards: torch.Tensor,
        rows: Sequence[Mapping[str, Any]],
    ) -> torch.Tensor:
        """Advantages by token ``(B, C)``, 0 outside of completions.

        Args:
            batch: `B` completions of this process with one advantage each.
            rewards: ``(B,)``; nan if there is no reward, and then the advantages stay 0.
            rows: Their rows, with `prompt` and perhaps `action_values`.
        """
        mask = batch["completion_mask"]
        pairs = zip(batch["completion_ids"].tolist(), mask.sum(1).tolist(), strict=True)
        texts = [self._spans.of(ids[:length]) for ids, length in pairs]
        scored = (~rewards.isnan()).tolist()
        placed: list[list[float] | None]
        if self.kind == "field":
            placed = self._by_field(texts, scored, rows)
        else:
            placed = self._by_first_error(texts, batch["advantages"].tolist(), rows)
        advantages = (batch["advantages"].unsqueeze(1) * mask).cpu()
        for row, numbers in enumerate(placed):
            if numbers is not None:
                advantages[row, : len(numbers)] = advantages.new_tensor(numbers)
        self._record(placed)
        return advantages.to(mask.device)

    def _record(self, placed: Sequence[list[float] | None]) -> None:
        device = self._trainer.accelerator.device
        here = torch.tensor([numbers is not None for numbers in placed], device=device).float()
        share = self._trainer.accelerator.reduce(here.mean(), reduction="mean").item()
        self._trainer.record({"credit/placed": share})

    def _answers(
        self, texts: Sequence[tuple[str, list[Span]]], rows: Sequence[Mapping[str, Any]]
    ) -> list[tuple[Task, str, str, Values | None]]:
        """Task, prompt, answer and values of moves; these come from where the rewards take them."""
        truth = truth_of(self._trainer.reward_funcs) or PolicyTruth()
        prompts = [row["prompt"] for row in rows]
        column = [row.get("action_values") for row in rows]
        values = policy_values(truth, prompts, column, [True] * len(prompts))
        return [
            (TASKS[task_of(prompt)], prompt, text, its_values)
            for prompt, (text, _), its_values in zip(prompts, texts, values, strict=True)
        ]

    def _by_first_error(
        self,
        texts: Sequence[tuple[str, list[Span]]],
        advantages: Sequence[float],
        rows: Sequence[Mapping[str, Any]],
    ) -> list[list[float] | None]:
        errors = [
            task.first_error(prompt, text, values)
            for task, prompt, text, values in self._answers(texts, rows)
        ]
        return [
            None if error is None else by_first_error(advantage, error, *text)
            for advantage, error, text in zip(advantages, errors, texts, strict=True)
        ]

    def _by_field(
        self,
        texts: Sequence[tuple[str, list[Span]]],
        scored: Sequence[bool],
        rows: Sequence[Mapping[str, Any]],
    ) -> list[list[float] | None]:
        found = [
            task.fields(prompt, text, values)
            for task, prompt, text, values in self._answers(texts, rows)
        ]
        size = self._trainer.num_generations
        starts = [start for start in range(0, len(rows), size) if found[start] is not None]
        tasks = [task_of(rows[start]["prompt"]) for start in starts]
        scores = [
            field_scores(
                [answer or () for answer in found[start : start + size]],
                scored[start : start + size],
            )
            for start in starts
        ]
        placed: list[list[float] | None] = [None] * len(rows)
        for start, columns in zip(starts, self._compared(tasks, scores), strict=True):
            for turn in range(size):
                row = start + turn
                mine = {name: column[turn].item() for name, column in columns.items()}
                placed[row] = by_field(mine, found[row] or (), *texts[row])
        return placed

    def _compared(
        self, tasks: Sequence[str], scores: Sequence[Mapping[str, torch.Tensor]]
    ) -> list[dict[str, torch.Tensor]]:
        """Advantages ``(G,)`` of fields by group: less the group's mean, scaled by `scale_rewards`."""
        scale = str(self._trainer.scale_rewards)
        pooled = self._pooled(tasks, scores) if scale == "batch" else {}
        compared = []
        for task, group in zip(tasks, scores, strict=True):
            columns = {}
            for name, column in group.items():
                advantages = column - column.nanmean()
                if scale != "none":
                    spread = pooled[task, name] if scale == "batch" else column
                    advantages = advantages / (nanstd(spread.view(1, -1)).squeeze() + STD_EPSILON)
                columns[name] = advantages.nan_to_num(nan=0.0)
            compared.append(columns)
        return compared

    def _pooled(
        self, tasks: Sequence[str], scores: Sequence[Mapping[str, torch.Tensor]]
    ) -> dict[tuple[str, str], torch.Tensor]:
        """All processes' scores by task and field."""
        mine = [
            (task, name, column.tolist())
            for task, group in zip(tasks, scores, strict=True)
            for name, column in group.items()
        ]
        pooled: dict[tuple[str, str], list[float]] = {}
        for task, name, column in gather_object(mine):
            pooled.setdefault((task, name), []).extend(column)
        return {key: torch.tensor(column, dtype=torch.float64) for key, column in pooled.items()}
