"""Pages and small plots from templates.

A page loads no other file and runs no script, and its content-security policy keeps a browser to that.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

from markupsafe import Markup, escape

from .files import asset_path, templates
from .files import render as render


def prose(value: str) -> Markup:
    """Escape text for HTML; words in backticks become code.

    >>> print(prose("`B` < 1"))
    <code>B</code> &lt; 1
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(value))))


def name(value: str) -> Markup:
    """Format the name of a metric or key as code; lines may break after ``/`` and ``_``."""
    breakable = re.sub("([/_])", r"\1<wbr>", str(escape(value)))
    return Markup(f'<code class="name">{breakable}</code>')


_WORDS = re.compile(r"[^\s+/]+|\s+|[+/]")  # moves, numbers, the fields and ranks of a FEN


def marked(text: str, reference: str) -> Markup:
    """Mark the words of a text that differ from a reference. The tooltip shows the reference's words.

    >>> print(marked("8/8/4K3 w", "8/8/3K4 w -"))
    8/8/<mark title="3K4">4K3</mark> w<mark title="-"></mark>
    """
    mine, theirs = _WORDS.findall(text), _WORDS.findall(reference)
    # Runs of spaces count as one: the padding of a column is not a difference.
    a, b = ([word.strip() or " " for word in words] for words in (theirs, mine))
    drawn = Markup()
    for kind, low, high, start, end in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        words, others = "".join(mine[start:end]), "".join(theirs[low:high]).strip()
        if kind == "equal" or not (words.strip() or others):
            drawn += escape(words)
        else:
            drawn += Markup('<mark title="{}">{}</mark>').format(others, words)
    return drawn


# --------------------------------------------------------------------------------------------------
# Plots
# --------------------------------------------------------------------------------------------------
def pair_bars(rows: Sequence[tuple[str, float, float, str]], largest: float = 0) -> Markup:
    """Draw two bars per label: the value before, and below it the value after.

    Args:
        rows: Label, value before, value after, and the text for the values.
        largest: The value of a bar at full width; 0 takes the largest value of the rows.
    """
    full = largest or max((value for _, *pair, _ in rows for value in pair), default=0.0) or 1.0
    drawn = [(label, old / full, new / full, words) for label, old, new, words in rows]
    return render("pair_bars.html", rows=drawn)


templates().filters |= {"prose": prose, "name": name}


_STYLE = Path(asset_path("templates/style.css")).read_text(encoding="utf-8")


# Nothing is loaded or run, and only our own style applies: what got past the escaping could do nothing.
_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-"
    f"{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
)


templates().globals |= {
    "pair_bars": pair_bars,
    "marked": marked,
    "style": Markup(_STYLE),
    "policy": Markup(_POLICY),  # a hash may hold a +, which is not to be escaped
}
