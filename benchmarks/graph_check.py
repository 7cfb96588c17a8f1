"""Whether CUDA graphs draw what the loop draws, on the device itself, in about a minute.

    python benchmarks/graph_check.py                        # on a GPU, GPT-2 small's shape
    python benchmarks/graph_check.py --device cpu --small   # its steps, not recorded: tries this script

It prints a line for each check, ``name: value (wanted ...)``, and exits with 1 if one fails. Weights are
random. Rows end at many lengths, so the number of rows and the width of the cache change on the way.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from step_trainers import DEFAULTS, random_model, trainer_of
from transformers import GenerationConfig

from rookworld_rlvr.models import graphs, loading
from rookworld_rlvr.models.decoding import Drawn, decode
from rookworld_rlvr.tasks.task import Sampling
from rookworld_rlvr.training.preflight import (
    measure_parity,
    mixed_length_prompts,
    preflight_tolerance,
)

GAP = 0.2  # nats, between a log-prob of bf16 steps and the network's own
SAME = 0.98  # rows with the loop's tokens: fp32 is rounded in other places, and a draw may tip over


class Check(NamedTuple):
    """One line of the result."""

    name: str
    value: str
    wanted: str
    is_right: bool


class Work(NamedTuple):
    """What is decoded: `rows` prompts, and completions of up to `longest` tokens."""

    model: Any
    end: int
    rows: int
    longest: int

    def drawn(self, ways: list[Sampling], with_graphs: graphs.Graphs | None, **how: Any) -> Drawn:
        """Completions of the prompts, each drawn in its way."""
        options = GenerationConfig(pad_token_id=self.end, eos_token_id=self.end)
        return decode(self.model, self.prompts(), ways, options, graphs=with_graphs, **how)

    def prompts(self) -> list[list[int]]:
        """Random tokens, each prompt four times."""
        chance, size = random.Random(0), self.model.config.vocab_size - 1
        distinct = [
            [chance.randrange(size) for _ in range(20 + place % 70)]
            for place in range(self.rows // 4)
        ]
        return [prompt for prompt in distinct for _ in range(4)]

    def ways(self, *settings: tuple[float, float, int]) -> list[Sampling]:
        """How each row is drawn; a few rows are much longer than the others."""
        lengths = [self.longest if row % 16 == 0 else 2 + row % 40 for row in range(self.rows)]
        return [
            Sampling(*settings[row % len(settings)], min(length, self.longest))
            for row, length in enumerate(lengths)
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny model, few rows")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    tokenizer = loading.load_tokenizer(loading.PACKAGED_MODEL)
    model = random_model("tiny" if args.small else "small", tokenizer).eval().to(args.device)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(2.0)  # else all tokens are about as likely
    size = (16, 40) if args.small else (256, 192)
    work = Work(model, tokenizer.eos_token_id, *size)
    if args.device == "cpu":
        graphs.obstacle = graphs.network_obstacle
    failed = False
    for check in (*tokens(work), *half(work), draws(work), preflight(args.small)):
        failed |= not check.is_right
        fault = "" if check.is_right else " FAILED"
        print(f"{check.name}: {check.value} (wanted {check.wanted}){fault}", flush=True)
    return 1 if failed else 0


# --------------------------------------------------------------------------------------------------
# The checks
# --------------------------------------------------------------------------------------------------
def tokens(work: Work) -> Iterator[Check]:
    """Tokens in fp32, greedy and drawn by the same numbers, before and after the weights change."""
    kept = graphs.Graphs(lambda line: print(line, flush=True))
    seeds = [*range(work.rows)]
    ways: dict[str, list[Sampling]] = {
        "greedy": work.ways((0.0, 1.0, 0)),
        "sampled": work.ways((1.0, 1.0, 0), (0.7, 1.0, 0)),
        "with top-p and top-k": work.ways((1.0, 0.9, 0), (1.3, 1.0, 20), (0.8, 0.95, 50)),
    }
    for turn in ("", ", other weights"):
        for name, rows in ways.items():
            how: dict[str, Any] = {} if name == "greedy" else {"seeds": seeds}
            loop, ours = work.drawn(rows, None, **how).ids, work.drawn(rows, kept, **how).ids
            same = sum(a == b for a, b in zip(loop, ours, strict=True)) / work.rows
            yield Check(
                f"fp32 rows alike, {name}{turn}", f"{same:.1%}", f"{SAME:.0%}", same >= SAME
            )
        with torch.no_grad():
            work.model.transformer.h[0].mlp.c_fc.weight.mul_(1.2)
    yield speed(work, kept)


def speed(work: Work, kept: graphs.Graphs) -> Check:
    """Milliseconds a token of all rows; on a CPU they mean nothing."""
    rows = [Sampling(1.0, max_completion_length=work.longest)] * work.rows
    seconds = []
    for how in (None, kept, kept):  # graphs are recorded the first time
        began = time.perf_counter()
        work.drawn(rows, how)
        seconds.append(1000 * (time.perf_counter() - began) / work.longest)
    loop, _, ours = seconds
    return Check("fp32 ms a token, loop and graphs", f"{loop:.2f}, {ours:.2f}", "any", True)


def half(work: Work) -> Iterator[Check]:
    """Log-probs of steps in bf16, beside the network's own of each row alone."""
    device = work.model.device
    rows, kept = work.ways((1.0, 1.0, 0)), graphs.Graphs(lambda line: print(line, flush=True))
    largest = 0.0
    with torch.autocast(device.type, torch.bfloat16), torch.no_grad():
        drawn = work.drawn(rows, kept, keep_logps=True)
        assert drawn.logps is not None
        for row in range(0, work.rows, max(1, work.rows // 32)):
            prompt, ids = work.prompts()[row], drawn.ids[row]
            logits = work.model(torch.tensor([prompt + ids], device=device)).logits
            logps = logits[0, len(prompt) - 1 : -1].float().log_softmax(-1).cpu()
            own = logps.gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1)
            largest = max(largest, (own - torch.tensor(drawn.logps[row])).abs().max().item())
    yield Check("bf16 log-prob gap, nats", f"{largest:.3f}", f"at most {GAP}", largest <= GAP)


def draws(work: Work) -> Check:
    """First and second tokens of many rows of one prompt, by the device's own numbers: chi-squared."""
    count = 64 * work.rows
    prompt, kept = work.prompts()[0], graphs.Graphs()
    options = GenerationConfig(pad_token_id=work.end, eos_token_id=[])
    way = Sampling(1.0, top_k=20, max_completion_length=2)
    with torch.no_grad():
        logits = work.model(torch.tensor([prompt], device=work.model.device)).logits[0, -1]
    top = logits.float().topk(20)
    probs = dict(zip(top.indices.tolist(), top.values.softmax(-1).tolist(), strict=True))
    some = [prompt] * count, [way] * count, options
    found = decode(work.model, *some, graphs=kept, batch_size=work.rows).ids
    firsts = [ids[0] for ids in found]
    statistic = sum(
        (firsts.count(token) - count * part) ** 2 / (count * part) for token, part in probs.items()
    )
    bound = 19 + 4 * math.sqrt(2 * 19)
    is_right = {*firsts} <= {*probs} and statistic < bound
    return Check("chi-squared of draws", f"{statistic:.1f}", f"below {bound:.1f}", is_right)


def preflight(small: bool) -> Check:
    """A trainer's own comparison of sampler and scores, with graphs."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of("graphs", DEFAULTS["tiny" if small else "small"], 1, Path(folder))
        parity = measure_parity(trainer, mixed_length_prompts(trainer) * 2)
        tolerance = preflight_tolerance(trainer)
    faults = parity.faults(tolerance) + ([] if trainer.graphs else ["no graphs were used"])
    value = "; ".join(faults) or f"gap {parity.sampler_gap:.2g}"
    return Check("preflight", value, f"gaps below {tolerance:g}", not faults)


if __name__ == "__main__":
    sys.exit(main())
