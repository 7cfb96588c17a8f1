from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel, PreTrainedTokenizerBase

from rookworld_rlvr.models.choices import choice_logps

from .test_architectures import tiny

CONTEXTS = [[5, 9, 2, 7], [3], [8, 8, 1, 4, 4, 6]]
CHOICES = [[[1], [2, 3], [2, 4], [2, 4, 5]], [[7]], [[9, 9, 9, 1], [9, 9, 9, 2], [9, 1], [0]]]


def one_by_one(network: Any) -> list[torch.Tensor]:
    found = []
    for context, choices in zip(CONTEXTS, CHOICES, strict=True):
        logps = []
        for choice in choices:
            logits = (
                network(input_ids=torch.tensor([[*context, *choice]])).logits[0].log_softmax(-1)
            )
            steps = enumerate(choice, start=len(context) - 1)
            logps.append(torch.stack([logits[place, token] for place, token in steps]).sum())
        found.append(torch.stack(logps))
    return found


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2"])
def test_each_choice_has_the_log_prob_of_its_own_row(
    family: str, random_gpt2: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    network = random_gpt2 if family == "gpt2" else tiny(family, tokenizer)
    network.eval()
    together, alone = choice_logps(network, CONTEXTS, CHOICES), one_by_one(network)
    gradients = []
    for logps in (together, alone):
        network.zero_grad()
        weighted = [(of_row * torch.arange(1.0, len(of_row) + 1)).sum() for of_row in logps]
        torch.stack(weighted).sum().backward()
        gradients.append([p.grad.clone() for p in network.parameters() if p.grad is not None])
    for ours, theirs in zip(together, alone, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


def test_the_exact_gradient_is_the_mean_of_sampled_ones(
    random_gpt2: GPT2LMHeadModel, capsys: pytest.CaptureFixture[str]
) -> None:
    """REINFORCE over a move of one token, 10,000 samples, with respect to the last hidden layer."""
    torch.manual_seed(0)
    moves, worth = [[token] for token in range(12)], torch.rand(12)
    weight = random_gpt2.transformer.ln_f.weight
    random_gpt2.eval()
    (logps,) = choice_logps(random_gpt2, [CONTEXTS[0]], [moves])
    (exact,) = torch.autograd.grad((logps.exp() * worth).sum(), weight)

    (logps,) = choice_logps(random_gpt2, [CONTEXTS[0]], [moves])
    scores = torch.stack([torch.autograd.grad(p, weight, retain_graph=True)[0] for p in logps])
    illegal = 1 - logps.exp().sum().detach()  # it gets 0, so that its samples add nothing
    chances = torch.cat([logps.exp().detach(), illegal.view(1)])
    drawn = torch.multinomial(chances, 10_000, replacement=True)
    samples = torch.cat([scores * worth.unsqueeze(1), torch.zeros(1, weight.numel())])[drawn]
    error = samples.std(0) / 100
    assert ((samples.mean(0) - exact).abs() < 5 * error + 1e-7).all()
    assert samples.var(0).sum() > 0, "the exact one has no variance"
