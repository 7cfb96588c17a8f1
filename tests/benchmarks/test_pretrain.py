"""`benchmarks/pretrain.py`, which trains a model for whole games."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from rookworld_rlvr.common.files import asset_path
from rookworld_rlvr.data.loading import HELDOUT_SHARE, is_held_out
from rookworld_rlvr.models.loading import PACKAGED_MODEL, PLAYING_MODEL, load_model, load_tokenizer
from rookworld_rlvr.tasks.registry import score_row
from rookworld_rlvr.tasks.text import END_OF_TEXT

from .test_gpu import benchmark

pretrain = benchmark("pretrain")

VALUES = {"e2e4": 30, "d2d4": 25, "g1f3": 20, "c2c4": 10, "b1c3": 0, "a2a3": -20}
START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"


def test_a_policy_row_is_shuffled_and_mirrored_by_its_edition() -> None:
    texts = [pretrain.policy_text(START, VALUES, edition) for edition in range(6)]
    assert len({text.answer for text in texts}) > 4
    assert {text.prompt.split()[2] for text in texts} == {"w", "b"}
    mirrored = {
        f"{move[0]}{9 - int(move[1])}{move[2]}{9 - int(move[3])}": cp for move, cp in VALUES.items()
    }
    for edition, text in enumerate(texts):
        values = mirrored if edition % 2 else VALUES
        score = score_row(text.prompt, text.answer, values)
        assert score and score["best_move"] == score["candidates"] == score["consistency"] == 1


def test_rows_are_cut_into_batches_of_like_length_without_loss() -> None:
    lengths = np.random.default_rng(0).integers(20, 90, size=500)
    starts = np.cumsum([0, *lengths])
    rows = pretrain.Tokens(np.zeros(starts[-1], np.int16), starts, lengths // 2)
    seen: list[int] = []
    for batch in pretrain.batches(rows, most=600, longest=80, seed=0):
        assert len(batch) * lengths[batch].max() <= 600
        assert np.ptp(lengths[batch]) < 20
        seen += batch.tolist()
        if len(seen) >= (lengths <= 80).sum():
            break
    assert sorted(seen) == np.flatnonzero(lengths <= 80).tolist()


def test_only_answers_are_learnt_and_padding_changes_nothing() -> None:
    model, tokenizer = load_model(PACKAGED_MODEL), load_tokenizer(PACKAGED_MODEL)
    model.set_attn_implementation("sdpa_float32")
    texts = [pretrain.policy_text(START, VALUES, edition) for edition in range(3)]
    texts.append(pretrain.Text("A: k7/8/8/8/8/8/8/K7 w - - 0 1+a1b1+a1b1+", "k7/8"))
    rows = pretrain.encode(texts, tokenizer)
    logits, tokens, counts = pretrain.answer_logits(model, rows, np.arange(4))
    said = [tokenizer.decode(part) for part in tokens.split(counts.tolist())]
    assert said == [text.answer + END_OF_TEXT for text in texts]
    with torch.no_grad():
        alone = tokenizer(texts[3].prompt + texts[3].answer, return_tensors="pt")
        wanted = model(**alone).logits[0, -int(counts[3]) :]
    assert torch.allclose(logits[-int(counts[3]) :], wanted, atol=0.15), "bfloat16 beside float32"


@pytest.mark.slow
def test_it_trains_both_tasks_and_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(folder: str, steps: int) -> list[dict[str, float]]:
        given = ["--rows", asset_path("nano_openings.parquet"), "--start", PACKAGED_MODEL]
        small = "--n_layer 4 --editions 1 --batch_tokens 1200 --save_steps 2 --vocab_size 500"
        output = ["--output_dir", str(tmp_path / folder), "--steps", str(steps)]
        pretrain.main([*given, *small.split(), *output])
        lines = capsys.readouterr().out.splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    first = train("one", 4)
    assert [line["step"] for line in first] == [2, 4]
    assert first[1]["policy_nats"] < first[0]["policy_nats"]
    assert first[1]["environment_nats"] < first[0]["environment_nats"]
    assert [line["step"] for line in train("one", 6)] == [6]
    model = load_model(str(tmp_path / "one"))
    assert model.dtype == torch.float32 and model.config.vocab_size == 500
    with safe_open(tmp_path / "one" / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118
    assert train("one", 6) == []


def test_a_model_with_its_own_tokenizer_starts_as_it_is(tmp_path: Path) -> None:
    given = ["--rows", "none", "--start", PLAYING_MODEL, "--keep_tokenizer", "--n_layer", "16"]
    args = pretrain._arguments([*given, "--output_dir", str(tmp_path), "--steps", "1"])
    pretrain.make_start(args, {})
    ids = load_tokenizer(PLAYING_MODEL)(f"P: {START}", return_tensors="pt").input_ids
    assert torch.equal(
        load_tokenizer(str(tmp_path))(f"P: {START}", return_tensors="pt").input_ids, ids
    )
    with torch.no_grad():
        before, after = (load_model(name)(ids).logits for name in (PLAYING_MODEL, str(tmp_path)))
    assert torch.allclose(before, after, atol=1e-4)


def test_held_out_positions_are_not_learnt() -> None:
    learnt, watched = pretrain.read_rows([Path(asset_path("nano_openings.parquet"))], 1)
    for rows, is_apart in ((learnt, False), (watched, True)):
        assert rows["policy"] and rows["environment"]
        for text in (*rows["policy"][:200], *rows["environment"][:200]):
            fen = text.prompt[3:].split("+")[0].strip()
            assert is_held_out(fen, HELDOUT_SHARE) == is_apart
