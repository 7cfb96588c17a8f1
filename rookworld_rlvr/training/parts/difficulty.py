"""A memory of how often prompts are answered rightly, so that those of medium difficulty come first."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...common.errors import RookWorldError

_WHOLE = 255  # a share of 1, as it is stored

_SETTLED = 0.05  # a share this near to 0 or 1 counts as hopeless or solved

_ENTRY = np.dtype([("key", ">u8"), ("share", "u1")])  # of a state


class DifficultyMemory:
    """Weighs prompts by the share of their completions that are right.

    A prompt whose share is `target` has the weight 1. From there the weight falls evenly to `floor` at
    shares of 0 and 1, where a group carries no signal. A prompt not seen yet has the weight 1.

    A prompt's first visit sets its share, and each later visit moves it half way to the visit's own.
    It is stored in one byte by an 8-byte hash of the prompt.

    Args:
        target: The share with the highest weight, in (0, 1).
        floor: The lowest weight, in (0, 1].
    """

    def __init__(self, target: float, floor: float) -> None:
        self.target = target
        self.floor = floor
        self._shares: dict[int, int] = {}  # in 255ths, by the prompt's hash

    def share(self, prompt: str) -> float | None:
        """The share of a prompt's completions that are right; None if it has not been seen."""
        stored = self._shares.get(_key(prompt))
        return None if stored is None else stored / _WHOLE

    def weight(self, prompt: str) -> float:
        """The weight of a prompt, in [`floor`, 1]."""
        share = self.share(prompt)
        if share is None:
            return 1.0
        return max(self.floor, min(share / self.target, (1 - share) / (1 - self.target)))

    def observe(self, prompts: Sequence[str], shares: Sequence[float]) -> None:
        """Remember a visit to each of `P` prompts.

        Args:
            prompts: The groups' prompts.
            shares: The share of each group's completions that are right; nan, if the truth is not known,
                is ignored.

        Raises:
            RookWorldError: The truth of no prompt was known so far, so that there is nothing to go by.
        """
        for prompt, share in zip(prompts, shares, strict=True):
            if not math.isnan(share):
                key, now = _key(prompt), round(_WHOLE * share)
                before = self._shares.get(key, now)
                # Rounded towards the visit's share, so that a prompt which stays solved gets to 1.
                self._shares[key] = (before + now + (now > before)) // 2
        if not self._shares:
            raise RookWorldError(
                f"prompt_sampling: 'by_difficulty' goes by the share of right completions, but none of "
                f"the first {len(prompts)} prompts has a right answer that is known; give policy rows "
                "their action_values or set labels: engine, or set prompt_sampling: uniform"
            )

    def counts(self) -> dict[str, float]:
        """Numbers for a dashboard: prompts seen by their share of right completions, and its mean.

        ``solved`` are those of at least 95%, ``hopeless`` those of at most 5%, ``learning`` the others.
        ``right`` is the mean share, in [0, 1]; it is left out if nothing has been seen.
        """
        whole = np.fromiter(self._shares.values(), dtype=np.uint8, count=len(self))
        shares = whole / _WHOLE
        solved, hopeless = int((shares >= 1 - _SETTLED).sum()), int((shares <= _SETTLED).sum())
        found: dict[str, float] = {
            "solved": solved,
            "hopeless": hopeless,
            "learning": len(shares) - solved - hopeless,
        }
        if len(shares):
            # A sum of whole numbers does not depend on their order, which a resume changes.
            found["right"] = int(whole.sum(dtype=np.int64)) / (_WHOLE * len(whole))
        return found

    def __len__(self) -> int:
        """The number of prompts seen."""
        return len(self._shares)

    def state(self) -> dict[str, Any]:
        """The memory as JSON values: 12 characters per prompt, in the order of their hashes."""
        entries = np.array(sorted(self._shares.items()), dtype=_ENTRY)
        return {"shares": base64.b64encode(entries.tobytes()).decode()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave; target and floor are those of this memory.

        Raises:
            RookWorldError: The state is that of an older version, which remembered something else.
        """
        if "shares" not in state:
            raise RookWorldError(
                "the checkpoint was saved by an older version, whose prompt_sampling: by_difficulty "
                "remembered rewards instead of shares of right completions; go on with that version, or "
                "remove `difficulty` from the checkpoint's control_state.json to begin with an empty "
                "memory"
            )
        entries = np.frombuffer(base64.b64decode(state["shares"]), dtype=_ENTRY)
        self._shares = dict(zip(entries["key"].tolist(), entries["share"].tolist(), strict=True))


def _key(prompt: str) -> int:
    return int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=8).digest(), "big")
