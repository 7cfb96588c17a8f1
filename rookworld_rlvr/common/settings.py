"""Keys of a configuration: each field declares its default, help and bounds, and is checked by them.

A value that is one of several is a `Literal`; all other bounds are in the field's `Bounds`. Checks that
compare two keys are written by hand, in `Checked.faults`.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from .errors import ConfigurationError, close_matches

BOUNDS = "bounds"  # in a field's metadata, beside `help`


DataclassType = TypeVar("DataclassType")


Check = Callable[[Any, str], list[str]]
"""Takes a value and its key, and returns what is wrong, one sentence per fault."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is required of a value beyond its type, or of each item of a list or mapping.

    Args:
        above: A number must be greater than this.
        least: A number must be at least this.
        below: A number must be less than this.
        most: A number must be at most this.
        among: The valid names, for a string, a list's items or a mapping's keys.
        of: What kind of thing these names are, for messages: "task", "rule".
        filled: A string or list must not be empty.
        check: Returns further faults of a value that has none yet.
    """

    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None
    among: Collection[str] | None = None
    of: str = ""
    filled: bool = False
    check: Check | None = None


def setting(default: Any, help: str, **bounds: Any) -> Any:
    """Make a dataclass field with documentation and bounds.

    Args:
        default: As for `dataclasses.field`; `MISSING` makes the field required. A list is copied and a
            function is called for each instance.
        help: What ``--help`` and the table of keys say.
        bounds: See `Bounds`.
    """
    metadata = {"help": help, BOUNDS: Bounds(**bounds)}
    if isinstance(default, list):
        default = default.copy
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def with_default(kind: type, name: str, default: Any) -> Any:
    """Copy a field of another dataclass with a new default; its documentation and bounds stay."""
    (inherited,) = (item for item in dataclasses.fields(kind) if item.name == name)
    return field(default=default, metadata=inherited.metadata)


def bounded(bounds: Mapping[str, Bounds]) -> Callable[[type[DataclassType]], type[DataclassType]]:
    """Add bounds to inherited fields of a dataclass; their defaults and documentation stay.

    Args:
        bounds: By the names of the fields that they hold for, with blanks between them.
    """

    def give(kind: type[DataclassType]) -> type[DataclassType]:
        fields: dict[str, Any] = kind.__dict__["__dataclass_fields__"]
        for names, found in bounds.items():
            for name in names.split():
                fields[name] = copy.copy(fields[name])
                fields[name].metadata = MappingProxyType({**fields[name].metadata, BOUNDS: found})
        return kind

    return give


class Checked:
    """Base of a dataclass of keys that raises all of its faults together when it is made."""

    def __post_init__(self) -> None:
        if faults := key_faults(self) + self.faults():
            raise ConfigurationError(faults)

    def faults(self) -> list[str]:
        """Faults that involve several keys, one sentence each."""
        return []


# --------------------------------------------------------------------------------------------------
# What is wrong
# --------------------------------------------------------------------------------------------------
def key_faults(record: Any) -> list[str]:
    """What is wrong with the keys of a configuration, one sentence per fault.

    The command line gives lists and mappings as text. Where the type allows that, the text is read as
    JSON or YAML, a word alone as a list of one, and the record's field is set to the result.

    Args:
        record: An instance of a dataclass of keys.
    """
    faults = []
    for name, hint, bounds, _, _ in _keys(type(record)):
        value = getattr(record, name)
        if isinstance(value, str) and str in kinds(hint) and _form(hint) in (dict, list):
            try:
                value = _structure(value)
            except yaml.YAMLError as error:
                form = "[a, {name: b}]" if _form(hint) is list else "{a: 1, b: 2}"
                said = f"is not valid JSON or YAML ({getattr(error, 'problem', error)})"
                faults.append(f"{name}: {value!r} {said}; write '{form}'")
                continue
            if isinstance(value, str) and _form(hint) is list:
                value = [value]
        value = _with_numbers(value)
        if value != getattr(record, name):
            setattr(record, name, value)
        faults += value_faults(name, value, hint, bounds)
    return faults


def _structure(text: str) -> Any:
    try:
        return json.loads(text)  # YAML 1.1 reads 1e-4 as text, in lists too
    except json.JSONDecodeError:
        return yaml.safe_load(text)


_EXPONENT = r"[-+]?\d{1,3}(\.\d*)?[eE][-+]?\d{1,2}"  # no commit's hash


def _with_numbers(value: Any, in_mapping: bool = False) -> Any:
    """The same with numbers in mappings that YAML 1.1 reads as text.

    >>> _with_numbers([{"weight": "5e-1", "name": "a"}, "1e-4"])
    [{'weight': 0.5, 'name': 'a'}, '1e-4']
    """
    if isinstance(value, dict):
        return {key: _with_numbers(item, True) for key, item in value.items()}
    if isinstance(value, list):
        return [*map(_with_numbers, value)]
    is_number = in_mapping and isinstance(value, str) and re.fullmatch(_EXPONENT, value)
    return float(value) if is_number else value


def record_faults(kind: type, given: Mapping[Any, Any], where: str) -> list[str]:
    """What is wrong with a mapping of options for a dataclass of keys, one sentence per fault."""
    keys = {name: rest for name, *rest in _keys(kind)}
    faults = [
        f"{where}: no option {name!r}{close_matches(str(name), keys)}"
        for name in given
        if name not in keys
    ]
    for name, (hint, bounds, is_required, help) in keys.items():
        if name in given:
            faults += value_faults(f"{where}: {name}", given[name], hint, bounds)
        elif is_required:
            faults.append(f"{where}: {name}: missing; {help}")
    return faults


def share_bounds(among: Collection[str], of: str) -> dict[str, Any]:
    """The bounds of a mapping of some names, of things of a kind, to shares that add up to 1."""
    return {"among": among, "of": of, "least": 0, "most": 1, "check": _add_up}


def _add_up(given: Mapping[str, float], name: str) -> list[str]:
    total = sum(given.values())
    return [] if abs(total - 1) <= 1e-6 else [f"{name}: the shares add up to {total:g}, not to 1"]


def each(check: Check) -> Check:
    """Make a check of a list from a check of one item."""
    return lambda values, name: [fault for value in values for fault in check(value, name)]


# --------------------------------------------------------------------------------------------------
# By type
# --------------------------------------------------------------------------------------------------
def _keys(kind: type) -> Iterator[tuple[str, Any, Bounds, bool, str]]:
    """Name, type, bounds, whether a value is required, and help of each field made by `setting`."""
    hints = get_type_hints(kind)
    for item in dataclasses.fields(kind):
        if BOUNDS in item.metadata:
            is_required = item.default is MISSING and item.default_factory is MISSING
            help = item.metadata.get("help", "")
            yield item.name, hints[item.name], item.metadata[BOUNDS], is_required, help


def kinds(hint: Any) -> tuple[Any, ...]:
    """The types of a union; of any other type, that type alone."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _form(hint: Any) -> Any:
    """The first type of a union, without parameters: `dict` for ``dict[str, float] | str``."""
    return get_origin(kinds(hint)[0]) or kinds(hint)[0]


def value_faults(name: str, value: Any, hint: Any, bounds: Bounds) -> list[str]:
    """What is wrong with a value of a type with bounds, one sentence per fault."""
    if value is None and NoneType in kinds(hint):
        return []
    kind, form = kinds(hint)[0], _form(hint)
    if form is dict:
        if not isinstance(value, Mapping):
            return [f"{name}: {value!r} is not a mapping; write {{{bounds.of or 'key'}: value}}"]
        among = value if bounds.among is None else bounds.among
        faults = _name_faults(name, value, among, bounds.of or "key")
        of_item = dataclasses.replace(bounds, among=None, of="")
        for key, item in value.items():
            if key in among:
                faults += _item_faults(f"{name}: {key}", item, get_args(kind)[1], of_item)
    elif form in (list, tuple):
        if not isinstance(value, list | tuple):
            return [f"{name}: {value!r} is not a list"]
        if not value and bounds.filled:
            of = f" of {', '.join(bounds.among)}" if bounds.among else ""
            return [f"{name}: empty; give at least one{of}"]
        faults = []
        # YAML reads some names as numbers.
        for item in {str(item): item for item in value}.values():
            faults += _item_faults(name, item, get_args(kind)[0], bounds)
    else:
        faults = _item_faults(name, value, kind, bounds)
    return faults or (bounds.check(value, name) if bounds.check else [])


def _name_faults(where: str, names: Collection[Any], among: Collection[str], of: str) -> list[str]:
    return [
        f"{where}: {name!r} is not a valid {of or 'value'}{_apart(str(name), among)}"
        for name in names
        if str(name) not in among
    ]


def _apart(name: str, among: Collection[str]) -> str:
    """What may have been meant by a name: others joined by commas, or a similar one."""
    parts = [part.strip() for part in name.split(",")]
    if len(parts) > 1 and {*parts} <= {*among}:
        return f"; write {' '.join(parts)}, with blanks between them"
    return close_matches(name, among)


def _item_faults(name: str, value: Any, kind: Any, bounds: Bounds) -> list[str]:
    """Faults of a single value: not of a list or mapping."""
    if bounds.among is not None:
        return _name_faults(name, [value], bounds.among, bounds.of)
    if get_origin(kind) is Literal:
        known = [item for item in get_args(kind) if isinstance(item, str)]
        return [] if value in get_args(kind) else _name_faults(name, [value], known, bounds.of)
    if kind in (int, float):
        return _number_faults(name, value, kind, bounds)
    if bounds.filled and not (isinstance(value, str) and value):
        return [f"{name}: {value!r} is not text" if value else f"{name}: missing; give a text"]
    return []


def _number_faults(name: str, value: Any, kind: type, bounds: Bounds) -> list[str]:
    is_number = isinstance(value, int | kind) and not isinstance(value, bool)
    if not is_number:
        return [f"{name}: {value!r} is not a {'whole ' if kind is int else ''}number"]
    for bound, is_met, words in (
        (bounds.above, operator.gt, "is too small; give more than"),
        (bounds.least, operator.ge, "is too small; give at least"),
        (bounds.below, operator.lt, "is too large; give less than"),
        (bounds.most, operator.le, "is too large; give at most"),
    ):
        if bound is not None and not is_met(value, bound):
            return [f"{name}: {value!r} {words} {bound:g}"]
    return []
