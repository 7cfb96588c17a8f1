"""What a suite is: versioned items, a model that answers them, and values by metric and item."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import chess

from ..common.errors import ConfigurationError, RookWorldError, close_matches
from ..common.files import find_recipe, read_keys, shipped_names
from ..common.own import load_own_class
from ..common.stats import MetricKind
from ..data.loading import DataArguments, load_data
from ..data.parsing import parse_rows, raw_rows
from ..data.sources import Malformed, SourceArguments, check_dataset_name
from ..models.decoding import Decoding
from ..tasks import rules
from ..tasks.policy import write_policy_prompt
from ..tasks.registry import TASKS, task_of
from .pass_at_k import count_right, kinds, passes
from .registry import SUITE_HEADLINES, SUITES, SuiteArguments
from .results import SuiteResult

if TYPE_CHECKING:
    from ..engine import EngineArguments


class SuiteUnavailableError(RookWorldError):
    """A suite's engine or file is missing here. The suite is left out, and the results say why."""


class Answerer(ABC):
    """A model under test.

    Attributes:
        name: As results name it.
        decoding: How it chooses its tokens, for the record.
        sampling: How it chooses those of `samples`, if otherwise.
    """

    name: str
    decoding: Mapping[str, Any]
    sampling: Mapping[str, Any] | None = None

    @abstractmethod
    def answers(self, prompts: Sequence[str]) -> list[str]:
        """One completion for each prompt, in order; the same on every process."""

    def policy_answers(self, boards: Sequence[chess.Board]) -> list[str]:
        """One answer for each board, to its policy prompt; that has no moves before the position.

        An answerer that asks more than this prompt may tell the moves on the board.
        """
        return self.answers([write_policy_prompt(board.fen()) for board in boards])

    def samples(
        self, prompts: Sequence[str], count: int, decoding: Decoding | None = None
    ) -> list[list[str]]:
        """`count` completions for each prompt; all the same unless the answerer draws them.

        Args:
            prompts: `N` texts.
            count: Completions of each.
            decoding: How a language model draws them; None draws them by its `sampling`.
        """
        return [[answer] * count for answer in self.answers(prompts)]

    def log_probs(
        self, prompts: Sequence[str], choices: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """How likely each choice is after its prompt, in nats; all alike unless it is a language model.

        Args:
            prompts: `N` texts.
            choices: Of each prompt, the texts that may follow it; at least one.
        """
        return [[0.0] * len(texts) for texts in choices]


Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class SuiteMetric:
    """What a suite measures.

    Args:
        kind: A ``share`` of items (values 0 and 1), a ``mean`` of values from 0 to 1, or an ``amount``,
            which may be any number.
        meaning: One sentence.
    """

    kind: MetricKind
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
    metrics: ClassVar[Mapping[str, SuiteMetric]]
    headline: ClassVar[str]
    right: ClassVar[str] = ""
    grouped: ClassVar[Collection[str]] = ()
    groups: Iterable[str] = ()
    about: ClassVar[str] = ""
    pass_samples: int = 0

    def __init_subclass__(cls, packaged: str = "") -> None:
        """Give the packaged suite of a name its headline, and what ``assets/suites.yaml`` says of it."""
        super().__init_subclass__()
        if packaged:
            said = SUITES[packaged]
            cls.name, cls.version, cls.headline = packaged, said["version"], said["headline"]
            cls.right, cls.grouped = said.get("right", ""), said.get("grouped", ())
            cls.summary, cls.about = said["summary"], said["about"]
            cls.metrics = {name: SuiteMetric(*entry) for name, entry in said["metrics"].items()}

    def __init__(
        self, items: Mapping[str, Item], seed: int, notes: Mapping[str, Any] | None = None
    ) -> None:
        self.items = dict(items)
        self.seed = seed
        self.notes = {**({"positions": self.about} if self.about else {}), **(notes or {})}

    def positions(self) -> dict[str, str]:
        """The test position (FEN) of each item, by default the item's `fen`, else its name."""
        return {name: getattr(item, "fen", name) for name, item in self.items.items()}

    @abstractmethod
    def judged(self, model: Answerer) -> Iterable[Judged]:
        """Ask a model about all items, and judge what it says."""

    def run(self, model: Answerer) -> SuiteResult:
        """Ask a model, and collect the values of its answers.

        Raises:
            RookWorldError: A value is not of one of the suite's metrics, is of a share but neither 0 nor
                1, or is an item's second one.
        """
        known = {name: metric.kind for name, metric in self.metrics.items()}
        known |= kinds(self.pass_samples)
        seen: dict[str, dict[str, float]] = {
            name: {} for metric in known for name in _names(metric, self.groups)
        }
        for item, values, groups in chain(self.judged(model), self.sampled(model)):
            for metric, value in values.items():
                if metric not in known:
                    raise RookWorldError(
                        f"the suite {self.name} gives a value for {metric!r}, which is not among its "
                        f"metrics{close_matches(metric, known)}"
                    )
                if known[metric] == "share" and value not in (0, 1):
                    raise RookWorldError(
                        f"the suite {self.name}: {metric} is a share, but {item!r} has {value!r}"
                    )
                for name in _names(metric, groups if metric in self.grouped else ()):
                    if item in seen.setdefault(name, {}):
                        raise RookWorldError(
                            f"the suite {self.name} gives {item!r} two values for {name}"
                        )
                    seen[name][item] = float(value)
        notes = dict(self.notes)
        if self.pass_samples:
            notes["pass_samples"], notes["pass_right"] = self.pass_samples, self.right_by
            notes["pass_decoding"] = dict(model.sampling or model.decoding)
        n, found = len(self.items), {name: values for name, values in seen.items() if values}
        return SuiteResult(self.version, n, self.seed, model.decoding, known, found, notes=notes)

    @property
    def right_by(self) -> str:
        """The metric by which an answer is right for pass@k."""
        return self.right or self.headline

    def sampled(self, model: Answerer) -> Iterable[Judged]:
        """pass@k and majority@k of each item from `pass_samples` answers."""
        return ()


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

    def sampled(self, model: Answerer) -> Iterator[Judged]:
        """See `Suite`."""
        if not (count := self.pass_samples):
            return
        prompts = self.prompts()
        drawn = model.samples(prompts, count)
        for (name, item), prompt, texts in zip(self.items.items(), prompts, drawn, strict=True):
            hits = {text: self.judge(item, text)[self.right_by] == 1 for text in texts}
            found, voted = count_right(texts, hits, TASKS[task_of(prompt)].vote)
            yield name, {**passes(found, count), f"majority@{count}": float(voted)}, ()


def _names(metric: str, groups: Iterable[str]) -> list[str]:
    return [metric, *(f"{metric}/{group}" for group in groups)]


# --------------------------------------------------------------------------------------------------
# By name
# --------------------------------------------------------------------------------------------------
_OWN: dict[str, type[Suite]] = {}  # of the user's files


def suite_class(name: str) -> type[Suite]:
    """A suite by its name; it is imported only now, because a training run needs few of them."""
    if name in _OWN:
        return _OWN[name]
    module = import_module(f".suites.{SUITES[name].get('file', name)}", __package__)
    return getattr(module, f"{name.title().replace('_', '')}Suite")


def register_own_suite(name: str) -> None:
    """Add a user's own suite, named as ``path/to/file.py:Class``; naming it again changes nothing.

    Its constructor takes keys of `SuiteArguments` by their names, `engine_args`, and `model_args`, which
    is None outside of `rookworld evaluate`.

    Raises:
        ConfigurationError: It could not be loaded, is not a suite, or its name is taken.
    """
    kind = load_own_class(name, "suites_from", Suite)
    if kind in _OWN.values():
        return
    if kind.name in SUITE_HEADLINES:
        raise ConfigurationError(
            [f"suites_from: {name}: another suite is called {kind.name!r}; give it another name"]
        )
    _OWN[kind.name] = kind
    SUITE_HEADLINES[kind.name] = f"suites/{kind.name}/{kind.headline}"


def open_suites(
    args: SuiteArguments, engine_args: EngineArguments, model_args: Any = None
) -> tuple[list[Suite], dict[str, str]]:
    """The suites that can be run here, and why each of the others cannot.

    Args:
        args: Which suites, and how much of each.
        engine_args: The engine, for suites that need one.
        model_args: The `ModelArguments` of the models under test, for suites with a model of their own;
            None for the defaults.
    """
    given = {**vars(args), "engine_args": engine_args, "model_args": model_args}
    suites: list[Suite] = []
    left_out: dict[str, str] = {}
    for name in dict.fromkeys(args.suites):
        kind = suite_class(name)
        try:
            suites.append(kind(**{key: given[key] for key in inspect.signature(kind).parameters}))
        except SuiteUnavailableError as error:
            left_out[name] = str(error)
    return suites, left_out


# --------------------------------------------------------------------------------------------------
# Training sets
# --------------------------------------------------------------------------------------------------
def keep_apart(suites: Sequence[Suite], name: str) -> dict[str, Any]:
    """Leave out of each suite the items whose positions were trained on.

    Args:
        suites: Changed in place.
        name: A recipe, of which the training rows count, or a data set, of which all rows do.

    Returns:
        The name, how many rows there are, and how many items were left out by suite.

    Raises:
        RookWorldError: The data set could not be read.
    """
    keys = [
        {item: rules.position_key(fen) for item, fen in suite.positions().items()}
        for suite in suites
    ]
    tested = {key for of_suite in keys for key in of_suite.values()}
    rows, shared = 0, set[str]()
    for fen in _trained_positions(name):
        rows += 1
        shared |= tested & {rules.position_key(fen)}
    left_out = {}
    for suite, of_suite in zip(suites, keys, strict=True):
        trained = [item for item, key in of_suite.items() if key in shared]
        for item in trained:
            del suite.items[item]
        left_out[suite.name] = len(trained)
    return {"training_data": name, "rows": rows, "left_out": left_out}


def check_training_data(name: str, key: str) -> list[str]:
    """What is wrong with a name for `keep_apart`, found without reading rows."""
    if not _is_recipe(name):
        return check_dataset_name(name, key)
    try:
        _recipe_arguments(name)
    except ConfigurationError as error:
        return [f"{key}: {name}: {fault}" for fault in error.faults]
    return []


def _is_recipe(name: str) -> bool:
    return Path(name).suffix in (".yaml", ".yml") or name in shipped_names("recipes")


def _trained_positions(name: str) -> Iterable[str]:
    if not _is_recipe(name):
        rows = parse_rows(raw_rows(SourceArguments(dataset_name=name)), list(TASKS))
        return (row["fen"] for row in rows if not isinstance(row, Malformed))
    return list(load_data(_recipe_arguments(name)).train["fen"])


def _recipe_arguments(name: str) -> DataArguments:
    content = read_keys(find_recipe(name, where=""), where="")
    known = {item.name for item in fields(DataArguments)} & content.keys()
    return DataArguments(**{key: content[key] for key in known})
