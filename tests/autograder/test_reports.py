"""No page runs a submission's scripts, and pages show all that a student or an instructor should see."""

from __future__ import annotations

import base64
import copy
import csv
import hashlib
import json
import linecache
import os
import platform
import random
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import nbformat
import pytest
from bleach._vendor import html5lib
from bs4 import BeautifulSoup
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell

from autograder.book.standing import ByHand, Standing, reason
from autograder.book.table import row_of, write_points
from autograder.commands.grade import other_pythons
from autograder.course.config import NOTEBOOKS, SERVER, SOLUTIONS, assignments
from autograder.course.exercises import read_assignment
from autograder.course.refusing import NotHereError, RefuseFeedback, RefuseToAutograde
from autograder.outcome import statuses, wording
from autograder.outcome.result import BY_HAND, Exercise, Result
from autograder.report import sanitise
from autograder.report.class_page import class_page
from autograder.report.feedback import feedback_page, write_feedback
from autograder.report.formula import drawn
from autograder.report.rubric import lines_of, rubric
from autograder.report.sanitise import (
    NOT_RENDERED,
    NOT_SHOWN,
    clean_html,
    clean_markdown,
    clean_notebook,
    clean_outputs,
)
from autograder.report.server import formgrader_server
from autograder.report.svg import clean_svg
from autograder.submission.intake import OTHER_PYTHON
from autograder.submission.verdict import first_loss, note
from course_lib.checks.judge.find import find
from course_lib.checks.report import Report, ReportLine, refusal
from course_lib.checks.sentence import at

# The smallest picture: one pixel.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
RUNS = """
    script style iframe frame object embed applet svg link meta base form input button textarea
    select video audio source template noscript dialog
"""
LOADED = re.compile(r"data:image/(png|jpeg|gif|webp|svg\+xml);base64,")
LINKED = re.compile(r"(https?://|mailto:|#)", re.IGNORECASE)


MATHML = "{http://www.w3.org/1998/Math/MathML"
LAYOUT = """
    math mrow mfrac msqrt mroot msub msup msubsup munder mover munderover mtable mtr mtd mstyle mpadded
"""


def draws(element: Any) -> bool:
    """Whether it is MathML for drawing: no links, no place in it where HTML begins again."""
    space, _, tag = str(element.tag).rpartition("}")
    leaf = tag in ("mi", "mn", "mo", "mtext", "mspace")
    return space == MATHML and (tag in LAYOUT.split() or (leaf and not len(element)))


def dangers(html: str) -> list[str]:
    """The parts of this HTML that run, load or reach out, as a browser's parser reads it."""
    found = []
    for element in html5lib.parseFragment(html, namespaceHTMLElements=False, scripting=True).iter():
        space, _, tag = str(element.tag).rpartition("}")
        if tag in RUNS.split() or ((tag == "math" or space == MATHML) and not draws(element)):
            found.append(f"<{tag}>")
        for name, text in element.attrib.items():
            if (
                (name.startswith("on") or name in ("srcset", "formaction", "ping", "background"))
                or (name == "href" and not LINKED.match(text))
                or (name == "src" and not LOADED.match(text))
                or (name == "style" and re.search(r"url|expression|position|@", text))
            ):
                found.append(f"{tag} {name}={text}")
    return found


def soup_of(page: str) -> BeautifulSoup:
    return BeautifulSoup(page, "html.parser")


HOSTILE = [
    "<script>go()</script>",
    "<img src=x onerror=go()>",
    "<svg onload=go()><script>go()</script></svg>",
    "<a href='javascript:go()'>a</a>",
    "<a href=' &#1;java&#10;script:go()'>a</a>",
    "<iframe src='https://example.org'></iframe>",
    "<p style='position:fixed;background:url(https://example.org/a)'>p</p>",
    "<style>@import 'https://example.org/a'</style>",
    "<form action='/formgrader'><input name=a><button>b</button></form>",
    "<math><mtext><table><mglyph><style><img src=x onerror=go()>",
    "<math href='javascript:go()'><mi>a</mi></math>",
    "$\\href{javascript:go()}{a}$",
    "$\\text{<img src=x onerror=go()>}$",
    "$\\style{background:url(https://example.org)}{a}$ $\\class{a' onclick='go()}{b}$",
    "![$a$\"><img src=x onerror=go()>](b) [a](#b '$c$')",
    '<p title=\'$a$\' onclick=go() id="$b$"><img alt="$\'><script>go()</script>$">',
    "<img src='https://example.org/pixel.png'>",
    "<details open ontoggle=go()>",
    "<base href='https://example.org'>",
    "<meta http-equiv=refresh content='0;url=https://example.org'>",
    "[a](javascript:go())",
    "![a](javascript:go())",
    "<javascript:go()>",
    "\\[a\\](javascript:go())",
    "```mermaid\n<script>go()</script>\n```",
    "```mermaid\n</pre><img src=x onerror=go()>\n```",
    "$$<script>go()</script>$$",
    "\\begin{a}<img src=x onerror=go()>\\end{a}",
    "<!--<img src=x onerror=go()>-->",
    "<![CDATA[<script>go()</script>]]>",
    "<noscript><p title='</noscript><img src=x onerror=go()>'>",
    "<title><a title='</title><script>go()</script>'>",
    "<textarea><a title='</textarea><script>go()</script>'>",
    "&lt;script&gt;go()&lt;/script&gt;",
    "<scr<script>ipt>go()</scr</script>ipt>",
    '<a href="data:text/html,<script>go()</script>">a</a>',
]


# --- text and outputs of a submission ------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_of_hostile_text_runs(text: str) -> None:
    assert dangers(clean_html(text)) == []
    assert dangers(clean_markdown(text)) == []
    assert dangers(rendered(clean_markdown(text))) == []


def test_nothing_of_mixed_hostile_text_runs(seed: int) -> None:
    chance = random.Random(seed)
    glue = [
        "",
        "\n",
        "\n\n",
        " ",
        "> ",
        "- ",
        "`",
        "*",
        "|",
        "<div>",
        "</div>",
        "\\",
        "\r\n",
        "\f\n",
    ]
    for _ in range(150):
        pieces = chance.choices([*HOSTILE, *(["text"] * 5)], k=4)
        text = "".join(piece[chance.randrange(3) :] + chance.choice(glue) for piece in pieces)
        assert dangers(clean_html(text)) == [], repr(text)
        assert dangers(rendered(clean_markdown(text))) == [], repr(text)


EXPORTER = HTMLExporter(template_name="basic")


def rendered(source: str) -> str:
    """A Markdown cell as formgrader shows it: nbconvert's own template, nothing sanitised."""
    notebook = new_notebook(cells=[new_markdown_cell(source)])
    return EXPORTER.from_notebook_node(notebook)[0]


def test_the_browser_would_run_it_without_us() -> None:
    """If it did not, the tests above would show nothing."""
    assert dangers(rendered(HOSTILE[0])) and dangers(
        rendered("```mermaid\n<script>a</script>\n```")
    )


def test_honest_text_stays() -> None:
    text = (
        "# Title\n\nSee [the tutorial](https://pytorch.org) and *this*:\n\n"
        "| a | b |\n|---|:-:|\n| 1 | 2 |\n\n"
        f"```python\ndef f(x):\n\n    return x < 1\n```\n\n<details><summary>Hint</summary>x</details>\n\n"
        f"$a_1 < b$\n\n![p](attachment:p.png) <img src='data:image/png;base64,{PNG}'>"
    )
    page = rendered(clean_markdown(text, {"p.png": {"image/png": PNG}}))
    soup = soup_of(page)
    assert soup.find("a", href="https://pytorch.org") and soup.find("em") and soup.find("summary")
    assert [cell.text for cell in soup("td")] == ["1", "2"]
    assert "def f(x):\n\n    return x < 1" in soup.find("pre").text
    assert len(soup("img")) == 2
    assert soup.find("math").text == "a1<b" and soup.find("msub").text == "a1"


def test_formulas_are_drawn_without_a_script() -> None:
    for text in (
        r"$$\frac{2(N-1)}{N} M$$",
        r"\begin{align} a &= \frac{b}{c} \end{align}",
        r"$$\begin{aligned} a &= \frac{1}{2} \\\\ b &= 3 \end{aligned}$$",
    ):
        soup = soup_of(rendered(clean_markdown(f"It is\n\n{text}\n\nhere.")))
        assert soup.find("math", display="block").find("mfrac") and "$" not in soup.text
        assert "It is" in soup.text and "here." in soup.text
    (shown,) = clean_outputs([new_output("display_data", data={"text/latex": "$a_1$"})])
    assert "<msub>" in shown.data["text/html"] and shown.data["text/latex"] == "$a_1$"


@pytest.mark.parametrize(
    "source",
    [
        r"\unknown{x}",
        "{" * 3000,
        "{" * 900,
        r"\frac",
        r"\newcommand{\a}{\a\a}\a",
        r"\begin{strange} a & b \end{strange}",
    ],
)
def test_a_formula_that_cannot_be_drawn_is_shown_as_written(source: str) -> None:
    assert soup_of(drawn(source)).find("code", class_="formula").text == source


def test_many_formulas_make_no_page_without_end() -> None:
    cleaned = clean_markdown("$a^b_c$ " * 2_000)
    assert 100 < cleaned.count("<math") < 1_500 and len(cleaned) < 200_000


def test_a_picture_from_elsewhere_is_named_and_not_loaded() -> None:
    shown = clean_html('<p>a <img src="https://example.org/b.png" alt="<b>c</b>"> d</p>')
    assert shown == "<p>a (&lt;b&gt;c&lt;/b&gt;: not part of the notebook) d</p>"


def test_rendering_again_changes_nothing(seed: int) -> None:
    """A cleaned cell is a Markdown cell again: its text must not be read as Markdown once more."""
    chance = random.Random(seed)
    marks = [
        "*a*",
        "`b`",
        "[c](#d)",
        "\\*",
        "\\[x\\](javascript:go())",
        "\n\n",
        "    code\n",
        "# h\n",
        "<b>",
    ]
    for _ in range(100):
        cleaned = clean_markdown("".join(chance.choices(marks, k=8)))
        again = soup_of(rendered(cleaned)).find("div", class_="rendered_html")
        assert again.text.strip() == soup_of(cleaned).text.strip()


def test_what_cannot_be_rendered_is_shown_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("long <b>" * 5_000, "![a](attachment:missing.png) <script>go()</script>"):
        cleaned = clean_markdown(text)
        assert NOT_RENDERED in cleaned and dangers(cleaned) == []
        assert soup_of(cleaned).find("pre").text == text


@pytest.mark.parametrize(
    "text",
    ["<div>" * 38_000, "<b></x>" * 12_000, "<script/>" + "<p>" * 24_000, "<b>&amp;" * 20_000],
)
def test_html_that_no_parser_reads_in_time_is_not_shown(text: str) -> None:
    began = time.process_time()
    (shown,) = clean_outputs([new_output("display_data", data={"text/html": text})])
    assert shown.data["text/html"] == f"<p>{NOT_SHOWN}</p>"
    assert NOT_RENDERED in clean_markdown(text[:20_000])
    assert time.process_time() - began < 20


def test_a_long_table_is_shown() -> None:
    rows = ("<tr>" + "<td>1.5</td>" * 10 + "</tr>") * 1_000
    (shown,) = clean_outputs(
        [new_output("display_data", data={"text/html": f"<table>{rows}</table>"})]
    )
    assert shown.data["text/html"].count("<td>") == 10_000


def test_an_output_that_breaks_a_parser_costs_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_: str) -> str:
        raise RecursionError

    monkeypatch.setattr(sanitise, "clean_svg", breaks)
    outputs = [{"image/svg+xml": "<svg/>"}, {"text/plain": "next"}]
    first, after = clean_outputs(new_output("display_data", data=data) for data in outputs)
    assert (first.data, after.data) == ({"text/plain": NOT_SHOWN}, {"text/plain": "next"})


def test_outputs_keep_the_types_that_a_page_may_show() -> None:
    rich = {"text/html": "<table><tr><td onclick='go()'>1</td></tr></table>", "text/plain": "plain"}
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "a"}}
    shown = clean_outputs(
        [
            new_output("display_data", data=rich, metadata={"text/html": {"isolated": True}}),
            new_output(
                "execute_result",
                data={"image/png": PNG},
                metadata={"image/png": {"width": "1 onload=go()"}},
            ),
            new_output("display_data", data={"image/png": "PHNjcmlwdD4="}),
            new_output("display_data", data={"application/javascript": "go()"}),
            new_output("display_data", data=widget),
            new_output("display_data", data={"text/markdown": "*a* <script>go()</script>"}),
            new_output("stream", name="stdout", text="<b>"),
            new_output("error", ename="E", evalue="v", traceback=["<b>"]),
        ]
    )
    assert shown[0].data == {
        "text/html": "<table><tbody><tr><td>1</td></tr></tbody></table>",
        "text/plain": "plain",
    }
    assert shown[1].data == {"image/png": PNG} and not any(one.get("metadata") for one in shown)
    assert [list(one.data) for one in shown[2:5]] == [["text/plain"]] * 3
    assert "application/javascript is not shown" in shown[3].data["text/plain"]
    assert "<em>a</em>" in shown[5].data["text/html"] and "go()" not in shown[5].data["text/html"]
    assert (shown[6].text, shown[7].traceback) == ("<b>", ["<b>"])


def test_outputs_of_another_form_are_no_reason_to_fail() -> None:
    strange = [
        {},
        {"output_type": "new"},
        {"output_type": "stream", "text": 3},
        {"output_type": "error", "traceback": 5},
    ]
    strange += [
        {"output_type": "display_data", "data": []},
        {"output_type": "display_data", "data": {"image/png": [1]}},
    ]
    texts = [one for one in clean_outputs(strange) if one.output_type != "display_data"]
    assert len(texts) == 2


SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
    'viewBox="0 0 9 9">{}</svg>'
)


def test_drawings_keep_shapes_only() -> None:
    inside = (
        '<script>go()</script><path d="M0 0" onclick="go()" fill="url(#a)" style="fill:url(http://b/)"/>'
        '<image href="http://c/"/><use xlink:href="#a"/><use href="http://d/#e"/><foreignObject><b/></foreignObject>'
        '<a href="javascript:go()"><text>t</text></a><style>*{}</style><set attributeName="href" to="x"/>'
    )
    drawing = clean_svg(SVG.format(inside))
    assert 'd="M0 0"' in drawing and 'fill="url(#a)"' in drawing and 'xlink:href="#a"' in drawing
    for gone in (
        "script",
        "onclick",
        "http://b",
        "http://c",
        "http://d",
        "foreign",
        "javascript",
        "<style",
        "set",
    ):
        assert gone not in drawing


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<svg",
        "<html/>",
        SVG.format("<g>" * 3),
        SVG.format("<g>" * 30_000 + "</g>" * 30_000),
        f'<!DOCTYPE a [<!ENTITY b "{"c" * 99}"><!ENTITY d "{"&b;" * 99}">]>'
        + SVG.format("<text>&d;</text>"),
        '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/hostname">]>' + SVG.format("<text>&b;</text>"),
    ],
)
def test_what_is_no_drawing_is_not_shown(text: str) -> None:
    assert clean_svg(text) == ""


def hostile_notebook() -> NotebookNode:
    """Script in every place that nbconvert writes into a page."""
    attack = '"><script>go()</script>'
    code = new_code_cell(
        "print('</pre><script>go()</script>')", id="one", metadata={"tags": [attack]}
    )
    code.outputs = [
        new_output(
            "display_data", data={"image/png": PNG}, metadata={"image/png": {"width": attack}}
        ),
        new_output("display_data", data={"text/html": attack, "application/javascript": "go()"}),
        new_output("display_data", data={"text/latex": attack}),
        new_output("stream", name="stdout", text=attack),
        new_output("error", ename=attack, evalue=attack, traceback=[attack]),
    ]
    markdown = new_markdown_cell(
        attack, id="two", metadata={"nbgrader": {"grade_id": attack, "solution": True}}
    )
    raw = new_raw_cell(attack, id="three", metadata={"raw_mimetype": "text/html"})
    raw["id"] = attack
    notebook = new_notebook()
    notebook.cells = [code, markdown, raw, copy.deepcopy(markdown)]
    notebook.metadata = NotebookNode(
        title=attack,
        language_info={"name": attack, "pygments_lexer": attack},
        widgets={"a": attack},
    )
    return notebook


def test_a_cleaned_notebook_is_harmless_in_formgrader() -> None:
    cleaned = clean_notebook(hostile_notebook())
    nbformat.validate(cleaned)
    unclean = hostile_notebook()
    unclean.cells = unclean.cells[:2]  # nbconvert refuses the others, and the metadata
    unclean.metadata = NotebookNode()
    assert dangers(EXPORTER.from_notebook_node(unclean)[0]), "without it this test shows nothing"
    assert dangers(EXPORTER.from_notebook_node(cleaned)[0]) == []


def test_cleaning_keeps_what_grading_by_hand_needs() -> None:
    released = nbformat.read(NOTEBOOKS / "00_first_ranks/00_first_ranks.ipynb", as_version=4)
    submission = copy.deepcopy(released)
    submission.cells.append(
        new_markdown_cell(
            "My *answer*",
            metadata={
                "nbgrader": {"grade_id": "essay", "grade": True, "solution": True, "points": 3}
            },
        )
    )
    cleaned = clean_notebook(submission, released)
    assert [cell.source for cell in cleaned.cells[:-1]] == [cell.source for cell in released.cells]
    assert [cell.metadata.get("nbgrader", {}).get("grade_id") for cell in cleaned.cells] == [
        cell.metadata.get("nbgrader", {}).get("grade_id") for cell in submission.cells
    ]
    own = cleaned.cells[-1].metadata["nbgrader"]
    assert (own["points"], own["grade"], own["solution"], own["locked"]) == (3, True, True, False)
    assert "<em>answer</em>" in cleaned.cells[-1].source


def test_hidden_tests_are_cut_out_of_cells() -> None:
    source = nbformat.read(SOLUTIONS / "00_first_ranks/00_first_ranks.ipynb", as_version=4)
    assert any('cases="hidden"' in cell.source for cell in source.cells)
    assert not any('cases="hidden"' in cell.source for cell in clean_notebook(source).cells)


# --- the feedback page ---------------------------------------------------------------------------


def report_of(share: float, *sentences: str, title: str = "4 ranks") -> dict:
    line = ReportLine(title, share == 1.0)
    line.say(sentences)
    return Report("00_first_ranks/ring_shift", share, [line], cases="hidden", seed=99).to_json()


def result_of(student: str = "anna", share: float = 0.5, **fields) -> Result:
    exercises = [
        Exercise(
            "ring_shift_check",
            "00_first_ranks/ring_shift",
            4 * share,
            4,
            "r",
            "",
            report_of(share, "deadlock: 0 -> 1"),
        ),
        Exercise("hello_check", "00_first_ranks/hello", 0, 1, "hello: the cell was not run"),
    ]
    given = {"status": "graded", "exercises": exercises, "sandbox": ["namespaces", "limits"]}
    return Result(student, "00_first_ranks", **{**given, **fields})


def test_a_feedback_page_shows_cases_points_and_cells() -> None:
    released = nbformat.read(NOTEBOOKS / "00_first_ranks/00_first_ranks.ipynb", as_version=4)
    notebook = copy.deepcopy(released)
    answer = next(
        c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == "ring_shift"
    )
    answer.source = "def ring_shift(tensor):\n    return mine"
    notebook.cells.append(new_markdown_cell("my remark"))
    page = feedback_page(result_of(), notebook, released=released)
    soup = soup_of(page)
    text = soup.text
    assert "2 of 5" in text and "2 of 4" in text and "0 of 1" in text
    assert "deadlock: 0 -> 1" in text and "4 ranks" in text and "the cell was not run" in text
    assert "return mine" in text and "my remark" in text
    assert "namespaces, limits" in text
    assert "What is a rank, what is a message" not in text, "the course's own text is left out"
    assert "99" not in soup.find("section").text, "the seed is not told"
    assert soup.find("a", href="#check-1") and soup.find(id="check-1")


def test_the_line_of_a_place_is_quoted_from_the_notebook_and_not_from_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = result_of()
    for name in ("Cell In[3]", "Cell In[9]"):
        monkeypatch.setitem(linecache.cache, name, (0, None, ["x = 1\n"] * 2, name))
    sentences = [
        at("Cell In[3], line 2: forged", "rank 0 is in recv(src=1)"),
        at("Cell In[9], line 1: forged"),
    ]
    result.exercises[0].report = report_of(0.5, *sentences)
    cell = new_code_cell("a = 1\n    b = <2>", execution_count=3)
    text = soup_of(feedback_page(result, new_notebook(cells=[cell]))).find("section").text
    assert "at Cell In[3], line 2: b = <2>" in text and "at Cell In[9], line 1" in text
    assert "forged" not in text


@pytest.mark.parametrize(
    "text", ["\t" * 2_000_000, "x = 1" + "+1" * 1_000_000, "f'{1}'\n" * 300_000]
)
def test_code_without_end_is_shown_in_black_and_cut(text: str) -> None:
    """A lexer takes time as the square of such lines: minutes and hours for text that a notebook may hold."""
    cells = [nbformat.v4.new_code_cell(text), nbformat.v4.new_code_cell("honest = None")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    page = feedback_page(Result("ann", "00_toy", "graded"), notebook)
    assert "characters more" in page and len(page) < 1_000_000
    assert '<span class="kc">None</span>' in page


def test_the_page_says_which_limit_was_reached() -> None:
    reached = result_of(
        status="out of memory", reason="cell In[4]: the notebook used more than 4 GB"
    )
    assert "cell In[4]: the notebook used more than 4 GB" in feedback_page(reached, None)


def test_every_status_has_its_sentence() -> None:
    names = {
        value for name, value in vars(statuses).items() if name.isupper() and isinstance(value, str)
    }
    assert set(wording.SAID) == names
    assert all(text.endswith(".") for name, text in wording.SAID.items() if name != statuses.GRADED)


def test_nothing_runs_in_a_feedback_page() -> None:
    attack = "<script>go()</script>"
    result = result_of(
        attack,
        status="kernel died",
        reason=attack,
        changes=[attack],
        eyes=[attack],
        sandbox=[attack],
    )
    result.exercises[0].report = report_of(0.5, attack, title=attack)
    result.exercises[1].reason = attack
    page = feedback_page(
        result, hostile_notebook(), standing=Standing({attack: ByHand(1, 2, attack)})
    )
    soup = soup_of(page)
    policy = soup.find("meta", {"http-equiv": "Content-Security-Policy"})["content"]
    assert "default-src 'none'" in policy and "script-src" not in policy
    for ours in [*soup("meta"), *soup("style")]:
        ours.decompose()
    assert dangers(str(soup)) == []
    assert not soup("script") and soup.text.count(attack) >= 8


def test_points_by_hand_and_penalties_count() -> None:
    hand = {
        "essay": ByHand(2.5, 3, "Well seen."),
        "hello_check": ByHand(1, 1, extra=0.5),
        "hello": ByHand(None, 0, "By hand."),
    }
    page = feedback_page(result_of(share=1.0), None, standing=Standing(hand, penalty=1.5))
    text = soup_of(page).text
    assert "6.5 of 8" in text  # 4 of 4, 1 of 1 and 0.5 extra, 2.5 of 3, less 1.5
    for said in ("Well seen.", "2.5 of 3", "1 of 1, and 0.5 extra", "By hand.", "1.5 taken off"):
        assert said in text


def test_points_by_hand_are_in_the_box_of_their_exercise() -> None:
    """The checks found a stub, and a person gave 3 of 4: in the box, in the listing and in the sum."""
    released = nbformat.read(NOTEBOOKS / "00_first_ranks/00_first_ranks.ipynb", as_version=4)
    hand = {
        "ring_shift_check": ByHand(3.0, 4.0, extra=0.5),
        "ring_shift": ByHand(None, 0.0, "The sketch is right."),
        "other": ByHand(None, 0.0, "Elsewhere."),
    }
    result = result_of(share=0.0)
    page = feedback_page(result, copy.deepcopy(released), standing=Standing(hand))
    soup = soup_of(page)
    box = soup.find(id="check-1")
    assert box.find(class_="number").text == "3 of 4, and 0.5 extra, by hand"
    assert "The sketch is right." in box.text and "The checks gave 0 of 4." in box.text
    listed = [one.text for one in soup.find_all(class_="checked")]
    assert "ring_shift: 3 of 4 points, and 0.5 extra, by hand" in listed
    assert soup.find(class_="score").text == "3.5 of 5"
    below = soup.find("h2", string="Graded by hand").find_next("table").text
    assert "Elsewhere." in below and "ring_shift" not in below


def test_the_reason_is_a_persons_where_the_points_are() -> None:
    lost = [
        Exercise("one_check", "one", 0.0, 4.0, "not written yet"),
        Exercise("two_check", "two", 1.0, 2.0, "wrong sum"),
    ]
    result = Result("ann", "00_toy", statuses.GRADED, "one: not written yet", exercises=lost)
    assert reason(result, Standing()) == "one: not written yet"
    part = Standing({"one_check": ByHand(3.0, 4.0, "Nearly.")})
    assert reason(result, part) == "one: 3 of 4, by hand"
    full = Standing({"one_check": ByHand(4.0, 4.0)})
    assert reason(result, full) == "two: wrong sum"
    both = Standing({"one_check": ByHand(4.0, 4.0), "two_check": ByHand(2.0, 2.0)})
    assert reason(result, both) == ""
    late = row_of(result, Standing(part.by_hand, penalty=1.5), 6.0)
    assert (late.score, late.reason) == (2.5, "1.5 taken off for being late. one: 3 of 4, by hand")
    waiting = Exercise("essay", "essay", 0.0, 4.0, BY_HAND)
    assert reason(Result("ann", "00_toy", statuses.GRADED, exercises=[waiting]), Standing()) == ""


@pytest.mark.parametrize("status", ["unreadable", "missing", "ungraded"])
def test_a_submission_without_a_notebook_has_a_short_page(status: str, tmp_path: Path) -> None:
    result = Result("anna", "00_first_ranks", status, "the file is not valid JSON")
    page = tmp_path / "deep" / "00_first_ranks.html"
    write_feedback(result, None, page, maximum=5.0)
    text = soup_of(page.read_text("utf-8")).text
    assert "the file is not valid JSON" in text and status in text
    assert ("no score yet" if status == "ungraded" else "0 of 5") in text
    assert [path.name for path in page.parent.iterdir()] == [page.name]


# --- the class page ------------------------------------------------------------------------------


def test_a_reason_says_no_name_twice() -> None:
    def loss(title: str, sentence: str) -> str:
        line = ReportLine(title, False, output=[])
        line.say([sentence])
        reason = first_loss(Report("00/one", 0.0, [line], cases="hidden", seed=-1))
        return wording.about("message_prediction", reason)

    said = "message_prediction: exchange_messages is not written yet."
    assert loss("exchange_messages", "exchange_messages is not written yet.") == said
    assert loss("message_prediction", "message_prediction is not written yet.") == (
        "message_prediction is not written yet."
    )
    assert loss("4 ranks", "Rank 1 waits.") == "message_prediction: 4 ranks: Rank 1 waits."
    assert wording.about("ring", "ring_shift is slow") == "ring: ring_shift is slow"


def test_the_class_page_holds_every_submission_and_escapes_it() -> None:
    attack = "<script>go()</script>"
    results = [
        result_of(),
        result_of("ben", 1.0, eyes=["cell 'ring_shift_check' had been changed"]),
        result_of("carla", 0.5),
        result_of(attack, 0.0, status="kernel died", reason=attack),
        result_of("dora", 0.5, sandbox=[]),
        Result("emil", "00_first_ranks", "ungraded", "the ranks could not be started"),
        Result("fay", "00_first_ranks", "missing", "nothing was handed in"),
    ]
    page = class_page(results)
    soup = soup_of(page)
    (script,) = soup("script")
    policy = soup.find("meta", {"http-equiv": "Content-Security-Policy"})["content"]
    digest = base64.b64encode(hashlib.sha256(script.string.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    rows = {row("td")[0].text: row for row in soup.find(id="submissions").tbody("tr")}
    assert list(rows) == sorted(one.student for one in results)
    assert rows["ben"]("td")[2].text == "4 / 5" and rows["emil"]("td")[2].text == "- / 5"
    assert rows["anna"].a["href"] == "feedback/anna/00_first_ranks/00_first_ranks.html"
    assert rows[attack].a["href"].startswith("feedback/%3Cscript%3Ego%28%29%3C/script%3E/")
    looked_at = soup.find(id="eyes").find_next("table").text
    assert "ben" in looked_at and attack in looked_at and "emil" in looked_at
    assert "fay" in looked_at
    assert "anna" not in looked_at
    assert "4 of 5 submissions ran inside: namespaces, limits." in soup.text
    assert "1 of 5 submissions ran without a sandbox." in soup.text


def test_the_class_is_told_of_notebooks_from_another_python() -> None:
    note = f"{OTHER_PYTHON} 3.11.7; this notebook was saved by Python"
    results = [
        result_of("anna", changes=[f"{note} 3.13.1"]),
        result_of("ben", changes=["cell 'two' was missing and was put back"]),
        result_of("carl", changes=[f"{note} 3.12.4", "unsaved"]),
    ]
    (said,) = other_pythons(results)
    assert said.startswith("2 of 3 notebooks were saved by another Python")
    assert f"{platform.python_version()}: 3.12.4, 3.13.1." in said
    assert not other_pythons(results[1:2])


def test_what_is_to_be_looked_at_is_said_once() -> None:
    eyes = ["cell In[3]: it ended", *(f"cell '{name}' had been changed" for name in "abcde")]
    eyes += ["cell 1 sets check", "cell 'f' had been removed"]
    died = Result("ann", "00_toy", statuses.KERNEL_DIED, "cell In[3]: it ended", eyes=eyes)
    text = BeautifulSoup(class_page([died]), "html.parser").get_text("\n")
    looked_at = text.rpartition("To be looked at")[2].partition("All submissions")[0]
    assert looked_at.count("cell In[3]: it ended") == 1
    assert "cells 'a', 'b', 'c' and 2 more had been changed" in text
    assert "cell 'f' had been removed" in text and "cell 1 sets check" in text


def test_a_remark_that_many_share_is_one_row() -> None:
    """Changed cells of a class that an editor saved leave room for the submission that is different."""
    results = [
        result_of(name, eyes=[f"cell '{cell}' had been changed" for cell in ("a_check", "b_check")])
        for name in ("ann", "bob", "cleo")
    ]
    results[0].eyes.append("cell 'ring_shift' reaches for ctypes")
    results.append(result_of("gus", status=statuses.TIMED_OUT, reason="cell In[2]: too long"))
    results += [Result(name, "00_first_ranks", statuses.MISSING, "no file") for name in "xyz"]
    soup = soup_of(class_page(results))
    rows = soup.find(id="eyes").find_next("table").tbody("tr")
    said = [" ".join(row.get_text(" ").split()) for row in rows]
    assert said == [
        "ann 00_first_ranks graded cell 'ring_shift' reaches for ctypes",
        "gus 00_first_ranks timed out cell In[2]: too long",
        "3 submissions 00_first_ranks cells 'a_check', 'b_check' had been changed ann , bob , cleo",
        "3 submissions 00_first_ranks missing no file x , y , z",
    ]
    assert rows[2]("a")[1]["href"] == "feedback/bob/00_first_ranks/00_first_ranks.html"
    assert soup.find(id="eyes").find_next("summary").text == "7 submissions"


def test_the_class_page_begins_with_the_scores() -> None:
    page = class_page([result_of(), result_of("ben")])
    heads = [head.text for head in soup_of(page).find_all("h2")]
    assert heads == ["Scores", "To be looked at", "00_first_ranks"]


def test_the_class_page_counts_points_by_hand() -> None:
    def standing(result: Result) -> Standing:
        return Standing({"hello_check": ByHand(0.5, 1.0)} if result.student == "anna" else {})

    soup = soup_of(class_page([result_of(), result_of("ben")], standing=standing))
    rows = {row("td")[0].text: row for row in soup.find(id="submissions").tbody("tr")}
    assert rows["anna"]("td")[2].text == "2.5 / 5" and rows["ben"]("td")[2].text == "2 / 5"
    points = soup.select_one("table.points").tbody("tr")
    assert [cell.text for cell in points[0]("td")[1:]] == ["2", "0.5*", "2.5"]
    assert "star" in soup.text and "star" not in soup_of(class_page([result_of()])).text
    assert "mean 2.25" in soup.text


def test_the_class_page_says_where_its_links_to_formgrader_lead() -> None:
    server = "http://localhost:8931"
    page = class_page(
        [result_of()], formgrader=lambda student, assignment: f"{server}/x", server=server
    )
    assert f"lead to {server}" in soup_of(page).text.replace("\n", " ")
    assert "make formgrader" not in class_page([result_of()], server=server)


def test_formgrader_is_found_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autograder.report.server.jupyter_runtime_dir", lambda: str(tmp_path))
    assert formgrader_server(tmp_path) == SERVER

    def runs(name: str, folder: Path, pid: int) -> None:
        told = {"pid": pid, "root_dir": str(folder), "url": f"http://localhost/{name}/"}
        (tmp_path / f"jpserver-{name}.json").write_text(json.dumps(told))

    runs("elsewhere", tmp_path.parent, os.getpid())
    runs("ended", tmp_path, 2**22 + 1)  # beyond the largest number of a process
    (tmp_path / "jpserver-0.json").write_text("half a fi")
    assert formgrader_server(tmp_path) == SERVER
    runs("here", tmp_path, os.getpid())
    assert formgrader_server(tmp_path) == "http://localhost/here"


def test_of_two_scores_the_median_lies_between() -> None:
    results = [
        Result(
            name, "00_toy", statuses.GRADED, exercises=[Exercise("one_check", "one", points, 10)]
        )
        for name, points in (("ann", 2.0), ("bob", 9.0))
    ]
    said = "2 scores, out of 10 points: mean 5.5, median 5.5, lowest 2, highest 9."
    assert said in class_page(results)


@pytest.mark.parametrize("line", [3, 7])
def test_a_stub_is_said_to_be_one_wherever_it_stands(line: int) -> None:
    said = f"NotImplementedError at Cell In[3], line {line}: raise NotImplementedError()"
    report = refusal("one", said, possible=1, title="not written yet").to_json()
    empty = Exercise("one_check", "one", 0.0, 4, said, report=report)
    page = class_page([Result("ann", "00_toy", statuses.GRADED, exercises=[empty])])
    mistakes = page.rpartition("Most frequent mistakes")[2]
    assert "not written yet" in mistakes and f"line {line}" not in mistakes.partition("All sub")[0]


def test_the_most_frequent_mistake_comes_first_with_its_students() -> None:
    results = [result_of(f"s{number}", 0.5) for number in range(3)]
    results.append(result_of("t", 0.25))
    results[-1].exercises[0].report = report_of(0.25, "another mistake")
    soup = soup_of(class_page(results))
    table = soup.find("h3", string="Most frequent mistakes").find_next("table")
    first, *others = [[cell.text.strip() for cell in row("td")] for row in table.tbody("tr")]
    counts = [int(row[0]) for row in [first, *others]]
    assert counts == sorted(counts, reverse=True)
    mistake = next(row for row in [first, *others] if "deadlock: 0 -> 1" in row[2])
    assert mistake[0] == "3" and all(f"s{number}" in mistake[2] for number in range(3))
    assert any("another mistake" in row[2] and row[0] == "1" for row in others)


def test_a_class_page_grows_with_the_class_and_no_more() -> None:
    small, large = (len(class_page([result_of(f"s{i:03}") for i in range(n)])) for n in (50, 500))
    assert large - small < 450 * 800  # bytes a submission


# --- other pages for the instructor


def two_submissions() -> list[Result]:
    def result(
        student: str, points: float, status: str = statuses.GRADED, extra: bool = True
    ) -> Result:
        exercises = [
            Exercise("one_check", "02_toy/one", points, 4.0),
            Exercise("two_check", "02_toy/two", 0.0, 2.0),
            Exercise(
                "more_check", "02_toy/more", 1.5, 3.0, extra=True, report={} if extra else None
            ),
        ]
        return Result(student, "02_toy", status, exercises=exercises)

    absent = Result("=carl", "02_toy", statuses.MISSING)
    return [result("bob", 2.5, extra=False), result("anna", 4.0), absent]


def test_the_class_page_has_a_table_of_students_and_exercises() -> None:
    def formgrader(student: str, assignment: str) -> str:
        return (
            f"http://localhost:8888/formgrader/submissions/{student}/" if student == "anna" else ""
        )

    page = class_page(two_submissions(), formgrader=formgrader)
    table = BeautifulSoup(page, "html.parser").select_one("table.points")
    assert table is not None
    rows = [[one.get_text(strip=True) for one in row.find_all(["th", "td"])] for row in table("tr")]
    assert rows[0] == ["student", "one, 4", "two, 2", "more, 3", "sum", ""]
    assert rows[1] == ["=carl", "-", "-", "-", "0", ""]
    assert rows[2] == ["anna", "4", "0", "1.5", "5.5", "formgrader"]
    assert rows[3] == ["bob", "2.5", "0", "-", "4", ""]
    tones = [cell["class"][-1] for cell in table("tr")[2].find_all("td", class_="number")[:3]]
    assert tones == ["full", "none", "part"]
    (link,) = [one for one in table("a") if one.get_text() == "formgrader"]
    assert link["href"] == "http://localhost:8888/formgrader/submissions/anna/"
    assert "formgrader" not in class_page(two_submissions())


def test_points_of_each_exercise_as_a_table(tmp_path: Path) -> None:
    def standing(result: Result) -> Standing:
        given = (result.student, result.assignment) == ("anna", "02_toy")
        return Standing({"two_check": ByHand(1.0, 2.0)} if given else {})

    ungraded = Result("dora", "02_toy", statuses.UNGRADED, exercises=two_submissions()[0].exercises)
    other = Result("anna", "00_first", statuses.GRADED, exercises=[Exercise("a", "", 1.0, 1.0)])
    write_points([*two_submissions(), ungraded, other], standing, tmp_path / "exercises.csv")
    with open(tmp_path / "exercises.csv", newline="") as file:
        head, *rows = csv.reader(file)
    assert head == [
        "student", "00_first", "00_first/a (1)",
        "02_toy", "02_toy/one (4)", "02_toy/two (2)", "02_toy/more (3)",
    ]  # fmt: skip
    assert rows == [
        ["'=carl", "", "", "0", "", "", ""],
        ["anna", "1", "1", "6.5", "4", "1", "1.5"],
        ["bob", "", "", "4", "2.5", "0", ""],
        ["dora", "", "", "", "", "", ""],
    ]


@pytest.mark.parametrize("assignment", assignments())
def test_the_rubric_says_what_all_points_are_given_for(assignment: str) -> None:
    read = read_assignment(assignment, SOLUTIONS, NOTEBOOKS)
    page = rubric([read])
    for graded in read.graded.values():
        assert f"<h3>{graded.name}: " in page
        if graded.by_hand:
            continue
        lines = lines_of(find(graded.check), graded.points)
        assert sum(float(one["points"]) for one in lines) == pytest.approx(graded.points, abs=0.2)
        assert any(not one["hidden"] for one in lines)


def test_a_page_names_no_folder_of_the_graders_machine() -> None:
    lines = [f"File {linecache.__file__}:3", f"File {nbformat.__file__}:9", f"{NOTEBOOKS}/x.py"]
    outputs = [
        new_output("error", ename="E", evalue=lines[0], traceback=lines),
        new_output("stream", text="\n".join(lines)),
        new_output("display_data", {"text/plain": lines[1]}),
    ]
    shown = str(clean_outputs(outputs))
    assert "linecache.py:3" in shown and "nbformat" in shown
    assert sys.prefix not in shown and str(NOTEBOOKS.parent) not in shown
    assert os.path.dirname(linecache.__file__) not in shown


@pytest.mark.parametrize("refusing", [RefuseToAutograde, RefuseFeedback])
def test_a_refusal_fits_into_the_window_of_formgrader(refusing: type) -> None:
    """The window shows 80 columns of nbgrader's traceback, and its lines are not wrapped."""
    with pytest.raises(NotHereError) as refused:
        refusing()
    shown = "".join(traceback.format_exception_only(refused.value)).splitlines()
    assert len(shown) > 2 and max(map(len, shown)) <= 80
    assert shown[-1].endswith("Nothing was changed.")


def test_a_sentence_of_the_grader_below_a_cell_fits_into_formgraders_page() -> None:
    sentence = f"the cell took longer than its limit, {'and so on, ' * 30}".strip()
    output = note(statuses.TIMED_OUT, sentence)
    assert output.evalue == sentence
    assert " ".join(output.traceback) == f"TimedOut: {sentence}"
    assert max(map(len, output.traceback)) <= 96
