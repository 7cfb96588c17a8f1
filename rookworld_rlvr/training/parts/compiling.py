"""`torch.compile` for the transformer's body: how many graphs it takes, and whether it pays.

accelerate would compile the whole model with TRL's head. On a GPU that head picks the completions'
tokens out of the batch, so its shapes depend on the data, and no padding makes them constant. Therefore
only the transformer's body is compiled here, and only for computing log-probs. Sampling is not
compiled, because each token makes the text longer. Nothing is wrapped, so weights keep their names.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.utils import calculate_time_spent, counters
from trl.models.utils import disable_gradient_checkpointing

from .buckets import Buckets, ShapeArguments
from .part import Part, Scores, arguments_of, whole
from .sampling import backbone

_GRAPHS_A_BUCKET = 8  # the policy with and without gradient, the reference, and some to spare


@contextmanager
def in_place(forwards: Mapping[torch.nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Replace modules' forwards within a block; hooks still run, outside of the new forwards."""
    before = {module: vars(module).get("forward") for module in forwards}
    for module, forward in forwards.items():
        module.forward = forward
    try:
        yield
    finally:
        for module, own in before.items():
            if own is None:
                del module.forward
            else:
                module.forward = own


class CompileWatch:
    """Counts the graphs that this process compiles from now on, and the seconds that takes."""

    def __init__(self) -> None:
        self._before = (counters["stats"]["unique_graphs"], calculate_time_spent())

    @property
    def graphs(self) -> int:
        """The number of graphs; a forward and its backward count as one."""
        return int(counters["stats"]["unique_graphs"]) - self._before[0]

    @property
    def seconds(self) -> float:
        """The seconds spent on compiling, backward graphs included."""
        return calculate_time_spent()["total_wall_time"] - self._before[1]["total_wall_time"]


def payoff(plain: float, compiled: float, updates: int, compiling: float, steps: int) -> str:
    """One sentence on what compiling gains and what it has cost.

    Args:
        plain: Seconds of an update (a forward and its backward) without compiling and padding.
        compiled: Seconds of the same update with both.
        updates: Updates per optimiser step.
        compiling: Seconds spent on compiling.
        steps: Optimiser steps of the whole run.

    >>> payoff(plain=0.9, compiled=1.0, updates=1, compiling=8.0, steps=500)
    'torch_compile does not pay here: updates run at 0.90 times the plain speed; leave it out'
    >>> payoff(plain=1.0, compiled=0.5, updates=2, compiling=8.0, steps=500)
    'torch_compile: updates run at 2.00 times the plain speed; 8 s of compiling pay off in 8 steps'
    """
    speed = f"updates run at {plain / compiled:.2f} times the plain speed"
    if plain / compiled <= 1:
        return f"torch_compile does not pay here: {speed}; leave it out"
    needed = math.ceil(compiling / ((plain - compiled) * updates))
    cost = f"{compiling:.0f} s of compiling pay off in {needed} steps"
    if needed > steps:
        return (
            f"torch_compile does not pay in this run of {steps} steps: {speed}, but {cost}; "
            "leave it out"
        )
    return f"torch_compile: {speed}; {cost}"


class Compiling(Part):
    """Compiles the models' bodies, counts the graphs, and measures whether compiling pays.

    Args:
        trainer: The `RookWorldGRPOTrainer`.
        buckets: The lengths to compile graphs for; None compiles each length when it occurs.

    Attributes:
        speedup: Speed of a compiled update divided by that of a plain one; None until measured.
    """

    def __init__(self, trainer: Any, buckets: Buckets | None) -> None:
        self.trainer = trainer
        self.watch = CompileWatch()
        self.speedup: float | None = None
        self._buckets = buckets
        self._lengths = buckets.lengths if buckets is not None else ()
        self._forwards = {
            (body := backbone(network)): torch.compile(
                body.forward,
                backend=trainer.args.torch_compile_backend,
                mode=trainer.args.torch_compile_mode,
                dynamic=False if self._lengths else None,
            )
            for network in trainer.networks()
        }
        self._warm_until: int | None = None  # optimiser steps; None before training
        self._graphs_counted = 0  # at the last log, or at the end of the warm-up
        self._timed_step = -1
        self._timings: dict[str, list[float]] = {"plain": [], "compiled": []}  # seconds

    @classmethod
    def of(cls, trainer: Any, buckets: Buckets | None) -> Compiling | None:
        """The part, if the trainer's arguments ask for it."""
        return cls(trainer, buckets) if trainer.args.torch_compile else None

    def score(self, score: Callable[..., Scores], *args: Any, **kwargs: Any) -> Scores:
        """Score with another method, `score`, with the compiled bodies in place."""
        with in_place(self._forwards):
            return score(*args, **kwargs)

    # --------------------------------------------------------------------------------------------
    # Warm-up
    # --------------------------------------------------------------------------------------------
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        steps = arguments_of(args, ShapeArguments).compile_warmup_steps
        self._warm_until = state.global_step + steps
        self.watch = CompileWatch()
        self.compile_graphs()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._warm_until:
            self.end_warmup()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._warm_until = None

    def compile_graphs(self) -> None:
        """Compile every graph that training needs: for each bucket, and each way to score it."""
        # Beyond this limit torch would stop compiling.
        limit = max(torch._dynamo.config.recompile_limit, _GRAPHS_A_BUCKET * len(self._lengths))
        torch._dynamo.config.recompile_limit = limit
        trainer = self.trainer
        training = trainer.model.training
        trainer.model.train()  # a graph holds for one mode only
        for length in self._lengths:
            assert self._buckets is not None
            batch = self._buckets.example(length, trainer.accelerator.device)
            self._seconds(*batch)
            self._score_without_gradient(batch)
        trainer.model.train(training)
        if self._lengths:
            trainer.accelerator.print(
                f"torch_compile: {self.watch.graphs} graphs for "
                f"{', '.join(map(str, self._lengths))} tokens, compiled in "
                f"{self.watch.seconds:.0f} s"
            )

    @torch.no_grad()
    def _score_without_gradient(self, batch: tuple[torch.Tensor, torch.Tensor, int]) -> None:
        """Score as for the reference and, if the loss needs it, as for the policy after sampling."""
        trainer, args = self.trainer, self.trainer.args
        fetched = args.steps_per_generation * trainer.num_iterations
        estimates = trainer.parts.value_head is not None
        with disable_gradient_checkpointing(trainer.model, args.gradient_checkpointing_kwargs):
            corrects = trainer.use_vllm and trainer.vllm_importance_sampling_correction
            if estimates or corrects or args.gradient_accumulation_steps % fetched:
                trainer.log_probs(trainer.model, *batch)
        trainer.reference_log_probs(*batch)

    # --------------------------------------------------------------------------------------------
    # Whether it pays
    # --------------------------------------------------------------------------------------------
    def before_loss(self, inputs: Mapping[str, Any]) -> None:
        """During the warm-up, time the first forward and backward of each step, plain and compiled."""
        step = self.trainer.state.global_step
        is_due = self._warm_until is not None and step < self._warm_until
        if is_due and self.trainer.model.training and step != self._timed_step:
            self._timed_step = step
            batch = (*whole(inputs), inputs.get("temperature"))
            for way, seconds in self._timings.items():
                self._seconds(*batch, plain=way == "plain")  # the first run of a shape is slower
                seconds.append(self._seconds(*batch, plain=way == "plain"))

    def _seconds(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        length: int,
        temperatures: torch.Tensor | None = None,
        plain: bool = False,
    ) -> float:
        """Seconds of a forward and its backward; the gradients are discarded."""
        trainer = self.trainer
        weights = [weight for weight in trainer.model.parameters() if weight.requires_grad]
        self._synchronise()
        started = time.perf_counter()
        with trainer.compute_loss_context_manager():
            logps = trainer.log_probs(
                trainer.model,
                ids,
                mask,
                length,
                temperatures=temperatures,
                plain=plain,
                compute_entropy=True,
            ).logps
        torch.autograd.grad(logps.sum(), weights, allow_unused=True)
        self._synchronise()
        return time.perf_counter() - started

    def _synchronise(self) -> None:
        if self.trainer.accelerator.device.type != "cpu":
            torch.accelerator.synchronize()

    def end_warmup(self) -> None:
        """Print whether compiling pays; graphs that are compiled from now on count as recompilations."""
        trainer = self.trainer
        self._graphs_counted = self.watch.graphs
        if not self._timings["plain"]:
            return
        medians = [statistics.median(self._timings[way]) for way in ("plain", "compiled")]
        plain, compiled, compiling = self._slowest(*medians, self.watch.seconds)
        self.speedup = plain / compiled
        updates, steps = trainer.args.gradient_accumulation_steps, trainer.state.max_steps
        trainer.accelerator.print(payoff(plain, compiled, updates, compiling, steps))

    def _slowest(self, *numbers: float) -> list[float]:
        """The largest numbers over all processes, because they all wait for the slowest."""
        accelerator = self.trainer.accelerator
        local = torch.tensor(numbers, dtype=torch.float64).to(accelerator.device)
        largest: list[float] = accelerator.gather(local.unsqueeze(0)).amax(0).tolist()
        return largest

    # --------------------------------------------------------------------------------------------
    # Logs
    # --------------------------------------------------------------------------------------------
    def numbers(self) -> dict[str, float]:
        """Counts for the log, from the process that compiled most; empty outside of training."""
        if self._warm_until is None:
            return {}
        is_warm = self.trainer.state.global_step > self._warm_until
        again = self.watch.graphs - self._graphs_counted if is_warm else 0
        if is_warm:
            self._graphs_counted = self.watch.graphs
        most = self._slowest(self.watch.graphs, again, self.watch.seconds)
        names = ("graphs", "recompilations", "seconds")
        numbers = {f"compile/{name}": n for name, n in zip(names, most, strict=True)}
        if self.speedup is not None:
            numbers["compile/speedup"] = self.speedup
        return numbers
