"""What a move is worth: numbers from the laws of chess, from another search, and from a script."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import chess
import chess.engine
import pytest

from rookworld_rlvr.engine.labeller import Labeller
from rookworld_rlvr.engine.pool import value_moves
from rookworld_rlvr.tasks.types import Values

from ..engines import engine_arguments
from ..rows import START


@pytest.fixture(scope="module")
def deep(stockfish: str) -> Iterator[Labeller]:
    """Deep enough that Stockfish's pruning overlooks no mate in two."""
    with Labeller(engine_arguments(stockfish, engine_depth=12)) as labeller:
        yield labeller


def valued(labeller: Labeller, fen: str) -> Values:
    (values,) = labeller.values([fen])
    assert values is not None
    return values


def test_mate_in_two(deep: Labeller) -> None:
    # Morphy's: 1. Ra6 bxa6 2. b7, or 1. ... B any 2. Rxa7.
    values = valued(deep, "kbK5/pp6/1P6/8/8/8/8/R7 w - - 0 1")
    assert next(iter(values.items())) == ("a1a6", 99_998)


@pytest.mark.parametrize(
    "fen", ["kbK5/pp6/RP6/8/8/8/8/8 b - - 0 1", "1r2k3/r7/8/8/8/8/8/7K b - - 0 1"]
)
def test_mates_are_those_of_a_search_of_all_moves_at_once(
    deep: Labeller, stockfish: str, fen: str
) -> None:
    board = chess.Board(fen)
    with chess.engine.SimpleEngine.popen_uci(stockfish) as engine:
        count = board.legal_moves.count()
        lines = engine.analyse(board, chess.engine.Limit(depth=12), multipv=count)
    seen = {line["pv"][0].uci(): line["score"].relative for line in lines}
    near = {
        move: score.score(mate_score=100_000)
        for move, score in seen.items()
        if score.is_mate() and abs(score.mate() or 0) <= 2
    }
    mine = valued(deep, fen)
    assert near
    assert {move: mine[move] for move in near} == near


class ScriptedEngine:
    """Answers with the scores given, and keeps what was asked.

    Args:
        score: Score of the side to move, by the move before and the engine's limit.
    """

    def __init__(self, score: Callable[[str, int], chess.engine.Score]) -> None:
        self._score = score
        self.asked: list[tuple[str, int]] = []
        self.games: set[object] = set()

    async def analyse(
        self, board: chess.Board, limit: chess.engine.Limit, *, game: object, info: object
    ) -> dict[str, Any]:
        move, size = board.peek().uci(), limit.depth
        assert size is not None
        self.asked.append((move, size))
        self.games.add(game)
        score = chess.engine.PovScore(self._score(move, size), board.turn)
        return {"score": score, "depth": size}

    def moves_asked(self, size: int) -> list[str]:
        return [move for move, asked in self.asked if asked == size]


def run(engine: ScriptedEngine, fen: str = START, depth: int = 6) -> Values:
    return asyncio.run(value_moves(engine, fen, depth))  # type: ignore[arg-type]


def by_alphabet(move: str, size: int) -> chess.engine.Cp:
    """The answer to a2a3 is worth least, so a2a3 is worth most."""
    return chess.engine.Cp(ALPHABET.index(move))


ALPHABET = sorted(move.uci() for move in chess.Board().legal_moves)  # a2a3, a2a4, b1a3, ...


def test_all_moves_are_searched_shallow_and_the_best_five_to_the_full() -> None:
    engine = ScriptedEngine(by_alphabet)
    values = run(engine)
    assert sorted(engine.moves_asked(3)) == ALPHABET
    assert engine.moves_asked(5) == ALPHABET[:5]
    assert len(engine.asked) == 25
    assert list(values.items()) == [(move, -index) for index, move in enumerate(ALPHABET)]


def test_the_best_five_are_searched_on_until_all_of_them_were_searched_to_the_full() -> None:
    # Deeper, the first four moves turn out worst and the others as they were. So the next four are
    # searched too; of these the first two turn out worst, and two more move up.
    bad = {*ALPHABET[:4], *ALPHABET[5:7]}

    def score(move: str, size: int) -> chess.engine.Cp:
        demoted = size == 5 and move in bad
        return chess.engine.Cp(ALPHABET.index(move) + (1_000 if demoted else 0))

    engine = ScriptedEngine(score)
    values = run(engine)
    assert engine.moves_asked(5) == ALPHABET[:11]
    best = list(values)[:5]
    assert best == [ALPHABET[4], *ALPHABET[7:11]]
    assert [values[move] for move in best] == [-ALPHABET.index(move) for move in best]
    assert [values[move] for move in ALPHABET[:4]] == [-1_000 - i for i in range(4)]


def test_a_move_that_ends_the_game_is_not_searched() -> None:
    engine = ScriptedEngine(lambda move, size: chess.engine.Cp(50))
    values = run(engine, "k7/8/1K6/8/8/8/8/2Q5 w - - 0 1")
    assert values["c1c8"] == 99_999  # mate
    assert values["c1c7"] == 0  # stalemate
    assert not {"c1c7", "c1c8"} & {move for move, _ in engine.asked}


def test_all_searches_of_a_position_belong_to_one_game_and_the_next_position_to_another() -> None:
    engine = ScriptedEngine(by_alphabet)
    run(engine)
    assert len(engine.games) == 1
    run(engine)
    assert len(engine.games) == 2


@pytest.mark.parametrize(
    ("answer", "cp"),
    [
        (chess.engine.Cp(35), -35),
        (chess.engine.Cp(-35), 35),
        (chess.engine.Mate(1), -99_999),  # mated by the next move
        (chess.engine.Mate(3), -99_997),
        (chess.engine.Mate(-1), 99_998),  # this move, and the one that mates
        (chess.engine.Mate(-3), 99_996),
    ],
)
def test_a_moves_worth_from_the_score_of_the_answer(answer: chess.engine.Score, cp: int) -> None:
    values = run(ScriptedEngine(lambda move, size: answer))
    assert set(values.values()) == {cp}
