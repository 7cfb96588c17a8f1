"""Suite `mate_in_one`: positions in which the side to move can mate."""

from __future__ import annotations

from ...data import synthesis
from ...data.loading import HELDOUT_SHARE, is_held_out
from ...tasks import positions, rules
from ...tasks.policy import write_policy_prompt
from ..suite import PromptSuite, packaged
from .games import read_reply


@packaged
class MateInOneSuite(PromptSuite[str]):
    """Positions made from a seed: half are from games, half small endgames, all from the held-out tenth.

    Args:
        suite_rows: The number of positions.
        suite_seed: Decides which.
    """

    name = "mate_in_one"
    version = 1
    grouped = ("mate",)  # by side to move

    groups = positions.SIDES

    def __init__(self, suite_rows: int, suite_seed: int) -> None:
        super().__init__(_made(suite_rows, suite_seed), suite_seed)

    def prompts(self) -> list[str]:
        """See `PromptSuite`."""
        return [write_policy_prompt(fen) for fen in self.items]

    def groups_of(self, name: str) -> list[str]:
        """See `PromptSuite`."""
        return [positions.side_to_move(name)]

    @staticmethod
    def judge(item: str, completion: str) -> dict[str, float]:
        """See `PromptSuite`."""
        reply = read_reply(rules.board_of(item), completion)
        move = reply.move.uci() if reply.move else None
        return {
            "invalid": float(not reply.readable),
            "legal": float(move is not None),
            "mate": float(move in positions.mating_moves(item)),
        }


def _made(rows: int, seed: int) -> dict[str, str]:
    """Positions, each by its FEN."""
    stream = synthesis.mate_in_one_positions(seed, lambda fen: is_held_out(fen, HELDOUT_SHARE))
    fens: dict[str, str] = {}
    while len(fens) < rows:
        fen = next(stream)
        fens.setdefault(rules.position_key(fen), fen)
    return {fen: fen for fen in fens.values()}
