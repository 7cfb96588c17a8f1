"""Draw the front page's picture from a run: a held-out curve, a mended mistake, a group of answers.

python docs/picture.py --run runs/grpo_nano    # writes docs/quickstart-{light,dark}.svg

Letters are large, because a phone shows the 720 units of the picture's width on 350 pixels.
"""

from __future__ import annotations

import argparse
import html
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import chess
import chess.svg
import pandas as pd

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.common.stats import wilson
from rookworld_rlvr.extras.report.record import AnswerRecord, RunRecord, read_runs
from rookworld_rlvr.tasks.environment import ENVIRONMENT
from rookworld_rlvr.tasks.policy import POLICY

METRIC = "environment/exact"
WIDTH, HEIGHT = 720, 704
LETTER = 24  # units; on a phone 12 pixels
SQUARE = 38  # units of a board's square


class Palette(NamedTuple):
    """The colours of a picture for pages of one brightness."""

    text: str
    faint: str
    line: str
    good: str
    bad: str


PALETTES = {
    "light": Palette("#1c1f23", "#5b6470", "#1f5fbf", "#1a7f45", "#c22f2f"),
    "dark": Palette("#e6e9ee", "#a3adba", "#79aef2", "#4cc27e", "#f0807c"),
}
BOARD = {"light": "#f0d9b5", "dark": "#b58863"}
MINUS = "\N{MINUS SIGN}"
WRONG, ARROW = "#d64545", "#1f5fbfb0"


def main() -> int:
    """Exit code 2 and a message if the run lacks what the picture shows."""
    try:
        draw()
    except RookWorldError as fault:
        print(f"picture.py: {fault}", file=sys.stderr)
        return 2
    return 0


def draw() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", default="runs/grpo_nano")
    parser.add_argument("--output_dir", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    (run,) = read_runs([args.run])
    answer, group = mended(run), varied_group(Path(args.run))
    for name, colours in PALETTES.items():
        path = args.output_dir / f"quickstart-{name}.svg"
        path.write_text(picture(run, answer, group, colours), encoding="utf-8")
        print(f"written to {path}")


def picture(run: RunRecord, answer: AnswerRecord, group: pd.DataFrame, colours: Palette) -> str:
    """The whole picture; its background is the page's own."""
    parts = [*curve(run, colours), *mistake(answer, colours), *answers(group, colours)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="{LETTER}">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


# --------------------------------------------------------------------------------------------------
# What is shown
# --------------------------------------------------------------------------------------------------
def mended(run: RunRecord) -> AnswerRecord:
    """White's earliest move of which the en passant square alone was wrong, and is right now."""
    found = [
        pair.before
        for pair in run.answers
        if pair.before["task"] == ENVIRONMENT.name
        and pair.before["score"]["format"] == pair.after["score"]["exact"] == 1
        and list(ENVIRONMENT.errors(pair.before["prompt"], pair.before["completion"]))
        == ["en passant"]
        and said_square(pair.before) is not None
        and chess.Board(pair.before["fen"]).turn
    ]
    if not found:
        raise RookWorldError(f"{run.name}: no en passant square was mended; give another run")
    return min(found, key=lambda answer: chess.Board(answer["fen"]).ply())


def said_square(answer: AnswerRecord) -> chess.Square | None:
    """The en passant square that an answer names."""
    word = ENVIRONMENT.parse_answer(answer["prompt"], answer["completion"]).fen.split()[3]
    return None if word == "-" else chess.parse_square(word)


def varied_group(folder: Path) -> pd.DataFrame:
    """Of the first samples that the run kept, the policy group with the most different moves."""
    first = min((folder / "completions").glob("*.parquet"), default=None)
    if first is None:
        raise RookWorldError(f"{folder}: there are no completions; give another run")
    table = pd.read_parquet(first)
    table["move"] = [
        best_move(*pair) for pair in zip(table["prompt"], table["completion"], strict=True)
    ]
    groups = [group for _, group in table.groupby("prompt", sort=False) if all(group["move"])]
    if not groups:
        raise RookWorldError(f"{first}: no policy group is readable; give another run")
    return max(groups, key=lambda group: group["move"].nunique())


def best_move(prompt: str, completion: str) -> str:
    """The best move of a policy answer in algebraic notation; empty if it is illegal or unreadable."""
    if not prompt.startswith(POLICY.prefix) or not POLICY.is_readable(prompt, completion):
        return ""
    board = chess.Board(POLICY.position(prompt).fen)
    move = chess.Move.from_uci(POLICY.parse_answer(prompt, completion).best_move)
    return board.san(move) if move in board.legal_moves else ""


# --------------------------------------------------------------------------------------------------
# How it is drawn
# --------------------------------------------------------------------------------------------------
def curve(run: RunRecord, colours: Palette) -> Iterator[str]:
    """The share of right held-out answers by step, with its interval, on an axis from 0 to 100%."""
    points = run.points(f"eval_{METRIC}")
    rows, last = run.rows[METRIC], points[-1][0]
    left, right, top, bottom = 74, 326, 100, 384

    def x(step: float) -> float:
        return left + (right - left) * step / last

    def y(share: float) -> float:
        return bottom - (bottom - top) * share

    yield from title(0, ["Held-out moves simulated", "without a mistake"], colours)
    for share in (0, 0.5, 1):
        yield f'<path d="M{left} {y(share)}H{right}" stroke="{colours.faint}" stroke-opacity=".4"/>'
        yield text(left - 8, y(share) + 8, f"{share:.0%}", colours.faint, "end")
    for step in (0, last):
        yield text(x(step), bottom + 30, f"{step:.0f}", colours.faint, "middle")
    yield text((left + right) / 2, bottom + 30, "step", colours.faint, "middle")
    bounds = [wilson(share, rows) for _, share in points]
    steps = [step for step, _ in points]
    band = [*zip(steps, (b[1] for b in bounds), strict=True)]
    band += reversed([*zip(steps, (b[0] for b in bounds), strict=True)])
    area = " ".join(f"{x(step):.1f},{y(share):.1f}" for step, share in band)
    yield f'<polygon points="{area}" fill="{colours.line}" fill-opacity=".25"/>'
    line = " ".join(f"{x(step):.1f},{y(share):.1f}" for step, share in points)
    yield f'<polyline points="{line}" fill="none" stroke="{colours.line}" stroke-width="4"/>'
    first, final = points[0][1], points[-1][1]
    yield text(x(0) + 12, y(first) + 40, f"{first:.0%}", colours.text, weight=700)
    yield text(x(last), y(final) + 44, f"{final:.0%}", colours.text, "end", weight=700)
    yield text(0, bottom + 62, f"{rows} moves, 95% interval", colours.faint)


def mistake(answer: AnswerRecord, colours: Palette) -> Iterator[str]:
    """The board after the move, with coordinates and the square that the model named for nothing."""
    board, move = chess.Board(answer["fen"]), chess.Move.from_uci(answer["action"])
    named = said_square(answer)
    assert named is not None
    left, top = 404, 76
    words = ["A mistake, mended:", f"en passant on {chess.square_name(named)}"]
    yield from title(left - 24, words, colours)
    board.push(move)
    fill = {square: BOARD["light" if odd(square) else "dark"] for square in chess.SQUARES}
    fill[named] = WRONG
    size = 8 * SQUARE
    drawn = chess.svg.board(
        board,
        fill=fill,
        size=size,
        coordinates=False,
        arrows=[chess.svg.Arrow(move.from_square, move.to_square, color=ARROW)],
    )
    yield re.sub(r"<svg ", f'<svg x="{left}" y="{top}" ', drawn, count=1)
    for place in range(8):
        middle = (place + 0.5) * SQUARE
        yield text(left - 8, top + middle + 8, str(8 - place), colours.faint, "end", size=20)
        yield text(
            left + middle, top + size + 22, "abcdefgh"[place], colours.faint, "middle", size=20
        )
    below = top + size + 56
    yield f'<rect x="{left}" y="{below - 20}" width="24" height="24" fill="{WRONG}"/>'
    yield text(left + 34, below, "named, but no pawn", colours.text)
    yield text(left + 34, below + 28, "can capture there", colours.text)


def answers(group: pd.DataFrame, colours: Palette) -> Iterator[str]:
    """A bar for each answer of a group: up if it beat the group's mean, down if not."""
    middle, tallest, step = 600, 48, WIDTH / len(group)
    words = [
        f"{number_word(len(group))} answers to one position, by advantage:",
        "those better than their mean become likelier",
    ]
    yield from title(0, words, colours, top=510)
    scale = tallest / max(abs(a) for a in group["advantage"])
    ordered: Iterable[Mapping[str, Any]] = group.sort_values("advantage", ascending=False).to_dict(
        "records"
    )
    yield f'<path d="M0 {middle}H{WIDTH}" stroke="{colours.faint}"/>'
    for place, row in enumerate(ordered):
        tall = row["advantage"] * scale
        colour = colours.good if tall > 0 else colours.bad
        x = (place + 0.5) * step
        y, height = middle - max(tall, 0), abs(tall)
        bar = f'x="{x - 26:.0f}" y="{y:.1f}" width="52" height="{height:.1f}"'
        yield f'<rect {bar} fill="{colour}"/>'
        yield text(x, 678, row["move"], colours.text, "middle")
        yield text(
            x, 700, f"{row['advantage']:+.1f}".replace("-", MINUS), colour, "middle", size=20
        )


def title(x: float, lines: Sequence[str], colours: Palette, top: float = 24) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield text(x, top + 28 * number, line, colours.text, weight=700)


def text(
    x: float,
    y: float,
    words: str,
    colour: str,
    anchor: str = "start",
    size: int = LETTER,
    weight: int = 400,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}">{html.escape(words)}</text>'
    )


def odd(square: chess.Square) -> bool:
    """Whether a square is a light one."""
    return bool((chess.square_file(square) + chess.square_rank(square)) % 2)


def number_word(number: int) -> str:
    return {4: "Four", 8: "Eight", 16: "Sixteen"}.get(number, str(number))


if __name__ == "__main__":
    sys.exit(main())
