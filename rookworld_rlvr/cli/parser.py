"""Strict parsing of recipes: YAML and command line into dataclasses, with all faults at once."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

import yaml
from trl import TrlParser

from ..common.errors import ConfigurationError
from ..common.own import own_files
from ..common.settings import Bounds, kinds
from ..common.shipped import find_recipe
from ..common.terminal import show, width, wrapped
from ..tasks.registry import register_own
from .main import command_name
from .words import named_here, our_key, usual


def _register_suite(name: str) -> None:
    from ..evaluation.registry import register_own_suite  # with torch, which takes seconds

    register_own_suite(name)


_OWN = {"tasks_from": register_own, "suites_from": _register_suite}


_ON_COMMAND_LINE = "trust_remote_code"  # a recipe from somebody else must not be able to set it


_FIRST = """
    model_name_or_path dataset_name output_dir rewards tasks learning_rate max_steps
    per_device_train_batch_size num_generations max_completion_length beta temperature bf16 seed
    eval_steps save_steps report_to resume_from_checkpoint dry_run
""".split()  # in the help of a command with more than `_FEW` keys


_FEW = 60


DEFAULTS = "# The defaults."  # where a resolved configuration begins to be long


_OF_A_CALL = (
    "dry_run",
    "resume_from_checkpoint",
    _ON_COMMAND_LINE,
)  # keys of one call, which are not part of the resolved configuration


_REMEDIES = {
    "must be divisible by num_generations": "; set per_device_train_batch_size or num_generations so "
    "that per_device_train_batch_size x gradient_accumulation_steps x processes is a multiple of "
    "num_generations"
}  # for messages of the libraries that have none


def _in_words(fault: str) -> str:
    """A fault that argparse reports, as this package words it.

    >>> _in_words("argument --max_steps/--max-steps: invalid int value: 'ten'")
    "max_steps: 'ten' is not a whole number"
    """
    fault = re.sub(r"^argument --(\w+)[^:]*: ", r"\1: ", fault)
    fault = re.sub(r"invalid int value: (.*)", r"\1 is not a whole number", fault)
    return re.sub(r"invalid float value: (.*)", r"\1 is not a number", fault)


class _UniqueKeyLoader(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys; PyYAML would take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.YAMLError(f"key {twice[0]!r} appears twice")
        return super().construct_mapping(node, deep)


REMOTE_CODE = (
    "would let this file run code that comes with a model; leave it out, and if you have read the code "
    "and trust it, give --trust_remote_code true on the command line"
)


def remote_code_in(key: str, value: Any) -> bool:
    """Whether a key of a file asks for `trust_remote_code`, by itself or within its value.

    >>> remote_code_in("trust_remote_code", True), remote_code_in("trust_remote_code", False)
    (True, False)
    >>> remote_code_in("model_init_kwargs", {"trust_remote_code": True})
    True
    """
    if key == _ON_COMMAND_LINE:
        return value not in (False, "false", None)  # a resolved configuration has the default
    return isinstance(value, str | list | dict) and _ON_COMMAND_LINE in str(value)


class StrictParser(TrlParser):
    """A `TrlParser` that reports all faults at once and suggests close matches.

    Args:
        dataclass_types: As for `TrlParser`.
        default_config: The YAML recipe that is used without ``--config``.
    """

    def __init__(self, dataclass_types: Sequence[type], default_config: Path | None = None) -> None:
        super().__init__(dataclass_types, allow_abbrev=False, prog=command_name())
        self.default_config = default_config
        self.values: dict[str, Any] = {}
        self.recipe = ""

    def parse_strictly(
        self, argv: Sequence[str], check: Callable[..., list[str]] | None = None
    ) -> tuple[Any, ...]:
        """Read the YAML recipe and the command line into instances of the dataclasses.

        Afterwards `values` holds all keys that were given, by the recipe or the command line, and
        `recipe` the name of the recipe.

        Args:
            argv: The command line without the script's name.
            check: Finds faults of combinations. Called with the instances; one with faults is None.

        Raises:
            ConfigurationError: With all faults: unknown keys, values of the wrong type, and those that
                the dataclasses report. If the recipe cannot be read, that is the only fault.
        """
        faults: list[str] = []
        path, options = self._split(list(argv), faults)
        values = self._read_yaml(path or self.default_config, faults)
        on_line: dict[str, Any] = {}
        for flag, tokens in options:
            self._read_option(flag, tokens, on_line, faults, "command line")
        if path is None:
            values, path = usual(values, on_line), self.default_config
        elif "output_dir" in self._read_yaml(self.default_config, []):
            values.setdefault("output_dir", f"runs/{path.stem}")  # transformers' is trainer_output
        self.recipe = path.stem if path is not None else ""
        values |= on_line
        self._take_own(values, faults)
        outputs = [self._build(kind, values, faults) for kind in self.dataclass_types]
        self.values = values
        if check is not None:
            faults += check(*outputs)
        if faults:
            raise ConfigurationError(faults)
        return tuple(outputs)

    def own_help(self, keys: Sequence[str] = ()) -> str:
        """The text of ``--help``: the keys that people turn, then this package's by topic.

        Where a command has many, only their names are given.

        Args:
            keys: Describe only these.

        Raises:
            ConfigurationError: One of them does not exist.
        """
        known = self._actions_by_key
        if faults := [
            f"--help: unknown key {key!r}{named_here(key, known)}"
            for key in keys
            if key not in known
        ]:
            raise ConfigurationError(faults)
        describe = partial(self._help_of, usual_values=self._read_yaml(self.default_config, []))
        if keys:
            return wrapped("\n".join(chain(*map(describe, keys))))
        is_short = len(known) <= _FEW
        first = [] if is_short else [key for key in _FIRST if key in known]
        lines = [f"{self.prog} [--config RECIPE] [--key value ...]"]
        lines += ["", "The keys that are set most often."] if first else []
        lines += chain(*map(describe, first))
        shown = set(first)
        for kind in self.dataclass_types:
            for owner in reversed(kind.__mro__):
                names = [key for key in vars(owner).get("__annotations__", ()) if key in known]
                names = [key for key in names if key not in shown]
                if not names or _library(owner):
                    continue
                shown.update(names)
                lines += ["", " ".join((owner.__doc__ or "").split("\n\n")[0].split())]
                lines += chain(*map(describe, names)) if is_short else [f"  {', '.join(names)}"]
        more = len(known) - len(shown)
        of_libraries = f"{more} more keys are TRL's and transformers'. " if more else ""
        lines += ["", f"{of_libraries}--help KEY describes one key, --help_all all of them."]
        return wrapped("\n".join(lines))

    def _help_of(self, key: str, usual_values: Mapping[str, Any]) -> list[str]:
        """A key with its default and its description, on one line if they fit."""
        action = self._actions_by_key[key]
        values = (
            [] if action.default in (None, argparse.SUPPRESS, [], "") else [str(action.default)]
        )
        value = usual_values.get(key, action.default)
        if isinstance(value, str | int | float) and value != action.default and self.default_config:
            values.append(f"{value} in {self.default_config.stem}")
        choices = f" {action.metavar}" if isinstance(action.metavar, str) else ""
        head = f"--{key}{choices}" + (f" ({', '.join(values)})" if values else "")
        text = " ".join((action.help or "").replace("%%", "%").split())
        line = f"  {head}  {text}"
        return [line] if len(line) <= width() else [f"  {head}", wrapped(f"{' ' * 6}{text}", 6)]

    def resolved(self, *arguments: Any) -> str:
        """A recipe that gives the same run: first what differs from the defaults, then the defaults.

        Values that follow from other keys (such as a batch size) are comments, because they would
        contradict those keys as soon as you edit one.

        Args:
            arguments: The instances that `parse_strictly` returned.
        """
        changed: dict[str, Any] = {}
        default: dict[str, Any] = {}
        derived: dict[str, Any] = {}
        for group in arguments:
            for item in dataclasses.fields(group):
                value = _plain(getattr(group, item.name))
                usual = _plain(_default(item))
                if item.name in _OF_A_CALL:
                    continue
                if item.name in self.values:
                    given = self.values[item.name]
                    is_json = isinstance(given, str) and isinstance(value, dict | list)
                    given = value if is_json and given.lstrip()[:1] in ("[", "{") else given
                    (default if given == usual else changed)[item.name] = given
                elif item.init and _is_plain(value):
                    (default if value == usual else derived)[item.name] = value
        return "\n".join(
            [
                "# What differs from the defaults.",
                _dump(changed),
                DEFAULTS,
                _dump({key: value for key, value in default.items() if value is not None}),
                *(f"# sha256 of {path}: {digest}" for path, digest in own_files(changed).items()),
                "# What follows from the above.",
                *(f"# {line}" for line in _dump(derived).splitlines()),
                "",
            ]
        )

    def add_argument(self, *flags: str, bounds: Bounds | None = None, **options: Any) -> Any:
        """Add an argument, which argparse does not check if it has bounds: its dataclass does that."""
        if bounds is not None:
            options["help"] = options["help"].replace("%", "%%")
            if choices := options.pop("choices", None):
                options["metavar"] = f"{{{','.join(map(str, choices))}}}"
        return super().add_argument(*flags, **options)

    def error(self, message: str) -> NoReturn:
        """Raise the message that argparse would print before it exits."""
        raise argparse.ArgumentTypeError(message)

    def _split(
        self, argv: list[str], faults: list[str]
    ) -> tuple[Path | None, list[tuple[str, list[str]]]]:
        """The path of the recipe that is given, and each option with the words after it."""
        if asked := {"-h", "--help", "--help_all"} & set(argv):
            keys = argv[argv.index(asked.pop()) + 1 :]
            text = self.format_help() if "--help_all" in argv else None
            show(text or self.own_help([key.lstrip("-").replace("-", "_") for key in keys]))
            raise SystemExit(0)
        options: list[tuple[str, list[str]]] = []
        for word in argv:
            if word.startswith("--"):
                flag, equals, value = word.partition("=")
                options.append((flag, [value] if equals else []))
            elif options:
                options[-1][1].append(word)
            else:
                mains = ("run", "model_name_or_path", "dataset_name", "config")
                named, equals, value = word.partition("=")
                key = next(name for name in mains if name in {*self._actions_by_key, "config"})
                meant = our_key(named, self._actions_by_key) if equals else None
                remedy = f"--{meant} {value}" if meant else f"--{key} {word}"
                faults.append(f"command line: {word!r} does not belong to any key; write {remedy}")
        path = None
        for flag, words in options:
            if flag == "--config":
                if len(words) == 1:
                    path = find_recipe(words[0])
                else:
                    faults.append(
                        f"--config: {' '.join(words)!r} is not one recipe; give one file or name"
                    )
        return path, [option for option in options if option[0] != "--config"]

    def _read_yaml(self, path: Path | None, faults: list[str]) -> dict[str, Any]:
        if path is None:
            return {}
        try:
            content = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
        except OSError as error:
            text = f"--config: cannot read {str(path)!r} ({error.strerror})"
            raise ConfigurationError([text]) from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            text = f"--config: {path} is not valid YAML ({_yaml_fault(error)})"
            raise ConfigurationError([text]) from error
        if not isinstance(content, dict):
            raise ConfigurationError([f"--config: {path} must be a mapping of keys to values"])
        variables = content.pop("env", None) or {}
        if isinstance(variables, dict):
            for key, value in variables.items():
                os.environ.setdefault(str(key), str(value))
        else:
            faults.append(f"{path}: env: {variables!r} must be a mapping of variables to values")
        values: dict[str, Any] = {}
        known = self._actions_by_key
        for key, value in content.items():
            if str(key) not in known:
                faults.append(f"{path}: unknown key {key!r}{named_here(str(key), known)}")
                continue
            if remote_code_in(key, value):
                faults.append(f"{path}: {key}: {value!r} {REMOTE_CODE}")
                continue
            self._read_value(str(key), value, values, faults, str(path))
        return values

    def _read_value(
        self, key: str, value: Any, values: dict[str, Any], faults: list[str], where: str
    ) -> None:
        """Read a YAML value: as it is if its type is right, else as if its text had been typed.

        PyYAML reads ``1e-6`` as a text, for example.
        """
        allowed = {get_origin(kind) or kind for kind in self._kinds(key)}
        items = value if isinstance(value, list) else [value]
        is_text = bool(items) and all(isinstance(item, str | int | float) for item in items)
        is_to_convert = list in allowed if items is value else type(value) not in allowed
        if value is None and NoneType not in allowed:
            faults.append(f"{where}: {key}: the value is missing; give one, or leave the key out")
        elif is_text and is_to_convert:
            words = [str(item).lower() if isinstance(item, bool) else str(item) for item in items]
            self._read_option(f"--{key}", words, values, faults, where)
        else:
            values[key] = value

    def _read_option(
        self, flag: str, words: list[str], values: dict[str, Any], faults: list[str], where: str
    ) -> None:
        if flag not in self._option_string_actions:
            close = named_here(flag.lstrip("-").replace("-", "_"), self._actions_by_key)
            faults.append(f"{where}: unknown option {flag}{close}")
            return
        action = self._option_string_actions[flag]
        if action.nargs in ("+", "*") and len(words) == 1 and words[0].startswith("["):
            words = _items(words[0])
        try:
            namespace, rest = self.parse_known_args([flag, *words])
        except (TypeError, ValueError, argparse.ArgumentTypeError, SystemExit) as error:
            faults.append(f"{where}: {_in_words(str(error))}")
            return
        value = getattr(namespace, action.dest)
        kind = self._item_kind(action.dest)
        kind = str if kind is Any else kind  # names of rewards
        if rest and kind in (int, float, str):  # of `list[int] | str`, argparse takes one word only
            try:
                value = [kind(word) for word in words]
            except ValueError:
                text = f"{' '.join(words)!r} is not a list of {kind.__name__}"
                faults.append(f"{where}: {flag}: {text}")
                return
        elif rest:
            faults.append(f"{where}: {flag} takes one value; leave {' '.join(rest)!r} out")
            return
        if action.nargs in ("+", "*") and action.dest in values:
            value = [*values[action.dest], *value]  # a list may be given in several parts
        values[action.dest] = value

    @property
    def _actions_by_key(self) -> dict[str, argparse.Action]:
        return {action.dest: action for action in reversed(self._actions) if action.dest != "help"}

    def _kinds(self, key: str) -> set[Any]:
        """The types that a key's value may have."""
        return {one for hint in self._hints if key in hint for one in kinds(hint[key])}

    @cached_property
    def _hints(self) -> list[dict[str, Any]]:
        """The types of each dataclass's keys; they take milliseconds to resolve."""
        return [get_type_hints(kind) for kind in self.dataclass_types]

    def _item_kind(self, key: str) -> Any:
        """The type of the items, if the key's value may be a list."""
        lists = [kind for kind in self._kinds(key) if get_origin(kind) is list]
        return get_args(lists[0])[0] if lists else None

    def _take_own(self, values: dict[str, Any], faults: list[str]) -> None:
        """Register the user's own tasks and suites before other keys name them."""
        for key, register in _OWN.items():
            for name in values.get(key) or ():
                try:
                    register(name)
                except ConfigurationError as error:
                    faults += error.faults

    def _build(self, kind: type, values: dict[str, Any], faults: list[str]) -> Any:
        names = {item.name for item in dataclasses.fields(kind) if item.init}
        try:
            return kind(**{key: value for key, value in values.items() if key in names})
        except ConfigurationError as error:
            faults.extend(error.faults)
        except (TypeError, ValueError, ImportError, argparse.ArgumentTypeError) as error:
            fault = " ".join(str(error).split()).rstrip(".")
            faults.append(
                fault + next((text for part, text in _REMEDIES.items() if part in fault), "")
            )
        return None


def _items(text: str) -> list[str]:
    """The items of a list that was written as in YAML; of other text, itself.

    >>> _items("[environment, policy]")
    ['environment', 'policy']
    """
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return [text]
    return [*map(str, found)] if isinstance(found, list) else [text]


def _yaml_fault(error: yaml.YAMLError | UnicodeDecodeError) -> str:
    """What is wrong and where, without the copy of the line, whose mark needs a line of its own."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


def _library(kind: type) -> bool:
    """Whether a class is a library's."""
    return kind.__module__.partition(".")[0] in ("trl", "transformers", "builtins")


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return item.default


def _plain(value: Any) -> Any:
    """A value as YAML can write it."""
    return value.value if isinstance(value, Enum) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return type(value) in (str, int, float, bool)


def _dump(values: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(values, sort_keys=True, allow_unicode=True) if values else ""
    return text
