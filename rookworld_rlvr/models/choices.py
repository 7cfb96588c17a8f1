"""Log-probs of many short continuations of one text, from one forward.

The continuations form a tree: those that begin alike share their first tokens. Each row holds a text and
the inner nodes of its tree, and each node attends to the text and to its own ancestors only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from .decoding import on_device

Tokens = Sequence[int]


def choice_logps(
    network: Any,
    contexts: Sequence[Tokens],
    choices: Sequence[Sequence[Tokens]],
    temperatures: Sequence[float],
) -> list[torch.Tensor]:
    """Log-prob, in nats, of each choice after its context: the sum over the choice's tokens.

    Args:
        network: A causal language model with transformers' ``sdpa`` attention; it may be wrapped.
        contexts: `B` texts as tokens, none of them empty.
        choices: For each context its choices as tokens, none of them empty.
        temperatures: At which each context's choice is made; logits are divided by them.

    Returns:
        `B` tensors ``(M,)``, as many log-probs as the context has choices, with their graph.
    """
    trees = [_tree(of_context) for of_context in choices]
    pairs = [*zip(contexts, trees, strict=True)]
    wide = max(len(context) + len(nodes) - 1 for context, (nodes, _) in pairs)
    deep = max(len(nodes) for nodes, _ in trees)
    device = next(network.parameters()).device
    ids = torch.zeros(len(pairs), wide, dtype=torch.long)
    positions = torch.zeros_like(ids)
    mask = torch.eye(wide, dtype=torch.bool).repeat(len(pairs), 1, 1)
    for row, (context, (nodes, _)) in enumerate(pairs):
        # Padding is on the left, so that all nodes are in the last columns.
        start, root = wide - len(context) - len(nodes) + 1, wide - len(nodes)
        ids[row, start:] = torch.tensor([*context, *(node[-1] for node in nodes[1:])])
        positions[row, start:] = torch.tensor(
            [*range(len(context)), *(len(context) - 1 + len(n) for n in nodes[1:])]
        )
        causal = torch.ones(len(context), len(context), dtype=torch.bool).tril()
        mask[row, start : root + 1, start : root + 1] |= causal
        mask[row, root + 1 :, start : root + 1] = True
        at = {node: root + place for place, node in enumerate(nodes)}
        for node in nodes[2:]:
            for depth in range(1, len(node)):
                mask[row, at[node], at[node[:depth]]] = True
    logits = network(
        input_ids=on_device(ids, device),
        position_ids=on_device(positions, device),
        attention_mask=on_device(mask.unsqueeze(1), device),
        logits_to_keep=deep,
        use_cache=False,
    ).logits
    heat = on_device(torch.tensor(temperatures), device).view(-1, 1, 1)
    logps = (logits[:, -deep:].float() / heat).log_softmax(-1)  # (B, deep, V)
    counts = [len(of_context) for of_context in choices]
    first = [0, *accumulate(counts)]
    steps = [
        (first[row] + number, row, deep - len(nodes) + node, token)
        for row, (nodes, tree) in enumerate(trees)
        for number, node, token in tree
    ]
    choice, rows, nodes_of, tokens = on_device(torch.tensor(steps).T.contiguous(), device)
    total = logps.new_zeros(sum(counts)).index_add(0, choice, logps[rows, nodes_of, tokens])
    return list(total.split(counts))


@torch.no_grad()
def text_logps(
    network: Any,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[str, Sequence[str]]],
    *,
    batch_size: int = 64,
    progress: Callable[[int], object] | None = None,
) -> list[list[float]]:
    """Log-prob, in nats, of each choice after its text, at temperature 1.

    Args:
        network: See `choice_logps`; in evaluation mode or without dropout.
        tokenizer: Texts and choices are tokenised apart, so a choice begins where tokens do: with a
            space.
        pairs: `N` texts, each with its choices.
        batch_size: Texts that are read at once.
        progress: Called with the number of texts of each batch.

    Returns:
        `N` lists, as long as the text has choices.
    """
    found: list[list[float]] = []
    for start in range(0, len(pairs), batch_size):
        some = pairs[start : start + batch_size]
        texts = [tokenizer(text)["input_ids"] for text, _ in some]
        choices = [tokenizer([*of], add_special_tokens=False)["input_ids"] for _, of in some]
        logps = choice_logps(network, texts, choices, [1.0] * len(some))
        found += [one.tolist() for one in logps]
        if progress is not None:
            progress(len(some))
    return found


def _tree(choices: Sequence[Tokens]) -> tuple[list[tuple[int, ...]], list[tuple[int, int, int]]]:
    """The inner nodes of a tree of choices, and each choice's steps through it.

    A node is what is written before it; the first is the context itself. A step is the choice's number,
    a node, and the token that is written there.

    >>> _tree([[7], [8, 1], [8, 2]])
    ([(), (8,)], [(0, 0, 7), (1, 0, 8), (1, 1, 1), (2, 0, 8), (2, 1, 2)])
    """
    nodes: dict[tuple[int, ...], int] = {}
    steps = [
        (number, nodes.setdefault(tuple(choice[:depth]), len(nodes)), token)
        for number, choice in enumerate(choices)
        for depth, token in enumerate(choice)
    ]
    return list(nodes), steps
