"""The ten parts as labelled lines and rows of cells, for the terminal and the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from string import Formatter
from typing import Any

from ..common.files import read_asset

Part = Mapping[str, Any]


Lines = list[tuple[str, str]]


STEPS: Mapping[str, str] = {"step": "in the step", "one_step_on": "one step later"}
"""Key of the shares → when they were measured, in words."""


def number(value: Any, form: str = ".3g") -> str:
    """A number as text; a dash for None."""
    return "-" if value is None else format(value, form)


# --------------------------------------------------------------------------------------------------
# Lines
# --------------------------------------------------------------------------------------------------
class _Formatter(Formatter):
    """`str.format`, with a dash for None, bytes as MiB, and lists item by item."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, list):
            return " ".join(self.format_field(item, format_spec) for item in value)
        if format_spec == "MiB":
            return f"{value / 2**20:,.0f} MiB"
        return number(value, format_spec) if format_spec else str(value)


def filled(form: str, values: Part) -> str:
    """A form, filled with values."""
    return _Formatter().vformat(form, (), values)


def _lines(key: str, part: Part) -> Lines:
    found: Lines = []
    for label, form in _FORMS[key].items():
        if isinstance(form, str):
            found.append((label, filled(form, part)))
            continue
        records = named(part.get(form["each"], ())) if "each" in form else [part]
        if "when" in form and form["when"] not in part:
            continue
        found += [(filled(label, record), filled(form["text"], record)) for record in records]
    return found


def named(records: Mapping[str, Part] | Sequence[Part]) -> Sequence[Part]:
    """Records by name as records with a name."""
    if isinstance(records, Mapping):
        return [{"name": name, **record} for name, record in records.items()]
    return records


_FORMS = read_asset("templates/diagnosis.yaml")


def _setup(part: Part) -> Lines:
    model = part["model"]
    heat = ", ".join(f"{task} {value:g}" for task, value in part["step"]["temperature"].items())
    found = _lines("setup", {**part, "name": model["name"] or model["class"], "heat": heat})
    for key in ("data", "engine"):
        found += [(key if not place else "", x) for place, x in enumerate(part.get(key, ()))]
    return found


def _shares(part: Part) -> Lines:
    steps = [
        (f"{label}, {words}", text)
        for key, words in STEPS.items()
        if part[key] is not None
        for label, text in _lines("shares_step", part[key])
    ]
    return steps + _lines("shares", part)


def _gradients(part: Part) -> Lines:
    trained = [x for x in part["layers"] if x["frozen_parameters"] < x["parameters"]]
    more = {
        "frozen": part["frozen_parameters"] / max(1, part["parameters"]),
        "dead": ", ".join(x["layer"] for x in trained if x["zero"]) or "none",
        "broken": ", ".join(x["layer"] for x in part["layers"] if x["non_finite"]) or "none",
    }
    return _lines("gradients", {**part, **more})


def shown(findings: Sequence[Part]) -> list[tuple[Part, list[str]]]:
    """The findings that no other one explains, each with the rules of those that it explains.

    A finding that ends with exit code 1 is shown even if another one explains it.
    """
    return [
        (f, [other["rule"] for other in findings if other["consequence_of"] == f["rule"]])
        for f in findings
        if f["consequence_of"] is None or f["severity"] == "stop"
    ]


def _findings(part: Part) -> Lines:
    return [
        ("verdict", part["verdict"]),
        *(
            (
                f"{f['severity']}: {f['rule']}",
                f["message"]
                + (f" [consequence of {f['consequence_of']}]" if f["consequence_of"] else "")
                + (f" [keys: {', '.join(f['keys'])}]" if f["keys"] else "")
                + (f" [it explains {', '.join(explained)}]" if explained else ""),
            )
            for f, explained in shown(part["findings"])
        ),
    ]


LINES: Mapping[str, Callable[[Part], Lines]] = {
    "setup": _setup,
    "heldout_before": partial(_lines, "heldout"),
    "completions": partial(_lines, "completions"),
    "rewards": partial(_lines, "rewards"),
    "advantages": partial(_lines, "advantages"),
    "loss_terms": partial(_lines, "loss_terms"),
    "shares": _shares,
    "gradients": _gradients,
    "heldout_after": partial(_lines, "heldout"),
    "findings": _findings,
}
"""Key of a part → its lines, as pairs of label and text."""


def side_by_side(parts: Sequence[Lines]) -> list[tuple[str, ...]]:
    """The same part of several diagnoses by label; a line without a label continues the last one.

    >>> side_by_side([[("a", "1"), ("", "2")], [("b", "3")]])
    [('a', '1\\n2', '-'), ('b', '-', '3')]
    """
    columns = []
    for lines in parts:
        column: dict[str, str] = {}
        last = ""
        for label, text in lines:
            last = label or last
            column[last] = f"{column[last]}\n{text}" if last in column else text
        columns.append(column)
    labels = dict.fromkeys(label for column in columns for label in column)
    return [(label, *(column.get(label, "-") for column in columns)) for label in labels]


# --------------------------------------------------------------------------------------------------
# Cells
# --------------------------------------------------------------------------------------------------
TABLES: Mapping[str, Mapping[str, str | Mapping[str, str]]] = _FORMS["tables"]
"""Name of a table → head and form of its cells; see the file for columns that may be missing."""


def _columns(table: str, values: Part) -> dict[str, str]:
    """Head and form of the cells that there are for some values."""
    return {
        head: form if isinstance(form, str) else form["text"]
        for head, form in TABLES[table].items()
        if isinstance(form, str) or form["when"] in values
    }


def heads(table: str, records: Sequence[Part]) -> tuple[str, ...]:
    """The heads of a table of records, which all have the same keys."""
    return tuple(_columns(table, records[0] if records else {}))


def cells(table: str, values: Part) -> tuple[str, ...]:
    """A row of a table."""
    return tuple(filled(form, values) for form in _columns(table, values).values())


def merged(completions: Sequence[Part]) -> list[Part]:
    """A group's completions, the best reward first; equal ones are merged, with their `count`.

    Completions are equal if text, reward, source and whether they ended by themselves are. Merged gaps
    are the largest ones.
    """
    equal: dict[tuple[Any, ...], list[Part]] = {}
    for row in completions:
        key = (row["text"], row["reward"], row["ended"], row.get("source"))
        equal.setdefault(key, []).append(row)
    gaps = ("sampler_gap", "reference_gap")
    found = [
        {
            **rows[0],
            "count": len(rows),
            **{
                name: max((r[name] for r in rows if r[name] is not None), default=None)
                for name in gaps
            },
        }
        for rows in equal.values()
    ]
    return sorted(found, key=_best_first)


def _best_first(row: Part) -> tuple[float, int]:
    return math.inf if row["reward"] is None else -row["reward"], -row["count"]


def with_totals(completion: Part) -> Part:
    """A completion with its total log-probs by sampler, policy and reference."""
    totals = {name: _total(completion[name]) for name in ("sampler", "policy", "reference")}
    return {**completion, **totals}


def _total(values: Sequence[float | None] | None) -> float | None:
    return None if values is None else sum(v for v in values if v is not None)


def tokens(completion: Part) -> list[Part]:
    """A completion's tokens, each with its log-probs and terms."""
    names = ["sampler", "policy", "reference", "policy_term", "kl_term"]
    names += ["teach_term"] if "teach_term" in completion else []
    return [
        {"token": token, **{n: completion[n][place] if completion[n] else None for n in names}}
        for place, token in enumerate(completion["tokens"])
    ]


def flagged(layers: Sequence[Part]) -> list[Part]:
    """Layers, each with what is wrong with its gradient."""
    keys = {"frozen": "frozen_parameters", "zero": "zero", "not finite": "non_finite"}
    return [{**x, "flags": [words for words, key in keys.items() if x[key]]} for x in layers]


def bar_rows(
    records: Mapping[str, Part] | Sequence[Part], label: str, value: str, form: str
) -> list[tuple[str, float | None, str]]:
    """Label, value and text of a bar for each record."""
    return [(filled(label, r), r[value], filled(form, r).rstrip()) for r in named(records)]
