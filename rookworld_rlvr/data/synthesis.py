"""Environment and fill-in rows made from random games, in chosen shares of kinds; and positions.

The seed decides everything. The kind of each row is drawn independently, so shares hold for any
prefix of the stream, and a stream of 1,000 rows is the beginning of one of 10,000.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import islice
from typing import Any, TypeVar

import chess

from ..common.errors import NotationError, RookWorldError
from ..tasks import fill_in_record as record
from ..tasks import positions, rules
from ..tasks.environment import ENVIRONMENT, write_environment_prompt
from ..tasks.fill_in import FILL_IN
from ..tasks.policy import POLICY, write_policy_prompt
from ..tasks.types import FILL_IN_FIELDS, EnvironmentPrompt, FillInField, action_values_column
from .parsing import prompt_of
from .sources import FIELD_SHARES, KIND_SHARES, Row

T = TypeVar("T")


_Chooser = Callable[[random.Random, chess.Board], str | None]


_LONGEST_GAME = 200


_TRIES = 10_000


_FILL_IN_TRIES = 1_000


def environment_prompts(
    seed: int, shares: Mapping[str, float] = KIND_SHARES, opening_plies: int = 12
) -> Iterator[EnvironmentPrompt]:
    """An endless stream of environment prompts.

    Args:
        seed: Same seed, same stream.
        shares: How often each kind is drawn; a kind without a share never is.
        opening_plies: `openings` and `double_steps` start from positions after 0 to `opening_plies` - 1
            plies; so do `illegal_actions` if no other kind has a share.
    """
    rng = random.Random(seed)
    kinds = {kind: shares.get(kind, 0.0) for kind in KIND_SHARES}
    only_openings = kinds["openings"] + kinds["double_steps"] + kinds["illegal_actions"] == 1

    def step(choose: _Chooser, *plies: int) -> EnvironmentPrompt | None:
        board = _random_game(rng, rng.randrange(*plies))
        action = choose(rng, board)
        return None if action is None else prompt_of(board, action)

    makers: Mapping[str, Callable[[], EnvironmentPrompt | None]] = {
        "openings": lambda: step(_any_move, opening_plies),
        "double_steps": lambda: step(_double_step, opening_plies),
        "special_moves": lambda: _special(rng),
        "game_ends": lambda: _game_end(rng),
        "illegal_actions": lambda: step(illegal_action, opening_plies if only_openings else 80),
        "middle_games": lambda: step(_any_move, 8, 120),
    }
    names, weights = list(kinds), list(kinds.values())
    while True:
        (kind,) = rng.choices(names, weights)
        yield _until_found(makers[kind])


def first_plies() -> Iterator[EnvironmentPrompt]:
    """Every legal move of a game's first two plies: 20 from the start, 400 from the 20 positions after.

    These 420 rows are the whole of the set, so some of their positions are held out and the others are
    trained on; see `loading.is_held_out`.
    """
    board = chess.Board()
    yield from (prompt_of(board, move.uci()) for move in board.legal_moves)
    for first in list(board.legal_moves):
        board.push(first)
        yield from (prompt_of(board, move.uci()) for move in board.legal_moves)
        board.pop()


def is_first_ply(row: Row) -> bool:
    """Whether it is an environment row about one of the 21 positions of `first_plies`."""
    return row["task"] == ENVIRONMENT.name and rules.position_key(row["fen"]) in _first_positions()


@cache
def _first_positions() -> frozenset[str]:
    return frozenset(rules.position_key(prompt.fen) for prompt in first_plies())


def mirror_images(rows: Iterable[Row]) -> Iterator[Row]:
    """The mirror images of the policy rows with values."""
    for row in rows:
        if row["task"] == POLICY.name and row["action_values"]:
            fen = positions.mirrored(row["fen"])
            values = {positions.mirrored_move(v["move"]): v["cp"] for v in row["action_values"]}
            prompt = write_policy_prompt(fen)
            answer = POLICY.truth(prompt, values) or ""
            yield POLICY.row(prompt, answer, EnvironmentPrompt(fen), action_values_column(values))


def environment_row(prompt: EnvironmentPrompt) -> dict[str, Any]:
    """A row with the columns that `sources` documents and python-chess's answer."""
    text = write_environment_prompt(prompt)
    return ENVIRONMENT.row(text, ENVIRONMENT.truth(text), prompt)


def fill_in_rows(
    seed: int,
    fields: Mapping[str, float] = FIELD_SHARES,
    kinds: Mapping[str, float] = KIND_SHARES,
    opening_plies: int = 12,
) -> Iterator[dict[str, Any]]:
    """An endless stream of fill-in rows, made from environment prompts.

    Half of the masked ranks are ranks that the action changes; the others are any.

    Args:
        seed: Same seed, same stream.
        fields: How often each field is masked; a field without a share never is.
        kinds: Shares of the environment prompts, see `environment_prompts`.
        opening_plies: See `environment_prompts`.
    """
    rng = random.Random(f"{seed} fill in")
    prompts = environment_prompts(rng.getrandbits(32), kinds, opening_plies)
    shares = [fields.get(name, 0.0) for name in FILL_IN_FIELDS]
    while True:
        (field,) = rng.choices(FILL_IN_FIELDS, shares)
        rows = (fill_in_row(rng, asked, field) for asked in islice(prompts, _FILL_IN_TRIES))
        row = next(filter(None, rows), None)
        if row is None:
            raise RookWorldError(
                f"synthetic_fill_in_rows: nothing to hide as {field!r} in {_FILL_IN_TRIES} prompts of "
                f"the kinds {dict(kinds)} (the history needs whole openings of two plies or more, the "
                "action a legal move); give other kinds in synthetic_shares"
            )
        yield row


def fill_in_row(
    rng: random.Random, asked: EnvironmentPrompt, field: FillInField
) -> dict[str, Any] | None:
    """A row with the columns that `sources` documents; None if the field cannot be masked or judged.

    Args:
        rng: Chooses the place if the field appears several times.
        asked: The record's state, action and history; python-chess gives the rest.
        field: What is masked.
    """
    answered = rules.transition(asked.fen, asked.action)
    is_changed = field == "rank" and rng.random() < 0.5
    places = list(_places(asked, answered.fen, field, is_changed))
    if not places:
        return None
    try:
        prompt, hidden = record.mask(asked, answered, *rng.choice(places))
        record.check_answer(prompt, hidden)
    except NotationError:
        return None
    return FILL_IN.row(
        record.write_fill_in_prompt(prompt), record.write_fill_in_answer(hidden), asked
    )


def _places(
    asked: EnvironmentPrompt, next_fen: str, field: FillInField, is_changed: bool
) -> Iterator[tuple[str, int | None]]:
    """Columns and parts in which a field appears; with `is_changed`, only if the two states differ."""
    if field == "history":
        yield from (("history", move) for move in range(len(asked.history) - 1))
    elif field == "flags":
        yield from (("terminated", None), ("truncated", None))
    elif field in record.Columns._fields:
        yield field, None
    else:
        before, after = record.fen_parts(asked.fen), record.fen_parts(next_fen)
        for part, name in enumerate(record.FEN_FIELDS):
            if name == field and not (is_changed and before[part] == after[part]):
                yield from ((column, part) for column in record.FEN_COLUMNS)


def opening_positions(seed: int, max_plies: int) -> Iterator[str]:
    """An endless stream of FENs after 1 to `max_plies` random legal plies, without finished games.

    Args:
        seed: Same seed, same stream.
        max_plies: Length of the longest game.
    """
    rng = random.Random(seed)
    while True:
        board = _random_game(rng, rng.randint(1, max_plies))
        if not board.is_game_over():
            yield board.fen()


def opening_games(seed: int, plies: int) -> Iterator[chess.Board]:
    """An endless stream of games after `plies` random legal plies, without finished ones.

    Args:
        seed: Same seed, same stream.
        plies: Length of each.
    """
    rng = random.Random(seed)
    while True:
        board = _random_game(rng, plies)
        if board.ply() == plies and not board.is_game_over():
            yield board


def mate_in_one_positions(seed: int, wanted: Callable[[str], bool]) -> Iterator[str]:
    """An endless stream of FENs in which the side to move can mate, from games and endgames in turn.

    A game has random moves from the start up to the first such position. An endgame has the king that
    can be mated on the edge of the board, where nearly all mates are given.

    Args:
        seed: Same seed, same stream.
        wanted: Positions that it refuses are left out before the search for mates, which takes long.
    """
    rng = random.Random(f"{seed} mate in one")
    while True:
        for find in (_mate_in_game, _mate_in_endgame):
            yield _until_found(partial(find, rng, wanted))


# --------------------------------------------------------------------------------------------------
# One row of a kind; None if this try found nothing
# --------------------------------------------------------------------------------------------------
def _until_found(make: Callable[[], T | None]) -> T:
    """Try until a row is found; what is wanted stays the same, so that shares hold."""
    for _ in range(_TRIES):
        found = make()
        if found is not None:
            return found
    raise RuntimeError(f"no row found in {_TRIES} tries")


def _random_play(rng: random.Random, plies: int = _LONGEST_GAME) -> Iterator[chess.Board]:
    """The board of a random game before each of its `plies`, and at its end if that comes first."""
    board = chess.Board()
    for _ in range(plies):
        yield board
        moves = list(board.legal_moves)
        if not moves:
            return
        board.push(rng.choice(moves))


def _random_game(rng: random.Random, plies: int) -> chess.Board:
    """A game of `plies` random legal moves, or fewer if it ended before."""
    board = [chess.Board(), *_random_play(rng, plies)][-1]  # all of them are the same board
    if board.ply() < plies:
        board.pop()  # before the end, so that there is a move to play
    return board


def _any_move(rng: random.Random, board: chess.Board) -> str | None:
    moves = list(board.legal_moves)
    return rng.choice(moves).uci() if moves else None


def _double_step(rng: random.Random, board: chess.Board) -> str | None:
    moves = board.generate_legal_moves(board.pawns)
    steps = [move for move in moves if abs(move.to_square - move.from_square) == 16]
    return rng.choice(steps).uci() if steps else None


def illegal_action(rng: random.Random, board: chess.Board) -> str | None:
    """An action that the rules refuse; None if what was tried is legal.

    Two in three are illegal moves, half of them of the mover's own piece; the rest is unreadable.
    """
    if rng.random() < 1 / 3:
        alphabet = string.ascii_lowercase + string.digits + "-#="
        text = "".join(rng.choices(alphabet, k=rng.randint(1, 6)))
    else:
        own = list(chess.SquareSet(board.occupied_co[board.turn]))
        start = rng.choice(own) if rng.random() < 0.5 else rng.randrange(64)
        target = rng.choice([square for square in range(64) if square != start])
        text = chess.Move(start, target).uci()
    return None if rules.legal_move(board, text) else text


def _special(rng: random.Random) -> EnvironmentPrompt:
    """Play at random until the wanted kind of move is possible."""
    wanted = rng.choice(
        (
            chess.Board.generate_castling_moves,  # legal moves only
            chess.Board.generate_legal_ep,
            lambda board: (move for move in promotions(board) if move.promotion == chess.QUEEN),
            lambda board: (move for move in promotions(board) if move.promotion != chess.QUEEN),
        )
    )

    def game() -> EnvironmentPrompt | None:
        for board in _random_play(rng):
            found = list(wanted(board))
            if found:
                return prompt_of(board, rng.choice(found).uci())
        return None

    return _until_found(game)


def promotions(board: chess.Board) -> Iterator[chess.Move]:
    """The legal moves that promote a pawn."""
    last = chess.BB_RANK_7 if board.turn else chess.BB_RANK_2
    pawns = board.pawns & board.occupied_co[board.turn] & last
    return board.generate_legal_moves(pawns) if pawns else iter(())


def _game_end(rng: random.Random) -> EnvironmentPrompt:
    """A random small endgame in which some move ends the game the wanted way."""
    wanted = rng.choice(
        (
            chess.Termination.CHECKMATE,
            chess.Termination.STALEMATE,
            chess.Termination.INSUFFICIENT_MATERIAL,
            chess.Termination.SEVENTYFIVE_MOVES,
        )
    )
    return _until_found(lambda: _ending_move(rng, wanted))


def _ending_move(rng: random.Random, wanted: chess.Termination) -> EnvironmentPrompt | None:
    board = _endgame(rng, wanted)
    if not board.is_valid() or board.is_game_over():
        return None
    moves = list(board.legal_moves)
    for move in rng.sample(moves, len(moves)):
        if wanted is chess.Termination.INSUFFICIENT_MATERIAL and not board.is_capture(move):
            continue
        board.push(move)
        outcome = board.outcome()
        board.pop()
        if outcome is not None and outcome.termination is wanted:
            return prompt_of(board, move.uci())
    return None


def _endgame(rng: random.Random, wanted: chess.Termination) -> chess.Board:
    """Kings and up to four pieces on random squares; the position may be illegal."""
    board = chess.Board(None)
    pieces = [chess.Piece(chess.KING, chess.WHITE), chess.Piece(chess.KING, chess.BLACK)]
    if wanted is chess.Termination.INSUFFICIENT_MATERIAL:
        # A bare king takes the last piece.
        pieces.append(chess.Piece(rng.choice((2, 3, 4, 5)), rng.random() < 0.5))
    else:
        for _ in range(rng.randint(1, 4)):
            pieces.append(chess.Piece(rng.choice((2, 3, 4, 5, 5)), rng.random() < 0.5))
    board.set_piece_map(dict(zip(rng.sample(range(64), len(pieces)), pieces, strict=True)))
    board.turn = rng.random() < 0.5
    board.fullmove_number = rng.randint(60, 160)
    is_late = wanted is chess.Termination.SEVENTYFIVE_MOVES
    board.halfmove_clock = 149 if is_late else rng.randint(0, 40)
    return board


# --------------------------------------------------------------------------------------------------
# A mate in one; None if this try found nothing
# --------------------------------------------------------------------------------------------------
_EDGE = list(chess.SquareSet(chess.BB_BACKRANKS | chess.BB_FILE_A | chess.BB_FILE_H))


def _mate_in_game(rng: random.Random, wanted: Callable[[str], bool]) -> str | None:
    fens = (board.fen() for board in _random_play(rng))
    return next((fen for fen in fens if wanted(fen) and positions.mating_moves(fen)), None)


def _mate_in_endgame(rng: random.Random, wanted: Callable[[str], bool]) -> str | None:
    """Kings, one to three pieces of the side to move, none to three of the other."""
    board = chess.Board(None)
    board.turn = rng.random() < 0.5
    target = rng.choice(_EDGE)
    mine = [chess.KING, *rng.choices((2, 3, 4, 5, 5), k=rng.randint(1, 3))]
    theirs = rng.choices((1, 2, 3, 4), k=rng.randint(0, 3))
    pieces = [chess.Piece(kind, board.turn) for kind in mine]
    pieces += [chess.Piece(kind, not board.turn) for kind in theirs]
    free = [square for square in chess.SQUARES if square != target]
    there = dict(zip(rng.sample(free, len(pieces)), pieces, strict=True))
    board.set_piece_map({target: chess.Piece(chess.KING, not board.turn), **there})
    board.fullmove_number = rng.randint(60, 160)
    board.halfmove_clock = rng.randint(0, 40)
    fen = board.fen()
    return fen if wanted(fen) and board.is_valid() and positions.mating_moves(fen) else None
