"""Rounds: their keys, self-play, what each leaves in its folder, the rule of acceptance, the ledger."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import chess
import pyarrow as pa
import pyarrow.parquet as pq

from ...common.child import last_line, run_child
from ...common.errors import RookWorldError
from ...common.files import read_keys, replace_text
from ...common.settings import Checked, setting
from ...common.stats import Estimate, Paired
from ...data.loading import HELDOUT_SHARE, is_held_out, parsed_rows
from ...data.parquet import write_parquet
from ...data.parsing import prompt_of
from ...data.sources import Malformed, Row, RowArguments, dataset_file, read_provenance
from ...engine import EngineArguments
from ...engine.labeller import Labeller
from ...evaluation.models import ModelArguments, open_model
from ...evaluation.results import ModelResults, results_document
from ...evaluation.suite import Answerer
from ...evaluation.suites.games import openings
from ...evaluation.suites.matches import VersusModelSuite, ask_choices
from ...models.decoding import PLAIN, Decoding
from ...models.loading import PACKAGED_MODEL, check_model_name
from ...tasks import rules
from ...tasks.environment import ENVIRONMENT, write_environment_prompt
from ...tasks.policy import POLICY, win_probability, write_policy_prompt
from ...tasks.registry import task_of
from ...tasks.types import Values, action_values_column
from ...training.results import RESOLVED_CONFIG, RESULTS, compared, heldout_results
from .ledger import LEDGER, read_ledger, round_cells

MOST_GAMES = 10_000  # there are some 60,000 such openings
DECIDED = 0.95  # win probability of a position that nothing is learnt from

_KEYS = "evolve.json"
_ROWS = "rows.parquet"
_TRAIN = "train"
_MATCH = "match.json"
_SCORE = f"{POLICY.name}/{POLICY.headline}"
_VALUES = pa.list_(pa.struct([("move", pa.string()), ("cp", pa.int64())]))
_SCHEMA = pa.schema(
    [("prompt", pa.string()), ("completion", pa.string()), ("action_values", _VALUES)]
)


@dataclass
class EvolveArguments(Checked):
    """How the rounds go."""

    model_name_or_path: str = setting(
        PACKAGED_MODEL, "The model that the first round starts from.", check=check_model_name
    )
    recipe: str = setting("grpo_policy_nano", "The recipe that trains each round.", filled=True)
    train: dict[str, Any] | str | None = setting(
        None,
        "Keys of `rookworld grpo` that are not as in the recipe, {max_steps: 200, num_processes: 8}.",
    )
    output_dir: str = setting("runs/evolve", "The folder of the rounds and their ledger.")
    rounds: int = setting(3, "The number of rounds, those of earlier starts included.", above=0)
    seed: int = setting(
        0, "The seed of openings, answers, suites, and of each round's training.", least=0
    )
    games: int = setting(
        200, "Games of the policy against itself in a round.", least=1, most=MOST_GAMES
    )
    plies: int = setting(20, "Half-moves after which such a game is cut off.", least=1)
    match_games: int = setting(
        200, "Games of the match between a round's model and the one before.", least=2, most=1_000
    )
    dry_run: bool = setting(False, "Check everything, say what the rounds would do, and end.")


# --------------------------------------------------------------------------------------------------
# Self-play: many games of a policy against itself at once
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Ply:
    """A half-move of the policy.

    Args:
        fen: The position before it.
        fault: Why the policy's best move cannot be played; empty if it can.
        wrong_state: The environment prompt that the model answered wrongly; empty if it was right.
    """

    fen: str
    fault: str = ""
    wrong_state: str = ""


@dataclass(slots=True)
class SelfPlay:
    """A game of a policy against itself.

    Args:
        board: Where it stands, with all moves before.
        plies: Those that the policy played.
    """

    board: chess.Board
    plies: list[Ply] = field(default_factory=list)


def play(model: Answerer, games: int, plies: int, seed: int) -> list[SelfPlay]:
    """Play games from different openings, all of them at once; see `inference.replies.choose`.

    No game starts in a held-out position.

    Args:
        model: Plays both sides, and answers what each move leads to.
        games: How many.
        plies: Half-moves after which a game is cut off.
        seed: Decides openings and answers.
    """
    played = [SelfPlay(start) for start in openings(games, seed, held_out=False)]
    for ply in range(plies):
        if running := [game for game in played if not game.board.is_game_over()]:
            _move(model, running, replace(PLAIN, seed=1000 * seed + ply))
    return played


def _move(model: Answerer, games: Sequence[SelfPlay], decoding: Decoding) -> None:
    """Let the model move in each game, and ask it what these moves lead to."""
    choices = ask_choices(model, [game.board for game in games], decoding)
    prompts = [
        write_environment_prompt(prompt_of(game.board, choice.move.uci()))
        for game, choice in zip(games, choices, strict=True)
    ]
    states = model.answers(prompts)
    for game, choice, prompt, state in zip(games, choices, prompts, states, strict=True):
        is_right = (ENVIRONMENT.score(prompt, state) or {})["exact"]
        game.plies.append(Ply(game.board.fen(), choice.fault, "" if is_right else prompt))
        game.board.push(choice.move)


# --------------------------------------------------------------------------------------------------
# What is learnt from self-play
# --------------------------------------------------------------------------------------------------
def new_positions(games: Sequence[SelfPlay], known: set[str]) -> dict[str, None]:
    """The positions that were played from and are not known, without held-out ones, in their order."""
    found: dict[str, None] = {}
    for ply in (ply for game in games for ply in game.plies):
        key = rules.position_key(ply.fen)
        if key not in known and not is_held_out(ply.fen, HELDOUT_SHARE):
            known.add(key)
            found[ply.fen] = None
    return found


def is_open(values: Values) -> bool:
    """Whether the best move keeps at most the win probability `DECIDED`, and at least the rest to 1."""
    return 1 - DECIDED <= win_probability(max(values.values())) <= DECIDED


def wrong_states(games: Sequence[SelfPlay]) -> dict[str, Any]:
    """The environment prompts that were answered wrongly, with the right answers; none held out."""
    prompts = (ply.wrong_state for game in games for ply in game.plies if ply.wrong_state)
    return {
        prompt: ENVIRONMENT.truth(prompt)
        for prompt in prompts
        if not is_held_out(ENVIRONMENT.position(prompt).fen, HELDOUT_SHARE)
    }


# --------------------------------------------------------------------------------------------------
# A round
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Round:
    """One round.

    Args:
        args: All rounds' keys.
        engine_args: The engine that values positions.
        number: From 1.
        start: The model that plays and is trained further.
        base: The rows of the recipe's own data set.
    """

    args: EvolveArguments
    engine_args: EngineArguments
    number: int
    start: str
    base: RowArguments

    @property
    def folder(self) -> Path:
        """Its folder."""
        return Path(self.args.output_dir) / f"round-{self.number:03}"

    @property
    def model(self) -> Path:
        """The folder of the model that it trains."""
        return self.folder / _TRAIN

    @property
    def log(self) -> Path:
        """What its training prints."""
        return self.model.with_suffix(".log")

    # --------------------------------------------------------------------------------------------
    # Rows
    # --------------------------------------------------------------------------------------------
    def make_rows(self) -> Mapping[str, Any]:
        """Play, value, filter and write the rows to train on, unless they are there; their counts."""
        if note := read_provenance(self.folder / _ROWS):
            return dict(note["counts"])
        args = self.args
        self.folder.mkdir(parents=True, exist_ok=True)
        before = self._rows_before()
        prompts = [row["prompt"] for row in before if task_of(row["prompt"]) == POLICY.name]
        known = {rules.position_key(POLICY.position(prompt).fen) for prompt in prompts}
        model = open_model(self.start, ModelArguments())
        games = play(model, args.games, args.plies, args.seed * 1_000 + self.number)
        fens = new_positions(games, known)
        with Labeller(self.engine_args) as labeller:
            found = labeller.values(list(fens))
            source = labeller.source
        values = {fen: one for fen, one in zip(fens, found, strict=True) if one}
        chosen = [fen for fen in fens if fen in values and is_open(values[fen])]
        states = wrong_states(games)
        new = [policy_row(fen, values[fen]) for fen in chosen]
        new += [{"prompt": prompt, "completion": truth} for prompt, truth in states.items()]
        plies = [ply for game in games for ply in game.plies]
        counts = {
            "games": len(games),
            "half_moves": len(plies),
            "replaced_moves": sum(bool(ply.fault) for ply in plies),
            "wrong_states": sum(bool(ply.wrong_state) for ply in plies),
            "new_positions": len(fens),
            "policy_rows": len(chosen),
            "environment_rows": len(states),
            "rows_before": len(before),
        }
        note = {
            "engine": source.engine if new else None,
            "limit": source.limit,
            "date": "by rounds",
            "dataset_provenance": read_provenance(dataset_file(self.base.dataset_name)),
            "counts": counts,
        }
        table = pa.Table.from_pylist([*new, *before], _SCHEMA)
        write_parquet(self.folder / _ROWS, _SCHEMA, [table], lambda: note)
        return counts

    def _rows_before(self) -> list[Row]:
        """The rows of the round before, or of the recipe's own data set."""
        if self.number > 1:
            path = self.folder.with_name(f"round-{self.number - 1:03}") / _ROWS
            return list(pq.read_table(path).to_pylist())
        return [row for row in parsed_rows(self.base) if not isinstance(row, Malformed)]

    # --------------------------------------------------------------------------------------------
    # Model
    # --------------------------------------------------------------------------------------------
    def words(self) -> list[str]:
        """The words of `rookworld grpo`."""
        keys = {
            **(self.args.train or {}),  # type: ignore[dict-item]
            "model_name_or_path": self.start,
            "dataset_name": str(self.folder / _ROWS),
            "output_dir": str(self.model),
            "seed": self.args.seed + self.number,
            "resume_from_checkpoint": "auto",
        }
        return [
            f"--config={self.args.recipe}",
            *(f"--{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in keys.items()),
        ]

    def train(self) -> None:
        """Train the model, from its last checkpoint if that was interrupted.

        Raises:
            RookWorldError: Training failed.
        """
        command = [sys.executable, "-m", "rookworld_rlvr.cli.main", "grpo", *self.words()]
        if code := run_child(command, self.log):
            raise RookWorldError(
                f"training ended with exit code {code}, see {self.log}: {last_line(self.log)}"
            )

    def judge(self) -> dict[str, Any]:
        """Let the model play the one before, unless that is done; the entry of the ledger."""
        path = self.folder / _MATCH
        if not path.is_file():
            size, seed = self.args.match_games, self.args.seed
            suite = VersusModelSuite(size, seed, self.start, engine_args=self.engine_args)
            model = open_model(str(self.model), ModelArguments())
            played = ModelResults(model.name, {suite.name: suite.run(model)}, {})
            replace_text(path.with_suffix(".pgn"), suite.pgn(model.name))
            replace_text(path, json.dumps(results_document([played], [], {}), indent=2))
        match = json.loads(path.read_text(encoding="utf-8"))["suites"]["versus_model"]["metrics"]
        results = json.loads((self.model / RESULTS).read_text(encoding="utf-8"))
        before, after = (heldout_results(results, when) for when in ("before", "after"))
        change = compared(self.model)[_SCORE]
        has_guard = bool(read_keys(self.model / RESOLVED_CONFIG).get("guard"))
        broke_guard = has_guard and not results.get("best_step")
        why = reasons(change, Estimate(**match["score"]), broke_guard)
        weights = sorted(self.model.glob("model*.safetensors"))
        return {
            "round": self.number,
            "start": self.start,
            "model": str(self.model),
            "weights": [hashlib.sha256(path.read_bytes()).hexdigest() for path in weights],
            **self.make_rows(),
            "heldout": {name: [before[name].value, after[name].value] for name in after},
            "expected_score": {key: getattr(change, key) for key in ("difference", "low", "high")},
            "match": {key: match[key] for key in ("score", "elo_difference") if key in match},
            "accepted": not why,
            "reasons": why,
        }


def reasons(change: Paired, match: Estimate, broke_guard: bool) -> list[str]:
    """Why a round is not accepted; empty if it is.

    Neither the expected score nor the match may be worse. If one is proven better (its 95% interval lies
    above no difference), the other may be worse by what chance explains.

    Args:
        change: Of the policy's expected score, on held-out rows.
        match: What the new model scored against the one before.
        broke_guard: Whether no checkpoint kept the recipe's `guard`.
    """
    found = ["no checkpoint kept the guard"] if broke_guard else []
    fall_is_excused = change.high >= 0 and match.low > 0.5
    if change.difference < 0 and not fall_is_excused:
        found.append(f"the expected score fell by {-change.difference:.4f}")
    loss_is_excused = match.high >= 0.5 and change.low > 0
    if match.value < 0.5 and not loss_is_excused:
        found.append(f"the match was lost, with a score of {match.value:.3f}")
    return found


def policy_row(fen: str, values: Mapping[str, int]) -> Row:
    """A policy row with the right answer and the values of all legal moves, which come best first."""
    prompt, column = write_policy_prompt(fen), action_values_column(values)
    return {"prompt": prompt, "completion": POLICY.truth(prompt, values), "action_values": column}


# --------------------------------------------------------------------------------------------------
# Ledger
# --------------------------------------------------------------------------------------------------
def rounds(
    args: EvolveArguments, engine_args: EngineArguments, base: RowArguments
) -> Iterator[dict[str, Any]]:
    """Run the rounds that the ledger lacks, and give the entries of all rounds.

    Raises:
        RookWorldError: The folder holds rounds with other keys, or a round failed.
    """
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    keys = {key: value for key, value in asdict(args).items() if key not in ("rounds", "dry_run")}
    path = folder / _KEYS
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        if changed := [key for key, value in keys.items() if before.get(key) != value]:
            told = "; ".join(f"{key} was {before.get(key)}, is {keys[key]}" for key in changed)
            raise RookWorldError(
                f"{folder} holds rounds with other keys ({told}); give the earlier values to go on, or "
                "another --output_dir"
            )
    replace_text(path, json.dumps(keys, indent=2))
    entries = read_ledger(folder)
    start = args.model_name_or_path
    for number in range(1, max(args.rounds, len(entries)) + 1):
        if number > len(entries):
            this = Round(args, engine_args, number, start, base)
            counts = this.make_rows()
            print(
                f"round {number}: {counts['policy_rows']} new positions and "
                f"{counts['environment_rows']} new environment rows; training prints into {this.log}",
                flush=True,
            )
            this.train()
            entries.append(this.judge())
            replace_text(folder / LEDGER, "".join(f"{json.dumps(entry)}\n" for entry in entries))
        entry = entries[number - 1]
        start = entry["model"] if entry["accepted"] else start
        yield entry


def entry_text(entry: Mapping[str, Any]) -> str:
    """A round in a line."""
    return ", ".join(f"{head} {cell}" for head, cell in round_cells(entry).items())
