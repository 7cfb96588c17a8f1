"""The page: what is where, and what happens when something is pressed or typed."""

from __future__ import annotations

import contextlib
import functools
import html
import random
import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import chess
import gradio as gr
import yaml

from ...common.errors import RookWorldError
from ...common.extras import extra
from ...common.files import find_recipe, read_keys
from ...inference.replies import choose, read_legal_move, record_of, reply_of
from ...tasks.policy import parse_policy_answer, write_policy_prompt
from .backend import Backend
from .render import (
    BlockError,
    analyses,
    drawn,
    end_of,
    fault,
    read_board,
    rewards_shown,
    scene,
    simulations,
    square_at,
)
from .run_list import described, runs_with_reports

_HERE = Path(__file__).parent
STYLE = (_HERE / "web.css").read_text("utf-8")
_CLICKED = (_HERE / "web.js").read_text("utf-8")
_FITTED = (_HERE / "web_report.js").read_text("utf-8")
_SEEN = (_HERE / "web_answer.js").read_text("utf-8")

Notes = dict[int, str]
"""Ply of a game → why the move before it is not the model's best move."""

_TITLE = "<h1>RookWorld</h1> <span>A language model of chess.</span>"
_BARE = {"apply_default_css": False}  # the page's own style sheet is enough
_MOVE, _EMPTY = "move", "empty"
_PIECES = [_MOVE, *(piece for piece in "KQRBNPkqrbnp"), _EMPTY]
_EXAMPLES = {
    "The first move": chess.STARTING_FEN,
    "A Sicilian, as a PGN": "1. e4 c5 2. Nf3",
    "An endgame": "8/5pk1/6p1/8/3R4/6P1/r4PK1/8 w - - 0 41",
}


def page(models: Sequence[str], runs: Path, is_private: bool = True) -> gr.Blocks:
    """The page with its four tabs; models but the first are loaded when they are asked.

    Args:
        models: Names of models to choose from.
        runs: The folder of runs.
        is_private: Whether the page is for this machine alone.
    """
    backend = Backend(models, runs, is_private)
    threading.Thread(target=backend.warm_up, daemon=True).start()
    with gr.Blocks(title="RookWorld", analytics_enabled=False) as blocks:
        gr.HTML(_TITLE, **_BARE)
        with gr.Tab("Ask") as ask:
            names = _ask(backend)
        with gr.Tab("Rewards") as rewards:
            model = _rewards(backend, rewards)
        with gr.Tab("Play") as play:
            opponent = _play(backend)
        with gr.Tab("Runs") as tab:
            again = _runs(backend, tab)
        lists = [names, model, opponent]
        selected = [tab.select for tab in (ask, rewards, play)]
        gr.on(
            [blocks.load, *selected, again.click],
            functools.partial(_offered, backend),
            lists,
            lists,
            show_progress="hidden",
        )
    return blocks


def _offered(backend: Backend, asked: Sequence[str], *chosen: str) -> list[Any]:
    """The lists of models as they are now; what is chosen stays chosen while it is there."""
    found = backend.models()
    kept = [name for name in asked if name in found]
    group = gr.CheckboxGroup(found, **({} if kept == asked else {"value": kept}))
    return [
        group,
        *(gr.Dropdown(found, **({} if name in found else {"value": found[0]})) for name in chosen),
    ]


def _shown(work: Callable[..., Any]) -> Callable[..., str]:
    """A function whose errors are shown where its result would be."""

    @functools.wraps(work)
    def shown(*inputs: Any) -> str:
        try:
            return str(work(*inputs))
        except RookWorldError as error:
            return str(fault(error))

    return shown


def _scene(text: str, picked: int | None = None) -> str:
    """The board of a text that may be half typed: as far as it can be read."""
    try:
        return str(scene(read_board(text), picked))
    except RookWorldError:
        board = chess.BaseBoard.empty()
        with contextlib.suppress(ValueError, IndexError):
            board.set_board_fen(text.split()[0])
        return str(scene(board, picked))


# --------------------------------------------------------------------------------------------------
# Ask
# --------------------------------------------------------------------------------------------------
def _ask(backend: Backend) -> gr.CheckboxGroup:
    with gr.Row(elem_id="asking"):
        with gr.Column(scale=5, min_width=300):
            board = gr.HTML(
                _scene(""), elem_classes="board", elem_id="asked", js_on_load=_CLICKED, **_BARE
            )
            whose = gr.Radio(visible=False, label="Arrows of", elem_id="whose")
            with gr.Accordion("Set up position", open=False, elem_id="setup"):
                piece = gr.Radio(
                    _PIECES,
                    value=_MOVE,
                    label="A click on the board makes a move, or sets this piece",
                )
        with gr.Column(scale=6, min_width=300):
            text = gr.Textbox(
                chess.STARTING_FEN, label="FEN or PGN", lines=1, max_lines=4, elem_id="position"
            )
            with gr.Row():
                examples = [gr.Button(name, size="sm", min_width=90) for name in _EXAMPLES]
            with gr.Row(equal_height=True):
                names = gr.CheckboxGroup(
                    backend.models(),
                    value=backend.models()[:1],
                    label="Models",
                    elem_id="models",
                    scale=3,
                    min_width=180,
                )
                ask = gr.Button("Analyse", variant="primary", min_width=120)
            with gr.Row(equal_height=True):
                move = gr.Textbox(
                    "e4",
                    label="Try a move",
                    placeholder="e4 or e2e4; in UCI it may be illegal: e2e5",
                    elem_id="move",
                    scale=3,
                    min_width=180,
                )
                step = gr.Button("Let the model simulate it", min_width=200)
            answer = gr.HTML(elem_id="answer", js_on_load=_SEEN, **_BARE)
    picked, scenes = gr.State(None), gr.State({})
    redrawn = [board, picked, answer, whose]

    def click(fen: str, kind: str, start: int | None, event: gr.EventData) -> tuple[Any, ...]:
        after, start = _clicked(fen, kind, start, square_at(event.x, event.y))
        if after == fen:  # the answer is still one to this position
            return fen, _scene(fen, start), start, gr.skip(), gr.skip()
        return after, *changed(after)

    def changed(fen: str) -> tuple[Any, ...]:
        return _scene(fen), None, "", gr.Radio(visible=False)

    def analysed(fen: str, asked: Sequence[str]) -> tuple[Any, ...]:
        try:
            boards, cards = analyses(backend, fen, asked)
        except RookWorldError as error:
            return _scene(fen), None, str(fault(error)), gr.Radio(visible=False), {}
        first = next(iter(boards))
        choice = gr.Radio(list(boards), value=first, visible=len(boards) > 1)
        return boards[first], None, str(cards), choice, boards

    board.click(click, [text, piece, picked], [text, *redrawn], show_progress="hidden")
    text.input(changed, text, redrawn, show_progress="hidden")
    gr.on(
        [ask.click, text.submit],
        analysed,
        [text, names],
        [*redrawn, scenes],
        show_progress_on=answer,
    )
    for button, given in zip(examples, _EXAMPLES.values(), strict=True):
        button.click(functools.partial(_example, given), None, [text, move]).then(
            analysed, [text, names], [*redrawn, scenes], show_progress_on=answer
        )
    whose.input(lambda name, boards: boards[name], [whose, scenes], board, show_progress="hidden")
    simulated = _shown(lambda *given: simulations(backend, *given))
    gr.on([step.click, move.submit], simulated, [text, move, names], answer)
    return names


def _example(given: str) -> tuple[str, str]:
    """The position of an example, and the move field: a move belongs to one position."""
    return given, ""


def _clicked(text: str, kind: str, start: int | None, square: int) -> tuple[str, int | None]:
    """The position after a click on a square, and the square that a move starts from."""
    if kind != _MOVE:
        pieces, *rest = (text.split() or [""]) if "/" in text else [chess.STARTING_BOARD_FEN]
        board = chess.BaseBoard.empty()
        with contextlib.suppress(ValueError):
            board.set_board_fen(pieces)
        board.set_piece_at(square, None if kind == _EMPTY else chess.Piece.from_symbol(kind))
        return " ".join([board.board_fen(), *(rest or ["w", "-", "-", "0", "1"])]), None
    try:
        game = read_board(text)
    except RookWorldError:
        return text, None
    if start is None or start == square:
        return text, None if start == square or game.piece_at(square) is None else square
    try:
        game.push(game.find_move(start, square))  # a pawn becomes a queen
    except chess.IllegalMoveError:
        return text, square if game.piece_at(square) is not None else None
    return game.fen(), None


# --------------------------------------------------------------------------------------------------
# Rewards
# --------------------------------------------------------------------------------------------------
def _rewards(backend: Backend, tab: gr.Tab) -> gr.Dropdown:
    rewards = read_keys(find_recipe("grpo_nano"))["rewards"]
    block = yaml.safe_dump({"rewards": rewards}, sort_keys=False)
    with gr.Row():
        with gr.Column(scale=7, min_width=300):
            prompt = gr.Textbox(
                write_policy_prompt(chess.STARTING_FEN), label="Prompt", lines=1, elem_id="prompt"
            )
            with gr.Row():
                other = gr.Button("Another prompt", size="sm", min_width=120)
                sample = gr.Button("Sample 8", size="sm", variant="primary", min_width=120)
            answers = gr.Textbox(
                label="Answers, one a line: edit them, and the rewards follow",
                lines=8,
                max_lines=8,
                elem_id="answers",
            )
            table = gr.HTML(elem_id="rewards", **_BARE)
        with gr.Column(scale=3, min_width=260):
            with gr.Accordion("The recipe's rewards", elem_id="block"):
                recipe = gr.Code(block, language="yaml", label="To edit and to copy")
                wrong = gr.HTML(elem_id="wrong", **_BARE)
            scale = gr.Radio(["group", "batch", "none"], value="group", label="scale_rewards")
            model = gr.Dropdown(
                backend.models(), label="Model", value=backend.models()[0], elem_id="judged"
            )
            heat = gr.Slider(0.1, 2.0, 1.0, step=0.1, label="Temperature")

    def judge(asked: str, said: str, given: str, how: str, name: str) -> tuple[str, str]:
        """The table, and what is wrong with the block."""
        lines = said.splitlines() or [""]
        try:
            return str(rewards_shown(backend, name, asked, lines, given, how)), ""
        except BlockError as error:
            return "", str(fault(error))
        except RookWorldError as error:
            return str(fault(error)), ""

    def sampled(asked: str, name: str, temperature: float) -> str:
        try:
            texts = backend.sample(name, asked, 8, temperature)
        except RookWorldError as error:
            raise gr.Error(str(error)) from error
        return "\n".join(" ".join(text.splitlines()) for text in texts)

    def first(said: str, asked: str, name: str, temperature: float) -> Any:
        """Answers for a tab that is opened without any."""
        return gr.skip() if said else sampled(asked, name, temperature)

    inputs = [prompt, answers, recipe, scale, model]
    gr.on([box.change for box in inputs], judge, inputs, [table, wrong], show_progress="hidden")
    tab.select(first, [answers, prompt, model, heat], answers)
    sample.click(sampled, [prompt, model, heat], answers)
    other.click(lambda: random.choice(_prompts()), None, prompt).then(
        sampled, [prompt, model, heat], answers
    )
    return model


@functools.cache
def _prompts() -> list[str]:
    from ...data.loading import load_rows  # with torch and datasets, which take seconds

    rows = load_rows(
        tasks=["environment", "policy", "fill_in"], synthetic_rows=300, heldout_rows=100
    )
    return list(rows["test"]["prompt"])


# --------------------------------------------------------------------------------------------------
# Play
# --------------------------------------------------------------------------------------------------
def _play(backend: Backend) -> gr.Dropdown:
    first = backend.models()[0]
    with gr.Row():
        with gr.Column(scale=5, min_width=300):
            state = gr.HTML(_turn(chess.Board(), True, first), elem_id="state", **_BARE)
            board = gr.HTML(
                str(drawn(chess.Board())),
                elem_classes="board",
                elem_id="game",
                js_on_load=_CLICKED,
                **_BARE,
            )
        with gr.Column(scale=6, min_width=300):
            move = gr.Textbox(label="Your move: click two squares, or type it", elem_id="played")
            problem = gr.HTML(elem_id="problem", **_BARE)
            moves = gr.HTML(_moves(chess.Board(), {}), elem_id="moves", **_BARE)
            with gr.Row():
                model = gr.Dropdown(
                    backend.models(), label="Against", value=first, min_width=220, elem_id="against"
                )
                side = gr.Radio(["White", "Black"], value="White", label="You play", min_width=180)
            new = gr.Button("New game")
            with gr.Accordion("PGN, with its headers", open=False):
                pgn = gr.Textbox(
                    label="PGN", show_label=False, lines=6, buttons=["copy"], elem_id="pgn"
                )
    game, picked, faults = gr.State(chess.Board()), gr.State(None), gr.State({})
    shown = [board, game, picked, faults, state, moves, pgn, move, problem]
    asked = [game, faults, model, side]

    def play(game: chess.Board, notes: Notes, name: str, colour: str, typed: str) -> Iterator[Any]:
        """The human's move if one is given, then the model's."""
        game, human, said = game.copy(), colour == "White", ""
        try:
            if typed and not game.is_game_over():
                check_turn(game, human, name)
                game.push(read_legal_move(game, typed))
            if game.turn != human and not game.is_game_over():
                yield _game(game, human, notes, name, "")
                (text,) = backend.complete(name, [write_policy_prompt(game.fen())])
                choice = choose(game, reply_of(text, parse_policy_answer))
                if choice.comment:
                    notes = {**notes, game.ply() + 1: choice.comment}
                game.push(choice.move)
        except RookWorldError as error:
            said = str(fault(error))
        yield _game(game, human, notes, name, said)

    def click(
        game: chess.Board,
        notes: Notes,
        name: str,
        colour: str,
        start: int | None,
        event: gr.EventData,
    ) -> Iterator[Any]:
        human = colour == "White"
        square = square_at(event.x, event.y, human)
        if start is not None:
            with contextlib.suppress(chess.IllegalMoveError):
                move = game.find_move(start, square).uci()  # a pawn becomes a queen
                yield from play(game, notes, name, colour, move)
                return
        picked = square if square != start and game.color_at(square) == human else None
        view = str(drawn(game, human, picked))
        yield view, game, picked, notes, gr.skip(), gr.skip(), gr.skip(), "", gr.skip()

    def restart(name: str, colour: str) -> Iterator[Any]:
        yield from play(chess.Board(), {}, name, colour, "")

    gr.on([new.click, side.change], restart, [model, side], shown, show_progress="hidden")
    move.submit(play, [*asked, move], shown, show_progress="hidden")
    board.click(click, [*asked, picked], shown, show_progress="hidden")
    return model


def check_turn(game: chess.Board, human: bool, name: str) -> None:
    """Refuse a move that is typed while the model has its turn.

    Raises:
        RookWorldError: The model has not answered yet, or failed to.
    """
    if game.turn != human:
        raise RookWorldError(
            f"it is {name}'s turn; wait for its move, or press Enter in the empty field to ask again"
        )


def _game(game: chess.Board, human: bool, notes: Notes, name: str, said: str) -> tuple[Any, ...]:
    """Everything that is shown of a game."""
    record = record_of(game, *(("You", name) if human else (name, "You")), notes)
    note = notes.get(game.ply())
    said = said or (str(fault(note)) if note else "")
    view, turn, moves = str(drawn(game, human)), _turn(game, human, name), _moves(game, notes)
    return view, game, None, notes, turn, moves, str(record), "", said


def _turn(game: chess.Board, human: bool, name: str) -> str:
    """Whose turn it is, or how the game has ended."""
    stands = end_of(game)
    if not game.is_game_over():
        stands += ": your move" if game.turn == human else f": {name} is thinking"
    return f'<p class="turn">{html.escape(stands)}</p>'


def _moves(game: chess.Board, notes: Notes) -> str:
    """The moves so far; one that is not the model's best move is marked, as its note is in the PGN."""
    board, words = game.root(), list[str]()
    for move in game.move_stack:
        number = f"{board.fullmove_number}. " if board.turn or not words else ""
        words.append(number + board.san(move) + ("*" if notes.get(board.ply() + 1) else ""))
        board.push(move)
    note = "<br><small>* not the model's best move: the PGN says why</small>" if notes else ""
    return f'<p class="moves">{html.escape(" ".join(words)) or "No move yet."}{note}</p>'


# --------------------------------------------------------------------------------------------------
# Runs
# --------------------------------------------------------------------------------------------------
def _runs(backend: Backend, tab: gr.Tab) -> gr.Button:
    label = f"Runs in {backend.folder}, the newest first: several are drawn over one another"
    chosen = gr.CheckboxGroup([], label=label, elem_id="runs", visible=False)
    report = gr.HTML(elem_id="report", js_on_load=_FITTED, **_BARE)
    again = gr.Button("Look again", size="sm", elem_id="again")

    def look(chosen_before: Sequence[str]) -> tuple[Any, str]:
        """The list as it is now; the newest run is shown if none was chosen."""
        found = runs_with_reports(backend.runs())
        if not found:
            return gr.CheckboxGroup(visible=False), _no_runs(backend.folder)
        kept = [run for run in chosen_before if run in found] or found[:1]
        choices = [(described(Path(run), backend.folder), run) for run in found]
        return gr.CheckboxGroup(choices, value=kept, visible=True), reported(kept)

    @_shown
    def reported(runs: Sequence[str]) -> str:
        if not runs:
            raise RookWorldError("choose a run")
        if (reports := extra("report.page")) is None:  # with torch
            raise RookWorldError("rookworld report is not part of this copy")
        content = html.escape(str(reports.page_of(runs)))
        # Without allow-scripts nothing in it runs; with its origin, its height can be read.
        return (
            '<iframe class="report" sandbox="allow-same-origin" title="report" scrolling="no" '
            f'srcdoc="{content}"></iframe>'
        )

    gr.on([tab.select, again.click], look, chosen, [chosen, report])
    chosen.input(reported, chosen, report)
    return again


def _no_runs(folder: Path) -> str:
    command = "rookworld grpo --output_dir " + shlex.quote(str(folder / "first"))
    return (
        f"<p>No finished run is in {html.escape(str(folder))} yet. This command makes one with the "
        f"packaged model; then press “Look again”:</p><pre><code>{html.escape(command)}</code></pre>"
    )
