"""The engine's protocol: every command, clocks, malformed lines, python-chess as the client."""

import errno
import itertools
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue, SimpleQueue

import chess
import chess.engine
import pytest

from rookworld_rlvr.inference.uci import (
    Engine,
    Stopped,
    load,
    parse_go,
    parse_position,
    seconds_for,
)

from ..support import REPOSITORY
from .answers import OPENING, Model, reply


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
    for clock in ("", "movetime 60000", "wtime x btime 60000 rubbish depth", "wtime 0 btime 0"):
        talk.send("ucinewgame", "position startpos", f"go {clock}")
        *_, info, move = talk.until("bestmove")
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


def test_a_model_that_is_stopped_plays_its_best_candidate_so_far(talk: Conversation) -> None:
    first = "g1h3, the first legal move, is played"
    for text, move, said in (
        ("", "g1h3", first),
        ("M: e2e", "g1h3", first),
        ("M: e7e5 a1a1 nonsense ", "g1h3", first),
        ("  M: e7e5 e2e4 d2d", "e2e4", "its best legal candidate e2e4 is played"),
        ("M: e2e4 d2d4 E: 0.1 0", "e2e4", "its best legal candidate"),
        ("M: e2e4 d2d4 E: 0.1 0.4 ", "d2d4", "its best legal candidate"),
        ("M: e2e4 d2d4 E: 0.1 x B: c2c4", "e2e4", "its best legal candidate"),
    ):

        def stopped(fen: str, text: str = text) -> None:
            raise Stopped(text)

        talk.engine._loaded = lambda ask=stopped: ask  # type: ignore[method-assign, misc]
        talk.send("go")
        *_, fault, best = talk.until("bestmove")
        assert best == f"bestmove {move}" and "had not answered" in fault and said in fault, text


def test_while_it_ponders_the_move_waits_for_the_hit_and_then_the_clock_runs(
    talk: Conversation,
) -> None:
    talk.send("go ponder movetime 1")
    assert talk.until("info")[-1].endswith(" pv e2e4"), "not stopped by the clock"
    talk.send("ponderhit", "ponderhit")
    assert talk.until("bestmove") == ["bestmove e2e4"]
    talk.model.answer = None
    talk.send("go ponder movetime 1", "isready")
    assert talk.until("readyok") == ["readyok"]
    talk.send("ponderhit")
    assert "had not answered" in talk.until("bestmove")[-2]
    talk.model.answer = OPENING
    talk.send("go infinite", "ponderhit", "isready")
    assert not any("bestmove" in line for line in talk.until("readyok"))


def test_a_model_is_stopped_between_two_tokens() -> None:
    asked: list[bool] = []

    def give_up() -> bool:
        asked.append(True)
        return len(asked) > wanted

    wanted = 1000
    analyse = load("rookworld-nano", give_up)
    assert analyse(chess.Board()).record is not None
    assert len(asked) > 20, "at every token"
    asked.clear()
    wanted = 12
    with pytest.raises(Stopped) as stopped:
        analyse(chess.Board())
    assert len(asked) == 13
    written = str(stopped.value.text).split()
    assert written[0] == "M:" and chess.Move.from_uci(written[1]), "what it had written"
    asked.clear()
    with pytest.raises(Stopped) as again:
        analyse(chess.Board())
    assert again.value.text == stopped.value.text, "nothing of the answer before"


def test_half_of_the_clock_at_most() -> None:
    for words, seconds in (
        *(("depth 3", None), ("btime 1000", None)),
        *(("movetime 1000", 0.9), ("movetime 50", 0.045)),
        *(("wtime 10000", 4.9), ("wtime 10000 winc 2000 binc 9999", 6.9)),
        *(("wtime 1000 winc 5000", 0.9), ("wtime 10000 movestogo 1", 4.9), ("wtime -3", 0.0)),
        # As Stockfish takes them.
        *(("movetime 0", None), ("wtime 0 btime 0", None), ("wtime 0 btime 9", 0.0)),
        *(("movetime -5", 0.0), ("movetime +1000", 0.9), ("movetime 1000.9ms", 0.9)),
        *(("movetime", None), ("movetime x", None), ("movetime ٣", None)),
        *((f"movetime {'9' * 5000}", 2147483.547), ("movetime 7 movetime 1000", 0.9)),
    ):
        assert seconds_for(parse_go(words.split()).numbers, chess.WHITE) == seconds, words


def test_what_is_not_a_position_is_said_and_changes_nothing(talk: Conversation) -> None:
    talk.send("position startpos moves d2d4")
    for words, said in (
        ("", "'' is neither startpos nor fen FEN"),
        ("e2e4", "'e2e4' is neither startpos nor fen FEN"),
        ("fen", "not a FEN"),
        ("fen 8/8", "not a FEN"),
        (f"fen {'8' * 9999}", "not a FEN"),
        ("fen 8/8/8/8/8/8/8/8 w - - 0 1", "not a legal chess position"),
        ("fen 4k3/8/8/8/8/8/8/4K3 w - - 0 9999999", "counter is not a whole number"),
    ):
        talk.send(f"position {words}")
        fault, now = talk.until("info string the position is ")
        assert said in fault and len(fault) < 600
        assert now.endswith(" is rnbqkbnr/pppppppp/8/8/3P4/8/PPP1PPPP/RNBQKBNR b KQkq - 0 1")


MOVES = (
    *("", "e2e5", "e2e4 e7e5 e2e5 g1f3", "e2e4 0000", "E2E4", "e2e4 e7e5 g1", "e2e4 é", "moves"),
    *("e2e4 e7e5", "e2e4\te7e5\r", "g1f3 g8f6 " * 9, "e2e4 " + "x" * 9999, "a2a4 b7b5 a4b5q"),
)


def test_moves_count_up_to_the_first_illegal_one_as_in_stockfish(stockfish: str) -> None:
    lines = [f"position startpos moves {moves}\nd\n" for moves in MOVES]
    said = subprocess.run(stockfish, input="".join(lines), capture_output=True, text=True).stdout
    theirs = [line[5:] for line in said.splitlines() if line.startswith("Fen: ")]
    ours = [parse_position(f"startpos moves {moves}".split()) for moves in MOVES]
    assert [board.fen() for board, _ in ours] == theirs
    whole = [index for index, (_, faults) in enumerate(ours) if not faults]
    assert whole == [0, 8, 9], "what is left out is said"


def test_what_a_fen_loses_is_said_and_the_game_goes_on(talk: Conversation) -> None:
    bare = "4k3/8/8/8/8/8/8/4K2R w"
    for fen, board, *said in (
        (f"{bare} KQkq - 0 1", f"{bare} K - 0 1", "'KQkq' needs king and rook at home"),
        (f"{bare} Qkq - 0 1 moves e1d1", "4k3/8/8/8/8/8/8/3K3R b - - 1 1", "'Qkq' needs king"),
        (f"{bare} K e6 0 1", f"{bare} K - 0 1", "square 'e6' is left out"),
        (f"{bare} KQ e6 0 1", f"{bare} K - 0 1", "'KQ' needs", "square 'e6' is left out"),
        (bare, f"{bare} - - 0 1", "no castling rights; '-' is", "no en passant square; '-' is"),
        (bare[:-2], f"{bare} - - 0 1", "no side to move; 'w' is", "no castling", "no en passant"),
    ):
        talk.send(f"position fen {fen}")
        *faults, now = talk.until("info string the position is ")
        assert now.endswith(f" is {board}")
        assert all(a in b for a, b in zip(said, faults, strict=True)), faults
        talk.send("go")
        assert talk.until("bestmove")[-1] != "bestmove 0000"
    for fen in (
        f"{bare} K -",
        "rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w KQkq e6 0 2",  # no pawn can take there
        "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w QKqk - 0 1",
    ):
        talk.send(f"position fen {fen}", "isready")
        assert talk.until("readyok") == ["readyok"]


def test_malformed_lines_are_said_and_end_nothing(talk: Conversation) -> None:
    for line, said in (
        ("setoption name X value quit", "no such option: 'X'"),
        ("setoption name Move Overhead value stop", "no such option: 'Move Overhead'"),
        ("setoption", "no such option: ''"),
        ("setoption value 3", "no such option: ''"),
        ("setoption name isready value uci", "no such option: 'isready'"),
        ("ISREADY", "unknown command: 'ISREADY'"),
        ("x" * 99_999, "unknown command: 'xxx"),
        ("\ufeffgo", "unknown command: "),
        ("go movetime", "go: movetime needs a number, not ''; it is ignored"),
        ("go wtime btime 60000", "go: wtime needs a number, not ''; it is ignored"),
        ("go perft", "go: 'perft' is unknown; it is ignored"),
        ("go searchmoves e2e5 x", "searchmoves 'e2e5 x' cannot be played; all moves are allowed"),
        ("go searchmoves e2e4 x", "searchmoves 'x' cannot be played; it is left out"),
    ):
        talk.send(line)
        assert said in talk.until("info string")[-1] and talk.thread.is_alive(), line[:80]
        if line.startswith("go"):
            assert talk.until("bestmove")[-1] == "bestmove e2e4"
    quiet = ("", "  ", "\t", "debug on", "register later", "ucinewgame", "stop", "ponderhit")
    for line in quiet:
        talk.send(line, "joho isready \r")
        assert talk.until("readyok") == ["readyok"], line
    talk.send("position startpos e2e4 e7e5")
    assert "'e2e4 e7e5' is left out; moves begin with 'moves'" in talk.until("info string")[0]


def test_at_the_end_of_the_input_the_model_finishes() -> None:
    def slowly(give_up: Callable[[], bool]) -> str:
        for _ in range(200):
            if give_up():
                raise Stopped
            time.sleep(0.001)
        return OPENING

    for line in ("go", "go infinite", "go ponder wtime 60000 btime 60000"):
        ended = Conversation(Model())
        ended.engine._loaded = lambda to=ended.engine: lambda fen: reply(slowly(to._is_over))  # type: ignore[method-assign, misc]
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


def test_two_threads_do_not_write_into_each_other_s_lines() -> None:
    heard: list[str] = []

    def write(text: str) -> None:  # as `print`, which may be interrupted before the line's end
        heard.append(text)
        time.sleep(0.001)
        heard.append("\n")

    mated = "position fen 7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"
    Engine("made-up", Model().load, write).run([mated, "go", "rubbish"] * 30)
    assert {*heard[1::2]} == {"\n"} and "\n" not in heard[::2]
    assert sum("bestmove 0000" in text for text in heard) == 30


def test_a_search_that_cannot_say_its_move_ends_the_engine() -> None:
    def write(text: str) -> None:
        raise OSError(errno.ENOSPC, "planted")

    for lines in (["go"], ["go infinite", "stop"], ["go", "go"], ["go", "quit"]):
        with pytest.raises(OSError, match="planted"):
            Engine("made-up", Model().load, write).run(lines)


MADE_UP = """
import sys
from rookworld_rlvr.common.terminal import show
from rookworld_rlvr.inference.uci import Engine
from tests.inference.answers import Model
Engine("made-up", Model().load, show).run(sys.stdin)
"""


def test_python_chess_is_served_whatever_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    limit, board = chess.engine.Limit(time=60), chess.Board()
    with chess.engine.SimpleEngine.popen_uci([sys.executable, "-c", MADE_UP], timeout=60) as ours:
        for line in (
            *("setoption name X value quit", "setoption", "joho", "position fen 8/8", "ponderhit"),
            *(f"go movetime {'9' * 5000}", "stop", "position startpos moves e2e5", "\xff\x00"),
        ):
            ours.protocol.loop.call_soon_threadsafe(ours.protocol.send_line, line)
        ours.ping()
        assert ours.play(board, limit).move == chess.Move.from_uci("e2e4")
        asked = [chess.Move.from_uci("a2a3")]
        assert ours.play(board, limit, root_moves=asked).move == asked[0]
        with ours.analysis(board) as infinite:
            assert infinite.get()["pv"] == [chess.Move.from_uci("e2e4")]
            infinite.stop()
            assert infinite.wait().move == chess.Move.from_uci("e2e4")
        mated = chess.Board("rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3")
        assert not ours.play(mated, limit).move
        repaired = chess.Board("4k3/8/8/8/8/8/8/4K2R w KQkq e6 0 1")
        assert repaired.is_legal(ours.play(repaired, limit).move or chess.Move.null())
        ours.quit()


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
