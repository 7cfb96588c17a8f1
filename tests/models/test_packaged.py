"""The packaged models: their files are small, and every door loads them in single precision."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM
from trl import ModelConfig

from rookworld_rlvr import RookWorld
from rookworld_rlvr.evaluation.models import ModelArguments, open_model
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.loading import PACKAGED_MODELS, PLAYING_MODEL

from ..rows import START
from ..support import recipe

FOLDER = Path(loading.resolve_model_path(PLAYING_MODEL))


@pytest.mark.parametrize("name", PACKAGED_MODELS)
def test_its_folder_is_whole_and_small(name: str) -> None:
    folder = Path(loading.resolve_model_path(name))
    assert loading.check_model_name(name) == []
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 8_000_000
    model = loading.load_model(name)
    assert model.num_parameters() <= 4_000_000
    assert len(loading.load_tokenizer(name)) == model.config.vocab_size
    card = (folder / "README.md").read_text()
    assert f"{model.num_parameters():,} parameters" in card


def test_the_file_is_in_half_precision_and_says_single() -> None:
    with safe_open(FOLDER / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118
    assert json.loads((FOLDER / "config.json").read_text())["dtype"] == "float32"


def by_training(name: str) -> Any:
    """As `sft` and `grpo` load their start."""
    model, _ = loading.load_from_arguments(ModelConfig(model_name_or_path=name, dtype=None))
    return model


DOORS = {
    "transformers": lambda name: AutoModelForCausalLM.from_pretrained(
        loading.resolve_model_path(name)
    ),
    "load_model": loading.load_model,
    "sft and grpo": by_training,
    "RookWorld": lambda name: RookWorld.from_pretrained(name, device="cpu").network,
    "evaluate": lambda name: open_model(name, ModelArguments()).complete.args[0],  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_loads_single_precision(door: str) -> None:
    model: Any = DOORS[door](PLAYING_MODEL)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_it_is_exported_in_single_precision(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="pip install 'rookworld-rlvr[export]'")
    pytest.importorskip("onnxscript", reason="pip install 'rookworld-rlvr[export]'")
    file = tmp_path / "games.onnx"
    recipe("export").main(["--model", PLAYING_MODEL, "--output_file", str(file)])
    kinds = {item.data_type for item in onnx.load(str(file)).graph.initializer}
    assert onnx.TensorProto.FLOAT in kinds and onnx.TensorProto.FLOAT16 not in kinds


def test_the_model_for_games_answers_both_tasks() -> None:
    model = RookWorld.from_pretrained(PLAYING_MODEL, device="cpu")
    assert len(model.analyse(START).moves) == 5
    assert model.step(START, "e2e4").wrong == ()
