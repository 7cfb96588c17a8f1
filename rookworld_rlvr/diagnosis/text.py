"""A diagnosis in the terminal, and on disk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ..common.errors import RookWorldError
from ..common.terminal import printable
from .lines import LINES, cells, flagged, heads, merged, side_by_side, tokens, with_totals
from .page import page
from .run import PARTS, RESULT_HTML, RESULT_JSON, Diagnosis
from .sections import taught_of

Part = Mapping[str, Any]


GROUPS_SHOWN = 2  # of part 3, with each of their completions


TOKENS_SHOWN = 12


NUMBERS_SHOWN = 8  # rewards and advantages of a group


TEXT_SHOWN = 36  # characters of a completion


LEAST_WIDTH = 100  # if the output is not a terminal


_COLOURS = {"stop": "bold red", "warning": "yellow", "info": "cyan", "verdict": "bold"}


def print_report(diagnoses: Sequence[Diagnosis]) -> None:
    """Print one diagnosis in full, or two side by side."""
    console = Console(width=None if Console().is_terminal else LEAST_WIDTH)
    for place, (key, title) in enumerate(PARTS.items(), 1):
        console.rule(f"[bold]{place}. {title}", align="left")
        console.print(_lines(key, diagnoses))
        if len(diagnoses) == 1:
            for detail in _details(key, diagnoses[0].parts[key]):
                console.print(detail)
    for diagnosis in diagnoses:
        name = f" of {diagnosis.recipe}" if len(diagnoses) > 1 else ""
        console.rule(_text(f"Cost of the phases{name}", style="bold"), align="left")
        console.print(_filled_table("phases", diagnosis.phases["rows"]))
        console.print(f"Peak memory is the {diagnosis.phases['memory']}.")
        if diagnosis.repetitions:
            console.rule(_text(f"One batch, repeated{name}", style="bold"), align="left")
            console.print(_filled_table("repetitions", diagnosis.repetitions))


def _lines(key: str, diagnoses: Sequence[Diagnosis]) -> Table:
    """The part's lines; for two diagnoses, a column each, by label."""
    several = len(diagnoses) > 1
    table = Table(show_header=several, box=None, pad_edge=False, expand=several)
    table.add_column("")
    for diagnosis in diagnoses:
        table.add_column(_text(diagnosis.recipe), ratio=1 if several else None, overflow="fold")
    parts = [LINES[key](diagnosis.parts[key]) for diagnosis in diagnoses]
    if not several:
        for label, text in parts[0]:
            table.add_row(_styled(label, label), _styled(text, label))
    elif key == "findings":  # they have no common labels
        table.add_row("", *(_text("\n".join(f"{a}: {b}" for a, b in lines)) for lines in parts))
    else:
        for label, *texts in side_by_side(parts):
            table.add_row(label, *map(_text, texts))
    return table


def _styled(text: str, label: str) -> Text:
    return _text(text, style=_COLOURS.get(label.split(":")[0], ""))


def _text(text: str, style: str = "") -> Text:
    """Text that is shown as it is written, without rich's markup and with control characters escaped."""
    return Text(printable(text), style=style)


# --------------------------------------------------------------------------------------------------
# Details
# --------------------------------------------------------------------------------------------------
def _details(key: str, part: Part) -> Iterator[RenderableType]:
    if key == "setup":
        yield _filled_table("overrides", part.get("overrides", ()))
    elif key == "completions":
        first: dict[str, Part] = {}  # of each task, preferably one that is taught
        for group in sorted(
            part["groups"], key=lambda g: not taught_of(g["completions"]).get("taught")
        ):
            first.setdefault(group["task"], group)
        for group in [*first.values()][:GROUPS_SHOWN]:
            yield _text(f"\n{group['prompt']}", style="bold")
            yield _filled_table("completions", map(_shortened, merged(group["completions"])))
            yield _filled_table("tokens", tokens(group["completions"][0])[:TOKENS_SHOWN])
    elif key == "advantages":
        yield _filled_table("groups", map(_shortened_group, part["groups"]))
    elif key == "loss_terms":
        yield _filled_table("prompts", part["prompts"])
    elif key == "gradients":
        yield _filled_table("layers", flagged(part["layers"]))


def _shortened_group(group: Part) -> Part:
    lists = {name: group[name][:NUMBERS_SHOWN] for name in ("rewards", "advantages")}
    return {**group, **lists}


def _shortened(completion: Part) -> Part:
    text = completion["text"]
    shown = text if len(text) <= TEXT_SHOWN else f"{text[: TEXT_SHOWN - 1]}…"
    return {**with_totals(completion), "text": shown}


def _filled_table(name: str, records: Iterable[Part]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    rows = list(records)
    for place, head in enumerate(heads(name, rows)):
        table.add_column(_text(head), justify="left" if place < 1 else "right", overflow="fold")
    for record in rows:
        table.add_row(*map(_text, cells(name, record)))
    return table


# --------------------------------------------------------------------------------------------------
# Files
# --------------------------------------------------------------------------------------------------
def write_reports(folder: Path, diagnoses: Sequence[Diagnosis]) -> list[Path]:
    """Write the JSON file and the page; for two diagnoses, the file lists them under ``diagnoses``.

    Raises:
        RookWorldError: The folder could not be written to.
    """
    contents = [diagnosis.to_dict() for diagnosis in diagnoses]
    whole = contents[0] if len(contents) == 1 else {"diagnoses": contents}
    files = {RESULT_JSON: json.dumps(whole, allow_nan=False) + "\n", RESULT_HTML: page(diagnoses)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise RookWorldError(
            f"output_dir: cannot write to {str(folder)!r} ({error.strerror or error}); give another "
            "folder"
        ) from error
    return [folder / name for name in files]
