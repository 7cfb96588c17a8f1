"""What a script of one's own may give the trainer: chats, rows of no task, data sets of every form."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from datasets import Dataset, DatasetDict

from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.data.loading import LoadedData
from rookworld_rlvr.models import loading
from rookworld_rlvr.tasks.text import message_text
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.preflight import PreflightError
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

from ..support import NOT_KEPT, mixed_rows

Build = Callable[..., Any]
AS_WRITTEN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def chats(rows: Dataset) -> Dataset:
    asked = [[{"role": "user", "content": prompt}] for prompt in rows["prompt"][:]]
    return rows.remove_columns("prompt").add_column("prompt", asked)


@pytest.mark.parametrize(
    "keys",
    [
        {"pass_samples": 2},
        {"zero_variance": "teach", "sft_coef": 0.1, "sft_extra": 1},
        {"zero_variance": "resample", "task_sampling": {"policy": {"temperature": 0.7}}},
        {"expected_score_coef": 1.0, "moves_extra": 1, "keep_coef": 1.0, "beta": 0.01}
        | {"keep_rows": {"environment": 2}},
    ],
    ids=str,
)
def test_a_chat_that_is_written_as_its_text_trains_as_the_text(
    keys: dict[str, Any], make_trainer: Build, packaged: LoadedData, tokenizer: Any, start: str
) -> None:
    """The template writes the prompt alone, so the tokens, and all that follows from them, are equal."""

    def letters(completions: Any, **columns: Any) -> list[float]:
        return [float(len({*message_text(said)})) for said in completions]

    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = AS_WRITTEN
    rows, heldout = mixed_rows(packaged.train), mixed_rows(packaged.heldout, each=4)
    ends = []
    for form in (lambda rows: rows, chats):
        trainer = make_trainer(
            loading.load_model(start),
            tokenizer,
            train_dataset=form(rows),
            eval_dataset=form(heldout),
            reward_funcs=[letters],
            **{**NOT_KEPT, "max_steps": 2, "learning_rate": 1e-3, "eval_steps": 1, **keys},
        )
        trainer.train()
        found = {name: result.value for name, result in trainer.heldout.results.items()}
        found |= {f"pass/{task}": counts for task, counts in trainer.heldout.right.items()}
        ends.append((found, [w.detach() for w in trainer.model.parameters()]))
    (of_texts, texts), (of_chats, said) = ends
    assert of_texts == of_chats and {"environment/format", "policy/format"} <= of_texts.keys()
    assert all(map(torch.equal, texts, said))
    changed = zip(texts, loading.load_model(start).parameters(), strict=True)
    assert not all(torch.equal(*pair) for pair in changed)


def test_a_template_of_its_own_is_what_the_policy_reads(
    make_trainer: Build, packaged: LoadedData, random_gpt2: Any, tokenizer: Any
) -> None:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = f"Q {AS_WRITTEN} A "
    rows = chats(mixed_rows(packaged.train))
    trainer = make_trainer(random_gpt2, tokenizer, train_dataset=rows, **NOT_KEPT)
    genuine = trainer._generate_single_turn
    seen: set[str] = set()

    def watched(prompt_ids: Any, *args: Any) -> Any:
        seen.update(map(tokenizer.decode, prompt_ids))
        return genuine(prompt_ids, *args)

    trainer._generate_single_turn = watched
    trainer.train()
    assert len(seen) == 2
    assert seen <= {f"Q {chat[0]['content']} A " for chat in rows["prompt"][:]}
    assert trainer.preflight.faults(1e-3) == []


def words(completions: Any, **columns: Any) -> list[float]:
    """A reward that knows no task."""
    return [float(len(set(text))) for text in completions]


COLOURS = Dataset.from_dict({"prompt": [f"Name a colour with {n} letters." for n in range(16)]})


@pytest.fixture
def own(random_gpt2: Any, tokenizer: Any, tmp_path: Any) -> Build:
    """A trainer as a script makes it: only the names of the two classes differ from TRL's."""

    def make(train_dataset: Any = COLOURS, eval_dataset: Any = None, **keys: Any) -> Any:
        usual = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4}
        usual |= {"num_generations": 4, "max_completion_length": 8, "max_steps": 2}
        usual |= {"use_cpu": True, "bf16": False, "report_to": [], "output_dir": str(tmp_path)}
        return RookWorldGRPOTrainer(
            random_gpt2,
            words,
            RookWorldGRPOConfig(**{**usual, "logging_steps": 1, "disable_tqdm": True, **keys}),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=tokenizer,
        )

    return make


def test_without_heldout_rows_nothing_is_evaluated(own: Build, capfd: Any) -> None:
    trainer = own()
    assert "no eval_dataset: nothing is evaluated" in " ".join(capfd.readouterr().out.split())
    trainer.train()
    log = trainer.state.log_history
    assert not [name for line in log for name in line if name.startswith("eval_")]
    (first, _) = (line for line in log if "reward" in line)
    assert first["reward/other"] == first["reward"] and first["health/unreadable"] == 0
    with pytest.raises(ConfigurationError, match="pass_samples: 4 is measured on held-out rows"):
        own(pass_samples=4)


FORMS: dict[str, Callable[[Dataset], Any]] = {
    "rows": lambda rows: rows,
    "an iterable": lambda rows: rows.to_iterable_dataset(),
    "two": lambda rows: DatasetDict(a=rows, b=rows.select(range(2))),
    "two iterables": lambda rows: {
        "a": rows.to_iterable_dataset(),
        "b": rows.to_iterable_dataset(),
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_no_task_are_measured_by_the_own_rewards(form: str, own: Build) -> None:
    """By TRL's evaluation, of which the mean reward decides about the best checkpoint."""
    trainer = own(eval_dataset=FORMS[form](COLOURS.select(range(4))), eval_steps=1, save_steps=1)
    trainer.train()
    logged = [line for line in trainer.state.log_history if "eval_reward" in line]
    assert len(logged) == (3 if "two" not in form else 6)
    metrics = trainer.evaluate()
    sets = ["eval_a", "eval_b"] if "two" in form else ["eval"]
    for name in sets:
        assert metrics[f"{name}_overall"] == metrics[f"{name}_reward"] > 1
        assert metrics[f"{name}_rewards/words/mean"] == metrics[f"{name}_reward"]
        assert f"{name}_loss" in metrics
    mean = sum(metrics[f"{name}_overall"] for name in sets) / len(sets)
    assert metrics["eval_overall"] == pytest.approx(mean)
    assert trainer.state.best_metric == max(
        sum(line["eval_reward"] for line in logged[step * len(sets) : (step + 1) * len(sets)])
        / len(sets)
        for step in (1, 2)  # before training there is no checkpoint
    )


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_a_task_are_answered_greedily_in_every_form(
    form: str, build: Build, packaged: LoadedData
) -> None:
    rows = mixed_rows(packaged.heldout, each=4)
    trainer = build(eval_dataset=FORMS[form](rows))
    one = build(eval_dataset=rows).evaluate()
    many = trainer.evaluate()
    if "two" not in form:
        assert {**many, "eval_runtime": 0} == {**one, "eval_runtime": 0}
    else:
        assert many["eval_a_policy/format"] == one["eval_policy/format"]
        assert many["eval_overall"] == (many["eval_a_overall"] + many["eval_b_overall"]) / 2


def test_rows_of_a_task_need_their_position(build: Build, packaged: LoadedData) -> None:
    rows = mixed_rows(packaged.heldout, each=4).remove_columns("fen")
    with pytest.raises(ConfigurationError, match="need the column fen"):
        build(eval_dataset=rows)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("zero_variance", "resample"),
        ("task_phases", [{"environment": 1.0}]),
        ("sft_extra", 1),
        ("moves_extra", 1),
    ],
)
def test_what_chooses_among_rows_does_not_take_an_iterable(
    key: str, value: Any, build: Build, packaged: LoadedData
) -> None:
    rows = mixed_rows(packaged.train).to_iterable_dataset()
    needs = {"sft_extra": {"sft_coef": 0.1}, "moves_extra": {"expected_score_coef": 1.0}}
    with pytest.raises(ConfigurationError, match=f"{key}: .* chooses among all rows"):
        build(train_dataset=rows, **{key: value, **needs.get(key, {})})


def test_an_iterable_trains(build: Build, packaged: LoadedData) -> None:
    rows = mixed_rows(packaged.train).to_iterable_dataset()
    trainer = build(train_dataset=rows, **NOT_KEPT)
    trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 2},
        {"num_beams": 4, "num_return_sequences": 2},
        {"num_return_sequences": 2},
        {"do_sample": False},
        {"prompt_lookup_num_tokens": 3},
        {"return_dict_in_generate": True},
        {"stop_strings": ["B:"]},
    ],
    ids=str,
)
def test_a_sampler_that_does_not_draw_is_refused_by_its_options(
    options: dict[str, Any], build: Build
) -> None:
    trainer = build(generation_kwargs=options, **NOT_KEPT)
    with pytest.raises(PreflightError, match="preflight: generation_kwargs: ") as refused:
        trainer.train()
    assert str(options) in str(refused.value) and "preflight: false" in str(refused.value)
