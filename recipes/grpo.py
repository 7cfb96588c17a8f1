"""Fine-tune a RookWorld model by GRPO with verifiable chess rewards.

rookworld grpo                                      # the packaged recipe
rookworld grpo --config grpo_mixed     # another recipe
rookworld grpo --learning_rate 1e-5 --max_steps 20  # with other values
rookworld grpo --dry_run                            # look, do not train
"""

from __future__ import annotations

from rookworld_rlvr.common.machine import use_idle_cores  # before torch is loaded

# isort: split
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trl import ModelConfig, get_peft_config

from rookworld_rlvr.cli.run import next_commands, run_cli
from rookworld_rlvr.cli.training_run import TrainingRun
from rookworld_rlvr.common.extras import extra
from rookworld_rlvr.common.files import write_json, write_text
from rookworld_rlvr.common.machine import machine
from rookworld_rlvr.common.terminal import wrapped
from rookworld_rlvr.data.loading import DataArguments, label_heldout, require_truth
from rookworld_rlvr.engine.truth import LabelArguments, PolicyTruth
from rookworld_rlvr.evaluation.registry import SuiteArguments
from rookworld_rlvr.models import loading
from rookworld_rlvr.rewards.registry import open_rewards
from rookworld_rlvr.tasks.metrics import limits
from rookworld_rlvr.training.config import (
    RookWorldGRPOConfig,
    RunArguments,
    check_recipe,
    idle_keys,
    require_suites,
)
from rookworld_rlvr.training.model_card import trained_rewards, write_card
from rookworld_rlvr.training.own import trainer_class
from rookworld_rlvr.training.results import (
    ANSWERS_AFTER,
    ANSWERS_BEFORE,
    EVALUATION,
    HELDOUT_BEFORE,
    REPORT,
    RESULTS,
    before_after_table,
    compared,
    kept_text,
    write_results,
)
from rookworld_rlvr.training.run_folder import close_provenance, save_final, write_answers
from rookworld_rlvr.training.sampling import check_rows

RECIPE = Path(__file__).with_name("grpo_nano.yaml")
GROUPS = [
    RunArguments,
    DataArguments,
    LabelArguments,
    ModelConfig,
    RookWorldGRPOConfig,
    SuiteArguments,
]


def main(argv: Sequence[str]) -> None:
    run = TrainingRun("grpo", argv, GROUPS, RECIPE, check_recipe)
    _, data_args, label_args, model_args, training_args, suite_args = run.arguments
    output_dir, checkpoint = run.output_dir, run.checkpoint
    prompts = training_args.generation_batch_size // training_args.num_generations
    trainer_kind = trainer_class(training_args.trainer_from)
    if idle := idle_keys(data_args.tasks, training_args):
        run.state.print(wrapped(idle))

    ################
    # Data
    ################
    if run.is_dry:
        from rookworld_rlvr.cli.dry_run import dry_run_text

        data = run.load_data()
        require_truth(data, data_args.tasks, label_args.labels)
        truth = PolicyTruth.open(label_args, data.report.unlabelled)
        check_rows(len(data.train), prompts)
        text = dry_run_text(data, training_args.rewards, truth)
        run.state.print(text)
        tokens = training_args.max_completion_length
        run.end_dry_run(data, len(data.train), tokens, "\nwarning: " in text)
        return
    data = run.load_data(other_task_rows=training_args.other_task_rows)
    run.state.print(use_idle_cores())
    run.state.print(wrapped("\n".join(data.report.lines())))
    require_truth(data, data_args.tasks, label_args.labels)
    check_rows(len(data.train), prompts)
    truth = PolicyTruth.open(label_args, data.report.unlabelled)
    with run.state.local_main_process_first():  # the other processes find the values in the cache
        data = label_heldout(data, truth)
    for line in truth.lines():
        run.state.print(line)
    before = None
    if checkpoint:
        from rookworld_rlvr.training.resuming import starting_point

        before = starting_point(checkpoint, data.heldout)
        if before is None:
            run.state.print(
                f"nothing from before training is in {checkpoint.parent}: it is measured now"
            )
    # What the end needs is loaded now, so that no import can fail then.
    reports = extra("report.page") if run.repository is not None else None
    if training_args.pass_samples or data.others:
        from rookworld_rlvr.evaluation.pass_at_k import pass_summary
        from rookworld_rlvr.training.measurements import (
            measure_others,
            pass_lines,
            starting_counts,
        )
    suites: list[Any] = []
    left_out: dict[str, str] = {}
    if suite_args.suites:
        from rookworld_rlvr.evaluation.results import (
            ModelResults,
            results_document,
            results_text,
        )
        from rookworld_rlvr.evaluation.suite import open_suites

        suites, left_out = open_suites(suite_args, label_args)
    for name, reason in left_out.items():
        run.state.print(f"suite {name} is left out: {reason}")
    require_suites(training_args, left_out)

    ################
    # Model & Tokenizer
    ################
    trust = training_args.trust_remote_code
    model, tokenizer = loading.load_from_arguments(model_args, trust)
    if model_args.model_revision != "main":  # TRL warns, but needs it to load the reference
        training_args.model_init_kwargs = {"revision": model_args.model_revision}
    loading.check_lengths(
        model.config, tokenizer, data.prompts(), training_args.max_completion_length
    )
    model_args.lora_dropout = 0.0  # as the trainer has it
    reward_funcs = open_rewards(training_args.rewards, truth)
    for reward in reward_funcs:
        if hasattr(reward, "check_lengths"):  # a judge
            reward.check_lengths(data.prompts(), training_args.max_completion_length)

    ################
    # Training
    ################
    run.open_folder(data, truth, carried=(HELDOUT_BEFORE, ANSWERS_BEFORE))
    callbacks = run.callbacks()
    if training_args.health:
        from rookworld_rlvr.training.health import HealthCallback

        callbacks.insert(-1, HealthCallback())  # before that of Ctrl-C
    trainer = trainer_kind(
        model=model,
        reward_funcs=reward_funcs,
        args=training_args,
        train_dataset=data.train,
        eval_dataset=data.heldout,
        processing_class=tokenizer,
        peft_config=get_peft_config(model_args),
        callbacks=callbacks,
    )
    if run.boards:
        run.boards.use_dashboard(trainer, truth)
    trainer.heldout.before = before  # None: it is measured when training begins
    if training_args.pass_samples and checkpoint:
        trainer.heldout.right = starting_counts(training_args, checkpoint.parent)
    trainer.heldout.suites = suites
    run.train(trainer)

    ################
    # Result
    ################
    trainer.save_state()
    save_final(trainer, output_dir)  # first: what follows may fail, such as for lack of memory
    step = trainer.heldout.run_final()
    if data.others:
        measure_others(trainer, data.others, partial(loading.load_start, model_args, trust))
    trainer.save_state()  # again, with what was logged since
    assert trainer.heldout.before is not None  # eval_on_start cannot be switched off
    before, after = trainer.heldout.before, trainer.heldout.results
    reach = limits(data.heldout)
    if trainer.accelerator.is_main_process:
        write_answers(output_dir / ANSWERS_AFTER, data.heldout, trainer.heldout.completions)
        close_provenance(output_dir, run.started, model.num_parameters())
        write_results(
            output_dir / RESULTS,
            {"before": before, "after": after},
            preflight=trainer.preflight.measured() if trainer.preflight else {},
            best_step=step,
            steps=trainer.state.global_step,
            limits=reach,
            **({"pass": pass_summary(trainer.heldout.right)} if trainer.heldout.right else {}),
        )
        if suites:
            start = str(checkpoint or model_args.model_name_or_path)  # what was measured as before
            last = ModelResults(training_args.output_dir, trainer.heldout.suite_results, left_out)
            results = [last]
            if trainer.heldout.suites_before is not None:
                results.insert(0, ModelResults(start, trainer.heldout.suites_before, left_out))
            write_json(output_dir / EVALUATION, results_document(results, [], machine()))
            print(results_text(results))
        write_card(  # last: a run with a card is finished
            run.record(data, model.num_parameters()),
            {name: result.value for name, result in after.items()},
            ["grpo", "rlvr"],
            adapters=model_args.use_peft,
            before=before,
            after=after,
            answer_tokens=training_args.max_completion_length,
            args=training_args,
            rewards=trained_rewards(training_args.rewards, data),
            step=step,
            steps=trainer.state.global_step,
        )
        changes = compared(output_dir)
        if run.boards:
            run.boards.summarize(before, after, changes, step)
        kept = kept_text(step, trainer.state.global_step, bool(training_args.guard))
        for line in pass_lines(trainer.heldout.right) if trainer.heldout.right else ():
            print(line)
        print(before_after_table(before, after, changes, reach, kept))
        print(f"\nmodel: {output_dir} (step {step} of {trainer.state.global_step})\n")
        if run.repository is not None:
            if reports:
                write_text(output_dir / REPORT, reports.page_of([str(output_dir)]))
            run.push()
            print()
        print(next_commands(output_dir, model_args.model_name_or_path, run.parser.values))


if __name__ == "__main__":
    run_cli(main)
