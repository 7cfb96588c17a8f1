"""A diagnosis in the terminal and on disk: its numbers under their own names, and a page with boards."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
LINES_UNFOLDED = 10  # of a cell on the page
CELL_SHOWN = 1_000  # characters in the terminal
BY_TOKEN = ("sampler", "policy", "reference", "kl")  # of a completion
MOST_WIDTH = 120  # columns

Section = Mapping[str, Any]


# --------------------------------------------------------------------------------------------------
# What is shown of a phase
# --------------------------------------------------------------------------------------------------
def shown(value: Any) -> str:
    """A value as text: numbers with three digits, a dash for None; a mapping has a line for each item.

    >>> print(shown({"mean": 1 / 3, "rows": [1200, None]}))
    mean 0.333
    rows 1,200 -
    """
    if value is None:
        return "-"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else _digits(value)
    if isinstance(value, Mapping):
        return "\n".join(f"{name} {shown(item)}" for name, item in value.items())
    if isinstance(value, list):
        between = "\n" if value and isinstance(value[0], str) else " "
        return between.join(map(shown, value))
    return str(value)


def _digits(value: float) -> str:
    """Three significant digits; a large number keeps all that stand before its point.

    >>> [_digits(value) for value in (0.06615, -14.55, 2.0, 1234.5, 7.502e-06)]
    ['0.0662', '-14.6', '2', '1,234', '7.5e-06']
    """
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


_NUMBER = re.compile(r"(-?[\d,]+)((?:\.\d+)?(?:e[+-]\d+)?)")


def aligned(cells: Sequence[str]) -> list[str]:
    """A column whose numbers have their points one below the other; other texts stay as they are.

    >>> aligned(["2.07", "-0.0662", "14", "-"])
    [' 2.07  ', '-0.0662', '14     ', '-']
    """
    found = [_NUMBER.fullmatch(cell) for cell in cells]
    wide = max((len(match[1]) for match in found if match), default=0)
    deep = max((len(match[2]) for match in found if match), default=0)
    return [
        f"{match[1]:>{wide}}{match[2]:<{deep}}" if match else cell
        for cell, match in zip(cells, found, strict=True)
    ]


def _columns_aligned(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    columns = (aligned(column) for column in zip(*rows, strict=True))
    return [list(row) for row in zip(*columns, strict=True)]


def lines(part: Section) -> list[tuple[str, str]]:
    """A phase's values that are not 0, as pairs of name and text."""
    found = {
        key: shown(value)
        for key, value in part.items()
        if not _is_table(value) and value not in ([], "") and not _is_zero(value)
    }
    return list(zip(found, aligned(list(found.values())), strict=True))


def zeros(part: Section) -> list[str]:
    """The names of a phase's numbers that are 0."""
    return [key for key, value in part.items() if _is_zero(value)]


def _is_zero(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 0


def tables(part: Section) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """A phase's lists of records, as titles, heads and rows of cells."""
    for key, value in part.items():
        if _is_table(value) and key not in ("groups_of_texts", "findings"):
            rows = [[*map(shown, record.values())] for record in value]
            yield key, [*value[0]], _columns_aligned(rows)


def completion_rows(group: Section) -> list[tuple[str, list[str]]]:
    """A group's completions, each with its numbers as `tables` would write them."""
    rows = completions(group)
    numbers = [[shown(value) for key, value in row.items() if key != "completion"] for row in rows]
    texts = [row["completion"] for row in rows]
    return list(zip(texts, _columns_aligned(numbers), strict=True))


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
    """Print the ten phases, then what they cost, and last once more what was found."""
    console = Console(width=width(MOST_WIDTH), markup=False, emoji=False, highlight=False)
    for place, (key, title) in enumerate(PHASES.items(), 1):
        console.rule(f"{place}. {title}", align="left")
        part = record[key]
        console.print(_table([], lines(part)))
        if zero := zeros(part):
            console.print(printable(f"all 0: {', '.join(zero)}"))
        if key == "analysis":
            _print_findings(console, part)
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
    console.print()
    _print_findings(console, record["analysis"])


def _print_findings(console: Console, part: Section) -> None:
    for finding, text in findings(part):
        console.print(printable(f"{finding['severity']}: {finding['rule']}: {text}"))


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
        columns = [[re.sub("([_/])", r"\1\n", head), *cells] for head, *cells in columns]
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
    used: list[Callable[..., Any]] = [shown, lines, zeros, tables, findings]
    used += [completions, completion_rows, cell]
    functions = {function.__name__: function for function in used}
    constants = {"titles": PHASES, "unfolded": GROUPS_SHOWN, "by_token": BY_TOKEN}
    return render("diagnosis.html", record=record, board=_board, **constants, **functions)


def cell(text: str) -> Markup:
    """A cell of the page: digits one below the other, and lines as they were written, many folded."""
    if _NUMBER.fullmatch(text.strip()):
        return Markup('<span class="digits">{}</span>').format(text)
    drawn = Markup('<span class="lines">{}</span>' if "\n" in text else "{}").format(text)
    if (count := text.count("\n") + 1) <= LINES_UNFOLDED:
        return drawn
    return Markup("<details><summary>{} lines</summary>{}</details>").format(count, drawn)


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
