"""README and docs: short, their tables current, their links alive, their commands as printed."""

import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from rookworld_rlvr import __version__
from rookworld_rlvr.common.files import read_asset
from rookworld_rlvr.common.stats import proportion
from rookworld_rlvr.data.loading import LoadedData
from rookworld_rlvr.tasks.registry import join_row

from ..support import REPOSITORY, mixed_rows, script
from .pages import GROUPS, TRAINING, follow

README = REPOSITORY / "README.md"
DOCS = sorted((REPOSITORY / "docs").glob("*.md"))
PAGES = [README, *DOCS, REPOSITORY / "CONTRIBUTING.md"]


def test_generated_tables_are_those_of_the_code() -> None:
    spec = importlib.util.spec_from_file_location("generate", REPOSITORY / "docs/generate.py")
    assert spec is not None and spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert [path.name for path in generate.stale_pages([README, *DOCS])] == [], "run make docs"
    text = "\n".join(path.read_text() for path in DOCS)
    if all(version(name) == its for name, its in read_asset("keys.yaml")["versions"].items()):
        assert generate.KEYS.read_text() == generate.keys_by_script(), "run make docs"
    assert generate.TABLES and generate.MARKED.search(text)
    assert all(f"<!-- generated: {name} -->" in text for name in generate.TABLES)


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for path, anchor in re.findall(r"\]\((?!https://|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)", text):
        target = page.parent / path if path else page
        assert target.exists() and (not anchor or anchor in anchors(target)), (path, anchor)


def shares(text: str) -> Iterator[tuple[int, str]]:
    """Each share with an interval in a table that has a column of numbers of items, with that number."""
    size: int | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        heads = [at for at, cell in enumerate(cells) if cell in ("n", "rows")]
        size = heads[0] if heads else size if cells else None
        if size is None or not cells[size].isdecimal() or "expected score" in cells[0]:  # a mean
            continue
        for cell in re.findall(r"\d[\d.]*% \[[^]]+\]", line):
            yield int(cells[size]), cell


def test_intervals_of_shares_are_those_of_the_package() -> None:
    found = [item for page in (README, *DOCS) for item in shares(page.read_text())]
    assert len(found) > 40
    for n, cell in found:
        share = float(cell.split("%")[0])
        near = range(
            max(0, int(n * (share - 0.1) / 100)), min(n, int(n * (share + 0.1) / 100) + 1) + 1
        )
        ours = (proportion(right, n) for right in near)
        assert cell in {f"{x.value:.1%} [{100 * x.low:.1f}, {100 * x.high:.1f}]" for x in ours}, n


def test_every_page_opens_with_a_question_and_is_in_the_index() -> None:
    assert len(README.read_text().splitlines()) <= 150, "it is read in two minutes"
    index = (REPOSITORY / "docs/README.md").read_text()
    for page in DOCS:
        if page.name != "README.md":
            title, answer = page.read_text().split("\n\n")[:2]
            assert title.startswith("# ") and title.endswith("?"), page.name
            assert not answer.startswith(("#", "|", "<", "```", "!")), page.name
            assert f"({page.name})" in index and f"(docs/{page.name})" in README.read_text()


def test_versions_agree() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    released = re.findall(r"^## (\S+) \((\S+)\)$", (REPOSITORY / "CHANGELOG.md").read_text(), re.M)
    assert released[0] == (citation["version"], str(citation["date-released"]))
    assert __version__ == released[0][0] or __version__.endswith(".dev0")
    workflow = yaml.safe_load((REPOSITORY / ".github/workflows/ci.yml").read_text())
    assert any(".ci/run" in step.get("run", "") for step in workflow["jobs"]["test"]["steps"])


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every page's commands find what they name: recipes, a finished run, data."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("recipes", "accelerate_configs", "docs", "benchmarks", "notebooks"):
        (folder / name).symlink_to(REPOSITORY / name)
    script("grpo.py", *TRAINING, *GROUPS, "--output_dir", "runs/grpo_nano", cwd=folder)
    return folder


@pytest.fixture
def workplace(finished: Path, tmp_path: Path, packaged: LoadedData) -> Path:
    """A copy of that folder for one page, with data files by the names that the pages use."""
    folder = tmp_path / "workplace"
    shutil.copytree(finished, folder, symlinks=True)
    rows = [*mixed_rows(packaged.train, 30), *mixed_rows(packaged.heldout, 10)]
    table = pd.DataFrame({"text": [join_row(row["prompt"], row["completion"]) for row in rows]})
    (folder / "rows.txt").write_text("\n".join(table["text"]) + "\n")
    table.to_csv(folder / "rows.csv", index=False)
    table["action_values"] = [row["action_values"] for row in rows]
    table.to_json(folder / "rows.jsonl", orient="records", lines=True)
    (folder / "positions.fen").write_text("\n".join(row["fen"] for row in rows) + "\n")
    openings = [{"prompt": row["prompt"]} for row in rows if row["task"] == "environment"]
    (folder / "opening_dataset_train.json").write_text(json.dumps(openings[:30]))
    (folder / "opening_dataset_eval.json").write_text(json.dumps(openings[30:]))
    (folder / "games.pgn").write_text("1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 *\n\n1. d4 d5 2. c4 e6 *\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", [README, *DOCS], ids=lambda path: path.stem)
def test_the_commands_of_a_page(page: Path, workplace: Path, request: Any) -> None:
    if re.search("^rookworld prepare", page.read_text(), re.M):
        request.getfixturevalue("stockfish")
    assert follow(page, workplace) >= (10 if page == README else 0)
