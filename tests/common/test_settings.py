"""Keys that are declared with their bounds: each kind of bound, and all faults at once."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from rookworld_rlvr.common.errors import ConfigurationError
from rookworld_rlvr.common.settings import (
    Checked,
    each,
    key_faults,
    setting,
    share_bounds,
    with_default,
)

COLOURS = {"red": 1, "green": 2, "blue": 3}
SHARES: Any = share_bounds(COLOURS, "colour")


def loud(word: str, name: str) -> list[str]:
    return [f"{name}: {word}"] if "!" in word else []


@dataclass
class Lamp(Checked):
    mode: Literal["steady", "blinking"] = setting("steady", "How it shines.")
    watts: float = setting(5.0, "What it takes.", above=0)
    dimmed: float = setting(0.0, "By how much.", least=0, most=1)
    duty: float | None = setting(None, "Share of a period that it is on.", above=0, below=1)
    hours: int = setting(1, "For how long.", least=1, most=24)
    colours: list[str] = setting(["red"], "It shows them in turn.", among=COLOURS, filled=True)
    delays: list[int] | None = setting(None, "Between them, in seconds.", least=0)
    shares: dict[str, float] | str | None = setting(None, "Of its colours.", **SHARES)
    levels: dict[str, int] | str | None = setting(None, "Of its colours.", among=COLOURS, least=1)
    label: str = setting("lamp", "What it is called.", filled=True)
    words: list[str] = setting([], "On its base.", check=each(loud))
    note: str = "no key of ours"

    def faults(self) -> list[str]:
        return ["label and note are alike; change one"] if self.label == self.note else []


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"mode": "stedy"}, "mode: 'stedy' is not a valid value; did you mean steady?"),
        ({"watts": 0}, "watts: 0 is too small; give more than 0"),
        ({"watts": math.nan}, "watts: nan is too small; give more than 0"),
        ({"watts": True}, "watts: True is not a number"),
        ({"dimmed": 1.5}, "dimmed: 1.5 is too large; give at most 1"),
        ({"duty": 1}, "duty: 1 is too large; give less than 1"),
        ({"hours": 0}, "hours: 0 is too small; give at least 1"),
        ({"hours": 1.0}, "hours: 1.0 is not a whole number"),
        ({"colours": ["gren"]}, "colours: 'gren' is not a valid value; did you mean green?"),
        (
            {"colours": ["red,green"]},
            "colours: 'red,green' is not a valid value; write red green, with blanks",
        ),
        ({"colours": []}, "colours: empty; give at least one of red, green, blue"),
        ({"delays": [1, -1]}, "delays: -1 is too small; give at least 0"),
        ({"shares": "{"}, "shares: '{' is not valid JSON or YAML"),
        ({"shares": "red"}, "shares: 'red' is not a mapping; write {colour: value}"),
        ({"shares": {"rde": 1}}, "shares: 'rde' is not a valid colour; did you mean red?"),
        ({"shares": {"red": 2}}, "shares: red: 2 is too large; give at most 1"),
        ({"shares": '{"red": 0.5}'}, "shares: the shares add up to 0.5, not to 1"),
        ({"levels": {"red": 0}}, "levels: red: 0 is too small; give at least 1"),
        ({"label": ""}, "label: missing; give a text"),
        ({"words": ["a", "b!"]}, "words: b!"),
    ],
)
def test_each_bound_names_the_value_and_the_remedy(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Lamp(**options)
    (found,) = caught.value.faults
    assert found.startswith(fault)


def test_all_faults_are_found_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Lamp(mode="blinkin", watts=-1, colours=["rde", "red", "red"], note="lamp")
    *others, last = caught.value.faults
    assert [fault.split()[:2] for fault in others] == [
        ["mode:", "'blinkin'"], ["watts:", "-1"], ["colours:", "'rde'"]
    ]  # fmt: skip
    assert last == "label and note are alike; change one"


def test_good_values_are_kept_and_json_is_read() -> None:
    lamp = Lamp(duty=None, watts=5, shares='{"red": 0.5, "blue": 0.5}', levels=None)
    assert lamp.shares == {"red": 0.5, "blue": 0.5} and lamp.watts == 5 and key_faults(lamp) == []
    assert Lamp().colours is not Lamp().colours


def test_another_default_keeps_help_and_bounds() -> None:
    @dataclass
    class Torch(Lamp):
        watts: float = with_default(Lamp, "watts", 1.0)

    assert Torch().watts == 1.0
    with pytest.raises(ConfigurationError, match="give more than 0"):
        Torch(watts=0)
