"""What is wrong with the keys of the trainer's parts is said at once, with value, reason and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.parts.arguments import PromptArguments, left_out_tasks

GAE = {"advantage_estimator": "gae"}
TORN = {"generation_batch_size": 24, "per_device_train_batch_size": 4, "num_generations": 8}
GUARD = {"guard": {"overall": 0.1}}
BY_REWARD = {"multi_objective_aggregation": "normalize_then_sum"}


def faults(**options: Any) -> list[str]:
    rewards = [{"name": "environment_exact"}]
    with pytest.raises(ConfigurationError) as caught:
        RookWorldGRPOConfig(rewards=rewards, use_cpu=True, bf16=False, report_to=[], **options)
    return caught.value.faults


@pytest.mark.parametrize(
    ("options", "words"),
    [
        # A value.
        ({"kl_warmup_steps": -1}, "kl_warmup_steps: -1 is too small"),
        ({"zero_variance": "resampel"}, "did you mean resample"),
        ({**GAE, "gae_gamma": 1.5}, "gae_gamma: 1.5"),
        ({**GAE, "value_learning_rate": 0}, "value_learning_rate: 0"),
        ({"sft_coef": -1.0}, "sft_coef: -1.0 is too small"),
        ({"guard": {"environment/exat": 0.01}}, "did you mean environment/exact"),
        ({"guard": {"environment/exact": -1}}, "guard: environment/exact: -1 is too small"),
        ({"task_phases": "[{policy"}, "task_phases: '[{policy' is not valid JSON or YAML"),
        ({"task_phases": "{}"}, "task_phases: {} is not a list"),
        ({"task_phases": []}, "must be a list of mappings"),
        ({"task_phases": [3]}, "entry 1: 3 must be a mapping"),
        ({"task_phases": [{"polcy": 1}]}, "'polcy' is not a valid task; did you mean policy?"),
        ({"task_phases": [{"policy": True}]}, "policy: True is not a share"),
        ({"task_phases": [{"policy": float("nan")}]}, "policy: nan is not a share"),
        ({"task_phases": [{"policy": 0.9}]}, "the shares add up to 0.9, not to 1"),
        ({"task_phases": [{"steps": 0, "policy": 1}]}, "steps is 0; give a whole number above 0"),
        ({"task_phases": [{"policy": 1}] * 2}, "entry 1: steps is missing; only the last"),
        ({"task_sampling": "[1]"}, "task_sampling: [1] is not a mapping"),
        ({"task_sampling": {"polcy": {}}}, "'polcy' is not a valid task; did you mean policy?"),
        ({"task_sampling": {"policy": 1}}, "policy: 1 is not a mapping; write {}"),
        ({"task_sampling": {"policy": {"top_q": 1}}}, "no option 'top_q'; did you mean"),
        (
            {"task_sampling": {"policy": {"temperature": 0}}},
            "temperature: 0 is too small; give more than 0",
        ),
        ({"task_sampling": {"policy": {"top_p": 2}}}, "top_p: 2 is too large; give at most 1"),
        ({"task_sampling": {"policy": {"top_k": -1}}}, "top_k: -1 is too small"),
        # Several keys.
        ({"kl_control": "adaptive", "beta": 0.1}, "needs a kl_target"),
        ({"kl_control": "adaptive", "kl_target": 0.1, "beta": 0}, "a beta above 0 to start from"),
        ({"kl_target": 0.1, "beta": 0.1}, "kl_control: fixed ignores it"),
        ({"task_sampling": {"policy": {"max_completion_length": 999}}}, "is 999, over"),
        ({**GAE, "baseline": "adaptive"}, "baseline: adaptive needs one advantage per completion"),
        ({**GAE, **BY_REWARD}, "gae computes advantages from the sum of the rewards"),
        ({**GAE, "zero_variance": "skip"}, "zero_variance: 'skip' works on groups"),
        ({**GAE, "sft_coef": 0.1}, "value head"),
        ({**BY_REWARD, "baseline": "adaptive"}, "baseline: adaptive computes advantages from"),
        ({"baseline": "ema"}, "set scale_rewards: batch, or none"),
        ({**BY_REWARD, "zero_variance": "resample"}, "needs multi_objective_aggregation"),
        ({"sft_extra": 2}, "sft_extra: sft_coef: 0 ignores it"),
        ({"sft_coef": 0.1, "sft_extra": 2, "zero_variance": "resample"}, "sft_extra: 2 prompts"),
        ({**GUARD, "load_best_model_at_end": False}, "would be kept, whatever it loses"),
        ({**GUARD, "eval_steps": 5, "save_steps": 10}, "the value of eval_steps"),
    ],
)
def test_a_fault_names_its_value(options: dict[str, Any], words: str) -> None:
    (fault,) = faults(**options)
    assert words in fault


@pytest.mark.parametrize("key", ["zero_variance: 'teach'", "zero_variance: 'resample'", "sft_coef"])
def test_groups_torn_between_processes_are_refused(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RookWorldGRPOConfig, "world_size", 2)
    on = {"sft_coef": 0.1} if key == "sft_coef" else {"zero_variance": key.split("'")[1]}
    (fault,) = faults(**on, **TORN)
    assert fault.startswith(f"{key} needs whole groups on each process, but 12 completions")


def test_all_faults_are_found_together() -> None:
    assert len(faults(**GAE, gae_lambda=-1, value_coef=-0.1, kl_target=0.1, beta=0.1)) == 3


def test_a_task_with_a_share_must_be_trained() -> None:
    phases = PromptArguments([{"steps": 2, "environment": 1}, {"policy": 1}])
    (fault,) = left_out_tasks(phases, ["environment"])
    assert fault.startswith("task_phases: entry 2: policy has a share of 1, but `tasks` leaves")
