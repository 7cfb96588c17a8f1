"""Rows of whole games: each game is walked once or twice, and many rows are taken of it.

The games are divided into blocks. Of a block, a first walk lists where each kind of row is possible, a
second one writes the rows that were drawn. A block follows from the seed and its number alone, so the
rows are the same whatever the number of workers, and memory does not grow with the number of blocks.

Phases of a game, which decide the kind of an ordinary move:

- endgame: at most `ENDGAME_PIECES` pieces other than kings and pawns are on the board;
- opening: the first `OPENING_PLIES` plies, where it is no endgame yet;
- middle game: all else.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import chess
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from ..common.errors import RookWorldError
from ..common.files import read_asset
from ..common.settings import setting, share_bounds
from ..engine import EngineArguments
from ..tasks import rules
from ..tasks.environment import write_environment_answer, write_environment_prompt
from ..tasks.registry import join_row
from ..tasks.text import MAX_HISTORY
from ..tasks.types import EnvironmentAnswer, EnvironmentPrompt
from . import endings, play, synthesis
from .play import PLAYED, RANDOM

GAME_SHARES: Mapping[str, float] = read_asset("shares.yaml")["games"]
"""Default shares of the kinds of environment rows."""


PHASES = OPENING, MIDDLE_GAME, ENDGAME = "openings", "middle_games", "endgames"


OPENING_PLIES = 20


ENDGAME_PIECES = 6  # of both sides together; Lichess's bound


_FIRST_PLIES = 4  # of `first_moves`


ENDINGS = {
    "checkmates": endings.CHECKMATE,
    "stalemates": endings.STALEMATE,
    "insufficient_material": endings.INSUFFICIENT_MATERIAL,
    "seventyfive_moves": endings.SEVENTYFIVE_MOVES,
}


_ENDING_NAMES = {termination: kind for kind, termination in ENDINGS.items()}


SPECIAL = (
    "castling",
    "en_passant",
    "double_steps",
    "look_alikes",
    "promotions",
    "under_promotions",
)
"""Any legal move of these kinds in a position of a game becomes a row, not only the move played."""


MADE = "made"
"""Where a row is from, if it is an endgame of `endings`."""


@dataclass
class GameArguments(EngineArguments):
    """Games to play, and the rows to take of them."""

    games: int = setting(
        0,
        "Number of games to play, to their end or 300 plies. Rows are taken of them; the same "
        "synthetic_seed plays the same games.",
        least=0,
    )
    games_file: str = setting(
        "",
        "Parquet file of the games: read if it is there, else written. By default output_file with the "
        "ending .games.parquet. With a file of games no engine is needed to take rows.",
    )
    random_game_share: float = setting(
        0.3,
        "Share of random games, and of the environment rows from them. The others are played by the "
        "engine at depth 4, with random moves at the beginning and one in seven after it.",
        least=0,
        most=1,
    )
    game_rows: int = setting(
        0, "Number of environment rows to take of the games; no two are equal.", least=0
    )
    game_shares: dict[str, float] | str | None = setting(
        None,
        "Share of each kind of game_rows, {openings: 0.5, endgames: 0.5}. Without it, the shares of "
        "assets/shares.yaml.",
        **share_bounds(GAME_SHARES, "kind"),
    )
    game_policy_rows: int = setting(
        0,
        "Number of positions to take of the games that the engine played, as policy rows: a third each "
        "of openings, middle games and endgames, no two of the same position. Their answers are written "
        "from the engine's values.",
        least=0,
    )

    @property
    def takes_games(self) -> bool:
        """Whether rows of games are asked for."""
        return bool(self.game_rows or self.game_policy_rows)


# --------------------------------------------------------------------------------------------------
# Where rows are possible
# --------------------------------------------------------------------------------------------------
class Spot(NamedTuple):
    """A place for a row of a kind.

    Attributes:
        ply: Half-moves of the game that are played before.
        moves: Moves to make from there; the last is the action. Without any, the action is drawn when
            the row is written.
    """

    ply: int
    moves: tuple[chess.Move, ...] = ()


Group = tuple[str, str]
"""Kind of a row, and where it is from: ``played``, ``random``, or empty for any."""


def phase(board: chess.Board, ply: int) -> str:
    """The phase of a game, see the module."""
    pieces = chess.popcount(board.occupied & ~board.pawns & ~board.kings)
    if pieces <= ENDGAME_PIECES:
        return ENDGAME
    return OPENING if ply < OPENING_PLIES else MIDDLE_GAME


def survey(moves: Sequence[chess.Move], kinds: Collection[str]) -> Iterator[tuple[str, Spot]]:
    """Where in a game rows of the kinds are possible.

    Args:
        moves: The game, from the start position.
        kinds: Names of `GAME_SHARES`; what only the others need is not looked for.
    """
    board = chess.Board()
    has_special, has_endings = (not names.isdisjoint(kinds) for names in ({*SPECIAL}, {*ENDINGS}))
    for ply, move in enumerate(moves):
        spots = [(phase(board, ply), Spot(ply, (move,))), ("illegal_actions", Spot(ply))]
        if ply < _FIRST_PLIES:
            spots.append(("first_moves", Spot(ply)))
        if has_special:
            spots += [(kind, Spot(ply, found)) for kind, found in _special_moves(board)]
        if has_endings and len(moves) - ply in (1, 3):  # the side that wins has the last move
            spots += [(kind, Spot(ply, (found,))) for kind, found in _ending_moves(board)]
        yield from (spot for spot in spots if spot[0] in kinds)
        board.push(move)
        board.clear_stack()


def _special_moves(board: chess.Board) -> Iterator[tuple[str, tuple[chess.Move, ...]]]:
    """Moves of the kinds `SPECIAL`; an en passant capture may be two plies away."""
    if board.castling_rights:
        yield from (("castling", (move,)) for move in board.generate_castling_moves())
    if board.ep_square is not None:
        yield from (("en_passant", (move,)) for move in board.generate_legal_ep())
    for move in synthesis.promotions(board):
        yield "promotions" if move.promotion == chess.QUEEN else "under_promotions", (move,)
    yield from _steps_beside(board)


def _steps_beside(board: chess.Board) -> Iterator[tuple[str, tuple[chess.Move, ...]]]:
    """Pawns' steps to a square beside a pawn of the other side, on the rank where double steps end.

    Each is a double step that can be captured en passant, and then so is the capture; or a look-alike,
    because it is a single step, or the other pawn is pinned.
    """
    theirs = board.pawns & board.occupied_co[not board.turn] & _DOUBLE_STEP_END[board.turn]
    beside = ((theirs & ~chess.BB_FILE_H) << 1 | (theirs & ~chess.BB_FILE_A) >> 1) & ~board.occupied
    behind = beside >> 8 | beside >> 16 if board.turn else beside << 8 | beside << 16
    mine = board.pawns & board.occupied_co[board.turn] & behind
    for move in list(board.generate_legal_moves(mine, beside)) if mine else ():
        captures = []
        if abs(move.to_square - move.from_square) == 16:
            board.push(move)
            captures = list(board.generate_legal_ep())
            board.pop()
        yield "double_steps" if captures else "look_alikes", (move,)
        yield from (("en_passant", (move, capture)) for capture in captures)


_DOUBLE_STEP_END = {chess.WHITE: chess.BB_RANK_4, chess.BLACK: chess.BB_RANK_5}


def _ending_moves(board: chess.Board) -> Iterator[tuple[str, chess.Move]]:
    """Moves that end the game."""
    for move in list(board.legal_moves):
        board.push(move)
        outcome = board.outcome()
        board.pop()
        if outcome is not None and outcome.termination in _ENDING_NAMES:
            yield _ENDING_NAMES[outcome.termination], move


# --------------------------------------------------------------------------------------------------
# Rows
# --------------------------------------------------------------------------------------------------
class Found(NamedTuple):
    """A row that was found."""

    group: Group  # what was asked for
    source: str  # played, random or made
    text: str  # an environment row, or the FEN of a policy row
    digest: int  # 64 bits of what makes it different from others


@dataclass(frozen=True, slots=True)
class Block:
    """Some games of a file, and the rows to take of them.

    Attributes:
        path: The file of games.
        games: Number of the first, and of the first after them.
        needs: How many rows are to be taken.
        random_share: Of the rows that may be from any game.
        seed: What is drawn follows from it.
        is_policy: Whether they are positions for policy rows.
        is_again: Whether rows of these games have been taken before. Rare kinds are then taken of other
            random games, and endgames made.
    """

    path: Path
    games: tuple[int, int]
    needs: Mapping[Group, int]
    random_share: float
    seed: str
    is_policy: bool
    is_again: bool


class Game(NamedTuple):
    """A game that is walked."""

    source: str  # played or random
    uci: Sequence[str]
    moves: Sequence[chess.Move]


def take_rows(block: Block) -> list[Found]:
    """The rows of a block, in random order; fewer than asked for if its games have no more."""
    rng = random.Random(block.seed)
    kinds = {kind for kind, _ in block.needs}
    if block.is_again:
        kinds -= {*SPECIAL, *ENDINGS}
    spots = _Spots(_read_games(block.path, *block.games) if kinds else (), kinds)
    drawn: dict[int, dict[int, list[tuple[Group, Spot]]]] = defaultdict(lambda: defaultdict(list))
    found: list[Found] = []
    for group, need in block.needs.items():
        if group[0] in SPECIAL:
            spots.fill(group[0], need, rng)
        chosen = spots.draw(group, need, block.random_share, rng)
        for number, spot in chosen:
            drawn[number][spot.ply].append((group, spot))
        if group[0] in ENDINGS:
            found += (_made_ending(group, rng) for _ in range(need - len(chosen)))
    write = _policy_positions if block.is_policy else _environment_rows
    for number, by_ply in sorted(drawn.items()):
        found += write(spots.games[number], by_ply, rng)
    rng.shuffle(found)
    return found


class _Spots:
    """Spots of games by kind and source.

    Args:
        games: The games; random ones may be added.
        kinds: What to look for.
    """

    def __init__(self, games: Iterable[Game], kinds: Collection[str]) -> None:
        self.games: list[Game] = []
        self._spots: dict[Group, list[tuple[int, Spot]]] = defaultdict(list)
        for game in games:
            self._add(game, kinds)

    def _add(self, game: Game, kinds: Collection[str]) -> None:
        number = len(self.games)
        self.games.append(game)
        for kind, spot in survey(game.moves, kinds):
            self._spots[kind, game.source].append((number, spot))

    def fill(self, kind: str, need: int, rng: random.Random) -> None:
        """Play random games until there are enough spots of a kind that is rare in games."""
        while sum(len(self._spots[kind, source]) for source in play.KINDS) < need:
            moves = play.random_game(rng).move_stack
            self._add(Game(RANDOM, [move.uci() for move in moves], moves), {kind})

    def draw(
        self, group: Group, need: int, random_share: float, rng: random.Random
    ) -> list[tuple[int, Spot]]:
        """Some spots of a group, as many as are needed if there are so many."""
        kind, source = group
        if source:
            return _sample(self._spots[group], need, rng)
        wanted = {RANDOM: round(need * random_share)}
        wanted[PLAYED] = need - wanted[RANDOM]
        there = {source: len(self._spots[kind, source]) for source in play.KINDS}
        missing = {source: max(0, wanted[source] - there[source]) for source in play.KINDS}
        return [
            spot
            for source, other in ((PLAYED, RANDOM), (RANDOM, PLAYED))
            for spot in _sample(self._spots[kind, source], wanted[source] + missing[other], rng)
        ]


def _sample(
    spots: Sequence[tuple[int, Spot]], need: int, rng: random.Random
) -> list[tuple[int, Spot]]:
    return rng.sample(spots, min(need, len(spots)))


def _read_games(path: Path, first: int, end: int) -> Iterator[Game]:
    file, start = pq.ParquetFile(path), 0
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if start < end and start + rows > first:
            table = file.read_row_group(group, columns=["kind", "moves"])
            for row in table.slice(max(0, first - start), end - max(first, start)).to_pylist():
                uci = row["moves"].split(" ")
                yield Game(row["kind"], uci, [*map(chess.Move.from_uci, uci)])
        start += rows


def _policy_positions(
    game: Game, drawn: Mapping[int, Sequence[tuple[Group, Spot]]], rng: random.Random
) -> Iterator[Found]:
    board = chess.Board()
    for ply, move in enumerate(game.moves[: max(drawn) + 1]):
        for group, _ in drawn.get(ply, ()):
            fen = board.fen()
            yield Found(group, game.source, fen, _digest(rules.position_key(fen)))
        board.push(move)
        board.clear_stack()


def _environment_rows(
    game: Game, drawn: Mapping[int, Sequence[tuple[Group, Spot]]], rng: random.Random
) -> Iterator[Found]:
    """The rows at some spots of a game. A FEN that two of them share is written once."""
    board, state = chess.Board(), ""
    for ply, played in enumerate(game.moves[: max(drawn) + 1]):
        next_state = ""
        for group, spot in drawn.get(ply, ()):
            state = state or board.fen()
            before = game.uci[max(0, ply - MAX_HISTORY) : ply]
            if group[0] == "illegal_actions":
                text = _illegal_row(board, state, before, rng)
            else:
                moves = spot.moves or (rng.choice(list(board.legal_moves)),)
                text, after = _move_row(board, state, before, moves)
                if moves == (played,):
                    next_state = after
            yield Found(group, game.source, text, _digest(text))
        board.push(played)
        board.clear_stack()  # without it, `outcome` would see repetitions, which a FEN does not show
        state = next_state


def _move_row(
    board: chess.Board, state: str, before: Sequence[str], moves: Sequence[chess.Move]
) -> tuple[str, str]:
    """The row of the last of some legal moves, and its next state.

    Args:
        board: Where the first of them is made.
        state: FEN of the board.
        before: The moves played before.
        moves: One or two; the last is the action.
    """
    for move in moves[:-1]:
        board.push(move)
        state = board.fen()
    board.push(moves[-1])
    answer = EnvironmentAnswer(board.fen(), *rules.ending(board), truncated=False)
    for _ in moves:
        board.pop()
    return _row(state, before, [move.uci() for move in moves], answer), answer.fen


def _illegal_row(board: chess.Board, state: str, before: Sequence[str], rng: random.Random) -> str:
    action = None
    while action is None:
        action = _stale_move(rng, board, before) or synthesis.illegal_action(rng, board)
    answer = EnvironmentAnswer(state, rules.REWARD_ILLEGAL, terminated=False, truncated=True)
    return _row(state, before, [action], answer)


def _stale_move(rng: random.Random, board: chess.Board, before: Sequence[str]) -> str | None:
    """In one of three tries, a move of the history that is illegal by now."""
    if not before or rng.random() >= 1 / 3:
        return None
    text = rng.choice(before)
    return None if rules.legal_move(board, text) else text


def _row(
    state: str, before: Sequence[str], actions: Sequence[str], answer: EnvironmentAnswer
) -> str:
    history = (*before, *actions)[-MAX_HISTORY:]
    prompt = EnvironmentPrompt(state, actions[-1], history)
    return join_row(write_environment_prompt(prompt), write_environment_answer(answer))


def _made_ending(group: Group, rng: random.Random) -> Found:
    prompt = endings.ending_prompt(rng, ENDINGS[group[0]])
    answer = rules.transition(prompt.fen, prompt.action)
    text = join_row(write_environment_prompt(prompt), write_environment_answer(answer))
    return Found(group, MADE, text, _digest(text))


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


# --------------------------------------------------------------------------------------------------
# All rows of a file of games
# --------------------------------------------------------------------------------------------------
_ROWS_IN_BLOCK = 5_000


_FIRST_BLOCKS = 8  # after which it is clear whether the games are enough


# How many times as many rows a block takes as are kept: of these kinds, many come twice.
_SURPLUS = {"first_moves": 4.0, "openings": 1.2}


class NoMoreRowsError(RookWorldError):
    """The games have fewer rows of a kind than were asked for."""


def environment_targets(
    rows: int, shares: Mapping[str, float], random_share: float
) -> dict[Group, int]:
    """How many environment rows of each group make up the shares."""
    targets: dict[Group, int] = {}
    for kind, count in _parts(rows, shares).items():
        if kind in SPECIAL or kind in ENDINGS:
            targets[kind, ""] = count
        else:
            targets[kind, RANDOM] = round(count * random_share)
            targets[kind, PLAYED] = count - targets[kind, RANDOM]
    return {group: count for group, count in targets.items() if count}


def policy_targets(rows: int) -> dict[Group, int]:
    """How many positions of each phase are taken: a third each."""
    parts = _parts(rows, dict.fromkeys(PHASES, 1 / len(PHASES)))
    return {(kind, PLAYED): count for kind, count in parts.items() if count}


def _parts(whole: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Whole numbers in the shares, which add up to `whole`."""
    ends = [round(whole * end) for end in itertools.accumulate(shares.values())]
    return {kind: end - start for kind, start, end in zip(shares, [0, *ends], ends, strict=False)}


def collect(
    path: Path,
    targets: Mapping[Group, int],
    random_share: float,
    seed: str,
    workers: int,
    is_policy: bool = False,
) -> Iterator[list[Found]]:
    """Rows of a file of games, block by block, no two of them equal.

    Every block takes its part of what is asked for. If rows are missing then, because some came twice,
    the blocks are gone through again.

    Args:
        path: The file of games.
        targets: How many rows of each group.
        random_share: See `Block`.
        seed: Same seed, same rows.
        workers: Number of processes.
        is_policy: See `Block`.

    Raises:
        NoMoreRowsError: The games have fewer rows of a kind.
    """
    total = sum(targets.values())
    if not total:
        return
    games = pq.read_metadata(path).num_rows
    count = max(1, min(games, total // _ROWS_IN_BLOCK))
    bounds = [games * number // count for number in range(count + 1)]
    taken: Counter[Group] = Counter()
    seen = _Seen()
    for turn in itertools.count():
        before = taken.total()
        missing = {group: need - taken[group] for group, need in targets.items()}
        blocks = [
            Block(
                path,
                (bounds[number], bounds[number + 1]),
                _needs(missing, number, count, turn),
                random_share,
                f"{seed} {turn} {number}",
                is_policy,
                is_again=turn > 0,
            )
            for number in range(count)
        ]
        for number, found in enumerate(play.in_processes(take_rows, blocks, workers)):
            # A block gives what those before it lacked as well.
            allowed = {
                group: need if turn else need * (number + 1) // count
                for group, need in targets.items()
            }
            yield seen.first_of(found, allowed, taken)
            if number == min(_FIRST_BLOCKS, count) - 1:
                if turn == 0:
                    _check_enough(taken, allowed, games, bounds[number + 1])
                else:
                    check_gain(missing, taken, targets, games, count / (number + 1))
            if taken.total() == total:
                return
        if taken.total() == before:
            _check_enough(taken, targets, games, games, 1.0)


def _needs(missing: Mapping[Group, int], number: int, count: int, turn: int) -> dict[Group, int]:
    """How many rows a block takes of each group: more than its part, as some may have come before."""
    needs = {}
    for (kind, source), need in missing.items():
        part = need * (number + 1) // count - need * number // count
        part = 2 * need + 8 if turn else part
        if need and part:
            needs[kind, source] = int(part * _SURPLUS.get(kind, 1.03)) + 1
    return needs


def _check_enough(
    taken: Mapping[Group, int],
    wanted: Mapping[Group, int],
    games: int,
    walked: int,
    share: float = 0.5,
) -> None:
    """Refuse to go on if less than a share of what is wanted has been found.

    Raises:
        NoMoreRowsError: That is so.
    """
    for (kind, source), need in wanted.items():
        if taken[kind, source] < need * share:
            of = f"{walked:,} of {games:,}" if walked < games else f"{games:,}"
            raise _no_more((kind, source), taken[kind, source], need, of)


def _no_more(group: Group, found: int, need: int, games: str) -> NoMoreRowsError:
    kind, source = group
    return NoMoreRowsError(
        f"only {found:,} of {need:,} rows of the kind {kind!r} were found in {games} "
        f"games{f' ({source} ones)' if source else ''}; play more games, ask for fewer rows, or "
        "change game_shares or random_game_share"
    )


def check_gain(
    missing: Mapping[Group, int],
    taken: Mapping[Group, int],
    targets: Mapping[Group, int],
    games: int,
    scale: float,
) -> None:
    """Refuse to go through the games again and again for a few rows each time.

    Args:
        missing: How many rows of each group were missing before this turn.
        taken: How many there are by now.
        targets: How many are wanted.
        games: How many games there are.
        scale: How many times as many blocks there are as have been gone through in this turn.

    Raises:
        NoMoreRowsError: The whole turn would give less than a tenth of what is missing.
    """
    for group, lack in missing.items():
        gained = taken[group] - (targets[group] - lack)
        if lack >= 50 * scale and gained * scale < lack / 10:  # a tenth would be five rows by now
            raise _no_more(group, taken[group], targets[group], f"{games:,}")


class _Seen:
    """What has been taken, in eight bytes a row."""

    def __init__(self) -> None:
        self._digests: npt.NDArray[np.uint64] = np.empty(0, np.uint64)  # sorted

    def first_of(
        self, found: Sequence[Found], allowed: Mapping[Group, int], taken: Counter[Group]
    ) -> list[Found]:
        """The rows that have not come before, of each group only so many; they are counted."""
        digests = np.fromiter((row.digest for row in found), np.uint64, len(found))
        kept, chosen = [], set()
        for row, has_come in zip(found, self._have_come(digests), strict=True):
            if has_come or row.digest in chosen or taken[row.group] >= allowed[row.group]:
                continue
            chosen.add(row.digest)
            taken[row.group] += 1
            kept.append(row)
        new = np.fromiter(chosen, np.uint64, len(chosen))
        self._digests = np.concatenate([self._digests, np.sort(new)])
        self._digests.sort(kind="stable")  # of two sorted parts, this is a merger
        return kept

    def _have_come(self, digests: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        if not len(self._digests):
            return np.zeros(len(digests), np.bool_)
        places = np.searchsorted(self._digests[:-1], digests)
        return np.asarray(self._digests[places] == digests)
