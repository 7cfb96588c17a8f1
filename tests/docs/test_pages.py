"""README and docs: short, their tables current, their links alive, their commands as printed."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

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

sys.path.insert(0, str(REPOSITORY / "docs"))
import generate
import headlines
import plots

README = REPOSITORY / "README.md"
DOCS = sorted((REPOSITORY / "docs").glob("*.md"))
PAGES = [README, *DOCS, REPOSITORY / "CONTRIBUTING.md"]


def test_generated_tables_are_those_of_the_code() -> None:
    assert [path.name for path in generate.stale_pages([README, *DOCS])] == [], "run make docs"
    assert [path.name for path in generate.stale_plots()] == [], "run make docs"
    text = "\n".join(path.read_text() for path in (README, *DOCS))
    if all(version(name) == its for name, its in read_asset("keys.yaml")["versions"].items()):
        assert generate.KEYS.read_text() == generate.keys_by_script(), "run make docs"
    assert generate.TABLES and generate.MARKED.search(text)
    assert all(f"<!-- generated: {name} -->" in text for name in generate.TABLES)


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page, and the anchors that are written out."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in titles)
    made = {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in plain}
    return made | set(re.findall(r'^<a id="([^"]+)"></a>$', text, re.M))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for path, anchor in re.findall(r"\]\((?!https://|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)", text):
        target = page.parent / path if path else page
        assert target.exists() and (not anchor or anchor in anchors(target)), (path, anchor)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pictures_have_a_light_and_a_dark_form(page: Path) -> None:
    for picture in re.findall(r"<picture>.*?</picture>", page.read_text(), re.S):
        (dark,) = re.findall(
            r'<source media="\(prefers-color-scheme: dark\)" srcset="(.+?)">', picture
        )
        (light,) = re.findall(r'<img src="(.+?)"', picture)
        assert (page.parent / dark).exists() and (page.parent / light).exists(), picture
        assert re.search(r'alt="[^"]{40,}"', picture), "what it shows, in words"


# --------------------------------------------------------------------------------------------------
# Tables
# --------------------------------------------------------------------------------------------------
GENERATED = {"keys.md", "metrics.md"}  # lists of all keys and metrics
NOT_MENDED_YET: set[str] = set()  # pages whose tables have long cells


def cells(line: str) -> list[str]:
    """The cells of a row as they are read: links by their text, without ticks and comments."""
    bare = re.sub(r"</?[a-z][^>]*>|`|\*\*", "", line.strip())
    bare = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", bare)
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", bare[1:-1])]


@pytest.mark.parametrize("page", [*DOCS, README], ids=lambda path: path.name)
def test_a_cell_says_one_thing(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    rows = [cells(line) for line in text.splitlines() if line.startswith("|")]
    long = [cell for row in rows for cell in row if len(cell) > 60]
    wide = [row for row in rows if len(row) > 6]
    if page.name in NOT_MENDED_YET:
        assert long or wide, f"{page.name} is mended; take it off the list"
    elif page.name not in GENERATED:
        assert not long, "60 characters a cell; what needs more is a sentence or a list"
        assert not wide, "six columns at most"


def test_cells_are_counted_as_they_are_read() -> None:
    row = '| [`a`](b.md#c) | <span figure="x">1.5 s</span> **b** | c \\| d |'
    assert cells(row) == ["a", "1.5 s b", "c \\| d"]


# --------------------------------------------------------------------------------------------------
# Figures
# --------------------------------------------------------------------------------------------------
def test_a_figure_is_written_once() -> None:
    """What a page says in a mark is what the file says; `make docs` mends what differs."""
    page = (
        'It takes <span figure="mixed_step">9.9 s</span> and 7.8\nGiB, `7.8 GiB`, '
        "17.8 GiB, 46.7% [1.0, 2.0]."
    )
    assert headlines.filled(page) == (
        'It takes <span figure="mixed_step">2.7 s</span> and <span figure="mixed_memory">7.8 GiB'
        '</span>, `7.8 GiB`, 17.8 GiB, <span figure="quickstart_before">46.7%</span> [1.0, 2.0].'
    )
    fence = "```text\n7.8 GiB\n```\n![7.8 GiB](a.png) [b](7.8 GiB)\n"
    assert headlines.filled(fence) == fence
    with pytest.raises(ValueError, match="has no such figure"):
        headlines.filled('<span figure="unknown">1.0</span>')


def test_every_figure_is_used() -> None:
    """On a page, in a table, or in another figure."""
    pages = "\n".join(path.read_text() for path in (README, *DOCS))
    texts = headlines.content()["figures"]
    rows = [row["figures"] for row in headlines.content()["quickstart"]]
    for name in texts:
        in_table = any(name.startswith(row) for row in rows)
        in_figure = any(f"{{{name}" in text for text in texts.values())
        assert in_table or in_figure or f'<span figure="{name}">' in pages, name


def test_plots_are_read_on_a_phone() -> None:
    drawn = dict(plots.drawn())
    assert len(drawn) == 2 * len(plots.PLOTS) >= 8
    pages = "\n".join(path.read_text() for path in DOCS)
    for path, text in drawn.items():
        root = ElementTree.fromstring(text)
        assert int(root.attrib["width"]) == 390 and int(root.attrib["font-size"]) >= 12
        width, height = map(int, root.attrib["viewBox"].split()[2:])
        words = [item for item in root if item.tag.endswith("text")]
        assert len(words) > 5, path.name
        for word in words:
            reach = 7 * len(word.text or "")  # a letter of 13 pixels is at most 7 wide on average
            x, left = float(word.attrib["x"]), {"start": 0, "middle": reach / 2, "end": reach}
            first = x - left[word.attrib["text-anchor"]]
            assert first >= -2 and first + reach <= width + 8, (path.name, word.text)
            assert 0 < float(word.attrib["y"]) < height
        for circle in (item for item in root if item.tag.endswith("circle")):
            assert (
                0 < float(circle.attrib["cx"]) < width and 0 < float(circle.attrib["cy"]) < height
            )
        assert f"figures/{path.name}" in pages


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
    """A folder in which every page's commands find what they name: recipes, finished runs, data."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("recipes", "accelerate_configs", "docs", "benchmarks", "notebooks"):
        (folder / name).symlink_to(REPOSITORY / name)
    script("grpo.py", *TRAINING, *GROUPS, "--output_dir", "runs/grpo_nano", cwd=folder)
    round_of_games = folder / "runs/evolve_games/round-001"
    round_of_games.mkdir(parents=True)
    (round_of_games / "train").symlink_to("../../grpo_nano")
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
