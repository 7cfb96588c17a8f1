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
from ..tasks.registry import TASKS, task_of
from ..tasks.text import clean, expand_placement, parse_move
from ..tasks.types import EnvironmentPrompt
from .synthesis import prompt_of

# What python-chess logs of a game's errors comes as a row's `fault`.
logging.getLogger("chess.pgn").setLevel(logging.CRITICAL)


_EPD_FIELDS = 4  # board, side to move, castling, en passant; a FEN adds two counters


def fen_of(text: str) -> str | None:
    """The FEN of a line that holds a FEN or an EPD; None if it looks like neither.

    Raises:
        NotationError: It looks like one, but python-chess cannot read it.

    >>> fen_of('7k/8/8/8/8/8/8/K7 w - - bm Ka2; id "corner";')
    '7k/8/8/8/8/8/8/K7 w - - 0 1'
    >>> fen_of("P: 7k/8/8/8/8/8/8/K7 w - - 0 1")
    """
    fields = text.split()
    if not fields or fields[0].count("/") != 7:  # most lines are rows, and there may be millions
        return None
    board = chess.Board()
    try:
        if len(fields) < _EPD_FIELDS:  # python-chess would fill in what is missing
            raise ValueError(f"{len(fields)} of the first four fields")
        if len(fields) == 6 and fields[4].isdecimal() and fields[5].isdecimal():
            board.set_fen(text)
        else:
            board.set_epd(text)
    except ValueError as error:
        if _may_be_row(text):
            return None
        ranks = zip("87654321", fields[0].split("/"), strict=True)
        odd = (
            f"rank {number} ({rank}) has {squares} squares"
            for number, rank in ranks
            if (squares := len(expand_placement(rank))) != 8
        )
        why = next(odd, str(error))
        raise NotationError("a FEN or EPD that cannot be read", f"{why} in {text}") from error
    return board.fen()


def pgn_positions(path: Path) -> Iterator[dict[str, Any]]:
    """Raw rows of a PGN file: the position before each move of each game's main line.

    `action` is the move played and `history` the last moves up to and including it. Where a game
    cannot be read, there is a row with the reason as `fault` instead.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        games = iter(lambda: chess.pgn.read_game(file), None)
        for number, game in enumerate(games, 1):
            try:
                board = game.board()
            except ValueError as error:
                yield _row(fault=f"game {number}: {error}")
                continue
            if type(board) is not chess.Board or board.chess960:
                variant = game.headers.get("Variant")
                yield _row(fault=f"game {number}: it is of the variant {variant!r}")
                continue
            for move in game.mainline_moves():
                if not move:
                    yield _row(fault=f"game {number}: a null move after {board.fen()}")
                    break
                asked = prompt_of(board, move.uci())
                yield _row(asked.fen, asked.action, asked.history)
                board.push(move)
            if game.errors:
                yield _row(fault=f"game {number}: {game.errors[0]}")


def _row(
    fen: str | None = None,
    action: str | None = None,
    history: Sequence[str] = (),
    fault: str | None = None,
) -> dict[str, Any]:
    return {"fen": fen, "action": action, "history": list(history), "fault": fault}


def _played(fen: str, action: Any, history: Any) -> tuple[str, tuple[str, ...]]:
    """The move to ask about, a random legal one if none is given, and the moves up to it."""
    history = history.split() if isinstance(history, str) else list(history or ())
    moves = rules.legal_moves(fen)
    if not action:
        action = history[-1] if history else random.Random(fen).choice(moves) if moves else ""
    history = history or ([action] if action else [])
    if not all(isinstance(move, str) for move in (action, *history)):
        raise NotationError("action and history must be moves in UCI notation", str(history))
    if action and history == [action]:
        history = [action := _uci(fen, action)]
    if history and history[-1] != action:
        raise UnjudgeableError("the last move of the history is not the action", str(history))
    return action, tuple(history)


def _uci(fen: str, move: str) -> str:
    """A move in UCI notation, which may be illegal; in SAN it has to be legal."""
    try:
        return parse_move(move)
    except NotationError as error:
        try:
            return rules.board_of(fen).parse_san(move).uci()
        except ValueError:
            raise NotationError(
                "the action is neither UCI nor a legal move in SAN", move
            ) from error


def _may_be_row(text: str) -> bool:
    """Whether a text has the mark of a row: a task's prefix, or the ``+`` between fields."""
    return "+" in text or clean(text).startswith(TASKS[task_of(text)].prefix)


def asked_of(raw: Mapping[str, Any], tasks: Sequence[str]) -> list[Mapping[str, Any]]:
    """A raw row as it is or, if it is only a position, the prompts that the tasks make of it.

    Args:
        raw: A position has a column `fen` and no text of a row, or a FEN or EPD as its `text`. Columns
            `action` (or `move`; UCI, or a legal move in SAN) and `history` (UCI) are optional; without
            an action a legal one is drawn, always the same for a position.
        tasks: The tasks that make prompts.

    Returns:
        Raw rows with a prompt and no completion.

    Raises:
        NotationError: The text is neither a position nor a row, or the moves do not fit.
        IllegalPositionError: The position is not legal.
    """
    if raw.get("fault"):
        raise NotationError("a game that cannot be read to its end", str(raw["fault"]))
    is_row = raw.get("prompt") is not None or not (raw.get("text") or raw.get("fen"))
    given = raw.get("text") or raw.get("fen") or ""
    if is_row or not isinstance(given, str) or (fen := fen_of(given)) is None:
        if not is_row and not raw.get("text"):
            raise NotationError("the column fen holds neither a FEN nor an EPD", str(given))
        if not is_row and isinstance(given, str) and not _may_be_row(given):
            raise NotationError("neither a RookWorld row, a FEN nor an EPD", given)
        return [raw]
    action = raw.get("action") or raw.get("move")
    position = EnvironmentPrompt(fen, *_played(fen, action, raw.get("history")))
    prompts = [prompt for task in tasks if (prompt := TASKS[task].ask(position)) is not None]
    if not prompts:
        raise UnjudgeableError("a position that the tasks ask nothing about: no legal move", fen)
    values = raw.get("action_values")
    return [{"prompt": prompt, "completion": None, "action_values": values} for prompt in prompts]
