"""The keys of a step, which TRL does not have, and the checks of these.

They are here and not beside what reads them, so that a run imports only what its keys ask for: the
command line needs all keys, their defaults and their help.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..common.settings import Bounds, each, record_faults, setting, share_bounds, value_faults
from ..evaluation.registry import SUITE_HEADLINES
from ..tasks.metrics import training_metrics, unknown_metric
from ..tasks.registry import TASKS
from ..tasks.task import Sampling
from .losses import KLEstimator


# --------------------------------------------------------------------------------------------------
# Checks of a single key
# --------------------------------------------------------------------------------------------------
def metric_faults(value: str | None, name: str) -> list[str]:
    """What is wrong with the name of a metric by which checkpoints are compared."""
    known = (*training_metrics(), *SUITE_HEADLINES.values())
    return [] if value in known else [f"{name}: {unknown_metric(str(value), known)}"]


def _sampling_faults(given: Mapping[Any, Any], name: str) -> list[str]:
    faults = []
    for task, options in given.items():
        if not isinstance(options, Mapping):
            faults.append(
                f"{name}: {task}: {options!r} is not a mapping; write {{}} for the defaults"
            )
        elif task in TASKS:
            faults += record_faults(Sampling, options, f"{name}: {task}")
    return faults


def _phase_faults(entries: Any, name: str) -> list[str]:
    faults = []
    for number, entry in enumerate(entries, start=1):
        where = f"{name}: entry {number}"
        if not isinstance(entry, Mapping):
            faults.append(f"{where}: {entry!r} must be a mapping with steps and shares")
            continue
        steps = entry.get("steps", 1 if number == len(entries) else None)
        if type(steps) is not int or steps < 1:
            faults.append(f"{where}: steps is {steps!r}; give a whole number above 0")
        given = {task: share for task, share in entry.items() if task != "steps"}
        faults += value_faults(
            where, given, dict[str, float], Bounds(**share_bounds(TASKS, "task"))
        )
    return faults


# --------------------------------------------------------------------------------------------------
# Keys
# --------------------------------------------------------------------------------------------------
MUON = (
    "Optimise the matrices of the layers by Muon, at rates scaled to AdamW's, and all other weights by "
    "AdamW at a fifth of the rate."
)


@dataclass
class StepArguments:
    """The keys of a step beside TRL's."""

    # The KL term of the loss; by default TRL's, a fixed `beta` times the k3 estimator
    kl_estimator: KLEstimator = setting(
        "k3",
        "How the KL to the reference is estimated from sampled tokens; k3 is TRL's. forward is "
        "KL(reference‖policy), reverse KL(policy‖reference), which some code calls forward.",
    )
    kl_control: Literal["fixed", "adaptive"] = setting(
        "fixed", "fixed keeps the KL's coefficient at beta; adaptive changes it to reach kl_target."
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
        10_000, "Completions over which a proportional change is made in full.", above=0
    )
    kl_warmup_steps: int = setting(
        0, "Optimiser steps over which the KL term's coefficient rises linearly from 0.", least=0
    )

    # The baseline that rewards are compared with
    baseline: Literal["group_mean", "leave_one_out", "ema", "adaptive"] = setting(
        "group_mean",
        "What rewards are compared with: group_mean (as in TRL), leave_one_out (the mean of the group's "
        "other completions), ema (a running mean of the task's rewards), or adaptive (the group's "
        "median if its rewards spread more than baseline_spread, else its mean).",
    )
    baseline_decay: float = setting(
        0.9,
        "For ema: the share of the running mean that each batch, or round, keeps.",
        least=0,
        below=1,
    )
    baseline_spread: float = setting(
        0.3, "For adaptive: the standard deviation above which the median is used.", above=0
    )

    # How each task is sampled
    task_sampling: dict[str, Any] | str | None = setting(
        None,
        "How to sample each task, {task: {temperature, top_p, top_k, max_completion_length}}. What "
        "a named task leaves out comes from its Task.sampling; a task that is not named, and all "
        "tasks with None, are sampled by the trainer's own keys.",
        among=TASKS,
        of="task",
        check=_sampling_faults,
    )

    # How a GPU is given a token's operations
    cuda_graphs: bool = setting(
        False,
        "Sample by CUDA graphs: a token's operations are recorded once and launched together. This is "
        "for GPT-2 on a GPU, also with LoRA, without FSDP; else a line says why, and the usual loop "
        "samples. The cache and a copy of the weights stay in the GPU's memory.",
    )

    # Which prompts a batch holds
    task_phases: list[Any] | str | None = setting(
        None,
        "Shares of tasks in every batch, which follow each other, each with its optimiser steps, for "
        "example [{steps: 100, policy: 1}, {steps: 50, environment: 1}]. After the last entry they "
        "start again, but a last one without steps lasts to the end. None draws from all rows.",
        check=_phase_faults,
    )

    # What happens to groups without signal, whose rewards are all equal
    zero_variance: Literal["keep", "resample", "skip", "teach"] = setting(
        "keep",
        "What to do with groups of equal rewards: keep them (as TRL does), resample (replace them by "
        "other prompts), skip (leave them out of the loss), or teach (keep them, but in every group "
        "without a right completion replace one by a right answer).",
    )

    # The supervised term of the loss
    sft_coef: float = setting(
        0.0,
        "Coefficient of the mean negative log-likelihood of right answers, in nats a token; 0 leaves it "
        "out.",
        least=0,
    )
    sft_extra: int = setting(
        0,
        "Extra training prompts per sampled prompt, whose right answers the supervised term learns. "
        "They are not sampled, so each takes a third of the time of a sampled prompt.",
        least=0,
    )

    # Terms over all legal moves of a policy row, whose values are known
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
    moves_extra: int = setting(
        0,
        "Extra prompts per sampled prompt. Each gets one unrewarded completion, and expected_score_coef "
        "and soft_moves_coef act on it: more positions for a part of the time.",
        least=0,
    )

    # What the start knew of other tasks, kept by distillation from it
    keep_coef: float = setting(
        0.0,
        "Coefficient of the KL from the start to the policy over the whole vocabulary, in nats a token, "
        "on right answers to prompts of keep_rows. 0 leaves it out.",
        least=0,
    )
    keep_rows: dict[str, int] | str | None = setting(
        None,
        "Training rows of each task that keep_coef takes in every forward pass, {environment: 32}.",
        among=TASKS,
        of="task",
        least=1,
    )

    # Advantages by token, from a value head
    advantage_estimator: Literal["group", "gae"] = setting(
        "group",
        "group gives one advantage per completion, by baseline; gae one per token, from a value head.",
    )
    gae_gamma: float = setting(
        1.0, "For gae: the discount per token; 1 does not discount.", least=0, most=1
    )
    gae_lambda: float = setting(
        0.95,
        "For gae: 1 has no bias; lower values rely more on the value head and have less variance.",
        least=0,
        most=1,
    )
    value_coef: float = setting(
        0.1, "For gae: coefficient of the value head's loss, which moves the policy too.", least=0
    )
    value_learning_rate: float = setting(
        1e-3, "For gae: the learning rate of the value head, which starts from 0.", above=0
    )

    # What a run may lose on held-out rows
    guard: dict[str, float] | str | None = setting(
        None,
        "Mapping of held-out metrics or headlines of suites to the most that they may lose against the "
        "start, such as {environment/exact: 0.01}. A checkpoint that loses more is never kept as the "
        "best. If all do, the run ends with the starting model.",
        least=0,
        check=each(metric_faults),
    )

    # Weights between the start's and the trained ones
    start_share: float = setting(
        0.0,
        "Share of the starting weights in the weights that are evaluated and, in the end, kept. It "
        "gives back what training on one task took from others; checkpoints keep the trained weights.",
        least=0,
        below=1,
    )

    # The optimiser
    muon: bool = setting(False, MUON)

    # A trainer of the user's own
    trainer_from: str | None = setting(
        None,
        "A trainer of your own, as path/to/file.py:Class: a subclass of RookWorldGRPOTrainer, such as "
        "one whose loss_terms add a term.",
    )


def arguments_of(args: Any) -> StepArguments:
    """A trainer's arguments with the keys of a step; the defaults if it has a plain `GRPOConfig`."""
    return args if isinstance(args, StepArguments) else StepArguments()


# --------------------------------------------------------------------------------------------------
# Checks of several keys
# --------------------------------------------------------------------------------------------------
_CLASHES = (
    (
        "advantage_estimator",
        "gae has one advantage per token, from a value head",
        "baseline zero_variance multi_objective_aggregation use_vllm",
    ),
    ("baseline", "it compares sums of rewards", "multi_objective_aggregation"),
    ("task_sampling", "that samples all alike", "use_transformers_continuous_batching"),
    ("moves_extra", "its prompts are drawn from all rows, by our own loop", "use_vllm task_phases"),
)
"""A key, why other values than its default do not go with those of some others, and these."""

_NEEDS = {
    ("kl_control", "adaptive"): "kl_target kl_horizon kl_adaptation",
    ("baseline", "ema"): "baseline_decay",
    ("baseline", "adaptive"): "baseline_spread",
    ("advantage_estimator", "gae"): "gae_gamma gae_lambda value_coef value_learning_rate",
}
"""A key and its value, and the keys that nothing reads without it."""


def step_faults(args: Any) -> list[str]:
    """Faults that show only when several keys are compared, one sentence each.

    Args:
        args: The trainer's arguments, with the keys of `StepArguments`.
    """
    broken = {
        "kl_control: 'adaptive' needs a kl_target, and a beta above 0 to start from": (
            args.kl_control == "adaptive" and not (args.kl_target and args.beta)
        ),
        "baseline: ema gives advantages to groups of equal rewards, too, which scale_rewards: group "
        "would divide by almost 0; set scale_rewards: batch, or none": args.baseline == "ema"
        and args.scale_rewards == "group",
        "advantage_estimator: gae has one advantage per token, and loss_type: vespo needs one per "
        "completion; change either": args.advantage_estimator == "gae"
        and args.loss_type == "vespo",
        "sft_extra: sft_coef: 0 ignores it; set sft_coef, or leave sft_extra out": args.sft_extra
        and not args.sft_coef,
        "moves_extra: it needs expected_score_coef or soft_moves_coef; set either, or leave it "
        "out": args.moves_extra and not (args.expected_score_coef or args.soft_moves_coef),
        "keep_coef: it needs keep_rows, {environment: 32}, and keep_rows needs it; give both or "
        "neither": bool(args.keep_coef) != bool(args.keep_rows),
        "keep_coef: it needs the starting model beside the policy; set beta above 0": args.keep_coef
        and not args.beta,
        "guard: the last checkpoint would be kept, whatever it loses; leave out what says so "
        "(load_best_model_at_end: false, or eval_strategy or save_strategy: no)": args.guard
        and not args.load_best_model_at_end,
        "task_sampling: vllm_mode: server samples all tasks alike; give vllm_mode: "
        "colocate": args.task_sampling and args.use_vllm and args.vllm_mode == "server",
    }
    faults = [fault for fault, is_broken in broken.items() if is_broken]
    given = args.task_sampling if isinstance(args.task_sampling, Mapping) else {}
    for task, own in given.items():
        length = own.get("max_completion_length") if isinstance(own, Mapping) else None
        if length and args.max_completion_length and length > args.max_completion_length:
            faults.append(
                f"task_sampling: {task}: max_completion_length {length} is more than the run's "
                f"{args.max_completion_length}; lower one or raise the other"
            )

    def is_on(key: str) -> bool:
        return bool(getattr(args, key) != getattr(type(args), key))

    faults += [
        f"{key}: {getattr(args, key)} does nothing without {switch}: {value}; give both or neither"
        for (switch, value), keys in _NEEDS.items()
        for key in keys.split()
        if is_on(key) and getattr(args, switch) != value
    ]
    return faults + [
        f"{key}: {getattr(args, key)} does not go with {other}: {getattr(args, other)}, because {why}; "
        "leave one of the two out"
        for key, why, others in _CLASHES
        for other in others.split()
        if is_on(key) and is_on(other)
    ]


def settled_step_faults(args: Any, processes: int) -> list[str]:
    """Faults that show once TRL has computed the batch sizes, one sentence each."""
    local = (args.generation_batch_size or 0) // processes
    if not local % args.num_generations:
        return []
    whole = {
        "zero_variance": args.zero_variance in ("resample", "teach"),
        "sft_coef": args.sft_coef,
        "expected_score_coef": args.expected_score_coef,
        "soft_moves_coef": args.soft_moves_coef,
    }
    return [
        f"{key}: {getattr(args, key)} needs whole groups on each process, but {local} completions are "
        f"not a multiple of num_generations: {args.num_generations}; change either"
        for key, is_on in whole.items()
        if is_on
    ]


def choosing(args: Any) -> list[str]:
    """Why the training rows of some keys cannot be an iterable data set, one sentence each."""
    given = arguments_of(args)
    chosen = {
        "task_phases": given.task_phases,
        "zero_variance": given.zero_variance == "resample",
        "sft_extra": given.sft_extra,
        "moves_extra": given.moves_extra,
        "keep_coef": given.keep_coef,
    }
    return [
        f"{key}: {getattr(given, key)!r} chooses among all rows, which an iterable train_dataset "
        f"does not allow; give a Dataset, or leave {key} out"
        for key, is_on in chosen.items()
        if is_on
    ]
