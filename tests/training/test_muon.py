"""Muon beside AdamW: each takes the steps of its own weights, and a resumed run goes on with both."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim import AdamW, Muon

from rookworld_rlvr.training.muon import MuonWithAdamW

from ..support import recipe

Build = Callable[..., Any]


def test_the_steps_are_those_of_torch_s_two_optimisers() -> None:
    """AdamW's at a fifth of the rate. torch computes Muon's in bfloat16, so to within its rounding."""
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(size)) for size in ((6, 4), (4, 6), (5, 6), (4,))]
    alike = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
    options: Any = {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6}
    groups = [{"params": weights[:3], "weight_decay": 0.3}, {"params": weights[3:]}]
    both = MuonWithAdamW(groups, {id(weight) for weight in weights[:2]}, **options)
    muon = Muon(alike[:2], lr=0.01, weight_decay=0.3, adjust_lr_fn="match_rms_adamw")
    rest = [{"params": alike[2:3], "weight_decay": 0.3}, {"params": alike[3:]}]
    adamw = AdamW(rest, **options | {"lr": 0.002})
    for _ in range(3):
        for weight, other in zip(weights, alike, strict=True):
            weight.grad = torch.randn_like(weight)
            other.grad = weight.grad.clone()
        for optimizer in (both, muon, adamw):
            optimizer.step()
            for group in optimizer.param_groups:
                group["lr"] /= 2  # as schedulers do
    for weight, other, part in zip(weights, alike, (1, 1, 0, 0), strict=True):
        torch.testing.assert_close(weight, other, atol=part * 2e-4, rtol=0)


def test_a_resumed_run_is_the_run_that_goes_on(build: Build, tmp_path: Path) -> None:
    options = {"muon": True, "max_steps": 2, "save_steps": 1, "learning_rate": 1e-3}
    options |= {"load_best_model_at_end": False, "soft_moves_coef": 1.0}
    whole, resumed = build(**options), build(**options)
    start = {name: weight.detach().clone() for name, weight in whole.model.named_parameters()}
    whole.train()
    muons, *others = whole.optimizer.param_groups
    names = {id(weight): name for name, weight in whole.model.named_parameters()}
    layers = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}
    assert {
        names[id(w)].split(".", 3)[3].removesuffix(".weight") for w in muons["params"]
    } == layers
    assert sum(len(group["params"]) for group in (muons, *others)) == len(names)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    for (name, weight), other in zip(
        whole.model.named_parameters(), resumed.model.parameters(), strict=True
    ):
        assert torch.equal(weight, other) and not torch.equal(weight, start[name])


def test_supervised_training_takes_the_same_key(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = f"--output_dir {run} --muon true --max_steps 2 --save_steps 1 --heldout_rows 2"
    recipe("sft").main(
        [*words.split(), *"--per_device_train_batch_size 2 --report_to none".split()]
    )
    steps = torch.load(run / "checkpoint-2" / "optimizer.pt", weights_only=True)
    by_muon = [state for state in steps["state"].values() if "momentum" in state]
    assert len(by_muon) == 4 * 4  # four matrices in each of the packaged model's layers
    assert len(steps["state"]) > len(by_muon)
