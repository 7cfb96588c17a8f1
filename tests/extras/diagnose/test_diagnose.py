"""`recipes/diagnose.py`: ten phases, planted faults found by name, nothing found on a healthy recipe."""

import contextlib
import copy
import json
import re
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from rookworld_rlvr.cli.main import first_line
from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.extras.diagnose import step
from rookworld_rlvr.extras.diagnose.phases import PHASES
from rookworld_rlvr.extras.diagnose.report import page, print_report, tables
from rookworld_rlvr.models import gpt2, loading
from rookworld_rlvr.training import scoring

from ... import support
from ...browser import HEIGHT, WIDTHS, Browser
from ...support import RECIPES, script_on_two

SMALL = "--use_cpu --heldout_rows 10 --per_device_train_batch_size 16".split()
SLOW = pytest.mark.slow
Diagnose = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return support.recipe("diagnose")


@pytest.fixture
def diagnose(recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Diagnose:
    monkeypatch.setattr(step, "TEMPERATURES", (1.0, 2.0))  # `healthy` has them all
    return partial(run, recipe, tmp_path / "out")


def run(recipe: ModuleType, folder: Path, *argv: str) -> tuple[int, dict[str, Any]]:
    """Run the script in this process: its exit code, and the JSON file."""
    with pytest.raises(SystemExit) as ended:
        recipe.main([*SMALL, "--output_dir", str(folder), *argv])
    assert isinstance(ended.value.code, int)
    return ended.value.code, json.loads((folder / "diagnosis.json").read_text())


def rules(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {finding["rule"]: finding for finding in content["analysis"]["findings"]}


def rows_of(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [r for group in content["generation"]["groups_of_texts"] for r in group["completions"]]


@pytest.fixture(scope="module")
def healthy(recipe: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("healthy")
    options = "--gradient_accumulation_steps 2 --heldout_rows 30 --beta 0.05"
    guard = ("--guard", '{"environment/exact": 0.01}')  # some packaged recipes have one
    assert run(recipe, folder, *options.split(), *guard)[0] == 0
    return folder


@pytest.fixture(scope="module")
def content(healthy: Path) -> dict[str, Any]:
    return json.loads((healthy / "diagnosis.json").read_text())


def test_ten_phases_and_no_finding(content: dict[str, Any], healthy: Path) -> None:
    assert list(PHASES) == [key for key in content if key in PHASES] and len(PHASES) == 10
    assert content["analysis"]["findings"] == []
    assert content["analysis"]["verdict"].startswith("healthy")
    assert content["update"]["learning_rate"] == pytest.approx(1e-4), "without warm-up"
    drawn = (healthy / "diagnosis.html").read_text()
    assert re.findall(r'<section id="(\w+)"', drawn) == ["verdict", *PHASES, "costs"]
    assert drawn.count('<details class="group" open>') == 2
    assert drawn.count('class="board"') >= 4
    rows = {row["phase"]: row for row in content["costs"]}
    for name in ("sampling", "rewards", "reference", "forward", "backward"):
        assert rows[name]["seconds"] > 0 and rows[name]["peak_memory_mib"] > 1
    assert rows["forward"]["calls"] == rows["backward"]["calls"] == 2, "two accumulated batches"


def test_each_completion_has_log_probs_and_terms(content: dict[str, Any]) -> None:
    part, rows = content["generation"], rows_of(content)
    assert part["completions"] == len(rows) == 32
    assert {group["task"] for group in part["groups_of_texts"]} == {"environment", "policy"}
    assert all(group["fen"] for group in part["groups_of_texts"])
    for row in rows:
        count = len(row["tokens"])
        assert row["text"] == "".join(row["tokens"]).removesuffix("<|endoftext|>")
        for name in ("sampler", "policy", "reference", "kl"):
            assert len(row[name]) == count
        assert row["sampler"] == pytest.approx(row["policy"], abs=1e-4)
        assert row["total"] == pytest.approx(row["policy_term"] + row["penalty"], abs=1e-6)
        alike = -row["advantage"] * count / part["tokens"]  # as on policy `dapo` weighs tokens
        assert row["policy_term"] == pytest.approx(alike, rel=1e-3)
    assert sum(row["total"] for row in rows) == pytest.approx(content["update"]["loss"], abs=1e-4)


def test_groups_kl_and_layers_are_those_of_trl_and_adam(content: dict[str, Any]) -> None:
    for group in content["advantages"]["groups"]:
        mean, deviation = statistics.mean(group["rewards"]), statistics.stdev(group["rewards"])
        assert group["mean"] == pytest.approx(mean, rel=1e-4)
        assert group["std"] == pytest.approx(deviation, rel=1e-4, abs=1e-6)
        expected = [(reward - mean) / (deviation + 1e-4) for reward in group["rewards"]]
        assert group["advantages"] == pytest.approx(expected, abs=2e-3)
    assert content["kl"]["loss/kl"] == content["kl"]["kl/share_of_loss"] == 0
    later = content["kl"]["one_step_on"]
    assert 0 < later["kl/share_of_loss"] < 0.01 and 0 < later["kl/share_of_gradient"] < 0.3
    layers = content["update"]["layers"]
    assert {layer["layer"] for layer in layers} >= {"wte", "wpe", "h.0.attn", "h.3.mlp"}
    for layer in layers:
        assert layer["gradient_norm"] > 0
        assert 0 < layer["update_norm"] <= 1.001e-4 * layer["parameters"] ** 0.5


def test_each_prompt_has_its_figures_before_and_after_the_step(content: dict[str, Any]) -> None:
    """Computed here from its completions, of which the JSON file has all."""
    texts = content["generation"]["groups_of_texts"]
    phases = {name: content[name]["groups"] for name in ("advantages", "policy", "kl", "update")}
    assert all([one["group"] for one in groups] == [0, 1, 2, 3] for groups in phases.values())
    for number, group in enumerate(texts):
        rows = group["completions"]
        found = {name: groups[number] for name, groups in phases.items()}
        assert {one["task"] for one in found.values()} == {group["task"]}
        given = [row["advantage"] for row in rows]
        of = found["advantages"]
        assert of["advantage_mean"] == pytest.approx(statistics.mean(given), abs=2e-6)
        assert of["advantage_std"] == pytest.approx(statistics.stdev(given), rel=1e-4)
        assert of["advantage_range"] == pytest.approx(max(given) - min(given), rel=1e-4)
        assert of["positive"] == sum(advantage > 0 for advantage in given) / 8
        different = len({row["text"] for row in rows})
        assert of["texts"] == (
            "all 8 identical" if different == 1 else f"{different} of 8 distinct"
        )
        assert of["verdict"] == "enough to learn from"
        for after in ("", "_after"):
            for phase, name, column in (
                ("policy", "policy_term", "policy_term"),
                ("policy", "logp", "policy"),
                ("kl", "kl", "kl"),
                ("kl", "penalty", "penalty"),
            ):
                each = [row[column + after] for row in rows]
                if isinstance(each[0], list):
                    each = [number for numbers in each for number in numbers]
                expected = pytest.approx(statistics.mean(each), rel=1e-3, abs=1e-7)
                assert found[phase][name + after] == expected, (name, after)
            for name in ("policy_term", "penalty", "total"):
                expected = pytest.approx(sum(row[name + after] for row in rows), rel=1e-3, abs=1e-7)
                assert found["update"][name + after] == expected
        assert found["kl"]["kl"] == 0 < found["kl"]["kl_after"]
    prompts = content["after"]["prompts"]
    assert [row["prompt"] for row in prompts] == [group["prompt"] for group in texts]


def test_the_terminal_cuts_no_number_and_no_text(
    content: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_report(content)
    shown = capsys.readouterr().out
    assert "…" not in shown and max(map(len, shown.splitlines())) <= 80
    words = " ".join(shown.split())
    for group in content["advantages"]["groups"]:
        assert " ".join(f"{advantage:.3g}" for advantage in group["advantages"]) in words
    for group in content["generation"]["groups_of_texts"][:2]:
        for row in group["completions"]:
            assert " ".join(row["text"].split()) in words
    assert "enough to learn from" in words


def test_names_are_those_of_the_log_and_digits_stand_below_each_other(
    content: dict[str, Any],
) -> None:
    drawn = str(page(content))
    part = content["rewards"]
    zero = [name for name, value in part.items() if value == 0]
    assert "rewards/environment_exact/unscored" in zero
    for name in part:
        is_shown = name not in zero and part[name] != []
        assert (f'<th scope="row">{name}</th>' in drawn) == is_shown, name
    assert f"<summary>{len(zero)} numbers are 0</summary>" in drawn and ", ".join(zero) in drawn
    assert "\n".join(content["setup"]["data"][:2]) in drawn, "a line of the data stays a line"
    checked = 0
    for key in PHASES:
        for _, _, rows in tables(content[key]):
            for column in zip(*rows, strict=True):
                points = [c.index(".") for c in column if re.fullmatch(r" *-?\d+\.\d+ *", c)]
                assert len(set(points)) <= 1, column
                checked += len(points) > 1
    assert checked > 20


def test_rewards_and_answers_are_compared_with_those_before(content: dict[str, Any]) -> None:
    before, after = (
        {row["metric"]: row["share"] for row in content[key]["heldout"]}
        for key in ("initial", "after")
    )
    for pair in content["after"]["paired"]:
        change = after[pair["metric"]] - before[pair["metric"]]
        assert change == pytest.approx(pair["difference"], abs=1e-5), pair["metric"]
    prompts = content["after"]["prompts"]
    assert len(prompts) == 4
    changes = [row["sampled_after"] - row["sampled"] for row in prompts]
    assert content["after"]["reward_change"] == pytest.approx(statistics.mean(changes), abs=1e-5)
    assert content["after"]["prompts_that_rose"] == sum(change > 0 for change in changes) / 4
    for key, how in (("initial", ""), ("after", "_after")):
        for name in ("greedy", "sampled"):
            mean = statistics.mean(row[f"{name}{how}"] for row in prompts)
            assert content[key]["batch_reward"][name] == pytest.approx(mean, abs=1e-5)


def test_other_settings_are_computed_from_the_batch(content: dict[str, Any]) -> None:
    names = ("beta", "learning_rate", "temperature", "group_size")
    tables = {name: content["analysis"][f"what_if_{name}"] for name in names}
    later = content["policy"]["one_step_on"]
    drifts = [row["drift"] for row in tables["learning_rate"]]
    assert drifts == sorted(drifts) and drifts[2] == pytest.approx(later["drift"])
    shares = [row["share_of_loss"] for row in tables["beta"]]
    assert shares == sorted(shares)
    same = content["kl"]["one_step_on"]["kl/share_of_loss"]
    assert shares[2] == pytest.approx(same, rel=1e-4), "one number for one thing"
    penalty = content["kl"]["one_step_on"]["kl"] * content["setup"]["step"]["beta"]
    assert tables["beta"][2]["penalty"] == pytest.approx(penalty, rel=1e-4)
    cold, hot = tables["temperature"][0], tables["temperature"][-1]
    assert (cold["times_temperature"], hot["times_temperature"]) == (0.5, 2.0)
    assert hot["reward"] < cold["reward"] and hot["unreadable"] > cold["unreadable"]
    assert hot["distinct"] > cold["distinct"]
    assert tables["group_size"][0]["num_generations"] == 2
    alike = [row["without_spread"] for row in tables["group_size"]]
    assert alike == sorted(alike, reverse=True)


@pytest.fixture(scope="module")
def large(content: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a step of sixteen prompts, as many as the packaged recipe's."""
    record = copy.deepcopy(content)
    record["generation"]["groups_of_texts"] *= 4
    path = tmp_path_factory.mktemp("large") / "diagnosis.html"
    path.write_text(page(record))
    return path


@pytest.mark.parametrize(("width", "scheme"), zip(WIDTHS, ("light", "dark", "light"), strict=True))
def test_the_page_is_short_and_fits(browser: Browser, large: Path, width: int, scheme: str) -> None:
    browser.open(large, width, scheme)
    for left, top, wide, high in browser.boxes(".verdict, nav"):
        assert left >= 0 and left + wide <= width and top + high <= HEIGHT, "without scrolling"
    assert browser.overflow() <= 0
    spans = "[...document.querySelectorAll('.bars > span')]"
    assert browser.ask(f"return {spans}.every(e => e.scrollWidth <= e.clientWidth + 1)"), "overlap"
    if width == 1280:  # it was 16,209 pixels of the packaged recipe
        assert browser.ask("return document.documentElement.scrollHeight") < 0.35 * 16_209
    browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.overflow() <= 0 and browser.strays() == []
    assert browser.ask("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.parametrize(
    ("function", "fault", "cause"),
    [
        ("disable_dropout", lambda n: n.apply(lambda m: setattr(m, "p", 0.1)), "dropout_active"),
        ("number_positions_from_mask", lambda _: None, "preflight_gap"),
    ],
)
def test_a_correction_that_is_not_made(
    function: str, fault: Any, cause: str, diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpt2, function, fault)
    # Shared prompts number their positions themselves.
    monkeypatch.setattr(scoring, "obstacle", lambda *_: "none are")
    code, content = diagnose()
    assert code == 1 and content["analysis"]["cause"] == cause
    assert "preflight_gap" in rules(content)


@pytest.mark.parametrize(
    ("argv", "cause", "key", "expected"),
    [
        ("--beta 100", "kl_dominates", "beta", 0),
        pytest.param("--temperature 0.002", "identical_completions", "temperature", 0, marks=SLOW),
        ("--learning_rate 3e-2 --heldout_rows 30", "update_too_large", "learning_rate", 1),
        pytest.param("--rewards half.py:half", "reward_constant", "rewards", 0, marks=SLOW),
    ],
)
def test_a_value_far_from_the_usual_is_the_verdict(
    argv: str, cause: str, key: str, expected: int, diagnose: Diagnose, tmp_path: Path
) -> None:
    (tmp_path / "half.py").write_text("def half(prompts, **_): return [0.5] * len(prompts)")
    with contextlib.chdir(tmp_path):
        code, content = diagnose(*argv.split())
    found = rules(content)
    assert (code, content["analysis"]["cause"]) == (expected, cause)
    assert content["analysis"]["findings"][0]["remedy_keys"][0] == key
    if cause == "kl_dominates":
        assert content["kl"]["one_step_on"]["kl/share_of_gradient"] > 0.9
    if cause == "update_too_large":
        assert "answers changes by -" in found["heldout_fell"]["message"]
    if cause == "identical_completions":
        found.pop(cause)
        assert {f["consequence_of"] for f in found.values()} == {cause}
    if cause == "reward_constant":
        assert found["gradient_zero"]["consequence_of"] == cause


def test_a_reward_that_raises(diagnose: Diagnose, recipe: ModuleType, monkeypatch: Any) -> None:
    seen: list[str] = []

    def change(funcs: list[Any]) -> list[Any]:
        def environment_exact(prompts: Any, completions: Any, **columns: Any) -> Any:
            if len(completions) == 16:  # those that are trained on
                seen.extend(completions[:6])
            if seen and seen[5] in completions:
                raise ZeroDivisionError("division by zero")
            return funcs[0](prompts=prompts, completions=completions, **columns)

        return [environment_exact, *funcs[1:]]

    genuine = recipe.open_rewards
    monkeypatch.setattr(recipe, "open_rewards", lambda *given: change(genuine(*given)))
    code, content = diagnose()
    assert code == 1 and content["analysis"]["cause"] == "reward_raised"
    assert "environment_exact raised ZeroDivisionError" in content["analysis"]["verdict"]
    assert 0 < content["rewards"]["rewards/unscored"] < 1, "the others count"
    lost = [row for row in rows_of(content) if row["text"] == seen[5]]
    assert lost and all(row["rewards"]["environment_exact"] is None for row in lost)


def test_a_model_that_can_do_nothing(diagnose: Diagnose, start: str) -> None:
    config = ["--config", str(RECIPES / "grpo_nano.yaml")]
    code, content = diagnose("--model_name_or_path", start, *config)
    assert code == 1 and content["analysis"]["cause"] == "nothing_parses"
    assert "run rookworld sft first" in content["analysis"]["verdict"]
    found = rules(content)
    loud = {name for name in found if found[name]["severity"] != "info"} - {"nothing_parses"}
    assert {found[name]["consequence_of"] for name in loud} == {"nothing_parses"}


@SLOW
@pytest.mark.parametrize("only", ["", "h.0."])
def test_frozen_weights(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch, only: str) -> None:
    genuine = loading.load_from_arguments

    def plant(*args: Any) -> Any:
        model, tokenizer = genuine(*args)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(only not in name)
        return model, tokenizer

    monkeypatch.setattr(loading, "load_from_arguments", plant)
    code, content = diagnose()
    assert code == (0 if only else 1)
    cause = "layers_without_gradient" if only else "nothing_trained"
    assert content["analysis"]["cause"] == cause
    zero = {row["layer"] for row in content["update"]["layers"] if not row["gradient_norm"]}
    assert ("wte" in zero) is not bool(only) and "h.0.attn" in zero
    if not only:
        assert rules(content)["gradient_zero"]["consequence_of"] == "nothing_trained"


@SLOW
def test_one_batch_over_and_over(diagnose: Diagnose, healthy: Path, tmp_path: Path) -> None:
    argv = "--overfit_single_batch 3 --beta 0.1 --compare"
    _, content = diagnose(*argv.split(), str(healthy))
    assert [row["step"] for row in content["log_history"]] == [1, 2, 3]
    assert all(row["grad_norm"] is not None for row in content["log_history"])
    drawn = (tmp_path / "out" / "diagnosis.html").read_text()
    assert "repetitions" in drawn and ">grad_norm<" in drawn
    rows = {row["metric"]: row for row in content["analysis"]["comparison"]}
    coefficient = rows["kl/coefficient"]
    assert (coefficient["here"], coefficient["first"]) == (0.1, 0.05)
    assert {"loss/policy", "reward", "grad_norm", "mean_logp"} <= set(rows)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"diagnosis.json", "diagnosis.html"}, "nothing of a run"


OF_RECIPE = """
    --model_name_or_path rookworld-nano --dataset_name rookworld-nano-openings --bf16 false
    --dtype float32 --max_rows 200 --synthetic_rows 30 --heldout_rows 3 --max_completion_length 48
    --per_device_train_batch_size 16 --gradient_accumulation_steps 1
""".split()
QUICK = ("grpo_mini", "grpo_fill_in")
"""The others take longer, or have nothing that no other test has."""


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else SLOW)
        for path in sorted(RECIPES.glob("grpo_*.yaml"))
    ],
)
def test_every_packaged_recipe_can_be_diagnosed(
    path: Path, diagnose: Diagnose, tokenizer: Any, tmp_path: Path
) -> None:
    keys = yaml.safe_load(path.read_text())
    argv = [*OF_RECIPE, "--config", str(path)]
    if "fill_in" in keys.get("tasks", ()):
        argv += ["--synthetic_fill_in_rows", "40"]
    if path.stem.endswith("_judge"):
        for made in (support.tiny_judge(tokenizer), tokenizer):
            made.save_pretrained(tmp_path / "judge")
        rewards = [dict(reward) for reward in keys["rewards"]]
        rewards[0]["model"] = str(tmp_path / "judge")
        argv += ["--rewards", json.dumps(rewards)]
    _, content = diagnose(*argv)
    assert content["recipe"] == path.stem
    rows = rows_of(content)
    assert len(rows) == 16 and all(row["total"] is not None for row in rows)
    assert {row["task"] for row in rows} <= set(keys.get("tasks", ["environment", "policy"]))
    for task, how in keys.get("task_sampling", {}).items():
        assert content["setup"]["temperature"][task] == how["temperature"]
    heats = content["analysis"]["what_if_temperature"]
    assert [row["times_temperature"] for row in heats] == [1.0, 2.0]


def test_tasks_with_a_sampling_of_their_own_and_without_prompts(diagnose: Diagnose) -> None:
    sampling = ("--task_sampling", '{"policy": {}, "environment": {}}')
    _, content = diagnose(*OF_RECIPE, "--tasks", "environment", "--task_shares", "null", *sampling)
    assert {row["task"] for row in rows_of(content)} == {"environment"}


def test_bad_input_is_refused_before_anything_is_loaded(recipe: ModuleType) -> None:
    with pytest.raises(RookWorldError, match="overfit_single_batch: -1 is too small"):
        recipe.main([*SMALL, "--overfit_single_batch", "-1"])
    with pytest.raises(RookWorldError, match="compare: 'runs/none' has no log"):
        recipe.main([*SMALL, "--compare", "runs/none"])


@SLOW
@pytest.mark.parametrize("options", ["", "--zero_variance teach --sft_coef 0.1"])
def test_two_processes_report_once(tmp_path: Path, options: str) -> None:
    argv = f"--heldout_rows 30 --beta 0.1 --output_dir out {options}".split()
    assert script_on_two("diagnose.py", *SMALL, *argv, cwd=tmp_path).count("10. Analysis") == 1
    content = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert content["setup"]["processes"] == 2
    rows = rows_of(content)
    assert len(rows) == 32 and len(content["after"]["prompts"]) == 4
    whole = content["policy"]["loss/policy"] + content["policy"].get("loss/taught", 0.0)
    terms = sum(row["policy_term"] for row in rows) / 2
    assert terms == pytest.approx(whole, rel=1e-3, abs=1e-5)
    assert ("loss/supervised" in content["policy"]) == bool(options)
    assert content["analysis"]["findings"] == []


def test_its_first_line_names_no_folder_of_a_run() -> None:
    assert "output" not in first_line(RECIPES / "diagnose.py", {})
