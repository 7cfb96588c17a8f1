"""Supervised fine-tuning of a RookWorld model on both tasks.

accelerate launch recipes/sft.py --config recipes/sft_nano.yaml
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from trl import ModelConfig, SFTTrainer, get_peft_config

from rookworld_rlvr import model as models
from rookworld_rlvr.config import (
    NewModelArguments,
    RookWorldSFTConfig,
    RunArguments,
    StrictParser,
    run_cli,
)
from rookworld_rlvr.data import DataArguments, load_data
from rookworld_rlvr.evaluation import evaluate_completions
from rookworld_rlvr.generation import greedy_completions
from rookworld_rlvr.notation import END_OF_TEXT
from rookworld_rlvr.records import ConfigurationError
from rookworld_rlvr.report import resolved_yaml, results_table, write_model_card

RECIPE = Path(__file__).with_name("sft_nano.yaml")


def main(argv: Sequence[str]) -> None:
    parser = StrictParser(
        [RunArguments, DataArguments, NewModelArguments, ModelConfig, RookWorldSFTConfig], RECIPE
    )
    started = time.time()
    run_args, data_args, new_args, model_args, sft_args = parser.parse_strictly(argv)
    if new_args.new_model is None and (
        faults := models.check_model_name(model_args.model_name_or_path)
    ):
        raise ConfigurationError(faults)

    ################
    # Data
    ################
    data = load_data(data_args, Path(sft_args.output_dir) / "quarantine.jsonl")
    print("\n".join(data.report.lines()))
    columns = ["prompt", "completion"]
    train_dataset = data.train.select_columns(columns).map(_end)
    if run_args.dry_run:
        print(resolved_yaml(run_args, data_args, new_args, model_args, sft_args))
        return

    ################
    # Model & Tokenizer
    ################
    if new_args.new_model is None:
        tokenizer = models.load_tokenizer(model_args.model_name_or_path)
        model = models.load_model(model_args.model_name_or_path)
    else:
        shape = dict(new_args.new_model)
        texts = (row["prompt"] + row["completion"] for row in train_dataset)
        tokenizer = models.train_tokenizer(texts, shape.pop("vocab_size"))
        model = models.new_model(tokenizer, **shape)

    ################
    # Training
    ################
    trainer = SFTTrainer(
        model=model,
        args=sft_args,
        train_dataset=train_dataset,
        processing_class=tokenizer,
        peft_config=get_peft_config(model_args),
    )
    trainer.train(resume_from_checkpoint=sft_args.resume_from_checkpoint)
    trainer.model.config.use_cache = True  # SFTTrainer switches it off for training
    trainer.save_model(sft_args.output_dir)

    ################
    # Result
    ################
    if trainer.accelerator.is_main_process:
        network = trainer.accelerator.unwrap_model(trainer.model).eval()
        completions = greedy_completions(
            network, tokenizer, data.heldout["prompt"][:], max_new_tokens=sft_args.max_length
        )
        results = evaluate_completions(data.heldout, completions)
        print(results_table(results))
        write_model_card(
            Path(sft_args.output_dir), parser.values, results, network.num_parameters(), started
        )


def _end(row: dict[str, str]) -> dict[str, str]:
    """End each row, so that the model learns to stop."""
    return {"completion": row["completion"] + END_OF_TEXT}


if __name__ == "__main__":
    run_cli(main)
