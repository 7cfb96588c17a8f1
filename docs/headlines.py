"""Figures that stand on more than one page: ``benchmarks/results/headlines.yaml`` has each once.

On a page a figure stands in a mark, ``<span figure="quickstart_before">46.7%</span>``, and ``make docs``
writes what the file says into it. It marks a figure with a decimal, and a long phrase, by itself where
one stands without a mark, so that no copy goes its own way. (A comment would not do as a mark: at the
beginning of a line it ends a paragraph of Markdown.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import yaml
from tries import LOG, number, tries

FILE = LOG.with_name("headlines.yaml")
MARK = re.compile(r'(<span figure="(\w+)">)(.*?)(</span>)', re.S)
_REFERENCE = re.compile(r"\{(\S+?)(?: (\S+?)(?: (low|high))?)?\}")
_PHRASE = 15  # letters
_APART = (
    re.compile(  # where nothing is marked: fences, generated tables, marks, tags, code, addresses
        r"```.*?```|<!-- generated: \w+ -->.*?<!-- end: \w+ -->|<span figure=.*?</span>|<!--.*?-->"
        r"|<[a-z/][^>]*>|`[^`\n]*`|!\[[^]]*\]|\]\([^)]*\)",
        re.S,
    )
)


@cache
def content() -> Mapping[str, Any]:
    return dict(yaml.safe_load(FILE.read_text(encoding="utf-8")))


@cache
def figures() -> Mapping[str, str]:
    """The figures by name, as pages show them."""
    return {name: resolved(text) for name, text in content()["figures"].items()}


def resolved(text: str) -> str:
    """A figure's text with the values and other figures that it names."""
    return _REFERENCE.sub(_referred, text)


def _referred(match: re.Match[str]) -> str:
    name, metric, bound = match.groups()
    if name in content()["figures"]:
        text = resolved(content()["figures"][name])
        return text.partition(" [")[0] if metric == "value" else text
    return number(metric, tries()[name]["metrics"][metric][bound or "value"])


# --------------------------------------------------------------------------------------------------
# Pages
# --------------------------------------------------------------------------------------------------
def filled(text: str) -> str:
    """A page with its figures as the file has them, and marks where they were missing."""
    marked = "".join(_marked(part) if is_prose else part for part, is_prose in _parts(text))
    return MARK.sub(_fresh, marked)


def _fresh(match: re.Match[str]) -> str:
    if match[2] not in figures():
        raise ValueError(
            f"{match[1]}: {FILE.name} has no such figure; add it, or take the mark off"
        )
    return f"{match[1]}{figures()[match[2]]}{match[4]}"


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """The pieces of a page, each with whether figures in it are looked for."""
    end = 0
    for apart in _APART.finditer(text):
        yield text[end : apart.start()], True
        yield apart[0], False
        end = apart.end()
    yield text[end:], True


def is_distinct(figure: str) -> bool:
    """Whether a figure is known wherever it stands: it has a decimal, or it is a long phrase."""
    return bool(re.search(r"\d\.\d", figure)) or len(figure) >= _PHRASE


def _marked(text: str) -> str:
    """Prose in which each figure that no other text can mean stands in its mark."""
    names = {its: name for name, its in figures().items() if is_distinct(its)}
    longest = sorted(names, key=len, reverse=True)
    either = "|".join(re.escape(its).replace(r"\ ", r"\s+") for its in longest)
    return re.sub(
        rf"(?<![\d.])(?:{either})(?![\d])",
        lambda found: f'<span figure="{names[" ".join(found[0].split())]}">{found[0]}</span>',
        text,
    )


# --------------------------------------------------------------------------------------------------
# Tables
# --------------------------------------------------------------------------------------------------
QUICKSTART_HEAD = ("held-out metric, greedy", "rows", "before", "seed 0", "seed 1", "seed 2")


def quickstart_rows(is_short: bool) -> Iterator[list[str]]:
    """Rows of the quickstart's table; the short one leaves out the expected score."""
    for row in content()["quickstart"]:
        if not (is_short and "expected" in row["figures"]):
            cells = (figures()[f"{row['figures']}_{which}"] for which in ("before", 0, 1, 2))
            yield [row["name"], str(row["rows"]), *cells]
