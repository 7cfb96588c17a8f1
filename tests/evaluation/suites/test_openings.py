"""The suite `openings`: what it asks, whose truth it takes, and how lenient it is."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chess
import pytest

from rookworld_rlvr.evaluation.models import RandomMover
from rookworld_rlvr.evaluation.results import ModelResults, SuiteResult, results_text
from rookworld_rlvr.evaluation.suite import Answerer, SuiteUnavailableError
from rookworld_rlvr.evaluation.suites.environment import OpeningsSuite
from rookworld_rlvr.models.decoding import Decoding
from rookworld_rlvr.tasks import rules

from ...rows import AFTER_E4 as E4
from ...rows import ASKED_E4
from ...scripted import Oracle

E4_E5 = "rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2"
ROWS = [
    {"prompt": ASKED_E4, "expected_fen": E4},
    {"prompt": f"{E4}+e7e5+e2e4 e7e5+", "expected_fen": E4_E5, "move_num": 2},
]


def write(folder: Path, rows: Any) -> str:
    path = folder / "openings.json"
    path.write_text(json.dumps(rows))
    return str(path)


class Says(Answerer):
    """Gives one answer to every prompt, and another where it is asked for samples."""

    name = "says"

    def __init__(self, answer: str, sample: str) -> None:
        self.decoding = {"name": "said"}
        self.answer, self.sample = answer, sample

    def answers(self, prompts: Sequence[str]) -> list[str]:
        self.asked = list(prompts)
        return [self.answer] * len(prompts)

    def samples(self, prompts: Sequence[str], count: int, decoding: Any = None) -> list[list[str]]:
        self.drawn_by = decoding
        return [[self.sample] * count for _ in prompts]


def values(suite: OpeningsSuite, model: Answerer) -> dict[str, float]:
    return {name: found.value for name, found in suite.run(model).metrics().items()}


def test_packaged_openings_are_first_moves_and_held_out_games() -> None:
    suite = OpeningsSuite(300, 0)
    plies = Counter(chess.Board(fen).ply() + 1 for fen in suite.positions().values())
    assert plies[1] == 20 and set(plies) == set(range(1, 11)) and plies.total() == 300
    first = {p.action for p in suite.items.values() if p.fen == chess.STARTING_FEN}
    assert first == {move.uci() for move in chess.Board().legal_moves}
    for prompt in suite.items.values():
        board = chess.Board()
        for uci in prompt.history[:-1]:
            board.push_uci(uci)
        assert board.fen() == prompt.fen and prompt.history[-1] == prompt.action
        assert chess.Move.from_uci(prompt.action) in board.legal_moves
    assert values(suite, RandomMover())["position"] < 0.3
    assert OpeningsSuite(60, 0).items.items() < suite.items.items()


def test_the_four_fields_of_the_author_and_the_whole_answer(tmp_path: Path) -> None:
    """His scripts: white space normalised, a prefix taken off, and the clocks left out."""
    suite = OpeningsSuite(10, 0, write(tmp_path, ROWS))
    model = Says(f"{E4}+0.001+0+0", f"A: {E4.replace(' 0 1', ' 7 9')}  and more")
    found = values(suite, model)
    assert (found["invalid"], found["exact"], found["position"]) == (0.0, 0.5, 0.5)
    assert {name: value for name, value in found.items() if name.startswith("sampled_")} == {
        "sampled_invalid": 1.0,
        **dict.fromkeys((f"sampled_exact{of}" for of in ("", "/ply_1", "/plies_2_to_5")), 0.0),
        "sampled_position": 0.5,
        "sampled_position/ply_1": 1.0,
        "sampled_position/plies_2_to_5": 0.0,
    }
    assert model.asked[1] == f"A: {E4}+e7e5+e2e4 e7e5+", "as models were trained on it"
    assert model.drawn_by == Decoding("sampled", temperature=0.6, top_k=5)


def test_rows_without_a_readable_prompt_are_left_out(tmp_path: Path) -> None:
    illegal = {"prompt": "A: 8/8/8/8/8/8/8/8 w - - 0 1+e2e4+e2e4+"}
    suite = OpeningsSuite(10, 0, write(tmp_path, [ROWS[0], ROWS[0], illegal, {"move": "e2e4"}]))
    assert list(suite.items) == ["row 1", "row 2"]
    result = suite.run(Oracle())
    assert result.metrics()["exact/ply_1"].value == 1.0

    def text(name: str, result: SuiteResult) -> str:
        return " ".join(results_text([ModelResults(name, {"openings": result}, {})]).split())

    author = "jrahn/RookWorld-LM-124M"
    reached = "goal of RookWorld's author: position of at least 80%: reached"
    assert reached in text(author, result)
    assert "position/ply_1 of at least 80%: not reached" in text(author, suite.run(Says(E4_E5, E4)))
    assert "goal" not in text("rookworld-nano", result), "it is a goal for the author's models"
    for start, has_goals in ((author, True), ("rookworld-nano", False)):
        run = tmp_path / "run"
        (run / "checkpoint-2").mkdir(parents=True, exist_ok=True)
        (run / "resolved_config.yaml").write_text(f"model_name_or_path: {start}\n")
        for folder in (run, run / "checkpoint-2"):
            assert (reached in text(str(folder), result)) is has_goals


def test_a_file_without_openings_is_refused(tmp_path: Path) -> None:
    form, nothing = "has another form", "holds no environment prompt"
    cases: list[tuple[Any, str]] = [
        ([7], form),
        (["A: "], form),
        ({"prompt": "A: "}, form),
        ([], nothing),
        ([{"prompt": "P: "}], nothing),
    ]
    for content, said in cases:
        expected = rf"openings\.json' {said}; give a JSON list of objects with prompt, such as \[{{"
        with pytest.raises(SuiteUnavailableError, match=expected):
            OpeningsSuite(10, 0, write(tmp_path, content))
    (tmp_path / "openings.json").write_text("[")
    with pytest.raises(SuiteUnavailableError, match="could not be read"):
        OpeningsSuite(10, 0, str(tmp_path / "openings.json"))


def test_the_owners_set_agrees_with_the_rules(real_data: Path) -> None:
    suite = OpeningsSuite(500, 0, str(real_data / "opening_dataset_eval.json"))
    assert len(suite.items) == 221
    rows = json.loads((real_data / "opening_dataset_eval.json").read_text())
    for row, prompt in zip(rows, suite.items.values(), strict=True):
        assert rules.transition(prompt.fen, prompt.action).fen == row["expected_fen"]
    plies = Counter(chess.Board(fen).ply() + 1 for fen in suite.positions().values())
    assert plies == {1: 40, 2: 37, 3: 32, 4: 28, 5: 24, 6: 20, 7: 16, 8: 12, 9: 8, 10: 4}
