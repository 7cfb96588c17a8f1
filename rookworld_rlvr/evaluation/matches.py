"""Games against an opponent, in pairs that share an opening, and the Elo difference that they show."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import chess

from ..common.stats import Estimate, wilson
from ..inference.model import Choice, choose, policy_prompt, reply_of
from ..tasks.policy import parse_policy_answer
from .answerers import Answerer
from .games import Game, GameSuite, Reply
from .suite import Metric, SuiteResult

ELO_SCALE = 400


class MatchSuite(GameSuite):
    """Games from openings, each opening played twice, once with each colour.

    The model plays as in a chess program: `inference.model.choose` replaces an illegal or unreadable
    move, as `rookworld uci` does. `strict_score` says what the same games come to if such a move loses.
    A game is a draw if it is cut off, or if python-chess ends it without a mate.

    Attributes:
        opponent: Its name.
    """

    opponent: str
    headline = "score"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "score": Metric("mean", "1 for a win, 0.5 for a draw, 0 for a loss."),
        "elo_difference": Metric(
            "mean", "Elo rating of the model less the opponent's, from the score."
        ),
        "win": Metric("share", "The model mates."),
        "draw": Metric("share", "Neither side mates; a game that is cut off counts."),
        "strict_score": Metric(
            "mean", "As `score`, but an illegal or unreadable move of the model loses the game."
        ),
        "illegal_moves": Metric(
            "mean", "Illegal and unreadable moves of the model in a game; each is replaced."
        ),
        "half_moves": Metric("mean", "Legal moves of both sides since the starting position."),
    }

    @abstractmethod
    def opponent_moves(self, games: Sequence[Game]) -> list[chess.Move]:
        """What the opponent plays in games in which it is its turn, at least one."""

    def starts(self, games: int, seed: int) -> dict[str, chess.Board]:
        """See `GameSuite`; both games of a pair start at the same board."""
        boards = super().starts(math.ceil(games / 2), seed)
        names = [f"{side} {fen}" for fen in boards for side in ("white", "black")]
        return {name: boards[name.split(" ", 1)[1]] for name in names[:games]}

    def run(self, model: Answerer) -> SuiteResult:
        """See `Suite`; scores have intervals by pairs of games, and a rating is added."""
        result = super().run(model)
        scores = {name: score_estimate(result.values[name]) for name in ("score", "strict_score")}
        rating = elo_difference(scores["score"])
        estimates = {**scores, **({"elo_difference": rating} if rating else {})}
        notes = {**result.notes, "opponent": self.opponent}
        return replace(result, estimates=estimates, notes=notes)

    def replies(self, model: Answerer, running: Sequence[Game]) -> list[Reply]:
        """See `GameSuite`; those of the model and of its opponent."""
        asked = [game for game in running if game.board.turn == side_of(game)]
        others = [game for game in running if game.board.turn != side_of(game)]
        moves: dict[str, chess.Move] = {}
        for game, choice in zip(asked, ask_choices(model, asked), strict=True):
            moves[game.name] = choice.move
            game.errors += [choice.fault] if choice.fault else []
        answers = self.opponent_moves(others) if others else []
        moves |= {game.name: move for game, move in zip(others, answers, strict=True)}
        return [Reply(True, moves[game.name]) for game in running]

    def players(self, model: str, game: Game) -> tuple[str, str]:
        """See `GameSuite`."""
        return (model, self.opponent) if side_of(game) else (self.opponent, model)

    @staticmethod
    def judge(game: Game) -> dict[str, float]:
        """See `GameSuite`."""
        outcome = game.board.outcome()
        winner = outcome.winner if outcome else None
        score = 0.5 if winner is None else float(winner == side_of(game))
        return {
            "score": score,
            "win": float(score == 1),
            "draw": float(score == 0.5),
            "strict_score": 0.0 if game.errors else score,
            "illegal_moves": len(game.errors),
            "half_moves": game.half_moves,
        }


def side_of(game: Game) -> chess.Color:
    """The model's."""
    return game.name.startswith("white")


def ask_choices(model: Answerer, games: Sequence[Game]) -> list[Choice]:
    """What `rookworld uci` would play with a model's answers, all of them asked at once."""
    prompts = [policy_prompt(game.board) for game in games]
    answers = model.answers(prompts) if prompts else []
    return [
        choose(game.board, reply_of(answer, parse_policy_answer))
        for game, answer in zip(games, answers, strict=True)
    ]


# --------------------------------------------------------------------------------------------------
# Scores and ratings
# --------------------------------------------------------------------------------------------------
def score_estimate(scores: Mapping[str, float]) -> Estimate:
    """The mean score of games, with a 95% interval by pairs of games that share an opening.

    An unbalanced opening is won once by each player, so pairs vary less than games do. The interval is
    Wilson's for as many games, each won or lost, as would vary like the mean of these pairs. Before, two
    pairs are added, one won and one lost, as Agresti and Coull do: few pairs may look too much alike.

    Args:
        scores: 1, 0.5 or 0 by game, at least one; names are those of `MatchSuite.starts`.

    Source: the pentanomial model of https://www.chessprogramming.org/Match_Statistics; A. Agresti and
    B. A. Coull, The American Statistician 52 (1998), pages 119-126.
    """
    by_opening = defaultdict(list)
    for name, score in scores.items():
        by_opening[name.split(" ", 1)[1]].append(score)
    pairs = [sum(games) / len(games) for games in by_opening.values()]
    mean = sum(scores.values()) / len(scores)
    around = (sum(pairs) + 1) / (len(pairs) + 2)
    variance = sum((score - around) ** 2 for score in (*pairs, 0, 1)) / (len(pairs) + 2)
    like = around * (1 - around) / variance * len(pairs)
    return Estimate(mean, *wilson(mean, like), len(scores))


def elo_difference(score: Estimate) -> Estimate | None:
    """The difference of two players' ratings, from what one scores against the other.

    ``d = 400 log10(s / (1 - s))``, for the score and both ends of its interval; None if the score is 0
    or 1, which no finite difference explains.

    Source: A. E. Elo, "The Rating of Chessplayers, Past and Present" (1978), its logistic form.
    """
    if not 0 < score.value < 1:
        return None
    value, low, high = (
        ELO_SCALE * math.log10(share / (1 - share))
        for share in (score.value, score.low, score.high)
    )
    return Estimate(value, low, high, score.n)
