"""What `--dry_run` prints: rows with answers, scored, and whether the recipe can run here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from transformers import AutoConfig
from trl import ModelConfig

from ..common.errors import RookWorldError
from ..common.machine import is_fetched, reaches_hub
from ..common.terminal import wrapped
from ..data.loading import LoadedData
from ..engine.truth import PolicyTruth
from ..models import loading
from ..rewards.registry import known_rewards, open_rewards
from ..rewards.trial import rewards_of
from ..tasks.registry import TASKS
from ..tasks.task import Task
from ..tasks.types import values_by_move

ROWS_SHOWN = 3


KINDS = ("reference", "wrong", "unreadable")  # answers to each row


def dry_run_text(
    data: LoadedData, specs: Sequence[Mapping[str, Any]], truth: PolicyTruth | None = None
) -> str:
    """The counts of the data, and for each task three rows with answers to them, scored.

    The reference, a wrong and an unreadable answer to each row make one batch. A reward that is the same
    for all of them, or for all those of one task, is named.
    """
    funcs = open_rewards(specs, truth)
    seen: dict[str, dict[str, list[float | None]]] = {func.__name__: {} for func in funcs}
    lines = [wrapped("\n".join(data.report.lines()))]
    with asyncio.Runner() as runner:  # one event loop for all rewards, as in training
        for name, task in TASKS.items():
            known = (
                row
                for row in data.train
                if row["task"] == name
                and (not task.needs_values or row["action_values"] or row["completion"])
            )
            rows = list(islice(known, 10 * ROWS_SHOWN))  # some to take a wrong answer from
            shown = rows[:ROWS_SHOWN]
            batch = [(row, *answer) for row in shown for answer in _answers(task, row, rows)]
            answered, texts = [row for row, *_ in batch], [text for *_, text in batch]
            rewards = rewards_of(answered, texts, funcs, runner) if batch else {}
            for at, (row, kind, text) in enumerate(batch):
                numbers = {func: given[at] for func, given in rewards.items()}
                cell = "  ".join(f"{f} {x:.3f}" for f, x in numbers.items() if x is not None)
                if kind == KINDS[0]:
                    lines += ["", f"{name} row {1 + at // len(KINDS)}: {row['prompt']!r}"]
                lines += [f"  {kind:<10} {text!r}", f"{'':13}{cell or 'no reward applies'}"]
            for func, given in rewards.items():
                if any(number is not None for number in given):
                    seen[func][name] = given
    warnings = [warning for func, by_task in seen.items() for warning in _constant(func, by_task)]
    return "\n".join([*lines, *(f"\n{wrapped(warning)}" for warning in warnings)])


class Verdict(NamedTuple):
    """What a dry run ends with.

    Attributes:
        sentence: Whether the recipe can run here, and why not.
        is_refused: It can run nowhere as it is.
    """

    sentence: str
    is_refused: bool = False


def verdict(
    model_args: ModelConfig,
    prompts: Sequence[str],
    tokens: int | None,
    work: str,
    has_warnings: bool = False,
    on_gpu: bool = False,
) -> Verdict:
    """Whether a recipe can run on this machine, and why not.

    The model itself is not loaded: it must be there or on the Hub, and have positions enough.

    Args:
        model_args: The recipe's model.
        prompts: All prompts.
        tokens: The most of an answer; None if a model has no answers.
        work: What the run would do, in a few words.
        has_warnings: Whether there is something to read before it starts.
        on_gpu: Whether it would compute on a GPU.
    """
    name = str(model_args.model_name_or_path)
    is_here = Path(loading.resolve_model_path(name)).is_dir()
    if not is_here and not reaches_hub(name, model_args.model_revision):
        why = f"the model {name} is on the Hub, which is not reached from here"
        return Verdict(f"this recipe cannot run here yet: {why}")
    if is_here and tokens is not None:
        config = AutoConfig.from_pretrained(loading.resolve_model_path(name))
        try:
            loading.check_lengths(config, loading.load_tokenizer(name), list(prompts), tokens)
        except RookWorldError as error:
            return Verdict(f"this recipe cannot run: {error}", is_refused=True)
    where = "a GPU" if on_gpu else "the CPU"
    fetched = (
        ""
        if is_here or is_fetched(name, model_args.model_revision)
        else "; the model is fetched from the Hub first"
    )
    said = f"this recipe can run: {work}, on {where}{fetched}"
    read = "read the warnings above, then run" if has_warnings else "run"
    return Verdict(f"{said}; {read} the same command without --dry_run")


def _answers(
    task: Task, row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """A right answer, a wrong one (the right one to another row), and a part of the right one."""
    reference, values = task.reference(row), values_by_move(row["action_values"])
    texts = (text for other in rows if (text := task.reference(other)) != reference)
    scored = ((text, task.score(row["prompt"], text, values)) for text in texts)
    others = (text for text, score in scored if score is None or not task.is_right(score))
    parts = (reference[:end] for end in range(len(reference) // 3, 0, -1))
    broken = (part for part in parts if not task.is_readable(row["prompt"], part))
    answers = (reference, next(others, ""), next(broken, ""))
    return zip(KINDS, answers, strict=True)


def _constant(name: str, by_task: Mapping[str, Sequence[float | None]]) -> Iterator[str]:
    """Warnings about a reward that cannot tell answers apart, by what it gave for those of each task."""
    telling = [task for task, given in by_task.items() if len({*given} - {None}) > 1]
    given = [*chain.from_iterable(by_task.values())]
    if not given and name not in known_rewards():  # a packaged one may be of another task
        yield f"warning: the reward {name} gives no number for any of these answers"
    elif len({*given} - {None}) == 1:
        same = _same(name, given, "answers")
        yield f"{same}; unless what it rewards is rare, it teaches nothing"
    else:
        remedy = f"; unless that is meant, give it tasks: [{', '.join(telling)}]" if telling else ""
        for task in (task for task in by_task if task not in telling):
            same = _same(name, by_task[task], f"{task} answers")
            yield f"{same}, so it cannot tell them apart{remedy}"


def _same(name: str, given: Sequence[float | None], answers: str) -> str:
    numbers = [number for number in given if number is not None]
    which = " that it judges" if None in given else ", right, wrong and unreadable"
    return f"warning: the reward {name} is {numbers[0]:.3f} for all {len(numbers)} {answers}{which}"
