"""Pictures: what they show is read out of the SVG, squares by python-chess's own numbering."""

from xml.etree import ElementTree

import chess
import chess.svg

from rookworld_rlvr.tasks import boards
from rookworld_rlvr.tasks.registry import TASKS

from ..rows import AFTER_E4, START

# DOMAIN.md's row, Black to move.
BLACK = "2b3k1/Q4rqn/p2p4/4p3/p6p/2PP3P/BP3PP1/R5K1 b - - 0 34"
SVG = "{http://www.w3.org/2000/svg}"


def read(picture: str) -> ElementTree.Element:
    """One SVG element, well-formed, of a few kilobytes."""
    root = ElementTree.fromstring(picture)
    assert root.tag == f"{SVG}svg" and len(picture) < 40_000
    return root


def policy_board(completion: str, values: dict[str, int] | None = None) -> str:
    return TASKS["policy"].board({"fen": START}, completion, values)


def environment_boards(completion: str) -> str:
    return TASKS["environment"].board({"prompt": "", "fen": START, "action": "e2e4"}, completion)


def words(picture: str) -> str:
    """The captions: what is written in a picture, but outside of its boards."""
    return " ".join(text.text or "" for text in read(picture).findall(f"{SVG}text"))


def coordinates(picture: str) -> dict[str, set[str]]:
    """What is written inside the boards, with the squares in which it stands as with White below."""
    found: dict[str, set[str]] = {}
    for board in read(picture).iter(f"{SVG}svg"):
        for text in board.findall(f"{SVG}text") if board.get("viewBox") == "0 0 360 360" else ():
            found.setdefault(text.text or "", set()).add(square(text.get("x"), text.get("y")))
    return found


def pieces(picture: str) -> int:
    return len(list(read(picture).iter(f"{SVG}use")))


def lines(picture: str, colour: str) -> list[ElementTree.Element]:
    return [line for line in read(picture).iter(f"{SVG}line") if line.get("stroke") == colour]


def square(x: str | None, y: str | None) -> str:
    """The square under a point, named as with White below."""
    column, row = (int(float(at or "") // chess.svg.SQUARE_SIZE) for at in (x, y))
    return chess.square_name(chess.square(column, 7 - row))


def marked(picture: str, colour: str) -> set[str]:
    """The squares that are filled."""
    found = (rect for rect in read(picture).iter(f"{SVG}rect") if rect.get("fill") == colour)
    return {square(rect.get("x"), rect.get("y")) for rect in found}


def test_it_is_seen_from_the_side_to_move() -> None:
    (line,) = lines(boards.position_board(BLACK, [boards.arrow("a4a1", "#123456")]), "#123456")
    # With Black below, a4 is where h5 is with White below, and a2, where the head begins, where h7 is.
    assert square(line.get("x1"), line.get("y1")) == "h5"
    assert square(line.get("x2"), line.get("y2")) == "h7"


def test_a_board_has_its_coordinates_from_either_side() -> None:
    white = coordinates(boards.position_board(BLACK.replace(" b ", " w ")))
    assert white["a"] == {"a1"} and white["h"] == {"h1"}
    assert white["1"] == {"a1"} and white["8"] == {"a8"} and len(white) == 16
    black = coordinates(boards.position_board(BLACK))  # h8 is where a1 is with White below
    assert black["h"] == black["8"] == {"a1"} and black["a"] == {"h1"} and black["1"] == {"a8"}


def test_a_board_marks_the_last_move_and_where_a_piece_can_go() -> None:
    plain = boards.draw_board(chess.Board(), chess.WHITE)
    picture = boards.draw_board(
        chess.Board(), chess.WHITE, last=chess.Move.from_uci("a2a4"), dots=[chess.E4]
    )
    dots = [c for c in read(picture).iter(f"{SVG}circle") if c.get("opacity") == "0.55"]
    assert [square(dot.get("cx"), dot.get("cy")) for dot in dots] == ["e4"]
    changed = set(read_fills(picture).items()) - set(read_fills(plain).items())
    assert {where for where, _ in changed} == {"a2", "a4"}


def read_fills(picture: str) -> dict[str, str]:
    """The colour of each square."""
    rects = read(picture).iter(f"{SVG}rect")
    return {square(rect.get("x"), rect.get("y")): rect.get("fill") or "" for rect in rects}


def test_a_policy_answer_has_its_moves_and_the_engine_s_best_and_an_illegal_one_is_red() -> None:
    answer = " M: e2e4 d2d4 g1f3 E: 0.3 0.3 0.2 B: d2d4"
    picture = policy_board(answer, {"e2e4": 35, "d2d4": 30, "a2a3": -10})
    assert len(lines(picture, "#1f5fbf70")) == 1 and len(lines(picture, "#1f5fbf")) == 1
    (best,) = lines(picture, "#1c8f4d")
    assert square(best.get("x1"), best.get("y1")) == "e2"
    assert words(picture) == "B d2d4, engine e2e4"
    picture = policy_board(answer, {"e2e4": 30, "d2d4": 30})
    assert not lines(picture, "#1c8f4d") and words(picture) == "B d2d4: best", "as good as any"
    rings = [c for c in read(picture).iter(f"{SVG}circle") if c.get("stroke") == "#1c8f4d"]
    assert [square(ring.get("cx"), ring.get("cy")) for ring in rings] == ["d4"]
    picture = policy_board(" M: e2e4 a1a1 E: 0.3 B: e2e5")
    assert [square(line.get("x1"), line.get("y1")) for line in lines(picture, "#d42a1e")] == ["e2"]
    assert len(list(read(picture).iter(f"{SVG}circle"))) == 6, "a1a1 goes nowhere; queens have five"
    assert words(picture) == "B e2e5 (illegal)"


def test_an_environment_answer_has_its_wrong_squares_marked() -> None:
    d4 = AFTER_E4.replace("4P3/8/PPPP1PPP", "3P4/8/PPP1PPPP").replace(" b ", " w ")
    picture = environment_boards(f"{d4}+0.001+0+0")
    assert marked(picture, "#d42a1e") == marked(picture, "#1c8f4d") == {"d4", "e4", "d2", "e2"}
    assert pieces(picture) == 64, "32 pieces on each of two boards"
    assert words(picture).startswith("wrong: board, side to move w (right: b)")


def test_a_wrong_en_passant_square_is_marked_and_what_is_not_on_the_board_is_told() -> None:
    picture = environment_boards(f"{AFTER_E4.replace(' - 0 ', ' e3 0 ')}+0.001+0+0")
    assert marked(picture, "#d42a1e") == {"e3"} and not marked(picture, "#1c8f4d")
    assert words(picture).startswith("wrong: en passant e3 (right: -)")
    picture = environment_boards(f"{AFTER_E4.replace(' KQkq ', ' KQ ')}+0.001+0+0")
    assert not marked(picture, "#d42a1e") and "castling KQ (right: KQkq)" in words(picture)


def test_what_cannot_be_read_says_so() -> None:
    for text in ("", "rubbish <&>", "M: B:", f"{START}+1", "\x00\ud800", "9" * 5000):
        policy, environment = policy_board(text, {"e2e4": 30}), environment_boards(text)
        assert all(words(shown).startswith("unreadable") for shown in (policy, environment))
        assert len(lines(policy, "#1c8f4d")) == 1, "the engine's move stands there all the same"
        assert pieces(environment) == 32, "the true board alone"


RANK = f"F: {START}+e2e4+e2e4+{AFTER_E4.replace('/4P3/', '/[MASK]/')}+0.001+0+0+"
CASTLING = (
    "F: r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 20+[MASK]+[MASK]+"
    "r3k2r/8/8/8/8/8/8/R4RK1 b kq - 1 20+0.001+0+0+"
)
ACTION = f"F: {START}+[MASK]+[MASK]+{AFTER_E4}+0.001+0+0+"


def test_a_fill_in_answer_is_named_below_the_state() -> None:
    for prompt, answer, said in (
        (RANK, " 3P4", "wrong: rank 3P4; fits: 4P3"),
        (RANK, " 4P3", "right: rank 4P3; fits: 4P3"),
        (ACTION, " e2e5", "wrong: action e2e5; fits: e2e4"),
        (CASTLING, "e1h1", "right: action e1h1; fits: e1g1, or 1 more"),
    ):
        picture = TASKS["fill_in"].board({"prompt": prompt}, answer)
        assert words(picture) == said
        assert len(lines(picture, "#5b6470")) == 1 and pieces(picture) > 0
