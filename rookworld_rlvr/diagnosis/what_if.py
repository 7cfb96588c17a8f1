"""What another beta, rate, temperature or group size would do, computed from the diagnosed step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from accelerate.utils import gather_object

MULTIPLES = (0.25, 0.5, 2.0, 4.0)  # of beta, and of the update
TEMPERATURES = (0.5, 0.8, 1.0, 1.25, 2.0)  # times that of sampling
TEMPERATURE_ROWS = 32  # completions of a process, scored by themselves
GROUP_SIZES = (2, 4, 8, 16, 32)
ROW = "diagnosed_row"  # rides along in TRL's batches, which are shuffled and split
SHOWN = ("drift", "kl", "kl/share_of_loss", "clip_ratio/region_mean")


def what_if(trainer: Any, rows: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """The four tables, as records; those of beta and rate look one step on.

    Args:
        trainer: The `DiagnosedTrainer`, after its first step.
        rows: The step's completions.
    """
    later, args = trainer.one_step_on, trainer.args
    rates = {1.0: later, **trainer.after_multiples} if later else {}
    betas = pd.DataFrame({"beta": [args.beta * k for k in sorted((1.0, *MULTIPLES))]})
    betas["penalty"] = betas["beta"] * later.get("kl", math.nan)
    betas["share_of_loss"] = betas["penalty"] / (betas["penalty"] + rows["advantage"].abs().mean())
    groups = rows.dropna(subset="reward").groupby("group")["reward"]
    # A group without spread is as likely as so many equal draws from the group's own rewards.
    shares, spread = groups.value_counts(normalize=True), groups.std().mean()
    sizes = pd.DataFrame({"num_generations": GROUP_SIZES})
    sizes["without_spread"] = [(shares**k).groupby("group").sum().mean() for k in GROUP_SIZES]
    sizes["error_of_group_mean"] = spread / sizes["num_generations"] ** 0.5
    return {
        "what_if_beta": betas.dropna(subset="penalty").to_dict("records"),
        "what_if_learning_rate": [
            {"learning_rate": args.learning_rate * k, **{name: found.get(name) for name in SHOWN}}
            for k, found in sorted(rates.items())
        ],
        "what_if_temperature": _temperatures(trainer),
        "what_if_group_size": sizes.to_dict("records"),
    }


def _temperatures(trainer: Any) -> list[dict[str, Any]]:
    """Entropy, log-prob and expected reward at other temperatures, from completions sampled at this one.

    The reward weighs each completion by how much likelier it is at the other temperature. The effective
    share says how many of the completions count then: far from this temperature hardly any.
    """
    rows = pd.DataFrame(gather_object(trainer.at_temperatures)).dropna(subset="reward")
    logps = rows.pivot(index="row", columns="times_temperature", values="logp")
    ratios = logps.sub(logps[1.0], axis=0)
    weights = (ratios - ratios.max()).map(math.exp)
    weights /= weights.sum()
    means = rows.groupby("times_temperature")[["entropy", "logp", "tokens"]].sum()
    table = means[["entropy", "logp"]].div(means["tokens"], axis=0)
    table["reward"] = weights.mul(rows.groupby("row")["reward"].first(), axis=0).sum()
    table["effective_share"] = 1 / (weights**2).sum() / len(weights)
    found: list[dict[str, Any]] = table.reset_index().to_dict("records")
    return found


# --------------------------------------------------------------------------------------------------
# What the trainer notes for it
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
    weights = dict(trainer.accelerator.unwrap_model(trainer.model).named_parameters())
    after = {name: weight.detach().clone() for name, weight in weights.items()}
    found = {}
    for multiple in MULTIPLES:
        for name, weight in weights.items():
            weight.copy_(before[name].to(weight).lerp(after[name], multiple))
        found[multiple] = trainer.look_one_step_on(gradients=False)
    for name, weight in weights.items():
        weight.copy_(after[name])
    return found


@torch.no_grad()
def at_temperatures(trainer: Any) -> list[dict[str, Any]]:
    """Log-prob and entropy of some of this process's completions at multiples of their temperature."""
    notes = []
    rows = [
        (inputs, at) for inputs, _ in trainer.batches for at in range(len(inputs["advantages"]))
    ]
    for inputs, at in rows[:TEMPERATURE_ROWS]:
        prompt, completion = (
            inputs[f"{part}_ids"][at][inputs[f"{part}_mask"][at].bool()]
            for part in ("prompt", "completion")
        )
        ids = torch.cat([prompt, completion]).unsqueeze(0)
        with trainer.accelerator.autocast():
            logits = trainer.model_wrapped(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
        given = inputs.get("temperature")
        heat = trainer.temperature if given is None else given[at].item()
        number = int(inputs[ROW][at])
        row = (trainer.accelerator.process_index, number)
        reward = trainer.completions[number]["reward"]
        for times in TEMPERATURES:
            logps = (logits / (heat * times)).log_softmax(-1)  # (C, V)
            note = {"row": row, "reward": reward, "times_temperature": times, "tokens": len(logps)}
            note["entropy"] = -(logps.exp() * logps).sum().item()
            note["logp"] = logps.gather(1, completion.unsqueeze(1)).sum().item()
            notes.append(note)
    return notes
