"""The health monitor: watches a run's logs, says what is wrong and what to change, stops if told to."""

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

from ...tasks.registry import TASKS
from ..dashboard import open_dashboards
from .readings import History, Reading
from .rules import RULES, HealthArguments, Rule, Severity

HEALTH_FILE = "health.jsonl"


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
        rewards: ``(N,)``, nan where no reward could judge; the completions of a prompt in a row.
        advantages: ``(N,)``, or ``(N, T)`` by token.
        completions: `N` texts, as the policy wrote them.
        tasks: Of the `N` completions.
        num_generations: Completions a prompt.
        prompts: What the `N` completions answer: the form of a fill-in answer is that of what the
            prompt hides. None where no row is of that task.

    Raises:
        ValueError: Lengths that do not fit together, or no completions.

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
    lengths = (count, rewards.numel(), len(advantages), len(tasks))
    if not count or len(set(lengths)) > 1 or count % num_generations:
        raise ValueError(
            f"batch of {lengths} completions, rewards, advantages and tasks in groups of "
            f"{num_generations}"
        )
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
    """A rule that a run breaks."""

    rule: str
    severity: Severity
    step: int  # optimiser steps
    value: float  # in the rule's unit
    bound: float | None  # in the same; None where the rule has no number
    message: str  # one sentence: number, bound and remedy
    remedy_keys: tuple[str, ...]  # YAML keys to change, the first remedy first

    def to_json(self) -> str:
        """One line of JSON; a number that is not finite comes as text, for which JSON has no other."""
        record = asdict(self)
        if not math.isfinite(self.value):
            record["value"] = str(self.value)
        return json.dumps(record, allow_nan=False)


@dataclass(slots=True)
class _Watch:
    """Readings of one rule in a row."""

    broken: int = 0
    sound: int = 0
    raised: bool = False


class HealthMonitor:
    """Judges logs by `RULES`. No I/O, no randomness: the same logs give the same findings.

    A finding is raised once, and again only after it has been gone for `patience` readings.

    Args:
        args: Severities and bounds.
        patience: In place of ``args.health_patience``; 1 judges a single step's logs, by all rules but
            those that compare it with earlier ones.
    """

    def __init__(self, args: HealthArguments, patience: int | None = None) -> None:
        self.args = args
        self.patience = args.health_patience if patience is None else patience
        self.history = History()
        self._watches = {name: _Watch() for name in RULES}

    def observe(
        self, step: int, logs: Mapping[str, Any], max_grad_norm: float | None = None
    ) -> list[Finding]:
        """Take in one log, of training or of a held-out evaluation.

        Args:
            step: In optimiser steps.
            logs: Metrics by name; a rule whose metrics are missing, None or nan does not apply.
            max_grad_norm: Norm that gradients are clipped at; None or 0 for no clipping.

        Returns:
            What is raised now.
        """
        self.history.update(step, logs, max_grad_norm)
        findings = (self._judge(rule) for rule in RULES.values())
        return [finding for finding in findings if finding is not None]

    def replay(self, log_history: Sequence[Mapping[str, Any]]) -> None:
        """Take in the logs of a run that goes on, each with its ``step``, and raise nothing."""
        for logs in log_history:
            self.history.update(int(logs["step"]), logs, None)

    def _judge(self, rule: Rule) -> Finding | None:
        severity = self.args.severity(rule.name)
        if severity is None:
            return None
        bound = self.args.bound(rule.name)
        limit = math.inf if bound is None else bound
        reading = rule.measure(self.history, limit)
        if reading is None or not self._is_due(rule, reading):
            return None
        return Finding(
            rule=rule.name,
            severity=severity,
            step=self.history.step,
            value=reading.value,
            bound=bound,
            message=rule.message(reading, limit),
            remedy_keys=rule.keys,
        )

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
    """Feeds a monitor with a trainer's logs while it trains, and passes its findings on.

    Findings are printed, appended to ``health.jsonl`` in the run's folder and sent as W&B alerts. One
    of severity `stop` asks for a checkpoint and ends training; `stopped` then holds it.

    Every process judges the logs by itself: what the rules read has been gathered over all processes
    before it is logged, so all of them decide alike. Held-out metrics pass through `on_log` too.
    """

    def __init__(self, args: HealthArguments) -> None:
        self.health_args = args
        self.monitor: HealthMonitor | None = None  # while the run trains
        self.stopped: Finding | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.health_args.health:
            return
        self.monitor = HealthMonitor(self.health_args)
        self.monitor.replay(state.log_history)
        self.stopped = None
        if state.is_world_process_zero:
            path = Path(args.output_dir) / HEALTH_FILE
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("a" if state.global_step else "w").close()  # a healthy run leaves it empty

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if self.monitor is None or not logs:
            return
        if args.fp16 and not math.isfinite(logs.get("grad_norm") or 0.0):
            # Its scaler skips a step whose gradient overflows, and tries a smaller scale.
            logs = {name: value for name, value in logs.items() if name != "grad_norm"}
        findings = self.monitor.observe(state.global_step, logs, args.max_grad_norm)
        if findings and state.is_world_process_zero:
            _report(findings, args)
        for finding in findings:
            if finding.severity == "stop":
                self._stop(finding, args, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.monitor = None  # what is evaluated now may be another checkpoint

    def _stop(self, finding: Finding, args: Any, control: Any) -> None:
        if RULES[finding.rule].saves and args.save_strategy != "no":
            control.should_save = True
        control.should_training_stop = True
        self.stopped = self.stopped or finding


def _report(findings: Sequence[Finding], args: Any) -> None:
    """Print, write down and send; on one process."""
    with (Path(args.output_dir) / HEALTH_FILE).open("a", encoding="utf-8") as file:
        for finding in findings:
            line = f"step {finding.step:>5}  {finding.severity:<7}  {finding.rule}: "
            tqdm.write(line + finding.message)  # beside a progress bar, not through it
            file.write(finding.to_json() + "\n")
    for dashboard in open_dashboards(args):
        for finding in findings:
            dashboard.alert(
                title=f"{finding.rule} at step {finding.step}",
                text=finding.message,
                level=getattr(dashboard.AlertLevel, _LEVELS[finding.severity]),
            )
