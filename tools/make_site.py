"""The site: notebooks, README and docs as web pages, in build/site/html. `make site` runs it.

    make site                                  without links to Colab and Kaggle
    make site REPOSITORY=owner/name            with them; so does an address in pyproject's [project.urls]
    make site ARGS=--self-study                with the solutions, folded below the checks

`prepare` writes the pages' sources to build/site/source, Sphinx makes pages of them (docs/site/conf.py), and
`site_links.faults` looks for links and figures that lead nowhere. A fault or a warning from Sphinx ends it.
The pages load nothing from another host.
"""

from __future__ import annotations

import argparse
import os
import posixpath
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import nbformat
from site_links import faults
from site_notebooks import Shown, shown

from autograder.course.config import NOTEBOOKS, SOLUTIONS, assignments
from autograder.course.place import Place, ReleaseError
from autograder.course.release import opened_anywhere, with_solutions
from autograder.course.self_study import add_solutions

ROOT = Path(__file__).resolve().parent.parent
CONFIGURATION = ROOT / "docs" / "site"
BUILD = ROOT / "build" / "site"

REPORTS = [f"docs/gpu/{report.name}" for report in sorted((ROOT / "docs" / "gpu").glob("*.md"))]
# The pages beside the notebooks, in the order of the navigation; README.md is the front page.
PAGES = {
    "Working it": ["docs/hosts.md", "docs/gpu.md", "examples/README.md"],
    "Teaching it": ["autograder/README.md", "docs/points.md", "SECURITY.md"],
    "Changing it": [
        "CONTRIBUTING.md", "docs/writing_an_exercise.md", "docs/testing.md", "docs/architecture.md",
        "CHANGELOG.md",
    ],
    "Measurements": ["docs/tested.md", "docs/benchmarks.md", *REPORTS],
}  # fmt: skip
FRONT = {"README.md": "index.md"}
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
ANCHOR = re.compile(r'^<a name="([\w-]+)"></a>', re.MULTILINE)
ADDRESS = re.compile(r"https://github\.com/([\w-]+/[\w.-]+?)(?:\.git)?/?")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("make site", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--repository", default="", help="owner/name on GitHub")
    parser.add_argument(
        "--self-study", action="store_true", help="below each check its solution, folded"
    )
    options = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        place = where(options.repository)
    except ReleaseError as error:
        print(f"no site was built: {error}", file=sys.stderr)
        return 1
    shutil.rmtree(BUILD, ignore_errors=True)
    prepare(BUILD / "source", place, options.self_study)
    made = BUILD / "html"
    if code := sphinx(BUILD / "source", made):
        return code
    if wrong_links := faults(made):
        print("\n".join(wrong_links), file=sys.stderr)
        return 1
    size = sum(file.stat().st_size for file in made.rglob("*") if file.is_file()) / 1e6
    said = place.repository if place else "no repository: pages without links to Colab and Kaggle"
    print(
        f"{made.relative_to(ROOT)}/index.html: {size:.1f} MB in {time.monotonic() - began:.0f} s ({said})"
    )
    return 0


def sphinx(source: Path, made: Path) -> int:
    """Sphinx's exit code; a warning is an error, and all of them are shown."""
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going"]
    command += ["-c", CONFIGURATION, "-d", BUILD / "doctrees", source, made]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode


def where(repository: str, project: Path = ROOT / "pyproject.toml") -> Place | None:
    """The repository on GitHub: the one named, else that of pyproject's [project.urls], else None.

    ReleaseError for a name that cannot be one.
    """
    if repository:
        return Place(repository)
    urls = tomllib.loads(project.read_text(encoding="utf-8"))["project"].get("urls", {})
    known = (ADDRESS.fullmatch(address) for address in urls.values())
    return next((Place(match[1]) for match in known if match), None)


def prepare(into: Path, place: Place | None, self_study: bool = False) -> None:
    """Write the sources of all pages to `into`, which must be empty or missing.

    self_study: pages and downloads have the solutions, folded.
    """
    names = assignments()
    for name in names:
        page = shown_notebook(name)
        student = (NOTEBOOKS / name / f"{name}.ipynb").read_bytes()
        if self_study:
            source = SOLUTIONS / name / f"{name}.ipynb"
            add_solutions(page.notebook, nbformat.read(source, as_version=4))
            student = with_solutions(student, source)
        introduce(page.notebook, name, place, SOLVED if self_study else OUTPUTS)
        write(into / "notebooks" / f"{name}.ipynb", f"{nbformat.writes(page.notebook)}\n".encode())
        for path, data in page.pictures.items():
            write(into / "extra" / path, data)
        handed_out = opened_anywhere(student, name, place) if place else student
        write(into / "extra" / "downloads" / f"{name}.ipynb", handed_out)
    for page in [*FRONT, *(page for pages in PAGES.values() for page in pages)]:
        text = page_text((ROOT / page).read_text(encoding="utf-8"), page, names)
        write(into / FRONT.get(page, page), text.encode())
        for target in linked_files(page):
            write(into / target, (ROOT / target).read_bytes())


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


# --- notebooks -----------------------------------------------------------------------------------


def shown_notebook(name: str) -> Shown:
    """The page of an assignment; see `site_notebooks`."""
    student, executed = (
        nbformat.read(folder / name / f"{name}.ipynb", as_version=4)
        for folder in (NOTEBOOKS, SOLUTIONS)
    )
    return shown(student, executed, name)


def introduce(
    notebook: nbformat.NotebookNode, name: str, place: Place | None, outputs: str
) -> None:
    """Put links and a sentence on the outputs below the title."""
    title, _, text = notebook.cells[0].source.partition("\n")
    lines = [title, "", links(name, place), "", outputs]
    if place:
        lines[-1] += f" {GET_THE_COURSE.format(place.package)}"
    notebook.cells[0].source = "\n".join([*lines, "", text.lstrip("\n")])


def links(name: str, place: Place | None) -> str:
    """Buttons: Colab and Kaggle open the notebook, if its address is known; the last one downloads it."""
    targets = {"Download the notebook": f"../downloads/{name}.ipynb"}
    if place:
        opened = {"Open in Colab": place.colab(name), "Open in Kaggle": place.kaggle(name)}
        targets = opened | targets
    buttons = " ".join(f'<a href="{target}">{text}</a>' for text, target in targets.items())
    return f'<p class="open-links">{buttons}</p>'


OUTPUTS = """\
*The outputs on this page come from a run with the solutions. The page does not show the solutions: each
exercise has the stub that you complete. [Places to run it](../index.md#for-students) are a laptop, Colab,
Kaggle or a server with GPUs.*"""
SOLVED = """\
*The outputs on this page come from a run with the solutions. Each exercise has the stub that you
complete. Below its check, a solution is folded, for when you have been stuck for 20 minutes.
[Places to run it](../index.md#for-students) are a laptop, Colab, Kaggle or a server with GPUs.*"""
GET_THE_COURSE = "*In Colab and Kaggle run this in a new first cell:* `%pip install -q {}`"


# --- pages ---------------------------------------------------------------------------------------


def page_text(text: str, page: str, names: Sequence[str]) -> str:
    """A page's Markdown for Sphinx, with its anchors and links; the front page lists all pages."""
    text = ANCHOR.sub(r"(\1)=\n", text)
    text = LINK.sub(lambda match: renamed(match[1], page), text)
    if page not in FRONT:
        return text
    for name in names:
        text = text.replace(f"\n| `{name}` |", f"\n| [`{name}`](notebooks/{name}.ipynb) |")
    listed = {"The notebooks": [f"notebooks/{name}" for name in names], **PAGES}
    return "\n".join([text, *(toctree(caption, pages) for caption, pages in listed.items())])


def renamed(target: str, page: str) -> str:
    """The link from `page` to `target`, which lies elsewhere if it is the front page."""
    path = resolved(target, page)
    return (
        posixpath.relpath(FRONT[path], posixpath.dirname(page) or ".") if path in FRONT else target
    )


def resolved(target: str, page: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def toctree(caption: str, pages: Sequence[str]) -> str:
    names = [page.removesuffix(".md") for page in pages]
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```", ""])


def linked_files(page: str) -> set[str]:
    """Files of the repository that a page shows or links to, and that are not pages."""
    text = (ROOT / page).read_text(encoding="utf-8")
    paths = {resolved(target, page) for target in LINK.findall(text)}
    return {path for path in paths if not path.endswith(".md") and (ROOT / path).is_file()}


if __name__ == "__main__":
    sys.exit(main())
