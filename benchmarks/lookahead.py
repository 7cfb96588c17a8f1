"""Is the world model of use to the player? Four players from the same weights, in Elo.

    python benchmarks/lookahead.py --model rookworld-games --openings 100
    python benchmarks/lookahead.py --players plain own --openings 100

`plain` plays `B`. `evaluation` plays the best of the model's own `E`. `rules` looks a move ahead: it
asks for the opponent's best evaluation in the position after each candidate of `M`. `own` does the same,
but in the position that the model's own `A:` answer gives, right or wrong. All meet each other from each
opening, with both colours, and are rated together. For all, a move that brings back a position of the
game is worth a draw. The table says how far each is above `plain`, and above `evaluation`, from which
`rules` and `own` differ in looking ahead alone.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import chess

from rookworld_rlvr.engine import EngineArguments
from rookworld_rlvr.evaluation.engines import open_referee
from rookworld_rlvr.evaluation.models import ModelArguments, open_model
from rookworld_rlvr.evaluation.players import ModelPlayer, Turn
from rookworld_rlvr.evaluation.ratings import Ratings
from rookworld_rlvr.evaluation.suite import Answerer
from rookworld_rlvr.evaluation.suites import elo
from rookworld_rlvr.evaluation.suites.whole_games import legal_candidates
from rookworld_rlvr.inference.model import Choice, reply_of, with_draws
from rookworld_rlvr.tasks import rules
from rookworld_rlvr.tasks.environment import parse_environment_answer, write_environment_prompt
from rookworld_rlvr.tasks.policy import parse_policy_answer, write_policy_prompt
from rookworld_rlvr.tasks.types import EnvironmentPrompt

MATED = math.inf


class ByEvaluation(ModelPlayer):
    """Plays the legal candidate with the best value; where there is none, what `ModelPlayer` plays."""

    def choices(self, turns: Sequence[Turn]) -> list[Choice]:
        """See `Player`."""
        boards = [turn.board for turn in turns]
        answers = self.model.answers([write_policy_prompt(board.fen()) for board in boards])
        records = [reply_of(answer, parse_policy_answer).record for answer in answers]
        candidates = [legal_candidates(*pair) for pair in zip(boards, records, strict=True)]
        values = [
            with_draws(board, found)
            for board, found in zip(boards, self.values(boards, candidates), strict=True)
        ]
        best = [max(found, key=found.__getitem__) if found else None for found in values]
        rest = iter(super().choices([t for t, move in zip(turns, best, strict=True) if not move]))
        return [next(rest) if move is None else Choice(move) for move in best]

    def values(
        self, boards: Sequence[chess.Board], candidates: Sequence[Mapping[chess.Move, float]]
    ) -> list[dict[chess.Move, float]]:
        """What each candidate is worth to the side to move, in pawns; what has no value is left out.

        Args:
            boards: `N` positions.
            candidates: Of each, the legal moves of `M` with their `E`.
        """
        return [dict(found) for found in candidates]


class ByRules(ByEvaluation):
    """Values a candidate by the opponent's best evaluation in the position after it."""

    def values(
        self, boards: Sequence[chess.Board], candidates: Sequence[Mapping[chess.Move, float]]
    ) -> list[dict[chess.Move, float]]:
        """See `ByEvaluation`."""
        places = [(number, move) for number, found in enumerate(candidates) for move in found]
        found: list[dict[chess.Move, float]] = [{} for _ in boards]
        asked: list[tuple[int, chess.Move, str]] = []
        states = self.states([boards[number] for number, _ in places], [m for _, m in places])
        for (number, move), state in zip(places, states, strict=True):
            if isinstance(state, str):
                asked.append((number, move, state))
            elif state is not None:
                found[number][move] = state
        answers = self.model.answers([write_policy_prompt(fen) for _, _, fen in asked])
        for (number, move, _), answer in zip(asked, answers, strict=True):
            reply = reply_of(answer, parse_policy_answer).record
            if reply and reply.evaluations:
                found[number][move] = -max(reply.evaluations)
        return found

    def states(
        self, boards: Sequence[chess.Board], moves: Sequence[chess.Move]
    ) -> list[str | float | None]:
        """The position after each move, or its worth in pawns if the game is over; None if unknown."""
        states: list[str | float | None] = []
        for board, move in zip(boards, moves, strict=True):
            after = board.copy(stack=False)
            after.push(move)
            if after.is_checkmate():
                states.append(MATED)
            else:
                states.append(0.0 if after.is_game_over() else after.fen())
        return states


class ByOwnBoard(ByRules):
    """As `ByRules`, in the positions that the model itself says follow."""

    def states(
        self, boards: Sequence[chess.Board], moves: Sequence[chess.Move]
    ) -> list[str | float | None]:
        """See `ByRules`."""
        prompts = []
        for board, move in zip(boards, moves, strict=True):
            before = tuple(played.uci() for played in board.move_stack[-9:])
            prompt = EnvironmentPrompt(board.fen(), move.uci(), (*before, move.uci()))
            prompts.append(write_environment_prompt(prompt))
        states: list[str | float | None] = []
        for text in self.model.answers(prompts):
            answer = reply_of(text, parse_environment_answer).record
            if answer is None:
                states.append(None)
            elif answer.terminated:
                states.append(MATED if answer.reward == rules.REWARD_CHECKMATE else 0.0)
            else:
                states.append(answer.fen)
        return states


PLAYERS: Mapping[str, type[ModelPlayer]] = {
    "plain": ModelPlayer,
    "evaluation": ByEvaluation,
    "rules": ByRules,
    "own": ByOwnBoard,
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
    players = [PLAYERS[name](name, model) for name in names]
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
