"""Positions that are not rows yet (FENs, EPDs, games), and the prompts that tasks make of them."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import chess
import chess.pgn

from ..common.errors import NotationError, UnjudgeableError
from ..tasks import rules
from ..tasks.registry import TASKS
from ..tasks.text import MAX_HISTORY, parse_move
from ..tasks.types import EnvironmentPrompt

# What python-chess logs of a game's errors comes as a row's `fault`.
logging.getLogger("chess.pgn").setLevel(logging.CRITICAL)


def fen_of(text: str) -> str:
    """The FEN of a line that holds a FEN or an EPD.

    Raises:
        NotationError: python-chess cannot read it.

    >>> fen_of('7k/8/8/8/8/8/8/K7 w - - bm Ka2; id "corner";')
    '7k/8/8/8/8/8/8/K7 w - - 0 1'
    """
    board = chess.Board()
    try:
        if len(text.split()) < 4:  # python-chess would fill in what is missing
            raise ValueError("fewer than four fields")
        if text.rstrip()[-1:].isdecimal():
            board.set_fen(text)
        else:
            board.set_epd(text)
    except ValueError as error:
        raise NotationError(
            "neither a RookWorld row, a FEN nor an EPD", f"{text} ({error})"
        ) from error
    return board.fen()


def prompt_of(board: chess.Board, action: str) -> EnvironmentPrompt:
    """The prompt that asks what `action` does in a game's position, with the moves before it."""
    played = [move.uci() for move in board.move_stack[-(MAX_HISTORY - 1) :]]
    return EnvironmentPrompt(board.fen(), action, (*played, action))


def pgn_positions(path: Path) -> Iterator[dict[str, Any]]:
    """Raw rows of a PGN file: the position before each move of each game's main line.

    `action` is the move played and `history` the last moves up to and including it. Where a game
    cannot be read, there is a row with the reason as `fault` instead.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        games = iter(lambda: chess.pgn.read_game(file), None)
        for number, game in enumerate(games, 1):
            try:
                yield from _game_positions(game)
            except ValueError as error:
                fault = f"game {number}: {error}"
                yield {"fen": None, "action": None, "history": [], "fault": fault}


def _game_positions(game: chess.pgn.Game) -> Iterator[dict[str, Any]]:
    board = game.board()
    if type(board) is not chess.Board or board.chess960:
        raise ValueError(f"it is of the variant {game.headers.get('Variant')!r}")
    for move in game.mainline_moves():
        if not move:
            raise ValueError(f"a null move after {board.fen()}")
        asked = prompt_of(board, move.uci())
        history = list(asked.history)
        yield {"fen": asked.fen, "action": asked.action, "history": history, "fault": None}
        board.push(move)
    if game.errors:
        raise ValueError(game.errors[0])


def asked_of(raw: Mapping[str, Any], tasks: Sequence[str]) -> list[Mapping[str, Any]]:
    """The prompts that tasks make of a raw row that is only a position.

    Args:
        raw: A FEN or EPD as `text` or `fen`. Columns `action` (UCI) and `history` (UCI, the action last)
            are optional; without an action a legal one is drawn, always the same for a position.
        tasks: The tasks that make prompts.

    Returns:
        Raw rows with a prompt and no completion.

    Raises:
        NotationError: The text is not a position, or the moves do not fit.
        IllegalPositionError: The position is not legal.
    """
    if raw.get("fault"):
        raise NotationError("a game that cannot be read to its end", str(raw["fault"]))
    fen = fen_of(str(raw.get("text") or raw.get("fen") or raw.get("prompt") or ""))
    position = EnvironmentPrompt(fen, *_played(fen, raw.get("action"), raw.get("history")))
    prompts = [prompt for task in tasks if (prompt := TASKS[task].ask(position)) is not None]
    if not prompts:
        raise UnjudgeableError("a position that the tasks ask nothing about: no legal move", fen)
    values = raw.get("action_values")
    return [{"prompt": prompt, "completion": None, "action_values": values} for prompt in prompts]


def _played(fen: str, action: Any, history: Any) -> tuple[str, tuple[str, ...]]:
    """The move to ask about, a random legal one if none is given, and the moves up to it."""
    moves = history.split() if isinstance(history, str) else list(history or ())
    if not (action or moves):
        legal = rules.legal_moves(fen)
        if not legal:
            return "", ()
        action = random.Random(fen).choice(legal)
    action = action or moves[-1]
    moves = moves or [action]
    for move in moves:
        parse_move(str(move))
    if moves[-1] != action:
        raise UnjudgeableError("the last move of the history is not the action", str(moves))
    return action, tuple(moves)
