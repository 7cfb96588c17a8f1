"""A model's reply as a record, beside what python-chess and Stockfish say; as text and as JSON.

The fields of the records are those of the JSON: raise `SCHEMA_VERSION` if you add, rename or remove
one. Evaluations are in pawns from the side to move, moves in UCI notation. No torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import chess

from ..common.errors import IllegalPositionError
from ..tasks import rules
from ..tasks.boards import placement_of
from ..tasks.coverage import Coverage, unlike
from ..tasks.environment import ENVIRONMENT, answer_fields
from ..tasks.policy import POLICY
from ..tasks.scoring import Values
from ..tasks.text import MAX_HISTORY
from ..tasks.types import MATE_CP, EnvironmentAnswer, PolicyAnswer, ValueSource
from .prompts import Reply, over

SCHEMA_VERSION = 1


# --------------------------------------------------------------------------------------------------
# Records
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Verdict:
    """What Stockfish says of one move."""

    move: str
    san: str
    pawns: float | None  # None for a mate
    mate: int | None  # moves to the mate; negative if the side to move is mated

    def __str__(self) -> str:
        if self.mate is not None:
            return f"mate in {self.mate}" if self.mate > 0 else f"mated in {-self.mate}"
        return f"{self.pawns:+.2f}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A move that the model names."""

    move: str
    san: str | None  # None if it is illegal
    legal: bool
    evaluation: float | None  # the model's; None if it gives none
    stockfish: Verdict | None


@dataclass(frozen=True, slots=True)
class Analysis:
    """What a model says of a position.

    Args:
        fen: As python-chess writes it.
        moves: The moves that led there, if they were given.
        side_to_move: ``white`` or ``black``.
        legal_moves: How many there are; if there are none, the model is not asked.
        in_check: Whether the side to move is.
        mates_in_one: The moves that give checkmate.
        ended: How the game has ended; None if it goes on.
        answer: As the model wrote it; None if it was not asked.
        readable: Whether it has the form of an answer.
        candidates: `M` with `E`, in the model's order.
        best_move: `B`.
        out_of_depth: Why the answer is worth little, a clause each.
        flaws: Where it contradicts itself, a clause each.
        stockfish: The engine's best move; None if it was not asked.
    """

    fen: str
    moves: tuple[str, ...]
    side_to_move: str
    legal_moves: int
    in_check: bool
    mates_in_one: tuple[str, ...]
    ended: str | None
    answer: str | None
    readable: bool
    candidates: tuple[Candidate, ...]
    best_move: Candidate | None
    out_of_depth: tuple[str, ...]
    flaws: tuple[str, ...]
    stockfish: Verdict | None


@dataclass(frozen=True, slots=True)
class Field:
    """One of the nine fields of a next state: the model's beside python-chess's."""

    name: str
    model: str | float | bool | None  # None if the answer cannot be read
    python_chess: str | float | bool
    right: bool


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a model says of a move's consequences.

    Args:
        fen: The position before, as python-chess writes it.
        moves: The moves that led there; the model was told the last nine.
        move: As it was given.
        san: None if it is illegal.
        legal: By python-chess.
        answer: As the model wrote it.
        readable: Whether it has the form of an answer.
        right: Whether every field is right.
        fields: Nine, in the order of the answer.
        out_of_depth: Why the answer is worth little, a clause each.
    """

    fen: str
    moves: tuple[str, ...]
    move: str
    san: str | None
    legal: bool
    answer: str
    readable: bool
    right: bool
    fields: tuple[Field, ...]
    out_of_depth: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine that gives the verdicts, or why there are no verdicts."""

    source: ValueSource | None = None
    absent: str = ""

    def __str__(self) -> str:
        if self.source is None:
            return f"Stockfish: {self.absent}"
        name = self.source.engine.partition(" (")[0]  # its options are in the JSON only
        return f"{name}, {self.source.limit}."


# --------------------------------------------------------------------------------------------------
# Making them
# --------------------------------------------------------------------------------------------------
def analysis(
    fen: str,
    reply: Reply[PolicyAnswer] | None,
    values: Values | None = None,
    trained_on: Coverage | None = None,
    moves: Sequence[str] = (),
) -> Analysis:
    """The record of a position.

    Args:
        fen: The position.
        reply: The model's; None if the game is over.
        values: The engine's, in centipawns for every legal move.
        trained_on: What the model was trained on.
        moves: The moves that led to the position.

    Raises:
        IllegalPositionError: `fen` is not a legal position.
    """
    board = rules.board_of(fen)
    said = reply.record if reply is not None else None
    verdicts = {move: verdict(board, move, cp) for move, cp in (values or {}).items()}
    legal = rules.legal_moves(fen)
    evaluations = dict[str, float]()
    for move, pawns in zip(said.moves, said.evaluations, strict=False) if said else ():
        evaluations.setdefault(move, pawns)

    def candidate(move: str, pawns: float | None) -> Candidate:
        return Candidate(move, san(board, move), move in legal, pawns, verdicts.get(move))

    named = said.moves if said else ()
    padded = [*said.evaluations, *[None] * len(named)] if said else []
    depth = list(_out_of_depth(reply, legal)) if reply is not None else []
    if reply is not None:
        depth += unlike(trained_on or {}, POLICY.name, board.fen())
    return Analysis(
        fen=board.fen(),
        moves=tuple(moves),
        side_to_move=rules.side_to_move(board.fen()),
        legal_moves=len(legal),
        in_check=board.is_check(),
        mates_in_one=rules.mating_moves(fen),
        ended=over(fen) or None,
        answer=reply.text if reply is not None else None,
        readable=said is not None,
        candidates=tuple(candidate(*pair) for pair in zip(named, padded, strict=False)),
        best_move=candidate(said.best_move, evaluations.get(said.best_move)) if said else None,
        out_of_depth=tuple(depth),
        flaws=tuple(_flaws(said, evaluations)) if said else (),
        stockfish=verdicts[max(values, key=values.__getitem__)] if values else None,
    )


def simulation(
    fen: str,
    move: str,
    reply: Reply[EnvironmentAnswer],
    trained_on: Coverage | None = None,
    moves: Sequence[str] = (),
) -> Simulation:
    """The record of a move that a model was asked to simulate.

    Args:
        fen: The position.
        move: As it was asked; an illegal move has a right answer too.
        reply: The model's.
        trained_on: What the model was trained on.
        moves: The moves that led to the position.

    Raises:
        IllegalPositionError: `fen` is not a legal position.
    """
    board = rules.board_of(fen)
    true = rules.transition(fen, move)
    said = answer_fields(reply.record) if reply.record is not None else {}
    fields = tuple(
        Field(name, said.get(name), value, said.get(name) == value)
        for name, value in answer_fields(true).items()
    )
    unreadable = [f"the answer cannot be read: {reply.fault}"] if reply.record is None else []
    return Simulation(
        fen=board.fen(),
        moves=tuple(moves),
        move=move,
        san=san(board, move),
        legal=not true.truncated,
        answer=reply.text,
        readable=reply.record is not None,
        right=all(field.right for field in fields),
        fields=fields,
        out_of_depth=(*unreadable, *unlike(trained_on or {}, ENVIRONMENT.name, board.fen())),
    )


def _out_of_depth(reply: Reply[PolicyAnswer], legal: Collection[str]) -> Iterator[str]:
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


def _flaws(said: PolicyAnswer, evaluations: Mapping[str, float]) -> Iterator[str]:
    twice = sorted({move for move in said.moves if said.moves.count(move) > 1})
    if twice:
        yield f"named more than once: {', '.join(twice)}"
    if len(said.moves) != len(said.evaluations):
        yield f"{len(said.moves)} candidates, but {len(said.evaluations)} evaluations"
    mine, highest = evaluations.get(said.best_move), max(said.evaluations)
    if mine is not None and mine < highest:
        yield f"its best move has {mine:+.2f}, the highest evaluation is {highest:+.2f}"


def verdict(board: chess.Board, move: str, cp: int) -> Verdict:
    """What the engine's centipawns for a legal move mean."""
    words = board.san(chess.Move.from_uci(move))
    if abs(cp) < MATE_CP // 2:
        return Verdict(move, words, cp / 100, None)
    moves = MATE_CP - abs(cp)
    return Verdict(move, words, None, moves if cp > 0 else -moves)


def san(board: chess.Board, move: str) -> str | None:
    """A move in algebraic notation; None if it is illegal or unreadable."""
    try:
        return board.san(board.parse_uci(move)) if chess.Move.from_uci(move) else None
    except ValueError:
        return None


# --------------------------------------------------------------------------------------------------
# JSON
# --------------------------------------------------------------------------------------------------
def document(
    model: str, engine: Engine, found: Sequence[Analysis] | Sequence[Simulation]
) -> dict[str, Any]:
    """Records as JSON can hold them, with their `SCHEMA_VERSION`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model,
        "engine": asdict(engine.source) if engine.source is not None else None,
        "engine_absent": engine.absent or None,
        "positions": [asdict(item) for item in found if isinstance(item, Analysis)],
        "simulations": [asdict(item) for item in found if isinstance(item, Simulation)],
    }


# --------------------------------------------------------------------------------------------------
# Text
# --------------------------------------------------------------------------------------------------
def analysis_text(found: Analysis, model: str, engine: Engine) -> str:
    """A position for a terminal."""
    return "\n".join([*_position(found), "", *_answer(found, model, engine)])


def _position(found: Analysis) -> Iterator[str]:
    yield found.fen
    yield ""
    yield from board_lines(found.fen)
    yield ""
    count = f"{found.legal_moves} legal move{'' if found.legal_moves == 1 else 's'}"
    facts = [
        f"{found.side_to_move.capitalize()} to move{', in check' if found.in_check else ''}",
        count,
        *([f"mate in one: {', '.join(found.mates_in_one)}"] if found.mates_in_one else []),
        *([found.ended] if found.ended else []),
    ]
    yield "; ".join(facts)


def _answer(found: Analysis, model: str, engine: Engine) -> Iterator[str]:
    if found.answer is None:
        yield f"nothing to analyse: {found.ended}"
        return
    best = found.best_move
    if best is None:
        yield f"{model} wrote: {found.answer.strip()}"
    else:
        rows = [*found.candidates]
        rows += [] if best.move in [row.move for row in rows] else [best]
        asked = found.stockfish is not None
        yield f"  {'move':<6} {'':<8} {'model':>7}" + ("  Stockfish" if asked else "")
        yield from (_row(row, best.move, asked) for row in rows)
        yield ""
        yield f"best move of {model}: {best.san or f'{best.move} (illegal)'}"
    if found.stockfish is not None:
        yield f"best move of Stockfish: {found.stockfish.san} ({found.stockfish})"
    yield from (f"flaw: {flaw}" for flaw in found.flaws)
    yield from (f"out of its depth: {reason}" for reason in found.out_of_depth)
    yield f"Evaluations in pawns, from the side to move. {engine}"


def _row(row: Candidate, best: str, asked: bool) -> str:
    mark = "*" if row.move == best else " "
    mine = "" if row.evaluation is None else f"{row.evaluation:+.2f}"
    theirs = f"  {row.stockfish or ''!s:>9}" if asked else ""
    return f"{mark} {row.move:<6} {row.san or 'illegal':<8} {mine:>7}{theirs}".rstrip()


def analysis_line(found: Analysis) -> str:
    """One of many positions in a line: its FEN, the best move, and remarks."""
    best = found.best_move
    if found.answer is None:
        said = f"nothing to analyse: {found.ended}"
    elif best is None:
        said = "no readable answer"
    else:
        pawns = "" if best.evaluation is None else f" {best.evaluation:+.2f}"
        said = f"{best.san or f'{best.move} (illegal)'}{pawns}"
    verdict_said = f"  Stockfish {found.stockfish.san} {found.stockfish}" if found.stockfish else ""
    depth = f"  out of its depth: {'; '.join(found.out_of_depth)}" if found.out_of_depth else ""
    return f"{found.fen}  {said}{verdict_said}{depth}"


def simulation_text(found: Simulation, model: str) -> str:
    """A move's consequences for a terminal; ``≠`` marks where the model is wrong."""
    told = " ".join(found.moves[-(MAX_HISTORY - 1) :]) or "none"
    wrong = [field.name for field in found.fields if not field.right]
    lines = [
        found.fen,
        f"{found.san or found.move}: {'legal' if found.legal else 'illegal'}; moves before: {told}",
        "",
        *_boards(found.fields[0]),
        "",
        *map(_field_line, found.fields),
        "",
    ]
    if not found.readable:
        lines.append(f"{model} wrote: {found.answer.strip()}")
    else:
        lines.append(f"{model} is wrong in: {', '.join(wrong)}" if wrong else f"{model} is right")
    return "\n".join([*lines, *(f"out of its depth: {reason}" for reason in found.out_of_depth)])


def _boards(board: Field) -> list[str]:
    """The boards after a move side by side; python-chess's alone if the model's is unreadable."""
    true, mine = str(board.python_chess), board.model
    if mine is None:
        return ["python-chess", *board_lines(true)]
    theirs, ours = placement_of(true), placement_of(str(mine))
    wrong = [square for square in chess.SQUARES if theirs[square] != ours[square]]
    pairs = zip(board_lines(str(mine), wrong), board_lines(true, wrong), strict=True)
    return [f"{'model':<22}python-chess", *(f"{left:<22}{right}" for left, right in pairs)]


def _field_line(field: Field) -> str:
    if field.model is None:
        return f"  {field.name:<13} {_plain(field.python_chess)}"
    mark, other = " ", ""
    if not field.right:
        mark, other = "≠", f"   python-chess: {_plain(field.python_chess)}"
    return f"{mark} {field.name:<13} {_plain(field.model)}{other}"


def _plain(value: str | float | bool) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def board_lines(fen: str, marked: Collection[chess.Square] = ()) -> list[str]:
    """A FEN's board in Unicode with its coordinates, White below; nine lines of 17 characters.

    Args:
        fen: A FEN or its first field alone; it need not be a legal position.
        marked: Squares that get a ``≠``.
    """
    placement = placement_of(fen)

    def drawn(square: chess.Square) -> str:
        letter = placement[square]
        piece = "·" if letter == "." else chess.UNICODE_PIECE_SYMBOLS[letter]
        return ("≠" if square in marked else " ") + piece

    ranks = [
        f"{rank + 1}" + "".join(drawn(chess.square(file, rank)) for file in range(8))
        for rank in reversed(range(8))
    ]
    return [*ranks, "  a b c d e f g h"]


def check_position(fen: str, where: str) -> str:
    """What is wrong with a position, and the remedy; empty if it is legal.

    Args:
        fen: Six fields.
        where: The option, or the line of a file, that gave it.
    """
    try:
        rules.board_of(fen)
    except IllegalPositionError as error:
        return f"{where}: {error}; give a position that a game can reach"
    return ""
