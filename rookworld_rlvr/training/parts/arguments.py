"""The keys of the trainer's parts, and their checks.

They are in one file, apart from the parts, so that a run imports only the parts whose keys are on: the
command line needs all keys, their defaults and their help, but none of what reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...common.errors import ConfigurationError
from ...common.own import load_own_class
from ...common.settings import key_faults, record_faults, setting, share_faults
from ...evaluation.registry import SUITE_HEADLINES
from ...tasks.metrics import training_metrics, unknown_metric
from ...tasks.registry import TASKS
from ...tasks.task import Sampling

KLEstimator = Literal["k1", "k2", "k3", "reverse", "forward", "symmetric"]


# --------------------------------------------------------------------------------------------------
# Checks of a single key
# --------------------------------------------------------------------------------------------------
def metric_faults(value: str | None, name: str) -> list[str]:
    """What is wrong with the name of a metric by which checkpoints are compared."""
    known = (*training_metrics(), *SUITE_HEADLINES.values())
    if value in known:
        return []
    return [f"{name}: {unknown_metric(str(value), known)}"]


def _names_faults(guard: Mapping[str, Any], name: str) -> list[str]:
    return [fault for metric in guard for fault in metric_faults(metric, name)]


def _sampling_faults(given: Mapping[Any, Any], name: str) -> list[str]:
    faults = []
    for task, options in given.items():
        if task in TASKS and not isinstance(options, Mapping):
            faults.append(
                f"{name}: {task}: {options!r} is not a mapping; write {{}} for the defaults"
            )
        elif task in TASKS:
            faults += record_faults(Sampling, options, f"{name}: {task}")
    return faults


def _phase_faults(entries: Any, name: str) -> list[str]:
    if not entries:
        return [f"{name}: {entries!r} must be a list of mappings with steps and shares"]
    faults = []
    for number, entry in enumerate(entries, start=1):
        where = f"{name}: entry {number}"
        if not isinstance(entry, Mapping):
            faults.append(f"{where}: {entry!r} must be a mapping with steps and shares")
            continue
        steps = entry.get("steps")
        if "steps" not in entry:
            if number < len(entries):
                faults.append(f"{where}: steps is missing; only the last entry may leave it out")
        elif isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            faults.append(f"{where}: steps is {steps!r}; give a whole number above 0")
        shares = {task: share for task, share in entry.items() if task != "steps"}
        faults += share_faults(where, shares, TASKS, "task")
    return faults


def _own_part_faults(names: Sequence[str], where: str) -> list[str]:
    """This runs the files."""
    from .part import Part

    faults = []
    for name in names:
        try:
            load_own_class(name, where, Part)
        except ConfigurationError as error:
            faults += error.faults
    return faults


# --------------------------------------------------------------------------------------------------
# Keys
# --------------------------------------------------------------------------------------------------
@dataclass
class KLArguments:
    """The KL term of the loss; by default TRL's, a fixed `beta` times the k3 estimator."""

    kl_estimator: KLEstimator = setting(
        "k3",
        "How the KL to the reference is estimated from sampled tokens; k3 is TRL's estimator. Names are "
        "the literature's: forward is KL(reference‖policy), reverse KL(policy‖reference). Code that "
        "calls KL(policy‖reference) forward, as the self-contained trainer did, means our reverse.",
    )
    kl_control: Literal["fixed", "adaptive"] = setting(
        "fixed",
        "fixed keeps the coefficient of the KL term at beta; adaptive starts from beta and changes "
        "it so that the KL stays at kl_target.",
    )
    kl_adaptation: Literal["proportional", "multiplicative"] = setting(
        "proportional",
        "How an adaptive coefficient changes: proportional by up to 20% per kl_horizon completions, "
        "multiplicative by a factor of 1.5 if the KL is off its target by more than that factor.",
    )
    kl_target: float | None = setting(
        None, "The KL that kl_control: adaptive aims at, in nats a token.", above=0
    )
    kl_horizon: int = setting(
        10_000,
        "The number of completions over which a proportional change of the coefficient is made in full. "
        "Smaller values adapt faster.",
        above=0,
    )
    kl_warmup_steps: int = setting(
        0,
        "The number of optimiser steps over which the coefficient of the KL term rises linearly from 0.",
        least=0,
    )


@dataclass
class BaselineArguments:
    """The baseline that rewards are compared with."""

    baseline: Literal["group_mean", "leave_one_out", "ema", "adaptive"] = setting(
        "group_mean",
        "The baseline that rewards are compared with: group_mean (as in TRL), leave_one_out (the "
        "mean of the group's other completions), ema (a running mean of the task's rewards, "
        "with scale_rewards: batch or none), or "
        "adaptive (the group's median if its rewards spread more than baseline_spread, else its "
        "mean).",
    )
    baseline_decay: float = setting(
        0.9,
        "For baseline: ema, the share of the running mean that each batch keeps, from 0 to below 1.",
        least=0,
        below=1,
    )
    baseline_spread: float = setting(
        0.3,
        "For baseline: adaptive, the standard deviation of a group's rewards above which its "
        "median is used.",
        above=0,
    )


@dataclass
class ScheduleArguments:
    """The learning rate in three phases."""

    lr_three_phases: bool = setting(
        False,
        "Use a learning rate of three phases instead of lr_scheduler_type: it rises over "
        "warmup_steps, falls along a cosine to 5%, and falls linearly to 0 over the last "
        "lr_linear_share of the steps.",
    )
    lr_linear_share: float = setting(
        0.1,
        "Share of the steps, from 0 to below 1, that the last phase of lr_three_phases takes.",
        least=0,
        below=1,
    )


@dataclass
class SamplingArguments:
    """How each task is sampled."""

    task_sampling: dict[str, Any] | str | None = setting(
        None,
        "How to sample each task, {task: {temperature, top_p, top_k, max_completion_length}}. What "
        "a named task leaves out comes from its Task.sampling; a task that is not named, and all "
        "tasks with None, are sampled by the trainer's own keys.",
        among=TASKS,
        of="task",
        check=_sampling_faults,
    )


@dataclass
class PromptArguments:
    """Which prompts a batch holds."""

    task_phases: list[Any] | str | None = setting(
        None,
        "Shares of tasks in every batch, which follow each other, each with its optimiser steps, for "
        "example [{steps: 100, policy: 1}, {steps: 50, environment: 1}]. After the last entry they "
        "start again, but a last one without steps lasts to the end, so that a single entry sets the "
        "shares of the whole run. None draws from all rows, whatever their task.",
        check=_phase_faults,
    )


@dataclass
class VarianceArguments:
    """What happens to groups without signal, whose rewards are all equal."""

    zero_variance: Literal["keep", "resample", "skip", "teach"] = setting(
        "keep",
        "What to do with groups whose rewards are all equal: keep them (as TRL does), resample "
        "(replace them by other prompts), skip (leave them out of the loss, KL term included), or "
        "teach (keep them; and in every group without a right completion, whatever its rewards, "
        "replace one completion by a right answer).",
    )


@dataclass
class SupervisedArguments:
    """The supervised term of the loss."""

    sft_coef: float = setting(
        0.0,
        "Coefficient of a supervised term: the mean negative log-likelihood of right answers, in nats a "
        "token. 0 leaves it out.",
        least=0,
    )
    sft_extra: int = setting(
        0,
        "For each prompt that is sampled, how many further training prompts give the supervised term "
        "their right answers. They are not sampled, so they cost a third of the time.",
        least=0,
    )


@dataclass
class MovesArguments:
    """Terms over all legal moves of a policy row, whose values are known."""

    expected_score_coef: float = setting(
        0.0,
        "Coefficient of the logarithm of the expected score of `B` over all legal moves, after the "
        "policy's own `M` and `E`: the exact value of what sampling `B` estimates. 0 leaves it out.",
        least=0,
    )
    soft_moves_coef: float = setting(
        0.0,
        "Coefficient of the cross-entropy of `B` to a softmax of the win probabilities that the legal "
        "moves keep. 0 leaves it out.",
        least=0,
    )
    soft_moves_temperature: float = setting(
        0.03,
        "The temperature of that softmax, in win probability: a move that keeps so much less than the "
        "best has 1 / e of its share.",
        above=0,
    )


@dataclass
class ValueArguments:
    """Advantages by token, from a value head."""

    advantage_estimator: Literal["group", "gae"] = setting(
        "group",
        "How advantages are computed: group gives one advantage per completion, by the key "
        "baseline; gae gives one per token, from a value head.",
    )
    gae_gamma: float = setting(
        1.0, "For gae: the discount per token, from 0 to 1; 1 does not discount.", least=0, most=1
    )
    gae_lambda: float = setting(
        0.95,
        "For gae, from 0 to 1: with 1 the advantage is the completion's reward minus the value, "
        "which has no bias; lower values rely more on the value head, which has less variance.",
        least=0,
        most=1,
    )
    value_coef: float = setting(
        0.1,
        "For gae: the coefficient of the value head's loss (half the squared error), whose "
        "gradient also reaches the policy's layers.",
        least=0,
    )
    value_learning_rate: float = setting(
        1e-3,
        "For gae: the learning rate of the value head, which starts from 0; the policy keeps "
        "learning_rate.",
        above=0,
    )


@dataclass
class GuardArguments:
    """What a run may lose on held-out rows."""

    guard: dict[str, float] | str | None = setting(
        None,
        "Mapping of held-out metrics or headlines of suites to the most that they may lose against the "
        "start, such as {environment/exact: 0.01}. A checkpoint that loses more is reported by the "
        "health rule guard and never kept as the best. If all do, the run ends with the starting "
        "model.",
        least=0,
        check=_names_faults,
    )


@dataclass
class AveragingArguments:
    """Weights between the start's and the trained ones."""

    start_share: float = setting(
        0.0,
        "Share of the starting weights in the weights that are evaluated and, in the end, kept. It "
        "gives back what training on one task took from others; checkpoints keep the trained weights.",
        least=0,
        below=1,
    )


@dataclass
class OwnPartArguments:
    """Parts of the trainer in files of the user's own."""

    parts_from: list[str] = setting(
        [],
        "Parts of the trainer of your own, each as path/to/file.py:Class, such as a term of the loss.",
        check=_own_part_faults,
    )


@dataclass
class PartArguments(
    KLArguments,
    BaselineArguments,
    ScheduleArguments,
    SamplingArguments,
    PromptArguments,
    VarianceArguments,
    SupervisedArguments,
    MovesArguments,
    ValueArguments,
    GuardArguments,
    AveragingArguments,
    OwnPartArguments,
):
    """The keys of all parts."""


# --------------------------------------------------------------------------------------------------
# Checks of several keys
# --------------------------------------------------------------------------------------------------
def part_faults(args: Any) -> list[str]:
    """Faults that show only when several keys are compared, one sentence each.

    Args:
        args: The trainer's arguments, with the keys of `PartArguments`.
    """
    faults = (
        _kl_faults(args) + _sampling_lengths(args) + _gae_faults(args) + _supervised_faults(args)
    )
    if args.baseline == "ema" and str(args.scale_rewards) in ("group", "True"):
        faults.append(
            "baseline: ema gives advantages to groups of equal rewards, too, which scale_rewards: group "
            "would divide by almost 0; set scale_rewards: batch, or none"
        )
    if args.baseline != "group_mean":
        faults += _summed_faults(f"baseline: {args.baseline}", "baseline: group_mean", args)
    return faults


def settled_part_faults(args: Any, processes: int) -> list[str]:
    """Faults that show once TRL has computed the batch sizes, one sentence each."""
    return _variance_faults(args, processes) + _guard_faults(args)


def left_out_tasks(args: Any, tasks: Sequence[str]) -> list[str]:
    """The tasks that `task_phases` gives a share although they are not trained, one sentence each."""
    if key_faults(args, "task_phases"):
        return []
    return [
        f"task_phases: entry {at}: {task} has a share of {entry[task]:g}, but `tasks` leaves it out: "
        f"{list(tasks)}; add it there, or drop its share"
        for at, entry in enumerate(args.task_phases or (), start=1)
        for task in entry
        if task in TASKS and entry[task] and task not in tasks
    ]


def _kl_faults(args: Any) -> list[str]:
    if args.kl_control == "adaptive" and (args.kl_target is None or not args.beta > 0):
        return ["kl_control: 'adaptive' needs a kl_target, and a beta above 0 to start from"]
    if args.kl_control == "fixed" and args.kl_target is not None:
        return [
            "kl_target: kl_control: fixed ignores it; set kl_control: adaptive, or leave it out"
        ]
    return []


def _sampling_lengths(args: Any) -> list[str]:
    given, longest = args.task_sampling, args.max_completion_length
    if not isinstance(given, Mapping):
        return []
    faults = []
    if args.use_transformers_continuous_batching:
        faults.append(
            "task_sampling: use_transformers_continuous_batching samples all tasks alike; leave one "
            "of the two out"
        )
    for task, options in given.items():
        length = options.get("max_completion_length") if isinstance(options, Mapping) else None
        if longest is not None and isinstance(length, int) and length > longest:
            faults.append(
                f"task_sampling: {task}: max_completion_length is {length}, over the trainer's "
                f"{longest}; raise the trainer's max_completion_length"
            )
    return faults


def _gae_faults(args: Any) -> list[str]:
    if args.advantage_estimator != "gae":
        return []
    clashes = {
        f"loss_type: {args.loss_type}": args.loss_type == "vespo",
        "off_policy_mask_threshold": args.off_policy_mask_threshold is not None,
        f"baseline: {args.baseline}": args.baseline != "group_mean",
    }
    faults = _summed_faults("advantage_estimator: gae", "advantage_estimator: group", args)
    return faults + [
        f"{name} needs one advantage per completion, but advantage_estimator: gae has one per "
        "token; leave one of the two out"
        for name, clash in clashes.items()
        if clash
    ]


def _summed_faults(key: str, instead: str, args: Any) -> list[str]:
    """The fault of a key that computes advantages from summed rewards, if they are not to be summed."""
    how = args.multi_objective_aggregation
    if how == "sum_then_normalize":
        return []
    return [
        f"{key} computes advantages from the sum of the rewards, so multi_objective_aggregation: {how} "
        f"would do nothing; leave it out, or set {instead}"
    ]


def _supervised_faults(args: Any) -> list[str]:
    if not args.sft_coef:
        if not args.sft_extra:
            return []
        return ["sft_extra: sft_coef: 0 ignores it; set sft_coef, or leave sft_extra out"]
    faults = []
    if args.advantage_estimator != "group":
        faults.append(
            "sft_coef: the value head of advantage_estimator: gae cannot judge right answers; set "
            "advantage_estimator: group, or leave sft_coef out"
        )
    if args.sft_extra and args.zero_variance == "resample":
        faults.append(
            f"sft_extra: {args.sft_extra} prompts that are not sampled do not go with zero_variance: "
            "resample; leave either out"
        )
    return faults


def _variance_faults(args: Any, processes: int) -> list[str]:
    faults, key = [], f"zero_variance: {args.zero_variance!r}"
    if args.zero_variance != "keep" and args.advantage_estimator != "group":
        faults.append(
            f"{key} works on groups, which advantage_estimator: gae does not use; set "
            "zero_variance: keep"
        )
    if args.zero_variance != "keep" and args.multi_objective_aggregation != "sum_then_normalize":
        faults.append(f"{key} needs multi_objective_aggregation: sum_then_normalize")
    local = (args.generation_batch_size or 0) // processes
    whole = {key: args.zero_variance in ("resample", "teach"), "sft_coef": bool(args.sft_coef)}
    if local % args.num_generations:
        faults += [
            f"{name} needs whole groups on each process, but {local} completions are not a multiple "
            f"of num_generations: {args.num_generations}; change either"
            for name, is_on in whole.items()
            if is_on
        ]
    return faults


def _guard_faults(args: Any) -> list[str]:
    if not args.guard:
        return []
    if not args.load_best_model_at_end:
        return [
            "guard: the last checkpoint would be kept, whatever it loses; leave out "
            "load_best_model_at_end: false"
        ]
    # transformers asks for equal strategies unless the best is saved.
    if args.save_strategy != "steps" or args.eval_steps == args.save_steps:
        return []
    return [
        f"guard: checkpoints are evaluated every {args.eval_steps:g} steps and saved every "
        f"{args.save_steps:g}, so that one that keeps the guard may be lost; give save_steps the "
        "value of eval_steps"
    ]
