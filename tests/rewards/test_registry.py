from typing import Any

import chess
import pytest

from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.engine.labeller import Labeller
from rookworld_rlvr.engine.truth import PolicyTruth
from rookworld_rlvr.rewards.registry import (
    check_reward_specs,
    get_reward_funcs,
    known_rewards,
    tasks_of,
)

from ..conftest import Means
from ..engines import POSITIONS, FakeLabeller, engine_arguments
from ..rows import AFTER_E4, ASKED_E4, PAWN_VALUES, PAWNS, RIGHT_E4, START, column

NAMED = AFTER_E4.replace(" - ", " e3 ")  # the public data's fault
POLICY_PROMPT = f"P: {PAWNS}"
ACTION_VALUES = column(PAWN_VALUES)
FILL_IN_PROMPT = f"F: {START}+[MASK]+[MASK]+{AFTER_E4}+0.001+0+0+"
PERFECT = "M: g2g4 f2f4 h1g1 h2h4 g2g3 E: 1.0 1.0 0.0 0.5 0.0 B: g2g4"


# --- Numbers --------------------------------------------------------------------------------------
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
POLICY_ONLY = [name for name, _ in POLICY_NUMBERS]
ENVIRONMENT_ONLY = [name for name, _ in ENVIRONMENT_NUMBERS]
FILL_IN_ONLY = [name for name, _ in FILL_IN_NUMBERS]
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
    *(
        ({"shaping": name}, [1, 0.930550, 0.811143, 0.453333, 0.2, -0.3])
        for name in ("linear", "continuous")
    ),
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
    assert (
        sorted(known_rewards()) == NAMES
    )  # dashboard keys: a new name breaks the boards of old runs


# --- Rows that a reward does not apply to ---------------------------------------------------------
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


@pytest.mark.parametrize("columns", [{}, {"action_values": [None]}, {"action_values": [[]]}])
def test_a_policy_row_without_values_has_no_truth(columns: dict[str, Any]) -> None:
    for reward in get_reward_funcs([*POLICY_ONLY, "graduated"]):
        assert reward(prompts=[POLICY_PROMPT], completions=[PERFECT], **columns) == [None]


def test_rows_without_truth_are_a_share_of_the_rows_that_the_reward_judges() -> None:
    logged = Means()
    (reward,) = get_reward_funcs([{"name": "policy_best_move"}])
    numbers = reward(
        prompts=[ASKED_E4, *[POLICY_PROMPT] * 3],
        completions=["", *[PERFECT] * 3],
        action_values=[None, None, ACTION_VALUES, ACTION_VALUES],
        log_metric=logged.log,
    )
    assert numbers == [None, None, 1.0, 1.0]
    assert logged == {"rewards/policy_best_move/without_truth": pytest.approx(1 / 3)}


# --- Truth by the engine --------------------------------------------------------------------------
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


@pytest.mark.parametrize("name", [*POLICY_ONLY, "graduated"])
def test_a_row_that_the_engine_gave_up_on_has_no_reward_and_is_counted(name: str) -> None:
    logged = Means()
    truth = PolicyTruth(FakeLabeller(refuse=[POSITIONS[1]]))
    (reward,) = get_reward_funcs([name], truth)
    first, second, _ = reward(
        prompts=[f"P: {POSITIONS[0]}", f"P: {POSITIONS[1]}", ASKED_E4],
        completions=["M: e1d1 E: 1.0 B: e1d1", "M: e5d5 E: 1.0 B: e5d5", "e2e4"],
        action_values=[None] * 3,
        log_metric=logged.log,
    )
    assert first is not None and first > 0 and second is None
    share = 1 / 3 if name == "graduated" else 1 / 2
    assert logged[f"rewards/{name}/without_truth"] == pytest.approx(share)
    assert logged["engine/given_up"] == 1


@pytest.mark.parametrize(
    "prompt",
    [
        "P: hello",
        "P: ",
        "P: 8/8/8/8/8/8/8/8 w - - 0 1",  # no kings
        "P: 4k3/4R3/8/8/8/8/8/4K3 w - - 0 1",  # a king could be taken
        "P: 7k/5KQ1/8/8/8/8/8/8 b - - 0 1",  # mated
        "P: k7/2Q5/1K6/8/8/8/8/8 b - - 0 1",  # stalemate
    ],
)
@pytest.mark.parametrize("values", [None, ACTION_VALUES])
def test_a_policy_prompt_without_a_move_to_choose_has_no_truth(values: Any, prompt: str) -> None:
    labeller = FakeLabeller()
    for reward in get_reward_funcs(POLICY_ONLY, PolicyTruth(labeller)):
        numbers = reward([prompt, POLICY_PROMPT], [PERFECT] * 2, [values] * 2)
        assert numbers[0] is None and numbers[1] is not None
    assert all(call == [POLICY_PROMPT.removeprefix("P: ")] for call in labeller.calls)


def test_the_engine_and_its_values_stored_give_the_same_rewards(stockfish: str) -> None:
    args = engine_arguments(stockfish)
    rows = []
    for fen in POSITIONS:
        moves = [move.uci() for move in chess.Board(fen).legal_moves]
        rows += [
            (f"P: {fen}", f"M: {' '.join(moves[:5])} E: 0.1 -2.0 B: {move}")
            for move in (*moves, "a1a1")
        ]
    prompts, completions = map(list, zip(*rows, strict=True))
    with Labeller(args) as labeller:
        values = labeller.values([prompt.removeprefix("P: ") for prompt in prompts])
    stored_values = [column(one) for one in values if one is not None]
    specs = [*POLICY_ONLY, "graduated"]
    rewards = {}
    with Labeller(args) as labeller:
        truth = PolicyTruth(labeller)
        for stored, asked in zip(
            get_reward_funcs(specs), get_reward_funcs(specs, truth), strict=True
        ):
            rewards[asked.__name__] = numbers = asked(prompts, completions)
            assert numbers == stored(prompts, completions, stored_values)
            assert None not in numbers
        assert labeller.searched == len(POSITIONS)
    ranks = rewards["policy_rank"]
    assert min(ranks) == 0 and max(ranks) == 1 and len(set(ranks)) > 5


# --- The registry ---------------------------------------------------------------------------------
def test_a_weight_is_the_trainers_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    get_reward_funcs(["environment_exact", {"name": "graduated", "weight": 1.0}])
    assert not caplog.messages
    get_reward_funcs(["environment_exact", {"name": "graduated", "weight": 2.0}])
    assert caplog.messages == ["weights are the trainer's: give it reward_weights=[1.0, 2.0]"]


def test_tasks_of_a_list_of_rewards() -> None:
    assert tasks_of([{"name": name} for name in POLICY_ONLY]) == {"policy"}
    assert tasks_of([{"name": name} for name in ENVIRONMENT_ONLY]) == {"environment"}
    assert tasks_of([{"name": name} for name in FILL_IN_ONLY]) == {"fill_in"}
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
    with pytest.raises(ConfigurationError) as caught:
        get_reward_funcs(bad)
    assert len(caught.value.faults) == 4
    for words in ("policy_formt", "cubic", "'wait'", "'asymmetric' appears twice"):
        assert words in str(caught.value)
