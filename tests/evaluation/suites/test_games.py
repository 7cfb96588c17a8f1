"""The suites of games: `self_play`, `closed_loop` and `versus_stockfish`."""

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import chess
import chess.engine
import chess.pgn
import pytest

from rookworld_rlvr.common.errors import ConfigurationError, EngineError
from rookworld_rlvr.common.stats import Estimate
from rookworld_rlvr.data.loading import HELDOUT_SHARE, is_held_out
from rookworld_rlvr.engine import EngineArguments
from rookworld_rlvr.evaluation import engines
from rookworld_rlvr.evaluation.models import ModelArguments, RandomMover, open_model
from rookworld_rlvr.evaluation.registry import SuiteArguments
from rookworld_rlvr.evaluation.suite import open_suites
from rookworld_rlvr.evaluation.suites import games, matches
from rookworld_rlvr.evaluation.suites.games import ClosedLoopSuite, SelfPlaySuite, openings
from rookworld_rlvr.evaluation.suites.matches import VersusModelSuite, VersusStockfishSuite
from rookworld_rlvr.tasks import rules
from rookworld_rlvr.tasks.environment import parse_environment_prompt, write_environment_answer

from ...engines import engine_arguments, misbehaving, script
from ...scripted import GARBAGE, Scripted
from ...support import recipe, script_on_two
from ...support import script as run_script

NO_ENGINE = EngineArguments()
MISSING = EngineArguments(engine_path="/no/engine")
# Seed of games in which the packaged model's best token is at least 1e-3 ahead of the next.
SURE = 1


def game_after(moves: str) -> chess.Board:
    """A game from the start, moves in SAN."""
    board = chess.Board()
    for move in moves.split():
        board.push_san(move)
    return board


def fen_after(moves: str) -> str:
    return game_after(moves).fen()


def along(lines: Mapping[str, str]) -> dict[str, str]:
    """What is played, by FEN, where games go on from these openings by moves in UCI."""
    moves = {}
    for opening, line in lines.items():
        board = game_after(opening)
        for uci in line.split():
            moves[board.fen()] = uci
            if board.is_legal(move := chess.Move.from_uci(uci)):
                board.push(move)
    return moves


@pytest.fixture
def none_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOCKFISH_PATH", "/no/engine")


@pytest.fixture
def start_from(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have a suite's games start from boards of the test, and end after some half-moves."""

    def start_from(*starts: str, most: int = 3) -> None:
        boards = [game_after(moves) for moves in starts]
        monkeypatch.setattr(games, "openings", lambda count, seed: boards[:count])
        monkeypatch.setattr(games, "MOST_PLIES", most)

    return start_from


def values(result: Any) -> dict[str, float]:
    return {name: value.value for name, value in result.metrics().items()}


def test_openings_are_held_out_and_reached_by_their_moves() -> None:
    boards = openings(50, seed=0)
    assert len({rules.position_key(board.fen()) for board in boards}) == 50
    for board in boards:
        assert is_held_out(board.fen(), HELDOUT_SHARE) and len(board.move_stack) == 4
        replayed = chess.Board()
        for move in board.move_stack:
            replayed.push(move)
        assert replayed.fen() == board.fen()
    again, others = ([board.fen() for board in openings(20, seed=seed)] for seed in (0, 1))
    assert again == [board.fen() for board in boards[:20]] != others


def test_why_a_game_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(board: chess.Board, moves: str, most: int = 99) -> tuple[str | None, int]:
        monkeypatch.setattr(games, "MOST_PLIES", most)
        game = games.Game("game", board)
        for move in moves.split():
            game.take(games.MoveReply(True, chess.Move.from_uci(move)))
        return game.ending, game.half_moves

    assert ended(chess.Board(), "e2e4") == (None, 1)
    assert ended(game_after("f3 e5"), "g2g4 d8h4", most=2) == ("rules", 2), "at the cap"
    assert ended(chess.Board(), "g1f3 g8f6 f3g1 f6g8 " * 4) == ("rules", 16), "there and back"
    assert ended(chess.Board("7k/5Q2/8/6K1/8/8/8/8 w - - 0 1"), "g5g6") == ("rules", 1)


SELF_PLAY = {
    **along({"f3 e5": "g2g4 d8h4"}),  # fool's mate: two half-moves, finished
    **along({"e4 e5": "g1f3 e5e4"}),  # one half-move, then an illegal one
    fen_after("d4 d5"): GARBAGE,  # none at all
    **along({"c4 c5": "b1c3 b8c6 g1f3"}),  # three half-moves, then cut off
}
SELF_PLAY_STARTS = ("f3 e5", "e4 e5", "d4 d5", "c4 c5")


def test_self_play_by_hand(start_from) -> None:
    start_from(*SELF_PLAY_STARTS)
    model = Scripted(SELF_PLAY)
    suite = SelfPlaySuite(4, 0)
    result = suite.run(model)
    pgn = suite.pgn("nano")
    assert "{ the model's move e5e4 is illegal }" in pgn and pgn.count("rules infraction") == 2
    assert "{ the model's answer cannot be read }" in pgn
    assert values(result) == {
        "legal_half_moves": (2 + 1 + 0 + 3) / 4,
        **dict.fromkeys(("finished", "capped", "illegal_end", "unreadable_end"), 1 / 4),
    }
    assert [len(call) for call in model.calls] == [4, 3, 1], "one call a ply for all games"
    assert result.n == 4


def states_with_errors(prompt: str) -> str:
    asked = parse_environment_prompt(prompt)
    right = write_environment_answer(rules.transition(asked.fen, asked.action))
    if asked.action == "d2d4":
        return right.replace(" - 0 ", " d3 0 ")  # no capture there is legal
    if asked.action == "b8c6":
        return right.replace(" 2 3+0.001+", " 0 3+0.5+")
    return GARBAGE if asked.action == "h3h4" else right


def test_closed_loop_by_hand(start_from) -> None:
    start_from(*SELF_PLAY_STARTS, "a3 a6", "h3 h6", "g3 g6")
    others = along({"a3 a6": "d2d4", "h3 h6": "h3h4", "g3 g6": "f1g2 f8g7 g1f3"})
    model = Scripted({**SELF_PLAY, **others}, states_with_errors)
    expected = {
        # Fool's mate 2, illegal 1, unreadable 0, Nc6 1, d4 0, h4 0, cut off 3.
        "right_plies": (2 + 1 + 0 + 1 + 0 + 0 + 3) / 7,
        "state_error": 3 / 7,  # Nc6, d4, h4
        **dict.fromkeys(("finished", "capped", "illegal_move", "unreadable_move"), 1 / 7),
    }
    assert values(ClosedLoopSuite(7, 0).run(model)) == pytest.approx(expected)
    # Moves and states in turn; a game whose move is none has no state to be asked for.
    assert [len(call) for call in model.calls] == [7, 6, 4, 3, 1, 1]
    assert model.calls[1][0] == f"A: {fen_after('f3 e5')}+g2g4+f2f3 e7e5 g2g4+"


def test_an_error_in_the_last_state_is_no_finish(start_from) -> None:
    start_from("f3 e5 g4")
    moves, mate = {fen_after("f3 e5 g4"): "d8h4"}, fen_after("f3 e5 g4 Qh4#")
    for state, expected in (("+0.001+0+0", (0, 1, 0)), ("+1.0+1+0", (1, 0, 1))):
        model = Scripted(moves, lambda _, state=state: mate + state)  # type: ignore[misc]
        found = values(ClosedLoopSuite(1, 0).run(model))
        assert (found["finished"], found["state_error"], found["right_plies"]) == expected


def test_versus_by_hand(start_from, monkeypatch: pytest.MonkeyPatch) -> None:
    start_from("f3 e5", "e4 e5")
    opponent = along({"f3 e5": "g2g4 d8h4", "e4 e5": "g1f3"})
    opponent |= along({"e4 e5 Nf3 Nc6": "f1c4", "e4 e5 Nh3": "b8c6"})

    def move(_: Any, board: chess.Board) -> chess.Move:
        return chess.Move.from_uci(opponent[board.fen()])

    monkeypatch.setattr(engines.SkilledEngine, "_start", lambda engine: "Fish")
    monkeypatch.setattr(engines.SkilledEngine, "_move", move)
    # From the first opening it is mated as White, and mates as Black; from the second it errs as
    # White, where the first legal move is played instead, and both games are cut off: one is won.
    verdicts = {fen_after("e4 e5 Nh3 Nc6 Ke2"): 300, fen_after("e4 e5 Nf3 Nc6 Bc4"): 299}
    monkeypatch.setattr(engines.FullEngine, "_verdict", lambda _, board: verdicts[board.fen()])
    moves = along({"f3 e5": "g2g4 d8h4", "e4 e5": "e1e3"})
    model = Scripted(moves | along({"e4 e5 Nh3 Nc6": "e1e2", "e4 e5 Nf3": "b8c6"}))
    suite = VersusStockfishSuite(4, 0, MISSING)
    result = suite.run(model)
    assert values(result) == {
        "score": (0 + 1 + 1 + 0.5) / 4,
        "win": 2 / 4,
        "draw": 1 / 4,
        "capped": 2 / 4,
        "strict_score": (0 + 1 + 0 + 0.5) / 4,
        "illegal_moves": 1 / 4,
        "half_moves": (2 + 2 + 3 + 3) / 4,
        "elo_difference": pytest.approx(88.74, abs=0.01),
    }
    ends = [line for line in suite.pgn("model").splitlines() if line.startswith("[Result ")]
    said = ("0-1", "0-1", "1-0", "1/2-1/2")
    assert ends == [f'[Result "{one}"]' for one in said], "from White"
    first, second = fen_after("f3 e5"), fen_after("e4 e5")
    sides = [f"{side} {opening}" for opening in (first, second) for side in ("white", "black")]
    assert result.values["score"] == dict(zip(sides, (0, 1, 1, 0.5), strict=True))
    score = result.metrics()["strict_score"]
    # Pairs score 0.5 and 0.25, with a won and a lost one 1.75 of 4: variance 0.13672, so like 3.6
    # games. Wilson's interval of 0.375 in 3.6, by hand: (0.90854 ± 0.73127) / 2.06708.
    assert (score.low, score.high, score.n) == pytest.approx((0.0858, 0.7933, 4), abs=1e-4)
    assert [len(call) for call in model.calls] == [2, 2, 1], "one call a ply, of what is its turn"
    assert result.n == 4


def test_elo_differences() -> None:
    """Of the logistic curve's table: 64% is 100 points, ten wins a loss are 400."""
    for score, expected in ((0.5, 0), (0.75, 190.85), (0.64, 99.95), (10 / 11, 400), (0.1, -381.7)):
        found = matches.elo_difference(Estimate(score, 0.25, 0.75, 9))
        assert found is not None and found.value == pytest.approx(expected, abs=0.01)
        assert (found.low, found.high) == pytest.approx((-190.85, 190.85), abs=0.01)
    for score in (0.0, 1.0):
        scores = dict.fromkeys((f"{s} {n}" for n in range(10) for s in ("white", "black")), score)
        sure = matches.score_estimate(scores)
        assert matches.elo_difference(sure) is None, "none is finite"
        assert sure.value == score and 0.1 < sure.high - sure.low < 0.3, "chance, not certainty"


@pytest.mark.parametrize("balance", [0.5, 0.3, 0.1])
def test_the_interval_of_a_score_holds_for_pairs(balance: float) -> None:
    """In 95 of 100 matches it has the true score, if openings decide much and if they do not."""
    rng = random.Random(0)
    hits, widths = 0, []
    for _ in range(1000):
        scores = {}
        for opening in range(30):
            white = 0.5 + rng.choice((balance, -balance))  # what the opening is worth for White
            for side, chance in (("white", white), ("black", 1 - white)):
                scores[f"{side} {opening}"] = float(rng.random() < chance * 1.2 - 0.1)
        found = matches.score_estimate(scores)
        hits += found.low <= 0.5 <= found.high
        widths.append(found.high - found.low)
    assert hits >= 935
    if balance < 0.5:
        assert hits <= 985
    else:
        assert max(widths) < 0.25, "games that the openings decide say more than coins"


def test_the_opponent_answers_as_the_model_under_test_does(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    def opens(*given: Any) -> Scripted:
        opened.append(given)
        return Scripted({})

    monkeypatch.setattr(matches, "open_model", opens)
    args = SuiteArguments(suites=["versus_model"], opponent="rookworld-nano")
    how = ModelArguments(
        max_new_tokens=9, decoding="sampled", model_revision="of the other", lookahead=True
    )
    open_suites(args, NO_ENGINE, how)
    assert opened == [("rookworld-nano", replace(how, model_revision="main", lookahead=False))]


def test_a_referee_that_was_named_or_is_there_must_judge(tmp_path: Path, none_is_installed) -> None:
    arguments = SuiteArguments(suites=["versus_model"], suite_games=2, opponent="random")
    for path, reason in (
        ("/no/engine", "no program '/no/engine'"),
        (script(tmp_path / "engine", "raise SystemExit(1)"), "engine process died"),
    ):
        suites, left_out = open_suites(arguments, EngineArguments(engine_path=path))
        assert not suites and reason in left_out["versus_model"]
    (suite,), _ = open_suites(arguments, NO_ENGINE)
    assert suite.notes["adjudication"] == "no engine: games that are cut off are drawn"


def test_a_match_between_models_by_hand(
    start_from, monkeypatch, tmp_path: Path, none_is_installed
) -> None:
    start_from("f3 e5", most=2)
    moves = along({"f3 e5": "g2g4 d8h4"})
    monkeypatch.setattr(matches, "open_model", lambda *given: Scripted(moves))
    blind = Scripted({**moves, fen_after("f3 e5 g4"): "d8d1"})  # g8e7 is played in its place
    suite = VersusModelSuite(2, 0, "other", engine_args=NO_ENGINE)
    found = values(suite.run(blind))
    assert (found["score"], found["illegal_moves"]) == (0.25, 0.5)
    swapped = VersusModelSuite(2, 0, "other", engine_args=NO_ENGINE)
    monkeypatch.setattr(swapped, "_player", blind)
    found = values(swapped.run(Scripted(moves)))
    assert (found["score"], found["illegal_moves"]) == (0.75, 0)

    (tmp_path / "games.pgn").write_text(suite.pgn("blind"))
    with (tmp_path / "games.pgn").open() as file:
        read = list(iter(lambda: chess.pgn.read_game(file), None))
    heads = [[game.headers[key] for key in ("White", "Black", "Result", "Round")] for game in read]
    assert heads == [["blind", "other", "0-1", "1"], ["other", "blind", "1/2-1/2", "2"]]
    lines = [" ".join(move.uci() for move in game.mainline_moves()) for game in read]
    assert lines == ["f2f3 e7e5 g2g4 d8h4", "f2f3 e7e5 g2g4 g8e7"]
    _, ends, own, replaced = [node.comment for node in read[1].mainline()]
    assert (ends, own) == ("here the suite's opening ends", "")
    assert read[1].headers["Termination"] == "adjudication"
    assert replaced.endswith("cut off after 2 half-moves")
    assert replaced.startswith("the model's best move d8d1 is illegal"), "not what it wanted"


def test_a_model_against_itself_is_no_better(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(games, "MOST_PLIES", 6)
    words = "--suites versus_model --suite_games 5 --opponent random --model_name_or_path random"
    files = [tmp_path / "results.json", tmp_path / "games.pgn"]
    files[1].write_text('[Event "mine"]\n\n1. e4 *\n\n')
    outputs = [f"--output_file={files[0]}", f"--pgn_file={files[1]}"]
    run_script("evaluate.py", *words.split(), *outputs, cwd=tmp_path)
    result = json.loads(files[0].read_text())["suites"]["versus_model"]
    rating = result["metrics"]["elo_difference"]
    assert rating["low"] < 0 < rating["high"] and result["notes"]["opponent"] == "random"
    assert files[1].read_text().count("[Event ") == 6, "five games, after those that were there"
    with pytest.raises(ConfigurationError, match="no games are played by policy"):
        recipe("evaluate").main(f"--suites policy --suite_rows 2 {outputs[1]}".split())


def test_stockfish_is_asked_at_a_level_and_a_depth(stockfish: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(games, "MOST_PLIES", 2)  # too few for a mate, whatever Stockfish plays
    pipe = f"tee -a {tmp_path / 'heard'} | {stockfish}"
    path = script(tmp_path / "engine", f"import os; os.execlp('sh', 'sh', '-c', {pipe!r})")
    result = VersusStockfishSuite(2, 0, engine_arguments(path)).run(RandomMover())
    metrics = result.metrics()
    assert metrics["illegal_moves"].value == 0 and result.n == 2 == metrics["score"].n
    assert result.notes["engine"].startswith("Stockfish")
    heard = (tmp_path / "heard").read_text().splitlines()
    limits = [line for line in heard if line.startswith("go")]
    moves, verdicts = "go depth 1 movetime 300000", "go depth 10 movetime 300000"
    assert limits == [moves] * 2 + [verdicts] * 2, "it judges both games, which are cut off"
    assert heard.count("ucinewgame") >= 4, "it forgets each position"
    weakened = heard.count("setoption name Skill Level value 0")
    assert (weakened, heard.count("uci")) == (2, 4), "the referee has its full strength"
    assert result.notes["adjudication"].startswith("Stockfish")


PLAIN_ENGINE = """\
for line in iter(input, "quit"):
    print({"uci": "id name Plain\\nuciok", "isready": "readyok"}.get(line, ""), flush=True)
"""


def test_an_engine_without_levels_leaves_the_suite_out(tmp_path: Path) -> None:
    arguments = SuiteArguments(suites=["versus_stockfish"], suite_games=2)
    for program, reason in (
        (PLAIN_ENGINE, "a Stockfish with skill levels is needed"),
        ("raise SystemExit(1)", "engine process died"),
        (None, "no program '/no/engine'"),
    ):
        path = script(tmp_path / "engine", program) if program else "/no/engine"
        suites, left_out = open_suites(arguments, EngineArguments(engine_path=path))
        assert not suites and reason in left_out["versus_stockfish"]


@pytest.mark.slow
def test_an_engine_that_fails_ends_the_run(stockfish: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(engines, "TIMEOUT_S", 0.5)
    started = partial(chess.engine.SimpleEngine.popen_uci, timeout=3.0)  # beside the search's time
    monkeypatch.setattr(chess.engine.SimpleEngine, "popen_uci", started)
    for deed, reason in (("is deaf", "no answer in time"), ("dies", "engine process died")):
        (folder := tmp_path / deed).mkdir()
        path = misbehaving(folder, stockfish, deed, when="count > 2")
        with pytest.raises(EngineError, match=reason):
            VersusStockfishSuite(2, 0, engine_arguments(path)).run(RandomMover())


evaluate_on_two = partial(script_on_two, "evaluate.py", "--output_file", "results.json")
VERSUS = "--suites versus_stockfish --suite_games 2 --model_name_or_path random --engine_path"


@pytest.mark.slow
def test_two_processes_answer_and_play_as_one_does(tmp_path: Path) -> None:
    names = ["environment", "fill_in", "mate_in_one", "closed_loop"]
    words = f"--suite_rows 5 --suite_games 3 --suite_seed {SURE} --max_new_tokens 70"
    said = evaluate_on_two("--suites", *names, *words.split(), cwd=tmp_path)
    assert said.count("environment (version") == 1, "printed once"
    document = json.loads((tmp_path / "results.json").read_text())
    assert document["provenance"]["versions"]["trl"]
    assert document["suites"].keys() == set(names)
    arguments = SuiteArguments(names, suite_rows=5, suite_games=3, suite_seed=SURE)
    model = open_model("rookworld-nano", ModelArguments(max_new_tokens=70))
    for suite in open_suites(arguments, NO_ENGINE)[0]:
        for name, value in suite.run(model).metrics().items():
            expected = {k: None if v != v else v for k, v in asdict(value).items()}  # nan
            assert document["suites"][suite.name]["metrics"][name] == expected, name


@pytest.mark.slow
def test_two_processes_share_one_engine(tmp_path: Path, stockfish: str) -> None:
    engine = misbehaving(tmp_path, stockfish, "dies", when="False")
    evaluate_on_two(*VERSUS.split(), engine, cwd=tmp_path)
    # An engine that plays and one that judges, both looked at before, all of the main process.
    assert len((tmp_path / "pids").read_text().split()) == 4
    result = json.loads((tmp_path / "results.json").read_text())["suites"]["versus_stockfish"]
    assert result["metrics"]["score"]["n"] == 2


@pytest.mark.slow
def test_an_engine_that_fails_ends_both_processes(tmp_path: Path, stockfish: str) -> None:
    engine = misbehaving(tmp_path, stockfish, "dies")
    assert "engine process died" in evaluate_on_two(*VERSUS.split(), engine, cwd=tmp_path, code=2)
    assert not (tmp_path / "results.json").exists()
