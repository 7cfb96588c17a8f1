"""What a model is asked, in the forms in which people give it; what it said; what it plays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import chess
import chess.pgn

from ..common.errors import NotationError, RookWorldError
from ..tasks import rules
from ..tasks.environment import write_environment_prompt
from ..tasks.policy import write_policy_prompt
from ..tasks.text import MAX_HISTORY, parse_decimal, parse_fen, parse_move
from ..tasks.types import EnvironmentAnswer, EnvironmentPrompt, PolicyAnswer

Position = str | chess.Board
"""A FEN, or a board of python-chess."""


Move = str | chess.Move
"""A move in UCI or in algebraic notation (SAN), or one of python-chess."""


Record = TypeVar("Record", bound=PolicyAnswer | EnvironmentAnswer, covariant=True)


@dataclass(frozen=True, slots=True)
class Reply(Generic[Record]):
    """What a model said, as text and as a record.

    Args:
        text: As the model wrote it.
        record: The same, parsed; None if it cannot be read.
        fault: Why it cannot be read; empty if it can.
    """

    text: str
    record: Record | None
    fault: str = ""

    def __repr__(self) -> str:
        """The record, or the text that is none and why."""
        said = f"{self.text!r}, fault={self.fault!r}" if self.record is None else repr(self.record)
        return f"Reply({said})"


def reply_of(text: str, read: Callable[[str], Record]) -> Reply[Record]:
    """What a model said, read as a record."""
    try:
        return Reply(text, read(text))
    except NotationError as error:
        return Reply(text, None, error.reason)


# --------------------------------------------------------------------------------------------------
# Positions and moves
# --------------------------------------------------------------------------------------------------
def read_position(position: Position) -> str:
    """A position's FEN, as python-chess writes it; without its clocks, those of a first move.

    Raises:
        NotationError: The FEN is malformed, or python-chess would change it, see `rules.check_fields`.
        IllegalPositionError: The position is not legal.
        RookWorldError: It is neither a FEN nor a board.
    """
    if not isinstance(position, str | chess.Board):
        raise RookWorldError(
            f"{position!r} is not a position; give a FEN or a chess.Board, or several to analyse_all"
        )
    given = position.fen() if isinstance(position, chess.Board) else position
    fields = given.split()
    if len(fields) not in (4, 6):
        counted = f"this has {len(fields)}" if fields else "this is empty"
        raise NotationError(
            f"a FEN has six fields, or four without its clocks, but {counted}", given
        )
    fen = parse_fen(" ".join(fields if len(fields) == 6 else [*fields, "0", "1"]))
    canonical = rules.canonical_fen(fen)
    rules.check_fields(chess.Board(fen), fen)
    return canonical


def read_board(position: Position) -> chess.Board:
    """A position's board, with its moves if it has any; see `read_position`.

    Its castling moves are e1g1 and the like, as models write them, also if it is a board of Chess960.
    """
    fen = read_position(position)
    if not isinstance(position, chess.Board):
        return rules.board_of(fen)
    board = position.copy()
    board.chess960 = False
    return board


def read_move(board: chess.Board, move: Move) -> chess.Move:
    """A move in a position; it may be illegal there, unless it is in SAN.

    Raises:
        RookWorldError: It is not a move, or in SAN illegal or ambiguous.
    """
    if isinstance(move, chess.Move) and move:
        return move
    if not isinstance(move, str):
        raise RookWorldError(f"{move!r} is not a move; {_LEGAL_MOVE}")
    try:
        return chess.Move.from_uci(parse_move(move))
    except ValueError:  # SAN, or a move from a square to itself
        pass
    try:
        if found := board.parse_san(move):  # python-chess also reads a null move
            return found
    except chess.IllegalMoveError:
        side = chess.COLOR_NAMES[board.turn].capitalize()
        raise RookWorldError(
            f"{move!r} is not a legal move of {side}'s here; {_LEGAL_MOVE}"
        ) from None
    except chess.AmbiguousMoveError:
        raise RookWorldError(f"{move!r} may mean several moves here; {_LEGAL_MOVE}") from None
    except ValueError:
        pass
    raise RookWorldError(f"{move!r} is not a move; {_LEGAL_MOVE}")


def read_legal_move(board: chess.Board, move: Move) -> chess.Move:
    """A legal move in a position.

    Raises:
        RookWorldError: It is unreadable, illegal or ambiguous.
    """
    try:
        return rules.read_legal(board, read_move(board, move).uci())
    except chess.IllegalMoveError as error:
        raise RookWorldError(f"{error}; {_LEGAL_MOVE}") from None


_LEGAL_MOVE = "give a legal move, as Nf3 or g1f3"


# --------------------------------------------------------------------------------------------------
# Prompts
# --------------------------------------------------------------------------------------------------
def policy_prompt(asked: Position) -> str:
    """The prompt that asks for an analysis.

    Raises:
        NotationError: The game is over there.
        RookWorldError: See `read_position`.
    """
    position = read_position(asked)
    if not rules.legal_moves(position):
        raise NotationError(f"nothing to analyse: {over(rules.board_of(position))}", position)
    return write_policy_prompt(position)


def environment_prompt(asked: Position, move: Move, history: Sequence[Move] = ()) -> str:
    """The prompt that asks for the state after a move.

    Args:
        asked: The position.
        move: A move there.
        history: The moves before it, in UCI or of python-chess; or in UCI in one text.

    Raises:
        RookWorldError: See `read_position` and `read_move`, or the history is not in UCI.
    """
    position = read_position(asked)
    action = read_move(rules.board_of(position), move).uci()
    moves = history.split() if isinstance(history, str) else history
    before = [one.uci() if isinstance(one, chess.Move) else parse_move(one) for one in moves]
    told = (*before, action)[-MAX_HISTORY:]
    return write_environment_prompt(EnvironmentPrompt(position, action, told))


def record_of(
    board: chess.Board, white: str, black: str, comments: Mapping[int, str], **headers: str
) -> chess.pgn.Game:
    """A game for a PGN file, with comments by the ply of the move that they follow."""
    game = chess.pgn.Game.from_board(board)
    game.headers.update(White=white, Black=black, **headers)
    for node in game.mainline():
        node.comment = comments.get(node.ply(), "")
    return game


def over(board: chess.Board) -> str:
    """How a game has ended, in a word or two; empty if it goes on."""
    outcome = board.outcome()
    return "" if outcome is None else outcome.termination.name.lower().replace("_", " ")


# --------------------------------------------------------------------------------------------------
# Replies
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Choice:
    """The move that is played for an answer.

    Args:
        move: A legal move.
        pawns: What the model says that it is worth, from the side to move; None if it does not say.
        fault: Why the model's best move cannot be played, a sentence; empty if it can.
        note: Why another move is played though that one is legal, a sentence; empty if it is played.
    """

    move: chess.Move
    pawns: float | None = None
    fault: str = ""
    note: str = ""

    @property
    def comment(self) -> str:
        """Why it is not the model's best move; empty if it is."""
        return self.fault or self.note


def no_answer(board: chess.Board, why: str) -> Choice:
    """The first legal move in python-chess's order, for a model that gives none."""
    move = next(iter(board.legal_moves))
    return Choice(move, fault=f"{why}; {move.uci()}, the first legal move, is played")


def choose(
    board: chess.Board,
    reply: Reply[PolicyAnswer],
    otherwise: Callable[[chess.Board, str], Choice] = no_answer,
) -> Choice:
    """The model's best move; else its best legal candidate; else, as it names none, another move.

    A prompt has the position alone, so a model cannot know that it goes round in circles. Here, a move
    that brings back a position of the game is worth a draw: a candidate that the model says to be better
    than a draw is played in its place.

    Args:
        board: The position, with the moves before it if they are known; it has a legal move.
        reply: What the model said of it.
        otherwise: Gives that other move, from the position and why it is needed.
    """
    if reply.record is None:
        return otherwise(board, f"the model's answer cannot be read ({reply.fault})")
    candidates = legal_candidates(board, reply.record)
    best = rules.legal_move(board, reply.record.best_move)
    if best is not None:
        return _unless_repeated(board, best, candidates)
    fault = f"the model's best move {reply.record.best_move} is illegal"
    if not candidates:
        return otherwise(board, f"{fault}, and none of its candidates can be played")
    return _best_of(board, candidates, fault)


def _unless_repeated(
    board: chess.Board, best: chess.Move, candidates: Mapping[chess.Move, float | None]
) -> Choice:
    """The best move; or, if it repeats a position, the best candidate that is better than a draw."""
    played = Choice(best, candidates.get(best))
    if not repeats(board, best):
        return played
    values = with_draws(board, candidates)
    better = {move: pawns for move, pawns in values.items() if pawns is not None and pawns > 0}
    if not better:
        return played
    move = max(better, key=better.__getitem__)
    note = f"the model's best move {best.uci()} repeats a position; {move.uci()} is played"
    return Choice(move, better[move], note=note)


Pawns = TypeVar("Pawns", float, float | None)


def with_draws(
    board: chess.Board, candidates: Mapping[chess.Move, Pawns]
) -> dict[chess.Move, Pawns]:
    """Candidates and their values in pawns; of those that have one, a repetition has that of a draw."""
    return {
        move: 0.0 if pawns is not None and repeats(board, move) else pawns
        for move, pawns in candidates.items()
    }


def repeats(board: chess.Board, move: chess.Move) -> bool:
    """Whether a legal move brings back a position of the game.

    >>> board = chess.Board()
    >>> for move in ("g1f3", "g8f6", "f3g1"):
    ...     _ = board.push_uci(move)
    >>> repeats(board, chess.Move.from_uci("f6g8")), repeats(board, chess.Move.from_uci("e7e5"))
    (True, False)
    """
    if board.halfmove_clock < _SHORTEST_CIRCLE - 1 or board.is_zeroing(move):
        return False
    after = board.copy(stack=board.halfmove_clock)
    after.push(move)
    return after.is_repetition(2)


_SHORTEST_CIRCLE = 4  # half-moves: each side goes and comes back


def choose_so_far(board: chess.Board, text: str) -> Choice:
    """The best legal candidate of an answer that was cut off; else the first legal move.

    As in `choose`, a move that brings back a position of the game is worth a draw.

    Args:
        board: The position, with the moves before it if they are known; it has a legal move.
        text: What the model had written; its last word may be cut off and does not count.
    """
    fault = "the model had not answered when it was stopped"
    whole = text[: text.rfind(" ") + 1]
    moves, _, rest = whole.partition("M:")[2].partition("E:")
    try:
        pawns = tuple(map(parse_decimal, rest.partition("B:")[0].split()))
    except NotationError:
        pawns = ()
    candidates = legal_candidates(board, PolicyAnswer(tuple(moves.split()), pawns, ""))
    return _best_of(board, candidates, fault) if candidates else no_answer(board, fault)


def _best_of(
    board: chess.Board, candidates: Mapping[chess.Move, float | None], fault: str
) -> Choice:
    """The candidate with the highest evaluation, a repetition counted as a draw.

    If none has an evaluation, it is the first one that repeats no position; else the first one.
    """
    values = with_draws(board, candidates)
    evaluated = {move: pawns for move, pawns in values.items() if pawns is not None}
    if evaluated:
        move = max(evaluated, key=evaluated.__getitem__)
    else:
        new = (move for move in candidates if not repeats(board, move))
        move = next(new, next(iter(candidates)))
    why = f"{fault}; its best legal candidate {move.uci()} is played"
    return Choice(move, candidates[move], why)


def legal_candidates(board: chess.Board, answer: PolicyAnswer) -> dict[chess.Move, float | None]:
    """The legal moves of `M`, each with its first `E`."""
    candidates: dict[chess.Move, float | None] = {}
    for text, pawns in itertools.zip_longest(answer.moves, answer.evaluations):
        move = rules.legal_move(board, text) if text else None
        if move is not None:
            candidates.setdefault(move, pawns)
    return candidates
