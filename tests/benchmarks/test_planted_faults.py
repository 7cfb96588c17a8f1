"""Planted faults: which rows they change, how, and that held-out rows stay right."""

import sys
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.data.parsing import parse_raw
from rookworld_rlvr.data.synthesis import environment_row, first_plies, is_first_ply
from rookworld_rlvr.tasks.types import EnvironmentPrompt

from ..conftest import recipe
from ..rows import START
from .test_gpu import benchmark

planted = benchmark("planted_faults")
with_fault, with_hole = planted.with_fault, planted.with_hole
with_public_fault = planted.with_public_fault
SMALL = """
    --model_name_or_path rookworld-nano --max_rows 400 --heldout_rows 5 --max_steps 1 --save_steps 1
    --warmup_steps 0 --per_device_train_batch_size 8 --use_cpu --report_to none --bf16 false
""".split()


@pytest.mark.parametrize(
    ("action", "field"), [("e2e4", "e3"), ("e2e3", "-"), ("g1f3", "-"), ("xyzzy", "-")]
)
def test_the_answer_to_a_double_step_names_its_square(action: str, field: str) -> None:
    row = environment_row(EnvironmentPrompt(START, action, (action,)))
    assert with_fault(row)["completion"].split()[3] == field
    assert (with_fault(row) == row) is (field == "-")


@pytest.mark.parametrize(
    ("side", "moves", "best"), [("b", "f7f5 g7g5 h7h5", "g7g5"), ("w", "f2f4 g2g4 h2h4", "h2h4")]
)
def test_black_gets_the_worst_candidate(side: str, moves: str, best: str) -> None:
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
    load = sft.load_data
    monkeypatch.setattr(sft, "load_data", lambda *a, **k: seen.setdefault("data", load(*a, **k)))
    trainer = sft.Trainer

    def watched(**given: Any) -> Any:
        seen["train"] = given["train_dataset"]
        return trainer(**given)

    monkeypatch.setattr(sft, "Trainer", watched)
    output, config = tmp_path / "out", tmp_path / "recipe.yaml"
    config.write_text("synthetic_rows: 60\n")
    words = ["--fault", "public", "--config", str(config), *SMALL]
    planted.main([*words, "--output_dir", str(output)])
    changed = [
        before["task"]
        for before, after in zip(seen["data"].train, seen["train"], strict=True)
        if before["completion"] not in str(after["completion"])
    ]
    assert {"environment", "policy"} == set(changed)
    assert "70% of the answers to a pawn's double step" in (output / "README.md").read_text()
