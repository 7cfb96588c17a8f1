"""The quickstart notebook runs from top to bottom."""

import ast
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from ..support import REPOSITORY

NOTEBOOK = REPOSITORY / "notebooks" / "quickstart.ipynb"


def test_what_the_quickstart_imports_is_there() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    parsed = ast.parse("\n".join(source for source in sources if "%pip" not in source))
    ours = [
        node
        for node in ast.walk(parsed)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rookworld_rlvr")
    ]
    assert ours
    for node in ours:
        for name in node.names:
            assert hasattr(importlib.import_module(str(node.module)), name.name), name.name


@pytest.mark.slow
def test_the_quickstart_runs_from_top_to_bottom(tmp_path: Path, monkeypatch) -> None:
    nbclient: Any = importlib.import_module("nbclient")
    nbformat: Any = importlib.import_module("nbformat")
    monkeypatch.setenv("ROOKWORLD_NOTEBOOK_STEPS", "2")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "kept without outputs"
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # raises where a cell does
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    text = "".join(output["text"] for output in outputs if output["output_type"] == "stream")
    drawn = "".join(output["data"].get("text/html", "") for output in outputs if "data" in output)
    assert "Traceback" not in text and "held-out metric" in text
    assert "environment/exact" in text and "best move: " in text
    assert "srcdoc" in drawn and "polyline" in drawn and "<svg" in drawn
    assert (tmp_path / "runs" / "notebook" / "model.safetensors").is_file()
