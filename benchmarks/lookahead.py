"""Is the world model of use to the player? Four players from the same weights, in Elo.

    python benchmarks/lookahead.py --model rookworld-games --openings 100
    python benchmarks/lookahead.py --players plain own --openings 100

`plain` plays `B`. `own` looks a move ahead, as `--lookahead` does: it plays the move whose position,
which the model's own `A:` answer gives, right or wrong, is worst for the opponent. `rules` does the same
in the position that python-chess gives. `evaluation` plays the best of the model's own `E`. All meet
each other from each opening, with both colours, and are rated together. For all, a move that brings back
a position of the game is worth a draw. The table says how far each is above `plain`, and above
`evaluation`, from which `rules` and `own` differ in looking ahead alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import chess

from rookworld_rlvr.engine import EngineArguments
from rookworld_rlvr.evaluation.engines import open_referee
from rookworld_rlvr.evaluation.models import Lookahead, ModelArguments, open_model
from rookworld_rlvr.evaluation.players import ModelPlayer
from rookworld_rlvr.evaluation.ratings import Ratings
from rookworld_rlvr.evaluation.suite import Answerer
from rookworld_rlvr.evaluation.suites import elo
from rookworld_rlvr.inference.replies import legal_candidates, reply_of
from rookworld_rlvr.tasks.environment import ENVIRONMENT
from rookworld_rlvr.tasks.policy import parse_policy_answer, write_policy_answer
from rookworld_rlvr.tasks.registry import task_of
from rookworld_rlvr.tasks.types import PolicyAnswer


class Asked(Answerer):
    """A model whose answers are changed.

    Args:
        model: The model.
    """

    def __init__(self, model: Answerer) -> None:
        self.model, self.name, self.decoding = model, model.name, model.decoding

    def answers(self, prompts: Sequence[str]) -> list[str]:
        """See `Answerer`."""
        return self.model.answers(prompts)

    def log_probs(
        self, prompts: Sequence[str], choices: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """See `Answerer`."""
        return self.model.log_probs(prompts, choices)


class ByEvaluation(Asked):
    """Its `B` is the legal candidate with the highest of its own `E`; where there is none, its own."""

    def policy_answers(self, boards: Sequence[chess.Board]) -> list[str]:
        """See `Answerer`."""
        return [
            best_by_evaluation(*pair)
            for pair in zip(boards, super().policy_answers(boards), strict=True)
        ]


def best_by_evaluation(board: chess.Board, answer: str) -> str:
    """An answer with the best of its legal candidates as `B`."""
    record = reply_of(answer, parse_policy_answer).record
    candidates = legal_candidates(board, record) if record else {}
    values = {move.uci(): pawns for move, pawns in candidates.items() if pawns is not None}
    if not values:
        return answer
    best = max(values, key=values.__getitem__)
    return write_policy_answer(PolicyAnswer((*values,), (*values.values(),), best))


class RightBoards(Asked):
    """Its answers about moves are python-chess's."""

    def answers(self, prompts: Sequence[str]) -> list[str]:
        """See `Answerer`."""
        policy = [prompt for prompt in prompts if task_of(prompt) != ENVIRONMENT.name]
        said = iter(self.model.answers(policy) if policy else ())
        return [
            str(ENVIRONMENT.truth(prompt)) if task_of(prompt) == ENVIRONMENT.name else next(said)
            for prompt in prompts
        ]


PLAYERS: Mapping[str, Callable[[Answerer], Answerer]] = {
    "plain": Asked,
    "evaluation": ByEvaluation,
    "rules": lambda model: Lookahead(RightBoards(model)),
    "own": Lookahead,
}
BASES = ("plain", "evaluation")
"""Players that the others are compared with."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="rookworld-games")
    parser.add_argument("--players", nargs="+", choices=PLAYERS, default=[*PLAYERS])
    parser.add_argument("--openings", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if len({*args.players}) < max(2, len(args.players)) or not {*BASES} & {*args.players}:
        parser.error(f"--players: give two or more different ones, {' or '.join(BASES)} among them")
    model = open_model(args.model, ModelArguments())
    results = compare(model, args.players, args.openings, args.seed)
    for name, above in results.items():
        cells = "".join(f"{over:>12} {cell(result)}" for over, result in above.items())
        print(f"{name:12}{cells}")
    if args.output:
        args.output.write_text(json.dumps(results, indent=1) + "\n")


def cell(result: Mapping[str, float]) -> str:
    """A difference in Elo with its interval."""
    return "{elo:+5.0f} [{low:+.0f}, {high:+.0f}]".format(**result)


def compare(
    model: Answerer, names: Sequence[str], openings: int, seed: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Each player's Elo above `plain` and above `evaluation`, if they play, with its 95% interval."""
    players = [ModelPlayer(name, PLAYERS[name](model)) for name in names]
    boards = elo.pool_openings(openings, seed)
    meetings = elo.pairings(len(players), 0)
    with open_referee(EngineArguments()) or nullcontext() as judge:
        played = elo.play(players, meetings, boards, judge)
    ratings = Ratings(elo.points(played, len(players), len(boards), strict=False))

    def above(over: str, name: str) -> dict[str, float]:
        change = ratings.difference(names.index(over), names.index(name))
        return {"elo": change.difference, "low": change.low, "high": change.high}

    over = [name for name in BASES if name in names]
    return {name: {other: above(other, name) for other in over} for name in names}


if __name__ == "__main__":
    main()
