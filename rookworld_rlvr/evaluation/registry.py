"""The suites by name, their arguments, and the proof that no training set holds their items."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from ..common.errors import ConfigurationError, close_matches
from ..common.own import load_own_class
from ..common.settings import Checked, setting
from ..data.loading import DataArguments, is_held_out
from ..data.sources import Malformed, check_dataset_name, parse_rows
from ..engine.pool import EngineArguments
from ..tasks import rules
from ..tasks.registry import TASKS
from .suite import LEVELS, MOST_GAMES, Suite, SuiteUnavailableError

_ROWS = ("suite_rows", "suite_seed")


_GAMES = ("suite_games", "game_plies", "suite_seed")


_PACKAGED = (  # name, headline, and the keys that the constructor takes, in its order
    ("environment", "exact", _ROWS),
    ("policy", "best_move", (*_ROWS, "policy_dataset_name")),
    ("fill_in", "exact", _ROWS),
    ("openings", "position", (*_ROWS, "openings_file")),
    ("mate_in_one", "mate", _ROWS),
    ("puzzles", "first_move", (*_ROWS, "puzzles_file")),
    ("self_play", "legal_half_moves", _GAMES),
    ("closed_loop", "right_plies", _GAMES),
    ("versus_stockfish", "score", ("levels", *_GAMES, "engine_args")),
)


SUITES: dict[str, tuple[str, ...]] = {name: keys for name, _, keys in _PACKAGED}
"""Suite → the keys that its constructor takes, in its order."""


SUITE_HEADLINES = {name: f"suites/{name}/{headline}" for name, headline, _ in _PACKAGED}
"""Suite → the name of its headline in training, which may choose the best checkpoint."""


_OWN: dict[str, type[Suite]] = {}  # of the user's files


def suite_class(name: str) -> type[Suite]:
    """A suite by its name; it is imported only now, because a training run needs few of them."""
    if name in _OWN:
        return _OWN[name]
    module = import_module(f".suites.{name}", __package__)
    kind: type[Suite] = getattr(module, f"{name.title().replace('_', '')}Suite")
    return kind


def register_own_suite(name: str) -> None:
    """Add a user's own suite, named as ``path/to/file.py:Class``; naming it again changes nothing.

    Its constructor takes keys of `SuiteArguments` by their names, and `engine_args`.

    Raises:
        ConfigurationError: It could not be loaded, is not a suite, or its name is taken.
    """
    kind = load_own_class(name, "suites_from", Suite)
    if kind in _OWN.values():
        return
    if kind.name in SUITES:
        raise ConfigurationError(
            [f"suites_from: {name}: another suite is called {kind.name!r}; give it another name"]
        )
    known = [*(item.name for item in fields(SuiteArguments)), "engine_args"]
    keys = tuple(inspect.signature(kind).parameters)
    if others := [key for key in keys if key not in known]:
        raise ConfigurationError(
            [
                f"suites_from: {name} takes {key!r}, which is not a key{close_matches(key, known)}"
                for key in others
            ]
        )
    _OWN[kind.name], SUITES[kind.name] = kind, keys
    SUITE_HEADLINES[kind.name] = f"suites/{kind.name}/{kind.headline}"


def _file_faults(name: str, where: str) -> list[str]:
    return [] if Path(name).is_file() else [f"{where}: file {name!r} not found"]


@dataclass
class SuiteArguments(Checked):
    """Which suites to run, and how large they are."""

    suites: list[str] = setting([], "Evaluation suites to run, by name.", among=SUITES, of="suite")
    suites_from: list[str] = setting(
        [], "Suites of your own, each as path/to/file.py:Class; name them in `suites` too."
    )
    suite_rows: int = setting(500, "Largest number of prompts or positions in a suite.", least=1)
    suite_seed: int = setting(0, "Seed of the suites' items.")
    policy_dataset_name: str | None = setting(
        None,
        "A labelled data set; the suite policy takes its held-out rows in place of the packaged ones.",
        check=check_dataset_name,
    )
    openings_file: str | None = setting(
        None,
        "A JSON list of objects with `prompt`, taken by the suite openings in place of packaged ones.",
        check=_file_faults,
    )
    puzzles_file: str | None = setting(
        None,
        "Lichess's puzzle database, .csv or .csv.zst; the suite puzzles needs it.",
        check=_file_faults,
    )
    suite_games: int = setting(
        20,
        "Games in each suite that plays games; in versus_stockfish, at each level.",
        least=1,
        most=MOST_GAMES,
    )
    game_plies: int = setting(200, "Half-moves after which a game is cut off.", least=1)
    versus_levels: list[str] = setting(
        ["0"],
        "Opponents in versus_stockfish: skill levels 0 to 5, and random, which needs no engine.",
        among=LEVELS,
        filled=True,
        once=True,
    )

    def levels(self) -> list[str]:
        """`versus_levels` as texts: YAML reads a level as a number."""
        return [str(level) for level in self.versus_levels]


def open_suites(
    args: SuiteArguments, engine_args: EngineArguments
) -> tuple[list[Suite], dict[str, str]]:
    """The suites that can be run here, and why each of the others cannot.

    Args:
        args: Which suites, and how much of each.
        engine_args: The engine, for suites that need one.
    """
    given = {**vars(args), "levels": args.levels(), "engine_args": engine_args}
    suites, left_out = [], {}
    for name in dict.fromkeys(args.suites):
        try:
            suites.append(suite_class(name)(*(given[key] for key in SUITES[name])))
        except SuiteUnavailableError as error:
            left_out[name] = str(error)
    return suites, left_out


# --------------------------------------------------------------------------------------------------
# Test positions and training sets
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Proof:
    """The result of searching a training set for test positions.

    Args:
        training_data: Its name.
        rows: How many of its rows are trained on.
        left_out: By suite, how many items were left out because their positions are trained on.
    """

    training_data: str
    rows: int
    left_out: Mapping[str, int]


def keep_apart(suites: Sequence[Suite], name: str) -> Proof:
    """Leave out of each suite the items whose positions a training set holds.

    Args:
        suites: Changed in place.
        name: A data set, all of which is trained on but the default held-out share; or a recipe (a
            ``.yaml`` file), which is read with its own keys, synthetic rows included.

    Raises:
        RookWorldError: The data set could not be read.
    """
    items = [
        (suite, item, rules.position_key(fen))
        for suite in suites
        for item, fen in suite.positions().items()
    ]
    tested = {key for _, _, key in items}
    rows, shared = 0, set()
    for fen in _trained_positions(_data_arguments(name)):
        rows += 1
        key = rules.position_key(fen)
        if key in tested:
            shared.add(key)
    left_out = {}
    for suite in suites:
        trained = [item for owner, item, key in items if owner is suite and key in shared]
        suite.leave_out(trained)
        left_out[suite.name] = len(trained)
    return Proof(name, rows, left_out)


def check_training_data(name: str, key: str = "training_data") -> list[str]:
    """What is wrong with a name for `keep_apart`, found without reading rows."""
    if Path(name).suffix not in (".yaml", ".yml"):
        return check_dataset_name(name, key)
    if not Path(name).is_file():
        return _file_faults(name, key)
    try:
        _data_arguments(name)
    except ConfigurationError as error:
        return [f"{key}: {name}: {fault}" for fault in error.faults]
    return []


def _data_arguments(name: str) -> DataArguments:
    if Path(name).suffix not in (".yaml", ".yml"):
        return DataArguments(dataset_name=name, tasks=list(TASKS))
    try:
        content: Any = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError([f"could not be read ({' '.join(str(error).split())})"]) from error
    if not isinstance(content, dict):
        raise ConfigurationError(["must hold a mapping of keys to values"])
    known = {item.name for item in fields(DataArguments)}
    return DataArguments(**{key: value for key, value in content.items() if key in known})


def _trained_positions(args: DataArguments) -> Iterator[str]:
    for row in chain(parse_rows(args.raw_rows(), tasks=args.tasks), args.made_rows()):
        if isinstance(row, Malformed) or row["task"] not in args.tasks:
            continue
        if not is_held_out(row["fen"], args.heldout_share):
            yield row["fen"]
