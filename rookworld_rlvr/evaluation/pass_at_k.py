"""pass@k: how likely it is that at least one of `k` sampled answers to a prompt is right; majority@k.

Where training raises pass@1 but not pass@k, the model gives more often what it could already find:
training has sharpened it. Where pass@k rises too, the model finds what it did not find before.

mean@k, the mean share of right answers among `k` samples, has the same expected value for every `k`:
that of pass@1. From `n` samples, mean@n and the unbiased estimate of pass@1 are the same number.

majority@k is the share of prompts whose most frequent answer among `k` samples is right: what a model
knows but does not always say.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..common.files import replace_text
from ..common.stats import Estimate, MetricKind, Paired, estimate, paired_by_metric

GREEDY_SHARE = "greedy"  # beside pass@k


def pass_at_k(right: int, samples: int, k: int) -> float:
    """The unbiased estimate of pass@k for one prompt: 1 - C(n - c, k) / C(n, k).

    That is the share of the sets of `k` samples in which at least one is right.

    Args:
        right: How many of the samples are right, `c`.
        samples: How many there are, `n`.
        k: From 1 to `samples`.

    Source: M. Chen et al., "Evaluating Large Language Models Trained on Code", arXiv 2107.03374 (2021).

    >>> pass_at_k(1, 4, 1), pass_at_k(1, 4, 2), pass_at_k(0, 4, 4)
    (0.25, 0.5, 0.0)
    """
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


def ks(samples: int) -> list[int]:
    """The values of `k` that are reported: powers of two up to the number of samples, and that number.

    >>> ks(12), ks(0)
    ([1, 2, 4, 8, 12], [])
    """
    powers = [2**power for power in range(samples.bit_length()) if 2**power < samples]
    return [*powers, samples] if samples else []


def kinds(samples: int) -> dict[str, MetricKind]:
    """The kind of pass@k for each of `ks`, by name: with all samples a share, since a prompt has 0 or 1.

    >>> kinds(4)
    {'pass@1': 'mean', 'pass@2': 'mean', 'pass@4': 'share', 'majority@4': 'share'}
    """
    found: dict[str, MetricKind] = {
        f"pass@{k}": "share" if k == samples else "mean" for k in ks(samples)
    }
    return found | ({f"majority@{samples}": "share"} if samples else {})


def passes(right: int, samples: int) -> dict[str, float]:
    """pass@k of one prompt for each of `ks`, by name.

    >>> passes(1, 4)
    {'pass@1': 0.25, 'pass@2': 0.5, 'pass@4': 1.0}
    """
    return {f"pass@{k}": pass_at_k(right, samples, k) for k in ks(samples)}


def majority(texts: Sequence[str], vote: Callable[[str], str]) -> str:
    """The first of the texts that give the most frequent vote; among equals, the vote drawn first.

    >>> majority(["a1", "b1", "b2"], lambda text: text[0])
    'b1'
    """
    votes = [vote(text) for text in texts]
    return texts[votes.index(Counter(votes).most_common(1)[0][0])]


def count_right(
    texts: Sequence[str], hits: Mapping[str, bool], vote: Callable[[str], str]
) -> tuple[int, int]:
    """How many of a prompt's sampled answers are right, and 1 if the most frequent one is, else 0.

    Args:
        texts: The answers.
        hits: Whether each text is right.
        vote: What a text votes for, see `majority`.
    """
    return sum(hits[text] for text in texts), int(hits[majority(texts, vote)])


@dataclass(frozen=True, slots=True)
class RightCounts:
    """How many of the sampled answers to each of `P` prompts are right.

    Args:
        samples: Sampled answers per prompt.
        right: ``(P,)``, the right ones of each prompt.
        greedy: ``(P,)``, 1 if the prompt's greedy answer is right, else 0.
        majority: ``(P,)``, 1 if the prompt's most frequent answer is right; empty if it is not known.
    """

    samples: int
    right: Sequence[int]
    greedy: Sequence[int]
    majority: Sequence[int] = field(default_factory=list)

    def estimates(self) -> dict[str, Estimate]:
        """The share of greedy answers that are right, pass@k and majority@k, with 95% intervals.

        pass@k has a percentile bootstrap over prompts; what is a share of prompts (greedy answers,
        pass@k of all samples, majority@k) has a Wilson interval.
        """
        found = self._values().items()
        return {name: estimate(self._kind(name), list(values.values())) for name, values in found}

    def compare(self, other: RightCounts) -> dict[str, Paired]:
        """How `other` differs from these on the same prompts; see `common.stats.paired`."""
        return paired_by_metric(self._kind, self._values(), other._values())

    def _kind(self, name: str) -> MetricKind:
        return "share" if name == GREEDY_SHARE else kinds(self.samples)[name]

    def _values(self) -> dict[str, dict[str, float]]:
        """By metric and prompt."""
        found: dict[str, Sequence[float]] = {GREEDY_SHARE: self.greedy}
        for k in ks(self.samples):
            found[f"pass@{k}"] = [pass_at_k(count, self.samples, k) for count in self.right]
        if self.majority:
            found[f"majority@{self.samples}"] = self.majority
        return {
            name: {str(prompt): float(value) for prompt, value in enumerate(values)}
            for name, values in found.items()
        }


# --------------------------------------------------------------------------------------------------
# JSON
# --------------------------------------------------------------------------------------------------
Measured = Mapping[str, Mapping[str, RightCounts]]
"""Counts by time (``before``, ``after``) and task."""


def write_counts(path: Path, settings: Mapping[str, Any], measured: Measured) -> None:
    """Write counts as JSON, with the settings that they were measured with."""
    times = {
        when: {task: asdict(counts) for task, counts in found.items()}
        for when, found in measured.items()
    }
    replace_text(path, json.dumps({"settings": dict(settings), **times}) + "\n")


def read_counts(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, RightCounts]]]:
    """The settings and the counts in a file of `write_counts`.

    Raises:
        ValueError: The file does not hold such counts.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    try:
        settings = content.pop("settings")
        return settings, {
            when: {task: RightCounts(**counts) for task, counts in found.items()}
            for when, found in content.items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it does not hold counts of right answers: {error}") from error


def pass_summary(measured: Measured) -> dict[str, Any]:
    """By task: prompts, samples, the estimates of each time, and the paired change, for JSON."""
    found: dict[str, dict[str, Any]] = {}
    for when, by_task in measured.items():
        for task, counts in by_task.items():
            of_task = found.setdefault(task, {"prompts": len(counts.right)})
            of_task["samples"] = counts.samples
            of_task[when] = {name: asdict(value) for name, value in counts.estimates().items()}
            if when == "after" and task in measured.get("before", {}):
                change = measured["before"][task].compare(counts)
                of_task["change"] = {name: asdict(value) for name, value in change.items()}
    return found
