"""The last line of a dry run: whether the recipe can run on this machine."""

from typing import Any

import pytest
from trl import ModelConfig

from rookworld_rlvr.cli import dry_run
from rookworld_rlvr.cli.dry_run import verdict

PROMPTS = ["P: 8/8/8/8/8/4k3/8/4K3 w - - 0 1"]


def said(model: str, tokens: int | None = 64, **options: Any) -> str:
    model_args = ModelConfig(model_name_or_path=model)
    found = verdict(model_args, PROMPTS, tokens, "3 steps", **options)
    assert found.is_refused == found.sentence.startswith("this recipe cannot run: ")
    return found.sentence


def test_it_says_what_would_run_and_how_it_is_started() -> None:
    start = "this recipe can run: 3 steps, on the CPU; "
    assert said("rookworld-nano") == f"{start}run the same command without --dry_run"
    warned = said("rookworld-nano", has_warnings=True)
    assert warned.startswith(f"{start}read the warnings above, then run the same command")
    assert "3 steps, on a GPU; " in said("rookworld-nano", on_gpu=True)


def test_it_says_why_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    too_long = said("rookworld-nano", tokens=2_000)
    assert too_long.startswith("this recipe cannot run: max_completion_length: 2000 tokens after")
    assert "can run: " in said("rookworld-nano", tokens=None), "a judge answers nothing"
    monkeypatch.setattr(dry_run, "reaches_hub", lambda name, revision: False)
    assert said("ann/big") == (
        "this recipe cannot run here yet: the model ann/big is on the Hub, which is not reached from "
        "here"
    )
    monkeypatch.setattr(dry_run, "reaches_hub", lambda name, revision: True)
    assert "; the model is fetched from the Hub first; run the same" in said("ann/big")
