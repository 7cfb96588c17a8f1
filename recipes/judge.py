"""Train a judge: a model that scores answers, from pairs of a right and a wrong answer.

rookworld judge --config judge_nano
rookworld judge --dry_run                         # look, do not train
"""

from __future__ import annotations

from rookworld_rlvr.common.machine import use_idle_cores  # before torch is loaded

# isort: split
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import ModelConfig, RewardTrainer

from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.cli.training_run import TrainingRun
from rookworld_rlvr.common.files import write_json
from rookworld_rlvr.data.loading import DataArguments
from rookworld_rlvr.extras.judge.pairs import JudgeDataArguments, make_pairs
from rookworld_rlvr.extras.judge.report import judge_report, pairs_text, report_text
from rookworld_rlvr.extras.judge.reward import JudgeSpec, load_judge
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.gpt2 import fuse_gelu
from rookworld_rlvr.training.checkpoints import WholeCheckpoints
from rookworld_rlvr.training.config import RookWorldRewardConfig, RunArguments, check_sft_recipe
from rookworld_rlvr.training.model_card import OwnCard, write_card
from rookworld_rlvr.training.run_folder import save_final

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
    run = TrainingRun("judge", argv, GROUPS, RECIPE, check_recipe)
    _, _, judge_args, model_args, reward_args = run.arguments

    ################
    # Data
    ################
    data = run.load_data()
    run.state.print(use_idle_cores())
    run.state.print("\n".join(data.report.lines()))
    shares, seed = judge_args.shares(), 0
    batch = reward_args.train_batch_size * reward_args.gradient_accumulation_steps
    most = reward_args.max_steps * batch * run.state.num_processes  # below 0 without max_steps
    count = min(judge_args.train_pairs, most) if most > 0 else judge_args.train_pairs
    train = make_pairs(data.train.to_list(), count, shares, seed)
    heldout = make_pairs(data.heldout.to_list(), judge_args.heldout_pairs, shares, seed)
    if run.is_dry:
        run.state.print(pairs_text(train))
        run.end_dry_run(data, len(train), tokens=None)
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
    run.open_folder(data)
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
        callbacks=run.callbacks(),
    )
    fuse_gelu(trainer.model)
    left_out = len(train) - len(trainer.train_dataset)
    run.state.print(
        f"training pairs: {len(train)}, of which {left_out} are longer than max_length and left out"
    )
    run.train(trainer)
    save_final(trainer, run.output_dir)

    ################
    # Result
    ################
    if trainer.accelerator.is_main_process:
        judge = load_judge(JudgeSpec("judge", model=str(run.output_dir)))
        report = judge_report(judge, heldout)
        write_json(run.output_dir / REPORT, report)
        print(report_text(report))
        record = run.record(data, judge.network.num_parameters())
        example = (heldout[0].prompt, heldout[0].chosen)
        pairs = {"all": report["pairs"], **report["pairs"]["by_kind"]}
        shares = {f"pairs/{kind}": found["accuracy"] for kind, found in pairs.items()}
        results = report_text(report)
        kind = "text-classification"
        write_card(record, shares, ["reward-model"], kind, results=results, example=example)
        run.push()


class Trainer(OwnCard, WholeCheckpoints, RewardTrainer):  # type: ignore[misc]
    """TRL's trainer, without its own model card."""


if __name__ == "__main__":
    run_cli(main)
