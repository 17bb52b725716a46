"""The pages' frames: Jinja templates that escape every text put into them, and their style sheets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

FOLDER = Path(__file__).resolve().parent
_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(FOLDER),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def fill(name: str, **texts: Any) -> str:
    """The page `name` with `texts` in it. Only texts of type Markup are taken for HTML."""
    return _ENVIRONMENT.get_template(name).render(**texts)


def styles(*names: str, more: str = "") -> Markup:
    """Style sheets of this folder, one after the other, for a <style> element."""
    return Markup("\n".join([*((FOLDER / name).read_text("utf-8") for name in names), more]))
