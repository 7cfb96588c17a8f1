"""The policy task: analyse a position. The truth is an engine's value of every legal move."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

from ..common.errors import NotationError, UnjudgeableError
from . import rules
from . import text as notation
from .task import Component, Metric, Row, Sampling, Task
from .types import MATE_CP, EnvironmentPrompt, PolicyAnswer, Score, Values

MAX_CANDIDATES = 5


DECISIVE = 0.15
"""Win probability; of positions of whole games, two in five are decisive, see `is_decisive`."""


# Columns of the public data: "M:" starts at 92, "E:" at 125 and "B:" at 168 (measured on 500 rows).
_FEN_WIDTH = 88


_MOVES_WIDTH = 30


_EVALUATIONS_WIDTH = 40


_SECTIONS = re.compile(r"M:( [^:]*) E:( [^:]*) B:( [^:]*)")


def write_policy_prompt(fen: str) -> str:
    """Write ``P: FEN`` and its padding except for the last space."""
    return f"{notation.POLICY_PREFIX} {fen:<{_FEN_WIDTH}}"


def write_policy_answer(answer: PolicyAnswer) -> str:
    """Write `` M: moves E: evaluations B: move``, padded like the public data."""
    moves = " ".join(answer.moves) + " "
    evaluations = " ".join(map(notation.write_decimal, answer.evaluations)) + " "
    return f" M: {moves:<{_MOVES_WIDTH}}E: {evaluations:<{_EVALUATIONS_WIDTH}}B: {answer.best_move}"


def _without_commas(answer: str) -> str:
    """An answer with spaces for the commas that separate moves or evaluations.

    Data may have such commas, completions may not. A comma between digits may be a decimal one, so it
    separates only numbers that have a decimal point.

    >>> _without_commas("M: e2e4,d2d4 E: 0.3,0.2 B: e2e4")
    'M: e2e4 d2d4 E: 0.3 0.2 B: e2e4'
    >>> _without_commas("E: 0,3")
    'E: 0,3'
    """
    words = re.sub(r",(?![0-9])", " ", answer).split(" ")
    return " ".join(
        word.replace(",", " ") if all("." in number for number in word.split(",")) else word
        for word in words
    )


def parse_policy_answer(text: str) -> PolicyAnswer:
    """Read the three sections ``M: E: B:``.

    The numbers of moves and evaluations may differ here: `score_policy` judges consistency.

    Raises:
        NotationError: A section is missing, out of order or empty, or contains something that is not a
            move or a number.
    """
    body = notation.clean_answer(text)
    sections = _SECTIONS.fullmatch(body)
    if sections is None:
        raise NotationError("not the three sections 'M: … E: … B: …'", body)
    moves, evaluations, best = (
        [item for item in section.split(" ") if item] for section in sections.groups()
    )
    if not 1 <= len(moves) <= MAX_CANDIDATES:
        raise NotationError(f"section 'M:' needs 1 to {MAX_CANDIDATES} moves", body)
    if not 1 <= len(evaluations) <= MAX_CANDIDATES:
        raise NotationError(f"section 'E:' needs 1 to {MAX_CANDIDATES} evaluations", body)
    if len(best) != 1:
        raise NotationError("section 'B:' needs one move", body)
    for move in (*moves, *best):
        notation.parse_move(move)
    return PolicyAnswer(tuple(moves), tuple(map(notation.parse_decimal, evaluations)), best[0])


# --------------------------------------------------------------------------------------------------
# Scores
# --------------------------------------------------------------------------------------------------
def win_probability(cp: float) -> float:
    """Expected score of the side to move, in [0, 1], by the Lichess formula.

    Args:
        cp: Centipawns from the side to move; a mate, ±(100000 - moves), gives almost 1 or 0.

    Source: https://lichess.org/page/accuracy

    >>> win_probability(0)
    0.5
    """
    return 0.5 + 0.5 * (2 / (1 + math.exp(-0.00368208 * max(-MATE_CP, min(MATE_CP, cp)))) - 1)


def is_decisive(values: Values) -> bool:
    """Whether the choice matters: the best move keeps over `DECISIVE` more than the mean legal move.

    Args:
        values: Every legal move's value in centipawns from the side to move; not empty.

    >>> (
    ...     is_decisive({"e2e4": 30, "a2a3": 0, "f2f3": -80}),
    ...     is_decisive({"d8h4": 99_999, "a7a6": 120}),
    ... )
    (False, True)
    """
    kept = [*map(win_probability, values.values())]
    return max(kept) - fmean(kept) > DECISIVE


def move_accuracy(loss: float) -> float:
    """Quality of a move, in [0, 1], from the win probability that it loses.

    This is Lichess's accuracy: a loss of 0.1 gives 0.64, of 0.2 gives 0.40, of 0.5 gives 0.09.

    Args:
        loss: Win probability of the best move minus that of the move played, in [0, 1].

    Source: https://lichess.org/page/accuracy
    """
    if loss <= 0:
        return 1.0
    percent = 103.1668100711649 * math.exp(-0.04354415386753951 * 100 * loss) - 3.166924740191411
    return max(0.0, min(1.0, percent / 100))


@dataclass(frozen=True, slots=True)
class _Judged:
    """An answer beside the values of all legal moves."""

    answer: PolicyAnswer
    values: Values
    cp: int | None  # of `B`; None if it is illegal
    loss: float  # win probability that `B` loses against the best move; 1 if it is illegal
    not_better: int  # legal moves, `B` included, that are not better than `B`; 0 if it is illegal


def score_policy(values: Mapping[str, int], completion: str) -> Score:
    """Score a policy answer against the values of all legal moves, see `POLICY_COMPONENTS`.

    Args:
        values: Every legal move's value in centipawns from the side to move; not empty.
        completion: What the policy wrote; any text is accepted.
    """
    try:
        answer = parse_policy_answer(completion)
    except NotationError:
        return dict.fromkeys(POLICY_COMPONENTS, 0.0)
    cp = values.get(answer.best_move)
    best = win_probability(max(values.values()))
    loss = 1.0 if cp is None else best - win_probability(cp)
    not_better = 0 if cp is None else sum(other <= cp for other in values.values())
    judged = _Judged(answer, values, cp, loss, not_better)
    return {name: component.of(judged) for name, component in POLICY_COMPONENTS.items()}


def _best_move(judged: _Judged) -> float:
    return move_accuracy(judged.loss)


def _best_move_hit(judged: _Judged) -> float:
    return float(judged.cp == max(judged.values.values()))


def _expected_score(judged: _Judged) -> float:
    return _kept(judged.cp)


def _kept(cp: int | None) -> float:
    """The win probability that a move keeps; none if it is illegal."""
    return 0.0 if cp is None else win_probability(cp)


def kept_by_candidates(answer: PolicyAnswer, values: Values) -> list[float]:
    """The win probability that each move of `M` keeps, 0 for an illegal one."""
    return [_kept(values.get(move)) for move in answer.moves]


def _top_five(judged: _Judged) -> float:
    better = len(judged.values) - judged.not_better
    return float(judged.cp is not None and better < MAX_CANDIDATES)


def _legal(judged: _Judged) -> float:
    return float(judged.cp is not None)


def _regret(judged: _Judged) -> float:
    return 1 - judged.loss


def _rank(judged: _Judged) -> float:
    return judged.not_better / len(judged.values)


def _legality(judged: _Judged) -> float:
    named = (*judged.answer.moves, judged.answer.best_move)
    return sum(move in judged.values for move in named) / len(named)


def _candidates(judged: _Judged) -> float:
    values, answer = judged.values, judged.answer
    wanted = min(MAX_CANDIDATES, len(values))
    threshold = sorted(values.values(), reverse=True)[wanted - 1]
    hits = sum(values.get(move, -math.inf) >= threshold for move in set(answer.moves))
    return min(hits, wanted) / wanted


def _evaluation(judged: _Judged) -> float:
    """Mean accuracy of the evaluations: half in pawns, 1 / (1 + error), half in win probability.

    An illegal move, a move without an evaluation and an evaluation without a move count as 0.
    """
    values, answer = judged.values, judged.answer
    accuracies = (
        0.5 / (1 + abs(pawns - values[move] / 100))
        + 0.5 * (1 - abs(win_probability(100 * pawns) - win_probability(values[move])))
        for move, pawns in zip(answer.moves, answer.evaluations, strict=False)
        if move in values
    )
    return sum(accuracies) / max(len(answer.moves), len(answer.evaluations))


MOST_PAWNS = 10.0
"""Errors of evaluations are counted within ±10 pawns: mates and won games would drown every other."""


def evaluation_pairs(answer: PolicyAnswer, values: Values) -> list[tuple[float, float]]:
    """`E` and value of each legal move that has an evaluation, in pawns, within ±`MOST_PAWNS`."""
    return [
        (_limited(evaluation), _limited(values[move] / 100))
        for move, evaluation in zip(answer.moves, answer.evaluations, strict=False)
        if move in values
    ]


def _limited(pawns: float) -> float:
    return max(-MOST_PAWNS, min(MOST_PAWNS, pawns))


def _consistency(judged: _Judged) -> float:
    answer = judged.answer
    named = answer.best_move in answer.moves
    index = answer.moves.index(answer.best_move) if named else len(answer.evaluations)
    highest = index < len(answer.evaluations) and (
        answer.evaluations[index] == max(answer.evaluations)
    )
    paired = len(answer.moves) == len(answer.evaluations)
    distinct = len(set(answer.moves)) == len(answer.moves)
    return (named + highest + paired + distinct) / 4


def _format(judged: _Judged) -> float:
    return 1.0


POLICY_COMPONENTS: Mapping[str, Component] = {
    "best_move": Component(
        "Lichess accuracy of `B` by the win probability that it loses against the best move; 0 if it is "
        "illegal.",
        _best_move,
    ),
    "regret": Component(
        "1 minus the win probability that `B` loses against the best move; 0 if it is illegal.",
        _regret,
    ),
    "rank": Component(
        "Share of the legal moves, `B` included, that are not better than `B`; 0 if it is illegal.",
        _rank,
    ),
    "candidates": Component(
        "Share of the engine's top five (or of all legal moves, if fewer) that `M` names; moves as good "
        "as the fifth count as top.",
        _candidates,
    ),
    "evaluation": Component(
        "Accuracy of the evaluations in `E`, half in pawns, half in win probability.", _evaluation
    ),
    "legality": Component("Share of the moves in `M` and `B` that are legal.", _legality),
    "consistency": Component(
        "Share of four checks that pass: `B` is in `M`; `B` has the highest `E`; there are as many `E` "
        "as `M`; no move is in `M` twice.",
        _consistency,
    ),
    "format": Component("1 if the three sections can be read.", _format),
    "expected_score": Component(
        "The win probability that `B` keeps; 0 if it is illegal.", _expected_score, is_reward=False
    ),
    "best_move_hit": Component(
        "1 if no legal move is worth more than `B`.", _best_move_hit, is_reward=False
    ),
    "top_five": Component(
        "1 if fewer than five legal moves are better than `B`; 0 if it is illegal.",
        _top_five,
        is_reward=False,
    ),
    "legal": Component("1 if `B` is legal.", _legal, is_reward=False),
}
"""The numbers of a score; all are 0 for an answer that cannot be read."""


def policy_reference(fen: str, values: Values, draw: random.Random | None = None) -> PolicyAnswer:
    """The right answer to a policy prompt, written like the public data but with the right `B`.

    Args:
        fen: The position.
        values: Of all legal moves.
        draw: Shuffles `M`; None shuffles by the position, which always gives the same text.
    """
    best_first = sorted(values, key=lambda move: -values[move])
    top = best_first[:MAX_CANDIDATES]
    (draw or random.Random(fen)).shuffle(top)
    evaluations = tuple(values[move] / 100 for move in top)
    return PolicyAnswer(tuple(top), evaluations, best_first[0])


_KINDS = {
    "legality": "illegal move",
    "best_move_hit": "not the best move",
    "consistency": "contradicts itself",
}


_CHOICE = " B:"


_QUALITY = {"best_move": 0.5, "candidates": 0.3, "evaluation": 0.2}


# --------------------------------------------------------------------------------------------------
# The task
# --------------------------------------------------------------------------------------------------
class PolicyTask(Task):
    """``P: FEN`` and its padding, answered by `` M: moves E: evaluations B: move``."""

    name = "policy"
    prefix = notation.POLICY_PREFIX
    ability = "plays chess (`P:` prompts)"
    components = POLICY_COMPONENTS
    metrics: ClassVar = {
        "expected_score": Metric("expected_score", kind="mean"),
        "best_move": Metric("best_move_hit"),
        "best_move_white": Metric("best_move_hit", "w"),
        "best_move_black": Metric("best_move_hit", "b"),
        "top_five": Metric("top_five"),
        "legal": Metric("legal"),
        "all_legal": Metric("legality"),
        "format": Metric("format"),
    }
    headline = "expected_score"
    right = "best_move"
    quality_words = "0.5 best move, 0.3 candidates, 0.2 evaluation"
    sampling = Sampling(temperature=0.5, top_p=0.9)  # what RookWorld-LM's authors settled on
    needs_values = True
    is_default = True

    def split(self, row: str) -> tuple[str, str]:
        """See `Task`."""
        head, *tail = re.split(r"\s(?=M:)", row, maxsplit=1)
        if not tail:
            raise NotationError("no section 'M:' in the policy row", row)
        answer = parse_policy_answer(_without_commas(tail[0]))
        return write_policy_prompt(self.position(head).fen), write_policy_answer(answer)

    def parse_answer(self, prompt: str, completion: str) -> PolicyAnswer:
        """See `Task`."""
        return parse_policy_answer(completion)

    def ask(self, position: EnvironmentPrompt) -> str | None:
        """See `Task`; None if the position has no legal move."""
        return write_policy_prompt(position.fen) if rules.legal_moves(position.fen) else None

    def check(self, prompt: str, completion: str) -> EnvironmentPrompt:
        """See `Task`."""
        position = self.position(prompt)
        if not rules.legal_moves(position.fen):
            raise UnjudgeableError(
                "a policy prompt's position has no legal move to choose", position.fen
            )
        return position

    def score(self, prompt: str, completion: str, values: Values | None = None) -> Score | None:
        """See `Task`."""
        return score_policy(values, completion) if values else None

    def errors(self, prompt: str, completion: str, values: Values | None = None) -> Sequence[str]:
        """See `Task`: one kind for each component below 1 that has one."""
        score = self.score(prompt, completion, values)
        if score is None:
            return ()
        if not score["format"]:
            return ("malformed",)
        return tuple(kind for name, kind in _KINDS.items() if score[name] < 1)

    def truth(self, prompt: str, values: Values | None = None) -> str | None:
        """See `Task`."""
        return self.right_answer(prompt, values)

    def right_answer(
        self, prompt: str, values: Values | None, draw: random.Random | None = None
    ) -> str | None:
        """See `Task`: the moves of `M` in random order; without `draw` always in the same."""
        if values is None:
            return None
        return write_policy_answer(policy_reference(self.position(prompt).fen, values, draw))

    def choices(
        self, completion: str, values: Values | None
    ) -> tuple[str, Mapping[str, float]] | None:
        """See `Task`: `B`, after the completion's own `M` and `E`; the win probability of each move."""
        head, mark, _ = completion.rpartition(_CHOICE)
        if not mark or not values:
            return None
        return head + mark, {f" {move}": win_probability(cp) for move, cp in values.items()}

    def vote(self, completion: str) -> str:
        """See `Task`: the move of `B`."""
        return completion.rpartition(_CHOICE)[2].strip()

    def guess(self, prompt: str, draw: random.Random) -> str:
        """Random legal moves, each with the evaluation 0."""
        moves = rules.legal_moves(self.position(prompt).fen)
        named = tuple(draw.sample(moves, min(MAX_CANDIDATES, len(moves))))
        return write_policy_answer(PolicyAnswer(named, (0.0,) * len(named), draw.choice(moves)))

    def limits(self, values: Values | None) -> tuple[float, float] | None:
        """See `Task`: the mean win probability of the legal moves, and the best."""
        kept = [win_probability(cp) for cp in (values or {}).values()]
        return (math.fsum(kept) / len(kept), max(kept)) if kept else None

    def quality(self, score: Score) -> float:
        """50% best move, 30% candidates, 20% evaluations, the weights of this package's predecessors."""
        return math.fsum(weight * score[name] for name, weight in _QUALITY.items())

    def board(self, row: Row, completion: str, values: Values | None = None) -> str:
        """See `Task`: the position, the model's moves and the engine's best."""
        from .boards import policy_board  # only pictures need it

        answer = self.answer_or_fault("", completion)  # may be of a position alone
        return policy_board(row["fen"], answer, values)


POLICY = PolicyTask()
