"""Notices when TRL or transformers change what the trainer overrides or reads beside their public names.

`make canary` runs this and the trainer's tests against the newest versions that pip finds.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trl
from transformers import Trainer
from trl import GRPOTrainer, RewardTrainer, SFTTrainer

from rookworld_rlvr.training import checkpoints
from rookworld_rlvr.training import trainer as module
from rookworld_rlvr.training.checkpoints import WholeCheckpoints
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

PACKAGE = Path(module.__file__).parents[1]

# Parameters of each private method that is overridden, as of TRL 1.16 and transformers 5.23, and the
# parts that stand on it.
OVERRIDDEN: dict[str, tuple[str, str]] = {
    "_get_train_sampler": ("self, dataset", "trainer.py: prompt_sampler"),
    "_generate": ("self, prompts", "trainer.py: timing"),
    "_generate_and_score_completions": (
        "self, inputs",
        "trainer.py: groups, sampling, advantages, value_head",
    ),
    "_calculate_rewards": (
        "self, inputs, prompts, completions, completion_ids_list",
        "trainer.py: groups, advantages, and rewards.guard",
    ),
    "_get_per_token_logps_and_entropies": (
        "self, model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, "
        "compute_aux_loss, pixel_values, image_grid_thw, num_images, pixel_attention_mask, "
        "spatial_shapes, num_tiles, image_sizes, token_type_ids, mm_token_type_ids, image_position_ids",
        "trainer.py: sampling, kl, value_head, shared_prompts",
    ),
    "_get_grad_norm": ("self, model, grad_norm", "trainer.py: nonfinite"),
}
# As above, for checkpoints.py, which saves and resumes.
SAVING: dict[str, tuple[str, str]] = {
    "_save_checkpoint": ("self, model, trial", "checkpoints.py"),
    "_get_output_dir": ("self, trial", "checkpoints.py"),
}

# Private attributes that are read or written, and the parts that stand on them.
ATTRIBUTES = {
    "_metrics": "every part that records numbers, and timing",
    "_logs": "groups, and the table of boards in training.dashboard",
    "_step": "timing, shared_prompts",
    "_buffered_inputs": "shared_prompts",
}
OF_MODELS = {
    "_keys_to_ignore_on_save": "value_head",
    "_supports_attention_backend": "shared_prompts",
    "_tied_weights_keys": "value_head",
}
OF_CONFIGURATIONS = {"_attn_implementation": "shared_prompts"}


# Private attributes that checkpoints.py saves, because transformers and TRL do not.
BETWEEN_STEPS = ("_tr_loss", "_globalstep_last_logged", "_total_train_tokens")


@pytest.mark.parametrize("kind", [GRPOTrainer, SFTTrainer, RewardTrainer])
def test_what_is_kept_between_two_steps_is_still_called_so(kind: type) -> None:
    source = "".join(inspect.getsource(owner) for owner in (kind, Trainer))
    assert [name for name in BETWEEN_STEPS if f"self.{name}" not in source] == []
    assert {*BETWEEN_STEPS} <= {*checkpoints.BETWEEN}


@pytest.mark.parametrize("name", OVERRIDDEN | SAVING)
def test_a_private_method_takes_what_it_took(name: str) -> None:
    known, place = (OVERRIDDEN | SAVING)[name]
    theirs = getattr(GRPOTrainer, name, None)
    advice = f"TRL {trl.__version__}: look at the override in training/{place}"
    assert theirs is not None, f"{name} is gone. {advice}"
    taken = ", ".join(inspect.signature(theirs).parameters)
    assert taken == known, f"{name} takes other parameters. {advice}"
    assert name in vars(WholeCheckpoints if name in SAVING else RookWorldGRPOTrainer)


def test_private_attributes_are_there(build: Callable[..., Any], random_gpt2: Any) -> None:
    trainer = build()
    for owner, names in (
        (trainer, ATTRIBUTES),
        (random_gpt2, OF_MODELS),
        (random_gpt2.config, OF_CONFIGURATIONS),
    ):
        for name, parts in names.items():
            advice = f"TRL {trl.__version__}: look at training/trainer.py, and at parts {parts}"
            assert hasattr(owner, name), f"{name} is gone. {advice}"


def test_nothing_else_is_overridden_or_read() -> None:
    private = {name for name in vars(RookWorldGRPOTrainer) if name[0] == "_" and name[:2] != "__"}
    assert {name for name in private if hasattr(GRPOTrainer, name)} == OVERRIDDEN.keys()
    known = {*OVERRIDDEN, *ATTRIBUTES, *OF_MODELS, *OF_CONFIGURATIONS, *private}
    tree = ast.parse(inspect.getsource(module))
    read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {name for name in read if name[0] == "_" and name[:2] != "__"} <= known


def test_no_other_file_names_them() -> None:
    elsewhere = {"_metrics", "_generate", "_step"}  # are names of our own, too
    names = {*OVERRIDDEN, *ATTRIBUTES, *OF_MODELS, *OF_CONFIGURATIONS, *SAVING} - elsewhere
    for path in PACKAGE.rglob("*.py"):
        if path not in (Path(module.__file__), Path(checkpoints.__file__)):
            words = {
                node.attr if isinstance(node, ast.Attribute) else node.name
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Attribute | ast.FunctionDef)
            }
            assert not words & names, path
