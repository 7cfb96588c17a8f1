"""Each task is sampled in its own way and scored as it was sampled; also what vLLM is asked for."""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig
from trl.generation.vllm_generation import VLLMGeneration

from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.models import graphs
from rookworld_rlvr.tasks.registry import task_of
from rookworld_rlvr.tasks.task import Sampling
from rookworld_rlvr.training import exchanged
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.exchanged import by_row
from rookworld_rlvr.training.preflight import measure_parity, mixed_length_prompts
from rookworld_rlvr.training.sampling import decode, draws_itself

from ..support import ON_CPU, first_batch
from .test_rollouts import tasks_in

BOTH: dict[str, dict[str, Any]] = {"policy": {}, "environment": {}}


@pytest.fixture
def sampled(build: Callable[..., Any]) -> Any:
    """A trainer on mixed rows and a batch that carries the sampler's log-probs."""

    def make(**options: Any) -> tuple[Any, dict[str, Any]]:
        trainer = build(**options)
        trainer.keeps_logps = True
        return trainer, first_batch(trainer)

    return make


def gaps(trainer: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Largest |trainer's - sampler's log-prob| of each row ``(B,)``, scored as the loss does."""
    trainer.scores_all_rows = True
    scores = trainer.scores_of(trainer.model, batch)
    gap = (scores.logps.detach() - batch["sampling_per_token_logps"]).abs()
    return (gap * batch["completion_mask"]).amax(dim=1)


def test_a_mixed_batch_is_scored_at_the_temperature_of_each_row(sampled: Any) -> None:
    trainer, batch = sampled(task_sampling=BOTH, per_device_train_batch_size=16)
    assert sorted(set(batch["temperature"].tolist())) == pytest.approx([0.5, 0.95])
    assert gaps(trainer, batch).max() < 1e-4
    batch["temperature"] = batch["temperature"].flip(0)
    assert gaps(trainer, batch).max() > 0.1, "another row's temperature shows"
    del batch["temperature"]
    assert gaps(trainer, batch).max() > 0.1, "and so does the trainer's own"
    trainer, batch = sampled(temperature=0.7)
    assert "temperature" not in batch and gaps(trainer, batch).max() < 1e-4, "without the key"


def test_each_task_has_its_own_length_and_tail(sampled: Any) -> None:
    cold = {"top_k": 1, "max_completion_length": 5}
    hot = {"temperature": 2.0, "top_p": 1.0, "max_completion_length": 9}
    ways = {"policy": cold, "environment": hot}
    trainer, batch = sampled(task_sampling=ways, per_device_train_batch_size=32)
    lengths = batch["completion_mask"].sum(1)
    rows = batch["temperature"] == 2.0
    assert tasks_in(trainer, batch) == ["environment" if row else "policy" for row in rows]
    assert lengths[~rows].max() == 5 and lengths[rows].max() == 9
    policy, environment = (len(batch["completion_ids"][of].unique(dim=0)) for of in (~rows, rows))
    assert policy == len(batch["prompt_ids"][~rows].unique(dim=0)), "top-k 1 draws alike"
    assert environment == rows.sum(), "temperature 2 does not"


def test_the_preflight_covers_the_tasks_temperatures(build: Callable[..., Any]) -> None:
    trainer = build(task_sampling=BOTH)
    prompts = mixed_length_prompts(trainer)
    assert {task_of(prompt) for prompt in prompts} == {"policy", "environment"}
    assert measure_parity(trainer, prompts).faults(1e-4) == []


ASKS_FOR_MORE: list[dict[str, Any]] = [
    *({}, {"repetition_penalty": 1.3}, {"min_p": 0.1}, {"cache_implementation": "static"}),
    *({key: {"no_repeat_ngram_size": 1}} for key in ("generation_kwargs", "of the model")),
]


@pytest.mark.parametrize(
    ("options", "tasks"),
    [*((more, None) for more in ASKS_FOR_MORE), *((more, BOTH) for more in ASKS_FOR_MORE[::4])],
    ids=str,
)
def test_generate_draws_where_more_is_asked_for_than_the_loop_knows(
    build: Callable[..., Any],
    random_gpt2: Any,
    monkeypatch: pytest.MonkeyPatch,
    options: Any,
    tasks: Any,
) -> None:
    more = bool(options)
    if "of the model" in options:
        random_gpt2.generation_config.no_repeat_ngram_size, options = 1, {}
    short = {"max_completion_length": 10, "preflight": False}
    trainer = build(task_sampling=tasks, **short, **options)
    assert draws_itself(trainer) is not (more and tasks is None)
    calls: list[Any] = []
    generate = type(random_gpt2).generate

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(generate(*args, **kwargs))
        return calls[-1]

    monkeypatch.setattr(type(random_gpt2), "generate", counted)
    trainer.train()
    assert bool(calls) is more
    if random_gpt2.generation_config.no_repeat_ngram_size or "generation_kwargs" in options:
        drawn = [row[row != 0] for row in calls[0][:, -8:]]  # without end of text and padding
        assert all(len(row.unique()) == len(row) for row in drawn), "no token comes twice"


def test_the_seed_says_what_is_drawn(build: Callable[..., Any]) -> None:
    """Kept adapters, gradient checkpointing and a model in training mode change nothing."""

    def completions(seed: int, **options: Any) -> list[str]:
        trainer = build(seed=seed, max_completion_length=8, preflight=False, **options)
        trainer.train()
        return list(trainer.completion_log()["completion", ""])

    first = completions(1)
    adapters = LoraConfig(target_modules=["c_attn"])
    assert first == completions(1, gradient_checkpointing=True, peft_config=adapters)
    assert first == completions(1) != completions(2)


@pytest.mark.parametrize("options", [{}, {"peft_config": LoraConfig(target_modules=["c_attn"])}])
def test_graphs_sample_for_the_whole_run(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    """Their steps, on a CPU: what is trained on, the preflight and held-out rows."""
    monkeypatch.setattr(graphs, "obstacle", graphs.network_obstacle)
    short = {
        "max_completion_length": 24,
        "max_steps": 2,
        "learning_rate": 0.1,
        "task_sampling": BOTH,
    }
    trainer = build(cuda_graphs=True, **short, **options)
    trainer.train()
    assert trainer.graphs is not None and trainer.preflight.faults(1e-4) == []
    trainer.keeps_logps = True
    batch = first_batch(trainer)
    assert gaps(trainer, batch).max() < 1e-4
    prompts = [row["prompt"] for row in list(trainer.train_dataset)[:6]]
    answers, trainer.args.cuda_graphs = decode(trainer, prompts), False
    trainer.keys.cuda_graphs = False
    assert answers == decode(trainer, prompts), "with the weights of now"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "the model is on the cpu, and graphs are CUDA's"),
        ({"min_p": 0.1}, "transformers' generate samples here"),
    ],
)
def test_where_there_are_no_graphs_a_line_says_why(
    build: Callable[..., Any], capsys: pytest.CaptureFixture[str], options: Any, reason: str
) -> None:
    found = []
    for is_on in (False, True):
        trainer = build(cuda_graphs=is_on, max_completion_length=8, preflight=False, **options)
        trainer.train()
        found.append(list(trainer.completion_log()["completion", ""]))
        said = f"cuda_graphs: they are not used: {reason}\n"
        assert capsys.readouterr().out.count(said) == is_on
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"installed": False}, r"pip install 'rookworld-rlvr\[vllm\]'"),
        ({"vllm_mode": "server"}, "vllm_mode: server needs a GPU"),
        ({"advantage_estimator": "gae"}, "gae does not go with use_vllm"),
    ],
)
def test_what_vllm_lacks_is_said_before_anything_is_loaded(
    options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = object() if options.pop("installed", True) else None
    monkeypatch.setattr(exchanged, "find_spec", lambda name: installed)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigurationError, match=words):
        RookWorldGRPOConfig(use_vllm=True, rewards=["graduated"], **ON_CPU, **options)


def test_trl_calls_vllm_as_we_expect() -> None:
    """`make canary` shows when that changes."""
    asks = VLLMGeneration.generate
    expected = ["self", "prompts", "images", "num_generations", "profiler"]
    assert list(inspect.signature(asks).parameters) == expected
    assert list(inspect.signature(VLLMGeneration.sync_weights).parameters) == ["self"]
    source = inspect.getsource(asks)
    assert "self.llm.generate(vllm_prompts, sampling_params=sampling_params, use_tqdm" in source
    assert "all_gather_object(gathered_prompts, prompts, group=self.tp_group)" in source
    names = ("top_p", "top_k", "min_p", "mode", "tensor_parallel_size")
    assert all(f"self.{name}" in source for name in names)


def engine(size: int = 1) -> Any:
    """In place of TRL's vLLM in this process, of `size` processes; it gives its settings."""
    llm = SimpleNamespace(generate=lambda _, sampling_params, **kwargs: sampling_params)
    return SimpleNamespace(mode="colocate", llm=llm, tensor_parallel_size=size, tp_group="own")


WAYS = [Sampling(0.5, 0.9), Sampling(1.0, 1.0, 5, max_completion_length=7)]


@pytest.mark.parametrize(
    ("is_uncut", "tails"), [(False, [(0.9, 0), (1.0, 5)]), (True, [(1.0, 0)] * 2)]
)
def test_each_row_is_drawn_as_its_task_says(is_uncut: bool, tails: list[Any]) -> None:
    trainer = SimpleNamespace(
        task_samplings={"a": WAYS[0]}, vllm_generation=engine(), max_completion_length=32
    )
    theirs, plain = trainer.vllm_generation.llm.generate, SimpleNamespace(top_p=1.0, top_k=0)
    plain.clone = lambda: SimpleNamespace(top_p=1.0, top_k=0)

    def asked() -> Any:
        prompts = [{"prompt_token_ids": [place]} for place in (0, 1)]
        return trainer.vllm_generation.llm.generate(prompts, sampling_params=plain, use_tqdm=False)

    with by_row(trainer, WAYS, is_uncut):
        records = asked()
    assert [(one.temperature, one.max_tokens) for one in records] == [(0.5, 32), (1.0, 7)]
    assert [(one.top_p, one.top_k) for one in records] == tails
    assert asked() is plain, "afterwards it samples as TRL has it"
    with pytest.raises(KeyError), by_row(trainer, WAYS):
        raise KeyError
    assert trainer.vllm_generation.llm.generate is theirs, "also after an exception"
    trainer.task_samplings = None
    with by_row(trainer, WAYS):
        assert asked() is plain, "nor is it exchanged where all are sampled alike"


def test_processes_of_one_vllm_sample_their_rows_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL gathers the prompts of all of them before it calls vLLM."""
    others = [Sampling(0.25)]

    def gather(gathered: list[Any], own: Any, group: Any) -> None:
        assert group == "own"
        gathered[:] = [others, own]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    trainer = SimpleNamespace(
        task_samplings={}, vllm_generation=engine(size=2), max_completion_length=32
    )
    plain = SimpleNamespace(clone=SimpleNamespace)
    with by_row(trainer, WAYS):
        records = trainer.vllm_generation.llm.generate([], sampling_params=plain)
    assert [record.temperature for record in records] == [0.25, 0.5, 1.0]
