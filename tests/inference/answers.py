"""What a model might say, without a model."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import chess

from rookworld_rlvr.inference.replies import Reply, reply_of
from rookworld_rlvr.inference.uci import Analyse, Stopped
from rookworld_rlvr.tasks.policy import parse_policy_answer

reply = partial(reply_of, read=parse_policy_answer)
OPENING = "M: e2e4 d2d4 g1f3 E: 0.3 0.25 0.4 B: e2e4"


class Model:
    """Says the same of every position, or what a function of its FEN gives.

    Args:
        answer: Text, or a function; None thinks until it is told to give up.
    """

    def __init__(self, answer: str | Callable[[str], str | None] | None = OPENING) -> None:
        self.answer = answer
        self.loaded: list[str] = []

    def load(self, name: str, give_up: Callable[[], bool]) -> Analyse:
        self.loaded.append(name)

        def analyse(board: chess.Board) -> Reply[Any]:
            text = self.answer(board.fen()) if callable(self.answer) else self.answer
            while text is None:
                if give_up():
                    raise Stopped
                time.sleep(0.001)
            return reply(text)

        return analyse
