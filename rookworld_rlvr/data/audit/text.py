"""An audit as text: the table of what was counted, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...tasks.rules import SIDES
from ..prepare.repair import REPAIRS

MOSTLY = 0.9  # B is the highest E in 99% of White's rows of the public data, in 0% of Black's


HALF = 0.5  # an engine that searches otherwise chooses otherwise, but not in most rows


MOST_ERROR_PAWNS = 2.0  # the public data's is 1.2 by Stockfish at depth 8; wrong units are further


# --------------------------------------------------------------------------------------------------
# The table
# --------------------------------------------------------------------------------------------------
_WIDTH = 46


_LABELS = {
    "best_is_argmax_e": "B has the highest E",
    "best_is_argmin_e": "B has the lowest E",
    "best_is_legal": "B is legal",
    "best_in_moves": "B is in M",
    "without_answer": "prompt without an answer",
    "all_moves_legal": "all moves of M are legal",
    "move_twice": "a move stands twice in M",
    "evaluations_not_one_a_move": "E has more or fewer items than M",
    "distinct_evaluations": "rows with distinct E",
    "evaluation_perspective": "E is seen from",
    "evaluation_perspective_basis": "as told by",
    "evaluation_perspective_votes": "Black's rows that say E is seen from",
    "control": "control: White's rows, by material",
    "best_is_best_of_five": "B is the best of its five",
    "best_is_best_of_all": "B is the best of all moves",
    "top_five_named": "of the top five, named in M",
    "evaluation_error_pawns": "mean error of E, in pawns",
    "evaluation_sign_right": "E has the right sign",
    "right": "answers right in every field",
    "en_passant_without_capture": "en passant square without a legal capture",
    "idle_en_passant_in_prompt": "prompt names an idle en passant square",
    "history_without_action": "history does not end with the action",
    "within_a_split": "prompt stood before in its split",
    "conflicting": "of these, answered otherwise",
    "labelled": "rows that carry action_values",
    "fields": "hidden, all with an answer that fits",
}


def table(result: Mapping[str, Any]) -> str:
    """What was counted, as aligned text in sections; what there are no rows for is left out."""
    lines = [f"Audit of {result['dataset_name']}, {', '.join(result['splits'])}"]
    for section in ("rows", "policy", "environment", "fill_in", "duplicates"):
        has_rows = result[section].get("rows", True)
        found = _lines(result[section], 1) if has_rows else ["  no rows"]
        lines += ["", _label(section).capitalize(), *found]
    pairs = [*result["overlap"]["splits"], *result["overlap"]["evaluation"]]
    lines += ["", "Shared positions"]
    lines += [
        f"  {pair['first']} and {pair['second']}: {_number(pair['positions'], 'position')}, in "
        f"{pair['rows_of_first']:,} and {_number(pair['rows_of_second'], 'row')}"
        for pair in pairs
    ]
    return "\n".join(lines if pairs else [*lines, "  nothing to compare with"])


def _lines(values: Mapping[str, Any], depth: int) -> Iterator[str]:
    for key, value in values.items():
        if key == "white" and isinstance(value, Mapping):
            if not all(_says_nothing(values[side]) for side in SIDES):
                yield _line("", depth, "White", "Black")
                for name in value:
                    row = (_cell(name, values[side][name]) for side in SIDES)
                    yield _line(_label(name), depth + 1, *row)
        elif key == "black" or (_says_nothing(value) and key != "evaluation_perspective"):
            continue
        elif not isinstance(value, Mapping):
            yield _line(_label(key), depth, _cell(key, value))
        elif set(value) == {"rows", "share"}:
            yield _line(_label(key), depth, *(_cell(name, value[name]) for name in value))
        elif set(value) == {"side_to_move", "white"}:
            ballot = f"{value['side_to_move']:,} the side to move, {value['white']:,} White"
            yield f"{_line(_label(key), depth)}: {ballot}"
        else:
            yield _line(_label(key), depth)
            yield from _lines(value, depth + 1)


def _says_nothing(value: Any) -> bool:
    """Whether it counts no rows; none of some is something."""
    if not isinstance(value, Mapping):
        return not value
    if "share" in value:
        return value["share"] is None
    return all(map(_says_nothing, value.values()))


def _label(key: str) -> str:
    return _LABELS.get(key, key.replace("_", " "))


def _line(label: str, depth: int, *cells: str) -> str:
    indent = "  " * depth
    return f"{indent}{label:<{_WIDTH - len(indent)}}{''.join(f'{c:>14}' for c in cells)}".rstrip()


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "undecided" if name == "evaluation_perspective" else "-"
    if isinstance(value, float):
        return f"{value:.2f}" if name.endswith("_pawns") else f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("_", " ")


# --------------------------------------------------------------------------------------------------
# What to do
# --------------------------------------------------------------------------------------------------
class Finding(NamedTuple):
    """What is wrong, and which of prepare_data's repairs mend it."""

    text: str
    repairs: tuple[str, ...] = ()


def advice(result: Mapping[str, Any]) -> list[str]:
    """What to do about each finding, and one command for all repairs, as lines."""
    findings = [
        *row_findings(result["rows"]),
        *form_findings(result["policy"]),
        *perspective_findings(result["policy"]),
        *best_move_findings(result["policy"]),
        *value_findings(result["policy"]),
        *environment_findings(result["environment"]),
        *set_findings(result["duplicates"], result["overlap"]),
    ]
    lines = []
    for text, repairs in findings:
        remedy = f"; repair with --repairs {' '.join(repairs)}" if repairs else ""
        lines.append(f"  - {text}{remedy}")
    unlabelled = result["policy"]["rows"] - result["policy"]["action_values"]["labelled"]["rows"]
    if unlabelled:
        lines.append(
            f"  - {_number(unlabelled, 'policy row')} without action_values: label them with "
            "prepare_data before training with policy rewards and labels: stored"
        )
    if not lines:
        return [f"  Nothing: nothing wrong was found in {_number(result['rows']['read'], 'row')}."]
    repairs = tuple(name for name in REPAIRS if any(name in found.repairs for found in findings))
    if repairs or unlabelled:
        commands = repair_commands(result["dataset_name"], result["splits"], repairs)
        lines += ["", *(f"  {command}" for command in commands)]
        lines.append("  (max_rows, and output_file where it is not given, are the recipe's)")
    return lines


def repair_commands(
    dataset_name: str, splits: Sequence[str], repairs: Sequence[str]
) -> Iterator[str]:
    """The commands that label and repair, one a split."""
    words = ["python", "recipes/prepare_data.py", "--config", "recipes/prepare_policy.yaml"]
    for split in splits:
        options = ["--dataset_name", dataset_name]
        if list(splits) != ["train"]:
            options += ["--dataset_split", split, "--output_file", f"data/{split}_labelled.parquet"]
        options += ["--repairs", *repairs] if repairs else []
        yield shlex.join([*words, *options])


def row_findings(rows: Mapping[str, Any]) -> Iterator[Finding]:
    """Of rows of all tasks."""
    if rows["malformed"]["rows"]:
        reason = next(iter(rows["malformed_reasons"]))
        yield Finding(
            f"{_of(rows['malformed'])} malformed, most often: {reason}. Training leaves them out, "
            "and stops where their share is over max_quarantined_share; mend the file"
        )
    if rows["idle_en_passant_in_prompt"]["rows"]:
        yield Finding(
            f"{_of(rows['idle_en_passant_in_prompt'])} with a prompt that names an en passant square "
            "where no capture is legal, as python-chess's FEN does not: truth and splits are not "
            "touched by it, but the model sees positions in two spellings"
        )


def form_findings(policy: Mapping[str, Any]) -> Iterator[Finding]:
    """Of what policy rows name."""
    rows = policy["rows"] - policy["without_answer"]["rows"]
    for wrong, text, repairs in (
        (rows - policy["all_moves_legal"]["rows"], "an illegal move in M", ("candidates",)),
        (policy["move_twice"]["rows"], "a move that stands twice in M", ("candidates",)),
        (
            policy["evaluations_not_one_a_move"]["rows"],
            "more or fewer items in E than in M",
            ("evaluations",),
        ),
        (rows - policy["best_is_legal"]["rows"], "an illegal B", ("best_move",)),
        (rows - policy["best_in_moves"]["rows"], "a B that is not in M", ("best_move",)),
    ):
        if wrong:
            yield Finding(f"{_number(wrong, 'policy row')} with {text}", repairs)


def perspective_findings(policy: Mapping[str, Any]) -> Iterator[Finding]:
    """Of whose view `E` is in."""
    black = policy["black"]
    if policy["evaluation_perspective"] == "white":
        yield Finding(
            f"E is seen from White, as told by {policy['evaluation_perspective_basis']}, and "
            "RookWorld's from the side to move: Black's have the wrong sign",
            ("evaluations",),
        )
    elif policy["evaluation_perspective"] is None and black["distinct_evaluations"]:
        yield Finding(
            "whose view E is in could not be told from these rows. Black's B is the highest E in "
            f"{black['best_is_argmax_e']:.0%} and the lowest in {black['best_is_argmin_e']:.0%} of "
            f"{_number(black['distinct_evaluations'], 'row')} with distinct E: the highest is the "
            "best where E is seen from the side to move, the lowest where it is seen from White; "
            f"{'a larger --engine_sample' if policy['engine'] else '--engine_sample 200'} tells"
        )


def best_move_findings(policy: Mapping[str, Any]) -> Iterator[Finding]:
    """Of `B` beside the row's own `E`."""
    for side in SIDES:
        best, worst = _best_and_worst(policy, side)
        if best < MOSTLY:
            yield Finding(
                f"{side.capitalize()}'s B is the worst of its five in {worst:.0%} and the best in "
                f"{best:.0%} of {_number(policy[side]['distinct_evaluations'], 'row')} with distinct "
                f"E: do not train on {side.capitalize()}'s B as it stands",
                ("best_move",),
            )


def _best_and_worst(policy: Mapping[str, Any], side: str) -> tuple[float, float]:
    """Shares of rows whose `B` has the best and the worst `E` for the side to move.

    1 and 0 without rows, and for Black where nobody knows whose view `E` is in: nothing is wrong then.
    """
    shares = policy[side]["best_is_argmax_e"], policy[side]["best_is_argmin_e"]
    perspective = "side_to_move" if side == "white" else policy["evaluation_perspective"]
    if perspective is None or None in shares:
        return 1.0, 0.0
    return shares if perspective == "side_to_move" else shares[::-1]


def value_findings(policy: Mapping[str, Any]) -> Iterator[Finding]:
    """Of how rows agree with values of all legal moves, stored or sampled."""
    for who, basis in (("stored action_values", "action_values"), ("engine's values", "engine")):
        for side in SIDES if policy[basis] else ():
            counts = policy[basis][side]
            of = f"by the {who} of {_number(counts['rows'], 'row')}"
            whose = f"{side.capitalize()}'s"
            best, named = counts["best_is_best_of_five"], counts["top_five_named"]
            error = counts["evaluation_error_pawns"]
            if best is not None and best < HALF and _best_and_worst(policy, side)[0] >= MOSTLY:
                yield Finding(
                    f"{whose} B is the best of its five in {best:.0%} {of}", ("best_move",)
                )
            if named is not None and named < HALF:
                yield Finding(f"{whose} M names {named:.0%} of the top five {of}", ("candidates",))
            if (error or 0) > MOST_ERROR_PAWNS and policy["evaluation_perspective"] != "white":
                yield Finding(f"{whose} E is {error:.1f} pawns off {of}", ("evaluations",))
    if policy["engine"] and policy["engine"]["given_up"]:
        yield Finding(
            f"the engine gave up on {policy['engine']['given_up']} of {policy['engine']['sampled']} "
            "positions, which were left out; give a larger engine_timeout"
        )


def environment_findings(environment: Mapping[str, Any]) -> Iterator[Finding]:
    """Of environment rows."""
    wrong = environment["rows"] - environment["right"]["rows"]
    if wrong:
        counts = {kind: found["rows"] for kind, found in environment["differences"].items()}
        often = sorted((kind for kind in counts if counts[kind]), key=lambda kind: -counts[kind])
        named = ", ".join(f"{_label(kind)} {counts[kind]:,}" for kind in often)
        idle = environment["en_passant_without_capture"]["rows"]
        yield Finding(
            f"{_number(wrong, 'environment answer')} ({wrong / environment['rows']:.1%}) not what "
            f"python-chess says: {named}"
            + (f" ({idle:,} name a square where no capture is legal)" if idle else ""),
            ("environment",),
        )
    if environment["history_without_action"]["rows"]:
        yield Finding(
            f"{_of(environment['history_without_action'])} with a history that does not end with the "
            "action: the prompt contradicts itself; leave these rows out"
        )


def set_findings(duplicates: Mapping[str, Any], overlap: Mapping[str, Any]) -> Iterator[Finding]:
    """Of rows and positions that stand twice."""
    if duplicates["within_a_split"]["rows"]:
        yield Finding(
            f"{_of(duplicates['within_a_split'])} with the prompt of an earlier one, "
            f"{duplicates['conflicting']['rows']:,} of them with another answer",
            ("duplicates",),
        )
    for pair in [*overlap["splits"], *overlap["evaluation"]]:
        if pair["positions"]:
            yield Finding(
                f"{pair['first']} and {pair['second']} share {_number(pair['positions'], 'position')}: "
                f"evaluate only on the rest of {pair['second']} (leave "
                f"{_number(pair['rows_of_second'], 'row')} out), or do not train on "
                f"{_number(pair['rows_of_first'], 'row')} of {pair['first']}"
            )
        if pair.get("malformed_of_second"):
            yield Finding(
                f"{_number(pair['malformed_of_second'], 'row')} of {pair['second']} malformed: their "
                "overlap is not known"
            )


def _of(counted: Mapping[str, Any]) -> str:
    return f"{_number(counted['rows'], 'row')} ({counted['share']:.1%})"


def _number(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
