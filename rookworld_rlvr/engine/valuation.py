"""Value every legal move of a position with one UCI engine.

Each legal move is played, and a single-threaded process searches the position after it. There are two
passes: all moves to a shallow limit, then the best five to the full limit, repeated until all of the
best five have been searched to the full limit. The other moves keep their shallow values; engines, too,
search weak moves less deeply. This takes a third of the time of one MultiPV search of all moves to the
same depth. Judged by a search three plies deeper, its best move loses 0.0040 of win probability on
average, that of MultiPV 0.0034 (`benchmarks/engine.py`).

The hash tables are cleared before each position, the order of searches is fixed, and the limit is never
time. So values depend neither on the machine's load nor on earlier searches.
"""

from __future__ import annotations

import chess.engine

from ..tasks.policy import MAX_CANDIDATES
from ..tasks.types import MATE_CP

_HIGHEST_CP = MATE_CP // 2  # no real evaluation comes near it


_LONGEST_MATE = 1_000  # moves


_INFO = chess.engine.INFO_BASIC | chess.engine.INFO_SCORE


def first_depth(depth: int) -> int:
    """The depth of the first pass, over all moves; two plies less take about a quarter of the nodes."""
    return max(2, depth - 2)


def limit_text(depth: int) -> str:
    """How far moves are searched, in words.

    >>> limit_text(10)
    'depth 10 for the best 5 moves, 8 for the others'
    """
    shallow = first_depth(depth)
    if shallow == depth:
        return f"depth {depth}"
    return f"depth {depth} for the best {MAX_CANDIDATES} moves, {shallow} for the others"


class LastInfoProtocol(chess.engine.UciProtocol):
    """UCI that reads only the last `info` line of a search, which is all that `value_moves` needs.

    An engine writes a line for each depth, and python-chess would spend a fifth of the time of shallow
    searches on reading all of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rest = b""  # of a line that has not ended yet
        self._info = b""

    def pipe_data_received(self, fd: int, data: str | bytes) -> None:
        """Pass on an engine's output, but only the last `info` line before any other line."""
        if fd != 1 or isinstance(data, str):
            super().pipe_data_received(fd, data)
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        heard = b""
        for line in lines:
            if line.startswith(b"info "):
                self._info = line + b"\n" if b" score " in line else self._info
            else:
                heard += self._info + line + b"\n"
                self._info = b""
        if heard:
            super().pipe_data_received(fd, heard)


class NonsenseError(Exception):
    """The engine's answer cannot be right."""


async def value_moves(
    engine: chess.engine.Protocol, fen: str, depth: int
) -> dict[chess.Move, tuple[int, int]]:
    """Centipawns from the side to move and depth in plies, by move, best first.

    Args:
        engine: It is asked about the position after each move.
        fen: The position.
        depth: Plies of the search of each of the best five moves, the move included.
    """
    board = chess.Board(fen)
    game = object()  # a new game makes python-chess clear the hash
    first = first_depth(depth)
    values: dict[chess.Move, tuple[int, int]] = {}
    for move in board.legal_moves:
        values[move] = await _value_move(engine, board, move, first, game)
    deep: set[chess.Move] = set() if first < depth else set(values)
    while waiting := [move for move in _best_first(values)[:MAX_CANDIDATES] if move not in deep]:
        for move in waiting:
            values[move] = await _value_move(engine, board, move, depth, game)
        deep.update(waiting)
    return {move: values[move] for move in _best_first(values)}


def _best_first(values: dict[chess.Move, tuple[int, int]]) -> list[chess.Move]:
    return sorted(values, key=lambda move: -values[move][0])  # stable: equal moves keep their order


async def _value_move(
    engine: chess.engine.Protocol,
    board: chess.Board,
    move: chess.Move,
    depth: int,
    game: object,
) -> tuple[int, int]:
    """Value of a move in centipawns from the side to move, and the plies searched, the move included.

    Raises:
        NonsenseError: The engine's answer cannot be right.
    """
    board.push(move)
    try:
        if not any(board.legal_moves):
            return (MATE_CP - 1 if board.is_check() else 0), 1
        limit = chess.engine.Limit(depth=depth - 1)
        info = await engine.analyse(board, limit, game=game, info=_INFO)
    finally:
        board.pop()
    if "score" not in info or "depth" not in info:
        raise NonsenseError("the answer has no score or no depth")
    if info["depth"] < depth - 1:
        raise NonsenseError("the search was less deep than asked")
    return _value_before(info["score"].relative), info["depth"] + 1


def _value_before(score: chess.engine.Score) -> int:
    """A move's value, from the score of the side that moves next."""
    mate = score.mate()
    if mate is None:
        cp = score.score()
        if cp is None or abs(cp) >= _HIGHEST_CP:
            raise NonsenseError("the score is too large for an evaluation")
        return -cp
    if not 0 < abs(mate) < _LONGEST_MATE:
        raise NonsenseError("the mate score is impossible")
    # Being mated in n ends with the n-th answer. Mating in n needs the move just played as well.
    return mate - MATE_CP if mate > 0 else MATE_CP - (1 - mate)
