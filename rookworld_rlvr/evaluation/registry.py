"""The suites by name, what they are made from, and the proof that no training set holds their items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from ..common.errors import ConfigurationError, close_matches
from ..data.loading import DataArguments, is_held_out
from ..data.sources import Malformed, check_dataset_name, parse_rows
from ..engine.pool import EngineArguments
from ..tasks import rules
from ..tasks.types import TASKS
from .games import MOST_GAMES
from .suite import Suite, SuiteUnavailableError
from .suites.closed_loop import ClosedLoopSuite
from .suites.environment import EnvironmentSuite
from .suites.fill_in import FillInSuite
from .suites.mate_in_one import MateInOneSuite
from .suites.policy import PolicySuite
from .suites.puzzles import PuzzlesSuite
from .suites.self_play import SelfPlaySuite
from .suites.versus_stockfish import LEVELS, VersusStockfishSuite


@dataclass
class SuiteArguments:
    """Which suites, and how much of each.

    Args:
        suites: Names of `SUITES`.
        suite_rows: Prompts or positions of a suite.
        suite_seed: What they follow from.
        policy_dataset_name: A labelled data set whose held-out rows the suite `policy` takes instead
            of the packaged ones.
        mate_in_one_file: BIG-bench's checkmate_in_one/task.json, whose positions the suite
            `mate_in_one` takes instead of positions made from the seed.
        puzzles_file: Lichess's puzzle database, .csv or .csv.zst; the suite `puzzles` has no other.
        suite_games: Games of a suite that plays some; of `versus_stockfish`, at each level.
        game_plies: Half-moves after which a game is cut off.
        versus_levels: Whom `versus_stockfish` plays: skill levels 0 to 5, and ``random``, which needs no
            engine.
    """

    suites: list[str] = field(default_factory=list)
    suite_rows: int = 500
    suite_seed: int = 0
    policy_dataset_name: str | None = None
    mate_in_one_file: str | None = None
    puzzles_file: str | None = None
    suite_games: int = 20
    game_plies: int = 200
    versus_levels: list[str] = field(default_factory=lambda: ["0"])

    def __post_init__(self) -> None:
        faults = self.faults()
        if faults:
            raise ConfigurationError(faults)

    def faults(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        faults = [
            f"suites: no suite {name!r}{close_matches(name, SUITES)}"
            for name in self.suites
            if name not in SUITES
        ]
        faults += [
            f"{key}: {getattr(self, key)!r} is too small; give at least 1"
            for key in ("suite_rows", "suite_games", "game_plies")
            if getattr(self, key) < 1
        ]
        if self.policy_dataset_name is not None:
            faults += check_dataset_name(self.policy_dataset_name, "policy_dataset_name")
        faults += [
            f"{key}: no file {getattr(self, key)!r}"
            for key in ("mate_in_one_file", "puzzles_file")
            if getattr(self, key) is not None and not Path(getattr(self, key)).is_file()
        ]
        if self.suite_games > MOST_GAMES:
            faults.append(
                f"suite_games: {self.suite_games!r} is too large; give at most {MOST_GAMES}"
            )
        return faults + self._level_faults()

    def levels(self) -> list[str]:
        """`versus_levels` as texts: YAML reads a level as a number."""
        return [str(level) for level in self.versus_levels]

    def _level_faults(self) -> list[str]:
        levels = self.levels()
        faults = [
            f"versus_levels: {level!r} is none{close_matches(level, LEVELS)}"
            for level in dict.fromkeys(levels)
            if level not in LEVELS
        ]
        faults += [
            f"versus_levels: {level!r} stands there {levels.count(level)} times; give it once"
            for level in dict.fromkeys(levels)
            if levels.count(level) > 1
        ]
        if not levels:
            faults.append(f"versus_levels: none; give some of {', '.join(LEVELS)}")
        return faults


Maker = Callable[[SuiteArguments, EngineArguments], Suite]


SUITES: Mapping[str, Maker] = {
    "environment": lambda args, _: EnvironmentSuite(args.suite_rows, args.suite_seed),
    "policy": lambda args, _: PolicySuite(
        args.suite_rows, args.suite_seed, args.policy_dataset_name
    ),
    "fill_in": lambda args, _: FillInSuite(args.suite_rows, args.suite_seed),
    "mate_in_one": lambda args, _: MateInOneSuite(
        args.suite_rows, args.suite_seed, args.mate_in_one_file
    ),
    "puzzles": lambda args, _: PuzzlesSuite(args.suite_rows, args.suite_seed, args.puzzles_file),
    "self_play": lambda args, _: SelfPlaySuite(args.suite_games, args.game_plies, args.suite_seed),
    "closed_loop": lambda args, _: ClosedLoopSuite(
        args.suite_games, args.game_plies, args.suite_seed
    ),
    "versus_stockfish": lambda args, engine_args: VersusStockfishSuite(
        args.levels(), args.suite_games, args.game_plies, args.suite_seed, engine_args
    ),
}
"""How each suite is made."""


SUITE_HEADLINES: Mapping[str, str] = {
    suite.name: f"suites/{suite.name}/{suite.headline}"
    for suite in (
        EnvironmentSuite,
        PolicySuite,
        FillInSuite,
        MateInOneSuite,
        PuzzlesSuite,
        SelfPlaySuite,
        ClosedLoopSuite,
        VersusStockfishSuite,
    )
}
"""Suite → name, in training, of the metric that says most; it may choose the best checkpoint."""


def open_suites(
    args: SuiteArguments, engine_args: EngineArguments
) -> tuple[list[Suite], dict[str, str]]:
    """The suites that can be run here, and why each of the others cannot.

    Args:
        args: Which.
        engine_args: Whom those ask that need an engine.
    """
    suites, left_out = [], {}
    for name in dict.fromkeys(args.suites):
        try:
            suites.append(SUITES[name](args, engine_args))
        except SuiteUnavailableError as error:
            left_out[name] = str(error)
    return suites, left_out


# --------------------------------------------------------------------------------------------------
# Test positions and training sets
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Proof:
    """What a training set was searched for.

    Args:
        training_data: Its name.
        rows: That are trained on.
        left_out: By suite, how many items were left out, as their positions are trained on.
    """

    training_data: str
    rows: int
    left_out: Mapping[str, int]


def keep_apart(suites: Sequence[Suite], name: str) -> Proof:
    """Leave out of each suite the items whose positions a training set holds.

    Args:
        suites: Changed in place.
        name: A data set, of which all but the default held-out share is trained on; or a recipe (a
            ``.yaml`` file) with its own keys, synthetic rows among them.

    Raises:
        RookWorldError: The data set cannot be read.
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


def check_training_data(name: str) -> list[str]:
    """Faults of a name that `keep_apart` would take, found without reading rows."""
    if Path(name).suffix not in (".yaml", ".yml"):
        return check_dataset_name(name, "training_data")
    if not Path(name).is_file():
        return [f"training_data: no file {name!r}"]
    try:
        _data_arguments(name)
    except ConfigurationError as error:
        return [f"training_data: {name}: {fault}" for fault in error.faults]
    return []


def _data_arguments(name: str) -> DataArguments:
    if Path(name).suffix not in (".yaml", ".yml"):
        return DataArguments(dataset_name=name, tasks=list(TASKS))
    try:
        content: Any = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError([f"cannot be read ({' '.join(str(error).split())})"]) from error
    if not isinstance(content, dict):
        raise ConfigurationError(["holds no mapping of keys to values"])
    known = {item.name for item in fields(DataArguments)}
    return DataArguments(**{key: value for key, value in content.items() if key in known})


def _trained_positions(args: DataArguments) -> Iterator[str]:
    for row in chain(parse_rows(args.raw_rows()), args.made_rows()):
        if isinstance(row, Malformed) or row["task"] not in args.tasks:
            continue
        if not is_held_out(row["fen"], args.heldout_share):
            yield row["fen"]
