"""When a diagnosed step is recorded: the callback of `recorder.DiagnosedTrainer`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from .probes import probe
from .terms import full, norm


class RecordingCallback(TrainerCallback):  # type: ignore[misc]
    """Measures before training, keeps gradients and updates, and looks one step on.

    Args:
        trainer: The `DiagnosedTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with self.trainer.meter.phase("probes"):
            self.trainer.probes = probe(self.trainer)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        if not trainer.weights_before:  # without a clip
            trainer.keep_gradients()
        record = trainer.record
        network = trainer.accelerator.unwrap_model(trainer.model)
        record.gradient_norm_after_clip = norm(
            None if p.grad is None else full(p.grad).float() for p in network.parameters()
        )
        record.learning_rate = trainer._get_learning_rate()
        self.optimiser = trainer.meter.phase("optimiser")
        self.optimiser.__enter__()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.optimiser.__exit__(None, None, None)
        with self.trainer.meter.phase("diagnosis"):
            self.trainer.record_update()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        record = trainer.steps[state.global_step - 1]
        if state.global_step == 1 and not trainer.is_sharded:
            with trainer.meter.phase("diagnosis"):
                trainer.look_one_step_on(record)
                trainer.settle_one_step_on(record)
        record.batches.clear()
        if state.global_step > 1:
            record.generations.clear()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if logs and "loss" in logs and 0 < state.global_step <= len(self.trainer.steps):
            self.trainer.steps[state.global_step - 1].metrics = dict(logs)
