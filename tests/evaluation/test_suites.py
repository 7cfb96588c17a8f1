"""The suites `environment`, `policy` and `fill_in`, models under test, and the results file."""

import json
import math
import re
from collections import Counter
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.common.files import RESOLVED_CONFIG
from rookworld_rlvr.data.loading import HELDOUT_SHARE, DataArguments, is_held_out, load_data
from rookworld_rlvr.engine import EngineArguments
from rookworld_rlvr.evaluation import results
from rookworld_rlvr.evaluation import suite as base
from rookworld_rlvr.evaluation.models import LanguageModel, RandomMover
from rookworld_rlvr.evaluation.registry import SUITE_HEADLINES, SuiteArguments
from rookworld_rlvr.evaluation.results import (
    ModelResults,
    is_rookworld_lm,
    results_document,
    results_text,
)
from rookworld_rlvr.evaluation.suites.environment import EnvironmentSuite, FillInSuite
from rookworld_rlvr.evaluation.suites.environment import OpeningsSuite as Openings
from rookworld_rlvr.evaluation.suites.games import SelfPlaySuite
from rookworld_rlvr.evaluation.suites.policy import PolicySuite
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import GREEDY, ROOKWORLD, complete
from rookworld_rlvr.tasks import rules
from rookworld_rlvr.tasks.environment import write_environment_answer
from rookworld_rlvr.tasks.fill_in_record import filled, fitting, parse_fill_in_prompt
from rookworld_rlvr.tasks.registry import join_row
from rookworld_rlvr.tasks.types import FILL_IN_FIELDS, EnvironmentPrompt
from rookworld_rlvr.training.config import RookWorldGRPOConfig, check_recipe

from ..rows import AFTER_E4, RIGHT_E4, START, write_jsonl
from ..scripted import Oracle
from ..support import recipe

E4 = EnvironmentPrompt(START, "e2e4", ("e2e4",))
NO_ENGINE = EngineArguments(engine_path="/no/engine")
METRICS = "exact next_state_exact position levenshtein reward terminated truncated".split()
RIGHT = {**dict.fromkeys(METRICS, 1.0), "invalid": 0.0}
UNREADABLE = {**dict.fromkeys(METRICS, 0.0), "invalid": 1.0}
OTHER_STATE = {"exact": 0, "next_state_exact": 0, "position": 0, "levenshtein": 1 - 2 / 59}


def test_environment_metrics_by_hand() -> None:
    for completion, changed in (
        (RIGHT_E4, {}),
        # An en passant square where no capture is legal: "-" becomes "e3", two edits of 59.
        (RIGHT_E4.replace(" - ", " e3 "), OTHER_STATE),
        # The state is right, the outcome is not.
        (f"{AFTER_E4}+1.0+1+0", {"exact": 0, "reward": 0, "terminated": 0}),
        # Unreadable, but for its position.
        (f"{START}+0.001+0", UNREADABLE),
        (f"{AFTER_E4}+0.001+0", {**UNREADABLE, "position": 1.0}),
    ):
        found = EnvironmentSuite.judge(E4, completion)
        assert found == pytest.approx({**RIGHT, **changed}, abs=1e-12)


def test_environment_items_are_held_out_and_from_all_of_the_game() -> None:
    suite = EnvironmentSuite(250, 0)
    fens = suite.positions()
    assert len(fens) == 250
    again, others = (list(EnvironmentSuite(250, seed).positions()) for seed in (0, 1))
    assert again == list(fens) != others
    assert all(is_held_out(fen, HELDOUT_SHARE) for fen in fens.values())
    found = suite.run(RandomMover()).values
    counts = {name: len(values) for name, values in found.items() if name.startswith("exact/")}
    for group in ("openings", "move_1", "moves_2_to_10", "moves_11_to_30", "moves_31_on"):
        assert counts.pop(f"exact/{group}") >= 15, group
    assert not counts
    assert max(len(name.split("+")[2].split()) for name in fens) == 10, "the history"


@pytest.mark.parametrize("kind", [EnvironmentSuite, PolicySuite, FillInSuite, Openings])
def test_the_oracle_is_always_right(kind: Any) -> None:
    suite = kind(60, 0)
    wrong = ("invalid", "sampled_invalid", "centipawn_loss", "win_probability_loss")
    for name, found in suite.run(Oracle()).metrics().items():
        best = 0 if name.startswith((*wrong, "evaluation_mae")) else 1
        if name.startswith(("expected_score", "candidates")):  # of the best moves
            assert 0.4 < found.value < 0.7
            continue
        assert found.value == pytest.approx(best, abs=1e-9), name


# Six moves are legal; in centipawns from the side to move.
VALUES = {"a1a2": 100, "b1b2": 40, "c1c2": 0, "d1d2": -60, "e1e2": -300, "f1f2": -5000}
OF_B = "invalid legal expected_score best_move top_five top_5_overlap".split()
NONE = dict.fromkeys([*OF_B, "candidates_mean", "candidates_best"], 0.0)


def lichess(cp: float) -> float:
    """Win probability as https://lichess.org/page/accuracy has it."""
    return (50 + 50 * (2 / (1 + math.exp(-0.00368208 * cp)) - 1)) / 100


def of_move(cp: float) -> dict[str, float]:
    """What follows from the value of a legal best move."""
    loss = lichess(100) - lichess(cp)
    return {"legal": 1, "expected_score": lichess(cp), "win_probability_loss": loss}


def test_policy_metrics_by_hand() -> None:
    for completion, expected in (
        (
            # M: 4 of the top five, one that is illegal. E: |1.5 - 1|, |-0.2|, |0.4 + 0.6|, |-2 + 3|.
            "M: a1a2 c1c2 d1d2 e1e2 h1h2 E: 1.5 -0.2 0.4 -2.0 9.0 B: d1d2",
            {
                **of_move(-60),
                "top_five": 1,
                "top_5_overlap": 4 / 5,
                "centipawn_loss": 160,
                "evaluation_mae": (0.5 + 0.2 + 1.0 + 1.0) / 4,
                "candidates_mean": sum(map(lichess, (100, 0, -60, -300))) / 5,
                "candidates_best": lichess(100),
            },
        ),
        (
            "M: f1f2 E: -50.0 B: f1f2",  # it loses 5100, held at 1000
            {
                **of_move(-5000),
                "centipawn_loss": 1000,
                "evaluation_mae": 0,
                "candidates_mean": lichess(-5000),
                "candidates_best": lichess(-5000),
            },
        ),
        (
            "M: a1a2 E: -0.1 B: h1h2",
            {
                "top_5_overlap": 1 / 5,
                "evaluation_mae": 1.1,
                "candidates_mean": lichess(100),
                "candidates_best": lichess(100),
            },
        ),
        ("M: a1a2 B: a1a2", {"invalid": 1}),
    ):
        found = PolicySuite.judge(VALUES, completion)
        assert found == pytest.approx({**NONE, **expected}, abs=1e-6)


@pytest.mark.parametrize(
    "decoding", [GREEDY, pytest.param(ROOKWORLD, marks=pytest.mark.slow)], ids=lambda way: way.name
)
@pytest.mark.parametrize("kind", [EnvironmentSuite, PolicySuite])
def test_a_batch_of_one_and_of_many_give_the_same_answers(kind: Any, decoding, tokenizer) -> None:
    suite, model = kind(12, 0), loading.load_model(loading.PACKAGED_MODEL).eval()
    say: Any = partial(complete, model, tokenizer, decoding=decoding, max_new_tokens=80)
    alone = LanguageModel("nano", partial(say, batch_size=1), decoding)
    together = LanguageModel("nano", partial(say, batch_size=64), decoding)
    # Equal texts: here the best token is never by less than 6e-4 ahead, which no rounding makes up.
    assert alone.answers(suite.prompts()) == together.answers(suite.prompts())
    assert suite.run(together).decoding == decoding.as_dict()


def test_items_that_a_training_set_holds_are_left_out(tmp_path: Path) -> None:
    suite = EnvironmentSuite(60, 0)
    trained, prompt = next(iter(suite.items.items()))
    answer = write_environment_answer(rules.transition(prompt.fen, prompt.action))
    rows = write_jsonl(tmp_path / "rows.jsonl", [join_row(trained, answer)])
    key = rules.position_key(prompt.fen)
    same = [item for item, other in suite.items.items() if rules.position_key(other.fen) == key]
    found = base.keep_apart([suite], rows)
    assert (found["rows"], found["left_out"]) == (1, {"environment": len(same)})
    assert not set(same) & set(suite.items)
    assert suite.run(RandomMover()).n == 60 - len(same)


@pytest.mark.slow
def test_the_packaged_training_set_holds_no_test_position() -> None:
    trained = set(map(rules.position_key, load_data(DataArguments(heldout_rows=10)).train["fen"]))
    assert len(trained) > 5_000
    kinds: Any = {EnvironmentSuite: 300, PolicySuite: 300, FillInSuite: 100, SelfPlaySuite: 30}
    for suite in (kind(items, 0) for kind, items in kinds.items()):
        assert not trained & set(map(rules.position_key, suite.positions().values()))


class Own(base.Suite[str]):
    name, version, headline = "own", 1, "right"
    metrics = MappingProxyType({"right": base.SuiteMetric("share")})

    def judged(self, model: Any) -> Any:
        return model


def test_values_that_would_give_a_wrong_interval_are_refused() -> None:
    for judged, reason in (
        ([("a", {"right": 0.5}, ())], "right is a share, but 'a' has 0.5"),
        ([("a", {"right": 1}, ()), ("a", {"right": 0}, ())], "gives 'a' two values for right"),
    ):
        with pytest.raises(RookWorldError, match=re.escape(reason)):
            Own({"a": ""}, 0).run(judged)


@pytest.mark.parametrize("name", list(SUITE_HEADLINES))
def test_every_suite_says_what_it_is_and_what_its_metrics_mean(name: str) -> None:
    suite = base.suite_class(name)
    assert suite.name == name and SUITE_HEADLINES[name] == f"suites/{name}/{suite.headline}"
    assert suite.summary.endswith(".") and suite.headline in suite.metrics
    for metric, said in suite.metrics.items():
        assert said.meaning.endswith("."), metric
    assert set(suite.grouped) <= set(suite.metrics)
    if issubclass(suite, base.PromptSuite):  # for pass@k
        assert suite.metrics[suite.right or suite.headline].kind == "share"


@pytest.fixture(scope="module")
def evaluated() -> list[ModelResults]:
    """Results of the random mover, and of the oracle."""
    asked = SuiteArguments(suites=["environment", "policy"], suite_rows=12)
    suites, left_out = base.open_suites(asked, NO_ENGINE)
    return [
        ModelResults(model.name, {suite.name: suite.run(model) for suite in suites}, left_out)
        for model in (RandomMover(), Oracle())
    ]


def test_the_schema_of_the_results_file(evaluated: list[ModelResults]) -> None:
    document = json.loads(json.dumps(results_document(evaluated, [], {}), allow_nan=False))
    top = "schema_version model suites left_out compared training_data provenance"
    assert list(document) == top.split()
    assert document["schema_version"] == 1 and document["model"] == "random"
    suite = document["suites"]["environment"]
    assert list(suite) == ["version", "n", "seed", "decoding", "metrics", "notes"]
    assert [*suite.values()][:4] == [2, 12, 0, {"name": "random"}]
    assert suite["metrics"]["next_state_exact"].keys() == {"value", "low", "high", "n"}
    assert document["suites"]["policy"]["notes"]["values"][0].startswith("Stockfish 15.1")
    (oracle,) = document["compared"]
    assert list(oracle) == ["model", "suites", "left_out", "paired"]
    change = oracle["paired"]["environment"]["next_state_exact"]
    assert change.keys() == {"difference", "low", "high", "p", "n"}
    assert change["n"] == 12 and "top_5_overlap" in oracle["paired"]["policy"]
    single = results_document(evaluated[:1], [], {})
    assert single["compared"] == [] and single["suites"] == document["suites"]


def test_four_games_earn_no_star() -> None:
    def model(name: str, value: float, games: int) -> ModelResults:
        kinds: Any = {"legal_half_moves": "mean", "finished": "share"}
        one = {"legal_half_moves": value, "finished": min(value, 1.0)}
        seen = {key: {str(game): number for game in range(games)} for key, number in one.items()}
        result = results.SuiteResult(1, games, 0, {"name": "x"}, kinds, seen)
        return ModelResults(name, {"self_play": result}, {})

    few = results_text([model("first", 0.0, 4), model("second", 1.0, 4)])
    assert few.count("+1.000") == 3 and "+1.000*" not in few
    assert "* means p < 0.05" in " ".join(few.split())
    many = results_text([model("first", 0.0, 6), model("second", 1.0, 6)])
    assert many.count("+1.000*") == 3, "a table's two and the summary's"
    assert all(len(line) <= 100 for line in many.splitlines())
    assert "no interval" in results_text([model("first", 30.0, 4)])
    assert "of both" not in many
    uneven = results_text([model("first", 0.0, 4), model("second", 1.0, 6)])
    assert " ".join(uneven.split()).count("+1.000 (of the 4 of both)") == 3


def test_bad_input_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "list.yaml").write_text("- tasks\n")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for words, message in (
        ("--model_name_or_path rookworld-nan", "rookworld-nano"),
        ("--training_data nothing.jsonl", "nothing.jsonl"),
        ("--training_data ../list.yaml", "list.yaml must be a mapping"),
        ("--output_file /dev/null/results.json", "output_file: cannot write"),
        ("--suites self_play --pgn_file /dev/null/x.pgn", "pgn_file: cannot write"),
    ):
        with pytest.raises(RookWorldError, match=message):
            recipe("evaluate").main(words.split())
        assert not list(Path.cwd().iterdir())


def test_the_best_checkpoints_suite_must_run() -> None:
    options = {"use_cpu": True, "bf16": False, "rewards": [{"name": "environment_exact"}]}
    args = RookWorldGRPOConfig(**options, metric_for_best_model="suites/self_play/legal_half_moves")
    others = (None,) * 4
    (fault,) = check_recipe(*others, args, SuiteArguments(suites=["policy"]))
    assert "is not measured; add its task to `tasks`, or its suite to `suites`" in fault
    assert not check_recipe(*others, args, SuiteArguments(suites=["self_play"]))


HIDDEN_MOVE = f"F: {START}+[MASK]+[MASK]+{AFTER_E4}+0.001+0+0+"
WHOLE = f"F: {START}+e2e4+e2e4+[MASK]+0.001+0+0+"


def test_fill_in_metrics_by_hand() -> None:
    for prompt, completion, *numbers in (
        (HIDDEN_MOVE, " e2e4", 0, 1, 1),
        (HIDDEN_MOVE, " e2e3", 0, 0, 0.95 * 3 / 4),  # one character of four
        (HIDDEN_MOVE, "", 1, 0, 0),
        (WHOLE, f" {AFTER_E4}", 0, 1, 1),
        # An en passant square where no capture is legal: "-" becomes "e3", two edits of 59.
        (WHOLE, f" {AFTER_E4.replace(' - ', ' e3 ')}", 0, 0, 0.95 * (1 - 2 / 59)),
    ):
        found = FillInSuite.judge({"prompt": prompt}, completion)
        expected = dict(zip(("invalid", "exact", "similarity"), numbers, strict=True))
        assert found == pytest.approx(expected, abs=1e-12)


def test_items_are_held_out_records_each_field_as_often() -> None:
    fens = FillInSuite(150, 0).positions()
    prompts = [parse_fill_in_prompt(item) for item in fens]
    assert Counter(prompt.field for prompt in prompts) == dict.fromkeys(FILL_IN_FIELDS, 15)
    assert all(is_held_out(fen, HELDOUT_SHARE) for fen in fens.values())
    for prompt, fen in zip(prompts, fens.values(), strict=True):
        states = {filled(prompt.columns, answer)[0].fen for answer in fitting(prompt)}
        assert fen in states, "the position is the true one, hidden or not"
        assert states == {fen} or prompt.column == "state"
    assert len(fens) == len({*map(str, prompts)})


def test_runs_that_were_started_from_each_other_are_no_riddle(tmp_path: Path) -> None:
    for name, start in (("a", "b"), ("b", "a"), ("c", "jrahn/RookWorld-LM-124M")):
        (tmp_path / name).mkdir()
        start = str(tmp_path / start) if len(start) == 1 else start
        (tmp_path / name / RESOLVED_CONFIG).write_text(f"model_name_or_path: {start}\n")
    found = [is_rookworld_lm(str(tmp_path / name)) for name in "abc"]
    assert found == [False, False, True]
    (tmp_path / "c" / RESOLVED_CONFIG).write_text("a: [\n")
    assert not is_rookworld_lm(str(tmp_path / "c")), "nothing is known of it"
