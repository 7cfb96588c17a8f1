"""The page: what is where, and what happens when something is pressed or typed."""

from __future__ import annotations

import contextlib
import functools
import html
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import chess
import gradio as gr
import yaml

from ...common.errors import RookWorldError
from ...common.extras import extra
from ...common.files import find_recipe, read_keys
from ...inference.model import choose, read_legal_move, record_of, reply_of
from ...tasks.policy import parse_policy_answer, write_policy_prompt
from .backend import Backend
from .render import (
    analyses,
    drawn,
    end_of,
    fault,
    read_board,
    rewards_shown,
    simulations,
    square_at,
)

STYLE = Path(__file__).with_name("web.css").read_text("utf-8")
_CLICKED = Path(__file__).with_name("web.js").read_text("utf-8")

Notes = dict[int, str]
"""Ply of a game → why the model's move before it was replaced."""

_MOVE, _EMPTY = "move", "empty"
_PIECES = [_MOVE, *(piece for piece in "KQRBNPkqrbnp"), _EMPTY]


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
        gr.Markdown("# RookWorld\nA language model that plays chess and simulates the board.")
        with gr.Tab("Ask"):
            _ask(backend)
        with gr.Tab("Rewards"):
            _rewards(backend)
        with gr.Tab("Play"):
            _play(backend)
        with gr.Tab("Runs"):
            _runs(backend)
    return blocks


def _shown(work: Callable[..., Any]) -> Callable[..., str]:
    """A function whose errors are shown where its result would be."""

    @functools.wraps(work)
    def shown(*inputs: Any) -> str:
        try:
            return str(work(*inputs))
        except RookWorldError as error:
            return str(fault(error))

    return shown


def _board(text: str, **how: Any) -> str:
    """The board of a text that may be half typed: as far as it can be read."""
    try:
        return str(drawn(read_board(text), **how))
    except RookWorldError:
        board = chess.BaseBoard.empty()
        with contextlib.suppress(ValueError, IndexError):
            board.set_board_fen(text.split()[0])
        return str(drawn(board, **how))


# --------------------------------------------------------------------------------------------------
# Ask
# --------------------------------------------------------------------------------------------------
def _ask(backend: Backend) -> None:
    with gr.Row():
        with gr.Column(min_width=300):
            board = gr.HTML(_board(""), elem_classes="board", js_on_load=_CLICKED)
            picked = gr.State(None)
            piece = gr.Radio(
                _PIECES,
                value=_MOVE,
                label="A click on the board: two squares make a move, or set a piece",
            )
        with gr.Column(min_width=300):
            text = gr.Textbox(chess.STARTING_FEN, label="FEN or PGN", lines=2, elem_id="position")
            names = gr.CheckboxGroup(backend.models(), value=backend.models()[:1], label="Models")
            ask = gr.Button("Analyse", variant="primary")
            move = gr.Textbox(
                "e4", label="A move, which may be illegal in UCI (e2e5)", elem_id="move"
            )
            step = gr.Button("What does it lead to?")
    answer = gr.HTML(elem_id="answer")

    def click(fen: str, kind: str, start: int | None, event: gr.EventData) -> tuple[Any, ...]:
        fen, start = _clicked(fen, kind, start, square_at(event.x, event.y))
        return fen, start, _board(fen, picked=start)

    board.click(click, [text, piece, picked], [text, picked, board], show_progress="hidden")
    text.input(lambda fen: (_board(fen), None), text, [board, picked], show_progress="hidden")
    analysed = _shown(lambda *given: analyses(backend, *given))
    simulated = _shown(lambda *given: simulations(backend, *given))
    ask.click(analysed, [text, names], answer)
    step.click(simulated, [text, move, names], answer)


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
def _rewards(backend: Backend) -> None:
    rewards = read_keys(find_recipe("grpo_nano"))["rewards"]
    block = yaml.safe_dump({"rewards": rewards}, sort_keys=False)
    with gr.Row():
        with gr.Column(min_width=300):
            prompt = gr.Textbox(
                write_policy_prompt(chess.STARTING_FEN), label="Prompt", lines=2, elem_id="prompt"
            )
            with gr.Row():
                other = gr.Button("Another prompt", size="sm")
                sample = gr.Button("Sample 8", size="sm", variant="primary")
            model = gr.Dropdown(backend.models(), label="Model", value=backend.models()[0])
            heat = gr.Slider(0.1, 2.0, 1.0, step=0.1, label="Temperature")
            answers = gr.Textbox(label="Answers, one a line", lines=8, elem_id="answers")
        with gr.Column(min_width=300):
            recipe = gr.Code(
                block, language="yaml", label="The recipe's block, to edit and to copy"
            )
            scale = gr.Radio(["group", "batch", "none"], value="group", label="scale_rewards")
    table = gr.HTML(elem_id="rewards")

    @_shown
    def judge(asked: str, said: str, given: str, how: str, name: str) -> Any:
        lines = said.splitlines() or [""]
        return rewards_shown(backend, name, asked, lines, given, how)

    def sampled(asked: str, name: str, temperature: float) -> str:
        try:
            texts = backend.sample(name, asked, 8, temperature)
        except RookWorldError as error:
            raise gr.Error(str(error)) from error
        return "\n".join(" ".join(text.splitlines()) for text in texts)

    inputs = [prompt, answers, recipe, scale, model]
    gr.on([box.change for box in inputs], judge, inputs, table, show_progress="hidden")
    sample.click(sampled, [prompt, model, heat], answers)
    other.click(lambda: random.choice(_prompts()), None, prompt)


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
def _play(backend: Backend) -> None:
    with gr.Row():
        with gr.Column(min_width=300):
            board = gr.HTML(_board(""), elem_classes="board", elem_id="game", js_on_load=_CLICKED)
        with gr.Column(min_width=300):
            model = gr.Dropdown(backend.models(), label="Against", value=backend.models()[0])
            side = gr.Radio(["White", "Black"], value="White", label="You play")
            new = gr.Button("New game", variant="primary")
            move = gr.Textbox(label="Your move: click two squares, or type it", elem_id="played")
            state = gr.HTML(elem_id="state")
            pgn = gr.Textbox(label="PGN", lines=4, buttons=["copy"], elem_id="pgn")
    game, picked, faults = gr.State(chess.Board()), gr.State(None), gr.State({})
    shown = [board, game, picked, faults, state, pgn, move]
    asked = [game, faults, model, side]

    def play(game: chess.Board, notes: Notes, name: str, colour: str, typed: str) -> Any:
        """The human's move if one is given, then the model's."""
        game, human, said = game.copy(), colour == "White", ""
        try:
            if typed and not game.is_game_over():
                game.push(read_legal_move(game, typed))
            if game.turn != human and not game.is_game_over():
                (text,) = backend.complete(name, [write_policy_prompt(game.fen())])
                choice = choose(game, reply_of(text, parse_policy_answer))
                if choice.fault:
                    notes = {**notes, game.ply() + 1: choice.fault}
                game.push(choice.move)
        except RookWorldError as error:
            said = str(fault(error))
        return _game(game, human, notes, name, said)

    def click(
        game: chess.Board,
        notes: Notes,
        name: str,
        colour: str,
        start: int | None,
        event: gr.EventData,
    ) -> Any:
        human = colour == "White"
        square = square_at(event.x, event.y, human)
        if start is not None:
            with contextlib.suppress(chess.IllegalMoveError):
                move = game.find_move(start, square).uci()  # a pawn becomes a queen
                return play(game, notes, name, colour, move)
        picked = square if start is None and game.color_at(square) == human else None
        view = str(drawn(game, human, picked))
        return view, game, picked, notes, gr.skip(), gr.skip(), ""

    def restart(name: str, colour: str) -> Any:
        return play(chess.Board(), {}, name, colour, "")

    gr.on([new.click, side.change], restart, [model, side], shown)
    move.submit(play, [*asked, move], shown)
    board.click(click, [*asked, picked], shown, show_progress="hidden")


def _game(game: chess.Board, human: bool, notes: Notes, name: str, said: str) -> tuple[Any, ...]:
    """Everything that is shown of a game."""
    record = record_of(game, *(("You", name) if human else (name, "You")), notes)
    replaced = notes.get(game.ply())
    said = said or (str(fault(replaced)) if replaced else "")
    words = f"<p>{html.escape(end_of(game))}</p>{said}"
    return str(drawn(game, human)), game, None, notes, words, str(record), ""


# --------------------------------------------------------------------------------------------------
# Runs
# --------------------------------------------------------------------------------------------------
def _runs(backend: Backend) -> None:
    def names() -> list[tuple[str, str]]:
        return [(str(Path(run).relative_to(backend.folder)), run) for run in backend.runs()]

    found = names()
    first = [run for _, run in found[:1]]
    chosen = gr.CheckboxGroup(found, value=first, label=f"Runs in {backend.folder}")
    with gr.Row():
        again = gr.Button("Look again", size="sm")
        show = gr.Button("Show", variant="primary", size="sm")
    report = gr.HTML(
        "" if found else f"<p>No run is in {html.escape(str(backend.folder))} yet.</p>"
    )

    def reported(runs: list[str]) -> str:
        if not runs:
            raise RookWorldError("choose a run")
        if (reports := extra("report.page")) is None:  # with torch
            raise RookWorldError("rookworld report is not part of this copy")
        content = html.escape(str(reports.page_of(runs)))
        return f'<iframe class="report" sandbox title="report" srcdoc="{content}"></iframe>'

    again.click(lambda: gr.CheckboxGroup(names()), None, chosen)
    show.click(_shown(reported), chosen, report)
