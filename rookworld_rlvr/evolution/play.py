"""A policy's games against itself, many at once, and what can be learnt from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import chess

from ..data.loading import HELDOUT_SHARE, is_held_out
from ..data.parsing import prompt_of
from ..evaluation.suite import Answerer
from ..evaluation.suites.games import openings
from ..evaluation.suites.matches import ask_choices
from ..models.decoding import PLAIN, Decoding
from ..tasks import rules
from ..tasks.environment import ENVIRONMENT, write_environment_prompt
from ..tasks.policy import win_probability
from ..tasks.types import Values

MOST_GAMES = 10_000  # there are some 60,000 such openings
DECIDED = 0.95  # win probability of a position that nothing is learnt from


@dataclass(frozen=True, slots=True)
class Ply:
    """A half-move of the policy.

    Args:
        fen: The position before it.
        fault: Why it is not the policy's best move; empty if it is.
        wrong_state: The environment prompt that the model answered wrongly; empty if it was right.
    """

    fen: str
    fault: str = ""
    wrong_state: str = ""


@dataclass(slots=True)
class SelfPlay:
    """A game of a policy against itself.

    Args:
        board: Where it stands, with all moves before.
        plies: Those that the policy played.
    """

    board: chess.Board
    plies: list[Ply] = field(default_factory=list)


def play(model: Answerer, games: int, plies: int, seed: int) -> list[SelfPlay]:
    """Play games from different openings, all of them at once; illegal moves are replaced.

    No game starts in a held-out position.

    Args:
        model: Plays both sides, and answers what each move leads to.
        games: How many.
        plies: Half-moves after which a game is cut off.
        seed: Decides openings and answers.
    """
    played = [SelfPlay(start) for start in openings(games, seed, held_out=False)]
    for ply in range(plies):
        if running := [game for game in played if not game.board.is_game_over()]:
            _move(model, running, replace(PLAIN, seed=1000 * seed + ply))
    return played


def _move(model: Answerer, games: Sequence[SelfPlay], decoding: Decoding) -> None:
    """Let the model move in each game, and ask it what these moves lead to."""
    choices = ask_choices(model, [game.board for game in games], decoding)
    prompts = [
        write_environment_prompt(prompt_of(game.board, choice.move.uci()))
        for game, choice in zip(games, choices, strict=True)
    ]
    states = model.answers(prompts)
    for game, choice, prompt, state in zip(games, choices, prompts, states, strict=True):
        is_right = (ENVIRONMENT.score(prompt, state) or {})["exact"]
        game.plies.append(Ply(game.board.fen(), choice.fault, "" if is_right else prompt))
        game.board.push(choice.move)


# --------------------------------------------------------------------------------------------------
# What is learnt from
# --------------------------------------------------------------------------------------------------
def new_positions(games: Sequence[SelfPlay], known: set[str]) -> dict[str, None]:
    """The positions that were played from and are not known, without held-out ones, in their order."""
    found: dict[str, None] = {}
    for ply in (ply for game in games for ply in game.plies):
        key = rules.position_key(ply.fen)
        if key not in known and not is_held_out(ply.fen, HELDOUT_SHARE):
            known.add(key)
            found[ply.fen] = None
    return found


def is_open(values: Values) -> bool:
    """Whether the best move keeps at most the win probability `DECIDED`, and at least the rest to 1."""
    return 1 - DECIDED <= win_probability(max(values.values())) <= DECIDED


def wrong_states(games: Sequence[SelfPlay]) -> dict[str, Any]:
    """The environment prompts that were answered wrongly, with the right answers; none held out."""
    prompts = (ply.wrong_state for game in games for ply in game.plies if ply.wrong_state)
    return {
        prompt: ENVIRONMENT.truth(prompt)
        for prompt in prompts
        if not is_held_out(ENVIRONMENT.position(prompt).fen, HELDOUT_SHARE)
    }
