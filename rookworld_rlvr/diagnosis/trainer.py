"""The trainer of a diagnosis: the real one, which notes what its first step is made of.

Each method that `DiagnosedTrainer` overrides calls the trainer's own and notes what went in and what
came out. What is computed beside the step changes neither weights nor the sampling of the run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import TrainerCallback

from ..common.machine import peak_memory
from ..models.decoding import Decoding
from ..rewards.trial import score
from ..tasks.metrics import Results
from ..tasks.registry import TASKS
from ..training.parts.aggregation import aggregate
from ..training.parts.groups import sampled_rows, weighted
from ..training.parts.part import Batch
from ..training.parts.sampling import decode, rollout
from ..training.preflight import measure_parity, mixed_length_prompts, preflight_tolerance
from ..training.trainer import Loss, RookWorldGRPOTrainer

COLUMNS = (  # of a completion, if it is trained on: numbers, then lists by token
    *("advantage", "taught", "ended", "policy_term", "penalty", "total"),
    *("tokens", "sampler", "policy", "reference", "kl"),
)
AFTER = "_after"  # of the names of a completion's terms, log-probs and KL one step on
SAMPLED = Decoding("sampled", temperature=0.8)  # as the predecessors measured a batch
SAMPLES = 2  # a prompt
MULTIPLES = (0.25, 0.5, 2.0, 4.0)  # of the update, and of beta
TEMPERATURES = (0.5, 0.8, 1.0, 1.25, 2.0)  # times that of sampling
TEMPERATURE_SAMPLES = 4  # a prompt
AT_TEMPERATURES = ("times_temperature", "prompt", "text", "reward", "unreadable")
ROW = "diagnosed_row"  # rides along in TRL's batches, which are shuffled and split


class DiagnosedTrainer(RookWorldGRPOTrainer):
    """`RookWorldGRPOTrainer` that notes its first step; the constructor is TRL's.

    Attributes:
        probes: The preflight's gaps and tolerance in nats, measured when training begins.
        completions: This process's completions of the step, with what the loss made of each.
        prompts: This process's prompts of the step, as rows of the data.
        performance: Rewards of `prompts` before and after the step, see `measure_prompts`.
        heldouts: Results and answers of each held-out evaluation.
        layers: Gradient and update by layer.
        one_step_on: What the loss would log for the same batch after the step; empty if the weights
            are spread over processes. `after_multiples`: the same after multiples of the update.
        at_temperatures: Samples of `prompts` at other temperatures, see `measure_temperatures`.
        costs: Seconds, calls and peak memory in bytes by phase.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.costs: dict[str, dict[str, float]] = {}
        super().__init__(*args, **kwargs)
        if not self.use_vllm:  # vLLM gives the sampler's log-probs anyway
            self.rollout_func = partial(rollout, keep_logps=True)
        if "shared_prompts" in self.parts:
            self.parts["shared_prompts"].leaves_out_idle = False  # each row's log-probs are noted
        self.heldout.before = {}  # no run continues from a diagnosis
        self.reward_guard.limit = 1.0  # a reward that fails is reported, and does not end the run
        self.probes: Mapping[str, float] = {}
        self.completions: list[dict[str, Any]] = []
        self.prompts: list[Mapping[str, Any]] = []
        self.performance: list[dict[str, list[float]]] = []
        self.heldouts: list[tuple[Results, Sequence[str]]] = []
        self.layers = pd.DataFrame()
        self.one_step_on: dict[str, float] = {}
        self.after_multiples: dict[float, dict[str, float]] = {}
        self.at_temperatures: list[tuple[Any, ...]] = []
        self.batches: list[tuple[Mapping[str, Any], torch.Tensor]] = []
        backward = self.accelerator.backward

        def timed(loss: torch.Tensor, **kwargs: Any) -> None:
            with self.phase("backward"):
                backward(loss, **kwargs)

        self.accelerator.backward = timed
        # Before the part that drops gradients that are not finite.
        self.callback_handler.callbacks.insert(0, StepNotes(self))

    @property
    def is_first_step(self) -> bool:
        """Whether the step that is diagnosed is being taken."""
        return bool(self.model.training) and self.state.global_step == 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase as the trainer does, and note its seconds and peak memory."""
        cost = self.costs.setdefault(name, {"seconds": 0.0, "calls": 0, "peak_memory": 0})
        if on_gpu := torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        with super().phase(name):
            yield
        if on_gpu:
            torch.cuda.synchronize()
        cost["seconds"] += time.perf_counter() - started
        cost["calls"] += 1
        cost["peak_memory"] = max(cost["peak_memory"], peak_memory())

    # --------------------------------------------------------------------------------------------
    # Sampling and rewards
    # --------------------------------------------------------------------------------------------
    def sample(self, inputs: list[dict[str, Any]]) -> Batch:
        """As the trainer's own; the first step's prompts are measured, its completions noted."""
        batch = super().sample(inputs)
        if not self.is_first_step:
            return batch
        count = len(batch["completion_ids"])
        # The log has the rows of all processes, even if groups were sampled again.
        log = self.completion_log(count * self.accelerator.num_processes)
        prompts, texts = self.own_rows(log["prompt", ""]), self.own_rows(log["completion", ""])
        columns = [self.own_rows(log["rewards", name]) for name in self.reward_func_names]
        totals = weighted(torch.tensor(columns, dtype=torch.float32).T, self.reward_weights.cpu())
        batch[ROW] = torch.arange(count, device=batch["completion_ids"].device)
        batch[ROW] += len(self.completions)
        rows = zip(prompts, texts, zip(*columns, strict=True), totals.tolist(), strict=True)
        for prompt, text, rewards, total in rows:
            row = {name: self.sampled[prompt][name] for name in ("task", "prompt", "fen", "action")}
            by_name = dict(zip(self.reward_func_names, rewards, strict=True))
            noted = {"text": text, "rewards": by_name, "reward": total}
            self.completions.append({**dict.fromkeys(COLUMNS), **row, **noted})
        self.prompts += [self.sampled[prompt] for prompt in prompts[:: self.num_generations]]
        with self.phase("batch before"):
            self.performance.append(self.measure_prompts())
            self.at_temperatures = self.measure_temperatures()
        return batch

    def measure_prompts(self) -> dict[str, list[float]]:
        """Rewards of the step's prompts: of the greedy answer, and the mean of sampled ones.

        What is sampled is decided by the prompt, so it does not disturb the run's own sampling.
        """
        count = len(self.prompts)
        asked = [row["prompt"] for row in self.prompts]
        texts = decode(self, asked) + decode(self, asked * SAMPLES, decoding=SAMPLED)
        rewards = self._rewards(self.prompts * (1 + SAMPLES), texts).view(-1, count)
        return {"greedy": rewards[0].tolist(), "sampled": rewards[1:].mean(0).tolist()}

    def measure_temperatures(self) -> list[tuple[Any, ...]]:
        """New samples of the step's prompts at multiples of their temperature, see `AT_TEMPERATURES`."""
        notes: list[tuple[Any, ...]] = []
        hows = self.samplings([row["prompt"] for row in self.prompts])
        # The same on all processes, which sample together if the weights are sharded.
        every = [self.sampling] if self.task_samplings is None else self.task_samplings.values()
        for times in TEMPERATURES:
            rows, texts = [], []
            for how in dict.fromkeys(every):
                own = [row for row, its in zip(self.prompts, hows, strict=True) if its == how]
                asked = own * TEMPERATURE_SAMPLES
                decoding = Decoding("sampled", how.temperature * times, how.top_k, how.top_p)
                rows += asked
                texts += decode(self, [row["prompt"] for row in asked], decoding=decoding)
            for row, text, reward in zip(
                rows, texts, self._rewards(rows, texts).tolist(), strict=True
            ):
                is_readable = TASKS[row["task"]].is_readable(row["prompt"], text)
                notes.append((times, row["prompt"], text, reward, not is_readable))
        return notes

    def _rewards(self, rows: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> torch.Tensor:
        """Total rewards ``(N,)`` of answers to this process's rows, as many as every process has."""
        answered = list(zip(rows, texts, strict=True))
        columns = [score(self, func, answered, lambda done: None) for func in self.reward_funcs]
        self.reward_guard.failures(len(answered) * self.accelerator.num_processes)
        numbers = torch.tensor(pd.DataFrame(columns, dtype=float).to_numpy().T)  # nan for None
        return weighted(numbers, self.reward_weights.cpu())

    # --------------------------------------------------------------------------------------------
    # Loss
    # --------------------------------------------------------------------------------------------
    def loss(self, model: torch.nn.Module, inputs: Mapping[str, Any]) -> Loss:
        """As the trainer's own; the first step's is noted completion by completion."""
        if not self.is_first_step or ROW not in inputs:
            return super().loss(model, inputs)
        factors = factors_of(inputs)
        with self.phase("forward"):
            loss = super().loss(model, {**inputs, **factors})
        with self.phase("diagnosis"):
            self._note(loss, inputs, factors)
        return loss

    def _note(
        self, loss: Loss, inputs: Mapping[str, Any], factors: Mapping[str, torch.Tensor]
    ) -> None:
        """Note what each completion has in the loss."""
        sampler, reference = map(inputs.get, ("sampling_per_token_logps", "ref_per_token_logps"))
        logps = self._note_terms(loss, inputs, factors, sampler=sampler, reference=reference)
        advantages = torch.stack([*factors.values()]).sum(0).detach()  # (B,) or (B, C)
        mask, ends = inputs["completion_mask"].bool(), set(self.eos_token_ids)
        for place, row in enumerate(inputs[ROW].tolist()):
            kept, note = mask[place], self.completions[row]
            ids = inputs["completion_ids"][place][kept].tolist()
            note["tokens"] = [self.processing_class.decode([token]) for token in ids]
            note["ended"] = bool(ids) and ids[-1] in ends
            advantage = advantages[place] if advantages.dim() == 1 else advantages[place][kept]
            note["advantage"] = (advantage.mean() / inputs.get("row_scale", 1)).item()
            note["taught"] = bool(inputs["taught"][place]) if "taught" in inputs else False
        self.batches.append((inputs, logps))

    def _note_terms(
        self,
        loss: Loss,
        inputs: Mapping[str, Any],
        factors: Mapping[str, torch.Tensor],
        suffix: str = "",
        **tokens: torch.Tensor | None,
    ) -> torch.Tensor:
        """Note what each completion adds to a loss, and its log-probs and KL by token, in nats.

        Args:
            loss: Computed with `factors` in the place of the inputs of these names.
            inputs: The micro-batch.
            factors: See `factors_of`.
            suffix: Of the names under which all is noted.
            tokens: More by token ``(B, C)``; None for what there is not, nan for a row that lacks it.

        Returns:
            The log-probs ``(B, C)``.
        """
        assert loss.call.scores is not None
        tokens["policy"] = logps = loss.call.scores.logps.detach()
        term = loss.terms["policy"] + loss.terms.get("taught", 0.0)
        columns = {"policy_term": by_row(term, [*factors.values()])}
        if "kl" in self.parts and inputs.get("ref_per_token_logps") is not None:
            tokens["kl"] = kl = self.parts["kl"].per_token(logps, inputs)[0]
            weights = torch.zeros_like(kl).requires_grad_()
            (slope,) = slopes_of(aggregate(self, weights, inputs), [weights])
            columns["penalty"] = self.beta * (slope * kl).sum(1)
        columns["total"] = columns["policy_term"] + columns.get("penalty", 0.0)
        for place, row in enumerate(inputs[ROW].tolist()):
            kept, note = inputs["completion_mask"][place].bool(), self.completions[row]
            note |= {f"{name}{suffix}": column[place].item() for name, column in columns.items()}
            for name, column in tokens.items():
                if column is not None and not column[place][kept].isnan().any():
                    note[f"{name}{suffix}"] = column[place][kept].float().tolist()
        return logps

    def look_one_step_on(self, gradients: bool = True) -> dict[str, float]:
        """What the loss of the step's batches logs if it is computed again, after the update.

        Only there a KL term has an effect: before the first update the policy is its reference.
        """
        network = self.networks()[0]
        parameters = [p for p in network.parameters() if p.requires_grad]
        pulls: dict[str, torch.Tensor] = {}
        with self.unrecorded() as metrics, torch.set_grad_enabled(gradients):
            for inputs, before in self.batches:
                old = inputs.get("old_per_token_logps")
                again = {**inputs, "old_per_token_logps": before if old is None else old}
                factors = factors_of(inputs) if gradients else {}
                loss = super().loss(network, {**again, **factors})
                assert loss.call.scores is not None
                if gradients:
                    self._note_terms(loss, again, factors, AFTER)
                # Taught answers are to move.
                mask = inputs["completion_mask"] * sampled_rows(inputs)
                moved = ((loss.call.scores.logps.detach() - before).abs() * mask).sum()
                self.tally("drift", moved, mask.sum())
                for name, term in loss.terms.items() if gradients and parameters else ():
                    flat = torch.cat([slope.flatten() for slope in slopes_of(term, parameters)])
                    pulls[name] = pulls.get(name, 0) + flat
            self.settle()
            numbers = {name: sum(values) / len(values) for name, values in metrics.items()}
        numbers.setdefault("drift", 0.0)  # of taught answers alone
        norms = {name: norm(self.accelerator.reduce(pull, "mean")) for name, pull in pulls.items()}
        numbers |= {f"gradient/{name}": number for name, number in norms.items()}
        numbers["kl/share_of_gradient"] = norms.get("kl", 0.0) / (sum(norms.values()) or 1.0)
        return numbers

    # --------------------------------------------------------------------------------------------
    # Held-out rows
    # --------------------------------------------------------------------------------------------
    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As the trainer's own, and noted."""
        with self.phase("held-out after" if self.heldouts else "held-out before"):
            metrics = super().evaluate(*args, **kwargs)
        self.heldouts.append((self.heldout.results, self.heldout.completions))
        return metrics


# --------------------------------------------------------------------------------------------------
# Slopes
# --------------------------------------------------------------------------------------------------
def factors_of(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Copies of a micro-batch's advantages, by which slopes can be taken."""
    names = {"advantages", "taught_advantages"} & inputs.keys()
    return {name: inputs[name].clone().requires_grad_() for name in sorted(names)}


def slopes_of(term: torch.Tensor, by: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The derivatives of a number by tensors, 0 where it does not depend on one; the graph is kept."""
    if not term.requires_grad or not all(tensor.requires_grad for tensor in by):
        return tuple(map(torch.zeros_like, by))
    return torch.autograd.grad(term, by, retain_graph=True, materialize_grads=True)


def by_row(term: torch.Tensor, factors: Sequence[torch.Tensor]) -> torch.Tensor:
    """What each completion adds ``(B,)`` to a term that is proportional to its advantages.

    All of TRL's losses are, as long as no sign changes; so a term is the sum of each advantage times the
    slope by it (Euler), whatever the formula.
    """
    slopes = zip(factors, slopes_of(term, factors), strict=True)
    shares = [(factor * slope).detach().reshape(len(factor), -1).sum(1) for factor, slope in slopes]
    return torch.stack(shares).sum(0)


# --------------------------------------------------------------------------------------------------
# Weights
# --------------------------------------------------------------------------------------------------
def full(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU in one piece, gathered if it is spread over processes."""
    gathered = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered.detach().float().cpu().clone()


def layer_of(name: str) -> str:
    """The layer that a parameter belongs to: a block's attention, network or norm, or a table.

    >>> layer_of("base_model.model.transformer.h.0.attn.c_attn.lora_A.default.weight")
    'h.0.attn'
    >>> layer_of("transformer.wte.weight")
    'wte'
    """
    found = re.search(r"\b(?:h|layers)\.\d+\.\w+|\w+(?=\.\w+$)", name)
    return found[0] if found else name


class StepNotes(TrainerCallback):  # type: ignore[misc]
    """Measures before training, and notes gradients and update of the first step.

    Args:
        trainer: The `DiagnosedTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.before: dict[str, torch.Tensor] = {}
        self.gradients: dict[str, float] = {}  # norms

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        with trainer.phase("probes"):
            trainer.model.train()  # what is random in training is left on
            parity = measure_parity(trainer, mixed_length_prompts(trainer))
            trainer.probes = {**asdict(parity), "tolerance": preflight_tolerance(trainer)}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            whole = float(self.trainer.gradient_norm or 0.0)  # before it was clipped
            clipped = max(1.0, whole / args.max_grad_norm) if args.max_grad_norm else 1.0
            for name, weight in self.trainer.networks()[0].named_parameters():
                self.before[name] = full(weight)
                found = 0.0 if weight.grad is None else norm(full(weight.grad))
                self.gradients[name] = found * clipped

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step:
            return
        table = pd.DataFrame(
            {
                "layer": layer_of(name),
                "parameters": weight.numel(),
                "gradient_norm": self.gradients[name],
                "weight_norm": norm(self.before[name]),
                "update_norm": norm(full(weight) - self.before[name]),
            }
            for name, weight in self.trainer.networks()[0].named_parameters()
        )
        norms = ["gradient_norm", "weight_norm", "update_norm"]
        how = {"parameters": "sum", **dict.fromkeys(norms, np.linalg.norm)}
        self.trainer.layers = table.groupby("layer", sort=False).agg(how)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        if state.global_step != 1:
            return
        with trainer.phase("batch after"):
            trainer.performance.append(trainer.measure_prompts())
        if not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):
            with trainer.phase("diagnosis"):
                trainer.one_step_on = trainer.look_one_step_on()
                trainer.after_multiples = after_multiples(trainer, self.before)
        self.before.clear()
        trainer.batches.clear()


def norm(tensor: torch.Tensor) -> float:
    """Euclidean norm; nan or inf if one of the numbers is."""
    return tensor.double().norm().item()


# --------------------------------------------------------------------------------------------------
# Other settings
# --------------------------------------------------------------------------------------------------
@torch.no_grad()
def after_multiples(
    trainer: Any, before: Mapping[str, torch.Tensor]
) -> dict[float, dict[str, float]]:
    """What the loss would log after multiples of the update, by the multiple.

    Adam's first update is proportional to the learning rate, so a multiple stands for another rate.

    Args:
        trainer: After its first step; its weights are the same afterwards.
        before: The weights before that step, by name.
    """
    weights = dict(trainer.networks()[0].named_parameters())
    after = {name: weight.detach().clone() for name, weight in weights.items()}
    found = {}
    for multiple in MULTIPLES:
        for name, weight in weights.items():
            weight.copy_(before[name].to(weight).lerp(after[name], multiple))
        found[multiple] = trainer.look_one_step_on(gradients=False)
    for name, weight in weights.items():
        weight.copy_(after[name])
    return found
