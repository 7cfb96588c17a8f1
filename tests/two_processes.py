"""Run by two processes: a few steps with every control on, and what each of them decided, as JSON.

accelerate launch --cpu --num_processes 2 tests/two_processes.py FOLDER [fail]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState

from rookworld_rlvr import model as models
from rookworld_rlvr.config import RookWorldGRPOConfig
from rookworld_rlvr.data import DataArguments, load_data
from rookworld_rlvr.parsing import run_cli
from rookworld_rlvr.trainer import RookWorldGRPOTrainer

from .conftest import mixed_rows


def main(argv: Sequence[str]) -> None:
    folder, fails = Path(argv[0]), "fail" in argv
    args = RookWorldGRPOConfig(
        output_dir=str(folder / "run"),
        rewards=[{"name": "environment_exact"}],
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=8,
        max_steps=3,
        learning_rate=1e-4,
        beta=0.1,
        kl_control="adaptive",
        kl_adaptation="multiplicative",
        kl_target=1e-7,
        zero_variance="resample",
        zero_variance_extra=2.0,
        prompt_sampling="by_difficulty",
        task_mixture={"environment": 0.5, "policy": 0.5},
        task_sampling={"environment": {}, "policy": {}},
        baseline="ema",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=1,
        eval_steps=100,
        save_strategy="no",
        load_best_model_at_end=False,
        report_to=[],
        disable_tqdm=True,
    )
    rank = PartialState().process_index  # known once the arguments have set the processes up

    def uneven(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        """Groups without signal on the second process only; there it can fail, too."""
        if fails and rank == 1:
            raise KeyError("planted")
        return [float(i % 2) if rank == 0 else 0.5 for i, _ in enumerate(completions)]

    data = load_data(DataArguments(heldout_rows=8))
    tokenizer = models.load_tokenizer(models.PACKAGED_MODEL)
    trainer = RookWorldGRPOTrainer(
        models.load_model(models.PACKAGED_MODEL),
        [uneven],
        args,
        train_dataset=mixed_rows(data.train),
        eval_dataset=data.heldout,
        processing_class=tokenizer,
    )
    trainer.train()
    own = ("step_time", "runtime", "per_second")  # what differs between processes, and `time/`
    logs = [
        {key: value for key, value in entry.items() if not (key.endswith(own) or "time/" in key)}
        for entry in trainer.state.log_history
    ]
    parameter = next(trainer.model.parameters())
    result = {
        "state": trainer.control_state(),
        "logs": logs,
        "weights": parameter.double().sum().item(),
    }
    (folder / f"process{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    run_cli(main)
