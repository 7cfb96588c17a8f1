"""Count in one pass what is right and what is wrong with a data set's rows, and say what to do.

Every share comes with its number of rows. Only hashes of the rows are kept, 16 bytes a row, so data
sets of millions of rows fit into memory.
"""

from __future__ import annotations

import math
import shlex
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import chess
import numpy as np

from ..common.files import read_asset
from ..common.progress import shown
from ..common.settings import setting
from ..common.terminal import wrapped
from ..tasks import positions, rules
from ..tasks.environment import ENVIRONMENT, answer_fields, parse_environment_answer
from ..tasks.fill_in import FILL_IN
from ..tasks.fill_in_record import last_move_agrees
from ..tasks.policy import POLICY, evaluation_pairs, parse_policy_answer, score_policy
from ..tasks.positions import SIDES
from ..tasks.types import FILL_IN_FIELDS, EnvironmentAnswer, values_by_move
from .parsing import PositionArguments, parse_rows, raw_rows
from .prepare import REPAIRS
from .sources import Malformed, Row, SourceArguments, check_dataset_name

AUDIT_VERSION = 9


_TEXT = read_asset("templates/audit.yaml")


Counts = Mapping[str, Any]


@dataclass
class AuditArguments(PositionArguments, SourceArguments):
    """Which rows to audit."""

    dataset_name: str = setting(
        "",
        "Data set to audit: a packaged name, a Hub id, or a file of RookWorld rows, prompts, FENs, EPDs "
        "or PGN games. A position counts as a policy prompt without an answer.",
        filled=True,
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
        RookWorldError: The data set cannot be read.
    """
    left_out = defaultdict[str, Counter[str]](Counter)  # by kind, then by reason
    sums: Counter[tuple[str, str, str]] = Counter()  # by task, check and side
    rows: Counter[tuple[str, str, str]] = Counter()
    prompts = array("q")  # hashes; of 10 million texts two share one by a chance of 3 in a million
    rows_read = parse_rows(raw_rows(args), args.tasks)
    for row in shown(rows_read, f"reading {args.dataset_name}"):
        if isinstance(row, Malformed):
            left_out[row.kind][row.reason] += 1
            continue
        side = positions.side_to_move(row["fen"])
        for check, observed in checks(row).items():
            sums[row["task"], check, side] += observed  # type: ignore[assignment]
            rows[row["task"], check, side] += 1
        prompts.append(hash(row["prompt"]))
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for task, check, _ in rows:
        found.setdefault(task, {})[check] = {
            side: {"rows": rows[key], "mean": sums[key] / rows[key]}
            for side in SIDES
            if rows[key := (task, check, side)]
        }
    malformed, unjudgeable = left_out["unreadable"], left_out["unjudgeable"]
    return {
        "audit_version": AUDIT_VERSION,
        "dataset_name": args.dataset_name,
        "dataset_split": args.dataset_split,
        "text_column": args.text_column,
        "max_rows": args.max_rows,
        "tasks": args.tasks,
        "read": len(prompts) + malformed.total() + unjudgeable.total(),
        "comments": left_out["comment"].total(),
        "malformed": dict(malformed.most_common()),
        "unjudgeable": dict(unjudgeable.most_common()),
        "repeated": len(prompts) - len(np.unique(prompts)),
        "checks": found,
    }


# --------------------------------------------------------------------------------------------------
# One row
# --------------------------------------------------------------------------------------------------
def checks(row: Row) -> dict[str, float]:
    """What is observed of a row, by the names of ``audit.yaml``; what cannot be judged is left out.

    Most observations are true or false.
    """
    written, canonical = (fen.split()[3] for fen in (row["fen"], rules.canonical_fen(row["fen"])))
    of_task = _CHECKS.get(row["task"])  # a user's own task has none
    found = of_task(row) if of_task else {}
    return {"idle_en_passant_in_prompt": written != canonical, **found}


def _policy_checks(row: Row) -> dict[str, float]:
    values = values_by_move(row["action_values"])
    found: dict[str, float] = {
        "unlabelled": values is None,
        "without_answer": not row["completion"],
    }
    if not row["completion"]:  # a prompt without an answer yet
        return found
    answer = parse_policy_answer(row["completion"])
    legal = rules.legal_moves(row["fen"])
    found |= {
        "illegal_move": not set(answer.moves) <= set(legal),
        "illegal_best_move": answer.best_move not in legal,
        "best_not_in_moves": answer.best_move not in answer.moves,
        "move_twice": len(set(answer.moves)) < len(answer.moves),
        "evaluations_not_one_a_move": len(answer.evaluations) != len(answer.moves),
    }
    if values is None:
        by_value = dict(zip(answer.evaluations, answer.moves, strict=False))
        if 2 <= len(by_value) == len(answer.evaluations) == len(answer.moves):  # no ties
            found["best_has_highest_e"] = by_value[max(by_value)] == answer.best_move
            found["best_has_lowest_e"] = by_value[min(by_value)] == answer.best_move
        return found
    score = score_policy(values, row["completion"])
    named = [values[move] for move in answer.moves if move in values]
    found["best_of_five"] = bool(named) and values.get(answer.best_move) == max(named)
    found["best_of_all"] = score["best_move_hit"]
    found["top_five_named"] = score["candidates"]
    pairs = evaluation_pairs(answer, values)
    if pairs:
        found["evaluation_error_pawns"] = fmean(abs(said - true) for said, true in pairs)
    if signs := [said * true > 0 for said, true in pairs if said and true]:  # zero has no sign
        found["evaluation_sign_right"] = fmean(signs)
    return found


def _environment_checks(row: Row) -> dict[str, float]:
    """Where a row differs from python-chess.

    An answer by which the public generator plays an illegal move on has no other difference.
    """
    has_action = row["history"][-1:] == [row["action"]]
    found: dict[str, float] = {
        "without_answer": not row["completion"],
        "history_without_action": not has_action,
    }
    if has_action:  # else it is not known which move led to the position
        board, history = rules.board_of(row["fen"]), tuple(row["history"])
        found["after_illegal_move"] = not last_move_agrees(board, history)
    if not row["completion"]:
        return found
    answer = parse_environment_answer(row["completion"])
    truth = rules.transition(row["fen"], row["action"])
    is_wrong = answer != truth
    is_played_on = is_wrong and truth.truncated and (answer == played_on(row["fen"], row["action"]))
    right = answer_fields(answer if is_played_on else truth)
    return {
        **found,
        "illegal_move_played_on": is_played_on,
        "wrong_answer": is_wrong and not is_played_on,
        **{name: said != right[name] for name, said in answer_fields(answer).items()},
    }


def played_on(fen: str, action: str) -> EnvironmentAnswer:
    """What the public data's generator answers, which does not ask whether a move is legal.

    It plays any move of any piece. If the first square is empty, or the text is not a move, the action
    is illegal for it too; but in the first case it counts the move in the clocks.

    Raises:
        IllegalPositionError: See `rules.board_of`.

    >>> played_on("4k3/8/8/8/8/8/8/4K3 w - - 0 1", "e1e5").fen
    '4k3/8/8/4K3/8/8/8/8 b - - 1 1'
    """
    board = rules.board_of(fen)
    try:
        move = chess.Move.from_uci(action)
    except ValueError:
        return EnvironmentAnswer(
            board.fen(), rules.REWARD_ILLEGAL, terminated=False, truncated=True
        )
    if not move or board.piece_at(move.from_square) is not None:  # 0000 passes
        board.push(move)
        return EnvironmentAnswer(board.fen(), *rules.ending(board), truncated=False)
    board.push(chess.Move.null())
    board.turn = not board.turn
    return EnvironmentAnswer(board.fen(), rules.REWARD_ILLEGAL, terminated=False, truncated=True)


def _fill_in_checks(row: Row) -> dict[str, float]:
    hidden = FILL_IN.part(row)
    return {field: field == hidden for field in FILL_IN_FIELDS}


_CHECKS: Mapping[str, Callable[[Row], dict[str, float]]] = {
    POLICY.name: _policy_checks,
    ENVIRONMENT.name: _environment_checks,
    FILL_IN.name: _fill_in_checks,
}


# --------------------------------------------------------------------------------------------------
# The table
# --------------------------------------------------------------------------------------------------
def table(result: Counts) -> str:
    """The counts as aligned text: each share or mean with its number of rows, by side to move."""
    counts = {"rows read": result["read"], "prompt appeared before": result["repeated"]}
    if result["comments"]:
        counts["comments passed over"] = result["comments"]
    for kind in ("malformed", "unjudgeable"):
        counts |= {f"{kind}: {why}": rows for why, rows in result[kind].items()}
    lines = [f"Audit of {result['dataset_name']}", ""]
    lines += [f"  {name:<42}{rows:>18,}" for name, rows in counts.items()]
    for task, checks in result["checks"].items():
        lines += ["", f"{task.replace('_', ' '):<44}{'White':>18}{'Black':>18}"]
        for name, sides in checks.items():
            cells = (_cell(name, sides.get(side)) for side in ("white", "black"))
            lines.append(f"  {_label(name):<42}{''.join(f'{cell:>18}' for cell in cells)}")
    return "\n".join(lines)


def _label(name: str) -> str:
    return str(_TEXT.get(name, {}).get("label", name.replace("_", " ")))


def _cell(name: str, counted: Counts | None) -> str:
    if counted is None:
        return "-"
    form = ".2f" if name.endswith("_pawns") else ".1%"
    return f"{counted['mean']:{form}} of {counted['rows']:,}"


# --------------------------------------------------------------------------------------------------
# What to do
# --------------------------------------------------------------------------------------------------
def advice(result: Counts) -> list[str]:
    """What to do about each finding, and one command for all repairs, as lines."""
    found = list(findings(result))
    if not found:
        return [f"  Nothing: no fault was found in {result['read']:,} rows."]
    repairs = [name for name in REPAIRS if name in {repair for _, repair in found}]
    unlabelled = result["checks"].get(POLICY.name, {}).get("unlabelled", {})
    lines = []
    for finding, repair in found:
        remedy = f"; repair with --repairs {repair}" if repair else ""
        lines.append(wrapped(f"  - {finding}{remedy}", 4))
    if repairs or any(side["mean"] for side in unlabelled.values()):
        lines += ["", f"  {repair_command(result, repairs)}"]
    return lines


def findings(result: Counts) -> Iterator[tuple[str, str]]:
    """What is wrong, and the repair of `rookworld prepare` that mends it; empty if none does."""
    for kind in ("malformed", "unjudgeable"):
        if counted := result[kind]:
            often = next(iter(counted))
            total, says = sum(counted.values()), _TEXT[kind]["says"]
            yield f"{kind} rows: {total:,}, most often: {often}. {says}", ""
    for task, checks in result["checks"].items():
        for name, sides in checks.items():
            bounds = _TEXT.get(name, {})
            odd = [
                f"{side.capitalize()} {_cell(name, counted)}"
                for side, counted in sides.items()
                if counted["mean"] > bounds.get("above", math.inf)
                or counted["mean"] < bounds.get("below", -math.inf)
            ]
            if odd:
                remedy = f"; {bounds['remedy']}" if "remedy" in bounds else ""
                found = f"{task}, {_label(name)}: {', '.join(odd)} rows{remedy}"
                yield found, bounds.get("repair", "")
    if result["repeated"]:
        yield f"rows with the prompt of an earlier one: {result['repeated']:,}", "duplicates"


def repair_command(result: Counts, repairs: Sequence[str]) -> str:
    """The command that labels and repairs; it writes into the folder where it is run."""
    name, split, column = (result[key] for key in ("dataset_name", "dataset_split", "text_column"))
    share = math.ceil(100 * sum(result["malformed"].values()) / result["read"])  # in percent
    options = {
        "dataset_name": [name],
        "text_column": [column] if column != "text" else [],
        "dataset_split": [split] if split != "train" else [],
        "max_rows": [str(result["max_rows"])] if result["max_rows"] else [],
        "tasks": result["tasks"] if result["tasks"] != [POLICY.name] else [],
        "max_quarantined_share": [f"{share / 100:g}"] if share > 1 else [],
        "output_file": [f"{Path(name).stem}_prepared.parquet"],
        "repairs": repairs,
    }
    words = (word for key, given in options.items() if given for word in (f"--{key}", *given))
    return shlex.join(["rookworld", "prepare", *words])
