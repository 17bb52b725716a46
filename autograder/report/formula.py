"""Formulas as MathML, which browsers draw by themselves: no script, no fonts, nothing to load.

A formula that cannot be drawn is shown as it was written. The output of `latex2mathml` is built anew from
elements and attributes that only draw: the converter knows links, and passes a student's text on as it is.
"""

from __future__ import annotations

import html
import re
import secrets
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from latex2mathml.converter import Converter
from nbconvert.filters.markdown_mistune import IPythonRenderer

LONGEST = 2_000  # characters of one formula that are drawn
MOST = 5_000  # characters of a text's formulas that are drawn: MathML takes 20 times as many
TOKENS = frozenset({"mi", "mn", "mo", "mtext", "mspace"})  # hold text, and no elements
_LAYOUT = """
    math mrow mfrac msqrt mroot msub msup msubsup munder mover munderover mmultiscripts mprescripts none
    mtable mtr mtd mstyle mpadded mphantom menclose
"""
ELEMENTS = TOKENS | frozenset(_LAYOUT.split())
_NAMES = """
    accent accentunder columnalign columnlines columnspacing depth display displaystyle fence form height
    largeop linebreak linethickness lspace mathvariant maxsize minsize movablelimits notation rowlines
    rowspacing rspace scriptlevel separator stretchy symmetric width
"""
ATTRIBUTES = frozenset(_NAMES.split())
VALUE = re.compile(r"[\w.%+ -]{0,80}")
MACRO = re.compile(r"\\(re|provide)?newcommand|\\def\b|\\let\b")  # a few of them grow without bound


class UndrawableError(ValueError):
    """A formula with something in it that is not known to draw and nothing else."""


def drawn(source: str, *, display: bool = False) -> str:
    """The formula `source` (TeX without its dollar signs) as HTML. display: on a line of its own."""
    try:
        element = _mathml(source, display)
    except Exception:  # the converter may raise anything on text that is not a formula
        return f'<code class="formula">{html.escape(source)}</code>'
    return ElementTree.tostring(element, encoding="unicode")


def _mathml(source: str, display: bool) -> Element:
    if len(source) > LONGEST or MACRO.search(source):
        raise UndrawableError("too long, or with macros")
    text = re.sub(r"(\\(?:begin|end)\{)aligned\}", r"\1align*}", source)
    made = Converter(display="block" if display else "inline").convert_to_element(text)
    return _rebuilt(made)


def _rebuilt(element: Element) -> Element:
    """The same element with parts that only draw. UndrawableError if it has any others."""
    if element.tag not in ELEMENTS:
        raise UndrawableError(f"an element {element.tag}")
    text = html.unescape(element.text or "")
    if element.tag in TOKENS:
        if len(element) or text == "&" or text.startswith("\\"):
            raise UndrawableError(f"a command that is not known: {text}")
    elif text.strip():
        raise UndrawableError("text where none may be")
    kept = {
        name: value
        for name, value in element.attrib.items()
        if name in ATTRIBUTES and VALUE.fullmatch(value)
    }
    made = Element(element.tag, kept)
    made.text = text or None
    made.extend(_rebuilt(child) for child in element)
    return made


class Renderer(IPythonRenderer):
    """Leaves a mark for each formula; `draw` replaces it by the formula when everything else was cleaned.

    A student cannot write the marks: they hold a number that is drawn for each text.
    """

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.mark, self.formulas, self.left = f"formula{secrets.token_hex(8)}n", [], MOST

    def block_math(self, body: str) -> str:
        return self._keep(body, display=True)

    def inline_math(self, body: str) -> str:
        return self._keep(body)

    def latex_environment(self, name: str, body: str) -> str:
        return self._keep(rf"\begin{{{name}}}{body}\end{{{name}}}", display=True)

    def _keep(self, source: str, display: bool = False) -> str:
        self.left -= len(source)
        shown = drawn(source, display=display) if self.left >= 0 else html.escape(source)
        self.formulas.append((shown, html.escape(source)))
        return f"<var>{self.mark}{len(self.formulas) - 1}n</var>"

    def draw(self, cleaned: str) -> str:
        """The cleaned text with its formulas; within an attribute they stay as they were written."""
        formulas = self.formulas
        cleaned = re.sub(
            rf"<var>{self.mark}(\d+)n</var>", lambda m: formulas[int(m[1])][0], cleaned
        )
        return re.sub(rf"{self.mark}(\d+)n", lambda m: formulas[int(m[1])][1], cleaned)
