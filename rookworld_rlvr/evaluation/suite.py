"""What a suite is: versioned items, a model that answers them, and values by metric and item."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import yaml

from ..common.errors import ConfigurationError, RookWorldError, close_matches
from ..common.shipped import find_recipe, shipped_names
from ..common.stats import Estimate, Kind, Paired, estimate, paired
from ..data.loading import DataArguments, is_held_out
from ..data.sources import Malformed, Row, check_dataset_name, parse_rows
from ..tasks import rules
from ..tasks.policy import POLICY
from ..tasks.registry import TASKS, task_of
from .answerers import Answerer
from .pass_at_k import kinds, majority, passes


class SuiteUnavailableError(RookWorldError):
    """A suite's engine or file is missing here. The suite is left out, and the results say why."""


class Observations:
    """Values by metric and item.

    A metric may be split by group: ``best_move/white`` is `best_move` of White's items.

    Args:
        metrics: Kinds of the suite's metrics by name; no other can be observed.
        groups: In the order of the results; others follow in the order in which they come.
    """

    def __init__(self, metrics: Mapping[str, Kind], groups: Iterable[str] = ()) -> None:
        self._metrics = metrics
        self._groups = dict.fromkeys(groups)
        self.values: dict[str, dict[str, float]] = defaultdict(dict)

    def add(self, item: str, metric: str, value: float, groups: Iterable[str] = ()) -> None:
        """Observe a metric on an item, once overall and once for each group.

        Args:
            item: Its name, by which results of different models are paired.
            metric: One of the suite's.
            value: 0 or 1 if the metric is a share.
            groups: Parts that the item belongs to.
        """
        if self._metrics[metric] == "share" and value not in (0, 1):
            raise ValueError(f"{metric} is a share, but {item!r} has {value!r}")
        groups = tuple(groups)
        self._groups |= dict.fromkeys(groups)
        for name in (metric, *(f"{metric}/{group}" for group in groups)):
            if item in self.values[name]:
                raise ValueError(f"{name} of {item!r} was observed before")
            self.values[name][item] = float(value)

    def kind(self, name: str) -> Kind:
        """The kind of a metric or of one of its groups."""
        return self._metrics[name.split("/", 1)[0]]

    def names(self) -> list[str]:
        """What was observed: metrics in the suite's order, each before its groups."""
        groups = ["", *(f"/{group}" for group in self._groups)]
        names = (f"{metric}{group}" for metric in self._metrics for group in groups)
        return [name for name in names if name in self.values]


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """A suite's outcome for one model.

    Args:
        version: Results of different versions are not comparable.
        n: Items that were asked: prompts, positions or games.
        seed: The seed of the items; None if they come from a file alone.
        decoding: How the model chose its tokens.
        observations: All values.
        estimates: Metrics that are not a mean over items, such as an Elo difference.
        notes: What else is worth knowing, such as the engine and its limit.
    """

    version: int
    n: int
    seed: int | None
    decoding: Mapping[str, Any]
    observations: Observations
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def metrics(self) -> dict[str, Estimate]:
        """Each metric's value and interval, the groups behind their metric."""
        observed = self.observations
        of_items = {
            name: estimate(observed.kind(name), list(observed.values[name].values()))
            for name in observed.names()
        }
        return {**of_items, **self.estimates}

    def compare(self, other: SuiteResult) -> dict[str, Paired]:
        """How `other` differs from this one, metric by metric, on the items of both."""
        theirs = other.observations.values
        results = {
            name: paired(self.observations.kind(name), self.observations.values[name], theirs[name])
            for name in self.observations.names()
            if name in theirs
        }
        return {name: result for name, result in results.items() if result is not None}


Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Metric:
    """What a suite measures.

    Args:
        kind: A ``share`` of items (values 0 and 1) or a ``mean``.
        meaning: One sentence.
    """

    kind: Kind
    meaning: str = ""


Judged = tuple[str, Mapping[str, float], Iterable[str]]
"""An item's name, its values by metric, and the groups that it belongs to."""


class Suite(ABC, Generic[Item]):
    """Items that are made once and put to any number of models.

    Making a suite raises `SuiteUnavailableError` if its engine or file is missing.

    Args:
        items: By name; results of different models are paired by it.
        seed: The seed that they were made with.
        notes: See `SuiteResult`.

    Attributes:
        name: Of the suite, as `--suites` takes it.
        version: Raised with every change of items, prompts or scoring.
        summary: What it asks and measures, in one sentence.
        metrics: What it measures, by name.
        headline: The metric that says most; the higher, the better.
        right: The share by which an answer is right, for pass@k; by default the headline.
        grouped: The metrics that are split by group.
        groups: Of items, in the order in which results have them.
        pass_samples: Samples of each item for pass@k, in a `PromptSuite`; 0 for none.
        about: What the positions are, in a line, and what to compare a run's held-out rows with; the
            note `positions` of results.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    summary: ClassVar[str] = ""
    metrics: ClassVar[Mapping[str, Metric]]
    headline: ClassVar[str]
    right: ClassVar[str] = ""
    grouped: ClassVar[Collection[str]] = ()
    groups: Iterable[str] = ()
    about: ClassVar[str] = ""
    pass_samples: int = 0

    def __init__(
        self, items: Mapping[str, Item], seed: int, notes: Mapping[str, Any] | None = None
    ) -> None:
        self.items = dict(items)
        self.seed = seed
        self.notes = {**({"positions": self.about} if self.about else {}), **(notes or {})}

    @abstractmethod
    def positions(self) -> dict[str, str]:
        """The test position (FEN) of each item; for a game, the one that it starts from."""

    @abstractmethod
    def judged(self, model: Answerer) -> Iterable[Judged]:
        """Ask a model about all items, and judge what it says."""

    def leave_out(self, items: Iterable[str]) -> None:
        """Drop items, because their positions are in a training set."""
        for item in items:
            del self.items[item]

    def run(self, model: Answerer) -> SuiteResult:
        """Ask a model, and collect the values of its answers."""
        samples = self.pass_samples
        known = {name: metric.kind for name, metric in self.metrics.items()}
        seen = Observations({**known, **kinds(samples)}, self.groups)
        model.asked_by = self.name
        for item, values, groups in self.judged(model):
            for metric, value in values.items():
                if metric not in known:
                    raise RookWorldError(
                        f"the suite {self.name} gives a value for {metric!r}, which is not among its "
                        f"metrics{close_matches(metric, known)}"
                    )
                seen.add(item, metric, value, groups if metric in self.grouped else ())
        for item, values in self.sampled(model).items():
            for metric, value in values.items():
                seen.add(item, metric, value)
        drawn = {"pass_samples": samples, "pass_decoding": dict(model.sampling or model.decoding)}
        notes = {**self.notes, **(drawn if samples else {})}
        return SuiteResult(
            self.version, len(self.items), self.seed, model.decoding, seen, notes=notes
        )

    def sampled(self, model: Answerer) -> dict[str, dict[str, float]]:
        """pass@k and majority@k of each item from `pass_samples` answers."""
        return {}


class PromptSuite(Suite[Item]):
    """A suite whose items are one prompt each, with one answer, so that pass@k can be measured."""

    def prompts(self) -> list[str]:
        """What is asked, item by item; by default the items' names."""
        return list(self.items)

    @staticmethod
    @abstractmethod
    def judge(item: Any, completion: str) -> dict[str, float]:
        """The suite's metrics for one answer, those that apply to it."""

    def groups_of(self, name: str) -> Iterable[str]:
        """The groups that an item belongs to, by its name."""
        return ()

    def judged(self, model: Answerer) -> Iterator[Judged]:
        """See `Suite`."""
        completions = model.answers(self.prompts())
        for (name, item), completion in zip(self.items.items(), completions, strict=True):
            yield name, self.judge(item, completion), self.groups_of(name)

    def sampled(self, model: Answerer) -> dict[str, dict[str, float]]:
        """See `Suite`."""
        if not self.pass_samples:
            return {}
        right, found = self.right or self.headline, {}
        prompts = self.prompts()
        drawn = model.samples(prompts, self.pass_samples)
        for (name, item), prompt, texts in zip(self.items.items(), prompts, drawn, strict=True):
            hits = {text: self.judge(item, text)[right] == 1 for text in texts}
            chosen = majority(texts, TASKS[task_of(prompt)].vote)
            found[name] = {
                **passes(sum(hits[text] for text in texts), self.pass_samples),
                f"majority@{self.pass_samples}": float(hits[chosen]),
            }
        return found


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
    keys = {
        suite: {item: rules.position_key(fen) for item, fen in suite.positions().items()}
        for suite in suites
    }
    tested = {key for of_suite in keys.values() for key in of_suite.values()}
    rows, shared = 0, set[str]()
    for fen in _trained_positions(_data_arguments(name)):
        rows += 1
        shared |= tested & {rules.position_key(fen)}
    left_out = {}
    for suite, of_suite in keys.items():
        trained = [item for item, key in of_suite.items() if key in shared]
        suite.leave_out(trained)
        left_out[suite.name] = len(trained)
    return Proof(name, rows, left_out)


def check_training_data(name: str, key: str = "training_data") -> list[str]:
    """What is wrong with a name for `keep_apart`, found without reading rows."""
    if not _is_recipe(name):
        return check_dataset_name(name, key)
    try:
        _data_arguments(name)
    except ConfigurationError as error:
        return [f"{key}: {name}: {fault}" for fault in error.faults]
    return []


def _is_recipe(name: str) -> bool:
    return Path(name).suffix in (".yaml", ".yml") or name in shipped_names("recipes")


def _data_arguments(name: str) -> DataArguments:
    if not _is_recipe(name):
        return DataArguments(dataset_name=name, tasks=list(TASKS))
    try:
        content: Any = yaml.safe_load(find_recipe(name, where="").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError([f"could not be read ({' '.join(str(error).split())})"]) from error
    if not isinstance(content, dict):
        raise ConfigurationError(["must hold a mapping of keys to values"])
    known = {item.name for item in fields(DataArguments)}
    return DataArguments(**{key: value for key, value in content.items() if key in known})


def _trained_positions(args: DataArguments) -> Iterator[str]:
    rows = chain(parse_rows(args.raw_rows(), tasks=args.tasks), args.made_rows())
    tested = replace(args, dataset_name=args.eval_dataset_name, max_rows=None, mirror=False)
    apart = {
        rules.position_key(fen)
        for fen in _positions(tested.parsed_rows() if args.eval_dataset_name else (), tested)
    }
    for fen in _positions(rows, args):
        if is_held_out(fen, args.heldout_share) or (apart and rules.position_key(fen) in apart):
            continue
        yield fen


def _positions(rows: Iterable[Row | Malformed], args: DataArguments) -> Iterator[str]:
    """The positions of rows of the trained tasks, and of the images that `mirror` adds."""
    for row in rows:
        if not isinstance(row, Malformed) and row["task"] in args.tasks:
            yield row["fen"]
            if args.mirror and row["task"] == POLICY.name:
                yield rules.mirrored(row["fen"])
