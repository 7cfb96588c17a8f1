"""What a metric is called on a dashboard, and what it means.

TRL, transformers and this package name the metrics in a trainer's log. On a dashboard, the first part of
a key is its section. `dashboard_key` turns a name of the log into a key of the dashboard, and `GLOSSARY`
explains that key. The W&B callback, the workspace's layout and the tests use both. Keys, sentences and
panels are in ``assets/glossary.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..common.files import read_asset
from ..tasks.registry import TASKS

_CONTENT = read_asset("glossary.yaml")


SECTIONS: Mapping[str, str] = _CONTENT["sections"]
"""Section → title, in the order in which a dashboard shows them."""


STEP = "train/global_step"  # transformers' name for the x-axis


def dashboard_key(name: str) -> str:
    """The dashboard's key for a metric of the trainer's log; the section is `train` if it has no other.

    >>> dashboard_key("rewards/environment_exact/mean")
    'reward/environment_exact/mean'
    >>> dashboard_key("eval_policy/best_move")
    'eval/policy/best_move'
    >>> dashboard_key("grad_norm")
    'train/grad_norm'
    """
    if name in _CONTENT["names"]:
        return str(_CONTENT["names"][name])
    if name.startswith("eval_"):
        return f"eval/{name.removeprefix('eval_')}"
    head, slash, rest = name.partition("/")
    if slash and head in _CONTENT["folders"]:
        return f"{_CONTENT['folders'][head]}/{rest}"
    return name if slash and head in SECTIONS else f"train/{name}"


# --------------------------------------------------------------------------------------------------
# Glossary
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class GlossaryEntry:
    """A key of the dashboard and its explanation.

    In a key, ``<name>`` is a placeholder for one part and ``<name...>`` for all the rest.
    """

    key: str
    meaning: str  # one or two sentences, with the unit
    always: bool = False  # whether every GRPO run with the default keys logs it

    @property
    def section(self) -> str:
        """One of `SECTIONS`."""
        head = self.key.split("/")[0]
        return {"completions": "task", "boards": "task", "profiling": "time"}.get(head, head)

    @property
    def is_table(self) -> bool:
        """Whether it is a table instead of a curve."""
        return "/" not in self.key

    @property
    def pattern(self) -> str:
        """A regular expression that matches exactly the keys that this entry explains."""
        key = re.escape(self.key).replace("<task>", f"({'|'.join(TASKS)})")
        key = re.sub(r"<[^>]+\.>", ".+", key)  # all the rest
        return f"^{re.sub('<[^>]+>', '[^/]+', key)}$"


def explain(key: str) -> GlossaryEntry | None:
    """The glossary's entry for a dashboard's key, preferably without placeholders; None if not found.

    >>> explain("reward/graduated/mean").key
    'reward/<reward>/mean'
    """
    fitting = [metric for metric in (*GLOSSARY, _OTHER_TASK) if re.match(metric.pattern, key)]
    return min(fitting, key=lambda metric: metric.key.count("<"), default=None)


def panels(section: str) -> list[tuple[str, list[GlossaryEntry]]]:
    """The panels of curves in a section: their titles, and the glossary's metrics in each."""
    by_key = {metric.key: metric for metric in GLOSSARY}
    return [
        (title, [by_key[key] for key in keys])
        for title, keys in PANELS.items()
        if by_key[keys[0]].section == section
    ]


def overview() -> list[tuple[str, list[GlossaryEntry]]]:
    """The panels of a dashboard's first section, beside its boards."""
    by_key = {metric.key: metric for metric in GLOSSARY}
    return [(title, [by_key[key] for key in keys]) for title, keys in _CONTENT["overview"].items()]


_OTHER_TASK = GlossaryEntry("eval/<task>/<metric>", "A held-out metric of a task of your own.")


GLOSSARY: tuple[GlossaryEntry, ...] = tuple(
    GlossaryEntry(key, **entry) for key, entry in _CONTENT["metrics"].items()
)


PANELS: Mapping[str, Sequence[str]] = _CONTENT["panels"]
"""Title → the keys that share a panel. Tables, and numbers logged once at the end, have no panel."""
