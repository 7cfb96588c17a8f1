"""Games played side by side: where they start, how they end; each ply asks for all of them at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import chess
import chess.pgn

from ..common.errors import NotationError
from ..common.progress import Progress
from ..data import synthesis
from ..data.loading import HELDOUT_SHARE, is_held_out
from ..tasks import rules
from ..tasks.policy import parse_policy_answer, write_policy_prompt
from .answerers import Answerer
from .suite import Judged, Suite

OPENING_PLIES = 4
MOST_PLIES = 200  # half-moves after which a game is cut off


Ending = Literal["rules", "illegal", "unreadable", "capped", "stopped"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model plays.

    Args:
        readable: Whether the answer could be read.
        move: `B` if it is legal, else None.
        is_last: Whether the game stops after this move.
    """

    readable: bool
    move: chess.Move | None
    is_last: bool = False


@dataclass(slots=True)
class Game:
    """A game, under way or over.

    Args:
        name: The suite's item.
        board: Its position, with the moves since the start of the game.
        half_moves: Legal moves since the suite's starting position, of both sides.
        ending: None while it is under way; else why it is over: by the rules as python-chess ends it,
            without a claim (checkmate, stalemate, insufficient material, 75 moves, fivefold repetition);
            by an illegal or unreadable move; because it was cut off; or because a suite stopped it, see
            `Reply`.
        errors: What a suite notes of the model's answers.
    """

    name: str
    board: chess.Board
    half_moves: int = 0
    ending: Ending | None = None
    errors: list[str] = field(default_factory=list)

    def take(self, reply: Reply) -> None:
        """Play the move of the side to move, or end the game if the reply has none."""
        if reply.move is None:
            self.ending = "illegal" if reply.readable else "unreadable"
            return
        self.board.push(reply.move)
        self.half_moves += 1
        if self.board.is_game_over():
            self.ending = "rules"
        elif self.half_moves == MOST_PLIES:
            self.ending = "capped"
        elif reply.is_last:
            self.ending = "stopped"


def openings(count: int, seed: int) -> list[chess.Board]:
    """Different positions of the held-out tenth, after four random plies, with their moves."""
    boards: dict[str, chess.Board] = {}
    stream = synthesis.opening_games(seed, OPENING_PLIES)
    while len(boards) < count:
        board = next(stream)
        if is_held_out(board.fen(), HELDOUT_SHARE):
            boards.setdefault(rules.position_key(board.fen()), board)
    return list(boards.values())


class GameSuite(Suite[chess.Board]):
    """A suite whose items are games from held-out openings.

    Args:
        suite_games: How many.
        suite_seed: Decides the starting positions.

    Attributes:
        played: The games that the model asked last has played.
    """

    played: Sequence[Game] = ()

    about = f"Games from held-out positions after {OPENING_PLIES} random plies."

    def __init__(self, suite_games: int, suite_seed: int) -> None:
        super().__init__(self.starts(suite_games, suite_seed), suite_seed)

    def starts(self, games: int, seed: int) -> dict[str, chess.Board]:
        """Where each game starts, by its name."""
        return {board.fen(): board for board in openings(games, seed)}

    def positions(self) -> dict[str, str]:
        """See `Suite`."""
        return {name: board.fen() for name, board in self.items.items()}

    def judged(self, model: Answerer) -> Iterator[Judged]:
        """See `Suite`; plays all games to their ends, one ply of all running games at a time."""
        games = [Game(name, board.copy()) for name, board in self.items.items()]
        title = f"{model.name}: {self.name}"
        with Progress(title, MOST_PLIES, "half-moves at most") as progress:
            while running := [game for game in games if game.ending is None]:
                for game, reply in zip(running, self.replies(model, running), strict=True):
                    game.take(reply)
                progress.update(1)
        self.played = games
        for game in games:
            yield game.name, self.judge(game), ()

    def pgn(self, model: str) -> str:
        """The games that were played last, in PGN; a game that was cut off is drawn.

        Args:
            model: The name of the one that played.
        """
        texts = []
        for number, game in enumerate(self.played, 1):
            record = chess.pgn.Game.from_board(game.board)
            white, black = self.players(model, game)
            record.headers.update(
                Event=f"rookworld-rlvr, {self.name}", Round=str(number), White=white, Black=black
            )
            if game.ending == "capped":
                record.headers["Result"] = "1/2-1/2"
            texts.append(f"{record}\n")
        return "\n".join(texts)

    def players(self, model: str, game: Game) -> tuple[str, str]:
        """Who plays White and who Black."""
        return model, model

    def replies(self, model: Answerer, running: Sequence[Game]) -> list[Reply]:
        """The moves of the sides to move, by default the model's for both."""
        return ask_moves(model, [game.board for game in running])

    @staticmethod
    @abstractmethod
    def judge(game: Game) -> dict[str, float]:
        """The suite's metrics for one game that is over."""


def ask_moves(model: Answerer, boards: Sequence[chess.Board]) -> list[Reply]:
    """What a model plays in each position, all of them asked at once.

    Args:
        model: Answers policy prompts.
        boards: `N` positions, at least one, none of them over.
    """
    prompts = [write_policy_prompt(board.fen()) for board in boards]
    return [
        read_reply(board, completion)
        for board, completion in zip(boards, model.answers(prompts), strict=True)
    ]


def read_reply(board: chess.Board, completion: str) -> Reply:
    """A policy answer's `B`, as `rules.transition` would take it."""
    try:
        answer = parse_policy_answer(completion)
    except NotationError:
        return Reply(False, None)
    try:
        return Reply(True, board.parse_uci(answer.best_move))
    except ValueError:
        return Reply(True, None)
