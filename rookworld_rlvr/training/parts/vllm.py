"""Sampling by vLLM: the weights and the precision it gets, each row's settings, how far off it is.

vLLM computes a completion's log-probs in its own way, so they differ a little from the trainer's. TRL
weights each completion by the ratio of the two (`vllm_importance_sampling_correction`). vLLM's log-probs
are those after top-p and top-k, the trainer's those before. A token that is cut off is never sampled,
and no weight makes up for that: with top-p 1 and top-k 0 there is no such bias.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from datasets import IterableDataset
from requests import ConnectionError as NoConnection
from transformers import PreTrainedModel, set_seed
from trl import GRPOConfig
from trl.generation import vllm_generation

from ...common.errors import RookWorldError
from ...models.decoding import Drawn
from ...tasks.task import Sampling
from .part import Batch, Call, Part

_MEMORY = "vllm_gpu_memory_utilization and vllm_max_model_length say how much memory it takes"


def vllm_faults(args: GRPOConfig) -> list[str]:
    """Why vLLM cannot sample for a recipe, one sentence each."""
    if find_spec("vllm") is None:
        return [
            "use_vllm: vLLM is not installed; run pip install 'rookworld-rlvr[vllm]', or leave use_vllm "
            "out"
        ]
    faults = []
    if args.vllm_mode == "server" and not torch.cuda.is_available():
        faults.append(
            "vllm_mode: server needs a GPU for the trainer too, because TRL sends the weights by NCCL; "
            "give vllm_mode: colocate"
        )
    if args.pass_samples and args.generation_kwargs:
        faults.append(
            "pass_samples: its answers are not sampled by vLLM, and would lack its generation_kwargs; "
            "leave one of the two out"
        )
    return faults


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


def _precision(args: Any, model: str | PreTrainedModel) -> str:
    if args.bf16 or args.fp16:
        return "bfloat16" if args.bf16 else "float16"
    if isinstance(model, str):
        return str((args.model_init_kwargs or {}).get("dtype", "float32")).removeprefix("torch.")
    return str(model.dtype).removeprefix("torch.")


def _start(build: Callable[..., Any], dtype: str, **settings: Any) -> Any:
    if not settings["model"]:
        raise RookWorldError(
            "use_vllm: vLLM reads a model from its folder or from the Hub, but this one has neither; "
            "save it, and load it from there"
        )
    try:
        return build(dtype=dtype, **settings)
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:500]
        raise RookWorldError(f"vLLM could not start ({reason}); {_MEMORY}") from error


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
    """Gives vLLM the policy's weights and each row's settings, and measures how far off it is.

    Args:
        trainer: The `RookWorldGRPOTrainer`.

    Raises:
        RookWorldError: A prompt and its completion may need more positions than vLLM has.
    """

    @classmethod
    def of(cls, trainer: Any) -> VLLM:
        return cls(trainer)

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._engine = trainer.vllm_generation
        self._uncut = False  # whether rows are drawn from all tokens
        self._check_lengths()
        engine = self._engine
        engine.sync_weights = partial(self._without_value_head, engine.sync_weights)
        if engine.mode == "colocate":
            engine.llm.generate = partial(self._in_one_call, engine.llm.generate)
            # vLLM has set the seed of this process to its own; processes of one model draw alike.
            group = trainer.accelerator.process_index // engine.tensor_parallel_size
            set_seed(trainer.args.seed + group)
        elif trainer.accelerator.is_main_process:
            client = engine.vllm_client
            client.generate = partial(self._by_requests, client.generate)

    def _check_lengths(self) -> None:
        trainer, positions = self._trainer, self._positions()
        if isinstance(trainer.train_dataset, IterableDataset):
            return  # vLLM refuses the prompt itself when it comes
        prompts = trainer.train_dataset["prompt"][:]
        longest = max(map(len, trainer.processing_class(text=prompts)["input_ids"]))
        needed = longest + trainer.max_completion_length
        if needed > positions:
            raise RookWorldError(
                f"vLLM has {positions} positions, but the longest prompt has {longest} tokens and "
                f"max_completion_length is {trainer.max_completion_length}; let it have {needed} "
                "(vllm_max_model_length, of a server --max-model-len), or give a shorter "
                "max_completion_length"
            )

    def _positions(self) -> int:
        """The longest text that vLLM takes, in tokens."""
        engine = self._engine
        if engine.mode == "colocate":
            return int(engine.llm.llm_engine.model_config.max_model_len)
        found: list[Any] = [None]
        if self._trainer.accelerator.is_main_process:
            found = [engine.vllm_client.get_server_info()["model_config"]["max_model_len"]]
        return int(broadcast_object_list(found, from_process=0)[0])

    def _without_value_head(self, send: Callable[[], None]) -> None:
        """Send the weights that vLLM knows."""
        head = self._trainer.parts.get("value_head")
        with head.taken_off() if head is not None else nullcontext():
            send()

    # ----------------------------------------------------------------------------------------------
    # Sampling
    # ----------------------------------------------------------------------------------------------
    def draw(self, prompts: Sequence[Sequence[int]]) -> Drawn:
        """Draw one completion per prompt from all tokens, and give vLLM's own log-probs.

        Every process must call it with equally many prompts.

        Args:
            prompts: Token ids of `B` prompts.
        """
        self._engine.sync_weights()
        self._uncut = True
        try:
            _, ids, logps, _ = self._engine.generate(
                prompts=prompts, images=None, num_generations=1
            )
        finally:
            self._uncut = False
        nan = float("nan")
        rows = [[nan if token[0] is None else token[0] for token in row] for row in logps]
        return Drawn([list(row) for row in ids], rows)

    def _samplings(self, prompts: Sequence[Sequence[int]]) -> list[Sampling] | None:
        """How each prompt is drawn; None if all are as TRL says."""
        trainer = self._trainer
        if trainer.task_samplings is None and not self._uncut:
            return None
        texts = trainer.processing_class.batch_decode(prompts, skip_special_tokens=True)
        rows: list[Sampling] = trainer.samplings(texts)
        return [replace(row, top_p=1.0, top_k=0) for row in rows] if self._uncut else rows

    def _settings(self, row: Sampling) -> dict[str, Any]:
        """vLLM's names of a row's settings."""
        longest = row.max_completion_length or self._trainer.max_completion_length
        settings = {"temperature": row.temperature, "top_p": row.top_p, "top_k": row.top_k}
        return {**settings, "max_tokens": longest, **({"min_p": 0.0} if self._uncut else {})}

    def _in_one_call(
        self, generate: Callable[..., Any], prompts: Any, sampling_params: Any, **kwargs: Any
    ) -> Any:
        """Give each row its own settings; colocated vLLM takes one record of them a row."""
        rows = self._samplings([prompt["prompt_token_ids"] for prompt in prompts])
        if rows is None:
            return generate(prompts, sampling_params=sampling_params, **kwargs)
        records = []
        for row in rows:
            records.append(sampling_params.clone())
            for name, value in self._settings(row).items():
                setattr(records[-1], name, value)
        return generate(prompts, sampling_params=records, **kwargs)

    def _by_requests(
        self, generate: Callable[..., Any], prompts: Sequence[Any], **settings: Any
    ) -> dict[str, Any]:
        """Give each row its own settings, by a request for each way of sampling."""
        rows = self._samplings(prompts)
        if rows is None:
            return generate(prompts=prompts, **settings)
        drawn: dict[tuple[str, int], list[Any]] = {}
        for way in dict.fromkeys(rows):
            places = [place for place, row in enumerate(rows) if row == way]
            asked = [prompts[place] for place in places]
            found = generate(prompts=asked, **{**settings, **self._settings(way)})
            for name, values in found.items():
                each = len(values) // len(places)  # `n` completions of each prompt
                for turn, place in enumerate(places):
                    drawn[name, place] = values[turn * each : (turn + 1) * each]
        names = dict.fromkeys(name for name, _ in drawn)
        return {
            name: [value for place in range(len(rows)) for value in drawn[name, place]]
            for name in names
        }

    # ----------------------------------------------------------------------------------------------
    # Measuring
    # ----------------------------------------------------------------------------------------------
    def extend(self, call: Call, batch: Batch) -> None:
        self._trainer.record(self.metrics(batch))

    def metrics(self, batch: Mapping[str, Any]) -> dict[str, float]:
        """The effective sample size of all processes' completions, as a share of their number.

        A completion's weight is its probability by the trainer over that by vLLM, before TRL clips it.
        Taught answers, which vLLM did not sample, do not count.

        Args:
            batch: `B` completions; without the log-probs of both there is no number.
        """
        ours, theirs = (batch.get(f"{by}_per_token_logps") for by in ("old", "sampling"))
        if ours is None or theirs is None:
            return {}
        differences = ((ours - theirs) * batch["completion_mask"]).double().sum(1)  # (B,)
        weights = differences[~differences.isnan()].exp()
        sums = torch.stack(
            [weights.sum(), weights.square().sum(), weights.new_tensor(weights.numel())]
        )
        total, squares, count = self._trainer.accelerator.reduce(sums, reduction="sum").tolist()
        return {"sampling/effective_share": total**2 / (count * squares)} if squares else {}
