"""The dashboard's names, and what they mean."""

import inspect
import re
from pathlib import Path
from typing import Any

import yaml
from trl import GRPOTrainer

from rookworld_rlvr.common.files import asset_path
from rookworld_rlvr.rewards.registry import known_rewards
from rookworld_rlvr.tasks.metrics import metrics
from rookworld_rlvr.training import glossary
from rookworld_rlvr.training.glossary import GLOSSARY, SECTIONS, dashboard_key, explain


def test_each_key_is_explained_once_in_one_or_two_sentences() -> None:
    keys = [dashboard_key(name) for name in ("engine/given_up", "something/new")]
    assert keys == ["health/engine/given_up", "train/something/new"]
    for name in metrics():
        assert explain(dashboard_key(f"eval_{name}")), name
    for name in known_rewards():
        entry = explain(dashboard_key(f"rewards/{name}/mean"))
        assert entry is not None and entry.key == "reward/<reward>/mean"
    assert set(SECTIONS) == {"reward", "kl", "health", "task", "eval", "time", "train"}
    assert {metric.section for metric in GLOSSARY} == set(SECTIONS)
    for metric in GLOSSARY:
        sentence = r"[A-Z`]([^.]|\d\.\d)*\."
        assert re.fullmatch(rf"{sentence}( {sentence})?", metric.meaning), metric


def test_what_trl_logs_is_explained() -> None:
    """Each metric that its source names, with any loss and with vLLM."""
    named = re.findall(r'_metrics\[mode\]\[f?"([^"]+)"\]', inspect.getsource(GRPOTrainer))
    assert {"cispo_clip_ratio", "vespo/phi_seq_mean", "policy_loss"} <= {*named}
    names = {re.sub(r"{\w+}", "any", name) for name in named}
    assert [name for name in sorted(names) if explain(dashboard_key(name)) is None] == []
    loss = explain("train/policy_loss")
    assert loss is not None and "`loss/policy`" in loss.meaning, "ours is named beside TRL's"


def test_no_key_of_a_packaged_list_stands_twice() -> None:
    """YAML's reader would take the second, and say nothing."""
    for name in ("glossary.yaml", "health_rules.yaml"):
        mappings: list[Any] = [yaml.compose(Path(asset_path(name)).read_text(encoding="utf-8"))]
        while mappings:
            entries = mappings.pop().value
            keys = [key.value for key, _ in entries]
            assert len(set(keys)) == len(keys), name
            mappings += [value for _, value in entries if isinstance(value, yaml.MappingNode)]


def test_every_number_over_steps_has_one_panel() -> None:
    shown = [key for keys in glossary.PANELS.values() for key in keys]
    assert len(set(shown)) == len(shown)
    ends = {"time/train", "time/samples_per_second", "time/steps_per_second", glossary.STEP}
    ends |= {"train/loss_mean", "train/total_flos", "eval/other/<task>/<metric>"}
    ends |= {"eval/change/<task>/<metric>/<side>", "train/kept_step"}  # in the summary
    assert set(shown) == {m.key for m in GLOSSARY if not m.is_table} - ends
    for section in SECTIONS:
        for title, members in glossary.panels(section):
            assert {metric.section for metric in members} == {section}, title
