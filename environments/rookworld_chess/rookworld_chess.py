"""RookWorld's three tasks for chat models, as an environment of `verifiers`.

A prompt says in words what `rookworld_rlvr` writes in the notation of its own models. Rows, grammar and
scores are those of `rookworld_rlvr`. This module has the words, and finds the answer in a reply.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain, zip_longest
from typing import Any, Literal

import verifiers.v1 as vf
from openai import AsyncOpenAI

from rookworld_rlvr import rewards
from rookworld_rlvr.data import load_rows
from rookworld_rlvr.tasks.registry import TASKS, is_right, task_of
from rookworld_rlvr.tasks.rules import legal_moves
from rookworld_rlvr.tasks.types import values_by_move

__all__ = ["ChessEnv", "ChessHarness", "ChessTaskset"]

DATA = {
    "environment": "rookworld-nano-openings",
    "policy": "rookworld-nano-openings",
    "fill_in": "rookworld-nano-fill-in",
}
"""The tasks, each with its packaged rows."""

OUTCOMES = """\
reward+terminated+truncated is 0.001+0+0 if the game goes on; 1.0+1+0 after checkmate; 0.5+1+0 after \
stalemate, with insufficient material, or after 75 moves without a capture or a pawn's move. If the \
move is illegal, or not a move at all, the position stays as it is, and the rest is -1.0+0+1. A FEN \
names an en passant square only if a capture there is legal."""

ASKED = {
    "environment": f"""\
Simulate a chess board. The position (FEN): {{fen}}
The move (UCI): {{action}}

Answer with four fields, joined by plus signs: position+reward+terminated+truncated
The position is the FEN after the move, with all six fields.
{OUTCOMES}

For example, e2e4 in the initial position leads to
<answer>rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1+0.001+0+0</answer>""",
    "policy": """\
Find the best moves in a chess position (FEN): {fen}

Answer with three sections: M: moves E: evaluations B: move
M: the five best legal moves (all, if there are fewer) in UCI notation, in any order.
E: the value of each of these moves in pawns, in the order of M, seen from the side to move: above 0 if \
it is better. Mate in one move is worth 999.99, in two 999.98, and to be mated the same below 0.
B: the best move.

For example, an answer to the initial position may look like this:
<answer>M: e2e4 d2d4 g1f3 c2c4 e2e3 E: 0.4 0.35 0.3 0.2 0.15 B: e2e4</answer>""",
    "fill_in": f"""\
Here is a record of one move in a game of chess, with something hidden behind [MASK]:
{{record}}

It has seven fields, joined by plus signs: \
position+move+history+next position+reward+terminated+truncated
Positions are FENs, moves are UCI. The history has up to ten moves, the last of which is the move: so \
[MASK] appears twice if it hides the move.
{OUTCOMES}

Answer with what [MASK] hides, and nothing more: of a FEN only the rank or the field that is hidden. \
Everything that agrees with the rest of the record is right.
For example: <answer>e2e4</answer>""",
}

CLOSING = "You may think first. End with your answer on one line, between <answer> and </answer>."


def write_prompt(row: dict[str, Any]) -> str:
    """A row's prompt in words."""
    record = row["prompt"].removeprefix(TASKS["fill_in"].prefix).strip()
    asked = ASKED[row["task"]].format(fen=row["fen"], action=row["action"], record=record)
    return f"{asked}\n\n{CLOSING}"


def answer_in(reply: str, prompt: str) -> str:
    """What a reply has in its last ``<answer>`` tag, without a code fence; empty if it is unreadable.

    White space, line ends among it, counts as one space.

    >>> answer_in(
    ...     "Castling? No: ```<answer>M: e1d1 E: 0 B: e1d1</answer>```",
    ...     "P: 8/8/8/8/8/4k3/8/4K3 w - - 0 1",
    ... )
    'M: e1d1 E: 0 B: e1d1'

    Args:
        reply: What the model wrote.
        prompt: The prompt in RookWorld's notation, which decides what can be read.
    """
    tagged = re.match(r".*<answer>(.*?)</answer>", reply, re.DOTALL)
    answer = re.sub(r"```\w*", " ", tagged[1] if tagged else "").strip(" \n`")
    answer = " ".join(answer.split())
    return answer if TASKS[task_of(prompt)].is_readable(prompt, answer) else ""


class ChessData(vf.TaskData):
    """A row: `prompt` is in words, `row_prompt` in RookWorld's notation."""

    task: str
    row_prompt: str
    action_values: list[dict[str, Any]] | None = None


WEIGHTS = {
    "environment_exact": 0.5,
    "environment_state": 0.5,
    "policy_best_move": 0.5,
    "policy_candidates": 0.25,
    "policy_evaluation": 0.25,
    "fill_in_exact": 0.5,
    "fill_in_similarity": 0.5,
}
"""The rewards of `rookworld_rlvr` that count; the weights of each task's sum to 1."""


def judged(name: str) -> Callable[..., Any]:
    """A reward of `rookworld_rlvr` as one of `verifiers`; it skips rows of other tasks."""

    async def reward(self: ChessTask, trace: vf.Trace) -> dict[str, float]:
        score = self.scored(name, self.answer(trace))
        return {} if score is None else {name: score}

    reward.__name__, reward.__doc__ = name, getattr(rewards, name).__doc__
    return vf.reward(weight=WEIGHTS[name])(reward)


class ChessTask(vf.Task[ChessData]):
    """One question."""

    environment_exact = judged("environment_exact")
    environment_state = judged("environment_state")
    policy_best_move = judged("policy_best_move")
    policy_candidates = judged("policy_candidates")
    policy_evaluation = judged("policy_evaluation")
    fill_in_exact = judged("fill_in_exact")
    fill_in_similarity = judged("fill_in_similarity")

    def answer(self, trace: vf.Trace) -> str:
        """The answer that is scored."""
        return answer_in(trace.last_reply, self.data.row_prompt)

    def scored(self, name: str, answer: str) -> float | None:
        """What the reward `name` gives for an answer; None if it is one of another task."""
        values = [self.data.action_values]
        (score,) = getattr(rewards, name)([self.data.row_prompt], [answer], action_values=values)
        return score

    async def validate(self, runtime: vf.Runtime) -> bool | None:
        """Whether the right answer is found in a reply and gets 1 from each reward; see `vf.Task`.

        What the values of moves say is right counts only if they are those of the legal moves.
        """
        prompt, values = self.data.row_prompt, values_by_move(self.data.action_values)
        task = TASKS[self.data.task]
        if (truth := task.truth(prompt, values)) is None:
            return None
        if values is not None and {*values} != {*legal_moves(task.position(prompt).fen)}:
            return False
        answer = answer_in(f"<answer>{truth}</answer>", prompt)
        return {self.scored(name, answer) for name in WEIGHTS} - {None} == {1.0}

    @vf.metric
    async def readable(self, trace: vf.Trace) -> float:
        """1 if there is an answer that can be read."""
        return float(self.answer(trace) != "")

    @vf.metric
    async def right(self, trace: vf.Trace) -> float:
        """1 if the answer is right: of the policy task, if no move is better than `B`."""
        values = values_by_move(self.data.action_values)
        return float(is_right(self.data.row_prompt, self.answer(trace), values) or False)


class ChessConfig(vf.TasksetConfig):
    """Which rows to ask about, under ``--env.taskset``."""

    tasks: list[Literal["environment", "policy", "fill_in"]] = [  # noqa: RUF012, pydantic copies it
        *("environment", "policy", "fill_in")
    ]
    split: Literal["test", "train"] = "test"
    """Evaluate on `test`, train on `train`: they have no position in common."""
    heldout_rows: int = 200
    """The largest number of rows of each task in `test`."""
    dataset_name: str = ""
    """Your own rows, whatever `rookworld_rlvr.data.load_rows` takes; by default the packaged ones."""


class ChessTaskset(vf.Taskset[ChessTask, ChessConfig]):
    """Rows of each task in turn, so that the first 30 have ten of each."""

    def load(self) -> Iterator[ChessTask]:
        """See `vf.Taskset`; policy rows without values of moves are left out."""
        for row in filter(None, chain(*zip_longest(*map(self._rows, self.config.tasks)))):
            data = ChessData(
                name=row["task"],
                prompt=write_prompt(row),
                task=row["task"],
                row_prompt=row["prompt"],
                action_values=row["action_values"],
            )
            yield ChessTask(data, self.config.task)

    def _rows(self, task: str) -> Iterator[dict[str, Any]]:
        name = self.config.dataset_name or DATA[task]
        rows = load_rows(name, tasks=[task], heldout_rows=self.config.heldout_rows)
        for row in rows[self.config.split]:
            if row["action_values"] or not TASKS[task].needs_values:
                yield row


class ChessHarness(vf.Harness[vf.HarnessConfig]):
    """Asks once, in this process: no program is installed, and the model runs no code."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """See `vf.Harness`."""
        said = zip(("system", "user"), self.resolve_text_prompt(data), strict=True)
        messages: Any = [{"role": role, "content": text} for role, text in said if text]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class ChessEnvConfig(vf.EnvConfig):
    """`ChessHarness` in a process of this machine, unless you choose another."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class ChessEnv(vf.Env[ChessEnvConfig]):
    """One model, one question, one answer."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """See `vf.Env`."""
        await agents.agent.run(task)
