"""Texts from the templates in `assets/templates`, such as model cards; see `html` for pages."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

TEMPLATES = Environment(
    loader=PackageLoader("rookworld_rlvr", "assets/templates"),
    autoescape=select_autoescape(["html.j2"]),
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)


def render(template: str, **values: Any) -> Markup:
    """Fill in a template. In HTML, values are escaped unless they are `Markup` already.

    Args:
        template: Name of a file in `assets/templates`, without ``.j2``.
        values: The template's variables.
    """
    return Markup(TEMPLATES.get_template(f"{template}.j2").render(values))
