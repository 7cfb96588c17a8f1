"""The plots of the documentation, drawn from the log of tries as SVG, for light and for dark pages.

``make docs`` writes them to ``docs/figures/``. They are 390 pixels wide, as a phone is, with type of
13, and a mark tells each line apart beside its colour. matplotlib's SVG of them would be some fifty
times as large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tries import Line, interval, start_of, tries

FIGURES = Path(__file__).parent / "figures"
WIDTH, HEIGHT = 390, 280  # pixels, the height without the legend
LEFT, RIGHT, TOP, BOTTOM = 42, 362, 30, 222  # the area of the curves
LINE = 20  # pixels between lines of text
DASHES = ("", "7 3", "2 3", "9 3 2 3")
MARKS = ("circle", "square", "triangle", "diamond")


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of a page."""

    ground: str
    text: str
    grid: str
    lines: Sequence[str]


THEMES: Mapping[str, Theme] = {
    "light": Theme("#ffffff", "#1f2328", "#d8dee4", ("#2f67b1", "#b4561b", "#1f7d4d", "#9b3a8c")),
    "dark": Theme("#0d1117", "#e6edf3", "#30363d", ("#79b0ff", "#f0a36b", "#6fd59a", "#e39bd6")),
}

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """Points with a name in the legend; `bars` are the points' intervals."""

    name: str
    points: Sequence[Point]
    bars: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """Points over two axes.

    Args:
        across: What is on the horizontal axis.
        up: What is on the vertical axis.
        series: At most four.
        ticks: Horizontal and vertical ticks; the first and the last are the ends of the axes.
        joined: Whether lines join the points.
        doubling: Whether each step of the horizontal axis doubles.
    """

    across: str
    up: str
    series: Sequence[Series]
    ticks: tuple[Sequence[float], Sequence[float]]
    joined: bool = True
    doubling: bool = False

    def svg(self, theme: Theme) -> str:
        height = HEIGHT + LINE * len(self.series)
        body = [*self._axes(theme), *self._curves(theme), *self._legend(theme)]
        return page(theme, height, body)

    def _places(self) -> tuple[Callable[[float], float], Callable[[float], float]]:
        (first, *_, last), (low, *_, high) = self.ticks
        warp = math.log2 if self.doubling else float

        def x(value: float) -> float:
            part = (warp(value) - warp(first)) / (warp(last) - warp(first))
            return LEFT + part * (RIGHT - LEFT)

        def y(value: float) -> float:
            return BOTTOM - (value - low) / (high - low) * (BOTTOM - TOP)

        return x, y

    def _axes(self, theme: Theme) -> Iterator[str]:
        x, y = self._places()
        for tick in self.ticks[1]:
            yield line((LEFT, y(tick)), (RIGHT, y(tick)), theme.grid)
            yield text((LEFT - 6, y(tick) + 4), worded(tick), theme.text, "end")
        for tick in self.ticks[0]:
            yield text((x(tick), BOTTOM + LINE), worded(tick), theme.text, "middle")
        yield text(((LEFT + RIGHT) / 2, BOTTOM + 2 * LINE), self.across, theme.text, "middle")

    def _curves(self, theme: Theme) -> Iterator[str]:
        x, y = self._places()
        for at, one in enumerate(self.series):
            colour = theme.lines[at]
            places = [(x(across), y(up)) for across, up in one.points]
            for (across, _), (low, high) in zip(places, one.bars, strict=False):
                yield line((across, y(low)), (across, y(high)), colour)
            if self.joined:
                joints = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
                yield (
                    f'<polyline points="{joints}" fill="none" stroke="{colour}" '
                    f'stroke-width="2" stroke-dasharray="{DASHES[at]}"/>'
                )
            yield from (mark(MARKS[at], place, colour) for place in places)

    def _legend(self, theme: Theme) -> Iterator[str]:
        for at, one in enumerate(self.series):
            height = HEIGHT + 6 + LINE * at
            yield mark(MARKS[at], (LEFT - 24, height - 4), theme.lines[at])
            yield text((LEFT - 10, height), one.name, theme.text)
        yield text((LEFT - 32, 16), self.up, theme.text)


@dataclass(frozen=True, slots=True)
class Ranges:
    """Values with their intervals, a line each: name, value, low, high."""

    across: str
    rows: Sequence[tuple[str, float, float, float]]
    ticks: Sequence[float]

    def svg(self, theme: Theme) -> str:
        height = LINE * (2 * len(self.rows) + 3)
        return page(theme, height, list(self._body(theme)))

    def _body(self, theme: Theme) -> Iterator[str]:
        low, *_, high = self.ticks
        bottom = 2 * LINE * len(self.rows) + 6

        def x(value: float) -> float:
            return 20 + (value - low) / (high - low) * (RIGHT - 30)

        for tick in self.ticks:
            yield line((x(tick), 6), (x(tick), bottom), theme.grid)
            yield text((x(tick), bottom + LINE - 4), worded(tick), theme.text, "middle")
        yield text((WIDTH / 2, bottom + 2 * LINE - 2), self.across, theme.text, "middle")
        for at, (name, value, least, most) in enumerate(self.rows):
            height = 2 * LINE * at + LINE
            words = f"{name}: {value:.1f}"
            yield text((20, height), words, theme.text, halo=theme.ground)
            yield line((x(least), height + 12), (x(most), height + 12), theme.lines[0], 2)
            yield mark("circle", (x(value), height + 12), theme.lines[0])


# --------------------------------------------------------------------------------------------------
# SVG
# --------------------------------------------------------------------------------------------------
def page(theme: Theme, height: int, body: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="13">'
    )
    ground = f'<rect width="{WIDTH}" height="{height}" fill="{theme.ground}"/>'
    return "\n".join([head, ground, *body, "</svg>"]) + "\n"


def text(place: Point, words: str, colour: str, anchor: str = "start", halo: str = "") -> str:
    """Words; the halo, in the colour of the ground, hides the lines that they stand on."""
    rim = f' stroke="{halo}" stroke-width="5" paint-order="stroke"' if halo else ""
    return (
        f'<text x="{place[0]:.1f}" y="{place[1]:.1f}" fill="{colour}" '
        f'text-anchor="{anchor}"{rim}>{escape(words)}</text>'
    )


def worded(number: float) -> str:
    """A number on an axis."""
    return f"{number:,g}".replace("-", "\N{MINUS SIGN}")


def line(first: Point, last: Point, colour: str, width: int = 1) -> str:
    return (
        f'<line x1="{first[0]:.1f}" y1="{first[1]:.1f}" x2="{last[0]:.1f}" y2="{last[1]:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"/>'
    )


def mark(kind: str, place: Point, colour: str) -> str:
    x, y = place
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
    corners = {
        "square": ((-4, -4), (4, -4), (4, 4), (-4, 4)),
        "triangle": ((0, -5), (5, 4), (-5, 4)),
        "diamond": ((0, -5), (5, 0), (0, 5), (-5, 0)),
    }[kind]
    points = " ".join(f"{x + across:.1f},{y + down:.1f}" for across, down in corners)
    return f'<polygon points="{points}" fill="{colour}"/>'


# --------------------------------------------------------------------------------------------------
# What is drawn
# --------------------------------------------------------------------------------------------------
def value(name: str, metric: str) -> float:
    return float(tries()[name]["metrics"][metric]["value"])


def pass_at_k() -> Chart:
    """How often one of k samples is right, before and after three ways of learning."""
    draws = (1, 2, 8, 64)
    named = {
        "the start": "start",
        "plain GRPO": "samples-plain",
        "GRPO with right answers (grpo_learning)": "recipe",
        "supervised, the same rows with labels": "supervised",
    }
    series = [
        Series(name, [(k, value(f"openings-pass-{its}", f"environment/pass@{k}")) for k in draws])
        for name, its in named.items()
    ]
    ticks = ((1, 2, 4, 8, 16, 32, 64), (60, 70, 80, 90, 100))
    return Chart("samples a prompt (k)", "pass@k, %", series, ticks, doubling=True)


def methods() -> Ranges:
    """Expected score of seven ways of learning better moves from one start."""
    named = {
        "all legal moves (the recipe)": "policy-e-method-all-moves",
        "control, the move alone": "policy-e-control",
        "GRPO from samples": "policy-e-samples",
        "soft targets alone": "policy-e-soft-targets",
        "the start": "policy-e",
        "supervised": "policy-e-supervised",
        "DPO": "policy-e-dpo",
    }
    found = [
        (name, tries()[its]["metrics"]["policy/expected_score"]) for name, its in named.items()
    ]
    rows = [(name, one["value"], one["low"], one["high"]) for name, one in found]
    return Ranges("expected score, 95% intervals", rows, (30, 35, 40, 45, 50, 55))


def anchor(line: Line) -> str:
    """What keeps the environment in a try of better moves."""
    keys = line["keys"]
    if line["recipe"] == "grpo_policy_nano" or keys.get("keep_coef") or keys.get("keep_rows"):
        return "distillation from the start (keep_coef)"
    return "a start's share" if keys.get("start_share") else "KL or labels alone"


def trade() -> Chart:
    """What each try of better moves gained, and what the environment lost."""
    found: dict[str, list[Point]] = {
        "KL or labels alone": [],
        "a start's share": [],
        "distillation from the start (keep_coef)": [],
    }
    wanted = ("environment/exact", "policy/expected_score")
    for one in tries().values():
        is_try = one["question"] == "policy" and one["method"] == "all moves" and one["keys"]
        is_recipe = one["id"].startswith("policy-e-recipe")
        if (is_try or is_recipe) and all(name in one["metrics"] for name in wanted):
            change, gain = (
                one["metrics"][name]["value"] - start_of(one, name)["metrics"][name]["value"]
                for name in wanted
            )
            found[anchor(one)].append((change, gain))
    series = [Series(name, points) for name, points in found.items()]
    ticks = ((-15, -10, -5, 0, 5), (-6, -4, -2, 0, 2, 4))
    return Chart(
        "change of the environment, points", "gain of expected score, points", series, ticks, False
    )


def rounds() -> Chart:
    """Expected score after each round of self-play, from three starts."""
    named = {
        "2026-11-26, AdamW, from 46.8": ("policy-b", "rounds-b-1 rounds-b-2"),
        "2026-11-27, Muon, from 47.0": ("policy-d", "rounds-d-1 rounds-d-2 rounds-d-3"),
        "2026-11-28, the recipe, from 47.0": ("policy-e", "rounds-e-1 rounds-e-2 rounds-e-3"),
    }
    metric = "policy/expected_score"
    series = [
        Series(name, [(at, value(its, metric)) for at, its in enumerate([start, *after.split()])])
        for name, (start, after) in named.items()
    ]
    return Chart("rounds", "expected score", series, ((0, 1, 2, 3), (46, 47, 48, 49, 50)))


def curve(name: str, prefix: str, rows: int) -> Series:
    """Exact answers by step, on as many rows, of the lines whose ids begin alike."""
    found = [
        (one["steps"], one["metrics"]["environment/exact"])
        for one in tries().values()
        if one["id"].rpartition("-")[0] == prefix
    ]
    points = [(steps, metric) for steps, metric in found if metric.get("n") == rows]
    bars = [interval("environment/exact", metric) for _, metric in points]
    return Series(
        name, [(steps, metric["value"]) for steps, metric in points], list(filter(None, bars))
    )


def half_trained() -> Chart:
    """GRPO from a model whose supervised training was stopped half-way."""
    series = [
        curve("learning rate 1e-4, seed 0", "cosine-half-1e-4-0", 600),
        curve("the same, seed 1, stopped", "cosine-half-1e-4-1", 600),
    ]
    ticks = ((0, 100, 200, 300), (50, 55, 60, 65, 70, 75))
    return Chart("steps of GRPO", "exact answers, %, with 95% intervals", series, ticks)


def schedule() -> Chart:
    """Exact answers of the supervised training that makes starting models, by step."""
    series = [
        curve("constant rate of 3e-3", "schedule-constant-3e-3", 926),
        curve("cosine from 3e-3", "schedule-cosine-11000", 926),
    ]
    ticks = ((3000, 4000, 5000, 6000, 7000, 8000), (20, 30, 40, 50, 60, 70, 80))
    what = "exact answers, %, with 95% intervals"
    return Chart("steps of supervised training", what, series, ticks)


PLOTS: Mapping[str, Callable[[], Chart | Ranges]] = {
    "pass_at_k": pass_at_k,
    "methods": methods,
    "trade": trade,
    "rounds": rounds,
    "half_trained": half_trained,
    "schedule": schedule,
}


def drawn() -> Iterator[tuple[Path, str]]:
    """Each plot's files and what they should hold."""
    for name, plot in PLOTS.items():
        for tone, theme in THEMES.items():
            yield FIGURES / f"{name}-{tone}.svg", plot().svg(theme)
