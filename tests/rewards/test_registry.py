import functools
import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerState

from rookworld_rlvr import data
from rookworld_rlvr.common import extras
from rookworld_rlvr.common.errors import ConfigurationError, RookWorldError
from rookworld_rlvr.engine.truth import PolicyTruth
from rookworld_rlvr.rewards import composites, environment_exact, get_reward_funcs, graduated
from rookworld_rlvr.rewards.registry import check_reward_specs, known_rewards, tasks_of
from rookworld_rlvr.tasks.registry import score_row

from ..docs.pages import fences
from ..engines import POSITIONS, FakeLabeller, fake_values
from ..rows import AFTER_E4, ASKED_E4, PAWN_VALUES, PAWNS, RIGHT_E4, START, column
from ..support import REPOSITORY, Means, history, ran

NAMED = AFTER_E4.replace(" - ", " e3 ")  # the public data's fault
POLICY_PROMPT = f"P: {PAWNS}"
ACTION_VALUES = column(PAWN_VALUES)
FILL_IN_PROMPT = f"F: {START}+[MASK]+[MASK]+{AFTER_E4}+0.001+0+0+"
PERFECT = "M: g2g4 f2f4 h1g1 h2h4 g2g3 E: 1.0 1.0 0.0 0.5 0.0 B: g2g4"


# Right; en passant square named; suffix wrong but for `truncated`; the board unchanged; unreadable.
ENVIRONMENT_COMPLETIONS = [
    f"{RIGHT_E4}<|endoftext|>",
    f"{NAMED}+0.001+0+0",
    f"{AFTER_E4}+0.5+1+0",
    f"{START}+-1.0+0+1",
    "e2e4",
]
ENVIRONMENT_NUMBERS: list[tuple[str, list[float]]] = [
    ("environment_exact", [1, 0, 0, 0, 0]),
    # 0.2 + 0.75 (0.6 + 0.4 * 4/5), and 0.2 + 0.75 (0.6 (62/64)^8 + 0.4 * 4/5)
    ("environment_state", [1, 0.89, 1, 0.789065, 0]),
    ("environment_outcome", [1, 1, 1 / 3, 1 / 3, 0]),
    ("environment_format", [1, 1, 1, 1, 0]),
    ("asymmetric", [1, -2 / 59, 0.6 + 0.4 / 3, -5 / 58, -1]),  # edits by characters of the FEN
]


# Perfect; two moves, one misjudged by a pawn, the lesser chosen; an illegal line; unreadable.
POLICY_COMPLETIONS = [
    f" {PERFECT}<|endoftext|>",
    "M: g2g4 h2h4 E: 2.0 0.5 B: h2h4",
    "M: a1a2 a1a3 E: 0.0 B: g2g4",
    "g2g4",
]
POLICY_NUMBERS: list[tuple[str, list[float]]] = [
    # h2h4 loses 0.591026 - 0.545896 of win probability
    ("policy_best_move", [1, 0.815940, 1, 0]),
    ("policy_regret", [1, 0.954871, 1, 0]),
    ("policy_rank", [1, 5 / 7, 1, 0]),  # two of the seven moves are better than h2h4
    ("policy_candidates", [1, 0.4, 0, 0]),
    # half of 0.5 / (1 + 1) + 0.5 (1 - (0.676212 - 0.591026)), and of 1
    ("policy_evaluation", [1, 0.853704, 0, 0]),
    ("policy_legality", [1, 1, 1 / 3, 0]),
    ("policy_consistency", [1, 0.75, 0.25, 0]),
    ("policy_format", [1, 1, 1, 0]),
    # 0.5 best_move + 0.3 candidates + 0.2 evaluation
    ("weighted_policy", [1, 0.698711, 0.5, 0]),
]


# 1. e4 right; a square too short; another move; unreadable.
FILL_IN_COMPLETIONS = [" e2e4<|endoftext|>", "e2e3", "d7d5", "e4"]
FILL_IN_NUMBERS: list[tuple[str, list[float]]] = [
    ("fill_in_exact", [1, 0, 0, 0]),
    ("fill_in_similarity", [1, 0.95 * 3 / 4, 0, 0]),  # by letters of e2e4
    ("fill_in_format", [1, 1, 1, 0]),
]
ENVIRONMENT_ONLY, POLICY_ONLY, FILL_IN_ONLY = (
    [name for name, _ in numbers]
    for numbers in (ENVIRONMENT_NUMBERS, POLICY_NUMBERS, FILL_IN_NUMBERS)
)
NAMES = sorted({*POLICY_ONLY, *ENVIRONMENT_ONLY, *FILL_IN_ONLY, "graduated"})
ENVIRONMENT = (ASKED_E4, ENVIRONMENT_COMPLETIONS)
POLICY = (POLICY_PROMPT, POLICY_COMPLETIONS)
FILL_IN = (FILL_IN_PROMPT, FILL_IN_COMPLETIONS)


# Of the nine fields of a state 9, 8, 7, 5, 4 (castling, both counters, terminated) and none are right.
ENVIRONMENT_LADDER = [
    *ENVIRONMENT_COMPLETIONS[:4],
    START.replace(" - ", " e3 ") + "+-1.0+0+1",
    "8/8/8/8/8/8/8/8 w - e6 3 9+0.5+1+1",
    "e2e4",
]
ENVIRONMENT_SHAPINGS: list[tuple[dict[str, Any], list[float]]] = [
    ({}, [1, 0.8, 0.6, 0.6, 0.4, 0.2, -0.3]),
    # 0.2 + 0.8 * share of nine fields
    ({"shaping": "linear"}, [1, 0.911111, 0.822222, 0.644444, 0.555556, 0.2, -0.3]),
    ({"shaping": "binary"}, [1, 0, 0, 0, 0, 0, -0.3]),
    # 0.2 + 0.8 (0.8 * state + 0.2 * outcome); the fifth state: squares 62 of 64, three of five fields,
    # 0.2 + 0.75 (0.6 * 0.775700 + 0.4 * 3/5) = 0.729065; the sixth: 0.2 + 0.75 * 0.6 / 256
    ({"shaping": "continuous"}, [1, 0.929600, 0.893333, 0.758335, 0.719935, 0.329125, -0.3]),
    ({"thresholds": [0.6, 0.75]}, [1, 0.8, 0.8, 0.4, 0.4, 0.2, -0.3]),
]
POLICY_LADDER = [
    PERFECT,
    # best_move 0.815940, consistency 0.75, the rest 1: mean 0.913188
    PERFECT.replace("B: g2g4", "B: h2h4"),
    # that, candidates 0.4, evaluation 0.853704, legality 1, consistency 0.75: mean 0.763929
    "M: g2g4 h2h4 E: 2.0 0.5 B: h2h4",
    # best_move 1, legality 1/3, consistency 0.25: mean 0.316667
    "M: a1a2 a1a3 E: 0.0 B: g2g4",
    "M: a1a2 a1a2 E: 0.0 B: a1a3",
    "g2g4",
]
POLICY_SHAPINGS: list[tuple[dict[str, Any], list[float]]] = [
    ({}, [1, 0.8, 0.6, 0.4, 0.2, -0.3]),
    ({"shaping": "binary"}, [1, 0, 0, 0, 0, -0.3]),
    # The components of the policy are continuous already.
    ({"shaping": "linear"}, [1, 0.930550, 0.811143, 0.453333, 0.2, -0.3]),
    ({"shaping": "continuous"}, [1, 0.930550, 0.811143, 0.453333, 0.2, -0.3]),
]
LADDERS = [
    *((ASKED_E4, ENVIRONMENT_LADDER, *shaping) for shaping in ENVIRONMENT_SHAPINGS),
    *((POLICY_PROMPT, POLICY_LADDER, *shaping) for shaping in POLICY_SHAPINGS),
]


@pytest.mark.parametrize(
    ("asked", "spec", "numbers"),
    [
        *((ENVIRONMENT, {"name": name}, numbers) for name, numbers in ENVIRONMENT_NUMBERS),
        *((POLICY, {"name": name}, numbers) for name, numbers in POLICY_NUMBERS),
        *((FILL_IN, {"name": name}, numbers) for name, numbers in FILL_IN_NUMBERS),
        *(((asked, said), {"name": "graduated", **more}, n) for asked, said, more, n in LADDERS),
        # The row's own completion, which a data set's B would be taken from, is no truth.
        ((POLICY_PROMPT, ["M: h2h3 E: -3.0 B: h2h3"]), {"name": "policy_best_move"}, [0.200871]),
    ],
)
def test_numbers(asked: tuple[str, list[str]], spec: Any, numbers: list[float]) -> None:
    prompt, completions = asked
    (reward,) = get_reward_funcs([spec])
    count = len(completions)
    columns = {"action_values": [ACTION_VALUES] * count, "completion": completions}
    assert reward([prompt] * count, completions, **columns) == pytest.approx(numbers, abs=1e-6)


def test_every_reward_has_numbers_here_and_its_name_stays() -> None:
    """The names are keys of dashboards: another one breaks the boards of old runs."""
    assert sorted(known_rewards()) == NAMES


def test_a_mixed_batch_gets_none_for_the_other_task_and_an_empty_one_nothing() -> None:
    for reward in get_reward_funcs(NAMES):
        numbers = reward(
            prompts=[ASKED_E4, POLICY_PROMPT],
            completions=[ENVIRONMENT_COMPLETIONS[0], PERFECT],
            action_values=[None, ACTION_VALUES],
        )
        assert numbers == [
            1.0 if reward.__name__ in (*own, "graduated") else None
            for own in (ENVIRONMENT_ONLY, POLICY_ONLY)
        ]
        assert reward(prompts=[], completions=[]) == []


def test_a_policy_row_without_values_has_no_truth() -> None:
    for reward in get_reward_funcs([*POLICY_ONLY, "graduated"]):
        assert reward([POLICY_PROMPT], [PERFECT]) == [None]
        for values in (None, list[Any]()):
            logged = Means()
            assert reward([POLICY_PROMPT], [PERFECT], [values], log_metric=logged.log) == [None]
            assert logged == {f"rewards/{reward.__name__}/without_truth": 1}


def test_the_engine_is_asked_once_for_all_policy_rows_of_a_batch() -> None:
    labeller = FakeLabeller()
    (reward,) = get_reward_funcs(["policy_rank"], PolicyTruth(labeller))
    numbers = reward(
        prompts=[ASKED_E4, *(f"P: {fen}" for fen in (*POSITIONS[:3], START))],
        completions=["", *["M: e1d1 E: 0.0 B: e1d1"] * 3, "M: a2a3 E: 0.0 B: a2a3"],
        action_values=[None] * 5,
    )
    assert labeller.calls == [[*POSITIONS[:3], START]]
    # e1d1 comes first by the alphabet, so it is worth most; in the second it is Black's turn.
    assert numbers == [None, 1.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["policy_best_move", "graduated"])
def test_a_row_that_the_engine_gave_up_on_has_no_reward_and_is_counted(name: str) -> None:
    logged = Means()
    (reward,) = get_reward_funcs([name], PolicyTruth(FakeLabeller(refuse=[POSITIONS[1]])))
    first, second, _ = reward(
        prompts=[f"P: {POSITIONS[0]}", f"P: {POSITIONS[1]}", ASKED_E4],
        completions=["M: e1d1 E: 1.0 B: e1d1", "M: e5d5 E: 1.0 B: e5d5", "e2e4"],
        action_values=[None] * 3,
        log_metric=logged.log,
    )
    assert first is not None and first > 0 and second is None
    share = 1 / 3 if name == "graduated" else 1 / 2  # of the rows that the reward judges
    assert logged == {f"rewards/{name}/without_truth": pytest.approx(share), "engine/given_up": 1}


def test_a_policy_prompt_without_a_move_to_choose_has_no_truth() -> None:
    no_kings, taken = "8/8/8/8/8/8/8/8 w - - 0 1", "4k3/4R3/8/8/8/8/8/4K3 w - - 0 1"
    mated, stalemate = "7k/5KQ1/8/8/8/8/8/8 b - - 0 1", "k7/2Q5/1K6/8/8/8/8/8 b - - 0 1"
    prompts = [f"P: {text}" for text in (no_kings, taken, mated, stalemate, "hello", "")]
    labeller = FakeLabeller()
    for reward in get_reward_funcs(POLICY_ONLY, PolicyTruth(labeller)):
        for values in (None, ACTION_VALUES):
            numbers = reward([POLICY_PROMPT, *prompts], [PERFECT] * 7, [values] * 7)
            assert numbers[0] is not None and numbers[1:] == [None] * 6
    assert all(call == [PAWNS] for call in labeller.calls)


def test_the_engine_and_its_values_stored_give_the_same_rewards() -> None:
    specs, labeller = [*POLICY_ONLY, "graduated"], FakeLabeller()
    prompts, completions, stored = [], [], []
    for fen in POSITIONS:
        moves = [*fake_values(fen)]
        completions += [f"M: {' '.join(moves[:5])} E: 0.1 -2.0 B: {m}" for m in [*moves, "a1a1"]]
        prompts += [f"P: {fen}"] * (len(moves) + 1)
        stored += [column(fake_values(fen))] * (len(moves) + 1)
    asked = get_reward_funcs(specs, PolicyTruth(labeller))
    for func, by_engine in zip(get_reward_funcs(specs), asked, strict=True):
        numbers = by_engine(prompts, completions)
        assert numbers == func(prompts, completions, stored) and None not in numbers
        if func.__name__ == "policy_rank":
            assert min(numbers) == 0 and max(numbers) == 1 and len(set(numbers)) > 5


def test_a_weight_is_the_trainers_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    get_reward_funcs(["environment_exact", {"name": "graduated", "weight": 1.0}])
    assert not caplog.messages
    get_reward_funcs(["environment_exact", {"name": "graduated", "weight": 2.0}])
    assert caplog.messages == ["weights are the trainer's: give it reward_weights=[1.0, 2.0]"]


def test_tasks_of_a_list_of_rewards() -> None:
    own = {"policy": POLICY_ONLY, "environment": ENVIRONMENT_ONLY, "fill_in": FILL_IN_ONLY}
    for task, names in own.items():
        assert tasks_of([{"name": name} for name in names]) == {task}
    assert tasks_of([{"name": "graduated"}]) == {"environment", "policy"}


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([{"name": "policy_formt"}], ["'policy_formt'", "did you mean policy_format"]),
        ([{"name": "graduated", "shapin": "linear"}], ["'shapin'", "did you mean shaping"]),
        ([{"name": "graduated", "shaping": "cubic"}], ["'cubic'", "linear", "binary"]),
        ([{"name": "graduated", "thresholds": [0.9, 0.5]}], ["[0.9, 0.5]", "the smaller first"]),
        ([{"name": "asymmetric", "weight": "heavy"}], ["'heavy'", "is not a number"]),
        ([{"name": "asymmetric", "weight": float("nan")}], ["nan", "is not a finite number"]),
        ([{"weight": 1.0}], ["must be a mapping with a name"]),
        (["asymmetric"], ["'asymmetric'", "must be a mapping with a name"]),
        ([], ["must be a list of rewards"]),
        ("graduated", ["must be a list of rewards"]),
    ],
)
def test_a_fault_names_the_value_and_the_remedy(specs: Any, words: list[str]) -> None:
    (fault,) = check_reward_specs(specs)
    assert all(word in fault for word in words), fault


def test_all_faults_are_reported_together() -> None:
    assert check_reward_specs([{"name": name, "weight": 0.5} for name in NAMES]) == []
    bad: list[Any] = ["policy_formt", {"name": "graduated", "shaping": "cubic", "wait": 1}]
    bad += [{"name": "asymmetric"}, {"name": "asymmetric", "weight": 2.0}]
    with pytest.raises(ConfigurationError, match="'asymmetric' appears twice") as caught:
        get_reward_funcs(bad)
    assert len(caught.value.faults) == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"shaping": "nonsense"},
            ["shaping", "'nonsense'", "binary, continuous, graduated, linear"],
        ),
        ({"shaping": None}, ["shaping", "None", "binary, continuous, graduated, linear"]),
        ({"shapin": "linear"}, ["'shapin'", "'linear'", "did you mean shaping"]),
        ({"thresholds": [0.9, 0.5]}, ["thresholds", "[0.9, 0.5]", "the smaller first"]),
        ({"thresholds": 0.5}, ["thresholds", "0.5", "is not a list"]),
        ({"weight": 0.5}, ["weight", "0.5", "reward_weights"]),
        ({"fen": [START]}, ["fen", "1 values for 2 completions"]),
        ({"action_values": [None]}, ["action_values", "1 values for 2 completions"]),
        ({"temperature": torch.tensor(0.5)}, ["'temperature'", "0.5"]),
    ],
)
def test_a_call_refuses_options_as_a_recipe_does(options: dict[str, Any], words: list[str]) -> None:
    for made in (graduated, get_reward_funcs([{"name": "graduated", "shaping": "linear"}])[0]):
        with pytest.raises(ConfigurationError) as caught:
            made([ASKED_E4] * 2, [RIGHT_E4] * 2, **options)
        (fault,) = caught.value.faults
        assert all(word in fault for word in ("graduated", *words)), fault


@pytest.mark.parametrize("name", NAMES)
def test_no_reward_takes_an_option_that_it_does_not_have(name: str) -> None:
    (reward,) = get_reward_funcs([name])
    for prompts in ([], [ASKED_E4], [ASKED_E4, POLICY_PROMPT]):
        with pytest.raises(ConfigurationError, match=f"{name}: no option 'sharpness' .*3"):
            reward(prompts, [""] * len(prompts), sharpness=3)


@pytest.mark.parametrize(("asked", "said", "options", "numbers"), LADDERS)
def test_an_option_counts_in_a_call(asked: str, said: Any, options: Any, numbers: Any) -> None:
    count = len(said)
    given = graduated([asked] * count, said, [ACTION_VALUES] * count, **options)
    assert given == pytest.approx(numbers, abs=1e-6)


@pytest.mark.parametrize("options", [{"shaping": "nonsense"}, {"thresholds": (0.9, 0.5)}])
def test_the_scale_itself_refuses_them(options: Any) -> None:
    score = score_row(ASKED_E4, WRONG)
    assert score is not None
    with pytest.raises(ConfigurationError, match=r"nonsense|0\.9"):
        composites.graduated(score, **options)


def test_whatever_trl_passes_is_taken() -> None:
    """Also columns that only the user's data have, of any kind that has a length."""
    of_trainer = {"trainer_state": TrainerState(), "log_extra": print, "environments": [None, None]}
    columns = {
        "id": [1, 2],
        "source": ("a", "b"),
        "row": torch.arange(2),
        "completion_ids": [[1], [2]],
    }
    for reward in get_reward_funcs(NAMES):
        reward([ASKED_E4] * 2, [RIGHT_E4] * 2, log_metric=Means().log, **of_trainer, **columns)


WRONG = f"{NAMED}+0.001+0+0"


def test_every_reward_is_a_function_of_the_module() -> None:
    assert not hasattr(importlib.import_module("rookworld_rlvr.rewards"), "environment_exac")
    for name, said in known_rewards().items():
        path, _, attribute = f"rookworld_rlvr.rewards.{name}".rpartition(".")  # as `trl grpo` does
        func = getattr(importlib.import_module(path), attribute)
        assert func.__name__ == name  # TRL logs it under this name
        assert said.meaning and said.meaning in func.__doc__
        assert f"Range: {said.range}." in func.__doc__
        assert pickle.loads(pickle.dumps(func)) is func
    package = importlib.import_module("rookworld_rlvr")
    assert all(name in dir(package) for name in ("RookWorld", "rewards", "training"))


def test_a_plain_name_is_a_reward_with_its_defaults() -> None:
    first, second = get_reward_funcs(["graduated", {"name": "environment_state", "weight": 2.0}])
    assert (first.__name__, second.__name__) == ("graduated", "environment_state")
    assert first([ASKED_E4], [WRONG]) == [0.8]
    with pytest.raises(ConfigurationError, match="did you mean environment_exact"):
        get_reward_funcs(["environment_exac"])


def chat(*contents: str) -> list[dict[str, str]]:
    return [{"role": "any", "content": content} for content in contents]


def test_of_a_chat_the_last_message_is_read() -> None:
    prompts = [chat("You are a chess engine.", ASKED_E4)] * 2
    assert environment_exact(prompts, [chat(RIGHT_E4), chat(WRONG)]) == [1.0, 0.0]
    assert environment_exact([ASKED_E4], [chat(RIGHT_E4)]) == [1.0]


@pytest.mark.parametrize("raw", [None, [], [5], [{"role": "assistant"}], [{"content": [RIGHT_E4]}]])
def test_what_is_neither_text_nor_a_chat_is_refused(raw: Any) -> None:
    with pytest.raises(RookWorldError, match="as a prompt or completion: give text, or"):
        environment_exact([ASKED_E4], [raw])


def test_rewards_and_rows_wait_for_no_trainer() -> None:
    code = "import sys, rookworld_rlvr.data, rookworld_rlvr.rewards; print(*sys.modules)"
    heavy = {"torch", "transformers", "trl", "accelerate", "rookworld_rlvr.training"}
    assert not heavy & {*ran(sys.executable, "-c", code).stdout.split()}


def test_the_script_of_the_page_trains_with_trl_alone(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    page = REPOSITORY / "docs" / "plain_trl.md"
    text = next(text for language, text in fences(page) if language == "python")
    assert len([line for line in text.splitlines() if line]) <= 18
    few = functools.partial(data.load_rows, max_rows=300, synthetic_rows=40)
    monkeypatch.setattr(data, "load_rows", few)
    exec(compile(text, str(page), "exec"), {})
    logged = history("runs/plain_trl/checkpoint-3")[:3]
    # random weights write nothing that can be read: 0 of each task, and no row is without its truth
    for name in ("environment_state", "policy_best_move"):
        assert {step.get(f"rewards/{name}/without_truth", 0.0) for step in logged} == {0.0}
        assert all(step[f"rewards/{name}/mean"] in (0.0, None) for step in logged)
    assert [step["reward"] for step in logged] == [0.0] * 3
    assert Path("runs/plain_trl/model.safetensors").exists()


def test_where_there_are_no_judges_a_recipe_is_told(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(extras, "_FOLDER", tmp_path)
    with pytest.raises(
        ConfigurationError, match="rewards: judge_a: judges are not part of this copy"
    ):
        get_reward_funcs(["environment_exact", {"name": "judge_a", "model": "runs/judge"}])
