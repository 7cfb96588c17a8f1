"""What comes from outside runs nothing, and what a run writes shows no secret and can be read."""

import contextlib
import os
import pickle
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.inference import analyse
from rookworld_rlvr.inference.model import RookWorld
from rookworld_rlvr.training.results import RESOLVED_CONFIG
from rookworld_rlvr.training.run_folder import open_weights, resume_point

from ..support import NOT_KEPT, RECIPES, script
from .test_recipes import run_apart

TOKENS = {"HF_TOKEN": "hf_" + "p1anted" * 5, "WANDB_API_KEY": "p1anted0" * 5}
SMALL = """
    --max_rows 300 --synthetic_rows 30 --heldout_rows 3 --max_steps 1
    --per_device_train_batch_size 8 --use_cpu --save_steps 1 --output_dir run
""".split()
GRPO = """
    --num_generations 4 --max_completion_length 8 --logging_steps 1 --eval_steps 1 --preflight false
    --bf16 false --report_to none --advantage_estimator gae
""".split()


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        assert os.umask(before) == mask, "it is set as it was"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a value head, under the usual umask and with tokens set; `printed.txt` is beside it."""
    folder = tmp_path_factory.mktemp("run")
    with umask(0o022), pytest.MonkeyPatch.context() as patch:
        for name, token in TOKENS.items():
            patch.setenv(name, token)
        done = script("grpo.py", *SMALL, *GRPO, cwd=folder)
    (folder / "printed.txt").write_text(done.stdout + done.stderr)
    return folder / "run"


def private(folder: Path) -> list[str]:
    """Files and folders that the usual umask would not have given these permissions."""
    return [
        f"{path.relative_to(folder)} {stat.S_IMODE(path.stat().st_mode):o}"
        for path in folder.rglob("*")
        if stat.S_IMODE(path.stat().st_mode) != (0o755 if path.is_dir() else 0o644)
    ]


def assert_no_token_in(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    for token in TOKENS.values():
        assert [path for path in files if token.encode() in path.read_bytes()] == []


def test_what_a_run_writes_can_be_read_by_others_runs_nothing_and_has_no_token(run: Path) -> None:
    assert (run.parent / "printed.txt").read_text()
    assert_no_token_in(run.parent)
    weights = {str(path.relative_to(run)) for path in run.rglob("*.safetensors")}
    assert weights >= {"model.safetensors", "checkpoint-1/value_head.safetensors"}
    assert private(run) == []
    assert list(run.rglob("training_args.bin")) == [], "pickled"
    assert [path for path in run.iterdir() if path.suffix in (".bin", ".pt", ".pkl")] == []


@pytest.mark.slow
def test_adapters_can_be_read_by_others(tmp_path: Path) -> None:
    words = f"--config {RECIPES}/sft_fill_in.yaml --synthetic_fill_in_rows 60 --report_to none"
    words += " --use_peft --lora_r 2 --lora_target_modules c_attn c_fc"
    with umask(0o022):
        script("sft.py", *words.split(), *SMALL, cwd=tmp_path)
    weights = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.safetensors")}
    assert weights >= {"run/model.safetensors", "run/adapter/adapter_model.safetensors"}
    assert private(tmp_path) == []


def test_a_strict_umask_is_kept_to(run: Path, tmp_path: Path) -> None:
    shutil.copy(run / "model.safetensors", tmp_path)
    with umask(0o027):
        open_weights(tmp_path)
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) == 0o640


@pytest.mark.slow
def test_tokens_are_not_in_the_files_of_wandb_either(tmp_path: Path, monkeypatch: Any) -> None:
    for name, token in {**TOKENS, "WANDB_MODE": "offline"}.items():
        monkeypatch.setenv(name, token)
    run_apart("grpo.py", *SMALL, *GRPO, "--report_to", "wandb", cwd=tmp_path)  # prints into a file
    (log,) = tmp_path.glob("run/wandb/offline-run-*/*.wandb")
    assert b"--advantage_estimator" in log.read_bytes(), "W&B writes the command down"
    assert_no_token_in(tmp_path)


@pytest.mark.parametrize("where", ["line", "yaml"])
def test_a_token_as_a_key_is_refused_and_not_repeated(where: str, tmp_path: Path) -> None:
    words = ["--hub_token", TOKENS["HF_TOKEN"]]
    if where == "yaml":
        (tmp_path / "recipe.yaml").write_text(f"hub_token: {TOKENS['HF_TOKEN']}\n")
        words = ["--config", "recipe.yaml"]
    done = script("grpo.py", *words, *SMALL, *GRPO, cwd=tmp_path, code=2)
    assert "hub_token: it would be written" in done.stderr
    assert "p1anted" not in done.stdout + done.stderr and not (tmp_path / "run").exists()


class Bomb:
    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.made,)


def plant(path: Path, made: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(Bomb(made)))
    pickle.loads(path.read_bytes())
    assert made.exists(), "the bomb works"
    made.unlink()


@pytest.mark.parametrize("name", ["optimizer.pt", "rng_state.pth"])
def test_a_state_that_runs_code_is_not_run(name: str, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    plant(tmp_path / "run" / "checkpoint-1" / name, tmp_path / "ran")
    words = [*SMALL, *GRPO, "--max_steps", "2", "--resume_from_checkpoint", "true"]
    with contextlib.suppress(pickle.UnpicklingError):  # how it ends is another matter
        assert script("grpo.py", *words, cwd=tmp_path, code=None).returncode
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["pytorch_model_fsdp_0/.metadata", "global_step1/states.pt"])
def test_a_sharded_checkpoint_stays_in_its_run(name: str, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoint-1"
    (folder / name).parent.mkdir()
    (folder / name).touch()
    resolved = (run / RESOLVED_CONFIG).read_text()
    assert resume_point(str(folder), tmp_path / "run", resolved) == folder
    with pytest.raises(RookWorldError, match=r"is sharded.*move it into"):
        resume_point(str(folder), tmp_path / "other", resolved)


def test_an_answer_cannot_drive_the_terminal(monkeypatch: Any, capsys: Any) -> None:
    answer = "\x1b[2J\x9b31m\u202e M: e2e4\r"
    monkeypatch.setattr(RookWorld, "complete", lambda self, prompts: [answer] * len(prompts))
    for words in ([], ["--move", "e2e4"]):
        assert analyse.main(words) == 0
        out = capsys.readouterr().out
        assert not set(out) & set("\x1b\x9b\r\u202e") and "\\u001b[2J" in out


def test_trls_table_cannot(build: Any, tokenizer: Any, monkeypatch: Any, capsys: Any) -> None:
    text = "\x1b[2J"
    monkeypatch.setattr(type(tokenizer), "batch_decode", lambda self, ids, **_: [text] * len(ids))
    monkeypatch.setenv("COLUMNS", "1000")  # so that no cell is broken
    usual = {**NOT_KEPT, "eval_strategy": "no", "preflight": False}
    build(**usual, log_completions=True, num_completions_to_print=2).train()
    printed = capsys.readouterr().out
    assert "\\u001b[2J" in printed.replace("\n", "") and "\x1b[2J" not in printed
