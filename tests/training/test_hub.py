"""A run is pushed to a stand-in for the Hub: what arrives, and what a user is told where it cannot."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard, constants
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.common.files import asset_path
from rookworld_rlvr.training.config import RookWorldGRPOConfig, RookWorldSFTConfig

from ..conftest import RECIPES, script
from ..hub import OWNER, TOKEN, Hub, stand_in

SMALL = """
    --max_rows 1500 --synthetic_rows 60 --heldout_rows 4 --max_steps 2 --eval_steps 1 --save_steps 1
    --per_device_train_batch_size 8 --num_generations 4 --max_completion_length 16 --logging_steps 1
    --use_cpu --report_to none --push_to_hub true --hub_model_id ann/nano --output_dir out
""".split()
MODEL = {"config.json", "generation_config.json", "model.safetensors"}
TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}
RECORDS = {"README.md", "resolved_config.yaml", "results.json", "provenance.json", "report.html"}
VARIABLES = {"HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with stand_in() as hub:
        yield hub


@pytest.fixture
def here(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The stand-in as the Hub of this process, whose variables were read when it began."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return hub


def apart(*words: str, hub: Hub, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command whose Hub is the stand-in."""
    return subprocess.run(
        words,
        cwd=cwd,
        env={**os.environ, **VARIABLES, "OMP_NUM_THREADS": "1", "HF_ENDPOINT": hub.endpoint},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_a_run_pushes_after_its_end(hub: Hub, tmp_path: Path) -> None:
    done = apart(sys.executable, str(RECIPES / "grpo.py"), *SMALL, hub=hub, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"pushed to {hub.endpoint}/ann/nano" in done.stdout
    files = hub.files[f"{OWNER}/nano"]
    assert set(files) == MODEL | TOKENIZER | RECORDS, "no checkpoint, no optimiser, no log"
    for name, content in files.items():
        assert content == (tmp_path / "out" / name).read_bytes(), name
    commits = [request for request in hub.requests if "/commit/" in request]
    assert len(commits) == 1, "nothing while it trains"
    posted = [request for request in hub.requests if request.startswith("POST")]
    assert posted[0] == "POST /api/repos/create"
    card: Any = ModelCard(files["README.md"].decode())
    results = json.loads(files["results.json"])["heldout"]
    told = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert told == {name: result["after"] for name, result in results.items()}
    assert card.data.model_name == "nano" and "name = 'ann/nano'" in card.text
    assert b"<html" in files["report.html"]
    assert yaml.safe_load(files["resolved_config.yaml"])["hub_model_id"] == "ann/nano"


def test_adapters_are_pushed_and_a_push_that_fails_is_told(here: Hub, tmp_path: Path) -> None:
    here.refused = "/commit/"
    lora = "--use_peft true --lora_r 2 --lora_target_modules c_attn c_proj".split()
    done = script("grpo.py", *SMALL, *lora, cwd=tmp_path)
    assert done.returncode == 2, done.stdout[-3000:] + done.stderr[-3000:]
    said = done.stderr[done.stderr.index("push_to_hub") :]
    assert "the run is complete in out, but could not be pushed to ann/nano (403" in said
    assert "Traceback" not in done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} > RECORDS | MODEL | TOKENIZER
    assert here.files == {"ann/nano": {}}

    here.refused = "\0"
    for line in said.splitlines()[1:]:
        command, *words = shlex.split(line)
        by_hand = apart(
            str(Path(sys.executable).with_name(command)), *words, hub=here, cwd=tmp_path
        )
        assert by_hand.returncode == 0, by_hand.stderr
    files = here.files["ann/nano"]
    adapters = {"adapter_config.json", "adapter_model.safetensors"}
    assert set(files) == adapters | TOKENIZER | RECORDS
    card: Any = ModelCard(files["README.md"].decode())
    assert card.data.library_name == "peft"
    assert "PeftModel.from_pretrained(base, name)" in card.text
    config = json.loads(files["adapter_config.json"])
    assert config["base_model_name_or_path"] == "rookworld-nano", "not where it lies here"

    base = AutoModelForCausalLM.from_pretrained(asset_path("rookworld-nano"))
    inputs = AutoTokenizer.from_pretrained(tmp_path / "out")("P: 8/8", return_tensors="pt")
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(**inputs).logits
    both = (
        PeftModel.from_pretrained(base, str(tmp_path / "out" / "adapter")).eval()(**inputs).logits
    )
    assert (whole - both).abs().max() < 1e-4
    assert not (tmp_path / "out" / "adapter" / "README.md").exists(), "PEFT's draft"


@pytest.mark.parametrize("name", ["grpo.py", "sft.py", "train_judge.py"])
@pytest.mark.parametrize("fault", ["no token", "another's", "read only"])
def test_a_repository_that_cannot_be_written_to_is_told_first(
    name: str, fault: str, here: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = f"{OWNER if fault == 'no token' else 'bob'}/nano"
    if fault == "no token":
        monkeypatch.setenv("HF_TOKEN", "y")
    if fault == "read only":
        here.models["bob/nano"] = {}
    small = "--max_rows 300 --synthetic_rows 100 --heldout_rows 4 --output_dir out".split()
    if name == "train_judge.py":
        small += "--train_pairs 8 --heldout_pairs 4".split()
    words = ["--push_to_hub", "true", "--hub_model_id", repository, "--report_to", "none"]
    done = script(name, *small, *words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    said = f"push_to_hub: cannot write to the repository '{repository}' at {here.endpoint} (40"
    assert said in done.stderr and "hf auth login" in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


def test_keys_that_would_push_something_else(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with pytest.raises(ConfigurationError) as caught:
        RookWorldGRPOConfig(
            output_dir=out,
            rewards=[{"name": "environment_exact"}],
            push_to_hub=True,
            hub_strategy="checkpoint",
            hub_token="hf_secret",
            use_cpu=True,
            bf16=False,
        )
    assert "hf_secret" not in str(caught.value)
    assert [fault.split(":")[0] for fault in caught.value.faults] == ["hub_token", "hub_strategy"]
    args = RookWorldSFTConfig(
        output_dir=out, hub_strategy="every_save", report_to="none", use_cpu=True, bf16=False
    )
    assert not args.push_to_hub, "what nobody uses is no fault"
