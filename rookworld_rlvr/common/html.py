"""HTML that asks for nothing: one self-contained page, its style, tables, bars and small plots."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any


def document(title: str, body: str) -> str:
    """A whole page: readable on a phone, in print and in dark mode.

    Args:
        title: Plain text.
        body: HTML.
    """
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>{text(title)}</h1>{body}</body></html>\n"
    )


def text(value: Any) -> str:
    """A value as text in which nothing is markup."""
    return html.escape(str(value))


def prose(value: Any) -> str:
    """Text with what stands in backticks as code.

    >>> prose("`B` < 1")
    '<code>B</code> &lt; 1'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text(value))


def name(value: str) -> str:
    """A metric's or a key's name as code that may be broken after its separators."""
    breakable = re.sub("([/_])", r"\1<wbr>", text(value))
    return f'<code class="name">{breakable}</code>'


def table(rows: Iterable[Sequence[str]], heads: Sequence[str], caption: str = "") -> str:
    """A table of cells that are HTML already; under heads, the first cell of a row is its head.

    Args:
        rows: Cells, HTML.
        heads: Plain text, one a column; none for a table without a head.
        caption: Plain text.
    """
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in heads)
    above = f"<caption><span>{text(caption)}</span></caption>" if caption else ""
    head = f"<thead><tr>{head}</tr></thead>" if heads else ""
    body = "".join(map(_row, rows))
    return f'<div class="wide"><table>{above}{head}<tbody>{body}</tbody></table></div>'


def _row(cells: Sequence[str]) -> str:
    first, *rest = cells
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'


def details(summary: str, content: str) -> str:
    """What is shown on demand.

    Args:
        summary: Plain text.
        content: HTML.
    """
    return f"<details><summary>{text(summary)}</summary>{content}</details>"


# --------------------------------------------------------------------------------------------------
# Plots
# --------------------------------------------------------------------------------------------------
def bars(rows: Sequence[tuple[str, float | None, str]], kind: str = "") -> str:
    """Horizontal bars: label, value from 0 up, and its text; the largest is as wide as there is room."""
    largest = max((value or 0.0 for _, value, _ in rows), default=0.0) or 1.0
    return '<div class="bars">' + "".join(
        f"<span>{text(label)}</span>"
        f'<span class="track"><i class="{kind}" style="width:{percent((value or 0) / largest)}"></i>'
        f"</span><span>{text(words)}</span>"
        for label, value, words in rows
    ) + "</div>"  # fmt: skip


def percent(part: float) -> str:
    """A share as a CSS length, held in [0, 100]%."""
    return f"{100 * min(1.0, max(0.0, part)):.2f}%"


def histogram(values: Sequence[float], title: str, bins: int = 24) -> str:
    """How often values of a range occur."""
    if not values:
        return ""
    low, high = min(values), max(values)
    width = (high - low) / bins or 1.0
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / width))] += 1
    top = max(counts)
    columns = "".join(
        f'<rect x="{10 * place + 1}" y="{60 - 56 * count / top:.1f}" width="8" '
        f'height="{56 * count / top:.1f}"><title>{low + place * width:.3g}: {count}</title></rect>'
        for place, count in enumerate(counts)
    )
    return (
        f'<figure><svg viewBox="0 0 {10 * bins} 60" role="img" aria-label="{text(title)}">{columns}'
        f"</svg><figcaption>{text(title)}: {low:.3g} to {high:.3g}</figcaption></figure>"
    )


def curve(values: Sequence[float | None], title: str) -> str:
    """A line over steps; steps without a value are passed over."""
    points = [(place, value) for place, value in enumerate(values) if value is not None]
    if len(points) < 2:
        return ""
    low, high = min(v for _, v in points), max(v for _, v in points)
    span, last = high - low or 1.0, max(1, len(values) - 1)
    path = " ".join(f"{240 * x / last:.1f},{56 - 52 * (v - low) / span:.1f}" for x, v in points)
    return (
        f'<figure><svg viewBox="0 0 240 60" role="img" aria-label="{text(title)}">'
        f'<polyline points="{path}"/></svg><figcaption>{text(title)}: first {points[0][1]:.4g}, last '
        f"{points[-1][1]:.4g}, {low:.4g} to {high:.4g}</figcaption></figure>"
    )


_STYLE = """
:root{color-scheme:light dark;--ink:#1c1f23;--paper:#fff;--soft:#eef0f3;--line:#d5d9df;--bar:#3b6fb6;
--other:#a0662d;--up:#2c9a5c;--down:#cf4a3d;--mute:#565e69;
--c0:#2f67b1;--c1:#b4561b;--c2:#1f7d4d;--c3:#9b3a8c;--c4:#6f5a00;--c5:#b3263c;--c6:#0b7a85;--c7:#5b5f66}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e4e7eb;--paper:#15181c;--soft:#22272e;
--line:#3a424d;--bar:#6ea2e8;--other:#d69a5b;--up:#4fc483;--down:#ef7a6c;--mute:#a3acb8;
--c0:#7fb0f2;--c1:#ee9a5e;--c2:#5fcb93;--c3:#dd8fd0;--c4:#d8bd4a;--c5:#f58a98;--c6:#4fc9d6;--c7:#b9bfc8}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;
padding:1rem;max-width:1400px}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin:.5rem 0}h3{font-size:1rem;margin:.5rem 0}
section{border-top:1px solid var(--line);padding:.5rem 0 1rem}
nav{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:1rem 0}a{color:var(--bar)}
.columns{display:grid;gap:1.5rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,32rem),1fr))}
.columns>*{min-width:0}.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem}td,th{padding:.15rem .6rem .15rem 0;text-align:left;
vertical-align:top;border-bottom:1px solid var(--soft)}
code{font-size:.85rem;overflow-wrap:anywhere}
.bars{display:grid;grid-template-columns:max-content 1fr max-content;gap:.1rem .6rem;align-items:center;
font-size:.85rem;margin:.5rem 0}
.track{display:block;background:var(--soft);height:.8rem;border-radius:2px;min-width:3rem}
.track i{display:block;height:100%;background:var(--bar);border-radius:2px}.track i.other{
background:var(--other)}
.plots{display:flex;flex-wrap:wrap;gap:1rem}
.grid-of-plots{display:grid;gap:1rem 1.5rem;
grid-template-columns:repeat(auto-fill,minmax(min(100%,21rem),1fr))}
figure{margin:0;flex:1 1 16rem;max-width:26rem}
figure svg{width:100%;background:var(--soft)}figure:not(.board) rect{fill:var(--bar)}
polyline{fill:none;stroke:var(--bar);stroke-width:2}figcaption{font-size:.8rem}
article{display:flex;flex-wrap:wrap;gap:1rem;margin:1rem 0;border-top:1px dashed var(--line);
padding-top:.7rem}.grow{flex:1 1 20rem;min-width:0}
.tokens span{padding:0 1px;border-radius:2px;white-space:pre-wrap}.tokens sub{font-size:.6rem;opacity:.6}
.verdict{padding:.6rem .8rem;border-left:5px solid var(--up);background:var(--soft)}
.verdict.stop{border-color:var(--down)}.verdict.warning{border-color:var(--other)}
li.stop b{color:var(--down)}li.warning b{color:var(--other)}
caption{text-align:left;font-weight:600;padding:.3rem 0}caption span{position:sticky;left:0;
display:inline-block;max-width:calc(100vw - 2rem)}th{font-weight:600}
tbody th{font-weight:400}thead th{border-bottom:1px solid var(--line)}small,.note{color:var(--mute);
font-size:.85rem}.wide small{white-space:nowrap}.wide small.source{white-space:normal}
.name{overflow-wrap:normal}.note{margin:.3rem 0}
b.stop{color:var(--down)}b.warning{color:var(--other)}.verdict p{margin:.1rem 0}
.plot figcaption{font-weight:600;font-size:.85rem;margin-bottom:.2rem}
.plot svg{display:block;height:auto;background:none}.plot svg text{font-size:11px;fill:var(--mute)}
.plot .grid{stroke:var(--line);stroke-width:1}.plot polyline{stroke-width:1.8;stroke-linejoin:round}
.intervals{max-width:28rem;flex:1 1 20rem}.intervals line{stroke-width:2}
.band{opacity:.18;stroke:none}.hollow.hollow{fill:var(--paper);stroke-width:1.8}
.legend{display:flex;flex-wrap:wrap;gap:.1rem .9rem;list-style:none;margin:.2rem 0 0;padding:0;
font-size:.8rem}.legend svg{display:inline-block;width:28px;height:8px;margin-right:.35rem;
vertical-align:middle}.legend line{stroke-width:2.5}
.key{display:inline-block;width:.8rem;height:.8rem;border-radius:2px;margin-right:.4rem}
.s0{--s:var(--c0)}.s1{--s:var(--c1)}.s2{--s:var(--c2)}.s3{--s:var(--c3)}.s4{--s:var(--c4)}.s5{--s:var(--c5)}.s6{--s:var(--c6)}.s7{--s:var(--c7)}
[class^="s"],.band{stroke:var(--s)}circle[class^="s"],.band{fill:var(--s)}.key[class*="s"]{
background:var(--s)}.beside{display:flex;flex-wrap:wrap;gap:1rem 2rem}.beside>*{min-width:0}
.pair{display:block;break-inside:avoid}.pair>p{margin:0 0 .4rem}.pair>div{display:flex;flex-wrap:wrap;
gap:1rem}.policy{display:grid;gap:0 2rem;
grid-template-columns:repeat(auto-fill,minmax(min(100%,26rem),1fr))}
.board{flex:1 1 11rem;max-width:30rem}.environment .board,.fill_in .board{flex-basis:20rem}
.policy .board{max-width:15rem}
.board svg{width:100%;height:auto;display:block;background:none}
@media print{:root{color-scheme:light}body{max-width:none;padding:0;font-size:11px}nav{display:none}
figure,article,tr{break-inside:avoid}h2,h3{break-after:avoid}.wide{overflow:visible}
*{print-color-adjust:exact}}
@media(max-width:600px){.bars{grid-template-columns:1fr max-content}.bars .track{grid-column:1/-1;
grid-row:auto}}
"""
