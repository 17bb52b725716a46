"""Makes a submission's text and outputs harmless, for feedback pages and for formgrader.

nbconvert renders Markdown with raw HTML in it, HTML outputs as they come, attributes from cells' metadata
and diagrams in fences without escaping: in formgrader all of that would run with the instructor's rights.
Here everything that is not known to be harmless is left out: Markdown is rendered and its HTML cleaned by
bleach, formulas become MathML, outputs keep a few types, metadata is made anew. Nothing is loaded from
elsewhere, so that opening a page sends no request.
"""

from __future__ import annotations

import binascii
import html
import re
import sysconfig
from base64 import b64decode
from collections.abc import Iterable

import bleach
from bleach.css_sanitizer import CSSSanitizer
from bs4 import BeautifulSoup, Tag
from nbconvert.filters.markdown_mistune import MarkdownWithMath
from nbformat import NotebookNode
from nbformat.v4 import new_output

from autograder.course.config import NOTEBOOK_METADATA, NOTEBOOKS
from autograder.course.twin import HIDDEN_MARKERS, IDENTIFIER
from autograder.report.formula import Renderer, drawn
from autograder.report.svg import clean_svg

LONGEST_MARKDOWN = (
    20_000  # characters of one cell that are rendered: the renderer's time grows faster
)
LONGEST_HTML = 200_000  # characters of one output
BUDGET = 1_000_000  # characters of one notebook that are rendered or cleaned
# Of a piece of HTML that is cleaned: characters that may begin a tag or an entity, and elements within
# elements. The parsers' time grows as the square of both: 8,000 unclosed elements took 47 s.
MOST_MARKS, DEEPEST = 25_000, 200


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


TAGS = _names(
    "a abbr b blockquote br caption code col colgroup dd del details div dl dt em figcaption figure h1 h2 "
    "h3 h4 h5 h6 hr i img ins kbd li mark ol p pre q s samp small span strong sub summary sup table tbody "
    "td tfoot th thead tr tt u ul var"
)
DROPPED = ("script", "style", "template", "title", "noscript", "iframe", "object", "svg", "math")
PLAIN = _names("align colspan rowspan scope start title alt width height open style")
STYLES = _names(
    "border border-collapse color font-family font-size font-style font-weight margin margin-left "
    "margin-right max-width padding text-align text-decoration vertical-align white-space width"
)
LINK = re.compile(r"(https?://|mailto:|#)", re.IGNORECASE)
PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+", re.IGNORECASE)
FORMULA = re.compile(r"\$(?P<display>\$)?(?P<tex>[^$]+)\$(?(display)\$)", re.DOTALL)
HIGHLIGHT = re.compile(r"highlight|[a-z][a-z0-9]?")  # the class names that pygments uses
HIDDEN = re.compile(
    rf"^[ \t]*{HIDDEN_MARKERS[0]}.*?(^[ \t]*{HIDDEN_MARKERS[1]}[^\n]*\n?|\Z)",
    re.MULTILINE | re.DOTALL,
)
# Folders of this machine that tracebacks name, the longest first.
OWN_FOLDERS = sorted(
    {sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), str(NOTEBOOKS.parent)},
    key=len,
    reverse=True,
)
NUMBERED = "cell-number-"  # ids of cells whose own cannot be kept
TOO_MUCH = {
    "output_type": "stream",
    "name": "stdout",
    "text": "(more HTML than a page can hold: not shown)",
}
NOT_SHOWN = "(an output with too many elements, or with elements nested too deeply: not shown)"
NOT_RENDERED = "(shown as it was written: too long or too strange to be rendered)"


class TangledError(ValueError):
    """HTML that no parser reads in a bearable time."""


def clean_html(text: str) -> str:
    """HTML with nothing in it that runs, loads or reaches out of its place.

    Only the TAGS remain, links to http, https, mail and places in the page, pictures that are part of the
    page, and the STYLES; scripts and style sheets go with what is in them. Raises TangledError.
    """
    if text.count("<") + text.count("&") > MOST_MARKS:
        raise TangledError
    soup = BeautifulSoup(text, "html.parser")
    for element in soup(DROPPED):  # bleach, which has the last word, would leave their text
        element.decompose()
    if _depth(soup) > DEEPEST:  # bleach's parser walks up through all of them at each one
        raise TangledError
    for picture in soup("img"):
        if not PICTURE.fullmatch(str(picture.get("src", ""))):
            picture.replace_with(f"({picture.get('alt') or 'a picture'}: not part of the notebook)")
    return bleach.clean(
        str(soup),
        tags=TAGS,
        attributes=_may_stay,
        protocols={"http", "https", "mailto", "data"},
        strip=True,
        css_sanitizer=CSSSanitizer(allowed_css_properties=STYLES, allowed_svg_properties=()),
    )


def _depth(soup: BeautifulSoup) -> int:
    """The most elements within elements."""
    deepest, waiting = 0, [(soup, 0)]
    while waiting:
        element, depth = waiting.pop()
        deepest = max(deepest, depth)
        waiting += [(inner, depth + 1) for inner in element.contents if isinstance(inner, Tag)]
    return deepest


def _may_stay(tag: str, name: str, value: str) -> bool:
    if name == "href":
        return tag == "a" and LINK.match(value) is not None
    if name == "src":
        return tag == "img" and PICTURE.fullmatch(value) is not None
    if name == "class":
        return tag in ("div", "span", "pre") and HIGHLIGHT.fullmatch(value) is not None
    return name in PLAIN


def clean_markdown(text: str, attachments: dict | None = None) -> str:
    """Markdown as harmless HTML without line breaks of its own.

    So it may stand in a Markdown cell again: a block of HTML ends at the first empty line, and has none.
    Text that cannot be rendered is shown as it was written.
    """
    pictures = {
        name: kept
        for name, data in (attachments or {}).items()
        if isinstance(data, dict) and (kept := _pictures(data))
    }
    if len(text) > LONGEST_MARKDOWN:
        return _one_block(_as_written(text))
    try:
        renderer = Renderer(escape=False, attachments=pictures, exclude_anchor_links=True)
        cleaned = renderer.draw(clean_html(MarkdownWithMath(renderer=renderer).render(text)))
    except Exception:  # the renderer may raise anything on text that is meant to break it
        cleaned = _as_written(text)
    return _one_block(cleaned)


def _as_written(text: str) -> str:
    return f"<p>{NOT_RENDERED}</p><pre>{html.escape(text)}</pre>"


def _one_block(cleaned: str) -> str:
    one_line = cleaned.replace("\r", "").replace("\n", "&#10;")
    return f"<div>{one_line}</div>"


def clean_outputs(outputs: Iterable[dict]) -> list[NotebookNode]:
    """Outputs of the types that a page may show: texts, errors, pictures, tables of clean HTML.

    An output with none of these leaves only a line that names its types, and one that breaks a parser a line
    that says so: a page that cannot be made must not cost a grade. Metadata goes: nbconvert writes widths
    into the page without quotes.
    """
    return [kept for output in outputs if (kept := _cleaned(output)) is not None]


def _cleaned(output: dict) -> NotebookNode | None:
    try:
        return _clean_output(output)
    except Exception:  # a parser may raise anything on text that is meant to break it
        return new_output("display_data", data={"text/plain": NOT_SHOWN})


def _clean_output(output: dict) -> NotebookNode | None:
    kind = output.get("output_type")
    if kind == "stream":
        name = "stderr" if output.get("name") == "stderr" else "stdout"
        return new_output("stream", name=name, text=_without_paths(_text(output.get("text"))))
    if kind == "error":
        lines = output.get("traceback")
        return new_output(
            "error",
            ename=_text(output.get("ename")),
            evalue=_without_paths(_text(output.get("evalue"))),
            traceback=[_without_paths(_text(line)) for line in lines]
            if isinstance(lines, list)
            else [],
        )
    if kind not in ("display_data", "execute_result"):
        return None
    data = output.get("data")
    return new_output("display_data", data=_clean_data(data if isinstance(data, dict) else {}))


def _clean_data(data: dict) -> dict[str, str]:
    kept = _pictures(data)
    page = _text(data.get("text/html"))
    if "text/html" in data and len(page) <= LONGEST_HTML:
        try:
            kept["text/html"] = clean_html(page)
        except TangledError:
            kept["text/html"] = f"<p>{NOT_SHOWN}</p>"
    elif "text/markdown" in data:
        kept["text/html"] = clean_markdown(_text(data["text/markdown"]))
    if "image/svg+xml" in data and (drawing := clean_svg(_text(data["image/svg+xml"]))):
        kept["image/svg+xml"] = drawing
    formula = FORMULA.fullmatch(_text(data.get("text/latex")).strip())
    if formula is not None and "text/html" not in kept:
        kept["text/html"] = drawn(formula["tex"], display=bool(formula["display"]))
    for plain in ("text/latex", "text/plain"):
        if plain in data:
            kept[plain] = _without_paths(_text(data[plain]))
    if not kept:
        kinds = ", ".join(sorted(map(str, data))) or "no type"
        kept["text/plain"] = f"(an output of {kinds[:200]} is not shown)"
    return kept


def _pictures(data: dict) -> dict[str, str]:
    """The pictures among an output's or an attachment's types, if they are of the type that they name."""
    kept = {}
    for kind, begins in (("image/png", b"\x89PNG\r\n\x1a\n"), ("image/jpeg", b"\xff\xd8\xff")):
        text = "".join(_text(data.get(kind)).split())
        try:
            if text and b64decode(text, validate=True).startswith(begins):
                kept[kind] = text
        except (binascii.Error, ValueError):  # not base64, so not a picture
            continue
    return kept


def _without_paths(text: str) -> str:
    """Without the folders of the grader's machine, which tracebacks name."""
    for folder in OWN_FOLDERS:
        text = text.replace(folder, "...")
    return text


def _text(value: object) -> str:
    """nbformat allows a text to be a list of its lines."""
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""


def clean_notebook(notebook: NotebookNode, released: NotebookNode | None = None) -> NotebookNode:
    """A copy of an executed submission that may be shown in a page or in formgrader.

    released: the student version; those of its Markdown cells that a submission left unchanged stay
    Markdown. Every other one becomes its harmless HTML. Cells keep nbgrader's metadata and no other,
    attachments become part of the text, hidden tests go if there are any.
    """
    known = {cell.source for cell in released.cells} if released is not None else set()
    cells, left, ids = [], BUDGET, set()
    for number, cell in enumerate(notebook.cells):
        name = cell.get("id")
        if not _fit_for_id(name) or name in ids:
            name = f"{NUMBERED}{number}"
        ids.add(name)
        spent = _size(cell)
        kept = _clean_cell(cell, known, too_much=spent > left)
        left -= spent if spent <= left else 0
        cells.append(NotebookNode({**kept, "id": name, "metadata": _metadata(cell)}))
    metadata = NotebookNode(NOTEBOOK_METADATA)
    return NotebookNode(nbformat=4, nbformat_minor=5, metadata=metadata, cells=cells)


def _clean_cell(cell: NotebookNode, known: set[str], too_much: bool) -> dict:
    """The cell's type, text and outputs. too_much: nothing of it is rendered."""
    source, outputs = _text(cell.source), cell.get("outputs", [])
    if cell.cell_type == "code":
        count = cell.get("execution_count")
        return {
            "cell_type": "code",
            "source": HIDDEN.sub("", source),
            "outputs": clean_outputs([TOO_MUCH] if too_much else outputs),
            "execution_count": count if isinstance(count, int) else None,
        }
    if source in known:
        return {"cell_type": cell.cell_type, "source": source}
    if cell.cell_type == "markdown" and not too_much:
        return {"cell_type": "markdown", "source": clean_markdown(source, cell.get("attachments"))}
    return {"cell_type": "markdown", "source": _one_block(_as_written(source))}


def _fit_for_id(name: object) -> bool:
    return (
        isinstance(name, str)
        and IDENTIFIER.fullmatch(name) is not None
        and not name.startswith(NUMBERED)
    )


def _size(cell: NotebookNode) -> int:
    """Characters of a cell that would be rendered or cleaned."""
    if cell.cell_type != "code":
        return min(len(_text(cell.source)), LONGEST_MARKDOWN)
    bundles = [output.get("data") for output in cell.get("outputs", [])]
    return sum(
        len(_text(data.get(kind)))
        for data in bundles
        if isinstance(data, dict)
        for kind in ("text/html", "text/markdown")
    )


def _metadata(cell: NotebookNode) -> NotebookNode:
    """nbgrader's metadata of a cell, if it is the one that `restore` puts there, and nothing else."""
    own = cell.metadata.get("nbgrader")
    name = own.get("grade_id") if isinstance(own, dict) else None
    if not isinstance(own, dict) or not isinstance(name, str) or not IDENTIFIER.fullmatch(name):
        return NotebookNode()
    kept = {key: own[key] for key in ("grade_id", "schema_version") if key in own}
    kept |= {key: own.get(key) is True for key in ("grade", "locked", "solution", "task")}
    if isinstance(own.get("points"), int | float):
        kept["points"] = own["points"]
    for word in ("checksum", "cell_type"):
        if isinstance(own.get(word), str):
            kept[word] = own[word][:80]
    return NotebookNode(nbgrader=NotebookNode(kept))
