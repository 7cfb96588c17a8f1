"""Supervised fine-tuning of a RookWorld model on its tasks.

rookworld sft                                 # the packaged model on the packaged openings
rookworld sft --dry_run                       # look, do not train
"""

from __future__ import annotations

from rookworld_rlvr.common.machine import use_idle_cores  # before torch is loaded

# isort: split
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from accelerate import PartialState
from trl import ModelConfig, SFTTrainer, get_peft_config

from rookworld_rlvr.cli.parser import DEFAULTS, StrictParser
from rookworld_rlvr.cli.run import next_commands, run_cli
from rookworld_rlvr.common.extras import extra
from rookworld_rlvr.common.progress import Progress
from rookworld_rlvr.common.terminal import keep_log, wrapped
from rookworld_rlvr.data.loading import DataArguments, load_data, require_answers
from rookworld_rlvr.data.sources import Row
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.decoding import ANSWER_TOKENS, complete
from rookworld_rlvr.tasks.metrics import compare, limits, measured, scores
from rookworld_rlvr.tasks.text import END_OF_TEXT
from rookworld_rlvr.training.callbacks import StopOnInterrupt, print_short_lines
from rookworld_rlvr.training.checkpoints import WholeCheckpoints
from rookworld_rlvr.training.config import RookWorldSFTConfig, RunArguments, check_sft_recipe
from rookworld_rlvr.training.hub import create_repository, push
from rookworld_rlvr.training.model_card import OwnCard, Run, write_card
from rookworld_rlvr.training.results import before_after_table
from rookworld_rlvr.training.run_folder import (
    goes_on,
    open_folder,
    open_provenance,
    quarantine_path,
    resume_point,
    save_final,
)

RECIPE = Path(__file__).with_name("sft.yaml")
GROUPS = [RunArguments, DataArguments, ModelConfig, RookWorldSFTConfig]


def main(argv: Sequence[str]) -> None:
    train(argv)


def train(argv: Sequence[str], change: Callable[[Row], Row] | None = None) -> Path:
    """Train, on rows that `change` has changed; returns the folder."""
    started = time.perf_counter()
    parser = StrictParser(GROUPS, RECIPE)
    arguments = parser.parse_strictly(argv, check_sft_recipe)
    run_args, data_args, model_args, sft_args = arguments
    output_dir, trust = Path(sft_args.output_dir), sft_args.trust_remote_code
    resolved = parser.resolved(*arguments)
    state = PartialState()

    ################
    # Data
    ################
    wish = None if run_args.dry_run else sft_args.resume_from_checkpoint
    checkpoint = resume_point(wish, output_dir, resolved)
    quarantine = quarantine_path(output_dir)
    is_pushed = state.is_main_process and not run_args.dry_run
    repository = create_repository(sft_args) if is_pushed else None
    with state.main_process_first():
        keep_bad_rows = state.is_main_process and not run_args.dry_run
        data = load_data(data_args, quarantine if keep_bad_rows else None, is_learnt=True)
    if change is not None:
        data = replace(data, train=data.train.map(change, load_from_cache_file=False))
    require_answers(data)
    state.print(use_idle_cores())
    state.print(wrapped("\n".join(data.report.lines())))
    if absent := [task for task in data_args.tasks if not data.report.train[task]]:
        state.print(f"no rows of {', '.join(absent)} are trained on")
    if run_args.dry_run:
        state.print(f"\n{resolved.partition(DEFAULTS)[0]}")
        return output_dir
    train_dataset = data.train.select_columns(["prompt", "completion"]).map(_end)

    ################
    # Model & Tokenizer
    ################
    model, tokenizer = loading.load_from_arguments(model_args, trust)
    answer_tokens = loading.answer_room(model.config, tokenizer, data.prompts(), ANSWER_TOKENS)

    ################
    # Training
    ################
    keep = goes_on(output_dir, checkpoint)
    changed: list[str] = []
    boards = extra("workspace.boards")
    if state.is_main_process:
        open_folder(output_dir, keep, resolved, quarantine)
        keep_log(output_dir)
        at = state.num_processes, checkpoint
        changed = open_provenance(output_dir, resolved, data, None, *at)
        if boards and "wandb" in sft_args.report_to:
            base = model_args.model_name_or_path
            print(boards.configure_wandb(output_dir, keep, data_args.tasks, base, parser.recipe))
    state.wait_for_everyone()
    interrupt = StopOnInterrupt()
    described = [boards.RunConfigCallback(parser.values, changed)] if boards else []
    trainer = Trainer(
        model=model,
        args=sft_args,
        train_dataset=train_dataset,
        processing_class=tokenizer,
        peft_config=get_peft_config(model_args),
        callbacks=[*described, interrupt],
    )
    print_short_lines(trainer)
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    interrupt.leave_if_stopped(output_dir)
    trainer.model.config.use_cache = True  # SFTTrainer switches it off for training
    save_final(trainer, output_dir)

    ################
    # Result
    ################
    if trainer.accelerator.is_main_process:
        rows = data.heldout.to_list()
        network = loading.load_model(str(output_dir), trust_remote_code=trust)
        last = scores(rows, _answers(network, trainer, rows, answer_tokens))
        start = loading.load_start(model_args, trust)
        first = scores(rows, _answers(start, trainer, rows, answer_tokens))
        before, after = measured(rows, first), measured(rows, last)
        if after:
            print(before_after_table(before, after, compare(rows, first, last), limits(rows)))
        else:
            print("nothing is measured: the held-out rows have no values (rookworld prepare)")
        run = Run(
            command="sft",
            folder=output_dir,
            recipe=parser.values,
            base=model_args.model_name_or_path,
            data=data,
            dataset=data_args.dataset_name,
            parameters=network.num_parameters(),
            seconds=time.perf_counter() - started,
            processes=state.num_processes,
            resumed=checkpoint is not None,
            changed=changed,
            repository=repository,
        )
        write_card(
            run,
            {name: result.value for name, result in after.items()},
            ["sft"],
            adapters=model_args.use_peft,
            before=before,
            after=after,
            answer_tokens=answer_tokens,
        )
        if repository is not None:
            print(push(repository, output_dir, sft_args))
        keys = {**parser.values, "max_completion_length": str(answer_tokens)}
        if len(trained := [name for name in data.report.train if data.report.train[name]]) == 1:
            keys["tasks"] = trained  # the usual recipe trains two
        if data.report.unlabelled:
            keys["labels"] = "stored_or_engine"
        following = next_commands(output_dir, run.base, keys, "sft", len(data.train))
        print(f"\nmodel: {output_dir}\n\n{following}")
    return output_dir


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
