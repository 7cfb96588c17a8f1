"""An audit as text: the table of what was counted, and what to do about it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

from ..common.files import read_asset
from ..tasks.policy import POLICY
from ..tasks.rules import SIDES
from .repair import REPAIRS

MOSTLY = 0.9  # B is the highest E in 99% of White's rows of the public data, in 0% of Black's


HALF = 0.5


MOST_ERROR_PAWNS = (
    2.0  # the public data's error is 1.2 by Stockfish at depth 8; wrong units give more
)


Part = Mapping[str, Any]


_TEXT = read_asset("templates/audit.yaml")


class _Formatter(Formatter):
    """`str.format` that counts things: ``{:# row}`` gives ``1 row`` or ``1,234 rows``."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("# "):
            return f"{value:,} {format_spec[2:]}{'' if value == 1 else 's'}"
        return str(super().format_field(value, format_spec))


def _filled(form: str, part: Part) -> str:
    return _Formatter().vformat(form, (), part)


# --------------------------------------------------------------------------------------------------
# The table
# --------------------------------------------------------------------------------------------------
_WIDTH = 46


def table(result: Mapping[str, Any]) -> str:
    """The counts as aligned text in sections; what has no rows is left out."""
    lines = [f"Audit of {result['dataset_name']}"]
    for section in ("rows", "policy", "environment", "fill_in", "duplicates"):
        has_rows = result[section].get("rows", True)
        found = _lines(result[section], 1) if has_rows else ["  no rows"]
        lines += ["", _label(section).capitalize(), *found]
    if result["overlap"]:
        lines += ["", "Shared positions", f"  {_filled(_TEXT['pair'], result['overlap'])}"]
    return "\n".join(lines)


def _lines(values: Mapping[str, Any], depth: int) -> Iterator[str]:
    for key, value in values.items():
        if key == "white" and isinstance(value, Mapping):
            if not all(_says_nothing(values[side]) for side in SIDES):
                yield _line("", depth, "White", "Black")
                for name in value:
                    row = (_cell(name, values[side][name]) for side in SIDES)
                    yield _line(_label(name), depth + 1, *row)
        elif key == "black" or _says_nothing(value):
            continue
        elif not isinstance(value, Mapping):
            yield _line(_label(key), depth, _cell(key, value))
        elif set(value) == {"rows", "share"}:
            yield _line(_label(key), depth, *(_cell(name, value[name]) for name in value))
        else:
            yield _line(_label(key), depth)
            yield from _lines(value, depth + 1)


def _says_nothing(value: Any) -> bool:
    """Whether it counts no rows at all; 0 of 5 rows is still a result."""
    if not isinstance(value, Mapping):
        return not value
    if "share" in value:
        return value["share"] is None
    return all(map(_says_nothing, value.values()))


def _label(key: str) -> str:
    return str(_TEXT["labels"].get(key, key.replace("_", " ")))


def _line(label: str, depth: int, *cells: str) -> str:
    indent = "  " * depth
    return f"{indent}{label:<{_WIDTH - len(indent)}}{''.join(f'{c:>14}' for c in cells)}".rstrip()


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}" if name.endswith("_pawns") else f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("_", " ")


# --------------------------------------------------------------------------------------------------
# What to do
# --------------------------------------------------------------------------------------------------
def advice(result: Part) -> list[str]:
    """What to do about each finding, and one command for all repairs, as lines."""
    lines: list[str] = []
    mending: set[str] = set()
    for name, part in findings(result):
        finding = _TEXT["findings"][name]
        repairs = part.get("repairs", finding.get("repairs", ()))
        remedy = f"; repair with --repairs {' '.join(repairs)}" if repairs else ""
        lines.append(f"  - {_filled(finding['says'], part)}{remedy}")
        mending.update(repairs)
    if not lines:
        return [f"  {_filled(_TEXT['nothing'], result['rows'])}"]
    if mending or _unlabelled(result["policy"]):
        repairs = [name for name in REPAIRS if name in mending]
        lines += ["", f"  {repair_command(result, repairs)}"]
    return lines


def repair_command(result: Part, repairs: Sequence[str]) -> str:
    """The command that labels and repairs; it writes into the folder where it is run."""
    name, split, column = (result[key] for key in ("dataset_name", "dataset_split", "text_column"))
    unreadable = result["rows"]["malformed"]["share"] or 0
    share = math.ceil(100 * unreadable)  # percent that prepare must leave out
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


def findings(result: Part) -> Iterator[tuple[str, Part]]:
    """What is wrong: each finding's name in ``audit.yaml``, and the values for its sentence."""
    rows, policy, environment, duplicates = (
        result[name] for name in ("rows", "policy", "environment", "duplicates")
    )
    reason = next(iter(rows["malformed_reasons"]), "")
    answered = policy["rows"] - policy["without_answer"]["rows"]
    illegal, not_legal, elsewhere = (
        {"rows": answered - policy[name]["rows"]}
        for name in ("all_moves_legal", "best_is_legal", "best_in_moves")
    )
    yield from _counted(
        malformed={**rows["malformed"], "reason": reason},
        unjudgeable={**rows["unjudgeable"], "kind": next(iter(rows["unjudgeable_kinds"]), "")},
        idle_en_passant_in_prompt=rows["idle_en_passant_in_prompt"],
        illegal_move=illegal,
        move_twice=policy["move_twice"],
        evaluations_not_one_a_move=policy["evaluations_not_one_a_move"],
        illegal_best_move=not_legal,
        best_not_in_moves=elsewhere,
    )
    for side in SIDES:
        best = {"side": side.capitalize(), **policy[side]}
        if best["distinct_evaluations"] and best["best_is_argmax_e"] < MOSTLY:
            yield "best_is_worst", best
    yield from _value_findings(policy)
    yield from _counted(
        illegal_move_played_on=_played_on(environment),
        wrong_answers=_wrong_answers(environment),
        history_without_action=environment["history_without_action"],
        repeated=duplicates["repeated"] | duplicates,
    )
    if (overlap := result["overlap"]) and overlap["positions"]:
        yield "shared_positions", overlap
    if overlap and overlap["malformed_of_second"]:
        yield "unknown_overlap", overlap
    yield from _counted(unlabelled={"rows": _unlabelled(policy)})


def _unlabelled(policy: Part) -> int:
    return int(policy["rows"] - policy["action_values"]["labelled"]["rows"])


def _counted(**parts: Part) -> Iterator[tuple[str, Part]]:
    return ((name, part) for name, part in parts.items() if part["rows"])


def _value_findings(policy: Part) -> Iterator[tuple[str, Part]]:
    """Findings about how rows agree with the values of all legal moves that they carry."""
    for side in SIDES:
        part = {"side": side.capitalize(), **policy["action_values"][side]}
        if not part["rows"]:
            continue
        if part["best_is_best_of_five"] < MOSTLY:
            yield "seldom_best_of_five", part
        if part["top_five_named"] < HALF:
            yield "few_of_top_five", part
        sign = part["evaluation_sign_right"]
        if sign is not None and sign < HALF:
            yield "wrong_sign", part
        elif (part["evaluation_error_pawns"] or 0) > MOST_ERROR_PAWNS:
            yield "far_off", part


def _played_on(environment: Part) -> Part:
    rows, answers = (
        environment["illegal_move_played_on"][name]["rows"] for name in ("rows_after", "answers")
    )
    repairs = {} if answers else {"repairs": ()}  # a row from an illegal position stays one
    return {"rows": rows + answers, "after": rows, "answers": answers, **repairs}


def _wrong_answers(environment: Part) -> Part:
    explained = environment["illegal_move_played_on"]["answers"]["rows"]
    answered = environment["rows"] - environment["without_answer"]["rows"]
    wrong = answered - environment["right"]["rows"] - explained
    counts = {kind: found["rows"] for kind, found in environment["differences"].items()}
    often = sorted((kind for kind in counts if counts[kind]), key=lambda kind: -counts[kind])
    kinds = ", ".join(f"{_label(kind)} {counts[kind]:,}" for kind in often)
    if idle := environment["en_passant_without_capture"]["rows"]:
        kinds += f" ({idle:,} name a square where no capture is legal)"
    return {"rows": wrong, "share": wrong and wrong / answered, "kinds": kinds}
