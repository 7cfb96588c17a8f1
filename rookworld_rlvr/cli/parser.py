"""Strict parsing of recipes: YAML and command line into dataclasses, with all faults at once."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, get_origin, get_type_hints

import yaml
from trl import TrlParser

from ..common.errors import ConfigurationError
from ..common.files import find_recipe, read_keys
from ..common.settings import Bounds, kinds
from ..common.terminal import show
from ..tasks.registry import register_own
from .help_text import MODEL, key_of, spelled
from .run import NEUTRAL, command_name, options, usual


def _register_suite(name: str) -> None:
    from ..evaluation.suite import register_own_suite  # with torch, which takes seconds

    register_own_suite(name)


_OWN = {"tasks_from": register_own, "suites_from": _register_suite}


_OWN_FILE = re.compile(r"(.+\.py):\w+")


_ON_COMMAND_LINE = "trust_remote_code"  # a recipe from somebody else must not be able to set it


DEFAULTS = "# The defaults."  # where a resolved configuration begins to be long


_OF_A_CALL = ("dry_run", "resume_from_checkpoint", _ON_COMMAND_LINE)
"""Keys of one call, which are not part of the resolved configuration."""


def remote_code_in(key: str, value: Any) -> bool:
    """Whether a key of a file asks for `trust_remote_code`, by itself or within its value.

    >>> remote_code_in("trust_remote_code", True), remote_code_in("trust_remote_code", False)
    (True, False)
    >>> remote_code_in("model_init_kwargs", {"trust_remote_code": True})
    True
    """
    # A resolved configuration has the default, which is off.
    return value not in (False, "false", None) and _ON_COMMAND_LINE in f"{key} {value}"


class StrictParser(TrlParser):
    """A `TrlParser` that reports all faults at once and suggests close matches.

    Args:
        dataclass_types: As for `TrlParser`.
        default_config: The YAML recipe that is used without ``--config``.
        positional: The key that words without one belong to, see `run.POSITIONAL`; empty if none.
    """

    def __init__(
        self,
        dataclass_types: Sequence[type],
        default_config: Path | None = None,
        positional: str = "",
    ) -> None:
        super().__init__(dataclass_types, allow_abbrev=False, prog=command_name())
        self.default_config = default_config
        self.positional = positional
        self.values: dict[str, Any] = {}
        self.recipe = ""
        self._faults: list[str] = []

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
        if asked := [at for at, word in enumerate(argv, 1) if word in ("--help", "-h")]:
            from .help_text import help_text

            keys = [*map(key_of, argv[asked[0] :])]
            name = f"{self.prog} {self._shown_positional()}".rstrip()
            recipe = self.default_config if self._has_other_values() else None
            show(help_text(name, self.actions, self.dataclass_types, keys, recipe))
            raise SystemExit(0)
        (_, strays), *given = options(argv)
        alone: list[str] = []
        if self.positional and strays:
            given, strays, alone = [(self.positional, strays), *given], [], strays
        self._faults = [
            f"command line: {word!r} belongs to no --key{self._meant(word)}" for word in strays
        ]
        takes_one = bool(alone) and list not in self._forms(self.positional)
        if takes_one and any(key == self.positional for key, _ in given[1:]):
            self._faults.append(
                f"command line: --{spelled(self.positional)} is given and {' '.join(alone)!r} stands "
                "alone; leave one out"
            )
        configs = [words for key, words in given if key == "config"]
        path = find_recipe(" ".join(configs[-1])) if configs else None
        default = self._read_yaml(self.default_config)
        values = self._read_yaml(path)
        on_line: dict[str, Any] = {}
        for key, words in given:
            if key != "config":
                self._read_option(key, words, on_line, "command line")
        if path is None:
            values = usual(default, on_line)
        elif "output_dir" in default:
            values.setdefault("output_dir", f"runs/{path.stem}")  # transformers' is trainer_output
        self.recipe = Path(path or self.default_config or "").stem
        self.values = values | on_line
        for key, register in _OWN.items():  # before other keys name them
            for name in self.values.get(key) or ():
                self._attempt(register, name)
        outputs = []
        for kind in self.dataclass_types:
            names = {item.name for item in dataclasses.fields(kind) if item.init}
            of_kind = {key: value for key, value in self.values.items() if key in names}
            outputs.append(self._attempt(kind, **of_kind))
        if check is not None:
            self._faults += check(*outputs)
        if self._faults:
            raise ConfigurationError(self._faults)
        return tuple(outputs)

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
                has_factory = item.default is dataclasses.MISSING
                usual = item.default_factory() if has_factory else _plain(item.default)  # type: ignore
                given = self.values.get(item.name)
                if isinstance(given, str) and given.lstrip()[:1] in ("[", "{"):
                    given = value  # the text was JSON
                if item.name in _OF_A_CALL:
                    continue
                if item.name in self.values:
                    (default if given == usual else changed)[item.name] = given
                elif item.init and _is_plain(value):
                    (default if value == usual else derived)[item.name] = value
        return "\n".join(
            [
                "# What differs from the defaults.",
                _dump(changed),
                DEFAULTS,
                _dump({key: value for key, value in default.items() if value is not None}),
                *(f"# sha256 of {path}: {digest}" for path, digest in _own_files(changed).items()),
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

    # --------------------------------------------------------------------------------------------
    # Values
    # --------------------------------------------------------------------------------------------
    def _shown_positional(self) -> str:
        """How the help shows what needs no key: ``[MODEL ...]``; empty if there is none."""
        if not self.positional:
            return ""
        name = spelled(self.positional).upper()
        return f"[{name} ...]" if list in self._forms(self.positional) else f"[{name}]"

    def _has_other_values(self) -> bool:
        """Whether the usual recipe differs from the defaults, beside its model, data and folder."""
        recipe = self._read_yaml(self.default_config)
        its_own = {MODEL, "output_dir", *NEUTRAL}
        return any(self.actions[key].default != recipe[key] for key in recipe.keys() - its_own)

    def _meant(self, word: str) -> str:
        """A clause with the key of a file or a folder that stands alone on the command line."""
        key = "dataset_name" if Path(word).is_file() else MODEL if Path(word).is_dir() else ""
        return f"; write --{spelled(key)} {word}" if key in self.actions else ""

    def _read_yaml(self, path: Path | None) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in (read_keys(path) if path else {}).items():
            if str(key) not in self.actions:
                self._faults.append(f"{path}: {self._unknown(str(key))}")
            elif remote_code_in(key, value):
                self._faults.append(
                    f"{path}: {key}: {value!r} would let this file run code that comes with a model; "
                    "leave it out, and if you have read the code and trust it, give "
                    "--trust_remote_code true on the command line"
                )
            else:
                self._read_value(str(key), value, values, str(path))
        return values

    def _read_value(self, key: str, value: Any, values: dict[str, Any], where: str) -> None:
        """Read a YAML value: as it is if its type is right, else as if its text had been typed.

        PyYAML reads ``1e-6`` as a text, for example.
        """
        allowed = self._forms(key)
        items = value if isinstance(value, list) else [value]
        is_text = bool(items) and all(isinstance(item, str | int | float) for item in items)
        is_to_convert = list in allowed if items is value else type(value) not in allowed
        if value is None and NoneType not in allowed:
            self._faults.append(f"{where}: {key}: the value is missing; give one, or leave it out")
        elif is_text and is_to_convert:
            no = "no" if "no" in (self.actions[key].choices or ()) else "false"  # YAML reads it so
            words = ["true" if i is True else no if i is False else str(i) for i in items]
            self._read_option(key, words, values, where)
        else:
            values[key] = value

    def _read_option(self, key: str, words: list[str], values: dict[str, Any], where: str) -> None:
        """Read a key's value as argparse does; it converts the first word only of `list[str] | str`."""
        flag = f"--{key}"
        if flag not in self._option_string_actions:
            self._faults.append(f"{where}: {self._unknown(key)}")
            return
        action = self._option_string_actions[flag]
        is_list = action.nargs in ("+", "*")
        if is_list and len(words) == 1 and words[0].startswith("["):
            words = _items(words[0])
        try:
            namespace, rest = self.parse_known_args([flag, *words])
        except (TypeError, ValueError, argparse.ArgumentTypeError, SystemExit) as error:
            is_switch = action.nargs == "?" and bool in self._forms(key)
            self._faults.append(f"{where}: {_no_switch(flag, words) if is_switch else error}")
            return
        value = getattr(namespace, action.dest)
        if rest and list in self._forms(key):
            value = words
        elif rest:
            self._faults.append(f"{where}: {flag} takes one value; leave {' '.join(rest)!r} out")
            return
        if is_list and action.dest in values:
            value = [*values[action.dest], *value]  # a list may be given in several parts
        values[action.dest] = value

    def _unknown(self, key: str) -> str:
        from .help_text import named_here

        return f"unknown key {key!r}{named_here(key, self.actions)}"

    @cached_property
    def actions(self) -> dict[str, argparse.Action]:
        """Argparse's actions by key."""
        return {action.dest: action for action in reversed(self._actions) if action.dest != "help"}

    def _forms(self, key: str) -> set[Any]:
        """The types that a key's value may have, without parameters."""
        return {get_origin(kind) or kind for kind in kinds(self._hints[key])}

    @cached_property
    def _hints(self) -> dict[str, Any]:
        """The keys' types; they take milliseconds to resolve."""
        hints = (get_type_hints(kind).items() for kind in self.dataclass_types)
        return dict(chain.from_iterable(hints))

    # --------------------------------------------------------------------------------------------
    # Instances
    # --------------------------------------------------------------------------------------------
    def _attempt(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What a call returns; None if it finds faults, which are noted."""
        try:
            return make(*args, **kwargs)
        except ConfigurationError as error:
            self._faults += error.faults
        except (TypeError, ValueError, ImportError, argparse.ArgumentTypeError) as error:
            self._faults.append(" ".join(str(error).split()))
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


def _own_files(values: Any) -> dict[str, str]:
    """SHA-256 by path of every user file that is named in a configuration's values."""
    if isinstance(values, str):
        named = _OWN_FILE.fullmatch(values)
        path = Path(named[1]) if named else None
        return {str(path): sha256(path.read_bytes()).hexdigest()} if path and path.is_file() else {}
    if isinstance(values, Mapping):
        values = values.values()
    files: dict[str, str] = {}
    for value in values if isinstance(values, Iterable) else ():
        files |= _own_files(value)
    return files


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
    return yaml.safe_dump(values, sort_keys=True, allow_unicode=True) if values else ""


def _no_switch(flag: str, words: Sequence[str]) -> str:
    """What is wrong with the value of a key that is true or false."""
    return (
        f"{flag} is true or false, not {' '.join(words)!r}; write {flag} true, and put what is not its "
        "value before it"
    )
