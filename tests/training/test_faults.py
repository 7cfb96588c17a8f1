"""An exception on one of two processes ends both; a run with failing rewards and engines learns."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from accelerate.utils.other import get_free_port

from rookworld_rlvr.data.parsing import raw_rows
from rookworld_rlvr.data.sources import SourceArguments

from ..recipes.test_recipes import SMALL
from ..support import REPOSITORY, forked_two, history, started
from . import faults_on_two, soak_on_two

LAUNCH = "import sys, rookworld_rlvr.cli.main as cli; raise SystemExit(cli.launch(sys.argv[1:]))"
PLANTED = ["--module", "tests.training.faults_on_two"]
STEPS = 200
KEYS = f"""
    --max_steps {STEPS} --eval_steps {STEPS} --save_steps {STEPS} --logging_steps 1
    --per_device_train_batch_size {soak_on_two.ROWS} --num_generations {soak_on_two.ROWS // 2}
    --task_shares {{"environment":0.5,"policy":0.5}} --heldout_rows 100
    --labels stored_or_engine --engine_depth 2 --engine_cache :memory:
    --resume_from_checkpoint auto --report_to none
""".split()


def start(*words: str) -> subprocess.Popen[str]:
    """The launcher, as the command `rookworld` starts it, with an exception planted."""
    config = str(REPOSITORY / "accelerate_configs" / "cpu.yaml")
    options = ["--config_file", config, "--num_processes", "2", *words]
    return started(sys.executable, "-c", LAUNCH, *options, cwd=REPOSITORY)


def end(*launchers: subprocess.Popen[str]) -> list[str]:
    """What was printed to stderr; a hang ends in `TimeoutExpired`."""
    try:
        return [launcher.communicate(timeout=240)[1] for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "rank"),
    [("sampling", 1), ("reward", 0), ("loss", 1), ("evaluation", 0), ("saving", 0), ("saving", 1)],
)
def test_an_exception_on_one_process_ends_both(place: str, rank: int, tmp_path: Path) -> None:
    words = [place, str(rank), *SMALL, "--max_steps", "4", "--output_dir", str(tmp_path / "run")]
    codes, said = forked_two(tmp_path, faults_on_two.run, words)
    assert codes == [1, 1], said[-3000:]
    assert said.count("Traceback (most recent call last)") == 1, said
    assert said.count(f"KeyError: 'planted in {place}'") in (1, 2), said
    because = f"process {1 - rank} ends, because process {rank} failed (KeyError: 'planted in"
    assert said.count(" ends, because ") == said.count(because) == 1, said


@pytest.mark.slow
def test_a_launcher_ends_the_other_process_too(tmp_path: Path) -> None:
    words = [*PLANTED, "loss", "1", *SMALL, "--output_dir", str(tmp_path)]
    launcher = start("--main_process_port", "0", *words)
    (said,) = end(launcher)
    assert launcher.returncode == 1 and said.count("Traceback (most recent call last)") == 1, said
    assert said.count(" ends, because ") <= 1


@pytest.mark.slow
def test_a_busy_process_on_another_machine_ends_too(tmp_path: Path) -> None:
    machines = f"--num_machines 2 --main_process_ip 127.0.0.1 --main_process_port {get_free_port()}"
    words = [*machines.split(), *PLANTED, "sampling", "1", "busy", *SMALL]
    words += ["--output_dir", str(tmp_path)]
    launchers = [start("--machine_rank", rank, *words) for rank in "01"]
    first, second = end(*launchers)
    assert [launcher.returncode for launcher in launchers] == [1, 1]
    assert (first + second).count("Traceback (most recent call last)") == 1
    assert "process 0 ends, because process 1 failed (KeyError: 'planted in sampling')" in first


def soaked(folder: Path, kind: str) -> dict[str, Any]:
    """What a run of 200 steps logged, measured and planted; after a signal, it is started again."""
    starts = 1
    folder.mkdir()
    rows = folder / "rows.txt"  # the packaged rows without values: the engine is asked
    rows.write_text("\n".join(row["text"] for row in raw_rows(SourceArguments())))
    words = [str(folder), kind, *KEYS, "--dataset_name", str(rows)]
    run = partial(forked_two, folder, soak_on_two.run, words, timeout=900)
    while "interrupted at step" in (ended := run())[1]:
        assert ended[0] == [143, 143] and starts < 4, ended[0]
        starts += 1
    assert ended[0] == [0, 0], ended[1][-3000:]
    log = history(folder / "run")
    return {
        "starts": starts,
        "steps": [entry for entry in log if "reward" in entry],
        "heldout": json.loads((folder / "run" / "results.json").read_text())["heldout"],
        "planted": [json.loads(file.read_text()) for file in sorted(folder.glob("planted*"))],
    }


@pytest.mark.slow
def test_a_disturbed_run_learns_as_an_undisturbed_one(tmp_path: Path, stockfish: str) -> None:
    clean, disturbed = soaked(tmp_path / "clean", "clean"), soaked(tmp_path / "faults", "faults")
    assert len(clean["steps"]) == len(disturbed["steps"]) == STEPS
    assert (clean["starts"], disturbed["starts"]) == (1, 3)
    assert sum(step["rewards/unscored"] for step in clean["steps"]) == 0
    first, second = disturbed["planted"]
    unscored = sum(step["rewards/unscored"] for step in disturbed["steps"]) * 2 * soak_on_two.ROWS
    assert unscored == pytest.approx(first["lost"] + second["lost"]) and unscored > 0
    assert first["calls"] == second["calls"] == STEPS, "each step is sampled once"
    assert 0.02 < (first["failed"] + second["failed"]) / (2 * STEPS) < 0.1
    assert first["kills"] == second["kills"] == 9
    assert all(step["engine/given_up"] == 0 for step in disturbed["steps"])
    assert second["signals"] == 2
    for name in ("environment/exact", "policy/best_move"):
        # Both are estimates: of two equal ones, one in six is outside of the other's interval.
        (low, high), (lowest, highest) = (
            run["heldout"][name]["interval_after"] for run in (clean, disturbed)
        )
        assert low <= highest and lowest <= high, name
    learnt = clean["heldout"]["environment/exact"]
    assert learnt["after"] > learnt["before"], "there was something to learn"
