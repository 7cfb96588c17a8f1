"""Real parts, small: the packaged data and tokenizer, and a GPT-2 with random weights."""

import contextlib
import copy
import gc
import importlib
import io
import json
import os
import runpy
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    PreTrainedTokenizerBase,
)
from trl import GRPOTrainer

from rookworld_rlvr.common import machine
from rookworld_rlvr.common.errors import EngineError
from rookworld_rlvr.data.loading import DataArguments, LoadedData, load_data
from rookworld_rlvr.engine.pool import find_engine
from rookworld_rlvr.models import loading
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.training import preflight
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.rollouts import in_rows
from rookworld_rlvr.training.scoring import Scores
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

from . import killed
from .browser import Browser
from .on_two import run as run_on_two

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for what is started from here: bytes depend on it
machine.SECONDS = 0.01  # for which a script watches the cores as it starts

REPOSITORY = Path(__file__).parents[1]
RECIPES = REPOSITORY / "recipes"
REAL_DATA = REPOSITORY.parent / "shared" / "data"
Done = subprocess.CompletedProcess[str]
REWARDS = [{"name": "environment_exact"}, {"name": "environment_state"}, {"name": "graduated"}]


@pytest.fixture(scope="session", autouse=True)
def _nothing_kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests keep stays theirs: parsed rows are for all of them, an engine's values for none."""
    kept = tmp_path_factory.getbasetemp()
    kept = kept.parent if "PYTEST_XDIST_WORKER" in os.environ else kept
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", kept / "cache")
        patch.setattr("rookworld_rlvr.data.loading.WORTH_KEEPING", 1)
        gc.freeze()  # each run of a trainer collects garbage, half a second with all that was imported
        killed.serve()  # a script that is forked keeps an engine's values in its own folder
        patch.setattr("rookworld_rlvr.engine.labeller.default_cache_path", lambda: ":memory:")
        yield


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reaches W&B as the person who runs it."""
    for name in ("WANDB_API_KEY", "WANDB_RUN_ID", "WANDB_DIR", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def stockfish() -> str:
    """The engine's path. CI installs it, and does not let what needs it be skipped."""
    try:
        return find_engine()
    except EngineError as error:
        if os.environ.get("ROOKWORLD_REQUIRE_ENGINE"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """CI installs a browser and its driver, and does not let what needs them be skipped."""
    chromium = shutil.which(os.environ.get("CHROMIUM_PATH", "chromium"))
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        if os.environ.get("ROOKWORLD_REQUIRE_BROWSER"):
            raise FileNotFoundError("no chromium or no chromedriver on the PATH")
        pytest.skip("no chromium or no chromedriver (apt-get install chromium chromium-driver)")
    opened = Browser(chromium, driver)
    yield opened
    opened.driver.quit()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with rows and answers of RookWorld-LM's owner, which are not part of this repository."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"no real data in {REAL_DATA}")
    return REAL_DATA


def recipe(name: str) -> Any:
    """A script of `recipes/` as a module: in this process it starts at once."""
    sys.path.insert(0, str(RECIPES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def script(name: str, *argv: str, cwd: Path, code: int | None = 0) -> Done:
    """A script of `recipes/` run as a user runs it, in this process, where all is imported already.

    An exception that it lets through is raised: what a user would see as a traceback. It must end with
    the exit code that is given; None stands for any.
    """
    out, err = io.StringIO(), io.StringIO()
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            patch.chdir(cwd)
            patch.setattr(preflight, "PREFLIGHT_ROWS", 4)
            patch.setattr(sys, "argv", [str(RECIPES / name), *argv])
            patch.setattr(sys, "path", [str(RECIPES), *sys.path])
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(str(RECIPES / name), run_name="__main__")
    finally:
        signal.signal(signal.SIGTERM, on_sigterm)
    assert isinstance(ended.value.code, int)
    return checked(Done([name, *argv], ended.value.code, out.getvalue(), err.getvalue()), code)


def checked(done: Done, code: int | None) -> Done:
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert code in (None, done.returncode), said
    assert code != 2 or "Traceback" not in done.stderr, said
    return done


def ran(*command: str, code: int | None = 0, **options: Any) -> Done:
    """A command in a process of its own, on one core; see `script` for its exit code."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    usual = {"env": env, "capture_output": True, "text": True, "check": False}
    return checked(subprocess.run(command, **{**usual, **options}), code)


def started(*command: str, **options: Any) -> Any:
    """A command that goes on in a process of its own, on one core: its `Popen`, with text."""
    usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=env, **{**usual, **options})


def on_two(name: str, folder: Path, *words: str, timeout: float = 240) -> list[Any]:
    """What `main` of a module of tests gives on each of two processes, forked as if launched."""
    codes, said = forked_two(
        folder, run_on_two, [f"tests.{name}", str(folder), *words], timeout=timeout
    )
    assert codes == [0, 0], (codes, said[-3000:])
    return [json.loads((folder / f"process{rank}.json").read_text()) for rank in range(2)]


def script_on_two(name: str, *argv: str, cwd: Path, code: int = 0) -> str:
    """What a script of `recipes/` prints on two processes, forked as if launched."""
    codes, said = forked_two(cwd, killed.run_script, name, argv, str(cwd), None)
    assert codes == [code, code] and (code != 2 or "Traceback" not in said), (codes, said[-3000:])
    return said


def forked_two(
    folder: Path, target: Callable[..., None], *args: Any, timeout: float = 240
) -> tuple[list[int | None], str]:
    """Run a function in two processes, with a launcher's variables; exit codes, and what they print."""
    store = TCPStore("127.0.0.1", 0, is_master=True)
    logs = [folder / f"process{rank}.log" for rank in range(2)]
    processes = [
        killed.forked(log, target, *args, **killed.launched(store.port, rank))
        for rank, log in enumerate(logs)
    ]
    ends = time.monotonic() + timeout
    try:
        for process in processes:
            process.join(max(0.0, ends - time.monotonic()))
        codes = [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
    said = "".join(log.read_text(errors="replace") for log in logs if log.is_file())
    assert None not in codes, f"it hangs: {said[-3000:]}"
    return codes, said


@pytest.fixture(scope="session")
def packaged() -> LoadedData:
    return load_data(DataArguments(heldout_rows=60))


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return loading.load_tokenizer(loading.PACKAGED_MODEL)


@pytest.fixture
def random_gpt2(tokenizer: PreTrainedTokenizerBase) -> GPT2LMHeadModel:
    """Random weights, and GPT2Config's dropout of 0.1 as llm.c's exporter leaves it."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_layer=2,
            n_embd=32,
            n_head=2,
            n_positions=256,
            initializer_range=0.2,  # far from uniform, so that a wrong position shows
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


@pytest.fixture
def start(random_gpt2: GPT2LMHeadModel, tokenizer: Any, tmp_path: Path) -> str:
    """A folder with that model: a reference is loaded from where the policy came from."""
    for part in (random_gpt2, tokenizer):
        part.save_pretrained(tmp_path / "start")
    return str(tmp_path / "start")


def tiny_judge(tokenizer: PreTrainedTokenizerBase, **config: Any) -> GPT2ForSequenceClassification:
    """A one-score classifier with random weights, far from uniform; keywords change its shape."""
    torch.manual_seed(0)
    ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    shape = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 256, "num_labels": 1}
    config = {"initializer_range": 0.5, **ids, **shape, **config}
    return GPT2ForSequenceClassification(GPT2Config(**config))


ON_CPU: dict[str, Any] = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}
ON_CPU |= {"report_to": [], "disable_tqdm": True}
"""Keys of a trainer that runs quietly on the CPU."""

NOT_KEPT: dict[str, Any] = {**ON_CPU, "logging_steps": 1, "eval_steps": 100}
NOT_KEPT |= {"save_strategy": "no", "load_best_model_at_end": False}
"""Keys of a few steps that are looked at, and of which nothing is saved."""


class Means(dict[str, float]):
    """What TRL makes of the metrics that a reward logs: the mean of each."""

    def __init__(self) -> None:
        self._given: dict[str, list[float]] = {}

    def log(self, name: str, value: float) -> None:
        self._given.setdefault(name, []).append(value)
        self[name] = statistics.mean(self._given[name])

    def clear(self) -> None:
        super().clear()
        self._given.clear()


def packaged_trainer(args: Any, reward_funcs: Any, data: LoadedData, train_dataset: Dataset) -> Any:
    """A trainer of the packaged model, outside of pytest's fixtures too."""
    return RookWorldGRPOTrainer(
        loading.load_model(loading.PACKAGED_MODEL),
        reward_funcs,
        args,
        train_dataset=train_dataset,
        eval_dataset=data.heldout,
        processing_class=loading.load_tokenizer(loading.PACKAGED_MODEL),
    )


@pytest.fixture
def make_trainer(tmp_path: Path, packaged: LoadedData) -> Callable[..., GRPOTrainer]:
    """Build a trainer on mixed rows; keywords go to the configuration, `kind` picks the class.

    Functions that are given as rewards have the weight 1 each.
    """

    def make(model: Any, tokenizer: Any, kind: Any = RookWorldGRPOTrainer, **options: Any) -> Any:
        funcs = options.pop("reward_funcs", None)
        defaults = {
            "output_dir": str(tmp_path / "run"),
            "rewards": REWARDS[: len(funcs or REWARDS)],
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 16,
            "num_generations": 4,
            "max_completion_length": 24,
            "max_steps": 1,
            "log_completions": False,
            **ON_CPU,
        }
        return kind(
            model=model,
            reward_funcs=funcs or get_reward_funcs(options.get("rewards", REWARDS)),
            train_dataset=options.pop("train_dataset", None) or mixed_rows(packaged.train),
            eval_dataset=options.pop("eval_dataset", None) or mixed_rows(packaged.heldout, each=8),
            processing_class=tokenizer,
            peft_config=options.pop("peft_config", None),
            args=RookWorldGRPOConfig(**{**defaults, **options}),
        )

    return make


@pytest.fixture
def build(make_trainer: Any, random_gpt2: GPT2LMHeadModel, tokenizer: Any) -> Callable[..., Any]:
    """As `make_trainer`, of a copy of the model with random weights unless another is given."""
    return lambda model=None, **options: make_trainer(
        model or copy.deepcopy(random_gpt2), tokenizer, **options
    )


def history(run: Path | str) -> list[dict[str, Any]]:
    return json.loads(Path(run, "trainer_state.json").read_text())["log_history"]


def first_batch(trainer: Any) -> dict[str, Any]:
    """The first micro-batch, as rows."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return in_rows(trainer._prepare_inputs(next(iter(trainer.get_train_dataloader()))))


def sampled(trainer: Any, rows: list[Any]) -> dict[str, Any]:
    """A batch of rows, with the completions of a group together."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    return in_rows(trainer._generate_and_score_completions(rows))


@dataclass
class Loss:
    """The loss of a micro-batch: the sum of its terms, which have their graphs."""

    total: torch.Tensor
    terms: dict[str, torch.Tensor]
    scores: Scores


def loss_of(trainer: Any, batch: dict[str, Any]) -> Loss:
    scores = trainer.scores_of(trainer.model, batch)
    terms = trainer.terms(trainer.model, batch, scores)
    return Loss(torch.stack([*terms.values()]).sum(), terms, scores)


def mixed_rows(rows: Dataset, each: int = 16, tasks: Any = ("environment", "policy")) -> Dataset:
    """Rows of the tasks in turn: prompts of different lengths in every batch."""
    column = rows["task"][:]  # as a list: to go through a column of a data set takes a second
    of_task = [[i for i, name in enumerate(column) if name == task][:each] for task in tasks]
    return rows.select([index for turn in zip(*of_task, strict=True) for index in turn])


def constant(completions: list[str], **columns: Any) -> list[float]:
    return [0.0] * len(completions)


@pytest.fixture
def made(build: Callable[..., Any], packaged: LoadedData) -> Callable[..., Any]:
    """A trainer of the packaged model whose rewards teach nothing."""
    rows = mixed_rows(packaged.train, each=8)
    defaults = {"rewards": None, "reward_funcs": [constant], "train_dataset": rows, **NOT_KEPT}
    defaults |= {"max_completion_length": 64, "num_generations": 2}
    return lambda **options: build(
        loading.load_model(loading.PACKAGED_MODEL), **{**defaults, **options}
    )
