"""`recipes/diagnose.py`: ten parts, planted faults found by name, nothing found on a healthy recipe."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from transformers import GPT2LMHeadModel, PreTrainedTokenizerBase

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.diagnosis import PARTS, Diagnosis
from rookworld_rlvr.diagnosis.lines import merged
from rookworld_rlvr.diagnosis.page import SECTIONS, page
from rookworld_rlvr.models import gpt2, loading

from ..browser import HEIGHT, WIDTHS, Browser
from ..conftest import REPOSITORY, launch, script

SCRIPT = REPOSITORY / "recipes" / "diagnose.py"
NANO = REPOSITORY / "recipes" / "grpo_nano.yaml"
SMALL = "--use_cpu --diagnose_heldout_rows 24 --per_device_train_batch_size 32".split()
Diagnose = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    """The script as a module whose data are read once."""
    spec = importlib.util.spec_from_file_location("diagnose", SCRIPT)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    loaded: list[Any] = []
    load = module.load_data

    def load_once(args: Any) -> Any:
        if not loaded:
            loaded.append(load(args))
        return loaded[0]

    module.load_data = load_once
    return module


@pytest.fixture
def diagnose(recipe: ModuleType, tmp_path: Path) -> Diagnose:
    """Run the script in this process: its exit code, and the JSON file."""

    def run(*argv: str) -> tuple[int, dict[str, Any]]:
        with pytest.raises(SystemExit) as ended:
            recipe.main([*SMALL, "--output_dir", str(tmp_path / "out"), *argv])
        assert isinstance(ended.value.code, int)
        return ended.value.code, json.loads((tmp_path / "out" / "diagnosis.json").read_text())

    return run


def rules(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The findings by rule."""
    return {finding["rule"]: finding for finding in content["findings"]["findings"]}


def remedy(content: dict[str, Any]) -> str:
    """The first key that the verdict's cause names."""
    return str(content["findings"]["keys"][0])


# --------------------------------------------------------------------------------------------------
# A healthy recipe
# --------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def healthy(recipe: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("healthy")
    options = "--gradient_accumulation_steps 2 --per_device_train_batch_size 16 --beta 0.05"
    with pytest.raises(SystemExit) as ended:
        recipe.main([*SMALL, "--output_dir", str(folder), *options.split()])
    assert ended.value.code == 0
    return folder


@pytest.fixture(scope="module")
def content(healthy: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((healthy / "diagnosis.json").read_text())
    return found


def test_ten_parts_and_no_finding(content: dict[str, Any]) -> None:
    assert list(PARTS) == list(content)[2:12]
    assert len(PARTS) == 10
    assert content["findings"]["findings"] == []
    assert content["findings"]["verdict"].startswith("healthy")
    assert content["setup"]["dropout"]["active_modules"] == 0
    assert content["setup"]["step"]["learning_rate"] == pytest.approx(1e-4)
    assert content["gradients"]["learning_rate"] == pytest.approx(1e-4), "without warm-up"


def test_log_probs_stand_side_by_side(content: dict[str, Any]) -> None:
    part = content["completions"]
    assert part["completions"] == 32
    assert {group["task"] for group in part["groups"]} == {"environment", "policy"}
    for group in part["groups"]:
        assert len(group["completions"]) == 8
        assert group["fen"]
        for row in group["completions"]:
            count = len(row["tokens"])
            assert row["text"] == "".join(row["tokens"]).removesuffix("<|endoftext|>")
            for name in ("sampler", "policy", "reference", "policy_term", "kl_term", "entropy"):
                assert len(row[name]) == count
            assert row["sampler"] == pytest.approx(row["policy"], abs=1e-4)
            assert row["reference"] == pytest.approx(row["policy"], abs=3e-5), "of six digits"
    assert 0 < part["sampler_gap_largest"] < 1e-4


def test_groups_are_what_trl_computes(content: dict[str, Any]) -> None:
    for group in content["advantages"]["groups"]:
        mean, deviation = statistics.mean(group["rewards"]), statistics.stdev(group["rewards"])
        assert group["mean"] == pytest.approx(mean, rel=1e-4)
        assert group["deviation"] == pytest.approx(deviation, rel=1e-4, abs=1e-6)
        expected = [(reward - mean) / (deviation + 1e-4) for reward in group["rewards"]]
        assert group["advantages"] == pytest.approx(expected, abs=2e-3)
    rows = [row for group in content["completions"]["groups"] for row in group["completions"]]
    for name, component in content["rewards"]["components"].items():
        numbers = [row["rewards"][name] for row in rows if row["rewards"][name] is not None]
        assert component["n"] == len(numbers) < 32
        assert component["mean"] == pytest.approx(statistics.mean(numbers), rel=1e-4)
        assert component["deviation"] == pytest.approx(statistics.stdev(numbers), rel=1e-4)


def test_terms_add_up_to_the_loss(content: dict[str, Any]) -> None:
    terms = content["loss_terms"]
    assert terms["relative_gap"] < 1e-5
    assert terms["sum"] == pytest.approx(terms["loss"], abs=1e-6)
    rows = [row for group in content["completions"]["groups"] for row in group["completions"]]
    for row in rows:
        assert row["policy_term"] == pytest.approx([-row["advantage"]] * len(row["tokens"]))
    # `dapo`: over all tokens of the step, whatever the batches they were trained in.
    terms_of_tokens = [term for row in rows for term in row["policy_term"]]
    assert statistics.mean(terms_of_tokens) == pytest.approx(terms["policy"], rel=1e-3)
    shares = content["shares"]
    assert shares["step"]["kl_share"] == pytest.approx(0, abs=1e-6), "the policy is the reference"
    assert 0 < shares["one_step_on"]["kl_share"] < 0.01
    assert 0 < shares["one_step_on"]["kl_share_of_gradient"] < 0.3
    assert shares["step"]["policy_gradient_norm"] == pytest.approx(
        shares["gradient_norm"], rel=1e-3
    )
    assert shares["gradient_norm_after_clip"] <= 1.0001


def test_gradients_add_up_and_every_layer_moves(content: dict[str, Any]) -> None:
    part = content["gradients"]
    whole = sum(layer["gradient_norm"] ** 2 for layer in part["layers"]) ** 0.5
    assert whole == pytest.approx(part["norm"], rel=1e-4)
    assert {layer["layer"] for layer in part["layers"]} >= {"wte", "wpe", "h.0.attn", "h.3.mlp"}
    # Adam's first update is the learning rate in every weight that has a gradient.
    for layer in part["layers"]:
        assert not layer["zero"] and not layer["non_finite"]
        assert 0 < layer["update_norm"] <= 1.001e-4 * layer["parameters"] ** 0.5


def test_heldout_rows_are_the_same_before_and_after(content: dict[str, Any]) -> None:
    before, after = content["heldout_before"], content["heldout_after"]
    assert before["fingerprint"] == after["fingerprint"]
    assert before["rows"] == after["rows"] == 24
    for name, pair in after["paired"].items():
        change = after["metrics"][name]["value"] - before["metrics"][name]["value"]
        net = pair["wrong_to_right"] - pair["right_to_wrong"]
        assert change == pytest.approx(net / pair["n"], abs=1e-5)


def test_phases_are_timed_and_weighed(content: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in content["phases"]["rows"]}
    for name in ("sampling", "rewards", "reference", "forward", "backward", "optimiser"):
        assert rows[name]["seconds"] > 0
        assert rows[name]["peak_memory_bytes"] > 2**20
    tokens = content["completions"]["tokens"]
    assert rows["sampling"]["tokens"] == tokens
    assert rows["forward"]["tokens"] == rows["backward"]["tokens"] > tokens
    assert rows["forward"]["calls"] == 2, "two batches were accumulated"
    assert rows["reference"]["calls"] == 1


def test_the_page_asks_for_nothing(healthy: Path) -> None:
    drawn = (healthy / "diagnosis.html").read_text()
    links = set(re.findall(r"https?://[^\s\"'<>)]+", drawn))
    assert links <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"<(script|link|img|iframe)\b|@import|url\((?!#)", drawn)
    assert drawn.count('viewBox="0 0 390 390"') + drawn.count('class="board"') >= 4
    assert drawn.count("<polyline") == 0 and drawn.count("<rect") > 50
    assert "prefers-color-scheme:dark" in drawn
    assert "width=device-width" in drawn
    assert re.findall(r'<section id="(\w+)"', drawn) == list(SECTIONS)
    assert next(iter(SECTIONS)) == "findings", "the verdict comes first"


def test_equal_completions_are_shown_once(healthy: Path, content: dict[str, Any]) -> None:
    drawn = (healthy / "diagnosis.html").read_text()
    for group in content["completions"]["groups"]:
        rows = merged(group["completions"])
        assert sum(row["count"] for row in rows) == len(group["completions"])
        start = drawn.index(f"<code>{group['prompt']}</code></summary>")
        table = drawn[start : drawn.index("</table>", start)]
        assert table.count("<tr>") == 1 + len(rows)
        assert ("<mark" in table) == (len({row["text"] for row in rows}) > 1)
    assert drawn.count('<details class="group" open>') == 2, "one a task"


@pytest.fixture(scope="module")
def large(content: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a step of sixteen prompts, as many as the packaged recipe's."""
    parts = copy.deepcopy({key: content[key] for key in PARTS})
    parts["completions"]["groups"] *= 4
    path = tmp_path_factory.mktemp("large") / "diagnosis.html"
    path.write_text(page([Diagnosis("grpo_nano", parts, content["phases"])]))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_short_and_fits(browser: Browser, large: Path, width: int, scheme: str) -> None:
    browser.open(large, width, scheme)
    for left, top, wide, high in browser.boxes(".verdict, #heldout h2"):
        assert left >= 0 and left + wide <= width and top + high <= HEIGHT, "without scrolling"
    assert browser.overflow() <= 0
    spans = "[...document.querySelectorAll('.bars > span')]"
    assert browser.ask(f"return {spans}.every(e => e.scrollWidth <= e.clientWidth + 1)"), "overlap"
    if width == 1280:  # it was 16,209 pixels of the packaged recipe
        assert browser.ask("return document.documentElement.scrollHeight") < 16_209 / 3
    browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.overflow() <= 0
    assert browser.strays() == []


def test_what_a_model_wrote_is_no_markup(content: dict[str, Any]) -> None:
    parts = copy.deepcopy({key: content[key] for key in PARTS})
    row = parts["completions"]["groups"][0]["completions"][0]
    row["text"] = row["tokens"][0] = "<script>alert(1)</script>"
    drawn = page([Diagnosis("<i>recipe</i>", parts, content["phases"])])
    assert "<script" not in drawn and "<i>recipe" not in drawn
    assert drawn.count("&lt;script&gt;") >= 1


# --------------------------------------------------------------------------------------------------
# Planted faults
# --------------------------------------------------------------------------------------------------
def test_dropout_left_on(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_on(model: torch.nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.1

    monkeypatch.setattr(gpt2, "disable_dropout", leave_on)
    code, content = diagnose()
    assert code == 1
    assert content["findings"]["cause"] == "dropout_active"
    assert remedy(content) == "disable_dropout"
    found = rules(content)
    assert found["preflight_gap"]["consequence_of"] == "dropout_active"
    assert "positions_ignored" not in found


def test_position_ids_ignored(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt2, "number_positions_from_mask", lambda model: None)
    code, content = diagnose("--share_prompts", "false")  # shared prompts number theirs themselves
    assert code == 1
    assert content["findings"]["cause"] == "positions_ignored"
    found = rules(content)
    assert found["preflight_gap"]["consequence_of"] == "positions_ignored"
    assert "dropout_active" not in found


def test_beta_far_too_high(diagnose: Diagnose) -> None:
    code, content = diagnose("--beta", "100")
    assert code == 0, "a warning"
    assert content["findings"]["cause"] == "kl_dominates"
    assert remedy(content) == "beta"
    assert content["shares"]["one_step_on"]["kl_share_of_gradient"] > 0.9


def test_constant_reward(
    diagnose: Diagnose, recipe: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plant(specs: Any, truth: Any) -> list[Any]:
        return [constant] * len(specs)

    def constant(prompts: Any, **columns: Any) -> list[float]:
        return [0.5] * len(prompts)

    monkeypatch.setattr(recipe, "get_reward_funcs", plant)
    _, content = diagnose()
    assert content["findings"]["cause"] == "reward_constant"
    assert remedy(content) == "rewards"
    assert rules(content)["gradient_zero"]["consequence_of"] == "reward_constant"


def test_identical_completions(diagnose: Diagnose) -> None:
    _, content = diagnose("--temperature", "0.002")
    assert content["findings"]["cause"] == "identical_completions"
    assert remedy(content) == "temperature"
    others = {rule: f["consequence_of"] for rule, f in rules(content).items()}
    others.pop("identical_completions")
    assert others
    assert set(others.values()) == {"identical_completions"}


def test_learning_rate_far_too_high(diagnose: Diagnose) -> None:
    code, content = diagnose("--learning_rate", "3e-2", "--diagnose_heldout_rows", "60")
    assert code == 1
    fell = rules(content)["heldout_fell"]
    assert fell["keys"][0] == remedy(content) == "learning_rate"
    assert "falls from" in fell["message"]


def test_a_reward_that_raises_on_one_row(
    diagnose: Diagnose, recipe: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = recipe.get_reward_funcs
    seen: list[str] = []

    def plant(specs: Any, truth: Any) -> list[Any]:
        funcs = genuine(specs, truth)
        first = funcs[0]

        def environment_exact(prompts: Any, completions: Any, **columns: Any) -> Any:
            seen.extend(completions[:6])
            if seen[5] in completions:
                raise ZeroDivisionError("division by zero")
            return first(prompts=prompts, completions=completions, **columns)

        return [environment_exact, *funcs[1:]]

    monkeypatch.setattr(recipe, "get_reward_funcs", plant)
    code, content = diagnose()
    assert code == 1
    assert content["findings"]["cause"] == "reward_raised"
    (fault,) = content["rewards"]["faults"]
    assert fault["name"] == "environment_exact"
    assert fault["completion"] == seen[5]
    assert fault["error"] == "ZeroDivisionError: division by zero"
    assert content["rewards"]["components"]["environment_exact"]["n"] > 0, "the others count"
    rows = [row for group in content["completions"]["groups"] for row in group["completions"]]
    assert all(r["rewards"]["environment_exact"] is None for r in rows if r["text"] == seen[5])


def test_a_model_that_can_do_nothing(
    diagnose: Diagnose,
    random_gpt2: GPT2LMHeadModel,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
) -> None:
    random_gpt2.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    code, content = diagnose("--model_name_or_path", str(tmp_path / "model"), "--config", str(NANO))
    assert code == 1
    assert content["findings"]["cause"] == "nothing_parses"
    assert "0% of the held-out answers can be read" in content["findings"]["verdict"]
    assert "run rookworld sft first" in content["findings"]["verdict"]
    found = rules(content)
    assert {found[name]["consequence_of"] for name in found if name != "nothing_parses"} == {
        "nothing_parses"
    }


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
    assert content["findings"]["cause"] == "frozen_weights"
    zero = {layer["layer"] for layer in content["gradients"]["layers"] if layer["zero"]}
    frozen = {x["layer"] for x in content["gradients"]["layers"] if x["frozen_parameters"]}
    assert zero == frozen
    assert ("wte" in frozen) is not bool(only)
    if not only:
        assert rules(content)["gradient_zero"]["consequence_of"] == "frozen_weights"


# --------------------------------------------------------------------------------------------------
# Ways to run it
# --------------------------------------------------------------------------------------------------
def test_one_batch_over_and_over(diagnose: Diagnose, tmp_path: Path) -> None:
    _, content = diagnose("--overfit_single_batch", "3", "--per_device_train_batch_size", "16")
    assert [row["step"] for row in content["repetitions"]] == [1, 2, 3]
    assert all(row["grad_norm"] is not None for row in content["repetitions"])
    drawn = (tmp_path / "out" / "diagnosis.html").read_text()
    assert drawn.count("<polyline") >= 3


def test_two_recipes_side_by_side(
    recipe: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {
        **yaml.safe_load(NANO.read_text()),
        "learning_rate": 1e-5,
        "beta": 0.1,
        "use_peft": True,
    }
    (tmp_path / "lora.yaml").write_text(
        yaml.safe_dump({**other, "lora_target_modules": ["c_attn", "c_fc"]})
    )
    options = ["--compare", str(NANO), str(tmp_path / "lora.yaml")]
    with pytest.raises(SystemExit) as ended:
        recipe.main([*SMALL, "--output_dir", str(tmp_path / "out"), *options])
    assert ended.value.code == 0
    found = json.loads((tmp_path / "out" / "diagnosis.json").read_text())["diagnoses"]
    assert [one["recipe"] for one in found] == ["grpo_nano", "lora"]
    assert [one["setup"]["step"]["beta"] for one in found] == [0, 0.1]
    assert found[1]["setup"]["model"]["adapters"]
    assert found[1]["findings"]["findings"] == [], "what adapters leave frozen is no fault"
    printed = capsys.readouterr().out
    assert "grpo_nano" in printed and "lora" in printed
    drawn = (tmp_path / "out" / "diagnosis.html").read_text()
    assert drawn.count('class="verdict good"') == 2


def test_nothing_of_a_run_is_touched(diagnose: Diagnose, tmp_path: Path) -> None:
    diagnose("--per_device_train_batch_size", "8")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"diagnosis.json", "diagnosis.html"}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--overfit_single_batch", "-1"], "overfit_single_batch: -1 is too small"),
        (["--diagnose_heldout_rows", "0", "--beta", "no"], "diagnose_heldout_rows: 0 is too small"),
        (["--compare", "a.yaml"], "1 recipes given; give two"),
        (
            ["--compare", "a.yaml", "b.yaml", "--config", "c.yaml"],
            "--config: --compare already names",
        ),
        (["--compare=a.yaml", "--compare=b.yaml"], "compare: "),
        (["--config", "missing.yaml"], "'missing.yaml' is neither a file"),
    ],
)
def test_bad_input_is_refused_before_anything_is_loaded(
    recipe: ModuleType, argv: list[str], words: str
) -> None:
    with pytest.raises(RookWorldError, match=re.escape(words)):
        recipe.main([*SMALL, *argv])


def test_bad_input_gives_one_message_and_exit_code_2(tmp_path: Path) -> None:
    done = script("diagnose.py", "--compare", "a.yaml", "b.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "'a.yaml' is neither a file" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "--zero_variance teach --sft_coef 0.1"])
def test_two_processes_report_once(tmp_path: Path, options: str) -> None:
    argv = f"--per_device_train_batch_size 16 --beta 0.1 --output_dir out {options}".split()
    done = launch(str(SCRIPT), *SMALL, *argv, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.count("10. Findings") == 1
    content = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert content["setup"]["precision"]["processes"] == 2
    assert content["completions"]["completions"] == 32
    assert content["loss_terms"]["relative_gap"] < 1e-5
    assert ("supervised" in content["loss_terms"]) == bool(options)
    assert content["findings"]["findings"] == []
