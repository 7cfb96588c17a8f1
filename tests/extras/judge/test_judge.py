import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase
from trl import ModelConfig, RewardTrainer

from rookworld_rlvr.common.errors import ConfigurationError, RookWorldError
from rookworld_rlvr.data.loading import DataArguments
from rookworld_rlvr.extras.judge import reward as judges
from rookworld_rlvr.extras.judge.reward import Judge, JudgeReward, JudgeSpec, load_judge
from rookworld_rlvr.rewards.registry import check_reward_specs, get_reward_funcs, tasks_of
from rookworld_rlvr.training.config import RookWorldGRPOConfig, RookWorldRewardConfig, check_recipe
from rookworld_rlvr.training.glossary import dashboard_key, explain

from ...rows import ASKED_E4 as PROMPT
from ...rows import PAWNS, START
from ...rows import RIGHT_E4 as RIGHT
from ...support import ON_CPU, RECIPES, Means, history, recipe, tiny_judge

POLICY = f"P: {PAWNS}"
ANSWER = " M: h2h4 E: 0.5 B: h2h4"
COMPLETIONS = [RIGHT, "no", f"{START}+-1.0+0+1", "", "rnbqkbnr/pppppppp"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase) -> str:
    path = tmp_path_factory.mktemp("judge")
    tiny_judge(tokenizer).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def reward_of(folder: str, **options: Any) -> JudgeReward:
    (func,) = get_reward_funcs([{"name": "judge", "model": folder, **options}])
    assert isinstance(func, JudgeReward)
    return func


def score_alone(network: Any, ids: Sequence[int]) -> float:
    """Score of one row without padding at its last token, by the network's parts."""
    with torch.no_grad():
        hidden = network.transformer(input_ids=torch.tensor([ids])).last_hidden_state
        return float(network.score(hidden)[0, -1, 0])


def fixed(*batches: list[float | None], **options: Any) -> JudgeReward:
    """A judge whose scores are given, where only what is made of them is looked at."""
    given = iter(batches)
    judge: Any = SimpleNamespace(scores=lambda prompts, completions: next(given))
    return JudgeReward(JudgeSpec("judge", model="x", **options), judge)


def built(network: Any, tokenizer: PreTrainedTokenizerBase, name: str = "judge") -> JudgeReward:
    return JudgeReward(JudgeSpec(name, model="x"), Judge(network, tokenizer, name))


def test_all_faults_of_an_entry_are_reported_and_nothing_is_loaded() -> None:
    entry = {"name": "judge_small", "modle": "x", "scale": "log", "tasks": ["policies"]}
    faults = check_reward_specs([entry])
    for fault, word in zip(faults, ("did you mean model", "model", "log", "policy"), strict=True):
        assert fault.startswith("rewards: judge_small: ") and word in fault
    good, again = {"name": "judge", "model": "no/where"}, {"name": "judge", "model": "b"}
    assert check_reward_specs([good, {**again, "name": "judge_b"}]) == []
    (fault,) = check_reward_specs([good, again])
    assert "'judge' appears twice" in fault
    (fault,) = check_reward_specs([{"name": "environment_exact", "model": "x"}])
    assert "environment_exact: no option 'model'" in fault, "the other rewards' are as they were"


def test_a_judge_made_or_called_with_a_bad_option_says_so() -> None:
    with pytest.raises(ConfigurationError, match=r"judge: scale: 'log' .* raw, sigmoid"):
        fixed([1.0], scale="log")
    with pytest.raises(ConfigurationError, match=r"judge: no option 'scale' .*'sigmoid'"):
        fixed([1.0])([PROMPT], [RIGHT], scale="sigmoid")


def test_a_judge_of_a_task_judges_that_task(folder: str) -> None:
    rewards = [{"name": "judge", "model": "x", "tasks": ["environment"]}]
    assert tasks_of(rewards) == {"environment"}
    training = RookWorldGRPOConfig(rewards=rewards, **ON_CPU)
    others = (None, ModelConfig("rookworld-nano"), training, None)
    assert check_recipe(None, DataArguments(tasks=["environment"]), *others) == []
    (fault,) = check_recipe(None, DataArguments(), *others)
    assert "there is no reward for the task 'policy'" in fault
    reward = reward_of(folder, tasks=["policy"])
    first, second = reward(prompts=[PROMPT, POLICY], completions=[RIGHT, " M:"])
    assert first is None and second is not None


def test_a_batch_of_unequal_lengths_scores_as_each_row_alone(
    folder: str, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = reward_of(folder).judge
    prompts = [PROMPT, POLICY, PROMPT, POLICY, PROMPT]
    alone = [
        score_alone(judge.network, tokenizer(prompt + completion)["input_ids"])
        for prompt, completion in zip(prompts, COMPLETIONS, strict=True)
    ]
    assert max(alone) - min(alone) > 0.1, "the scores differ, or nothing is tested"
    for size in (1, 3):
        monkeypatch.setattr(judges, "_BATCH", size)
        assert judge.scores(prompts, COMPLETIONS) == pytest.approx(alone, abs=1e-5)


def test_the_end_token_moves_nothing_as_padding_and_is_scored_otherwise(tokenizer: Any) -> None:
    ids = tokenizer(PROMPT + RIGHT)["input_ids"]
    ending = [*ids, tokenizer.eos_token_id]
    completions = [RIGHT, RIGHT + "<|endoftext|>", "no"]
    same = Judge(tiny_judge(tokenizer), tokenizer)
    other = Judge(tiny_judge(tokenizer, pad_token_id=7), tokenizer)
    without, scored = score_alone(same.network, ids), score_alone(other.network, ending)
    assert abs(without - scored) > 0.1, "the end token has a score of its own, or nothing is tested"
    # Near, not equal: a processor may add up the rows of one batch in different orders.
    assert same.scores([PROMPT] * 3, completions)[:2] == pytest.approx([without] * 2, abs=1e-5)
    assert other.scores([PROMPT] * 3, completions)[:2] == pytest.approx([scored] * 2, abs=1e-5)


def test_it_scores_what_trls_reward_trainer_trains(tmp_path: Path, tokenizer: Any) -> None:
    prompts, chosen, rejected = [PROMPT, POLICY], [RIGHT, ANSWER], ["no", RIGHT]
    rows = Dataset.from_dict({"prompt": prompts, "chosen": chosen, "rejected": rejected})
    network = tiny_judge(tokenizer)
    args = RookWorldRewardConfig(output_dir=str(tmp_path), **ON_CPU)
    trainer = RewardTrainer(network, args, train_dataset=rows, processing_class=tokenizer)
    batch = trainer.data_collator(list(trainer.train_dataset))
    with torch.no_grad():
        trained = network(**batch).logits.squeeze(-1).tolist()
    ours = Judge(network, tokenizer).scores(prompts * 2, chosen + rejected)
    assert ours == pytest.approx(trained, abs=1e-5)


def test_a_text_that_is_too_long_is_counted_and_refused_before_a_run(tokenizer: Any) -> None:
    reward, logged = built(tiny_judge(tokenizer, n_positions=100), tokenizer), Means()
    first, second = reward([PROMPT] * 2, ["no", "k" * 200], log_metric=logged.log)
    assert first is not None and second is None and logged["judge/judge/too_long"] == 0.5
    prompts, longest = [PROMPT, POLICY], len(tokenizer(PROMPT)["input_ids"])
    assert longest > len(tokenizer(POLICY)["input_ids"])
    reward.check_lengths(prompts, 99 - longest)
    with pytest.raises(RookWorldError, match=r"more positions than the model .* has"):
        reward.check_lengths(prompts, 100 - longest)
    other = JudgeSpec("judge", model="x", tasks=("policy",))
    JudgeReward(other, reward.judge).check_lengths(prompts, 100 - longest)


def test_a_score_that_is_no_number_names_the_judge(tokenizer: PreTrainedTokenizerBase) -> None:
    network = tiny_judge(tokenizer)
    network.score.weight.data.fill_(math.nan)
    with pytest.raises(RookWorldError, match="judge_broken gives the score nan"):
        built(network, tokenizer, "judge_broken")([PROMPT], [RIGHT])


def test_it_keeps_its_own_precision(folder: str) -> None:
    reward = reward_of(folder)
    exact = reward([PROMPT], [RIGHT])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        # float32 rounds by some 1e-7, bfloat16 by some 1e-3.
        assert reward([PROMPT], [RIGHT]) == pytest.approx(exact, abs=1e-5)
    reward.judge.network.to(torch.bfloat16)
    assert reward([PROMPT], [RIGHT]) != pytest.approx(exact, abs=1e-4)


def test_scales_and_a_batch_s_numbers_by_hand() -> None:
    scores = [0.0, 2.0, -800.0, None]
    assert fixed(scores)([PROMPT] * 4, [RIGHT] * 4) == scores
    sigmoid = fixed(scores, [0.0, 4.0], [1.0, 1.0], scale="sigmoid")
    assert sigmoid([PROMPT] * 4, [RIGHT] * 4) == [0.5, pytest.approx(0.880797077978), 0.0, None]
    logged = Means()
    sigmoid([PROMPT] * 2, [RIGHT, "no"], log_metric=logged.log)
    assert logged == {
        "judge/judge/mean": 2.0,
        "judge/judge/std": pytest.approx(math.sqrt(8)),
        "judge/judge/reward_std": pytest.approx((0.98201379 - 0.5) / math.sqrt(2)),
        "judge/judge/truth": 0.5,
        "judge/judge/too_long": 0.0,
    }
    logged.clear()
    sigmoid([PROMPT] * 2, ["no", "no"], log_metric=logged.log)
    assert "judge/judge/std" not in logged, "one text has one score: no judge is to blame"


def test_rows_without_a_score_or_a_truth_count_in_no_mean() -> None:
    logged = Means()
    reward = fixed([2.0, None, None], [None], [1.0, 3.0, 8.0])
    reward([PROMPT] * 3, ["no", RIGHT, RIGHT], log_metric=logged.log)
    assert logged["judge/judge/mean"] == 2 and logged["judge/judge/truth"] == 0
    assert logged["judge/judge/too_long"] == pytest.approx(2 / 3)
    logged.clear()
    reward([PROMPT], [RIGHT], log_metric=logged.log)
    assert logged == {"judge/judge/too_long": 1.0}
    reward([PROMPT, PROMPT, POLICY], [RIGHT, "no", "no"], log_metric=logged.log)
    assert logged["judge/judge/mean"] == 4 and logged["judge/judge/truth"] == 0.5
    assert all(explain(dashboard_key(key)) for key in logged)


def test_what_is_no_judge_is_refused_with_what_was_found(tmp_path: Path, tokenizer: Any) -> None:
    def saved(name: str, **shape: Any) -> Path:
        tiny_judge(tokenizer, **shape).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return tmp_path / name

    two, damaged, silent = saved("two", num_labels=2), saved("damaged"), saved("silent")
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    for path in silent.glob("tokenizer*"):
        path.unlink()
    (tmp_path / "empty").mkdir()
    for folder, words in (
        ("rookworld-nano", "lacks 1 of its weights: score.weight"),
        (two, "has 2 labels"),
        (damaged, "deserializing"),
        (silent, "has no tokenizer that encodes text"),
        (tmp_path / "nothing", "there is no folder"),
        (tmp_path / "empty", "no model in"),
        ("runs/judge_nano", "rookworld judge"),
    ):
        said = rf"judge_a could not be loaded from '{folder}'.*{words}"
        with pytest.raises(RookWorldError, match=said):
            load_judge(JudgeSpec("judge_a", model=str(folder)))


def test_a_judge_stays_as_it_is_while_the_policy_learns(
    build: Callable[..., Any], tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    network = tiny_judge(tokenizer).train()
    reward = built(network, tokenizer, "judge_a")
    options = {"max_steps": 2, "logging_steps": 1, "learning_rate": 1e-3}
    trainer = build(reward_funcs=[reward], save_steps=2, eval_steps=2, **options)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    policy = next(trainer.model.parameters()).detach().clone()
    trainer.train()
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert not torch.equal(policy, next(trainer.model.parameters())), "the policy has moved"
    assert not any(module.training for module in network.modules())
    assert not any(one.requires_grad or one.grad is not None for one in network.parameters())
    saved = load_file(tmp_path / "run" / "checkpoint-2" / "model.safetensors")
    assert not any(name.startswith("score") for name in saved)
    log = next(log for log in trainer.state.log_history if "reward" in log)
    assert log["rewards/judge_a/std"] > 0 and log["judge/judge_a/std"] > 0
    assert log["judge/judge_a/truth"] == 0, "random text is never right"


def test_with_a_judge_alone_what_can_be_verified_is_measured_still(
    tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = "runs/judge_fill_in"
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, judge)
    path = RECIPES / "grpo_fill_in_judge.yaml"
    assert judge in path.read_text()
    words = """--use_cpu --report_to none --output_dir run --model_name_or_path rookworld-nano
        --max_rows 80 --synthetic_rows 20 --synthetic_fill_in_rows 40 --heldout_rows 4
        --other_task_rows 4 --max_steps 1 --logging_steps 1 --eval_steps 1 --save_steps 1
        --max_completion_length 8 --per_device_train_batch_size 8
        --load_best_model_at_end false""".split()
    rewards = json.dumps([{"name": "judge", "model": judge}])
    recipe("grpo").main(["--config", str(path), "--rewards", rewards, *words])
    assert re.search(r"fill_in/exact +4 .*%.*%.*[+-]\d+\.\d ", capsys.readouterr().out)
    assert any("rewards/judge/mean" in log and "judge/judge/truth" in log for log in history("run"))
    assert "fill_in/exact" in json.loads(Path("run/results.json").read_text())["heldout"]
