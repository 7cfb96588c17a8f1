"""Judges: frozen sequence classifiers with one score, and the reward that one gives.

TRL's `GRPOTrainer` also takes a `PreTrainedModel` as a reward. We hand it a function instead. TRL would
score the whole batch in one forward, rows of every task among them, in the checkpoint's precision, on
the raw scale, and without the end token that its own `RewardTrainer` trains with. It would name the
reward after the folder and let accelerate wrap the model. And it would accept any checkpoint:
transformers gives one without a score head a random head, and of two labels TRL reads the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import stdev
from typing import TYPE_CHECKING, Any, Literal

from ...common.errors import ConfigurationError, RookWorldError
from ...common.settings import record_faults, setting
from ...engine.truth import PolicyTruth, policy_values
from ...models import loading
from ...rewards.arguments import call_options
from ...rewards.composites import Options
from ...rewards.positions import warn_of_positions
from ...tasks.registry import TASKS, is_right, task_of

if TYPE_CHECKING:  # libraries are imported where they are used: to check an entry takes none
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_BATCH = 64  # texts in one forward


@dataclass(frozen=True, slots=True)
class JudgeSpec(Options):
    """A judge's entry in `rewards`."""

    model: str = setting(
        "",
        "Folder (rookworld judge makes one) or Hub id of a sequence classifier with one score.",
        filled=True,
    )
    scale: Literal["raw", "sigmoid"] = setting(
        "raw", "How a score becomes the reward: raw leaves it as it is; sigmoid maps it to [0, 1]."
    )
    tasks: tuple[str, ...] = setting(
        lambda: tuple(TASKS),
        "Tasks whose rows it judges; other rows get None.",
        among=TASKS,
        of="task",
        filled=True,
    )


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
    """

    def __init__(
        self,
        network: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str = "judge",
    ) -> None:
        self.network = network.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.name = name
        if network.config.pad_token_id is None:
            network.config.pad_token_id = tokenizer.pad_token_id
        # The largest number of tokens that it has positions for.
        self.longest = getattr(network.config, "max_position_embeddings", None) or math.inf

    def scores(self, prompts: Sequence[str], completions: Sequence[str]) -> list[float | None]:
        """Scores of `N` texts, in order; None for a text with more tokens than positions.

        Raises:
            RookWorldError: A score is nan or infinite.
        """
        rows = self._encode(prompts, completions)
        found: list[float | None] = [None] * len(rows)
        short = [index for index, row in enumerate(rows) if len(row) <= self.longest]
        order = sorted(short, key=lambda index: len(rows[index]))  # little padding
        for start in range(0, len(order), _BATCH):
            places = order[start : start + _BATCH]
            for place, score in zip(places, self._forward([rows[p] for p in places]), strict=True):
                if not math.isfinite(score):
                    text = prompts[place] + completions[place]
                    raise RookWorldError(
                        f"{self.name} gives the score {score} to {text!r}; give another model"
                    )
                found[place] = score
        return found

    def _encode(self, prompts: Sequence[str], completions: Sequence[str]) -> list[list[int]]:
        end = self.tokenizer.eos_token or ""
        pairs = zip(prompts, completions, strict=True)
        texts = [(prompt + text).removesuffix(end) + end for prompt, text in pairs]
        rows: list[list[int]] = self.tokenizer(texts)["input_ids"] if texts else []
        return rows

    def _forward(self, rows: Sequence[Sequence[int]]) -> list[float]:
        import torch

        from ...models.decoding import pad_rows

        device = self.network.device
        batch = pad_rows(rows, self.network.config.pad_token_id, "right")
        # Its own precision, even if the trainer's forwards run under autocast.
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            output = self.network(**{key: tensor.to(device) for key, tensor in batch.items()})
        scores: list[float] = output.logits.squeeze(-1).float().tolist()  # (B,)
        return scores


def load_judge(spec: JudgeSpec) -> Judge:
    """The judge of a reward, on this process's own device.

    Raises:
        RookWorldError: The model or tokenizer was not found, or the model is not a sequence classifier
            with one score; the message says what was found.
    """
    from accelerate import PartialState

    from ...models.gpt2 import fuse_gelu

    try:
        network = _load_network(spec.model)
        tokenizer = loading.load_tokenizer(spec.model, must_end=False)
    except RookWorldError as error:
        raise RookWorldError(
            f"rewards: {spec.name} could not be loaded from {spec.model!r}: {error}; give a sequence "
            "classifier with one score, such as rookworld judge trains"
        ) from error
    fuse_gelu(network)
    network.to(PartialState().device)
    return Judge(network, tokenizer, spec.name)


def _load_network(name: str) -> PreTrainedModel:
    from accelerate.utils import patch_environment
    from transformers import AutoModelForSequenceClassification

    # FSDP's efficient loading would give the weights to the first process alone.
    with patch_environment(FSDP_CPU_RAM_EFFICIENT_LOADING="false"):
        network, info = loading.load_safely(
            AutoModelForSequenceClassification, name, dtype="float32", output_loading_info=True
        )
    # transformers fills these with random numbers and does not fail.
    absent = sorted(map(str, (*info["missing_keys"], *info["mismatched_keys"])))
    if absent:
        few = ", ".join(absent[:3])
        raise RookWorldError(f"its checkpoint lacks {len(absent)} of its weights: {few}")
    if network.config.num_labels != 1:
        raise RookWorldError(f"it has {network.config.num_labels} labels (num_labels), not 1")
    return network


# --------------------------------------------------------------------------------------------------
# The reward
# --------------------------------------------------------------------------------------------------
class JudgeReward:
    """A judge as a reward function in TRL's signature, on every process.

    Args:
        spec: What the recipe says.
        judge: The judge; None loads it.
        truth: Where the values of moves come from, for the metrics; None takes the column
            `action_values`.

    Raises:
        ConfigurationError: A bad value of an option.
        RookWorldError: See `load_judge`.
    """

    is_packaged = True  # see `rewards.guard`

    def __init__(
        self, spec: JudgeSpec, judge: Judge | None = None, truth: PolicyTruth | None = None
    ) -> None:
        if faults := record_faults(JudgeSpec, asdict(spec), f"rewards: {spec.name}"):
            raise ConfigurationError(faults)
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

        Its options are those of `spec`.

        Raises:
            ConfigurationError: An option in the call.
            RookWorldError: A score is nan or infinite, or the engine fails.
        """
        call_options(self.spec.name, Options, columns, len(prompts))
        mine = [row for row, text in enumerate(prompts) if task_of(text) in self.spec.tasks]
        column = action_values if action_values is not None else [None] * len(prompts)
        asked: Any = [[texts[row] for row in mine] for texts in (prompts, completions, column)]
        scores = self.judge.scores(*asked[:2])
        if log_metric is not None:
            warn_of_positions(log_metric)
            self._log(log_metric, scores, *asked)
        rewards: list[float | None] = [None] * len(prompts)
        for row, score in zip(mine, scores, strict=True):
            rewards[row] = None if score is None else self._scaled(score)
        return rewards

    def check_lengths(self, prompts: Iterable[str], max_completion_length: int) -> None:
        """Refuse, before a run, completions that could be too long for the judge.

        Beside another reward, TRL counts a missing score as 0, which would be better than a negative
        score.

        Raises:
            RookWorldError: See `loading.check_lengths`; the end token counts.
        """
        if mine := [text for text in prompts if task_of(text) in self.spec.tasks]:
            network, tokenizer = self.judge.network, self.judge.tokenizer
            loading.check_lengths(network.config, tokenizer, mine, max_completion_length + 1)

    def _scaled(self, score: float) -> float:
        """The reward of a score."""
        if self.spec.scale == "raw":
            return score
        return 0.5 * (1 + math.tanh(score / 2))  # the sigmoid, without overflow

    def _log(
        self,
        log_metric: Callable[[str, float], None],
        scores: list[float | None],
        prompts: list[str],
        completions: list[str],
        column: list[Any],
    ) -> None:
        """Log the scores of this process's rows one by one, as TRL takes the mean of all processes'."""
        values, name = policy_values(self.truth, prompts, column), f"judge/{self.spec.name}"
        given, texts = [], set()
        for score, prompt, text, by_move in zip(scores, prompts, completions, values, strict=True):
            log_metric(f"{name}/too_long", float(score is None))
            if score is None:
                continue
            given.append(score)
            texts.add(prompt + text)
            log_metric(f"{name}/mean", score)
            if (right := is_right(prompt, text, by_move)) is not None:
                log_metric(f"{name}/truth", right)
        if len(texts) > 1:  # scores of one text cannot differ
            log_metric(f"{name}/std", stdev(given))
            log_metric(f"{name}/reward_std", stdev(map(self._scaled, given)))
