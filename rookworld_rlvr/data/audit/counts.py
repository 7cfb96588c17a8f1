"""The counts of an audit, taken row by row.

An evaluation `E` is seen either from the side to move or from White. With White to move the two are
the same, so only rows with Black to move can tell them apart. Three sources can decide, and the first
that does is reported as the basis:

- ``engine``: is a row's `E` nearer to the engine's values, or to their negatives? Asked of a sample.
- ``action_values``: the same question, asked of the values that are stored with the rows.
- ``material``: does the median of a row's `E` have the sign of the material balance as the side to
  move sees it, or as White sees it? One row proves nothing, so this needs many. White's rows are the
  control: if material does not predict the sign of their `E` (in puzzles the side that is behind often
  wins), it proves nothing about Black's rows either.

A source decides if the majority of its rows is clear: its 95% Wilson interval excludes one half.
"""

from __future__ import annotations

import operator
import random
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ...common.stats import Proportion
from ...tasks import rules
from ...tasks.environment import ENVIRONMENT, parse_environment_answer
from ...tasks.fill_in import FILL_IN
from ...tasks.fill_in_truth import last_move_agrees
from ...tasks.policy import POLICY, parse_policy_answer, score_policy
from ...tasks.registry import TASKS, task_of
from ...tasks.rules import SIDES
from ...tasks.scoring import values_by_move
from ...tasks.types import FILL_IN_FIELDS, PolicyAnswer
from ..sources import Malformed, Row

BASES = ("engine", "action_values", "material")  # of the view of E; the first that decides counts


# The names are keys of the JSON.
FORM: Mapping[str, Callable[[PolicyAnswer, Collection[str]], bool]] = {
    "all_moves_legal": lambda said, legal: set(said.moves) <= set(legal),
    "best_is_legal": lambda said, legal: said.best_move in legal,
    "best_in_moves": lambda said, legal: said.best_move in said.moves,
    "move_twice": lambda said, legal: len(set(said.moves)) < len(said.moves),
    "evaluations_not_one_a_move": lambda said, legal: len(said.evaluations) != len(said.moves),
}


BEST = ("best_is_argmax_e", "best_is_argmin_e")


AGREEMENT = (
    "best_is_best_of_five",
    "best_is_best_of_all",
    "top_five_named",
    "evaluation_error_pawns",
    "evaluation_sign_right",
)


DIFFERENCES = (
    "board",
    "side_to_move",
    "castling_rights",
    "en_passant",
    "halfmove_clock",
    "fullmove_number",
    "reward",
    "terminated",
    "truncated",
)


MOST_PAWNS = 10.0
"""Evaluations are compared within ±10 pawns: mates and won games would drown every other error."""


_LEAST_MATERIAL_ROWS = 20


_PIECE_PAWNS = {"p": 1, "n": 3, "b": 3, "r": 5, "q": 9}


class Means:
    """Sums of observations by name; a boolean counts as 0 or 1."""

    def __init__(self) -> None:
        self._sums: Any = Counter()
        self._numbers: Counter[str] = Counter()

    def add(self, **observations: float) -> None:
        """One observation of each name."""
        self._sums.update(observations)
        self._numbers.update(observations.keys())

    def of(self, name: str) -> Proportion:
        """The sum of the observations and their number."""
        return Proportion(self._sums[name], self._numbers[name])

    def mean(self, name: str) -> float | None:
        """The mean of the observations; None without observations."""
        return self.of(name).value if self._numbers[name] else None

    def rows(self, name: str) -> dict[str, Any]:
        """How many observations are true, and their share."""
        return {"rows": int(self._sums[name]), "share": self.mean(name)}


class Counts:
    """What is counted row by row.

    Args:
        sample_size: How many policy rows to keep for the engine.

    Attributes:
        sample: Those rows, each equally likely to be drawn; every audit draws the same ones.
    """

    def __init__(self, sample_size: int = 0) -> None:
        self.sample: list[Row] = []
        self._sample_size = sample_size
        self._rng = random.Random(0)
        self.rows = Means()
        self.tasks: dict[str, Counter[str]] = {side: Counter() for side in SIDES}
        self.reasons: Counter[str] = Counter()  # of malformed rows
        self.kinds: Counter[str] = Counter()  # of rows that no rule of chess can judge
        self.environment = Means()
        self.played_on = Means()  # over environment rows, judged or not
        self.fill_in = Means()  # by hidden field
        self.policy = Means()
        self.best = {side: Means() for side in SIDES}
        self.values = {basis: {side: Means() for side in SIDES} for basis in BASES}
        self.votes = Means()  # that E is seen from the side to move, by basis

    def add(self, row: Row | Malformed) -> None:
        """Count one row."""
        is_readable = not isinstance(row, Malformed) or row.is_readable
        self.rows.add(
            malformed=not is_readable, unjudgeable=is_readable and isinstance(row, Malformed)
        )
        if isinstance(row, Malformed):
            (self.kinds if row.is_readable else self.reasons)[row.reason] += 1
            text = str(row.text.get("text") or row.text.get("prompt"))
            if row.is_readable and "+" in text and task_of(text) == ENVIRONMENT.name:
                self.played_on.add(rows=True)  # only an illegal move leads to an illegal position
            return
        self.tasks[rules.side_to_move(row["fen"])][row["task"]] += 1
        self.rows.add(idle_en_passant_in_prompt=names_idle_en_passant(row["fen"]))
        if row["task"] == ENVIRONMENT.name:
            differences = environment_differences(row)
            self.played_on.add(rows=follows_illegal_move(row), answers=differences["played_on"])
            self.environment.add(**differences)
        elif row["task"] == FILL_IN.name:
            hidden = FILL_IN.part(row)
            self.fill_in.add(**{field: field == hidden for field in FILL_IN_FIELDS})
        elif row["task"] == POLICY.name:
            self._add_policy(row)

    def _add_policy(self, row: Row) -> None:
        self.policy.add(
            labelled=row["action_values"] is not None, without_answer=not row["completion"]
        )
        if not row["completion"]:  # a prompt without an answer yet
            return
        side = rules.side_to_move(row["fen"])
        answer = parse_policy_answer(row["completion"])
        legal = rules.legal_moves(row["fen"])
        self.policy.add(**{name: holds(answer, legal) for name, holds in FORM.items()})
        by_value = dict(zip(answer.evaluations, answer.moves, strict=False))
        values = values_by_move(row["action_values"])
        # `E` orders `M` without ties; a row's values judge its `B` better, see `compare`.
        if values is None and 2 <= len(by_value) == len(answer.evaluations) == len(answer.moves):
            self.best[side].add(
                best_is_argmax_e=by_value[max(by_value)] == answer.best_move,
                best_is_argmin_e=by_value[min(by_value)] == answer.best_move,
            )
        vote = material_vote(row["fen"], answer)
        if vote is not None:
            self.votes.add(**{"material" if side == "black" else "control": vote})
        self._draw(row)
        if values is not None:
            self.compare(row, values, "action_values")

    def _draw(self, row: Row) -> None:
        """Reservoir sampling: the n-th answer is kept with a chance of size / n."""
        if len(self.sample) < self._sample_size:
            self.sample.append(row)
        elif (place := self._rng.randrange(self.policy.of("best_is_legal").n)) < self._sample_size:
            self.sample[place] = row

    def compare(self, row: Row, values: Mapping[str, int], basis: str) -> None:
        """Compare a policy row with the values of all legal moves, in centipawns."""
        side = rules.side_to_move(row["fen"])
        answer = parse_policy_answer(row["completion"])
        score = score_policy(values, row["completion"])
        means = self.values[basis][side]
        own = [values[move] for move in answer.moves if move in values]
        means.add(
            best_is_best_of_five=bool(own) and values.get(answer.best_move) == max(own),
            best_is_best_of_all=score["best_move_hit"],
            top_five_named=score["candidates"],
        )
        pairs = evaluation_pairs(answer, values)
        for mine, true in pairs:
            means.add(evaluation_error_pawns=abs(mine - true))
            if mine and true:  # zero has no sign
                means.add(evaluation_sign_right=mine * true > 0)
        vote = values_vote(pairs)
        if side == "black" and vote is not None:
            self.votes.add(**{basis: vote})

    def rows_result(self) -> dict[str, Any]:
        """Rows by task and side to move, and rows that are left out by reason."""
        return {
            "read": self.rows.of("malformed").n,
            "malformed": self.rows.rows("malformed"),
            "malformed_reasons": _most_first(self.reasons),
            "unjudgeable": self.rows.rows("unjudgeable"),
            "unjudgeable_kinds": _most_first(self.kinds),
            "idle_en_passant_in_prompt": self.rows.rows("idle_en_passant_in_prompt"),
            **{side: {task: self.tasks[side][task] for task in TASKS} for side in SIDES},
        }

    def policy_result(self) -> dict[str, Any]:
        """Counts of the policy rows: form, view of `E`, agreement with values."""
        perspective, basis = self.perspective()
        return {
            "rows": self.policy.of("labelled").n,
            "without_answer": self.policy.rows("without_answer"),
            **{name: self.policy.rows(name) for name in FORM},
            "evaluation_perspective": perspective,
            "evaluation_perspective_basis": basis,
            "evaluation_perspective_votes": {
                name: _ballot(self.votes.of(name)) for name in (*BASES, "control")
            },
            **{side: _result(self.best[side], "distinct_evaluations", BEST) for side in SIDES},
            "action_values": {
                "labelled": self.policy.rows("labelled"),
                **self.values_result("action_values"),
            },
        }

    def perspective(self) -> tuple[str | None, str | None]:
        """From which side `E` is seen, and the basis that decided it; see the module's docstring."""
        control = self.votes.of("control")
        for basis in BASES:
            votes = self.votes.of(basis)
            if basis == "material" and (
                votes.n < _LEAST_MATERIAL_ROWS
                or (control.n >= _LEAST_MATERIAL_ROWS and control.interval[0] <= 0.5)
            ):
                continue
            low, high = votes.interval
            if low > 0.5:
                return "side_to_move", basis
            if high < 0.5:
                return "white", basis
        return None, None

    def values_result(self, basis: str) -> dict[str, Any]:
        """How rows agree with values of all legal moves, by side to move."""
        return {side: _result(self.values[basis][side], "rows", AGREEMENT) for side in SIDES}

    def environment_result(self) -> dict[str, Any]:
        """How environment rows differ from python-chess."""
        return {
            "rows": self.environment.of("right").n,
            "right": self.environment.rows("right"),
            "illegal_move_played_on": {
                "rows_after": self.played_on.rows("rows"),
                "answers": self.played_on.rows("answers"),
            },
            "history_without_action": self.environment.rows("history_without_action"),
            "differences": {kind: self.environment.rows(kind) for kind in DIFFERENCES},
            "en_passant_without_capture": self.environment.rows("en_passant_without_capture"),
        }

    def fill_in_result(self) -> dict[str, Any]:
        """Fill-in rows by hidden field; a row whose answer does not fit counts as malformed."""
        return {
            "rows": self.fill_in.of("action").n,
            "fields": {field: self.fill_in.rows(field) for field in FILL_IN_FIELDS},
        }


def _most_first(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _result(means: Means, number: str, names: Sequence[str]) -> dict[str, Any]:
    """How many observations there are of the first name, and the mean of each."""
    return {number: means.of(names[0]).n, **{name: means.mean(name) for name in names}}


def _ballot(votes: Proportion) -> dict[str, int]:
    yes = int(votes.successes)
    return {"side_to_move": yes, "white": votes.n - yes}


# --------------------------------------------------------------------------------------------------
# One row
# --------------------------------------------------------------------------------------------------
def names_idle_en_passant(fen: str) -> bool:
    """Whether a FEN names an en passant square where no capture is legal."""
    return fen.split(" ")[3] != rules.position_key(fen).split(" ")[3]


def evaluation_pairs(answer: PolicyAnswer, values: Mapping[str, int]) -> list[tuple[float, float]]:
    """`E` and value of each legal move that has an evaluation, in pawns, within ±`MOST_PAWNS`."""
    return [
        (_clipped(evaluation), _clipped(values[move] / 100))
        for move, evaluation in zip(answer.moves, answer.evaluations, strict=False)
        if move in values
    ]


def _clipped(pawns: float) -> float:
    return max(-MOST_PAWNS, min(MOST_PAWNS, pawns))


def values_vote(pairs: Sequence[tuple[float, float]]) -> bool | None:
    """Whether `E` is nearer to the values than to their negatives; None if both are as near."""
    as_it_stands = sum(abs(mine - true) for mine, true in pairs)
    negated = sum(abs(-mine - true) for mine, true in pairs)
    return None if as_it_stands == negated else as_it_stands < negated


def material_balance(fen: str) -> int:
    """Material of the side to move minus the opponent's, in pawns (1, 3, 3, 5, 9).

    >>> material_balance("4k3/8/8/8/8/8/8/R3K3 b - - 0 1")
    -5
    """
    placement = fen.split(" ")[0]
    white = sum(
        _PIECE_PAWNS.get(piece.lower(), 0) * (1 if piece.isupper() else -1) for piece in placement
    )
    return white if rules.side_to_move(fen) == "white" else -white


def material_vote(fen: str, answer: PolicyAnswer) -> bool | None:
    """Whether the median of `E` has the sign of the material balance from the side to move.

    None if either is zero. It is the median because single moves of the five may be blunders or mates.
    """
    balance = material_balance(fen)
    middle = statistics.median(answer.evaluations)
    return balance * middle > 0 if balance and middle else None


def environment_differences(row: Row) -> dict[str, bool]:
    """Where an environment row differs from python-chess, by kind, and whether it is ``right``.

    An answer of the public generator to an illegal move is ``played_on`` and has no other difference.
    """
    answer = parse_environment_answer(row["completion"])
    truth = rules.transition(row["fen"], row["action"])
    is_played_on = (
        truth.truncated and answer != truth and answer == rules.played_on(row["fen"], row["action"])
    )
    fields, true_fields = (
        (*said.fen.split(" "), said.reward, said.terminated, said.truncated)
        for said in (answer, truth)
    )
    differs = dict(zip(DIFFERENCES, map(operator.ne, fields, true_fields), strict=True))
    if is_played_on:
        differs = dict.fromkeys(DIFFERENCES, False)
    return {
        **differs,
        "right": answer == truth,
        "played_on": is_played_on,
        # The truth names a square only where a capture is legal: any other square is idle.
        "en_passant_without_capture": differs["en_passant"] and fields[3] != "-",
        "history_without_action": row["history"][-1:] != [row["action"]],
    }


def follows_illegal_move(row: Row) -> bool:
    """Whether the move before the action cannot have led to the position, judged by its two squares."""
    if row["history"][-1:] != [row["action"]]:
        return False  # which move led to the position is not known
    return not last_move_agrees(rules.board_of(row["fen"]), tuple(row["history"]))
