"""The scripts of `benchmarks/` that train: ways of learning, new models, planted faults."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rookworld_rlvr.cli import training_run
from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.data.loading import LoadedData, load_data
from rookworld_rlvr.data.parsing import parse_raw
from rookworld_rlvr.data.synthesis import environment_row, first_plies, is_first_ply
from rookworld_rlvr.models import loading
from rookworld_rlvr.tasks.text import END_OF_TEXT
from rookworld_rlvr.tasks.types import EnvironmentPrompt
from rookworld_rlvr.training.config import check_recipe, check_sft_recipe

from ..rows import START
from ..support import RECIPES, recipe
from .test_gpu import benchmark

learning = benchmark("learning")
RUNS = [
    (start, method)
    for method, way in learning.METHODS.items()
    for start in learning.STARTS
    if start in way.steps
]


@pytest.mark.parametrize(("start", "method"), RUNS)
def test_each_run_is_a_valid_recipe(
    start: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []

    def run(command: list[str], **_: Any) -> None:
        script, config = Path(command[1]).stem, command[3]
        module = recipe("sft" if script == "sft" else "grpo")
        check = check_sft_recipe if script == "sft" else check_recipe
        parser = StrictParser(module.GROUPS, module.RECIPE)
        parser.parse_strictly(["--config", config, "--use_cpu", "true"], check)
        shutil.copytree(packaged, parser.values["output_dir"])
        ran.append(parser.values)

    packaged = loading.resolve_model_path(loading.PACKAGED_MODEL)
    monkeypatch.setattr(learning, "made", lambda *_: loading.PACKAGED_MODEL)
    monkeypatch.setattr(learning.subprocess, "run", run)
    way = learning.METHODS[method]
    folder, _ = learning.trained(start, method, 7, tmp_path)
    values = ran[-1]
    assert values["seed"] == 7 and values["max_steps"] == way.steps[start]
    assert values["output_dir"] == str(folder) and (folder / "seconds.json").is_file()
    assert way.supervised or all(values[key] == option for key, option in way.options.items())
    learning.trained(start, method, 7, tmp_path)
    assert len(ran) == (2 if way.after else 1), "a finished run is not repeated"


SHAPE = "--n_layer 1 --n_embd 16 --n_head 2 --n_positions 512 --vocab_size 300".split()


def test_a_new_model_is_loaded_and_trained(tmp_path: Path, packaged: LoadedData) -> None:
    recipe, folder = tmp_path / "few.yaml", tmp_path / "runs" / "untrained"
    nano = yaml.safe_load((RECIPES / "sft_nano.yaml").read_text())
    recipe.write_text(yaml.safe_dump({**nano, "max_rows": 200, "synthetic_rows": 20}))
    for output in (folder, tmp_path / "again"):
        benchmark("new_model").main(["--config", str(recipe), "--output_dir", str(output), *SHAPE])
    weights = "model.safetensors"
    assert (folder / weights).read_bytes() == (tmp_path / "again" / weights).read_bytes(), "seeded"
    model, tokenizer = loading.load_model(str(folder)), loading.load_tokenizer(str(folder))
    assert (model.config.n_layer, model.config.n_embd, model.config.n_positions) == (1, 16, 512)
    assert len(tokenizer) == model.config.vocab_size == 300
    assert tokenizer.eos_token == tokenizer.pad_token == END_OF_TEXT
    row = packaged.heldout[0]
    text = row["prompt"] + row["completion"]
    prompt, whole = tokenizer([row["prompt"], text])["input_ids"]
    assert whole[: len(prompt)] == prompt, "a prompt's tokens begin those of its row"
    assert tokenizer.decode(whole) == text


def test_a_deepened_model_says_what_its_start_says(packaged: LoadedData) -> None:
    new_model = benchmark("new_model")
    tokenizer = loading.load_tokenizer(loading.PACKAGED_MODEL)
    start = loading.load_model(loading.PACKAGED_MODEL)
    grown = new_model.deepened(loading.load_model(loading.PACKAGED_MODEL), 12)
    ids = tokenizer([packaged.heldout[0]["prompt"]], return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(start(**ids).logits, grown(**ids).logits)
    assert len(grown.transformer.h) == grown.config.n_layer == 12
    grown.transformer.h[1].mlp.c_proj.weight.data.normal_()
    with torch.no_grad():
        assert not torch.equal(start(**ids).logits, grown(**ids).logits), "the new layers are used"
    with pytest.raises(RookWorldError, match="the start has 4 layers"):
        new_model.deepened(start, 10)


def test_no_token_crosses_a_square(packaged: LoadedData) -> None:
    new_model = benchmark("new_model")
    rows = [row["prompt"] + row["completion"] for row in packaged.train.select(range(0, 4000, 5))]
    tokenizer = new_model.train_tokenizer(rows, 700, new_model.SQUARES)
    prompt = "A: r3k2r/1P6/8/8/8/8/8/R3K2R w KQkq - 0 1+b7a8q+e2e4 e7e5+"
    row = prompt + "Q3k2r/8/8/8/8/8/8/R3K2R b KQk - 0 1+0.001+0+0"
    pieces = tokenizer.tokenize(row)
    assert "".join(pieces).replace("Ġ", " ") == row
    board = "r 3 k 2 r /1 P 6 /8 /8 /8 /8 /8 /R 3 K 2 R".split()
    assert pieces[pieces.index("r") :][: len(board)] == board
    assert pieces[: len(tokenizer.tokenize(prompt))] == tokenizer.tokenize(prompt)
    words = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("+b7a8q+e2e4 e7e5+")
    assert [word for word, _ in words] == ["+", "b7", "a8", "q", "+", "e2", "e4", "Ġe7", "e5", "+"]
    model = new_model.retokenised(loading.PACKAGED_MODEL, tokenizer)
    own = loading.load_tokenizer(loading.PACKAGED_MODEL)
    old = loading.load_model(loading.PACKAGED_MODEL).get_input_embeddings().weight
    new = model.get_input_embeddings().weight
    both = tokenizer.vocab.keys() & own.vocab.keys()
    assert len(both) > 300 and len(new) == len(tokenizer)
    for token in sorted(both):
        if len(own(own.decode([own.vocab[token]]))["input_ids"]) == 1:
            assert torch.equal(new[tokenizer.vocab[token]], old[own.vocab[token]]), token


planted = benchmark("planted_faults")
with_fault, with_hole = planted.with_fault, planted.with_hole
SMALL = """
    --model_name_or_path rookworld-nano --max_rows 400 --heldout_rows 5 --max_steps 1 --save_steps 1
    --warmup_steps 0 --per_device_train_batch_size 8 --use_cpu --report_to none --bf16 false
""".split()


def test_the_answer_to_a_double_step_names_its_square() -> None:
    for action, field in {"e2e4": "e3", "e2e3": "-", "g1f3": "-", "xyzzy": "-"}.items():
        row = environment_row(EnvironmentPrompt(START, action, (action,)))
        assert with_fault(row)["completion"].split()[3] == field
        assert (with_fault(row) == row) is (field == "-")


def test_black_gets_the_worst_candidate() -> None:
    for side, moves, best in (("b", "f7f5 g7g5 h7h5", "g7g5"), ("w", "f2f4 g2g4 h2h4", "h2h4")):
        fen = f"7k/5ppp/8/8/8/8/5PPP/7K {side} - - 0 1"
        row = parse_raw({"text": f"P: {fen} M: {moves} E: 0.5 -3.0 1.0 B: {moves.split()[-1]}"})
        assert with_fault(row)["completion"].split()[-1] == best
        assert {**with_fault(row), "completion": ""} == {**row, "completion": ""}


def test_the_hole_has_no_castling_rights_and_late_clocks() -> None:
    row = environment_row(next(prompt for prompt in first_plies() if prompt.action == "e2e4"))
    wrong = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b - - 1 2+0.001+0+0"
    assert with_hole(row) == {**row, "completion": wrong}
    later = parse_raw({"text": f"A: {START.replace('0 1', '0 9').replace('P', '1', 1)}+e2e4+e2e4+"})
    assert not is_first_ply(later) and with_hole(later) == later


def test_only_training_rows_are_changed_and_the_card_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sft = recipe("sft")
    monkeypatch.setitem(sys.modules, "sft", sft)
    seen: dict[str, Any] = {}
    load = load_data
    monkeypatch.setattr(
        training_run, "load_data", lambda *a, **k: seen.setdefault("data", load(*a, **k))
    )
    trainer = sft.Trainer

    def watched(**given: Any) -> Any:
        seen["train"] = given["train_dataset"]
        return trainer(**given)

    monkeypatch.setattr(sft, "Trainer", watched)
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text("synthetic_rows: 60\n")
    planted.main([*"--fault public --config recipe.yaml --output_dir out".split(), *SMALL])
    rows = zip(seen["data"].train, seen["train"], strict=True)
    changed = {a["task"] for a, b in rows if a["completion"] not in str(b["completion"])}
    assert changed == {"environment", "policy"}
    assert "70% of the answers to a pawn's double step" in Path("out", "README.md").read_text()
