"""The health monitor: watches a run's logs, says what is wrong and what to change."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import TrainerCallback

from ...common.files import replace_text
from ...tasks.registry import TASKS
from .rules import RULES, History, Reading, Rule, Severity

HEALTH_FILE = "health.jsonl"

PATIENCE = 3  # logs
_LEVELS: Mapping[Severity, str] = {"info": "INFO", "warning": "WARN", "stop": "ERROR"}


# --------------------------------------------------------------------------------------------------
# Numbers of a batch
# --------------------------------------------------------------------------------------------------
def batch_health(
    rewards: torch.Tensor,
    advantages: torch.Tensor,
    completions: Sequence[str],
    tasks: Sequence[str],
    num_generations: int,
    prompts: Sequence[str] | None = None,
) -> dict[str, float]:
    """The numbers of one generation batch that the rules read and TRL does not log.

    Args:
        rewards: ``(N,)``, nan for a completion without a reward; grouped by prompt.
        advantages: ``(N,)``, or ``(N, T)`` by token.
        completions: The `N` texts, as the policy wrote them.
        tasks: The task of each completion.
        num_generations: Completions per prompt.
        prompts: The prompt of each completion. Only fill-in answers need it, because their form depends
            on what the prompt hides; None if there are none.

    >>> numbers = batch_health(
    ...     torch.tensor([1.0, 0.0, 1.0, 1.0]),
    ...     torch.tensor([0.7, -0.7, 0.0, 0.0]),
    ...     ["a", "b", "c", "c"],
    ...     ["policy"] * 4,
    ...     num_generations=2,
    ... )
    >>> numbers["health/identical_groups"], numbers["reward/policy"]
    (0.5, 0.75)
    """
    count = len(completions)
    rewards = rewards.detach().double()
    scored = rewards[~rewards.isnan()]
    flat = advantages.detach().double().flatten()
    answers = list(zip(tasks, completions, prompts or [""] * count, strict=True))
    read = {
        (task, text, prompt): TASKS[task].is_readable(prompt, text)
        for task, text, prompt in set(answers)
    }
    groups = [
        set(completions[first : first + num_generations])
        for first in range(0, count, num_generations)
    ]
    numbers = {
        "health/advantage_std": flat.std().item() if flat.numel() > 1 else 0.0,
        "health/advantage_range": (flat.max() - flat.min()).item(),
        "health/identical_groups": sum(len(texts) == 1 for texts in groups) / len(groups),
        "health/unscored": 1 - scored.numel() / count,
        "health/unreadable": sum(not read[answer] for answer in answers) / count,
        "health/reward_constant": float(
            scored.numel() > 1 and (scored.min() == scored.max()).item()
        ),
    }
    for task in sorted(set(tasks)):
        mine = torch.tensor([name == task for name in tasks], device=rewards.device)
        numbers[f"reward/{task}"] = rewards[mine].nanmean().item()
    return numbers


# --------------------------------------------------------------------------------------------------
# The monitor
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that a run has broken."""

    rule: str
    severity: Severity
    step: int  # optimiser steps
    value: float  # what was read, in the rule's unit
    bound: float | None  # in the same unit; None if the rule has no number
    message: str  # one sentence with number, bound and remedy
    remedy_keys: tuple[str, ...]  # keys of the recipe to change, in the order of the remedies

    def to_json(self) -> str:
        """One line of JSON; a value that is not finite is written as text, for want of a JSON number."""
        record = asdict(self)
        if not math.isfinite(self.value):
            record["value"] = str(self.value)
        return json.dumps(record, allow_nan=False)


@dataclass(slots=True)
class _Watch:
    """How many readings in a row broke one rule or did not."""

    broken: int = 0
    sound: int = 0
    raised: bool = False


class HealthMonitor:
    """Judges logs by `RULES`, without I/O or randomness: the same logs give the same findings.

    A finding is raised once. It is raised again only after the rule has held for `patience` readings.

    Args:
        patience: For how many logs in a row a rule must be broken before it is reported, unless one log
            is proof enough; and for how many it must hold before it can be reported again.
        guard: The most that held-out metrics may lose against the start, by metric.
    """

    def __init__(self, patience: int = PATIENCE, guard: Mapping[str, float] | None = None) -> None:
        self.patience = patience
        self.history = History(guard)
        self._watches = {name: _Watch() for name in RULES}

    def observe(
        self,
        step: int,
        logs: Mapping[str, Any],
        details: Mapping[str, str] | None = None,
    ) -> list[Finding]:
        """Judge one log, of training or of a held-out evaluation.

        Args:
            step: The optimiser step of the log.
            logs: Metrics by name. A rule does not apply if its metrics are missing, None or nan.
            details: What findings say of some metrics beside their number, by metric.

        Returns:
            The findings that are raised now.
        """
        self.history.update(step, logs, details)
        findings = []
        for rule in RULES.values():
            limit = math.inf if rule.bound is None else rule.bound
            reading = rule.measure(self.history, limit)
            if reading is not None and self._is_due(rule, reading):
                said = reading.value, rule.bound, rule.message(reading, limit)
                findings.append(Finding(rule.name, rule.severity, step, *said, rule.keys))
        return findings

    def _is_due(self, rule: Rule, reading: Reading) -> bool:
        watch = self._watches[rule.name]
        if not reading.broken:
            watch.broken, watch.sound = 0, watch.sound + 1
            watch.raised = watch.raised and watch.sound < self.patience
            return False
        watch.broken, watch.sound = watch.broken + 1, 0
        if watch.raised or watch.broken < (self.patience if rule.patient else 1):
            return False
        watch.raised = True
        return True


# --------------------------------------------------------------------------------------------------
# The callback
# --------------------------------------------------------------------------------------------------
class HealthCallback(TrainerCallback):
    """Gives a trainer's logs to a monitor during training, and reports its findings.

    Findings are printed, appended to ``health.jsonl`` in the run's folder and sent as alerts to the
    dashboards. Held-out metrics come through `on_log` too.
    """

    def __init__(self, patience: int = PATIENCE) -> None:
        self.patience = patience
        self.monitor: HealthMonitor | None = None  # while the run trains, on the main process

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        self.monitor = HealthMonitor(self.patience, getattr(args, "guard", None))
        found = [  # of a resumed run, up to the step from which it goes on
            finding
            for logs in state.log_history
            for finding in self.monitor.observe(int(logs["step"]), _judged(logs, args))
        ]
        path = Path(args.output_dir) / HEALTH_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, "".join(f"{finding.to_json()}\n" for finding in found))

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if self.monitor is None or not logs:
            return
        findings = self.monitor.observe(state.global_step, _judged(logs, args))
        if findings:
            _report(findings, args)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.monitor = None  # the next evaluation may be of another checkpoint


def _judged(logs: Mapping[str, Any], args: Any) -> Mapping[str, Any]:
    """What is judged of a log: in fp16 only a gradient that is finite.

    The gradient scaler skips a step if the gradient overflows, and tries a smaller scale.
    """
    if not args.fp16 or math.isfinite(logs.get("grad_norm") or 0.0):
        return logs
    return {name: value for name, value in logs.items() if name != "grad_norm"}


def _report(findings: Sequence[Finding], args: Any) -> None:
    """Print findings, write them to the file and send alerts."""
    with (Path(args.output_dir) / HEALTH_FILE).open("a", encoding="utf-8") as file:
        for finding in findings:
            line = f"step {finding.step:>5}  {finding.severity:<7}  {finding.rule}: "
            tqdm.write(line + finding.message)  # does not break a progress bar
            file.write(finding.to_json() + "\n")
    if not args.report_to:
        return
    import wandb  # takes a second

    for finding in findings if wandb.run is not None else ():
        wandb.run.alert(  # type: ignore[union-attr]
            title=f"{finding.rule} at step {finding.step}",
            text=finding.message,
            level=_LEVELS[finding.severity],
        )
