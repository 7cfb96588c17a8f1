"""What knowing all legal moves saves: the variance of a gradient, and the time of a step.

    python benchmarks/all_moves.py --model_name_or_path runs/grpo_nano

The gradient is that of the expected score of `B`, mean of 64 positions, after the policy's own `M` and
`E`. Sampled, it is REINFORCE's over k samples of `B` for each position, the others' mean being the
baseline. Its variance is given in squares of the exact gradient's length: at 1, noise and signal are
equally long.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from recipe_runs import run_recipe

from rookworld_rlvr.data.loading import DataArguments, load_data
from rookworld_rlvr.models import loading
from rookworld_rlvr.models.choices import choice_logps
from rookworld_rlvr.models.decoding import complete
from rookworld_rlvr.tasks.policy import POLICY
from rookworld_rlvr.tasks.types import values_by_move

POSITIONS, DRAWS, STEPS = 64, 50, 20
SAMPLED = ("--expected_score_coef", "0", "--soft_moves_coef", "0", "--moves_extra", "0")
RUNS = {
    "2 samples a prompt": SAMPLED,
    "2 samples, all legal moves": ("--moves_extra", "0"),
    "16 samples a prompt": (
        *SAMPLED,
        *("--num_generations", "16", "--per_device_train_batch_size", "512"),
    ),
}
"""Steps of 32 prompts each; the recipe has both terms."""


class Moves:
    """The legal moves of some positions, after a model's own `M` and `E`.

    Args:
        model: The model's folder or name.
    """

    def __init__(self, model: str) -> None:
        self._network, tokenizer = loading.load_model(model).eval(), loading.load_tokenizer(model)
        rows = itertools.islice(load_data(DataArguments(tasks=["policy"])).train, POSITIONS)
        values = {row["prompt"]: values_by_move(row["action_values"]) for row in rows}
        texts = complete(self._network, tokenizer, list(values), max_new_tokens=64)
        self._contexts, self._choices, self._worths = [], [], []
        for (prompt, known), text in zip(values.items(), texts, strict=True):
            if (found := POLICY.choices(text, known)) is None:
                continue
            self._contexts.append(tokenizer(prompt + found[0])["input_ids"])
            self._choices.append(tokenizer(list(found[1]), add_special_tokens=False)["input_ids"])
            self._worths.append(torch.tensor([*found[1].values(), 0.0]))  # the last: illegal

    def logps(self) -> list[torch.Tensor]:
        """Log-probs of each position's legal moves, and of anything else."""
        heats = [1.0] * len(self._contexts)
        legal = choice_logps(self._network, self._contexts, self._choices, heats)
        return [
            torch.cat([p, torch.log1p(-p.exp().sum().clamp(max=1 - 1e-6))[None]]) for p in legal
        ]

    def gradient(
        self, logps: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Of the weighted log-probs, mean of positions, as one vector."""
        total = torch.stack([(p * w).sum() for p, w in zip(logps, weights, strict=True)]).mean()
        found = torch.autograd.grad(total, list(self._network.parameters()), retain_graph=True)
        return torch.cat([gradient.flatten() for gradient in found])

    def variance(self, samples: int) -> float:
        """Mean squared distance of sampled gradients from the exact one, in squares of its length."""
        logps = self.logps()
        chances = [p.detach().exp() for p in logps]
        exact = self.gradient(logps, [p * w for p, w in zip(chances, self._worths, strict=True)])
        distances = [
            (
                self.gradient(
                    logps,
                    [drawn(p, w, samples) for p, w in zip(chances, self._worths, strict=True)],
                )
                - exact
            )
            .square()
            .sum()
            for _ in range(DRAWS)
        ]
        return float(torch.stack(distances).mean() / exact.square().sum())


def drawn(chances: torch.Tensor, worth: torch.Tensor, samples: int) -> torch.Tensor:
    """The weight of each move's log-prob after some samples: advantages against the others' mean."""
    moves = torch.multinomial(chances, samples, replacement=True)
    scores = worth[moves]
    advantages = scores - (scores.sum() - scores) / (samples - 1)
    return torch.zeros_like(worth).index_add(0, moves, advantages / samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model_name_or_path", default="rookworld-nano")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/all_moves"))
    args = parser.parse_args()
    torch.manual_seed(0)
    moves = Moves(args.model_name_or_path)
    for samples in (2, 8, 64):
        print(f"{samples} samples: variance {moves.variance(samples):.2f}", flush=True)
    print("all legal moves: variance 0")
    for place, (name, options) in enumerate(RUNS.items()):
        run = run_recipe(
            args.output_dir / str(place),
            *("--model_name_or_path", args.model_name_or_path, *options),
            *("--max_steps", str(STEPS), "--eval_strategy", "no", "--logging_steps", "1"),
            *("--task_shares", "{policy: 1.0}", "--save_steps", str(STEPS)),
            *("--load_best_model_at_end", "false"),
            *("--keep_rows", "{policy: 36}"),  # there are no others
            recipe="grpo_policy_nano.yaml",
        )
        seconds = [value for _, value in run.series("step_time")][2:]
        print(f"{name}: {statistics.median(seconds):.2f} s a step", flush=True)


if __name__ == "__main__":
    main()
