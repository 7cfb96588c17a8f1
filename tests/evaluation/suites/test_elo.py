"""The suite `elo`: its players, its games, and the ratings that follow from them."""

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest
import torch

from rookworld_rlvr.common.errors import ConfigurationError, EngineError, RookWorldError
from rookworld_rlvr.engine import EngineArguments
from rookworld_rlvr.evaluation import engines
from rookworld_rlvr.evaluation.models import LanguageModel
from rookworld_rlvr.evaluation.players import (
    MATE,
    Diluted,
    ModelPlayer,
    Negamax,
    RandomPlayer,
    Turn,
    best_moves,
    gain,
    material,
    negamax,
)
from rookworld_rlvr.evaluation.ratings import Ratings, bradley_terry, games_needed
from rookworld_rlvr.evaluation.registry import LADDER, SuiteArguments
from rookworld_rlvr.evaluation.suite import Answerer, open_suites
from rookworld_rlvr.evaluation.suites import elo, games
from rookworld_rlvr.evaluation.suites.elo import EloSuite, PoolGame
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.choices import text_logps
from rookworld_rlvr.tasks import rules
from rookworld_rlvr.tasks.policy import POLICY, write_policy_prompt

from ...engines import engine_arguments
from ...scripted import GARBAGE, Scripted, policy_text
from ...support import recipe
from ...support import script as run_script

NO_ENGINE = EngineArguments()
START = chess.Board()


@pytest.fixture(autouse=True)
def _none_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine takes part where a test gives its path, and nowhere else."""
    monkeypatch.setenv("STOCKFISH_PATH", "/no/engine")


def turn(fen: str) -> Turn:
    return Turn(chess.Board(fen), "0 True")


# --------------------------------------------------------------------------------------------------
# Ratings
# --------------------------------------------------------------------------------------------------
def scored(count: int, *results: tuple[int, int, float, float]) -> np.ndarray:
    """Points of `count` players: the first player's and the second's, of each two."""
    points = np.zeros((count, count))
    for first, second, won, lost in results:
        points[first, second], points[second, first] = won, lost
    return points


def test_the_fit_gives_the_logistic_curve_for_known_shares() -> None:
    for share in (0.5, 0.64, 10 / 11, 0.02):
        (zero, rating) = bradley_terry(scored(2, (1, 0, 100 * share, 100 * (1 - share))))
        assert zero == 0 and rating == pytest.approx(400 * math.log10(share / (1 - share)))
    # 10 : 1 and 3 : 1 make 30 : 1, so the third meeting says the same as the other two.
    found = bradley_terry(scored(3, (1, 0, 100, 10), (2, 1, 75, 25), (2, 0, 60, 2)))
    assert found == pytest.approx([0, 400, 400 + 400 * math.log10(3)])


def test_the_fit_is_that_of_evalica() -> None:
    """evalica 0.4.2: `bradley_terry(…, win_weight=1.0, tie_weight=0.5, tolerance=1e-12)`, in Elo."""
    wins_draws_losses = {(0, 1): (60, 20, 20), (1, 2): (30, 40, 10), (0, 2): (50, 10, 4)}
    wins_draws_losses[2, 3] = (11, 5, 30)
    points = scored(
        4, *((*pair, w + d / 2, lost + d / 2) for pair, (w, d, lost) in wins_draws_losses.items())
    )
    golden = [272.36247081843146, 107.93466106346517, 0.0, 152.6198369935473]
    assert bradley_terry(points, anchor=2) == pytest.approx(golden, abs=1e-6)
    several = bradley_terry(np.stack([points, points.T]), anchor=2)
    assert several[0] == pytest.approx(golden, abs=1e-6)
    assert several[1] == pytest.approx([-value for value in golden], abs=1e-6), "one by one"


def played_points(rng: np.random.Generator, true: Sequence[float], openings: int) -> np.ndarray:
    """Points of pairs of games between all players, by opening."""
    points = np.zeros((openings, len(true), len(true)))
    for opening in points:
        for i in range(len(true)):
            for j in range(i):
                chance = 1 / (1 + 10 ** ((true[j] - true[i]) / 400))
                opening[i, j] = rng.binomial(2, chance)
                opening[j, i] = 2 - opening[i, j]
    return points


def test_intervals_hold_the_true_ratings_of_made_up_games() -> None:
    true, hits, tries = (0.0, 100.0, 400.0), 0, 60
    for seed in range(tries):
        ratings = Ratings(played_points(np.random.default_rng(seed), true, 50))
        found = ratings.of(2)
        assert ratings.of(0).interval == (0, 0), "the anchor"
        hits += found.low <= true[2] <= found.high
        change = ratings.difference(2, 1)
        assert change.difference == pytest.approx(ratings.values[1] - ratings.values[2])
        assert change.high < 0 and change.p < 0.01 and found.n == 200 and change.n == 50
    assert 0.85 * tries < hits, "19 of 20, but for chance"


def test_who_never_scores_has_a_finite_rating() -> None:
    points = np.repeat(scored(2, (1, 0, 2, 0))[None], 200, 0)
    found = Ratings(points).of(1)  # 400.5 : 0.5
    assert found.value == pytest.approx(400 * math.log10(801)) and found.low == found.high
    few = Ratings(points[:9]).of(1)
    assert math.isnan(few.low) and few.n == 18


def test_so_many_games_find_a_difference_as_often_as_they_should() -> None:
    rng, count = np.random.default_rng(0), games_needed(60)
    share = rng.binomial(count, 1 / (1 + 10 ** (-60 / 400)), 4000) / count
    low = share - 1.96 * np.sqrt(share * (1 - share) / count)
    assert (low > 0.5).mean() == pytest.approx(0.8, abs=0.02)
    assert games_needed(-60) == count > games_needed(60, draws=0.3)


# --------------------------------------------------------------------------------------------------
# Players
# --------------------------------------------------------------------------------------------------
MATE_IN_ONE = "6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1"
HANGING_QUEEN = "4k3/8/8/3q4/8/2N5/8/4K3 w - - 0 1"
PROTECTED = "4k3/8/2p5/3p4/8/8/3R4/4K3 w - - 0 1"  # the rook takes a pawn and is taken


def ucis(fen: str, plies: int) -> set[str]:
    return {move.uci() for move in best_moves(chess.Board(fen), plies)}


def test_negamax_finds_a_mate_in_one_and_a_hanging_queen() -> None:
    for plies in (2, 3):
        assert ucis(MATE_IN_ONE, plies) == {"a1a8"}
    for plies in (1, 2, 3):
        assert ucis(HANGING_QUEEN, plies) == {"c3d5"}
    assert ucis(PROTECTED, 1) == {"d2d5"} and "d2d5" not in ucis(PROTECTED, 2), "it looks ahead"
    assert len(ucis(START.fen(), 1)) == 20, "ties are not broken"
    assert ucis("8/P6k/8/8/8/8/8/K7 w - - 0 1", 1) == {"a7a8q"}


def plain(board: chess.Board, plies: int) -> int:
    """Negamax without any cut."""
    if not any(board.legal_moves):
        return -(MATE + plies) if board.is_check() else 0
    values = []
    for move in list(board.legal_moves):
        board.push(move)
        values.append(-(plain(board, plies - 1) if plies > 1 else material(board)))
        board.pop()
    return max(values)


def test_alpha_and_beta_change_no_value() -> None:
    rng, board = random.Random(0), chess.Board()
    for ply in range(60):
        if board.is_game_over():
            break
        for plies in (1, 2) if ply % 20 else (1, 2, 3):
            found = negamax(board, plies, -2 * MATE, 2 * MATE, material(board))
            assert found == plain(board, plies), board.fen()
            values = {}
            for move in list(board.legal_moves):
                values[move] = gain(board, move)
                if plies > 1:
                    board.push(move)
                    values[move] = -plain(board, plies - 1)
                    board.pop()
            best = {move for move, value in values.items() if value == max(values.values())}
            assert {*best_moves(board, plies)} == best, board.fen()
        board.push(rng.choice(best_moves(board, 1 + ply % 2)))


def test_chance_follows_from_seed_opening_and_ply() -> None:
    turns = [turn(START.fen()), Turn(chess.Board(), "1 True"), turn(HANGING_QUEEN)]
    for player, others in (
        (RandomPlayer("random", 0), RandomPlayer("random", 1)),
        (Negamax("material", 0, 1), Negamax("material", 1, 1)),
    ):
        moves = player.choices(turns * 20)
        assert moves[:3] * 20 == moves and moves[0] != moves[1]
        many = [Turn(chess.Board(), str(opening)) for opening in range(40)]
        assert player.choices(many) != others.choices(many)
        assert len({choice.move for choice in player.choices(many)}) > 10


class Fish:
    """An engine that plays the last move of python-chess's order, and finds every position won."""

    name, depth, verdict_depth = "Fish", 1, 1

    def __init__(self, worth: Sequence[int] = ()) -> None:
        self.asked, self._worth = 0, list(worth)

    def moves(self, boards: Sequence[chess.Board]) -> list[chess.Move]:
        self.asked += len(boards)
        return [list(board.legal_moves)[-1] for board in boards]

    def verdicts(self, boards: Sequence[chess.Board]) -> list[int]:
        return [self._worth.pop(0) for _ in boards]


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_an_engine_is_diluted_by_chance(share: float) -> None:
    fish: Any = Fish()
    turns = [Turn(chess.Board(), str(opening)) for opening in range(1000)]
    choices = Diluted("diluted", 0, fish, share).choices(turns)
    assert fish.asked / 1000 == pytest.approx(share, abs=0.04)
    last = list(START.legal_moves)[-1]
    found = sum(choice.move == last for choice in choices)
    assert found == pytest.approx(1000 * share + 50 * (1 - share), abs=35)


class Probable(Scripted):
    """A scripted model that finds the move `likely` the most probable one."""

    def __init__(self, text: str, likely: str) -> None:
        super().__init__({START.fen(): text})
        self.asked: list[str] = []
        self._likely = likely

    def log_probs(self, prompts: Any, choices: Any) -> list[list[float]]:
        self.asked += prompts
        return [[-1.0 - (text != f" {self._likely}") for text in texts] for texts in choices]


def test_what_a_model_cannot_play_is_replaced() -> None:
    prompt = write_policy_prompt(START.fen())
    for text, move, fault, asked in (
        ("d2d4", "d2d4", "", []),
        (" M: e2e5 b1c3 c2c4 E: 9.0 0.1 0.2 B: e2e5", "c2c4", "best legal candidate", []),
        (" M: e2e5 E: 9.0 B: e2e5", "a2a4", "likeliest", [prompt + " M: e2e5 E: 9.0 B:"]),
        (GARBAGE, "a2a4", "likeliest", [prompt + " M:"]),
    ):
        model = Probable(text, "a2a4")
        (choice,) = ModelPlayer("model", model).choices([turn(START.fen())])
        assert (choice.move.uci(), model.asked) == (move, asked)
        assert fault in choice.fault and bool(choice.fault) == bool(fault)


def test_the_likeliest_move_is_that_of_the_network(tokenizer: Any) -> None:
    network = loading.load_model(loading.PACKAGED_MODEL).eval()
    prompt, choices = write_policy_prompt(START.fen()) + " M:", [" e2e4", " g1f3", " a2a3"]
    (found,) = text_logps(network, tokenizer, [(prompt, choices)])
    for text, logp in zip(choices, found, strict=True):
        before, after = (tokenizer(part)["input_ids"] for part in (prompt, text))
        with torch.no_grad():
            logits = network(torch.tensor([[*before, *after]])).logits[0].log_softmax(-1)
        expected = sum(float(logits[len(before) - 1 + n, token]) for n, token in enumerate(after))
        assert logp == pytest.approx(expected, abs=1e-4)
    model = LanguageModel("nano", lambda prompts, **how: [GARBAGE for _ in prompts])
    assert model.log_probs([prompt], [choices]) == [[0, 0, 0]], "without them all are alike"


# --------------------------------------------------------------------------------------------------
# Games
# --------------------------------------------------------------------------------------------------
def test_openings_differ_and_nobody_is_lost_at_once() -> None:
    boards = elo.pool_openings(200, 0)
    assert len({rules.position_key(board.fen()) for board in boards}) == 200
    assert {board.ply() for board in boards} == {4}
    assert all(abs(plain(board, 3)) < elo.LOST_PAWNS for board in boards[:3])
    assert boards[:5] == elo.pool_openings(5, 0) != elo.pool_openings(5, 1)
    assert not elo.is_sound(chess.Board(MATE_IN_ONE)) and not elo.is_sound(
        chess.Board(HANGING_QUEEN)
    )


def test_a_game_that_is_cut_off_is_adjudicated_by_a_threshold() -> None:
    cut_off = [PoolGame(str(n), chess.Board(), ending="capped") for n in range(4)]
    fish: Any = Fish([299, 300, -300, 100_000])
    games.score_games(cut_off, fish)
    assert [game.points for game in cut_off] == [0.5, 1, 0, 1]
    games.score_games(cut_off, None)
    assert [game.points for game in cut_off] == [0.5] * 4, "without an engine they are drawn"


def test_an_illegal_move_loses_in_the_second_rating() -> None:
    game = PoolGame("game", chess.Board(), seats=(7, 3), points=1.0)
    assert elo.judge(game, chess.WHITE, "3")["strict_score"] == 1 == game.strict_points
    game.errors, game.faulty = ["3", "7", "3"], chess.WHITE
    mine, theirs = elo.judge(game, chess.WHITE, "3"), elo.judge(game, chess.BLACK, "7")
    assert (mine["score"], mine["strict_score"], mine["illegal_moves"]) == (1, 0, 2)
    assert (theirs["score"], theirs["strict_score"], theirs["illegal_moves"]) == (0, 1, 1)
    assert not mine["legal_games"] and not theirs["legal_games"]
    found = elo.points([game], 8, 1, strict=True)
    assert found[0, 7, 3] == 1 and found.sum() == 1
    assert elo.points([game], 8, 1, strict=False)[0, 3, 7] == 1


def test_a_pool_needs_two_players_and_the_engines_that_it_names(monkeypatch) -> None:
    with pytest.raises(RookWorldError, match="needs two players or more, and has 1"):
        elo.play([RandomPlayer("random")], [], [])
    monkeypatch.setenv("FAIRY_STOCKFISH_PATH", "/no/fairy")
    for name, reason in (
        ("stockfish_25", "elo_pool: stockfish_25: .*no program '/no/engine'"),
        ("fairy_1350", "elo_pool: fairy_1350: .*'/no/fairy'.*install fairy-stockfish"),
    ):
        asked = SuiteArguments(suites=["elo"], elo_games=2, elo_pool=[name])
        suites, left_out = open_suites(asked, NO_ENGINE)
        assert not suites
        with pytest.raises(EngineError, match=reason):
            raise EngineError(left_out["elo"])
    with pytest.raises(ConfigurationError, match="'rook' is not"):
        SuiteArguments(elo_pool=["rook"])
    asked = SuiteArguments(suites=["elo"], elo_games=2)
    suites, left_out = open_suites(asked, EngineArguments(engine_path="/other/engine"))
    assert not suites and "no program '/other/engine'" in left_out["elo"], "named, and not there"
    (suite,), _ = open_suites(asked, NO_ENGINE)
    there = {"random", "material", "negamax_2", "negamax_3"}
    assert set(suite.notes["not_in_pool"]) == {*LADDER} - there
    assert suite.notes["adjudication"] == "no engine: games that are cut off are drawn"


# --------------------------------------------------------------------------------------------------
# Models in a pool
# --------------------------------------------------------------------------------------------------
class Thinker(Answerer):
    """Answers by negamax of two plies; but for every `errs`-th position, by a random legal move."""

    def __init__(self, name: str, errs: int = 0, illegal: bool = False) -> None:
        self.name, self.decoding = name, {"name": "none"}
        self._errs, self._illegal = errs, illegal

    def answers(self, prompts: Sequence[str]) -> list[str]:
        return [self._answer(POLICY.position(prompt).fen) for prompt in prompts]

    def _answer(self, fen: str) -> str:
        board, rng = chess.Board(fen), random.Random(f"{self.name} {fen}")
        if self._errs and rng.randrange(self._errs) == 0:
            return GARBAGE if self._illegal else policy_text(rng.choice([*board.legal_moves]).uci())
        return policy_text(random.Random(fen).choice(best_moves(board, 2)).uci())


def suite(count: int, seed: int, *pool: str) -> EloSuite:
    return EloSuite(count, [*pool], seed, NO_ENGINE)


@pytest.mark.slow
def test_a_model_is_no_better_than_itself_and_one_that_errs_is_weaker(monkeypatch) -> None:
    monkeypatch.setattr(games, "MOST_PLIES", 120)
    sure, errs = Thinker("sure"), Thinker("errs", 10)
    ours = suite(30, 0, "material", "negamax_2")
    first, second, third = ours.rate([sure, sure, errs])
    same, worse = first.compare(second)["elo"], first.compare(third)["elo"]
    assert same.low <= 0 <= same.high and same.is_tie
    assert worse.difference < 0 and worse.high < 0 and not worse.is_tie
    found = {name: one["elo"] for name, one in first.notes["pool"].items()}
    assert list(found) == ["random", "material", "negamax_2", "sure", "sure (2)", "errs"]
    rated = first.metrics()["elo"]
    assert rated.n == 5 * 30 == first.n and found["sure"] == round(rated.value, 1)
    assert found["random"] == 0 < found["material"] < found["errs"] < found["sure"]
    # It is negamax of two plies itself, so the ladder's own player is as good.
    assert rated.low < found["negamax_2"] < rated.high
    assert first.metrics()["strict_elo"].value == pytest.approx(rated.value), "it errs legally"


def test_two_seeds_of_openings_agree() -> None:
    (one,), (other,) = (suite(40, seed, "material").rate([Thinker("sure")]) for seed in (0, 1))
    assert not set(one.values["score"]) & set(other.values["score"])
    first, second = one.metrics()["elo"], other.metrics()["elo"]
    assert first.low < second.high and second.low < first.high
    assert one.compare(other) == {}, "neither games nor a pool are shared"


def test_illegal_answers_are_counted_and_cost_the_second_rating(monkeypatch) -> None:
    monkeypatch.setattr(games, "MOST_PLIES", 20)
    result = suite(20, 0, "material").run(Thinker("odd", 5, illegal=True))
    found = {name: one.value for name, one in result.metrics().items()}
    assert 0.5 < found["illegal_moves"] < 4 and found["strict_elo"] < found["elo"]
    assert found["strict_score"] <= 1 - (1 - found["legal_games"]) * 0.9
    assert set(result.values) >= {"score/random", "score/material"}


def test_an_evaluation_rates_all_models_together(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(games, "MOST_PLIES", 6)
    words = "--suites elo --elo_games 20 --elo_pool [material]"
    models = "--model_name_or_path random --model_name_or_path random"
    outputs = f"--output_file {tmp_path / 'r.json'} --pgn_file {tmp_path / 'g.pgn'}"
    done = run_script("evaluate.py", *f"{words} {models} {outputs}".split(), cwd=tmp_path)
    document = json.loads((tmp_path / "r.json").read_text())
    result, (other,) = document["suites"]["elo"], document["compared"]
    pool = result["notes"]["pool"]
    assert list(pool) == ["random", "material", "random (2)", "random (3)"]
    assert pool["random"] == {"elo": 0, "low": 0, "high": 0, "games": 60}
    assert result["metrics"]["elo"]["n"] == 60 and result["n"] == 60
    assert other["paired"]["elo"]["elo"]["low"] <= 0 <= other["paired"]["elo"]["elo"]["high"]
    assert "pool: Elo, 95% interval, games" in done.stdout
    text = (tmp_path / "g.pgn").read_text()
    assert text.count("[Event ") == 6 * 20 and text.count('[White "random (2)"]') == 30
    with pytest.raises(ConfigurationError, match="elo_pool"):
        recipe("evaluate").main("--suites elo --elo_pool [rook]".split())


def test_stockfish_plays_and_adjudicates(stockfish: str, monkeypatch) -> None:
    monkeypatch.setattr(games, "MOST_PLIES", 4)
    monkeypatch.setattr(engines.FullEngine, "depth", 1)
    monkeypatch.setattr(engines.FullEngine, "verdict_depth", 1)
    ours = EloSuite(4, ["stockfish_50", "stockfish_10"], 0, engine_arguments(stockfish))
    result = ours.run(Thinker("sure"))
    assert list(result.notes["pool"]) == ["random", "stockfish_10", "stockfish_50", "sure"]
    assert result.notes["engine"].startswith("Stockfish")
    assert result.notes["adjudication"].endswith("won from 300 centipawns on")
    assert result.metrics()["capped"].value == 1
    assert (again := ours.run(Thinker("sure"))).values == result.values, "chance has a seed"
    with engines.FullEngine(engine_arguments(stockfish)) as engine:
        white, black = (chess.Board(MATE_IN_ONE), chess.Board(MATE_IN_ONE).mirror())
        worth = engine.verdicts([white, black])
    assert worth[0] > 90_000 and worth[1] < -90_000, "from White"
    assert again.n == 12
