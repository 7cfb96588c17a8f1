"""The `GRPOTrainer` subclass: what a step does, from top to bottom.

Its features are in `parts`. It does not know them by name: it calls the methods that `parts.part.Part`
lists, of all parts in turn.

Only this file, `checkpoints.py` and, for its seed, `parts/all_moves.py` use private names of TRL and
transformers; `test_canary.py` watches.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset
from torch.utils.data import Sampler
from transformers import PreTrainedModel
from trl import GRPOTrainer

from ..common.errors import ConfigurationError
from ..models import gpt2
from ..models.loading import resolve_model_path
from ..rewards.guard import RewardGuard
from ..rewards.registry import open_rewards, with_functions
from ..tasks.registry import NO_TASK, asked, row_task
from ..tasks.task import Sampling
from ..tasks.text import message_text, write_texts
from .callbacks import TableInterval, escape_for_terminal
from .checkpoints import WholeCheckpoints
from .config import check_keywords
from .heldout import HeldoutEvaluation, heldout_faults, task_among, without_evaluation
from .model_card import OwnCard
from .parts import groups
from .parts.part import Batch, Call, Part, Rows, Sampled, Scores
from .parts.registry import choosing, parts_of, sampler_starts
from .parts.sampling import draws_itself, rollout, samplings_of
from .parts.steps import StepTimes
from .preflight import Parity, PreflightCallback

PARTS_STATE = "control_state.json"  # in a checkpoint, what the parts have learnt

_BY_TOKEN = {f"clip_ratio/{which}_mean" for which in ("low", "high", "region")}
_BY_TOKEN |= {"cispo_clip_ratio", "entropy"}


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a micro-batch, with its graph.

    Attributes:
        total: What is differentiated: the sum of the terms.
        terms: Numbers by name: ``policy`` and, where they are on, ``entropy``, ``kl``, ``value``,
            ``taught``, ``supervised``, ``moves``, ``keep``, and the terms of parts of the user's own.
        call: The record of the call to TRL's loss, with the scores that it was computed from.
    """

    total: torch.Tensor
    terms: Mapping[str, torch.Tensor]
    call: Call


def policy_and_entropy(loss: torch.Tensor, scores: Scores | None) -> dict[str, torch.Tensor]:
    """TRL's loss as its policy term and, if there is one, the term of its entropy bonus.

    The bonus is linear in the entropies, and the policy term does not depend on them.
    """
    entropies = None if scores is None else scores.entropies
    if entropies is None or not (loss.requires_grad and entropies.requires_grad):
        return {"policy": loss}
    (slope,) = torch.autograd.grad(loss, entropies, retain_graph=True, allow_unused=True)
    if slope is None:
        return {"policy": loss}
    bonus = (slope * entropies).sum()
    return {"policy": loss - bonus, "entropy": bonus}


def spread(loss: torch.Tensor) -> torch.Tensor:
    """The same loss, but if it is not finite, then neither is its gradient.

    So a step's gradient norm shows all that is not finite: on this process and, because processes add
    up their gradients, on the others.
    """
    return loss * (1 + 0 * loss.detach())


class RookWorldGRPOTrainer(OwnCard, WholeCheckpoints, GRPOTrainer):
    """`trl.GRPOTrainer`, corrected for GPT-2 and extended by parts; it takes TRL's arguments.

    Attributes:
        parts: Its parts, by name.
        sampling: How completions are sampled, unless `task_samplings` has their task.
        task_samplings: How each task is sampled; None if all are sampled alike.
        prompt_sampler: Draws prompts from the training rows; None before training, and if TRL's does.
        preflight: The result of the preflight, which runs when training begins; None before.
        sampled: This process's rows of the last batch, by prompt.
        call: What the current call to TRL is about; None outside of a call.
        being_scored: The rows that a forward is scoring; None outside of one.
        tallies: This process's sums and counts of the step so far, see `tally`.
        settled: Those of the last step on all processes.
        gradient_norm: Of the last backward pass; None before.
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

        Raises:
            ConfigurationError: A keyword that TRL's trainer does not take, such as `compute_metrics`.
        """
        check_keywords(GRPOTrainer, kwargs)
        if reward_funcs is None and getattr(args, "rewards", None):
            reward_funcs = open_rewards(args.rewards)
        reward_funcs = with_functions(reward_funcs)
        heldout = kwargs.get("eval_dataset")
        if faults := heldout_faults(args, heldout):
            raise ConfigurationError(faults)
        is_skipped = heldout is None and (
            getattr(args, "eval_strategy", "no") != "no" or getattr(args, "eval_on_start", False)
        )
        if is_skipped:
            args = without_evaluation(args)
        self.call: Call | None = None
        self.being_scored: Rows | None = None
        self.tallies: dict[str, torch.Tensor] = {}
        self.settled: dict[str, Sequence[float]] = {}
        self.reward_guard = RewardGuard()
        if isinstance(model, str):
            model = resolve_model_path(model)
        with sampler_starts(args, model):
            super().__init__(model, self.reward_guard.around(reward_funcs), args, **kwargs)
        self.sampling = Sampling(self.temperature, self.top_p, self.top_k or 0)
        self.task_samplings = samplings_of(self.args, self.sampling)
        self.prompt_sampler: Any = None
        if isinstance(self.train_dataset, IterableDataset) and (faults := choosing(self.args)):
            raise ConfigurationError(faults)
        self.parts: dict[str, Any] = parts_of(self)
        for network in self.networks():
            gpt2.fit(network)
        if kwargs.get("rollout_func") is None and draws_itself(self):
            self.rollout_func = rollout
        self.heldout = HeldoutEvaluation(self)
        self.tables = TableInterval()
        self.times = StepTimes(self)
        self.preflight: Parity | None = None
        self.sampled: Mapping[str, Mapping[str, Any]] = {}
        self.regrouped: Any = None  # the micro-batches whose groups are together again
        self.gradient_norm: Any = None
        for part in (self.times, *self.parts.values()):
            self.add_callback(part)
        if getattr(self.args, "preflight", True):
            self.add_callback(PreflightCallback(self))
        if is_skipped:
            said = (
                "no eval_dataset: nothing is evaluated, and the last weights are kept, not the best"
            )
            self.accelerator.print(said)

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
        """Let a part draw the prompts, for example by phases of tasks, which TRL's sampler cannot."""
        rows = self.train_dataset if dataset is None else dataset
        own = (part.sampler(rows) for part in self.parts.values())
        self.prompt_sampler = next((sampler for sampler in own if sampler is not None), None)
        return self.prompt_sampler or super()._get_train_sampler(dataset)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Take `sample` for a batch to train on, and TRL's method for one to evaluate."""
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        return self.sample(inputs)

    def sample(self, inputs: list[dict[str, Any]]) -> Batch:
        """A batch to train on: a round of completions, which parts may complete by others."""
        sampled = self.sample_round(inputs)
        for part in self.parts.values():
            sampled = part.complete(sampled)
        self.sampled = {asked(row): row for row in sampled.rows}
        advantages = gather_object(groups.trained_advantages(sampled.batch).tolist())
        logs = self.completion_log()
        self.record(groups.group_metrics(sampled, self.num_generations, logs, advantages))
        return sampled.batch

    def sample_round(self, inputs: list[dict[str, Any]]) -> Sampled:
        """One round: completions with their rewards, reference log-probs and advantages."""
        call = Call(rows=inputs, temperatures=self.temperatures(inputs))
        with self.within(call, beta=float(self.has_reference)):
            batch = super()._generate_and_score_completions(inputs)
        tasks = gather_object([row_task(row) or NO_TASK for row in inputs])
        call.tasks = tasks[:: self.num_generations]
        self.record(groups.task_rewards(call.rewards, call.tasks))
        self.record({"health/unscored": call.rewards.isnan().cpu().double().mean().item()})
        for part in self.parts.values():
            part.extend(call, batch)
        # What rounding leaves of equal rewards is 0, so that nothing is computed for such groups.
        batch["advantages"] = torch.hardshrink(batch["advantages"], 1e-6).float()
        signal = groups.have_signal(call.rewards, self.num_generations)
        given = (~call.rewards.isnan()).view(len(signal), -1).any(1).tolist()
        silent = sum(some and not differs for some, differs in zip(given, signal, strict=True))
        # TRL looks at the deviation that it divides by, which may be the batch's.
        self._metrics["train"]["frac_reward_zero_std"][-1] = silent / len(signal)
        logs = self.completion_log(len(call.rewards))
        return Sampled(call.tasks, signal, inputs, batch, call.rewards, logs, drawn=signal)

    def samplings(self, prompts: Sequence[Any]) -> list[Sampling]:
        """How each prompt, a text or a chat, is sampled."""
        by_task = self.task_samplings or {}
        tasks = [row_task({"prompt": prompt}) for prompt in prompts]
        return [
            self.sampling if task is None else by_task.get(task, self.sampling) for task in tasks
        ]

    def temperatures(self, rows: Sequence[Mapping[str, Any]]) -> torch.Tensor | None:
        """The temperatures ``(B,)`` of rows; None if all have the trainer's."""
        if self.task_samplings is None:
            return None
        values = [how.temperature for how in self.samplings([row["prompt"] for row in rows])]
        return torch.tensor(values, device=self.accelerator.device)

    def _generate(self, prompts: list[Any]) -> Any:
        """Time sampling, and let parts look at the completions before they are scored."""
        with self.phase("sampling"):
            sampled = super()._generate(prompts)
        looking = [
            part
            for part in self.parts.values()
            if type(part).after_sampling is not Part.after_sampling
        ]
        if self.call is not None and looking:
            texts = [message_text(completion) for completion in sampled[3]]
            for part in looking:
                part.after_sampling(self.call, sampled[1], texts, sampled[4])
            write_texts(sampled[3], texts)
        return sampled

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Time the rewards, keep them for the parts, and leave rows out that a reward failed on.

        They are in double precision: in single, the mean of equal rewards is not quite that reward, and
        TRL divides the difference by 1e-4, so that groups without signal have advantages of 0.001.
        """
        with self.phase("rewards"):
            rewards = super()._calculate_rewards(*args, **kwargs)
            rewards = self.reward_guard.settle(rewards, self.record)
        if rewards.device.type != "mps":  # Apple's GPUs have no double precision
            rewards = rewards.double()
        if self.call is not None:
            self.call.rewards = groups.weighted(rewards, self.reward_weights)
        return rewards

    # --------------------------------------------------------------------------------------------
    # Scoring
    # --------------------------------------------------------------------------------------------
    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        **kwargs: Any,
    ) -> Scores:
        """Score rows as the parts have them, each at its temperature; keep the scores."""
        call = self.call or Call()
        asked = [Rows(input_ids, attention_mask, logits_to_keep, call.temperatures)]
        for part in self.parts.values():
            asked.append(part.before_scoring(call, asked[-1]))
        with self.phase("reference") if call.inputs is None else nullcontext():
            scores = self.log_probs(model, *asked[-1], **kwargs)
        for part, rows in zip(reversed(self.parts.values()), reversed(asked), strict=False):
            scores = part.after_scoring(call, rows, scores)
        call.scores = scores
        return scores

    def log_probs(
        self,
        network: torch.nn.Module,
        ids: torch.Tensor,
        mask: torch.Tensor,
        length: int,
        temperatures: torch.Tensor | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> Scores:
        """Log-probs and entropies ``(B, length)`` of the last tokens of rows ``(B, T)``, as in the loss.

        `temperatures` ``(B,)``: None uses the trainer's. `batch_size`: rows per forward; None takes all.
        `kwargs`: passed on to TRL's method.
        """
        size = batch_size or len(ids)
        score = super()._get_per_token_logps_and_entropies
        chunks = []
        for start in range(0, len(ids), size):
            chunk = slice(start, start + size)
            heat = None if temperatures is None else temperatures[chunk]
            rows = self.being_scored = Rows(ids[chunk], mask[chunk], length, heat)
            try:
                own = (part.score(network, rows, **kwargs) for part in self.parts.values())
                scores = next((scores for scores in own if scores is not None), None)
                chunks.append(scores or Scores(*score(network, *rows[:3], **kwargs)))
            finally:
                self.being_scored = None
        logps, entropies, aux_losses = zip(*chunks, strict=True)
        return Scores(
            torch.cat(logps),
            None if entropies[0] is None else torch.cat(entropies),
            None if aux_losses[0] is None else torch.stack(aux_losses).mean(),
        )

    # --------------------------------------------------------------------------------------------
    # Loss, update, run
    # --------------------------------------------------------------------------------------------
    def compute_loss(
        self, model: torch.nn.Module, inputs: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """TRL's loss plus the terms of the parts, which are logged; see `loss`."""
        inputs = self._together(inputs)
        with self.times.phase("loss"):
            loss = self.loss(model, inputs)
        if self.model.training and loss.call.scores is not None:
            self._record_terms(loss, inputs)
        return loss.total

    def _together(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put groups together again, because TRL shuffles their rows over the micro-batches."""
        batches = self._buffered_inputs
        is_buffered = any(inputs is batch for batch in batches or ())
        if not is_buffered or batches is self.regrouped:
            return inputs
        for part in self.parts.values():
            batches[:] = part.together(batches)
        self.regrouped = batches
        return batches[self._step % self.args.steps_per_generation]

    def loss(self, model: torch.nn.Module, inputs: Mapping[str, Any]) -> Loss:
        """The loss of a micro-batch: TRL's, and the term of each part that has one."""
        call = Call(inputs=inputs, temperatures=inputs.get("temperature"))
        with self.within(call):  # TRL adds no KL term of its own: `parts.kl` has it
            total = super().compute_loss(model, inputs)
        if self.model.training:
            self._record_by_token(call, inputs)
        terms = policy_and_entropy(total, call.scores)
        for part in self.parts.values():
            if type(part).term is not Part.term:
                found = part.term(self, call, inputs)
                term = total.new_zeros(()) if found is None else found
                terms[part.loss_term or type(part).__name__] = term
                total = total + term
        return Loss(spread(total), terms, call)

    def _record_by_token(self, call: Call, inputs: Mapping[str, Any]) -> None:
        """Tally by token what TRL logs as a mean of micro-batches, of which some may be empty."""
        metrics, mask = self._metrics["train"], inputs["completion_mask"]
        for name in _BY_TOKEN & metrics.keys():
            (*earlier, mean) = metrics.pop(name)
            if earlier:  # an empty list would be logged
                metrics[name] = earlier
            if name != "entropy":
                self.tally(name, mean * mask.sum(), mask.sum())
        if call.scores is not None and call.scores.entropies is not None:
            scored = mask * call.scored_rows(mask)
            self.tally("entropy", (call.scores.entropies.detach() * scored).sum(), scored.sum())

    def _record_terms(self, loss: Loss, inputs: Mapping[str, Any]) -> None:
        """Tally the terms of the loss, and the means of log-probs and advantages."""
        for name, term in loss.terms.items():
            self.tally(f"loss/{name}", term, 1 / self.current_gradient_accumulation_steps)
        mask = inputs["completion_mask"] * groups.sampled_rows(inputs)
        mask = mask * loss.call.scored_rows(mask)
        assert loss.call.scores is not None
        self.tally("mean_logp", (loss.call.scores.logps.detach() * mask).sum(), mask.sum())
        advantages = groups.trained_advantages(inputs)
        self.tally("mean_advantage", advantages.sum(), advantages.numel())

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Take TRL's step up to its gradients; then settle what was counted, and the seconds."""
        loss = super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients:
            self.settled = self.settle()
        if self._step % self.current_gradient_accumulation_steps == 0:
            self.times.end_step(self._metrics["train"]["step_time"][-1])
        return loss

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        """Remember the gradient norm, so that a step that is not finite can be skipped."""
        self.gradient_norm = super()._get_grad_norm(*args, **kwargs)
        return self.gradient_norm

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Give parts with weights of their own a parameter group."""
        optimizer = super().create_optimizer(model)
        for part in self.parts.values():
            part.on_optimizer(optimizer, self.model if model is None else model)
        return optimizer

    def save_more(self, folder: Path) -> None:
        """Save the parts' states with each checkpoint, so that a resumed run continues them."""
        if self.args.should_save:
            state: dict[str, Any] = {}
            for part in self.parts.values():
                state |= part.state()
                part.save_in(folder)
            (folder / PARTS_STATE).write_text(json.dumps(state) + "\n")

    def load_more(self, folder: Path | None) -> None:
        """Load what `save_more` saved, and remember where a run goes on."""
        self.heldout.resumed_at = None if folder is None else self.state.global_step
        if folder is not None:
            path = folder / PARTS_STATE  # which a checkpoint of another trainer does not have
            state = json.loads(path.read_text()) if path.is_file() else {}
            for part in self.parts.values():
                part.load(state)
                part.load_from(folder)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Answer held-out rows greedily instead of taking TRL's loss on them.

        Rows of no task are evaluated as TRL does: sampled, and measured by the run's own rewards. Of
        several data sets in a dictionary, each has metrics of its own, and ``overall`` is the mean of
        theirs.

        In training, transformers picks the best checkpoint by the result. A step that may not be the
        best, or that is not saved, gets the worst number.
        """
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        rows = self.eval_dataset[rows] if isinstance(rows, str) else rows  # of several data sets
        with ExitStack() as around:
            for part in self.parts.values() if self.is_in_train else ():
                around.enter_context(part.evaluating())
            metrics = self._evaluated(rows, ignore_keys, metric_key_prefix)
        may_be_best = all(part.may_be_best(metrics) for part in self.parts.values())
        if self.is_in_train and not (may_be_best and self._is_saved()):
            worst = -float("inf") if self.args.greater_is_better else float("inf")
            name = str(self.args.metric_for_best_model).removeprefix("eval_")
            metrics = {**metrics, f"eval_{name}": worst}
        return metrics

    def _evaluated(self, rows: Any, ignore_keys: list[str] | None, prefix: str) -> dict[str, float]:
        """The metrics of one data set, or of each in a dictionary."""
        if isinstance(rows, Mapping):
            metrics: dict[str, float] = {}
            for name, part in rows.items():
                metrics |= self._evaluated(part, ignore_keys, f"{prefix}_{name}")
            overall = fmean(metrics[f"{prefix}_{name}_overall"] for name in rows)
            return {**metrics, f"{prefix}_overall": overall}
        if task_among(rows) is not None:
            return self.heldout.evaluate(rows, prefix)
        metrics = super().evaluate(rows, ignore_keys, prefix)
        rewards = {
            f"{prefix}_{name.removeprefix('eval_')}": value
            for name, value in self.state.log_history[-1].items()
            if name.startswith(("eval_reward", "eval_rewards/"))
        }
        return {**metrics, **rewards, f"{prefix}_overall": rewards[f"{prefix}_reward"]}

    def _is_saved(self) -> bool:
        """Whether this step gets a checkpoint: by `save_steps`, the last step always."""
        state = self.state
        is_due = state.global_step >= state.max_steps or not state.global_step % state.save_steps
        return self.args.save_strategy != "steps" or is_due

    # --------------------------------------------------------------------------------------------
    # What the parts and the diagnosis ask for
    # --------------------------------------------------------------------------------------------
    @contextmanager
    def within(self, call: Call, beta: float = 0.0) -> Iterator[None]:
        """Pass extra inputs and outputs through `call` to and from methods that TRL calls in between.

        TRL takes `beta` for its own: not 0, it computes the reference's log-probs when it samples.
        """
        before, self.call = (self.call, self.beta), call  # type: ignore[has-type]
        self.beta = beta
        try:
            yield
        finally:
            self.call, self.beta = before

    @contextmanager
    def unrecorded(self) -> Iterator[Mapping[str, list[float]]]:
        """Compute something beside a step; gives what it would have logged, by name.

        Call `settle` for what it has tallied.
        """
        metrics: Any = self._metrics
        kept, tallies, self.tallies = dict(metrics), self.tallies, {}
        metrics |= {mode: defaultdict(list) for mode in kept}
        try:
            yield metrics["train"]
        finally:
            if counted := metrics["train"].get("num_tokens"):
                kept["train"]["num_tokens"] = counted
            metrics |= kept
            self.tallies = tallies

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Time a phase of a step; see `parts.steps.PHASES`."""
        return self.times.phase(name)

    def record(self, numbers: Mapping[str, float]) -> None:
        """Log numbers with the metrics of the step, as means."""
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, number in numbers.items():
            metrics[name].append(number)

    def tally(self, name: str, total: Any, count: Any) -> None:
        """Log a mean over a step: the sums of its micro-batches and processes, one by the other."""
        device = self.accelerator.device
        kind = torch.float32 if device.type == "mps" else torch.float64  # which Apple's GPUs lack
        pair = [torch.as_tensor(n, dtype=kind, device=device).detach() for n in (total, count)]
        self.tallies[name] = self.tallies.get(name, 0) + torch.stack(pair)

    def settle(self) -> dict[str, Sequence[float]]:
        """Log the means of a step; gives their sums and counts on all processes."""
        if not (names := sorted({*gather_object([*self.tallies])})):
            return {}
        for name in names:
            self.tally(name, 0, 0)  # what only another process has
        pairs = torch.stack([self.tallies.pop(name) for name in names])
        sums = dict(zip(names, self.accelerator.reduce(pairs, "sum").tolist(), strict=True))
        self.record({name: total / count for name, (total, count) in sums.items() if count})
        return sums

    def own_rows(self, items: Any) -> Any:
        """This process's share of a sequence that has all processes' items, process by process."""
        size = len(items) // self.accelerator.num_processes
        first = size * self.accelerator.process_index
        return items[first : first + size]

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
        logs = {**logs, **self.times.elapsed()}
        logs.pop("total_flos", None)  # transformers cannot tell: it would be 0
        for part in self.parts.values() if "loss" in logs else ():
            logs |= part.numbers()
        super().log(logs, start_time)

    @staticmethod
    def attention_of(network: Any) -> str | None:
        """Which of transformers' attentions a network calls; None for one of its own."""
        return network.config._attn_implementation if network._supports_attention_backend else None

    @staticmethod
    def leave_out_when_saved(network: Any, names: set[str]) -> None:
        """Keep weights out of the files that `save_pretrained` writes."""
        # transformers warns of weights that a checkpoint lacks unless these are all that it ignores.
        tied = network._tied_weights_keys if network.config.tie_word_embeddings else None
        ignored = network._keys_to_ignore_on_save or ()
        network._keys_to_ignore_on_save = {*names, *(tied or ()), *ignored}
