"""Run by two processes: a recipe of each family, from the start and from a checkpoint."""

from pathlib import Path

from rookworld_rlvr.cli.run import SCRIPTS

from ..support import recipe
from .sharded import configure

COMPLETIONS = 16  # in a step, of all processes
SMALL = """
    --max_rows 1000 --synthetic_rows 50 --heldout_rows 10 --num_generations 4
    --max_completion_length 48 --eval_steps 2 --save_steps 2 --logging_steps 1
    --load_best_model_at_end false --report_to none --use_cpu true
"""
_JUDGED = '[{"name": "environment_exact"}, {"name": "judge", "model": "JUDGE"}]'
_SAMPLED = '{"environment": {"temperature": 0.7}, "policy": {}}'
FAMILIES = {
    "full": [],
    "lora": ["--use_peft", "true", "--lora_r", "4", "--lora_target_modules", "c_attn", "c_proj"],
    "gae": ["--advantage_estimator", "gae"],
    "resample": ["--zero_variance", "resample"],
    "task_sampling": ["--task_sampling", _SAMPLED],
}
if "judge" in SCRIPTS:
    FAMILIES["judge"] = ["--rewards", _JUDGED]
SHARDED = {
    "fsdp2": [family for family in FAMILIES if family != "lora"],  # it is refused with FSDP
    "deepspeed_zero2": [*FAMILIES],
}


def words(
    folder: Path, run: str, family: str, steps: int, processes: int = 1, resume: str = "false"
) -> list[str]:
    """The arguments of a run; every number of processes has the same completions in a step."""
    options = f"--output_dir {folder / run / family} --max_steps {steps}"
    options += f" --per_device_train_batch_size {COMPLETIONS // processes}"
    options += f" --resume_from_checkpoint {resume}"
    own = [word.replace("JUDGE", str(folder / "judge")) for word in FAMILIES[family]]
    return [*SMALL.split(), *own, *options.split()]


def main(folder: Path, layout: str) -> None:
    train = recipe("grpo").main
    if layout == "ddp":
        for family in FAMILIES:
            train(words(folder, "two", family, 4, 2))
            train(words(folder, "one_then_two", family, 4, 2, "true"))
        return
    configure(layout)
    for family in SHARDED[layout]:
        train(words(folder, layout, family, 2, 2))
        train(words(folder, layout, family, 4, 2, "true"))
