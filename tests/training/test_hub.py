"""A run is pushed to a stand-in for the Hub: what arrives, and what a user is told where it cannot."""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, constants
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from rookworld_rlvr.common.files import asset_path

from ..hub import TOKEN, Hub, stand_in
from ..support import ran, script
from .test_cards import SMALL

PUSHED = [*SMALL, *"--max_completion_length 16 --push_to_hub true --hub_model_id ann/nano".split()]
MODEL = {"config.json", "generation_config.json", "model.safetensors"}
TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}
RECORDS = {"README.md", "resolved_config.yaml", "results.json", "provenance.json"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A stand-in as the Hub of this process, whose variables were read when it began."""
    with stand_in() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


def test_what_a_run_pushes_after_its_end(hub: Hub, tmp_path: Path) -> None:
    assert f"pushed to {hub.endpoint}/ann/nano" in script("grpo.py", *PUSHED, cwd=tmp_path).stdout
    files = hub.files["ann/nano"]
    assert {*files} - {"report.html"} == MODEL | TOKENIZER | RECORDS, "no checkpoint, no log"
    for name, content in files.items():
        assert content == (tmp_path / "out" / name).read_bytes(), name
    assert sum("/commit/" in one for one in hub.requests) == 1, "nothing while it trains"
    posted = [request for request in hub.requests if request.startswith("POST")]
    assert posted[0] == "POST /api/repos/create"
    card: Any = ModelCard(files["README.md"].decode())
    assert card.data.model_name == "nano" and "name = 'ann/nano'" in card.text


@pytest.mark.slow
def test_adapters_are_pushed_and_a_push_that_fails_is_told(hub: Hub, tmp_path: Path) -> None:
    hub.refused = "/commit/"
    lora = "--use_peft true --lora_r 2 --lora_target_modules c_attn c_proj --hub_revision try"
    done = script("grpo.py", *PUSHED, *lora.split(), cwd=tmp_path, code=2)
    message = done.stderr[done.stderr.index("push_to_hub") :]
    assert "the run is complete in out, but could not be pushed to ann/nano (403" in message
    assert {path.name for path in (tmp_path / "out").iterdir()} > RECORDS | MODEL | TOKENIZER
    assert hub.files == {"ann/nano": {}}

    hub.refused = "\0"
    own = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.endpoint}
    for line in message.splitlines()[1:]:
        command, *words = shlex.split(line)
        by_hand = [str(Path(sys.executable).with_name(command)), *words]
        ran(*by_hand, cwd=tmp_path, env={**os.environ, **own})  # HF_TOKEN is set by `hub`
    files = hub.files["ann/nano"]
    adapters = {"adapter_config.json", "adapter_model.safetensors"}
    assert {*files} - {"report.html"} == adapters | TOKENIZER | RECORDS
    card: Any = ModelCard(files["README.md"].decode())
    assert card.data.library_name == "peft"
    assert "PeftModel.from_pretrained(base, name)" in card.text
    config = json.loads(files["adapter_config.json"])
    assert config["base_model_name_or_path"] == "rookworld-nano", "not where it lies here"

    out = tmp_path / "out"
    base = AutoModelForCausalLM.from_pretrained(asset_path("rookworld-nano"))
    inputs = AutoTokenizer.from_pretrained(out)("P: 8/8", return_tensors="pt")
    merged = AutoModelForCausalLM.from_pretrained(out)(**inputs).logits
    both = PeftModel.from_pretrained(base, str(out / "adapter")).eval()(**inputs).logits
    assert (merged - both).abs().max() < 1e-4
    assert not (out / "adapter" / "README.md").exists(), "PEFT's draft"


@pytest.mark.parametrize(
    ("words", "token", "repository"),
    [
        ("grpo.py", "wrong", "ann/nano"),
        ("sft.py", TOKEN, "bob/new"),
    ],
)
def test_a_repository_that_cannot_be_written_to_is_told_first(
    words: str, token: str, repository: str, hub: Hub, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    assert_told_first(words, repository, hub, tmp_path)


def assert_told_first(words: str, repository: str, hub: Hub, tmp_path: Path) -> None:
    hub.models["bob/old"] = {}
    words += " --max_rows 300 --synthetic_rows 20 --heldout_rows 4 --output_dir out"
    words += f" --push_to_hub true --hub_model_id {repository} --report_to none"
    done = script(*words.split(), cwd=tmp_path, code=2)
    first = f"push_to_hub: cannot write to the repository '{repository}' at {hub.endpoint} (40"
    assert first in done.stderr and "hf auth login" in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing was begun"
