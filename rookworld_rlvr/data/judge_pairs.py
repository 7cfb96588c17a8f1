"""Preference pairs for a judge: a right answer and a wrong one, a better move and a worse one.

Truth comes from python-chess and from the rows' values of moves, never from the data's own answers.
The seed decides everything. Kinds are drawn independently, so shares hold for any prefix of a list.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice, permutations
from typing import Any, NamedTuple

import chess

from ..common.errors import RookWorldError
from ..common.settings import Checked, setting
from ..tasks import rules
from ..tasks.environment import ENVIRONMENT, write_environment_answer
from ..tasks.policy import (
    MAX_CANDIDATES,
    POLICY,
    policy_reference,
    win_probability,
    write_policy_answer,
)
from ..tasks.registry import TASKS, is_right
from ..tasks.types import (
    ActionValue,
    EnvironmentAnswer,
    EnvironmentPrompt,
    PolicyAnswer,
    values_by_move,
)
from .loading import action_values_of
from .shares import SHARES

Row = Mapping[str, Any]


_Answers = tuple[str, str]  # chosen, rejected


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one prompt, the first of which is the better one."""

    kind: str  # of `PAIR_SHARES`; followed by the row's part if it is a task's name
    prompt: str
    chosen: str
    rejected: str


PAIR_SHARES: Mapping[str, float] = SHARES["pairs"]


def task_of_kind(kind: str) -> str:
    """The task from whose rows a kind of pairs is made."""
    if kind in TASKS:
        return kind
    return POLICY.name if kind in _POLICY else ENVIRONMENT.name


@dataclass
class JudgeDataArguments(Checked):
    """Which pairs a judge is trained and measured on, and what else is measured."""

    train_pairs: int = setting(
        60_000, "Number of pairs to train on, made from training rows.", least=1
    )
    heldout_pairs: int = setting(
        2_000, "Number of pairs for the report, made from held-out positions.", least=1
    )
    pair_shares: dict[str, float] | str | None = setting(
        None,
        "Share of each kind of pair, {piece: 0.5, best_move: 0.5}; kinds that you do not name get 0. "
        "Without it, the shares of assets/shares.yaml.",
        shares=PAIR_SHARES,
        of="pair",
    )
    smallest_gap: float = setting(
        0.10,
        "Smallest difference in win probability between the better and the worse move of a pair.",
        above=0,
        below=1,
    )
    generator: str = setting(
        "rookworld-nano",
        "Model that writes completions for the judge to rank: a packaged name, a folder or a Hub id.",
    )
    ranked_prompts: int = setting(
        100,
        "Held-out prompts of each task for which the generator writes eight completions, at temperature "
        "1; 0 skips the ranking.",
        least=0,
    )
    ranked_tokens: int = setting(
        144,
        "Largest number of tokens in such a completion; a complete answer has up to 144 tokens of "
        "GPT-2's tokenizer.",
        least=1,
    )

    def shares(self) -> Mapping[str, float]:
        """Shares of the kinds; a kind without a share is not made."""
        shares: Any = self.pair_shares
        return PAIR_SHARES if shares is None else shares

    def tasks(self) -> list[str]:
        """The tasks whose rows the shares ask for."""
        return sorted({task_of_kind(kind) for kind, share in self.shares().items() if share})


# --------------------------------------------------------------------------------------------------
# The story
# --------------------------------------------------------------------------------------------------
def make_pairs(
    rows: Iterable[Row], count: int, shares: Mapping[str, float], smallest_gap: float, seed: int
) -> list[Pair]:
    """Pairs with shares of kinds; each kind goes through the rows of its task in an order of its own.

    Args:
        rows: Of the columns that `data` documents; rows of other tasks are passed over.
        count: How many pairs to make.
        shares: Of the kinds; a kind without a share is not made.
        smallest_gap: Smallest difference in win probability between a better and a worse move.
        seed: Same seed and rows, same pairs; a smaller count gives the beginning of a larger one.

    Raises:
        RookWorldError: A kind has a share, but no row that it can be made from.
    """
    by_task: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_task[row["task"]].append(row)
    kinds = [kind for kind in PAIR_SHARES if shares.get(kind)]
    pairs = {kind: _pairs(kind, by_task[task_of_kind(kind)], smallest_gap, seed) for kind in kinds}
    rng = random.Random(f"{seed} kinds of pairs")
    drawn = rng.choices(kinds, [shares[kind] for kind in kinds], k=count)
    return [next(pairs[kind]) for kind in drawn]


def _pairs(kind: str, rows: Sequence[Row], gap: float, seed: int) -> Iterator[Pair]:
    """Pairs of one kind, from the rows of its task in turn, without end."""
    rng = random.Random(f"{seed} {kind}")
    in_turn = cycle(rng.sample(rows, len(rows)))
    answered = _answers_by_part(rows) if kind in TASKS else {}
    while True:
        for row in islice(in_turn, len(rows)):
            name = kind
            if kind in TASKS:
                part = TASKS[kind].part(row)
                name = f"{kind}_{part}"
                answers = _right_and_wrong(row, answered[part], rng)
            elif kind in CORRUPTIONS:
                answers = _environment_answers(row, kind, rng)
            else:
                answers = _POLICY[kind](row, gap, rng)
            if answers is not None:
                yield Pair(name, row["prompt"], *answers)
                break
        else:
            raise RookWorldError(
                f"pair_shares: no {task_of_kind(kind)} row ({len(rows)} found) can become a pair of the "
                f"kind {kind!r}; give more rows or synthetic_rows, or leave the kind out"
            )


# --------------------------------------------------------------------------------------------------
# Any task: a right answer, and one that goes wrong somewhere
# --------------------------------------------------------------------------------------------------
def _answers_by_part(rows: Sequence[Row]) -> dict[str, list[str]]:
    answers: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows:
        answers[TASKS[row["task"]].part(row)].append(row["completion"])
    return answers


def _right_and_wrong(row: Row, answered: Sequence[str], rng: random.Random) -> _Answers | None:
    """The wrong answer begins as the right one, and goes on as a guess or as another row's answer.

    Args:
        row: Of any task that knows a right answer.
        answered: The answers of the rows of the same part, see `Task.part`.
        rng: Chooses.
    """
    task, prompt, values = TASKS[row["task"]], row["prompt"], values_by_move(row["action_values"])
    right = task.right_answer(prompt, values, rng)
    if right is None:
        return None
    for _ in range(_TRIES):
        other = task.guess(prompt, rng) if rng.random() < 0.5 else rng.choice(answered)
        cut = rng.randrange(len(right))
        wrong = right[:cut] + other[cut:]
        if is_right(prompt, wrong, values) is False:
            return right, wrong
    return None


_TRIES = 20  # most of them are wrong


# --------------------------------------------------------------------------------------------------
# Environment: the right answer, and one with a single fault
# --------------------------------------------------------------------------------------------------
class _Step(NamedTuple):
    """A step of the environment to answer wrongly, in a way that `rng` chooses."""

    prompt: EnvironmentPrompt
    truth: EnvironmentAnswer
    rng: random.Random


def _environment_answers(row: Row, kind: str, rng: random.Random) -> _Answers | None:
    prompt = EnvironmentPrompt(row["fen"], row["action"], tuple(row["history"]))
    truth = rules.transition(prompt.fen, prompt.action)
    wrong = CORRUPTIONS[kind](_Step(prompt, truth, rng))
    if wrong is None or wrong == truth:
        return None
    return write_environment_answer(truth), write_environment_answer(wrong)


def with_fen_field(answer: EnvironmentAnswer, index: int, text: str) -> EnvironmentAnswer:
    """The answer with another of its FEN's six fields."""
    fields = answer.fen.split(" ")
    fields[index] = text
    return replace(answer, fen=" ".join(fields))


def _piece(step: _Step) -> EnvironmentAnswer:
    rng, board = step.rng, chess.Board(step.truth.fen)
    occupied = list(chess.SquareSet(board.occupied))
    empty = list(~chess.SquareSet(board.occupied))
    near = _squares_of(step.prompt.action) if rng.random() < 0.5 else ()
    start = rng.choice([square for square in occupied if square in near] or occupied)
    target = rng.choice([square for square in empty if square in near] or empty)
    piece = board.piece_at(start)
    change = rng.choice(("moved", "removed", "added"))
    if change == "added":
        kinds = (chess.PAWN, chess.KNIGHT, chess.BISHOP, chess.ROOK, chess.QUEEN)
        # Models tend to leave a piece that has moved on its old square too; other pieces are random.
        piece = piece if near else chess.Piece(rng.choice(kinds), rng.random() < 0.5)
    else:
        board.remove_piece_at(start)
    if change != "removed":
        board.set_piece_at(target, piece)
    return with_fen_field(step.truth, 0, board.board_fen())


def _squares_of(action: str) -> tuple[int, ...]:
    """From and to, if the action can be read as a move."""
    try:
        move = chess.Move.from_uci(action)
    except ValueError:
        return ()
    return (move.from_square, move.to_square)


def _side_to_move(step: _Step) -> EnvironmentAnswer:
    return with_fen_field(step.truth, 1, "b" if step.truth.fen.split(" ")[1] == "w" else "w")


def _castling(step: _Step) -> EnvironmentAnswer:
    turned = step.rng.choice("KQkq")
    rights = step.truth.fen.split(" ")[2]
    now = "".join(right for right in "KQkq" if (right in rights) != (right == turned))
    return with_fen_field(step.truth, 2, now or "-")


def _en_passant(step: _Step) -> EnvironmentAnswer | None:
    square = rules.double_step_square(step.prompt.fen, step.prompt.action)
    if square is None or step.truth.truncated:
        return None
    named = step.truth.fen.split(" ")[3]
    return with_fen_field(step.truth, 3, square if named == "-" else "-")


def _clocks(step: _Step) -> EnvironmentAnswer:
    index = step.rng.choice((4, 5))
    right, before = (int(fen.split(" ")[index]) for fen in (step.truth.fen, step.prompt.fen))
    wrong = {before, before + 1, right + 1, right - 1, 0 if index == 4 else right + 2}
    text = str(step.rng.choice(sorted(n for n in wrong if n != right and n >= 0)))
    return with_fen_field(step.truth, index, text)


def _reward(step: _Step) -> EnvironmentAnswer:
    others = [reward for reward in rules.REWARDS if reward != step.truth.reward]
    return replace(step.truth, reward=step.rng.choice(others))


def _flags(step: _Step) -> EnvironmentAnswer:
    if step.rng.random() < 0.5:
        return replace(step.truth, terminated=not step.truth.terminated)
    return replace(step.truth, truncated=not step.truth.truncated)


def _stale_state(step: _Step) -> EnvironmentAnswer:
    return replace(step.truth, fen=rules.canonical_fen(step.prompt.fen))


def _other_move(step: _Step) -> EnvironmentAnswer | None:
    fen = step.prompt.fen
    moves = rules.legal_moves(fen)
    answers = (rules.transition(fen, move) for move in step.rng.sample(moves, len(moves)))
    return next((answer for answer in answers if answer.fen != step.truth.fen), None)


CORRUPTIONS: Mapping[str, Callable[[_Step], EnvironmentAnswer | None]] = {
    "piece": _piece,
    "side_to_move": _side_to_move,
    "castling": _castling,
    "en_passant": _en_passant,
    "clocks": _clocks,
    "reward": _reward,
    "flags": _flags,
    "stale_state": _stale_state,
    "other_move": _other_move,
}
"""How a right answer of the environment is made wrong, by kind; None if it cannot be."""


# --------------------------------------------------------------------------------------------------
# Policy: a better and a worse move
# --------------------------------------------------------------------------------------------------
def _best_move(row: Row, gap: float, rng: random.Random) -> _Answers | None:
    values = action_values_of(row["action_values"] or ())
    chances = [(value, win_probability(value.cp)) for value in values]
    pairs = [
        (better, worse)
        for (better, chance), (worse, other) in permutations(chances, 2)
        if chance - other >= gap
    ]
    if not pairs:
        return None
    better, worse = rng.choice(pairs)
    others = [value for value in values if value not in (better, worse)]
    named = [better, worse, *rng.sample(others, min(len(others), MAX_CANDIDATES - 2))]
    rng.shuffle(named)
    return _answer(named, better), _answer(named, worse)


def _policy_answer(row: Row, gap: float, rng: random.Random) -> _Answers | None:
    values = action_values_of(row["action_values"] or ())
    limit = win_probability(values[0].cp) - gap if values else 0.0
    worse = [value for value in values if win_probability(value.cp) <= limit]
    if not worse:
        return None
    named = rng.sample(worse, min(len(worse), MAX_CANDIDATES))
    right = write_policy_answer(policy_reference(row["fen"], values))
    return right, _answer(named, max(named, key=lambda value: value.cp))


_POLICY: Mapping[str, Callable[[Row, float, random.Random], _Answers | None]] = {
    "best_move": _best_move,
    "policy_answer": _policy_answer,
}


def _answer(named: Sequence[ActionValue], best: ActionValue) -> str:
    moves = tuple(value.move for value in named)
    evaluations = tuple(value.cp / 100 for value in named)
    return write_policy_answer(PolicyAnswer(moves, evaluations, best.move))
