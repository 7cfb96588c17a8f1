"""What comes from outside runs nothing, and what a run writes shows no secret and can be read."""

import contextlib
import json
import os
import pickle
import random
import shutil
import stat
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.data.loading import LoadedData
from rookworld_rlvr.diagnosis.phases import run_diagnosis
from rookworld_rlvr.diagnosis.report import page as diagnosis_page
from rookworld_rlvr.diagnosis.report import print_report, write_reports
from rookworld_rlvr.inference import analyse
from rookworld_rlvr.inference.model import RookWorld
from rookworld_rlvr.models import loading
from rookworld_rlvr.reports.page import page
from rookworld_rlvr.reports.record import read_runs
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.results import RESOLVED_CONFIG
from rookworld_rlvr.training.run_folder import open_weights, resume_point
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

from ..browser import Browser
from ..rows import write_jsonl
from ..support import NOT_KEPT, RECIPES, REWARDS, mixed_rows, script
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


NASTY = [
    "</script><script>window.ran=1</script>",
    "<img src=x onerror=window.ran=1>",
    "</style><style>*{display:none}</style>",
    "</title><svg onload=window.ran=1>",
    "--><!--",
    "]]><![CDATA[",
    '" onmouseover="window.ran=1" x=\'',
    "' autofocus onfocus='window.ran=1",
    "` onclick=window.ran=1 `",
    "javascript:window.ran=1",
    "&lt;b&gt; &#60;i&#62; &amp",
    "{{ 7 * 7 }} {% raw %} {0.__class__} %s %(x)s",
    "a\u2028b\u2029c",
    "nul\0here",
    "\x1b[2J\x1b]0;title\x07\x9b31m",
    "\u202edesrever\u2066\u200b\ufeff",
    "lone \ud800 surrogate \udfff",
    "e1g1 \U0001f600 ♔ ﷽" + "\u0301" * 40,
]
LETTERS = "<>\"'&=/;:{}%\\`!-[]() \n\t\0\x1b\u202e\ud83d" + "abrsxscriptonloadsvg"


def nasty() -> list[str]:
    """The words in threes, one of which `javascript:` begins; all in one; and random ones."""
    draw = random.Random(0)
    drawn = ["".join(draw.choices(LETTERS, k=draw.randint(1, 60))) for _ in range(5)]
    threes = [" ".join(NASTY[place : place + 3]) for place in range(0, len(NASTY), 3)]
    return [*threes, " ".join(NASTY), *drawn]


class Outline(HTMLParser):
    """Every element with the names of its attributes, and the values of those that mean something."""

    telling = ("class", "id", "href", "style", "http-equiv", "content")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[tuple[str, ...]] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add((tag, *sorted(name for name, _ in attrs)))
        self.found |= {(tag, name, str(value)) for name, value in attrs if name in self.telling}

    def handle_comment(self, data: str) -> None:
        self.found.add(("no element", data))

    handle_decl = unknown_decl = handle_pi = handle_comment  # type: ignore[assignment]


def run_of(word: str, run: Path, target: Path) -> Path:
    """A run's folder with a word wherever a text comes from a model, a file or a user."""
    shutil.copytree(run, target, ignore=shutil.ignore_patterns("checkpoint-*", "*.safetensors"))
    for when, completion in (("before", word), ("after", f"x {word}")):
        path = target / f"heldout_answers_{when}.jsonl"
        first = {row["task"]: row for row in map(json.loads, path.read_text().splitlines()[::-1])}
        write_jsonl(path, [{**r, "completion": completion, "prompt": word} for r in first.values()])
    finding = {"step": 1, "severity": "warning", "rule": word, "message": f"`{word}` {word}"}
    write_jsonl(target / "health.jsonl", [finding])
    names = ("provenance", "results", "trainer_state")
    told, results, state = (json.loads((target / f"{name}.json").read_text()) for name in names)
    told["sessions"][-1]["data"]["values"] = word
    told["sessions"][-1] |= {**dict.fromkeys(("command", "platform", "commit"), word)}
    told["sessions"][-1] |= {"devices": [word], "versions": {word: word}}
    results["heldout"][f"environment/{word}"] = next(iter(results["heldout"].values()))
    results["preflight"] = {word: 0.1}
    for logs in state["log_history"]:
        logs |= {f"eval_environment/{word}": 0.5, f"rewards/{word}/mean": 0.5}
    metrics = {word: {"value": 0.5, "low": 0.4, "high": 0.6, "n": 5}}
    suite = {"version": 1, "n": 5, "seed": 0, "decoding": {"name": word}, "metrics": metrics}
    evaluation = {"schema_version": 1, "model": word, "suites": {word: suite}, "compared": []}
    evaluation["left_out"] = {word: word}
    contents = (told, results, state, evaluation)
    for name, content in zip((*names, "evaluation"), contents, strict=True):
        (target / f"{name}.json").write_text(json.dumps(content))
    config = yaml.safe_load((target / "resolved_config.yaml").read_text())
    config |= {"dataset_name": word, "model_name_or_path": word, "tasks_from": [word], word: word}
    config["rewards"] = [{"name": word, "weight": 1, "of": word}]
    (target / "resolved_config.yaml").write_text(json.dumps(config))
    return target


def run_page(word: str, run: Path, target: Path) -> str:
    (record,) = read_runs([str(run_of(word, run, target))])
    record.name = word
    return str(page([record]))  # as Markup, it would escape what is added


def test_a_report_shows_texts_as_texts(run: Path, tmp_path: Path) -> None:
    harmless = Outline(run_page("harmless words", run, tmp_path / "harmless")).found
    assert len(harmless) > 60 and ("mark", "title") in harmless
    for place, word in enumerate(nasty()):
        drawn = run_page(word, run, tmp_path / str(place))
        assert Outline(drawn).found <= harmless, repr(word)
        assert drawn.encode(errors="backslashreplace")


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


def test_browsers_run_nothing(browser: Browser, run: Path, diagnosis: Any, tmp_path: Path) -> None:
    word = " ".join(NASTY)
    pages = {"run": run_page(word, run, tmp_path / "planted")}
    pages["diagnosis"] = str(diagnosis_page(texts(diagnosis, word)))
    for name, drawn in pages.items():
        path = tmp_path / f"{name}.html"
        path.write_text(drawn, errors="backslashreplace")
        browser.console()
        browser.open(path)
        browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert browser.console() == [], "our own style is allowed"
        assert browser.ask("return window.ran") is None
        assert browser.ask("return document.querySelectorAll('script, img, [style]').length") == 0
        # What if a text were not escaped?
        path.write_text(drawn.replace("</body>", f"{NASTY[0]}{NASTY[1]}</body>"), errors="replace")
        browser.open(path)
        assert browser.ask("return window.ran") is None
        said = browser.console()
        assert said and all("Content Security Policy" in line for line in said)


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
