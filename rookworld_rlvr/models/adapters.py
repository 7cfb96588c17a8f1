"""LoRA adapters: which modules get them, and how they are saved by themselves."""

from __future__ import annotations

import re
from pathlib import Path

from peft import PeftConfig, PeftModel
from transformers import PreTrainedModel

from ..common.errors import RookWorldError


def adapted(model: PreTrainedModel, targets: str | list[str]) -> str | list[str]:
    """The modules to adapt, for PEFT, or a regular expression of their paths.

    TRL makes a text of a list with one name, which PEFT would read as a regular expression.

    Raises:
        RookWorldError: The model does not have some of them; PEFT might adapt the others without a word.
    """
    paths = [path for path, module in model.named_modules() if hasattr(module, "weight")]
    if isinstance(targets, str):
        if any(re.fullmatch(targets, path) for path in paths):
            return targets
        targets = [targets]
    ends = [f".{path}" for path in paths]
    if missing := [name for name in targets if not any(end.endswith(f".{name}") for end in ends)]:
        names = sorted({path.rpartition(".")[2] for path in paths})
        raise RookWorldError(
            f"lora_target_modules: the model {model.name_or_path!r} has no {', '.join(missing)}; choose "
            f"from {', '.join(names)}"
        )
    return targets


def save_adapter(network: PeftModel, folder: Path) -> None:
    """Save the adapters alone. A base model in a folder is named without its path."""
    network.save_pretrained(str(folder), selected_adapters=[network.active_adapter])
    config = PeftConfig.from_pretrained(str(folder))
    base = Path(config.base_model_name_or_path or "")
    if base.name and base.is_dir():
        config.base_model_name_or_path = base.resolve().name
        config.save_pretrained(str(folder))
