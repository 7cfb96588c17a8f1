import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import get_peft_model
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from trl import ModelConfig, get_peft_config

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.inference.model import RookWorld
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import pad_rows
from rookworld_rlvr.models.gpt2 import number_positions_from_mask

from ..recipes.test_security import Bomb


def test_a_name_that_is_no_model_says_what_it_is(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "runs" / "sft_nano").mkdir(parents=True)
    (tmp_path / "final_model.pt").write_bytes(b"")
    (tmp_path / "models" / "adapter_config.json").write_text("{}")
    made = "a recipe of that name makes it: rookworld sft --config recipes/"
    for name, said in (
        ("runs/sft_fill_in", f"there is no folder 'runs/sft_fill_in' in {tmp_path}"),
        ("runs/sft_fill_in", f"{made}sft_fill_in.yaml"),
        ("runs/sft_nano", f"no model in 'runs/sft_nano'; {made}sft_nano.yaml"),
        ("./nope", "there is no folder './nope'"),
        ("models/nope", "there is no folder 'models/nope'"),
        ("rookworld-nan", "did you mean rookworld-nano?"),
        ("final_model.pt", "is a file, not the folder of a model"),
        ("models", "holds a LoRA adapter alone"),
    ):
        (fault,) = loading.check_model_name(name)
        assert said in fault
    assert loading.check_model_name("jrahn/grpo_model") == []


def test_a_name_without_an_owner_is_looked_up_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def model_info(self: HfApi, name: str, **_: object) -> None:
        asked.append(name)
        if name != "gpt2":
            raise OSError("404")

    monkeypatch.setattr(HfApi, "model_info", model_info)
    monkeypatch.setattr(loading, "reaches_hub", lambda name: True)
    loading._is_on_hub.cache_clear()
    assert loading.check_model_name("gpt2") == []
    (fault,) = loading.check_model_name("tiniest")
    assert "there is no folder 'tiniest'" in fault and "the Hub has no such model" in fault
    asked.clear()
    (fault,) = loading.check_model_name("rookworld-nanno")
    assert "did you mean rookworld-nano?" in fault and not asked, "a slip stays here"
    for refused in ("my--model", "model-", "x.git"):
        assert len(loading.check_model_name(refused)) == 1, "the Hub's library has no such names"
    (fault,) = loading.check_model_name("runs/gpt2")
    assert "the Hub has no" not in fault, "a path"
    monkeypatch.setattr(loading, "reaches_hub", lambda name: False)
    loading._is_on_hub.cache_clear()
    (fault,) = loading.check_model_name("gpt2")
    assert "or is not reached" in fault


@settings(max_examples=50)
@given(text=st.text(max_size=60))
def test_every_text_survives(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text or tokenizer.eos_token_id in ids


def test_a_folder_whose_tokenizer_would_be_read_as_another_is_refused(tmp_path: Path) -> None:
    packaged = Path(loading.resolve_model_path(loading.PACKAGED_MODEL))
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(packaged / name, tmp_path)
    with pytest.raises(RookWorldError, match=r"tokenizer_config\.json"):
        loading.load_tokenizer(str(tmp_path))
    read = Tokenizer.from_file(str(packaged / "tokenizer.json"))
    read.enable_padding(length=128)  # stored by earlier work, and switched off by transformers
    read.save(str(tmp_path / "tokenizer.json"))
    shutil.copy(packaged / "tokenizer_config.json", tmp_path)
    assert loading.load_tokenizer(str(tmp_path))("A: ")["input_ids"]


def test_loading_changes_the_kernel_of_gelu_and_not_the_answers(start: str) -> None:
    """RookWorld-LM's checkpoints say `gelu_new`."""
    ids = torch.arange(1, 61).view(2, 30)
    plain = AutoModelForCausalLM.from_pretrained(start).eval()
    fused = loading.load_model(start).eval()
    assert plain.config.activation_function == "gelu_new"
    assert saved_by(fused, ids) < 0.8 * saved_by(plain, ids)
    torch.testing.assert_close(fused(ids).logits, plain(ids).logits, atol=1e-5, rtol=0)


def saved_by(model: torch.nn.Module, ids: torch.Tensor) -> int:
    """Numbers that a forward keeps for the backward pass, each tensor counted once."""
    kept: dict[int, torch.Tensor] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.setdefault(tensor.data_ptr(), tensor), lambda tensor: tensor
    ):
        model(ids)
    return sum(tensor.numel() for tensor in kept.values())


@pytest.mark.parametrize("cached", [False, True])
def test_generation_is_unchanged_by_the_hook(cached: bool, tokenizer: Any) -> None:
    batch = pad_rows(tokenizer(["A: 8/8", "P: "])["input_ids"], 0)
    model = loading.load_model("rookworld-nano")
    options = {"max_new_tokens": 12, "do_sample": False, "use_cache": cached, "pad_token_id": 0}
    plain = model.generate(**batch, **options)
    number_positions_from_mask(model)
    assert torch.equal(model.generate(**batch, **options), plain)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A file that a planted pickle or module makes when it is run."""
    return tmp_path / "ran"


def test_a_pickle_is_refused_everywhere_by_one_message(start: str, made: Path) -> None:
    folder = Path(start)
    (folder / "model.safetensors").unlink()
    torch.save({"x": Bomb(made)}, folder / "pytorch_model.bin")
    said = rf"the weights of '{folder}' are a pickle \(pytorch_model.bin\): only safetensors are"
    assert re.search(said, loading.check_model_name(str(folder))[0])
    for load in (loading.load_model, RookWorld.from_pretrained):
        with pytest.raises(RookWorldError, match=said):
            load(start)
    assert not made.exists()


def give_own_code(folder: Path, made: Path) -> None:
    """Let a model's folder bring code of its own, which makes a file when it is run."""
    (folder / "own.py").write_text(
        "from pathlib import Path\n"
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        f"Path({str(made)!r}).touch()\n"
        "class OwnConfig(GPT2Config):\n    model_type = 'own'\n"
        "class Own(GPT2LMHeadModel):\n    config_class = OwnConfig\n"
    )
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "architectures": ["Own"]}
    kinds = ("AutoModelForCausalLM", "AutoModelForSequenceClassification")
    config["auto_map"] = {"AutoConfig": "own.OwnConfig", **dict.fromkeys(kinds, "own.Own")}
    (folder / "config.json").write_text(json.dumps(config))


def test_a_models_own_code_runs_only_if_it_is_asked_for(start: str, made: Path) -> None:
    give_own_code(Path(start), made)
    with pytest.raises(RookWorldError, match="--trust_remote_code true on the command line"):
        loading.load_model(start)
    assert not made.exists()
    assert type(loading.load_model(start, trust_remote_code=True)).__name__ == "Own"
    assert made.exists()


@pytest.mark.parametrize("targets", [["c_attn"], ["c_attn", "mlp.c_fc"], [r".*\.c_attn"]])
def test_what_is_named_is_adapted(start: str, targets: list[str]) -> None:
    args = ModelConfig(start, use_peft=True, lora_target_modules=targets)
    model, _ = loading.load_from_arguments(args)
    adapted = get_peft_model(model, get_peft_config(args))
    names = {name.split(".lora_")[0] for name, _ in adapted.named_parameters() if ".lora_" in name}
    assert len(names) == 2 * len(targets), "in both layers"


@pytest.mark.parametrize("targets", [["q_proj"], ["q_proj", "c_attn"], ["attn"]])
def test_what_the_model_does_not_have_is_refused_by_name(start: str, targets: list[str]) -> None:
    said = f"has no {targets[0]}; choose from c_attn, c_fc, c_proj, lm_head"
    with pytest.raises(RookWorldError, match=said):
        loading.load_from_arguments(ModelConfig(start, use_peft=True, lora_target_modules=targets))
