"""What the page shows, as HTML; a model's text is escaped."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Sequence

import chess
import chess.pgn
from markupsafe import Markup

from ...common.errors import RookWorldError
from ...common.html import render
from ...inference.analyse import answer_lines, simulation_lines
from ...inference.model import (
    environment_prompt,
    over,
    policy_prompt,
    read_move,
    read_position,
    reply_of,
)
from ...rewards.registry import known_rewards
from ...tasks import boards
from ...tasks.environment import ENVIRONMENT, parse_environment_answer
from ...tasks.policy import POLICY, parse_policy_answer
from ...tasks.registry import TASKS, task_of
from .backend import Backend, read_block, row_of, try_rewards

_CARD = Markup('<article class="card"><h4>{}</h4>{}<pre>{}</pre></article>')


def fault(error: RookWorldError | str) -> Markup:
    """What is wrong, shown in place."""
    return Markup('<p class="fault" role="alert">{}</p>').format(error)


# --------------------------------------------------------------------------------------------------
# Boards
# --------------------------------------------------------------------------------------------------
def read_board(text: str) -> chess.Board:
    """The board of a FEN, or after the moves of a PGN; the start position for no text.

    Raises:
        RookWorldError: It is neither, or a game that `game_positions` refuses.
    """
    if not text.strip():
        return chess.Board()
    try:
        return chess.Board(read_position(text.strip()))
    except RookWorldError:
        if text.split()[0].count("/") == 7:  # a FEN, of which a square would be read as a move
            raise
        game = chess.pgn.read_game(io.StringIO(text))
        if game is None or not (game.variations or game.errors):
            raise
    if fen := game.headers.get("FEN"):
        read_position(fen)  # python-chess would repair it
    from ...data.parsing import game_positions  # with datasets, which takes seconds
    from ...data.pgn import read_game, split_games

    game = read_game(next(split_games(text.splitlines(keepends=True))))
    try:
        list(game_positions(game))
    except ValueError as error:
        raise RookWorldError(f"PGN: {error}") from error
    return game.end().board()


def drawn(
    board: chess.BaseBoard, below: chess.Color = chess.WHITE, picked: int | None = None
) -> Markup:
    """A board to click on; the square that a move starts from is marked."""
    fill = {} if picked is None else {picked: "#e5c34c"}
    return Markup(boards.picture([boards.draw_board(board, below, fill=fill)], [], "board"))


def square_at(x: float, y: float, below: chess.Color = chess.WHITE) -> chess.Square:
    """The square at a place of a board, in shares of its side from the upper left corner."""
    column, row = (min(7, max(0, int(8 * share))) for share in (x, y))
    return chess.square(column, 7 - row) if below else chess.square(7 - column, row)


# --------------------------------------------------------------------------------------------------
# Answers
# --------------------------------------------------------------------------------------------------
def analyses(backend: Backend, text: str, models: Sequence[str]) -> Markup:
    """What models say of a position, beside Stockfish's values; one card for each.

    Raises:
        RookWorldError: The position cannot be read or has no legal move.
    """
    fen = read_board(text).fen()
    prompt = policy_prompt(fen)
    values = backend.values(fen)
    row = row_of(prompt, values)
    cards = []
    for name in models:
        (said,) = backend.complete(name, [prompt])
        reply = reply_of(said, parse_policy_answer)
        lines = "\n".join(answer_lines(fen, name, reply, values))
        cards.append(_CARD.format(name, Markup(POLICY.board(row, said, values)), lines))
    return _cards(cards)


def simulations(backend: Backend, text: str, move: str, models: Sequence[str]) -> Markup:
    """The state after a move as models see it, beside python-chess's; one card for each.

    Raises:
        RookWorldError: The position or the move cannot be read.
    """
    board = read_board(text)
    fen, uci = board.fen(), read_move(board, move).uci()
    prompt = environment_prompt(fen, uci, board.move_stack)
    row = row_of(prompt, None)
    cards = []
    for name in models:
        (said,) = backend.complete(name, [prompt])
        reply = reply_of(said, parse_environment_answer)
        _, _, _, _, _, *lines = simulation_lines(fen, uci, name, reply)  # after its board
        cards.append(_CARD.format(name, Markup(ENVIRONMENT.board(row, said)), "\n".join(lines)))
    return _cards(cards)


def _cards(cards: Sequence[Markup]) -> Markup:
    if not cards:
        raise RookWorldError("choose a model")
    return Markup('<div class="cards">{}</div>').format(Markup().join(cards))


def end_of(board: chess.Board) -> str:
    """How a game stands, in a few words."""
    side = "White" if board.turn else "Black"
    return over(board) or f"{side} to move{', in check' if board.is_check() else ''}"


# --------------------------------------------------------------------------------------------------
# Rewards
# --------------------------------------------------------------------------------------------------
def rewards_shown(
    backend: Backend, model: str, prompt: str, answers: Sequence[str], block: str, scale: str
) -> Markup:
    """A table of what each reward gives for each answer, then totals, advantages and tokens.

    The rewards of the block come first with their weights, then the task's others.

    Raises:
        RookWorldError: The prompt, the block or a reward is faulty.
    """
    task = TASKS[task_of(prompt)]
    values = backend.values(task.position(prompt).fen) if task.needs_values else None
    row = row_of(prompt, values)
    chosen = try_rewards(row, answers, read_block(block, backend.is_private), scale)
    names = [n for n, reward in known_rewards().items() if task.name in reward.tasks]
    others = try_rewards(row, answers, [{"name": n} for n in names if n not in chosen.rewards])
    rows: list[tuple[str, str, Sequence[float | None], str]] = [
        (name, f"{chosen.weights[name]:g}", x, "chosen") for name, x in chosen.rewards.items()
    ]
    rows += [("total", "", chosen.totals, "sum"), ("advantage", "", chosen.advantages, "sum")]
    rows += [(name, "not in the block", x, "other") for name, x in others.rewards.items()]
    known = [total for total in chosen.totals if not math.isnan(total)]
    mean = statistics.fmean(known) if known else math.nan
    spread = statistics.stdev(known) if len(known) > 1 else 0.0
    note = f"Group of {len(answers)}: mean {mean:.3f}, deviation {spread:.3f}."
    if task.needs_values and values is None:
        note += " Without Stockfish, the values of this position's moves are not known."
    tokens = [
        (backend.pieces(model, t), a) for t, a in zip(answers, chosen.advantages, strict=True)
    ]
    return render("web_rewards.html", note=note, rows=rows, tokens=tokens)
