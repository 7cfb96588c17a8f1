"""Train a model for whole games on a CPU: what `rookworld-games` is made by.

    python benchmarks/pretrain.py --rows data/game_rows.parquet --start rookworld-nano \\
        --n_layer 8 --output_dir runs/games --steps 16000

The start gets a tokenizer none of whose tokens crosses a square, and more layers. Each step learns from
both tasks, in batches of rows of like length, by the loss of their answers. Policy rows are used once
for each of `--editions`: `M` is shuffled anew, and every second edition has the colours swapped. The
learning rate falls to 0 over the last fifth of the steps (`--decay`). A stopped run (SIGTERM) goes on
where it was; so does one that is given more steps.

`rookworld sft` does the same for fewer rows. For these it needs ten minutes until its first step, its
batches of like length hold one task only, and it computes in single precision. Here matrices are
multiplied in bfloat16; attention is not, as PyTorch's backward of it in bfloat16 takes three times as
long on a CPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import torch
from new_model import SQUARES, deepened, retokenised, train_tokenizer
from torch.nn.functional import cross_entropy
from transformers import AttentionInterface, PreTrainedTokenizerBase
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.pytorch_utils import Conv1D

from rookworld_rlvr.cli.run import run_cli
from rookworld_rlvr.data.loading import HELDOUT_SHARE, is_held_out
from rookworld_rlvr.models.loading import load_model, load_tokenizer
from rookworld_rlvr.tasks import positions
from rookworld_rlvr.tasks.policy import (
    PolicyTask,
    policy_reference,
    write_policy_answer,
    write_policy_prompt,
)
from rookworld_rlvr.tasks.registry import split_row
from rookworld_rlvr.tasks.text import END_OF_TEXT
from rookworld_rlvr.training.muon import MuonWithAdamW

POOL = 8192  # rows that are sorted by length together
WARMUP = 100


class Text(NamedTuple):
    """A row as it is learnt: the prompt is given, the answer is learnt."""

    prompt: str
    answer: str


class Tokens(NamedTuple):
    """Rows as tokens, one after the other.

    Attributes:
        ids: ``(all tokens,)``.
        starts: ``(rows + 1,)``, where each row starts in `ids`.
        answers: ``(rows,)``, how many tokens each prompt has.
    """

    ids: npt.NDArray[np.int16]
    starts: npt.NDArray[np.int64]
    answers: npt.NDArray[np.int64]

    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each row."""
        return np.diff(self.starts)


def main(argv: Sequence[str]) -> None:
    args = _arguments(argv)
    torch.set_num_threads(args.threads)
    random.seed(0)
    learnt, watched = read_rows(args.rows, args.editions)
    if not (args.output_dir / "tokenizer.json").exists():
        make_start(args, learnt)
    tokenizer = load_tokenizer(str(args.output_dir))
    train(args, *(_encoded(texts, tokenizer) for texts in (learnt, watched)))


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", type=Path, required=True, help="files of rows")
    parser.add_argument("--start", required=True, help="a GPT-2; its n_embd and n_head hold")
    parser.add_argument("--n_layer", type=int, default=8)
    parser.add_argument("--vocab_size", type=int, default=1024)
    parser.add_argument("--keep_tokenizer", action="store_true", help="that of the start")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--editions", type=int, default=4, help="of each policy row")
    parser.add_argument("--batch_tokens", type=int, default=6000)
    parser.add_argument("--policy_share", type=float, default=0.3, help="of a step's tokens")
    parser.add_argument("--learning_rate", type=float, default=3e-3, help="Muon's")
    parser.add_argument("--decay", type=float, default=0.2, help="share of steps in which it falls")
    parser.add_argument("--save_steps", type=int, default=250)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args(argv)


# --------------------------------------------------------------------------------------------------
# Rows
# --------------------------------------------------------------------------------------------------
def read_rows(paths: Iterable[Path], editions: int) -> tuple[dict[str, list[Text]], ...]:
    """Rows that `rookworld prepare` wrote, by task: those that are learnt, and some that are watched."""
    learnt: dict[str, list[Text]] = {"environment": [], "policy": []}
    watched: dict[str, list[Text]] = {"environment": [], "policy": []}
    for path in paths:
        for batch in pq.ParquetFile(path).iter_batches(columns=["text", "action_values"]):
            for row in batch.to_pylist():
                task, prompt, answer = split_row(row["text"])
                fen = prompt[3:].split("+")[0].strip()
                goal = watched if is_held_out(fen, HELDOUT_SHARE) else learnt
                if task == PolicyTask.name:
                    values = {item["move"]: item["cp"] for item in row["action_values"]}
                    number = 1 if goal is watched else editions
                    goal[task] += [policy_text(fen, values, index) for index in range(number)]
                else:
                    goal[task].append(Text(prompt, answer))
    return learnt, watched


def policy_text(fen: str, values: dict[str, int], edition: int) -> Text:
    """A policy row whose `M` is shuffled by the edition; odd ones have the colours swapped."""
    if edition % 2:
        fen = positions.mirrored(fen)
        values = {positions.mirrored_move(move): value for move, value in values.items()}
    answer = policy_reference(fen, values, random.Random(f"{fen} {edition}"))
    return Text(write_policy_prompt(fen), write_policy_answer(answer))


def make_start(args: argparse.Namespace, learnt: dict[str, list[Text]]) -> None:
    """Write the start's weights with more layers, and with a tokenizer of these rows or its own."""
    if args.keep_tokenizer:
        model, tokenizer = load_model(args.start), load_tokenizer(args.start)
    else:
        tokenizer = _new_tokenizer(args, learnt)
        model = retokenised(args.start, tokenizer)
    model = deepened(model, args.n_layer)
    model.save_pretrained(args.output_dir)
    tokenizer.save_pretrained(args.output_dir)
    print(f"{args.output_dir}: {model.num_parameters():,} parameters, {len(tokenizer):,} tokens")


def _new_tokenizer(
    args: argparse.Namespace, learnt: dict[str, list[Text]]
) -> PreTrainedTokenizerBase:
    sample = [
        text for texts in learnt.values() for text in random.sample(texts, min(len(texts), 20_000))
    ]
    return train_tokenizer(
        (text.prompt + text.answer + END_OF_TEXT for text in sample), args.vocab_size, SQUARES
    )


def _encoded(
    by_task: dict[str, list[Text]], tokenizer: PreTrainedTokenizerBase
) -> dict[str, Tokens]:
    return {task: encode(texts, tokenizer) for task, texts in by_task.items()}


def encode(
    texts: Sequence[Text], tokenizer: PreTrainedTokenizerBase, block: int = 10_000
) -> Tokens:
    """Rows as tokens, each with end-of-text."""
    core: Any = tokenizer.backend_tokenizer
    ids, lengths, answers = [], [], []
    for first in range(0, len(texts), block):
        part = texts[first : first + block]
        encodings = core.encode_batch([text.prompt + text.answer + END_OF_TEXT for text in part])
        for text, encoding in zip(part, encodings, strict=True):
            ids.append(np.array(encoding.ids, dtype=np.int16))
            lengths.append(len(encoding.ids))
            answers.append(encoding.char_to_token(len(text.prompt)))
    return Tokens(np.concatenate(ids), np.cumsum([0, *lengths]), np.array(answers))


def batches(rows: Tokens, most: int, longest: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """Rows of like length, epoch after epoch.

    Args:
        rows: Of one task.
        most: Tokens of a batch, with its padding.
        longest: Longer rows are left out.
        seed: Same seed, same batches.

    Yields:
        ``(B,)`` numbers of rows.
    """
    lengths = rows.lengths()
    usable = np.flatnonzero(lengths <= longest)
    for epoch in itertools.count():
        rng = np.random.default_rng([seed, epoch])
        order = rng.permutation(usable)
        for first in range(0, len(order), POOL):
            pool = order[first : first + POOL]
            found = _cut(pool[np.argsort(lengths[pool], kind="stable")], lengths, most)
            for index in rng.permutation(len(found)):
                yield found[index]


def _cut(
    ordered: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], most: int
) -> list[npt.NDArray[np.int64]]:
    """Cut rows, the shortest first, so that each part has at most so many tokens when it is padded."""
    found, end = [], len(ordered)
    while end:
        count = max(1, most // int(lengths[ordered[end - 1]]))
        start = max(end - count, 0)
        found.append(ordered[start:end])
        end = start
    return found


# --------------------------------------------------------------------------------------------------
# Training
# --------------------------------------------------------------------------------------------------
def attention_in_single_precision(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention by PyTorch's kernel, in float32 also under autocast."""
    with torch.autocast("cpu", enabled=False):
        output, _ = sdpa_attention_forward(
            module, query.float(), key.float(), value.float(), mask, **options
        )
    return output.to(value.dtype), None


AttentionInterface.register("sdpa_float32", attention_in_single_precision)


def answer_logits(
    model: Any, rows: Tokens, batch: npt.NDArray[np.int64]
) -> tuple[torch.Tensor, ...]:
    """Logits of the answers' tokens, and these tokens.

    Returns:
        ``(N, V)`` and ``(N,)``, row after row, and how many each row has, ``(B,)``.
    """
    lengths = rows.lengths()[batch]
    ids = np.zeros((len(batch), lengths.max()), dtype=np.int64)
    is_answer = np.zeros(ids.shape, dtype=bool)
    for index, row in enumerate(batch):
        ids[index, : lengths[index]] = rows.ids[rows.starts[row] : rows.starts[row + 1]]
        is_answer[index, rows.answers[row] : lengths[index]] = True
    tokens, answered = torch.from_numpy(ids), torch.from_numpy(is_answer)
    with torch.autocast("cpu", torch.bfloat16):
        # Padding is on the right, where causal attention does not see it.
        hidden = model.transformer(input_ids=tokens, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[:, :-1][answered[:, 1:]])
    return logits.float(), tokens[answered], torch.from_numpy(lengths - rows.answers[batch])


def train(args: argparse.Namespace, learnt: dict[str, Tokens], watched: dict[str, Tokens]) -> None:
    """Train the model in the folder, from where its state is."""
    model: Any = load_model(str(args.output_dir), attn_implementation="sdpa_float32")
    optimizer = _optimizer(model, args.learning_rate)
    state_file = args.output_dir / "state.pt"
    first = 0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]

    longest = model.config.n_positions
    budgets = {
        "environment": int((1 - args.policy_share) * args.batch_tokens),
        "policy": int(args.policy_share * args.batch_tokens),
    }
    streams = {
        task: itertools.islice(batches(rows, budgets[task], longest, seed), first, None)
        for seed, (task, rows) in enumerate(learnt.items())
    }
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))

    def save(step: int) -> None:
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(content, state_file.with_suffix(".part"))
        state_file.with_suffix(".part").replace(state_file)
        save_half(model, args.output_dir)

    started = time.process_time()
    for step in range(first, args.steps):
        _set_rate(optimizer, args.learning_rate * rate_factor(step, args.steps, args.decay))
        _step(model, optimizer, {task: (learnt[task], next(streams[task])) for task in streams})
        done = step + 1
        if done % args.save_steps == 0 or done == args.steps or stopped:
            save(done)
            seconds = time.process_time() - started
            line = {"step": done, "cpu_minutes": round(seconds / 60, 1), **watch(model, watched)}
            print(json.dumps(line), flush=True)
        if stopped:
            return


def save_half(model: Any, folder: Path) -> None:
    """Save weights in float16, which halves the file; `config.json` says float32, in which they load."""
    own = model.state_dict(keep_vars=True)
    halves = {id(weight): weight.detach().half() for weight in own.values()}
    weights = {name: halves[id(weight)] for name, weight in own.items()}  # tied ones stay so
    model.save_pretrained(folder, state_dict=weights)


def rate_factor(step: int, steps: int, decay: float) -> float:
    """The learning rate's factor: it rises, stays, and falls to 0 over the last share of the steps."""
    return min(1.0, (step + 1) / WARMUP, (steps - step) / (decay * steps))


def _optimizer(model: Any, rate: float) -> MuonWithAdamW:
    matrices = {id(module.weight) for module in model.modules() if isinstance(module, Conv1D)}
    groups: list[dict[str, Any]] = [{"params": list(model.parameters())}]
    return MuonWithAdamW(groups, matrices, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)


def _set_rate(optimizer: MuonWithAdamW, rate: float) -> None:
    first = optimizer.param_groups[0]["lr"] or 1.0
    for group in optimizer.param_groups:
        group["lr"] *= rate / first


def _step(
    model: Any,
    optimizer: MuonWithAdamW,
    parts: dict[str, tuple[Tokens, npt.NDArray[np.int64]]],
) -> None:
    """Learn from a batch of each task; every token of an answer counts the same."""
    model.train()
    optimizer.zero_grad()
    total = sum(
        int((rows.lengths()[batch] - rows.answers[batch]).sum()) for rows, batch in parts.values()
    )
    for rows, batch in parts.values():
        logits, tokens, _ = answer_logits(model, rows, batch)
        loss: Any = cross_entropy(logits, tokens, reduction="sum") / total
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


@torch.no_grad()
def watch(model: Any, watched: dict[str, Tokens], most: int = 300) -> dict[str, float]:
    """For each task nats a token, and the shares of right tokens and whole answers in per cent.

    A token is predicted from the right ones before it.
    """
    model.eval()
    found: dict[str, float] = {}
    for task, rows in watched.items():
        chosen = np.arange(min(most, len(rows.answers)))
        chosen = chosen[rows.lengths()[chosen] <= model.config.n_positions]
        logits, tokens, counts = answer_logits(model, rows, chosen)
        is_right: Any = logits.argmax(-1) == tokens
        found[f"{task}_nats"] = round(float(cross_entropy(logits, tokens)), 4)
        found[f"{task}_tokens"] = round(100 * float(is_right.float().mean()), 2)
        whole = [bool(part.all()) for part in is_right.split(counts.tolist())]
        found[f"{task}_whole"] = round(100 * sum(whole) / len(whole), 1)
    return found


if __name__ == "__main__":
    run_cli(main)
