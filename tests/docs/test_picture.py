"""The front page's picture: what it takes of a run, and whether a phone can show it."""

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import chess
import pandas as pd
import pytest

from rookworld_rlvr.common.errors import RookWorldError

from ..support import REPOSITORY

PHONE = 350  # pixels of a page's width at 390
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawing() -> Any:
    spec = importlib.util.spec_from_file_location("picture", REPOSITORY / "docs/picture.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(action: str, field: str, exact: float, fen: str = chess.STARTING_FEN) -> dict[str, Any]:
    """An environment answer that names an en passant square."""
    board = chess.Board(fen)
    board.push_uci(action)
    words = board.fen().split(" ")
    words[3] = field
    completion = f"{' '.join(words)}+0.001+0+0"
    prompt = f"A: {fen}+{action}+{action}+"
    given = {"task": "environment", "prompt": prompt, "fen": fen, "action": action}
    return {**given, "completion": completion, "score": {"format": 1.0, "exact": exact}}


def run(*pairs: tuple[dict[str, Any], dict[str, Any]]) -> Any:
    answers = [SimpleNamespace(before=before, after=after) for before, after in pairs]
    points = {"eval_environment/exact": [(0.0, 0.5), (30.0, 0.75), (60.0, 0.9)]}
    given = {"name": "a", "rows": {"environment/exact": 400}, "answers": answers}
    return SimpleNamespace(points=points.__getitem__, **given)


def test_the_earliest_mended_square_is_shown(drawing: Any) -> None:
    later = "rnbqkbnr/pp1ppppp/2p5/8/8/5N2/PPPPPPPP/RNBQKB1R w KQkq - 0 2"
    second = answer("e2e4", "e3", 0, later), answer("e2e4", "-", 1, later)
    first = answer("d2d4", "d3", 0), answer("d2d4", "-", 1)
    unmended = answer("e2e4", "e3", 0), answer("e2e4", "e3", 0)
    assert drawing.mended(run(unmended, second, first)) is first[0]
    assert drawing.said_square(first[0]) == chess.D3
    with pytest.raises(RookWorldError, match="no en passant square was mended"):
        drawing.mended(run(unmended))


def test_the_group_has_the_most_different_moves(drawing: Any, tmp_path: Path) -> None:
    def row(prompt: str, move: str, advantage: float) -> dict[str, Any]:
        completion = f" M: e2e4 d2d4 E: 0.1 0.2 B: {move}"
        return {"prompt": prompt, "completion": completion, "advantage": advantage}

    fen = chess.STARTING_FEN
    same = [row(f"P: {fen}", move, 0.5) for move in ("e2e4", "e2e4", "g1f3")]
    other = fen.replace(" 0 1", " 2 2")
    varied = [row(f"P: {other}", move, 0.5) for move in ("e2e4", "d2d4", "g1f3")]
    illegal = [row(f"P: {fen.replace('KQkq', '-')}", move, 0.5) for move in ("a1a8", "e2e4")]
    (tmp_path / "completions").mkdir()
    table = pd.DataFrame([*same, *varied, *illegal])
    table.to_parquet(tmp_path / "completions/completions_00010.parquet")
    assert list(drawing.varied_group(tmp_path)["move"]) == ["e4", "d4", "Nf3"]
    with pytest.raises(RookWorldError, match="there are no completions"):
        drawing.varied_group(tmp_path / "completions")


def test_a_phone_shows_letters_coordinates_and_a_legend(drawing: Any) -> None:
    group = pd.DataFrame({"move": ["e4", "Nf3"], "advantage": [1.0, -1.0]})
    before = answer("e2e4", "e3", 0)
    texts = []
    for colours in drawing.PALETTES.values():
        root = ElementTree.fromstring(drawing.picture(run(), before, group, colours))
        words = root.findall(f"{SVG}text")
        for item in words:
            assert float(item.attrib["font-size"]) * PHONE / drawing.WIDTH >= 9, item.text
            assert 0 <= float(item.attrib["x"]) <= drawing.WIDTH
            assert 0 < float(item.attrib["y"]) <= drawing.HEIGHT
        texts.append([item.text for item in words])
        assert {*"abcdefgh12345678"} <= set(texts[-1])
        assert {"named, but no pawn", "50%", "90%", "−1.0"} <= set(texts[-1])
    assert texts[0] == texts[1]


def test_the_front_page_has_both_forms() -> None:
    page = (REPOSITORY / "README.md").read_text()
    for name in ("light", "dark"):
        path = f"docs/quickstart-{name}.svg"
        assert path in page
        root = ElementTree.parse(REPOSITORY / path).getroot()
        assert len(root.findall(f"{SVG}text")) > 40
    alt = re.findall(r'alt="([^"]+)"', page)
    assert len(alt) == 1 and "47% to 88%" in alt[0]
