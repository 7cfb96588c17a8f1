"""What every legal move of a position is worth, asked of one UCI engine.

Each legal move is played, and the position behind it is searched by one single-threaded process, in
two passes over the moves: all of them to a shallower limit, then the best five to the full one, until
the best five are five that were searched so. The rest keep the shallower pass's values, as an engine
too looks less deep into moves that do not lead. Against one MultiPV search of all moves to the same
depth this takes a third of the time; judged by a search three plies deeper, its best move loses 0.004 of
win probability on average, MultiPV's 0.002 to 0.003 (`benchmarks/engine.py`).

The hash tables are cleared before each position, the order of the searches is fixed and the limit is
never time: values depend neither on load nor on what was asked before.
"""

from __future__ import annotations

from dataclasses import dataclass

import chess.engine

from ..tasks.policy import MAX_CANDIDATES
from ..tasks.types import MATE_CP

_HIGHEST_CP = MATE_CP // 2  # no evaluation comes near; more is nonsense


_LONGEST_MATE = 1_000  # moves


_INFO = chess.engine.INFO_BASIC | chess.engine.INFO_SCORE


@dataclass(frozen=True, slots=True)
class SearchLimit:
    """How far a move is searched: the move itself and what comes behind it."""

    kind: str  # "depth" in plies or "nodes"
    size: int

    def of_engine(self, size: int) -> chess.engine.Limit:
        """The limit of the search behind a move."""
        if self.kind == "depth":
            return chess.engine.Limit(depth=size - 1)
        return chess.engine.Limit(nodes=size)

    def passes(self) -> tuple[int, int]:
        """Sizes of the pass over all moves and of the one over the best five."""
        # Two plies less take about a quarter of the nodes.
        return (max(2, self.size - 2) if self.kind == "depth" else self.size // 4), self.size

    def __str__(self) -> str:
        shallow, full = self.passes()
        if shallow == full:
            return f"{self.kind} {full}"
        return f"{self.kind} {full} for the best {MAX_CANDIDATES} moves, {shallow} for the others"


class LastInfoProtocol(chess.engine.UciProtocol):
    """UCI that hears of a search only its last `info`, which is all that `value_moves` reads.

    An engine writes one for each depth; reading them all takes python-chess a fifth of the time of
    shallow searches.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rest = b""  # of a line that has not ended yet
        self._info = b""

    def pipe_data_received(self, fd: int, data: str | bytes) -> None:
        """Pass on what an engine has written, `info` lines only when another line follows."""
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
    """The engine's answer cannot be one."""


async def value_moves(
    engine: chess.engine.Protocol, fen: str, limit: SearchLimit
) -> dict[chess.Move, tuple[int, int]]:
    """Centipawns and depth by move, best first."""
    board = chess.Board(fen)
    game = object()  # another game than the last one: python-chess has the hash cleared
    sizes = limit.passes()
    shallow, full = map(limit.of_engine, sizes)
    values: dict[chess.Move, tuple[int, int]] = {}
    for move in board.legal_moves:
        values[move] = await _value_move(engine, board, move, shallow, game)
    deep: set[chess.Move] = set() if sizes[0] < sizes[1] else set(values)
    while waiting := [move for move in _best_first(values)[:MAX_CANDIDATES] if move not in deep]:
        for move in waiting:
            values[move] = await _value_move(engine, board, move, full, game)
        deep.update(waiting)
    return {move: values[move] for move in _best_first(values)}


def _best_first(values: dict[chess.Move, tuple[int, int]]) -> list[chess.Move]:
    return sorted(values, key=lambda move: -values[move][0])  # stable: equals stay as generated


async def _value_move(
    engine: chess.engine.Protocol,
    board: chess.Board,
    move: chess.Move,
    limit: chess.engine.Limit,
    game: object,
) -> tuple[int, int]:
    """Centipawns of a move from the side to move, and the plies searched, itself included.

    Raises:
        NonsenseError: The answer is none.
    """
    board.push(move)
    try:
        if not any(board.legal_moves):
            return (MATE_CP - 1 if board.is_check() else 0), 1
        info = await engine.analyse(board, limit, game=game, info=_INFO)
    finally:
        board.pop()
    if "score" not in info or "depth" not in info:
        raise NonsenseError("an answer without score or depth")
    if info["depth"] < (limit.depth or 1):
        raise NonsenseError("a search less deep than asked")
    return _value_before(info["score"].relative), info["depth"] + 1


def _value_before(score: chess.engine.Score) -> int:
    """A move's worth, from the score of the side that is to answer it."""
    mate = score.mate()
    if mate is None:
        cp = score.score()
        if cp is None or abs(cp) >= _HIGHEST_CP:
            raise NonsenseError("a score beyond every evaluation")
        return -cp
    if not 0 < abs(mate) < _LONGEST_MATE:
        raise NonsenseError("a mate beyond every game")
    # Being mated in n moves comes with the n-th answer; mating in n takes the move just played too.
    return mate - MATE_CP if mate > 0 else MATE_CP - (1 - mate)
