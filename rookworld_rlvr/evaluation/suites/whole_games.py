"""Suites of packaged whole games: `boards`, `moves`, `tactics` and `coherence`.

An engine that errs in one of seven moves played most of the games; the others are random. The positions
that are asked about are of the held-out tenth. `benchmarks/whole_games.py` made the files.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice
from pathlib import Path
from typing import Any, NamedTuple

import chess
import pyarrow.parquet as pq

from ...common.files import asset_path
from ...data.loading import HELDOUT_SHARE, is_held_out
from ...data.parsing import parse_rows, prompt_of, raw_rows
from ...data.play import KINDS
from ...data.sources import SourceArguments
from ...inference.replies import reply_of
from ...tasks import policy, rules
from ...tasks.environment import write_environment_prompt
from ...tasks.policy import win_probability
from ...tasks.types import MATE_CP, EnvironmentPrompt, PolicyAnswer, Values, values_by_move
from ..suite import Answerer, Judged, PromptSuite, Suite
from .environment import EnvironmentSuite
from .policy import PolicySuite, balanced

GAMES, MOVES, TACTICS = (f"whole_games_{name}.parquet" for name in ("games", "moves", "tactics"))

NEAR_CP = 5  # a move that loses no more is as good as the best one, as engines differ by that much

# Group of items → the last of its half-moves.
PLIES = {"plies_1_to_20": 20, "plies_21_to_60": 60, "plies_61_on": math.inf}


# --------------------------------------------------------------------------------------------------
# Boards
# --------------------------------------------------------------------------------------------------
class GameMove(NamedTuple):
    """A move of a game.

    Attributes:
        kind: Of the game, see `data.play`.
        ply: Number of the half-move, from 1.
        prompt: Asks for the position after it.
    """

    kind: str
    ply: int
    prompt: EnvironmentPrompt

    @property
    def fen(self) -> str:
        """The position before the move."""
        return self.prompt.fen


class BoardsSuite(PromptSuite[GameMove], packaged="boards"):
    """Moves of whole games, half of them of played and half of random games.

    Args:
        suite_rows: The largest number of moves.
        suite_seed: Decides which.
    """

    groups = (*KINDS, *(f"{kind}_{plies}" for kind in KINDS for plies in PLIES))

    def __init__(self, suite_rows: int, suite_seed: int) -> None:
        super().__init__(_game_moves(suite_rows, suite_seed), suite_seed)

    def groups_of(self, name: str) -> list[str]:
        """See `PromptSuite`."""
        item = self.items[name]
        plies = next(name for name, last in PLIES.items() if item.ply <= last)
        return [item.kind, f"{item.kind}_{plies}"]

    @staticmethod
    def judge(item: GameMove, completion: str) -> dict[str, float]:
        """See `PromptSuite`."""
        values = EnvironmentSuite.judge(item.prompt, completion)
        return {name: values[name] for name in ("invalid", "exact", "next_state_exact", "position")}


def _game_moves(rows: int, seed: int) -> dict[str, GameMove]:
    """Moves by their prompts, as many of each kind of game."""
    found: dict[str, dict[str, GameMove]] = {kind: {} for kind in KINDS}
    for game in pq.read_table(asset_path(GAMES)).to_pylist():
        for item in _held_out_moves(game["kind"], game["moves"].split()):
            found[item.kind].setdefault(write_environment_prompt(item.prompt), item)
    chosen: dict[str, GameMove] = {}
    for kind, moves in found.items():
        texts = random.Random(f"{seed} {kind}").sample(list(moves), len(moves))
        chosen |= {text: moves[text] for text in texts[: math.ceil(rows / len(KINDS))]}
    return dict(islice(chosen.items(), rows))


def _held_out_moves(kind: str, moves: list[str]) -> Iterator[GameMove]:
    board = chess.Board()
    for ply, move in enumerate(moves, start=1):
        if is_held_out(board.fen(), HELDOUT_SHARE):
            yield GameMove(kind, ply, prompt_of(board, move))
        board.push_uci(move)


# --------------------------------------------------------------------------------------------------
# Moves
# --------------------------------------------------------------------------------------------------
class MovesSuite(PolicySuite, packaged="moves"):
    """Positions of played games with the values of all legal moves.

    Args:
        suite_rows: The largest number of positions.
        suite_seed: Decides which.
    """

    @staticmethod
    def source() -> tuple[Mapping[str, Values], Sequence[Path | None]]:
        """See `PolicySuite`."""
        return labelled_positions(MOVES), [Path(asset_path(MOVES))]

    @staticmethod
    def judge(item: Values, completion: str) -> dict[str, float]:
        """See `PolicySuite`."""
        values = PolicySuite.judge(item, completion)
        loss = values.get("centipawn_loss", math.inf)
        return {**values, "near_best": float(loss <= NEAR_CP)}


def labelled_positions(file: str) -> dict[str, Values]:
    """Values of the positions in a packaged file, by FEN."""
    rows: Any = parse_rows(raw_rows(SourceArguments(dataset_name=asset_path(file))))
    return {row["fen"]: values_by_move(row["action_values"]) or {} for row in rows}


# --------------------------------------------------------------------------------------------------
# Tactics
# --------------------------------------------------------------------------------------------------
ONLY_MOVE, LONGEST_MATE = "only_move", 3

ONLY_MOVE_GAP = 0.3  # win probability between the best move and the second


def tactic(values: Values) -> str | None:
    """What is to be found in a position: a mate in so many moves, the only good move, or nothing."""
    best, *others = sorted(values.values(), reverse=True)
    if best >= MATE_CP - LONGEST_MATE:
        return f"mate_in_{MATE_CP - best}"
    gap = win_probability(best) - win_probability(others[0]) if others else 0
    return ONLY_MOVE if gap >= ONLY_MOVE_GAP else None


class TacticsSuite(PromptSuite[Values], packaged="tactics"):
    """Positions of played games with a mate in one to three moves, or a single good move.

    Args:
        suite_rows: The largest number of positions.
        suite_seed: Decides which.
    """

    groups = (*(f"mate_in_{moves}" for moves in range(1, LONGEST_MATE + 1)), ONLY_MOVE)

    def __init__(self, suite_rows: int, suite_seed: int) -> None:
        # Some that a shallower search found are none for the deeper one.
        known = {
            fen: values for fen, values in labelled_positions(TACTICS).items() if tactic(values)
        }
        drawn = random.Random(suite_seed).sample(sorted(known), len(known))[:suite_rows]
        super().__init__({fen: known[fen] for fen in drawn}, suite_seed)

    def prompts(self) -> list[str]:
        """See `PromptSuite`."""
        return [policy.write_policy_prompt(fen) for fen in self.items]

    def groups_of(self, name: str) -> list[str]:
        """See `PromptSuite`."""
        return [str(tactic(self.items[name]))]

    @staticmethod
    def judge(item: Values, completion: str) -> dict[str, float]:
        """See `PromptSuite`."""
        score = policy.score_policy(item, completion)
        return {
            "invalid": 1 - score["format"],
            "legal": score["legal"],
            "found": score["best_move_hit"],
        }


# --------------------------------------------------------------------------------------------------
# Coherence
# --------------------------------------------------------------------------------------------------
CLEAR = 0.5  # pawns; of smaller evaluations the sign says little


class CoherenceSuite(Suite[Values], packaged="coherence"):
    """Whether a model's evaluations agree with its choice, and with those that it gives a move later.

    Each position is asked about, and then the positions after the legal moves of `M`. The opponent's
    best evaluation there, with its sign turned, should be the move's own `E`.

    Args:
        suite_rows: The largest number of positions, those of `moves`.
        suite_seed: Decides which.
    """

    def __init__(self, suite_rows: int, suite_seed: int) -> None:
        super().__init__(balanced(labelled_positions(MOVES), suite_rows, suite_seed), suite_seed)

    def judged(self, model: Answerer) -> Iterator[Judged]:
        """See `Suite`."""
        fens = list(self.items)
        answers = [_read(text) for text in _ask(model, fens)]
        asked: list[tuple[int, float]] = []  # the position's number, and a move's E
        after: list[str] = []
        for number, (fen, answer) in enumerate(zip(fens, answers, strict=True)):
            board = rules.board_of(fen)
            for move, evaluation in evaluated_candidates(board, answer).items():
                later = board.copy(stack=False)
                later.push(move)
                if not later.is_game_over():
                    asked.append((number, evaluation))
                    after.append(later.fen())
        pairs: list[list[tuple[float, float]]] = [[] for _ in fens]
        for (number, evaluation), text in zip(asked, _ask(model, after), strict=True):
            reply = _read(text)
            if reply and reply.evaluations:
                pairs[number].append((evaluation, -max(reply.evaluations)))
        for fen, answer, found in zip(fens, answers, pairs, strict=True):
            yield fen, _coherence(answer, found), ()


def _ask(model: Answerer, fens: list[str]) -> list[str]:
    return model.answers([policy.write_policy_prompt(fen) for fen in fens])


def _read(completion: str) -> PolicyAnswer | None:
    return reply_of(completion, policy.parse_policy_answer).record


def evaluated_candidates(
    board: chess.Board, answer: PolicyAnswer | None
) -> dict[chess.Move, float]:
    """The legal moves of `M` with their `E` in pawns; none of an answer that could not be read."""
    told = zip(answer.moves, answer.evaluations, strict=False) if answer else ()
    moves = ((rules.legal_move(board, text), pawns) for text, pawns in told)
    return {move: pawns for move, pawns in moves if move is not None}


def _coherence(
    answer: PolicyAnswer | None, pairs: list[tuple[float, float]]
) -> Mapping[str, float]:
    """The suite's metrics of one answer.

    Args:
        answer: None if it could not be read.
        pairs: A move's `E`, and the evaluation after it, both from the side that moves.
    """
    if answer is None:
        return {"invalid": 1.0, "chosen": 0.0}
    told = dict(zip(answer.moves, answer.evaluations, strict=False))
    best = max(told.values(), default=math.inf)
    values = {"invalid": 0.0, "chosen": float(told.get(answer.best_move) == best)}
    signs = [said * later > 0 for said, later in pairs if abs(said) >= CLEAR]
    orders = [
        (first[0] - second[0]) * (first[1] - second[1]) > 0
        for first, second in combinations(pairs, 2)
        if first[0] != second[0]
    ]
    values |= {
        name: sum(hits) / len(hits) for name, hits in (("sign", signs), ("order", orders)) if hits
    }
    if pairs:
        values["difference"] = sum(abs(said - later) for said, later in pairs) / len(pairs)
    return values
