"""Frozen one-score sequence classifiers, judges for short: loading, refusing, scoring, the reward.

TRL's `GRPOTrainer` takes a `PreTrainedModel` as a reward too. A function is handed to it instead, as
TRL would score the whole batch in one forward, without the end token that its own `RewardTrainer`
trains with, in the checkpoint's precision, on the raw scale, and rows of every task; it would name the
reward after the folder, have the model wrapped by accelerate, and take any checkpoint: transformers
gives one without a score head a random one, and of two labels the first would be read.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object, patch_environment
from datasets import Dataset
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..common.errors import RookWorldError
from ..engine.truth import PolicyTruth, policy_values
from ..models import loading
from ..models.decoding import pad_rows
from ..models.gpt2 import fuse_gelu
from ..tasks.registry import TASKS, score_row, task_of
from ..tasks.scoring import Values
from .judge_spec import JudgeSpec

_HEAD = "ForSequenceClassification"


_NO_SPREAD = 1e-5  # of scores: below it a deviation is rounding


# --------------------------------------------------------------------------------------------------
# The network
# --------------------------------------------------------------------------------------------------
class Judge:
    """A frozen network that gives a text one score.

    What is judged is the prompt and the completion as one text, and the tokenizer's end token behind
    it where the text does not end with it: what TRL's `RewardTrainer` trains on. A completion comes
    without its end token, so one that was cut off reads as if it had ended there.

    GPT-2 and its like score at the last token that is not padding. Padding is on the right, where it
    moves no position; where the end token is the padding token, the token before it is scored, in
    training as here.

    Args:
        network: With one label; it is put into evaluation mode and frozen.
        tokenizer: Its own.
        name: For messages.
        batch_size: Texts scored in one forward.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str = "judge",
        batch_size: int = 64,
    ) -> None:
        self.network = network.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.name = name
        self.batch_size = batch_size
        if network.config.pad_token_id is None:
            network.config.pad_token_id = tokenizer.pad_token_id
        # Tokens that there are positions for; infinite where nothing names a limit.
        self.longest = min(_table_size(network), float(tokenizer.model_max_length))

    def scores(self, prompts: Sequence[str], completions: Sequence[str]) -> list[float | None]:
        """Scores of `N` texts in their order; None for one that has more tokens than positions.

        Raises:
            RookWorldError: A score is nan or infinite.
        """
        rows = self._encode(prompts, completions)
        found: list[float | None] = [None] * len(rows)
        short = [index for index, row in enumerate(rows) if len(row) <= self.longest]
        order = sorted(short, key=lambda index: len(rows[index]))  # little padding
        for start in range(0, len(order), self.batch_size):
            places = order[start : start + self.batch_size]
            for place, score in zip(places, self._forward([rows[p] for p in places]), strict=True):
                if not math.isfinite(score):
                    raise RookWorldError(
                        f"{self.name} scores {score} for {prompts[place] + completions[place]!r}; "
                        "take dtype: float32, or another model"
                    )
                found[place] = score
        return found

    def check_lengths(self, prompts: Collection[str], max_completion_length: int) -> None:
        """Refuse, before a run, completions that could outrun the positions behind the longest prompt.

        Args:
            prompts: The different prompts.
            max_completion_length: In tokens, which are taken to be this tokenizer's too.

        Raises:
            RookWorldError: Prompt, completion and end token together may have no score. TRL would
                count that as 0 beside another reward, which is better than a negative score.
        """
        if not prompts or not math.isfinite(self.longest):
            return
        longest = max(map(len, self.tokenizer(list(prompts))["input_ids"]))
        end = int(self.tokenizer.eos_token is not None)
        room = int(self.longest) - longest - end
        if max_completion_length > room:
            lower = f"give at most {room}, or " if room > 0 else ""
            raise RookWorldError(
                f"max_completion_length: {max_completion_length} tokens behind the longest prompt's "
                f"{longest} outrun the {int(self.longest)} positions of {self.name}, {end} of them "
                f"for the end token; {lower}leave out longer prompts, or take a judge with more"
            )

    def _encode(self, prompts: Sequence[str], completions: Sequence[str]) -> list[list[int]]:
        end = self.tokenizer.eos_token or ""
        texts = [
            text if end and text.endswith(end) else text + end
            for text in map(str.__add__, prompts, completions)
        ]
        rows: list[list[int]] = self.tokenizer(texts)["input_ids"] if texts else []
        return rows

    def _forward(self, rows: Sequence[Sequence[int]]) -> list[float]:
        device = self.network.device
        batch = pad_rows(rows, self.network.config.pad_token_id, "right")
        # Its own precision, also where the trainer's forwards run under autocast.
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            output = self.network(**{key: tensor.to(device) for key, tensor in batch.items()})
        scores: list[float] = output.logits.squeeze(-1).float().tolist()  # (B,)
        return scores


def _table_size(network: PreTrainedModel) -> float:
    """Rows of a network's table of positions; infinite where its configuration names none."""
    config = network.config.get_text_config()
    return getattr(config, "max_position_embeddings", None) or math.inf


def check_pair_lengths(
    network: PreTrainedModel, pairs: Dataset, max_length: int | None = None
) -> None:
    """Refuse pairs that outrun the table of positions of a network that is to be trained on them.

    Args:
        network: The judge to be.
        pairs: `chosen_ids` and `rejected_ids`, as TRL's `RewardTrainer` makes them.
        max_length: By which it has left out pairs; None for not at all.

    Raises:
        RookWorldError: No pair is left, or the longest answer needs more positions than there are.
    """
    if not len(pairs["chosen_ids"]):
        raise RookWorldError(
            f"max_length: {max_length} leaves out every training pair; give a larger one, or none"
        )
    limit = _table_size(network)
    longest = max(max(map(len, pairs[key])) for key in ("chosen_ids", "rejected_ids"))
    if longest > limit:
        raise RookWorldError(
            f"max_length: the longest answer takes {longest} tokens with its prompt, the model has "
            f"{limit} positions; give max_length: {limit} to leave such pairs out, or another model"
        )


def load_judge(spec: JudgeSpec) -> Judge:
    """The judge of a reward, on this process's own device.

    Raises:
        RookWorldError: There is no such model or tokenizer, or it is no sequence classifier with one
            score; the message says what was found.
    """
    try:
        network = _load_network(spec)
        tokenizer = _load_tokenizer(spec, network)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = f"it cannot be loaded ({' '.join(str(error).split())[:300]})"
        if isinstance(error, RookWorldError):
            reason = str(error)
        raise RookWorldError(
            f"rewards: {spec.name} cannot be had from {spec.model!r}: {reason}; give a sequence "
            "classifier with one score, such as recipes/train_judge.py trains"
        ) from error
    fuse_gelu(network)
    network.to(PartialState().device)
    return Judge(network, tokenizer, spec.name, spec.batch_size)


def _load_network(spec: JudgeSpec) -> PreTrainedModel:
    for fault in loading.check_model_name(spec.model, key="model"):
        raise RookWorldError(fault)
    path = loading.resolve_model_path(spec.model)
    config = AutoConfig.from_pretrained(path)
    found = ", ".join(config.architectures or ["no architecture"])
    if not any(name.endswith(_HEAD) for name in config.architectures or ()):
        raise RookWorldError(f"it is no sequence classifier: its checkpoint is of {found}")
    if config.num_labels != 1:
        raise RookWorldError(f"its {found} has {config.num_labels} labels (num_labels), not 1")
    # Under FSDP's efficient loading only the first process would get weights to shard from.
    with patch_environment(FSDP_CPU_RAM_EFFICIENT_LOADING="false"):
        network, info = AutoModelForSequenceClassification.from_pretrained(
            path, dtype=spec.dtype, output_loading_info=True
        )
    # transformers fills these with random numbers and goes on.
    absent = sorted(map(str, (*info["missing_keys"], *info["mismatched_keys"])))
    if absent:
        few = ", ".join(absent[:3])
        raise RookWorldError(f"its checkpoint lacks {len(absent)} of its weights: {few}")
    return network


def _load_tokenizer(spec: JudgeSpec, network: PreTrainedModel) -> PreTrainedTokenizerBase:
    name = spec.tokenizer or spec.model
    tokenizer = loading.load_tokenizer(name, must_end=False)
    known, size = max(tokenizer.get_vocab().values()), network.get_input_embeddings().num_embeddings
    if known >= size:
        raise RookWorldError(
            f"the tokenizer of {name!r} has ids up to {known}, its embedding only {size} rows"
        )
    if tokenizer.pad_token_id is None and network.config.pad_token_id is None:
        raise RookWorldError(f"neither it nor the tokenizer of {name!r} has a padding token")
    return tokenizer


# --------------------------------------------------------------------------------------------------
# The reward
# --------------------------------------------------------------------------------------------------
class JudgeReward:
    """A judge as a reward function in TRL's signature, on every process.

    All processes call it together: they share their scores, so that `zscore` is the same on all of
    them and the metrics are of the whole batch.

    Args:
        spec: What the recipe says.
        judge: Its network; loaded where None.
        truth: What policy answers are measured against; None takes the column `action_values`.

    Raises:
        RookWorldError: See `load_judge`.
    """

    def __init__(
        self, spec: JudgeSpec, judge: Judge | None = None, truth: PolicyTruth | None = None
    ) -> None:
        self.__name__ = spec.name
        self.__doc__ = f"Score of the frozen judge {spec.model!r}."
        self.spec = spec
        self.judge = judge or load_judge(spec)
        self.truth = truth or PolicyTruth()
        self.window: deque[float] = deque(maxlen=spec.window)

    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        action_values: Sequence[Any] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Rewards of `N` completions; None for rows of other tasks, and for texts that are too long.

        Raises:
            RookWorldError: A score is nan or infinite, or the engine fails, on any of the processes.
        """
        mine = [index for index, text in enumerate(prompts) if task_of(text) in self.spec.tasks]
        column = action_values if action_values is not None else [None] * len(prompts)
        asked = [[texts[index] for index in mine] for texts in (prompts, completions, column)]
        judged, together = self._score_together(*asked)
        self.window.extend(one.score for one in together if one.score is not None)
        if log_metric is not None:
            self._log(log_metric, together)
        found = dict(zip(mine, self._scaled(judged), strict=True))
        return [found.get(index) for index in range(len(prompts))]

    def check_lengths(self, prompts: Iterable[str], max_completion_length: int) -> None:
        """See `Judge.check_lengths`; prompts of tasks that it does not judge are passed over."""
        mine = {text for text in prompts if task_of(text) in self.spec.tasks}
        self.judge.check_lengths(mine, max_completion_length)

    def _score_together(self, *asked: list[Any]) -> tuple[list[_Judged], list[_Judged]]:
        """What this process's rows got, and what all processes' did; all of them fail, or none."""
        mine: list[_Judged] = []
        failure: Exception | None = None
        try:
            mine = self._judged(*asked)
        except Exception as error:  # the others wait for this process's scores
            failure = error
        found = gather_object([(mine, failure and repr(failure))])
        if failure is not None:
            raise failure
        elsewhere = [text for _, text in found if text is not None]
        if elsewhere:
            raise RookWorldError(f"{self.spec.name} failed on another process: {elsewhere[0]}")
        return mine, [one for judged, _ in found for one in judged]

    def _judged(
        self, prompts: list[str], completions: list[str], column: list[Any]
    ) -> list[_Judged]:
        scores = self.judge.scores(prompts, completions)
        values = policy_values(self.truth, prompts, column, [True] * len(prompts))
        return [
            _Judged(
                task_of(prompt), prompt + completion, score, _truth(prompt, completion, by_move)
            )
            for prompt, completion, score, by_move in zip(
                prompts, completions, scores, values, strict=True
            )
        ]

    def _scaled(self, judged: Sequence[_Judged]) -> list[float | None]:
        """Rewards; None where there is no score."""
        scale = self._scale()
        return [None if one.score is None else scale(one.score) for one in judged]

    def _scale(self) -> Callable[[float], float]:
        """Of zscore: how many deviations of the window a score lies over its mean; 0 without spread."""
        if self.spec.scale == "raw":
            return float
        if self.spec.scale == "sigmoid":
            return lambda score: 0.5 * (1 + math.tanh(score / 2))  # without overflow
        mean, deviation = _spread(self.window)
        if deviation <= _NO_SPREAD * (1 + abs(mean)):
            return lambda score: 0.0
        return lambda score: (score - mean) / deviation

    def _log(self, log_metric: Callable[[str, float], None], judged: Sequence[_Judged]) -> None:
        """Of all processes' rows, so it is the same number on each; nothing for a batch without."""
        scored = [one for one in judged if one.score is not None]
        numbers = {"too_long": 1 - len(scored) / len(judged)} if judged else {}
        numbers |= _means(scored)
        if len({one.text for one in scored}) > 1:  # of one text it would be no judge's fault
            rewards = [reward for reward in self._scaled(scored) if reward is not None]
            numbers["std"] = _spread([one.score for one in scored if one.score is not None])[1]
            numbers["reward_std"] = _spread(rewards)[1]
        for task in self.spec.tasks:
            numbers |= _means([one for one in scored if one.task == task], f"_{task}")
        for name, number in numbers.items():
            log_metric(f"judge/{self.spec.name}/{name}", number)

    # --------------------------------------------------------------------------------------------
    # Checkpoints
    # --------------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """The window, for a run that goes on later."""
        return {"window": list(self.window)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self.window = deque(state["window"], maxlen=self.spec.window)


@dataclass(frozen=True, slots=True)
class _Judged:
    """What one completion got."""

    task: str
    text: str
    score: float | None  # None: the text is too long
    truth: float | None  # 1 where its task's headline metric counts it as right; None: no truth


def _means(scored: Sequence[_Judged], suffix: str = "") -> dict[str, float]:
    """Mean score and share right of the same completions; without what none of them has."""
    sides = {
        "mean": [one.score for one in scored if one.score is not None],
        "truth": [one.truth for one in scored if one.truth is not None],
    }
    return {f"{name}{suffix}": _spread(found)[0] for name, found in sides.items() if found}


def _truth(prompt: str, completion: str, values: Values | None) -> float | None:
    score = score_row(prompt, completion, values)
    if score is None:
        return None
    task = TASKS[task_of(prompt)]
    return float(score[task.metrics[task.headline].component] == 1)


def _spread(values: Collection[float]) -> tuple[float, float]:
    """Mean and population deviation."""
    if not values:
        return 0.0, 0.0
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def judges_of(reward_funcs: Iterable[Any]) -> dict[str, JudgeReward]:
    """The judges among a trainer's reward functions, by name, also those that are wrapped."""
    unwrapped = (inspect.unwrap(func) for func in reward_funcs)
    return {func.__name__: func for func in unwrapped if isinstance(func, JudgeReward)}
