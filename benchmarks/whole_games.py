"""Make the packaged whole games, their positions and tactics, for the suites of whole games.

    python benchmarks/whole_games.py games/            # plays, and writes two files of positions
    rookworld prepare --dataset_name games/moves.txt --repairs duplicates --engine_depth 10 \\
        --output_file rookworld_rlvr/assets/whole_games_moves.parquet
    rookworld prepare --dataset_name games/candidates.txt --repairs duplicates --engine_depth 6 \\
        --output_file games/candidates.parquet
    python benchmarks/whole_games.py games/            # writes games/tactics.txt
    rookworld prepare --dataset_name games/tactics.txt --repairs duplicates --engine_depth 10 \\
        --output_file rookworld_rlvr/assets/whole_games_tactics.parquet

All positions are of the held-out tenth. It takes half an hour on two cores, most of it for the labels.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import chess
import pyarrow as pa
import pyarrow.parquet as pq

from rookworld_rlvr.common.files import asset_path
from rookworld_rlvr.data.loading import HELDOUT_SHARE, is_held_out
from rookworld_rlvr.data.play import KINDS, PLAYED, Play, play_games
from rookworld_rlvr.evaluation.suites.whole_games import GAMES, labelled_positions, tactic
from rookworld_rlvr.tasks import positions, rules
from rookworld_rlvr.tasks.policy import write_policy_prompt

SEED = 900
PACKAGED = {PLAYED: 100, "random": 50}  # games
EACH_PHASE = 160  # positions of the suite moves
CANDIDATES = 5_000  # positions among which tactics are looked for
EACH_TACTIC = 60


def main(argv: Sequence[str]) -> None:
    folder = Path(*argv)
    folder.mkdir(exist_ok=True)
    if (folder / "candidates.parquet").exists():
        write(folder / "tactics.txt", tactics(folder))
        return
    play_games(folder / "games.parquet", Play(SEED, 1_200, 0.1), None, workers=2)
    games = pq.read_table(folder / "games.parquet").to_pylist()
    chosen = [game for kind in KINDS for game in of_kind(games, kind)[: PACKAGED[kind]]]
    pq.write_table(pa.Table.from_pylist(chosen), asset_path(GAMES), compression="zstd")
    found = held_out(of_kind(games, PLAYED))
    moves = [fen for phase in positions.PHASES for fen in of_phase(found, phase)[:EACH_PHASE]]
    write(folder / "moves.txt", moves)
    others = [fen for fen in found if fen not in set(moves)]
    write(folder / "candidates.txt", others[:CANDIDATES])


def of_kind(games: list[dict[str, str]], kind: str) -> list[dict[str, str]]:
    """The games of a kind, in their order."""
    return [game for game in games if game["kind"] == kind]


def of_phase(fens: list[str], phase: str) -> list[str]:
    """The positions of a phase, in their order."""
    return [fen for fen in fens if positions.phase(fen) == phase]


def held_out(games: Iterable[dict[str, str]]) -> list[str]:
    """Different positions of the held-out tenth from games, in random order, none after a game's end."""
    found: dict[str, str] = {}
    for game in games:
        board = chess.Board()
        for move in game["moves"].split():
            fen = board.fen()
            if is_held_out(fen, HELDOUT_SHARE):
                found.setdefault(rules.position_key(fen), fen)
            board.push_uci(move)
    return random.Random(SEED).sample(list(found.values()), len(found))


def tactics(folder: Path) -> list[str]:
    """Positions with something to find, by the candidates' values."""
    by_kind: dict[str, list[str]] = {}
    for fen, values in labelled_positions(str((folder / "candidates.parquet").resolve())).items():
        if kind := tactic(values):
            by_kind.setdefault(kind, []).append(fen)
    print({kind: len(fens) for kind, fens in by_kind.items()})
    return [fen for fens in by_kind.values() for fen in fens[:EACH_TACTIC]]


def write(path: Path, fens: Iterable[str]) -> None:
    """Write prompts about positions, a line each."""
    path.write_text("".join(f"{write_policy_prompt(fen)}\n" for fen in fens))


if __name__ == "__main__":
    main(sys.argv[1:])
