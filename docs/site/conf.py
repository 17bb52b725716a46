"""Sphinx's configuration of the site. `make site` prepares the sources first: see tools/make_site.py."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.logging import getLogger

from autograder.report.formula import drawn

ROOT = Path(__file__).resolve().parents[2]

project = "Distributed training, built by hand"
version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
project_copyright = (
    "2026 The authors of the course. Text and figures: CC BY 4.0. Code: MIT License."
)

extensions = ["myst_nb", "sphinx_copybutton", "sphinx.ext.githubpages"]
root_doc = "index"
exclude_patterns = ["extra"]
smartquotes = False  # the text stays as it was written

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # as on GitHub
suppress_warnings = ["myst.header"]  # notebooks open with a small heading, "Words and letters"
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_error_lexer = "none"  # errors of ranks are sentences
nb_ipywidgets_js = {}  # they would come from another host; tools/site_notebooks.py has figures instead

html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_favicon = "static/favicon.svg"
html_extra_path = [str(ROOT / "build" / "site" / "source" / "extra")]
html_css_files = ["course.css"]
html_js_files = [("stepper.js", {"defer": "defer"})]
html_copy_source = False
html_show_sphinx = False
html_math_renderer = "mathml"
pygments_style = "tango"
copybutton_selector = ":not(.output) > .highlight > pre"  # code, and not what it printed


def formula(node: Any, display: bool = False) -> str:
    """As MathML; a formula that cannot be drawn is a warning."""
    made = drawn(node.astext(), display=display)
    if not made.startswith("<math"):
        getLogger("site").warning(
            "a formula that cannot be drawn: %s", node.astext(), location=node
        )
    return made


def inline_formula(translator: Any, node: Any) -> None:
    translator.body.append(formula(node))
    raise nodes.SkipNode


def displayed_formula(translator: Any, node: Any) -> None:
    translator.body.append(f'<div class="formula">{formula(node, display=True)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Formulas as MathML, which browsers draw without a script."""
    app.add_html_math_renderer("mathml", (inline_formula, None), (displayed_formula, None))
