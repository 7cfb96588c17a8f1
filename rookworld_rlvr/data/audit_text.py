"""An audit as text: the table of what was counted, and what to do about it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..common.files import read_asset
from ..tasks.policy import POLICY
from .repair import REPAIRS

Part = Mapping[str, Any]


_TEXT = read_asset("templates/audit.yaml")


def table(result: Part) -> str:
    """The counts as aligned text: each share or mean with its number of rows, by side to move."""
    lines = [f"Audit of {result['dataset_name']}", "", f"  {'rows read':<42}{result['read']:>18,}"]
    lines += [f"  {'prompt appeared before':<42}{result['repeated']:>18,}"]
    for kind in ("malformed", "unjudgeable"):
        lines += [f"  {f'{kind}: {why}':<42}{rows:>18,}" for why, rows in result[kind].items()]
    for task, checks in result["checks"].items():
        lines += ["", f"{task.replace('_', ' '):<44}{'White':>18}{'Black':>18}"]
        for name, sides in checks.items():
            cells = (_cell(name, sides.get(side)) for side in ("white", "black"))
            lines.append(f"  {_label(name):<42}{''.join(f'{cell:>18}' for cell in cells)}")
    return "\n".join(lines)


def _label(name: str) -> str:
    return str(_TEXT.get(name, {}).get("label", name.replace("_", " ")))


def _cell(name: str, counted: Part | None) -> str:
    if counted is None:
        return "-"
    form = ".2f" if name.endswith("_pawns") else ".1%"
    return f"{counted['mean']:{form}} of {counted['rows']:,}"


# --------------------------------------------------------------------------------------------------
# What to do
# --------------------------------------------------------------------------------------------------
def advice(result: Part) -> list[str]:
    """What to do about each finding, and one command for all repairs, as lines."""
    lines: list[str] = []
    wanted: set[str] = set()
    for finding, repair in findings(result):
        lines.append(f"  - {finding}{f'; repair with --repairs {repair}' if repair else ''}")
        wanted.add(repair)
    if not lines:
        return [f"  Nothing: no fault was found in {result['read']:,} rows."]
    repairs = [name for name in REPAIRS if name in wanted]
    if repairs or any(
        side["mean"]
        for side in result["checks"].get(POLICY.name, {}).get("unlabelled", {}).values()
    ):
        lines += ["", f"  {repair_command(result, repairs)}"]
    return lines


def findings(result: Part) -> Iterator[tuple[str, str]]:
    """What is wrong, and the repair of `rookworld prepare` that mends it; empty if none does."""
    for kind in ("malformed", "unjudgeable"):
        if counted := result[kind]:
            often = next(iter(counted))
            yield f"{sum(counted.values()):,} rows {_TEXT[kind]['says']}, most often: {often}", ""
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
                yield (
                    f"{task}, {_label(name)}: {', '.join(odd)} rows{remedy}",
                    bounds.get("repair", ""),
                )
    if result["repeated"]:
        yield f"{result['repeated']:,} rows with the prompt of an earlier one", "duplicates"
    if (overlap := result["overlap"]) and overlap["positions"]:
        yield (
            f"{overlap['name']} shares {overlap['positions']:,} positions: evaluate without its "
            f"{overlap['evaluated_rows']:,} rows, or train without {overlap['trained_rows']:,} rows",
            "",
        )


def repair_command(result: Part, repairs: Sequence[str]) -> str:
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
