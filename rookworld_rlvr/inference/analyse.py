"""Ask a model about a position: candidate moves, their evaluations, the best move; or a move's result.

rookworld analyse                                                     # the start position
rookworld analyse --model runs/grpo_nano --moves e4 c5
rookworld analyse --fen "6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1"
rookworld analyse --moves e4 e5 --environment --move g1f3
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Iterator, Sequence

import chess

from ..common.errors import ConfigurationError, EngineError, RookWorldError
from ..common.terminal import printable
from ..engine.arguments import DEFAULT_DEPTH, EngineArguments
from ..engine.labeller import Labeller
from ..tasks import rules
from ..tasks.boards import placement_of
from ..tasks.environment import answer_fields
from ..tasks.text import MAX_HISTORY
from ..tasks.types import MATE_CP, EnvironmentAnswer, PolicyAnswer, Values
from .arguments import Arguments, run, start
from .prompts import Reply, over, read_legal_move, read_move, read_position


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
    add("--environment", action="store_true", help="ask for the state after --move instead")
    add("--move", help="the move to simulate; in UCI, it may be illegal")
    add(
        "--engine_depth",
        type=int,
        help=f"depth of Stockfish's search in plies (default: {DEFAULT_DEPTH})",
    )
    add("--no_engine", action="store_true", help="do not ask Stockfish")
    return made


def main(argv: Sequence[str]) -> int:
    """Answer; the exit code is 2 if the input is bad."""
    args = parser().parse_args(argv)
    return run("analyse", lambda: _answer(args))


def _answer(args: argparse.Namespace) -> None:
    faults = []
    if args.environment != (args.move is not None):
        faults.append("--environment and --move need each other; give both or neither")
    if args.no_engine and args.engine_depth is not None:
        faults.append("--no_engine excludes --engine_depth; leave one out")
    if args.engine_depth is not None and args.engine_depth < 2:
        faults.append(f"--engine_depth: {args.engine_depth} is below 2; give 2 or more")
    if faults:
        raise ConfigurationError(faults)
    lines = _simulated(args) if args.environment else _analysed(args)
    print(printable("\n".join(lines)))


def position_of(fen: str | None, moves: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """A position after some moves, and the moves in UCI notation.

    Args:
        fen: Where they start; None for the start position.
        moves: In UCI or SAN; a text may hold several, and move numbers are ignored.

    Raises:
        RookWorldError: The FEN is malformed or not a legal position, or a move is illegal.
    """
    try:
        board = chess.Board(read_position(fen or chess.STARTING_FEN))
    except RookWorldError as error:
        raise RookWorldError(
            f"--fen: {error}; give a position that a game can reach, like {chess.STARTING_FEN!r}"
        ) from error
    for word in " ".join(moves).replace(",", " ").split():
        move = re.sub(r"^[0-9]+\.+", "", word)
        if move:
            try:
                board.push(read_legal_move(board, move))
            except RookWorldError as error:
                raise RookWorldError(f"--moves: {error}; the position is {board.fen()!r}") from None
    return board.fen(), tuple(move.uci() for move in board.move_stack)


# --------------------------------------------------------------------------------------------------
# A position
# --------------------------------------------------------------------------------------------------
def _analysed(args: argparse.Namespace) -> Iterator[str]:
    fen, _ = position_of(args.fen, args.moves)
    if not rules.legal_moves(fen):
        yield from (*position_lines(fen), f"nothing to analyse: {over(rules.board_of(fen))}")
        return
    values, engine = _values(args, fen)
    model = start(args.model)
    (reply,) = model.analyse_all([fen])
    yield from position_lines(fen)
    yield from answer_lines(fen, args.model, reply, values)
    yield f"Evaluations in pawns, from the side to move. {engine}"


def _values(args: argparse.Namespace, fen: str) -> tuple[Values | None, str]:
    """Stockfish's values, and which Stockfish that was; a missing engine is not an error."""
    if args.no_engine:
        return None, "Stockfish: not asked (--no_engine)"
    try:
        labeller = Labeller(EngineArguments(engine_depth=args.engine_depth or DEFAULT_DEPTH))
    except EngineError as error:
        return None, f"Stockfish: not asked ({error})"
    with labeller:
        (values,) = labeller.values([fen])
    engine = labeller.source.engine.partition(" (")[0]
    return values.by_move() if values else None, f"{engine}, {labeller.source.limit}."


def position_lines(fen: str) -> Iterator[str]:
    """A position for a terminal: the board, and what the rules say."""
    board = rules.board_of(fen)
    count = board.legal_moves.count()
    mates = rules.mating_moves(fen)
    facts = [
        f"{rules.side_to_move(fen).capitalize()} to move{', in check' if board.is_check() else ''}",
        f"{count} legal move{'' if count == 1 else 's'}",
        f"mate in one: {', '.join(mates)}" if mates else "",
        over(board),
    ]
    yield from (fen, "", *board_lines(fen), "", "; ".join(filter(None, facts)), "")


def answer_lines(
    fen: str,
    name: str,
    reply: Reply[PolicyAnswer],
    values: Values | None = None,
) -> Iterator[str]:
    """What a model says of a position, beside Stockfish's values, and what that is worth.

    Args:
        fen: The position, with a legal move.
        name: The model's.
        reply: What it said.
        values: The engine's, in centipawns for every legal move.
    """
    board = rules.board_of(fen)
    if (answer := reply.record) is None:
        yield f"{name} wrote: {reply.text.strip()}"
    else:
        yield from _table(board, answer, values)
        best = answer.best_move
        yield f"best move of {name}: {_san(board, best) or f'{best} (illegal)'}"
    if values:
        best = max(values, key=values.__getitem__)
        yield f"best move of Stockfish: {_san(board, best)} ({verdict(values[best])})"
    if answer is not None:
        yield from (f"flaw: {flaw}" for flaw in _flaws(answer))
    yield from (f"out of its depth: {reason}" for reason in _doubts(reply, rules.legal_moves(fen)))


def _table(board: chess.Board, answer: PolicyAnswer, values: Values | None) -> Iterator[str]:
    """The candidates, and the best move if it is not among them."""
    evaluations = [f"{pawns:+.2f}" for pawns in answer.evaluations] + [""] * len(answer.moves)
    rows = list(zip(answer.moves, evaluations, strict=False))
    if answer.best_move not in answer.moves:
        rows.append((answer.best_move, ""))
    yield f"  {'move':<6} {'':<8} {'model':>7}" + ("  Stockfish" if values else "")
    for move, pawns in rows:
        mark = "*" if move == answer.best_move else " "
        theirs = f"  {verdict(values[move]):>9}" if values and move in values else ""
        yield f"{mark} {move:<6} {_san(board, move) or 'illegal':<8} {pawns:>7}{theirs}".rstrip()
    yield ""


def _doubts(reply: Reply[PolicyAnswer], legal: Collection[str]) -> Iterator[str]:
    if reply.record is None:
        yield f"the answer cannot be read: {reply.fault}"
        return
    illegal = [move for move in dict.fromkeys(reply.record.moves) if move not in legal]
    best = reply.record.best_move
    if illegal:
        yield f"illegal candidate{'s' if len(illegal) > 1 else ''}: {', '.join(illegal)}"
    if best not in legal:
        yield f"its best move is illegal: {best}"
    if best not in reply.record.moves:
        yield f"its best move is not among its candidates: {best}"


def _flaws(said: PolicyAnswer) -> Iterator[str]:
    twice = sorted({move for move in said.moves if said.moves.count(move) > 1})
    if twice:
        yield f"named more than once: {', '.join(twice)}"
    if len(said.moves) != len(said.evaluations):
        yield f"{len(said.moves)} candidates, but {len(said.evaluations)} evaluations"
    highest = max(said.evaluations)
    paired = zip(said.moves, said.evaluations, strict=False)
    of_best = next((pawns for move, pawns in paired if move == said.best_move), highest)
    if of_best < highest:
        yield f"its best move has {of_best:+.2f}, the highest evaluation is {highest:+.2f}"


def verdict(cp: int) -> str:
    """The engine's centipawns for a move in words: pawns, or moves to the mate.

    >>> verdict(-31), verdict(99_999), verdict(-99_998)
    ('-0.31', 'mate in 1', 'mated in 2')
    """
    if abs(cp) < MATE_CP // 2:
        return f"{cp / 100:+.2f}"
    return f"{'mate' if cp > 0 else 'mated'} in {MATE_CP - abs(cp)}"


def _san(board: chess.Board, move: str) -> str | None:
    """A move in algebraic notation; None if it is illegal or unreadable."""
    try:
        return board.san(board.parse_uci(move)) if chess.Move.from_uci(move) else None
    except ValueError:
        return None


# --------------------------------------------------------------------------------------------------
# A move
# --------------------------------------------------------------------------------------------------
def _simulated(args: argparse.Namespace) -> Iterator[str]:
    fen, moves = position_of(args.fen, args.moves)
    move = read_move(rules.board_of(fen), args.move).uci()  # faults show before a model is loaded
    model = start(args.model)
    (reply,) = model.step_all([(fen, move, moves)])
    yield from simulation_lines(fen, move, args.model, reply, moves)


def simulation_lines(
    fen: str,
    move: str,
    name: str,
    reply: Reply[EnvironmentAnswer],
    moves: Sequence[str] = (),
) -> Iterator[str]:
    """A move's consequences; ``≠`` marks where the model and python-chess differ.

    Args:
        fen: The position.
        move: In UCI; an illegal move has a right answer too.
        name: The model's.
        reply: What it said.
        moves: Those that led to the position; the model saw the last nine.
    """
    true = rules.transition(fen, move)
    right = answer_fields(true)
    said = answer_fields(reply.record) if reply.record is not None else {}
    shown = " ".join(moves[-(MAX_HISTORY - 1) :]) or "none"
    words = _san(rules.board_of(fen), move) or move
    yield fen
    yield f"{words}: {'illegal' if true.truncated else 'legal'}; moves before: {shown}"
    yield ""
    yield from _boards(true.fen, reply.record.fen if reply.record is not None else None)
    yield ""
    for field, value in right.items():
        differs = bool(said) and said[field] != value
        other = f"   python-chess: {_plain(value)}" if differs else ""
        yield f"{'≠' if differs else ' '} {field:<13} {_plain(said.get(field, value))}{other}"
    yield ""
    if reply.record is None:
        yield f"{name} wrote: {reply.text.strip()}"
        yield f"out of its depth: the answer cannot be read: {reply.fault}"
        return
    wrong = [field for field, value in right.items() if said[field] != value]
    yield f"{name} is wrong in: {', '.join(wrong)}" if wrong else f"{name} is right"


def _boards(true: str, mine: str | None) -> Iterator[str]:
    """The boards after a move side by side; python-chess's alone if the model's is unreadable."""
    if mine is None:
        yield from ("python-chess", *board_lines(true))
        return
    theirs, ours = placement_of(true), placement_of(mine)
    wrong = [square for square in chess.SQUARES if theirs[square] != ours[square]]
    yield f"{'model':<22}python-chess"
    for left, right in zip(board_lines(mine, wrong), board_lines(true, wrong), strict=True):
        yield f"{left:<22}{right}"


def _plain(value: str | float | bool) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def board_lines(
    fen: str, marked: Collection[chess.Square] = (), below: chess.Color = chess.WHITE
) -> list[str]:
    """A FEN's board in Unicode with its coordinates; nine lines of 17 characters.

    Args:
        fen: A FEN; it need not be a legal position.
        marked: Squares that get a ``≠``.
        below: The side at the bottom.
    """
    placement = placement_of(fen)

    def drawn(square: chess.Square) -> str:
        letter = placement[square]
        piece = "·" if letter == "." else chess.UNICODE_PIECE_SYMBOLS[letter]
        return ("≠" if square in marked else " ") + piece

    up = range(8) if below else range(7, -1, -1)
    ranks = [
        f"{rank + 1}" + "".join(drawn(chess.square(file, rank)) for file in up)
        for rank in reversed(up)
    ]
    return [*ranks, "  " + " ".join(chess.FILE_NAMES[file] for file in up)]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
