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


def test_mate_in_two(deep: Any) -> None:
    # Morphy's: 1. Ra6 bxa6 2. b7, or 1. ... B any 2. Rxa7.
    (values,) = deep.values(["kbK5/pp6/1P6/8/8/8/8/R7 w - - 0 1"])
    assert next(iter(values.items())) == ("a1a6", 99_998)


@pytest.mark.parametrize(
    "fen", ["kbK5/pp6/RP6/8/8/8/8/8 b - - 0 1", "1r2k3/r7/8/8/8/8/8/7K b - - 0 1"]
)
def test_mates_are_those_of_one_search_of_all_moves(deep: Any, stockfish: str, fen: str) -> None:
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
    (mine,) = deep.values([fen])
    assert near and {move: mine[move] for move in near} == near


class ScriptedEngine:
    """Answers with the score of the side to move, by the move before and the engine's limit."""

    def __init__(self, score: Callable[[str, int], chess.engine.Score]) -> None:
        self._score = score
        self.asked: list[tuple[str, int]] = []
        self.games: set[object] = set()

    async def analyse(self, board: chess.Board, limit: Any, *, game: object, info: object) -> Any:
        move = board.peek().uci()
        self.asked.append((move, limit.depth))
        self.games.add(game)
        score = chess.engine.PovScore(self._score(move, limit.depth), board.turn)
        return {"score": score, "depth": limit.depth}

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
    assert len(engine.games) == 1, "all searches of a position belong to one"
    run(engine)
    assert len(engine.games) == 2, "and those of the next to another"


def test_the_best_five_are_searched_on_until_all_of_them_were_searched_to_the_full() -> None:
    # Deeper, the first four moves turn out worst and the others as they were. So the next four are
    # searched too; of these the first two turn out worst, and two more move up.
    bad = {*ALPHABET[:4], *ALPHABET[5:7]}

    def score(move: str, size: int) -> chess.engine.Cp:
        return chess.engine.Cp(ALPHABET.index(move) + (1_000 if size == 5 and move in bad else 0))

    engine = ScriptedEngine(score)
    values = run(engine)
    assert engine.moves_asked(5) == ALPHABET[:11]
    assert list(values)[:5] == [ALPHABET[4], *ALPHABET[7:11]]
    demotions = {move: values[move] + index for index, move in enumerate(ALPHABET)}
    assert demotions == {move: -1_000 if move in bad else 0 for move in ALPHABET}


def test_a_move_that_ends_the_game_is_not_searched() -> None:
    engine = ScriptedEngine(lambda move, size: chess.engine.Cp(50))
    values = run(engine, "k7/8/1K6/8/8/8/8/2Q5 w - - 0 1")
    assert values["c1c8"] == 99_999  # mate
    assert values["c1c7"] == 0  # stalemate
    assert not {"c1c7", "c1c8"} & {move for move, _ in engine.asked}


def test_a_moves_worth_from_the_score_of_the_answer() -> None:
    mate = {1: -99_999, 3: -99_997, -1: 99_998, -3: 99_996}  # the first mates with the next move
    worth = [(chess.engine.Mate(moves), cp) for moves, cp in mate.items()]
    for answer, cp in [*worth, (chess.engine.Cp(35), -35), (chess.engine.Cp(-35), 35)]:
        assert {*run(ScriptedEngine(lambda *_, answer=answer: answer)).values()} == {cp}
