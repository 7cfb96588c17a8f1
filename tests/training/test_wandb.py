from __future__ import annotations

import os
from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments
from wandb.sdk.lib.urls import DEFAULT_BASE_URL

from rookworld_rlvr.training.wandb import ShortProgressCallback, configure_wandb


@pytest.fixture
def _clean_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No netrc of the person who runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("WANDB_RESUME", "WANDB_SILENT", "NETRC", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    # What configure_wandb sets is taken back by monkeypatch only if it knows of it.
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.mark.usefixtures("_clean_home")
class TestWandb:
    def test_without_a_key_it_is_offline_and_says_where(self, tmp_path: Path) -> None:
        said = configure_wandb(tmp_path, resume=False)
        assert os.environ["WANDB_MODE"] == "offline"
        assert str(tmp_path / "wandb") in said
        assert os.environ["WANDB_DATA_DIR"] == str(tmp_path / "wandb")

    def test_with_a_key_it_is_online(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        os.environ["WANDB_API_KEY"] = "k" * 40
        said = configure_wandb(tmp_path, resume=False)
        assert "WANDB_MODE" not in os.environ
        assert "online" in said

    @pytest.mark.parametrize("url", ["https://api.wandb.ai", DEFAULT_BASE_URL])
    def test_a_login_in_netrc_is_a_key(self, tmp_path: Path, url: str) -> None:
        home = tmp_path / "home"
        home.mkdir()
        machine = url.removeprefix("https://")
        (home / ".netrc").write_text(f"machine {machine} login user password secret\n")
        (home / ".netrc").chmod(0o600)
        configure_wandb(tmp_path, resume=False)
        assert "WANDB_MODE" not in os.environ

    def test_a_choice_of_the_user_stands(self, tmp_path: Path) -> None:
        os.environ["WANDB_MODE"] = "disabled"
        assert "disabled" in configure_wandb(tmp_path, resume=False)

    def test_a_resumed_run_keeps_its_id_and_a_new_one_gets_another(self, tmp_path: Path) -> None:
        ids = []
        for resume in (False, True, False):
            os.environ.pop("WANDB_RUN_ID", None)
            configure_wandb(tmp_path, resume=resume)
            ids.append(os.environ["WANDB_RUN_ID"])
        assert ids[0] == ids[1] != ids[2]


def test_a_log_is_one_short_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = TrainerState(global_step=5, is_world_process_zero=True)
    args = TrainingArguments(output_dir=str(tmp_path), report_to=[])
    callback = ShortProgressCallback()
    noise = {f"clip_ratio/{index}": 0.0 for index in range(20)}
    callback.on_log(args, state, TrainerControl(), {"reward": 0.51234, "kl": None, **noise})
    callback.on_log(
        args, state, TrainerControl(), {"eval_environment/exact": 0.5, "eval_runtime": 3}
    )
    callback.on_log(args, state, TrainerControl(), {"train_runtime": 1.0})
    state.is_world_process_zero = False
    callback.on_log(args, state, TrainerControl(), {"reward": 1.0})
    assert capsys.readouterr().out.splitlines() == [
        "step     5  reward 0.5123",
        "step     5  held-out  environment/exact 0.5",
    ]
