"""What `rookworld recipes` shows: a table of the packaged recipes, and what one of them is for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.files import is_hub_id, read_asset, shipped, shipped_names
from ..common.terminal import wrapped

_MINUTES = re.compile(r"# Minutes: (\S+) \((.+)\)")
_START = re.compile(r"# Start: (\S+) \(made by (.+)\)")
_ROWS = re.compile(r"# Rows: (\S+) \(made by (.+)\)")
_HEAD = ("name", "model", "on", "minutes", "needs")
_WITH_ENGINE = ("prepare", "evolve")  # commands that ask Stockfish unless they are told not to

_HELP = """
rookworld recipes lists the packaged recipes.
rookworld recipes show NAME says what one is for, and what it needs.
rookworld recipes copy NAME [WHERE] copies one to this folder, or to another folder or file.
"""
_BELOW = """
model: the start of what was measured; recipes show NAME has the command.
minutes: as measured; ~ is reckoned from a measured step; - was never timed.
needs: a recipe or a script of that name must have run before.
rookworld recipes show NAME says what a recipe is for; recipes copy NAME copies it, for your edits.
"""


@dataclass(frozen=True, slots=True)
class Listed:
    """A recipe as it is listed.

    Args:
        name: As ``--config`` takes it.
        model: The starting model of what was measured; empty if it has none.
        device: ``GPU`` or ``CPU``: what its numbers were chosen for.
        minutes: How long it takes; ``-`` if it was never timed.
        timed_on: The machine of these minutes.
        needs: What must be there before: the Hub, Stockfish, recipes or scripts to run first.
        own_model: The starting model in its file, from which it starts without ``--model``.
    """

    name: str
    model: str
    device: str
    minutes: str
    timed_on: str
    needs: tuple[str, ...]
    own_model: str

    @property
    def cells(self) -> tuple[str, ...]:
        """Its row of the table."""
        short = self.model.rpartition("/")[2]
        needs = ", ".join(self.needs) or "-"
        return self.name, short or "-", self.device, self.minutes, needs


def listed(name: str) -> Listed:
    """What is listed of a packaged recipe: most of it follows from its keys."""
    path = shipped("recipes") / f"{name}.yaml"
    keys = _keys(path)
    text = path.read_text(encoding="utf-8")
    timed, started, rows = (pattern.search(text) for pattern in (_MINUTES, _START, _ROWS))
    minutes, timed_on = timed.groups() if timed else ("-", "")
    own_model = str(keys.get("model_name_or_path", ""))
    model = started[1] if started else own_model
    device = "GPU" if keys.get("bf16") is True else "CPU"
    if rows:
        keys.pop("dataset_name", None)  # a file, whose name may look like one of the Hub
    makers = [found[2] for found in (started, rows) if found]
    needs = dict.fromkeys([*makers, *_needs(name, keys)])
    return Listed(name, model, device, minutes, timed_on, tuple(needs), own_model)


def _keys(path: Path) -> dict[str, Any]:
    """A recipe's keys; those of a sweep come after those of the recipe that it varies."""
    keys: dict[str, Any] = read_asset(path)
    for word in keys.get("command", ()):
        if word.endswith(".yaml"):
            return {**read_asset(path.with_name(Path(word).name)), **keys}
    return keys


def _needs(name: str, keys: Mapping[str, Any]) -> Iterator[str]:
    model, data = (str(keys.get(key, "")) for key in ("model_name_or_path", "dataset_name"))
    if any(map(is_hub_id, (model, data))):
        yield "the Hub"
    rewards = (reward for reward in keys.get("rewards", ()) if "model" in reward)
    for folder in (model, *(reward["model"] for reward in rewards)):
        if folder.startswith("runs/"):
            maker = folder.removeprefix("runs/")
            yield maker if maker in shipped_names("recipes") else folder
    asks = name.startswith(_WITH_ENGINE) and keys.get("labels") != "stored"
    if asks or keys.get("labels") == "stored_or_engine":
        yield "Stockfish"


def recipe_table() -> list[str]:
    """A line for each packaged recipe under a head, and how to learn more."""
    rows = [_HEAD, *(listed(name).cells for name in shipped_names("recipes"))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_aligned(row, widths) for row in rows]
    return [*lines, *wrapped(_BELOW, 0).splitlines()]


def recipes_help() -> list[str]:
    """What `rookworld recipes` can do."""
    return wrapped(_HELP.strip(), 0).splitlines()


def _aligned(cells: Iterable[str], widths: Iterable[int]) -> str:
    return "  ".join(map(str.ljust, cells, widths)).rstrip()


def recipe_text(name: str) -> list[str]:
    """What a packaged recipe is for, in its own words, what it needs, and how it is copied."""
    path = shipped("recipes") / f"{name}.yaml"
    one = listed(name)
    made_for = {"GPU": "a GPU, in bf16", "CPU": "a CPU; a GPU serves too"}[one.device]
    minutes = f"{one.minutes} ({one.timed_on})" if one.timed_on else "never timed"
    measured = "" if one.model == one.own_model else f"; measured from {one.model} (--model)"
    facts = {
        "model": f"{one.own_model or 'none'}{measured}",
        "made for": made_for,
        "minutes": minutes,
        "needs": ", ".join(one.needs) or "nothing that is not packaged",
    }
    lines = [f"{head:<9} {text}" for head, text in facts.items()]
    prose = wrapped("\n".join(_prose(path)).strip(), 0)
    more = f"rookworld recipes copy {name} copies it to this folder, for your edits."
    return [prose, "", *lines, "", wrapped(more, 0)]


def _prose(path: Path) -> Iterator[str]:
    """The comment at a recipe's head: its paragraphs in one line each, its commands as they are."""
    paragraph: list[str] = []
    for line in path.read_text(encoding="utf-8").split("\n\n")[0].splitlines():
        text = line.removeprefix("#").removeprefix(" ")
        if any(pattern.match(line) for pattern in (_MINUTES, _START, _ROWS)):
            continue
        if text and not text.startswith(" "):
            paragraph.append(text)
            continue
        if paragraph:
            yield " ".join(paragraph)
            paragraph = []
        yield text
    if paragraph:
        yield " ".join(paragraph)
