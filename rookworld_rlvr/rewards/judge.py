"""Judges: frozen sequence classifiers with one score, and the reward that one gives.

TRL's `GRPOTrainer` also takes a `PreTrainedModel` as a reward. We hand it a function instead. TRL would
score the whole batch in one forward, rows of every task among them, in the checkpoint's precision, on
the raw scale, and without the end token that its own `RewardTrainer` trains with. It would name the
reward after the folder and let accelerate wrap the model. And it would accept any checkpoint:
transformers gives one without a score head a random head, and of two labels TRL reads the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
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
from ..tasks.registry import is_right, task_of
from .judge_spec import JudgeSpec

_HEAD = "ForSequenceClassification"


# --------------------------------------------------------------------------------------------------
# The network
# --------------------------------------------------------------------------------------------------
class Judge:
    """A frozen network that gives a text one score.

    It reads prompt, completion and end token as one text, as in TRL's `RewardTrainer`; an end token
    that is already there is not added again. A completion comes without its end token, so one that was
    cut off reads as if it had ended there.

    GPT-2 and similar models score at the last token that is not padding. Padding is on the right, where
    it shifts no position. If the end token is also the padding token, the token before it is scored, in
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
        # The largest number of tokens that it has positions for; infinite if nothing gives a limit.
        self.longest = min(_table_size(network), float(tokenizer.model_max_length))

    def scores(self, prompts: Sequence[str], completions: Sequence[str]) -> list[float | None]:
        """Scores of `N` texts, in order; None for a text with more tokens than positions.

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
                    text = prompts[place] + completions[place]
                    raise RookWorldError(
                        f"{self.name} gives the score {score} to {text!r}; give another model"
                    )
                found[place] = score
        return found

    def check_lengths(self, prompts: Collection[str], max_completion_length: int) -> None:
        """Refuse, before a run, completions that could be too long for the judge.

        Args:
            prompts: The different prompts.
            max_completion_length: In tokens, which are taken to be this tokenizer's too.

        Raises:
            RookWorldError: The longest prompt, a completion and the end token need more positions than
                there are. Beside another reward, TRL counts a missing score as 0, which would be better
                than a negative score.
        """
        if not prompts or not math.isfinite(self.longest):
            return
        longest = max(map(len, self.tokenizer(list(prompts))["input_ids"]))
        end = int(self.tokenizer.eos_token is not None)
        room = int(self.longest) - longest - end
        if max_completion_length > room:
            lower = f"give at most {room}, or " if room > 0 else ""
            raise RookWorldError(
                f"max_completion_length: {max_completion_length} tokens, after {longest} of the longest "
                f"prompt and with {end} for the end token, are more than the {int(self.longest)} "
                f"positions of {self.name}; {lower}leave out longer prompts, or give a judge with more "
                "positions"
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
        # Its own precision, even if the trainer's forwards run under autocast.
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            output = self.network(**{key: tensor.to(device) for key, tensor in batch.items()})
        scores: list[float] = output.logits.squeeze(-1).float().tolist()  # (B,)
        return scores


def _table_size(network: PreTrainedModel) -> float:
    """How many positions a network has; infinite if its configuration does not say."""
    config = network.config.get_text_config()
    return getattr(config, "max_position_embeddings", None) or math.inf


def check_pair_lengths(
    network: PreTrainedModel, pairs: Dataset, max_length: int | None = None
) -> None:
    """Refuse training pairs with more tokens than the network has positions.

    Args:
        network: What is to be trained on the pairs.
        pairs: `chosen_ids` and `rejected_ids`, as TRL's `RewardTrainer` makes them.
        max_length: The trainer has left out longer pairs; None if it has left out none.

    Raises:
        RookWorldError: No pair is left, or the longest answer needs more positions than there are.
    """
    if not len(pairs["chosen_ids"]):
        raise RookWorldError(
            f"max_length: {max_length} leaves out every training pair; give a larger number, or null"
        )
    limit = _table_size(network)
    longest = max(max(map(len, pairs[key])) for key in ("chosen_ids", "rejected_ids"))
    if longest > limit:
        raise RookWorldError(
            f"max_length: the longest answer takes {longest} tokens with its prompt, but the model has "
            f"{limit} positions; set max_length: {limit} to leave such pairs out, or give another model"
        )


def load_judge(spec: JudgeSpec) -> Judge:
    """The judge of a reward, on this process's own device.

    Raises:
        RookWorldError: The model or tokenizer was not found, or the model is not a sequence classifier
            with one score; the message says what was found.
    """
    try:
        network = _load_network(spec)
        tokenizer = _load_tokenizer(spec.model, network)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error)
        if not isinstance(error, RookWorldError):
            reason = " ".join(reason.split())[:300]
        raise RookWorldError(
            f"rewards: {spec.name} could not be loaded from {spec.model!r}: {reason}; give a sequence "
            "classifier with one score, such as rookworld judge trains"
        ) from error
    fuse_gelu(network)
    network.to(PartialState().device)
    return Judge(network, tokenizer, spec.name, spec.batch_size)


def _load_network(spec: JudgeSpec) -> PreTrainedModel:
    faults = loading.check_model_name(spec.model, "model")
    for fault in faults or loading.pickle_faults(spec.model, key="model"):
        raise RookWorldError(fault)
    path = loading.resolve_model_path(spec.model)
    config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    found = ", ".join(config.architectures or ["an unknown model"])
    if not any(name.endswith(_HEAD) for name in config.architectures or ()):
        raise RookWorldError(f"it is not a sequence classifier: its checkpoint is of {found}")
    if config.num_labels != 1:
        raise RookWorldError(f"its {found} has {config.num_labels} labels (num_labels), not 1")
    # FSDP's efficient loading would give the weights to the first process alone.
    with patch_environment(
        FSDP_CPU_RAM_EFFICIENT_LOADING="false", DISABLE_SAFETENSORS_CONVERSION="true"
    ):
        network, info = AutoModelForSequenceClassification.from_pretrained(
            path,
            dtype="float32",
            output_loading_info=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
    # transformers fills these with random numbers and does not fail.
    absent = sorted(map(str, (*info["missing_keys"], *info["mismatched_keys"])))
    if absent:
        few = ", ".join(absent[:3])
        raise RookWorldError(f"its checkpoint lacks {len(absent)} of its weights: {few}")
    return network


def _load_tokenizer(name: str, network: PreTrainedModel) -> PreTrainedTokenizerBase:
    tokenizer = loading.load_tokenizer(name, must_end=False)
    known, size = max(tokenizer.get_vocab().values()), network.get_input_embeddings().num_embeddings
    if known >= size:
        raise RookWorldError(
            f"the tokenizer of {name!r} has ids up to {known}, but the model embeds only {size} tokens"
        )
    if tokenizer.pad_token_id is None and network.config.pad_token_id is None:
        raise RookWorldError(f"neither the model nor the tokenizer of {name!r} has a padding token")
    return tokenizer


# --------------------------------------------------------------------------------------------------
# The reward
# --------------------------------------------------------------------------------------------------
class JudgeReward:
    """A judge as a reward function in TRL's signature, on every process.

    All processes call it together and share their scores, so that the metrics are those of the whole
    batch.

    Args:
        spec: What the recipe says.
        judge: The judge; None loads it.
        truth: Where the values of moves come from, for the metrics; None takes the column
            `action_values`.

    Raises:
        RookWorldError: See `load_judge`.
    """

    is_judge = True  # for `judges_of`
    is_packaged = True  # see `guard`

    def __init__(
        self, spec: JudgeSpec, judge: Judge | None = None, truth: PolicyTruth | None = None
    ) -> None:
        self.__name__ = spec.name
        self.tasks = spec.tasks
        self.__doc__ = f"Score of the frozen judge {spec.model!r}."
        self.spec = spec
        self.judge = judge or load_judge(spec)
        self.truth = truth or PolicyTruth()

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
        if log_metric is not None:
            self._log(log_metric, together)
        rewards = {
            index: self._scaled(one.score)
            for index, one in zip(mine, judged, strict=True)
            if one.score is not None
        }
        return [rewards.get(index) for index in range(len(prompts))]

    def check_lengths(self, prompts: Iterable[str], max_completion_length: int) -> None:
        """See `Judge.check_lengths`; prompts of tasks that it does not judge are left out."""
        mine = {text for text in prompts if task_of(text) in self.spec.tasks}
        self.judge.check_lengths(mine, max_completion_length)

    def _score_together(self, *asked: list[Any]) -> tuple[list[_Judged], list[_Judged]]:
        """Results of this process's rows, and of all processes' rows; if one fails, all of them do."""
        judged: list[_Judged] = []
        failure: Exception | None = None
        try:
            judged = self._judged(*asked)
        except Exception as error:  # the others wait for this process's scores
            failure = error
        everywhere = gather_object([(judged, failure and repr(failure))])
        if failure is not None:
            raise failure
        if elsewhere := [text for _, text in everywhere if text is not None]:
            raise RookWorldError(f"{self.spec.name} failed on another process: {elsewhere[0]}")
        return judged, [one for of_process, _ in everywhere for one in of_process]

    def _judged(
        self, prompts: list[str], completions: list[str], column: list[Any]
    ) -> list[_Judged]:
        scores = self.judge.scores(prompts, completions)
        values = policy_values(self.truth, prompts, column, [True] * len(prompts))
        return [
            _Judged(task_of(prompt), prompt + text, score, is_right(prompt, text, by_move))
            for prompt, text, score, by_move in zip(
                prompts, completions, scores, values, strict=True
            )
        ]

    def _scaled(self, score: float) -> float:
        """The reward of a score."""
        if self.spec.scale == "raw":
            return score
        return 0.5 * (1 + math.tanh(score / 2))  # the sigmoid, without overflow

    def _log(self, log_metric: Callable[[str, float], None], judged: Sequence[_Judged]) -> None:
        """Log metrics of all processes' rows; nothing for a batch without rows to judge."""
        scored = [one for one in judged if one.score is not None]
        numbers = {"too_long": 1 - len(scored) / len(judged)} if judged else {}
        numbers |= _means(scored)
        if len({one.text for one in scored}) > 1:  # scores of one text cannot differ
            scores = [one.score for one in scored if one.score is not None]
            numbers["std"] = pstdev(scores)
            numbers["reward_std"] = pstdev(map(self._scaled, scores))
        for task in self.spec.tasks:
            numbers |= _means([one for one in scored if one.task == task], f"_{task}")
        for name, number in numbers.items():
            log_metric(f"judge/{self.spec.name}/{name}", number)


@dataclass(frozen=True, slots=True)
class _Judged:
    """What is known of one completion."""

    task: str
    text: str
    score: float | None  # None: the text is too long
    is_right: bool | None  # by its task's headline metric; None: no truth


def _means(scored: Sequence[_Judged], suffix: str = "") -> dict[str, float]:
    """Mean score and share right of completions; a key is missing if no completion has a value."""
    sides = {
        "mean": [one.score for one in scored if one.score is not None],
        "truth": [float(one.is_right) for one in scored if one.is_right is not None],
    }
    return {f"{name}{suffix}": fmean(values) for name, values in sides.items() if values}
