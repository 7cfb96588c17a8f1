"""A task of one file: the number of legal moves. The package knows nothing of it but its registry."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from rookworld_rlvr.cli.dry_run import dry_run_text
from rookworld_rlvr.common.errors import ConfigurationError, NotationError
from rookworld_rlvr.data.audit import AuditArguments, audit
from rookworld_rlvr.data.loading import DataArguments, load_data, require_truth
from rookworld_rlvr.data.synthesis import environment_prompts, environment_row
from rookworld_rlvr.rewards.registry import get_reward_funcs, known_rewards, tasks_of
from rookworld_rlvr.tasks import rules
from rookworld_rlvr.tasks.metrics import evaluate_completions, training_metrics
from rookworld_rlvr.tasks.registry import TASKS, register
from rookworld_rlvr.tasks.task import Sampling, Task
from rookworld_rlvr.tasks.text import clean, parse_fen
from rookworld_rlvr.tasks.types import Score, Values

from ..rows import START, write_jsonl
from ..scripted import Oracle

REWARDS = [{"name": "legal_moves_exact"}, {"name": "environment_exact"}]


class LegalMoves(Task):
    """``N: FEN``, and how many moves are legal there."""

    name = "legal_moves"
    prefix = "N:"
    ability = "counts legal moves (`N:` prompts)"
    sampling = Sampling(temperature=0.7, max_completion_length=1)

    def split(self, row: str) -> tuple[str, str]:
        fen, _, number = row.removeprefix(self.prefix).rpartition(" ")
        return f"{self.prefix} {parse_fen(fen)}", f" {self.parse_answer('', number)}"

    def parse_answer(self, prompt: str, completion: str) -> int:
        if not clean(completion).isdecimal():
            raise NotationError("no number of moves", completion)
        return int(clean(completion))

    def truth(self, prompt: str, values: Values | None = None) -> str:
        return f" {len(rules.legal_moves(self.position(prompt).fen))}"

    def score(self, prompt: str, completion: str, values: Values | None = None) -> Score | None:
        read = self.is_readable(prompt, completion)
        right = read and self.parse_answer(prompt, completion) == int(self.truth(prompt))
        return {"format": float(read), "exact": float(right)}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register(LegalMoves())
    yield
    del TASKS["legal_moves"]


def test_its_names_follow_from_it_and_are_taken() -> None:
    said = known_rewards()["legal_moves_exact"]
    assert (said.range, said.meaning) == ("[0, 1]", ""), "a task need not say what they mean"
    assert tasks_of(REWARDS) == {"legal_moves", "environment"}
    assert training_metrics()[-1] == "legal_moves/exact"
    with pytest.raises(ConfigurationError, match="is taken by 'legal_moves'"):
        register(LegalMoves())


def test_what_reads_all_tasks_reads_it(tmp_path: Path) -> None:
    """The report of loading, the dry run, the oracle, a picture and an audit, of rows of two tasks."""
    fens = [  # kings on the a-file, with five moves each
        f"{'8/' * above}K7{'/8' * (7 - above)} w - - 0 1".replace("8", f"{file}k{7 - file}", 1)
        for above in range(2, 7)
        for file in range(3, 7)
    ]
    asked = map(environment_row, islice(environment_prompts(0), len(fens)))
    texts = [f"N: {fen} 5" for fen in fens] + [r["prompt"] + r["completion"] for r in asked]
    name = write_jsonl(tmp_path / "rows.jsonl", texts)
    data = load_data(DataArguments(name, tasks=["environment", "legal_moves"], heldout_share=0.3))
    require_truth(data, ["legal_moves"])
    assert not data.report.quarantined and data.report.train["legal_moves"] > 8
    assert any(line.startswith("legal_moves  train") for line in data.report.lines())
    rows = [row for row in data.train if row["task"] == "legal_moves"]
    right = evaluate_completions(rows, Oracle().answers([row["prompt"] for row in rows]))
    assert {key: (result.value, result.n) for key, result in right.items()} == {
        "legal_moves/exact": (1.0, len(rows))
    }
    text = dry_run_text(data, REWARDS)
    assert text.count("legal_moves_exact 1.000") == 3
    assert text.count("legal_moves_exact 0.000") == 6  # wrong, and unreadable
    assert TASKS["legal_moves"].board(rows[0], " 20").startswith("<svg")
    counted = audit(AuditArguments(dataset_name=name))["checks"]
    assert counted["legal_moves"]["idle_en_passant_in_prompt"]["white"]["rows"] == 20
    (exact,) = get_reward_funcs([{"name": "legal_moves_exact"}])
    assert exact([f"N: {START}", "P: x"], [" 20", " 20"]) == [1.0, None]
