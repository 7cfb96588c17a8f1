"""The answers that a dry run scores."""

import chess

from rookworld_rlvr.cli.dry_run import KINDS, _answers
from rookworld_rlvr.tasks.policy import POLICY


def test_the_wrong_answer_is_wrong_here() -> None:
    """In a game, the right answer to the next row is often right in this one, too."""
    moves = [move.uci() for move in chess.Board().legal_moves]
    rows = [
        {
            "prompt": f"P: {chess.STARTING_FEN}",
            "completion": "",
            "action_values": [
                {"move": move, "cp": first if move == best else -at}
                for at, move in enumerate(moves)
            ],
        }
        for best, first in (("e2e4", 50), ("e2e4", 60), ("d2d4", 50))
    ]
    references = [POLICY.reference(row) for row in rows]
    assert len(set(references)) == 3
    answers = dict(_answers(POLICY, rows[0], rows))
    assert tuple(answers) == KINDS
    assert answers["reference"] == references[0] and answers["wrong"] == references[2]
