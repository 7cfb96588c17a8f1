"""The names of the suites, and their arguments; a run without suites loads no more of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.files import read_asset
from ..common.settings import Checked, setting
from ..models.loading import check_model_name

SUITES: Mapping[str, Mapping[str, Any]] = read_asset("suites.yaml")
"""What is said of each packaged suite."""

RANDOM_MOVER = "random"  # a model to evaluate that is none, see `models`

LADDER = (
    *(RANDOM_MOVER, "stockfish_10", "stockfish_25", "material", "fairy_500", "stockfish_50"),
    *("negamax_2", "negamax_3", "fairy_1350"),
)
"""The players of the suite elo beside the models, from the weakest to the strongest."""

SUITE_HEADLINES = {name: f"suites/{name}/{said['headline']}" for name, said in SUITES.items()}
"""Suite → the name of its headline in training, which may choose the best checkpoint."""


def contestant_faults(name: str, where: str) -> list[str]:
    """What is wrong with the name of a model to evaluate or to play against."""
    return [] if name == RANDOM_MOVER else check_model_name(name, where)


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
    elo_games: int = setting(
        400,
        "Games of every two players that meet in the suite elo: both colours of each opening.",
        least=2,
        most=2_000,
    )
    elo_pool: list[str] = setting(
        [],
        f"Players that the suite elo rates beside the models: {', '.join(LADDER)}. random is always "
        "one. By default all whose engine is installed.",
        among=LADDER,
        of="player",
    )
    opponent: str | None = setting(
        None,
        "The model that the suite versus_model plays against: a packaged name, a folder, a Hub id, or "
        "random.",
        check=contestant_faults,
    )
