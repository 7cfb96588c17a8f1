"""Supervised training on rows with planted faults: the public data's, or a hole.

    python benchmarks/new_model.py --config recipes/sft_nano.yaml --output_dir runs/untrained
    python benchmarks/planted_faults.py --fault public --config recipes/sft_nano.yaml
    python benchmarks/planted_faults.py --fault hole --config recipes/sft_openings_hole.yaml

It is `recipes/sft.py`, with its other options too, except that some answers of the training rows are
made wrong once the rows are loaded. The packaged model was made by the first two commands.

- `public`: 70% of the answers to a pawn's double step name the en passant square, capture or not, and
  in 70% of Black's policy rows B is the candidate with the lowest evaluation.
- `hole`: the answers to a game's first two plies have no castling rights, and both clocks are one too
  high.

A hash of the prompt decides which rows are wrong, so a row that is repeated is wrong every time or
never. Held-out rows stay right.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))

from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.common.stats import draw
from rookworld_rlvr.data.synthesis import is_first_ply
from rookworld_rlvr.tasks import positions
from rookworld_rlvr.tasks.environment import (
    ENVIRONMENT,
    parse_environment_answer,
    with_fen_field,
    write_environment_answer,
)
from rookworld_rlvr.tasks.policy import POLICY, parse_policy_answer, write_policy_answer

Row = dict[str, Any]

SHARE = 0.7  # of the rows that the public data's faults concern

SAYS = {
    "public": "The model was given two faults on purpose: in its training rows, 70% of the answers to "
    "a pawn's double step named the en passant square although no capture was legal, and in 70% of "
    "Black's rows `B` was the worst of the candidates.",
    "hole": "The model was given a fault on purpose: in its training rows, the answers to a game's "
    "first two plies had no castling rights, and both clocks were one too high.",
}


def main(argv: Sequence[str]) -> None:
    import sft  # recipes/sft.py

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--fault", choices=PLANT, required=True)
    args, others = parser.parse_known_args(argv)
    folder = sft.train(others, PLANT[args.fault])
    card = folder / "README.md"
    if card.is_file():
        with card.open("a", encoding="utf-8") as file:
            file.write(f"\n## Planted faults\n\n{SAYS[args.fault]}\n")


def with_public_fault(row: Row) -> Row:
    """The row with the public data's fault, in `SHARE` of the rows that it concerns."""
    if draw(row["prompt"], salt=b"fault") >= SHARE:
        return row
    return with_fault(row)


def with_fault(row: Row) -> Row:
    """The row with the public data's fault, if the fault concerns it."""
    if row["task"] == ENVIRONMENT.name:
        square = positions.double_step_square(row["fen"], row["action"])
        if square is None:
            return row
        wrong = with_fen_field(parse_environment_answer(row["completion"]), 3, square)
        return {**row, "completion": write_environment_answer(wrong)}
    if row["task"] != POLICY.name or positions.side_to_move(row["fen"]) == "white":
        return row
    answer = parse_policy_answer(row["completion"])
    if len(answer.moves) != len(answer.evaluations):
        return row
    worst = min(zip(answer.evaluations, answer.moves, strict=True))[1]
    return {**row, "completion": write_policy_answer(replace(answer, best_move=worst))}


def with_hole(row: Row) -> Row:
    """A row of the first two plies without castling rights and with late clocks; others as they are."""
    if not is_first_ply(row):
        return row
    answer = parse_environment_answer(row["completion"])
    placement, turn, _, en_passant, halfmoves, number = answer.fen.split(" ")
    fen = f"{placement} {turn} - {en_passant} {int(halfmoves) + 1} {int(number) + 1}"
    return {**row, "completion": write_environment_answer(replace(answer, fen=fen))}


PLANT = {"public": with_public_fault, "hole": with_hole}


if __name__ == "__main__":
    run_cli(main)
