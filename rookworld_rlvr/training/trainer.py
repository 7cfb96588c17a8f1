"""The `GRPOTrainer` subclass: what a step does, from top to bottom; its features are in `parts`.

Only this file and `checkpoints.py` use private names of TRL and transformers; `test_canary.py` watches.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from transformers import PreTrainedModel
from trl import GRPOTrainer

from ..models import gpt2
from ..rewards.guard import RewardFaultArguments, RewardGuard
from ..rewards.registry import get_reward_funcs
from ..tasks.registry import task_of
from ..tasks.task import Sampling
from .checkpoints import WholeCheckpoints
from .dashboard import TableInterval, escape_for_terminal
from .heldout import HeldoutEvaluation
from .model_card import OwnCard
from .parts.advantages import weighted
from .parts.aggregation import Loss, policy_and_entropy, without_left_out
from .parts.groups import Batch, Sampled
from .parts.kl import reference_log_probs
from .parts.nonfinite import spread
from .parts.part import Call, Part, Scores, arguments_of, whole
from .parts.registry import Checkpoints, Parts, sampler_starts
from .parts.sampling import draws_itself, rollout
from .parts.schedule import three_phase_scheduler
from .parts.shared_prompts import groups_together
from .parts.timing import StepTimes
from .preflight import Parity, PreflightCallback, starting_model
from .sharding import check_layout


class RookWorldGRPOTrainer(OwnCard, WholeCheckpoints, GRPOTrainer):
    """`trl.GRPOTrainer`, corrected for GPT-2 and extended by parts; it takes TRL's arguments.

    Attributes:
        sampling: How completions are sampled, unless `task_sampling` names their task.
        preflight: The result of the preflight, which runs when training begins; None before.
        sampled: This process's rows of the last batch, by prompt.
        checkpoint: The checkpoint that `train` was told to resume from.
        call: Extra inputs and outputs of the current call to TRL; None outside of a call.
    """

    def __init__(
        self,
        model: str | PreTrainedModel,
        reward_funcs: Any = None,
        args: Any = None,
        **kwargs: Any,
    ) -> None:
        """Correct the model for GPT-2 (position ids, dropout, GELU) and add the parts to it.

        Without `reward_funcs` they are those of the arguments' `rewards`.
        """
        if reward_funcs is None and getattr(args, "rewards", None):
            reward_funcs = get_reward_funcs(args.rewards)
        self.call: Call | None = None
        self.reward_guard = RewardGuard(arguments_of(args, RewardFaultArguments))
        model = starting_model(model, args)
        with sampler_starts(args, model):
            super().__init__(model, self.reward_guard.around(reward_funcs), args, **kwargs)
        self.sampling = Sampling(self.temperature, self.top_p, self.top_k or 0)
        self.parts = Parts(self)
        for network in self.networks():
            gpt2.fit(network)
        if kwargs.get("rollout_func") is None and draws_itself(self):
            self.rollout_func = rollout
        self.heldout = HeldoutEvaluation(self)
        self.tables = TableInterval()
        self.times = StepTimes(self)
        self.preflight: Parity | None = None
        self.sampled: Mapping[str, Mapping[str, Any]] = {}
        self.checkpoint: Any = None
        for part in (self.times, *self.parts, Checkpoints(self)):
            self.add_callback(part)
        if getattr(self.args, "preflight", True):
            self.add_callback(PreflightCallback(self))

    def networks(self) -> list[torch.nn.Module]:
        """The policy and, if it is a separate model, the reference."""
        return [*map(self.accelerator.unwrap_model, filter(None, (self.model, self.ref_model)))]

    @property
    def has_reference(self) -> bool:
        """Whether the starting model's log-probs are available, from a copy or with the adapters off."""
        return self.ref_model is not None or hasattr(self.networks()[0], "peft_config")

    # --------------------------------------------------------------------------------------------
    # Sampling: rounds of completions, and the groups to train on
    # --------------------------------------------------------------------------------------------
    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler:
        """Draw prompts by task mixture and phases, which TRL's sampler cannot."""
        if self.parts.prompts is None:
            return super()._get_train_sampler(dataset)
        return self.parts.prompts.open(self.train_dataset if dataset is None else dataset)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Put groups together again, because TRL shuffles their rows over the micro-batches."""
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is before or self.parts.shared is None:
            return inputs
        self._buffered_inputs: Any = groups_together(self._buffered_inputs)
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Replace groups without signal, use our advantages, and add the reference's log-probs."""
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        return self.sample(inputs)

    def sample(self, inputs: list[dict[str, Any]]) -> Batch:
        """A batch to train on; with `zero_variance: resample`, more rounds replace silent groups."""
        groups = self.parts.groups
        rounds = [self.sample_round(inputs)]
        while more := groups.more(rounds):
            rounds.append(self.sample_round(more))
        places = groups.choose(rounds)
        if len(rounds) > 1:
            groups.log_chosen(rounds, places, self.completion_log())
        self.sampled = {row["prompt"]: row for sampled in rounds for row in sampled.rows}
        self.record(groups.metrics(rounds, places, self.completion_log()))
        return groups.batch(rounds, places)

    def sample_round(self, inputs: list[dict[str, Any]]) -> Sampled:
        """One round: completions with their rewards, reference log-probs and advantages."""
        temperatures = self.temperatures([row["prompt"] for row in inputs])
        with self.within(Call(temperatures, rows=inputs)) as call:
            batch = super()._generate_and_score_completions(inputs)
            reference = self.reference_log_probs(*whole(batch), temperatures)
        if reference is not None:
            batch["ref_per_token_logps"] = reference
        assert call.rewards is not None
        rewards = weighted(call.rewards, self.reward_weights)  # (N,)
        prompts = list(self._logs["prompt"])[-len(rewards) :: self.num_generations]
        tasks = [str(task_of(prompt)) for prompt in prompts]
        advantages = self.parts.advantages(self, batch, rewards, tasks)
        if advantages is not None:  # they replace TRL's
            self._logs["advantages"].extend(advantages.tolist())
        self.parts.guide(self, batch, call)
        signal = self.parts.groups.assess(rewards)
        return Sampled(tasks, signal, inputs, batch, rewards, self.completion_log(len(rewards)))

    def samplings(self, prompts: Sequence[str]) -> list[Sampling]:
        """How each prompt is sampled."""
        part = self.parts.task_sampling
        return [part.samplings[task_of(p)] if part else self.sampling for p in prompts]

    def temperatures(self, prompts: Sequence[str]) -> torch.Tensor | None:
        """The temperatures ``(B,)`` of prompts; None if all have the trainer's."""
        part = self.parts.task_sampling
        return part and part.temperatures(prompts, self.accelerator.device)

    def _generate(self, prompts: list[Any]) -> Any:
        """Time sampling, and teach right answers where no completion is right."""
        with self.phase("sampling"):
            sampled = super()._generate(prompts)
        if self.call is not None:
            self.parts.teach(self, self.call, sampled[1], sampled[3], sampled[4])
        return sampled

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Time the rewards, keep them for the parts, and leave rows out that a reward failed on."""
        with self.phase("rewards"):
            rewards = super()._calculate_rewards(*args, **kwargs)
            rewards = self.reward_guard.settle(rewards, self.record)
        if self.call is not None:
            self.call.rewards = rewards
        return rewards

    # --------------------------------------------------------------------------------------------
    # Scoring
    # --------------------------------------------------------------------------------------------
    def _get_per_token_logps_and_entropies(self, model: Any, *rows: Any, **kwargs: Any) -> Scores:
        """Score rows at their temperatures, each prompt once; keep the scores."""
        call = self.call or Call()
        score: Any = call.scoring(partial(self.log_probs, model))
        call.scores = score(*rows, call.temperatures, **kwargs)
        return call.scores

    def log_probs(
        self,
        network: torch.nn.Module,
        ids: torch.Tensor,
        mask: torch.Tensor,
        length: int,
        temperatures: torch.Tensor | None = None,
        *,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> Scores:
        """Log-probs and entropies ``(B, length)`` of the last tokens of rows ``(B, T)``, as in the loss.

        `temperatures` ``(B,)``: None uses the trainer's. `batch_size`: rows per forward; None takes all.
        `kwargs`: passed on to TRL's method.
        """
        score = self.parts.scoring(super()._get_per_token_logps_and_entropies, temperatures)
        return Scores(*score(network, ids, mask, length, batch_size, **kwargs))

    def reference_log_probs(self, *rows: Any) -> torch.Tensor | None:
        """Log-probs ``(B, C)`` under the reference; see `parts.kl.reference_log_probs`."""
        return reference_log_probs(self, *rows)

    # --------------------------------------------------------------------------------------------
    # Loss, update, run
    # --------------------------------------------------------------------------------------------
    def _compute_loss(self, model: torch.nn.Module, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Add the parts' terms to TRL's loss: KL, value head, taught answers and the supervised term."""
        loss = self.loss(model, inputs)
        if self.model.training and loss.call.scores is not None:
            self._record_terms(loss, loss.call.scores.logps.detach(), inputs)
        return loss.total

    def loss(self, model: torch.nn.Module, inputs: Mapping[str, Any]) -> Loss:
        """The loss of a micro-batch: TRL's, and the term of each part that has one."""
        with self.within(self.parts.call(inputs)) as call:
            total = super()._compute_loss(model, without_left_out(self, inputs))
        terms = policy_and_entropy(total, call.scores)
        for part in self.parts:
            if type(part).term is not Part.term:
                term = part.term(self, call, inputs)
                total = total if term is None else total + term
                terms[part.loss_term or type(part).__name__] = (
                    total.new_zeros(()) if term is None else term
                )
        return Loss(spread(total), terms, call)

    def _record_terms(self, loss: Loss, logps: torch.Tensor, inputs: Mapping[str, Any]) -> None:
        """Log the terms of the loss, and the means of log-probs ``(B, C)`` and advantages."""
        scored = inputs["completion_mask"] * (logps != 0)  # idle rows are not scored
        advantages = inputs["advantages"] + inputs.get("taught_advantages", 0.0)
        sums = [(logps * scored).sum(), scored.sum(), advantages.mean(), *loss.terms.values()]
        local = torch.stack([number.detach().double() for number in sums])
        logp, tokens, advantage, *terms = self.accelerator.reduce(local, reduction="sum").tolist()
        share = self.current_gradient_accumulation_steps / self.accelerator.num_processes
        self.record(
            {f"loss/{name}": term * share for name, term in zip(loss.terms, terms, strict=True)}
        )
        mean = advantage / self.accelerator.num_processes
        self.record({"mean_logp": logp / max(1, tokens), "mean_advantage": mean})

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Log the seconds of a step's phases, to show where its time goes."""
        loss = super().training_step(*args, **kwargs)
        if self._step % self.current_gradient_accumulation_steps == 0:
            self.times.end_step(self._metrics["train"]["step_time"][-1])
        return loss

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        """Remember the gradient norm, so that a step that is not finite can be skipped."""
        norm = super()._get_grad_norm(*args, **kwargs)
        self.parts.see_norm(norm)
        return norm

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Give the value head its own parameter group, because it has its own learning rate."""
        optimizer = super().create_optimizer(model)
        if self.parts.value_head is not None:
            self.parts.value_head.group_in(optimizer, self.model if model is None else model)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Use the three-phase schedule if `lr_three_phases` is set, which transformers does not have."""
        if self.lr_scheduler is None:  # type: ignore[has-type]
            on = optimizer or self.optimizer
            self.lr_scheduler = three_phase_scheduler(self.args, on, num_training_steps)
        return super().create_scheduler(num_training_steps, optimizer)

    def save_more(self, folder: Path) -> None:
        """Save the parts' states with each checkpoint, so that a resumed run continues them."""
        if self.args.should_save:
            self.parts.save_in(folder)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Remember the checkpoint to resume from, so that the parts can load their states from it."""
        check_layout(self, resume_from_checkpoint)
        self.checkpoint = resume_from_checkpoint
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def evaluate(
        self,
        eval_dataset: Dataset | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Answer held-out rows greedily instead of taking TRL's loss on them."""
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        return self.heldout.evaluate(rows, metric_key_prefix)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Keep a checkpoint that breaks the guard from being the best."""
        if self.parts.guard is not None and self.parts.guard.is_broken(metrics):
            return False
        return bool(super()._determine_best_metric(metrics, trial))

    # --------------------------------------------------------------------------------------------
    # What the parts and the diagnosis ask for
    # --------------------------------------------------------------------------------------------
    @contextmanager
    def within(self, call: Call) -> Iterator[Call]:
        """Pass extra inputs and outputs through `call` to and from methods that TRL calls in between."""
        before, self.call = self.call, call
        beta: float = self.beta  # type: ignore[has-type]
        self.beta = 0.0  # TRL adds no KL term of its own: `parts.kl` has it
        try:
            yield call
        finally:
            self.call, self.beta = before, beta

    @contextmanager
    def unrecorded(self) -> Iterator[Mapping[str, list[float]]]:
        """Compute losses beside a step; gives what they would have logged, by name."""
        metrics, kl = self._metrics, self.parts.kl  # type: ignore[has-type]
        self._metrics: Any = {mode: defaultdict(list) for mode in metrics}
        self.parts.kl = copy.deepcopy(kl)  # it adapts its coefficient to what it measures
        try:
            yield self._metrics["train"]
        finally:
            self._metrics, self.parts.kl = metrics, kl

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Time a phase of a step: ``sampling``, ``rewards`` or ``reference``."""
        return self.times.phase(name)

    def record(self, numbers: Mapping[str, float]) -> None:
        """Log numbers with the metrics of the step, as means."""
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, number in numbers.items():
            metrics[name].append(number)

    def completion_log(self, last: int | None = None) -> dict[tuple[str, str], Any]:
        """TRL's log of completions, by table and column; with `last`, copies of its last rows."""
        columns = {(name, ""): self._logs[name] for name in ("prompt", "completion", "advantages")}
        for table in ("rewards", "extra"):
            columns |= {(table, name): values for name, values in self._logs[table].items()}
        if last is None:
            return columns
        return {key: list(rows)[-last:] for key, rows in columns.items() if len(rows) >= last}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the seconds so far and the parts' counts, and make tables only when they are due."""
        self.log_completions = self.args.log_completions and self.tables.due(self, logs)
        if self.log_completions and self.num_completions_to_print != 0:
            escape_for_terminal(self._logs["completion"])
        numbers = self.parts.numbers() if "loss" in logs else {}
        super().log({**logs, **self.times.elapsed(), **numbers}, start_time)

    @staticmethod
    def attention_of(network: Any) -> str | None:
        """Which of transformers' attentions a network calls; None for one of its own."""
        return network.config._attn_implementation if network._supports_attention_backend else None

    @staticmethod
    def leave_out_when_saved(network: Any, names: set[str]) -> None:
        """Keep weights out of the files that `save_pretrained` writes."""
        network._keys_to_ignore_on_save = names | set(network._keys_to_ignore_on_save or ())
