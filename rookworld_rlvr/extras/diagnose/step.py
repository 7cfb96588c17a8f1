"""The callback of a diagnosis: it notes what a trainer's first step is made of.

The trainer takes its step as in a run. Before and after the update, the callback asks it for the terms
of the same micro-batches once more, beside the step. That changes neither weights nor gradients, nor the
sampling of the run.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import TrainerCallback

from ...common.errors import ConfigurationError
from ...common.machine import peak_memory
from ...models.decoding import Decoding
from ...rewards.trial import score
from ...tasks.metrics import Results
from ...tasks.registry import TASKS
from ...training.advantages import weighted
from ...training.exchanged import unrecorded
from ...training.losses import taught
from ...training.preflight import measure_parity, mixed_length_prompts, preflight_tolerance
from ...training.rollouts import Batch, Rollouts, in_rows, was_sampled
from ...training.sampling import decode
from ...training.scoring import Scores
from ...training.trainer import RookWorldGRPOTrainer

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
COSTS = {"loss": "forward"}  # phases of the trainer's clock that have another name among the costs


class Diagnosis(TrainerCallback):  # type: ignore[misc]
    """Notes the first step of a trainer, which it makes ready for that.

    Args:
        trainer: A new `RookWorldGRPOTrainer`, or one of a subclass.

    Raises:
        ConfigurationError: The trainer uses DeepSpeed.

    Attributes:
        trainer: The trainer.
        probes: The preflight's gaps and tolerance in nats, measured when training begins.
        completions: This process's completions of the step, with what the loss made of each.
        prompts: This process's prompts of the step, as rows of the data.
        performance: Rewards of `prompts` before and after the step, see `measure_prompts`.
        heldouts: Results and answers of each held-out evaluation.
        layers: Gradient and update by layer.
        one_step_on: What the loss would log for the same batch after the step; empty if the weights
            are spread over processes.
        after_multiples: The same after multiples of the update.
        at_temperatures: Samples of `prompts` at other temperatures, see `measure_temperatures`.
        costs: Seconds, calls and peak memory in bytes by phase.
    """

    def __init__(self, trainer: RookWorldGRPOTrainer) -> None:
        if trainer.is_deepspeed_enabled:
            raise ConfigurationError(
                [
                    "a diagnosis reads weights and gradients before the update, but DeepSpeed updates "
                    "in its backward pass; launch without DeepSpeed"
                ]
            )
        trainer.scores_all_rows = True  # each row's log-probs are noted
        trainer.keeps_logps = not trainer.use_vllm  # which gives the sampler's log-probs anyway
        trainer.heldout.before = {}  # no run continues from a diagnosis
        trainer.reward_guard.limit = (
            1.0  # a reward that fails is reported, and does not end the run
        )
        network: Any = trainer.networks()[0]
        if not any(weight.requires_grad for weight in network.parameters()):
            network.enable_input_require_grads()  # so that the loss has a graph, and it is reported
        self.trainer = trainer
        self.probes: Mapping[str, float | None] = {}
        self.completions: list[dict[str, Any]] = []
        self.prompts: list[Mapping[str, Any]] = []
        self.performance: list[dict[str, list[float]]] = []
        self.heldouts: list[tuple[Results, Sequence[str]]] = []
        self.layers = pd.DataFrame()
        self.one_step_on: dict[str, float] = {}
        self.after_multiples: dict[float, dict[str, float]] = {}
        self.at_temperatures: list[tuple[Any, ...]] = []
        self.costs: dict[str, dict[str, float]] = {}
        self._going_on = ExitStack()  # the phase that a later event ends
        self._round: Rollouts | None = None  # the last one of which `completions` has the rows
        self._batches: list[Batch] = []
        self._logps: list[torch.Tensor] = []  # of `_batches`, before the update
        self._weights: dict[str, torch.Tensor] = {}  # before the update
        self._gradients: dict[str, float] = {}  # norms
        trainer.clock.watchers.append(self._watch)
        # First of all, so before gradients that are not finite are dropped.
        trainer.callback_handler.callbacks.insert(0, self)

    # --------------------------------------------------------------------------------------------
    # Events
    # --------------------------------------------------------------------------------------------
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        with self.phase("probes"), beside(trainer):
            trainer.model.train()  # what is random in training is left on
            parity = measure_parity(trainer, mixed_length_prompts(trainer))
            self.probes = {**asdict(parity), "tolerance": preflight_tolerance(trainer)}
        if args.eval_on_start:
            self._begin("held-out before")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._going_on.close()
        heldout = self.trainer.heldout
        self.heldouts.append((heldout.results, heldout.completions))

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._going_on.close()
        if not state.global_step:
            self._keep_batch()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._going_on.close()
        if state.global_step:
            return
        self._keep_batch()
        with self.phase("diagnosis"):
            self._note_gradients()
            with beside(self.trainer):
                self._logps = [self._note(batch) for batch in self._batches]
        # After the forward: to sample, FSDP gathers the weights, and shards them again for the update.
        with self.phase("batch before"), beside(self.trainer):
            self.performance.append(self.measure_prompts())
            self.at_temperatures = self.measure_temperatures()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.global_step:
            self._note_layers()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step != 1:
            return
        with self.phase("batch after"), beside(self.trainer):
            self.performance.append(self.measure_prompts())
        if not self.trainer.is_fsdp_enabled:
            with self.phase("diagnosis"):
                self.one_step_on = self.look_one_step_on()
                self.after_multiples = self.look_after_multiples()
        for kept in (self._batches, self._logps, self._weights):
            kept.clear()

    # --------------------------------------------------------------------------------------------
    # Costs
    # --------------------------------------------------------------------------------------------
    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note the seconds and the peak memory of a phase, and say that it begins."""
        if name not in self.costs and self.trainer.is_world_process_zero():
            print(f"diagnosis: {name} ...", file=sys.stderr, flush=True)
        cost = self.costs.setdefault(name, {"seconds": 0.0, "calls": 0, "peak_memory": 0})
        if on_gpu := torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        yield
        if on_gpu:
            torch.cuda.synchronize()
        cost["seconds"] += time.perf_counter() - started
        cost["calls"] += 1
        cost["peak_memory"] = max(cost["peak_memory"], peak_memory())

    @contextmanager
    def _watch(self, name: str) -> Iterator[None]:
        """A phase of the trainer's clock; after the loss, the backward pass begins."""
        with self.phase(COSTS.get(name, name)):
            yield
        if name == "loss":
            self._begin("backward")

    def _begin(self, name: str) -> None:
        """Begin a phase that goes on until the next event."""
        self._going_on.enter_context(self.phase(name))

    # --------------------------------------------------------------------------------------------
    # Completions of the step, before the update
    # --------------------------------------------------------------------------------------------
    def _keep_batch(self) -> None:
        """Keep the micro-batch that was trained on last, and list its round's completions."""
        trainer = self.trainer
        batches: Any = trainer._buffered_inputs  # of a generation
        batch = in_rows(batches[(trainer.micro_steps - 1) % len(batches)])
        if trainer.rollouts is not self._round:
            self._list_completions(trainer.rollouts)
        first = len(self.completions) - len(trainer.rollouts.rows)
        self._batches.append({**batch, "row": batch["row"] + first})

    def _list_completions(self, sampled: Rollouts) -> None:
        """List this process's completions and prompts of a round, also those of a later step."""
        trainer = self.trainer
        self._round = sampled
        totals = trainer.local_rows(trainer.total_rewards(sampled)).tolist()
        columns = trainer.local_rows(sampled.rewards).tolist()
        for row, text, rewards, total in zip(
            sampled.rows, sampled.texts, columns, totals, strict=True
        ):
            noted = {name: row[name] for name in ("task", "prompt", "fen", "action")}
            by_name = dict(zip(trainer.reward_func_names, rewards, strict=True))
            noted |= {"text": text, "rewards": by_name, "reward": total}
            self.completions.append({**dict.fromkeys(COLUMNS), **noted})
        self.prompts += sampled.rows[:: trainer.num_generations]

    def _note(self, batch: Batch) -> torch.Tensor:
        """Note what each completion of a micro-batch has in the loss; gives the log-probs ``(B, C)``."""
        trainer = self.trainer
        network = trainer.networks()[0]
        advantages = batch["advantages"].clone().requires_grad_()  # (B,) or (B, C)
        with torch.no_grad():
            scores = trainer.scores_of(network, batch)
        policy = trainer.policy_term(network, {**batch, "advantages": advantages}, scores)
        sampler, reference = map(batch.get, ("sampling_per_token_logps", "ref_per_token_logps"))
        columns = {"policy_term": by_row(policy, advantages)}
        self._note_terms(batch, scores, columns, sampler=sampler, reference=reference)
        mask, ends = batch["completion_mask"].bool(), set(trainer.eos_token_ids)
        for place, row in enumerate(batch["row"].tolist()):
            kept, note = mask[place], self.completions[row]
            ids = batch["completion_ids"][place][kept].tolist()
            note["tokens"] = [trainer.processing_class.decode([token]) for token in ids]
            note["ended"] = bool(ids) and ids[-1] in ends
            advantage = batch["advantages"][place]
            note["advantage"] = (advantage[kept] if advantage.dim() else advantage).mean().item()
            note["taught"] = bool(batch["taught"][place]) if "taught" in batch else False
        return scores.logps

    def _note_terms(
        self,
        batch: Batch,
        scores: Scores,
        columns: dict[str, torch.Tensor],
        suffix: str = "",
        **tokens: torch.Tensor | None,
    ) -> None:
        """Note what each completion adds to the loss, and its log-probs and KL by token, in nats.

        Args:
            batch: The micro-batch.
            scores: Of its completions.
            columns: ``policy_term`` ``(B,)``, what each adds to TRL's loss.
            suffix: Of the names under which all is noted.
            tokens: More by token ``(B, C)``; None for what there is not, nan for a row that lacks it.
        """
        trainer = self.trainer
        tokens["policy"] = logps = scores.logps.detach()
        if "taught" in batch:
            advantages = batch["advantages"].where(batch["taught"], 0.0)
            columns["policy_term"] = columns["policy_term"] + self.shares(
                taught(logps, advantages), batch
            )
        columns["total"] = columns["policy_term"]
        if trainer.kl is not None:
            tokens["kl"] = kl = trainer.kl.per_token(batch, logps)[0]
            coefficient = trainer.kl.controller.coefficient(trainer.state.global_step)
            columns["penalty"] = coefficient * self.shares(kl, batch)
            columns["total"] = columns["policy_term"] + columns["penalty"]
        for place, row in enumerate(batch["row"].tolist()):
            kept, note = batch["completion_mask"][place].bool(), self.completions[row]
            note |= {f"{name}{suffix}": column[place].item() for name, column in columns.items()}
            for name, by_token in tokens.items():
                if by_token is not None and not by_token[place][kept].isnan().any():
                    note[f"{name}{suffix}"] = by_token[place][kept].float().tolist()

    def shares(self, per_token: torch.Tensor, batch: Batch) -> torch.Tensor:
        """What each completion adds ``(B,)`` to the mean of a term over tokens ``(B, C)``."""
        weights = torch.zeros_like(per_token).requires_grad_()
        (slope,) = slopes_of(self.trainer.mean(weights, batch), [weights])
        return (slope * per_token).sum(1)

    # --------------------------------------------------------------------------------------------
    # The batch's prompts
    # --------------------------------------------------------------------------------------------
    def measure_prompts(self) -> dict[str, list[float]]:
        """Rewards of the step's prompts: of the greedy answer, and the mean of sampled ones."""
        count = len(self.prompts)
        asked = [row["prompt"] for row in self.prompts]
        texts = decode(self.trainer, asked)
        texts += decode(self.trainer, asked * SAMPLES, decoding=SAMPLED)
        rewards = self._rewards(self.prompts * (1 + SAMPLES), texts).view(-1, count)
        return {"greedy": rewards[0].tolist(), "sampled": rewards[1:].mean(0).tolist()}

    def measure_temperatures(self) -> list[tuple[Any, ...]]:
        """New samples of the step's prompts at multiples of their temperature, see `AT_TEMPERATURES`."""
        trainer = self.trainer
        notes: list[tuple[Any, ...]] = []
        hows = trainer.samplings([row["prompt"] for row in self.prompts])
        # The same on all processes, which sample together if the weights are sharded.
        every = (trainer.task_samplings or {"": trainer.sampling}).values()
        for times in TEMPERATURES:
            rows, texts = [], []
            for how in dict.fromkeys(every):
                own = [row for row, its in zip(self.prompts, hows, strict=True) if its == how]
                asked = own * TEMPERATURE_SAMPLES
                decoding = Decoding("sampled", how.temperature * times, how.top_k, how.top_p)
                rows += asked
                texts += decode(trainer, [row["prompt"] for row in asked], decoding=decoding)
            for row, text, reward in zip(
                rows, texts, self._rewards(rows, texts).tolist(), strict=True
            ):
                is_readable = TASKS[row["task"]].is_readable(row["prompt"], text)
                notes.append((times, row["prompt"], text, reward, not is_readable))
        return notes

    def _rewards(self, rows: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> torch.Tensor:
        """Total rewards ``(N,)`` of answers to this process's rows, as many as every process has."""
        trainer = self.trainer
        answered = list(zip(rows, texts, strict=True))
        columns = [
            score(trainer, func, answered, lambda done: None) for func in trainer.reward_funcs
        ]
        trainer.reward_guard.failures(len(answered) * trainer.accelerator.num_processes)
        numbers = torch.tensor(pd.DataFrame(columns, dtype=float).to_numpy().T)  # nan for None
        return weighted(numbers, trainer.reward_weights.cpu())

    # --------------------------------------------------------------------------------------------
    # The update
    # --------------------------------------------------------------------------------------------
    def _note_gradients(self) -> None:
        """Note the weights, and the norms of their gradients before they were clipped."""
        trainer = self.trainer
        bound, whole = trainer.args.max_grad_norm, float(trainer.gradient_norm or 0.0)
        clipped = max(1.0, whole / bound) if bound else 1.0
        for name, weight in trainer.networks()[0].named_parameters():
            self._weights[name] = full(weight)
            found = 0.0 if weight.grad is None else norm(full(weight.grad))
            self._gradients[name] = found * clipped

    def _note_layers(self) -> None:
        """Note gradient, weights and update of each layer."""
        table = pd.DataFrame(
            {
                "layer": layer_of(name),
                "parameters": weight.numel(),
                "gradient_norm": self._gradients[name],
                "weight_norm": norm(self._weights[name]),
                "update_norm": norm(full(weight) - self._weights[name]),
            }
            for name, weight in self.trainer.networks()[0].named_parameters()
        )
        norms = ["gradient_norm", "weight_norm", "update_norm"]
        how = {"parameters": "sum", **dict.fromkeys(norms, np.linalg.norm)}
        self.layers = table.groupby("layer", sort=False).agg(how)

    def look_one_step_on(self, gradients: bool = True) -> dict[str, float]:
        """What the loss of the step's batches logs if it is computed again, after the update.

        Only there a KL term has an effect: before the first update the policy is its reference.
        """
        trainer = self.trainer
        network = trainer.networks()[0]
        parameters = [p for p in network.parameters() if p.requires_grad]
        pulls: dict[str, torch.Tensor] = {}
        with beside(trainer) as metrics, torch.set_grad_enabled(gradients):
            for batch, before in zip(self._batches, self._logps, strict=True):
                again = {**batch, "old_per_token_logps": batch.get("old_per_token_logps", before)}
                advantages = batch["advantages"].clone().requires_grad_()
                scores = trainer.scores_of(network, again)
                terms = trainer.terms(network, {**again, "advantages": advantages}, scores)
                if gradients:
                    columns = {"policy_term": by_row(terms["policy"], advantages)}
                    self._note_terms(again, scores, columns, AFTER)
                # Taught answers are to move.
                mask = batch["completion_mask"] * was_sampled(batch)
                moved = ((scores.logps.detach() - before).abs() * mask).sum()
                trainer.tally("drift", moved, mask.sum())
                for name, term in terms.items() if gradients and parameters else ():
                    flat = torch.cat([slope.flatten() for slope in slopes_of(term, parameters)])
                    pulls[name] = pulls.get(name, 0) + flat
            trainer.settle()
            numbers = {name: sum(values) / len(values) for name, values in metrics.items()}
        numbers.setdefault("drift", 0.0)  # of taught answers alone
        reduce = trainer.accelerator.reduce
        norms = {name: norm(reduce(pull, "mean")) for name, pull in pulls.items()}
        numbers |= {f"gradient/{name}": number for name, number in norms.items()}
        numbers["kl/share_of_gradient"] = norms.get("kl", 0.0) / (sum(norms.values()) or 1.0)
        return numbers

    @torch.no_grad()
    def look_after_multiples(self) -> dict[float, dict[str, float]]:
        """What the loss would log after multiples of the update, by the multiple.

        Adam's first update is proportional to the learning rate, so a multiple stands for another rate.
        The weights are the same afterwards.
        """
        weights = dict(self.trainer.networks()[0].named_parameters())
        after = {name: weight.detach().clone() for name, weight in weights.items()}
        found = {}
        for multiple in MULTIPLES:
            for name, weight in weights.items():
                before = self._weights[name].to(weight)
                weight.copy_(before.lerp(after[name], multiple))
            found[multiple] = self.look_one_step_on(gradients=False)
        for name, weight in weights.items():
            weight.copy_(after[name])
        return found


# --------------------------------------------------------------------------------------------------
# Beside the step
# --------------------------------------------------------------------------------------------------
@contextmanager
def beside(trainer: RookWorldGRPOTrainer) -> Iterator[Mapping[str, list[float]]]:
    """Compute something beside a step; gives what it would have logged, by name.

    Random numbers go on as if it had not been computed, also those of rewards, and so do the counts that
    the trainer and its terms keep from step to step. Gradients are not averaged over processes.
    """
    counts = [(owner, dict(vars(owner))) for owner in (trainer, trainer.kept) if owner is not None]
    device = trainer.accelerator.device
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        trainer.accelerator.no_sync(trainer.model_wrapped),
        unrecorded(trainer) as metrics,
    ):
        try:
            yield metrics
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)
            for owner, values in counts:
                vars(owner).update(values)


# --------------------------------------------------------------------------------------------------
# Slopes
# --------------------------------------------------------------------------------------------------
def slopes_of(term: torch.Tensor, by: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The derivatives of a number by tensors, 0 where it does not depend on one; the graph is kept."""
    if not term.requires_grad or not all(tensor.requires_grad for tensor in by):
        return tuple(map(torch.zeros_like, by))
    return torch.autograd.grad(term, by, retain_graph=True, materialize_grads=True)


def by_row(term: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """What each completion adds ``(B,)`` to a term that is proportional to its advantages.

    All of TRL's losses are, as long as no sign changes; so a term is the sum of each advantage times the
    slope by it (Euler), whatever the formula. What does not depend on advantages is left out, such as an
    entropy bonus.
    """
    (slope,) = slopes_of(term, [advantages])
    return (advantages * slope).detach().reshape(len(advantages), -1).sum(1)


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


def norm(tensor: torch.Tensor) -> float:
    """Euclidean norm; nan or inf if one of the numbers is."""
    return tensor.double().norm().item()
