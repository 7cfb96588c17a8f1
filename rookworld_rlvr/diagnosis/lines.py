"""The ten parts as labelled lines: what the terminal and the page both show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Part = Mapping[str, Any]


Lines = list[tuple[str, str]]


def number(value: Any, form: str = ".3g") -> str:
    """A number as text, a dash where there is none."""
    return "-" if value is None else format(value, form)


def completion_numbers(completion: Mapping[str, Any]) -> tuple[str, ...]:
    """Reward, advantage, log-probs of the whole by sampler, policy and reference, and both gaps."""
    return (
        number(completion["reward"]),
        number(completion["advantage"], "+.2f"),
        *(number(_total(completion[name]), ".2f") for name in ("sampler", "policy", "reference")),
        number(completion["sampler_gap"], ".1e"),
        number(completion["reference_gap"], ".1e"),
    )


def _total(values: Sequence[float | None] | None) -> float | None:
    return None if values is None else sum(v for v in values if v is not None)


def share(value: Any) -> str:
    """A share in per cent, a dash where there is none."""
    return number(value, ".1%")


def megabytes(size: int) -> str:
    """Bytes as MiB."""
    return f"{size / 2**20:,.0f} MiB"


def _setup(part: Part) -> Lines:
    model, tokenizer, precision = part["model"], part["tokenizer"], part["precision"]
    step, parity, dropout = part["step"], part["parity"], part["dropout"]
    heat = ", ".join(f"{task} {value:g}" for task, value in step["temperature"].items())
    lines = [
        ("model", f"{model['name'] or model['class']}, {model['layers']} layers"),
        ("parameters", f"{model['parameters']:,}, of them trained {model['trained_parameters']:,}"),
        ("tokenizer", f"{tokenizer['tokens']:,} tokens, padding {tokenizer['pad']} on the "
                      f"{tokenizer['padding_side']}"),
        ("dropout", f"{dropout['active_modules']} modules active, two forwards differ by "
                    f"{number(dropout['repeat_gap'])} nats"),
        ("precision", f"weights {precision['weights']}, mixed precision "
                      f"{precision['mixed_precision']}, {precision['processes']} process(es) on "
                      f"{precision['device']}"),
        ("step", f"{step['loss_type']} by {step['optimiser']}, learning rate "
                 f"{step['learning_rate']:g}, no warm-up, seed {step['seed']}"),
        ("sampling", f"groups of {step['num_generations']}, temperature {heat}, at most "
                     f"{step['max_completion_length']} tokens"),
        ("KL", f"beta {step['beta']:g}, estimator {step['kl_estimator']}"),
        ("preflight", f"alone {number(parity['alone_gap'])}, sampler {number(parity['sampler_gap'])}, "
                      f"KL {number(parity['reference_kl'])}, positions {number(parity['position_gap'])} "
                      f"(tolerance {parity['tolerance']:g} nats)"),
    ]  # fmt: skip
    lines += [("data" if not i else "", line) for i, line in enumerate(part.get("data", ()))]
    return lines + [("engine" if not i else "", x) for i, x in enumerate(part.get("engine", ()))]


def _heldout(part: Part) -> Lines:
    return [
        ("overall", f"{share(part['overall'])} of {part['rows']} rows (set {part['fingerprint']})"),
        *(
            (name, f"{share(m['value'])} of {m['n']}  [{share(m['interval'][0])}, "
                   f"{share(m['interval'][1])}]")
            for name, m in part["metrics"].items()
        ),
    ]  # fmt: skip


def _heldout_after(part: Part) -> Lines:
    return _heldout(part) + [
        (f"{name}, paired", f"{p['right_to_wrong']} become wrong, {p['wrong_to_right']} right, "
                            f"p fell {number(p['p_fell'])}")
        for name, p in part["paired"].items()
    ]  # fmt: skip


def _completions(part: Part) -> Lines:
    return [
        ("completions", f"{part['completions']}, {part['tokens']:,} tokens"),
        ("ended by themselves", share(part["ended_share"])),
        ("groups of one text", share(part["identical_groups"])),
        ("pairs of one text, in groups", share(part["identical_pairs"])),
        ("sampler - policy, largest", f"{number(part['sampler_gap_largest'])} nats"),
        ("reference - policy, largest", f"{number(part['reference_gap_largest'])} nats"),
    ]


def _rewards(part: Part) -> Lines:
    def line(c: Part) -> str:
        return (
            f"mean {number(c['mean'])}, deviation {number(c['deviation'])}, {number(c['lowest'])} to "
            f"{number(c['highest'])}, {c['n']} scored, {c['none']} not"
        )

    found = [(f"{name} x {c['weight']:g}", line(c)) for name, c in part["components"].items()]
    faults = [
        (f"{f['name']} raised", f"{f['error']} on {f['rows']} rows: {f['completion']!r}")
        for f in part["faults"]
    ]
    return [*found, ("total", line(part["total"])), *faults]


def _advantages(part: Part) -> Lines:
    batch = part["batch"]
    return [
        ("computed by", f"baseline {part['baseline']}, scale_rewards {part['scale_rewards']}"),
        ("groups without spread", share(part["without_spread"])),
        ("deviation", number(batch["health/advantage_std"])),
        ("range", number(batch["health/advantage_range"])),
    ]


def _loss_terms(part: Part) -> Lines:
    return [
        ("policy gradient", number(part["policy"], ".5g")),
        ("KL", f"{number(part['kl'], '.5g')} at a coefficient of {part['kl_coefficient']:g}"),
        ("entropy bonus", number(part["entropy"], ".5g")),
        ("value head", number(part["value"], ".5g")),
        ("sum", number(part["sum"], ".7g")),
        ("the trainer's loss", number(part["loss"], ".7g")),
        ("gap to it, of the terms' size", number(part["relative_gap"], ".1e")),
    ]


def _shares(part: Part) -> Lines:
    lines: Lines = []
    for key, words in (("step", "in the step"), ("one_step_on", "one step on")):
        s = part[key]
        if s is None:
            continue
        lines += [
            (f"KL's share of the loss, {words}",
             f"{share(s['kl_share'])} after the ratio's clip, {share(s['kl_share_unclipped'])} before"),
            (f"KL's share of the gradient, {words}",
             f"{share(s['kl_share_of_gradient'])} (norms: KL {number(s['kl_gradient_norm'])}, policy "
             f"{number(s['policy_gradient_norm'])})"),
            (f"tokens clipped, {words}", f"{share(s['clipped_share'])}; log-ratio "
                                         f"{number(s['mean_log_ratio'])} nats on average"),
        ]  # fmt: skip
    clip = f"max_grad_norm {number(part['max_grad_norm'])}"
    lines.append(
        ("gradient norm", f"{number(part['gradient_norm'])} before and "
                          f"{number(part['gradient_norm_after_clip'])} after {clip}")
    )  # fmt: skip
    return lines


def _gradients(part: Part) -> Lines:
    frozen = part["frozen_parameters"] / max(1, part["parameters"])
    trained = [x for x in part["layers"] if x["frozen_parameters"] < x["parameters"]]
    dead = [layer["layer"] for layer in trained if layer["zero"]]
    broken = [layer["layer"] for layer in part["layers"] if layer["non_finite"]]
    return [
        ("gradient norm", number(part["norm"])),
        ("learning rate", number(part["learning_rate"], "g")),
        ("update / weight", number(part["update_to_weight"])),
        ("frozen parameters", share(frozen)),
        ("trained layers without gradient", ", ".join(dead) or "none"),
        ("layers that are not finite", ", ".join(broken) or "none"),
    ]


def _findings(part: Part) -> Lines:
    return [
        ("verdict", part["verdict"]),
        *(
            (
                f"{f['severity']}: {f['rule']}",
                f["message"]
                + (f" [consequence of {f['consequence_of']}]" if f["consequence_of"] else "")
                + (f" [keys: {', '.join(f['keys'])}]" if f["keys"] else ""),
            )
            for f in part["findings"]
        ),
    ]


LINES: Mapping[str, Callable[[Part], Lines]] = {
    "setup": _setup,
    "heldout_before": _heldout,
    "completions": _completions,
    "rewards": _rewards,
    "advantages": _advantages,
    "loss_terms": _loss_terms,
    "shares": _shares,
    "gradients": _gradients,
    "heldout_after": _heldout_after,
    "findings": _findings,
}
"""Key of a part → its lines, as pairs of label and text."""


def side_by_side(parts: Sequence[Lines]) -> list[tuple[str, ...]]:
    """The same part of several diagnoses by label; a line without one goes on with the last.

    >>> side_by_side([[("a", "1"), ("", "2")], [("b", "3")]])
    [('a', '1\\n2', '-'), ('b', '-', '3')]
    """
    columns = []
    for lines in parts:
        column: dict[str, str] = {}
        last = ""
        for label, text in lines:
            last = label or last
            column[last] = f"{column[last]}\n{text}" if last in column else text
        columns.append(column)
    labels = dict.fromkeys(label for column in columns for label in column)
    return [(label, *(column.get(label, "-") for column in columns)) for label in labels]
