"""Diagnose a GRPO recipe by taking one optimiser step of the real trainer apart.

rookworld diagnose                                          # the packaged recipe
rookworld diagnose --config grpo_mixed         # another recipe
rookworld diagnose --overfit_single_batch 30                # can it learn one batch?
rookworld diagnose --compare grpo_mixed grpo_lora

Exit code: 0; 1 if a finding says that a run should not start with this recipe; 2 for bad input.
"""

from __future__ import annotations

import rookworld_rlvr.common.threads  # noqa: F401  # before torch is loaded

# isort: split
import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from trl import ModelConfig, get_peft_config

from rookworld_rlvr.cli.checks import check_recipe
from rookworld_rlvr.cli.parser import StrictParser, run_cli
from rookworld_rlvr.data.loading import (
    DataArguments,
    LoadedData,
    label_heldout,
    load_data,
    require_truth,
)
from rookworld_rlvr.diagnosis import (
    DiagnoseArguments,
    DiagnosedTrainer,
    Diagnosis,
    choose_heldout,
    output_folder,
    print_report,
    run_diagnosis,
    split_compare,
    write_reports,
)
from rookworld_rlvr.engine.truth import LabelArguments, PolicyTruth
from rookworld_rlvr.evaluation.registry import SuiteArguments
from rookworld_rlvr.models import loading
from rookworld_rlvr.rewards.judge_spec import judges_of
from rookworld_rlvr.rewards.registry import get_reward_funcs
from rookworld_rlvr.training.config import RookWorldGRPOConfig
from rookworld_rlvr.training.health.rules import HealthArguments

RECIPE = Path(__file__).with_name("grpo_nano.yaml")
GROUPS = [
    DiagnoseArguments,
    DataArguments,
    LabelArguments,
    ModelConfig,
    HealthArguments,
    RookWorldGRPOConfig,
    SuiteArguments,
]


def main(argv: Sequence[str]) -> None:
    ################
    # Recipes
    ################
    compared, rest = split_compare(argv)
    lines = [[*rest, "--config", path] for path in compared] or [list(argv)]
    names = [path.stem for path in map(recipe_path, lines)]
    folder = output_folder(argv, "-vs-".join(names))
    for line in lines:  # report all faults before taking a step
        parse(line, folder)

    ################
    # Steps
    ################
    diagnoses = []
    for line, name in zip(lines, names, strict=True):
        diagnoses.append(diagnose(line, name, folder))
        gc.collect()  # frees the first model before the second is loaded
        torch.cuda.empty_cache()

    ################
    # Report
    ################
    state = PartialState()
    if state.is_main_process:
        print_report(diagnoses)
        for path in write_reports(folder, diagnoses):
            print(path)
    state.wait_for_everyone()
    raise SystemExit(int(any(diagnosis.has_stop for diagnosis in diagnoses)))


def recipe_path(line: Sequence[str]) -> Path:
    """The recipe that a command line names; by default the packaged one."""
    words = [part for word in line for part in word.split("=", 1)]
    return Path(words[words.index("--config") + 1]) if "--config" in words[:-1] else RECIPE


def parse(line: Sequence[str], folder: Path) -> tuple[Any, ...]:
    """The dataclasses of a recipe, with the keys that a diagnosis sets."""
    given, *_ = StrictParser(GROUPS, RECIPE).parse_strictly(line, check)
    words = [*line, *given.words(), "--output_dir", str(folder)]
    return StrictParser(GROUPS, RECIPE).parse_strictly(words, check)


def check(args: DiagnoseArguments | None, *others: Any) -> list[str]:
    """Faults that show only when several dataclasses are compared."""
    misplaced = args is not None and args.compare is not None  # `main` took it off the command line
    faults = (
        ["compare: not allowed in a recipe; write --compare A B on the command line"]
        if misplaced
        else []
    )
    return faults + check_recipe(None, *others)


def diagnose(line: Sequence[str], name: str, folder: Path) -> Diagnosis:
    """Take the first step of a recipe, and take it apart."""
    args, data_args, label_args, model_args, health_args, training_args, _ = parse(line, folder)
    state = PartialState()

    with state.main_process_first():
        data = load_data(data_args)
    data = replace(data, heldout=choose_heldout(data.heldout, args.diagnose_heldout_rows))
    require_truth(data, data_args.tasks, label_args.labels)
    truth = PolicyTruth.open(label_args, *data.policy_rows())
    with state.local_main_process_first():
        data = label_heldout(data, truth)

    model, tokenizer = loading.load_from_arguments(model_args, training_args.trust_remote_code)
    if model_args.model_revision != "main":
        training_args.model_init_kwargs = {"revision": model_args.model_revision}
    loading.check_lengths(model, tokenizer, data.prompts(), training_args.max_completion_length)
    reward_funcs = get_reward_funcs(training_args.rewards, truth)
    for judge in judges_of(reward_funcs).values():
        judge.check_lengths(data.prompts(), training_args.max_completion_length)

    trainer = DiagnosedTrainer(
        model=model,
        reward_funcs=reward_funcs,
        args=training_args,
        train_dataset=data.train,
        eval_dataset=data.heldout,
        processing_class=tokenizer,
        peft_config=get_peft_config(model_args),
        repeat_batch=args.overfit_single_batch > 0,
    )
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    return run_diagnosis(trainer, name, more_setup(args, data, truth), health_args)


def more_setup(args: DiagnoseArguments, data: LoadedData, truth: PolicyTruth) -> dict[str, Any]:
    """The parts of the set-up that the trainer does not know."""
    return {
        "data": data.report.lines(),
        "engine": truth.lines() or ["none asked: the rows carry the values of all moves"],
        "overrides": [
            {"key": key, "value": value, "why": why}
            for key, (value, why) in args.overrides().items()
        ],
    }


if __name__ == "__main__":
    run_cli(main)
