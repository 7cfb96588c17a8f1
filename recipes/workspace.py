"""Lay out a W&B dashboard with a section for each kind of metric, health and held-out first.

rookworld workspace --project rookworld-rlvr --entity you   # saves it at W&B and prints its address
rookworld workspace --output_file workspace.json            # without a W&B key, writes the layout

It needs wandb-workspaces: pip install -c constraints.txt -e ".[dashboard]".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wandb

from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.common.files import check_writable, write_json
from rookworld_rlvr.common.settings import setting
from rookworld_rlvr.extras.workspace.boards import has_wandb_key
from rookworld_rlvr.training.glossary import (
    GLOSSARY,
    SECTIONS,
    STEP,
    GlossaryEntry,
    overview,
    panels,
)

MISSING = (
    "wandb-workspaces is not installed, which lays out the dashboard; run "
    'pip install -c constraints.txt -e ".[dashboard]"'
)


@dataclass
class WorkspaceArguments:
    """Where the workspace is saved."""

    project: str = setting("rookworld-rlvr", "The W&B project of the runs (WANDB_PROJECT).")
    entity: str | None = setting(None, "The W&B user or team; None uses the default of your key.")
    name: str = setting("RookWorld GRPO", "The name of the workspace.")
    output_file: str = setting(
        "runs/workspace.json", "The file for the layout if it cannot be saved at W&B."
    )


GROUPS = [WorkspaceArguments]


def main(argv: Sequence[str]) -> None:
    (args,) = StrictParser(GROUPS).parse_strictly(argv)
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
            reason = f"W&B did not accept the layout ({' '.join(str(error).split())})"
    path = write(args)
    print(f"{reason}; the layout is in {path}. To save it at W&B, run wandb login, then this again")


def save(args: WorkspaceArguments) -> str:
    """Save the workspace at W&B; gives its address."""
    entity = args.entity or wandb.Api().default_entity
    return str(workspace(args, entity).save().url)


def write(args: WorkspaceArguments) -> Path:
    """Write the layout to a file, as it would be sent to W&B."""
    path = Path(args.output_file)
    check_writable(path)
    write_json(
        path, workspace(args, args.entity or "")._spec
    )  # the library has no public method for it
    return path


# --------------------------------------------------------------------------------------------------
# Layout
# --------------------------------------------------------------------------------------------------
def workspace(args: WorkspaceArguments, entity: str) -> Any:
    """The workspace: an overview, then sections in `SECTIONS`' order; the first three are open."""
    from wandb_workspaces import workspaces as ws

    content = {"Overview": overview_panels()}
    content |= {title: section_panels(section) for section, title in SECTIONS.items()}
    return ws.Workspace(
        entity=entity,
        project=args.project,
        name=args.name,
        sections=[
            ws.Section(name=title, panels=panels_of, is_open=place < 3)
            for place, (title, panels_of) in enumerate(content.items())
        ],
        settings=ws.WorkspaceSettings(x_axis=STEP),
        auto_generate_panels=False,
    )


def overview_panels() -> list[Any]:
    """The six panels to look at first: five of curves, and the boards."""
    from wandb_workspaces.reports import v2 as wr

    curves = [curve(wr, title, members) for title, members in overview()]
    return [*curves, wr.WeavePanelSummaryTable(table_name="boards")]


def section_panels(section: str) -> list[Any]:
    """Curves, tables and the glossary of one section."""
    from wandb_workspaces.reports import v2 as wr

    metrics = [metric for metric in GLOSSARY if metric.section == section]
    curves = [curve(wr, title, members) for title, members in panels(section)]
    tables = [wr.WeavePanelSummaryTable(table_name=m.key) for m in metrics if m.is_table]
    return [*tables, *curves, wr.MarkdownPanel(markdown=explanation(metrics))]


def curve(wr: Any, title: str, members: Sequence[GlossaryEntry]) -> Any:
    """One panel; keys with placeholders are matched when the panel is shown."""
    if any("<" in metric.key for metric in members):
        return wr.LinePlot(title=title, x=STEP, metric_regex="|".join(m.pattern for m in members))
    return wr.LinePlot(title=title, x=STEP, y=[metric.key for metric in members])


def explanation(metrics: Sequence[GlossaryEntry]) -> str:
    """The glossary's sentences, as Markdown."""
    return "\n".join(f"- `{metric.key}`: {metric.meaning}" for metric in metrics)


if __name__ == "__main__":
    run_cli(main)
