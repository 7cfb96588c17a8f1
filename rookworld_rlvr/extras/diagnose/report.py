"""A diagnosis in the terminal and on disk: its numbers under their own names, and a page with boards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.console import Console
from rich.table import Table

from ...common.errors import IllegalPositionError
from ...common.files import write_text
from ...common.html import render
from ...common.terminal import printable, width
from ...tasks.boards import action_arrows, position_board
from .phases import PHASES, RESULT_JSON

RESULT_HTML = "diagnosis.html"
GROUPS_SHOWN = 2  # in the terminal, and unfolded on the page
ROWS_SHOWN = 12  # of a table in the terminal
CELL_SHOWN = 1_000  # characters in the terminal
BY_TOKEN = ("sampler", "policy", "reference", "kl")  # of a completion
MOST_WIDTH = 120  # columns

Section = Mapping[str, Any]


# --------------------------------------------------------------------------------------------------
# What is shown of a phase
# --------------------------------------------------------------------------------------------------
def shown(value: Any) -> str:
    """A value as text: numbers with four digits, a dash for None, lists and mappings item by item.

    >>> shown({"mean": 1 / 3, "rows": [1200, None]})
    'mean 0.3333, rows 1,200 -'
    """
    if value is None:
        return "-"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{label(name)} {shown(item)}" for name, item in value.items())
    if isinstance(value, list):
        between = "\n" if value and isinstance(value[0], str) else " "
        return between.join(map(shown, value))
    return str(value)


def label(key: str) -> str:
    """A key in words."""
    return key.replace("_", " ")


def lines(part: Section) -> Iterator[tuple[str, str]]:
    """A phase's numbers, as pairs of label and text."""
    for key, value in part.items():
        if not _is_table(value) and value not in ([], ""):
            yield label(key), shown(value)


def tables(part: Section) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """A phase's lists of records, as titles, heads and rows of cells."""
    for key, value in part.items():
        if _is_table(value) and key not in ("groups_of_texts", "findings"):
            rows = [[*map(shown, record.values())] for record in value]
            yield label(key), [*map(label, value[0])], rows


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def findings(part: Section) -> list[tuple[Section, str]]:
    """The findings that no other one explains, and those that end with exit code 1, each in words."""
    texts = []
    for found in part["findings"]:
        if found["consequence_of"] is None or found["severity"] == "stop":
            said = {"keys": found["remedy_keys"], "explains": found["explains"]}
            notes = [f"[{name}: {', '.join(words)}]" for name, words in said.items() if words]
            texts.append((found, " ".join([found["message"], *notes])))
    return texts


def completions(group: Section) -> list[dict[str, Any]]:
    """A group's completions, the best reward first, each with sums over its tokens."""
    rows = sorted(group["completions"], key=lambda row: -(row["reward"] or 0.0))
    numbers = ("reward", "advantage", *BY_TOKEN, "policy_term", "penalty", "total")
    return [
        {"completion": row["text"]}
        | {name: sum(row[name]) if isinstance(row[name], list) else row[name] for name in numbers}
        for row in rows
    ]


# --------------------------------------------------------------------------------------------------
# The terminal
# --------------------------------------------------------------------------------------------------
def print_report(record: Section) -> None:
    """Print the ten phases, then what they cost."""
    console = Console(width=width(MOST_WIDTH), markup=False, emoji=False, highlight=False)
    for place, (key, title) in enumerate(PHASES.items(), 1):
        console.rule(f"{place}. {title}", align="left")
        part = record[key]
        console.print(_table([], lines(part)))
        for finding, text in findings(part) if key == "analysis" else ():
            console.print(printable(f"{finding['severity']}: {finding['rule']}: {text}"))
        found = [*tables(part)]
        for number, group in enumerate(part.get("groups_of_texts", [])[:GROUPS_SHOWN]):
            sampled = completions(group)
            texts = [[str(n), row.pop("completion")] for n, row in enumerate(sampled, 1)]
            found += tables({f"group {number}: {group['prompt']}": sampled})
            found.append(("its completions, in this order", ["row", "completion"], texts))
        for name, heads, rows in found:
            console.print(printable(f"\n{name}"), style="bold")
            for some in fitted(heads, rows[:ROWS_SHOWN], console.width):
                console.print(_table(*some))
            if len(rows) > ROWS_SHOWN:
                console.print(f"... and {len(rows) - ROWS_SHOWN} more in {RESULT_JSON}")
    for name, heads, rows in tables({"costs": record["costs"]}):
        console.rule(name, align="left")
        console.print(_table(heads, rows))


def fitted(
    heads: list[str], rows: list[list[str]], room: int
) -> Iterator[tuple[list[str], list[list[str]]]]:
    """A table as one or several of at most `room` characters, so that no number is cut.

    Those after the first repeat its first column. A cell that is wider than that is alone beside it.

    >>> for part in fitted(["group", "std", "verdict"], [["0", "0.5", "enough"]], room=12):
    ...     print(*part)
    ['group', 'std'] [['0', '0.5']]
    ['group', 'verdict'] [['0', 'enough']]
    """
    columns = [[head, *cells] for head, *cells in zip(heads, *rows, strict=True)]
    if sum(map(_wide, columns)) > room:  # heads of several lines
        columns = [[head.replace(" ", "\n"), *cells] for head, *cells in columns]
    while columns:
        first, *others = columns
        left = room - _wide(first)
        fit: list[list[str]] = []
        for column in others:
            if _wide(column) <= left or not fit:
                fit.append(column)
                left -= _wide(column)
        some, *lists = zip(first, *fit, strict=True)
        yield [*some], [[*cells] for cells in lists]
        others = [column for column in others if column not in fit]
        columns = [first, *others] if others else []


def _wide(column: Iterable[str]) -> int:
    """The characters that a column of a table takes, with the space behind it."""
    return 1 + max(len(line) for cell in column for line in cell.splitlines() or [""])


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table, with a row of heads if there are any."""
    padding = (0, 1, 0, 0) if heads else (0, 1)  # ten numbers fit into 80 columns
    table = Table(show_header=bool(heads), box=None, pad_edge=False, padding=padding)
    for head in heads:
        table.add_column(head, overflow="fold")  # of a word that is wider
    for row in rows:
        cut = (cell if len(cell) <= CELL_SHOWN else f"{cell[:CELL_SHOWN]}…" for cell in row)
        table.add_row(*map(printable, cut))
    return table


# --------------------------------------------------------------------------------------------------
# Files
# --------------------------------------------------------------------------------------------------
def page(record: Section) -> Markup:
    """The diagnosis as one self-contained page, readable on a phone; the verdict comes first."""
    functions = {f.__name__: f for f in (shown, lines, tables, findings, completions)}
    constants = {"titles": PHASES, "unfolded": GROUPS_SHOWN, "by_token": BY_TOKEN}
    return render("diagnosis.html", record=record, board=_board, **constants, **functions)


def _board(group: Section) -> Markup:
    """The prompt's position, with the action of an environment prompt as an arrow."""
    try:
        return Markup(position_board(group["fen"] or "", action_arrows(group["action"] or None)))
    except IllegalPositionError:
        return Markup()


def write_reports(folder: Path, record: Section) -> list[Path]:
    """Write the JSON file and the page."""
    files = {RESULT_JSON: json.dumps(record, allow_nan=False) + "\n", RESULT_HTML: page(record)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_text(folder / name, text)
    return [folder / name for name in files]
