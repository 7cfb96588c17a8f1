"""The ten phases of a diagnosed step, as plain numbers and texts: what the JSON file holds.

A phase is a mapping. The report shows its numbers as lines, and its lists of records as tables, under
the names that they have here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from accelerate.utils import gather_object

from ...common.errors import RookWorldError
from ...common.files import read_asset
from ...common.settings import Checked, setting
from ...common.stats import wilson
from ...tasks.metrics import compare, headline, rights, scores
from ...tasks.registry import TASKS
from ...training.health import RULES, Finding, HealthMonitor, Severity
from ...training.results import OWN_REWARDS
from ...training.trainer import RookWorldGRPOTrainer
from .step import AFTER, AT_TEMPERATURES, MULTIPLES, Diagnosis

Section = dict[str, Any]

PHASES: Mapping[str, str] = {
    "setup": "Setup",
    "initial": "Initial performance",
    "generation": "Generation and log-probs",
    "rewards": "Rewards",
    "advantages": "Advantages",
    "policy": "Loss: policy",
    "kl": "Loss: KL penalty",
    "update": "Loss: total, and update",
    "after": "Performance after the update",
    "analysis": "Analysis",
}
"""Key in the JSON file → title, in the order of the report."""

RESULT_JSON = "diagnosis.json"
VERSION = 3  # of the JSON file's form


@dataclass
class DiagnoseArguments(Checked):
    """What to diagnose, beside the recipe."""

    overfit_single_batch: int = setting(
        0,
        "Take this many steps on the prompts of a single batch, with new completions in each; 0 takes "
        "a single step.",
        least=0,
    )
    compare: str | None = setting(
        None, "Folder of a run, or of another diagnosis, whose log the step is compared with."
    )

    def overrides(self) -> dict[str, tuple[str, str]]:
        """Keys of the recipe that a diagnosis sets: key → its value, and the reason."""
        steps = str(max(1, self.overfit_single_batch))
        others = read_asset(Path(__file__).with_name("overrides.yaml"))
        return {"max_steps": (steps, "as many as are diagnosed"), **others}

    def log(self) -> list[Mapping[str, Any]]:
        """The log of what the step is compared with, step by step; empty without one.

        Raises:
            RookWorldError: The folder has no log of a step.
        """
        if self.compare is None:
            return []
        paths = [Path(self.compare, name) for name in (RESULT_JSON, "trainer_state.json")]
        saved = next((path for path in paths if path.is_file()), None)
        history = json.loads(saved.read_text())["log_history"] if saved else []
        # A run that is shorter than its `logging_steps` has its last step's numbers, without a loss.
        found = [log for log in history if "loss" in log or "reward" in log]
        if not found:
            raise RookWorldError(
                f"compare: {self.compare!r} has no log of a step; give the folder of a run "
                f"(trainer_state.json) or of a diagnosis ({RESULT_JSON})"
            )
        return found


def run_diagnosis(
    trainer: RookWorldGRPOTrainer,
    recipe: str,
    more_setup: Mapping[str, Any] | None = None,
    compared: Sequence[Mapping[str, Any]] = (),
) -> Section:
    """Train, evaluate, and take the first step apart; gives what the JSON file holds.

    Every process has to call it.

    Args:
        trainer: A new one; its arguments are those of a recipe with `DiagnoseArguments.overrides`.
        recipe: Name for the report.
        more_setup: More for the first phase: data, engine, overrides.
        compared: The log of another run, see `DiagnoseArguments.log`.
    """
    diagnosis = Diagnosis(trainer)
    trainer.train()
    with diagnosis.phase("held-out after"):
        trainer.evaluate()
    log_history = [entry for entry in trainer.state.log_history if "loss" in entry]
    log, later, groups = log_history[0], diagnosis.one_step_on, by_group(diagnosis)
    rows = pd.DataFrame(
        {**row, "group": place, "task": group["task"]}
        for place, group in enumerate(groups)
        for row in group["completions"]
    )
    layers, repeated = diagnosis.layers, log_history if len(log_history) > 1 else []
    record: Section = {
        "version": VERSION,
        "recipe": recipe,
        "setup": {**setup(diagnosis), **(more_setup or {})},
        "initial": performance(diagnosis, 0),
        "generation": {**generation(rows), "groups_of_texts": groups},
        "rewards": {
            **of(log, "reward"),
            "positive": (rows["reward"] > 0).mean(),
            "failures": gather_object(trainer.reward_guard.faults),
        },
        "advantages": {
            **of(log, "mean_advantage", "health/advantage", "zero_variance/trained"),
            "positive": positive(rows["advantage"]),
            "verdict": verdict(log["health/advantage_range"], log["health/advantage_std"]),
            "groups": advantages_by_group(rows),
        },
        "policy": {
            **of(log, "loss/", "mean_logp", "entropy", "clip_ratio/region"),
            "one_step_on": of(later, "drift", "entropy", "clip_ratio/region", "gradient/"),
            "groups": figures(rows, "mean", policy_term="policy_term", logp="policy"),
        },
        "kl": {
            **of(log, "loss/kl", "kl"),
            "one_step_on": of(later, "kl", "gradient/kl"),
            "groups": figures(rows, "mean", kl="kl", penalty="penalty"),
        },
        "update": {
            **{name: log.get(name) for name in ("loss", "grad_norm", "learning_rate")},
            "groups": figures(rows, "sum", **{name: name for name in _TERMS}),
            "layers": records(layers.assign(ratio=layers["update_norm"] / layers["weight_norm"])),
        },
        "after": {**performance(diagnosis, -1), **changes(diagnosis)},
        "costs": [
            {"phase": name, "seconds": cost["seconds"], "calls": cost["calls"]}
            | {"peak_memory_mib": cost["peak_memory"] / 2**20}
            for name, cost in diagnosis.costs.items()
        ],
        "log_history": log_history,
    }
    record["analysis"] = {
        **analysis(diagnosis, record),
        **what_if(diagnosis, rows),
        "comparison": comparison(log, compared),
        "repetitions": [{name: step.get(name) for name in _BY_STEP} for step in repeated],
    }
    return cleaned(record)


_BY_STEP = ("step", "reward", "loss", "grad_norm", "kl", "entropy")


def of(log: Mapping[str, Any], *starts: str) -> Section:
    """The numbers of a log whose names start like this."""
    return {name: value for name, value in log.items() if name.startswith(starts)}


def records(frame: pd.DataFrame) -> list[Section]:
    """A table as records, with its index."""
    return frame.reset_index().to_dict("records")


# --------------------------------------------------------------------------------------------------
# 1 and 2: setup, initial performance; 9: performance after
# --------------------------------------------------------------------------------------------------
def setup(diagnosis: Diagnosis) -> Section:
    """Model, tokenizer, precision, step and gaps, as the trainer has them."""
    trainer = diagnosis.trainer
    network, tokenizer = trainer.networks()[0], trainer.processing_class
    weights, modules = list(network.parameters()), network.modules()
    heat = trainer.task_samplings or dict.fromkeys(TASKS, trainer.sampling)
    return {
        "model": getattr(network.config, "_name_or_path", "") or type(network).__name__,
        "parameters": sum(weight.numel() for weight in weights),
        "trained_parameters": sum(weight.numel() for weight in weights if weight.requires_grad),
        "active_dropout": sum(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in modules),
        "tokenizer": f"{len(tokenizer)} tokens, {tokenizer.pad_token} on the {tokenizer.padding_side}",
        "weights": f"{weights[0].dtype}, mixed precision {trainer.accelerator.mixed_precision}",
        "device": str(trainer.accelerator.device),
        "processes": trainer.accelerator.num_processes,
        "step": {name: getattr(trainer.args, name) for name in _KEYS},
        "temperature": {task: sampling.temperature for task, sampling in heat.items()},
        "gaps": dict(diagnosis.probes),
    }


_KEYS = (
    *("seed", "learning_rate", "loss_type", "beta", "kl_estimator", "baseline", "scale_rewards"),
    *("num_generations", "gradient_accumulation_steps", "max_completion_length", "max_grad_norm"),
)


def performance(diagnosis: Diagnosis, when: int) -> Section:
    """Held-out metrics with 95% intervals, and the mean rewards of the batch's own prompts."""
    results, _ = diagnosis.heldouts[when]
    batch = pd.DataFrame(
        gather_object(pd.DataFrame(diagnosis.performance[when]).to_dict("records"))
    )
    return {
        "overall": headline(results),
        "batch_reward": batch.mean().to_dict(),
        "heldout": [
            {"metric": name, "share": found.value, "interval": found.interval, "n": found.n}
            for name, found in results.items()
            if not name.startswith(OWN_REWARDS)
        ],
    }


def changes(diagnosis: Diagnosis) -> Section:
    """The performance after the step against that before, answer by answer and prompt by prompt."""
    rows = list(diagnosis.trainer.eval_dataset)
    pairs = compare(rows, *(scores(rows, texts) for _, texts in diagnosis.heldouts))
    paired = [
        {"metric": name, **asdict(pairs[name])} for name in rights().values() if name in pairs
    ]
    first, last = diagnosis.performance
    columns = {"prompt": [row["prompt"] for row in diagnosis.prompts], **first}
    mine = pd.DataFrame(columns | {f"{name}_after": column for name, column in last.items()})
    prompts = pd.DataFrame(gather_object(mine.to_dict("records")))
    prompts.insert(0, "group", range(len(prompts)))
    prompts["change"] = change = prompts["sampled_after"] - prompts["sampled"]
    return {
        "reward_change": change.mean(),
        "prompts_that_rose": (change > 0).mean(),
        "paired": paired,
        "prompts": prompts[[*prompts.columns.drop("prompt"), "prompt"]].to_dict("records"),
    }


# --------------------------------------------------------------------------------------------------
# 3 to 5: completions, rewards, advantages
# --------------------------------------------------------------------------------------------------
def by_group(diagnosis: Diagnosis) -> list[Section]:
    """The step's prompts with their completions, of all processes."""
    rows, size = gather_object(diagnosis.completions), diagnosis.trainer.num_generations
    groups = [rows[first : first + size] for first in range(0, len(rows), size)]
    shared = ("task", "prompt", "fen", "action")
    return [{**{name: group[0][name] for name in shared}, "completions": group} for group in groups]


def generation(rows: pd.DataFrame) -> Section:
    """What was sampled, in numbers."""
    sizes = rows.groupby("group").size()
    alike = rows.groupby("group")["text"].value_counts()
    return {
        "completions": len(rows),
        "pairs_of_one_text": (alike * (alike - 1) / (sizes * (sizes - 1))).sum() / len(sizes),
        "taught": int(rows["taught"].sum()),
        "tokens": int(rows["policy"].dropna().map(len).sum()),
        "ended": rows["ended"].mean(),
    }


# --------------------------------------------------------------------------------------------------
# 5 to 8: prompt by prompt
# --------------------------------------------------------------------------------------------------
_GROUP = ["group", "task"]
_TERMS = ("policy_term", "penalty", "total")  # of a completion, in the loss


def advantages_by_group(rows: pd.DataFrame) -> list[Section]:
    """Rewards and advantages of each group, and whether they differ enough to teach something."""
    groups = rows.groupby(_GROUP)
    table = groups.agg(
        mean=("reward", "mean"),
        std=("reward", "std"),
        advantage_mean=("advantage", "mean"),
        advantage_std=("advantage", "std"),
        advantage_range=("advantage", lambda column: column.max() - column.min()),
        positive=("advantage", positive),
        texts=("text", distinct),
    )
    table["advantage_mean"] = table["advantage_mean"].round(6) + 0.0  # rounding leaves -1e-9 of 0
    spread = zip(table["advantage_range"], table["advantage_std"], strict=True)
    table["verdict"] = [verdict(*numbers) for numbers in spread]
    table["rewards"] = groups["reward"].agg(list)
    table["advantages"] = groups["advantage"].agg(list)
    return records(table)


def positive(advantages: pd.Series[float]) -> float:
    """The share of completions with an advantage over 0, of those that are trained on."""
    return float((advantages.dropna() > 0).mean())


def distinct(texts: Sequence[str]) -> str:
    """How many of a group's completions differ, in words.

    >>> distinct(["a", "a", "a", "a"]), distinct(["a", "b", "a", "c"])
    ('all 4 identical', '3 of 4 distinct')
    """
    different, count = len({*texts}), len(texts)
    return f"all {count} identical" if different == 1 else f"{different} of {count} distinct"


def verdict(spread: float, deviation: float) -> str:
    """What the health rules say of advantages with this range and standard deviation.

    >>> verdict(2.0, 1.15)
    'enough to learn from'
    >>> verdict(0.02, 0.0082)
    'the deviation is below 0.01: hardly anything to learn'
    """
    if math.isnan(spread):
        return "not trained on"
    low = [
        f"the {word} is below {bound:g}"
        for word, value, rule in (
            ("range", spread, "advantage_range"),
            ("deviation", deviation, "advantage_std"),
        )
        if value < (bound := RULES[rule].bound or 0.0)
    ]
    return f"{' and '.join(low)}: hardly anything to learn" if low else "enough to learn from"


def figures(rows: pd.DataFrame, how: str, **columns: str) -> list[Section]:
    """Figures of each group of completions, and the same one step on.

    Args:
        rows: The step's completions.
        how: `mean` or `sum`, over completions, or over tokens if a column has lists.
        columns: Name of a figure → column of the completions. A figure that no completion has is left
            out.
    """
    found = {}
    for name, column in columns.items():
        for suffix in ("", AFTER):
            if column + suffix in rows and rows[column + suffix].notna().any():
                values = rows.explode(column + suffix).astype({column + suffix: float})
                found[name + suffix] = values.groupby(_GROUP)[column + suffix].agg(how)
    return records(pd.DataFrame(found)) if found else []


# --------------------------------------------------------------------------------------------------
# 10: findings
# --------------------------------------------------------------------------------------------------
_OF_COMPLETIONS = ("unreadable", "truncated", "unscored")  # shares that may be chance
_OF_GROUPS = ("zero_variance", "zero_variance_most")
_GRAVER = ("nothing_parses", "gradient_not_finite")  # before a run, reasons not to start it
_HEALTHY = "healthy: one step with this configuration shows nothing to change"
_LEVEL: Mapping[Severity, int] = {"stop": 0, "warning": 1, "info": 2}
_FEWEST_REPETITIONS = 20  # of one batch, before its reward must have risen


def analysis(diagnosis: Diagnosis, record: Section) -> Section:
    """What the rules of the health monitor say of the step: verdict, cause, findings.

    A finding that another one explains is its consequence; the verdict names the first cause.
    """
    numbers, details = measurements(diagnosis, record)
    log = {**record["log_history"][0], **numbers}
    found = HealthMonitor(patience=1, consequences=True).observe(1, log, details)
    found = [replace(f, severity="stop") if f.rule in _GRAVER else f for f in found]
    sizes = dict.fromkeys(_OF_COMPLETIONS, record["generation"]["completions"])
    sizes |= dict.fromkeys(_OF_GROUPS, len(record["generation"]["groups_of_texts"]))
    found = [f for f in found if not _may_be_chance(f, sizes)]
    names = {finding.rule for finding in found}
    causes = {name: cause_of(name, names) for name in names}
    # Findings come in the order of the rules.
    found.sort(key=lambda f: (bool(causes[f.rule]), _LEVEL[f.severity]))
    first = next((finding for finding in found if finding.severity != "info"), None)
    explains = {name: [f.rule for f in found if causes[f.rule] == name] for name in names}
    return {
        "verdict": f"{first.rule}: {first.message}" if first else _HEALTHY,
        "cause": first and first.rule,
        "findings": [
            {**asdict(f), "consequence_of": causes[f.rule], "explains": explains[f.rule]}
            for f in found
        ],
    }


def _may_be_chance(finding: Finding, sizes: Mapping[str, int]) -> bool:
    """Whether a share may be over its bound by chance, in a sample of this size."""
    n, bound = sizes.get(finding.rule, 0), finding.bound
    return n > 0 and bound is not None and wilson(finding.value, n)[0] <= bound


def cause_of(rule: str, found: set[str]) -> str | None:
    """The first cause of a finding, or None if nothing that was found explains it."""
    cause = next((cause for cause in RULES[rule].causes if cause in found), None)
    return cause and (cause_of(cause, found) or cause)


def measurements(diagnosis: Diagnosis, record: Section) -> tuple[dict[str, float], dict[str, str]]:
    """What a diagnosis alone measures, by the metrics that the rules name; and details for messages."""
    set_up, sampled, log = record["setup"], record["generation"], record["log_history"][0]
    gaps = {name: gap for name, gap in diagnosis.probes.items() if gap is not None}
    tolerance = gaps.pop("tolerance")
    worst = max(gaps, key=lambda name: abs(gaps[name]))
    dead = diagnosis.layers.index[diagnosis.layers["gradient_norm"] == 0].tolist()
    adapted = hasattr(diagnosis.trainer.networks()[0], "peft_config")
    rows = record["initial"]["heldout"]
    formats = {row["metric"]: row["share"] for row in rows if row["metric"].endswith("/format")}
    n = sampled["completions"]
    unreadable, _ = wilson(log["health/unreadable"], n)
    when = "unreadable_when_sampled" if max(formats.values(), default=0) > 0.5 else "unreadable"
    noted: dict[str, tuple[float, str]] = {
        "active_dropout": (set_up["active_dropout"], ""),
        "trained": (set_up["trained_parameters"] / set_up["parameters"], ""),
        "layers_without_gradient": (0 if adapted else len(dead), ", ".join(dead[:4])),
        when: (unreadable, ""),
        "identical_pairs": (sampled["pairs_of_one_text"], ", counted by pairs of completions"),
    }
    if abs(gaps[worst]) > tolerance:
        noted["preflight_gap"] = (abs(gaps[worst]), worst)
    if failures := record["rewards"]["failures"]:
        noted["reward_raised"] = (log["rewards/unscored"], failures[0])
    if later := diagnosis.one_step_on:
        share = max(later.get("kl/share_of_loss", 0.0), later["kl/share_of_gradient"])
        noted |= {
            "drift": (later["drift"], ""),
            "kl_share": (share, " or its gradient, one step later"),
        }
        of_kl = {"kl": "kl", "kl_share_of_loss": "kl/share_of_loss"}  # no share of a loss of 0
        noted |= {name: (later[metric], "") for name, metric in of_kl.items() if metric in later}
    rewards = [entry.get("reward", math.nan) for entry in record["log_history"]]
    if (quarter := len(rewards) // 4) >= _FEWEST_REPETITIONS // 4:
        rise = (sum(rewards[-quarter:]) - sum(rewards[:quarter])) / quarter
        noted["batch_rise"] = (rise, str(len(rewards)))
    if len(rewards) == 1:  # one batch learnt by heart may cost held-out answers
        for pair in record["after"]["paired"]:
            if pair["difference"] < 0 and pair["p"] < noted.get("heldout_p", (1.0,))[0]:
                said = "{metric} of {n} answers changes by {difference:+.3f}"
                noted["heldout_p"] = (pair["p"], said.format(**pair))
    numbers = {f"diagnosis/{name}": value for name, (value, _) in noted.items()}
    numbers |= {f"eval_{name}": share for name, share in formats.items()}
    return numbers, {f"diagnosis/{name}": detail for name, (_, detail) in noted.items()}


AT_RATES = ("drift", "kl", "kl/share_of_loss", "clip_ratio/region_mean")
GROUP_SIZES = (2, 4, 8, 16, 32)


def what_if(diagnosis: Diagnosis, rows: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """The four tables, as records; those of beta and rate look one step on.

    Args:
        diagnosis: After the first step.
        rows: The step's completions.
    """
    later, args = diagnosis.one_step_on, diagnosis.trainer.args
    rates = {1.0: later, **diagnosis.after_multiples} if later else {}
    betas = pd.DataFrame({"beta": [args.beta * k for k in sorted((1.0, *MULTIPLES))]})
    betas["penalty"] = betas["beta"] * later.get("kl", math.nan)
    share = later.get("kl/share_of_loss", math.nan)
    ours = share * betas["beta"] / args.beta if args.beta else math.nan
    betas["share_of_loss"] = ours / (ours + 1 - share)
    groups = rows[~rows["taught"].astype(bool)].dropna(subset="reward").groupby("group")["reward"]
    # A group without spread is as likely as so many equal draws from the group's own rewards.
    shares, spread = groups.value_counts(normalize=True), groups.std().mean()
    sizes = pd.DataFrame({"num_generations": GROUP_SIZES})
    sizes["without_spread"] = [(shares**k).groupby("group").sum().mean() for k in GROUP_SIZES]
    sizes["error_of_group_mean"] = spread / sizes["num_generations"] ** 0.5
    samples = pd.DataFrame(gather_object(diagnosis.at_temperatures), columns=AT_TEMPERATURES)
    heats = samples.groupby("times_temperature")[["reward", "unreadable"]].mean()
    texts = samples.groupby(["times_temperature", "prompt"])["text"].agg(["nunique", "count"])
    heats["distinct"] = (texts["nunique"] / texts["count"]).groupby("times_temperature").mean()
    return {
        "what_if_beta": betas.dropna(subset="penalty").to_dict("records"),
        "what_if_learning_rate": [
            {"learning_rate": args.learning_rate * k} | {name: found.get(name) for name in AT_RATES}
            for k, found in sorted(rates.items())
        ],
        "what_if_temperature": records(heats),
        "what_if_group_size": sizes.to_dict("records"),
    }


def comparison(log: Mapping[str, Any], other: Sequence[Mapping[str, Any]]) -> list[Section]:
    """The step's numbers beside those of another run: its first step, and the mean of its last ten."""
    if not other:
        return []
    theirs = pd.DataFrame(other).select_dtypes("number")
    table = pd.DataFrame({"here": pd.Series(log), "first": theirs.iloc[0]})
    table["last_ten"] = theirs.tail(10).mean()
    table = table.dropna().drop(["step", "epoch"], errors="ignore").rename_axis("metric")
    order = sorted(table.index[table.any(axis=1)], key=lambda name: name not in _BY_STEP)
    return records(table.loc[order])


def cleaned(value: Any) -> Any:
    """Numbers rounded to six digits, None for one that is not finite; containers recursively.

    >>> cleaned({"a": (1 / 3, float("nan"))})
    {'a': [0.333333, None]}
    """
    if isinstance(value, float):  # numpy's as well
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item) for item in value]
    return value
