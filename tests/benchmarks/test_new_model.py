"""An untrained model is written into a folder, from where supervised training goes on."""

from pathlib import Path

import yaml

from rookworld_rlvr.data.loading import LoadedData
from rookworld_rlvr.models import loading
from rookworld_rlvr.tasks.text import END_OF_TEXT

from ..conftest import RECIPES, script
from .test_gpu import benchmark

FEW = """
    --max_rows 200 --synthetic_rows 20 --heldout_rows 2 --max_steps 1 --use_cpu --report_to none
    --per_device_train_batch_size 8 --warmup_steps 0
""".split()
SHAPE = "--n_layer 1 --n_embd 16 --n_head 2 --n_positions 512 --vocab_size 300".split()


def test_what_it_writes_is_loaded_and_trained(tmp_path: Path, packaged: LoadedData) -> None:
    recipe, folder = tmp_path / "few.yaml", tmp_path / "runs" / "untrained"
    nano = yaml.safe_load((RECIPES / "sft_nano.yaml").read_text())
    recipe.write_text(yaml.safe_dump({**nano, "max_rows": 200, "synthetic_rows": 20}))
    for output in (folder, tmp_path / "again"):
        benchmark("new_model").main(["--config", str(recipe), "--output_dir", str(output), *SHAPE])
    weights, again = (
        (path / "model.safetensors").read_bytes() for path in (folder, tmp_path / "again")
    )
    assert weights == again, "its seed is set"
    model, tokenizer = loading.load_model(str(folder)), loading.load_tokenizer(str(folder))
    assert (model.config.n_layer, model.config.n_embd, model.config.n_positions) == (1, 16, 512)
    assert len(tokenizer) == model.config.vocab_size == 300
    assert tokenizer.eos_token == tokenizer.pad_token == END_OF_TEXT
    row = packaged.heldout[0]
    prompt, whole = (
        tokenizer(text)["input_ids"] for text in (row["prompt"], row["prompt"] + row["completion"])
    )
    assert whole[: len(prompt)] == prompt, "a prompt's tokens begin those of its row"
    assert tokenizer.decode(whole) == row["prompt"] + row["completion"]
    script("sft.py", "--config", str(RECIPES / "sft_nano.yaml"), *FEW, cwd=tmp_path)
    assert "trained from `untrained`" in (tmp_path / "runs" / "sft_nano" / "README.md").read_text()
