"""Notices when TRL or transformers change what the trainer overrides or reads beside their public names.

`make canary` runs this and the trainer's tests against the newest versions that pip finds.
"""

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

# Parameters of each private method that is overridden, as of TRL 1.16 and transformers 5.23.
OVERRIDDEN = {
    "_get_train_sampler": "self, dataset",
    "_generate": "self, prompts",
    "_generate_and_score_completions": "self, inputs",
    "_calculate_rewards": "self, inputs, prompts, completions, completion_ids_list",
    "_get_per_token_logps_and_entropies": "self, model, input_ids, attention_mask, logits_to_keep, "
    "batch_size, compute_entropy, compute_aux_loss, pixel_values, image_grid_thw, num_images, "
    "pixel_attention_mask, spatial_shapes, num_tiles, image_sizes, token_type_ids, mm_token_type_ids, "
    "image_position_ids",
    "_get_grad_norm": "self, model, grad_norm",
}
SAVING = {"_save_checkpoint": "self, model, trial", "_get_output_dir": "self, trial"}
# Private attributes that are read or written: of the trainer, of models and of their configurations.
ATTRIBUTES = ("_metrics", "_logs", "_step", "_buffered_inputs")
OF_MODELS = ("_keys_to_ignore_on_save", "_supports_attention_backend", "_tied_weights_keys")
OF_CONFIGURATIONS = ("_attn_implementation",)
# Those that checkpoints.py saves, because transformers and TRL do not.
BETWEEN_STEPS = ("_tr_loss", "_globalstep_last_logged", "_total_train_tokens")


@pytest.mark.parametrize("name", OVERRIDDEN | SAVING)
def test_a_private_method_takes_what_it_took(name: str) -> None:
    taken = ", ".join(inspect.signature(getattr(GRPOTrainer, name)).parameters)
    assert taken == (OVERRIDDEN | SAVING)[name], f"TRL {trl.__version__}: look at the override"
    assert name in vars(WholeCheckpoints if name in SAVING else RookWorldGRPOTrainer)


def test_private_attributes_are_there(build: Callable[..., Any], random_gpt2: Any) -> None:
    owners = {ATTRIBUTES: build(), OF_MODELS: random_gpt2, OF_CONFIGURATIONS: random_gpt2.config}
    for names, owner in owners.items():
        assert [name for name in names if not hasattr(owner, name)] == []
    for kind in (GRPOTrainer, SFTTrainer, RewardTrainer):
        source = inspect.getsource(kind) + inspect.getsource(Trainer)
        assert [name for name in BETWEEN_STEPS if f"self.{name}" not in source] == []
    assert {*BETWEEN_STEPS} <= {*checkpoints.BETWEEN}


def test_nothing_else_is_overridden_or_read() -> None:
    private = {name for name in vars(RookWorldGRPOTrainer) if name[0] == "_" and name[:2] != "__"}
    assert {name for name in private if hasattr(GRPOTrainer, name)} == OVERRIDDEN.keys()
    known = {*OVERRIDDEN, *ATTRIBUTES, *OF_MODELS, *OF_CONFIGURATIONS}
    tree = ast.parse(inspect.getsource(module))
    read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {name for name in read if name[0] == "_" and name[:2] != "__"} <= known | private
    names = (known | {*SAVING}) - {"_metrics", "_generate", "_step"}  # are names of our own, too
    for path in Path(module.__file__).parents[1].rglob("*.py"):
        if path not in (Path(module.__file__), Path(checkpoints.__file__)):
            words = {
                node.attr if isinstance(node, ast.Attribute) else node.name
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Attribute | ast.FunctionDef)
            }
            assert not words & names, path
