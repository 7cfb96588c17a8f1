"""The engine's protocol: every command, clocks, a game against Stockfish, a thousand odd lines."""

import itertools
import random
import sys
import threading
import time
from pathlib import Path
from queue import Queue, SimpleQueue

import chess
import chess.engine
import pytest

from rookworld_rlvr.inference.uci import Engine, Stopped, load, numbers_of, seconds_for

from .answers import OPENING, Model


class Conversation:
    """An engine with a made-up model in a thread of its own, and what it has said."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self.heard: Queue[str] = Queue()
        self.engine = Engine("made-up", model.load, self._write)
        lines = iter(self._lines.get, None)
        self.thread = threading.Thread(target=self.engine.run, args=(lines,), daemon=True)
        self.thread.start()

    def _write(self, text: str) -> None:
        for line in text.splitlines():
            self.heard.put(line)

    def send(self, *lines: str | None) -> None:
        for line in lines:
            self._lines.put(line)

    def until(self, start: str) -> list[str]:
        """The next lines, to the first that starts so."""
        lines = [self.heard.get(timeout=60)]
        while not lines[-1].startswith(start):
            lines.append(self.heard.get(timeout=60))
        return lines


@pytest.fixture
def talk():
    conversation = Conversation(Model())
    yield conversation
    conversation.send("quit")
    conversation.thread.join(timeout=60)
    assert not conversation.thread.is_alive()


def test_uci_is_answered_before_the_model_is_loaded(talk: Conversation) -> None:
    talk.send("uci")
    lines = talk.until("uciok")
    assert lines[0].startswith("id name ") and lines[1].startswith("id author ")
    assert not talk.model.loaded
    talk.send("isready", "isready")
    for _ in range(2):
        talk.until("readyok")
    assert talk.model.loaded == ["made-up"]


def test_every_clock_gets_a_move(talk: Conversation) -> None:
    for clock in ("", "movetime 60000", "wtime x btime 60000 rubbish depth"):
        talk.send("ucinewgame", "position startpos", f"go {clock}")
        info, move = talk.until("bestmove")
        assert info.startswith("info depth 1 ") and " score cp 30 " in info
        assert info.endswith(" pv e2e4") and move == "bestmove e2e4"


def test_the_best_move_of_an_infinite_search_waits_for_stop(talk: Conversation) -> None:
    talk.send("go infinite")
    talk.until("info")
    talk.send("isready")
    assert talk.until("readyok") == ["readyok"]
    talk.send("stop", "stop", "isready")
    assert talk.until("readyok") == ["bestmove e2e4", "readyok"], "one best move a search"


def test_a_move_outside_of_searchmoves_is_not_played(talk: Conversation) -> None:
    talk.send("go movetime 60000 searchmoves a2a3 e2e4")
    assert talk.until("bestmove")[-1] == "bestmove e2e4"
    talk.send("go searchmoves a2a3")
    said = talk.until("bestmove")
    assert said[-1] == "bestmove a2a3" and "e2e4 is not among searchmoves" in said[-2]


def test_a_model_that_fails_does_not_leave_the_program_without_a_move(talk: Conversation) -> None:
    def failing(fen: str) -> None:
        raise RuntimeError("planted")

    talk.engine._loaded = lambda: failing  # type: ignore[method-assign, assignment, return-value]
    talk.send("go")
    said = talk.until("bestmove")
    assert said[-1] == "bestmove g1h3" and "the model failed (RuntimeError: planted)" in said[-2]


def test_a_model_that_is_late_does_not_cost_the_game(talk: Conversation) -> None:
    for lines in ("go movetime 1", "go wtime 60000, stop", "go, isready, go infinite, stop"):
        talk.model.answer = None
        talk.send(*lines.split(", "))
        if "isready" in lines:
            assert talk.until("readyok") == ["readyok"], "while the model thinks"
        for _ in range(lines.count("go")):
            said = talk.until("bestmove")
            assert said[-1] == "bestmove g1h3"
            assert "had not answered" in said[-2] and "g1h3, the first legal move, is" in said[-2]
        talk.model.answer = OPENING
        talk.send("go")
        assert talk.until("bestmove")[-1] == "bestmove e2e4"


def test_a_model_is_stopped_between_two_tokens() -> None:
    asked: list[bool] = []

    def give_up() -> bool:
        asked.append(True)
        return len(asked) > wanted

    wanted = 1000
    analyse = load("rookworld-nano", give_up)
    assert analyse(chess.STARTING_FEN).record is not None
    assert len(asked) > 20, "at every token"
    asked.clear()
    wanted = 5
    with pytest.raises(Stopped):
        analyse(chess.STARTING_FEN)
    assert len(asked) == 6


def test_half_of_the_clock_at_most() -> None:
    for words, seconds in (
        *(("depth 3", None), ("btime 1000", None)),
        *(("movetime 1000", 0.9), ("movetime 50", 0.045)),
        *(("wtime 10000", 4.9), ("wtime 10000 winc 2000 binc 9999", 6.9)),
        *(("wtime 1000 winc 5000", 0.9), ("wtime 10000 movestogo 1", 4.9), ("wtime -3", 0.0)),
    ):
        assert seconds_for(numbers_of(words.split()), chess.WHITE) == seconds, words


def test_a_bad_position_is_said_and_changes_nothing(talk: Conversation) -> None:
    talk.send("position startpos moves d2d4")
    for words, said in (
        ("", "not a FEN"),
        ("fen 8/8/8/8/8/8/8/8 w - - 0 1", "not a legal chess position"),
        ("fen 4k3/8/8/8/8/8/8/4K3 w - - 0 9999999", "counter is not a whole number"),
        ("startpos moves e2e5", "e2e5"),
        ("startpos moves e2e4 0000", "0000"),
    ):
        talk.send(f"position {words}")
        (line,) = talk.until("info string ")
        assert said in line
        assert "the position is still rnbqkbnr/pppppppp/8/8/3P4/8/PPP1PPPP/RNBQKBNR b" in line


def test_at_the_end_of_the_input_the_model_finishes() -> None:
    def slowly(fen: str) -> str:
        time.sleep(0.2)
        return OPENING

    for line in ("go", "go infinite"):
        ended = Conversation(Model(slowly))
        ended.send(line, None)
        assert ended.until("bestmove")[-1] == "bestmove e2e4"
        ended.thread.join(timeout=60)
        assert not ended.thread.is_alive()


WORDS = (
    "uci isready ucinewgame position startpos fen moves go stop ponderhit setoption name value debug "
    "on off register later code go go position wtime btime winc binc movestogo movetime depth nodes "
    "mate infinite ponder searchmoves e2e4 e7e5 g1f3 0000 a1a9 e7e8q -1 0 7 99999999999999999999 ٣ é "
    "MultiPV Model Overhead w b KQkq - \x00 4k3/8/8/8/8/8/8/4K2R 8/8/8/8/8/8/8/8 999999 joho"
).split()
POSITIONS = (
    "startpos",
    "fen rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3",  # mated
    "fen 7k/5Q2/6K1/8/8/8/8/8 b - - 0 1",  # stalemated
    "fen 4k3/8/8/8/8/8/8/4K2R w K - 0 999999",
)


def odd_line(draw: random.Random) -> str:
    line = " ".join(draw.choices(WORDS, k=draw.randrange(8)))
    position = f"position {draw.choice(POSITIONS)}"
    clock = f"go {draw.choice(WORDS)} {draw.randrange(200)}"
    noise = "".join(map(chr, draw.choices(range(1, 0x3000), k=draw.randrange(60))))
    return draw.choice([line, line, position, f"{position} moves {line}", clock, noise])


@pytest.mark.parametrize("seed", [0, 1])
def test_a_thousand_odd_lines(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)

    def answer(fen: str) -> str | None:
        best = draw.choice([*map(chess.Move.uci, chess.Board(fen).legal_moves), "a1a1"])
        return draw.choice([f"M: {best} a1a1 E: 1 B: {best}", "rubbish", "", None])

    asked: list[chess.Board] = []
    go = Engine._go

    def noted(engine: Engine, words: list[str]) -> None:
        asked.append(engine.board.copy())
        go(engine, words)

    monkeypatch.setattr(Engine, "_go", noted)
    talk = Conversation(Model(answer))
    talk.send(*(odd_line(draw) for _ in range(1000)), "stop", "quit")
    talk.thread.join(timeout=60)
    assert not talk.thread.is_alive()
    best = [line.split()[1] for line in talk.heard.queue if line.startswith("bestmove")]
    assert len(best) == len(asked) > 100
    for board, move in zip(asked, best, strict=True):
        assert move == "0000" if not any(board.legal_moves) else board.parse_uci(move)
    assert len(best) - best.count("0000") > 50


PROGRAM = """
import atexit, pathlib, runpy, sys
heavy = {"torch", "transformers", "trl", "wandb", "datasets", "peft"}
from rookworld_rlvr.inference import play, uci
assert not heavy & set(sys.modules), heavy & set(sys.modules)
atexit.register(lambda: pathlib.Path("loaded").write_text(" ".join(sorted(heavy & set(sys.modules)))))
runpy.run_module("rookworld_rlvr.inference.uci", run_name="__main__")
"""


@pytest.mark.slow
def test_a_game_over_pipes_within_its_clock(tmp_path: Path) -> None:
    """Sixty seconds, measured by python-chess; the protocol waits for no library, the model for few."""
    board, draw, clock = chess.Board(), random.Random(0), 60.0
    command = [sys.executable, "-P", "-c", PROGRAM, "--model", "rookworld-nano"]
    with chess.engine.SimpleEngine.popen_uci(command, timeout=120, cwd=tmp_path) as ours:
        ours.ping()
        for _ in itertools.takewhile(lambda _: not board.is_game_over(), range(16)):
            if board.turn:
                began = time.monotonic()
                limit = chess.engine.Limit(white_clock=clock, black_clock=60)
                move = ours.play(board, limit, info=chess.engine.INFO_ALL).move
                clock -= time.monotonic() - began
                assert clock > 0, "lost on time"
                assert move is not None and board.is_legal(move)
            else:
                move = draw.choice(list(board.legal_moves))
            board.push(move)
        assert len(board.move_stack) > 4
        line = ours.analyse(chess.Board(), chess.engine.Limit(time=30))
        assert "pv" in line and "score" in line
        ours.quit()
    assert (tmp_path / "loaded").read_text() == "torch transformers"
