"""Files are written here from python-chess games, and loaded as a user would load them."""

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import chess
import pytest
from datasets import Dataset

from rookworld_rlvr.common.errors import ConfigurationError, NotationError, RookWorldError
from rookworld_rlvr.data import loading
from rookworld_rlvr.data.loading import DataArguments, LoadedData, is_held_out, load_data, load_rows
from rookworld_rlvr.data.parsing import parse_raw
from rookworld_rlvr.data.sources import check_dataset_name
from rookworld_rlvr.data.synthesis import is_first_ply
from rookworld_rlvr.tasks import rules

from ..rows import AFTER_E4, ASKED_E4, PAWN_VALUES, PAWNS, RIGHT_E4, START, column, write_jsonl

Row = dict[str, Any]
E4 = f"{START}+e2e4+e2e4+{RIGHT_E4}"  # without its prefix, as in the public data


def position(fen: str) -> str:
    """What makes two FENs the same position, said independently of the code under test."""
    return " ".join(fen.split(" ")[:4])


def boards(n: int) -> list[chess.Board]:
    """Different positions after one to six random plies, not in check, so that steps are many."""
    rng = random.Random(0)
    found: dict[str, chess.Board] = {}
    while len(found) < n:
        board = chess.Board()
        for _ in range(rng.randint(1, 6)):
            board.push(rng.choice(list(board.legal_moves)))
        found.setdefault(position(board.fen()), board)
    return list(found.values())


def environment_line(board: chess.Board, move: chess.Move | None = None) -> str:
    move = move or next(iter(board.legal_moves))
    after = chess.Board(board.fen())
    after.push(move)
    return f"{board.fen()}+{move.uci()}+{move.uci()}+{after.fen()}+0.001+0+0"


def policy_raw(board: chess.Board) -> Row:
    """A row whose first legal move is the best, the next a little worse, and so on."""
    moves = [move.uci() for move in board.legal_moves]
    values = column({move: 50 - 10 * index for index, move in enumerate(moves)})
    # In another order than best first.
    text = f"P: {board.fen()} M: {moves[2]} {moves[0]} {moves[1]} E: 0.3 0.5 0.4 B: {moves[0]}"
    return {"text": text, "action_values": values}


def raw_rows(n: int) -> list[Row]:
    """`n` environment and `n` policy rows in turn, none of them from the same position."""
    found = boards(2 * n)
    asked = [{"text": environment_line(board), "action_values": None} for board in found[::2]]
    return [row for two in zip(asked, map(policy_raw, found[1::2]), strict=True) for row in two]


def text_file(path: Path, lines: list[str]) -> str:
    path.write_text("".join(line + "\n" for line in lines))
    return str(path)


def load(name: str, quarantine: Path | None = None, **options: Any) -> LoadedData:
    options = {"heldout_share": 0.4, **options}
    return load_data(DataArguments(dataset_name=name, **options), quarantine)


def all_rows(data: LoadedData) -> list[Row]:
    return [*data.train, *data.heldout]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "txt"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    raws = raw_rows(20)
    path = tmp_path / f"rows.{suffix}"
    if suffix == "jsonl":
        prompt, completion = re.split(r"(?<=\+)(?=[^+]*\+[^+]*\+.\+.$)", raws[0]["text"])
        halves = {**raws[0], "text": None, "prompt": prompt, "completion": completion}
        write_jsonl(path, [halves, *raws[1:]])
    elif suffix == "parquet":
        Dataset.from_list(raws).to_parquet(str(path))
    else:
        text_file(path, [raw["text"] for raw in raws])
    data = load(str(path))
    assert data.report.read == 40
    assert not data.report.quarantined and data.report.duplicates == 0
    rows = {row["fen"]: row for row in all_rows(data)}
    assert len(rows) == 40
    for raw in raws:
        text = raw["text"].removeprefix("P: ")
        row = rows[" ".join(text.replace("+", " ").split()[:6])]
        values = raw["action_values"] if suffix != "txt" else None  # a line of text carries none
        assert row["action_values"] == values
        assert row["task"] == ("policy" if raw["text"].startswith("P:") else "environment")
        joined = (row["prompt"] + row["completion"]).removeprefix("A: ")
        assert joined.split() == raw["text"].split()
    assert data.report.unlabelled == (20 if suffix == "txt" else 0)


def test_rows_without_a_prefix_are_environment_rows() -> None:
    row = parse_raw({"text": E4})
    assert row == parse_raw({"text": f"A: {E4}"})
    read = {"fen": START, "action": "e2e4", "history": ["e2e4"], "action_values": None}
    assert row == {"task": "environment", "prompt": ASKED_E4, "completion": RIGHT_E4, **read}


def test_values_that_do_not_fit_the_position_are_refused() -> None:
    good: Any = column({**PAWN_VALUES, "f2f4": 110})
    for values, reason in (
        (good[1:], "do not name every legal move once"),
        ([*good, {"move": "h1h2", "cp": -400}], "do not name every legal move once"),
        (good[::-1], "not ordered best first"),
        ([{"uci": "g2g4", "cp": 100}], "must be a list of {move, cp}"),
        ([{**value, "cp": "mate"} for value in good], "must be a list of {move, cp}"),
    ):
        with pytest.raises(NotationError, match=reason):
            parse_raw({"text": f"P: {PAWNS} M: g2g4 E: 1.0 B: g2g4", "action_values": values})


def spoilt_file(tmp_path: Path) -> str:
    """36 good lines and four bad ones: 1, 11, 22 and 40."""
    lines = [environment_line(board) for board in boards(36)]
    lines.insert(0, "hello")
    lines.insert(10, lines[5] + "+0")
    lines.insert(21, "8/8/8/8/8/8/8/8 w - - 0 1+e2e4+e2e4+8/8/8/8/8/8/8/8 w - - 0 1+-1.0+0+1")
    return text_file(tmp_path / "rows.txt", [*lines, "Привет"])


def test_malformed_rows_go_to_a_file_with_their_reasons(tmp_path: Path) -> None:
    name, quarantine = spoilt_file(tmp_path), tmp_path / "out" / "quarantine.jsonl"
    with pytest.raises(RookWorldError, match=r"3 of 40 rows.*max_quarantined_share=0\.07") as found:
        load(name, quarantine, max_quarantined_share=0.07)
    assert str(quarantine) in str(found.value)
    entries = [json.loads(line) for line in quarantine.read_text().splitlines()]
    assert [entry["row"] for entry in entries] == [1, 11, 22, 40]
    assert [entry["text"] for entry in entries][::3] == ["hello", "Привет"]
    no_row = "neither a RookWorld row, a FEN nor an EPD"
    for number, reason in enumerate((no_row, "not the four fields", "not a legal chess position")):
        assert reason in entries[number]["reason"]

    report = load(name, quarantine, max_quarantined_share=0.075).report  # three of 40
    assert len(quarantine.read_text().splitlines()) == 4
    assert (report.read, report.train.total() + report.heldout.total()) == (40, 36)
    assert sorted(report.quarantined.values()) == [1, 2] and report.quarantined[no_row] == 2
    assert report.unjudgeable == {"a king is missing": 1}
    assert any("quarantined" in line and " 3" in line for line in report.lines())
    load(write_jsonl(tmp_path / "rows.jsonl", raw_rows(20)), quarantine)
    assert not quarantine.exists(), "else the next run would take it for its own"


def test_rows_that_no_rule_judges_are_left_out_without_a_limit(tmp_path: Path) -> None:
    """Of 60 rows, 20 are as the public generator makes them after an illegal move."""
    lines = [environment_line(board) for board in boards(40)]
    for board, count in (
        ("rnbq1bnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQ", 10),
        ("4k3/4R3/8/8/8/8/8/4K3 w -", 5),
        ("4k2P/8/8/8/8/8/8/4K3 w -", 5),
    ):
        lines += [f"{board} - {n} 9+e1e2+e1e2+{RIGHT_E4}" for n in range(count)]
    name, quarantine = text_file(tmp_path / "rows.txt", lines), tmp_path / "quarantine.jsonl"
    data = load(name, quarantine, max_quarantined_share=0)
    assert data.report.unjudgeable == {
        "a king is missing": 10,
        "the side that is not to move is in check": 5,
        "a pawn is on the first or last rank": 5,
    }
    assert data.report.read == 60 and len(all_rows(data)) == 40
    printed = "\n".join(data.report.lines())
    said = r"^left out, as no rule of chess can judge them +20\n +10  a king"
    assert re.search(said, printed, re.M)
    assert len(quarantine.read_text().splitlines()) == 20
    with pytest.raises(RookWorldError, match=r"60 rows were read, 10 are left out \(a king is m"):
        load(name, tasks=["policy"])


def test_what_is_learnt_is_what_the_rules_say(tmp_path: Path) -> None:
    asked, leapt = f"A: {START}+e2e5+e2e5+", f"{AFTER_E4}+0.001+0+0"  # illegal, played on
    lines = [*map(environment_line, boards(20)), *map(environment_line, boards(5)), asked + leapt]
    name = text_file(tmp_path / "rows.txt", lines)
    arguments = DataArguments(dataset_name=name, tasks=["environment"], heldout_share=0.4)
    read, learnt = load_data(arguments), load_data(arguments, is_learnt=True)
    answers = {row["prompt"]: row["completion"] for row in all_rows(learnt)}
    assert answers[asked] == f"{START}+-1.0+0+1"
    assert {row["prompt"]: row["completion"] for row in all_rows(read)} == {**answers, asked: leapt}
    assert (read.report.corrected, learnt.report.corrected) == (0, 1)
    assert "environment answers replaced by the rules'" in "\n".join(learnt.report.lines())


def test_rows_for_other_trainers_are_those_of_training(tmp_path: Path, caplog) -> None:
    name = write_jsonl(tmp_path / "rows.jsonl", raw_rows(20))
    rows, data = load_rows(name, heldout_share=0.4), load(name)
    assert rows["train"][:] == data.train[:] and rows["test"][:] == data.heldout[:]
    assert rows["train"].column_names[:2] == ["task", "prompt"]
    policy = load_rows(name, heldout_share=0.4, tasks=["policy"])
    assert {*policy["train"]["task"], *policy["test"]["task"]} == {"policy"}
    assert sum(policy.num_rows.values()) == 20
    caplog.clear()
    rows = load_rows(spoilt_file(tmp_path), heldout_share=0.4, max_quarantined_share=0.1)
    assert sum(rows.num_rows.values()) == 36
    for words in ("rows read 40", "quarantined 3", "2 neither a RookWorld row", "rookworld audit"):
        assert words in caplog.text


def test_duplicates_are_dropped_whatever_their_spacing(tmp_path: Path) -> None:
    lines = [environment_line(board) for board in boards(20)]
    again = [f"A: {lines[3]}", lines[4].replace("+", " + "), lines[5] + "<|endoftext|>"]
    liar = lines[7].rsplit("+", 3)[0] + "+0.5+1+0"
    another_action = environment_line(boards(1)[0], list(boards(1)[0].legal_moves)[1])
    texts = ["", *lines, *again, "", liar, another_action]
    data = load(text_file(tmp_path / "rows.txt", texts), max_quarantined_share=0)
    assert (data.report.read, data.report.duplicates) == (25, 4), "an empty line is no row"
    rows = all_rows(data)
    assert len(rows) == len({row["prompt"] for row in rows}) == 21
    assert all(row["completion"].endswith("+0.001+0+0") for row in rows), "the first is kept"


def test_no_position_is_in_both_splits_whatever_the_action_the_task_or_the_clocks(tmp_path) -> None:
    rows: list[Row] = []
    for board in boards(30):
        later = board.copy()
        later.halfmove_clock, later.fullmove_number = 11, 40
        moves = list(board.legal_moves)
        rows += [{"text": environment_line(board, move)} for move in moves[:3]]
        rows += [{"text": environment_line(later, moves[3])}, {"text": policy_raw(board)["text"]}]
    data = load(write_jsonl(tmp_path / "rows.jsonl", rows))
    train, heldout = ([position(row["fen"]) for row in s] for s in (data.train, data.heldout))
    assert len(set(train)) + len(set(heldout)) == 30
    assert set(train).isdisjoint(heldout)
    assert set(Counter(train + heldout).values()) == {5}  # a position stays together
    assert min(len(set(train)), len(set(heldout))) >= 5


def test_held_out_positions_follow_the_share_and_nest() -> None:
    fens = [board.fen() for board in boards(600)]
    small = {fen for fen in fens if is_held_out(fen, 0.1)}
    large = {fen for fen in fens if is_held_out(fen, 0.4)}
    assert 30 < len(small) < 95 and 190 < len(large) < 290  # ± 4.5 deviations
    assert small < large
    assert not any(is_held_out(fen, 0.0) for fen in fens)
    assert all(is_held_out(fen, 1.0) for fen in fens)


def test_held_out_rows_are_capped_by_task_and_the_rest_is_not_trained_on(tmp_path: Path) -> None:
    name = write_jsonl(tmp_path / "rows.jsonl", raw_rows(30))
    uncapped, capped = load(name), load(name, heldout_rows=4)
    assert capped.report.heldout == {"environment": 4, "policy": 4}
    assert min(uncapped.report.heldout.values()) > 4
    assert capped.report.train == uncapped.report.train


def shares(environment: float) -> dict[str, float]:
    return {"environment": environment, "policy": 1 - environment}


@pytest.mark.parametrize("share", [0.0, 0.8])
def test_task_shares_are_reached_by_repeating_and_no_row_is_lost(tmp_path: Path, share) -> None:
    name = write_jsonl(tmp_path / "rows.jsonl", raw_rows(30))
    plain, mixed = load(name), load(name, task_shares=shares(share))
    tasks = Counter(mixed.train["task"])
    assert tasks["environment"] / tasks.total() == pytest.approx(share, abs=0.02)
    if 0 < share < 1:
        assert set(mixed.train["prompt"]) == set(plain.train["prompt"])
    assert mixed.heldout.to_list() == plain.heldout.to_list()
    assert mixed.report.train == plain.report.train  # counted before any repetition
    others = load(name, tasks=["policy"], task_shares={"environment": 1.0})
    assert others.train.to_list() == load(name, tasks=["policy"]).train.to_list(), "left out"


def first_plies_of(split: Any) -> list[Row]:
    return [row for row in split.to_list() if row["task"] == "environment" and is_first_ply(row)]


def test_the_first_two_plies_are_420_rows_of_21_positions_and_some_are_held_out() -> None:
    data = load("", tasks=["environment"], heldout_share=0.1, first_plies_share=0.3)
    rows = first_plies_of(data.train), first_plies_of(data.heldout)
    train, heldout = ({row["prompt"]: row["fen"] for row in split} for split in rows)
    assert (len(train), len(heldout)) == (380, 40)
    assert len({*train.values(), *heldout.values()}) == 21
    assert not set(train.values()) & set(heldout.values())
    assert START in train.values(), "and the 20 positions after White's first move"


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_the_first_two_plies_get_their_share_of_the_environment_rows(share: float) -> None:
    options = {"max_rows": 150, "synthetic_rows": 150, "first_plies_share": share}
    data = load("rookworld-nano-openings", heldout_share=0.1, task_shares=shares(0.6), **options)
    tasks = Counter(data.train["task"])
    assert tasks["environment"] / tasks.total() == pytest.approx(0.6, abs=0.01)
    assert len(first_plies_of(data.train)) / tasks["environment"] == pytest.approx(share, abs=0.01)


def policy_with(board: chess.Board, best: int) -> Row:
    """A policy row whose best move is worth `best` centipawns, and all others 0."""
    row = policy_raw(board)
    values = [{**value, "cp": 0} for value in row["action_values"]]
    return {**row, "action_values": [{**values[0], "cp": best}, *values[1:]]}


@pytest.mark.parametrize("share", [0.8, 1.0])
def test_decisive_positions_get_their_share_of_the_policy_rows(
    tmp_path: Path, share: float
) -> None:
    found = [board for board in boards(120) if board.legal_moves.count() > 10]
    rows = [policy_with(board, 400 * (number % 4 == 0)) for number, board in enumerate(found)]
    rows += [{"text": environment_line(board), "action_values": None} for board in boards(20)]
    name = write_jsonl(tmp_path / "rows.jsonl", rows)
    plain, mixed = load(name), load(name, decisive_share=share, task_shares=shares(0.5))

    def decisive(data: LoadedData) -> set[str]:  # worth 0.81, beside 0.5 for each of the others
        policy = [row for row in data.train.to_list() if row["task"] == "policy"]
        return {row["prompt"] for row in policy if row["action_values"][0]["cp"] == 400}

    few = decisive(plain)
    counts = Counter(row["prompt"] in few for row in mixed.train if row["task"] == "policy")
    assert counts[True] / counts.total() == pytest.approx(share, abs=0.01)
    assert decisive(mixed) == few, "none is lost"
    tasks = Counter(mixed.train["task"])
    assert tasks["environment"] / tasks.total() == pytest.approx(0.5, abs=0.01)
    assert mixed.heldout.to_list() == plain.heldout.to_list()


def test_a_share_of_decisive_positions_needs_some(tmp_path: Path) -> None:
    name = write_jsonl(tmp_path / "rows.jsonl", [policy_with(board, 30) for board in boards(20)])
    said = r"decisive in .*rows\.jsonl.* decisive_share=0\.5 .*action_values"
    with pytest.raises(RookWorldError, match=said):
        load(name, tasks=["policy"], decisive_share=0.5)
    unlabelled = [{**policy_with(board, 400), "action_values": None} for board in boards(9)]
    decisive = [policy_with(board, 400) for board in boards(40)[9:]]
    name = write_jsonl(tmp_path / "some.jsonl", [*unlabelled, *decisive])
    with pytest.raises(RookWorldError, match=r"\d of \d+ policy rows to train on have no action_v"):
        load(name, tasks=["policy"], decisive_share=0.5)


def test_faults_of_keys_names_and_files_are_named_with_close_matches(tmp_path: Path) -> None:
    wrong: dict[str, Any] = {"heldout_share": 1.5, "synthetic_shares": {"opennings": 1.0}}
    with pytest.raises(ConfigurationError) as caught:
        DataArguments(dataset_name="rookworld-nano-opening", tasks=["policy"], **wrong)
    name, kind, share = caught.value.faults
    assert "did you mean rookworld-nano-openings" in name and "heldout_share: 1.5" in share
    assert "'opennings' is not a valid kind; did you mean openings" in kind
    with pytest.raises(ConfigurationError, match="load_rows: no option 'task'; did you mean tasks"):
        load_rows(task=["policy"])
    good = text_file(tmp_path / "openings.jsonl", [])
    assert check_dataset_name(good) == []
    for name, words in (
        ("rookworld-nano-opening", "neither packaged.*did you mean rookworld-nano-openings"),
        ("a/b/c", "neither packaged"),
        (str(tmp_path / "opening.jsonl"), f"no file .*if a recipe names it.*did you mean {good}"),
        (str(tmp_path / "no" / "folder.txt"), "no file"),
    ):
        (fault,) = check_dataset_name(name)
        assert repr(name) in fault and re.search(words, fault), fault
    said = r"broken\.jsonl' \(line 2 is not JSON: Unterminated string .*and mend or delete the line"
    for mark in ("", "\ufeff"):
        (tmp_path / "broken.jsonl").write_text(mark + '{"text": "x"}\n{"text": "P: 8/')
        with pytest.raises(RookWorldError, match=said):
            load(str(tmp_path / "broken.jsonl"))


def test_an_empty_split_stops_the_run(tmp_path: Path) -> None:
    name = text_file(tmp_path / "rows.txt", [environment_line(board) for board in boards(20)])
    left_out = r"20 rows were read, 20 are left out \(environment\)"
    options: dict[str, Any]
    for options, words in (
        ({"heldout_share": 0.0}, r"no held-out rows .* 20 rows were read\. Give"),
        ({"heldout_share": 1.0}, "no training rows"),
        ({"task_shares": shares(0.5)}, "no rows of policy .* --tasks environment$"),
        ({"task_shares": shares(0.5), "tasks": ["policy"]}, left_out),
    ):
        with pytest.raises(RookWorldError, match=words):
            load(name, **options)


def test_mirror_images_are_new_positions_with_the_same_values() -> None:
    plain, both = (
        load("rookworld-nano-openings", tasks=["policy"], max_rows=1000, mirror=mirror)
        for mirror in (False, True)
    )
    images = list(both.train)[len(plain.train) :]
    assert 0.5 * len(plain.train) < len(images) <= len(plain.train)
    by_key = {rules.position_key(row["fen"]): row for row in plain.train}
    apart = by_key.keys() | {rules.position_key(row["fen"]) for row in both.heldout}
    for image in images[:50]:
        assert rules.position_key(image["fen"]) not in apart
        assert not is_held_out(image["fen"], loading.HELDOUT_SHARE)
        row = by_key[rules.position_key(chess.Board(image["fen"]).mirror().fen())]
        assert [v["cp"] for v in image["action_values"]] == [v["cp"] for v in row["action_values"]]
        moves = {v["move"] for v in image["action_values"]}
        assert moves == set(rules.legal_moves(image["fen"])), "of each legal move"
        best, same = (chess.Move.from_uci(r["action_values"][0]["move"]) for r in (image, row))
        assert chess.square_mirror(best.from_square) == same.from_square
        assert chess.square_mirror(best.to_square) == same.to_square
