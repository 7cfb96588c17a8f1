"""The environment for verifiers, driven by its own evaluation (`make test-environments`)."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from rookworld_rlvr import RookWorld
from rookworld_rlvr.rewards import get_reward_funcs
from rookworld_rlvr.tasks.registry import TASKS, is_right
from rookworld_rlvr.tasks.types import values_by_move

from ..rows import ASKED_E4, START
from ..support import REPOSITORY

pytest.importorskip("verifiers", reason="verifiers is not installed (make test-environments)")
chess = pytest.importorskip("rookworld_chess", reason="it is not installed")
ITEMS = 30  # of each task


@pytest.fixture(scope="module")
def items() -> dict[str, Any]:
    """The data of the first items by prompt."""
    taskset = chess.ChessTaskset(chess.ChessConfig(id="rookworld_chess"))
    return {task.data.prompt: task.data for task in taskset.take(3 * ITEMS)}


@contextmanager
def server(items: dict[str, Any], reply: Any) -> Iterator[str]:
    """An OpenAI-compatible server on loopback; `reply` gets the data of the item that is asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            content = reply(items[asked["messages"][-1]["content"]])
            choice = {"index": 0, "finish_reason": "stop"}
            choice["message"] = {"role": "assistant", "content": content}
            answer = {"object": "chat.completion", "id": "0", "created": 0, "choices": [choice]}
            answer["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            answer["model"] = asked["model"]
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}/v1"
        http.shutdown()


def evaluate(items: dict[str, Any], reply: Any, folder: Path) -> list[dict[str, Any]]:
    """The traces of `vf-eval`."""
    with server(items, reply) as url:
        command = f"rookworld_chess -n {len(items)} --model stub --client.base-url {url} --no-push"
        program = [str(Path(sys.executable).with_name("vf-eval")), *command.split(), "--no-rich"]
        subprocess.run([*program, "-o", str(folder)], check=True, stdout=subprocess.DEVNULL)
    (file,) = folder.glob("*/traces.jsonl")
    traces = [json.loads(line)["traces"][0] for line in file.read_text().splitlines()]
    assert {trace["task"]["data"]["prompt"] for trace in traces} == set(items)
    assert all(trace["ok"] for trace in traces)
    return traces


def totals(traces: list[dict[str, Any]]) -> dict[str, list[float]]:
    """The total rewards by task, in any order."""
    found: dict[str, list[float]] = {}
    for trace in traces:
        total = sum(reward["score"] * reward["weight"] for reward in trace["rewards"].values())
        found.setdefault(trace["task"]["data"]["task"], []).append(total)
    assert {task: len(numbers) for task, numbers in found.items()} == dict.fromkeys(TASKS, ITEMS)
    return found


def assert_equal_to_ours(traces: list[dict[str, Any]]) -> None:
    """Row by row, each reward is what `get_reward_funcs` gives for the answer in the reply."""
    for trace in traces:
        data = trace["task"]["data"]
        reply = trace["nodes"][-1]["message"].get("content") or ""
        answer = chess.answer_in(reply, data["row_prompt"])
        names = [name for name in ALL if name.startswith(data["task"])]
        ours = {
            name: reward([data["row_prompt"]], [answer], action_values=[data.get("action_values")])
            for name, reward in zip(names, get_reward_funcs(names), strict=True)
        }
        assert {name: [reward["score"]] for name, reward in trace["rewards"].items()} == ours


ALL = [name for name in vars(chess.ChessTask) if name.startswith(tuple(TASKS))]


def right(data: Any) -> str:
    truth = TASKS[data.task].truth(data.row_prompt, values_by_move(data.action_values))
    return f"Let me see.\n```text\n<answer>e9e9</answer>\n<answer>{truth}</answer>\n```\nSo."


def wrong(data: Any) -> str:
    prompt, values = data.row_prompt, values_by_move(data.action_values)
    guesses = (TASKS[data.task].guess(prompt, random.Random(seed)) for seed in range(20))
    guess = next(text for text in guesses if not is_right(prompt, text, values))
    return f"<answer>{guess}</answer>"


@pytest.mark.slow
def test_right_answers_get_1_wrong_ones_less_and_no_answer_0(items, tmp_path: Path) -> None:
    for name, reply, metrics in (
        ("right", right, {"readable": 1.0, "right": 1.0}),
        ("wrong", wrong, {"right": 0.0}),
        ("none", lambda data: "", {"readable": 0.0, "right": 0.0}),
    ):
        traces = evaluate(items, reply, tmp_path / name)
        assert all(trace["metrics"].items() >= metrics.items() for trace in traces), name
        assert_equal_to_ours(traces)
        found = totals(traces)
        if name == "wrong":
            assert all(max(numbers) < 1 for numbers in found.values())
            assert all(fmean(numbers) > 0 for numbers in found.values()), "a part of each is right"
        else:
            assert found == dict.fromkeys(TASKS, [float(name == "right")] * ITEMS)


@pytest.mark.slow
def test_vf_validate_finds_the_right_answers_without_an_account(tmp_path: Path) -> None:
    """By the configuration that is beside the environment, and for those tasks that are asked for."""
    command = f"rookworld_chess @ {REPOSITORY / 'environments/rookworld_chess/validate.toml'}"
    for words, count in (("-n 9", 9), ('--taskset.tasks ["policy"] -n 4', 4)):
        program = [str(Path(sys.executable).with_name("vf-validate")), *command.split()]
        program += [*words.split(), "--no-rich", "-o", str(tmp_path / str(count))]
        subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
        (file,) = (tmp_path / str(count)).glob("*/summary.json")
        checks = json.loads(file.read_text())["checks"]
        assert [checks[which]["valid"] for which in ("gold", "noop")] == [count, count]


def test_a_row_without_a_right_answer_is_not_valid(items: dict[str, Any]) -> None:
    data = next(data for data in items.values() if data.task == "policy")
    for values, found in (
        (data.action_values, True),
        ([{"move": "a1a1", "cp": 10}, {"move": "b1b1", "cp": 5}], False),  # no legal moves
        (None, None),
    ):
        task = chess.ChessTask(data.model_copy(update={"action_values": values}))
        assert asyncio.run(task.validate(None)) is found


@pytest.mark.slow
def test_a_model_gets_what_our_rewards_give(items: dict[str, Any], tmp_path: Path) -> None:
    model = RookWorld.from_pretrained("rookworld-nano")  # it reads RookWorld's notation, not words
    prompts = [data.row_prompt for data in items.values()]
    said = dict(zip(prompts, model.complete(prompts), strict=True))
    traces = evaluate(items, lambda data: f"<answer>{said[data.row_prompt]}</answer>", tmp_path)
    assert 0.3 < fmean(totals(traces)["environment"]) < 1  # it gets 47% of all held-out rows right
    assert_equal_to_ours(traces)


def test_the_last_answer_is_read_and_a_malformed_board_is_none() -> None:
    prompt = "P: 8/8/8/8/8/4k3/8/4K3 w - - 0 1"
    answer = "M: e1d1 E: 0 B: e1d1"
    for reply in (
        f"<answer>{answer}</answer>",
        f"<answer>M: e1f1 E: 0 B: e1f1</answer> No: <answer>{answer}</answer>",
        f"I write <answer> first. <answer>```text\n{answer}\n```</answer>",
        "<answer>\nM: e1d1\nE: 0\nB: e1d1\n</answer>",
        f"<answer>`{answer}`</answer></answer>",
    ):
        assert chess.answer_in(reply, prompt) == answer, reply
    torn = f"<answer>{answer}", f"</answer>{answer}<answer>", "<answer></answer>"
    for reply in ("", answer, *torn):
        assert chess.answer_in(reply, prompt) == "", reply
    prompt = f"A: {START}+g1h3+g1h3+"
    board = "rnbqkbnr/pppppppp/8/8/8/7N/PPPPPPPPP/RNBQKB1R b KQkq - 1 1+0.001+0+0"  # nine squares
    assert get_reward_funcs(["environment_state"])[0]([prompt], [board]) != [0.0]
    assert chess.answer_in(f"<answer>{board}</answer>", prompt) == ""


def test_the_examples_in_prompts_are_answers() -> None:
    example = chess.answer_in(chess.ASKED["environment"], ASKED_E4)
    assert get_reward_funcs(["environment_exact"])[0]([ASKED_E4], [example]) == [1.0]
    assert chess.answer_in(chess.ASKED["policy"], f"P: {START}")
    record = f"F: {START}+[MASK]+[MASK]+{example}+"
    example = chess.answer_in(chess.ASKED["fill_in"], record)
    assert get_reward_funcs(["fill_in_exact"])[0]([record], [example]) == [1.0]


def test_own_rows_and_the_training_split(tmp_path: Path) -> None:
    file = tmp_path / "positions.fen"
    file.write_text(f"{START}\n8/8/8/8/8/4k3/8/4K2R w K - 0 1\n8/8/8/8/8/4k3/8/4K1R1 w - - 0 1\n")
    options = {"tasks": ["environment"], "split": "train", "dataset_name": str(file)}
    config = chess.ChessConfig(id="rookworld_chess", **options)
    assert {task.data.task for task in chess.ChessTaskset(config)} == {"environment"}
