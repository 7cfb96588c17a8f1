"""How a trainer is put together: its model, its terms, what acts between its steps, its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from torch.utils.data import Sampler
from transformers import PreTrainedModel, TrainerCallback
from trl import GRPOTrainer

from ..common.errors import ConfigurationError
from ..models import gpt2
from ..models.loading import resolve_model_path
from ..rewards.guard import RewardGuard
from ..rewards.registry import open_rewards, with_functions
from ..tasks.task import Sampling
from .advantages import Baseline
from .arguments import arguments_of, choosing
from .checkpoints import WholeCheckpoints
from .clock import Clock
from .config import check_keywords
from .exchanged import sampler_starts
from .heldout import HeldoutTrainer, heldout_faults, without_evaluation
from .model_card import OwnCard
from .nonfinite import Nonfinite
from .preflight import Parity, PreflightCallback
from .rollouts import Rollouts
from .sampling import samplings_of
from .scoring import Scorer
from .step import Step

CONTROL_STATE = "control_state.json"  # in a checkpoint, what the run has learnt beside the weights


class RookWorldGRPOTrainer(OwnCard, WholeCheckpoints, HeldoutTrainer, Step):
    """`trl.GRPOTrainer`, corrected for GPT-2 and extended; it takes TRL's arguments.

    Its step is in `step.Step`. A term of your own overrides `loss_terms` in a subclass.

    Attributes:
        kl_beta: The first coefficient of the KL term; TRL's own `beta` is 0.
        prompt_sampler: Draws prompts from the training rows; None before training, and if TRL's does.
        preflight: The result of the preflight, which runs when training begins; None before.
        gradient_norm: Of the last backward pass; None before.
    """

    def __init__(
        self,
        model: str | PreTrainedModel,
        reward_funcs: Any = None,
        args: Any = None,
        **kwargs: Any,
    ) -> None:
        """Correct the model for GPT-2 (position ids, dropout, GELU) and add what the keys ask for.

        Without `reward_funcs` they are those of the arguments' `rewards`.

        Raises:
            ConfigurationError: A keyword that TRL's trainer does not take, such as `compute_metrics`.
        """
        check_keywords(GRPOTrainer, kwargs)
        if reward_funcs is None and getattr(args, "rewards", None):
            reward_funcs = open_rewards(args.rewards)
        heldout = kwargs.get("eval_dataset")
        if faults := heldout_faults(args, heldout):
            raise ConfigurationError(faults)
        is_skipped = heldout is None and (
            getattr(args, "eval_strategy", "no") != "no" or getattr(args, "eval_on_start", False)
        )
        if is_skipped:
            args = without_evaluation(args)
        self.reward_guard = RewardGuard()
        self.rollouts = Rollouts(rows=())
        if isinstance(model, str):
            model = resolve_model_path(model)
        reward_funcs = self.reward_guard.around(with_functions(reward_funcs))
        with sampler_starts(args, model):
            super().__init__(model, reward_funcs, args, **kwargs)
        self.kl_beta, self.beta = float(self.beta), 0.0  # type: ignore[has-type]
        self.keys = arguments_of(self.args)
        if isinstance(self.train_dataset, IterableDataset) and (faults := choosing(self.args)):
            raise ConfigurationError(faults)
        if faults := self._turn_faults():
            raise ConfigurationError(faults)
        self.sampling = Sampling(self.temperature, self.top_p, self.top_k or 0)
        self.task_samplings = samplings_of(self.args, self.sampling)
        self.prompt_sampler: Any = None
        self.sampled: Mapping[str, Mapping[str, Any]] = {}
        self.keeps_logps = False
        self.scores_all_rows = type(self).loss_terms is not Step.loss_terms
        self.preflight: Parity | None = None
        self.gradient_norm: Any = None
        for network in self.networks():
            gpt2.prepare_for_left_padding(network)
        self.clock = Clock(self)
        self.baseline = Baseline(
            self.keys,
            str(self.scale_rewards),
            self.multi_objective_aggregation != "sum_then_normalize",
        )
        self._add_terms()
        self.scorer = Scorer(self)
        self.nonfinite = None if self.args.fp16 else Nonfinite(self)
        for callback in self._callbacks():
            self.add_callback(callback)
        if is_skipped:
            said = (
                "no eval_dataset: nothing is evaluated, and the last weights are kept, not the best"
            )
            self.accelerator.print(said)

    def _turn_faults(self) -> list[str]:
        """What does not go with completions of several turns, or of the user's own making."""
        by_others = bool(self.tools or self.environment_factories or self.rollout_func is not None)
        given = {
            "zero_variance: teach": self.keys.zero_variance == "teach" and by_others,
            "task_sampling": self.keys.task_sampling is not None and bool(self.tools),
        }
        return [
            f"{key}: it does not go with tools, environments or a rollout_func, which make completions "
            "in turns of their own; leave either out"
            for key, is_on in given.items()
            if is_on
        ]

    def _add_terms(self) -> None:
        """Terms with rows or weights of their own, which are imported only where their keys are on."""
        self.kl = self.value_head = self.moves = self.kept = None
        if self.has_reference:
            from .kl_control import KLControl

            self.kl = KLControl(self)
        if self.keys.advantage_estimator == "gae":
            from .terms.values import ValueHead

            self.value_head = ValueHead(self)
        if self.keys.expected_score_coef or self.keys.soft_moves_coef:
            from .terms.moves import AllMoves

            self.moves = AllMoves(self)
        if self.keys.keep_coef:
            from .terms.kept import Kept

            self.kept = Kept(self)

    @property
    def _draws_prompts(self) -> bool:
        """Whether prompts are drawn by `prompt_sampler` and not by TRL."""
        keys = self.keys
        return bool(keys.task_phases or keys.sft_extra or keys.zero_variance == "resample")

    def _callbacks(self) -> list[TrainerCallback]:
        """What acts between steps, in this order."""
        found: list[TrainerCallback | None] = [self.clock, self.kl]
        if self._draws_prompts:
            from .prompt_sampler import EpochCallback

            found.append(EpochCallback(self))
        found.append(self.nonfinite)
        if self.keys.muon:
            from .muon import use_muon

            use_muon(self)
        self.averaging = self.guard = None
        if self.keys.start_share:
            from .weights import Averaging

            found.append(averaging := Averaging(self))
            self.averaging = averaging
        if self.keys.guard:
            from .weights import Guard

            found.append(guard := Guard(self))
            self.guard = guard
        if getattr(self.args, "preflight", True):
            found.append(PreflightCallback(self))
        return [callback for callback in found if callback is not None]

    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler:
        """Draw prompts by phases of tasks, or beside the batches, which TRL's sampler cannot."""
        if not self._draws_prompts:
            return super()._get_train_sampler(dataset)
        from .prompt_sampler import sampler_of

        self.prompt_sampler = sampler_of(self, self.train_dataset if dataset is None else dataset)
        return self.prompt_sampler

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        """Remember the gradient norm, so that a step that is not finite can be skipped."""
        self.gradient_norm = super()._get_grad_norm(*args, **kwargs)
        return self.gradient_norm

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Give a value head a parameter group of its own."""
        optimizer = super().create_optimizer(model)
        if self.value_head is not None:
            self.value_head.on_optimizer(optimizer, self.model if model is None else model)
        return optimizer

    def save_more(self, folder: Path) -> None:
        """Save what the run has learnt beside the weights with each checkpoint."""
        if not self.args.should_save:
            return
        state: dict[str, Any] = {"baseline_running": self.baseline.running}
        if self.kl is not None:
            state["kl"] = self.kl.controller.state()
        if self.nonfinite is not None:
            state |= self.nonfinite.state()
        (folder / CONTROL_STATE).write_text(json.dumps(state) + "\n")
        if self.value_head is not None:
            self.value_head.save_in(folder)

    def load_more(self, folder: Path | None) -> None:
        """Load what `save_more` saved, and remember where a run goes on."""
        self.heldout.resumed_at = None if folder is None else self.state.global_step
        if folder is None:
            return
        path = folder / CONTROL_STATE  # which a checkpoint of another trainer does not have
        state = json.loads(path.read_text()) if path.is_file() else {}
        self.baseline.running = dict(state.get("baseline_running", {}))
        if self.kl is not None and "kl" in state:
            self.kl.controller.load(state["kl"])
        if self.nonfinite is not None:
            self.nonfinite.load(state)
        if self.value_head is not None:
            self.value_head.load_from(folder)
