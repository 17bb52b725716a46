"""The site's sources, which Sphinx reads: every page, no solution, no hidden case, no link to nowhere."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import make_site
import nbformat
import pytest
from nbformat import NotebookNode
from site_links import faults
from site_notebooks import DisclosingError, shown, without_hidden_reports, without_solutions

from autograder.course.config import NOTEBOOKS, SOLUTIONS, assignments
from autograder.course.place import Place, ReleaseError

ROOT = Path(__file__).resolve().parents[2]
PLACE = Place("a-school/course")
NAMES = assignments()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages as `make site REPOSITORY=owner/name` hands them to Sphinx."""
    folder = tmp_path_factory.mktemp("site") / "source"
    make_site.prepare(folder, PLACE)
    return folder


def notebook(folder: Path, name: str) -> NotebookNode:
    return nbformat.read(folder / name / f"{name}.ipynb", as_version=4)


# --- the table of contents -----------------------------------------------------------------------


def test_every_page_and_every_notebook_is_in_the_navigation(sources: Path) -> None:
    listed = set(re.findall(r"^([\w/.-]+)$", (sources / "index.md").read_text(), re.MULTILINE))
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("[a-z]*/README.md")]
    names = {str(page.relative_to(ROOT).with_suffix("")) for page in pages} - {"README"}
    assert {name for name in names if name not in listed} == set(), "PAGES in tools/make_site.py"
    assert {f"notebooks/{name}" for name in NAMES} <= listed
    for name in listed & (names | {f"notebooks/{name}" for name in NAMES}):
        assert (sources / f"{name}.md").exists() or (sources / f"{name}.ipynb").exists(), name


def test_links_between_the_pages_lead_to_files(sources: Path) -> None:
    for page in sources.rglob("*.md"):
        for target in make_site.LINK.findall(page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(sources)}: {target}"


def test_the_front_page_links_to_each_notebook(sources: Path) -> None:
    front = (sources / "index.md").read_text(encoding="utf-8")
    for name in NAMES:
        row = f"| [`{name}`](notebooks/{name}.ipynb) |"
        assert row in front, f"README.md: the table of notebooks needs a row | `{name}` | ... |"
    assert '<a name="' not in front and "\n(colab-kaggle)=\n" in front


# --- nothing of a solution -----------------------------------------------------------------------


def solution_lines(name: str) -> set[str]:
    """Lines of the solutions that say something and that the student version does not say, too."""
    student = "\n".join(cell.source for cell in notebook(NOTEBOOKS, name).cells)
    twin = (SOLUTIONS / name / f"{name}.py").read_text(encoding="utf-8")
    regions = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", twin, re.DOTALL)
    lines = {line.strip() for region in regions for line in region.splitlines()}
    return {line for line in lines if len(line) >= 12 and line not in student}


def hidden_lines(name: str) -> dict[str, set[str]]:
    """Lines that students do not see, by the ids of checks: of the hidden tests, and of their reports."""
    checks = {}
    for cell in notebook(SOLUTIONS, name).cells:
        for region in re.findall(
            r"### BEGIN HIDDEN TESTS\n(.*?)### END HIDDEN", cell.source, re.DOTALL
        ):
            found = {line.strip() for line in region.splitlines() if "cases=" in line}
            printed = "".join(output.get("text", "") for output in cell.outputs).splitlines()
            second = [number for number, line in enumerate(printed) if line == printed[0]][1]
            found |= {line.strip() for line in printed[second:] if line not in printed[:second]}
            checks[cell["id"]] = found - {""}
    return checks


def everything(cells: list[NotebookNode]) -> str:
    """All text of some cells, as it is read."""
    texts = [cell.source for cell in cells]
    for cell in cells:
        for output in cell.get("outputs", []):
            texts += [
                output.get("text", ""),
                output.get("evalue", ""),
                *output.get("traceback", []),
            ]
            texts += [
                text for kind, text in output.get("data", {}).items() if kind.startswith("text/")
            ]
    return "\n".join(texts)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_shows_no_solution_and_no_hidden_case(sources: Path, name: str) -> None:
    page = nbformat.read(sources / "notebooks" / f"{name}.ipynb", as_version=4)
    text = f"{everything(page.cells)}\n{json.dumps(page.metadata)}"
    secrets, hidden = solution_lines(name), hidden_lines(name)
    graded = [
        cell["id"]
        for cell in notebook(SOLUTIONS, name).cells
        if cell.metadata.get("nbgrader", {}).get("grade")
    ]
    assert graded and {*hidden} == {*graded}
    assert len(secrets) > min(10, 2 * len(graded)), "too few to find any"
    assert [line for line in secrets if line in text or line in html.unescape(text)] == []
    for cell in page.cells:
        told = everything([cell]).splitlines()
        assert hidden.get(cell["id"], set()).isdisjoint(line.strip() for line in told), cell["id"]
    for word in ("BEGIN SOLUTION", "HIDDEN TESTS", "nbgrader", "widget-state", "widget-view"):
        assert word not in text, word


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_the_students_cells_and_the_outputs(sources: Path, name: str) -> None:
    page = nbformat.read(sources / "notebooks" / f"{name}.ipynb", as_version=4)
    student, executed = notebook(NOTEBOOKS, name), notebook(SOLUTIONS, name)
    assert [cell.source for cell in page.cells[1:]] == [cell.source for cell in student.cells[1:]]
    for cell, ran in zip(page.cells, executed.cells, strict=True):
        solution = ran.metadata.get("nbgrader", {}).get("solution", False)
        assert ("exercise" in cell.metadata.tags) == solution
        assert solution or bool(cell.get("outputs")) == bool(ran.get("outputs")), cell["id"]


def test_quoted_lines_and_printed_functions_are_left_out() -> None:
    secrets = ["dist.send(buffer, group_dst=1)", "x += 1"]
    said = (
        "line 2: dist.send(buffer, group_dst=1), and\n    x += 1\nline 3: x += 1\nx += 1, they say"
    )
    shortened = "line 2: …, and\n    …\nline 3: …\nx += 1, they say"
    assert without_solutions(said, secrets) == shortened
    printed = "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n\n\nf()"
    assert without_solutions(printed, []) == (
        "def f():\n    # YOUR CODE HERE\n    raise NotImplementedError()\n\n\nf()"
    )


def test_a_check_keeps_the_visible_report_and_its_points() -> None:
    head = "broadcast                 6.0 of 6\n"
    printed = nbformat.v4.new_output("stream", text=f"{head}  ✓ seen\n{head}  ✓ hidden\n")
    more = nbformat.v4.new_output("stream", text="of a hidden case\n")
    points = nbformat.v4.new_output("execute_result", data={"text/plain": "6.0"})
    kept = without_hidden_reports([printed, more, points], "broadcast_check")
    assert [output.get("text") for output in kept] == [f"{head}  ✓ seen\n", None]


@pytest.mark.parametrize("reports", [0, 1, 3])
def test_a_check_with_other_reports_stops_the_site(reports: int) -> None:
    printed = nbformat.v4.new_output("stream", text="broadcast    6.0 of 6\n  ✓ a case\n" * reports)
    with pytest.raises(DisclosingError, match=f"broadcast_check: {reports} reports"):
        without_hidden_reports([printed], "broadcast_check")


def test_versions_of_two_notebooks_are_refused() -> None:
    with pytest.raises(DisclosingError, match="other cells"):
        shown(notebook(NOTEBOOKS, NAMES[0]), notebook(SOLUTIONS, NAMES[1]), "00")


# --- figures that move ---------------------------------------------------------------------------


def test_a_stepper_has_a_picture_for_each_round(sources: Path) -> None:
    page = nbformat.read(sources / "notebooks" / "02_collectives.ipynb", as_version=4)
    found = 0
    for cell in page.cells:
        for output in cell.get("outputs", []):
            figure = output.get("data", {}).get("text/html", "")
            if frames := re.search(r'data-frames="([^"]+)"', figure):
                (rounds,) = re.findall(r"(\d+) rounds", output.data["text/plain"])
                pictures = [
                    sources / "extra" / path.removeprefix("../") for path in frames[1].split()
                ]
                assert len(pictures) == int(rounds) + 1 and all(path.is_file() for path in pictures)
                found += 1
    assert found > 5


def test_another_widget_is_a_picture_with_a_sentence() -> None:
    """In notebook 07, the explorer of schedules and the workbench."""
    page = make_site.shown_notebook("07_pipeline")
    assert len(page.pictures) == 2
    assert everything(page.notebook.cells).count("In Jupyter this figure has controls") == 2


# --- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [PLACE, None])
def test_colab_and_kaggle_are_offered_if_the_address_is_known(place: Place | None) -> None:
    page = make_site.shown_notebook(NAMES[0]).notebook
    title = page.cells[0].source.splitlines()[0]
    make_site.introduce(page, NAMES[0], place, make_site.OUTPUTS)
    opening = page.cells[0].source
    assert title.startswith("# ") and opening.startswith(f"{title}\n\n<p class=")
    assert f"../downloads/{NAMES[0]}.ipynb" in opening
    for address in (PLACE.colab(NAMES[0]), PLACE.kaggle(NAMES[0]), PLACE.package):
        assert (address in opening) == (place is not None)


def test_a_download_gets_the_course_if_the_address_is_known(sources: Path, tmp_path: Path) -> None:
    downloads = sources / "extra" / "downloads"
    assert {file.stem for file in downloads.iterdir()} == set(NAMES)
    assert PLACE.package in (downloads / f"{NAMES[0]}.ipynb").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("urls", "repository"),
    [
        ("", None),
        ('[project.urls]\nDocs = "https://example.org/a-school/course"', None),
        ('[project.urls]\nRepository = "https://github.com/a-school/course"', "a-school/course"),
        ('[project.urls]\nSource = "https://github.com/owner/a.name.git"', "owner/a.name"),
    ],
)
def test_the_address_stands_in_one_place(tmp_path: Path, urls: str, repository: str | None) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "course"\n{urls}\n')
    place = make_site.where("", tmp_path / "pyproject.toml")
    assert (place and place.repository) == repository
    assert make_site.where("me/mine", tmp_path / "pyproject.toml") == Place("me/mine")


def test_a_name_that_cannot_be_a_repository_is_refused() -> None:
    with pytest.raises(ReleaseError, match="OWNER/NAME"):
        make_site.where("https://github.com/owner/name")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('<a href="b.html#there">', ""),
        ('<a href="https://example.org/x">', ""),
        ('<img src="data:image/png;base64,AA">', ""),
        ('<a href="c.html">', "no such file"),
        ('<a href="b.html#elsewhere">', "no such place"),
        ('<a href="#elsewhere">', "no such place"),
        ('<a href="/b.html">', "not below the site's own folder"),
        ('<a href="../b.html">', "not below the site's own folder"),
        ('<img src="none.png">', "no such file"),
        ('<figure data-frames="b.html none.png">', "none.png: there is no such file"),
        ('<script src="https://example.org/x.js">', "another host"),
        ('<link href="//example.org/x.css">', "another host"),
    ],
)
def test_faults_of_a_built_site(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "a.html").write_text(text)
    (tmp_path / "b.html").write_text('<p id="there">')
    found = faults(tmp_path)
    assert len(found) == bool(fault) and all(fault in line for line in found)


def test_a_style_sheet_that_loads_from_elsewhere_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@import 'https://example.org/font.css'; p { color: red }")
    assert len(faults(tmp_path)) == 1
