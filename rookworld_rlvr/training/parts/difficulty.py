"""A memory of how prompts went, so that those that teach nothing are drawn less often."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

KINDS = ("hopeless", "solved")  # the kinds of prompts without signal


_DECAY = 0.9  # share of the running mean of rewards that an observation keeps


class DifficultyMemory:
    """Gives prompts that teach nothing a lower weight, until they teach something again.

    If all completions of a prompt have the same reward, they have no advantages, so the prompt carries
    no signal, and its weight is halved. With signal the weight returns to 1. Only prompts with a weight
    below 1 are stored, as one number by an 8-byte hash: about 100 bytes each.

    Args:
        floor: The lowest weight, in (0, 1].
    """

    def __init__(self, floor: float) -> None:
        self.floor = floor
        self.running: dict[str, float] = {}  # mean reward of groups with signal, by task
        self._most = math.ceil(math.log2(1 / floor))  # halvings
        self._halvings: dict[str, dict[int, int]] = {kind: {} for kind in KINDS}  # by prompt's hash
        self._learning = 0

    def weight(self, prompt: str) -> float:
        """The weight of a prompt in [`floor`, 1]; 1 if nothing is stored for it."""
        key = _key(prompt)
        halvings = max(known.get(key, 0) for known in self._halvings.values())
        return max(self.floor, 0.5**halvings)

    def observe(
        self,
        prompts: Sequence[str],
        means: Sequence[float],
        deviations: Sequence[float],
        threshold: float,
        tasks: Sequence[str] | None = None,
    ) -> None:
        """Remember how `P` groups went; those with a mean or deviation of nan are ignored as not scored.

        Args:
            prompts: The groups' prompts.
            means: The mean of each group's rewards.
            deviations: The standard deviation of each group's rewards.
            threshold: A group has no signal if its deviation is not above this.
            tasks: The groups' tasks, if rewards of different tasks must not be compared.
        """
        names = tasks if tasks is not None else [""] * len(prompts)
        groups = [
            group
            for group in zip(prompts, means, deviations, names, strict=True)
            if math.isfinite(group[1]) and math.isfinite(group[2])
        ]
        with_signal = [group for group in groups if group[2] > threshold]
        self._learning = len(with_signal)
        for task, mean in _means([(task, mean) for _, mean, _, task in with_signal]).items():
            before = self.running.get(task, mean)
            self.running[task] = _DECAY * before + (1 - _DECAY) * mean
        for prompt, *_ in with_signal:
            self._forget(_key(prompt))
        everything = _means([(task, mean) for _, mean, _, task in groups])
        for prompt, mean, deviation, task in groups:
            if deviation <= threshold:
                level = self.running.get(task, everything[task])
                kind = "solved" if mean > level else "hopeless"
                halvings = min(self._forget(_key(prompt)) + 1, self._most)
                if halvings:  # with a floor of 1 every weight stays as it is
                    self._halvings[kind][_key(prompt)] = halvings

    def counts(self) -> dict[str, int]:
        """Numbers for a dashboard.

        ``solved`` and ``hopeless`` are prompts with a weight below 1: when last seen, their mean reward
        was above that of groups with signal, or not. ``learning`` is the number of groups with signal
        in the last observation.
        """
        return {
            "solved": len(self._halvings["solved"]),
            "hopeless": len(self._halvings["hopeless"]),
            "learning": self._learning,
        }

    def __len__(self) -> int:
        """The number of prompts with a weight below 1."""
        return sum(map(len, self._halvings.values()))

    def state(self) -> dict[str, Any]:
        """The memory as JSON values: by kind and number of halvings, 16 hex digits per prompt."""
        texts = {
            kind: [
                "".join(
                    f"{key:016x}" for key, halvings in sorted(known.items()) if halvings == number
                )
                for number in range(1, self._most + 1)
            ]
            for kind, known in self._halvings.items()
        }
        return {**texts, "running": dict(self.running), "learning": self._learning}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave; if the floor has changed, the new one applies from now on."""
        self._halvings = {
            kind: {
                int(text[at : at + 16], 16): min(halvings, self._most)
                for halvings, text in enumerate(state[kind] if self._most else (), start=1)
                for at in range(0, len(text), 16)
            }
            for kind in KINDS
        }
        self.running = dict(state["running"])
        self._learning = state["learning"]

    def _forget(self, key: int) -> int:
        """Forget a prompt; gives its number of halvings until now."""
        return max(known.pop(key, 0) for known in self._halvings.values())


def _key(prompt: str) -> int:
    return int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=8).digest(), "big")


def _means(values: Sequence[tuple[str, float]]) -> dict[str, float]:
    """The mean of the values of each name."""
    by_name: dict[str, list[float]] = {}
    for name, value in values:
        by_name.setdefault(name, []).append(value)
    return {name: math.fsum(found) / len(found) for name, found in by_name.items()}
