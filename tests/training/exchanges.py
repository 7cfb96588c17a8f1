"""Run in a process of its own: what our trainer's import and steps exchange in the libraries below.

It prints the names of what is another object than before, by moment.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import accelerate
from transformers import AttentionInterface, AttentionMaskInterface

NAMES = (
    "trl.trainer.grpo_trainer",
    "trl.extras.profiling",
    "transformers.integrations.sdpa_attention",
    "transformers.modeling_utils",
    "transformers.trainer",
)


def attributes() -> dict[str, Any]:
    """All attributes of these modules, of their classes and of accelerate's; and all attentions."""
    found: dict[str, Any] = {}
    owners: dict[str, Any] = {name: importlib.import_module(name) for name in NAMES}
    owners["Accelerator"] = accelerate.Accelerator
    for name, owner in owners.copy().items():
        for key, value in vars(owner).items():
            if isinstance(value, type) and value.__module__ == name:
                owners[f"{name}.{key}"] = value
    for name, owner in owners.items():
        found |= {f"{name}.{key}": value for key, value in vars(owner).items()}
    for interface in (AttentionInterface, AttentionMaskInterface):
        mapping = interface._global_mapping  # of transformers' own and ours
        found |= {f"{interface.__name__}[{key}]": value for key, value in mapping.items()}
    return found


BEFORE = attributes()
assert "rookworld_rlvr.training.trainer" not in sys.modules


def changed() -> list[str]:
    now = attributes()
    return [name for name, value in BEFORE.items() if now.get(name) is not value]


def main(folder: Path) -> dict[str, Any]:
    importlib.import_module("rookworld_rlvr.training.trainer")
    found: dict[str, Any] = {"compared": len(BEFORE), "after the import": changed()}
    support = importlib.import_module("tests.support")
    config = importlib.import_module("rookworld_rlvr.training.config")
    loading = importlib.import_module("rookworld_rlvr.data.loading")
    few = loading.DataArguments(max_rows=400, synthetic_rows=60, heldout_rows=8)
    data = loading.load_data(few)

    def uneven(completions: list[str], **_: Any) -> list[float]:
        found["in a step"] = changed()
        if "at the end" in found:
            raise KeyError("planted")
        return [float(place % 2) for place, _ in enumerate(completions)]

    def train() -> None:
        args = config.RookWorldGRPOConfig(
            str(folder / "run"),
            rewards=["graduated"],
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=8,
            max_steps=1,
            **support.NOT_KEPT,
        )
        rows = support.mixed_rows(data.train)
        support.packaged_trainer(args, [uneven], data, rows).train()

    train()
    found["at the end"] = changed()
    try:
        train()
    except Exception as error:
        found["after an exception"] = changed() if "planted" in str(error) else [str(error)]
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
