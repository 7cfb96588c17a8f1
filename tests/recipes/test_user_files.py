"""Rewards, tasks, suites and trainers in files of the user's own."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chess
import pytest

from rookworld_rlvr.cli.dry_run import KINDS, _answers, dry_run_text
from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.data.loading import DataArguments, load_data
from rookworld_rlvr.evaluation import suite
from rookworld_rlvr.evaluation.registry import SUITE_HEADLINES
from rookworld_rlvr.rewards.guard import checked, placed_errors
from rookworld_rlvr.rewards.registry import check_reward_specs, get_reward_funcs
from rookworld_rlvr.tasks.registry import TASKS
from rookworld_rlvr.training.own import trainer_class

from ..docs.pages import fences
from ..rows import column
from ..support import NOT_KEPT, REPOSITORY, history, script

SMALL = """
    --max_steps 1 --per_device_train_batch_size 16 --heldout_rows 8 --max_completion_length 16
    --max_rows 300 --synthetic_rows 20 --other_task_rows 4 --eval_steps 1 --save_steps 1
    --logging_steps 1 --report_to none --use_cpu --output_dir run
""".split()
ENVIRONMENT = "A: 8/8/8/8/8/4k3/8/4K3 w - - 0 1+e1d1+e1d1+"
POLICY = "P: 8/8/8/8/8/4k3/8/4K3 w - - 0 1"

REWARDS = '''
def short(completions, length=20, **columns):
    """1 for an answer of up to `length` characters."""
    return [float(len(text) <= length) for text in completions]

def broken(completions, **columns):
    return [1 / 0 for _ in completions]

async def slow(prompts, completions, **columns):
    return [0.5 for _ in prompts]

async def logging(completions, trainer_state, log_metric, log_extra, **columns):
    log_metric("length", len(completions[0]))
    log_extra("length", [len(text) for text in completions])
    return [0.25 if trainer_state.global_step == 0 else 0.75 for _ in completions]

def fussy(text):
    return 1.0

def of_policy(prompts, completions, log_extra=None, **columns):
    assert all(prompt.startswith("P:") for prompt in prompts), prompts
    if log_extra is not None:
        log_extra("length", [len(text) for text in completions])
    return [-len(text) / 10 for text in completions]

def in_chess(completions, **columns):
    import chess
    return [chess.Move.from_uci(text) for text in completions]  # in_chess fails

def reading(completions, **columns):
    from rookworld_rlvr.tasks.registry import POLICY
    return [POLICY.parse_answer("", text) for text in completions]  # reading fails

def one(completions, **columns):
    return [1.0]

def array(completions, **columns):
    import numpy
    return numpy.ones(len(completions))

def inf(completions, **columns):
    return [float("inf")] * len(completions)

def wants(completions, answer, **columns):
    return [0.0] * len(completions)
'''

TASK = '''
from rookworld_rlvr.common.errors import NotationError
from rookworld_rlvr.tasks import rules
from rookworld_rlvr.tasks.task import Task
from rookworld_rlvr.tasks.text import clean, parse_fen

class Turn(Task):
    """`T: FEN`, and whose move it is."""

    name = "turn"
    prefix = "T:"
    ability = "tells whose move it is (`T:` prompts)"

    def split(self, row):
        fen, _, side = row.removeprefix(self.prefix).rpartition(" ")
        return f"{self.prefix} {parse_fen(fen)}", f" {self.parse_answer('', side)}"

    def parse_answer(self, prompt, completion):
        if clean(completion) not in ("w", "b"):
            raise NotationError("neither w nor b", completion)
        return clean(completion)

    def truth(self, prompt, values=None):
        return f" {self.position(prompt).fen.split()[1]}"

    def score(self, prompt, completion, values=None):
        read = self.is_readable(prompt, completion)
        right = read and self.parse_answer(prompt, completion) == clean(self.truth(prompt))
        return {"format": float(read), "exact": float(right)}

class Half(Task):
    name, prefix, ability = "half", "H:", "nothing"
'''

SUITE = '''
from rookworld_rlvr.evaluation.suite import SuiteMetric, Suite

class Starts(Suite):
    """Whether the first move is legal."""

    name = "starts"
    version = 1
    metrics = {"readable": SuiteMetric("share")}
    headline = "readable"

    def __init__(self, suite_rows, suite_seed):
        start = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
        super().__init__({"start": start}, suite_seed)

    def positions(self):
        return dict(self.items)

    def judged(self, model):
        answers = model.answers([f"P: {fen:<88}" for fen in self.items.values()])
        for item, answer in zip(self.items, answers):
            yield item, {"readable": float(" M:" in answer)}, ()
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in (("rewards", REWARDS), ("task", TASK), ("suite", SUITE)):
        (tmp_path / f"my_{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for names in (TASKS, suite._OWN, SUITE_HEADLINES):
        for name in ("turn", "starts", "others"):
            names.pop(name, None)


def test_a_reward_has_its_options_its_tasks_and_a_dashboard_s_name() -> None:
    specs = [{"name": "my_rewards.py:short", "length": 4}, {"name": "my_rewards.py:one"}]
    specs.append({"name": "my_rewards.py:slow", "tasks": ["policy"]})
    short, _, slow = get_reward_funcs(specs)
    assert short.__name__ == "short"
    assert short(prompts=[ENVIRONMENT] * 2, completions=["abc", "abcde"], fen=[1, 2]) == [1.0, 0.0]
    chat = [[{"role": "user", "content": prompt}] for prompt in (ENVIRONMENT, POLICY)]
    assert short(prompts=chat, completions=["abc", "abcde"]) == [1.0, 0.0]
    with pytest.raises(StopIteration) as done:
        slow(prompts=[ENVIRONMENT, POLICY], completions=["a", "b"]).send(None)
    assert done.value.value == [None, 0.5]


def test_a_reward_is_called_for_the_rows_of_its_tasks_only() -> None:
    (reward,) = get_reward_funcs([{"name": "my_rewards.py:of_policy", "tasks": ["policy"]}])
    logged: dict[str, list[int | None]] = {}
    answers: dict[str, list[str]] = {"completions": ["a", "bc", "d"]}
    prompts = [ENVIRONMENT, POLICY, ENVIRONMENT]
    assert reward(prompts=prompts, **answers, log_extra=logged.__setitem__) == [None, -0.2, None]
    assert logged == {"length": [None, 2, None]}
    assert reward(prompts=[ENVIRONMENT] * 3, **answers) == [None] * 3


@pytest.mark.parametrize("name", ["in_chess", "reading"])
def test_an_exception_is_placed_in_the_user_s_file(name: str) -> None:
    (reward,) = get_reward_funcs([f"my_rewards.py:{name}"])
    (line,) = [n for n, text in enumerate(REWARDS.split("\n"), 1) if f"# {name} fails" in text]
    said = rf"the reward x raised \w+Error: .*'zz' \(my_rewards.py, line {line}\)"
    with pytest.raises(RookWorldError, match=said), placed_errors("x"):
        reward(prompts=[POLICY], completions=["zz"])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"name": "my_reward.py:short"}, "no file 'my_reward.py'; did you mean my_rewards.py"),
        ({"name": "my_rewards.py:shrt"}, "my_rewards.py has no 'shrt'; did you mean short"),
        ({"name": "two_names.py:zeros"}, "two_names.py has no 'zeros'; the only choice is length"),
        ({"name": "no_such_module:short"}, "no_such_module could not be run: ModuleNotFoundError"),
        ({"name": "no_python.py:short"}, "no_python.py could not be run: SyntaxError"),
        ({"name": "my_rewards.py:fussy"}, "my_rewards.py:fussy takes (text); TRL passes all"),
        ({"name": "my_rewards.py:short", "lenght": 3}, "no option 'lenght'; did you mean length"),
        ({"name": "my_rewards.py:short", "tasks": ["polic"]}, "task; did you mean policy"),
        ({"name": "my_rewards.py:logging", "log_metric": 1}, "no option 'log_metric'"),
    ],
)
def test_what_is_wrong_with_a_reward_is_one_sentence(spec: dict[str, str], said: str) -> None:
    Path("no_python.py").write_text("import math\n\nsurely not Python\n")
    Path("two_names.py").write_text("import re\nfrom math import pi\ndef length(**_): return []\n")
    (fault,) = check_reward_specs([spec])
    assert said in fault


def test_arrays_are_taken_and_infinity_is_not() -> None:
    names = ("my_rewards.py:array", "my_rewards:inf", "my_rewards:wants")
    array, inf, wants = get_reward_funcs([{"name": name} for name in names])
    assert array(prompts=[ENVIRONMENT], completions=["a"]) == [1.0]
    said = "the reward wants cannot be called: .* 'answer'; it gets prompts"
    with pytest.raises(RookWorldError, match=said), placed_errors("wants"):
        wants(prompts=[ENVIRONMENT], completions=["a"], fen=["8/8"])
    (fault,) = checked("inf", inf(prompts=[ENVIRONMENT], completions=["a"]), 1)
    assert "returned inf; return finite numbers or None" in str(fault)


def test_a_dry_run_calls_rewards_as_training_does() -> None:
    data = load_data(DataArguments(dataset_name="", synthetic_rows=30, tasks=["environment"]))
    text = dry_run_text(data, [{"name": "my_rewards.py:slow"}, {"name": "my_rewards.py:logging"}])
    assert "slow 0.500  logging 0.250" in text and "the reward slow is 0.500 for all" in text
    text = dry_run_text(data, [{"name": "my_rewards.py:short", "length": 40}])
    assert "it teaches nothing" not in text
    with pytest.raises(RookWorldError, match="the reward one returned 1 rewards for 9 completions"):
        dry_run_text(data, [{"name": "my_rewards.py:one"}])


def test_a_dry_run_names_a_reward_that_cannot_tell_a_task_s_answers_apart() -> None:
    front = next(text for _, text in fences(REPOSITORY / "README.md") if "def develops" in text)
    front += "\n\ndef readable(completions, task, **columns):\n"
    front += "    pairs = zip(completions, task, strict=True)\n"
    front += "    return [TASK[kind](text) for text, kind in pairs]\n\n"
    front += (
        'TASK = {"policy": len, "environment": lambda text: 1 if text.count("+") == 3 else None}\n'
    )
    Path("front.py").write_text(front)
    readable = (
        "warning: the reward readable is 1.000 for all 6 environment answers that it judges, so it "
        "cannot tell them apart; unless that is meant, give it tasks: [policy]"
    )
    data = load_data(DataArguments("rookworld-nano-openings", max_rows=300, synthetic_rows=30))
    said = (
        "warning: the reward develops is 0.000 for all 9 environment answers, right, wrong and "
        "unreadable, so it cannot tell them apart; unless that is meant, give it tasks: [policy]"
    )
    for spec, warnings in (
        ({"name": "front.py:develops"}, [said]),
        ({"name": "front.py:develops", "tasks": ["policy"]}, []),
        ({"name": "environment_exact"}, []),
        ({"name": "front.py:readable"}, [readable]),
    ):
        text = dry_run_text(data, [{"name": "policy_best_move"}, spec])
        paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
        assert [part for part in paragraphs if part.startswith("warning")] == warnings


def test_a_step_with_own_rewards_which_does_not_go_on_with_edited_ones(folder: Path) -> None:
    rewards = [{"name": "my_rewards.py:short", "weight": 0.2}, {"name": "graduated"}]
    rewards.append({"name": "my_rewards.py:of_policy", "weight": 0.1, "tasks": ["policy"]})
    words = [*SMALL, "--rewards", json.dumps(rewards)]
    done = script("grpo.py", *words, cwd=folder)
    answers = [json.loads(row) for row in (folder / "run/heldout_answers_after.jsonl").open()]
    lengths = [len(answer["completion"]) for answer in answers if answer["task"] == "policy"]
    found = json.loads((folder / "run/results.json").read_text())["heldout"]["rewards/of_policy"]
    assert found["n"] == len(lengths) > 0
    assert found["after"] == pytest.approx(-sum(lengths) / len(lengths) / 10)
    rounded = f"{found['after']:.3f}"
    card = (folder / "run/README.md").read_text()
    for text, start in ((done.stdout, "rewards/of_policy"), (card, "| `rewards/of_policy` |")):
        assert any(line.startswith(start) and rounded in line for line in text.splitlines())
    assert sum("rewards/short/mean" in log for log in history(folder / "run")) == 1
    digest = hashlib.sha256(REWARDS.encode()).hexdigest()
    resolved = (folder / "run" / "resolved_config.yaml").read_text()
    assert f"# sha256 of my_rewards.py: {digest}" in resolved
    assert "name: my_rewards.py:short" in resolved
    (folder / "my_rewards.py").write_text(f"{REWARDS}# edited\n")
    words += "--resume_from_checkpoint true --max_steps 2".split()
    done = script("grpo.py", *words, cwd=folder, code=2)
    assert "- sha256 of my_rewards.py: was " in done.stderr


def turns(folder: Path) -> list[str]:
    """The words of a step of a task of one's own, whose rows and recipe are written to a folder."""
    boards = [f"{'8/' * row}k1K5{'/8' * (7 - row)}" for row in range(8)]
    rows = [f"T: {board} {turn} - - 0 1 {turn}" for board in boards for turn in "wb"]
    (folder / "rows.txt").write_text("\n".join(rows))
    (folder / "recipe.yaml").write_text("model_name_or_path: rookworld-nano\nbf16: false\n")
    words = "--config recipe.yaml --tasks_from my_task.py:Turn --tasks turn --dataset_name rows.txt"
    words += " --heldout_share 0.4 --synthetic_rows 0 --rewards turn_exact"
    return [*SMALL, *words.split()]


def test_a_step_of_a_task_of_one_s_own(folder: Path) -> None:
    done = script("grpo.py", *turns(folder), cwd=folder)
    assert "turn/exact" in done.stdout
    logs = history(folder / "run")
    assert sum("rewards/turn_exact/mean" in log for log in logs) == 1
    assert sum("eval_turn/exact" in log for log in logs) == 2


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("tasks_from", "my_task.py:Turm", "my_task.py has no 'Turm'; did you mean Turn"),
        ("tasks_from", "my_task.py:Half", "Half does not define parse_answer, score, split"),
        ("tasks_from", "my_task.py:rules", "rules is not a subclass of tasks.task.Task"),
        ("suites_from", "my_task.py:Turn", "is not a subclass of evaluation.suite.Suite"),
        ("trainer_from", "my_task.py:Turn", "not a subclass of training.trainer.RookWorldGRPO"),
    ],
)
def test_what_is_no_task_suite_or_trainer(folder: Path, key: str, value: str, said: str) -> None:
    done = script("grpo.py", *SMALL, f"--{key}", value, "--dry_run", cwd=folder, code=2)
    assert said in done.stderr and "1 fault" in done.stderr


TRAINER = """
import torch
from rookworld_rlvr.training.trainer import RookWorldGRPOTrainer

class Seven(RookWorldGRPOTrainer):
    calls = 0

    def loss_terms(self, batch, scores):
        assert scores.logps.shape == batch["completion_ids"].shape
        assert scores.counted.all()  # also the rows of groups without signal
        self.calls += 1
        return {**super().loss_terms(batch, scores), "seven": torch.tensor(7.0)}

    def save_more(self, folder):
        super().save_more(folder)
        (folder / "seven").write_text(str(self.calls))

    def load_more(self, folder):
        super().load_more(folder)
        if folder is not None:
            self.calls = int((folder / "seven").read_text())
"""


def test_a_trainer_of_one_s_own_adds_its_term(folder: Path, build: Callable[..., Any]) -> None:
    (folder / "my_trainer.py").write_text(TRAINER)
    losses = []
    for name in (None, "my_trainer.py:Seven"):
        kind = trainer_class(name)
        trainer = build(kind=kind, eval_strategy="no", preflight=False, **NOT_KEPT)
        trainer.train()
        losses.append(next(log["loss"] for log in trainer.state.log_history if "loss" in log))
    assert losses[1] - losses[0] == pytest.approx(7, abs=1e-4)


def test_a_run_of_a_trainer_of_one_s_own_goes_on_with_its_state(folder: Path) -> None:
    (folder / "my_trainer.py").write_text(TRAINER)
    words = "--trainer_from my_trainer.py:Seven --save_total_limit 9".split()
    script("grpo.py", *SMALL, *words, cwd=folder)
    script(
        *("grpo.py", *SMALL, *words, "--max_steps", "2", "--resume_from_checkpoint", "true"),
        cwd=folder,
    )
    kept = [(folder / "run" / f"checkpoint-{step}" / "seven").read_text() for step in (1, 2)]
    assert kept == ["1", "2"]
    logged = [log["loss/seven"] for log in history(folder / "run") if "loss/seven" in log]
    assert logged == pytest.approx([7, 7])
    resolved = (folder / "run" / "resolved_config.yaml").read_text()
    assert "# sha256 of my_trainer.py: " in resolved


def test_a_suite_of_one_s_own_is_run(folder: Path) -> None:
    words = "--suites_from my_suite.py:Starts --suites starts --output_file r.json".split()
    assert "starts" in script("evaluate.py", *words, cwd=folder).stdout
    assert '"readable"' in (folder / "r.json").read_text()
    other = (folder / "my_suite.py").read_text().replace('item, {"readable', 'item, {"readabel')
    (folder / "other.py").write_text(other.replace('"starts"', '"others"'))
    words = "--suites_from other.py:Starts --suites others".split()
    assert "did you mean readable?" in script("evaluate.py", *words, cwd=folder, code=2).stderr


def test_a_reward_that_fails_ends_with_one_message(folder: Path) -> None:
    done = script("grpo.py", *SMALL, "--rewards", '["my_rewards.py:broken"]', cwd=folder, code=2)
    assert "broken raised ZeroDivisionError: division by zero (my_rewards.py, line " in done.stderr


def test_a_dry_run_s_wrong_answer_is_wrong_here() -> None:
    """In a game, the right answer to the next row is often right in this one, too."""
    rows = []
    for best, first in (("e2e4", 50), ("e2e4", 60), ("d2d4", 50)):
        worst = {move.uci(): -at for at, move in enumerate(chess.Board().legal_moves)}
        row = {"prompt": f"P: {chess.STARTING_FEN}", "completion": ""}
        rows.append({**row, "action_values": column({**worst, best: first})})
    references = [TASKS["policy"].reference(row) for row in rows]
    assert len(set(references)) == 3
    answers = dict(_answers(TASKS["policy"], rows[0], rows))
    assert tuple(answers) == KINDS
    assert answers["reference"] == references[0] and answers["wrong"] == references[2]
