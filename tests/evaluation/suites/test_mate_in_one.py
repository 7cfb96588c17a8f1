"""The suite `mate_in_one`; mates are judged with python-chess itself, not with `rules`."""

from __future__ import annotations

import json
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import chess
import pytest

from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.data import synthesis
from rookworld_rlvr.data.loading import HELDOUT_SHARE, is_held_out
from rookworld_rlvr.engine.pool import EngineArguments
from rookworld_rlvr.evaluation.answerers import LanguageModel, RandomMover
from rookworld_rlvr.evaluation.games import read_reply
from rookworld_rlvr.evaluation.registry import SuiteArguments, open_suites
from rookworld_rlvr.evaluation.suite import SuiteUnavailableError
from rookworld_rlvr.evaluation.suites.mate_in_one import MateInOneSuite, MatePosition, judge
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import complete
from rookworld_rlvr.tasks import rules

from ...scripted import GARBAGE, Scripted, oracle, policy_text, shallow

FOOLS = "rnbqkbnr/pppp1ppp/8/4p3/6P1/5P2/PPPPP2P/RNBQKBNR b KQkq - 0 2"  # d8h4 mates
SCHOLARS = "r1bqkb1r/pppp1ppp/2n2n2/4p2Q/2B1P3/8/PPPP1PPP/RNB1K1NR w KQkq - 4 4"  # h5f7
KING_OUT = "rnbq1bnr/ppppkppp/8/4p2Q/4P3/8/PPPP1PPP/RNB1KBNR w KQ - 2 3"  # h5e5
BIRD = "rnbqkbnr/pppp1ppp/8/4p3/5PP1/8/PPPPP2P/RNBQKBNR b KQkq - 0 2"  # d8h4
TWO_ROOKS = "6k1/5ppp/8/8/8/8/8/RR4K1 w - - 0 1"  # a1a8 and b1b8

GAMES: list[Any] = [
    {"input": "1. f3 e5 2. g4", "target": "Qh4#", "target_scores": {"Qh4#": 1, "Nc6": 0}},
    {"input": "1. e4 e5 2. Qh5 Nc6 3. Bc4 Nf6 4.", "target": "Qxf7#"},
    {"input": "1. e4 e5 2. Qh5 Ke7", "target_scores": {"Qxe5#": 1, "d3": 0, "d4": 0}},
    {"input": "1.f4 e5 2.g4", "target": "Qh4#"},
]
MALFORMED: list[Any] = [
    "1. e4",
    {"target": "Qh4#"},
    {"input": "1. f3 e5 2. g4"},
    {"input": "1. f3 e5 2. g4", "target_scores": {"Qh4#": 1, "Nc6": 1}},
    {"input": "1. f3 e5 2. g5", "target": "Qh4#"},
    {"input": "1. f3 e5 2. --", "target": "Qh4#"},
    {"input": "1. f3 e5 2. g4", "target": "Qa4#"},
    {"input": "1. f3 e5 2. g4", "target": "Qg5"},
]


def write_task(path: Path, examples: list[Any]) -> str:
    path.write_text(json.dumps({"name": "checkmate_in_one", "examples": examples}))
    return str(path)


def test_metrics_by_hand_on_big_bench_examples(tmp_path: Path) -> None:
    suite = MateInOneSuite(10, 0, write_task(tmp_path / "task.json", GAMES))
    assert suite.positions() == {
        "example 1": FOOLS,
        "example 2": SCHOLARS,
        "example 3": KING_OUT,
        "example 4": BIRD,
    }
    # A mate; legal but none; illegal, as the king stands in between; no answer at all.
    model = Scripted({FOOLS: "d8h4", SCHOLARS: "h5f3", KING_OUT: "h5e8", BIRD: GARBAGE})
    result = suite.run(model)
    values = {name: (value.value, value.n) for name, value in result.metrics().items()}
    assert values == {
        "invalid": (1 / 4, 4),
        "legal": (2 / 4, 4),
        "mate": (1 / 4, 4),
        "mate/white": (0 / 2, 2),
        "mate/black": (1 / 2, 2),
        "reference_mate": (1 / 4, 4),
    }
    assert [len(call) for call in model.calls] == [4], "all in one call"
    assert result.n == 4 and result.notes["malformed"] == {}


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (policy_text("a1a8"), {"invalid": 0, "legal": 1, "mate": 1, "reference_mate": 1}),
        (policy_text("b1b8"), {"invalid": 0, "legal": 1, "mate": 1, "reference_mate": 0}),
        (policy_text("a1a7"), {"invalid": 0, "legal": 1, "mate": 0, "reference_mate": 0}),
        (policy_text("a1b8"), {"invalid": 0, "legal": 0, "mate": 0, "reference_mate": 0}),
        (policy_text("a1a9"), {"invalid": 1, "legal": 0, "mate": 0, "reference_mate": 0}),
        (GARBAGE, {"invalid": 1, "legal": 0, "mate": 0, "reference_mate": 0}),
    ],
)
def test_any_mate_counts_as_one(completion: str, expected: dict[str, float]) -> None:
    reply = read_reply(chess.Board(TWO_ROOKS), completion)
    assert judge(MatePosition(TWO_ROOKS, "a1a8"), reply) == expected


@pytest.mark.parametrize("move", ["e1c1", "e1a1", "e1d2"])
def test_a_mate_by_castling_counts_however_it_is_written(move: str) -> None:
    """Ed. Lasker against Thomas, London 1912: 18. Kd2 mates, and so would have 18. O-O-O."""
    fen = "rn3r2/pbppq1p1/1p2pN2/8/3P2NP/6P1/PPP1BP1R/R3K1k1 w Q - 5 18"
    assert set(rules.mating_moves(fen)) == {"e1c1", "e1d2"}
    reply = read_reply(chess.Board(fen), policy_text(move))
    assert judge(MatePosition(fen, "e1d2"), reply)["mate"] == 1


def mates_by_hand(fen: str, uci: str) -> bool:
    board = chess.Board(fen)
    board.push_uci(uci)
    return board.is_checkmate()


def test_malformed_examples_are_counted_and_left_out(tmp_path: Path) -> None:
    suite = MateInOneSuite(10, 0, write_task(tmp_path / "task.json", [*MALFORMED, GAMES[0]]))
    assert suite.positions() == {"example 9": FOOLS}, "counted with the malformed ones"
    notes = suite.run(Scripted({FOOLS: "d8h4"})).notes
    assert notes["examples"] == 1
    assert notes["malformed"] == {
        "no game as 'input'": 2,
        "no mate as 'target' or in 'target_scores'": 2,
        "the game has a move that is not legal": 2,
        "the target is not a legal move": 1,
        "the target does not mate": 1,
    }


def test_a_sample_of_the_file_follows_from_the_seed(tmp_path: Path) -> None:
    file = write_task(tmp_path / "task.json", GAMES * 10)
    first = list(MateInOneSuite(8, 0, file).positions())
    assert first == list(MateInOneSuite(8, 0, file).positions()) and len(first) == 8
    assert first != list(MateInOneSuite(8, 1, file).positions())
    assert first == sorted(first, key=lambda item: int(item.split()[1])), "in the file's order"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "could not be read"),
        ("[]", "no list 'examples'"),
        (json.dumps({"examples": []}), "holds no mate in one"),
        (json.dumps({"examples": MALFORMED}), "the target does not mate"),
    ],
)
def test_a_file_of_another_kind_leaves_the_suite_out(
    content: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "task.json"
    path.write_text(content)
    arguments = SuiteArguments(suites=["mate_in_one"], mate_in_one_file=str(path))
    suites, left_out = open_suites(arguments, EngineArguments())
    assert not suites
    assert reason in left_out["mate_in_one"] and "task.json" in left_out["mate_in_one"]
    with pytest.raises(SuiteUnavailableError, match="could not be read"):
        MateInOneSuite(1, 0, str(tmp_path / "nothing.json"))
    with pytest.raises(ConfigurationError, match=r"mate_in_one_file: file .* not found"):
        SuiteArguments(mate_in_one_file=str(tmp_path / "nothing.json"))


# --------------------------------------------------------------------------------------------------
# Positions made from a seed
# --------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def made() -> MateInOneSuite:
    return MateInOneSuite(60, seed=0)


def test_positions_made_are_held_out_mates_of_games_and_endgames(made: MateInOneSuite) -> None:
    fens = list(made.positions().values())
    assert len(fens) == 60 == len({rules.position_key(fen) for fen in fens})
    pieces = []
    for fen in fens:
        board = chess.Board(fen)
        assert board.is_valid() and is_held_out(fen, HELDOUT_SHARE)
        assert any(mates_by_hand(fen, move.uci()) for move in board.legal_moves)
        assert board.fen() == fen
        pieces.append(len(board.piece_map()))
    assert max(pieces[1::2]) <= 8, "each second one is a small endgame"
    assert sum(count > 8 for count in pieces[::2]) >= 20, "the others come from games"
    assert {chess.Board(fen).turn for fen in fens} == {True, False}
    again = list(MateInOneSuite(4, seed=0).positions().values())
    assert again == fens[:4] != list(MateInOneSuite(4, seed=1).positions().values())


def test_the_stream_passes_over_what_is_not_wanted() -> None:
    seen = []

    def black_only(fen: str) -> bool:
        seen.append(fen)
        return fen.split(" ")[1] == "b"

    fens = list(islice(synthesis.mate_in_one_positions(3, black_only), 4))
    assert {fen.split(" ")[1] for fen in fens} == {"b"} and len(seen) > 4


def test_the_oracle_always_mates(made: MateInOneSuite, stockfish: str) -> None:
    with shallow(stockfish, 2) as labeller:
        found = made.run(oracle(labeller)).metrics()
    assert (found["mate"].value, found["legal"].value, found["invalid"].value) == (1, 1, 0)
    assert found["reference_mate"].value > 0.5, "hit by chance where there are several"


def test_chance_is_the_share_of_moves_that_mate(made: MateInOneSuite) -> None:
    chances = {
        fen: sum(mates_by_hand(fen, uci) for uci in moves) / len(moves)
        for fen in made.positions().values()
        if (moves := [move.uci() for move in chess.Board(fen).legal_moves])
    }
    draws = 20  # movers, each with answers of its own
    mates = [made.run(RandomMover(seed)).metrics() for seed in range(draws)]
    found = sum(result["mate"].value for result in mates) / draws
    expected = sum(chances.values()) / len(chances)
    variance = sum(p * (1 - p) for p in chances.values()) / len(chances) ** 2 / draws
    assert abs(found - expected) < 4 * variance**0.5
    assert {result["legal"].value for result in mates} == {1.0}


def test_a_batch_of_one_and_of_many_give_the_same_result(made: MateInOneSuite) -> None:
    model: Any = loading.load_model(loading.PACKAGED_MODEL).eval()
    tokenizer = loading.load_tokenizer(loading.PACKAGED_MODEL)
    suite = MateInOneSuite(8, seed=0)
    alone, together = (
        suite.run(
            LanguageModel(
                "nano", partial(complete, model, tokenizer, batch_size=size, max_new_tokens=70)
            )
        )
        for size in (1, 64)
    )
    assert alone.observations.values == together.observations.values
    assert alone.n == 8


def test_positions_can_be_left_out(tmp_path: Path) -> None:
    suite = MateInOneSuite(10, 0, write_task(tmp_path / "task.json", GAMES))
    suite.leave_out(["example 2", "example 3", "example 4"])
    assert suite.run(Scripted({FOOLS: "d8h4"})).metrics()["mate"].n == 1
    suite.leave_out(["example 1"])
    nothing = suite.run(Scripted({}))
    assert nothing.n == 0 and nothing.metrics() == {}
