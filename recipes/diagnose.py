"""Diagnose a GRPO recipe by taking one optimiser step of the real trainer apart.

rookworld diagnose                                          # the packaged recipe
rookworld diagnose --config grpo_mixed                      # another recipe
rookworld diagnose --overfit_single_batch 30                # can it learn one batch?
rookworld diagnose --compare runs/grpo_nano                 # beside the log of a run

Exit code: 0; 1 if a finding says that a run should not start with this recipe; 2 for bad input.
"""

from __future__ import annotations

import rookworld_rlvr.common.machine  # noqa: F401  # before torch is loaded

# isort: split
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from trl import ModelConfig, get_peft_config

from rookworld_rlvr.cli.parser import StrictParser
from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.data.loading import DataArguments, label_heldout, load_data, require_truth
from rookworld_rlvr.engine.truth import LabelArguments, PolicyTruth
from rookworld_rlvr.evaluation.registry import SuiteArguments
from rookworld_rlvr.extras.diagnose.phases import DiagnoseArguments, run_diagnosis
from rookworld_rlvr.extras.diagnose.report import print_report, write_reports
from rookworld_rlvr.models import loading
from rookworld_rlvr.rewards.registry import open_rewards
from rookworld_rlvr.training.config import RookWorldGRPOConfig, check_recipe
from rookworld_rlvr.training.measurements import evenly
from rookworld_rlvr.training.own import trainer_class

RECIPE = Path(__file__).with_name("grpo_nano.yaml")
HELDOUT_ROWS = 100  # of each task, unless the command line says otherwise
GROUPS = [
    DiagnoseArguments,
    DataArguments,
    LabelArguments,
    ModelConfig,
    RookWorldGRPOConfig,
    SuiteArguments,
]


def main(argv: Sequence[str]) -> None:
    ################
    # Recipe
    ################
    words = dict(pairwise(part for word in argv for part in word.split("=", 1)))
    name = Path(words.get("--config", RECIPE)).stem
    # Never the recipe's own folder.
    folder = words.get("--output_dir", f"runs/diagnosis-{name}")
    argv = ["--heldout_rows", str(HELDOUT_ROWS), *argv]
    parser = StrictParser(GROUPS, RECIPE)
    given, *_ = parser.parse_strictly(argv, check)
    sets = [part for key, (value, _) in given.overrides().items() for part in (f"--{key}", value)]
    parsed = parser.parse_strictly([*argv, *sets, "--output_dir", folder], check)
    args, data_args, label_args, model_args, training_args, _ = parsed
    compared = args.log()
    trainer_kind = trainer_class(training_args.trainer_from)

    ################
    # Data, model, rewards
    ################
    state = PartialState()
    with state.main_process_first():
        data = load_data(data_args)
    if args.overfit_single_batch:
        count = training_args.generation_batch_size // training_args.num_generations
        rows = evenly(range(len(data.train)), count)
        data = replace(data, train=data.train.select(rows))
    require_truth(data, data_args.tasks, label_args.labels)
    truth = PolicyTruth.open(label_args, data.report.unlabelled)
    with state.local_main_process_first():
        data = label_heldout(data, truth)
    model, tokenizer = loading.load_from_arguments(model_args, training_args.trust_remote_code)
    if model_args.model_revision != "main":
        training_args.model_init_kwargs = {"revision": model_args.model_revision}
    loading.check_lengths(
        model.config, tokenizer, data.prompts(), training_args.max_completion_length
    )
    reward_funcs = open_rewards(training_args.rewards, truth)
    for reward in reward_funcs:
        if hasattr(reward, "check_lengths"):  # a judge
            reward.check_lengths(data.prompts(), training_args.max_completion_length)

    ################
    # Step
    ################
    trainer = trainer_kind(
        model=model,
        reward_funcs=reward_funcs,
        args=training_args,
        train_dataset=data.train,
        eval_dataset=data.heldout,
        processing_class=tokenizer,
        peft_config=get_peft_config(model_args),
    )
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    why = [f"{key} {value}: {reason}" for key, (value, reason) in args.overrides().items()]
    more = {"data": data.report.lines(), "engine": truth.lines(), "set_by_the_diagnosis": why}
    record = run_diagnosis(trainer, name, more, compared)

    ################
    # Report
    ################
    if state.is_main_process:
        print_report(record)
        for path in write_reports(Path(folder), record):
            print(path)
    state.wait_for_everyone()
    stops = [f for f in record["analysis"]["findings"] if f["severity"] == "stop"]
    raise SystemExit(int(bool(stops)))


def check(args: DiagnoseArguments | None, *others: Any) -> list[str]:
    """Faults that show only when several dataclasses are compared."""
    return check_recipe(None, *others)


if __name__ == "__main__":
    run_cli(main)
