"""Suite `mate_in_one`: positions in which the side to move can mate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from ...data import synthesis
from ...data.loading import HELDOUT_SHARE, is_held_out
from ...tasks import rules
from ..answerers import Answerer
from ..games import Reply, ask_moves
from ..suite import Judged, Metric, Suite


class MateInOneSuite(Suite[str]):
    """Positions made from a seed: half are from games, half small endgames, all from the held-out tenth.

    Args:
        rows: The number of positions.
        seed: Decides which.
    """

    name = "mate_in_one"
    summary = "Finds a mate in one, in positions made from a seed."
    version = 1
    headline = "mate"
    one_answer = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "invalid": Metric("share", "The answer cannot be read."),
        "legal": Metric("share", "`B` is a legal move."),
        "mate": Metric("share", "`B` gives checkmate; any mate counts."),
    }
    grouped = ("mate",)  # by side to move
    about = "Positions with a mate in one, of random games and small endgames; no openings."

    def __init__(self, rows: int, seed: int) -> None:
        super().__init__(_made(rows, seed), seed)

    def positions(self) -> dict[str, str]:
        """See `Suite`."""
        return dict(self.items)

    def groups(self) -> Iterable[str]:
        """See `Suite`."""
        return rules.SIDES

    def judged(self, model: Answerer) -> Iterator[Judged]:
        """See `Suite`."""
        replies = ask_moves(model, [rules.board_of(fen) for fen in self.items])
        for fen, reply in zip(self.items, replies, strict=True):
            yield fen, judge(fen, reply), [rules.side_to_move(fen)]


def judge(fen: str, reply: Reply) -> dict[str, float]:
    """The suite's metrics for one answer."""
    move = reply.move.uci() if reply.move else None
    return {
        "invalid": float(not reply.readable),
        "legal": float(move is not None),
        "mate": float(move in rules.mating_moves(fen)),
    }


def _made(rows: int, seed: int) -> dict[str, str]:
    """Positions, each by its FEN."""
    stream = synthesis.mate_in_one_positions(seed, lambda fen: is_held_out(fen, HELDOUT_SHARE))
    found: dict[str, str] = {}
    while len(found) < rows:
        fen = next(stream)
        found.setdefault(rules.position_key(fen), fen)
    return {fen: fen for fen in found.values()}
