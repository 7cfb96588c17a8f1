"""Positions that are no rows yet (FENs, EPDs, games), and what is asked of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import chess
import chess.pgn

from ..common.errors import NotationError
from ..tasks import rules
from ..tasks.registry import TASKS
from ..tasks.types import EnvironmentPrompt
from .synthesis import prompt_of


def fen_of(text: str) -> str | None:
    """The FEN that a line of a file is, written as a FEN or an EPD; None where it is neither.

    >>> fen_of('7k/8/8/8/8/8/8/K7 w - - bm Ka2; id "corner";')
    '7k/8/8/8/8/8/8/K7 w - - 0 1'
    >>> fen_of("P: 7k/8/8/8/8/8/8/K7 w - - 0 1")
    """
    fields = text.split()
    if not fields or fields[0].count("/") != 7:  # most lines are rows, and there may be millions
        return None
    board = chess.Board()
    try:
        if len(fields) == 6 and fields[4].isdecimal() and fields[5].isdecimal():
            board.set_fen(text)
        else:
            board.set_epd(text)
    except ValueError:
        return None
    return board.fen()


def pgn_positions(path: Path) -> Iterator[dict[str, Any]]:
    """The positions of all games of a PGN file before each move of their main lines, as raw rows.

    The move played comes as `action`, the last moves as `history`, itself the last of them; in place
    of what cannot be read comes a row with the reason as `fault`.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        while (game := chess.pgn.read_game(file)) is not None:
            try:
                board = game.board()
            except ValueError as error:
                yield _row(fault=str(error))
                continue
            if type(board) is not chess.Board or board.chess960:
                yield _row(fault=f"of the variant {game.headers.get('Variant')!r}")
                continue
            for move in game.mainline_moves():
                if not move:
                    yield _row(fault=f"a null move after {board.fen()}")
                    break
                asked = prompt_of(board, move.uci())
                yield _row(asked.fen, asked.action, asked.history)
                board.push(move)
            if game.errors:
                yield _row(fault=str(game.errors[0]))


def _row(
    fen: str | None = None,
    action: str | None = None,
    history: Sequence[str] = (),
    fault: str | None = None,
) -> dict[str, Any]:
    return {"fen": fen, "action": action, "history": list(history), "fault": fault}


def _played(fen: str, action: Any, history: Any) -> tuple[str, tuple[str, ...]]:
    """A position's move, a legal one where none is given, and the moves up to it."""
    history = history.split() if isinstance(history, str) else list(history or ())
    moves = rules.legal_moves(fen)
    if not action:
        action = history[-1] if history else random.Random(fen).choice(moves) if moves else ""
    history = history or ([action] if action else [])
    if not all(isinstance(move, str) for move in (action, *history)):
        raise NotationError("action and history are no moves in UCI notation", str(history))
    if history and history[-1] != action:
        raise NotationError("the last move of the history is not the action", str(history))
    return action, tuple(history)


def asked_of(raw: Mapping[str, Any], tasks: Sequence[str]) -> list[Mapping[str, Any]]:
    """A raw row as it is; or, where it is a position alone, what each task asks of it.

    Args:
        raw: With a column `fen` and no text of a row, or a FEN or EPD as its `text`; `action` and
            `history` (UCI) may come along. Without an action a legal one is drawn, always the same.
        tasks: Those that ask.

    Returns:
        Raw rows with a prompt and no completion; none where no task can ask anything.

    Raises:
        NotationError: It is no position.
        IllegalPositionError: The same.
    """
    if raw.get("fault"):
        raise NotationError("a game that cannot be read to its end", str(raw["fault"]))
    is_row = raw.get("prompt") is not None or not (raw.get("text") or raw.get("fen"))
    given = raw.get("text") or raw.get("fen") or ""
    if is_row or not isinstance(given, str) or (fen := fen_of(given)) is None:
        if not is_row and not raw.get("text"):
            raise NotationError("the column fen holds neither a FEN nor an EPD", str(given))
        return [raw]
    position = EnvironmentPrompt(fen, *_played(fen, raw.get("action"), raw.get("history")))
    prompts = (TASKS[task].ask(position) for task in tasks)
    values = raw.get("action_values")
    return [
        {"prompt": prompt, "completion": None, "action_values": values}
        for prompt in prompts
        if prompt is not None
    ]
