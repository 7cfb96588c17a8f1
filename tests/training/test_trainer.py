import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, TrainerCallback
from transformers.activations import GELUTanh
from transformers.utils.import_utils import enable_tf32
from trl import GRPOConfig, GRPOTrainer

from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.data.loading import LoadedData
from rookworld_rlvr.models import gpt2, loading
from rookworld_rlvr.models.decoding import complete
from rookworld_rlvr.models.gpt2 import disable_dropout
from rookworld_rlvr.tasks.metrics import evaluate_completions
from rookworld_rlvr.tasks.positions import double_step_square
from rookworld_rlvr.training import callbacks, preflight
from rookworld_rlvr.training.clock import Clock
from rookworld_rlvr.training.run_folder import save_final
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

from ..support import NOT_KEPT, mixed_rows

Build = Callable[..., Any]
FP32, HALF = preflight.TOLERANCE_FP32, preflight.TOLERANCE_HALF
LORA = {"target_modules": ["c_attn"], "task_type": "CAUSAL_LM", "fan_in_fan_out": True}


def parity_of(trainer: Any, **options: Any) -> preflight.Parity:
    found = preflight.measure_parity(trainer, preflight.mixed_length_prompts(trainer), **options)
    print(f"{type(trainer).__name__}: {found}")
    return found


@pytest.mark.parametrize(("beta", "adapters"), [(0.0, None), (0.04, None), (0.04, LORA)])
def test_all_three_gaps_are_rounding(build: Build, beta: float, adapters: Any, start: str) -> None:
    lora = adapters and LoraConfig(**LORA)
    trainer = build(loading.load_model(start), beta=beta, peft_config=lora)
    assert (trainer.ref_model is None) == (beta == 0 or adapters is not None)
    for network in filter(None, (trainer.model, trainer.ref_model)):
        acts = [module for module in network.modules() if isinstance(module, GELUTanh)]
        dropouts = [m for m in network.modules() if isinstance(m, torch.nn.Dropout)]
        assert len(acts) == 2 and {module.p for module in dropouts} == {0.0}
    assert parity_of(trainer).faults(1e-4) == []


def test_plain_trl_is_off_on_the_same_batch(build: Build, random_gpt2: GPT2LMHeadModel) -> None:
    disable_dropout(random_gpt2)  # so that only the positions differ
    plain_trainer = build(kind=GRPOTrainer)

    def score(network: Any, rows: Any) -> Any:
        return plain_trainer._get_per_token_logps_and_entropies(network, *rows[:3])

    plain, ours = parity_of(plain_trainer, score=score), parity_of(build())
    assert ours.alone_gap < plain.alone_gap / 100
    assert ours.sampler_gap < plain.sampler_gap / 100


@pytest.mark.slow
@pytest.mark.parametrize(("bf16", "tolerance"), [(False, FP32), (True, HALF)])
def test_the_real_shape_is_within_tolerance(bf16: bool, tolerance: float, build: Build) -> None:
    """RookWorld-LM's shape, random; in bf16, which is slow on most CPUs, two of its 12 layers."""
    torch.manual_seed(0)
    config = GPT2Config(bos_token_id=0, eos_token_id=0, n_layer=2 if bf16 else 12)
    assert parity_of(build(GPT2LMHeadModel(config), bf16=bf16)).faults(tolerance) == []


@pytest.mark.parametrize(
    ("kind", "use_cpu", "low", "high"),
    [
        ("bf16", True, HALF, 0.5),  # wrong positions make gaps of more than a nat
        pytest.param("bf16", False, HALF, 0.5, marks=pytest.mark.gpu),
        pytest.param("tf32", False, FP32, 0.1, marks=pytest.mark.gpu),
    ],
)
def test_the_packaged_model_is_within_a_tolerance_of_its_own(
    build: Build, kind: str, use_cpu: bool, low: float, high: float
) -> None:
    """Its logits are so large that two roundings of one are further apart than `low`."""
    trainer = build(loading.load_model(loading.PACKAGED_MODEL), **{kind: True}, use_cpu=use_cpu)
    try:
        assert trainer.accelerator.device.type == ("cpu" if use_cpu else "cuda")
        assert low < preflight.preflight_tolerance(trainer) <= high
        assert parity_of(trainer).faults(preflight.preflight_tolerance(trainer)) == []
    finally:
        enable_tf32(False)


def test_trls_constructor_and_configuration_will_do(packaged: LoadedData, tmp_path: Path) -> None:
    """Names for model and reward, plain `GRPOConfig`, a stream of prompts, and no rows held out."""
    keys = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 40}
    keys |= {"report_to": [], "bf16": False, "use_cpu": True, "save_strategy": "no"}
    args = GRPOConfig(str(tmp_path), **keys, max_steps=1)
    rows = mixed_rows(packaged.train).select_columns(["prompt"]).to_iterable_dataset()
    names = ("rookworld-nano", ["environment_exact"])
    trainer = RookWorldGRPOTrainer(*names, args=args, train_dataset=rows)
    trainer.train()
    assert trainer.state.global_step == 1
    assert trainer.preflight is not None and trainer.preflight.faults(1e-4) == []
    logged = [log["step"] for log in trainer.state.log_history if "preflight/alone_gap" in log]
    assert logged == [0], "it runs first"
    assert any("rewards/environment_exact/mean" in log for log in trainer.state.log_history)


def test_it_stops_a_run_with_wrong_positions(build: Build, monkeypatch: Any) -> None:
    monkeypatch.setattr(gpt2, "number_positions_from_mask", lambda network: None)
    # With shared prompts the trainer gives the positions itself.
    trainer = build()
    trainer.scorer.shares_prompts = False
    said = r"alone_gap = .*over the tolerance of 0\.001"
    with pytest.raises(preflight.PreflightError, match=said):
        trainer.train()
    assert trainer.state.global_step == 0, "stopped before the first update"


@pytest.mark.parametrize(
    "keys", [{"repetition_penalty": 1.5}, {"generation_kwargs": {"suppress_tokens": [34]}}, {}]
)
def test_keys_that_change_sampling_are_named(build: Build, random_gpt2: Any, keys: Any) -> None:
    if not keys:
        random_gpt2.generation_config.no_repeat_ngram_size = 1
    words = r"sampler_gap = .*leave out repetition_penalty and generation_kwargs"
    with pytest.raises(preflight.PreflightError, match=words):
        build(**keys).train()


def test_the_kl_of_a_resumed_run_is_not_judged(build: Build, start: str, capsys: Any) -> None:
    trainer = build(loading.load_model(start), beta=0.1)
    with torch.no_grad():
        trainer.model.transformer.wte.weight.mul_(1.5)
    check = preflight.PreflightCallback(trainer)
    with pytest.raises(preflight.PreflightError, match="reference_kl"):
        check.on_train_begin(trainer.args, trainer.state, None)
    trainer.state.global_step = 3
    check.on_train_begin(trainer.args, trainer.state, None)
    kl = trainer.preflight.reference_kl
    assert kl > 0.001
    said = " ".join(capsys.readouterr().out.split())
    assert f"KL to the reference {kl:.2g} (a resumed run's may be any)" in said


def scaled(completions: list[str], by: float = 1.0, **columns: Any) -> list[float]:
    return [by * len(text) for text in completions]


class Own:
    def __call__(self, completions: list[str], **columns: Any) -> list[float]:
        return scaled(completions)


class OwnInTime:
    async def __call__(self, completions: list[str], **columns: Any) -> list[float]:
        return scaled(completions)


def test_rewards_of_every_kind_are_called_and_have_names_of_their_own(build: Build) -> None:
    funcs = [Own(), OwnInTime(), scaled, partial(scaled, by=2.0), partial(scaled, by=3.0)]
    names = "environment_exact environment_state environment_format asymmetric graduated"
    weights = [{"name": name} for name in names.split()]  # one for each function
    trainer = build(reward_funcs=funcs, rewards=weights)
    trainer.train()
    (logged,) = (log for log in trainer.state.log_history if "reward" in log)
    own = ("Own", "OwnInTime", "scaled", "scaled_2", "scaled_3")
    means = [logged[f"rewards/{name}/mean"] for name in own]
    assert means == pytest.approx([means[0] * factor for factor in (1, 1, 1, 2, 3)])


def test_evaluation_is_greedy(build: Build, tokenizer: Any, packaged: LoadedData) -> None:
    model = loading.load_model(loading.PACKAGED_MODEL)
    trainer = build(model, max_completion_length=64, eval_dataset=packaged.heldout)
    metrics, results = trainer.evaluate(), trainer.heldout.results
    prompts = packaged.heldout["prompt"][:]
    completions = complete(model, tokenizer, prompts, max_new_tokens=64, batch_size=5)
    alone = evaluate_completions(packaged.heldout, completions)
    assert metrics["eval_environment/exact"] == results["environment/exact"].value > 0
    # Batches of 16 and of 5 decode the same text, but where two tokens are alike but for rounding:
    # here the two best are once 1e-5 apart, and a processor may choose the other in one answer.
    assert results.keys() == alone.keys()
    for name, result in results.items():
        assert result.n == alone[name].n
        assert abs(result.value - alone[name].value) * result.n < 1.01, name


def test_the_final_model_loads_plainly_with_adapters_merged(build: Build, tmp_path: Path) -> None:
    config = LoraConfig(**LORA, init_lora_weights=False)  # adapters that do something
    trainer, final = build(peft_config=config), tmp_path / "final"
    ids = torch.tensor([[300, 301, 302]])
    expected = trainer.model.eval()(input_ids=ids).logits
    save_final(trainer, final)
    assert not (final / "adapter_config.json").exists()
    loaded = AutoModelForCausalLM.from_pretrained(final).eval()
    torch.testing.assert_close(loaded(input_ids=ids).logits, expected, atol=1e-4, rtol=0)
    assert loaded.config.resid_pdrop == 0.0


def test_training_raises_the_heldout_score(build: Build, packaged: LoadedData) -> None:
    """The planted en passant fault is in most of the model's samples, the truth in some: a few steps
    on double steps alone must shift the weight, on positions that were not trained on.
    """

    def double_steps(rows: Dataset, count: int) -> Dataset:
        columns = zip(rows["task"][:], rows["fen"][:], rows["action"][:], strict=True)
        chosen = (
            index
            for index, (task, fen, action) in enumerate(columns)
            if task == "environment" and double_step_square(fen, action)
        )
        return rows.select(itertools.islice(chosen, count))

    options = {
        **NOT_KEPT,
        "rewards": [{"name": "environment_exact"}, {"name": "environment_state"}],
        "per_device_train_batch_size": 64,
        "num_generations": 8,
        "max_completion_length": 40,
        "max_steps": 6,
        "learning_rate": 2e-4,
        "lr_scheduler_type": "constant",
        "preflight": False,
    }
    model, rows = loading.load_model(loading.PACKAGED_MODEL), double_steps(packaged.train, 160)
    trainer = build(model, train_dataset=rows, **options)
    heldout = double_steps(packaged.heldout, 60)
    before = trainer.evaluate(heldout)["eval_environment/exact"]
    trainer.train()
    assert trainer.evaluate(heldout)["eval_environment/exact"] >= before + 0.15


def test_the_phases_of_a_step_are_timed(build: Build) -> None:
    def slow(completions: list[str], **_: Any) -> list[float]:
        time.sleep(0.2)
        return [float(len(text)) for text in completions]

    trainer = build(reward_funcs=[slow], **NOT_KEPT, max_steps=2, gradient_accumulation_steps=2)
    trainer.train()
    logs = [log for log in trainer.state.log_history if "step_time" in log]
    assert len(logs) == 2
    for log in logs:
        phases = [log[f"time/{phase}"] for phase in ("sampling", "rewards", "update")]
        assert sum(phases) == pytest.approx(log["step_time"], abs=1e-3)  # which TRL measures
        assert log["time/rewards"] >= 0.2, "one batch is sampled for both halves of the step"
        assert min(phases) > 0
        assert not {name for name in log if name.startswith("memory/")} | {"time/loss"} & {*log}


def test_finer_phases_are_timed_if_they_are_asked_for(build: Build, start: str) -> None:
    """What one phase takes does not count for another, and memory is measured where a phase ends."""
    options = {**NOT_KEPT, "max_steps": 1, "beta": 0.1, "log_phases": True, "preflight": False}
    trainer = build(loading.load_model(start), gradient_accumulation_steps=2, **options)
    score = trainer.score  # is called in both phases

    def later(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.15 if torch.is_grad_enabled() else 0.3)  # the latter is the reference's
        return score(*args, **kwargs)

    trainer.score = later
    trainer.train()
    (log,) = (log for log in trainer.state.log_history if "step_time" in log)
    seconds = {name[5:]: value for name, value in log.items() if name.startswith("time/")}
    whole = sum(seconds[phase] for phase in ("sampling", "rewards", "update"))
    assert whole == pytest.approx(log["step_time"], abs=1e-3)
    assert seconds["reference"] >= 0.3 and seconds["loss"] >= 0.3, "two micro-batches"
    assert seconds["reference"] + seconds["loss"] < seconds["update"]
    memory = {name[7:]: value for name, value in log.items() if name.startswith("memory/")}
    assert set(memory) == {"sampling", "rewards", "update", "reference", "loss"}
    assert min(memory.values()) > 0.05 and max(memory.values()) <= log["peak_memory"] < 100
    assert memory["update"] >= max(memory["reference"], memory["loss"])
    trainer = build(**{**options, "beta": 0.0})
    trainer.train()
    (log,) = (log for log in trainer.state.log_history if "step_time" in log)
    assert log["time/reference"] == 0 and "memory/reference" not in log


def test_memory_on_a_gpu_is_counted_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA counts: the most since the last reset, and what is still there remains."""
    count = {"now": 1, "most": 1}  # GiB
    cuda: dict[str, Any] = {"is_available": lambda: True, "synchronize": lambda: None}
    cuda["reset_peak_memory_stats"] = lambda: count.update(most=count["now"])
    cuda["max_memory_allocated"] = lambda: count["most"] * 2**30
    for name, function in cuda.items():
        monkeypatch.setattr(torch.cuda, name, function)

    def takes(most: int, now: int) -> None:
        count.update(most=max(count["most"], most), now=now)

    trainer: Any = SimpleNamespace(args=SimpleNamespace(log_phases=True))
    clock = Clock(trainer)
    takes(20, 1)  # an evaluation
    clock.on_step_begin(None, None, None)
    for name, most in (("sampling", 5), ("reference", 3), ("rewards", 2), ("loss", 6), ("loss", 8)):
        with clock.phase(name):
            takes(most, 2)
        takes(9 if name == "loss" else 2, 2)  # the gradients
    logged = clock.end_step()
    memory = {name[7:]: value for name, value in logged.items() if name.startswith("memory/")}
    assert memory == {"sampling": 5, "reference": 3, "rewards": 2, "loss": 8, "update": 9}
    assert logged["peak_memory"] == 20, "so far"


@pytest.mark.parametrize(
    ("sizes", "peak", "words"),
    [
        ((64, 4), 8, "size: 256 with gradient_accumulation_steps: 1 "),
        ((64, 4), 40, "size: 128 with gradient_accumulation_steps: 2 "),
        ((64, 3), 40, None),
        ((64, 4), 60, None),
        ((256, 1), 8, None),
    ],
)
def test_larger_micro_batches_are_suggested_once_where_memory_allows(
    sizes: tuple[int, int], peak: int, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda: dict[str, Any] = {"is_available": lambda: True}
    cuda["max_memory_allocated"] = lambda: peak * 2**30
    cuda["get_device_properties"] = lambda _: SimpleNamespace(total_memory=139 * 2**30)
    for name, function in cuda.items():
        monkeypatch.setattr(torch.cuda, name, function)
    said: list[str] = []
    args = SimpleNamespace(
        per_device_train_batch_size=sizes[0],
        gradient_accumulation_steps=sizes[1],
        steps_per_generation=sizes[1],
        device="cuda",
    )
    trainer: Any = SimpleNamespace(args=args, accelerator=SimpleNamespace(print=said.append))
    clock = Clock(trainer)
    for _ in range(2):
        clock.on_step_end(args, None, None)
    assert len(said) == (words is not None) and all(words in line for line in said if words)
    assert vars(args)["per_device_train_batch_size"] == sizes[0], "nothing is changed"


def test_tables_come_at_intervals_and_at_the_end(
    build: Build, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(callbacks, "TABLE_STEPS", 2)

    class Stop(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop |= state.global_step == 3

    for name, steps in (("whole", [2, 4, 5]), ("stopped", [2, 3])):
        options = {**NOT_KEPT, "log_completions": True, "max_completion_length": 4, "max_steps": 5}
        trainer = build(**options, output_dir=str(tmp_path / name), preflight=False)
        if name == "stopped":
            trainer.add_callback(Stop())
        trainer.train()
        tables = sorted((tmp_path / name / "completions").glob("*.parquet"))
        assert [int(path.stem.split("_")[1]) for path in tables] == steps
        assert all(len(Dataset.from_parquet(str(path))) == 8 for path in tables)


@pytest.mark.parametrize(
    ("keyword", "words"),
    [
        ("compute_metrics", "a reward, with weight 0 .* its held-out mean is `rewards/<its name>`"),
        ("callback", "did you mean callbacks"),
        ("tokenizer", "choose one of .* processing_class"),
    ],
)
def test_a_keyword_that_it_does_not_take_is_one_sentence(keyword: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        RookWorldGRPOTrainer("no/such/model", **{keyword: None})
    (fault,) = caught.value.faults
    assert fault.startswith(f"{keyword}: the GRPO trainer does not take it; ")
