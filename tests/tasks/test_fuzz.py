"""Properties: any text is scored, and what is written can be read again."""

import contextlib
import math
import os
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import islice

import chess
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rookworld_rlvr.common.errors import NotationError
from rookworld_rlvr.data import synthesis
from rookworld_rlvr.data.parsing import parse_rows
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.tasks import environment, policy, rules
from rookworld_rlvr.tasks import text as notation
from rookworld_rlvr.tasks.fill_in_record import parse_fill_in_answer, parse_fill_in_prompt
from rookworld_rlvr.tasks.policy import parse_policy_answer, write_policy_answer
from rookworld_rlvr.tasks.registry import split_row, task_of
from rookworld_rlvr.tasks.text import clean
from rookworld_rlvr.tasks.types import FILL_IN_FIELDS, EnvironmentPrompt, PolicyAnswer

from ..rows import AFTER_E4, ASKED_E4, PAWN_VALUES, PAWNS, START, column
from ..rows import RIGHT_E4 as RIGHT_STATE

# The same examples every time, and no folder of failures left in the checkout. For a longer search:
# FUZZ_EXAMPLES=5000.
EXAMPLES = os.environ.get("FUZZ_EXAMPLES")
settings.register_profile(
    "rookworld",
    max_examples=int(EXAMPLES or 80),
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("rookworld")
POLICY_PROMPT = f"P: {PAWNS}"
# The first mates.
ACTION_VALUES = column({**PAWN_VALUES, "f2f4": 99_998, "h1g1": -1, "h2h3": -99_999})
FILL_IN_PROMPT = f"F: {START}+e2e4+e2e4+[MASK]+0.001+0+0+"
RIGHT_ANALYSIS = "M: g2g4 f2f4 f2f3 h2h4 g2g3 E: 1.0 999.98 0.0 0.5 0.0 B: f2f4"

# The table of names and ranges that dashboards rely on: lowest and highest, and the values that
# there are where these are few.
SHARES = "environment_state environment_outcome policy_best_move policy_regret policy_candidates "
SHARES += "policy_evaluation policy_legality weighted_policy fill_in_similarity"
TRUTHS = "environment_exact environment_format policy_format fill_in_exact fill_in_format"
RANGES: dict[str, tuple[float, float, set[float] | None]] = {
    **dict.fromkeys(SHARES.split(), (0, 1, None)),
    **dict.fromkeys(TRUTHS.split(), (0, 1, {0, 1})),
    "policy_rank": (0, 1, {0, *(place / 7 for place in range(1, 8))}),
    "policy_consistency": (0, 1, {0, 0.25, 0.5, 0.75, 1}),
    "graduated": (-0.3, 1, None),
    "asymmetric": (-1, 1, None),
}
LADDER = {0.2, 0.4, 0.6, 0.8, 1}
REWARDS = {name: get_reward_funcs([{"name": name}])[0] for name in RANGES}
SHAPED = {
    shaping: get_reward_funcs([{"name": "graduated", "shaping": shaping}])[0]
    for shaping in ("graduated", "linear", "binary", "continuous")
}


def assert_scored(completion: str) -> None:
    """Every reward gives a number of its range, for a row of its task, and the same one twice."""
    batch = {
        "prompts": [ASKED_E4, POLICY_PROMPT, FILL_IN_PROMPT],
        "completions": [completion, completion, completion],
        "action_values": [None, ACTION_VALUES, None],
    }
    for name, (lowest, highest, values) in RANGES.items():
        numbers = REWARDS[name](**batch)
        judged = [number for number in numbers if number is not None]
        assert len(judged) == (2 if name == "graduated" else 1), name
        for number in judged:
            assert isinstance(number, float)
            assert lowest <= number <= highest, name
            assert values is None or number in values, name
            assert name != "graduated" or number < -0.1 or number in LADDER
        assert REWARDS[name](**batch) == numbers, name
    for reward in SHAPED.values():
        *shaped, fill_in = reward(**batch)
        assert all(number is not None and -0.3 <= number <= 1 for number in shaped)
        assert fill_in is None


# Pieces of right answers, and what looks like them: other digits, no numbers, control characters.
PIECES = st.sampled_from(
    [
        *("M:", "E:", "B:", "P:", "A:", " ", "  ", "+", "/", "-", ".", "\n", "\t", "\x00", "\x1b"),
        *("g2g4", "f2f4", "e2e9", "a7a8q", "0000", "O-O", "h2h3", "１.０", "٣", "²", "Ⅷ", "௧"),
        *("1.0", "-0.0", "nan", "inf", "-inf", "1e999", "9" * 20, "9" * 400, "0x1", "1_0", "NaN"),
        *("<|endoftext|>", "<|endoftext", AFTER_E4, START, "KQkq", "w", "b", "e3", "0", "1", "8"),
        *("中文", "Привет", "🙂", "\u202e", "\ufeff", "\u00a0", "\ud7ff", "e\u0301"),
    ]
)


@given(st.text(max_size=200), st.lists(PIECES, max_size=25), st.sampled_from(["", " "]))
def test_any_text_and_any_heap_of_pieces_are_scored(text: str, pieces: list[str], glue) -> None:
    assert_scored(text)
    assert_scored(glue.join(pieces))


@pytest.mark.parametrize("unit", [" ", "8/", "M: ", " g2g4", "1", "<|endoftext|>", "🙂"])
@pytest.mark.parametrize("frame", ["{}", "M: g2g4{} E: 1.0 B: g2g4", AFTER_E4 + "+0.001+0+0{}"])
def test_a_megabyte_is_scored(unit: str, frame: str) -> None:
    assert_scored(frame.format(unit * (1_000_000 // len(unit))))


@st.composite
def mutated(draw: st.DrawFn, text: str) -> str:
    """A near miss: up to three edits of a right answer."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 3)))
        new = draw(st.one_of(st.sampled_from([*" +/-.:018wbKQkqeMEBg24", "\n", "٣"]), PIECES))
        text = text[:start] + draw(st.sampled_from(["", new])) + text[end:]
    return text


def forgiven(text: str) -> str:
    """A completion without what rewards forgive at its end."""
    return text.replace("<|endoftext|>", "").rstrip().removesuffix("+").rstrip()


@given(mutated(RIGHT_STATE))
def test_near_misses_of_a_state_are_scored_and_only_the_state_itself_is_exact(text: str) -> None:
    assert_scored(text)
    (exact,) = REWARDS["environment_exact"]([ASKED_E4], [text])
    (state,) = REWARDS["environment_state"]([ASKED_E4], [text])
    said = forgiven(text).replace(" ", "").split("+")
    fen_is_right = said[0] == AFTER_E4.replace(" ", "")
    if exact:
        assert fen_is_right
        assert said[2:] == ["0", "0"] and float(said[1]) == 0.001
    if state == 1:
        assert fen_is_right


@given(mutated(RIGHT_ANALYSIS))
def test_near_misses_of_an_analysis_are_scored_and_never_read_into(text: str) -> None:
    assert_scored(text)
    batch = ([POLICY_PROMPT], [text], [ACTION_VALUES])
    (best,) = REWARDS["policy_best_move"](*batch)
    # The only move that mates loses nothing; it has to stand at the end, as written.
    if best == 1:
        assert forgiven(text).endswith("f2f4")
    if REWARDS["policy_format"](*batch) == [0.0]:
        assert all(REWARDS[name](*batch) == [0.0] for name in RANGES if "policy" in name)


@given(st.text(max_size=120))
def test_any_prompt_is_judged_or_has_no_truth(prompt: str) -> None:
    for reward in REWARDS.values():
        (number,) = reward([prompt], [RIGHT_STATE])
        assert number is None or math.isfinite(number)


@given(st.one_of(st.text(max_size=200), mutated(RIGHT_STATE), mutated(RIGHT_ANALYSIS)))
def test_a_parser_raises_no_other_error_than_its_own(text: str) -> None:
    parsers: list[Callable[[str], object]] = [
        *(split_row, notation.parse_fen, notation.parse_move, notation.parse_decimal),
        *(policy.POLICY.position, parse_policy_answer, parse_fill_in_prompt),
        *(environment.parse_environment_prompt, environment.parse_environment_answer),
        *(partial(parse_fill_in_answer, field) for field in FILL_IN_FIELDS),
    ]
    for parse in parsers:
        with contextlib.suppress(NotationError):
            parse(text)


LETTERS = [*"pnbrqkPNBRQK12345678/ -+abcdefgh.wF:0", "[MASK]", "[", "<|endoftext|>", "\n", "٣", ""]


def edited(rng: random.Random, text: str) -> str:
    """A text with up to three places overwritten."""
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(LETTERS) + text[at + rng.randrange(3) :]
    return text


def test_any_record_and_any_completion_is_scored_or_has_no_truth() -> None:
    rng = random.Random(0)
    kinds = {"openings": 0.5, "illegal_actions": 0.1, "middle_games": 0.4}
    rows = list(islice(synthesis.fill_in_rows(8, kinds=kinds), 80))
    rewards = [REWARDS[f"fill_in_{name}"] for name in ("format", "exact", "similarity")]
    outcomes: Counter[str] = Counter()
    for number in range(2_000):
        row = rng.choice(rows)
        spoilt = number % 2 == 0  # else the record is right
        prompt = edited(rng, row["prompt"]) if spoilt else row["prompt"]
        completion = edited(rng, rng.choice([row, rng.choice(rows)])["completion"])
        numbers = [reward([prompt], [completion])[0] for reward in rewards]
        (parsed,) = parse_rows([{"text": prompt + completion}])
        if None in numbers:
            assert numbers == [None] * 3 and spoilt
            outcomes["no truth"] += 1
        else:
            form, exact, similarity = (number for number in numbers if number is not None)
            assert form in (0, 1) and exact in (0, 1) and 0 <= similarity <= 1
            assert (similarity == 1) == (exact == 1) <= form
            outcomes[f"exact {exact:g}"] += 1
        if task_of(prompt) == "fill_in" and "+" not in completion and clean(completion):
            assert (numbers[1] == 1) == isinstance(parsed, dict)
    assert min(outcomes.values()) > 100, outcomes


@st.composite
def games(draw: st.DrawFn) -> chess.Board:
    """A position after up to 60 legal plies, its moves on the stack, one more to play."""
    board = chess.Board()
    for choice in draw(st.lists(st.integers(0, 10_000), max_size=60)):
        moves = list(board.legal_moves)
        board.push(moves[choice % len(moves)])
        if not any(board.legal_moves):
            board.pop()
            break
    return board


UCI = st.from_regex(r"\A[a-h][1-8][a-h][1-8][nbrq]?\Z")
EVALUATIONS = st.integers(-100_000, 100_000).map(lambda cp: cp / 100)  # what centipawns can give
ACTIONS = st.one_of(UCI, st.just("0000"), st.from_regex(r"\A[a-z0-9#=-]{1,6}\Z"))


@given(st.lists(UCI, min_size=1, max_size=5), st.lists(EVALUATIONS, min_size=1, max_size=5), UCI)
def test_policy_answers_round_trip(moves: list[str], pawns: list[float], best: str) -> None:
    answer = PolicyAnswer(tuple(moves), tuple(pawns), best)
    assert parse_policy_answer(write_policy_answer(answer)) == answer


@given(games(), st.data())
def test_the_truth_itself_is_exact_for_every_environment_reward(board: chess.Board, data) -> None:
    action = data.draw(st.one_of(st.sampled_from([m.uci() for m in board.legal_moves]), ACTIONS))
    asked = EnvironmentPrompt(board.fen(), action, (action,))
    prompt = environment.write_environment_prompt(asked)
    truth = environment.write_environment_answer(rules.transition(board.fen(), action))
    for name in RANGES:
        if not name.startswith(("policy_", "fill_in_")) and name != "weighted_policy":
            assert REWARDS[name]([prompt], [f" {truth} <|endoftext|>"]) == [1.0], name


@given(games(), st.data())
def test_the_reference_analysis_is_perfect_for_every_policy_reward(board, data) -> None:
    moves = [move.uci() for move in board.legal_moves]
    worth = {"min_size": len(moves), "max_size": len(moves)}
    cps = data.draw(st.lists(st.integers(-99_999, 99_999), **worth))
    values = dict(zip(moves, sorted(cps, reverse=True), strict=True))
    answer = write_policy_answer(policy.policy_reference(board.fen(), values))
    prompt = policy.write_policy_prompt(board.fen())
    for name in RANGES:
        if not name.startswith(("environment_", "fill_in_")) and name != "asymmetric":
            assert REWARDS[name]([prompt], [answer], [column(values)]) == [1.0], name


@given(st.dictionaries(UCI, st.integers(-99_999, 99_999), min_size=1, max_size=40), st.data())
def test_a_better_move_is_never_worse_by_regret_rank_or_quality(values, data) -> None:
    one, other = (data.draw(st.sampled_from(sorted(values))) for _ in range(2))
    moves = sorted((one, other), key=values.__getitem__)
    scores = [policy.score_policy(values, f"M: {move} E: 0.0 B: {move}") for move in moves]
    for name in ("regret", "rank", "best_move", "best_move_hit"):
        assert 0 <= scores[0][name] <= scores[1][name] <= 1
    below = sum(worth <= values[moves[0]] for worth in values.values())
    assert scores[0]["rank"] * len(values) == pytest.approx(below)
    if values[one] != values[other]:
        assert scores[0]["rank"] < scores[1]["rank"]
