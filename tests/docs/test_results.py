"""The log of tries: every line has its fields and types, and intervals follow from the rows."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.common.stats import proportion

from ..support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "docs"))
import tries

NAMES = {path.stem for path in (REPOSITORY / "recipes").glob("*.yaml")}


def test_every_line_has_the_fields_and_types() -> None:
    lines = tries.tries()
    assert len(lines) > 250
    assert {line["question"] for line in lines.values()} >= {"policy", "hole", "openings", "judge"}
    assert {line["recipe"] for line in lines.values()} <= {None, *NAMES}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"seed": "0"}, "seed is '0'"),
        ({"steps": True}, "steps is True"),
        ({"date": "yesterday"}, "date is 'yesterday'"),
        ({"conclusion": ""}, "conclusion is ''"),
        ({"start": "nowhere"}, "measures 'nowhere'"),
        ({"metrics": {"elo": {"low": 1.0}}}, "elo: it has low"),
        ({"metrics": {"elo": {"value": 1.0, "low": 0.0}}}, "a lower and an upper bound"),
        ({"metrics": {"elo": {"value": 3.0, "low": 0.0, "high": 2.0}}}, "outside of its interval"),
        ({"metrics": {"elo": {"value": "many"}}}, "not all numbers"),
        ({"more": 1}, "its fields are"),
    ],
)
def test_a_damaged_line_is_named(change: dict[str, Any], fault: str) -> None:
    good = [dict(line) for line in tries.tries().values()][:3]
    assert list(tries.faults_of(good)) == []
    good[1] |= change
    [(at, found)] = tries.faults_of(good)
    assert at == 2 and fault in found


def test_an_id_is_given_once() -> None:
    line = next(iter(tries.tries().values()))
    assert [at for at, _ in tries.faults_of([line, line])] == [1, 2]


def shares() -> Iterator[tuple[str, str, dict[str, float]]]:
    for line in tries.tries().values():
        for name, metric in line["metrics"].items():
            if name in tries.SHARES and {"low", "n"} <= set(metric):
                yield line["id"], name, metric


def test_intervals_of_shares_are_those_of_the_package() -> None:
    found = list(shares())
    assert len(found) > 100
    for name, metric, its in found:
        rows = int(its["n"])
        near = range(
            int(rows * (its["value"] - 0.1) / 100), int(rows * (its["value"] + 0.1) / 100) + 2
        )
        possible = {
            (round(100 * share.low, 1), round(100 * share.high, 1))
            for right in near
            if 0 <= right <= rows
            for share in [proportion(right, rows)]
        }
        assert (its["low"], its["high"]) in possible, (name, metric)


def test_what_was_measured_of_the_policy_recipe_is_in_its_comment() -> None:
    comment = Path(REPOSITORY / "recipes/grpo_policy_nano.yaml").read_text().partition("\n\n")[0]
    for name in ("policy/best_move", "policy/expected_score", "policy/legal", "environment/exact"):
        values = [
            tries.tries()[f"policy-e-{which}"]["metrics"][name]["value"]
            for which in ("1500", "recipe-0", "recipe-1", "recipe-2")
        ]
        before, *after = (f"{value:.1f}" for value in values)
        assert f"{before} -> {after[0]}, {after[1]} and {after[2]}%" in comment, name


def test_tables_are_small() -> None:
    for name, table in tries.TABLES.items():
        lines = list(table.lines())
        assert 2 <= len(lines) <= 8, name
        assert len(table.head) <= 6, name
