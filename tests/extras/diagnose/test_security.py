"""A diagnosis shows what comes from a model, a file or a user as text."""

from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.data.loading import LoadedData
from rookworld_rlvr.extras.diagnose.phases import run_diagnosis
from rookworld_rlvr.extras.diagnose.report import page as diagnosis_page
from rookworld_rlvr.extras.diagnose.report import print_report, write_reports
from rookworld_rlvr.models import loading
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

from ...browser import Browser
from ...nasty import NASTY, Outline, assert_runs_nothing, nasty
from ...support import NOT_KEPT, REWARDS, mixed_rows


def texts(value: Any, word: str, is_free: bool = False) -> Any:
    """A diagnosis with a word in place of its prompts, completions, tokens, names and messages."""
    free = {"text", "prompt", "message", "verdict", "why", "recipe", "model", "tokens"}
    if isinstance(value, dict):
        return {key: texts(item, word, key in free) for key, item in value.items()}
    if isinstance(value, list):
        return [texts(item, word, is_free) for item in value]
    return word if is_free and isinstance(value, str) else value


@pytest.fixture(scope="module")
def diagnosis(packaged: LoadedData, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = str(tmp_path_factory.mktemp("diagnosis"))
    options = {"max_completion_length": 8, "num_generations": 2, "per_device_train_batch_size": 4}
    options |= {**NOT_KEPT, "eval_strategy": "no", "preflight": False, "max_steps": 1}
    trainer = RookWorldGRPOTrainer(
        loading.load_model(loading.PACKAGED_MODEL),
        get_reward_funcs(REWARDS),
        RookWorldGRPOConfig(output_dir=folder, rewards=REWARDS, **options),
        train_dataset=mixed_rows(packaged.train),
        eval_dataset=packaged.heldout,
        processing_class=loading.load_tokenizer(loading.PACKAGED_MODEL),
    )
    return run_diagnosis(trainer, "recipe")


def test_a_diagnosis_shows_texts(diagnosis: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    harmless = Outline(diagnosis_page(texts(diagnosis, "harmless words"))).found
    assert len(harmless) > 40
    for word in nasty():
        planted = texts(diagnosis, word)
        assert Outline(diagnosis_page(planted)).found <= harmless, repr(word)
        assert all(path.is_file() for path in write_reports(tmp_path, planted))
        print_report(planted)
    printed = capsys.readouterr().out
    assert not set(printed) & set("\x1b\x9b\x07\0\r\u202e\u2028") and "\\u001b[2J" in printed


def test_browsers_run_nothing(browser: Browser, diagnosis: Any, tmp_path: Path) -> None:
    drawn = str(diagnosis_page(texts(diagnosis, " ".join(NASTY))))
    assert_runs_nothing(browser, drawn, tmp_path / "diagnosis.html")
