"""Train a judge: a model that scores answers, from pairs of a right and a wrong answer.

rookworld judge --config judge_nano
rookworld judge --dry_run                         # look, do not train
"""

from __future__ import annotations

from rookworld_rlvr.common.machine import use_idle_cores  # before torch is loaded

# isort: split
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset
from trl import ModelConfig, RewardTrainer

from rookworld_rlvr.cli.parser import DEFAULTS, StrictParser
from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.common.extras import extra
from rookworld_rlvr.common.files import write_json
from rookworld_rlvr.common.terminal import keep_log
from rookworld_rlvr.data.loading import DataArguments, load_data
from rookworld_rlvr.extras.judge.pairs import JudgeDataArguments, make_pairs
from rookworld_rlvr.extras.judge.report import judge_report, pairs_text, report_text
from rookworld_rlvr.extras.judge.reward import JudgeSpec, load_judge
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.gpt2 import fuse_gelu
from rookworld_rlvr.training.callbacks import StopOnInterrupt
from rookworld_rlvr.training.checkpoints import WholeCheckpoints
from rookworld_rlvr.training.config import RookWorldRewardConfig, RunArguments, check_sft_recipe
from rookworld_rlvr.training.hub import create_repository, push
from rookworld_rlvr.training.model_card import OwnCard, Run, write_card
from rookworld_rlvr.training.run_folder import (
    goes_on,
    open_folder,
    open_provenance,
    quarantine_path,
    resume_point,
    save_final,
)

RECIPE = Path(__file__).with_name("judge_nano.yaml")
REPORT = "judge_report.json"
GROUPS = [RunArguments, DataArguments, JudgeDataArguments, ModelConfig, RookWorldRewardConfig]


def check_recipe(*groups: Any) -> list[str]:
    """Faults that show only when several dataclasses are compared."""
    *_, model_args, _ = groups
    faults = check_sft_recipe(*groups)
    if model_args is not None and model_args.use_peft:
        faults.append("use_peft: a judge is trained without adapters; leave it out")
    return faults


def main(argv: Sequence[str]) -> None:
    started = time.perf_counter()
    parser = StrictParser(GROUPS, RECIPE)
    arguments = parser.parse_strictly(argv, check_recipe)
    run_args, data_args, judge_args, model_args, reward_args = arguments
    output_dir = Path(reward_args.output_dir)
    resolved = parser.resolved(*arguments)
    state = PartialState()

    ################
    # Data
    ################
    wish = None if run_args.dry_run else reward_args.resume_from_checkpoint
    checkpoint = resume_point(wish, output_dir, resolved)
    quarantine = quarantine_path(output_dir)
    is_pushed = state.is_main_process and not run_args.dry_run
    repository = create_repository(reward_args) if is_pushed else None
    with state.main_process_first():
        keep_bad_rows = state.is_main_process and not run_args.dry_run
        data = load_data(data_args, quarantine if keep_bad_rows else None)
    state.print(use_idle_cores())
    state.print("\n".join(data.report.lines()))
    shares, seed = judge_args.shares(), 0
    batch = reward_args.train_batch_size * reward_args.gradient_accumulation_steps
    most = reward_args.max_steps * batch * state.num_processes  # below 0 without max_steps
    count = min(judge_args.train_pairs, most) if most > 0 else judge_args.train_pairs
    train = make_pairs(data.train.to_list(), count, shares, seed)
    heldout = make_pairs(data.heldout.to_list(), judge_args.heldout_pairs, shares, seed)
    if run_args.dry_run:
        state.print(f"\n{resolved.partition(DEFAULTS)[0]}")
        state.print(pairs_text(train))
        return

    ################
    # Model & Tokenizer
    ################
    tokenizer = loading.load_tokenizer(
        model_args.model_name_or_path,
        revision=model_args.model_revision,
        trust_remote_code=reward_args.trust_remote_code,
    )
    reward_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype or "float32",
        "use_safetensors": True,
    }

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
        if boards and "wandb" in reward_args.report_to:
            base = model_args.model_name_or_path
            print(boards.configure_wandb(output_dir, keep, data_args.tasks, base, parser.recipe))
    state.wait_for_everyone()
    interrupt = StopOnInterrupt()
    described = [boards.RunConfigCallback(parser.values, changed)] if boards else []
    trainer = Trainer(
        model=loading.resolve_model_path(model_args.model_name_or_path),
        args=reward_args,
        train_dataset=Dataset.from_list(
            [
                {"prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected}
                for pair in train
            ]
        ),
        processing_class=tokenizer,
        callbacks=[*described, interrupt],
    )
    fuse_gelu(trainer.model)
    left_out = len(train) - len(trainer.train_dataset)
    state.print(
        f"training pairs: {len(train)}, of which {left_out} are longer than max_length and left out"
    )
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    interrupt.leave_if_stopped(output_dir)
    save_final(trainer, output_dir)

    ################
    # Result
    ################
    if trainer.accelerator.is_main_process:
        judge = load_judge(JudgeSpec("judge", model=str(output_dir)))
        report = judge_report(judge, heldout)
        write_json(output_dir / REPORT, report)
        print(report_text(report))
        run = Run(
            command="judge",
            folder=output_dir,
            recipe=parser.values,
            base=model_args.model_name_or_path,
            data=data,
            dataset=data_args.dataset_name,
            parameters=judge.network.num_parameters(),
            seconds=time.perf_counter() - started,
            processes=state.num_processes,
            resumed=checkpoint is not None,
            changed=changed,
            repository=repository,
        )
        example = (heldout[0].prompt, heldout[0].chosen)
        pairs = {"all": report["pairs"], **report["pairs"]["by_kind"]}
        shares = {f"pairs/{kind}": found["accuracy"] for kind, found in pairs.items()}
        results = report_text(report)
        kind = "text-classification"
        write_card(run, shares, ["reward-model"], kind, results=results, example=example)
        if repository is not None:
            print(push(repository, output_dir, reward_args))


class Trainer(OwnCard, WholeCheckpoints, RewardTrainer):  # type: ignore[misc]
    """TRL's trainer, without its own model card."""


if __name__ == "__main__":
    run_cli(main)
