"""What is wrong with the keys of a step is said at once, with value, reason and remedy."""

import copy
from typing import Any

import pytest
from peft import LoraConfig

from rookworld_rlvr.common.errors import ConfigurationError, RookWorldError
from rookworld_rlvr.models import loading
from rookworld_rlvr.training.config import RookWorldGRPOConfig

from ..support import NOT_KEPT

GAE = {"advantage_estimator": "gae"}
TORN = {"generation_batch_size": 24, "per_device_train_batch_size": 4, "num_generations": 8}
GUARD = {"guard": {"overall": 0.1}}
EXTRA = {"moves_extra": 2, "soft_moves_coef": 1.0}
BY_REWARD = {"multi_objective_aggregation": "normalize_then_sum"}


def config(**options: Any) -> RookWorldGRPOConfig:
    rewards = [{"name": "environment_exact"}]
    return RookWorldGRPOConfig(rewards=rewards, use_cpu=True, bf16=False, report_to=[], **options)


def faults(**options: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        config(**options)
    return caught.value.faults


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"guard": {"environment/exat": 0.01}}, "did you mean environment/exact"),
        ({"task_phases": [3]}, "entry 1: 3 must be a mapping"),
        ({"task_phases": [{"polcy": 1}]}, "'polcy' is not a valid task; did you mean policy?"),
        ({"task_phases": [{"steps": 0, "policy": 1}]}, "steps is 0; give a whole number above 0"),
        ({"task_phases": [{"policy": 1}] * 2}, "entry 1: steps is None; give"),
        ({"task_sampling": {"policy": 1}}, "policy: 1 is not a mapping; write {}"),
        ({"task_sampling": {"policy": {"top_q": 1}}}, "no option 'top_q'; did you mean"),
        (
            {"task_sampling": {"policy": {"max_completion_length": 999}}},
            "task_sampling: policy: max_completion_length 999 is more than the run's ",
        ),
        ({"kl_control": "adaptive", "beta": 0.1}, "needs a kl_target"),
        ({"kl_control": "adaptive", "kl_target": 0.1, "beta": 0}, "a beta above 0 to start from"),
        ({"kl_target": 0.1, "beta": 0.1}, "does nothing without kl_control: adaptive"),
        ({"kl_adaptation": "multiplicative"}, "does nothing without kl_control: adaptive"),
        ({"gae_lambda": 0.5}, "does nothing without advantage_estimator: gae"),
        ({"baseline_decay": 0.5}, "baseline_decay: 0.5 does nothing without baseline: ema"),
        ({**GAE, "baseline": "ema", "scale_rewards": "batch"}, "not go with baseline: ema"),
        ({**GAE, **BY_REWARD}, "gae does not go with multi_objective_aggregation"),
        ({**GAE, "zero_variance": "skip"}, "because gae has one advantage per token"),
        ({**BY_REWARD, "baseline": "adaptive"}, "baseline: adaptive does not go with multi"),
        ({"baseline": "ema"}, "set scale_rewards: batch, or none"),
        ({"sft_extra": 2}, "sft_extra: sft_coef: 0 ignores it"),
        ({"moves_extra": 2}, "needs expected_score_coef or soft_moves_coef"),
        ({**EXTRA, "task_phases": [{"policy": 1}]}, "not go with task_phases"),
        ({"keep_coef": 1.0, "beta": 0.1}, "needs keep_rows"),
        ({"keep_rows": {"policy": 4}}, "give both or neither"),
        ({"keep_coef": 1.0, "keep_rows": {"policy": 4}, "beta": 0}, "set beta above 0"),
        ({**GUARD, "load_best_model_at_end": False}, "would be kept, whatever it loses"),
    ],
)
def test_a_fault_names_its_value(options: dict[str, Any], words: str) -> None:
    (fault,) = faults(**options)
    assert words in fault


@pytest.mark.parametrize(
    "options",
    [
        {**GAE, "sft_coef": 0.1},
        {**BY_REWARD, "zero_variance": "resample"},
        {"sft_coef": 0.1, "sft_extra": 2, "zero_variance": "resample"},
        {**EXTRA, "zero_variance": "resample"},
    ],
    ids=str,
)
def test_what_goes_together_is_taken(options: dict[str, Any]) -> None:
    args = config(**options)
    assert {key: getattr(args, key) for key in options} == options


@pytest.mark.parametrize(
    "on", [{"zero_variance": "teach"}, {"zero_variance": "resample"}, {"sft_coef": 0.1}, EXTRA]
)
def test_groups_torn_between_processes_are_refused(on: dict[str, Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(RookWorldGRPOConfig, "world_size", 2)
    (fault,) = faults(**on, **TORN)
    assert " needs whole groups on each process, but 12 completions" in fault


def test_what_does_not_go_with_model_or_rows_is_refused(build: Any, start: str) -> None:
    model = loading.load_model(start)
    model.set_attn_implementation("eager")
    adapters = LoraConfig(task_type="CAUSAL_LM")
    for words, options in (
        ("soft_moves_coef: the attention is 'eager'", {"soft_moves_coef": 0.5}),
        ("no training rows of 'fill_in'", {"keep_coef": 1, "keep_rows": {"fill_in": 4}, "beta": 1}),
        ("optim is sgd, but", {"muon": True, "optim": "sgd"}),
        ("needs whole weights", {"start_share": 0.5, "peft_config": adapters}),
        ("needs whole matrices", {"muon": True, "peft_config": adapters}),
    ):
        with pytest.raises(RookWorldError, match=words):
            build(copy.deepcopy(model), **options, **NOT_KEPT)
