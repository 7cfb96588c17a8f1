"""Write the tables of the documentation that follow from the code.

    make docs                          # or: python docs/generate.py
    python docs/generate.py --check    # write nothing; exit code 1 if a table is out of date

A table is what is between ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->`` on a page.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml
from trl import GRPOConfig, GRPOTrainer, ModelConfig

from rookworld_rlvr.cli.main import SCRIPTS, first_comment
from rookworld_rlvr.cli.words import words
from rookworld_rlvr.common.settings import BOUNDS, Bounds, kinds
from rookworld_rlvr.evaluation.registry import SUITE_HEADLINES, suite_class
from rookworld_rlvr.rewards.registry import known_rewards
from rookworld_rlvr.tasks.registry import TASKS
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.glossary import GLOSSARY, SECTIONS
from rookworld_rlvr.training.health.rules import RULES
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

DOCS = Path(__file__).parent
REPOSITORY = DOCS.parent
MARKED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end: \2 -->)", re.S)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, name stale pages")
    args = parser.parse_args()
    stale = stale_pages([*DOCS.glob("*.md"), REPOSITORY / "README.md"])
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
    fresh = {path: MARKED.sub(_filled, text) for path, text in pages.items()}
    return {path: text for path, text in fresh.items() if text != pages[path]}


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


def code(*words: Any) -> str:
    return ", ".join(f"`{word}`" for word in words)


# --------------------------------------------------------------------------------------------------
# Keys
# --------------------------------------------------------------------------------------------------
def keys() -> str:
    """A section for each dataclass of ours: which commands take it, and its keys."""
    sections = []
    for owner, commands in owners().items():
        hints = get_type_hints(owner)
        fields = {item.name: item for item in dataclasses.fields(owner)}
        own = [fields[name] for name in vars(owner)["__annotations__"] if fields[name].init]
        rows = [
            [code(item.name), values(hints[item.name], item), default(item), described(owner, item)]
            for item in own
        ]
        sections.append(
            f"### {owner.__name__}\n\n{summary(owner)}\n\nTaken by {listed(commands)}.\n\n"
            + table(["key", "value", "default", "what it does"], rows)
        )
    return "\n\n".join(sections)


SHOWN = ("grpo_nano", "grpo_mixed", "grpo_lora")  # recipes beside the defaults
ASKED_FOR = ("resume_from_checkpoint",)  # though no recipe sets it


def usual_keys() -> str:
    """TRL's and transformers' keys that a recipe sets, with what some recipes give."""
    recipes = {
        path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in sorted((REPOSITORY / "recipes").glob("grpo_*.yaml"))
    }
    taken = [owner for owner, commands in owners().items() if "grpo" in commands]
    ours = {name for owner in taken for name in vars(owner)["__annotations__"]}
    foreign = {
        item.name: item for kind in (GRPOConfig, ModelConfig) for item in dataclasses.fields(kind)
    }
    defaults = {item.name: item for item in dataclasses.fields(RookWorldGRPOConfig)}
    names = dict.fromkeys([*(key for recipe in recipes.values() for key in recipe), *ASKED_FOR])
    rows = []
    for name in names:
        if name in foreign and name not in ours:
            text = str(foreign[name].metadata.get("help", "")).replace("%%", "%")
            first = re.split(r"(?<=[.;])\s", text)[0].rstrip(";.") or name.replace("_", " ")
            given = [shown(recipes[recipe].get(name)) for recipe in SHOWN]
            rows.append(
                [code(name), default(defaults.get(name, foreign[name])), *given, f"{first}."]
            )
    return table(
        ["key", "default", *(code(name) for name in SHOWN), "what it does (TRL's words)"], rows
    )


def owners() -> dict[type, list[str]]:
    """The package's dataclasses of keys, in the order of the commands, and which commands take them."""
    found: dict[type, list[str]] = {}
    for command, script in SCRIPTS.items():
        for kind in script_module(script).GROUPS:
            for owner in kind.__mro__:
                has_keys = dataclasses.is_dataclass(owner) and vars(owner).get("__annotations__")
                foreign = owner.__module__.partition(".")[0] in ("trl", "transformers")
                if has_keys and not foreign:
                    found.setdefault(owner, []).append(command)
    return found


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


def summary(thing: Any) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def listed(commands: Sequence[str]) -> str:
    return ", ".join(f"`rookworld {command}`" for command in dict.fromkeys(commands))


# --------------------------------------------------------------------------------------------------
# The other tables
# --------------------------------------------------------------------------------------------------
def tasks() -> str:
    rows = [
        [
            code(task.name),
            code(task.prefix),
            task.ability,
            code(*task.rewards),
            code(task.headline),
        ]
        for task in TASKS.values()
    ]
    return table(
        ["task", "prefix", "what the model does", "scores that are rewards", "headline metric"],
        rows,
    )


def rewards() -> str:
    rows = [
        [code(name), code(*reward.tasks), reward.range, reward.meaning]
        for name, reward in known_rewards().items()
    ]
    return table(["reward", "task", "range", "what it measures"], rows)


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
    sections = []
    for section, title in SECTIONS.items():
        rows = [
            [code(metric.key), metric.meaning] for metric in GLOSSARY if metric.section == section
        ]
        sections.append(f"### {title}\n\n{table(['metric', 'what it means'], rows)}")
    return "\n\n".join(sections)


def suites() -> str:
    rows = [
        [code(suite.name), suite.summary, code(suite.headline), str(suite.version)]
        for suite in map(suite_class, SUITE_HEADLINES)
    ]
    return table(["suite", "what it asks", "headline", "version"], rows)


def suite_metrics() -> str:
    rows = [
        [code(suite.name), code(metric), found.meaning]
        for suite in map(suite_class, SUITE_HEADLINES)
        for metric, found in suite.metrics.items()
    ]
    return table(["suite", "metric", "what it means"], rows)


def hooks() -> str:
    """The methods of TRL and transformers that the trainer overrides, in its own order."""
    rows = [
        [code(name), owner(name), summary(value)]
        for name, value in vars(RookWorldGRPOTrainer).items()
        if inspect.isfunction(value) and name != "__init__" and hasattr(GRPOTrainer, name)
    ]
    return table(["method", "whose", "what is different"], rows)


def owner(name: str) -> str:
    kind = next(kind for kind in GRPOTrainer.__mro__ if name in vars(kind))
    return {"trl": "TRL", "transformers": "transformers"}[kind.__module__.partition(".")[0]]


def other_words() -> str:
    """Our keys with the names that other code has for them."""
    notes = words()["notes"]
    rows = [
        [code(*names), code(key), notes.get(key, "-")] for key, names in words()["names"].items()
    ]
    return table(["there", "here", "note"], rows)


def files(folder: str) -> str:
    """The YAML files of a folder, each with what it says of itself."""
    rows = [
        [f"[`{path.name}`](../{folder}/{path.name})", first_comment(path)]
        for path in sorted((REPOSITORY / folder).glob("*.yaml"))
    ]
    return table(["file", "what it is"], rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "tasks": tasks,
    "rewards": rewards,
    "keys": keys,
    "usual_keys": usual_keys,
    "rules": rules,
    "metrics": metrics,
    "suites": suites,
    "suite_metrics": suite_metrics,
    "hooks": hooks,
    "words": other_words,
    "recipes": lambda: files("recipes"),
    "accelerate_configs": lambda: files("accelerate_configs"),
}


if __name__ == "__main__":
    sys.exit(main())
