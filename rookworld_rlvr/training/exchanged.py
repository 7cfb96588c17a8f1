"""The exceptions: what is exchanged in TRL and vLLM for a while, and put back on every exit.

- The metrics of TRL's trainer, for what is computed beside a step (`unrecorded`).
- vLLM's constructor, and on a CPU the choice of its matrix product, while it starts (`sampler_starts`).
- The method of vLLM by which TRL samples, during a call, so that each row has its settings (`by_row`).

Nothing else of a library is exchanged; `tests/training/test_canary.py` watches.

vLLM computes a completion's log-probs in its own way, so they differ a little from the trainer's. TRL
weights each completion by the ratio of the two (`vllm_importance_sampling_correction`). vLLM's log-probs
are those after top-p and top-k, the trainer's those before. A token that is cut off is never sampled,
and no weight makes up for that: with top-p 1 and top-k 0 there is no such bias.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from accelerate import PartialState
from requests import ConnectionError as NoConnection
from transformers import PreTrainedModel, set_seed
from trl import GRPOConfig

from ..common.errors import RookWorldError
from ..models.decoding import Drawn
from ..tasks.task import Sampling

if TYPE_CHECKING:
    from .step import Step


# --------------------------------------------------------------------------------------------------
# Metrics
# --------------------------------------------------------------------------------------------------
@contextmanager
def unrecorded(trainer: Step) -> Iterator[Mapping[str, list[float]]]:
    """Compute something beside a step; gives what it would have logged, by name.

    Call the trainer's `settle` for what it has tallied.
    """
    metrics: Any = trainer._metrics
    kept, tallies, trainer.tallies = dict(metrics), trainer.tallies, {}
    metrics |= {mode: defaultdict(list) for mode in kept}
    try:
        yield metrics["train"]
    finally:
        if counted := metrics["train"].get("num_tokens"):
            kept["train"]["num_tokens"] = counted
        metrics |= kept
        trainer.tallies = tallies


# --------------------------------------------------------------------------------------------------
# vLLM
# --------------------------------------------------------------------------------------------------
def vllm_faults(args: GRPOConfig) -> list[str]:
    """Why vLLM cannot sample for a recipe, one sentence each."""
    if find_spec("vllm") is None:
        return [
            "use_vllm: vLLM is not installed; run pip install 'rookworld-rlvr[vllm]', or leave use_vllm "
            "out"
        ]
    if args.vllm_mode == "server" and not torch.cuda.is_available():
        return [
            "vllm_mode: server needs a GPU for the trainer too, because TRL sends the weights by NCCL; "
            "give vllm_mode: colocate"
        ]
    return []


def sampler_starts(args: Any, model: str | PreTrainedModel) -> AbstractContextManager[None]:
    """What goes around TRL's constructor: nothing, or what starts vLLM, see `_vllm_starts`."""
    return _vllm_starts(args, model) if getattr(args, "use_vllm", False) else nullcontext()


@contextmanager
def _vllm_starts(args: Any, model: str | PreTrainedModel) -> Iterator[None]:
    """Start TRL's vLLM in the policy's precision; if it does not start, say so in one message.

    Without a precision vLLM computes fp32 models in bf16. The packaged model's log-probs are then off by
    up to 0.09 nats, instead of 5e-6.

    Args:
        args: The trainer's arguments.
        model: The policy, or its path.

    Raises:
        RookWorldError: vLLM refuses the model or the settings, or there is no server.
    """
    from trl.generation import vllm_generation

    theirs = vllm_generation.LLM
    vllm_generation.LLM = partial(_start, theirs, _precision(args, model))
    try:
        with _replaceable_weights():
            yield
    except NoConnection as error:
        raise RookWorldError(
            f"vllm_mode: server: {error} Start it with trl vllm-serve, or give vllm_server_base_url"
        ) from error
    finally:
        vllm_generation.LLM = theirs
    if args.vllm_mode == "colocate":
        # vLLM has set the seed of this process to its own; processes of one model draw alike.
        group = PartialState().process_index // args.vllm_tensor_parallel_size
        set_seed(args.seed + group)


def _start(build: Callable[..., Any], dtype: str, **settings: Any) -> Any:
    try:
        return build(dtype=dtype, **settings)
    except (ValueError, RuntimeError) as error:
        raise RookWorldError(
            f"vLLM could not start ({' '.join(str(error).split())[:500]}); "
            "vllm_gpu_memory_utilization and vllm_max_model_length say how much memory it takes"
        ) from error


def _precision(args: Any, model: str | PreTrainedModel) -> str:
    if args.bf16 or args.fp16:
        return "bfloat16" if args.bf16 else "float16"
    named = (args.model_init_kwargs or {}).get("dtype", "float32")
    return str(named if isinstance(model, str) else model.dtype).removeprefix("torch.")


@contextmanager
def _replaceable_weights() -> Iterator[None]:
    """On a CPU, keep vLLM from packing its matrices, because it could not take new weights then."""
    from vllm.model_executor.layers import utils  # type: ignore[import-not-found]
    from vllm.platforms import current_platform  # type: ignore[import-not-found]

    packs = utils.dispatch_cpu_unquantized_gemm
    if current_platform.is_cpu():
        utils.dispatch_cpu_unquantized_gemm = _multiply_plainly
    try:
        yield
    finally:
        utils.dispatch_cpu_unquantized_gemm = packs


def _multiply_plainly(layer: Any, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear


def draw_by_vllm(
    trainer: Step, prompts: Sequence[Sequence[int]], rows: Sequence[Sampling]
) -> Drawn:
    """Draw one completion per prompt from all tokens, and give vLLM's own log-probs.

    Every process must call it with equally many prompts.

    Args:
        trainer: One that samples by vLLM.
        prompts: Token ids of `B` prompts.
        rows: How each is sampled.
    """
    engine: Any = trainer.vllm_generation
    uncut = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
    before = {name: getattr(engine, name) for name in uncut}
    engine.sync_weights()
    vars(engine).update(uncut)
    try:
        with by_row(trainer, rows, is_uncut=True):
            _, ids, logps, _ = engine.generate(prompts=prompts, images=None, num_generations=1)
    finally:
        vars(engine).update(before)
    nan = float("nan")
    known = [[nan if token[0] is None else token[0] for token in row] for row in logps]
    return Drawn([list(row) for row in ids], known)


@contextmanager
def by_row(trainer: Step, rows: Sequence[Sampling], is_uncut: bool = False) -> Iterator[None]:
    """Give each row its settings while vLLM samples in this process; it takes one record of them a row.

    Args:
        trainer: Any; without `task_sampling` all rows have the trainer's settings.
        rows: How each row is sampled.
        is_uncut: Whether top-p and top-k are left out.
    """
    engine = getattr(trainer, "vllm_generation", None)
    if trainer.task_samplings is None or engine is None or engine.mode != "colocate":
        yield
        return
    generate: Callable[..., Any] = engine.llm.generate

    def with_rows(prompts: Any, sampling_params: Any, **kwargs: Any) -> Any:
        records = []
        for row in _of_engine(engine, rows):
            record = sampling_params.clone()
            record.temperature = row.temperature
            record.max_tokens = row.max_completion_length or trainer.max_completion_length
            if not is_uncut:
                record.top_p, record.top_k = row.top_p, row.top_k
            records.append(record)
        return generate(prompts, sampling_params=records, **kwargs)

    engine.llm.generate = with_rows
    try:
        yield
    finally:
        engine.llm.generate = generate


def _of_engine(engine: Any, rows: Sequence[Sampling]) -> list[Sampling]:
    """The rows of all processes that share one model of vLLM, which samples them together."""
    if engine.tensor_parallel_size == 1:
        return [*rows]
    gathered: list[Any] = [None] * engine.tensor_parallel_size
    torch.distributed.all_gather_object(gathered, [*rows], group=engine.tp_group)
    return [row for of_process in gathered for row in of_process]
