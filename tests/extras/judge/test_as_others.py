"""A judge meets what other models and runs meet: pickles, code of its own, signals, a closed Hub."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.extras.judge.reward import JudgeSpec, load_judge

from ...hub import Hub
from ...models.test_models import give_own_code
from ...recipes.test_security import Bomb
from ...training.test_hub import assert_told_first, hub
from ...training.test_interrupt import FEW, TERM, assert_saves

__all__ = ["hub"]


def test_a_pickle_is_refused(start: str, tmp_path: Path) -> None:
    (Path(start) / "model.safetensors").unlink()
    torch.save({"x": Bomb(tmp_path / "ran")}, Path(start) / "pytorch_model.bin")
    with pytest.raises(
        RookWorldError, match=r"are a pickle \(pytorch_model.bin\): only safetensors"
    ):
        load_judge(JudgeSpec("judge", model=start))
    assert not (tmp_path / "ran").exists()


def test_its_own_code_is_not_run_and_nobody_is_asked(start: str, tmp_path: Path) -> None:
    give_own_code(Path(start), tmp_path / "ran")
    with pytest.raises(RookWorldError, match="could not be loaded"):
        load_judge(JudgeSpec("judge", model=start))
    assert not (tmp_path / "ran").exists()


def test_a_signal_finishes_the_step_and_saves(tmp_path: Path, monkeypatch: Any) -> None:
    words = "--synthetic_rows 50 --train_pairs 32 --heldout_pairs 4".split()
    assert_saves(["judge.py", *FEW, *words], TERM, tmp_path, monkeypatch)


def test_a_repository_that_cannot_be_written_to_is_told_first(hub: Hub, tmp_path: Path) -> None:
    assert_told_first("judge.py --train_pairs 8 --heldout_pairs 4", "bob/old", hub, tmp_path)
