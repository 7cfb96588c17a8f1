"""Lay the W&B dashboard out: a section for each kind of metric, health and held-out first.

python recipes/wandb_workspace.py --project rookworld-rlvr --entity you   # saves it, prints its address
python recipes/wandb_workspace.py --output_file workspace.json            # without a key, the file

Needs wandb-workspaces: pip install -c constraints.txt -e ".[dashboard]".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wandb

from rookworld_rlvr.cli.parser import StrictParser, run_cli
from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.common.files import check_writable, write_json
from rookworld_rlvr.common.settings import setting
from rookworld_rlvr.training.dashboard import has_wandb_key
from rookworld_rlvr.training.glossary import GLOSSARY, SECTIONS, STEP, Metric, panels

MISSING = (
    'wandb-workspaces is not installed; pip install -c constraints.txt -e ".[dashboard]", which '
    "lays a workspace out"
)


@dataclass
class WorkspaceArguments:
    """Where the workspace goes."""

    project: str = setting("rookworld-rlvr", "W&B's project, as WANDB_PROJECT has it for runs.")
    entity: str | None = setting(None, "User or team; None for that of the key.")
    name: str = setting("RookWorld GRPO", "Of the workspace.")
    output_file: str = setting(
        "runs/workspace.json", "Where the layout is written that cannot be saved at W&B."
    )


def main(argv: Sequence[str]) -> None:
    (args,) = StrictParser([WorkspaceArguments]).parse_strictly(argv)
    try:
        import wandb_workspaces  # noqa: F401
    except ImportError as error:
        raise ConfigurationError([MISSING]) from error
    reason = "there is no W&B key"
    if has_wandb_key():
        try:
            print(f"workspace: {save(args)}")
            return
        except (wandb.Error, OSError, ValueError) as error:
            reason = f"W&B did not take it ({' '.join(str(error).split())})"
    path = write(args)
    print(f"{reason}; the layout is in {path}. `wandb login`, then the same command, saves it")


def save(args: WorkspaceArguments) -> str:
    """Save the workspace at W&B; its address."""
    entity = args.entity or wandb.Api().default_entity
    return str(workspace(args, entity).save().url)


def write(args: WorkspaceArguments) -> Path:
    """Write what W&B would be sent."""
    path = Path(args.output_file)
    check_writable(path)
    write_json(
        path, workspace(args, args.entity or "")._spec
    )  # the library has no public way to it
    return path


# --------------------------------------------------------------------------------------------------
# Layout
# --------------------------------------------------------------------------------------------------
def workspace(args: WorkspaceArguments, entity: str) -> Any:
    """The workspace: sections in `SECTIONS`' order, the first two open."""
    from wandb_workspaces import workspaces as ws

    return ws.Workspace(
        entity=entity,
        project=args.project,
        name=args.name,
        sections=[
            ws.Section(name=title, panels=section_panels(section), is_open=place < 2)
            for place, (section, title) in enumerate(SECTIONS.items())
        ],
        settings=ws.WorkspaceSettings(x_axis=STEP),
        auto_generate_panels=False,
    )


def section_panels(section: str) -> list[Any]:
    """Curves, tables and the glossary of one section."""
    from wandb_workspaces.reports import v2 as wr

    metrics = [metric for metric in GLOSSARY if metric.section == section]
    curves = [curve(wr, title, members) for title, members in panels(section)]
    tables = [wr.WeavePanelSummaryTable(table_name=m.key) for m in metrics if m.is_table]
    return [*tables, *curves, wr.MarkdownPanel(markdown=explanation(metrics))]


def curve(wr: Any, title: str, members: Sequence[Metric]) -> Any:
    """One panel; keys that stand for several are looked for when the panel is shown."""
    if any(metric.has_holes for metric in members):
        return wr.LinePlot(title=title, x=STEP, metric_regex="|".join(m.pattern for m in members))
    return wr.LinePlot(title=title, x=STEP, y=[metric.key for metric in members])


def explanation(metrics: Sequence[Metric]) -> str:
    """The glossary's sentences, as Markdown."""
    return "\n".join(f"- `{metric.key}`: {metric.meaning}" for metric in metrics)


if __name__ == "__main__":
    run_cli(main)
