"""How fast positions are valued, as ratios measured in one run; needs Stockfish, takes three minutes.

    python benchmarks/engine.py

- `workers`: labelling with two engine processes against one.
- `cache`: a second run on the same positions, in a new labeller, against the first.
- `rewards`: policy rewards of 16 positions with 8 completions each, three times. The completions are
  sampled from the packaged model, the cache is empty, and there is one engine process. It is compared
  with scoring each completion by itself: one MultiPV-5 search per position, and one search for each
  legal move that a completion names, by python-chess's blocking engine to the same depth. Its hash
  stays warm, while ours is cleared between positions.
- `passes`: valuing all moves in two passes, against one MultiPV search of all moves to the same depth.
It
  also prints the win probability that the best move of each loses by a search three plies deeper.

Positions are openings, as in the packaged data, and middle games of random play, which have more legal
moves.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import chess
import chess.engine
import torch

from rookworld_rlvr.common.errors import NotationError, RookWorldError
from rookworld_rlvr.data import synthesis
from rookworld_rlvr.engine import EngineArguments
from rookworld_rlvr.engine.labeller import Labeller
from rookworld_rlvr.engine.pool import find_engine
from rookworld_rlvr.engine.truth import PolicyTruth
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import pad_rows
from rookworld_rlvr.rewards.registry import get_reward_funcs, known_rewards
from rookworld_rlvr.tasks.policy import (
    MAX_CANDIDATES,
    parse_policy_answer,
    win_probability,
    write_policy_prompt,
)
from rookworld_rlvr.tasks.types import MATE_CP

DEPTH = 10
POSITIONS = 16
GROUP = 8
LABELLED = 300
REFERENCE_DEPTH = 13


def main() -> None:
    try:
        path = find_engine()
    except RookWorldError as error:
        sys.exit(f"benchmarks/engine.py: {error}")
    kinds = {"openings": list(openings(LABELLED)), "middle games": list(middle_games(POSITIONS))}
    print(f"{'what':<36}{'slow':>12}{'fast':>12}{'ratio':>8}{'wanted':>8}")
    reached = [
        *labelling(kinds["openings"]),
        rewards([kinds["openings"][i : i + POSITIONS] for i in (0, 16, 32)], path),
    ]
    for name, fens in kinds.items():
        passes(name, fens[:POSITIONS], path)
    if not all(reached):
        sys.exit("benchmarks/engine.py: a ratio is below what is wanted")


# --------------------------------------------------------------------------------------------------
# Labelling
# --------------------------------------------------------------------------------------------------
def labelling(fens: Sequence[str]) -> Iterator[bool]:
    """Two workers against one, then the cache against the engine, without the start of engines."""
    with tempfile.TemporaryDirectory() as folder:
        one = label(fens, 1, str(Path(folder) / "one.sqlite"))
        two = label(fens, 2, str(Path(folder) / "two.sqlite"))
        again = label(fens, 2, str(Path(folder) / "two.sqlite"))
    n = len(fens)
    yield report("workers: positions/s, 1 and 2", n / one, n / two, one / two, 1.8)
    yield report("cache: positions/s, 1st and 2nd run", n / two, n / again, two / again, 200)


def label(fens: Sequence[str], workers: int, cache: str) -> float:
    """How many seconds it takes to value positions."""
    args = EngineArguments(engine_depth=DEPTH, engine_workers=workers, engine_cache=cache)
    with Labeller(args) as labeller:
        started = time.perf_counter()
        values = labeller.values(fens)
        seconds = time.perf_counter() - started
    assert None not in values
    return seconds


# --------------------------------------------------------------------------------------------------
# Rewards with the engine in the loop
# --------------------------------------------------------------------------------------------------
def rewards(batches: Sequence[Sequence[str]], path: str) -> bool:
    """All policy rewards with an empty cache, against scoring the same completions one by one."""
    slow = fast = 0.0
    for fens in batches:
        prompts = [policy_prompt(fen) for fen in fens for _ in range(GROUP)]
        completions = sample(prompts)
        with chess.engine.SimpleEngine.popen_uci(path) as engine:
            started = time.perf_counter()
            one_by_one(engine, fens, completions)
            slow += time.perf_counter() - started
        args = EngineArguments(engine_depth=DEPTH, engine_cache=":memory:")
        names = [name for name, reward in known_rewards().items() if reward.tasks == ("policy",)]
        with Labeller(args) as labeller:
            truth = PolicyTruth(labeller)
            funcs = get_reward_funcs([{"name": name} for name in names], truth)
            started = time.perf_counter()
            for func in funcs:
                assert None not in func(prompts=prompts, completions=completions)
            fast += time.perf_counter() - started
    count = sum(map(len, batches)) * GROUP
    return report("rewards: completions/s", count / slow, count / fast, slow / fast, 4)


def policy_prompt(fen: str) -> str:
    return write_policy_prompt(fen)


def sample(prompts: Sequence[str]) -> list[str]:
    """One completion per prompt, as in training."""
    torch.manual_seed(0)
    tokenizer = loading.load_tokenizer(loading.PACKAGED_MODEL)
    model = loading.load_model(loading.PACKAGED_MODEL).eval()
    batch = pad_rows([tokenizer(prompt)["input_ids"] for prompt in prompts], tokenizer.pad_token_id)
    with torch.no_grad():
        output = model.generate(**batch, do_sample=True, top_k=0, max_new_tokens=64)
    texts: list[str] = tokenizer.batch_decode(
        output[:, batch["input_ids"].size(1) :], skip_special_tokens=True
    )
    return texts


def one_by_one(
    engine: chess.engine.SimpleEngine, fens: Sequence[str], completions: Sequence[str]
) -> None:
    """The engine's work if each completion is scored by itself."""
    limit = chess.engine.Limit(depth=DEPTH)
    for index, completion in enumerate(completions):
        board = chess.Board(fens[index // GROUP])
        if index % GROUP == 0:
            engine.analyse(board, limit, multipv=MAX_CANDIDATES)
        legal = {move.uci(): move for move in board.legal_moves}
        for move in filter(legal.__contains__, named_moves(completion)):
            board.push(legal[move])
            engine.analyse(board, limit)
            board.pop()


def named_moves(completion: str) -> list[str]:
    try:
        answer = parse_policy_answer(completion)
    except NotationError:
        return []
    return list(dict.fromkeys((*answer.moves, answer.best_move)))


# --------------------------------------------------------------------------------------------------
# Two passes against MultiPV
# --------------------------------------------------------------------------------------------------
def passes(name: str, fens: Sequence[str], path: str) -> None:
    """Time and quality of both ways to value all moves."""
    limit = chess.engine.Limit(depth=DEPTH)
    with chess.engine.SimpleEngine.popen_uci(path) as engine:
        started = time.perf_counter()
        best_by_multipv = [multipv_best(engine, fen, limit) for fen in fens]
        slow = time.perf_counter() - started
    args = EngineArguments(engine_depth=DEPTH, engine_cache=":memory:")
    with Labeller(args) as labeller:
        started = time.perf_counter()
        found = [value for value in labeller.values(fens) if value is not None]
        fast = time.perf_counter() - started
    with Labeller(
        EngineArguments(
            engine_depth=REFERENCE_DEPTH,
            engine_workers=2,
            engine_cache=":memory:",
        )
    ) as labeller:
        truths = [value for value in labeller.values(fens) if value is not None]
    n = len(fens)
    report(f"passes: positions/s, {name}", n / slow, n / fast, slow / fast, None)
    lost = [
        1000 * sum(map(loss, truths, best)) / n
        for best in (best_by_multipv, [next(iter(value)) for value in found])
    ]
    print(f"{'  best move loses, win prob. x 1000':<36}{lost[0]:>12.1f}{lost[1]:>12.1f}")


def multipv_best(engine: chess.engine.SimpleEngine, fen: str, limit: chess.engine.Limit) -> str:
    board = chess.Board(fen)
    infos = engine.analyse(board, limit, multipv=board.legal_moves.count(), game=object())
    best = max(infos, key=lambda info: info["score"].relative.score(mate_score=MATE_CP))
    return best["pv"][0].uci()


def loss(values: Mapping[str, int], move: str) -> float:
    return win_probability(max(values.values())) - win_probability(values[move])


# --------------------------------------------------------------------------------------------------
# Positions and lines
# --------------------------------------------------------------------------------------------------
def openings(count: int) -> Iterator[str]:
    """Different positions, as in the packaged data."""
    return islice(dict.fromkeys(islice(synthesis.opening_positions(0, 6), 2 * count)), count)


def middle_games(count: int) -> Iterator[str]:
    fens = (prompt.fen for prompt in synthesis.environment_prompts(0, {"middle_games": 1.0}))
    return islice(fens, count)


def report(what: str, slow: float, fast: float, ratio: float, wanted: float | None) -> bool:
    """Print a line; gives whether the ratio is reached."""
    print(f"{what:<36}{slow:>12,.1f}{fast:>12,.1f}{ratio:>8.1f}{wanted or '':>8}", flush=True)
    return wanted is None or ratio >= wanted


if __name__ == "__main__":
    main()
