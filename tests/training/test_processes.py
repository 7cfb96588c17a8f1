"""A recipe of each family on two processes, by DDP and by FSDP2, against one process."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import complete

from ..conftest import on_two, script, tiny_judge
from .families_on_two import FAMILIES, SHARDED, words
from .measured_on_two import main as measure
from .sampled_on_two import answers

pytestmark = pytest.mark.slow
HANG_S = 900


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase) -> Path:
    """`one`: two steps of each family on one process."""
    folder = tmp_path_factory.mktemp("families")
    tiny_judge(tokenizer).save_pretrained(folder / "judge")
    tokenizer.save_pretrained(folder / "judge")
    for family in FAMILIES:
        train(folder, "one", family, 2)
    return folder


@pytest.fixture(scope="module")
def ddp(runs: Path) -> Path:
    """`two`: four steps on two processes; `one_then_two`: the last two of them."""
    shutil.copytree(runs / "one", runs / "one_then_two")
    launched(runs, "ddp")
    return runs


@pytest.fixture(scope="module", params=SHARDED)
def sharded(request: pytest.FixtureRequest, runs: Path) -> Path:
    """`fsdp2` and `deepspeed_zero2`: four steps on two processes, resumed in the middle."""
    if request.param == "deepspeed_zero2":
        pytest.importorskip("deepspeed")
    launched(runs, request.param)
    return runs / request.param


def launched(folder: Path, layout: str) -> None:
    on_two("training.families_on_two", folder, layout, timeout=HANG_S)


def train(folder: Path, run: str, family: str, steps: int, resume: str = "false") -> str:
    done = script("grpo.py", *words(folder, run, family, steps, 1, resume), cwd=folder)
    return done.stdout


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def assert_run(folder: Path, run: str, family: str, is_plain: bool = True) -> None:
    """Four steps, each logged once, with one optimiser; before them the results of one process."""
    found = folder / run / family
    assert read(found / "heldout_before.json") == read(
        folder / "one" / family / "heldout_before.json"
    )
    logs = read(found / "trainer_state.json")["log_history"]
    assert [log["step"] for log in logs if "loss" in log] == [1, 2, 3, 4]
    if is_plain:
        moments = torch.load(found / "checkpoint-4" / "optimizer.pt", weights_only=True)["state"]
        assert {int(moment["step"]) for moment in moments.values()} == {4}, "not a new one"


def assert_alike(*runs: Path) -> None:
    """After training the 95% intervals overlap; each process draws samples of its own, so no more.

    This notices steps of another sign, or far too long. What AdamW hides, such as a gradient that is
    summed over processes, `parts/test_shared_prompts.py` compares by number.
    """
    found = [read(run / "results.json")["heldout"] for run in runs]
    for metric, ours in found[0].items():
        low, high = ours["interval_after"]
        for theirs in found[1:]:
            assert theirs[metric]["interval_after"][0] <= high, metric
            assert theirs[metric]["interval_after"][1] >= low, metric


def assert_answers(folder: Path, run: str, family: str) -> None:
    """One process answers the held-out rows with the saved weights as the processes did together."""
    found = folder / run / family
    rows = [json.loads(line) for line in (found / "heldout_answers_after.jsonl").open()]
    model = loading.load_model(str(found))
    tokenizer = loading.load_tokenizer(str(found))
    prompts = [row["prompt"] for row in rows]
    assert complete(model, tokenizer, prompts, max_new_tokens=48) == [r["completion"] for r in rows]


@pytest.mark.parametrize("family", FAMILIES)
def test_two_processes_train_as_one(ddp: Path, family: str) -> None:
    """With as many completions in a step."""
    assert_run(ddp, "two", family)
    assert_answers(ddp, "two", family)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_go_on_from_the_checkpoint_of_one(ddp: Path, family: str) -> None:
    assert_run(ddp, "one_then_two", family)
    assert_answers(ddp, "one_then_two", family)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_goes_on_from_the_checkpoint_of_two(ddp: Path, family: str) -> None:
    begun = ddp / "two_then_one" / family
    shutil.copytree(ddp / "two" / family, begun)
    shutil.rmtree(begun / "checkpoint-4")
    train(ddp, "two_then_one", family, 4, "true")
    assert_run(ddp, "two_then_one", family)
    assert_answers(ddp, "two_then_one", family)
    assert_alike(*(ddp / run / family for run in ("two", "one_then_two", "two_then_one")))


@pytest.mark.parametrize("family", FAMILIES)
def test_two_processes_shard_and_go_on(sharded: Path, family: str) -> None:
    if family not in SHARDED[sharded.name]:
        pytest.skip("refused")
    assert_run(sharded.parent, sharded.name, family, is_plain=False)
    assert_answers(sharded.parent, sharded.name, family)


def test_sharded_processes_sample_apart(tmp_path: Path) -> None:
    """The first has three batches and the second one; a hang ends in TimeoutExpired."""
    model = loading.load_model(loading.PACKAGED_MODEL)
    for rank, found in enumerate(on_two("training.sampled_on_two", tmp_path)):
        assert found["answers"] == answers(model, rank)
        assert found["after"] == found["before"], "sharded again"
        assert found["after"][0] * 2 == model.transformer.h[0].mlp.c_fc.weight.size(0)


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    one = json.loads(json.dumps(measure(tmp_path)))
    assert on_two("training.measured_on_two", tmp_path) == [one, one]
    counts = [count for found in one["right"].values() for count in found]
    assert any(0 < count < 16 for count in counts)
