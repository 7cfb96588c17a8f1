"""The suites by name, and their arguments."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.errors import ConfigurationError
from ..common.own import load_own_class
from ..common.settings import Checked, setting
from ..models.loading import check_model_name

if TYPE_CHECKING:
    from ..engine.arguments import EngineArguments
    from .suite import Suite

_HEADLINES = (  # of each packaged suite
    "environment/exact",
    "policy/expected_score",
    "fill_in/exact",
    "openings/position",
    "mate_in_one/mate",
    "puzzles/first_move",
    "self_play/legal_half_moves",
    "closed_loop/right_plies",
    "versus_stockfish/score",
    "versus_model/score",
)

ORACLE, RANDOM_MOVER = "oracle", "random"  # models to evaluate that are none: see `models`

SUITE_HEADLINES = {metric.split("/")[0]: f"suites/{metric}" for metric in _HEADLINES}
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
    from .suite import Suite

    kind = load_own_class(name, "suites_from", Suite)
    if kind in _OWN.values():
        return
    if kind.name in SUITE_HEADLINES:
        raise ConfigurationError(
            [f"suites_from: {name}: another suite is called {kind.name!r}; give it another name"]
        )
    _OWN[kind.name] = kind
    SUITE_HEADLINES[kind.name] = f"suites/{kind.name}/{kind.headline}"


def contestant_faults(name: str, where: str) -> list[str]:
    """What is wrong with the name of a model to evaluate or to play against."""
    return [] if name in (ORACLE, RANDOM_MOVER) else check_model_name(name, where)


def _file_faults(name: str, where: str) -> list[str]:
    return [] if Path(name).is_file() else [f"{where}: file {name!r} not found"]


@dataclass
class SuiteArguments(Checked):
    """Which suites to run, and how large they are."""

    suites: list[str] = setting(
        [], "Evaluation suites to run, by name.", among=SUITE_HEADLINES, of="suite"
    )
    suites_from: list[str] = setting(
        [], "Suites of your own, each as path/to/file.py:Class; name them in `suites` too."
    )
    suite_rows: int = setting(500, "Largest number of prompts or positions in a suite.", least=1)
    suite_seed: int = setting(0, "Seed of the suites' items.")
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
        "Games in each suite that plays games.",
        least=1,
        most=1_000,  # there are some 7,000 held-out positions after `games.OPENING_PLIES`
    )
    opponent: str | None = setting(
        None,
        "The model that the suite versus_model plays against: a packaged name, a folder, a Hub id, or "
        "random.",
        check=contestant_faults,
    )


def open_suites(
    args: SuiteArguments, engine_args: EngineArguments
) -> tuple[list[Suite], dict[str, str]]:
    """The suites that can be run here, and why each of the others cannot.

    Args:
        args: Which suites, and how much of each.
        engine_args: The engine, for suites that need one.
    """
    given: dict[str, Any] = {**vars(args), "engine_args": engine_args}
    suites: list[Suite] = []
    left_out: dict[str, str] = {}
    for name in dict.fromkeys(args.suites):
        from .suite import SuiteUnavailableError  # a run without suites does not need it

        kind = suite_class(name)
        try:
            suites.append(kind(**{key: given[key] for key in inspect.signature(kind).parameters}))
        except SuiteUnavailableError as error:
            left_out[name] = str(error)
    return suites, left_out
