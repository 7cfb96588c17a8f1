"""Write the tables of the documentation, and the table of keys, that follow from the code.

    make docs                          # or: python docs/generate.py
    python docs/generate.py --check    # write nothing; exit code 1 if a table is out of date

A table is what is between ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->`` on a page. The keys of
each script go into ``assets/keys.yaml``, by which the command line refuses a misspelt key at once.
Tables and plots of what was measured follow from ``benchmarks/results/``, and so do figures that stand
on more than one page (``headlines.py``).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import headlines
import plots
import tries
import yaml

from rookworld_rlvr.cli.help_text import help_entries
from rookworld_rlvr.cli.run import SCRIPTS
from rookworld_rlvr.common.settings import BOUNDS, Bounds, kinds
from rookworld_rlvr.evaluation.ratings import games_needed
from rookworld_rlvr.evaluation.registry import SUITE_HEADLINES
from rookworld_rlvr.evaluation.suite import suite_class
from rookworld_rlvr.rewards.registry import known_rewards
from rookworld_rlvr.tasks.registry import TASKS
from rookworld_rlvr.training.glossary import GLOSSARY, SECTIONS
from rookworld_rlvr.training.health import RULES

DOCS = Path(__file__).parent
REPOSITORY = DOCS.parent
FOREIGN = ("trl", "transformers")
KEYS = REPOSITORY / "rookworld_rlvr" / "assets" / "keys.yaml"
MARKED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end: \2 -->)", re.S)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, name stale pages")
    args = parser.parse_args()
    stale = stale_pages([*DOCS.glob("*.md"), REPOSITORY / "README.md"])
    if KEYS.read_text(encoding="utf-8") != (text := keys_by_script()):
        stale[KEYS] = text
    stale |= stale_plots()
    for path, text in stale.items():
        print(
            f"{path.relative_to(REPOSITORY)}: {'out of date; make docs' if args.check else 'written'}"
        )
        if not args.check:
            path.write_text(text, encoding="utf-8")
    return int(args.check and bool(stale))


def stale_pages(paths: Iterable[Path]) -> dict[Path, str]:
    """The pages whose tables differ from the code, with the text that they should have."""
    pages = {path: path.read_text(encoding="utf-8") for path in paths}
    fresh = {path: headlines.filled(MARKED.sub(_filled, text)) for path, text in pages.items()}
    return {path: text for path, text in fresh.items() if text != pages[path]}


def stale_plots() -> dict[Path, str]:
    """The plots that differ from the log of tries, with what they should hold."""
    return {
        path: text
        for path, text in plots.drawn()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }


def _filled(match: re.Match[str]) -> str:
    return f"{match[1]}\n{TABLES[match[2]]()}\n\n{match[3]}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; every cell must hold something."""
    lines = [list(head), ["---"] * len(head), *map(list, rows)]
    for line in lines:
        if not all(line):
            raise ValueError(f"a cell is empty in the row {line}: describe it in the code")
    cells = [
        [re.sub(r"(?<!\\)\|", r"\\|", " ".join(cell.split())) for cell in line] for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def item(text: str) -> str:
    """An item of a Markdown list; no further line of it may look like an item itself."""
    text = " ".join(text.split())
    for width in range(118, 90, -1):
        lines = textwrap.wrap(
            text, width, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
        )
        if not any(re.match(r" +([-+*]|\d+[.)]) ", line) for line in lines):
            return "\n".join(lines)
    raise ValueError(f"no way to break {text!r} into lines; reword it")


def code(*words: Any) -> str:
    return ", ".join(f"`{word}`" for word in words)


# --------------------------------------------------------------------------------------------------
# Keys
# --------------------------------------------------------------------------------------------------
TOPICS: Mapping[str, Sequence[str]] = {
    "What a command does": ["RunArguments"],
    "Rows": ["DataArguments", "SourceArguments", "RowArguments"],
    "Values of moves": ["LabelArguments", "EngineArguments"],
    "Rewards, preflight and health": ["RookWorldGRPOConfig", "RewardFaultArguments"],
    "The step": ["StepArguments"],
    "Resuming, logging and the Hub": ["TrainingDefaults"],
    "Held-out samples, other tasks and suites": ["MeasurementArguments", "SuiteArguments"],
    "Evaluation": ["EvaluateArguments", "ModelArguments"],
    "Diagnosis and report": ["DiagnoseArguments", "ReportArguments"],
    "Supervised training and judges": [
        "RookWorldSFTConfig",
        "JudgeDataArguments",
        "RookWorldRewardConfig",
    ],
    "Audit and preparation of data": [
        "AuditArguments",
        "PrepareArguments",
        "PositionArguments",
        "GameArguments",
    ],
    "Rounds": ["EvolveArguments"],
    "Export": ["ExportArguments"],
    "Sweeps": ["SweepArguments"],
    "W&B workspaces": ["WorkspaceArguments"],
}
"""Topics of the table of keys, and the dataclasses that belong to each."""


def keys() -> str:
    """One table of our keys by topic: which commands take a key, what it may be, what it does."""
    commands_of = owners()
    named = {owner.__name__: owner for owner in commands_of}
    if missing := set(named).difference(*TOPICS.values()):
        raise ValueError(f"no topic for {', '.join(sorted(missing))}; add it to TOPICS")
    rows = []
    for topic, names in TOPICS.items():
        cells: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
        for owner in (named[name] for name in names if name in named):
            hints = get_type_hints(owner)
            for item in own_keys(owner):
                value = values(hints[item.name], item)
                text = value if default(item) == "-" else f"{value} ({default(item)})"
                commands, given = cells.setdefault((item.name, described(owner, item)), ([], []))
                given.append(f"{', '.join(commands_of[owner])}: {default(item)}" if given else text)
                commands += [name for name in commands_of[owner] if name not in commands]
        if cells:
            rows.append([f"**{topic}**"])  # the cells that a row lacks are empty
        for (name, text), (commands, given) in cells.items():
            rows.append([code(name), ", ".join(commands), "; ".join(given), text])
    return table(["key", "commands", "value (default)", "what it does"], rows)


def own_keys(owner: type) -> list[dataclasses.Field[Any]]:
    """The keys that a dataclass of ours declares, without those of TRL and transformers."""
    fields = {item.name: item for item in dataclasses.fields(owner)}
    foreign = {
        name
        for base in owner.__mro__
        if base.__module__.partition(".")[0] in FOREIGN and dataclasses.is_dataclass(base)
        for name in base.__dataclass_fields__
    }
    declared = [name for name in vars(owner)["__annotations__"] if name not in foreign]
    return [fields[name] for name in declared if fields[name].init]


def owners() -> dict[type, list[str]]:
    """The package's dataclasses of keys, in the order of the commands, and which commands take them."""
    found: dict[type, list[str]] = {}
    for command in SCRIPTS:
        for kind in script_module(command).GROUPS:
            for owner in kind.__mro__:
                has_keys = dataclasses.is_dataclass(owner) and vars(owner).get("__annotations__")
                foreign = owner.__module__.partition(".")[0] in FOREIGN
                if has_keys and not foreign:
                    found.setdefault(owner, []).append(command)
    return found


def keys_by_script() -> str:
    """Each script's usual recipe and all its keys, with the versions of TRL's and transformers'."""
    found = {
        command: sorted(
            item.name
            for kind in script_module(command).GROUPS
            for item in dataclasses.fields(kind)
            if item.init
        )
        for command in SCRIPTS
    }
    usual = {
        command: recipe.name
        for command in SCRIPTS
        if (recipe := getattr(script_module(command), "RECIPE", None))
    }
    versions = {name: version(name) for name in FOREIGN}
    head = "# The usual recipe and the keys of each script, written by `make docs`.\n"
    content = {"recipes": usual, "versions": versions, "keys": found}
    return head + yaml.safe_dump(content, width=100, sort_keys=False)


def script_module(name: str) -> Any:
    """A script of ``recipes/`` as a module."""
    sys.path.insert(0, str(REPOSITORY / "recipes"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def described(owner: type, item: dataclasses.Field[Any]) -> str:
    """What a key does, from its help."""
    text = str(item.metadata.get("help", ""))
    if not text:
        raise ValueError(f"{owner.__name__}.{item.name} has no description; give it a help text")
    return text.replace("%%", "%")


def default(item: dataclasses.Field[Any]) -> str:
    value = item.default
    if item.default_factory is not dataclasses.MISSING:
        value = item.default_factory()
    if value is dataclasses.MISSING:
        return "required"
    return shown(value)


def shown(value: Any) -> str:
    """A value as YAML writes it; a dash for nothing."""
    if value is None or value in ("", [], {}):
        return "-"
    return code(str(value).lower() if isinstance(value, bool) else value)


def values(hint: Any, item: dataclasses.Field[Any]) -> str:
    """What a key may be: its choices, or its type and its bounds."""
    kind = next(kind for kind in kinds(hint) if kind is not NoneType)
    bounds: Bounds = item.metadata.get(BOUNDS, Bounds())
    if get_origin(kind) is Literal:
        return code(*(choice for choice in get_args(kind) if isinstance(choice, str)))
    form = get_origin(kind) or kind
    words = {bool: "true, false", int: "whole number", float: "number", str: "text"}
    words |= {dict: "mapping", list: "list", tuple: "list"}
    limits = {">": bounds.above, "≥": bounds.least, "<": bounds.below, "≤": bounds.most}
    limit = " and ".join(
        f"{sign} {number:g}" for sign, number in limits.items() if number is not None
    )
    return f"{words.get(form, 'text')}{f' {limit}' if limit else ''}"


# --------------------------------------------------------------------------------------------------
# The other tables
# --------------------------------------------------------------------------------------------------
def tasks() -> str:
    """What the model does in each task, and what is made of its score."""
    return "\n".join(
        item(
            f"{code(task.name)} {task.ability}. Headline metric: {code(task.headline)}. "
            f"Rewards: {code(*task.rewards)}."
        )
        for task in TASKS.values()
    )


def rewards() -> str:
    """The rewards of each task; those of several tasks have a list of their own."""
    found = known_rewards()
    parts = []
    for owner in dict.fromkeys(reward.tasks for reward in found.values()):
        parts.append(f"**{' and '.join(owner)}**\n")
        parts += [
            item(f"{code(name)}, {reward.range}: {reward.meaning}")
            for name, reward in found.items()
            if reward.tasks == owner
        ]
        parts.append("")
    return "\n".join(parts[:-1])


def rules() -> str:
    rows = [
        [code(name), rule.severity, _bound(rule), rule.meaning, rule.remedy]
        for name, rule in RULES.items()
    ]
    return table(["rule", "severity", "bound", "what it means", "what to do"], rows)


def _bound(rule: Any) -> str:
    if rule.bound is None:
        return "-"
    return f"{100 * rule.bound:g}%" if rule.share else f"{rule.bound:g}"


def metrics() -> str:
    """One table by section, a row for each metric."""
    rows = []
    for section, title in SECTIONS.items():
        found = [metric for metric in GLOSSARY if metric.section == section]
        rows.append([f"**{title}**"])  # the cell that the row lacks is empty
        rows += [[code(metric.key), metric.meaning] for metric in found]
    return table(["metric", "what it means"], rows)


def suites() -> str:
    """What each suite asks, and what its metrics mean; what two suites share is explained once."""
    parts = []
    explained: dict[tuple[str, str], str] = {}
    for suite in map(suite_class, SUITE_HEADLINES):
        meanings: list[str] = []
        shared: dict[str, list[str]] = {}
        for name, metric in suite.metrics.items():
            first = explained.setdefault((name, metric.meaning), suite.name)
            if first == suite.name:
                meanings.append(item(f"{code(name)}: {metric.meaning}"))
            else:
                shared.setdefault(first, []).append(name)
        head = (
            f"**{code(suite.name)}** (version {suite.version}, headline {code(suite.headline)}). "
        )
        lines = [
            *textwrap.wrap(head + suite.summary, 118, break_on_hyphens=False),
            "",
            *meanings,
            *(item(f"{code(*names)}: as in {code(first)}.") for first, names in shared.items()),
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def games_for() -> str:
    """How many games show that one player is stronger, by the difference in Elo."""
    rows = [
        [str(elo), f"{games_needed(elo):,}", f"{games_needed(elo, draws=0.4):,}", f"{half:,}"]
        for elo in (10, 20, 30, 50, 100, 200)
        for half in [games_needed(elo, power=0.5)]
    ]
    head = [
        "difference in Elo",
        "games",
        "if 40% are drawn",
        "games for an interval of ± the difference",
    ]
    return table(head, rows)


def other_words() -> str:
    """Our keys after the names that other code has for them: a list, because cells would be long."""
    notes = help_entries()["notes"]
    return "\n".join(
        item(f"{code(*names)} → {code(key)}" + (f": {notes[key]}" if key in notes else ""))
        for key, names in help_entries()["names"].items()
    )


def files(pattern: str) -> str:
    """YAML files, each with what it says of itself."""
    return "\n".join(
        item(f"[`{path.name}`](../{path.relative_to(REPOSITORY)}): {first_comment(path)}")
        for path in sorted(REPOSITORY.glob(pattern))
    )


def first_comment(path: Path) -> str:
    """A recipe's description: its comment up to the first empty line."""
    lines = [line.removeprefix("#").strip() for line in path.read_text("utf-8").splitlines()]
    return " ".join(lines[: lines.index("")])


def measured(name: str) -> str:
    """A table of the log of tries."""
    wanted = tries.TABLES[name]
    return table(wanted.head, wanted.lines())


def quickstart(is_short: bool = False) -> str:
    return table(headlines.QUICKSTART_HEAD, headlines.quickstart_rows(is_short))


TABLES: Mapping[str, Callable[[], str]] = {
    "tasks": tasks,
    "rewards": rewards,
    "keys": keys,
    "rules": rules,
    "metrics": metrics,
    "suites": suites,
    "games_for": games_for,
    "words": other_words,
    "recipes": lambda: files("recipes/grpo_*.yaml"),
    "accelerate_configs": lambda: files("accelerate_configs/*.yaml"),
    "quickstart": quickstart,
    "quickstart_short": partial(quickstart, is_short=True),
    **{name: partial(measured, name) for name in tries.TABLES},
}


if __name__ == "__main__":
    sys.exit(main())
