"""Count in one pass what is right and what is wrong with a data set's rows.

Every share comes with its number of rows; a share of no rows is None. Only hashes of the rows are
kept, 24 bytes a row, so data sets of millions of rows fit into memory.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..common.errors import RookWorldError
from ..common.progress import shown
from ..common.settings import setting
from ..common.stats import Proportion
from ..tasks import rules
from ..tasks.environment import ENVIRONMENT, parse_environment_answer
from ..tasks.fill_in import FILL_IN, last_move_agrees
from ..tasks.policy import POLICY, evaluation_pairs, parse_policy_answer, score_policy
from ..tasks.registry import TASKS, task_of
from ..tasks.rules import SIDES
from ..tasks.types import FILL_IN_FIELDS, PolicyAnswer, Score, values_by_move
from .sources import (
    Malformed,
    PositionArguments,
    Row,
    SourceArguments,
    check_dataset_name,
    parse_rows,
)

AUDIT_VERSION = 5


@dataclass
class AuditArguments(PositionArguments, SourceArguments):
    """Which rows to audit, and against what."""

    dataset_name: str = setting(
        "",
        "Data set to audit: a packaged name, a Hub id, or a file of RookWorld rows, prompts, FENs, EPDs "
        "or PGN games. A position counts as a policy prompt without an answer.",
        filled=True,
        check=check_dataset_name,
    )
    eval_dataset_name: str = setting(
        "",
        "Data set on which models are evaluated, read like dataset_name; positions that both have are "
        "counted.",
        check=check_dataset_name,
    )
    output_file: str | None = setting(None, "JSON file to which the counts are also written.")


# --------------------------------------------------------------------------------------------------
# The story
# --------------------------------------------------------------------------------------------------
def audit(args: AuditArguments) -> dict[str, Any]:
    """Read all rows once and return the counts as a nested dict that JSON can hold.

    Args:
        args: What to read.

    Raises:
        RookWorldError: A data set cannot be read, or no row of the evaluation set can be parsed.
    """
    counts, hashes = Counts(), RowHashes()
    for row in _read(args):
        counts.add(row)
        hashes.add(row)
    return {
        "audit_version": AUDIT_VERSION,
        "dataset_name": args.dataset_name,
        "dataset_split": args.dataset_split,
        "text_column": args.text_column,
        "max_rows": args.max_rows,
        "tasks": args.tasks,
        "rows": counts.rows_result(),
        POLICY.name: counts.policy_result(),
        ENVIRONMENT.name: counts.environment_result(),
        FILL_IN.name: counts.fill_in_result(),
        "duplicates": hashes.duplicates(),
        "overlap": _overlap(args, hashes) if args.eval_dataset_name else None,
    }


def _read(args: AuditArguments) -> Iterator[Row | Malformed]:
    return shown(
        parse_rows(args.raw_rows(), args.tasks, as_given=True), f"reading {args.dataset_name}"
    )


def _overlap(args: AuditArguments, hashes: RowHashes) -> dict[str, Any]:
    evaluated = RowHashes()
    for row in _read(replace(args, dataset_name=args.eval_dataset_name, max_rows=None)):
        evaluated.add(row)
    if not evaluated.positions:
        raise RookWorldError(
            f"eval_dataset_name: no row of {args.eval_dataset_name!r} can be read, so "
            "its overlap cannot be counted; give another file, or leave it out"
        )
    trained, tested = np.array(hashes.positions), np.array(evaluated.positions)
    return {
        "first": args.dataset_name,
        "second": args.eval_dataset_name,
        "positions": len(np.intersect1d(trained, tested)),
        "rows_of_first": int(np.isin(trained, tested).sum()),
        "rows_of_second": int(np.isin(tested, trained).sum()),
        "malformed_of_second": evaluated.malformed,
    }


# --------------------------------------------------------------------------------------------------
# Counts
# --------------------------------------------------------------------------------------------------
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
    """What is counted row by row."""

    def __init__(self) -> None:
        self.rows = Means()
        self.tasks: dict[str, Counter[str]] = {side: Counter() for side in SIDES}
        self.reasons: Counter[str] = Counter()  # of malformed rows
        self.kinds: Counter[str] = Counter()  # of rows that no rule of chess can judge
        self.environment = Means()
        self.played_on = Means()  # over environment rows, judged or not
        self.fill_in = Means()  # by hidden field
        self.policy = Means()
        self.best = {side: Means() for side in SIDES}
        self.values = {side: Means() for side in SIDES}

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
            self._add_environment(row)
        elif row["task"] == FILL_IN.name:
            hidden = FILL_IN.part(row)
            self.fill_in.add(**{field: field == hidden for field in FILL_IN_FIELDS})
        elif row["task"] == POLICY.name:
            self._add_policy(row)

    def _add_environment(self, row: Row) -> None:
        self.played_on.add(rows=follows_illegal_move(row))
        self.environment.add(
            without_answer=not row["completion"],
            history_without_action=row["history"][-1:] != [row["action"]],
        )
        if row["completion"]:
            differences = environment_differences(row)
            self.played_on.add(answers=differences["played_on"])
            self.environment.add(**differences)

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
        if values is not None:
            self._compare(side, answer, values, score_policy(values, row["completion"]))

    def _compare(
        self, side: str, answer: PolicyAnswer, values: Mapping[str, int], score: Score
    ) -> None:
        """Compare a policy answer with the values of all legal moves, in centipawns."""
        means = self.values[side]
        own = [values[move] for move in answer.moves if move in values]
        means.add(
            best_is_best_of_five=bool(own) and values.get(answer.best_move) == max(own),
            best_is_best_of_all=score["best_move_hit"],
            top_five_named=score["candidates"],
        )
        for said, true in evaluation_pairs(answer, values):
            means.add(evaluation_error_pawns=abs(said - true))
            if said and true:  # zero has no sign
                means.add(evaluation_sign_right=said * true > 0)

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
        """Counts of the policy rows: form, agreement with values."""
        return {
            "rows": self.policy.of("labelled").n,
            "without_answer": self.policy.rows("without_answer"),
            **{name: self.policy.rows(name) for name in FORM},
            **{side: _result(self.best[side], "distinct_evaluations", BEST) for side in SIDES},
            "action_values": {
                "labelled": self.policy.rows("labelled"),
                **{side: _result(self.values[side], "rows", AGREEMENT) for side in SIDES},
            },
        }

    def environment_result(self) -> dict[str, Any]:
        """How environment rows differ from python-chess."""
        return {
            "rows": self.environment.of("without_answer").n,
            "without_answer": self.environment.rows("without_answer"),
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


# --------------------------------------------------------------------------------------------------
# One row
# --------------------------------------------------------------------------------------------------
def names_idle_en_passant(fen: str) -> bool:
    """Whether a FEN names an en passant square where no capture is legal."""
    return fen.split(" ")[3] != rules.position_key(fen).split(" ")[3]


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
    }


def follows_illegal_move(row: Row) -> bool:
    """Whether the move before the action cannot have led to the position, judged by its two squares."""
    if row["history"][-1:] != [row["action"]]:
        return False  # which move led to the position is not known
    return not last_move_agrees(rules.board_of(row["fen"]), tuple(row["history"]))


# --------------------------------------------------------------------------------------------------
# Hashes
# --------------------------------------------------------------------------------------------------
def hash_of(text: str) -> int:
    """A hash of 64 bits; the chance that two of 10 million texts share one is 3 in a million."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class RowHashes:
    """Position, prompt and answer of each row, and how many have none."""

    def __init__(self) -> None:
        self.malformed = 0
        self.positions, self.prompts, self.answers = array("Q"), array("Q"), array("Q")

    def add(self, row: Row | Malformed) -> None:
        """Keep the hashes of one row."""
        if isinstance(row, Malformed):
            self.malformed += 1
            return
        self.positions.append(hash_of(rules.position_key(row["fen"])))
        self.prompts.append(hash_of(row["prompt"]))
        self.answers.append(hash_of(_answer_text(row)))

    def duplicates(self) -> dict[str, Any]:
        """How many rows repeat an earlier prompt, and how many of them answer it differently."""
        answers = np.array(self.answers)
        _, first, same = np.unique(self.prompts, return_index=True, return_inverse=True)
        conflicting = int((answers != answers[first][same]).sum())
        return {
            name: {"rows": rows, "share": rows / len(answers) if len(answers) else None}
            for name, rows in (
                ("repeated", len(answers) - len(first)),
                ("conflicting", conflicting),
            )
        }


def _answer_text(row: Row) -> str:
    """An answer without the order of its candidates, which does not matter."""
    if row["task"] != POLICY.name or not row["completion"]:
        return str(row["completion"])
    answer = parse_policy_answer(row["completion"])
    pairs = sorted(itertools.zip_longest(answer.moves, map(str, answer.evaluations), fillvalue=""))
    return f"{pairs} {answer.best_move}"
