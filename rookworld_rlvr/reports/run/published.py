"""Numbers that others have published, and which of ours may be compared with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ...common.files import read_asset


@dataclass(frozen=True, slots=True)
class Published:
    """A number that others have published.

    Args:
        name: Of the quantity, in their words.
        value: As printed; a share in [0, 1], or a count.
        source: Title and address.
        remark: What agrees and what differs, a sentence.
        metrics: Ours with the same definition: ``heldout:<metric>`` or ``<suite>:<metric>``; empty if
            no definition agrees.
    """

    name: str
    value: float
    source: tuple[str, str]
    remark: str
    metrics: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The value as text, a share in per cent."""
        return f"{100 * self.value:.4g}%" if self.value <= 1 else f"{self.value:g}"


def _read() -> Sequence[Published]:
    content = read_asset("published.yaml")
    return [
        Published(**{**number, "source": content["sources"][number["source"]]})
        for number in content["numbers"]
    ]


PUBLISHED = _read()


def comparable(metric: str) -> list[Published]:
    """The published numbers with the same definition as one of our metrics.

    Args:
        metric: As in `Published.metrics`.

    >>> [number.value for number in comparable("heldout:environment/state")]
    [0.999, 0.9961]
    """
    return [number for number in PUBLISHED if metric in number.metrics]


def published(metric: str) -> Markup:
    """These numbers with their sources; a dash if there are none."""
    words = Markup('{0.words} <small class="source">{0.source[0]}</small>')
    return Markup("<br>").join(map(words.format, comparable(metric))) or Markup("-")
