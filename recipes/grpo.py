"""Fine-tune a RookWorld model by GRPO with verifiable chess rewards.

accelerate launch recipes/grpo.py                                      # the packaged recipe
accelerate launch recipes/grpo.py --config recipes/grpo_mixed.yaml     # any other
accelerate launch recipes/grpo.py --learning_rate 1e-5 --max_steps 20  # overrides
python recipes/grpo.py --dry_run                                       # look, do not train
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from accelerate import PartialState
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import ModelConfig, get_peft_config

from rookworld_rlvr import model as models
from rookworld_rlvr.callbacks import RunConfigCallback, ShortProgressCallback, configure_wandb
from rookworld_rlvr.config import (
    RookWorldGRPOConfig,
    RunArguments,
    StrictParser,
    check_recipe,
    run_cli,
)
from rookworld_rlvr.data import DataArguments, load_data, require_truth
from rookworld_rlvr.records import Proportion
from rookworld_rlvr.report import (
    before_after_table,
    dry_run_text,
    read_proportions,
    resolved_yaml,
    write_proportions,
    write_results,
)
from rookworld_rlvr.rewards import get_reward_funcs
from rookworld_rlvr.trainer import RookWorldGRPOTrainer, save_final

RECIPE = Path(__file__).with_name("grpo_nano.yaml")


def main(argv: Sequence[str]) -> None:
    parser = StrictParser([RunArguments, DataArguments, ModelConfig, RookWorldGRPOConfig], RECIPE)
    arguments = parser.parse_strictly(argv, check_recipe)
    run_args, data_args, model_args, training_args = arguments
    output_dir = Path(training_args.output_dir)
    say = PartialState().print

    ################
    # Data
    ################
    if run_args.dry_run:
        data = load_data(data_args)
        say(resolved_yaml(*arguments))
        say(dry_run_text(data, training_args.rewards))
        return
    checkpoint = resume_point(training_args.resume_from_checkpoint, output_dir)
    with PartialState().main_process_first():
        if PartialState().is_main_process:
            make_room(output_dir, checkpoint is not None)
            (output_dir / "resolved_config.yaml").write_text(resolved_yaml(*arguments))
        data = load_data(
            data_args, output_dir / "quarantine.jsonl" if PartialState().is_main_process else None
        )
    say("\n".join(data.report.lines()))
    require_truth(data)

    ################
    # Model & Tokenizer
    ################
    tokenizer = models.load_tokenizer(model_args.model_name_or_path)
    model = models.load_model(
        model_args.model_name_or_path,
        revision=model_args.model_revision,
        attn_implementation=model_args.attn_implementation,
        dtype=model_args.dtype or "float32",
    )

    ################
    # Training
    ################
    if "wandb" in training_args.report_to and PartialState().is_main_process:
        print(configure_wandb(output_dir, resume=checkpoint is not None))
    trainer = RookWorldGRPOTrainer(
        model=model,
        reward_funcs=get_reward_funcs(training_args.rewards),
        args=training_args,
        train_dataset=data.train,
        eval_dataset=data.heldout,
        processing_class=tokenizer,
        peft_config=get_peft_config(model_args),
        callbacks=[RunConfigCallback(parser.values)],
    )
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(ShortProgressCallback)
    before = starting_point(trainer, output_dir / "heldout_before.json", checkpoint is not None)
    trainer.train(resume_from_checkpoint=checkpoint)

    ################
    # Result
    ################
    trainer.evaluate()
    save_final(trainer, output_dir)
    if trainer.accelerator.is_main_process:
        write_results(
            output_dir / "results.json",
            before,
            trainer.heldout,
            preflight=trainer.preflight_numbers(),
            best_step=trainer.state.best_global_step,
            steps=trainer.state.global_step,
        )
        print(before_after_table(before, trainer.heldout, str(output_dir)))


def resume_point(wish: str | None, output_dir: Path) -> str | None:
    """The checkpoint to go on from: none, the last one (``true``), or a folder."""
    if wish is None or wish.lower() in ("false", "no"):
        return None
    if wish.lower() not in ("true", "last", "yes"):
        return wish
    return get_last_checkpoint(str(output_dir)) if output_dir.is_dir() else None


def starting_point(
    trainer: RookWorldGRPOTrainer, path: Path, resume: bool
) -> Mapping[str, Proportion]:
    """Held-out results of the model that training starts from; a resumed run remembers its own."""
    if resume and path.is_file():
        return read_proportions(path)
    trainer.evaluate()
    if trainer.accelerator.is_main_process:
        write_proportions(path, trainer.heldout)
    return trainer.heldout


def make_room(output_dir: Path, resume: bool) -> None:
    """Keep what an earlier run left, under the next free name beside it."""
    if output_dir.is_dir() and any(output_dir.iterdir()) and not resume:
        number = 1
        while (old := output_dir.with_name(f"{output_dir.name}.{number}")).exists():
            number += 1
        output_dir.rename(old)
        print(f"the earlier run in {output_dir} is now {old}")
    output_dir.mkdir(parents=True, exist_ok=True)


if __name__ == "__main__":
    run_cli(main)
