"""Plain English: no message, docstring, template, recipe or page of documentation is a riddle."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from .conftest import REPOSITORY

COMPARED = "longer|more|less|fewer|further|faster|slower|better|worse|larger|smaller|different"
FINE = rf"[Tt]here (is|are) (no|none)\b|(is|are) no ({COMPARED}|way|need)\b"
RIDDLE = (
    r"(is|are) (none|no \w+)\b|stands? (twice|once|there|in)\b|can(not| not)? be had\b"
    r"|could not be had\b|what is no\b|Most tokens of\b"
)
FOUND = re.compile(rf"\b(?P<fine>{FINE})|\b(?P<riddle>{RIDDLE})".replace(" ", r"[\s#]+"))
JINJA = re.compile(r"{[%{#].*?[%}#]}", re.S)
ROOMS = [REPOSITORY / name for name in ("rookworld_rlvr", "recipes", "docs", "environments")]
ENDS = {"*.py", "*.yaml", "*.j2", "*.md"}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file, each with the number of its first line."""
    content = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield 1, JINJA.sub(lambda code: re.sub(r"[^\n]", "_", code[0]), content)
        return
    inside: set[ast.AST] = set()
    for node in ast.walk(ast.parse(content)):  # breadth first: an f-string before its parts
        if isinstance(node, ast.JoinedStr):
            inside |= set(node.values)
            parts = (part.value if isinstance(part, ast.Constant) else "it" for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield node.lineno, node.value


def test_no_text_of_the_package_is_a_riddle() -> None:
    faults = [
        f"{path.relative_to(REPOSITORY)}:{first + text.count(chr(10), 0, match.start())}: "
        + " ".join(text[max(0, match.start() - 60) : match.end() + 40].split())
        for path in sorted(path for room in ROOMS for end in ENDS for path in room.rglob(end))
        for first, text in texts(path)
        for match in FOUND.finditer(text)
        if match["riddle"]
    ]
    assert not faults, "\n".join(["write plain English:", *faults])
