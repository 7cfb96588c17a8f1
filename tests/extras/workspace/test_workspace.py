"""The workspace, laid out by wandb-workspaces itself, written where W&B cannot be reached."""

import json
import sys
from pathlib import Path
from typing import Any

from wandb_workspaces.workspaces import Workspace
from wandb_workspaces.workspaces.internal import View, WorkspaceViewspec

from rookworld_rlvr.training.glossary import GLOSSARY, SECTIONS

from ...support import script


def test_the_library_reads_the_panels_back(tmp_path: Path, monkeypatch: Any) -> None:
    """All have titles and documented keys of their sections."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", "")
    done = script("workspace.py", "--project", "chess", "--entity", "me", cwd=tmp_path)
    assert "no W&B key; the layout is in runs/workspace.json" in done.stdout
    layout = json.loads((tmp_path / "runs" / "workspace.json").read_text())
    assert (layout["project"], layout["entity"]) == ("chess", "me")
    spec = WorkspaceViewspec.model_validate(layout["spec"])
    view = View(entity="me", project="chess", display_name="x", name="", id="", spec=spec)
    workspace = Workspace._from_model(view)
    assert [section.name for section in workspace.sections] == [
        "Overview",
        *SECTIONS.values(),
    ]
    sections = layout["spec"]["section"]["panelBankConfig"]["sections"]
    assert [s["name"].split(":")[0] for s in sections[1:3]] == ["Health", "Held-out"]
    assert [s["isOpen"] for s in sections] == 3 * [True] + 5 * [False]
    assert len(sections[0]["panels"]) == 6 and '"boards"' in json.dumps(sections[0]["panels"])
    known = {metric.key for metric in GLOSSARY}
    for section, name in zip(sections, ["overview", *SECTIONS], strict=True):
        for panel in section["panels"]:
            config = panel["config"]
            if panel["viewType"] == "Run History Line Plot":
                assert config["chartTitle"] and config["xAxis"] == "train/global_step"
                assert set(config["metrics"]) <= known
                assert bool(config["metrics"]) != bool(config.get("metricRegex")), name
    tables = json.dumps([section["panels"] for section in sections])
    assert '"boards"' in tables and '"completions"' in tables


def test_without_the_library_one_message_and_exit_code_2(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)  # an import of it fails
    done = script("workspace.py", cwd=tmp_path, code=2)
    assert "wandb-workspaces is not installed" in done.stderr
