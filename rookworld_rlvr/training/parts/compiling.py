"""Constant shapes under `torch.compile`: buckets of lengths, graphs counted, and whether it pays.

accelerate compiles a whole model, and TRL's head with it, which on a GPU picks the completions' tokens
out of the batch: its shapes follow from the data, and no padding makes them constant. So it is the
transformer's body alone that is compiled here, and only while log-probs are computed. Sampling, where
each token makes the text longer, stays eager. Nothing is wrapped: weights keep their names.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import TorchDynamoPlugin
from torch._dynamo.callback import CallbackArgs, callback_handler
from torch._dynamo.utils import counters
from transformers import TrainerCallback
from trl import GRPOConfig
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import use_adapter

from ...common.errors import RookWorldError
from .sampling import TaskSamplingGRPOTrainer, backbone

MOST_BUCKETS = 4


_MULTIPLE = 8  # derived lengths are multiples of it, as GPUs' matrix units have them


_GRAPHS_A_BUCKET = 8  # the policy with and without gradient, the reference, and room to spare


@dataclass
class ShapeArguments:
    """Keys for `torch_compile`.

    Args:
        shape_buckets: Tokens that prompt and completion together are padded up to, ascending; one graph
            is compiled for each before training. None derives four from the prompts' lengths and
            `max_completion_length`, where `torch_compile` is on; an empty list pads nothing, and graphs
            are compiled as lengths come.
        compile_warmup_steps: Optimiser steps in which an update is timed with and without compiling,
            which makes them slower; graphs that are compiled after them are recompilations.
    """

    shape_buckets: list[int] | None = None
    compile_warmup_steps: int = 3

    def shape_faults(self, args: GRPOConfig) -> list[str]:
        """What is wrong, one sentence each."""
        faults = []
        given = self.shape_buckets or []
        if any(isinstance(item, bool) or item < 1 for item in given):
            faults.append(f"shape_buckets: {given} are no whole numbers above 0")
        elif sorted(set(given)) != given:
            faults.append(f"shape_buckets: {given} do not ascend")
        if isinstance(self.compile_warmup_steps, bool) or self.compile_warmup_steps < 1:
            faults.append(
                f"compile_warmup_steps: {self.compile_warmup_steps!r} is no whole number from 1"
            )
        compiles = args.torch_compile or args.torch_compile_backend or args.torch_compile_mode
        launched = (os.environ.get(f"ACCELERATE_USE_{kind}") for kind in ("FSDP", "DEEPSPEED"))
        if compiles and (args.fsdp or args.deepspeed or "true" in launched):
            faults.append("torch_compile: compiles no sharded model; leave it out, or the sharding")
        if compiles and dict(args.gradient_checkpointing_kwargs or {}).get("use_reentrant"):
            faults.append(
                "torch_compile: is timed in a way that gradient_checkpointing_kwargs: {use_reentrant: "
                "true} does not allow; set it to false"
            )
        return faults


# --------------------------------------------------------------------------------------------------
# Buckets
# --------------------------------------------------------------------------------------------------
def derived_buckets(shortest: int, longest: int) -> tuple[int, ...]:
    """Evenly spaced lengths up to the longest, so that none is padded by more than the spacing.

    Args:
        shortest: Tokens of the shortest batch there can be.
        longest: Of the longest.

    >>> derived_buckets(40, 150)
    (72, 96, 128, 152)
    >>> derived_buckets(60, 66)
    (64, 72)
    """
    spacing = (longest - shortest) / MOST_BUCKETS
    ends = (shortest + spacing * number for number in range(1, MOST_BUCKETS + 1))
    return tuple(sorted({_MULTIPLE * math.ceil(end / _MULTIPLE) for end in ends}))


def bucket_of(length: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds a length.

    Raises:
        RookWorldError: None does.

    >>> bucket_of(97, (72, 96, 128))
    128
    """
    fitting = [bucket for bucket in buckets if bucket >= length]
    if not fitting:
        raise RookWorldError(
            f"shape_buckets: a prompt and its completion can have {length} tokens, the largest bucket "
            f"has {buckets[-1]}; add {length}"
        )
    return min(fitting)


def padded(batch: torch.Tensor, rows: int, length: int, value: int) -> torch.Tensor:
    """A batch ``(B, T)`` as ``(rows, length)``: `value` on the left, and its last row again below.

    A row of nothing but padding would have nothing to attend to.
    """
    wide = torch.nn.functional.pad(batch, (length - batch.size(1), 0), value=value)
    return _repeat_last(wide, rows)


def _repeat_last(batch: torch.Tensor, rows: int) -> torch.Tensor:
    last = batch[-1:].expand(rows - batch.size(0), *batch.shape[1:])
    return torch.cat([batch, last])


# --------------------------------------------------------------------------------------------------
# Compiling
# --------------------------------------------------------------------------------------------------
class CompiledBodies:
    """Transformer bodies' compiled forwards, which stand in place of their own within `in_place`.

    Hooks run outside of the graphs.

    Args:
        networks: Models with a head, adapters around them or not; they share what can be shared.
        kwargs: For `torch.compile`.
    """

    def __init__(self, networks: Sequence[torch.nn.Module], **kwargs: Any) -> None:
        bodies = [backbone(network) for network in networks]
        self._forwards = [(body, torch.compile(body.forward, **kwargs)) for body in bodies]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Compiled forwards within, the bodies' own after it."""
        before = [body.__dict__.get("forward") for body, _ in self._forwards]
        for body, forward in self._forwards:
            body.forward = forward
        try:
            yield
        finally:
            for (body, _), own in zip(self._forwards, before, strict=True):
                if own is None:
                    del body.forward
                else:
                    body.forward = own


class CompileWatch:
    """Counts the graphs that this process compiles, and the seconds which that takes.

    Attributes:
        seconds: Since `start`, backward graphs included.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = 0.0
        self._before = 0

    @property
    def graphs(self) -> int:
        """Since `start`; a forward and its backward are one."""
        return int(counters["stats"]["unique_graphs"]) - self._before

    def start(self) -> None:
        self.seconds = 0.0
        self._before = int(counters["stats"]["unique_graphs"])
        callback_handler.register_start_callback(self._begin)
        callback_handler.register_end_callback(self._end)

    def stop(self) -> None:
        with suppress(ValueError):  # `torch._dynamo.reset` has forgotten them
            callback_handler.remove_start_callback(self._begin)
            callback_handler.remove_end_callback(self._end)

    def _begin(self, args: CallbackArgs) -> None:
        self._started = time.perf_counter()

    def _end(self, args: CallbackArgs) -> None:
        self.seconds += time.perf_counter() - self._started


@dataclass(frozen=True, slots=True)
class Payoff:
    """What compiling gains, and what it has cost.

    Args:
        plain: Seconds of an update without compiling and padding: a forward and its backward.
        compiled: Of the same with both.
        updates: Of an optimiser step.
        compiling: Seconds that went into compiling.
        steps: Optimiser steps of the whole run.
    """

    plain: float
    compiled: float
    updates: int
    compiling: float
    steps: int

    @property
    def speedup(self) -> float:
        return self.plain / self.compiled

    def describe(self) -> str:
        """One sentence.

        >>> Payoff(plain=0.9, compiled=1.0, updates=1, compiling=8.0, steps=500).describe()
        'torch_compile does not pay here: an update has 0.90 of the speed without it; leave it out'
        >>> Payoff(plain=1.0, compiled=0.5, updates=2, compiling=8.0, steps=500).describe()
        'torch_compile: an update has 2.00 of the speed without it; 8 s of compiling pay off in 8 steps'
        """
        speed = f"an update has {self.speedup:.2f} of the speed without it"
        if self.speedup <= 1:
            return f"torch_compile does not pay here: {speed}; leave it out"
        steps = math.ceil(self.compiling / ((self.plain - self.compiled) * self.updates))
        cost = f"{self.compiling:.0f} s of compiling pay off in {steps} steps"
        if steps > self.steps:
            return (
                f"torch_compile does not pay in this run of {self.steps} steps: {speed}, but {cost}; "
                "leave it out"
            )
        return f"torch_compile: {speed}; {cost}"


# --------------------------------------------------------------------------------------------------
# The trainer
# --------------------------------------------------------------------------------------------------
class ShapedGRPOTrainer(TaskSamplingGRPOTrainer):
    """`TaskSamplingGRPOTrainer` whose log-probs come from a few shapes; the constructor is TRL's.

    Sequences are padded on the left, to a bucket, and batches with rows, to
    `per_device_train_batch_size`; what comes out has the shape of what went in, so that losses and
    metrics know nothing of it.

    Attributes:
        buckets: Lengths in tokens, ascending; empty where nothing is padded.
        compiled: None where `torch_compile` is off.
        payoff: What compiling gains; None until it has been measured.
    """

    def __init__(self, model: Any, reward_funcs: Any = None, args: Any = None, **kwargs: Any):
        super().__init__(model, reward_funcs, args, **kwargs)
        self.shape_args = args if isinstance(args, ShapeArguments) else ShapeArguments()
        self.buckets = self._find_buckets()
        self.compiled: CompiledBodies | None = None
        self.compile_watch = CompileWatch()
        self.payoff: Payoff | None = None
        self._warm_until: int | None = None  # optimiser steps; None before training
        self._graphs_counted = 0  # when last logged, or at the end of the warm-up
        self._timed_step = -1
        self._timings: dict[str, list[float]] = {"plain": [], "compiled": []}  # seconds
        if self.args.torch_compile:
            self.compiled = CompiledBodies(
                self._networks(),
                backend=self.args.torch_compile_backend,
                mode=self.args.torch_compile_mode,
                dynamic=False if self.buckets else None,
            )
            self.add_callback(_CompileCallback(self))

    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        """As transformers' own, but that accelerate compiles nothing where this class does."""
        arguments: dict[str, Any] = super()._build_accelerator_args(**kwargs)
        if self.args.torch_compile:
            arguments["dynamo_plugin"] = TorchDynamoPlugin(backend="no")
        return arguments

    def _networks(self) -> list[torch.nn.Module]:
        """Policy and, where it is a model of its own, reference."""
        known = [network for network in (self.model, self.ref_model) if network is not None]
        return [self.accelerator.unwrap_model(network) for network in known]

    def _find_buckets(self) -> tuple[int, ...]:
        given = self.shape_args.shape_buckets
        if given == [] or (given is None and not self.args.torch_compile):
            return ()
        prompts = sorted(set(self.train_dataset["prompt"][:]))
        lengths = [len(ids) for ids in self.processing_class(prompts)["input_ids"]]
        multiple = self.pad_to_multiple_of or 1  # TRL pads prompts and completions, each by itself
        longest = sum(
            multiple * math.ceil(length / multiple)
            for length in (max(lengths), self.max_completion_length)
        )
        buckets = tuple(given) if given else derived_buckets(min(lengths) + 1, longest)
        bucket_of(longest, buckets)
        return buckets

    # --------------------------------------------------------------------------------------------
    # Scoring
    # --------------------------------------------------------------------------------------------
    def _get_per_token_logps_and_entropies(
        self,
        model: torch.nn.Module,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        score = super()._get_per_token_logps_and_entropies
        compiled: AbstractContextManager[None] = nullcontext()
        if self.compiled is not None:
            compiled = self.compiled.in_place()
        if not self.buckets:
            with compiled:
                return score(model, input_ids, attention_mask, logits_to_keep, batch_size, **kwargs)
        count, size = input_ids.size(0), self.args.per_device_train_batch_size
        rows = size * math.ceil(count / size)
        length = bucket_of(input_ids.size(1), self.buckets)
        ids = padded(input_ids, rows, length, self._tokenizer.pad_token_id)
        mask = padded(attention_mask, rows, length, 0)
        temperatures = self._temperatures
        if temperatures is not None:
            temperatures = _repeat_last(temperatures, rows)
        with compiled, self.at_temperatures(temperatures):
            logps, entropies, aux_loss = score(model, ids, mask, logits_to_keep, size, **kwargs)
        return logps[:count], None if entropies is None else entropies[:count], aux_loss

    # --------------------------------------------------------------------------------------------
    # Warm-up
    # --------------------------------------------------------------------------------------------
    def compile_graphs(self) -> None:
        """Compile every graph that training has need of: of each bucket, and each way to score it."""
        # Past the limit torch goes on without compiling.
        limit = max(torch._dynamo.config.recompile_limit, _GRAPHS_A_BUCKET * len(self.buckets))
        torch._dynamo.config.recompile_limit = limit
        training = self.model.training
        self.model.train()  # graphs are for one mode
        for length in self.buckets:
            device, rows = self.accelerator.device, self.args.per_device_train_batch_size
            ids = torch.zeros(rows, length, dtype=torch.long, device=device)
            batch = (ids, torch.ones_like(ids), length - 1)
            self._seconds(ShapedGRPOTrainer._get_per_token_logps_and_entropies, *batch)
            self._score_without_gradient(batch)
        self.model.train(training)
        if self.buckets:
            self.accelerator.print(
                f"torch_compile: {self.compile_watch.graphs} graphs for "
                f"{', '.join(map(str, self.buckets))} tokens, compiled in "
                f"{self.compile_watch.seconds:.0f} s"
            )

    @torch.no_grad()
    def _score_without_gradient(self, batch: tuple[torch.Tensor, torch.Tensor, int]) -> None:
        """Score as for the reference, and for the policy when sampled where the loss asks for it."""
        score = ShapedGRPOTrainer._get_per_token_logps_and_entropies
        policy = self.accelerator.unwrap_model(self.model)
        arguments = self.args
        fetched = arguments.steps_per_generation * self.num_iterations
        estimates = getattr(arguments, "advantage_estimator", "group") != "group"
        with disable_gradient_checkpointing(self.model, arguments.gradient_checkpointing_kwargs):
            corrects = self.use_vllm and self.vllm_importance_sampling_correction
            if estimates or corrects or arguments.gradient_accumulation_steps % fetched:
                score(self, self.model, *batch)
            if self.ref_model is not None:
                score(self, self.ref_model, *batch)
            elif hasattr(policy, "peft_config"):
                name = "ref" if "ref" in policy.peft_config else None
                with use_adapter(policy, adapter_name=name):
                    score(self, self.model, *batch)

    # --------------------------------------------------------------------------------------------
    # Does it pay
    # --------------------------------------------------------------------------------------------
    def compute_loss(self, model: Any, inputs: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As TRL's own; in the warm-up its forward and backward are timed first, for nothing else."""
        step = self.state.global_step
        is_due = self._warm_until is not None and step < self._warm_until
        if is_due and self.model.training and step != self._timed_step:
            self._timed_step = step
            self._time_both(inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _time_both(self, inputs: Mapping[str, Any]) -> None:
        """Time a batch as it is trained on, and as it would be without compiling and padding."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        ways: dict[str, Callable[..., Any]] = {
            "plain": TaskSamplingGRPOTrainer._get_per_token_logps_and_entropies,
            "compiled": ShapedGRPOTrainer._get_per_token_logps_and_entropies,
        }
        with self.at_temperatures(inputs.get("temperature")):
            for way, score in ways.items():
                length = inputs["completion_ids"].size(1)
                self._seconds(score, ids, mask, length)  # the first of a shape is slower
                self._timings[way].append(self._seconds(score, ids, mask, length))

    def _seconds(
        self, score: Callable[..., Any], ids: torch.Tensor, mask: torch.Tensor, length: int
    ) -> float:
        """Seconds of a forward and its backward; gradients are thrown away."""
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        self._synchronise()
        started = time.perf_counter()
        with self.compute_loss_context_manager():
            logps, _, _ = score(self, self.model, ids, mask, length, compute_entropy=True)
        torch.autograd.grad(logps.sum(), weights, allow_unused=True)
        self._synchronise()
        return time.perf_counter() - started

    def _synchronise(self) -> None:
        if self.accelerator.device.type != "cpu":
            torch.accelerator.synchronize()

    def end_warmup(self) -> None:
        """Say whether compiling pays; from now on graphs that are compiled are recompilations."""
        self._graphs_counted = self.compile_watch.graphs
        if not self._timings["plain"]:
            return
        medians = [statistics.median(self._timings[way]) for way in ("plain", "compiled")]
        local = torch.tensor([*medians, self.compile_watch.seconds], dtype=torch.float64)
        # Processes wait for the slowest.
        slowest = self.accelerator.gather(local.to(self.accelerator.device).unsqueeze(0)).amax(0)
        plain, compiled, compiling = slowest.tolist()
        updates = self.args.gradient_accumulation_steps
        self.payoff = Payoff(plain, compiled, updates, compiling, self.state.max_steps)
        self.accelerator.print(self.payoff.describe())

    # --------------------------------------------------------------------------------------------
    # Logs
    # --------------------------------------------------------------------------------------------
    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As TRL's own; what was compiled comes with a step's metrics."""
        if self._warm_until is not None and "loss" in logs:
            logs = {**logs, **self._compile_numbers()}
        super().log(logs, start_time)

    def _compile_numbers(self) -> dict[str, float]:
        """Of the process that has compiled most."""
        watch, is_warm = self.compile_watch, self.state.global_step > (self._warm_until or 0)
        again = watch.graphs - self._graphs_counted if is_warm else 0
        if is_warm:
            self._graphs_counted = watch.graphs
        local = torch.tensor([watch.graphs, again, watch.seconds], dtype=torch.float64)
        most = self.accelerator.gather(local.to(self.accelerator.device).unsqueeze(0)).amax(0)
        names = ("graphs", "recompilations", "seconds")
        numbers = {f"compile/{name}": n for name, n in zip(names, most.tolist(), strict=True)}
        if self.payoff is not None:
            numbers["compile/speedup"] = self.payoff.speedup
        return numbers


class _CompileCallback(TrainerCallback):
    def __init__(self, trainer: ShapedGRPOTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        trainer._warm_until = state.global_step + trainer.shape_args.compile_warmup_steps
        trainer.compile_watch.start()
        trainer.compile_graphs()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.trainer._warm_until:
            self.trainer.end_warmup()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.compile_watch.stop()
        self.trainer._warm_until = None
