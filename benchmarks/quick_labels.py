"""Label positions of games for pretraining, by one shallow MultiPV search each.

    python benchmarks/quick_labels.py --games_file data/games.parquet --rows 200000 \\
        --output_file data/policy_rows.parquet

At depth 6, Stockfish's MultiPV values about 100 positions a second on one core; the two passes of
`rookworld prepare`, which ask for each move by itself, value 28, as most of their time goes into asking.
At depth 10 the two passes are three times as fast instead, and a value is then worth more. A model that
learns the moves of a game gains more from many positions than from deep values, hence this script; all
that is measured or rewarded takes its values from `rookworld prepare`.

The positions are those that `rookworld prepare --game_policy_rows` takes: openings, middle games and
endgames of games that the engine played, a third each. With `--exposed_kings` half of them are in
check, and in the others at least three moves would leave the king in check (pins, attacked squares).
Such positions are rare in games, and a model that knows how the pieces move still errs in them.

The same seed takes the same positions. The hash is cleared before each, so values do not depend on what
was searched before.
"""

from __future__ import annotations

import argparse
import random
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import chess
import chess.engine
import pyarrow as pa
import pyarrow.parquet as pq

from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.common.progress import Progress
from rookworld_rlvr.data.games import collect, policy_targets
from rookworld_rlvr.engine.pool import find_engine
from rookworld_rlvr.tasks.policy import (
    policy_reference,
    write_policy_answer,
    write_policy_prompt,
)
from rookworld_rlvr.tasks.types import MATE_CP, action_values_column

BLOCK = 500  # games or positions that one process takes at once


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games_file", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--output_file", type=Path, required=True)
    parser.add_argument("--depth", type=int, default=6, help="of the search, in plies")
    parser.add_argument("--seed", default="0", help="of the positions that are taken")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--exposed_kings", action="store_true", help="see above")
    args = parser.parse_args(argv)
    fens = exposed_kings(args) if args.exposed_kings else positions_by_phase(args)
    random.Random(args.seed).shuffle(fens)
    label = partial(label_rows, depth=args.depth)
    with (
        ProcessPoolExecutor(args.workers) as pool,
        Progress("labelling", len(fens)) as progress,
    ):
        blocks = []
        for rows in pool.map(label, blocks_of(fens)):
            blocks.append(rows)
            progress.update(len(rows))
    table = pa.Table.from_pylist([*chain.from_iterable(blocks)])
    pq.write_table(table, args.output_file, compression="zstd")
    print(f"{args.output_file}: {table.num_rows:,} rows")


def positions_by_phase(args: argparse.Namespace) -> list[str]:
    """Openings, middle games and endgames, a third each."""
    taken = collect(
        args.games_file, policy_targets(args.rows), 0.0, args.seed, args.workers, is_policy=True
    )
    return [found.text for block in taken for found in block]


def exposed_kings(args: argparse.Namespace) -> list[str]:
    """Positions in check, and as many with moves that would leave the king in check.

    Raises:
        RookWorldError: The games have fewer.
    """
    games = pq.read_table(args.games_file, columns=["moves"])["moves"].to_pylist()
    random.Random(args.seed).shuffle(games)
    wanted = {"in check": args.rows - args.rows // 2, "exposed": args.rows // 2}
    found = {kind: dict[str, None]() for kind in wanted}  # without doubles
    with ProcessPoolExecutor(args.workers) as pool:
        for by_kind in pool.map(of_games, blocks_of(games)):
            for kind, fens in by_kind.items():
                found[kind].update(dict.fromkeys(fens))
    for kind, number in wanted.items():
        if len(found[kind]) < number:
            raise RookWorldError(
                f"{args.games_file} has {len(found[kind]):,} positions of {number:,}: {kind}; "
                "play more games or lower --rows"
            )
    return [fen for kind, number in wanted.items() for fen in [*found[kind]][:number]]


def of_games(games: Sequence[str]) -> dict[str, list[str]]:
    """Positions of some games with exposed kings. Of those without check one in four is looked at."""
    found: dict[str, list[str]] = {"in check": [], "exposed": []}
    for number, moves in enumerate(games):
        board = chess.Board()
        for ply, move in enumerate(moves.split(" ")):
            if board.is_check():
                found["in check"].append(board.fen())
            elif (ply + number) % 4 == 0 and is_exposed(board):
                found["exposed"].append(board.fen())
            board.push_uci(move)
            board.clear_stack()
    return found


def is_exposed(board: chess.Board) -> bool:
    """Whether at least three moves would leave the king in check.

    >>> is_exposed(chess.Board()), is_exposed(chess.Board("4k3/8/8/8/8/8/r7/4K3 w - - 0 1"))
    (False, True)
    """
    return board.pseudo_legal_moves.count() - board.legal_moves.count() >= 3


def blocks_of(items: Sequence[str]) -> Iterator[list[str]]:
    """Items in blocks; the last one may be shorter."""
    for first in range(0, len(items), BLOCK):
        yield [*items[first : first + BLOCK]]


def label_rows(fens: Sequence[str], depth: int) -> list[dict[str, Any]]:
    """Policy rows with the values of all legal moves, best first."""
    rows = []
    with Engine() as engine:
        for fen in fens:
            values = engine.values(fen, depth)
            answer = policy_reference(fen, values, random.Random(fen))
            rows.append(
                {
                    "text": write_policy_prompt(fen) + write_policy_answer(answer),
                    "action_values": action_values_column(values),
                }
            )
    return rows


class Engine:
    """Stockfish by UCI. python-chess parses every line of a search, which takes more time than that."""

    def __enter__(self) -> Engine:
        self._process = subprocess.Popen(
            [find_engine()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._say("setoption name MultiPV value 500")
        self._say("setoption name Hash value 16")
        return self

    def __exit__(self, *_: object) -> None:
        self._say("quit")
        self._process.wait()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def values(self, fen: str, depth: int) -> dict[str, int]:
        """Centipawns from the side to move, by move, best first.

        Raises:
            ValueError: The engine did not value all legal moves, and no others.
        """
        for line in ("ucinewgame", f"position fen {fen}", f"go depth {depth}"):
            self._say(line)
        assert self._process.stdout is not None
        found: dict[str, int] = {}
        for line in self._process.stdout:
            words = line.split()
            if words[0] == "bestmove":
                break
            if "multipv" in words and "pv" in words:
                kind, number = words[words.index("score") + 1 :][:2]
                found[words[words.index("pv") + 1]] = centipawns(kind, int(number))
        if found.keys() != {move.uci() for move in chess.Board(fen).legal_moves}:
            raise ValueError(f"{fen}: {sorted(found)} were valued")
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def centipawns(kind: str, number: int) -> int:
    """A UCI score as this package counts it.

    >>> centipawns("cp", -31), centipawns("mate", 2), centipawns("mate", -1)
    (-31, 99998, -99999)
    """
    if kind == "cp":
        return number
    return chess.engine.Mate(number).score(mate_score=MATE_CP)


if __name__ == "__main__":
    run_cli(main)
