"""What a step logs: means of it, sums over its micro-batches and processes, and its completions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from transformers import Trainer

from .advantages import weighted
from .callbacks import TableInterval, escape_for_terminal
from .rollouts import (
    Batch,
    Log,
    Rollouts,
    loss_mask,
    share_of,
    trained_advantages,
    was_sampled,
)
from .scoring import Scores

if TYPE_CHECKING:
    from .clock import Clock
    from .kl_control import KLControl
    from .nonfinite import Nonfinite


class StepLog(Trainer):
    """Mixin for TRL's trainer with the numbers of a step; TRL's own are left as they are.

    Attributes:
        tallies: This process's sums and counts of the step so far, see `tally`.
        settled: Those of the last step on all processes.
    """

    clock: Clock
    kl: KLControl | None
    nonfinite: Nonfinite | None
    num_generations: int
    reward_weights: torch.Tensor
    _metrics: dict[str, dict[str, list[float]]]
    _logs: dict[str, Any]
    _step: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.tallies: dict[str, torch.Tensor] = {}
        self.settled: dict[str, Sequence[float]] = {}
        self.tables = TableInterval()
        super().__init__(*args, **kwargs)

    @property
    def micro_steps(self) -> int:
        """Micro-batches so far, on one process."""
        return self._step

    # --------------------------------------------------------------------------------------------
    # Numbers
    # --------------------------------------------------------------------------------------------
    def record(self, numbers: Mapping[str, float]) -> None:
        """Log numbers with the metrics of the step, as means."""
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, number in numbers.items():
            metrics[name].append(number)

    def tally(self, name: str, total: Any, count: Any) -> None:
        """Log a mean over a step: the sums of its micro-batches and processes, one by the other."""
        device = self.accelerator.device
        kind = torch.float32 if device.type == "mps" else torch.float64  # which Apple's GPUs lack
        # A number is filled in and not copied, for which the host would wait.
        pair = [
            n.detach().to(device, kind)
            if isinstance(n, torch.Tensor)
            else torch.full((), n, dtype=kind, device=device)
            for n in (total, count)
        ]
        self.tallies[name] = self.tallies.get(name, 0) + torch.stack(pair)

    def settle(self) -> dict[str, Sequence[float]]:
        """Log the means of a step; gives their sums and counts on all processes."""
        if not (names := sorted({*gather_object([*self.tallies])})):
            return {}
        for name in names:
            self.tally(name, 0, 0)  # what only another process has
        pairs = torch.stack([self.tallies[name] for name in names])
        self.tallies = {}
        sums = dict(zip(names, self.accelerator.reduce(pairs, "sum").tolist(), strict=True))
        self.record({name: total / count for name, (total, count) in sums.items() if count})
        return sums

    def log_terms(self, terms: Mapping[str, torch.Tensor], batch: Batch, scores: Scores) -> None:
        """Tally the terms of a micro-batch's loss, and means of what was sampled and scored."""
        for name, term in terms.items():
            self.tally(f"loss/{name}", term, 1 / self.current_gradient_accumulation_steps)
        assert scores.counted is not None
        mask = loss_mask(batch) * scores.counted.unsqueeze(1) * was_sampled(batch)
        self.tally("mean_logp", (scores.logps.detach() * mask).sum(), mask.sum())
        if scores.entropies is not None:
            self.tally("mean_entropy", (scores.entropies.detach() * mask).sum(), mask.sum())
        advantages, kept = trained_advantages(batch)
        self.tally("mean_advantage", (advantages * kept).sum(), kept.sum())

    def _generate(self, prompts: list[Any]) -> Any:
        """Time sampling, with what tools and a rollout function of the user's own take."""
        with self.clock.phase("sampling"):
            return super()._generate(prompts)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Take TRL's step up to its gradients; then settle what was counted, and the seconds."""
        started = time.perf_counter()
        loss = super().training_step(*args, **kwargs)
        self.clock.add(time.perf_counter() - started)
        if self.accelerator.sync_gradients:
            self.settled = self.settle()
            self.record(self.clock.end_step())
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the seconds so far and the callbacks' counts, and make tables only when they are due."""
        self.log_completions = self.args.log_completions and self.tables.due(self, logs)
        if self.log_completions and self.num_completions_to_print != 0:
            escape_for_terminal(self._logs["completion"])
        logs = {**logs, **self.clock.elapsed()}
        # transformers cannot tell how many operations there were: it would be 0
        logs = {name: number for name, number in logs.items() if name != "total_flos"}
        if "loss" in logs and self.kl is not None:
            logs |= self.kl.controller.numbers()
        if "loss" in logs and self.nonfinite is not None:
            logs |= self.nonfinite.numbers()
        super().log(logs, start_time)

    # --------------------------------------------------------------------------------------------
    # Completions, and shares of processes
    # --------------------------------------------------------------------------------------------
    def total_rewards(self, sampled: Rollouts) -> torch.Tensor:
        """Total rewards ``(N,)`` of a round's completions; nan for one without a reward."""
        return weighted(sampled.rewards, self.reward_weights)

    def completion_log(self, last: int | None = None) -> Log:
        """TRL's log of completions, by table and column; with `last`, copies of its last rows."""
        columns = {(name, ""): self._logs[name] for name in ("prompt", "completion", "advantages")}
        for table in ("rewards", "extra"):
            columns |= {(table, name): values for name, values in self._logs[table].items()}
        if last is None:
            return columns
        return {key: list(rows)[-last:] for key, rows in columns.items() if len(rows) >= last}

    def log_completions_of(self, log: Log) -> None:
        """Let the log of completions hold what is trained on, in place of what was sampled last."""
        for key, column in self.completion_log().items():
            if key in log:
                column.extend(log[key])

    def local_rows(self, items: Any) -> Any:
        """This process's share of a sequence that has all processes' items, process by process."""
        return share_of(items, self.accelerator.num_processes, self.accelerator.process_index)

    def on_all(self, counted: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor on all processes."""
        total: torch.Tensor = self.accelerator.gather(counted.sum()).sum()
        return total
