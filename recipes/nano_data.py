"""Make the packaged data set: openings, as environment rows and as labelled policy rows.

    python recipes/nano_data.py --output_file rookworld_rlvr/assets/nano_openings.parquet

Needs Stockfish on the PATH (or `--engine`). Positions and their order follow from the seed, values
from the engine's version and depth; hash tables are cleared between positions. A stopped run goes on
from `<output_file>.partial.jsonl`. Training needs none of this: the values are stored with the rows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import chess
import chess.engine
import datasets
from tqdm import tqdm

from rookworld_rlvr import notation, rules, synthesis
from rookworld_rlvr.records import MATE_CP, ActionValue, PolicyPrompt
from rookworld_rlvr.scoring import policy_reference

SHARES = {"openings": 0.62, "double_steps": 0.33, "illegal_actions": 0.05}

_engine: chess.engine.SimpleEngine
_depth: int


def main() -> None:
    args = parse_args()

    ################
    # Positions
    ################
    stream = synthesis.opening_positions(args.seed, args.max_plies)
    unique: dict[str, str] = {}
    while len(unique) < args.positions:
        fen = next(stream)
        unique.setdefault(rules.position_key(fen), fen)
    fens = list(unique.values())

    ################
    # Values
    ################
    partial = Path(f"{args.output_file}.partial.jsonl")
    done = dict(map(json.loads, partial.read_text().splitlines())) if partial.exists() else {}
    waiting = [fen for fen in fens if fen not in done]
    with (
        multiprocessing.Pool(args.workers, _start_engine, (args.engine, args.depth)) as pool,
        partial.open("a") as sink,
    ):
        for fen, values in tqdm(pool.imap(_label, waiting, chunksize=8), total=len(waiting)):
            done[fen] = values
            sink.write(json.dumps([fen, values]) + "\n")
            sink.flush()

    ################
    # Rows
    ################
    rows = [_policy_row(fen, done[fen]) for fen in fens]
    shares = synthesis.KindShares.of(SHARES)
    prompts = synthesis.environment_prompts(args.seed, shares, args.max_plies + 2)
    made = map(synthesis.environment_row, islice(prompts, args.environment_rows))
    texts = dict.fromkeys(notation.join_row(row["prompt"], row["completion"]) for row in made)
    rows += [{"text": text, "action_values": None} for text in texts]
    datasets.Dataset.from_list(rows).to_parquet(args.output_file)
    partial.unlink()
    print(f"{len(rows)} rows written to {args.output_file}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_file", required=True)
    parser.add_argument("--positions", type=int, default=12000, help="labelled policy rows")
    parser.add_argument("--environment_rows", type=int, default=12000)
    parser.add_argument("--max_plies", type=int, default=6, help="longest opening")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engine", default=shutil.which("stockfish") or "/usr/games/stockfish")
    args = parser.parse_args()
    if not Path(args.engine).exists():
        parser.error(f"no engine at {args.engine}; install one (apt-get install stockfish)")
    return args


def _start_engine(path: str, depth: int) -> None:
    global _engine, _depth
    _engine = chess.engine.SimpleEngine.popen_uci(path)
    _engine.configure({"Threads": 1, "Hash": 16})
    _depth = depth


def _label(fen: str) -> tuple[str, list[dict[str, Any]]]:
    board = chess.Board(fen)
    infos = _engine.analyse(
        board,
        chess.engine.Limit(depth=_depth),
        multipv=board.legal_moves.count(),
        game=object(),  # a new game each time, so that the engine clears its hash tables
    )
    values: list[dict[str, Any]] = [
        {"move": info["pv"][0].uci(), "cp": info["score"].relative.score(mate_score=MATE_CP)}
        for info in infos
    ]
    values.sort(key=lambda value: -value["cp"])
    return fen, values


def _policy_row(fen: str, values: list[dict[str, Any]]) -> dict[str, object]:
    answer = policy_reference(fen, [ActionValue(**value) for value in values])
    return {
        "text": notation.write_policy_prompt(PolicyPrompt(fen))
        + notation.write_policy_answer(answer),
        "action_values": values,
    }


if __name__ == "__main__":
    main()
