"""Strict parsing of recipes: YAML and command line into dataclasses, all faults at once; exit codes."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints

import torch
import yaml
from trl import TrlParser

from ..common.errors import ConfigurationError, RookWorldError, close_matches
from ..common.settings import Bounds


def resolved_yaml(*arguments: Any) -> str:
    """Every key of the dataclasses that has a value, defaults included, as YAML."""
    values = {
        item.name: getattr(group, item.name)
        for group in arguments
        for item in dataclasses.fields(group)
        if item.init and _is_plain(getattr(group, item.name))
    }
    return yaml.safe_dump(values, sort_keys=True, allow_unicode=True)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return type(value) in (str, int, float, bool)


EXIT_BAD_INPUT = 2


# TRL 1.16 itself uses these deprecated names: there is nothing that a user could do about it.
warnings.filterwarnings("ignore", message="`(is_)?gradient_checkpointing` is deprecated")


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML without the same key twice, of which PyYAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.YAMLError(f"key {twice[0]!r} stands twice")
        return super().construct_mapping(node, deep)


class StrictParser(TrlParser):
    """`TrlParser` that collects every fault before it gives up, and knows close matches.

    Args:
        dataclass_types: As for `TrlParser`.
        default_config: YAML recipe to run without ``--config``.
    """

    def __init__(self, dataclass_types: Sequence[type], default_config: Path | None = None) -> None:
        super().__init__(dataclass_types, allow_abbrev=False)
        self.default_config = default_config
        self.values: dict[str, Any] = {}
        self.recipe = ""

    def parse_strictly(
        self, argv: Sequence[str], check: Callable[..., list[str]] | None = None
    ) -> tuple[Any, ...]:
        """Instances of the dataclasses, from the YAML recipe and the overrides of the command line.

        Afterwards `values` holds the keys that were given, recipe and overrides in one, and `recipe`
        the name of the recipe.

        Args:
            argv: The command line without the script's name.
            check: Finds faults of combinations; called with the instances, None for a faulty one.

        Raises:
            ConfigurationError: With every fault found: unknown keys, values of the wrong type, and
                what the dataclasses' own checks say.
        """
        faults: list[str] = []
        path, options = self._split(list(argv), faults)
        values = self._read_yaml(path, faults)
        self.recipe = path.stem if path is not None else ""
        on_line: dict[str, Any] = {}
        for flag, tokens in options:
            self._read_option(flag, tokens, on_line, faults)
        values |= on_line
        outputs = [self._build(kind, values, faults) for kind in self.dataclass_types]
        self.values = values
        if check is not None:
            faults += check(*outputs)
        if faults:
            raise ConfigurationError(faults)
        return tuple(outputs)

    def add_argument(self, *flags: str, bounds: Bounds | None = None, **options: Any) -> Any:
        """As argparse's; the values of keys that have bounds are left to `checks`, choices and all."""
        if bounds is not None:
            options["help"] = options["help"].replace("%", "%%")
            if choices := options.pop("choices", None):
                options["metavar"] = f"{{{','.join(map(str, choices))}}}"
        return super().add_argument(*flags, **options)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print before it exits."""
        raise argparse.ArgumentTypeError(message)

    def _split(
        self, argv: list[str], faults: list[str]
    ) -> tuple[Path | None, list[tuple[str, list[str]]]]:
        """The recipe's path, and each option with the words behind it."""
        if "-h" in argv or "--help" in argv:
            self.print_help()
            raise SystemExit(0)
        options: list[tuple[str, list[str]]] = []
        for word in argv:
            if word.startswith("--"):
                flag, equals, value = word.partition("=")
                options.append((flag, [value] if equals else []))
            elif options:
                options[-1][1].append(word)
            else:
                faults.append(f"command line: {word!r} stands before any --key")
        path = self.default_config
        for flag, words in options:
            if flag == "--config":
                if len(words) == 1:
                    path = Path(words[0])
                else:
                    faults.append(f"--config: {' '.join(words)!r} is not the path of one recipe")
        return path, [option for option in options if option[0] != "--config"]

    def _read_yaml(self, path: Path | None, faults: list[str]) -> dict[str, Any]:
        if path is None:
            return {}
        try:
            content = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
        except OSError as error:
            close = close_matches(str(path), map(str, path.parent.glob("*.yaml")))
            faults.append(f"--config: cannot read {str(path)!r} ({error.strerror}){close}")
            return {}
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            faults.append(f"--config: {path} is no YAML ({' '.join(str(error).split())})")
            return {}
        if not isinstance(content, dict):
            faults.append(f"--config: {path} holds no mapping of keys to values")
            return {}
        variables = content.pop("env", None) or {}
        if isinstance(variables, dict):
            for key, value in variables.items():
                os.environ.setdefault(str(key), str(value))
        else:
            faults.append(f"{path}: env: {variables!r} is no mapping of variables to values")
        values: dict[str, Any] = {}
        known = self._actions_by_key
        for key, value in content.items():
            if str(key) not in known:
                faults.append(f"{path}: unknown key {key!r}{close_matches(str(key), known)}")
                continue
            try:
                values[key] = self._convert(known[key], value)
            except (TypeError, ValueError, argparse.ArgumentTypeError) as error:
                faults.append(f"{path}: {key}: {error}")
        return values

    def _read_option(
        self, flag: str, words: list[str], values: dict[str, Any], faults: list[str]
    ) -> None:
        if flag not in self._option_string_actions:
            close = close_matches(flag.lstrip("-").replace("-", "_"), self._actions_by_key)
            faults.append(f"command line: unknown option {flag}{close}")
            return
        action = self._option_string_actions[flag]
        try:
            namespace, rest = self.parse_known_args([flag, *words])
        except (TypeError, ValueError, argparse.ArgumentTypeError, SystemExit) as error:
            faults.append(f"command line: {error}")
            return
        if rest:
            faults.append(f"command line: {' '.join(rest)!r} is too much for {flag}")
            return
        value = getattr(namespace, action.dest)
        if action.nargs in ("+", "*") and action.dest in values:  # a list in several parts
            value = [*values[action.dest], *value]
        values[action.dest] = value

    @property
    def _actions_by_key(self) -> dict[str, argparse.Action]:
        return {action.dest: action for action in reversed(self._actions) if action.dest != "help"}

    def _convert(self, action: argparse.Action, value: Any) -> Any:
        """A YAML value as the key's type; PyYAML reads ``1e-6`` as a text, argparse would not."""
        if value is None:
            if not self._may_be_none(action.dest):
                raise TypeError("has no value; give one, or leave the key out")
            return None
        if action.nargs in ("+", "*"):
            if not isinstance(value, list):
                raise TypeError(f"{value!r} is no list")
            return [self._convert_one(action, item) for item in value]
        return self._convert_one(action, value)

    def _may_be_none(self, key: str) -> bool:
        hints = [get_type_hints(kind) for kind in self.dataclass_types]
        return any(type(None) in get_args(hint[key]) for hint in hints if key in hint)

    def _convert_one(self, action: argparse.Action, value: Any) -> Any:
        kind: Callable[[str], Any] | Any = action.type
        if isinstance(value, str):
            value = kind(value) if callable(kind) and kind is not dict else value
        elif kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        elif kind is int and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError(f"{value!r} is no whole number")
        elif kind is float and not isinstance(value, float):
            raise TypeError(f"{value!r} is no number")
        elif getattr(kind, "__name__", "") == "string_to_bool" and not isinstance(value, bool):
            raise TypeError(f"{value!r} is neither true nor false")
        if action.choices is not None and value not in action.choices:
            raise TypeError(f"{value!r} is none of {', '.join(map(str, action.choices))}")
        return value

    def _build(self, kind: type, values: dict[str, Any], faults: list[str]) -> Any:
        names = {item.name for item in dataclasses.fields(kind) if item.init}
        try:
            return kind(**{key: value for key, value in values.items() if key in names})
        except ConfigurationError as error:
            faults.extend(error.faults)
        except (TypeError, ValueError, ImportError, argparse.ArgumentTypeError) as error:
            faults.append(" ".join(str(error).split()))
        return None


def run_cli(main: Callable[[Sequence[str]], None]) -> NoReturn:
    """Run a script's `main`; bad input ends it with one message and exit code 2, no traceback."""
    if "LOCAL_RANK" in os.environ and not torch.accelerator.is_available():
        # accelerate's launcher of several processes does not pass `use_cpu` on; without it each
        # process takes itself for the only one.
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    for name in ("transformers.modeling_utils", "transformers.trainer"):
        logging.getLogger(name).addFilter(_is_no_false_alarm)
    try:
        main(sys.argv[1:])
    except RookWorldError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        _close_process_group()
        raise SystemExit(EXIT_BAD_INPUT) from None
    _close_process_group()
    raise SystemExit(0)


def _close_process_group() -> None:
    """Leave the group of processes while the interpreter still stands.

    A thread of gloo's that lets go of its last tensor while the interpreter is being torn down
    aborts the process, and a finished run ends with SIGABRT (PyTorch issue 190489).
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        gc.collect()  # a trainer is full of cycles, which would hold the group and its threads
        torch.distributed.destroy_process_group()


def _is_no_false_alarm(record: logging.LogRecord) -> bool:
    """False alarms are: `generate` drops the mask of a batch without padding, and transformers warns
    of it; a checkpoint without the head, where the head is tied to the embedding.
    """
    text = str(record.msg)
    return "passing in an `attention_mask`" not in text and not text.endswith("['lm_head.weight'].")
