"""The comparison of ways of learning: each of its runs is a valid recipe, and what it measures."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.cli import checks
from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.models import loading

from ..conftest import recipe
from .test_gpu import benchmark

learning = benchmark("learning")
RUNS = [
    (start, method)
    for method, way in learning.METHODS.items()
    for start in learning.STARTS
    if start in way.steps
]


@pytest.mark.parametrize(("start", "method"), RUNS)
def test_each_run_is_a_valid_recipe(
    start: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def run(command: list[str], **_: Any) -> None:
        script, config = Path(command[1]).stem, command[3]
        module = recipe("sft" if script == "sft" else "grpo")
        check = checks.check_sft_recipe if script == "sft" else checks.check_recipe
        parser = StrictParser(module.GROUPS, module.RECIPE)
        parser.parse_strictly(["--config", config, "--use_cpu", "true"], check)
        shutil.copytree(
            loading.resolve_model_path(loading.PACKAGED_MODEL), parser.values["output_dir"]
        )
        ran.append(parser.values)

    monkeypatch.setattr(learning, "made", lambda *_: loading.PACKAGED_MODEL)
    monkeypatch.setattr(learning.subprocess, "run", run)
    way = learning.METHODS[method]
    folder, _ = learning.trained(start, method, 7, tmp_path)
    values = ran[-1]
    assert values["seed"] == 7 and values["max_steps"] == way.steps[start]
    assert values["output_dir"] == str(folder) and (folder / "seconds.json").is_file()
    assert way.supervised or all(values[key] == option for key, option in way.options.items())
    learning.trained(start, method, 7, tmp_path)
    assert len(ran) == (2 if way.after else 1), "a finished run is not repeated"


@pytest.mark.parametrize("start", ["hole", "openings"])
def test_what_is_measured(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = learning.heldout(start)
    few = [row for task in ("environment", "policy") for row in rows if row["task"] == task][:3]
    few += [row for row in rows if row["task"] == "policy"][:3]
    monkeypatch.setattr(learning, "heldout", lambda name: few)
    plies = list(learning.first_plies())[::20]  # some are held out
    monkeypatch.setattr(learning, "first_plies", lambda: plies)
    packaged = loading.resolve_model_path(loading.PACKAGED_MODEL)
    measurer = learning.Measurer(start, packaged, pass_samples=2)
    found = measurer.measure(packaged)
    assert list(found["shares"]) == list(learning.STARTS[start].measures)
    assert all(0 <= right <= n and n for right, n in found["shares"].values())
    assert max(map(abs, found["kl"].values())) < 1e-6, "the model is its own start"
    assert list(found["pass"]) == ["greedy", "pass@1", "pass@2"]
    cells = learning.line("start", "-", "-", found).split(" | ")
    assert len(cells) == 4 + len(found["shares"])
