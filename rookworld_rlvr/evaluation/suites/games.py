"""Suites `self_play` and `closed_loop`, and games in general; each ply asks for all of them at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Literal, TypeVar

import chess

from ...common.progress import Progress
from ...data import synthesis
from ...data.loading import HELDOUT_SHARE, is_held_out
from ...data.parsing import prompt_of
from ...inference.replies import record_of, reply_of
from ...tasks import rules
from ...tasks.environment import score_environment, write_environment_prompt
from ...tasks.policy import parse_policy_answer
from ..engines import FullEngine
from ..suite import Answerer, Judged, Suite

OPENING_PLIES = 4
MOST_PLIES = 200  # half-moves after which a game is cut off

ADJUDICATED_CP = 300
"""A game that is cut off is won from this many centipawns on, by the engine; otherwise it is drawn."""


@dataclass(frozen=True, slots=True)
class MoveReply:
    """What a model plays.

    Args:
        readable: Whether the answer could be read.
        move: `B` if it is legal, else None.
        comment: For the PGN.
    """

    readable: bool
    move: chess.Move | None
    comment: str = ""


@dataclass(slots=True)
class Game:
    """A game, under way or over.

    Args:
        name: The suite's item.
        board: Its position, with the moves since the start of the game.
        half_moves: Legal moves since the suite's starting position, of both sides.
        ending: None while it is under way; else why it is over: by the rules as python-chess ends it,
            without a claim (checkmate, stalemate, insufficient material, 75 moves, fivefold repetition);
            by an illegal or unreadable move; because it was cut off; or stopped at an error.
        errors: What a suite notes of the model's answers.
        comments: For the PGN, by the ply of the move that they follow.
        points: What White scored, once the game is over and scored, see `score_games`.
    """

    name: str
    board: chess.Board
    half_moves: int = 0
    ending: Literal["rules", "illegal", "unreadable", "capped", "stopped"] | None = None
    errors: list[str] = field(default_factory=list)
    comments: dict[int, str] = field(default_factory=dict)
    points: float = 0.5

    def take(self, reply: MoveReply) -> None:
        """Play the move of the side to move, or end the game if the reply has none."""
        if reply.move is None:
            self.ending = "illegal" if reply.readable else "unreadable"
            self.comments[self.board.ply()] = reply.comment
            return
        if not self.half_moves:
            self.comments[self.board.ply()] = "here the suite's opening ends"
        self.board.push(reply.move)
        self.half_moves += 1
        if reply.comment:
            self.comments[self.board.ply()] = reply.comment
        if self.board.is_game_over():
            self.ending = "rules"
        elif self.half_moves == MOST_PLIES:
            self.ending = "capped"


Played = TypeVar("Played", bound=Game)

RESULTS = {0.0: "0-1", 0.5: "1/2-1/2", 1.0: "1-0"}
"""What White scored, and how a PGN says it."""


def score_games(games: Sequence[Game], engine: FullEngine | None) -> None:
    """Note what White scored in games that are over.

    Args:
        games: Any number.
        engine: Judges those that are cut off, see `ADJUDICATED_CP`; without one they are drawn.
    """
    cut_off = [game for game in games if game.ending == "capped"]
    boards = [game.board for game in cut_off]
    values = engine.verdicts(boards) if engine and boards else [0] * len(boards)
    for game, value in zip(cut_off, values, strict=True):
        game.points = 0.5 if abs(value) < ADJUDICATED_CP else float(value > 0)
    for game in (game for game in games if game.ending != "capped"):
        outcome = game.board.outcome()
        winner = outcome.winner if outcome else None
        game.points = 0.5 if winner is None else float(winner)


def adjudication(engine: FullEngine | None) -> str:
    """What the notes of a suite say of games that are cut off."""
    if engine is None:
        return "no engine: games that are cut off are drawn"
    return (
        f"{engine.name}, depth {engine.verdict_depth}: a game that is cut off is won from "
        f"{ADJUDICATED_CP} centipawns on"
    )


def openings(count: int, seed: int, held_out: bool = True) -> list[chess.Board]:
    """Different positions after four random plies, with their moves; of the held-out tenth, or not."""
    boards: dict[str, chess.Board] = {}
    stream = synthesis.opening_games(seed, OPENING_PLIES)
    while len(boards) < count:
        board = next(stream)
        if is_held_out(board.fen(), HELDOUT_SHARE) == held_out:
            boards.setdefault(rules.position_key(board.fen()), board)
    return list(boards.values())


class PlayedSuite(Suite[chess.Board], Generic[Played]):
    """A suite whose items are positions from which games are played.

    Attributes:
        played: The games that were played last.
    """

    played: Sequence[Played] = ()

    def positions(self) -> dict[str, str]:
        """See `Suite`."""
        return {name: board.fen() for name, board in self.items.items()}

    def pgn(self, model: str) -> str:
        """The games that were played last, in PGN; a game that was cut off is adjudicated.

        Args:
            model: The name of the one that played.
        """
        texts = []
        for number, game in enumerate(self.played, 1):
            headers = {"Event": f"rookworld-rlvr, {self.name}", "Round": str(number)}
            board = self.final_board(game)
            record = record_of(board, *self.players(model, game), game.comments, **headers)
            if game.ending in ("illegal", "unreadable"):
                record.headers["Termination"] = "rules infraction"
            elif game.ending == "capped":
                record.headers.update(Result=RESULTS[game.points], Termination="adjudication")
                last = record.end()
                last.comment = f"{last.comment} cut off after {MOST_PLIES} half-moves".strip()
            texts.append(f"{record}\n")
        return "\n".join(texts)

    def final_board(self, game: Played) -> chess.Board:
        """A game's last position, with its moves."""
        return game.board

    @abstractmethod
    def players(self, model: str, game: Played) -> tuple[str, str]:
        """Who plays White and who Black."""


class GameSuite(PlayedSuite[Game]):
    """A suite whose items are games from held-out openings.

    Args:
        suite_games: How many.
        suite_seed: Decides the starting positions.

    Attributes:
        stops_at_errors: Whether a game ends at the first of its `errors`.
    """

    stops_at_errors: ClassVar[bool] = False

    def __init__(self, suite_games: int, suite_seed: int) -> None:
        super().__init__(self.starts(suite_games, suite_seed), suite_seed)

    def starts(self, games: int, seed: int) -> dict[str, chess.Board]:
        """Where each game starts, by its name."""
        return {board.fen(): board for board in openings(games, seed)}

    def judged(self, model: Answerer) -> Iterator[Judged]:
        """See `Suite`; plays all games to their ends, one ply of all running games at a time."""
        games = [Game(name, board.copy()) for name, board in self.items.items()]
        title = f"{model.name}: {self.name}"
        with Progress(title, MOST_PLIES, "half-moves at most") as progress:
            while running := [game for game in games if game.ending is None]:
                for game, reply in zip(running, self.replies(model, running), strict=True):
                    game.take(reply)
                    if self.stops_at_errors and game.errors:
                        game.ending = game.ending or "stopped"
                progress.update(1)
        self.played = games
        self.score(games)
        for game in games:
            yield game.name, self.judge(game), ()

    def score(self, games: Sequence[Game]) -> None:
        """Note who won, once all games are over; by default nobody does."""

    def players(self, model: str, game: Game) -> tuple[str, str]:
        """See `PlayedSuite`."""
        return model, model

    def replies(self, model: Answerer, running: Sequence[Game]) -> list[MoveReply]:
        """The moves of the sides to move, by default the model's for both."""
        return ask_moves(model, [game.board for game in running])

    @staticmethod
    @abstractmethod
    def judge(game: Game) -> dict[str, float]:
        """The suite's metrics for one game that is over."""


def ask_moves(model: Answerer, boards: Sequence[chess.Board]) -> list[MoveReply]:
    """What a model plays in each position, all of them asked at once.

    Args:
        model: Answers policy prompts.
        boards: `N` positions, at least one, none of them over.
    """
    answered = zip(boards, model.policy_answers(boards), strict=True)
    return [read_reply(board, completion) for board, completion in answered]


def read_reply(board: chess.Board, completion: str) -> MoveReply:
    """A policy answer's `B`, as `rules.transition` would take it."""
    answer = reply_of(completion, parse_policy_answer).record
    if answer is None:
        return MoveReply(False, None, "the model's answer cannot be read")
    move = rules.legal_move(board, answer.best_move)
    return MoveReply(True, move, "" if move else f"the model's move {answer.best_move} is illegal")


class SelfPlaySuite(GameSuite, packaged="self_play"):
    """Games of a model against itself, each from another opening.

    From one position, a greedy model always plays the same game. RookWorld's README gives 36.3 legal
    half-moves; its games may start from other positions.

    A game that is cut off, and one that ends by the rules, counts with all its half-moves, so the mean
    is a lower bound.
    """

    @staticmethod
    def judge(game: Game) -> dict[str, float]:
        """See `GameSuite`."""
        return {
            "legal_half_moves": game.half_moves,
            "finished": game.ending == "rules",
            "capped": game.ending == "capped",
            "illegal_end": game.ending == "illegal",
            "unreadable_end": game.ending == "unreadable",
        }


class ClosedLoopSuite(GameSuite, packaged="closed_loop"):
    """Games that a model imagines: its policy answer is the action, its environment answer the state.

    A game stops at the first error. Until then the model's state equals python-chess's, so it does not
    matter which of them is fed back. A fivefold repetition ends a game too, though no prompt shows it.
    """

    stops_at_errors = True

    def replies(self, model: Answerer, running: Sequence[Game]) -> list[MoveReply]:
        """Ask for all moves, then for the states after them; a wrong state stops its game."""
        replies = super().replies(model, running)
        asked = [
            (game, prompt_of(game.board, reply.move.uci()))
            for game, reply in zip(running, replies, strict=True)
            if reply.move
        ]
        prompts = [write_environment_prompt(prompt) for _, prompt in asked]
        states = model.answers(prompts) if prompts else []
        for (game, prompt), state in zip(asked, states, strict=True):
            if not score_environment(prompt.fen, prompt.action, state)["exact"]:
                game.errors.append("wrong state")
        return replies

    @staticmethod
    def judge(game: Game) -> dict[str, float]:
        """See `GameSuite`."""
        state_error = bool(game.errors)
        return {
            "right_plies": game.half_moves - state_error,
            "finished": game.ending == "rules" and not state_error,
            "capped": game.ending == "capped" and not state_error,
            "state_error": state_error,
            "illegal_move": game.ending == "illegal",
            "unreadable_move": game.ending == "unreadable",
        }
