"""The reward tab's numbers are a training step's, and a faulty reward harms nobody."""

from pathlib import Path

import pytest
import torch

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.extras.web import backend
from rookworld_rlvr.extras.web.backend import read_block, row_of, try_rewards
from rookworld_rlvr.models import loading
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.tasks.types import values_by_move

SPECS = [
    {"name": "environment_exact", "weight": 1.0},
    {"name": "environment_state", "weight": 0.3},
    {"name": "policy_best_move", "weight": 1.0},
    {"name": "policy_candidates", "weight": 0.5},
]
PROMPT = "A: 8/8/8/8/8/4k3/8/4K3 w - - 0 1+e1d1+e1d1+"
ANSWERS = ["8/8/8/8/8/4k3/8/3K4 b - - 1 1+0.5+1+0", "8/8/8/8/8/4k3/8/3K4 b - - 1 1+0+0+0", ""]


@pytest.mark.parametrize("scale", ["group", "none"])
def test_rewards_and_advantages_are_those_of_a_training_step(build, scale: str) -> None:
    trainer = build(
        loading.load_model(loading.PACKAGED_MODEL),
        rewards=SPECS,
        scale_rewards=scale,
        per_device_train_batch_size=64,
        max_completion_length=64,
        eval_strategy="no",
        load_best_model_at_end=False,
    )
    rows = {row["prompt"]: row for row in trainer.train_dataset}
    trainer.train()
    log = {key: list(trainer._logs[key]) for key in ("prompt", "completion", "advantages")}
    assert len(log["completion"]) == 64
    for first in range(0, 64, 4):
        prompts, answers, advantages = (column[first : first + 4] for column in log.values())
        values = rows[prompts[0]]["action_values"]
        ours = try_rewards(row_of(prompts[0], values_by_move(values)), answers, SPECS, scale)
        for func in get_reward_funcs(SPECS):
            assert ours.rewards[func.__name__] == func(prompts, answers, action_values=[values] * 4)
        assert ours.advantages == pytest.approx(advantages, abs=1e-5)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(backend, "PATIENCE_S", 1.0)
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "def length(completions, **columns): return [float(len(text)) for text in completions]\n"
        "def broken(completions, **columns): return [1 / 0]\n"
        "def leaves(completions, **columns): os._exit(3)\n"
        "def endless(completions, **columns):\n"
        "    while True: pass\n"
    )
    return tmp_path


def test_a_reward_of_one_s_own_is_tried_beside_ours(folder: Path) -> None:
    block = "rewards:\n- environment_exact\n- {name: mine.py:length, weight: 0.5}\n"
    found = try_rewards(row_of(PROMPT, None), ANSWERS, read_block(block))
    assert found.rewards == {
        "environment_exact": [1.0, 0.0, 0.0],
        "length": [float(len(text)) for text in ANSWERS],
    }
    assert found.totals == [1 + 0.5 * len(ANSWERS[0]), 0.5 * len(ANSWERS[1]), 0.0]
    assert torch.tensor(found.advantages).mean().item() == pytest.approx(0, abs=1e-6)


def test_what_a_file_does_wrong_is_one_message(folder: Path) -> None:
    for name, said in (
        ("broken", "raised ZeroDivisionError: division by zero \\(mine.py, line 3\\)"),
        ("leaves", "a reward has ended its process"),
        ("endless", "a reward has not answered within 1 s"),
        ("lenght", "did you mean length"),
    ):
        with pytest.raises(RookWorldError, match=said):
            try_rewards(row_of(PROMPT, None), ANSWERS, read_block(f"[mine.py:{name}]"))
    assert try_rewards(row_of(PROMPT, None), ANSWERS, read_block("[mine.py:length]")).totals


def test_a_block_that_names_no_rewards_is_refused(folder: Path) -> None:
    for block, said in (
        *(("][", "not valid YAML"), ("rewards: 3", "must be a list of rewards")),
        *(("[/etc/passwd.py:x]", "not a .py file in"), ("[../mine.py:x]", "not a .py file in")),
        ("[os.path:join]", "not a .py file in"),
    ):
        with pytest.raises(RookWorldError, match=said):
            read_block(block)
    with pytest.raises(RookWorldError, match="runs no files"):
        read_block("[mine.py:length]", is_private=False)  # a page that others reach
