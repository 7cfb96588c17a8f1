"""The Hub: the repository is created before a run and filled after it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from ..common.errors import RookWorldError
from .results import ADAPTER, CARD, PROVENANCE, REPORT, RESOLVED_CONFIG, RESULTS

_MODEL = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json")
_TOKENIZER = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.*", "merges.txt", "*.jinja"),
)
_RECORDS = (CARD, RESOLVED_CONFIG, RESULTS, PROVENANCE, REPORT, "judge_report.json")


def create_repository(args: Any) -> str | None:
    """Create the repository that a run will be pushed to, or check that it can be written to.

    Args:
        args: The `TrainingArguments`.

    Returns:
        The repository's id; None if nothing is to be pushed.

    Raises:
        RookWorldError: It could not be created, or belongs to somebody else.
    """
    if not args.push_to_hub:
        return None
    name = args.hub_model_id or Path(args.output_dir).resolve().name
    api = HfApi()
    try:
        url = api.create_repo(name, private=args.hub_private_repo, exist_ok=True)
        api.auth_check(url.repo_id, write=True)  # it may exist and belong to somebody else
        if args.hub_revision is not None:
            api.create_branch(url.repo_id, branch=args.hub_revision, exist_ok=True)
    except Exception as error:  # errors of the HTTP library too, whichever it is
        raise RookWorldError(
            f"push_to_hub: cannot write to the repository {name!r} at {api.endpoint} "
            f"({_reason(error)}); run hf auth login or set HF_TOKEN with a token that may write, set "
            "hub_model_id: owner/name, or leave push_to_hub out"
        ) from error
    return str(url.repo_id)


def push(repository: str, folder: Path, args: Any) -> str:
    """Upload a finished run: model or adapters, tokenizer, card, configuration, results, report.

    Args:
        repository: The repository's id.
        folder: The run's folder.
        args: The `TrainingArguments`.

    Returns:
        A line that says where the model is.

    Raises:
        RookWorldError: The upload failed; the message gives the commands to do it by hand.
    """
    api, parts = HfApi(), uploads(folder)
    try:
        for source, files in parts.items():
            api.upload_folder(
                repo_id=repository,
                folder_path=source,
                allow_patterns=files,
                ignore_patterns=["*/*"],
                revision=args.hub_revision,
                commit_message=f"Add {folder.resolve().name}",
            )
    except Exception as error:  # errors of the HTTP library too; the run itself is complete
        said = f"push_to_hub: the run is complete in {folder}, but could not be pushed to {repository} "
        said += f"({_reason(error)}). To push it by hand:"
        for source, files in parts.items():
            words = ["hf", "upload", repository, str(source), ".", "--exclude=*/*"]
            words += [f"--include={pattern}" for pattern in files]
            words += [f"--revision={args.hub_revision}"] if args.hub_revision else []
            said += f"\n  {shlex.join(words)}"
        raise RookWorldError(said) from error
    return f"pushed to {api.endpoint}/{repository}"


def uploads(folder: Path) -> dict[Path, list[str]]:
    """Which files of which folders of a run are uploaded; adapters in place of the whole model."""
    if not (folder / ADAPTER).is_dir():
        return {folder: [*_MODEL, *_TOKENIZER, *_RECORDS]}
    adapters = ["adapter_config.json", "adapter_model.safetensors"]
    return {folder / ADAPTER: adapters, folder: [*_TOKENIZER, *_RECORDS]}


def _reason(error: Exception) -> str:
    """The HTTP status with the Hub's own message, or the text of another error."""
    said = str(error)
    if isinstance(error, HfHubHTTPError):
        said = f"{error.response.status_code}: {error.server_message or said}"
    return " ".join(said.split())[:300]
