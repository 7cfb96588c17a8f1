"""Suites `versus_model` and `versus_stockfish`: games in pairs that share an opening, and their Elo."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import chess

from ...common.errors import EngineError
from ...common.stats import Estimate, wilson
from ...engine import EngineArguments
from ...inference.replies import Choice, choose, reply_of
from ...models.decoding import Decoding
from ...tasks.policy import parse_policy_answer, write_policy_prompt
from ..engines import FullEngine, SkilledEngine, open_referee
from ..models import ModelArguments, open_model
from ..results import SuiteResult
from ..suite import Answerer, SuiteUnavailableError
from .games import Game, GameSuite, MoveReply, adjudication, score_games


class MatchSuite(GameSuite):
    """Games from openings, each opening played twice, once with each colour.

    The model plays as in a chess program: `inference.replies.choose` replaces an illegal or unreadable
    move, as `rookworld uci` does. `strict_score` says what the same games come to if such a move loses.
    A game that is cut off is judged by Stockfish, or a draw if none is installed, see
    `engines.open_referee`; one that python-chess ends without a mate is a draw.

    Args:
        suite_games: How many.
        suite_seed: Decides openings.
        engine_args: Which engine judges.

    Attributes:
        opponent: Its name.

    Raises:
        SuiteUnavailableError: An engine was named and is not there, or the one that is there fails.
    """

    opponent: str

    def __init__(self, suite_games: int, suite_seed: int, engine_args: EngineArguments) -> None:
        super().__init__(suite_games, suite_seed)
        self._engine_args = engine_args
        self._referee: FullEngine | None = None
        try:
            with open_referee(engine_args) or nullcontext() as referee:
                self.notes["adjudication"] = adjudication(referee)
        except EngineError as error:
            raise SuiteUnavailableError(str(error)) from error

    @abstractmethod
    def opponent_choices(self, games: Sequence[Game]) -> list[Choice]:
        """What the opponent plays in games in which it is its turn, at least one."""

    def starts(self, games: int, seed: int) -> dict[str, chess.Board]:
        """See `GameSuite`; both games of a pair start at the same board."""
        boards = super().starts(math.ceil(games / 2), seed)
        names = [f"{side} {fen}" for fen in boards for side in ("white", "black")]
        return {name: boards[name.split(" ", 1)[1]] for name in names[:games]}

    def run(self, model: Answerer) -> SuiteResult:
        """See `Suite`; scores have intervals by pairs of games, and a rating is added.

        Raises:
            EngineError: The engine that judges failed.
        """
        with open_referee(self._engine_args) or nullcontext() as self._referee:
            result = super().run(model)
        scores = {name: score_estimate(result.values[name]) for name in ("score", "strict_score")}
        rating = elo_difference(scores["score"])
        estimates = {**scores, **({"elo_difference": rating} if rating else {})}
        notes = {**result.notes, "opponent": self.opponent}
        return replace(result, estimates=estimates, notes=notes)

    def score(self, games: Sequence[Game]) -> None:
        """See `GameSuite`."""
        score_games(games, self._referee)

    def replies(self, model: Answerer, running: Sequence[Game]) -> list[MoveReply]:
        """See `GameSuite`; those of the model and of its opponent."""
        asked = [game for game in running if game.board.turn == side_of(game)]
        others = [game for game in running if game.board.turn != side_of(game)]
        choices = ask_choices(model, [game.board for game in asked])
        for game, choice in zip(asked, choices, strict=True):
            game.errors += [choice.fault] if choice.fault else []
        choices += self.opponent_choices(others) if others else []
        by_game = {game.name: one for game, one in zip([*asked, *others], choices, strict=True)}
        chosen = (by_game[game.name] for game in running)
        return [MoveReply(True, choice.move, choice.comment) for choice in chosen]

    def players(self, model: str, game: Game) -> tuple[str, str]:
        """See `GameSuite`."""
        return (model, self.opponent) if side_of(game) else (self.opponent, model)

    @staticmethod
    def judge(game: Game) -> dict[str, float]:
        """See `GameSuite`."""
        score = game.points if side_of(game) else 1 - game.points
        return {
            "score": score,
            "win": float(score == 1),
            "draw": float(score == 0.5),
            "capped": float(game.ending == "capped"),
            "strict_score": 0.0 if game.errors else score,
            "illegal_moves": len(game.errors),
            "half_moves": game.half_moves,
        }


def side_of(game: Game) -> chess.Color:
    """The model's."""
    return game.name.startswith("white")


def ask_choices(
    model: Answerer, boards: Sequence[chess.Board], decoding: Decoding | None = None
) -> list[Choice]:
    """What `rookworld uci` would play with a model's answers, all of them asked at once.

    Args:
        model: Answers policy prompts.
        boards: Positions, none of them over.
        decoding: How the answers are drawn; None takes the model's own.
    """
    if not boards:
        return []
    if decoding is None:
        answers = model.policy_answers(boards)
    else:
        prompts = [write_policy_prompt(board.fen()) for board in boards]
        answers = [text for (text,) in model.samples(prompts, 1, decoding)]
    return [
        choose(board, reply_of(answer, parse_policy_answer))
        for board, answer in zip(boards, answers, strict=True)
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
    shares = (score.value, *score.interval)
    value, low, high = (400 * math.log10(share / (1 - share)) for share in shares)
    return Estimate(value, low, high, score.n)


class VersusModelSuite(MatchSuite, packaged="versus_model"):
    """Games against another model, which answers as `model_args` say; see `MatchSuite`.

    Both play as in a chess program: illegal and unreadable moves are replaced. From one position, two
    greedy models always play the same game, so more games need more openings, not repetitions.

    Args:
        suite_games: How many.
        suite_seed: Decides openings.
        opponent: A packaged model's name, a folder, a Hub id, or ``random``.
        model_args: How the models under test answer, and so the opponent, which never looks ahead; None
            for the defaults.
        engine_args: Which engine judges games that are cut off; None for the defaults.

    Raises:
        SuiteUnavailableError: No opponent was given.
        RookWorldError: It could not be loaded.
    """

    def __init__(
        self,
        suite_games: int,
        suite_seed: int,
        opponent: str | None,
        model_args: ModelArguments | None = None,
        engine_args: EngineArguments | None = None,
    ) -> None:
        super().__init__(suite_games, suite_seed, engine_args or EngineArguments())
        if not opponent:
            raise SuiteUnavailableError("there is no opponent; give one with --opponent")
        self.opponent = opponent
        how = model_args or ModelArguments()
        self._player = open_model(opponent, replace(how, model_revision="main", lookahead=False))

    def opponent_choices(self, games: Sequence[Game]) -> list[Choice]:
        """See `MatchSuite`."""
        return ask_choices(self._player, [game.board for game in games])


class VersusStockfishSuite(MatchSuite, packaged="versus_stockfish"):
    """Games from openings, each opening played twice, once with each colour; see `MatchSuite`.

    Args:
        suite_games: How many.
        suite_seed: Decides openings, but not Stockfish's moves, see `SkilledEngine`.
        engine_args: Which engine.

    Raises:
        SuiteUnavailableError: No engine was found, or it has no skill levels.
    """

    def __init__(self, suite_games: int, suite_seed: int, engine_args: EngineArguments) -> None:
        try:
            with SkilledEngine(engine_args) as engine:
                self.opponent = engine.name
        except EngineError as error:
            raise SuiteUnavailableError(str(error)) from error
        super().__init__(suite_games, suite_seed, engine_args)
        self.notes["engine"] = f"{self.opponent}, depth 1; it chooses by chance"

    def run(self, model: Answerer) -> SuiteResult:
        """See `MatchSuite`.

        Raises:
            EngineError: See `SkilledEngine`.
        """
        with SkilledEngine(self._engine_args) as self._engine:
            return super().run(model)

    def opponent_choices(self, games: Sequence[Game]) -> list[Choice]:
        """See `MatchSuite`."""
        return list(map(Choice, self._engine.moves([game.board for game in games])))
