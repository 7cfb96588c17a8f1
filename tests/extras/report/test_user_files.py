"""The report on a run with a task and a reward in files of the user's own."""

import json
from pathlib import Path

from ...recipes.test_user_files import folder, turns
from ...support import script

__all__ = ["folder"]


def test_it_shows_the_task_s_prompts_and_the_reward_s_mean(folder: Path) -> None:
    done = script("grpo.py", *turns(folder), "my_rewards.py:short", cwd=folder)
    results = json.loads((folder / "run/results.json").read_text())["heldout"]
    advised = next(line for line in done.stdout.splitlines() if " report run" in line)
    script("report.py", *advised.split(" report ")[1].split(), cwd=folder)
    drawn = (folder / "run" / "report.html").read_text()
    assert "T: " in drawn and f"<b>{results['rewards/short']['after']:.3f}</b>" in drawn
    resolved = folder / "run" / "resolved_config.yaml"
    resolved.write_text(resolved.read_text().replace("- turn\n", "- tour\n"))
    done = script("report.py", "--run", "run", cwd=folder, code=2)
    assert "the task tour, which is your own; add --tasks_from my_task.py:Turn" in done.stderr
