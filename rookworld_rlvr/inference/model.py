"""A RookWorld model that answers; what it is asked, in the forms in which people give it; what it plays.

torch is imported with the model's weights, as programs that ask for a move first speak without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar

import chess
import chess.pgn

from ..common.errors import NotationError, RookWorldError
from ..models import loading
from ..tasks import rules
from ..tasks.environment import (
    parse_environment_answer,
    parse_environment_prompt,
    write_environment_prompt,
    wrong_fields,
)
from ..tasks.policy import parse_policy_answer, write_policy_prompt
from ..tasks.text import MAX_HISTORY, parse_decimal, parse_fen, parse_move
from ..tasks.types import EnvironmentAnswer, EnvironmentPrompt, PolicyAnswer

Position = str | chess.Board
"""A FEN, or a board of python-chess."""


Move = str | chess.Move
"""A move in UCI or in algebraic notation (SAN), or one of python-chess."""


@dataclass(frozen=True, slots=True)
class Analysis(PolicyAnswer):
    """A model's answer about a position, with the moves in it that the rules forbid.

    Args:
        illegal: The illegal ones among the candidates and the best move, each once.
    """

    illegal: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step(EnvironmentAnswer):
    """A model's answer about a move, with the fields in which it contradicts the rules.

    Args:
        wrong: Some of board, side to move, castling, en passant, halfmoves, move number, reward,
            terminated, truncated; empty if python-chess says the same.
    """

    wrong: tuple[str, ...] = ()


Record = TypeVar("Record", bound=PolicyAnswer | EnvironmentAnswer, covariant=True)


@dataclass(frozen=True, slots=True)
class Reply(Generic[Record]):
    """What a model said, as text and as a record.

    Args:
        text: As the model wrote it.
        record: The same, parsed; None if it cannot be read.
        fault: Why it cannot be read; empty if it can.
    """

    text: str
    record: Record | None
    fault: str = ""

    def __repr__(self) -> str:
        """The record, or the text that is none and why."""
        said = f"{self.text!r}, fault={self.fault!r}" if self.record is None else repr(self.record)
        return f"Reply({said})"


def reply_of(text: str, read: Callable[[str], Record]) -> Reply[Record]:
    """What a model said, read as a record."""
    try:
        return Reply(text, read(text))
    except NotationError as error:
        return Reply(text, None, error.reason)


# --------------------------------------------------------------------------------------------------
# Positions and moves
# --------------------------------------------------------------------------------------------------
def read_position(position: Position) -> str:
    """A position's FEN, as python-chess writes it; without its clocks, those of a first move.

    Raises:
        NotationError: The FEN is malformed, or python-chess would change it, see `rules.check_fields`.
        IllegalPositionError: The position is not legal.
        RookWorldError: It is neither a FEN nor a board.
    """
    if not isinstance(position, str | chess.Board):
        raise RookWorldError(
            f"{position!r} is not a position; give a FEN or a chess.Board, or several to analyse_all"
        )
    given = position.fen() if isinstance(position, chess.Board) else position
    fields = given.split()
    if len(fields) not in (4, 6):
        counted = f"this has {len(fields)}" if fields else "this is empty"
        raise NotationError(
            f"a FEN has six fields, or four without its clocks, but {counted}", given
        )
    fen = parse_fen(" ".join(fields if len(fields) == 6 else [*fields, "0", "1"]))
    canonical = rules.canonical_fen(fen)
    rules.check_fields(chess.Board(fen), fen)
    return canonical


def read_board(position: Position) -> chess.Board:
    """A position's board, with its moves if it has any; see `read_position`."""
    fen = read_position(position)
    return position if isinstance(position, chess.Board) else rules.board_of(fen)


def read_move(board: chess.Board, move: Move) -> chess.Move:
    """A move in a position; it may be illegal there, unless it is in SAN.

    Raises:
        RookWorldError: It is not a move, or in SAN illegal or ambiguous.
    """
    if isinstance(move, chess.Move) and move:
        return move
    if not isinstance(move, str):
        raise RookWorldError(f"{move!r} is not a move; {_LEGAL_MOVE}")
    try:
        return chess.Move.from_uci(parse_move(move))
    except ValueError:  # SAN, or a move from a square to itself
        pass
    try:
        if found := board.parse_san(move):  # python-chess also reads a null move
            return found
    except chess.IllegalMoveError:
        side = chess.COLOR_NAMES[board.turn].capitalize()
        raise RookWorldError(
            f"{move!r} is not a legal move of {side}'s here; {_LEGAL_MOVE}"
        ) from None
    except chess.AmbiguousMoveError:
        raise RookWorldError(f"{move!r} may mean several moves here; {_LEGAL_MOVE}") from None
    except ValueError:
        pass
    raise RookWorldError(f"{move!r} is not a move; {_LEGAL_MOVE}")


def read_legal_move(board: chess.Board, move: Move) -> chess.Move:
    """A legal move in a position.

    Raises:
        RookWorldError: It is unreadable, illegal or ambiguous.
    """
    try:
        return rules.read_legal(board, read_move(board, move).uci())
    except chess.IllegalMoveError as error:
        raise RookWorldError(f"{error}; {_LEGAL_MOVE}") from None


_LEGAL_MOVE = "give a legal move, as Nf3 or g1f3"


# --------------------------------------------------------------------------------------------------
# Prompts
# --------------------------------------------------------------------------------------------------
def policy_prompt(asked: Position) -> str:
    """The prompt that asks for an analysis.

    Raises:
        NotationError: The game is over there.
        RookWorldError: See `read_position`.
    """
    position = read_position(asked)
    if not rules.legal_moves(position):
        raise NotationError(f"nothing to analyse: {over(rules.board_of(position))}", position)
    return write_policy_prompt(position)


def environment_prompt(asked: Position, move: Move, history: Sequence[Move] = ()) -> str:
    """The prompt that asks for the state after a move.

    Args:
        asked: The position.
        move: A move there.
        history: The moves before it, in UCI or of python-chess; or in UCI in one text.

    Raises:
        RookWorldError: See `read_position` and `read_move`, or the history is not in UCI.
    """
    position = read_position(asked)
    action = read_move(rules.board_of(position), move).uci()
    moves = history.split() if isinstance(history, str) else history
    before = [one.uci() if isinstance(one, chess.Move) else parse_move(one) for one in moves]
    told = (*before, action)[-MAX_HISTORY:]
    return write_environment_prompt(EnvironmentPrompt(position, action, told))


def record_of(
    board: chess.Board, white: str, black: str, comments: Mapping[int, str], **headers: str
) -> chess.pgn.Game:
    """A game for a PGN file, with comments by the ply of the move that they follow."""
    game = chess.pgn.Game.from_board(board)
    game.headers.update(White=white, Black=black, **headers)
    for node in game.mainline():
        node.comment = comments.get(node.ply(), "")
    return game


def over(board: chess.Board) -> str:
    """How a game has ended, in a word or two; empty if it goes on."""
    outcome = board.outcome()
    return "" if outcome is None else outcome.termination.name.lower().replace("_", " ")


# --------------------------------------------------------------------------------------------------
# Replies
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Choice:
    """The move that is played for an answer.

    Args:
        move: A legal move.
        pawns: What the model says that it is worth, from the side to move; None if it does not say.
        fault: Why the model's best move cannot be played, a sentence; empty if it can.
        note: Why another move is played though that one is legal, a sentence; empty if it is played.
    """

    move: chess.Move
    pawns: float | None = None
    fault: str = ""
    note: str = ""

    @property
    def comment(self) -> str:
        """Why it is not the model's best move; empty if it is."""
        return self.fault or self.note


def no_answer(board: chess.Board, why: str) -> Choice:
    """The first legal move in python-chess's order, for a model that gives none."""
    move = next(iter(board.legal_moves))
    return Choice(move, fault=f"{why}; {move.uci()}, the first legal move, is played")


def choose(
    board: chess.Board,
    reply: Reply[PolicyAnswer],
    otherwise: Callable[[chess.Board, str], Choice] = no_answer,
) -> Choice:
    """The model's best move; else its best legal candidate; else, as it names none, another move.

    A prompt has the position alone, so a model cannot know that it goes round in circles. Here, a move
    that brings back a position of the game is worth a draw: a candidate that the model says to be better
    than a draw is played in its place.

    Args:
        board: The position, with the moves before it if they are known; it has a legal move.
        reply: What the model said of it.
        otherwise: Gives that other move, from the position and why it is needed.
    """
    if reply.record is None:
        return otherwise(board, f"the model's answer cannot be read ({reply.fault})")
    candidates = legal_candidates(board, reply.record)
    best = rules.legal_move(board, reply.record.best_move)
    if best is not None:
        return _unless_repeated(board, best, candidates)
    fault = f"the model's best move {reply.record.best_move} is illegal"
    if not candidates:
        return otherwise(board, f"{fault}, and none of its candidates can be played")
    return _best_of(board, candidates, fault)


def _unless_repeated(
    board: chess.Board, best: chess.Move, candidates: Mapping[chess.Move, float | None]
) -> Choice:
    """The best move; or, if it repeats a position, the best candidate that is better than a draw."""
    played = Choice(best, candidates.get(best))
    if not repeats(board, best):
        return played
    values = with_draws(board, candidates)
    better = {move: pawns for move, pawns in values.items() if pawns is not None and pawns > 0}
    if not better:
        return played
    move = max(better, key=better.__getitem__)
    note = f"the model's best move {best.uci()} repeats a position; {move.uci()} is played"
    return Choice(move, better[move], note=note)


Pawns = TypeVar("Pawns", float, float | None)


def with_draws(
    board: chess.Board, candidates: Mapping[chess.Move, Pawns]
) -> dict[chess.Move, Pawns]:
    """Candidates and their values in pawns; of those that have one, a repetition has that of a draw."""
    return {
        move: 0.0 if pawns is not None and repeats(board, move) else pawns
        for move, pawns in candidates.items()
    }


def repeats(board: chess.Board, move: chess.Move) -> bool:
    """Whether a legal move brings back a position of the game.

    >>> board = chess.Board()
    >>> for move in ("g1f3", "g8f6", "f3g1"):
    ...     _ = board.push_uci(move)
    >>> repeats(board, chess.Move.from_uci("f6g8")), repeats(board, chess.Move.from_uci("e7e5"))
    (True, False)
    """
    if board.halfmove_clock < _SHORTEST_CIRCLE - 1 or board.is_zeroing(move):
        return False
    after = board.copy(stack=board.halfmove_clock)
    after.push(move)
    return after.is_repetition(2)


_SHORTEST_CIRCLE = 4  # half-moves: each side goes and comes back


def choose_so_far(board: chess.Board, text: str) -> Choice:
    """The best legal candidate of an answer that was cut off; else the first legal move.

    As in `choose`, a move that brings back a position of the game is worth a draw.

    Args:
        board: The position, with the moves before it if they are known; it has a legal move.
        text: What the model had written; its last word may be cut off and does not count.
    """
    fault = "the model had not answered when it was stopped"
    whole = text[: text.rfind(" ") + 1]
    moves, _, rest = whole.partition("M:")[2].partition("E:")
    try:
        pawns = tuple(map(parse_decimal, rest.partition("B:")[0].split()))
    except NotationError:
        pawns = ()
    candidates = legal_candidates(board, PolicyAnswer(tuple(moves.split()), pawns, ""))
    return _best_of(board, candidates, fault) if candidates else no_answer(board, fault)


def _best_of(
    board: chess.Board, candidates: Mapping[chess.Move, float | None], fault: str
) -> Choice:
    """The candidate with the highest evaluation, a repetition counted as a draw.

    If none has an evaluation, it is the first one that repeats no position; else the first one.
    """
    values = with_draws(board, candidates)
    evaluated = {move: pawns for move, pawns in values.items() if pawns is not None}
    if evaluated:
        move = max(evaluated, key=evaluated.__getitem__)
    else:
        new = (move for move in candidates if not repeats(board, move))
        move = next(new, next(iter(candidates)))
    why = f"{fault}; its best legal candidate {move.uci()} is played"
    return Choice(move, candidates[move], why)


def legal_candidates(board: chess.Board, answer: PolicyAnswer) -> dict[chess.Move, float | None]:
    """The legal moves of `M`, each with its first `E`."""
    candidates: dict[chess.Move, float | None] = {}
    for text, pawns in itertools.zip_longest(answer.moves, answer.evaluations):
        move = rules.legal_move(board, text) if text else None
        if move is not None:
            candidates.setdefault(move, pawns)
    return candidates


# --------------------------------------------------------------------------------------------------
# The model
# --------------------------------------------------------------------------------------------------
class RookWorld:
    """A model of the family with its tokenizer.

    You give a position; the prompt is written and padded for you, as in the data.

    Args:
        network: A causal language model; it is put into evaluation mode.
        tokenizer: The tokenizer of this model.
        name: Its name; by default where its weights came from.
    """

    def __init__(self, network: Any, tokenizer: Any, name: str | None = None) -> None:
        self.network = network.eval()
        self.tokenizer = tokenizer
        self.name = name or network.name_or_path

    def __repr__(self) -> str:
        """For example ``RookWorld('rookworld-nano', device='cpu', dtype='float32')``."""
        device, dtype = str(self.network.device), str(self.network.dtype).removeprefix("torch.")
        return f"{type(self).__name__}({self.name!r}, device={device!r}, dtype={dtype!r})"

    @classmethod
    def from_pretrained(
        cls, name: str, *, revision: str = "main", device: str | None = None, dtype: str = "float32"
    ) -> Self:
        """Load a model.

        Args:
            name: A packaged name (``rookworld-games``, ``rookworld-nano``), a run's folder, or a Hub id.
            revision: A revision on the Hub.
            device: As PyTorch names it; None takes a GPU if there is one.
            dtype: As PyTorch names it.

        Raises:
            RookWorldError: There is no such model, device or dtype, or it could not be loaded.
        """
        import torch

        is_known = dtype == "auto" or isinstance(getattr(torch, str(dtype), dtype), torch.dtype)
        if not is_known:
            raise RookWorldError(
                f"dtype: {dtype!r} is not one of PyTorch's; give float32, bfloat16 or float16"
            )
        if device is None:
            found = torch.accelerator.current_accelerator(check_available=True)
            device = "cpu" if found is None else found.type
        network: Any = loading.load_model(name, revision=revision, dtype=dtype)
        try:
            network.to(device)
        except (AssertionError, RuntimeError) as error:  # the first is CUDA's, where there is none
            raise RookWorldError(f"device: {device!r} cannot be used here: {error}") from error
        return cls(network, loading.load_tokenizer(name, revision=revision), name)

    # --------------------------------------------------------------------------------------------
    # One answer
    # --------------------------------------------------------------------------------------------
    def analyse(self, position: Position, *, lookahead: bool = False) -> Analysis:
        """Candidates, their evaluations in pawns from the side to move, and the best move.

        The moves are the model's own and may be illegal; `illegal` names those.

        Args:
            position: A FEN or a `chess.Board`, whose moves looking ahead also tells the model.
            lookahead: Whether candidates are valued by what the model says of the positions after them,
                see `inference.lookahead`; the legal ones are left, and the best one follows from it.

        Raises:
            NotationError: The FEN is malformed or has no legal move, or the answer is unreadable.
            IllegalPositionError: The position is not legal.

        >>> from rookworld_rlvr import RookWorld
        >>> model = RookWorld.from_pretrained("rookworld-nano", device="cpu")
        >>> answer = model.analyse("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1")
        >>> len(answer.moves)
        5
        """
        return _record(self.analyse_all([position], lookahead=lookahead)[0])

    def step(self, position: Position, move: Move, history: Sequence[Move] = ()) -> Step:
        """The next state as the model sees it, with reward and end of the game.

        It is the model's own and may contradict the rules; `wrong` names the fields that do.

        Args:
            position: A FEN or a `chess.Board`.
            move: A `chess.Move` or UCI, which may be illegal there, or a legal move in SAN.
            history: The moves before it, in UCI or as `chess.Move`; the model is told the last nine. By
                default those that were played on a `chess.Board`.

        Raises:
            NotationError: The FEN is malformed, or the answer is unreadable.
            IllegalPositionError: The position is not legal.
            RookWorldError: A move cannot be read.
        """
        played = position.move_stack if isinstance(position, chess.Board) else ()
        return _record(self.step_all([(position, move, history or played)])[0])

    # --------------------------------------------------------------------------------------------
    # Many
    # --------------------------------------------------------------------------------------------
    def analyse_all(
        self, positions: Sequence[Position], *, lookahead: bool = False
    ) -> list[Reply[Analysis]]:
        """One reply for each position, the same in a batch as alone; an unreadable one has a `fault`.

        Args:
            positions: See `analyse`.
            lookahead: See `analyse`.

        Raises:
            RookWorldError: See `analyse`.
        """
        if isinstance(positions, str):
            raise RookWorldError("positions: a text is given; write a list, [position]")
        texts = self.complete([policy_prompt(position) for position in positions])
        boards = list(map(read_board, positions))
        if lookahead:
            from .lookahead import look_ahead  # which reads what is written here

            texts = look_ahead(boards, texts, self.complete)
        return [
            reply_of(text, partial(_analysis, board))
            for board, text in zip(boards, texts, strict=True)
        ]

    def step_all(self, steps: Sequence[tuple[Position, Move, Sequence[Move]]]) -> list[Reply[Step]]:
        """One reply for each position, move and history; see `step` and `analyse_all`."""
        prompts = [environment_prompt(*step) for step in steps]
        return [
            reply_of(text, partial(_step, parse_environment_prompt(prompt)))
            for prompt, text in zip(prompts, self.complete(prompts), strict=True)
        ]

    def complete(self, prompts: Sequence[str], **how: Any) -> list[str]:
        """Completions of prompts, as evaluation decodes them.

        Args:
            prompts: Any number of texts.
            how: See `models.decoding.complete`, which decodes greedily unless it is told otherwise.

        Raises:
            RookWorldError: A single text is given, which would be read letter by letter, or one is
                empty.
        """
        if isinstance(prompts, str):
            raise RookWorldError("prompts: a text is given; write a list of texts, [prompt]")
        if not all(prompts):
            raise RookWorldError(
                "prompts: one of them is empty; write policy or environment prompts"
            )
        if not prompts:
            return []
        from ..models.decoding import ANSWER_TOKENS, complete

        return complete(self.network, self.tokenizer, prompts, max_new_tokens=ANSWER_TOKENS, **how)


def _analysis(board: chess.Board, text: str) -> Analysis:
    said = parse_policy_answer(text)
    moves = dict.fromkeys((*said.moves, said.best_move))
    illegal = (move for move in moves if rules.legal_move(board, move) is None)
    return Analysis(said.moves, said.evaluations, said.best_move, tuple(illegal))


def _step(asked: EnvironmentPrompt, text: str) -> Step:
    said = parse_environment_answer(text)
    wrong = wrong_fields(said, rules.transition(asked.fen, asked.action))
    return Step(said.fen, said.reward, said.terminated, said.truncated, tuple(wrong))


def _record(reply: Reply[Record]) -> Record:
    if reply.record is None:
        raise NotationError(f"the model's answer is unreadable ({reply.fault})", reply.text)
    return reply.record
