"""The rewards as plain TRL and a script of one's own use them: by name, from a module, over columns."""

import functools
import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr import data
from rookworld_rlvr.common.errors import ConfigurationError, RookWorldError
from rookworld_rlvr.rewards import environment_exact, get_reward_funcs
from rookworld_rlvr.rewards.registry import known_rewards

from ..conftest import REPOSITORY, history, ran
from ..docs.pages import fences
from ..rows import ASKED_E4, RIGHT_E4
from .test_registry import NAMED

WRONG = f"{NAMED}+0.001+0+0"


def test_every_reward_is_a_function_of_the_module() -> None:
    assert not hasattr(importlib.import_module("rookworld_rlvr.rewards"), "environment_exac")
    for name, said in known_rewards().items():
        path, _, attribute = f"rookworld_rlvr.rewards.{name}".rpartition(".")  # as `trl grpo` does
        func = getattr(importlib.import_module(path), attribute)
        assert func.__name__ == name  # TRL logs it under this name
        assert said.meaning in func.__doc__ and f"Range: {said.range}." in func.__doc__
        assert pickle.loads(pickle.dumps(func)) is func
    package = importlib.import_module("rookworld_rlvr")
    assert all(name in dir(package) for name in ("RookWorld", "rewards", "training"))


def test_a_plain_name_is_a_reward_with_its_defaults() -> None:
    first, second = get_reward_funcs(["graduated", {"name": "environment_state", "weight": 2.0}])
    assert (first.__name__, second.__name__) == ("graduated", "environment_state")
    assert first([ASKED_E4], [WRONG]) == [0.8]
    with pytest.raises(ConfigurationError, match="did you mean environment_exact"):
        get_reward_funcs(["environment_exac"])


def chat(*contents: str) -> list[dict[str, str]]:
    roles = ["system", "user"] if len(contents) > 1 else ["assistant"]
    return [{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)]


def test_of_a_chat_the_last_message_is_read() -> None:
    prompts = [chat("You are a chess engine.", ASKED_E4)] * 2
    assert environment_exact(prompts, [chat(RIGHT_E4), chat(WRONG)]) == [1.0, 0.0]
    assert environment_exact([ASKED_E4], [chat(RIGHT_E4)]) == [1.0]


@pytest.mark.parametrize(
    "said", [None, [], [5], [{"role": "assistant"}], [{"content": [RIGHT_E4]}]]
)
def test_what_is_neither_text_nor_a_chat_is_refused(said: Any) -> None:
    with pytest.raises(RookWorldError, match="as a prompt or completion: give text, or"):
        environment_exact([ASKED_E4], [said])


def test_rewards_and_rows_wait_for_no_trainer() -> None:
    code = (
        "import sys\n"
        "import rookworld_rlvr.data, rookworld_rlvr.rewards\n"
        "heavy = {'torch', 'transformers', 'trl', 'accelerate', 'rookworld_rlvr.training'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    assert ran(sys.executable, "-c", code).stdout == "[]\n"


def test_the_script_of_the_page_trains_with_trl_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = REPOSITORY / "docs" / "plain_trl.md"
    text = next(text for language, text in fences(page) if language == "python")
    assert len([line for line in text.splitlines() if line]) <= 18
    few = functools.partial(data.load_rows, max_rows=300, synthetic_rows=100)
    monkeypatch.setattr(data, "load_rows", few)
    exec(compile(text, str(page), "exec"), {})
    logged = history("runs/plain_trl/checkpoint-3")[:3]
    # random weights write nothing that can be read: 0 of each task, and no row is without its truth
    for name in ("environment_state", "policy_best_move"):
        assert {step.get(f"rewards/{name}/without_truth", 0.0) for step in logged} == {0.0}
        assert all(step[f"rewards/{name}/mean"] in (0.0, None) for step in logged)
    assert [step["reward"] for step in logged] == [0.0] * 3
    assert Path("runs/plain_trl/model.safetensors").exists()
