"""Runs that are killed at random moments and started again end as if nothing had happened."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from transformers import PreTrainedTokenizerBase

from rookworld_rlvr.cli.run import SCRIPTS
from rookworld_rlvr.common.files import asset_path

from .. import killed
from ..support import RECIPES, tiny_judge

SMALL = """
    --dataset_name rows.parquet --heldout_rows 12 --per_device_train_batch_size 32
    --eval_steps 1 --save_steps 1 --logging_steps 5 --dtype float32 --bf16 false
    --use_cpu --report_to none --output_dir run --resume_from_checkpoint auto
""".split()
KL = "--beta 0.02 --kl_control adaptive --kl_target 1e-4 --kl_horizon 200".split()
STEPS = (12, 24)
VARIANTS = {
    "packaged": "",
    "controls": "--zero_variance resample --baseline ema --scale_rewards batch --num_iterations 2",
    "value_head": "--advantage_estimator gae --num_iterations 2",
    "teaching": "--zero_variance teach --sft_coef 0.1 --steps_per_generation 3 --beta 0.02",
}
if "judge" in SCRIPTS:
    VARIANTS["judge"] = ""


def prepare(folder: Path, variant: str, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    folder.mkdir()
    rows = pd.read_parquet(asset_path("nano_openings.parquet"))
    rows.iloc[::20].to_parquet(folder / "rows.parquet")
    words = [*SMALL, *VARIANTS[variant].split()]
    words += ["--max_steps", str(STEPS[variant == "packaged"])]
    if variant in ("controls", "value_head"):
        words += KL
    if variant != "judge":
        return [*words, "--config", str(RECIPES / "grpo_nano.yaml")]
    tiny_judge(tokenizer).save_pretrained(folder / "judge")
    tokenizer.save_pretrained(folder / "judge")
    judge = '{"name": "judge", "model": "judge", "scale": "sigmoid", "weight": 0.5}'
    rewards = f'[{judge}, {{"name": "environment_exact", "weight": 0.5}}]'
    return [*words, "--config", str(RECIPES / "grpo_judge.yaml"), "--rewards", rewards]


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_kills_leave_no_trace(variant: str, tmp_path: Path, tokenizer: Any) -> None:
    """A run that is killed is compared with one that is left alone."""
    kills = killed.kills([*VARIANTS].index(variant), each=3 if variant == "packaged" else 1)
    assert len(kills) == (22 if variant == "packaged" else 8)
    whole, disturbed = tmp_path / "whole", tmp_path / "disturbed"
    for folder in (whole, disturbed):
        words = prepare(folder, variant, tokenizer)
    code, said = killed.run("grpo.py", words, whole)
    assert code == 0, said[-3000:]
    for kill in kills:
        code, said = killed.run("grpo.py", words, disturbed, kill)
        assert code == -9, f"{kill}: {said[-3000:]}"
    code, said = killed.run("grpo.py", words, disturbed)
    assert code == 0, said[-3000:]
    one, other = killed.outcome(whole / "run"), killed.outcome(disturbed / "run")
    assert "model.safetensors" in one and len(one["log"]) > STEPS[variant == "packaged"]
    assert killed.differences(one, other) == []
