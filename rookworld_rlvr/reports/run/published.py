"""Numbers that others have published, and whether ours can stand beside them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...common.html import text

MODEL_CARD = ("RookWorld-LM model card", "https://huggingface.co/jrahn/RookWorld-LM-124M")


README = ("RookWorld README, 7M data", "https://github.com/jorahn/RookWorld")


C1 = ("CSSLab/C1, C1-4B", "https://github.com/CSSLab/C1")


@dataclass(frozen=True, slots=True)
class Published:
    """A number of others.

    Args:
        name: Of the quantity, in their words.
        value: As printed; a share in [0, 1], or a count.
        source: Title and address.
        metrics: Ours that count the same: ``heldout:<metric>`` or ``<suite>:<metric>``; none where no
            definition agrees.
        remark: What agrees and what differs, a sentence.
        needs: A note that the suite's result must carry to be comparable; empty for none.
    """

    name: str
    value: float
    source: tuple[str, str]
    metrics: tuple[str, ...]
    remark: str
    needs: str = ""

    @property
    def words(self) -> str:
        """The value as text, a share in per cent."""
        return f"{100 * self.value:.4g}%" if self.value <= 1 else f"{self.value:g}"


_ROWS_DIFFER = "the rows are theirs and their decoding is not stated"


PUBLISHED: Sequence[Published] = (
    Published(
        "next state",
        0.999,
        MODEL_CARD,
        ("heldout:environment/state", "environment:next_state_exact"),
        f"Share of answers whose next state is right, as here; {_ROWS_DIFFER}.",
    ),
    Published(
        "next state",
        0.9961,
        README,
        ("heldout:environment/state", "environment:next_state_exact"),
        f"Share of answers whose next state is right, as here; {_ROWS_DIFFER}.",
    ),
    Published(
        "reward",
        0.9911,
        README,
        ("environment:reward",),
        f"Share of answers whose reward is right, as here; {_ROWS_DIFFER}.",
    ),
    Published(
        "terminated",
        0.9913,
        README,
        ("environment:terminated",),
        f"Share of answers whose flag is right, as here; {_ROWS_DIFFER}.",
    ),
    Published(
        "truncated",
        0.9998,
        README,
        ("environment:truncated",),
        f"Share of answers whose flag is right, as here; {_ROWS_DIFFER}.",
    ),
    Published(
        "action accuracy",
        0.262,
        MODEL_CARD,
        (),
        "Which move counts as right is not stated. Here it is a move that no legal move is worth "
        "more than, by Stockfish.",
    ),
    Published(
        "best move",
        0.166,
        README,
        (),
        "Theirs is agreement with the data's own best move, which for Black is the worst of five "
        "good ones. Here it is a move that no legal move is worth more than, by Stockfish.",
    ),
    Published(
        "top 5",
        0.392,
        README,
        (),
        "Whether a move, a set or a share of it counts is not stated.",
    ),
    Published(
        "mate in one",
        0.321,
        MODEL_CARD,
        ("mate_in_one:reference_mate",),
        "Theirs is BIG-bench's task. The suite `mate_in_one` counts the same by its reference mate "
        "where it was given BIG-bench's file, and is compared there only.",
        needs="file",
    ),
    Published(
        "self-play, legal half-moves",
        36.3,
        README,
        (),
        "How games began and moves were chosen is not stated. See the suite `self_play`.",
    ),
    Published(
        "puzzles, first move",
        0.483,
        C1,
        (),
        "Theirs are 900 puzzles of their own choice; only the same file would be comparable.",
    ),
)


def comparable(metric: str, notes: Collection[str] = ()) -> list[Published]:
    """The published numbers whose definition is that of a metric of ours.

    Args:
        metric: As in `Published.metrics`.
        notes: Names of the notes that the suite's result carries.

    >>> [number.value for number in comparable("heldout:environment/state")]
    [0.999, 0.9961]
    >>> comparable("mate_in_one:reference_mate")
    []
    """
    return [n for n in PUBLISHED if metric in n.metrics and (not n.needs or n.needs in notes)]


def published(metric: str, notes: Collection[str] = ()) -> str:
    """These numbers with their sources, as HTML; a dash without any."""
    numbers = [
        f'{number.words} <small class="source">{text(number.source[0])}</small>'
        for number in comparable(metric, notes)
    ]
    return "<br>".join(numbers) or "-"
