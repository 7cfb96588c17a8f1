"""Pages from the templates of `assets/templates`, which ask for nothing; and small plots for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape


def render(template: str, **values: Any) -> Markup:
    """A template filled in; in HTML, what is no `Markup` yet is text, in which nothing is markup.

    Args:
        template: Its file in `assets/templates`, without ``.j2``.
        values: What it names.
    """
    return Markup(_TEMPLATES.get_template(f"{template}.j2").render(values))


def prose(value: str) -> Markup:
    """Text with what stands in backticks as code.

    >>> print(prose("`B` < 1"))
    <code>B</code> &lt; 1
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(value))))


def name(value: str) -> Markup:
    """A metric's or a key's name as code that may be broken after its separators."""
    breakable = re.sub("([/_])", r"\1<wbr>", str(escape(value)))
    return Markup(f'<code class="name">{breakable}</code>')


_WORDS = re.compile(r"[^\s+/]+|\s+|[+/]")  # moves, numbers, the fields and ranks of a FEN


def marked(text: str, reference: str) -> Markup:
    """Text in which the words that a reference has otherwise are marked; resting on one shows those.

    >>> print(marked("8/8/4K3 w", "8/8/3K4 w -"))
    8/8/<mark title="3K4">4K3</mark> w<mark title="-"></mark>
    """
    mine, theirs = _WORDS.findall(text), _WORDS.findall(reference)
    # However many spaces: the padding of a column is no difference.
    a, b = ([word.strip() or " " for word in words] for words in (theirs, mine))
    drawn = Markup()
    for kind, low, high, start, end in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        words, others = "".join(mine[start:end]), "".join(theirs[low:high]).strip()
        if kind == "equal" or not (words.strip() or others):
            drawn += escape(words)
        else:
            drawn += Markup('<mark title="{}">{}</mark>').format(others, words)
    return drawn


def percent(part: float) -> str:
    """A share as a CSS length, held in [0, 100]%."""
    return f"{100 * min(1.0, max(0.0, part)):.2f}%"


def pixels(place: float) -> str:
    """A coordinate of a plot."""
    return f"{place:.1f}"


# --------------------------------------------------------------------------------------------------
# Plots
# --------------------------------------------------------------------------------------------------
def bars(rows: Sequence[tuple[str, float | None, str]], kind: str = "") -> Markup:
    """Horizontal bars: label, value from 0 up, and its text; the largest is as wide as there is room."""
    largest = max((value or 0.0 for _, value, _ in rows), default=0.0) or 1.0
    return render("bars.html", rows=[(a, (b or 0) / largest, c) for a, b, c in rows], kind=kind)


def pair_bars(rows: Sequence[tuple[str, float, float, str]], largest: float = 0) -> Markup:
    """Two bars a label, what was before above what is after.

    Args:
        rows: Label, the two values, and their text.
        largest: The value of a full bar; the largest of the rows where it is 0.
    """
    full = largest or max((value for _, *pair, _ in rows for value in pair), default=0.0) or 1.0
    drawn = [(label, old / full, new / full, words) for label, old, new, words in rows]
    return render("pair_bars.html", rows=drawn)


def histogram(values: Sequence[float], title: str, bins: int = 24) -> Markup:
    """How often values of a range occur."""
    if not values:
        return Markup()
    low, high = min(values), max(values)
    width = (high - low) / bins or 1.0
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / width))] += 1
    columns = [
        (56 * count / max(counts), f"{low + place * width:.3g}: {count}")
        for place, count in enumerate(counts)
    ]
    return render("histogram.html", columns=columns, title=title, low=low, high=high)


def curve(values: Sequence[float | None], title: str) -> Markup:
    """A line over steps; steps without a value are passed over."""
    points = [(place, value) for place, value in enumerate(values) if value is not None]
    if len(points) < 2:
        return Markup()
    known = [value for _, value in points]
    low, high, last = min(known), max(known), len(values) - 1
    span = high - low or 1.0
    path = [(240 * place / last, 56 - 52 * (value - low) / span) for place, value in points]
    return render("curve.html", path=path, known=known, title=title, low=low, high=high)


_TEMPLATES = Environment(
    loader=PackageLoader("rookworld_rlvr", "assets/templates"),
    autoescape=select_autoescape(["html.j2"]),
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)


_TEMPLATES.filters |= {"prose": prose, "name": name, "percent": percent, "pixels": pixels}


_TEMPLATES.globals |= {
    "bars": bars,
    "pair_bars": pair_bars,
    "histogram": histogram,
    "curve": curve,
    "marked": marked,
}
