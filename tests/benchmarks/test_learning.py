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
