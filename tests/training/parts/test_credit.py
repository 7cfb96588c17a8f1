"""Advantages by place: worked answers, whatever the tokenizer, and the trainer's own batches."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.engine.truth import PolicyTruth
from rookworld_rlvr.models import loading
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.tasks.registry import TASKS, task_of
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.parts.credit import Spans, by_first_error
from rookworld_rlvr.training.parts.part import Call, whole

from ...conftest import launch
from ...tasks.test_places import ASKED, POSITION, RIGHT
from ...tasks.test_scoring import PERFECT, VALUES

REWARDS = [{"name": "environment_exact"}]
ROW = {"prompt": ASKED, "action_values": None}
VALUED = {
    "prompt": POSITION,
    "action_values": [{"move": move, "cp": cp} for move, cp in VALUES.items()],
}


def by_character(text: str, **kind: Any) -> PreTrainedTokenizerFast:
    """A tokenizer with a token for each character of a text."""
    vocabulary = {c: number for number, c in enumerate(["<end>", *sorted(set(text))])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.decoder = kind.get("decoder") or decoders.Fuse()
    if "pre_tokenizer" in kind:
        tokenizer.pre_tokenizer = kind["pre_tokenizer"]
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    made.padding_side = "left"
    return made


CHARACTERS = "".join(map(chr, range(32, 127)))


# --------------------------------------------------------------------------------------------------
# Characters and tokens
# --------------------------------------------------------------------------------------------------
def pieces(tokenizer: Any, text: str) -> list[str]:
    found, spans = Spans(tokenizer).of([*tokenizer(text)["input_ids"], tokenizer.eos_token_id])
    assert found == text
    assert spans[-1] == (len(text), len(text) + 1), "the end token"
    return [text[start:end] for start, end in spans[:-1]]


def test_tokens_cover_the_characters_that_they_add(tokenizer: PreTrainedTokenizerBase) -> None:
    found = "8|/8|/8|/8|/8|/4|k|3|/8|/3|K|4| b| -| -| 1| 1|+|0.|5|+|1|+|0"
    assert pieces(tokenizer, RIGHT) == found.split("|")
    assert pieces(by_character(CHARACTERS), RIGHT) == list(RIGHT)
    assert pieces(tokenizer, "") == []


def test_bytes_of_one_character_all_cover_it(tokenizer: PreTrainedTokenizerBase) -> None:
    assert pieces(tokenizer, "é€x") == ["é", "é", "€", "€", "€", "x"]
    text, spans = Spans(tokenizer).of(tokenizer("x€")["input_ids"][:-1])  # cut off in between
    assert text[0] == "x" and spans[0] == (0, 1) and spans[1][0] == 1


def test_a_tokenizer_whose_tokens_cannot_be_decoded_alone() -> None:
    metaspace = by_character(
        CHARACTERS + "▁",
        pre_tokenizer=pre_tokenizers.Metaspace(),
        decoder=decoders.Sequence([decoders.Metaspace(), decoders.Fuse()]),
    )
    ids = metaspace("e2 e4")["input_ids"]
    assert len(ids) == 6, "the first token is a space that is decoded to nothing"
    text, spans = Spans(metaspace).of(ids)
    assert text == "e2 e4" and spans == [(0, 1), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]


# --------------------------------------------------------------------------------------------------
# Worked answers
# --------------------------------------------------------------------------------------------------
Credited = Callable[..., list[list[tuple[str, float]]]]


@pytest.fixture(params=["byte-level", "characters"])
def credited(
    request: pytest.FixtureRequest,
    make_trainer: Callable[..., Any],
    random_gpt2: Any,
    tokenizer: PreTrainedTokenizerBase,
) -> Credited:
    """What each token of the given answers of one group gets, the end token as an empty text."""
    mine: Any = tokenizer if request.param == "byte-level" else by_character(CHARACTERS)

    def credit(
        kind: str, row: Any, answers: Sequence[str], rewards: Sequence[float], **options: Any
    ) -> list[list[tuple[str, float]]]:
        trainer = make_trainer(
            random_gpt2,
            mine,
            rewards=REWARDS,
            credit=kind,
            num_generations=len(answers),
            per_device_train_batch_size=len(answers),
            **{"scale_rewards": "none", **options},
        )
        trainer.model.train()
        ids = [torch.tensor([*mine(answer)["input_ids"], mine.eos_token_id]) for answer in answers]
        pad = torch.nn.utils.rnn.pad_sequence
        given = torch.tensor(rewards)
        batch = {
            "completion_ids": pad(ids, batch_first=True, padding_value=mine.pad_token_id),
            "completion_mask": pad([torch.ones_like(row) for row in ids], batch_first=True),
            "advantages": (given - given.nanmean()).nan_to_num(),
        }
        found = trainer.parts.credit.advantages(batch, given, [row] * len(answers))
        assert found.shape == batch["completion_mask"].shape
        assert not found[batch["completion_mask"] == 0].any()
        return [
            list(zip([*pieces(mine, answer), ""], numbers.tolist(), strict=False))
            for answer, numbers in zip(answers, found, strict=True)
        ]

    return credit


def worth(found: list[tuple[str, float]]) -> list[tuple[str, Any]]:
    """Neighbouring tokens with the same advantage, joined; the end token is written <end>."""
    joined: list[tuple[str, float]] = []
    for piece, number in found:
        text = piece or "<end>"
        if joined and joined[-1][1] == pytest.approx(number):
            text = joined.pop()[0] + text
        joined.append((text, number))
    return [(text, pytest.approx(number, abs=1e-6)) for text, number in joined]


def test_only_the_first_error_is_blamed_and_only_what_is_before_it_praised(
    credited: Credited,
) -> None:
    wrong_side = RIGHT.replace(" b ", " w ")
    # Rewards 1, 0, 0, 0, 1 have the mean 0.4.
    right, side, early, unreadable, praised = map(
        worth,
        credited(
            "first_error",
            ROW,
            [RIGHT, wrong_side, RIGHT[:-1], "x8", wrong_side],
            [1.0, 0.0, 0.0, 0.0, 1.0],
        ),
    )
    assert right == [(f"{RIGHT}<end>", 0.6)]
    assert [text.strip() for text, _ in side] == [RIGHT[:19], "w", "- - 1 1+0.5+1+0<end>"]
    assert [number for _, number in side] == [0, -0.4, 0]
    assert early == [(RIGHT[:-1], 0), ("<end>", -0.4)]
    assert unreadable == [("x", -0.4), ("8<end>", 0)]
    assert [text.strip() for text, _ in praised] == [RIGHT[:19], "w - - 1 1+0.5+1+0<end>"]
    assert [number for _, number in praised] == [0.6, 0]


def test_all_bytes_of_a_wrong_character_are_blamed(tokenizer: PreTrainedTokenizerBase) -> None:
    text, spans = Spans(tokenizer).of(tokenizer("8€8")["input_ids"])
    assert by_first_error(-1.0, 1, text, spans) == [0, -1, -1, -1, 0]


def test_a_right_answer_may_be_blamed(credited: Credited) -> None:
    found = credited("first_error", ROW, [RIGHT, RIGHT], [0.0, 1.0])
    assert list(map(worth, found)) == [[(f"{RIGHT}<end>", -0.5)], [(f"{RIGHT}<end>", 0.5)]]


def test_fields_are_compared_with_the_same_fields_of_the_group(credited: Credited) -> None:
    """Each field is right in three of four answers, but side, reward and terminated in two.

    So right ones are 0.25 or 0.5 above the mean, wrong ones 0.75 or 0.5 below. The answer that cannot be
    read is wrong in seven fields of the first kind (to be readable is one) and in three of the second.
    """
    answers = [
        RIGHT,
        RIGHT.replace(" b ", " w "),
        RIGHT.replace("+0.5+1+", "+0.001+0+"),
        "8/8",
    ]
    found = credited("field", ROW, answers, [1.0, 0.0, 0.0, 0.0])
    right, side, outcome, unreadable = ([*map(strip, worth(row))] for row in found)
    ending = [("- - 1 1+", 0.25), ("0.5+1+", 0.5), ("0<end>", 0.25)]
    assert right == [(RIGHT[:19], 0.25), ("b", 0.5), *ending]
    assert side == [(RIGHT[:19], 0.25), ("w", -0.5), *ending]
    assert outcome == [*right[:2], ending[0], ("0.001+0+", -0.5), ending[2]]
    assert unreadable == [("8/8<end>", -(7 * 0.75 + 3 * 0.5) / 10)]


def strip(item: tuple[str, Any]) -> tuple[str, Any]:
    """A space is in the token after it, or belongs to the field before it."""
    return item[0].strip(), item[1]


def test_fields_are_scaled_as_rewards_are(credited: Credited) -> None:
    answers = [RIGHT, RIGHT.replace(" b ", " w ")]
    for scale in ("group", "batch"):  # of one group, so that both are the same
        found = credited("field", ROW, answers, [1.0, 0.0], scale_rewards=scale)
        # 0 and 1 have the sample deviation 0.70711; TRL adds 1e-4.
        side = pytest.approx(-0.5 / (0.7071068 + 1e-4), rel=1e-5)
        board, wrong, rest = map(strip, worth(found[1]))
        assert board == (RIGHT[:19], 0) and wrong == ("w", side)
        assert rest == ("- - 1 1+0.5+1+0<end>", 0)


def test_the_policys_fields_are_its_sections(credited: Credited) -> None:
    answers = [
        PERFECT,
        PERFECT.replace("B: g2g4", "B: a1a1"),  # illegal: 0
        "M: g2g4 f2f4 E: 1.0 1.0 B: g2g4",  # two of the top five
    ]
    perfect, illegal, short = map(worth, credited("field", VALUED, answers, [1.0, 0.0, 1.0]))
    # M: 1, 1, 0.4 have the mean 0.8; B: 1, 0, 1 the mean 2/3; E is right in all of them.
    assert [number for _, number in perfect] == [0.2, 0, 1 / 3, 0]
    assert [number for _, number in illegal] == [0.2, 0, -2 / 3, 0]
    assert [number for _, number in short] == [-0.4, 0, 1 / 3, 0]
    assert [text.strip() for text, _ in short[:1]] == ["M: g2g4 f2f4"]
    assert [text.strip() for text, _ in short[2:]] == ["B: g2g4", "<end>"]


def test_values_come_from_where_the_rewards_take_them(credited: Credited) -> None:
    class Engine:
        """A labeller that knows the position, and turns the order of the moves round."""

        def values(self, fens: Sequence[str], _: Any = None) -> list[Any]:
            turned = dict(zip(reversed(VALUES), VALUES.values(), strict=True))
            return [SimpleNamespace(by_move=lambda: turned) for _ in fens]

    truth = PolicyTruth("engine", Engine())  # type: ignore[arg-type]
    funcs = get_reward_funcs([{"name": "policy_best_move"}], truth)
    answers, given = [PERFECT, PERFECT.replace("B: g2g4", "B: a1a1")], [1.0, 0.0]
    stored = credited("field", VALUED, answers, given)
    asked = credited("field", VALUED, answers, given, reward_funcs=funcs)
    assert asked != stored
    bare = {**VALUED, "action_values": None}
    assert credited("field", bare, answers, given, reward_funcs=funcs) == asked


def test_an_answer_without_a_reward_counts_nowhere(credited: Credited) -> None:
    answers = [RIGHT, RIGHT.replace(" b ", " w "), "x"]
    found = credited("field", ROW, answers, [1.0, 0.0, float("nan")])
    assert worth(found[2]) == [("x<end>", 0)]
    assert [strip(item) for item in worth(found[0])][1] == ("b", 0.5)


@pytest.mark.parametrize(
    ("kind", "row"), [("first_error", VALUED), ("field", {**VALUED, "action_values": None})]
)
def test_without_places_all_tokens_have_the_completions_advantage(
    credited: Credited, kind: str, row: Any
) -> None:
    found = credited(kind, row, [PERFECT, "x"], [1.0, 0.0])
    assert list(map(worth, found)) == [[(f"{PERFECT}<end>", 0.5)], [("x<end>", -0.5)]]


# --------------------------------------------------------------------------------------------------
# In the trainer
# --------------------------------------------------------------------------------------------------
def by_turns(prompts: list[str], **_: Any) -> list[float]:
    """Groups of environment prompts differ, those of policy prompts do not."""
    return [float(i % 2) if p.startswith("A:") else 0.5 for i, p in enumerate(prompts)]


@pytest.fixture
def build(make_trainer: Callable[..., Any], tokenizer: PreTrainedTokenizerBase) -> Any:
    """A trainer of the packaged model, and one batch as it trains on."""

    def make(**options: Any) -> tuple[Any, dict[str, Any]]:
        options = {
            "rewards": REWARDS,
            "reward_funcs": [by_turns],
            "max_completion_length": 72,
            "preflight": False,
            "eval_steps": 100,
            "save_strategy": "no",
            "load_best_model_at_end": False,
            **options,
        }
        model = loading.load_model(loading.PACKAGED_MODEL)
        trainer = make_trainer(model, tokenizer, **options)
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        torch.manual_seed(0)
        batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
        return trainer, batch

    return make


def gradient(trainer: Any, loss: torch.Tensor) -> torch.Tensor:
    trainer.model.zero_grad()
    loss.backward()
    return trainer.model.transformer.h[0].attn.c_attn.weight.grad.clone()


@pytest.mark.parametrize("kind", ["first_error", "field"])
def test_the_gradient_is_that_of_each_tokens_own_advantage(build: Any, kind: str) -> None:
    _, plain = build()
    trainer, batch = build(credit=kind)
    torch.testing.assert_close(batch["completion_ids"], plain["completion_ids"])
    kept, mask = batch["advantages"], batch["completion_mask"]
    assert plain["advantages"].shape == (8,) and kept.shape == mask.shape
    assert not torch.equal(kept, plain["advantages"].unsqueeze(1) * mask)
    logged = list(trainer.completion_log()["advantages", ""])
    assert sorted(logged) == pytest.approx(sorted(plain["advantages"].tolist()))
    share = trainer._metrics["train"]["credit/placed"]
    assert share == [0.5 if kind == "first_error" else 1.0], "the policy has fields only"

    ours = gradient(trainer, trainer._compute_loss(trainer.model, batch))
    logps = trainer.log_probs(trainer.model, *whole(batch)).logps
    by_hand = gradient(trainer, -(kept * logps * mask).sum() / mask.sum())
    torch.testing.assert_close(ours, by_hand, rtol=1e-3, atol=1e-6)
    before = gradient(trainer, trainer._compute_loss(trainer.model, plain))
    assert (ours - before).abs().max() > 1e-3 * before.abs().max()


def assert_placed(trainer: Any, batch: dict[str, Any]) -> int:
    """Advantages are where the first error says; gives how many rows have one."""
    decode = trainer.processing_class.decode
    wrong = 0
    assert batch["advantages"].shape == batch["completion_ids"].shape
    for index, mask in enumerate(batch["completion_mask"].bool()):
        if not mask.any():  # skipped
            continue
        prompt = decode(batch["prompt_ids"][index][batch["prompt_mask"][index].bool()])
        ids, found = batch["completion_ids"][index][mask], batch["advantages"][index]
        assert not found[~mask].any()
        text = decode(ids, skip_special_tokens=True)
        error = TASKS[task_of(prompt)].first_error(prompt, text)
        numbers = found[mask]
        if error is None or error > len(text):
            assert len(set(numbers.tolist())) == 1
            continue
        wrong += 1
        # The text before token `first` is right so far, and with it no longer.
        lengths = [len(decode(ids[:n], skip_special_tokens=True)) for n in range(len(ids) + 1)]
        first = sum(length <= error for length in lengths[1:-1])
        assert not numbers[first + 1 :].any()
        assert (numbers[:first] >= 0).all() and (numbers[first : first + 1] <= 0).all()
    return wrong


@pytest.mark.parametrize(
    "options",
    [
        {"zero_variance": "resample"},
        {"zero_variance": "resample", "scale_rewards": "batch", "share_prompts": False},
        {"num_iterations": 2, "gradient_accumulation_steps": 2, "beta": 0.01},
        {"zero_variance": "skip", "baseline": "leave_one_out", "shape_buckets": [256]},
    ],
)
def test_credit_goes_with_the_other_controls(build: Any, options: dict[str, Any]) -> None:
    trainer, _ = build(credit="first_error", max_steps=2, learning_rate=1e-4, **options)
    batches, loss = [], trainer.loss

    def watched(model: Any, batch: dict[str, Any]) -> tuple[torch.Tensor, Call]:
        batches.append(batch)
        return loss(model, batch)

    trainer.loss = watched
    trainer.train()
    assert len(batches) == 2 * options.get("gradient_accumulation_steps", 1)
    assert sum(assert_placed(trainer, batch) for batch in batches) > 0
    assert all(batch["advantages"].any() for batch in batches)
    if options.get("zero_variance") == "resample":
        assert all((batch["advantages"] != 0).any(1).float().mean() > 0.4 for batch in batches)


def test_faults_are_found_together() -> None:
    def faults(**options: Any) -> str:
        with pytest.raises(ConfigurationError) as caught:
            RookWorldGRPOConfig(rewards=REWARDS, use_cpu=True, bf16=False, **options)
        return str(caught.value)

    assert "did you mean first_error" in faults(credit="frist_error")
    for kind in ("first_error", "field"):
        found = faults(
            credit=kind,
            advantage_estimator="gae",
            importance_sampling_level="sequence",
            off_policy_mask_threshold=0.5,
        )
        for name in ("gae", "sequence", "off_policy_mask_threshold"):
            assert name in found
        assert f"credit: {kind} gives each token its own advantage" in found
    found = faults(
        credit="field",
        baseline="ema",
        multi_objective_aggregation="normalize_then_sum",
        scale_rewards="batch",
        zero_variance="resample",
    )
    for words in ("baseline: ema", "needs multi_objective", "come from several rounds"):
        assert words in found
    args = RookWorldGRPOConfig(
        rewards=REWARDS,
        use_cpu=True,
        bf16=False,
        credit="field",
        num_generations=4,
        per_device_train_batch_size=12,
        gradient_accumulation_steps=1,
    )
    assert args.credit_faults(args, 1) == []
    (torn,) = args.credit_faults(args, 2)
    assert torn.startswith("credit: field needs whole groups on each process, but 6 completions")


# --------------------------------------------------------------------------------------------------
# Two processes
# --------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_two_processes_decide_alike_and_scale_by_the_whole_batch(tmp_path: Path) -> None:
    done = launch("--module", "tests.training.parts.credit_on_two", str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads((tmp_path / f"process{rank}.json").read_text()) for rank in range(2)]
    for kind in ("first_error", "field"):
        first, second = (process[kind] for process in told)
        assert first["logs"] == second["logs"] and first["weights"] == second["weights"]
    # The board of each readable environment answer, against the deviation over both processes.
    rows = [row for process in told for row in process["field"]["rows"]]
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row["prompt"], []).append(row["board"] or 0.0)
    boards = [score for scores in groups.values() for score in scores]
    assert len(boards) == 16 and 0 < sum(boards) < 16
    spread = statistics.stdev(boards)
    for row in rows:
        if row["board"] is not None:
            centre = statistics.mean(groups[row["prompt"]])
            assert row["first"] == pytest.approx(
                (row["board"] - centre) / (spread + 1e-4), abs=1e-5
            )
