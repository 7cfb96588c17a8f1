"""Default shares of kinds of rows, of hidden fields, and of kinds of a judge's pairs."""

from __future__ import annotations

from collections.abc import Mapping

from ..common.files import read_asset

_SHARES: Mapping[str, Mapping[str, float]] = read_asset("shares.yaml")


KIND_SHARES = _SHARES["kinds"]


FIELD_SHARES = _SHARES["fields"]


PAIR_SHARES = _SHARES["pairs"]
