"""The trainer of a diagnosis: the real one, with a record of each step.

Each method that `DiagnosedTrainer` overrides calls the trainer's own, and records what went in and what
came out. The trainer still samples, scores, trains and evaluates. What is computed beside the step (two
probes, the gradients of single terms, the terms one step later) changes neither weights nor metrics.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel, TrainerCallback

from ..models.decoding import pad_rows
from ..models.gpt2 import position_ids_from_mask
from ..tasks.metrics import Results
from ..training.parts.aggregation import aggregate
from ..training.parts.groups import Batch, Sampled
from ..training.parts.part import Call, whole
from ..training.parts.sampling import rollout
from ..training.parts.value_head import values_of
from ..training.preflight import measure_parity, mixed_length_prompts, preflight_tolerance
from ..training.trainer import RookWorldGRPOTrainer
from .loss_terms import LossTerms, full, gradient_of, layer_table, loss_terms, norm
from .record import ROW, Generation, PhaseMeter, RewardFault, StepRecord, TermSums, guarded

Heldout = tuple[Results, Sequence[str]]  # results by metric, and completions


class DiagnosedTrainer(RookWorldGRPOTrainer):
    """`RookWorldGRPOTrainer` with records; the constructor is TRL's.

    Args:
        repeat_batch: Train on the prompts of the first batch in every step.

    Attributes:
        steps: One record an optimiser step.
        heldouts: Results and completions of each evaluation.
        reward_faults: Rewards that raised.
        probes: Measured when training begins, see `probe`.
        meter: What the phases cost.
    """

    def __init__(
        self,
        model: str | PreTrainedModel,
        reward_funcs: Any,
        *args: Any,
        repeat_batch: bool = False,
        **kwargs: Any,
    ) -> None:
        self.reward_faults: list[RewardFault] = []
        funcs = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        super().__init__(model, [self._guarded(func) for func in funcs], *args, **kwargs)
        if not self.use_vllm:  # vLLM gives the sampler's log-probs anyway
            self.rollout_func = partial(rollout, keep_logps=True)
        if self.parts.shared is not None:
            self.parts.shared.leaves_out_idle = False  # each row's log-probs are recorded
        self.heldout.before = {}  # no run continues from a diagnosis
        self.meter = PhaseMeter(self.accelerator.device)
        self.steps: list[StepRecord] = []
        self.heldouts: list[Heldout] = []
        self.probes: Mapping[str, float] = {}
        self._repeat_batch = repeat_batch
        self._first_rows: list[dict[str, Any]] | None = None
        self._generation: Generation | None = None  # the one that is trained on now
        self.copies: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._watch_backward_and_clip()
        self.add_callback(RecordingCallback(self))

    def _guarded(self, func: Any) -> Any:
        if isinstance(func, torch.nn.Module | str) or inspect.iscoroutinefunction(func):
            return func
        return guarded(func, self.reward_faults)

    def _watch_backward_and_clip(self) -> None:
        backward, clip = self.accelerator.backward, self.accelerator.clip_grad_norm_

        def timed(loss: torch.Tensor, **kwargs: Any) -> None:
            with self.meter.phase("backward") as phase:
                if loss.requires_grad:
                    backward(loss, **kwargs)
                else:
                    self.step_record.without_graph = True
                phase.tokens += self._tokens_of(self.step_record.batches[-1][1])

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.keep_gradients()
            return clip(*args, **kwargs)

        self.accelerator.backward = timed
        self.accelerator.clip_grad_norm_ = watched

    @property
    def step_record(self) -> StepRecord:
        """The record of the step that is taken now."""
        number: int = self.state.global_step
        while len(self.steps) <= number:
            self.steps.append(StepRecord())
        return self.steps[number]

    @property
    def is_sharded(self) -> bool:
        """Whether no process has the whole of the weights."""
        return bool(self.is_fsdp_enabled or self.is_deepspeed_enabled)

    # --------------------------------------------------------------------------------------------
    # Sampling and rewards
    # --------------------------------------------------------------------------------------------
    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """As the trainer's own, and metered."""
        with super().phase(name), self.meter.phase(name):
            yield

    def sample_round(self, inputs: list[dict[str, Any]]) -> Sampled:
        """As the trainer's own; the meter counts the tokens."""
        sampled = super().sample_round(inputs)
        phases = self.meter.phases
        phases["sampling"].tokens += int(sampled.batch["completion_mask"].sum())
        if self.has_reference:
            phases["reference"].tokens += self._tokens_of(sampled.batch)
        return sampled

    def sample(self, inputs: list[dict[str, Any]]) -> Batch:
        """As the trainer's own, and recorded; repeats the first batch's prompts if asked to."""
        if self._repeat_batch:
            self._first_rows = self._first_rows or copy.deepcopy(inputs)
            inputs = copy.deepcopy(self._first_rows)
        output = super().sample(inputs)
        count = len(output["completion_ids"])
        output[ROW] = torch.arange(count, device=output["completion_ids"].device)
        log = self.completion_log()
        rewards = [
            self._logged_here(log["rewards", name], count) for name in self.reward_func_names
        ]
        self._generation = Generation(
            {key: value.cpu() for key, value in output.items() if torch.is_tensor(value)},
            torch.tensor(rewards, dtype=torch.float32).T,
            self._logged_here(log["completion", ""], count),
        )
        return output

    def _logged_here(self, column: Sequence[Any], count: int) -> list[Any]:
        """What the trainer logged of this process's rows, the last `count` of every process.

        The log holds the rows that are trained on, even if groups were sampled again.
        """
        rows = list(column)[-count * self.accelerator.num_processes :]
        first = self.accelerator.process_index * count
        return rows[first : first + count]

    @staticmethod
    def _tokens_of(inputs: Mapping[str, Any]) -> int:
        return int(inputs["prompt_mask"].sum() + inputs["completion_mask"].sum())

    # --------------------------------------------------------------------------------------------
    # Loss
    # --------------------------------------------------------------------------------------------
    def loss(self, model: torch.nn.Module, inputs: Mapping[str, Any]) -> tuple[torch.Tensor, Call]:
        """As the trainer's own, taken apart."""
        if not self.model.training or ROW not in inputs:
            return super().loss(model, inputs)
        with self.meter.phase("forward") as phase:
            loss, call = super().loss(model, inputs)
            phase.tokens += self._tokens_of(inputs)
        with self.meter.phase("diagnosis"):
            self._take_apart(loss, call, inputs)
        return loss, call

    def _take_apart(self, loss: torch.Tensor, call: Call, inputs: Mapping[str, Any]) -> None:
        assert call.scores is not None and self._generation is not None
        logps, entropies = call.scores.logps, call.scores.entropies
        record, generation, kl = self.step_record, self._generation, self.parts.kl
        if not any(generation is known for known in record.generations):
            record.generations.append(generation)
        record.batches.append((generation, inputs))
        record.loss += loss.item()
        step = self.state.global_step
        coefficient = 0.0 if kl is None else kl.controller.coefficient(step)
        values = values_of(call, *logps.shape) if call.values else None
        terms = loss_terms(self, logps, entropies, inputs, coefficient, values, call.answer_logps)
        for name, numbers in (
            ("policy", logps),
            ("policy_term", terms.policy),
            ("policy_term_unclipped", terms.policy_unclipped),
            ("kl_term", terms.kl),
            ("teach_term", terms.teach),
            ("entropy", entropies),
        ):
            if numbers is not None:
                generation.write(name, inputs[ROW].cpu(), numbers)
        record.terms.coefficient = coefficient
        totals = self._add(record.terms, terms, inputs)
        # Gradients of later steps are not kept apart.
        if step == 0 and loss.requires_grad and not self.is_sharded:
            other = totals["entropy"] + totals["value"]
            mine = {name: totals[name] for name in ("kl", *terms.of_answers)}
            self._add_gradients(record.terms, {**mine, "other": other})

    def _add(
        self, sums: TermSums, terms: LossTerms, inputs: Mapping[str, Any]
    ) -> dict[str, torch.Tensor]:
        """Add a batch's terms to a step's, and return what each adds to the loss, with its graph."""
        mask = inputs["completion_mask"]
        answers = terms.of_answers

        def total(per_token: torch.Tensor) -> torch.Tensor:
            return aggregate(self, per_token, inputs)

        totals = {
            "policy": total(terms.policy),
            "kl": total(terms.kl),
            "entropy": terms.entropy,
            "value": total(terms.value),
            **{name: total(term) if term.dim() else term for name, term in answers.items()},
        }
        sizes = {
            "policy": total(terms.policy.detach().abs()),
            "policy_unclipped": total(terms.policy_unclipped.detach().abs()),
            "kl": total(terms.kl.detach().abs()),
            **{
                name: total(term.detach().abs()) if term.dim() else term.detach()
                for name, term in answers.items()
            },
        }
        if "taught_advantages" in inputs and self.parts.teaching is not None:  # these are to move
            mask = mask * ~self.parts.teaching.scored(inputs).unsqueeze(1)
        by_token = {
            "mean_log_ratio": terms.log_ratio.detach().abs() * mask,
            "clipped_share": ((terms.policy - terms.policy_unclipped).abs() > 1e-12) * mask,
        }
        for added, numbers in (
            (sums.in_loss, totals),
            (sums.sizes, sizes),
            (sums.by_token, by_token),
        ):
            for name, number in numbers.items():
                added[name] += number.sum().item()
        sums.tokens += int(mask.sum())
        return totals

    def _add_gradients(self, sums: TermSums, terms: Mapping[str, torch.Tensor]) -> None:
        network = self.accelerator.unwrap_model(self.model)
        parameters = [p for p in network.parameters() if p.requires_grad]
        try:
            for name, term in terms.items():
                gradient = gradient_of(term, parameters)
                sums.gradients[name] = sums.gradients.get(name, 0) + gradient
        except RuntimeError as error:  # re-entrant checkpointing supports `backward` only
            self.step_record.no_separate_gradients = " ".join(str(error).split())[:200]
            sums.gradients.clear()

    def look_one_step_on(self, record: StepRecord) -> None:
        """Compute the terms of the same batches after the update, as a second iteration would.

        The KL coefficient is the one after any warm-up. Before the first update the policy equals its
        reference, so only here does KL have a weight.
        """
        sums, network = TermSums(), self.accelerator.unwrap_model(self.model)
        sums.coefficient = 0.0 if self.parts.kl is None else self.parts.kl.controller.beta
        for generation, inputs in record.batches:
            call = self.parts.call(inputs)
            score = call.scoring(partial(self.log_probs, network))
            logps, entropies, _ = score(*whole(inputs), call.temperatures, compute_entropy=True)
            old = generation.tables["policy"][inputs[ROW].cpu()].to(logps.device)
            again = {**inputs, "old_per_token_logps": old.to(logps.dtype)}
            answers = call.answer_logps
            terms = loss_terms(
                self, logps, entropies, again, sums.coefficient, answer_logps=answers
            )
            totals = self._add(sums, terms, again)
            if logps.requires_grad:
                names = ("policy", "kl", *terms.of_answers)
                self._add_gradients(sums, {name: totals[name] for name in names})
        self._settle(sums)
        record.one_step_on = sums

    # --------------------------------------------------------------------------------------------
    # Gradients and the update
    # --------------------------------------------------------------------------------------------
    def keep_gradients(self) -> None:
        """Copy weights and gradients to the CPU, before the clip and the update."""
        with self.meter.phase("diagnosis"):
            scaler = getattr(self.accelerator, "scaler", None)
            scale = scaler.get_scale() if scaler is not None else 1.0
            self.copies = [
                (
                    full(parameter.detach()).float().cpu().clone(),
                    None if parameter.grad is None else full(parameter.grad).float().cpu() / scale,
                )
                for parameter in self.accelerator.unwrap_model(self.model).parameters()
            ]
            self.step_record.gradient_norm = norm(gradient for _, gradient in self.copies)

    def record_update(self) -> None:
        network = self.accelerator.unwrap_model(self.model)
        record, gradients = self.step_record, self.step_record.terms.gradients
        record.layers = layer_table(network.named_parameters(), self.copies)
        self._settle(record.terms)
        if gradients:
            total = [
                torch.zeros(weight.numel()) if gradient is None else gradient.flatten()
                for (weight, gradient), p in zip(self.copies, network.parameters(), strict=True)
                if p.requires_grad
            ]
            gradients["policy"] = torch.cat(total) - sum(gradients.values())
        self.copies = []

    def _settle(self, sums: TermSums) -> None:
        """Average the gradients of the terms over processes."""
        if self.accelerator.num_processes > 1:
            for name, gradient in sums.gradients.items():
                mine = gradient.to(self.accelerator.device)
                sums.gradients[name] = self.accelerator.reduce(mine, reduction="mean").cpu()

    # --------------------------------------------------------------------------------------------
    # Held-out rows
    # --------------------------------------------------------------------------------------------
    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As the trainer's own, and recorded."""
        with self.meter.phase("held-out after" if self.heldouts else "held-out before"):
            metrics = super().evaluate(*args, **kwargs)
        self.heldouts.append((self.heldout.results, self.heldout.completions))
        return metrics


class RecordingCallback(TrainerCallback):  # type: ignore[misc]
    """Measures before training, keeps gradients and updates, and looks one step ahead.

    Args:
        trainer: The `DiagnosedTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with self.trainer.meter.phase("probes"):
            self.trainer.probes = probe(self.trainer)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        if not trainer.copies:  # if accelerate's own clip was not called
            trainer.keep_gradients()
        record = trainer.step_record
        network = trainer.accelerator.unwrap_model(trainer.model)
        record.gradient_norm_after_clip = norm(
            None if p.grad is None else full(p.grad).float() for p in network.parameters()
        )
        record.learning_rate = trainer.lr_scheduler.get_last_lr()[0]
        self.optimiser = trainer.meter.phase("optimiser")
        self.optimiser.__enter__()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.optimiser.__exit__(None, None, None)
        with self.trainer.meter.phase("diagnosis"):
            self.trainer.record_update()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        record = trainer.steps[state.global_step - 1]
        if state.global_step == 1 and not trainer.is_sharded:
            with trainer.meter.phase("diagnosis"):
                trainer.look_one_step_on(record)
        record.batches.clear()
        if state.global_step > 1:
            record.generations.clear()


@torch.no_grad()
def probe(trainer: RookWorldGRPOTrainer) -> dict[str, float]:
    """Measure the policy before the step, in nats, to explain a gap in parity.

    The result holds the preflight's numbers and tolerance, and two differences: the largest between two
    forwards of one batch in training mode, and the largest that the mask's position ids make to a
    padded batch. Both are at temperature 1, because a low temperature would multiply rounding errors.
    """
    prompts = mixed_length_prompts(trainer)
    rows = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
    device, training = trainer.accelerator.device, trainer.model.training

    def padded(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        batch = pad_rows(rows, trainer.processing_class.pad_token_id)
        return batch["input_ids"].to(device), batch["attention_mask"].to(device)

    def scores() -> torch.Tensor:
        length = min(map(len, rows)) - 1
        return trainer.log_probs(trainer.model, *padded(rows), length).logps.float()

    try:
        trainer.model.train()
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            parity = measure_parity(trainer, prompts)
            repeat_gap = _gap(scores(), scores())
        trainer.model.eval()
        position_gap = _position_gap(trainer, *padded([rows[0], rows[-1]]))
    finally:
        trainer.model.train(training)
    return {
        **asdict(parity),
        "position_gap": position_gap,
        "tolerance": preflight_tolerance(trainer),
        "repeat_gap": min(1.0, trainer.temperature) * repeat_gap,
    }


def _position_gap(trainer: Any, ids: torch.Tensor, mask: torch.Tensor) -> float:
    """How far log-probs move when the mask's position ids are given; 0 if they were used anyway."""
    positions = position_ids_from_mask(mask)
    batch = {"input_ids": ids, "attention_mask": mask}
    with trainer.accelerator.autocast():
        free = trainer.model_wrapped(**batch).logits.float().log_softmax(-1)
        given = trainer.model_wrapped(**batch, position_ids=positions).logits.float()
    text = mask.bool()
    return _gap(free[text], given.log_softmax(-1)[text])


def _gap(first: torch.Tensor, second: torch.Tensor) -> float:
    return (first - second).abs().max().item()
