"""The suites `environment` and `policy`, models under test, and the results file."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import chess
import pytest
import torch
from transformers import GPT2LMHeadModel, PreTrainedTokenizerBase

from rookworld_rlvr.cli.checks import check_recipe
from rookworld_rlvr.common.errors import ConfigurationError, RookWorldError
from rookworld_rlvr.common.stats import Kind
from rookworld_rlvr.data.loading import HELDOUT_SHARE, DataArguments, is_held_out, load_data
from rookworld_rlvr.engine.pool import EngineArguments
from rookworld_rlvr.evaluation.answerers import LanguageModel, Oracle, RandomMover
from rookworld_rlvr.evaluation.models import ModelArguments, OracleValues, open_model
from rookworld_rlvr.evaluation.registry import (
    SUITE_HEADLINES,
    SUITES,
    SuiteArguments,
    keep_apart,
    open_suites,
    suite_class,
)
from rookworld_rlvr.evaluation.results import ModelResults, results_document, results_text
from rookworld_rlvr.evaluation.suite import Observations, Suite, SuiteResult, SuiteUnavailableError
from rookworld_rlvr.evaluation.suites.environment import EnvironmentSuite, kinds
from rookworld_rlvr.evaluation.suites.environment import judge as judge_environment
from rookworld_rlvr.evaluation.suites.fill_in import FillInSuite
from rookworld_rlvr.evaluation.suites.policy import PolicySuite
from rookworld_rlvr.evaluation.suites.policy import judge as judge_policy
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import GREEDY, Decoding, complete
from rookworld_rlvr.tasks import rules
from rookworld_rlvr.tasks.environment import (
    parse_environment_prompt,
    write_environment_answer,
    write_environment_prompt,
)
from rookworld_rlvr.tasks.policy import parse_policy_answer
from rookworld_rlvr.tasks.registry import join_row
from rookworld_rlvr.tasks.types import EnvironmentPrompt
from rookworld_rlvr.training.config import RookWorldGRPOConfig

from ..conftest import recipe

START = chess.STARTING_FEN
AFTER_E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
E4 = EnvironmentPrompt(START, "e2e4", ("e2e4",))
MakeSuite = Callable[[int, int], Suite]


@functools.cache
def made(make: MakeSuite, rows: int) -> Any:
    """A suite by seed 0, made once for the tests that only run it: a policy suite reads 21,000 rows."""
    return make(rows, 0)


def no_values(fens: Sequence[str]) -> list[Any]:
    raise AssertionError(f"nobody was to ask for {fens}")


# --------------------------------------------------------------------------------------------------
# Environment
# --------------------------------------------------------------------------------------------------
RIGHT = {
    "invalid": 0.0,
    "exact": 1.0,
    "next_state_exact": 1.0,
    "position": 1.0,
    "levenshtein": 1.0,
    "squares": 1.0,
    "reward": 1.0,
    "reward_mae": 0.0,
    "terminated": 1.0,
    "truncated": 1.0,
}
LENGTH = len(AFTER_E4)  # 58 characters


@pytest.mark.parametrize(
    ("completion", "changed"),
    [
        (f"{AFTER_E4}+0.001+0+0", {}),
        # The move number is wrong: one character of 58.
        (
            f"{AFTER_E4[:-1]}2+0.001+0+0",
            {"exact": 0, "next_state_exact": 0, "levenshtein": 1 - 1 / LENGTH},
        ),
        # An en passant square where no capture is legal: "-" becomes "e3", two edits of 59.
        (
            f"{AFTER_E4.replace(' - ', ' e3 ')}+0.001+0+0",
            {
                "exact": 0,
                "next_state_exact": 0,
                "position": 0,
                "levenshtein": 1 - 2 / (LENGTH + 1),
            },
        ),
        # The pawn stays where it was and a second one appears: one square wrong.
        (
            f"{AFTER_E4.replace('PPPP1PPP', 'PPPPPPPP')}+0.001+0+0",
            {
                "exact": 0,
                "next_state_exact": 0,
                "position": 0,
                "levenshtein": 1 - 1 / LENGTH,
                "squares": 63 / 64,
            },
        ),
        # The state is right, the outcome is not.
        (
            f"{AFTER_E4}+1.0+1+0",
            {"exact": 0, "reward": 0, "reward_mae": 0.999, "terminated": 0},
        ),
        (f"{AFTER_E4}+0.001+0+1", {"exact": 0, "truncated": 0}),
    ],
)
def test_environment_metrics_by_hand(completion: str, changed: Mapping[str, float]) -> None:
    found = judge_environment(E4, completion)
    assert found == pytest.approx({**RIGHT, **changed}, abs=1e-12)


def test_an_unreadable_environment_answer_is_wrong_in_all_but_its_position() -> None:
    wrong = {name: 0.0 for name in RIGHT if name != "reward_mae"}  # no reward was given: no error
    found = judge_environment(E4, f"{START}+0.001+0")
    assert found == {**wrong, "invalid": 1.0}
    found = judge_environment(E4, f"{AFTER_E4}+0.001+0")
    assert found == {**wrong, "invalid": 1.0, "position": 1.0}


@pytest.mark.parametrize(
    ("fen", "action", "expected"),
    [
        (START, "e2e4", ["quiet"]),
        (START, "e2e5", ["illegal"]),
        (START, "0000", ["illegal"]),
        (START, "castle", ["illegal"]),
        ("r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1", "e1g1", ["castling"]),
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 2", "e5d6", ["en_passant", "capture"]),
        ("3rk3/2P5/8/8/8/8/8/4K3 w - - 0 1", "c7d8q", ["promotion", "capture", "check"]),
        ("6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1", "a1a8", ["mate"]),
    ],
)
def test_kinds_of_moves(fen: str, action: str, expected: list[str]) -> None:
    assert kinds(fen, action) == expected


def test_environment_items_are_held_out_and_of_every_kind() -> None:
    suite = EnvironmentSuite(500, seed=0)
    fens = suite.positions()
    assert len(fens) == 500 == len(EnvironmentSuite(500, seed=0).positions())
    assert list(fens) == list(EnvironmentSuite(500, seed=0).positions())
    assert list(fens) != list(EnvironmentSuite(500, seed=1).positions())
    assert all(is_held_out(fen, HELDOUT_SHARE) for fen in fens.values())
    counts = {
        name.removeprefix("exact/"): len(values)
        for name, values in suite.run(RandomMover()).observations.values.items()
        if name.startswith("exact/")
    }
    for group in ("openings", "move_1", "moves_2_to_10", "moves_11_to_30", "moves_31_on"):
        assert counts.pop(group) >= 30, group
    assert min(counts.values()) >= 10 and len(counts) == 8, counts
    moves = [len(name.split("+")[2].split()) for name in fens]
    assert max(moves) == 10, "the history"


def test_what_the_oracle_and_chance_get_in_the_environment() -> None:
    suite = EnvironmentSuite(400, seed=0)
    oracle = {name: value.value for name, value in suite.run(Oracle(no_values)).metrics().items()}
    wrong = ("invalid", "reward_mae")
    assert {name: value for name, value in oracle.items() if value != 1} == dict.fromkeys(wrong, 0)
    # A random legal move is the action with a chance of one in the number of moves; never an illegal.
    chances = [
        1 / len(moves) if prompt.action in (moves := rules.legal_moves(prompt.fen)) else 0.0
        for prompt in map(parse_environment_prompt, suite.positions())
    ]
    expected = sum(chances) / len(chances)
    found = suite.run(RandomMover(3)).metrics()
    deviation = (sum(p * (1 - p) for p in chances) ** 0.5) / len(chances)
    assert abs(found["next_state_exact"].value - expected) < 4 * deviation
    assert found["invalid"].value == 0
    assert found["exact/illegal"].value == 0


# --------------------------------------------------------------------------------------------------
# Policy
# --------------------------------------------------------------------------------------------------
# Six moves are legal; in centipawns from the side to move.
VALUES = {"a1a2": 100, "b1b2": 40, "c1c2": 0, "d1d2": -60, "e1e2": -300, "f1f2": -5000}


def lichess(cp: float) -> float:
    """Win probability as https://lichess.org/page/accuracy has it."""
    return (50 + 50 * (2 / (1 + math.exp(-0.00368208 * cp)) - 1)) / 100


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (
            # M: 4 of the top five, one that is illegal; E of c1c2 is too small to have a sign.
            "M: a1a2 c1c2 d1d2 e1e2 h1h2 E: 1.5 -0.2 0.4 -2.0 9.0 B: d1d2",
            {
                "invalid": 0,
                "legal": 1,
                "best_move": 0,
                "top_5_overlap": 4 / 5,
                "candidates_legal": 4 / 5,
                "centipawn_loss": 160,
                "move_rank": 4,
                # |1.5 - 1|, |-0.2 - 0|, |0.4 + 0.6|, |-2 + 3|
                "evaluation_mae": (0.5 + 0.2 + 1.0 + 1.0) / 4,
                "evaluation_sign": 2 / 3,
                # B in M, as many E as M, none twice; but 9.0 is the highest E.
                "consistency": 3 / 4,
                "win_probability_loss": lichess(100) - lichess(-60),
            },
        ),
        (
            "M: f1f2 E: -50.0 B: f1f2",
            {
                "invalid": 0,
                "legal": 1,
                "best_move": 0,
                "top_5_overlap": 0,
                "candidates_legal": 1,
                "centipawn_loss": 1000,  # 5100, held at 1000
                "move_rank": 6,
                "evaluation_mae": 0,
                "evaluation_sign": 1,
                "consistency": 1,
                "win_probability_loss": lichess(100) - lichess(-5000),
            },
        ),
        (
            "M: a1a2 E: -0.1 B: h1h2",
            {
                "invalid": 0,
                "legal": 0,
                "best_move": 0,
                "top_5_overlap": 1 / 5,
                "candidates_legal": 1,
                "evaluation_mae": 1.1,
                "evaluation_sign": 0,
                "consistency": 2 / 4,
            },
        ),
        (
            "M: a1a2 B: a1a2",
            {
                "invalid": 1,
                "legal": 0,
                "best_move": 0,
                "top_5_overlap": 0,
                "candidates_legal": 0,
                "consistency": 0,
            },
        ),
    ],
)
def test_policy_metrics_by_hand(completion: str, expected: Mapping[str, float]) -> None:
    assert judge_policy(VALUES, completion) == pytest.approx(dict(expected), abs=1e-6)


def test_what_the_oracle_and_chance_get_in_the_policy_task() -> None:
    suite = made(PolicySuite, 300)
    assert all(is_held_out(fen, HELDOUT_SHARE) for fen in suite.positions())
    values = OracleValues(suite.items, EngineArguments(engine_path="/no/engine"))
    oracle = {name: value.value for name, value in suite.run(Oracle(values)).metrics().items()}
    best_is_least = ("invalid", "centipawn_loss", "win_probability_loss", "evaluation_mae")
    for name, value in oracle.items():
        best = 0 if name.startswith(best_is_least) else 1
        assert value == pytest.approx(best, abs=1e-9), name
    chances = [
        sum(cp == max(values.values()) for cp in values.values()) / len(values)
        for values in suite.items.values()
    ]
    found = suite.run(RandomMover(1)).metrics()
    expected = sum(chances) / len(chances)
    deviation = (sum(p * (1 - p) for p in chances) ** 0.5) / len(chances)
    assert abs(found["best_move"].value - expected) < 4 * deviation
    assert found["legal"].value == 1 == found["candidates_legal"].value
    by_phase = [found[f"best_move/{phase}"].n for phase in rules.PHASES]
    assert by_phase == [100, 100, 100]
    assert found["best_move/white"].n + found["best_move/black"].n == 300


def test_policy_rows_of_another_data_set(tmp_path: Path) -> None:
    with pytest.raises(SuiteUnavailableError, match="has action_values"):
        PolicySuite(10, 0, str(write_policy_rows(tmp_path / "rows.txt")))
    labelled = PolicySuite(10, 0, "rookworld-nano-openings")
    assert {rules.phase(fen) for fen in labelled.positions()} == {"opening"}


def write_policy_rows(path: Path) -> Path:
    prompt = f"P: {START:<90}"
    path.write_text(f"{prompt}M: e2e4 d2d4                     E: 0.3 0.2      B: e2e4\n")
    return path


# --------------------------------------------------------------------------------------------------
# Models under test
# --------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def nano() -> tuple[GPT2LMHeadModel, PreTrainedTokenizerBase]:
    model: Any = loading.load_model(loading.PACKAGED_MODEL).eval()
    return model, loading.load_tokenizer(loading.PACKAGED_MODEL)


SAMPLED = Decoding("sampled", temperature=0.6, top_k=5, seed=3)


@pytest.mark.parametrize("decoding", [GREEDY, SAMPLED], ids=lambda decoding: decoding.name)
@pytest.mark.parametrize("make", [EnvironmentSuite, PolicySuite, FillInSuite])
def test_a_batch_of_one_and_of_many_give_the_same_answers(
    make: MakeSuite,
    decoding: Decoding,
    nano: tuple[GPT2LMHeadModel, PreTrainedTokenizerBase],
) -> None:
    suite = made(make, 24)
    alone, together = (
        LanguageModel(
            "nano",
            partial(complete, *nano, decoding=decoding, batch_size=size, max_new_tokens=80),
            decoding,
        )
        for size in (1, 64)
    )
    prompts = list(suite.positions())
    if make is PolicySuite:
        prompts = [f"P: {fen}" for fen in prompts]
    # Equal texts: here the best token is never by less than 6e-4 ahead, which no rounding makes up.
    assert alone.answers(prompts) == together.answers(prompts)
    assert suite.run(together).decoding == decoding.as_dict()


def test_what_is_drawn_follows_from_seed_and_prompt(
    nano: tuple[GPT2LMHeadModel, PreTrainedTokenizerBase],
) -> None:
    prompts = [f"P: {START}", f"P: {AFTER_E4}"]
    hot = Decoding("custom", temperature=1.5, seed=1)

    def drawn(decoding: Decoding, *prompts: str) -> list[str]:
        return complete(*nano, prompts, max_new_tokens=30, decoding=decoding)

    first = drawn(hot, *prompts)
    assert first == drawn(hot, *prompts) == [drawn(hot, prompt)[0] for prompt in prompts]
    assert first != drawn(dataclasses.replace(hot, seed=2), *prompts)
    greedy = drawn(GREEDY, *prompts)
    assert first != greedy
    assert greedy == drawn(Decoding("custom", temperature=1e-6), *prompts)
    assert greedy == drawn(Decoding("custom", temperature=2.0, top_k=1), *prompts)
    assert greedy == drawn(Decoding("custom", temperature=2.0, top_p=1e-6), *prompts)


def test_draws_have_the_frequencies_of_the_softmax(random_gpt2: GPT2LMHeadModel) -> None:
    """Against torch's own softmax."""
    tokenizer = loading.load_tokenizer(loading.PACKAGED_MODEL)
    model = random_gpt2.eval()
    tokens = torch.tensor([tokenizer("P: 8")["input_ids"]])
    with torch.no_grad():
        top = (model(tokens).logits[0, -1] / 1.5).topk(3)
    names = tokenizer.batch_decode(top.indices[:, None], skip_special_tokens=True)
    expected, found = Counter[str](), Counter[str]()
    for name, share in zip(names, top.values.softmax(0).tolist(), strict=True):
        expected[name] += share
    for seed in range(400):
        drawn = Decoding("custom", temperature=1.5, top_k=3, seed=seed)
        (text,) = complete(model, tokenizer, ["P: 8"], max_new_tokens=1, decoding=drawn)
        found[text] += 1
    assert len(expected) > 1 and found.keys() <= expected.keys()
    for name, share in expected.items():
        assert abs(found[name] / 400 - share) < 4 * (share * (1 - share) / 400) ** 0.5, name


def test_a_long_prompt_does_not_cut_its_neighbours_short(random_gpt2: GPT2LMHeadModel) -> None:
    """The table of positions has 256; what room there is belongs to each prompt by itself."""
    tokenizer = loading.load_tokenizer(loading.PACKAGED_MODEL)
    model = random_gpt2.eval()
    model.generation_config.eos_token_id = None
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(
        0
    )  # a token that is not the next one here
    word = "e2e4 "
    prompts = [word * 3, word * 200]
    lengths = [len(tokenizer(prompt)["input_ids"]) for prompt in prompts]
    assert lengths[0] + 100 < 256 < lengths[1] + 100
    together = complete(model, tokenizer, prompts, max_new_tokens=100)
    alone = [complete(model, tokenizer, [prompt], max_new_tokens=100)[0] for prompt in prompts]
    assert together == alone
    assert len(tokenizer(together[0])["input_ids"]) > 256 - lengths[1], "not cut short"
    with pytest.raises(RookWorldError, match="no room in the model's 256 positions"):
        complete(model, tokenizer, [word * 300], max_new_tokens=4)


def test_the_oracle_asks_the_engine_what_it_does_not_know(stockfish: str) -> None:
    mate = "6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1"
    arguments = EngineArguments(engine_path=stockfish, engine_depth=2)
    model = open_model("oracle", ModelArguments(), OracleValues({}, arguments))
    (answer,) = model.answers([f"P: {mate}"])
    assert parse_policy_answer(answer).best_move == "a1a8"


def test_models_are_checked_before_one_is_loaded() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ModelArguments(
            model_name_or_path=["rookworld-nanno", "random", "random"],
            decoding="greedyy",
            dtype="float31",
            batch_size=0,
        )
    for words in ("rookworld-nanno", "'random' appears 2", "did you mean greedy", "float32"):
        assert words in str(caught.value)
    assert ModelArguments(decoding="sampled").chosen_decoding().as_dict() == {
        "name": "sampled",
        "temperature": 0.6,
        "top_k": 5,
        "top_p": 1.0,
        "seed": 0,
    }


# --------------------------------------------------------------------------------------------------
# Training sets
# --------------------------------------------------------------------------------------------------
def test_items_that_a_training_set_holds_are_left_out(tmp_path: Path) -> None:
    suite = EnvironmentSuite(60, seed=0)
    trained, kept = list(suite.positions())[:2]
    # With a held-out share of 0, all of its rows are trained on.
    prompts = map(parse_environment_prompt, (trained, kept))
    lines = [
        join_row(
            write_environment_prompt(prompt),
            write_environment_answer(rules.transition(prompt.fen, prompt.action)),
        )
        for prompt in prompts
    ]
    rows = tmp_path / "rows.txt"
    rows.write_text(lines[0] + "\n")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"dataset_name: {rows}\nheldout_share: 0.0\nlearning_rate: 1.0e-6\n")
    positions = suite.positions()
    same = [
        item
        for item, fen in positions.items()
        if rules.position_key(fen) == rules.position_key(positions[trained])
    ]
    proof = keep_apart([suite], str(recipe))
    assert (proof.rows, proof.left_out) == (1, {"environment": len(same)})
    assert set(positions) - set(suite.positions()) == set(same)
    assert suite.run(RandomMover()).n == 60 - len(same)


def test_the_packaged_training_set_holds_no_test_position() -> None:
    suites = [EnvironmentSuite(300, 0), made(PolicySuite, 300), FillInSuite(100, 0)]
    proof = keep_apart(suites, "rookworld-nano-openings")
    assert proof.left_out == {"environment": 0, "policy": 0, "fill_in": 0}
    trained = load_data(DataArguments(heldout_rows=10)).report.train
    # The suite's count has duplicates among environment rows, `load_data`'s has none.
    assert proof.rows >= sum(trained.values()) > 18_000


# --------------------------------------------------------------------------------------------------
# Observations and results
# --------------------------------------------------------------------------------------------------
METRICS: Mapping[str, Kind] = {"right": "share", "error": "mean"}


@pytest.mark.parametrize("name", list(SUITES))
def test_every_suite_says_what_it_is_and_what_its_metrics_mean(name: str) -> None:
    suite = suite_class(name)
    assert suite.name == name and SUITE_HEADLINES[name] == f"suites/{name}/{suite.headline}"
    assert suite.summary.endswith(".") and suite.headline in suite.metrics
    for metric, said in suite.measured().items():
        assert said.meaning.endswith("."), metric
    assert set(suite.grouped) <= set(suite.metrics)


def test_observations_refuse_what_is_none() -> None:
    seen = Observations(METRICS, ("early", "late"))
    seen.add("a", "right", 1, ["late"])
    with pytest.raises(ValueError, match="observed before"):
        seen.add("a", "right", 0)
    with pytest.raises(ValueError, match=r"share, but 'b' has 0\.5"):
        seen.add("b", "right", 0.5)
    with pytest.raises(KeyError):
        seen.add("b", "wrong", 1)
    seen.add("b", "error", 0.5, ["early"])
    seen.add("b", "right", 0, ["early"])
    assert seen.names() == ["right", "right/early", "right/late", "error", "error/early"]


@pytest.fixture(scope="module")
def evaluated() -> list[ModelResults]:
    """Results of the random mover, and of the oracle."""
    suites, left_out = open_suites(
        SuiteArguments(suites=["environment", "policy"], suite_rows=12, policy_dataset_name=None),
        EngineArguments(),
    )
    (known,) = (suite.items for suite in suites if isinstance(suite, PolicySuite))
    values = OracleValues(known, EngineArguments(engine_path="/no/engine"))
    return [
        ModelResults(
            name,
            {suite.name: suite.run(open_model(name, ModelArguments(), values)) for suite in suites},
            left_out,
        )
        for name in ("random", "oracle")
    ]


def test_the_schema_of_the_results_file(evaluated: list[ModelResults]) -> None:
    document = results_document(evaluated, [], {"seed": 0})
    document = json.loads(json.dumps(document, allow_nan=False))
    assert list(document) == [
        "schema_version",
        "model",
        "suites",
        "left_out",
        "compared",
        "training_data",
        "provenance",
    ]
    assert document["schema_version"] == 1 and document["model"] == "random"
    suite = document["suites"]["environment"]
    assert list(suite) == ["version", "n", "seed", "decoding", "metrics", "notes"]
    assert (suite["version"], suite["n"], suite["seed"]) == (2, 12, 0)
    assert suite["decoding"] == {"name": "random", "seed": 0}
    assert suite["metrics"]["next_state_exact"].keys() == {"value", "low", "high", "n"}
    assert document["suites"]["policy"]["notes"]["values"][0].startswith("Stockfish 15.1")
    (oracle,) = document["compared"]
    assert list(oracle) == ["model", "suites", "left_out", "paired"]
    change = oracle["paired"]["environment"]["next_state_exact"]
    assert change.keys() == {"difference", "low", "high", "p", "test", "n"}
    assert change["test"] == "mcnemar" and change["n"] == 12
    assert oracle["paired"]["policy"]["top_5_overlap"]["test"] == "permutation"
    single = results_document(evaluated[:1], [], {})
    assert single["compared"] == [] and single["suites"] == document["suites"]


def test_four_games_earn_no_star() -> None:
    def model(name: str, value: float, games: int) -> ModelResults:
        seen = Observations({"legal_half_moves": "mean", "finished": "share"})
        for game in range(games):
            seen.add(str(game), "legal_half_moves", value)
            seen.add(str(game), "finished", min(value, 1.0))
        return ModelResults(name, {"self_play": SuiteResult(1, games, 0, {"name": "x"}, seen)}, {})

    few = results_text([model("first", 0.0, 4), model("second", 1.0, 4)])
    assert few.count("+1.000") == 3 and "+1.000*" not in few
    assert "* means p < 0.05" in " ".join(few.split()) and "fewer than six" in few
    many = results_text([model("first", 0.0, 6), model("second", 1.0, 6)])
    assert many.count("+1.000*") == 3, "a table's two and the summary's"
    assert "are tied" not in many
    same = results_text([model("first", 0.0, 20), model("second", 0.0, 20)])
    assert "second and first are tied: chance alone may explain every difference" in same
    assert "n too small" in results_text([model("first", 30.0, 4)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model_name_or_path rookworld-nan", "rookworld-nano"),
        ("--suite_rows 0", "give at least 1"),
        ("--training_data nothing.yaml", "file 'nothing.yaml' not found"),
        ("--suites policy --policy_dataset_name rows.txt", "has action_values"),
        ("--output_file /dev/null/results.json", "cannot write"),
    ],
)
def test_bad_input_is_refused(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_policy_rows(tmp_path / "rows.txt")
    with pytest.raises(RookWorldError, match=re.escape(message)):
        recipe("evaluate").main(words.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.txt"]


# --------------------------------------------------------------------------------------------------
# In training
# --------------------------------------------------------------------------------------------------


def test_suites_run_with_every_evaluation_and_choose_the_best_checkpoint(
    nano: tuple[GPT2LMHeadModel, PreTrainedTokenizerBase],
    make_trainer: Callable[..., Any],
) -> None:
    """A reward for nonsense drives the model down: the best checkpoint is the one before that."""
    trainer = make_trainer(
        loading.load_model(loading.PACKAGED_MODEL),
        nano[1],
        reward_funcs=[lambda completions, **_: [-float(len(set(text))) for text in completions]],
        rewards=[{"name": "environment_exact"}],
        max_completion_length=64,
        max_steps=3,
        learning_rate=1e-2,
        eval_steps=1,
        save_steps=1,
        save_total_limit=3,
        metric_for_best_model="suites/environment/exact",
    )
    suite = EnvironmentSuite(16, seed=0)
    trainer.heldout.suites = [suite]
    trainer.train()
    name = "eval_suites/environment/exact"
    logged = {log["step"]: log[name] for log in trainer.state.log_history if name in log}
    before: Any = suite.run(LanguageModel("nano", partial(complete, *nano, max_new_tokens=64)))
    before = before.metrics()["exact"]
    assert logged[0] == before.value > 0
    assert list(logged) == [0, 1, 2, 3]
    steps = {step: value for step, value in logged.items() if step}
    assert min(steps.values()) < max(steps.values()), steps
    assert trainer.state.best_metric == max(steps.values())
    assert steps[trainer.state.best_global_step] == max(steps.values())
    trainer.evaluate()
    (first, last) = trainer.heldout.suites_before_and_after(
        "rookworld-nano", {"puzzles": "no file"}
    )
    assert first.suites["environment"].metrics()["exact"] == before
    assert last.suites["environment"].metrics()["exact"].value == max(steps.values())
    assert last.left_out == {"puzzles": "no file"}


def test_the_best_checkpoints_suite_must_run() -> None:
    with pytest.raises(ConfigurationError, match="did you mean suites/environment/exact"):
        grpo_config(metric_for_best_model="suites/enviroment/exact")
    args = grpo_config(metric_for_best_model="suites/self_play/legal_half_moves")
    others = (None,) * 5
    (fault,) = check_recipe(*others, args, SuiteArguments(suites=["policy"]))
    assert "belongs to a suite that is not in `suites`" in fault
    assert not check_recipe(*others, args, SuiteArguments(suites=["self_play"]))


def grpo_config(**options: Any) -> RookWorldGRPOConfig:
    rewards = [{"name": "environment_exact"}]
    return RookWorldGRPOConfig(rewards=rewards, use_cpu=True, bf16=False, **options)
