"""What a metric is called on a dashboard, and what it means: one name and one sentence each.

A trainer's log has the names that TRL, transformers and this package give; a dashboard has sections,
which are the first part of a key. `dashboard_key` leads from the one to the other, `GLOSSARY` explains
what comes out; the W&B callback, the workspace's layout and the tests read both from here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..tasks.registry import TASKS

SECTIONS: Mapping[str, str] = {
    "health": "Health: is this run worth going on with",
    "eval": "Held-out: greedy, on positions that are not trained on",
    "reward": "Reward",
    "kl": "KL to the reference",
    "task": "Tasks",
    "train": "Optimiser and sampling",
    "time": "Time",
}
"""Section → its title, in the order in which a dashboard shows them."""


STEP = "train/global_step"  # transformers' name of the x-axis


_NAMES: Mapping[str, str] = {
    "reward": "reward/mean",
    "reward_std": "reward/std",
    "frac_reward_zero_std": "reward/zero_std_share",
    "kl": "kl/mean",
    "step_time": "time/step",
    "eval_runtime": "time/evaluation",
    "train_runtime": "time/train",
    "train_samples_per_second": "time/samples_per_second",
    "train_steps_per_second": "time/steps_per_second",
    "train_loss": "train/loss_mean",
}


_FOLDERS: Mapping[str, str] = {
    "rewards": "reward",
    "engine": "health/engine",
    "preflight": "health/preflight",
    "compile": "time/compile",
    "judge": "reward/judge",
}


def dashboard_key(name: str) -> str:
    """The dashboard's key of a metric in the trainer's log; what has no section of its own is `train`.

    >>> dashboard_key("rewards/environment_exact/mean")
    'reward/environment_exact/mean'
    >>> dashboard_key("eval_policy/best_move")
    'eval/policy/best_move'
    >>> dashboard_key("grad_norm")
    'train/grad_norm'
    """
    if name in _NAMES:
        return _NAMES[name]
    if name.startswith("eval_"):
        return f"eval/{name.removeprefix('eval_')}"
    head, slash, rest = name.partition("/")
    if slash and head in _FOLDERS:
        return f"{_FOLDERS[head]}/{rest}"
    return name if slash and head in SECTIONS else f"train/{name}"


# --------------------------------------------------------------------------------------------------
# Glossary
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Metric:
    """A key of the dashboard, explained.

    ``<name>`` in a key stands for any one part of it, ``<name...>`` for the rest of it.
    """

    key: str
    meaning: str  # one sentence, its unit in it
    always: bool = False  # whether every GRPO run of this package logs it, its defaults unchanged

    @property
    def section(self) -> str:
        """One of `SECTIONS`."""
        head = self.key.split("/")[0]
        return {"profiling": "time", "completions": "task", "boards": "task"}.get(head, head)

    @property
    def is_table(self) -> bool:
        """Whether it is a table, not a number over steps."""
        return "/" not in self.key

    @property
    def has_holes(self) -> bool:
        """Whether the key stands for several."""
        return "<" in self.key

    @property
    def pattern(self) -> str:
        """A regular expression that matches the keys that it explains, and no others."""
        parts = re.split(r"(<[^>]+>)", self.key)
        return f"^{''.join(_pattern(part) for part in parts)}$"


def _pattern(part: str) -> str:
    if not part.startswith("<"):
        return re.escape(part)
    task = f"({'|'.join(TASKS)})"
    named = {"<task>": task, "<component>": f"{task}_[^/]+"}
    return named.get(part, ".+" if part.endswith("...>") else "[^/]+")


def explain(key: str) -> Metric | None:
    """The glossary's entry of a dashboard's key, the one without placeholders first; None without any.

    >>> explain("reward/graduated/mean").key
    'reward/<reward>/mean'
    """
    fitting = [metric for metric in (*GLOSSARY, _OTHER_TASK) if re.match(metric.pattern, key)]
    return min(fitting, key=lambda metric: metric.key.count("<"), default=None)


def panels(section: str) -> list[tuple[str, list[Metric]]]:
    """What a section shows as curves over steps: titles, and the glossary's metrics under each."""
    by_key = {metric.key: metric for metric in GLOSSARY}
    return [
        (title, [by_key[key] for key in keys])
        for title, keys in PANELS.items()
        if by_key[keys[0]].section == section
    ]


_OTHER_TASK = Metric("eval/<task>/<metric>", "A held-out metric of a task that is registered.")


GLOSSARY: tuple[Metric, ...] = (
    # Health
    Metric("health/advantage_std", "Deviation of the advantages that are trained on.", True),
    Metric("health/advantage_range", "Largest less smallest of these advantages.", True),
    Metric(
        "health/identical_groups",
        "Share of prompts whose completions are one and the same text.",
        True,
    ),
    Metric(
        "health/reward_constant", "Share of batches whose completions are all worth the same.", True
    ),
    Metric("health/unreadable", "Share of completions that the grammar cannot read.", True),
    Metric("health/unscored", "Share of completions that no reward could judge.", True),
    Metric("health/engine/given_up", "Positions that the engine has given up on so far."),
    Metric(
        "health/preflight/alone_gap",
        "Largest gap in nats between the trainer's log-probs and those of each row alone, unpadded.",
        True,
    ),
    Metric(
        "health/preflight/sampler_gap",
        "Largest gap in nats between the trainer's log-probs and the sampler's.",
        True,
    ),
    Metric(
        "health/preflight/reference_kl",
        "KL to the reference before the first update, in nats.",
        True,
    ),
    # Held-out
    Metric(
        "eval/overall",
        "Mean of `environment/exact`, `policy/best_move` and `fill_in/exact`, of those that are there.",
        True,
    ),
    Metric("eval/environment/exact", "Share of environment rows whose whole answer is right."),
    Metric("eval/environment/state", "Share of environment rows whose next state is right."),
    Metric("eval/environment/format", "Share of environment rows whose answer parses."),
    Metric(
        "eval/policy/best_move", "Share of policy rows where no legal move is worth more than `B`."
    ),
    Metric("eval/policy/best_move_white", "The same where White is to move."),
    Metric("eval/policy/best_move_black", "The same where Black is to move."),
    Metric("eval/policy/all_legal", "Share of policy rows where every move named is legal."),
    Metric("eval/policy/format", "Share of policy rows whose answer parses."),
    Metric("eval/fill_in/exact", "Share of fill-in rows whose answer fits the rest of the record."),
    Metric("eval/fill_in/exact_<field>", "The same where this field is hidden."),
    Metric(
        "eval/fill_in/format", "Share of fill-in rows whose answer has the form of what is hidden."
    ),
    Metric(
        "eval/suites/<suite>/<metric>",
        "A metric of an evaluation suite, where `suites` names some to run in training.",
    ),
    # Reward
    Metric("reward/mean", "Mean reward of the completions sampled, weights applied.", True),
    Metric("reward/std", "Deviation of the reward over the completions sampled.", True),
    Metric(
        "reward/zero_std_share",
        "Share of sampled completions whose group is all worth the same.",
        True,
    ),
    Metric("reward/<task>", "Mean reward of the task's completions in the batch.", True),
    Metric("reward/<reward>/mean", "Mean of this reward over the rows that it applies to.", True),
    Metric("reward/<reward>/std", "Its deviation over the same rows.", True),
    Metric(
        "reward/<reward>/without_truth", "Share of its rows that lack the truth to be scored.", True
    ),
    Metric("reward/<reward>/<component>", "Mean of a component that goes into a composite reward."),
    Metric("reward/judge/<judge>/mean", "Mean score of a judge, before its scale, over its rows."),
    Metric("reward/judge/<judge>/mean_<task>", "The same mean, of the task's rows."),
    Metric("reward/judge/<judge>/std", "Deviation of these scores over the batch."),
    Metric("reward/judge/<judge>/reward_std", "The same of what its scale makes of them."),
    Metric(
        "reward/judge/<judge>/truth",
        "Share of the rows that it scored that are right by the task's headline metric.",
    ),
    Metric("reward/judge/<judge>/truth_<task>", "The same share, of the task's rows."),
    Metric("reward/judge/<judge>/too_long", "Share of its rows with more tokens than positions."),
    # KL
    Metric("kl/mean", "KL to the reference, in nats a token."),
    Metric("kl/coefficient", "What the loss multiplies the KL by."),
    Metric("kl/share_of_loss", "Share of the KL term in the mean size of a token's two terms."),
    Metric("kl/held_share", "Share of tokens whose log-ratio was out of bounds."),
    # Tasks
    Metric("task/<task>", "Share of the task's completions in the batch.", True),
    Metric(
        "completions",
        "The last batch's completions with their rewards and advantages, as text.",
        True,
    ),
    Metric("boards", "Some of them with the board: the answer and the truth in one picture.", True),
    # Optimiser and sampling
    Metric(STEP, "Optimiser steps so far; the x-axis.", True),
    Metric("train/epoch", "Passes over the training prompts so far.", True),
    Metric("train/loss", "The loss that was descended; near 0 in GRPO, whatever is learnt.", True),
    Metric("train/loss_mean", "Mean loss of the whole training, at its end.", True),
    Metric("train/grad_norm", "Norm of the gradient before clipping.", True),
    Metric("train/learning_rate", "Learning rate of the step.", True),
    Metric(
        "train/entropy", "Entropy of the policy's next-token distribution, in nats a token.", True
    ),
    Metric("train/num_tokens", "Prompt and completion tokens sampled so far.", True),
    Metric("train/completions/mean_length", "Mean tokens of a completion.", True),
    Metric("train/completions/min_length", "Tokens of the shortest completion.", True),
    Metric("train/completions/max_length", "Tokens of the longest completion.", True),
    Metric("train/completions/clipped_ratio", "Share of completions cut off at their bound.", True),
    Metric("train/completions/mean_terminated_length", "Mean tokens of those that ended.", True),
    Metric("train/completions/min_terminated_length", "Tokens of the shortest that ended.", True),
    Metric("train/completions/max_terminated_length", "Tokens of the longest that ended.", True),
    Metric("train/clip_ratio/low_mean", "Share of tokens whose ratio is clipped from below.", True),
    Metric("train/clip_ratio/low_min", "The smallest such share of a process.", True),
    Metric(
        "train/clip_ratio/high_mean", "Share of tokens whose ratio is clipped from above.", True
    ),
    Metric("train/clip_ratio/high_max", "The largest such share of a process.", True),
    Metric("train/clip_ratio/region_mean", "Share of tokens whose ratio is clipped at all.", True),
    Metric("train/sampling/temperature_<task>", "Temperature that the task is sampled at."),
    Metric(
        "train/sampling/sampling_logp_difference/<statistic>",
        "Gap between the log-probs of vLLM and of the trainer, in nats a token.",
    ),
    Metric(
        "train/sampling/importance_sampling_ratio/<statistic>",
        "What the loss is multiplied by to make up for that gap.",
    ),
    Metric(
        "train/zero_variance/sampled", "Share of groups without signal among those sampled.", True
    ),
    Metric(
        "train/zero_variance/trained", "Share of groups without signal in what is trained on.", True
    ),
    Metric("train/zero_variance/extra_prompts", "Prompts sampled beside the batch's own.", True),
    Metric(
        "train/difficulty/solved",
        "Prompts that come less often, with a reward over their task's mean.",
    ),
    Metric(
        "train/difficulty/hopeless", "Prompts that come less often, with a reward under that mean."
    ),
    Metric("train/difficulty/learning", "Groups with signal in the last batch."),
    Metric(
        "train/baseline/mean", "What rewards were compared with, where it is not TRL's baseline."
    ),
    Metric("train/value/loss", "The value head's squared error."),
    Metric("train/value/explained_variance", "Share of the returns' variance that it explains."),
    Metric("train/policy_loss", "The loss without its entropy bonus."),
    Metric("train/entropy_coef", "What the loss multiplies the entropy by."),
    Metric(
        "train/total_flos", "Floating-point operations of the whole training, at its end.", True
    ),
    # Time
    Metric("time/elapsed", "Seconds of training so far.", True),
    Metric("time/step", "Seconds of an optimiser step, sampling included.", True),
    Metric("time/sampling", "Seconds of a step that went into sampling.", True),
    Metric("time/rewards", "Seconds of a step that went into rewards and their engine.", True),
    Metric("time/update", "Seconds of a step that went into neither: losses, gradients.", True),
    Metric("time/evaluation", "Seconds of a held-out evaluation.", True),
    Metric("time/train", "Seconds of the whole training, at its end.", True),
    Metric("time/samples_per_second", "Completions trained on a second, at the end.", True),
    Metric("time/steps_per_second", "Optimiser steps a second, at the end.", True),
    Metric("time/compile/graphs", "Graphs that `torch_compile` has compiled so far."),
    Metric(
        "time/compile/recompilations",
        "Graphs compiled since the last log, once `compile_warmup_steps` are over.",
    ),
    Metric("time/compile/seconds", "Seconds that went into compiling so far."),
    Metric(
        "time/compile/speedup",
        "Speed of a compiled update over that of a plain one, as timed in the first steps.",
    ),
    Metric("profiling/<phase...>", "Seconds of one part of a step, as TRL times it.", True),
)


PANELS: Mapping[str, tuple[str, ...]] = {
    "Unreadable, unscored": ("health/unreadable", "health/unscored"),
    "Identical groups, constant batches": ("health/identical_groups", "health/reward_constant"),
    "Advantages": ("health/advantage_std", "health/advantage_range"),
    "Engine: positions given up": ("health/engine/given_up",),
    "Preflight, nats": (
        "health/preflight/alone_gap",
        "health/preflight/sampler_gap",
        "health/preflight/reference_kl",
    ),
    "Overall": ("eval/overall",),
    "Environment": (
        "eval/environment/exact",
        "eval/environment/state",
        "eval/environment/format",
    ),
    "Policy: best move": (
        "eval/policy/best_move",
        "eval/policy/best_move_white",
        "eval/policy/best_move_black",
    ),
    "Policy: legal, readable": ("eval/policy/all_legal", "eval/policy/format"),
    "Fill-in": ("eval/fill_in/exact", "eval/fill_in/format"),
    "Fill-in: exact by field": ("eval/fill_in/exact_<field>",),
    "Suites": ("eval/suites/<suite>/<metric>",),
    "Reward": ("reward/mean", "reward/std"),
    "Reward by task": ("reward/<task>",),
    "Each reward": ("reward/<reward>/mean",),
    "Each reward's deviation": ("reward/<reward>/std",),
    "Components of composite rewards": ("reward/<reward>/<component>",),
    "Judges: score": ("reward/judge/<judge>/mean",),
    "Judges: score by task": ("reward/judge/<judge>/mean_<task>",),
    "Judges: deviation": ("reward/judge/<judge>/std", "reward/judge/<judge>/reward_std"),
    "Judges: share right of what they scored": ("reward/judge/<judge>/truth",),
    "Judges: share right by task": ("reward/judge/<judge>/truth_<task>",),
    "Judges: too long": ("reward/judge/<judge>/too_long",),
    "Rows without truth": ("reward/<reward>/without_truth",),
    "Groups all worth the same": ("reward/zero_std_share",),
    "KL, nats a token": ("kl/mean",),
    "KL coefficient": ("kl/coefficient",),
    "KL: share of the loss, tokens out of bounds": ("kl/share_of_loss", "kl/held_share"),
    "Shares of the batch": ("task/<task>",),
    "Loss": ("train/loss", "train/policy_loss"),
    "Gradient norm": ("train/grad_norm",),
    "Learning rate": ("train/learning_rate",),
    "Entropy, nats a token": ("train/entropy",),
    "Entropy coefficient": ("train/entropy_coef",),
    "Completions, tokens": (
        "train/completions/mean_length",
        "train/completions/min_length",
        "train/completions/max_length",
    ),
    "Completions that ended, tokens": (
        "train/completions/mean_terminated_length",
        "train/completions/min_terminated_length",
        "train/completions/max_terminated_length",
    ),
    "Completions cut off": ("train/completions/clipped_ratio",),
    "Clipped ratios": (
        "train/clip_ratio/low_mean",
        "train/clip_ratio/low_min",
        "train/clip_ratio/high_mean",
        "train/clip_ratio/high_max",
        "train/clip_ratio/region_mean",
    ),
    "Groups without signal": ("train/zero_variance/sampled", "train/zero_variance/trained"),
    "Extra prompts": ("train/zero_variance/extra_prompts",),
    "Prompts by difficulty": (
        "train/difficulty/solved",
        "train/difficulty/hopeless",
        "train/difficulty/learning",
    ),
    "Sampling temperature": ("train/sampling/temperature_<task>",),
    "vLLM against the trainer, nats": ("train/sampling/sampling_logp_difference/<statistic>",),
    "vLLM against the trainer, ratio": ("train/sampling/importance_sampling_ratio/<statistic>",),
    "Baseline": ("train/baseline/mean",),
    "Value head: loss": ("train/value/loss",),
    "Value head: explained variance": ("train/value/explained_variance",),
    "Tokens sampled": ("train/num_tokens",),
    "Epochs": ("train/epoch",),
    "Seconds so far": ("time/elapsed",),
    "Seconds a step": ("time/step", "time/sampling", "time/rewards", "time/update"),
    "Seconds a held-out evaluation": ("time/evaluation",),
    "Compiling: graphs, recompilations": (
        "time/compile/graphs",
        "time/compile/recompilations",
    ),
    "Compiling: seconds": ("time/compile/seconds",),
    "Compiling: speed": ("time/compile/speedup",),
    "Parts of a step, seconds": ("profiling/<phase...>",),
}
"""Title → the keys that share a panel; what a run has only at its end, and tables, have none."""
