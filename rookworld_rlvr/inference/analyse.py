"""Ask a model about a position: candidate moves, their evaluations, the best move; or a move's result.

rookworld analyse                                                     # the start position
rookworld analyse --model runs/grpo_nano --moves e4 c5
rookworld analyse --fen "6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1" --json
rookworld analyse --moves e4 e5 --environment --move g1f3
rookworld analyse --file positions.fen
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import chess

from ..common.errors import ConfigurationError, EngineError, NotationError, RookWorldError
from ..common.progress import Progress
from ..common.terminal import printable
from ..engine.labeller import Labeller
from ..engine.pool import DEFAULT_DEPTH, EngineArguments
from ..tasks import rules
from ..tasks.scoring import Values
from ..tasks.text import parse_fen
from . import analysis as records
from .analysis import Analysis, Engine, Simulation
from .arguments import Arguments
from .notation import read_legal_move, read_move
from .start import start

PROGRAM = "rookworld analyse"


_MOST_FAULTS = 10  # of a file that are listed


def parser() -> argparse.ArgumentParser:
    """The options."""
    about, examples = (__doc__ or "").split("\n\n")[:2]
    made = Arguments(
        "analyse",
        about,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--fen", help="the position (default: the start position)")
    add(
        "--moves",
        nargs="+",
        default=[],
        help="moves to play from there, in UCI or SAN: e2e4 c5 Nf3",
    )
    add("--file", type=Path, help="a file of many positions, one FEN a line")
    add("--environment", action="store_true", help="ask for the state after --move instead")
    add("--move", help="the move to simulate; in UCI, it may be illegal")
    add("--json", action="store_true", help="print JSON instead of text")
    add(
        "--engine_depth",
        type=int,
        help=f"depth of Stockfish's search in plies (default: {DEFAULT_DEPTH}); with --file, Stockfish "
        "is asked only if you give it",
    )
    add("--no_engine", action="store_true", help="do not ask Stockfish")
    return made


def main(argv: Sequence[str]) -> int:
    """Answer; the exit code is 2 if the input is bad."""
    args = parser().parse_args(argv)
    try:
        _check(args)
        if args.environment:
            _simulate(args)
        else:
            _analyse(args)
    except RookWorldError as error:
        print(f"{PROGRAM}: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return 130
    return 0


def _check(args: argparse.Namespace) -> None:
    faults = [
        f"--file: excludes {option}; leave one out"
        for option, given in (
            ("--fen", args.fen),
            ("--moves", args.moves),
            ("--environment", args.environment),
        )
        if args.file is not None and given
    ]
    if args.environment != (args.move is not None):
        faults.append("--environment and --move need each other; give both or neither")
    if args.no_engine and args.engine_depth is not None:
        faults.append("--no_engine excludes --engine_depth; leave one out")
    if args.engine_depth is not None and args.engine_depth < 2:
        faults.append(f"--engine_depth: {args.engine_depth} is below 2; give 2 or more")
    if faults:
        raise ConfigurationError(faults)


# --------------------------------------------------------------------------------------------------
# What is asked
# --------------------------------------------------------------------------------------------------
def position_of(fen: str | None, moves: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """A position after some moves, and the moves in UCI notation.

    Args:
        fen: Where they start; None for the start position.
        moves: In UCI or SAN; a text may hold several, and move numbers are ignored.

    Raises:
        RookWorldError: The FEN is malformed or not a legal position, or a move is illegal.
    """
    first = fen or chess.STARTING_FEN
    if fault := _fen_fault(first, "--fen"):
        raise RookWorldError(fault)
    board = rules.board_of(first)
    for word in " ".join(moves).split():
        move = re.sub(r"^[0-9]+\.+", "", word)
        if move:
            try:
                board.push(read_legal_move(board, move))
            except RookWorldError as error:
                raise RookWorldError(f"--moves: {error}; the position is {board.fen()!r}") from None
    return board.fen(), tuple(move.uci() for move in board.move_stack)


def _fen_fault(fen: str, where: str) -> str:
    try:
        parse_fen(fen)
    except NotationError as error:
        return f"{where}: {error}; a FEN is written like {chess.STARTING_FEN!r}"
    return records.check_position(fen, where)


def _read(path: Path) -> list[str]:
    """The positions of a file.

    Raises:
        RookWorldError: The file cannot be read, is empty, or has lines that are not positions; the
            first ten of these are listed.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise RookWorldError(f"--file: cannot read {str(path)!r} ({reason})") from error
    given = {number: line.strip() for number, line in enumerate(lines, 1) if line.strip()}
    if not given:
        raise RookWorldError(f"--file: {str(path)!r} holds no position; write one FEN a line")
    found = (_fen_fault(fen, f"{path}, line {number}") for number, fen in given.items())
    faults = [fault for fault in found if fault]
    if len(faults) > _MOST_FAULTS:
        faults[_MOST_FAULTS:] = [f"and {len(faults) - _MOST_FAULTS} more lines"]
    if faults:
        raise ConfigurationError(faults)
    return [rules.canonical_fen(fen) for fen in given.values()]


# --------------------------------------------------------------------------------------------------
# The answer
# --------------------------------------------------------------------------------------------------
def _analyse(args: argparse.Namespace) -> None:
    fens, moves = _positions(args)
    waiting = [fen for fen in dict.fromkeys(fens) if rules.legal_moves(fen)]
    engine, values = _verdicts(args, waiting)
    found = _ask(args, fens, waiting, values, moves)
    if args.json:
        _print_json(records.document(args.model, engine, found))
    elif args.file is None:
        print(printable(records.analysis_text(found[0], args.model, engine)))
    else:
        print("\n".join(printable(records.analysis_line(one)) for one in found))


def _positions(args: argparse.Namespace) -> tuple[list[str], tuple[str, ...]]:
    if args.file is not None:
        return _read(args.file), ()
    fen, moves = position_of(args.fen, args.moves)
    return [fen], moves


def _ask(
    args: argparse.Namespace,
    fens: Sequence[str],
    waiting: Sequence[str],
    values: dict[str, Values],
    moves: Sequence[str],
) -> list[Analysis]:
    if not waiting:
        return [records.analysis(fen, None, moves=moves) for fen in fens]
    model = start(args.model)
    started = time.perf_counter()
    with Progress(args.model, len(waiting), "positions") as progress:
        answers = model.analyse_all(waiting, progress=progress.update)
    seconds = time.perf_counter() - started
    if args.file is not None:
        rate = len(waiting) / seconds
        print(
            f"{len(waiting):,} different positions in {seconds:.1f} s, {rate:.1f} a second",
            file=sys.stderr,
        )
    replies = dict(zip(waiting, answers, strict=True))
    return [
        records.analysis(fen, replies.get(fen), values.get(fen), model.trained_on, moves)
        for fen in fens
    ]


def _simulate(args: argparse.Namespace) -> None:
    fen, moves = position_of(args.fen, args.moves)
    move = read_move(rules.board_of(fen), args.move).uci()  # faults show before a model is loaded
    model = start(args.model)
    (reply,) = model.step_all([(fen, move, moves)])
    found: Simulation = records.simulation(fen, move, reply, model.trained_on, moves)
    if args.json:
        engine = Engine(absent="python-chess says what is right")
        _print_json(records.document(args.model, engine, [found]))
    else:
        print(printable(records.simulation_text(found, args.model)))


def _verdicts(args: argparse.Namespace, fens: Sequence[str]) -> tuple[Engine, dict[str, Values]]:
    """Stockfish's values of positions; a missing engine is not a fault, but the output says so."""
    if args.no_engine:
        return Engine(absent="not asked (--no_engine)"), {}
    if args.file is not None and args.engine_depth is None:
        return Engine(absent="not asked (give --engine_depth for many positions)"), {}
    if not fens:
        return Engine(absent="not asked (no position has a move)"), {}
    try:
        labeller = Labeller(EngineArguments(engine_depth=args.engine_depth))
    except EngineError as error:
        return Engine(absent=f"not asked ({error})"), {}
    with labeller, Progress("Stockfish", len(fens), "positions") as progress:
        found = labeller.values(fens, progress.update)
    values: dict[str, Values] = {
        fen: item.by_move() for fen, item in zip(fens, found, strict=True) if item
    }
    return Engine(labeller.source), values


def _print_json(content: dict[str, object]) -> None:
    print(printable(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
