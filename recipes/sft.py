"""Supervised fine-tuning of a RookWorld model on its tasks.

rookworld sft                                 # rookworld-nano on the packaged openings
rookworld sft --dry_run                       # look, do not train
"""

from __future__ import annotations

from rookworld_rlvr.common.machine import use_idle_cores  # before torch is loaded

# isort: split
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trl import ModelConfig, SFTTrainer, get_peft_config

from rookworld_rlvr.cli.run import next_commands, run_cli
from rookworld_rlvr.cli.training_run import TrainingRun
from rookworld_rlvr.common.progress import Progress
from rookworld_rlvr.common.terminal import wrapped
from rookworld_rlvr.data.loading import DataArguments, require_answers
from rookworld_rlvr.data.sources import Row
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import ANSWER_TOKENS, complete
from rookworld_rlvr.tasks.metrics import compare, limits, measured, scores
from rookworld_rlvr.tasks.text import END_OF_TEXT
from rookworld_rlvr.training.checkpoints import WholeCheckpoints
from rookworld_rlvr.training.config import RookWorldSFTConfig, RunArguments, check_sft_recipe
from rookworld_rlvr.training.model_card import OwnCard, write_card
from rookworld_rlvr.training.muon import use_muon
from rookworld_rlvr.training.results import before_after_table
from rookworld_rlvr.training.run_folder import save_final

RECIPE = Path(__file__).with_name("sft.yaml")
GROUPS = [RunArguments, DataArguments, ModelConfig, RookWorldSFTConfig]


def main(argv: Sequence[str]) -> None:
    train(argv)


def train(argv: Sequence[str], change: Callable[[Row], Row] | None = None) -> Path:
    """Train, on rows that `change` has changed; returns the folder."""
    run = TrainingRun("sft", argv, GROUPS, RECIPE, check_sft_recipe)
    _, data_args, model_args, sft_args = run.arguments

    ################
    # Data
    ################
    data = run.load_data(is_learnt=True)
    if change is not None:
        data = replace(data, train=data.train.map(change, load_from_cache_file=False))
    require_answers(data)
    run.state.print(use_idle_cores())
    run.state.print(wrapped("\n".join(data.report.lines())))
    if absent := [task for task in data_args.tasks if not data.report.train[task]]:
        run.state.print(f"no rows of {', '.join(absent)} are trained on")
    if run.is_dry:
        run.end_dry_run(data, len(data.train), tokens=1)  # answers get what room there is
        return run.output_dir
    train_dataset = data.train.select_columns(["prompt", "completion"]).map(_end)

    ################
    # Model & Tokenizer
    ################
    trust = sft_args.trust_remote_code
    model, tokenizer = loading.load_from_arguments(model_args, trust)
    answer_tokens = loading.answer_room(model.config, tokenizer, data.prompts(), ANSWER_TOKENS)

    ################
    # Training
    ################
    run.open_folder(data)
    trainer = Trainer(
        model=model,
        args=sft_args,
        train_dataset=train_dataset,
        processing_class=tokenizer,
        peft_config=get_peft_config(model_args),
        callbacks=run.callbacks(),
    )
    if sft_args.muon:
        use_muon(trainer)
    run.train(trainer)
    trainer.model.config.use_cache = True  # SFTTrainer switches it off for training
    save_final(trainer, run.output_dir)

    ################
    # Result
    ################
    if trainer.accelerator.is_main_process:
        rows = data.heldout.to_list()
        network = loading.load_model(str(run.output_dir), trust_remote_code=trust)
        last = scores(rows, _answers(network, trainer, rows, answer_tokens))
        start = loading.load_start(model_args, trust)
        first = scores(rows, _answers(start, trainer, rows, answer_tokens))
        before, after = measured(rows, first), measured(rows, last)
        if after:
            print(before_after_table(before, after, compare(rows, first, last), limits(rows)))
        else:
            print("nothing is measured: the held-out rows have no values (rookworld prepare)")
        write_card(
            run.record(data, network.num_parameters()),
            {name: result.value for name, result in after.items()},
            ["sft"],
            adapters=model_args.use_peft,
            before=before,
            after=after,
            answer_tokens=answer_tokens,
        )
        run.push()
        keys = {**run.parser.values, "max_completion_length": str(answer_tokens)}
        if len(trained := [name for name in data.report.train if data.report.train[name]]) == 1:
            keys["tasks"] = trained  # the usual recipe trains two
        if data.report.unlabelled:
            keys["labels"] = "stored_or_engine"
        base = model_args.model_name_or_path
        following = next_commands(run.output_dir, base, keys, "sft", len(data.train))
        print(f"\nmodel: {run.output_dir}\n\n{following}")
    return run.output_dir


class Trainer(OwnCard, WholeCheckpoints, SFTTrainer):
    """TRL's trainer, without its own model card."""


def _answers(network: Any, trainer: Trainer, rows: Sequence[Row], answer_tokens: int) -> list[str]:
    """A model's greedy answers to held-out rows."""
    network = network.to(trainer.accelerator.device).eval()
    prompts = [row["prompt"] for row in rows]
    with Progress("held-out rows", len(rows), "prompts") as progress:
        return complete(
            network,
            trainer.processing_class,
            prompts,
            max_new_tokens=answer_tokens,
            progress=progress.update,
        )


def _end(row: dict[str, str]) -> dict[str, str]:
    """Add the end token to a row, so that the model learns to stop."""
    return {"completion": row["completion"] + END_OF_TEXT}


if __name__ == "__main__":
    run_cli(main)
