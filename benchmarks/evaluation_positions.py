"""Write the positions of the packaged test set, from which `rookworld prepare` makes it.

    python benchmarks/evaluation_positions.py positions.txt
    rookworld prepare --dataset_name positions.txt --repairs duplicates --engine_depth 10 \\
        --output_file rookworld_rlvr/assets/evaluation_positions.parquet

They are middlegames and endgames for the suite `policy` (openings are in rookworld-nano-openings), and
prompts of all kinds for the suite `environment`, all from the held-out tenth of positions: no training
set that is split by position contains them. Labelling takes about three minutes on two cores.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import chess

from rookworld_rlvr.data import synthesis
from rookworld_rlvr.data.loading import HELDOUT_SHARE, is_held_out
from rookworld_rlvr.tasks import positions, rules
from rookworld_rlvr.tasks.policy import write_policy_prompt
from rookworld_rlvr.tasks.registry import join_row

SEED = 5
POLICY_ROWS, ENVIRONMENT_ROWS = 400, 2_400
KINDS = {
    "openings": 0.3,
    "double_steps": 0.05,
    "special_moves": 0.2,
    "game_ends": 0.1,
    "illegal_actions": 0.1,
    "middle_games": 0.25,
}
LONGEST_GAME = 200


def main(argv: Sequence[str]) -> None:
    (path,) = argv
    Path(path).write_text("".join(f"{row}\n" for row in [*policy_rows(), *environment_rows()]))


def policy_rows() -> Iterator[str]:
    """Prompts about different middlegames and endgames, about as many of each."""
    rng = random.Random(SEED)
    streams = [phase_positions(SEED, phase) for phase in ("middlegame", "endgame")]
    found: dict[str, str] = {}
    while len(found) < POLICY_ROWS:
        fen = next(rng.choice(streams))
        if is_held_out(fen, HELDOUT_SHARE):
            found.setdefault(rules.position_key(fen), fen)
    return map(write_policy_prompt, found.values())


def environment_rows() -> Iterator[str]:
    """Rows with python-chess's answers."""
    asked = synthesis.environment_prompts(SEED, KINDS)
    apart = (prompt for prompt in asked if is_held_out(prompt.fen, HELDOUT_SHARE))
    rows = map(synthesis.environment_row, islice(apart, ENVIRONMENT_ROWS))
    return (join_row(row["prompt"], row["completion"]) for row in rows)


def phase_positions(seed: int, phase: positions.GamePhase) -> Iterator[str]:
    """An endless stream of FENs of a phase, one from each game, without finished games.

    Moves are random. If a capture is possible, one is played half of the time, so that games end.
    """
    rng = random.Random(f"{seed} {phase}")
    while True:
        board = chess.Board()
        found = []
        while not board.is_game_over() and board.ply() < LONGEST_GAME:
            captures = list(board.generate_legal_captures())
            eager = captures and rng.random() < 0.5
            board.push(rng.choice(captures if eager else list(board.legal_moves)))
            if positions.phase(board.fen()) == phase and not board.is_game_over():
                found.append(board.fen())
        if found:
            yield rng.choice(found)


if __name__ == "__main__":
    main(sys.argv[1:])
