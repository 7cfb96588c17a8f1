"""A policy's games against itself, many at once, and what can be learnt from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import chess

from ..common.errors import IllegalPositionError, NotationError
from ..data import synthesis
from ..data.loading import HELDOUT_SHARE, is_held_out
from ..evaluation.answerers import Answerer
from ..inference.prompts import choose, policy_prompt, read_position, reply_of
from ..models.decoding import Decoding
from ..tasks import rules
from ..tasks.environment import ENVIRONMENT, parse_environment_answer, write_environment_prompt
from ..tasks.policy import parse_policy_answer, win_probability
from ..tasks.text import MAX_HISTORY
from ..tasks.types import EnvironmentPrompt, Values

OPENING_PLIES = 4
MOST_GAMES = 10_000  # there are some 60,000 such openings

Board = Literal["rules", "model", "both"]


@dataclass(frozen=True, slots=True)
class Ply:
    """A position, and what was played there.

    Args:
        fen: The position.
        move: Legal there, in UCI.
        fault: Why it is not the policy's best move; empty if it is.
        wrong_state: The environment prompt that the model answered wrongly; empty if it was right, or
            was not asked.
    """

    fen: str
    move: str
    fault: str = ""
    wrong_state: str = ""


@dataclass(slots=True)
class SelfPlay:
    """A game of a policy against itself.

    Args:
        board: Where it stands.
        history: The moves so far, in UCI.
        plies: Those that the policy played.
    """

    board: chess.Board
    history: list[str]
    plies: list[Ply] = field(default_factory=list)
    is_over: bool = False


def play(
    model: Answerer, games: int, plies: int, temperature: float, board: Board, seed: int
) -> list[SelfPlay]:
    """Play games from different openings, all of them at once; illegal moves are replaced.

    No game starts in a held-out position.

    Args:
        model: Plays both sides, and answers environment prompts if `board` asks it to.
        games: How many.
        plies: Half-moves after which a game is cut off.
        temperature: Of the policy's answers.
        board: Who says what a move leads to: the ``rules`` (python-chess), the ``model`` by its
            environment answers, or the rules with the model asked too (``both``).
        seed: Decides openings and answers.
    """
    starts: dict[str, chess.Board] = {}
    openings = synthesis.opening_games(seed, OPENING_PLIES)
    while len(starts) < games:
        start = next(openings)
        if not is_held_out(start.fen(), HELDOUT_SHARE):
            starts.setdefault(rules.position_key(start.fen()), start)
    running = [SelfPlay(start, [m.uci() for m in start.move_stack]) for start in starts.values()]
    played = list(running)
    for ply in range(plies):
        if not running:
            break
        _move(model, running, Decoding("sampled", temperature=temperature, seed=1000 * seed + ply))
        if board != "rules":
            _ask_states(model, running, is_followed=board == "model")
        running = [game for game in running if not game.is_over and not game.board.is_game_over()]
    return played


def _move(model: Answerer, games: Sequence[SelfPlay], decoding: Decoding) -> None:
    prompts = [policy_prompt(game.board) for game in games]
    answers = model.samples(prompts, 1, decoding)
    for game, (answer,) in zip(games, answers, strict=True):
        choice = choose(game.board, reply_of(answer, parse_policy_answer))
        move = choice.move.uci()
        game.plies.append(Ply(game.board.fen(), move, choice.fault))
        game.history.append(move)
        game.board.push(choice.move)


def _ask_states(model: Answerer, games: Sequence[SelfPlay], is_followed: bool) -> None:
    """Ask what the last moves led to, and note the wrong answers, or go on from all answers."""
    prompts = [
        write_environment_prompt(
            EnvironmentPrompt(
                game.plies[-1].fen, game.plies[-1].move, tuple(game.history[-MAX_HISTORY:])
            )
        )
        for game in games
    ]
    for game, prompt, answer in zip(games, prompts, model.answers(prompts), strict=True):
        if is_followed:
            try:
                game.board = chess.Board(read_position(parse_environment_answer(answer).fen))
            except (NotationError, IllegalPositionError):
                game.is_over = True
        elif not (ENVIRONMENT.score(prompt, answer) or {})["exact"]:
            last = game.plies[-1]
            game.plies[-1] = Ply(last.fen, last.move, last.fault, prompt)


# --------------------------------------------------------------------------------------------------
# What is learnt from
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Filter:
    """Which positions of games are kept.

    Args:
        sides: ``all``, or the ``winner``'s alone, whom the values of the last position name.
        decided: Positions are left out whose best move keeps more than this win probability, or less
            than the rest to 1.
        least_loss: Positions are left out where the move that was played lost less than this.
    """

    sides: Literal["all", "winner"]
    decided: float
    least_loss: float


def new_positions(games: Sequence[SelfPlay], known: set[str]) -> dict[str, None]:
    """The positions that were played from and are not known, without held-out ones, in their order."""
    found: dict[str, None] = {}
    for ply in (ply for game in games for ply in game.plies):
        key = rules.position_key(ply.fen)
        if key not in known and not is_held_out(ply.fen, HELDOUT_SHARE):
            known.add(key)
            found[ply.fen] = None
    return found


def kept(game: SelfPlay, values: Mapping[str, Values], wanted: Filter) -> Iterator[str]:
    """The positions of a game to learn from.

    Args:
        game: The game.
        values: Values of all legal moves, by position; positions without are left out.
        wanted: Which.
    """
    valued = [ply for ply in game.plies if ply.fen in values]
    winner = None
    if valued and wanted.sides == "winner":
        last = chess.Board(valued[-1].fen)
        winner = last.turn == (win_probability(max(values[valued[-1].fen].values())) >= 0.5)
    for ply in valued:
        of_moves = {move: win_probability(cp) for move, cp in values[ply.fen].items()}
        best = max(of_moves.values())
        if winner is not None and chess.Board(ply.fen).turn != winner:
            continue
        is_open = 1 - wanted.decided <= best <= wanted.decided
        if is_open and best - of_moves[ply.move] >= wanted.least_loss:
            yield ply.fen


def wrong_states(games: Sequence[SelfPlay]) -> dict[str, Any]:
    """The environment prompts that were answered wrongly, with the right answers; none held out."""
    prompts = (ply.wrong_state for game in games for ply in game.plies if ply.wrong_state)
    return {
        prompt: ENVIRONMENT.truth(prompt)
        for prompt in prompts
        if not is_held_out(ENVIRONMENT.position(prompt).fen, HELDOUT_SHARE)
    }
