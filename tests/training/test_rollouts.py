import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rookworld_rlvr.tasks.registry import score_row, task_of
from rookworld_rlvr.training.kl_control import KLControl
from rookworld_rlvr.training.losses import MEAN_OVER_ROWS
from rookworld_rlvr.training.rollouts import Rollouts, fill, in_rows, in_units, next_round, whole
from rookworld_rlvr.training.scoring import Sequences
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

from ..on_two import run as run_on_two
from ..support import first_batch, forked_two, loss_of, on_two
from ..two_processes import TEMPERATURES

P, E, F = "policy", "environment", "fill_in"


Drawn = tuple[list[str], list[bool]]
"""The tasks of a round's groups, and whether these carry signal."""


def filled(*rounds: Drawn, processes: int = 1) -> list[tuple[int, int]]:
    tasks, signal = zip(*rounds, strict=True)
    return fill(tasks, signal, processes)


def next_size(*rounds: Drawn, processes: int = 1, most_extra: int = 32) -> int:
    tasks, signal = zip(*rounds, strict=True)
    return next_round(tasks, signal, processes, most_extra)


def only_policy_differs(prompts: list[str], **_: Any) -> list[float]:
    """0, 1, 0, 1, ... for policy prompts, 0.25 for every environment prompt."""
    return [float(i % 2) if task_of(p) == P else 0.25 for i, p in enumerate(prompts)]


def test_places_are_filled_by_groups_of_their_task_first() -> None:
    first: Drawn = [P, E, P, E], [True, False, False, True]
    extra: Drawn = [P, E, P], [True, True, True]
    assert filled(first, extra) == [(0, 0), (1, 1), (1, 0), (0, 3)]
    one_task: Drawn = [E, E], [True, True]
    assert filled(first, one_task) == [(0, 0), (1, 0), (1, 1), (0, 3)], "else by any"
    nothing: Drawn = [E, P], [False, False]
    assert filled(first, nothing) == [(0, 0), (0, 1), (0, 2), (0, 3)], "else they stay"
    assert filled(first, nothing, ([P], [True]))[1] == (2, 0), "and a later round may help"


def test_no_process_takes_what_another_sampled() -> None:
    first: Drawn = [P, P, P, P], [False, False, True, True]
    extra: Drawn = [P, P], [False, True]  # the second is the second process's
    assert filled(first, extra, processes=2) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    both: Drawn = [P, P], [True, True]
    assert filled(first, both, processes=2) == [(1, 0), (0, 1), (0, 2), (0, 3)]


def test_rounds_are_as_large_as_what_is_missing_asks_and_end() -> None:
    half: Drawn = [P] * 8, [True, False] * 4
    assert next_size(half) == 8, "4 missing at a rate of a half"
    assert next_size(half, most_extra=3) == 3
    assert next_size(([P] * 8, [True] * 8)) == 0
    assert next_size(([P] * 8, [False] * 8)) == 8, "never more than a batch"
    assert next_size(half, ([P] * 8, [True] * 4 + [False] * 4)) == 0
    uneven: Drawn = [P] * 8, [True] * 4 + [True, False, False, True]
    found = next_size(uneven, processes=2, most_extra=16)
    assert found == 3, "the process that misses most: 2 / 0.75"


def test_rows_of_a_unit_are_apart_and_together_again() -> None:
    columns = {"completion_ids": torch.arange(12).view(6, 2), "sum": torch.tensor(7)}
    batch = {**columns, "advantages": torch.arange(6.0), "names": list("abcdef")}
    units = in_units(batch, 3)
    assert units["completion_ids"].shape == (2, 3, 2) and units["sum"] == 7
    assert units["advantages"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert units["names"] == [["a", "b", "c"], ["d", "e", "f"]]
    for again in (in_rows(units), in_rows(batch)):
        assert again.keys() == batch.keys() and again["names"] == batch["names"]
        assert all(torch.equal(again[name], batch[name]) for name in (*columns, "advantages"))


@pytest.fixture
def varied(build: Callable[..., Any]) -> Any:
    """A trainer on mixed rows whose rewards differ for policy prompts only, and a batch."""

    def make(reward: Any = only_policy_differs, **options: Any) -> tuple[Any, dict[str, Any]]:
        sizes = {"per_device_train_batch_size": 32, "max_completion_length": 6}
        trainer = build(**{**sizes, "reward_funcs": [reward], **options})
        torch.manual_seed(0)
        return trainer, first_batch(trainer)

    return make


def texts(trainer: Any, batch: dict[str, Any], part: str = "prompt") -> list[str]:
    rows = zip(batch[f"{part}_ids"], batch[f"{part}_mask"].bool(), strict=True)
    ids = [row[mask] for row, mask in rows]
    return trainer.processing_class.batch_decode(ids, skip_special_tokens=True)


def tasks_in(trainer: Any, batch: dict[str, Any]) -> list[str]:
    return [task_of(text) for text in texts(trainer, batch)]


def test_kept_groups_are_counted(varied: Any) -> None:
    trainer, batch = varied()
    silent = tasks_in(trainer, batch).count(E) / 32
    logged = trainer._metrics["train"]
    assert 0 < silent < 1 and logged["zero_variance/extra_prompts"] == [0]
    assert logged["zero_variance/sampled"] == logged["zero_variance/trained"] == [silent]
    assert trainer.prompt_sampler is None, "TRL's own sampler does"


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out", "adaptive"])
def test_equal_rewards_have_no_advantage_whatever_they_are(varied: Any, baseline: str) -> None:
    """In single precision the mean of eight times 0.7, and of eight times 1.7, is another number."""
    trainer, batch = varied(
        lambda prompts, **_: [0.7 + i // 8 % 2 for i in range(len(prompts))],
        num_generations=8,
        baseline=baseline,
    )
    assert batch["advantages"].dtype == torch.float32 and not batch["advantages"].any()
    assert trainer._metrics["train"]["frac_reward_zero_std"] == [1.0]


def test_the_mean_log_prob_counts_tokens_that_are_certain(varied: Any) -> None:
    options = {"reward_funcs": [lambda prompts, **_: [i % 2 for i, _ in enumerate(prompts)]]}
    trainer, batch = varied(temperature=0.05, **options)
    trainer.compute_loss(trainer.model, batch)
    trainer.settle()
    logps = trainer.score(trainer.model, Sequences(*whole(batch))).logps
    mask = batch["completion_mask"]
    assert 0 < ((logps == 0) * mask).sum() < mask.sum()
    expected = ((logps * mask).sum() / mask.sum()).item()
    assert trainer._metrics["train"]["mean_logp"] == pytest.approx([expected], rel=1e-5)


@pytest.mark.parametrize(
    ("scale", "deviation"), [("group", 0.57735), ("batch", 0.50800), ("none", 1 - 1e-4)]
)
def test_resampling_fills_the_batch_with_groups_that_carry_signal(
    varied: Any, scale: str, deviation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, once = [], RookWorldGRPOTrainer.rollouts_of

    def noted(trainer: Any, rows: Any) -> Rollouts:
        rounds.append(once(trainer, rows))
        return rounds[-1]

    monkeypatch.setattr(RookWorldGRPOTrainer, "rollouts_of", noted)
    options = {"zero_variance": "resample", "num_iterations": 2, "beta": 0.0}
    trainer, batch = varied(scale_rewards=scale, **options)
    # 0, 1, 0, 1 in every group, so in the batch as well.
    expected = pytest.approx([0.5 / (deviation + 1e-4)] * 32, rel=1e-3)
    assert batch["advantages"].abs().tolist() == expected
    assert tasks_in(trainer, batch) == [P] * 32
    assert {tensor.size(0) for tensor in batch.values() if tensor.dim()} == {32}
    assert batch["num_items_in_batch"] == batch["completion_mask"].sum()
    # The completions that are logged, and the log-probs of the sampler, are those trained on.
    logs, names = trainer._logs, ("prompt", "completion")
    trained = set(zip(*(texts(trainer, batch, name) for name in names), strict=True))
    assert set(zip(*(logs[name] for name in names), strict=True)) == trained
    assert sorted(logs["advantages"]) == pytest.approx(sorted(batch["advantages"].tolist()))
    assert set(logs["rewards"]["only_policy_differs"]) == {0.0, 1.0}
    with torch.no_grad():
        now = trainer.score(trainer.model, Sequences(*whole(batch))).logps
    assert ((now - batch["old_per_token_logps"]) * batch["completion_mask"]).abs().max() < 1e-4
    # The rewards that are logged are those of the batch's own prompts.
    logged, rewards = trainer._metrics["train"], rounds[0].rewards
    assert logged["zero_variance/trained"] == [0] and logged["zero_variance/sampled"][0] > 0.2
    assert 0 < logged["zero_variance/extra_prompts"][0] <= 4 * 8
    assert logged["reward"] == pytest.approx([rewards.mean().item()])
    assert logged["reward_std"] == pytest.approx([rewards.std().item()])
    assert logged["reward/policy"] == [0.5] and logged["reward/environment"] == [0.25]
    tokens = sum(one.batch[f"{name}_mask"].sum().item() for one in rounds for name in names)
    assert len(rounds) > 1 and logged["num_tokens"] == [tokens], "but all of them were processed"


@pytest.mark.parametrize(
    ("loss_type", "entropy_coef"),
    [
        *((name, 0.0) for name in ("grpo", "bnpo", "dr_grpo", "dapo", "sapo", "luspo")),
        ("dapo", 0.1),
    ],
)
def test_skipped_groups_are_not_in_the_loss(
    varied: Any, loss_type: str, entropy_coef: float
) -> None:
    """The entropy bonus is a mean over the tokens that are left, so nothing has to make up for it.

    Without a KL term, the rows of the other groups are not scored at all.
    """
    trainer, batch = varied(zero_variance="skip", loss_type=loss_type, entropy_coef=entropy_coef)
    rows = torch.tensor([task == P for task in tasks_in(trainer, batch)])
    assert not batch["completion_mask"][~rows].any() and batch["completion_mask"][rows].any()
    assert ("row_scale" in batch) == (loss_type in MEAN_OVER_ROWS)
    reference = torch.zeros_like(batch["completion_ids"], dtype=torch.float)
    for with_kl in (False, True):  # the KL term must leave them out, too
        if with_kl:
            trainer.kl_beta = 0.1
            trainer.kl, batch["ref_per_token_logps"] = KLControl(trainer), reference
        ours = loss_of(trainer, batch)
        assert torch.equal(ours.scores.counted, rows) or with_kl or entropy_coef
        alone = {
            key: column[rows] if column.dim() else column
            for key, column in batch.items()
            if key != "row_scale"
        }
        only = loss_of(trainer, alone)
        assert ours.terms.keys() == only.terms.keys() == {"policy", *["kl"] * with_kl}
        for name, term in ours.terms.items():
            assert term.item() == pytest.approx(only.terms[name].item(), rel=1e-4, abs=1e-7)
    assert ours.terms["kl"].item() > 1e-2, "as if they had not been there"
    logged = trainer._metrics["train"]
    assert logged["zero_variance/trained"] == [0] and logged["zero_variance/sampled"][0] > 0.2


def first(prompts: list[str], **_: Any) -> list[float]:
    return [float(i % 2) for i, _ in enumerate(prompts)]


def second(prompts: list[str], **_: Any) -> list[float]:
    return [float(i // 2 % 2 * 2) for i, _ in enumerate(prompts)]


def third(prompts: list[str], **_: Any) -> list[float]:
    return [3 - a - b for a, b in zip(first(prompts), second(prompts), strict=True)]


def test_groups_whose_rewards_differ_only_apart_have_signal(varied: Any) -> None:
    """Each reward is divided by its own deviation before they are summed, so that the sums differ."""
    options = {"multi_objective_aggregation": "normalize_then_sum", "zero_variance": "skip"}
    trainer, batch = varied(None, reward_funcs=[first, second, third], **options)
    logged = trainer._metrics["train"]
    assert logged["reward"] == [3] and logged["reward_std"] == [0]
    assert (batch["advantages"].abs() > 0.1).all() and batch["completion_mask"].any(1).all()
    assert logged["zero_variance/sampled"] == logged["zero_variance/trained"] == [0]
    assert logged["health/reward_constant"] == [0]
    trainer, batch = varied(None, reward_funcs=[first, second, third], zero_variance="skip")
    logged = trainer._metrics["train"]
    assert not batch["completion_mask"].any() and logged["zero_variance/sampled"] == [1]
    assert logged["health/reward_constant"] == [1], "by the sums they are all alike"


def test_a_batch_without_any_signal_is_skipped_whole(varied: Any) -> None:
    trainer, batch = varied(lambda prompts, **_: [0.5] * len(prompts), zero_variance="skip")
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    assert loss.item() == 0
    assert not any(p.grad.any() for p in trainer.model.parameters() if p.grad is not None)


def test_a_mixture_holds_in_every_batch(varied: Any) -> None:
    trainer, batch = varied(task_phases=[{P: 0.75, E: 0.25}])
    assert tasks_in(trainer, batch).count(P) == 24
    assert trainer._metrics["train"]["task/policy"] == [0.75]
    trainer, batch = varied(task_phases=[{"steps": 1, P: 1.0}, {"steps": 1, E: 1.0}])
    loader = iter(trainer.get_train_dataloader())
    assert [{row["task"] for row in next(loader)} for _ in range(4)] == [{P}, {E}, {P}, {E}]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return on_two("two_processes", tmp_path_factory.mktemp("two"))


@pytest.mark.slow
def test_two_processes_decide_alike_where_only_one_lacks_signal(two: list[Any]) -> None:
    first, second = (found["run"] for found in two)
    assert first == second, "to the last bit, weights too: else processes drift apart"
    steps = [entry for entry in first["logs"] if "zero_variance/sampled" in entry]
    assert len(steps) == 3
    assert all(0 < entry["zero_variance/trained"] <= 0.5 for entry in steps), "the second's half"
    assert all(entry["zero_variance/extra_prompts"] == 16 for entry in steps), "up to the bound"
    assert first["state"]["beta"] != 0.1


@pytest.mark.slow
def test_two_processes_mix_three_tasks_in_one_batch(two: list[Any]) -> None:
    first, second = (found["tasks"] for found in two)
    logged, rows = first["logged"], [*first["rows"], *second["rows"]]
    assert len(first["rows"]) == len(second["rows"]) == 8
    by_task = {task: [r for r in rows if task_of(r["prompt"]) == task] for task in TEMPERATURES}
    for (task, of_task), count in zip(by_task.items(), (4, 4, 8), strict=True):
        assert len(of_task) == count == logged[f"task/{task}"] * 16
        assert {round(row["temperature"], 6) for row in of_task} == {TEMPERATURES[task]}
        assert max(row["gap"] for row in of_task) <= 1e-4, "what is learnt from is what was drawn"

    def scores(task: str, component: str) -> list[float]:
        # Which moves are best does not matter to the form of an answer.
        found = [score_row(r["prompt"], r["completion"], {"e2e4": 0}) for r in by_task[task]]
        return [score[component] for score in found if score is not None]

    # A reward's mean is over the rows of its own task.
    for task, component in ((E, "state"), (P, "format"), (F, "exact"), (F, "similarity")):
        mean = pytest.approx(statistics.fmean(scores(task, component)), abs=1e-5)
        assert logged[f"rewards/{task}_{component}/mean"] == mean
        assert task == F or logged[f"reward/{task}"] == mean
    of_both = statistics.fmean(scores(F, "exact")) + 0.5 * statistics.fmean(scores(F, "similarity"))
    assert logged[f"reward/{F}"] == pytest.approx(of_both, abs=1e-5)
    assert 0 < logged[f"reward/{E}"] < 1


@pytest.mark.slow
def test_a_reward_that_fails_on_one_process_ends_both(tmp_path: Path) -> None:
    codes, printed = forked_two(
        tmp_path, run_on_two, ["tests.two_processes", str(tmp_path), "fail"]
    )
    assert codes == [2, 2]
    said = "a reward failed: the reward uneven raised KeyError: 'planted' (two_processes.py, line "
    assert printed.count(said) == 1, "on the first process that ends"
