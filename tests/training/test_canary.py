"""Notices when TRL or transformers change what the trainer overrides or reads beside their public names.

It also notices when the trainer exchanges something in them. `make canary` runs this and the trainer's
tests against the newest versions that pip finds.
"""

import ast
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trl
from transformers import Trainer
from trl import GRPOTrainer, RewardTrainer, SFTTrainer

from rookworld_rlvr.training import checkpoints
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

from ..support import REPOSITORY, ran

# Parameters of each private method that is overridden, as of TRL 1.16 and transformers 5.23.
OVERRIDDEN = {
    "_get_train_sampler": "self, dataset",
    "_generate_and_score_completions": "self, inputs",
    "_generate": "self, prompts",
    "_generate_single_turn": "self, prompt_ids, images, multimodal_fields, num_generations, "
    "has_tool_images",
    "_calculate_rewards": "self, inputs, prompts, completions, completion_ids_list",
    "_compute_loss": "self, model, inputs",
    "_get_per_token_logps_and_entropies": "self, model, input_ids, attention_mask, logits_to_keep, "
    "batch_size, compute_entropy, compute_aux_loss, pixel_values, image_grid_thw, num_images, "
    "pixel_attention_mask, spatial_shapes, num_tiles, image_sizes, token_type_ids, mm_token_type_ids, "
    "image_position_ids",
    "_get_grad_norm": "self, model, grad_norm",
    "_determine_best_metric": "self, metrics, trial",
    "_save_checkpoint": "self, model, trial",
    "_get_output_dir": "self, trial",
}
# Private attributes that are read or written, by file of the package: of the trainer, of models and of
# their configurations.
READ = {
    "training/checkpoints.py": {"_buffered_inputs", "_tr_loss"},
    "training/exchanged.py": {"_metrics"},
    "training/scoring.py": {
        "_attn_implementation",
        "_can_set_attn_implementation",
        "_supports_attention_backend",
    },
    "training/step_log.py": {"_logs", "_metrics", "_step"},
    "training/terms/values.py": {"_keys_to_ignore_on_save", "_tied_weights_keys"},
}
OF_MODELS = (
    "_can_set_attn_implementation",
    "_keys_to_ignore_on_save",
    "_supports_attention_backend",
    "_tied_weights_keys",
)
OF_CONFIGURATIONS = ("_attn_implementation",)
# Those that checkpoints.py saves, because transformers and TRL do not.
BETWEEN_STEPS = ("_tr_loss", "_globalstep_last_logged", "_total_train_tokens")

PACKAGE = REPOSITORY / "rookworld_rlvr"


def trees(room: str) -> dict[str, ast.AST]:
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text())
        for path in (PACKAGE / room).rglob("*.py")
    }


TREES = trees("training")


def is_private(name: str) -> bool:
    return name[0] == "_" and name[:2] != "__"


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_a_private_method_takes_what_it_took(name: str) -> None:
    taken = ", ".join(inspect.signature(getattr(GRPOTrainer, name)).parameters)
    assert taken == OVERRIDDEN[name], f"TRL {trl.__version__}: look at the override"


def test_nothing_else_is_overridden() -> None:
    ours = [
        kind for kind in RookWorldGRPOTrainer.__mro__ if kind.__module__.startswith("rookworld")
    ]
    private = [name for kind in ours for name in vars(kind) if is_private(name)]
    found = [name for name in private if hasattr(GRPOTrainer, name)]
    assert sorted(found) == sorted(OVERRIDDEN), "each once"


def test_private_attributes_are_there(build: Callable[..., Any], random_gpt2: Any) -> None:
    of_models, of_configurations = {*OF_MODELS}, {*OF_CONFIGURATIONS}
    of_trainer = set.union(*READ.values()) - of_models - of_configurations - {*BETWEEN_STEPS}
    owners = [(of_trainer, build()), (of_models, random_gpt2)]
    for names, owner in [*owners, (of_configurations, random_gpt2.config)]:
        assert [name for name in names if not hasattr(owner, name)] == []
    for kind in (GRPOTrainer, SFTTrainer, RewardTrainer):
        source = inspect.getsource(kind) + inspect.getsource(Trainer)
        assert [name for name in BETWEEN_STEPS if f"self.{name}" not in source] == []
    assert {*BETWEEN_STEPS} <= {*checkpoints.BETWEEN}


def test_nothing_else_is_read() -> None:
    assert all_foreign(TREES) == READ


def all_foreign(trees: dict[str, ast.AST]) -> dict[str, set[str]]:
    found = {file: foreign(tree) for file, tree in trees.items()}
    return {file: names for file, names in found.items() if names}


def foreign(tree: ast.AST) -> set[str]:
    """Private names that a file reads of something, and does not define itself."""
    read: set[str] = set()
    own = {"_replace"}  # of named tuples
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            own.add(ast.unparse(node.target).removeprefix("self."))
        elif isinstance(node, ast.Attribute):
            is_set = isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
            (own if is_set else read).add(node.attr)
    return {*filter(is_private, read)} - own


# --------------------------------------------------------------------------------------------------
# What is exchanged
# --------------------------------------------------------------------------------------------------
def test_metrics_of_trl_are_removed_and_replaced_in_one_file_only() -> None:
    found = {file for file, tree in TREES.items() if any(taken_from_metrics(tree))}
    assert found == {"training/exchanged.py"}


def taken_from_metrics(tree: ast.AST) -> Iterator[ast.AST]:
    """Where a file assigns, deletes or pops something of `_metrics`, also by another name."""
    nodes = list(ast.walk(tree))
    names = {"._metrics"}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and is_of(node.value, names):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            if is_of(node, names):
                yield node
        elif isinstance(node, ast.AugAssign) and is_of(node.target, names):
            yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            removes = node.func.attr in (
                "clear",
                "pop",
                "popitem",
                "remove",
                "setdefault",
                "update",
            )
            if removes and is_of(node.func.value, names):
                yield node


def is_of(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression is the metrics, or an entry of theirs."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return f".{node.attr}" in names
    return isinstance(node, ast.Name) and node.id in names


@pytest.mark.parametrize(
    "code",
    [
        'self._metrics["train"]["kl"] = [0.0]',
        'trainer._metrics["train"].pop("entropy")',
        'del trainer._metrics["train"]["entropy"][-1]',
        'metrics = self._metrics["train"]\nmetrics["entropy"][-1] = 0.0',
        'metrics: dict = self._metrics\nmetrics["train"].clear()',
        "self._metrics = {}",
        'self._metrics["train"]["kl"] += [0.0]',
    ],
)
def test_what_is_taken_from_the_metrics_is_found(code: str) -> None:
    assert any(taken_from_metrics(ast.parse(code)))
    assert not any(taken_from_metrics(ast.parse('self._metrics["train"]["kl"].append(0.0)')))


def test_a_run_exchanges_nothing_in_the_libraries(tmp_path: Path) -> None:
    """Neither while it samples nor when it has ended, well or by an exception."""
    done = ran(sys.executable, "-m", "tests.training.exchanges", str(tmp_path), cwd=REPOSITORY)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("compared") > 500
    moments = ("after the import", "in a step", "at the end", "after an exception")
    assert found == {moment: [] for moment in moments}
