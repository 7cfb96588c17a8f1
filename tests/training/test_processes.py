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

from ..support import history, on_two, script, tiny_judge
from .families_on_two import FAMILIES, SHARDED, words
from .measured_on_two import main as measure
from .sampled_on_two import answers

pytestmark = pytest.mark.slow
HANG_S = 900


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase) -> Path:
    """`one`: two steps of each family on one process."""
    folder = tmp_path_factory.mktemp("families")
    for part in (tiny_judge(tokenizer), tokenizer):
        part.save_pretrained(folder / "judge")
    for family in FAMILIES:
        script("grpo.py", *words(folder, "one", family, 2), cwd=folder)
    return folder


@pytest.fixture(scope="module")
def ddp(runs: Path) -> Path:
    """`two`: four steps on two processes; `one_then_two`: the last two of them."""
    shutil.copytree(runs / "one", runs / "one_then_two")
    on_two("training.families_on_two", runs, "ddp", timeout=HANG_S)
    return runs


@pytest.fixture(scope="module", params=SHARDED)
def sharded(request: pytest.FixtureRequest, runs: Path) -> Path:
    """`fsdp2` and `deepspeed_zero2`: four steps on two processes, resumed in the middle."""
    if request.param == "deepspeed_zero2":
        pytest.importorskip("deepspeed")
    on_two("training.families_on_two", runs, request.param, timeout=HANG_S)
    return runs / request.param


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def assert_run(found: Path, is_plain: bool = True) -> None:
    """Four steps, each logged once, with one optimiser; before them the results of one process.

    One process answers the held-out rows with the saved weights as the processes did together.
    """
    of_one = found.parents[1] / "one" / found.name
    assert read(found / "heldout_before.json") == read(of_one / "heldout_before.json")
    assert [log["step"] for log in history(found) if "loss" in log] == [1, 2, 3, 4]
    if is_plain:
        moments = torch.load(found / "checkpoint-4" / "optimizer.pt", weights_only=True)["state"]
        assert {int(moment["step"]) for moment in moments.values()} == {4}, "not a new one"
    rows = [json.loads(line) for line in (found / "heldout_answers_after.jsonl").open()]
    parts = loading.load_model(str(found)), loading.load_tokenizer(str(found))
    answered = complete(*parts, [row["prompt"] for row in rows], max_new_tokens=48)
    assert answered == [row["completion"] for row in rows]


@pytest.mark.parametrize("family", FAMILIES)
def test_two_processes_train_as_one_and_go_on_from_it(ddp: Path, family: str) -> None:
    """With as many completions in a step. After training the 95% intervals overlap.

    Each process draws samples of its own: this notices steps of another sign, or far too long. What
    AdamW hides, such as a sum of gradients, `test_scoring.py` compares by number.
    """
    begun = ddp / "two_then_one" / family
    shutil.copytree(ddp / "two" / family, begun)
    shutil.rmtree(begun / "checkpoint-4")
    script("grpo.py", *words(ddp, "two_then_one", family, 4, resume="true"), cwd=ddp)
    runs = [ddp / name / family for name in ("two", "one_then_two", "two_then_one")]
    for run in runs:
        assert_run(run)
    ours, *others = (read(run / "results.json")["heldout"] for run in runs)
    for metric, (low, high) in ((name, found["interval_after"]) for name, found in ours.items()):
        for theirs in (other[metric]["interval_after"] for other in others):
            assert theirs[0] <= high and theirs[1] >= low, metric


@pytest.mark.parametrize("family", FAMILIES)
def test_two_processes_shard_and_go_on(sharded: Path, family: str) -> None:
    if family not in SHARDED[sharded.name]:
        pytest.skip("refused")
    assert_run(sharded / family, is_plain=False)


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
