from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.data.loading import LoadedData
from rookworld_rlvr.models import loading
from rookworld_rlvr.tasks.environment import ENVIRONMENT

from ...conftest import NOT_KEPT, mixed_rows

ON = {"keep_coef": 3.0, "keep_rows": {"environment": 5}, "beta": 0.01}


def constant(completions: list[str], **columns: Any) -> list[float]:
    return [0.0] * len(completions)


@pytest.fixture
def made(build: Callable[..., Any], packaged: LoadedData) -> Callable[..., Any]:
    """A trainer of the packaged model, whose rewards teach nothing, and that has moved away."""

    def make(noise: float = 0.4, **options: Any) -> Any:
        model = loading.load_model(loading.PACKAGED_MODEL)
        rows = mixed_rows(packaged.train, each=8)
        defaults = {"rewards": None, "reward_funcs": [constant], "train_dataset": rows, **NOT_KEPT}
        trainer = build(model, max_completion_length=64, **{**defaults, **ON, **options})
        torch.manual_seed(0)
        with torch.no_grad():
            for weight in trainer.model.parameters():
                weight += noise * torch.randn_like(weight) * weight.std()
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        return trainer

    return make


def term_of(trainer: Any) -> torch.Tensor:
    term: torch.Tensor = trainer.parts["distillation"].term(trainer, None, {})
    return term


def test_the_term_is_the_kl_of_whole_distributions_one_answer_at_a_time(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = made(gradient_accumulation_steps=2)
    drawn, right_answer = [], ENVIRONMENT.right_answer

    def noted(self: Any, prompt: str, *how: Any) -> Any:
        drawn.append(prompt)
        return right_answer(prompt, *how)

    monkeypatch.setattr(type(ENVIRONMENT), "right_answer", noted)
    term = term_of(trainer)
    start = loading.load_model(loading.PACKAGED_MODEL).eval()
    encode, values = trainer.processing_class, []
    for prompt in drawn:
        before = encode(prompt)["input_ids"]
        answer = encode(ENVIRONMENT.truth(prompt))["input_ids"]
        ids = torch.tensor([[*before, *answer, encode.eos_token_id]])
        with torch.no_grad():
            p, q = (
                network(input_ids=ids).logits[0, len(before) - 1 : -1].log_softmax(-1)
                for network in (start, trainer.model)
            )
        values.append(torch.nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(-1))
    assert len(drawn) == 5 and len(set(map(len, values))) > 1
    assert term.item() == pytest.approx(3.0 / 2 * torch.cat(values).mean().item(), rel=1e-4)
    assert term.item() > 0.01


def test_steps_bring_the_policy_back_to_the_start(made: Any) -> None:
    trainer = made(max_steps=6, learning_rate=3e-4, preflight=False, eval_strategy="no")
    trainer.train()
    kls = [log["keep/kl"] for log in trainer.state.log_history if "keep/kl" in log]
    assert len(kls) == 6 and kls[-1] < 0.7 * kls[0]


def test_an_unmoved_policy_has_no_term_and_a_step_draws_its_own_rows(made: Any) -> None:
    trainer = made(noise=0.0)
    assert abs(term_of(trainer).item()) < 1e-6
    first, second = made(), made()
    draws = []
    for trainer in (first, second):
        trainer.state.global_step = 3
        draws.append([term_of(trainer).item() for _ in range(2)])
    assert draws[0] == draws[1] and draws[0][0] != draws[0][1]
    second.state.global_step = 4
    assert term_of(second).item() not in draws[0]


def test_a_task_without_training_rows_is_refused(made: Any, packaged: LoadedData) -> None:
    with pytest.raises(RookWorldError, match="keep_rows: there are no training rows of 'fill_in'"):
        made(keep_rows={"fill_in": 4})
