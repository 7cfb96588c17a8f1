"""Ask a model about a position: candidate moves, their evaluations, the best move; or a move's result.

rookworld analyse                                             # the start position
rookworld analyse "6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1"         # another one
rookworld analyse --model runs/grpo_nano --moves e4 c5
rookworld analyse --moves e4 e5 --move g1f3                   # what the move leads to
rookworld analyse --lookahead                                 # values from a move further on
rookworld analyse --json                                      # the same for a program
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import chess

from ..common.errors import EngineError, RookWorldError
from ..common.files import json_text
from ..common.terminal import printable, show
from ..engine import EngineArguments
from ..engine.labeller import Labeller
from ..models.loading import PACKAGED_MODELS
from ..tasks import positions, rules
from ..tasks.environment import answer_fields, wrong_fields
from ..tasks.types import MATE_CP, EnvironmentAnswer, PolicyAnswer, Values
from .arguments import model_parser, run, start
from .replies import Reply, over, read_legal_move, read_move, read_position


def main(argv: Sequence[str]) -> int:
    """Answer; the exit code is 2 if the input is bad."""
    parser = model_parser("analyse", __doc__ or "", fen="the position", looks_ahead=True)
    played = "moves to play from there, in UCI or SAN: e2e4 c5 Nf3"
    parser.add_argument("--moves", nargs="+", default=[], help=played)
    asked = "ask for the state after this move; in UCI, it may be illegal"
    parser.add_argument("--move", help=asked)
    as_json = "print one JSON object, for programs; the engine's values are in centipawns"
    parser.add_argument("--json", action="store_true", help=as_json)
    args = parser.parse_args(argv)
    answer = _json if args.json else lambda args: printable("\n".join(_answer(args)))
    return run("analyse", lambda: show(answer(args)))


def _asked(args: argparse.Namespace) -> tuple[chess.Board, str]:
    """The position that is asked about, and the move if one is; faults show before a model is loaded."""
    fen = " ".join(args.fen)
    if os.path.isdir(fen) or fen in PACKAGED_MODELS:  # Path.is_dir raises for a long name
        raise RookWorldError(f"{fen!r} is a model, not a position; write --model {fen}")
    board = chess.Board(read_position(fen))
    for move in re.sub(r"\d+\.+", " ", " ".join(args.moves)).split():  # without move numbers
        board.push(read_legal_move(board, move))
    return board, "" if args.move is None else read_move(board, args.move).uci()


def _answer(args: argparse.Namespace) -> Iterator[str]:
    board, move = _asked(args)
    fen = board.fen()
    if move:
        (state,) = start(args.model).step_all([(fen, move, board.move_stack)])
        yield from simulation_lines(fen, move, args.model, state)
    else:
        yield from position_lines(fen)
        if not rules.legal_moves(fen):
            yield f"nothing to analyse: {over(board)}"
            return
        values, engine = _values(fen)
        (reply,) = start(args.model).analyse_all([board], lookahead=args.lookahead)
        yield from answer_lines(fen, args.model, reply, values)
        yield f"Evaluations in pawns, from the side to move. {engine}"


def _json(args: argparse.Namespace) -> str:
    """The same as one JSON object."""
    board, move = _asked(args)
    fen = board.fen()
    found: dict[str, Any] = {"model": args.model, "fen": fen}
    if move:
        (state,) = start(args.model).step_all([(fen, move, board.move_stack)])
        found |= simulation_record(fen, move, state)
    elif ending := over(board):
        found["over"] = ending
    else:
        values, engine = _values(fen)
        (reply,) = start(args.model).analyse_all([board], lookahead=args.lookahead)
        found |= answer_record(fen, reply, values) | {"engine": engine}
    return json_text(found).rstrip()


# --------------------------------------------------------------------------------------------------
# A position
# --------------------------------------------------------------------------------------------------
def _values(fen: str) -> tuple[Values | None, str]:
    """Stockfish's values, and which Stockfish that was; a missing engine is not an error."""
    try:
        with Labeller(EngineArguments()) as labeller:
            (values,) = labeller.values([fen])
    except EngineError as error:
        return None, f"Stockfish: not asked ({error})"
    engine = labeller.source.engine.partition(" (")[0]
    return values, f"{engine}, {labeller.source.limit}."


def position_lines(fen: str) -> Iterator[str]:
    """A position for a terminal: the board, and what the rules say."""
    board = rules.board_of(fen)
    facts = [
        f"{positions.side_to_move(fen).capitalize()} to move{', in check' if board.is_check() else ''}",
        f"{board.legal_moves.count()} legal moves",
        f"mate in one: {', '.join(positions.mating_moves(fen)) or 'none'}",
    ]
    yield from (fen, "", board_text(board), "", "; ".join(facts), "")


def answer_lines(
    fen: str, name: str, reply: Reply[PolicyAnswer], values: Values | None = None
) -> Iterator[str]:
    """What a model says of a position, beside Stockfish's values.

    Args:
        fen: The position, with a legal move.
        name: The model's.
        reply: What it said.
        values: The engine's, in centipawns for every legal move.
    """
    board = rules.board_of(fen)
    if (answer := reply.record) is None:
        yield from _unreadable(name, reply)
    else:
        yield from _table(board, answer, values or {})
        yield f"best move of {name}: {_san(board, answer.best_move)}"
    if values:
        best = max(values, key=values.__getitem__)
        yield f"best move of Stockfish: {_san(board, best)} ({verdict(values[best])})"


def answer_record(
    fen: str, reply: Reply[PolicyAnswer], values: Values | None = None
) -> dict[str, Any]:
    """What `answer_lines` says, for a program.

    ``san`` is null for an illegal move, ``pawns`` where the model named no evaluation, and all of
    ``candidates`` and ``best_move`` are empty if the answer cannot be read: ``fault`` then says why.
    """
    board, answer = rules.board_of(fen), reply.record or PolicyAnswer((), (), "")
    candidates = [
        {"move": move, "san": _san_or_none(board, move), "pawns": pawns}
        for move, pawns in answer.candidates
    ]
    return {
        "text": reply.text,
        "fault": reply.fault,
        "candidates": candidates,
        "best_move": answer.best_move,
        "values": dict(values or {}),  # centipawns of every legal move
    }


def _table(board: chess.Board, answer: PolicyAnswer, values: Values) -> Iterator[str]:
    """The candidates; the best move is marked."""
    yield f"  {'move':<6} {'':<8} {'model':>7}  {'Stockfish' if values else ''}".rstrip()
    for move, pawns in answer.candidates:
        mark = "*" if move == answer.best_move else " "
        said = "" if pawns is None else f"{pawns:+.2f}"
        theirs = verdict(values[move]) if move in values else ""
        yield f"{mark} {move:<6} {_san(board, move):<8} {said:>7}  {theirs:>9}".rstrip()
    yield ""


def verdict(cp: int) -> str:
    """The engine's centipawns for a move in words: pawns, or moves to the mate.

    >>> verdict(-31), verdict(99_999), verdict(-99_998)
    ('-0.31', 'mate in 1', 'mated in 2')
    """
    if abs(cp) < MATE_CP // 2:
        return f"{cp / 100:+.2f}"
    return f"{'mate' if cp > 0 else 'mated'} in {MATE_CP - abs(cp)}"


def _san(board: chess.Board, move: str) -> str:
    """A move in algebraic notation, or that it is illegal."""
    return _san_or_none(board, move) or "illegal"


def _san_or_none(board: chess.Board, move: str) -> str | None:
    found = rules.legal_move(board, move)
    return None if found is None else board.san(found)


def _unreadable(name: str, reply: Reply[Any]) -> tuple[str, str]:
    return f"{name} wrote: {reply.text.strip()}", f"the answer cannot be read: {reply.fault}"


# --------------------------------------------------------------------------------------------------
# A move
# --------------------------------------------------------------------------------------------------
def simulation_lines(
    fen: str, move: str, name: str, reply: Reply[EnvironmentAnswer]
) -> Iterator[str]:
    """A move's consequences; ``≠`` marks where the model and python-chess differ.

    Args:
        fen: The position.
        move: In UCI; an illegal move has a right answer too.
        name: The model's.
        reply: What it said.
    """
    true = rules.transition(fen, move)
    right = answer_fields(true)
    said = answer_fields(reply.record or true)
    wrong = wrong_fields(reply.record or true, true)
    yield from (fen, f"{move}: {_san(rules.board_of(fen), move)}", "")
    yield from (board_text(chess.Board(true.fen)), "")
    for field, value in right.items():
        mark, other = ("≠", f"   python-chess: {value}") if field in wrong else (" ", "")
        yield f"{mark} {field:<13} {said[field]}{other}"
    yield ""
    if reply.record is None:
        yield from _unreadable(name, reply)
    else:
        yield f"{name} is wrong in: {', '.join(wrong)}" if wrong else f"{name} is right"


def simulation_record(fen: str, move: str, reply: Reply[EnvironmentAnswer]) -> dict[str, Any]:
    """What `simulation_lines` says, for a program; ``said`` is null if the answer cannot be read."""
    true, answer = rules.transition(fen, move), reply.record
    return {
        "move": move,
        "san": _san_or_none(rules.board_of(fen), move),
        "text": reply.text,
        "fault": reply.fault,
        "said": None if answer is None else answer_fields(answer),
        "right": answer_fields(true),
        "wrong": [] if answer is None else [*wrong_fields(answer, true)],
    }


def board_text(board: chess.Board, below: chess.Color = chess.WHITE) -> str:
    """A board with its coordinates, `below` at the bottom."""
    return board.unicode(borders=True, empty_square="·", orientation=below)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
