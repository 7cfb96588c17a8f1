"""The page as a visitor uses it: each tab in Chromium, at two widths; and what it refuses."""

import http.client
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chess
import gradio
import pytest

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.extras.web.__main__ import main
from rookworld_rlvr.extras.web.app import LOOPBACK, free_port, launch
from rookworld_rlvr.extras.web.backend import Backend
from rookworld_rlvr.extras.web.render import analyses, read_board, square_at

TAB = "[role=tab]"
SCRIPT = "<script>document.title = 'run'</script>"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where the page is served, for the packaged model and a run that is not finished."""
    run = tmp_path_factory.mktemp("runs") / "mine"
    run.mkdir()
    resolved = f"num_generations: 4\nrewards: []\nrun_name: {SCRIPT!r}\n"
    (run / "resolved_config.yaml").write_text(resolved)
    found = free_port(LOOPBACK, 7900 + 10 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]))
    launch(["rookworld-nano"], run.parent, LOOPBACK, found)
    yield found
    gradio.close_all()


def status(port: int, path: str, host: str | None = None) -> int:
    """What the server answers to a path that is sent as it is."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=20)
    connection.request("GET", path, headers={"Host": host or f"{LOOPBACK}:{port}"})
    return connection.getresponse().status


class Visitor:
    """Somebody at the page, in a window of some width."""

    def __init__(self, browser: Any, port: int, width: int) -> None:
        self.browser, self.ask = browser, browser.ask
        browser.size(width, "dark" if width < 600 else "light")
        browser.driver.get(f"http://{LOOPBACK}:{port}/")
        self.until(lambda: self.text("h1") == "RookWorld")

    def text(self, selector: str) -> str:
        """What stands in an element, or in a field; empty if it is not there."""
        found = f"const e = document.querySelector('{selector}');"
        return str(self.ask(f"{found} return e?.value ?? e?.innerText ?? ''"))

    def until(self, holds: Callable[[], Any], seconds: float = 90) -> None:
        ends = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < ends, self.ask("return document.body.innerText")
            time.sleep(0.1)

    def press(self, words: str, role: str = "") -> None:
        """Press the visible button with these words; a tab has that role."""
        script = f"const found = [...document.querySelectorAll('button{role}')].find("
        script += f"b => b.innerText.trim() === {words!r} && b.offsetParent);"
        self.until(lambda: self.ask(f"{script} found?.click(); return Boolean(found)"))

    def fill(self, selector: str, text: str) -> None:
        """Type a text into a field, in place of what it holds."""
        self.until(lambda: self.ask(f"return document.querySelector('{selector}')"))
        self.ask(
            f"const e = document.querySelector('{selector}'); const type = Object.getPrototypeOf(e);"
            f"Object.getOwnPropertyDescriptor(type, 'value').set.call(e, {text!r});"
            "e.dispatchEvent(new Event('input', {bubbles: true}))"
        )

    def click(self, selector: str, square: str) -> None:
        """Click on a square of a board that White is below."""
        self.until(lambda: self.ask(f"return document.querySelector('{selector} svg')"))
        place = chess.parse_square(square)
        across, down = chess.square_file(place) + 0.5, 7.5 - chess.square_rank(place)
        self.ask(
            f"const svg = document.querySelector('{selector} svg'), box = svg.getBoundingClientRect();"
            "svg.dispatchEvent(new MouseEvent('click', {bubbles: true,"
            f"clientX: box.left + box.width * {across / 8},"
            f"clientY: box.top + box.width * {down / 8}}}))"
        )


@pytest.fixture(params=[1280, 390])
def visitor(browser: Any, port: int, request: pytest.FixtureRequest) -> Iterator[Visitor]:
    yield Visitor(browser, port, request.param)
    assert browser.overflow() <= 0, "no sideways scrolling"
    assert not [line for line in browser.console() if "favicon" not in line]


@pytest.mark.slow
def test_ask(visitor: Visitor) -> None:
    for square in ("e2", "e4"):
        visitor.click(".board", square)
        time.sleep(1)
    visitor.until(lambda: " b KQkq - 0 1" in visitor.text("#position textarea"))
    visitor.press("Analyse")
    visitor.until(lambda: "best move of rookworld-nano" in visitor.text("#answer"))
    assert visitor.ask("return document.querySelectorAll('#answer .card > svg').length") == 1
    visitor.fill("#move textarea, #move input", "e7e9")
    visitor.press("What does it lead to?")
    visitor.until(lambda: "give a legal move" in visitor.text("#answer .fault"))
    visitor.fill("#move textarea, #move input", "e5")
    visitor.press("What does it lead to?")
    visitor.until(lambda: "move number" in visitor.text("#answer"))
    visitor.fill("#position textarea", "1. e4 e5 2. Nf3")
    visitor.press("Analyse")
    visitor.until(lambda: "Nc6" in visitor.text("#answer") or "Nf6" in visitor.text("#answer"))


@pytest.mark.slow
def test_rewards(visitor: Visitor) -> None:
    visitor.press("Rewards", TAB)
    visitor.fill("#answers textarea", f"M: e2e4 E: 0.3 B: e2e4\n{SCRIPT}")
    visitor.until(lambda: "Group of 2" in visitor.text("#rewards"))
    table = visitor.text("#rewards")
    assert "policy_legality" in table and "advantage" in table
    assert SCRIPT.split("=")[0] in table, "shown as text"
    assert visitor.ask("return document.title") != "run"
    visitor.press("Sample 8")
    visitor.until(lambda: "Group of 8" in visitor.text("#rewards"))
    visitor.fill("#prompt textarea", "P: nonsense")
    visitor.until(lambda: "a FEN has six fields" in visitor.text("#rewards .fault"))


@pytest.mark.slow
def test_play_and_runs(visitor: Visitor) -> None:
    visitor.press("Play", TAB)
    visitor.click("#game", "d2")
    time.sleep(1)
    visitor.click("#game", "d4")
    visitor.until(lambda: "1. d4 " in visitor.text("#pgn textarea"))
    assert "White to move" in visitor.text("#state")
    visitor.press("Runs", TAB)
    visitor.press("Show")
    visitor.until(lambda: visitor.ask("return document.querySelectorAll('iframe.report').length"))
    shown = visitor.ask("return document.querySelector('iframe.report').srcdoc")
    assert "did not finish" in shown and SCRIPT not in shown
    assert visitor.ask("return document.querySelector('iframe.report').sandbox.length") == 0


def test_it_listens_here_alone_and_serves_no_files(port: int) -> None:
    assert status(port, "/") == 200
    assert status(port, "/", "attacker.example") == 400
    paths = ["/etc/passwd", "../../etc/passwd", str(Path(__file__)), "pyproject.toml"]
    paths = [f"/gradio_api/file={path}" for path in paths]
    for path in (*paths, "/static/../../../../etc/passwd", "/../../etc/passwd"):
        assert status(port, path) in (403, 404)
    assert free_port(LOOPBACK, port) == port + 1
    with pytest.raises(RookWorldError, match=f"--port {port}: taken"):
        free_port(LOOPBACK, port, 1)


def test_a_model_that_is_not_offered_is_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(RookWorldError, match="'/etc' is not one of the models"):
        analyses(Backend(["rookworld-nano"], tmp_path, is_private=True), "", ["/etc"])


def test_bad_arguments_are_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    for line, said in (
        ("--model runs/nope", "--model: there is no folder 'runs/nope'"),
        ("--host 198.51.100.7", "taken, or not of this machine"),
        ("--space .", "is not empty; give another folder"),
        ("--space /proc/space", "--space: cannot write to '/proc/space' (No such file"),
    ):
        assert main(line.split()) == 2
        assert said in capsys.readouterr().err


def test_boards_are_read_as_people_have_them() -> None:
    assert read_board("").fen() == read_board(chess.STARTING_FEN).fen() == chess.STARTING_FEN
    assert read_board("1. e4 e5 2. Nf3").move_stack[-1] == chess.Move.from_uci("g1f3")
    with pytest.raises(RookWorldError, match=r"PGN: illegal san: 'Nf6'"):
        read_board("1. e4 e5 2. Nf6")
    with pytest.raises(RookWorldError, match="PGN: 'Sf3' is not standard notation"):
        read_board("1. e4 e5 2. Sf3")
    for fen, said in (
        ("4k3/8/8/8/8/8/8/4K3 w KQkq - 0 1", "castling rights without king and rook at home"),
        ("4k3/8/8/8/8/8/8/4K3 w - e6 0 1", "an en passant square that no pawn has just passed"),
    ):
        for text in (fen, f'[FEN "{fen}"]\n\n1. Kd2 *'):
            with pytest.raises(RookWorldError, match=said):
                read_board(text)
    with pytest.raises(RookWorldError, match="PGN: it is of the variant 'Atomic'"):
        read_board('[Variant "Atomic"]\n\n1. e4 d5 2. exd5 *')
    assert [square_at(0.99, 0.99), square_at(0.01, 0.01, chess.BLACK)] == [chess.H1, chess.H1]
