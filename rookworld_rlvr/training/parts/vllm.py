"""Sampling by vLLM: the precision that it gets, and each row's settings.

vLLM computes a completion's log-probs in its own way, so they differ a little from the trainer's. TRL
weights each completion by the ratio of the two (`vllm_importance_sampling_correction`). vLLM's log-probs
are those after top-p and top-k, the trainer's those before. A token that is cut off is never sampled,
and no weight makes up for that: with top-p 1 and top-k 0 there is no such bias.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from requests import ConnectionError as NoConnection
from transformers import PreTrainedModel, set_seed
from trl import GRPOConfig
from trl.generation import vllm_generation

from ...common.errors import RookWorldError
from ...models.decoding import Drawn
from .part import Part


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


# --------------------------------------------------------------------------------------------------
# Starting
# --------------------------------------------------------------------------------------------------
@contextmanager
def vllm_starts(args: Any, model: str | PreTrainedModel) -> Iterator[None]:
    """Start TRL's vLLM in the policy's precision; if it does not start, say so in one message.

    Without a precision vLLM computes fp32 models in bf16. The packaged model's log-probs are then off by
    up to 0.09 nats, instead of 5e-6.

    Args:
        args: The trainer's arguments.
        model: The policy, or its path.

    Raises:
        RookWorldError: vLLM refuses the model or the settings, or there is no server.
    """
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


# --------------------------------------------------------------------------------------------------
# The part
# --------------------------------------------------------------------------------------------------
class VLLM(Part):
    """Gives colocated vLLM each row's settings, and draws from all tokens for the preflight."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._engine = engine = trainer.vllm_generation
        self._is_uncut = False  # whether rows are drawn from all tokens
        first: dict[str, Any] = next(iter(trainer.train_dataset), {})
        if trainer.task_samplings is not None and not isinstance(first.get("prompt", ""), str):
            raise RookWorldError(
                "task_sampling: with use_vllm the task of a chat is not known when it is sampled; leave "
                "either out, or give prompts as texts"
            )
        if engine.mode == "colocate":
            engine.llm.generate = partial(self._by_row, engine.llm.generate)
            # vLLM has set the seed of this process to its own; processes of one model draw alike.
            group = trainer.accelerator.process_index // engine.tensor_parallel_size
            set_seed(trainer.args.seed + group)

    def draw(self, prompts: Sequence[Sequence[int]]) -> Drawn:
        """Draw one completion per prompt from all tokens, and give vLLM's own log-probs.

        Every process must call it with equally many prompts.

        Args:
            prompts: Token ids of `B` prompts.
        """
        engine, uncut = self._engine, {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
        before = {name: getattr(engine, name) for name in uncut}
        engine.sync_weights()
        vars(engine).update(uncut)
        self._is_uncut = True
        try:
            _, ids, logps, _ = engine.generate(prompts=prompts, images=None, num_generations=1)
        finally:
            self._is_uncut = False
            vars(engine).update(before)
        nan = float("nan")
        rows = [[nan if token[0] is None else token[0] for token in row] for row in logps]
        return Drawn([list(row) for row in ids], rows)

    def _by_row(
        self, generate: Callable[..., Any], prompts: Any, sampling_params: Any, **kwargs: Any
    ) -> Any:
        """Give each row its task's settings; vLLM takes one record of them a row."""
        trainer = self._trainer
        if trainer.task_samplings is None:
            return generate(prompts, sampling_params=sampling_params, **kwargs)
        ids = [prompt["prompt_token_ids"] for prompt in prompts]
        texts = trainer.processing_class.batch_decode(ids, skip_special_tokens=True)
        records = []
        for row in trainer.samplings(texts):
            record = sampling_params.clone()
            record.temperature = row.temperature
            record.max_tokens = row.max_completion_length or trainer.max_completion_length
            if not self._is_uncut:
                record.top_p, record.top_k = row.top_p, row.top_k
            records.append(record)
        return generate(prompts, sampling_params=records, **kwargs)
