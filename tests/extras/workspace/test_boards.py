import os
from pathlib import Path

import pytest
from wandb.sdk.lib.urls import DEFAULT_BASE_URL

from rookworld_rlvr.extras.workspace.boards import configure_wandb


@pytest.fixture(autouse=True)
def _clean_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No netrc of the person who runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("WANDB_RESUME", "WANDB_SILENT", "NETRC", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    # What configure_wandb sets is taken back by monkeypatch only if it knows of it.
    monkeypatch.setattr(os, "environ", os.environ.copy())


def test_without_a_key_it_is_offline_and_says_where(tmp_path: Path) -> None:
    folder = str(tmp_path / "wandb")
    assert folder in configure_wandb(tmp_path, False, ["policy"], "rookworld-nano", "grpo_nano")
    values = [os.environ[f"WANDB_{name}"] for name in ("MODE", "DATA_DIR", "TAGS", "RUN_GROUP")]
    assert values == ["offline", folder, "policy,rookworld-nano", "grpo_nano"]
    ids = [os.environ.pop("WANDB_RUN_ID")]
    for resume in (True, False):
        configure_wandb(tmp_path, resume, [], None, None)
        ids.append(os.environ.pop("WANDB_RUN_ID"))
    assert ids[0] == ids[1] != ids[2], "a resumed run keeps its id"


@pytest.mark.parametrize("url", [None, "https://api.wandb.ai", DEFAULT_BASE_URL])
def test_with_a_key_or_a_login_in_netrc_it_is_online(tmp_path: Path, url: str | None) -> None:
    if url is None:
        os.environ["WANDB_API_KEY"] = "k" * 40
    else:
        netrc = tmp_path / "home" / ".netrc"
        netrc.parent.mkdir()
        netrc.write_text(f"machine {url.removeprefix('https://')} login user password secret\n")
        netrc.chmod(0o600)
    assert "online" in configure_wandb(tmp_path, False, [], None, None)
    assert "WANDB_MODE" not in os.environ
