"""Suite `mate_in_one`: positions in which the side to move can mate."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import chess

from ...data import synthesis
from ...data.loading import HELDOUT_SHARE, is_held_out
from ...tasks import rules
from ..answerers import Answerer
from ..games import Reply, ask_moves
from ..suite import Judged, Metric, Suite, SuiteUnavailableError

_MOVE_NUMBER = re.compile(r"^[0-9]+\.+")


@dataclass(frozen=True, slots=True)
class MatePosition:
    """A position with a mate in one; `reference` is one of its mating moves, in UCI."""

    fen: str
    reference: str


class MateInOneSuite(Suite[MatePosition]):
    """Positions made from a seed, or those of BIG-bench's task `checkmate_in_one`.

    Half of the positions that are made are from games and half are small endgames, all from the
    held-out tenth. Their reference mate is the first in python-chess's order of moves: finding it says
    no more than finding any other.

    Args:
        rows: The largest number of positions.
        seed: Decides the positions that are made, or which of the file's are taken.
        file: BIG-bench's ``task.json``.

    Raises:
        SuiteUnavailableError: The file could not be read, or holds no mate in one.
    """

    name = "mate_in_one"
    summary = (
        "Finds a mate in one, in positions made from a seed or in BIG-bench's (`mate_in_one_file`)."
    )
    version = 1
    headline = "mate"
    one_answer = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "invalid": Metric("share", "The answer cannot be read."),
        "legal": Metric("share", "`B` is a legal move."),
        "mate": Metric("share", "`B` gives checkmate; any mate counts."),
        "reference_mate": Metric("share", "`B` is the reference mate."),
    }
    grouped = ("mate",)  # by side to move
    about = "Positions with a mate in one, of random games and small endgames; no openings."

    def __init__(self, rows: int, seed: int, file: str | None = None) -> None:
        if file is None:
            super().__init__(_made(rows, seed), seed)
            return
        found, malformed = read_task(Path(file))
        chosen = set(random.Random(seed).sample(sorted(found), min(rows, len(found))))
        notes: dict[str, Any] = {"positions": "Positions with a mate in one, from a file."}
        notes |= {"file": file, "examples": len(found), "malformed": dict(malformed)}
        super().__init__({item: found[item] for item in found if item in chosen}, seed, notes)

    def positions(self) -> dict[str, str]:
        """See `Suite`."""
        return {item: position.fen for item, position in self.items.items()}

    def groups(self) -> Iterable[str]:
        """See `Suite`."""
        return rules.SIDES

    def judged(self, model: Answerer) -> Iterator[Judged]:
        """See `Suite`."""
        boards = [rules.board_of(position.fen) for position in self.items.values()]
        replies = ask_moves(model, boards)
        for (item, position), reply in zip(self.items.items(), replies, strict=True):
            yield item, judge(position, reply), [rules.side_to_move(position.fen)]


def judge(position: MatePosition, reply: Reply) -> dict[str, float]:
    """The suite's metrics for one answer."""
    move = reply.move.uci() if reply.move else None
    return {
        "invalid": float(not reply.readable),
        "legal": float(move is not None),
        "mate": float(move in rules.mating_moves(position.fen)),
        "reference_mate": float(move == position.reference),
    }


def _made(rows: int, seed: int) -> dict[str, MatePosition]:
    """Positions by FEN."""
    stream = synthesis.mate_in_one_positions(seed, lambda fen: is_held_out(fen, HELDOUT_SHARE))
    found: dict[str, MatePosition] = {}
    keys: set[str] = set()
    while len(found) < rows:
        fen = next(stream)
        if rules.position_key(fen) not in keys:
            keys.add(rules.position_key(fen))
            found[fen] = MatePosition(fen, rules.mating_moves(fen)[0])
    return found


# --------------------------------------------------------------------------------------------------
# BIG-bench's task file
# --------------------------------------------------------------------------------------------------
class _MalformedExampleError(ValueError):
    """Says why an example is left out, in a phrase that examples can be counted by."""


def read_task(path: Path) -> tuple[dict[str, MatePosition], Counter[str]]:
    """The positions of BIG-bench's ``checkmate_in_one/task.json``, and why examples were left out.

    An example has the game from its start as `input` (``1. e4 e5 2. Qh5``, in SAN), and the mate as
    `target`, or as the one move of `target_scores` that scores 1.

    Returns:
        Positions by ``example 17`` (counted from 1, malformed ones too), and counts by reason.

    Raises:
        SuiteUnavailableError: The file could not be read, has no list of examples, or none of them is
            a mate in one.

    Source: A. Srivastava et al., "Beyond the Imitation Game", TMLR 2023.
    """
    found: dict[str, MatePosition] = {}
    malformed: Counter[str] = Counter()
    for number, example in enumerate(_examples(path), start=1):
        try:
            found[f"example {number}"] = _position(example)
        except _MalformedExampleError as error:
            malformed[str(error)] += 1
    if not found:
        raise SuiteUnavailableError(
            f"mate_in_one_file: {str(path)!r} holds no mate in one ({dict(malformed)}); give "
            "BIG-bench's checkmate_in_one/task.json, or leave the key out for positions made from a "
            "seed"
        )
    return found, malformed


def _examples(path: Path) -> Iterator[Any]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SuiteUnavailableError(
            f"mate_in_one_file: {str(path)!r} could not be read ({error}); give BIG-bench's "
            "checkmate_in_one/task.json"
        ) from error
    if not isinstance(content, dict) or not isinstance(content.get("examples"), list):
        raise SuiteUnavailableError(
            f"mate_in_one_file: {str(path)!r} has no list 'examples'; give BIG-bench's "
            "checkmate_in_one/task.json"
        )
    return iter(content["examples"])


def _position(example: Any) -> MatePosition:
    if not isinstance(example, dict) or not isinstance(example.get("input"), str):
        raise _MalformedExampleError("no game as 'input'")
    target = _target(example)
    board = chess.Board()
    try:
        for word in example["input"].split():
            san = _MOVE_NUMBER.sub("", word)
            if san:
                board.push(_san_move(board, san))
    except ValueError as error:
        raise _MalformedExampleError("the game has a move that is not legal") from error
    try:
        mate = _san_move(board, target)
    except ValueError as error:
        raise _MalformedExampleError("the target is not a legal move") from error
    if not rules.gives_mate(board, mate):
        raise _MalformedExampleError("the target does not mate")
    return MatePosition(board.fen(), mate.uci())


def _san_move(board: chess.Board, san: str) -> chess.Move:
    move = board.parse_san(san)
    if not move:  # python-chess reads "--" as a null move
        raise chess.IllegalMoveError(f"not a move: {san!r}")
    return move


def _target(example: Mapping[str, Any]) -> str:
    target, scores = example.get("target"), example.get("target_scores")
    if target is None and isinstance(scores, dict):
        best = [move for move, score in scores.items() if score == 1]
        target = best[0] if len(best) == 1 else None
    if not isinstance(target, str):
        raise _MalformedExampleError("no mate as 'target' or in 'target_scores'")
    return target
