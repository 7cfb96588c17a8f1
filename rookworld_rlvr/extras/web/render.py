"""What the page shows, as HTML; a model's text is escaped."""

from __future__ import annotations

import io
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

import chess
import chess.pgn
from chess.svg import Arrow
from markupsafe import Markup

from ...common.errors import ConfigurationError, NotationError, RookWorldError
from ...common.html import render
from ...inference.analyse import verdict
from ...inference.replies import (
    Reply,
    environment_prompt,
    over,
    policy_prompt,
    read_move,
    read_position,
    reply_of,
)
from ...rewards.registry import known_rewards
from ...tasks import boards, rules
from ...tasks.environment import (
    ENVIRONMENT,
    answer_fields,
    parse_environment_answer,
    wrong_fields,
)
from ...tasks.policy import POLICY, parse_policy_answer
from ...tasks.registry import TASKS, task_of
from ...tasks.task import Task
from ...tasks.types import PolicyAnswer, Values
from .backend import Backend, read_block, row_of, try_rewards
from .reach import beyond


class BlockError(RookWorldError):
    """What is wrong with the block of rewards, and not with the prompt or the model."""


def fault(error: RookWorldError | str) -> Markup:
    """What is wrong, shown in place."""
    return Markup('<p class="fault" role="alert">{}</p>').format(error)


# --------------------------------------------------------------------------------------------------
# Boards
# --------------------------------------------------------------------------------------------------
_FEN_WORD = re.compile(r"[pnbrqkPNBRQK1-8/]+")
_SAN_WORD = re.compile(r"[KQRBN]?[a-h]?[1-8]?[a-h][1-8]")


def read_board(text: str) -> chess.Board:
    """The board of a FEN, or after the moves of a PGN; the start position for no text.

    Raises:
        RookWorldError: It is neither, or a game that `game_positions` refuses.
    """
    if not text.strip():
        return chess.Board()
    try:
        return chess.Board(read_position(text.strip()))
    except RookWorldError:
        if is_fen(text):
            raise
        game = chess.pgn.read_game(io.StringIO(text))
        if game is None or not (game.variations or game.errors):
            raise
    if fen := game.headers.get("FEN"):
        read_position(fen)  # python-chess would repair it
    from ...data.parsing import game_positions  # with datasets, which takes seconds
    from ...data.pgn import read_game, split_games

    game = read_game(next(split_games(text.splitlines(keepends=True))))
    try:
        list(game_positions(game))
    except ValueError as error:
        raise RookWorldError(f"PGN: {error}") from error
    return game.end().board()


def is_fen(text: str) -> bool:
    """Whether a text is a FEN or the beginning of one, whose squares would be read as moves.

    >>> [is_fen(text) for text in ("rnbqkbnr/pp", "rnbq", "8", "e4 e5", "b4", "1. e4", "Nb1")]
    [True, True, True, False, False, False, False]
    """
    first = text.split()[0]
    return bool(_FEN_WORD.fullmatch(first)) and not _SAN_WORD.fullmatch(first)


def drawn(
    board: chess.BaseBoard,
    below: chess.Color = chess.WHITE,
    picked: int | None = None,
    arrows: Iterable[Arrow] = (),
) -> Markup:
    """A board to click on: the last move is marked, and a picked piece with where it can go."""
    fill, dots, last = {}, set[chess.Square](), None
    if isinstance(board, chess.Board):
        last = board.move_stack[-1] if board.move_stack else None
        dots = {move.to_square for move in board.legal_moves if move.from_square == picked}
    if picked is not None:
        fill[picked] = "#e5c34c"
    shown = boards.draw_board(board, below, arrows, fill, last=last, dots=dots)
    return Markup(boards.picture([shown], [], "board"))


def scene(board: chess.BaseBoard, picked: int | None = None) -> Markup:
    """The board of a position that is asked about, with whose turn it is."""
    turn = end_of(board) if isinstance(board, chess.Board) else "Not a whole position yet"
    return render("web_scene.html", turn=turn, board=drawn(board, picked=picked), legend=False)


def square_at(x: float, y: float, below: chess.Color = chess.WHITE) -> chess.Square:
    """The square at a place of a board, in shares of its side from the upper left corner."""
    column, row = (min(7, max(0, int(8 * share))) for share in (x, y))
    return chess.square(column, 7 - row) if below else chess.square(7 - column, row)


# --------------------------------------------------------------------------------------------------
# Answers
# --------------------------------------------------------------------------------------------------
def analyses(backend: Backend, text: str, models: Sequence[str]) -> tuple[dict[str, str], Markup]:
    """What models say of a position: the board with each one's arrows, and a table of candidates.

    Raises:
        RookWorldError: The position cannot be read or has no legal move.
    """
    board = read_board(text)
    fen = board.fen()
    prompt = policy_prompt(fen)
    values = backend.values(fen)
    scenes, cards = {}, []
    for name in _chosen(models):
        (said,) = backend.complete(name, [prompt])
        reply = reply_of(said, parse_policy_answer)
        arrows = boards.policy_arrows(fen, POLICY.answer_or_fault("", said), values)[0]
        shown = drawn(board, arrows=arrows)
        scenes[name] = str(
            render("web_scene.html", turn=end_of(board), board=shown, legend=bool(arrows))
        )
        cards.append(candidates(board, name, reply, values))
    return scenes, _cards(cards)


def candidates(
    board: chess.Board, name: str, reply: Reply[PolicyAnswer], values: Values | None
) -> Markup:
    """A model's candidates beside Stockfish's values, and what to think of them."""
    answer = reply.record
    lines = dict[str, list[float | None]]()  # a move may be named more than once
    if answer is not None:
        for move, pawns in answer.candidates:
            lines.setdefault(move, []).append(pawns)
        lines.setdefault(answer.best_move, [])
    rows = [
        {
            "san": "illegal"
            if (found := rules.legal_move(board, move)) is None
            else board.san(found),
            "uci": move,
            "is_best": answer is not None and move == answer.best_move,
            "is_legal": found is not None,
            "times": len(said) if len(said) > 1 else 0,
            "model": _different(said),
            "engine": verdict(values[move]) if values and move in values else "",
        }
        for move, said in lines.items()
    ]
    legality = {move: rules.legal_move(board, move) is not None for move in lines}
    return render(
        "web_candidates.html",
        name=name,
        rows=rows,
        warnings=_warnings(name, reply, legality, beyond(name, POLICY.name, board)),
        has_values=bool(values),
        engine=_engine_best(board, values, answer) if values else None,
        best=answer and _in_words(board, answer.best_move),
    )


def _different(evaluations: Iterable[float | None]) -> str:
    """The evaluations of a move, each once."""
    return ", ".join(dict.fromkeys(f"{pawns:+.2f}" for pawns in evaluations if pawns is not None))


def _engine_best(
    board: chess.Board, values: Values, answer: PolicyAnswer | None
) -> tuple[str, str]:
    """The engine's best move, and how many are as good; of these the answer's, as on the board."""
    best = max(values, key=values.__getitem__)
    equal = [move for move, value in values.items() if value == values[best]]
    if answer is not None and answer.best_move in equal:
        best = answer.best_move
    others = f", one of {len(equal)} equally good moves" if len(equal) > 1 else ""
    return f"{board.san(board.parse_uci(best))} ({verdict(values[best])})", others


def _in_words(board: chess.Board, move: str) -> str:
    found = rules.legal_move(board, move)
    return f"{move} (illegal)" if found is None else board.san(found)


_TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}


def _warnings(
    name: str, reply: Reply[PolicyAnswer], legality: Mapping[str, bool], far: str
) -> list[str]:
    """What is wrong with an answer, and what explains it, a sentence each."""
    found = []
    illegal = sum(not is_legal for is_legal in legality.values())
    if reply.record is None:
        found.append(
            f"The answer cannot be read ({reply.fault}); {name} wrote: {reply.text.strip()}"
        )
    elif illegal == len(legality):
        found.append(f"Nothing legal: no move that {name} named can be played here.")
    elif illegal:
        found.append(f"Illegal here: {illegal} of the {len(legality)} moves that {name} named.")
    moves = reply.record.moves if reply.record else ()
    if len(moves) > 1 and len(set(moves)) == 1:
        found.append(f"{name} named one move {_TIMES[len(moves)]}.")
    return [*found, far] if far else found


def simulations(backend: Backend, text: str, move: str, models: Sequence[str]) -> Markup:
    """The state after a move as models see it, beside python-chess's; one card for each.

    Raises:
        RookWorldError: The position or the move cannot be read.
    """
    board = read_board(text)
    fen, uci = board.fen(), read_move(board, move).uci()
    prompt = environment_prompt(fen, uci, board.move_stack)
    row, true = row_of(prompt, None), rules.transition(fen, uci)
    found = rules.legal_move(board, uci)
    cards = []
    for name in _chosen(models):
        (said,) = backend.complete(name, [prompt])
        reply = reply_of(said, parse_environment_answer)
        answer = reply.record
        cards.append(
            render(
                "web_simulation.html",
                name=name,
                move=f"the illegal {uci}" if found is None else board.san(found),
                board=Markup(ENVIRONMENT.board(row, said)),
                said=answer_fields(answer) if answer else {},
                right=answer_fields(true),
                wrong=wrong_fields(answer, true) if answer else [],
                is_legal=found is not None,
                fault=reply.fault,
                text=reply.text.strip(),
                far=beyond(name, ENVIRONMENT.name, board),
            )
        )
    return _cards(cards)


def _chosen(models: Sequence[str]) -> Sequence[str]:
    if not models:
        raise RookWorldError("choose a model")
    return models


def _cards(cards: Sequence[Markup]) -> Markup:
    return Markup('<div class="cards">{}</div>').format(Markup().join(cards))


def end_of(board: chess.Board) -> str:
    """How a game stands, in a few words."""
    side = "White" if board.turn else "Black"
    return over(board) or f"{side} to move{', in check' if board.is_check() else ''}"


# --------------------------------------------------------------------------------------------------
# Rewards
# --------------------------------------------------------------------------------------------------
def rewards_shown(
    backend: Backend, model: str, prompt: str, answers: Sequence[str], block: str, scale: str
) -> Markup:
    """A row for each answer: its tokens, what each reward gives, total and advantage.

    The task's rewards that are not in the block are folded away below.

    Raises:
        BlockError: The block or one of its rewards is faulty.
        RookWorldError: The prompt is.
    """
    task = _task_of(prompt)
    values = backend.values(task.position(prompt).fen) if task.needs_values else None
    row = row_of(prompt, values)
    try:
        chosen = try_rewards(row, answers, read_block(block, backend.is_private), scale)
    except ConfigurationError as error:
        raise BlockError("\n".join(error.faults)) from error
    except RookWorldError as error:
        raise BlockError(str(error)) from error
    names = [n for n, reward in known_rewards().items() if task.name in reward.tasks]
    others = try_rewards(row, answers, [{"name": n} for n in names if n not in chosen.rewards])
    applies = {name for name, given in chosen.rewards.items() if any(x is not None for x in given)}
    tokens = [backend.pieces(model, text) for text in answers]
    lacks_values = task.needs_values and values is None
    return render(
        "web_rewards.html",
        summary=_summary(chosen.totals),
        unknown="Without Stockfish, the values of this position's moves are not known."
        if lacks_values
        else "",
        idle=[name for name in chosen.rewards if name not in applies],
        heads=[(name, f"{chosen.weights[name]:g}") for name in chosen.rewards if name in applies],
        rows=list(zip(tokens, _by_answer(chosen.rewards, applies), strict=True)),
        totals=chosen.totals,
        advantages=chosen.advantages,
        other_heads=list(others.rewards),
        other_rows=_by_answer(others.rewards, others.rewards),
    )


def _task_of(prompt: str) -> Task:
    """The task of a prompt that can be read.

    Raises:
        RookWorldError: It cannot, or has the prefix of no task.
    """
    task = TASKS[task_of(prompt)]
    try:
        task.read_prompt(prompt)
    except NotationError as error:
        prefixes = [task.prefix.strip() for task in TASKS.values()]
        if prompt.strip().startswith(tuple(prefixes)):
            raise
        known = f"{', '.join(prefixes[:-1])} or {prefixes[-1]}"
        raise RookWorldError(f"a prompt starts with {known}, not with {prompt[:20]!r}") from error
    return task


def _summary(totals: Sequence[float]) -> str:
    known = [total for total in totals if not math.isnan(total)]
    mean = statistics.fmean(known) if known else math.nan
    spread = statistics.stdev(known) if len(known) > 1 else 0.0
    return f"Group of {len(totals)}: mean total {mean:.3f}, deviation {spread:.3f}."


def _by_answer(
    rewards: Mapping[str, Sequence[float | None]], names: Iterable[str]
) -> list[list[float | None]]:
    """For each answer, what the named rewards give, in their order."""
    columns = [given for name, given in rewards.items() if name in set(names)]
    count = max(map(len, rewards.values()), default=0)
    return [[column[place] for column in columns] for place in range(count)]
