"""Run by two processes: training with credit by place, and what the first tokens of answers got.

``process<rank>.json`` holds, by kind of credit, logs and weights after three steps, and this process's
rows of the first batch: prompt, score of the board (null if unreadable), advantage of the first token.

accelerate launch --cpu --num_processes 2 --module tests.training.parts.credit_on_two FOLDER
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState

from rookworld_rlvr.cli.parser import run_cli
from rookworld_rlvr.data.loading import DataArguments, LoadedData, load_data
from rookworld_rlvr.tasks.environment import ENVIRONMENT
from rookworld_rlvr.training.config import RookWorldGRPOConfig

from ...conftest import NOT_KEPT, mixed_rows, packaged_trainer

OPTIONS: dict[str, dict[str, Any]] = {
    "first_error": {"zero_variance": "resample"},
    "field": {"scale_rewards": "batch"},
}


def train(kind: str, folder: Path, data: LoadedData) -> dict[str, Any]:
    args = RookWorldGRPOConfig(
        output_dir=str(folder / kind),
        rewards=[{"name": "environment_exact"}],
        credit=kind,
        **OPTIONS[kind],
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=64,
        max_steps=3,
        learning_rate=1e-4,
        temperature=1.2,
        preflight=False,
        **NOT_KEPT,
    )
    rank = PartialState().process_index  # known once the arguments have set the processes up

    def uneven(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        """Groups without signal on the second process only."""
        return [float(i % 2) if rank == 0 else 0.5 for i, _ in enumerate(completions)]

    rows = mixed_rows(data.train, tasks=["environment"])
    trainer = packaged_trainer(args, [uneven], data, rows)
    first: list[dict[str, Any]] = []
    loss = trainer.loss

    def watch(model: Any, batch: dict[str, Any]) -> Any:
        if not first:
            first.extend(told(trainer, batch))
        return loss(model, batch)

    watched: Any = trainer
    watched.loss = watch
    trainer.train()
    own = ("step_time", "runtime", "per_second", "peak_memory")
    logs = [
        {key: value for key, value in entry.items() if not (key.endswith(own) or "time/" in key)}
        for entry in trainer.state.log_history
    ]
    weights = next(trainer.model.parameters()).double().sum().item()
    return {"logs": logs, "weights": weights, "rows": first}


def told(trainer: Any, batch: dict[str, Any]) -> list[dict[str, Any]]:
    decode = trainer.processing_class.decode
    rows = []
    for index, advantages in enumerate(batch["advantages"]):
        prompt, text = (
            decode(
                batch[f"{name}_ids"][index][batch[f"{name}_mask"][index].bool()],
                skip_special_tokens=True,
            )
            for name in ("prompt", "completion")
        )
        fields = ENVIRONMENT.fields(prompt, text)
        board = fields[0].score if fields else None
        rows.append({"prompt": prompt, "board": board, "first": advantages[0].item()})
    return rows


def main(argv: Sequence[str]) -> None:
    folder = Path(argv[0])
    data = load_data(DataArguments(tasks=["environment"], heldout_rows=4))
    result = {kind: train(kind, folder, data) for kind in OPTIONS}
    rank = PartialState().process_index
    (folder / f"process{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    run_cli(main)
