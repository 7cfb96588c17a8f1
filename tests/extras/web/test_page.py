"""The page as a visitor uses it: each tab in Chromium, at two widths; and what it refuses."""

import functools
import http.client
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chess
import gradio
import pytest

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.common.files import asset_path
from rookworld_rlvr.common.stats import proportion
from rookworld_rlvr.extras.web.__main__ import main
from rookworld_rlvr.extras.web.app import LOOPBACK, free_port, launch
from rookworld_rlvr.extras.web.backend import Backend
from rookworld_rlvr.extras.web.reach import beyond, trained_plies
from rookworld_rlvr.extras.web.render import (
    BlockError,
    analyses,
    candidates,
    read_board,
    rewards_shown,
    simulations,
    square_at,
)
from rookworld_rlvr.extras.web.run_list import described, runs_with_reports
from rookworld_rlvr.inference.replies import reply_of
from rookworld_rlvr.tasks.policy import parse_policy_answer
from rookworld_rlvr.training.results import write_results

TAB = "[role=tab]"
SCRIPT = "<script>document.title = 'run'</script>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def port(runs: Path) -> Iterator[int]:
    """Where the page is served, for the packaged model and a run that is not finished."""
    run = runs / "mine"
    run.mkdir()
    resolved = f"num_generations: 4\nrewards: []\nrun_name: {SCRIPT!r}\n"
    (run / "resolved_config.yaml").write_text(resolved)
    found = free_port(LOOPBACK, 7900 + 10 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # it asks for its own page without a proxy
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
        self.browser, self.ask, self.width = browser, browser.ask, width
        browser.size(width, "dark" if width < 600 else "light")
        browser.driver.get(f"http://{LOOPBACK}:{port}/")
        self.until(lambda: self.text("h1") == "RookWorld")

    def text(self, selector: str) -> str:
        """What stands in an element, or in a field; empty if it is not there."""
        found = f"const e = document.querySelector('{selector}');"
        return str(self.ask(f"{found} return e?.value ?? e?.innerText ?? ''"))

    def count(self, selector: str) -> int:
        """How many elements a selector finds."""
        return int(self.ask(f"return document.querySelectorAll('{selector}').length"))

    def until(self, holds: Callable[[], Any], seconds: float = 60) -> None:
        ends = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < ends, self.ask("return document.body.innerText")
            time.sleep(0.1)

    def press(self, words: str, role: str = "") -> None:
        """Press the visible button with these words; a tab has that role."""
        script = f"const found = [...document.querySelectorAll('button{role}')].find("
        script += f"b => b.innerText.trim().split('\\n')[0] === {words!r} && b.offsetParent);"
        self.until(lambda: self.ask(f"{script} found?.click(); return Boolean(found)"))

    def type(self, selector: str, text: str) -> None:
        """Type a text with the keyboard, in place of what a field holds."""
        field = self.browser.driver.find_element("css selector", selector)
        field.clear()
        field.send_keys(text)

    def fill(self, selector: str, text: str) -> None:
        """Set a field at once; only a change is noticed, not the typing."""
        self.until(lambda: self.ask(f"return document.querySelector('{selector}')"))
        self.ask(
            f"const e = document.querySelector('{selector}'); const type = Object.getPrototypeOf(e);"
            f"Object.getOwnPropertyDescriptor(type, 'value').set.call(e, {text!r});"
            "e.dispatchEvent(new Event('input', {bubbles: true}))"
        )

    def place(self, selector: str) -> list[float]:
        """Top and bottom of what is there, in the window: 0 is its upper edge."""
        found = f"const box = document.querySelector('{selector}').getBoundingClientRect();"
        return list(self.ask(f"{found} return [box.top, box.bottom]"))

    def contrast(self, selector: str) -> float:
        """How much a text stands out from what is behind it; 4.5 is enough to read it."""
        return float(self.ask(_CONTRAST % selector))

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


_CONTRAST = """
const paint = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const light = colours => {
  for (const colour of colours) { paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1); }
  const [r, g, b] = [...paint.getImageData(0, 0, 1, 1).data].map(
    v => v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const text = document.querySelector('%s'), behind = [];
for (let e = text; e; e = e.parentElement) behind.unshift(getComputedStyle(e).backgroundColor);
const [low, high] = [light(behind), light([...behind, getComputedStyle(text).color])].sort(
  (a, b) => a - b);
return (high + 0.05) / (low + 0.05);
"""


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
    assert visitor.text("#asked .turn") == "Black to move"
    visitor.press("Analyse")
    visitor.until(lambda: "best move of rookworld-nano" in visitor.text("#answer"))
    assert visitor.count("#asked line") >= 4, "the candidates as arrows on the board"
    assert visitor.count("#answer svg") == 0, "which is the only one"
    assert "Stockfish's best" in visitor.text("#asked .legend")
    assert visitor.count("#answer .candidates tbody tr") == 5
    if visitor.width == 1280:  # without scrolling
        assert visitor.ask("return scrollY") == 0
        bottoms = "[...document.querySelectorAll('#answer .card, #asked .legend')].map(bottom)"
        bottom = "const bottom = e => e.getBoundingClientRect().bottom;"
        assert max(visitor.ask(f"{bottom} return {bottoms}")) <= 800
    else:  # the answer is under the board, and what is typed in below it
        order = ("#asked", "#answer", "#position", "#move", "#setup")
        tops = [visitor.place(selector)[0] for selector in order]
        assert tops == sorted(tops)
    visitor.ask("document.querySelector('#setup').scrollIntoView()")
    visitor.fill("#move textarea, #move input", "e7e9")
    visitor.press("Let the model simulate it")
    visitor.until(lambda: "give a legal move" in visitor.text("#answer .fault"))
    visitor.until(lambda: visitor.place("#answer .fault")[0] >= 0)  # seen without scrolling
    assert visitor.place("#answer .fault")[1] <= visitor.ask("return innerHeight")
    assert visitor.contrast("#answer .fault") >= 4.5
    assert visitor.contrast("button.primary") >= 4.5
    assert visitor.contrast("[role=tab][aria-selected=true]") >= 4.5
    visitor.fill("#move textarea, #move input", "e5")
    visitor.press("Let the model simulate it")
    visitor.until(lambda: "the state after e5" in visitor.text("#answer"))
    assert visitor.count("#answer .fields tbody tr") == 9
    visitor.fill("#position textarea", "1. e4 e5 2. Nf3")
    visitor.press("Analyse")
    visitor.until(lambda: "Nc6" in visitor.text("#answer") or "Nf6" in visitor.text("#answer"))


@pytest.mark.slow
def test_ask_about_what_was_not_trained_on(visitor: Visitor) -> None:
    visitor.press("An endgame")
    visitor.until(lambda: "at least 80 half-moves" in visitor.text("#answer .card"))
    assert visitor.text("#move textarea, #move input") == "", "it was one of another position"
    assert "trained on openings of at most 6" in visitor.text("#answer")
    visitor.type("#position textarea", "rnbqkbnr/pppppppp/8/8/PP")
    visitor.until(lambda: visitor.text("#asked .turn") == "Not a whole position yet")
    assert visitor.text("#answer") == "", "what was said of another position is gone"
    visitor.press("Analyse")
    visitor.until(lambda: "a FEN has six fields" in visitor.text("#answer .fault"))


@pytest.mark.slow
def test_rewards(visitor: Visitor) -> None:
    visitor.press("Rewards", TAB)
    visitor.until(lambda: "Group of 8" in visitor.text("#rewards"))  # sampled without being asked
    table = "#rewards .answers tbody tr"
    assert visitor.place("#answers")[1] <= visitor.place(table)[0], "the input is above"
    assert visitor.place(table)[1] - visitor.place("#answers")[0] < 500, "and both are in sight"
    if visitor.width < 600:  # the block is folded away until it is asked for
        assert not visitor.ask("return document.querySelector('#block .cm-content').offsetParent")
        visitor.press("The recipe's rewards")
    visitor.until(
        lambda: visitor.ask("return document.querySelector('#block .cm-content').offsetParent")
    )
    visitor.fill("#answers textarea", f"M: e2e4     E: 0.3 B: e2e4\n{SCRIPT}")
    visitor.until(lambda: "Group of 2" in visitor.text("#rewards"))
    row = "#rewards .answers tbody tr:nth-child(1)"
    assert visitor.text(f"{row} th") == "M: e2e4 E: 0.3 B: e2e4", "without the blanks"
    labels = visitor.ask(
        f"return [...document.querySelectorAll('{row} td')].map(e => e.dataset.label)"
    )
    in_block = ["policy_best_move", "policy_candidates", "total", "advantage"]
    assert labels[:4] == in_block, "those of the block that apply, then what becomes of them"
    assert "Not for this prompt: environment_exact, environment_state." in visitor.text("#rewards")
    assert not visitor.ask("return document.querySelector('#rewards details').open")
    assert "policy_legality" in str(
        visitor.ask("return document.querySelector('#rewards').innerHTML")
    )
    assert SCRIPT.split("=")[0] in visitor.text("#rewards"), "shown as text"
    assert visitor.ask("return document.title") != "run"
    visitor.ask("document.querySelector('#block .cm-content').textContent = 'rewards: nothing'")
    visitor.until(lambda: "rewards" in visitor.text("#block .fault"))  # under the block
    assert "in the configuration" not in visitor.text("#block .fault")
    assert visitor.text("#rewards") == ""
    visitor.ask(
        "document.querySelector('#block .cm-content').textContent = 'rewards: [{name: policy_format}]'"
    )
    visitor.until(lambda: visitor.count("#block .fault") == 0)
    visitor.press("Sample 8")
    visitor.until(lambda: "Group of 8" in visitor.text("#rewards"))
    visitor.fill("#prompt textarea", "P: nonsense")
    visitor.until(lambda: "a FEN has six fields" in visitor.text("#rewards .fault"))
    visitor.fill("#prompt textarea", "X: nothing")
    visitor.until(lambda: "a prompt starts with A:, P: or F:" in visitor.text("#rewards .fault"))


@pytest.mark.slow
def test_play_and_runs(visitor: Visitor) -> None:
    visitor.press("Play", TAB)
    assert visitor.text("#state") == "White to move: your move"
    arrow = "document.querySelector('#against input').getBoundingClientRect().width"
    assert visitor.ask(f"return {arrow}") > 120, "a model's name can be read"
    above = visitor.place("#game")
    visitor.type("#played textarea, #played input", "e9\n")
    visitor.until(lambda: "'e9' is not a move" in visitor.text("#problem .fault"))
    assert visitor.place("#game") == above, "the board stays where it is"
    visitor.click("#game", "d2")
    visitor.until(lambda: visitor.count("#game circle[opacity]") == 2)  # it may go to d3 and d4
    visitor.click("#game", "d4")
    visitor.until(lambda: re.fullmatch(r"1\. d4 \S+", visitor.text("#moves")))
    assert visitor.text("#problem") == ""
    visitor.until(lambda: visitor.text("#state") == "White to move: your move")
    visitor.press("PGN, with its headers")
    visitor.until(lambda: "1. d4 " in visitor.text("#pgn textarea"))
    assert '[White "You"]' in visitor.text("#pgn textarea")
    visitor.press("Runs", TAB)
    visitor.until(lambda: visitor.count("iframe.report"))  # the newest, without being asked
    assert "did not finish" in visitor.text("#runs")
    shown = visitor.ask("return document.querySelector('iframe.report').srcdoc")
    assert "did not finish" in shown and SCRIPT not in shown
    sandbox = visitor.ask("return [...document.querySelector('iframe.report').sandbox]")
    assert sandbox == ["allow-same-origin"], "no script in it runs"
    inside = "document.querySelector('iframe.report').contentDocument.documentElement"
    visitor.until(lambda: visitor.ask(f"return {inside}.innerText.includes('did not finish')"))
    visitor.until(lambda: visitor.ask(f"return {inside}.scrollHeight <= {inside}.clientHeight + 1"))
    assert visitor.ask("return document.title") != "run"
    visitor.ask(f"{inside}.querySelector('nav a').click()")
    assert visitor.ask(f"return {inside}.innerText.includes('did not finish')"), "the report stays"


@pytest.mark.slow
def test_a_run_that_finishes_meanwhile_is_offered(browser: Any, port: int, runs: Path) -> None:
    visitor = Visitor(browser, port, 1280)
    visitor.press("Runs", TAB)
    visitor.until(lambda: visitor.count("iframe.report"))
    shutil.copytree(asset_path("rookworld-nano"), runs / "late")
    (runs / "late" / "resolved_config.yaml").write_text("max_length: 9")  # not one of GRPO
    try:
        visitor.press("Look again")
        visitor.press("Ask", TAB)
        visitor.until(lambda: "late" in visitor.text("#models"))
        assert visitor.ask("return document.querySelector('#models input').checked")
        visitor.ask("document.querySelectorAll('#models input')[1].click()")
        visitor.press("Analyse")
        visitor.until(lambda: visitor.count("#answer .card") == 2)
        for tab, lists in (("Rewards", "#judged"), ("Play", "#against")):
            visitor.press(tab, TAB)
            visitor.until(functools.partial(visitor.count, f"{lists} input"))
            field = browser.driver.find_element("css selector", f"{lists} input")
            field.click()
            visitor.until(lambda: "late" in visitor.text("ul.option-list"))
            field.send_keys("\ue00c")  # Escape
    finally:
        shutil.rmtree(runs / "late")
    browser.driver.get(f"http://{LOOPBACK}:{port}/")
    visitor.until(lambda: visitor.count("#models input") == 1)


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


@pytest.mark.parametrize(
    ("keys", "plies"),
    [
        ("model_name_or_path: rookworld-nano\ndataset_name: rookworld-nano-openings", (6, 7)),
        ("model_name_or_path: owner/large\ndataset_name: rookworld-nano-openings", (None, None)),
        ("model_name_or_path: rookworld-nano\ndataset_name: mine.jsonl", (None, None)),
        (
            "model_name_or_path: rookworld-nano\ndataset_name: rookworld-nano-openings\n"
            "synthetic_rows: 9\nsynthetic_shares: {openings: 1.0}\nsynthetic_opening_plies: 21",
            (6, 20),
        ),
        (
            "model_name_or_path: rookworld-nano\ndataset_name: rookworld-nano-openings\n"
            "synthetic_rows: 9\nsynthetic_shares: {middle_games: 1.0}",
            (6, None),
        ),
        ("][", (None, None)),
    ],
)
def test_it_knows_how_far_a_training_went_or_says_nothing(
    keys: str, plies: tuple[int | None, int | None], tmp_path: Path
) -> None:
    (tmp_path / "resolved_config.yaml").write_text(keys)
    assert tuple(trained_plies(str(tmp_path), t) for t in ("policy", "environment")) == plies
    endgame = chess.Board("8/5pk1/6p1/8/3R4/6P1/r4PK1/8 w - - 0 1")  # whatever its move number says
    assert ("at least 24 half-moves" in beyond(str(tmp_path), "policy", endgame)) == bool(plies[0])
    assert not beyond("rookworld-nano", "policy", chess.Board())


def test_an_answer_without_a_legal_move_says_so() -> None:
    fen = "4k3/8/8/8/8/8/8/4K3 w - - 0 1"
    reply = reply_of("M: e2e4 d2d4 E: 0.3 0.2 B: e2e4", parse_policy_answer)
    shown = candidates(chess.Board(fen), "some-model", reply, None)
    assert "Nothing legal: no move that some-model named can be played here." in shown
    assert shown.count('scope="row">illegal') == 2 and "install Stockfish" in shown
    reply = reply_of("M: e1d1 d2d4 E: 0.3 0.2 B: e1d1", parse_policy_answer)
    assert "Illegal here: 1 of the 2 moves" in candidates(chess.Board(fen), "x", reply, None)


def test_a_move_that_is_named_more_than_once_is_one_row() -> None:
    board = chess.Board("4k3/8/8/8/8/8/8/4K3 w - - 0 1")
    values = {move.uci(): 0 for move in board.legal_moves}
    reply = reply_of("M: e1f1 e1f1 e1f1 E: 0.0 0.0 0.0 B: e1f1", parse_policy_answer)
    shown = candidates(board, "x", reply, values)
    assert "x named one move three times." in shown
    assert shown.count('scope="row"') == 1 and "×3" in shown and shown.count("+0.00") == 3
    assert "best move of Stockfish: <b>Kf1 (+0.00)</b>, one of 5 equally good moves" in shown
    reply = reply_of("M: e1f1 e1d1 e1f1 E: 0.1 0.2 0.3 B: e1d1", parse_policy_answer)
    shown = candidates(board, "x", reply, values | {"e1f2": 1})
    assert "named one move" not in shown
    assert shown.count('scope="row"') == 2 and "+0.10, +0.30" in shown and "×2" in shown
    assert "best move of Stockfish: <b>Kf2 (+0.01)</b></p>" in shown, "no other is as good"


def test_the_faults_of_prompt_and_block_are_told_apart(tmp_path: Path) -> None:
    backend = Backend(["rookworld-nano"], tmp_path, is_private=True)

    def refused(prompt: str, block: str) -> RookWorldError:
        with pytest.raises(RookWorldError) as caught:
            rewards_shown(backend, "rookworld-nano", prompt, [""], block, "group")
        return caught.value

    said = refused("X: nothing", "rewards: []")
    assert str(said) == "a prompt starts with A:, P: or F:, not with 'X: nothing'"
    assert "six fields" in str(refused("P: nothing", "rewards: []"))
    prompt = f"A: {chess.STARTING_FEN}+e2e4+e2e4+"
    for block, fault in (("][", "not valid YAML"), ("rewards: [{name: nothing}]", "nothing")):
        said = refused(prompt, block)
        assert isinstance(said, BlockError) and fault in str(said)
        assert "in the configuration" not in str(said)


def test_a_right_answer_about_an_illegal_move_is_explained(tmp_path: Path) -> None:
    backend = Backend(["rookworld-nano"], tmp_path, is_private=True)
    shown = {move: simulations(backend, "", move, ["rookworld-nano"]) for move in ("e2e5", "a2a3")}
    right = "Right in all nine fields: it calls the move illegal, and the position stays as it was."
    assert right in shown["e2e5"] and "Right in all nine fields.<" in shown["a2a3"]


def test_the_runs_of_a_folder_are_told_in_a_line(tmp_path: Path) -> None:
    run = tmp_path / "mine"
    run.mkdir()
    config = run / "resolved_config.yaml"
    config.write_text("max_length: 9")
    assert runs_with_reports([str(run)]) == []
    config.write_text("num_generations: 4")
    assert runs_with_reports([str(run)]) == [str(run)]
    os.utime(config, (0, 0))
    assert re.match(r"mine · 1 Jan 1970, \d\d:\d\d · did not finish$", described(run, tmp_path))
    sides = ({"environment/exact": proportion(right, 10)} for right in (2, 7))
    write_results(run / "results.json", dict(zip(("before", "after"), sides, strict=True)))
    assert described(run, tmp_path).endswith("· environment/exact +50.0 points")


def test_boards_are_read_as_people_have_them() -> None:
    assert read_board("").fen() == read_board(chess.STARTING_FEN).fen() == chess.STARTING_FEN
    assert read_board("1. e4 e5 2. Nf3").move_stack[-1] == chess.Move.from_uci("g1f3")
    with pytest.raises(RookWorldError, match=r"PGN: illegal san: 'Nf6'"):
        read_board("1. e4 e5 2. Nf6")
    with pytest.raises(RookWorldError, match="PGN: 'Sf3' is not standard notation"):
        read_board("1. e4 e5 2. Sf3")
    for typed in ("rnbq", "8", "rnbqkbnr/pp", "b4/4", chess.STARTING_FEN[:40]):
        with pytest.raises(RookWorldError, match="a FEN has six fields"):
            read_board(typed)
    assert read_board("b4 d5").ply() == 2 and read_board("Nf3").ply() == 1
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


def test_runs_that_were_started_from_each_other_tell_no_depth(tmp_path: Path) -> None:
    for name, start in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        keys = f"model_name_or_path: {tmp_path / start}\ndataset_name: rookworld-nano-openings\n"
        (tmp_path / name / "resolved_config.yaml").write_text(keys)
    assert trained_plies(str(tmp_path / "a"), "policy") is None
