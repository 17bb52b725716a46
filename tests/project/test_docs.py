"""The pages agree with the repository: files, links, tables, figures, versions; sentences have subjects."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import architecture_figure
import nbformat
import pytest
import readme_pictures
import yaml

from benchmarks.table import BEGIN, END, Row, cells, with_rows
from tests.checks.test_borders import MAY
from tests.project.test_worked_example import FILES as EXAMPLE

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMES = [
    "README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "autograder/README.md",
    "tools/lab/start_here.md",
    *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md"))),
]  # fmt: skip
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in NAMES}
README, ARCHITECTURE = PAGES["README.md"], PAGES["docs/architecture.md"]
BENCHMARKS = PAGES["docs/benchmarks.md"]


# --- files and links -----------------------------------------------------------------------------

PATH = re.compile(r"`(\.?[\w-]+(?:/[\w.-]+)*/?)`")
ENDINGS = (".py", ".md", ".cff", ".toml", ".yml", ".lock", ".cfg", ".svg", "/")


def files_named(text: str) -> set[str]:
    """The names between backticks that look like a path in this repository."""
    without_code = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return {name for name in PATH.findall(without_code) if name.endswith(ENDINGS)}


CONTRIBUTORS = [
    "CONTRIBUTING.md",
    "docs/architecture.md",
    "docs/testing.md",
    "docs/writing_an_exercise.md",
]


@pytest.mark.parametrize("page", [*CONTRIBUTORS, "SECURITY.md"])
def test_every_file_that_the_page_names_exists(page: str) -> None:
    found = files_named(PAGES[page]) - set(EXAMPLE)
    assert len(found) > 5
    # docs/architecture.md says that paths may begin in course_lib
    missing = {
        name
        for name in found
        if not any((top / name).exists() for top in (ROOT, ROOT / "course_lib"))
    }
    assert not missing


def test_the_rule_for_environment_variables_leads_to_a_file_for_each() -> None:
    """All variables that the pages name, with the pattern of docs/architecture.md."""
    (pattern,) = re.findall(r"git grep -E '(.*)COURSE_OUT'", ARCHITECTURE)
    folders = ("autograder", "course_lib", "tests", "tools")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    code = "\n".join(
        file.read_text(encoding="utf-8") for file in [*files, ROOT / "nbgrader_config.py"]
    )
    variables = {name for page in PAGES.values() for name in re.findall(r"\bCOURSE_[A-Z_]+", page)}
    assert {"COURSE_BACKEND", "COURSE_TEST_SEED"} < variables
    missed = {
        name for name in variables - {"COURSE_"} if not re.search(rf"{pattern}{name}\b", code)
    }
    assert not missed


@pytest.mark.parametrize("page", CONTRIBUTORS)
def test_every_module_that_the_page_names_exists(page: str) -> None:
    for name in re.findall(r"`((?:course_lib|autograder|tests)(?:\.\w+)+)`", PAGES[page]):
        assert find_spec(name) is not None, name


# Options of programs that are not ours.
OTHERS = {
    "autograder/README.md": {"--scope"},
    "docs/architecture.md": {"--include"},
    "docs/hosts.md": {"--ip", "--rm"},
    "docs/testing.md": {"--pdb"},
}


@pytest.mark.parametrize("page", NAMES)
def test_every_option_that_the_page_names_exists(page: str) -> None:
    if page == "CHANGELOG.md":  # an option may have been renamed since
        return
    folders = ("autograder", "benchmarks", "course_lib", "tests", "tools")
    files = (file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    ours = {
        name
        for file in files
        for name in re.findall(r'"(--[a-z][a-z-]*)"', file.read_text(encoding="utf-8"))
    }
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGES[page]))
    missing = options - OTHERS.get(page, set()) - ours
    assert not missing, f"{page} names options that no program here has: {sorted(missing)}"


def headings(text: str) -> set[str]:
    """The anchors of a page."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    return made | set(re.findall(r'<a name="([^"]+)">', text))


@pytest.mark.parametrize("page", NAMES)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in headings(target.read_text(encoding="utf-8")), link


def test_the_table_of_folders_is_whole() -> None:
    """Every folder with code of ours; docs/architecture.md has the parts of the library."""
    table = PAGES["CONTRIBUTING.md"].partition("| folder | holds |")[2].partition("\n\n")[0]
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    for name in (*packages, "solutions", "notebooks", "tools", "examples"):
        assert f"| `{name}/` |" in table, name


# --- the architecture ----------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["autograder", "benchmarks", "course_lib", "tests", "tools"])
def test_the_first_line_of_a_module_says_what_it_is_for(folder: str) -> None:
    """docs/architecture.md lists a folder's contents by it, so the sentence may not go on below."""
    without = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if source.startswith("# %%"):  # a notebook's cells
            continue
        if not re.match(r'"""\S.*("""\n|\n\n)', source):
            without.append(str(path.relative_to(ROOT)))
    assert not without


def test_the_table_of_borders_is_what_the_tests_hold() -> None:
    """Each part of the checks, with the parts that it may import beside itself."""
    table = ARCHITECTURE.partition("<!-- BORDERS: begin -->")[2].partition("<!-- BORDERS: end -->")[
        0
    ]
    rows = [line.split("|")[1:-1] for line in table.strip().splitlines()[2:]]
    said = {first.strip(" `"): set(re.findall(r"`(\w+)`", last)) for first, _, last in rows}
    assert said == {part: set(may) for part, may in MAY.items()}


def test_the_figure_is_what_its_script_draws() -> None:
    drawn = architecture_figure.figure()
    assert architecture_figure.FIGURE.read_text(encoding="utf-8") == drawn, (
        "python tools/architecture_figure.py"
    )
    for box in architecture_figure.BOXES:
        assert (ROOT / "course_lib" / box.file.rpartition(" ")[2]).exists(), box.file


def test_the_figures_numbers_are_those_of_the_text() -> None:
    steps = [int(number) for number in re.findall(r"^(\d+)\. \*\*", ARCHITECTURE, re.MULTILINE)]
    assert steps == sorted(box.number for box in architecture_figure.BOXES if box.number)


def test_a_student_needs_eight_steps_at_most() -> None:
    """From the first line to a green row; the steps in the notebook are those of its first exercise."""
    students = README.partition("## For students")[2].partition("\n\nYou work")[0]
    steps = re.findall(r"^(\d)\. (.+)$", students, re.MULTILINE)
    assert [int(number) for number, _ in steps] == [*range(1, len(steps) + 1)] and len(steps) <= 8
    text = (ROOT / "notebooks/00_first_ranks/00_first_ranks.ipynb").read_text(encoding="utf-8")
    cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"]]
    task = next(number for number, cell in enumerate(cells) if "NotImplementedError" in cell)
    assert cells[task].startswith("def hello()") and cells[task].count("\n") == 3
    assert "Hint" in cells[task + 1] and cells[task + 1].count("()</code>") == 3
    assert 'check("00_first_ranks/hello", hello)' in cells[task + 2]


def test_the_messages_in_the_readme_are_printed_by_a_notebook() -> None:
    (quoted,) = re.findall(r"^```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    notebooks = [
        nbformat.read(ROOT / f"solutions/{name}/{name}.ipynb", as_version=4)
        for name in ("00_first_ranks", "02_collectives")
    ]
    outputs = [
        output.get("text", "")
        for notebook in notebooks
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    ]
    printed = {line.rstrip() for text in outputs for line in text.splitlines()}
    other = [line for line in quoted.splitlines() if line and line not in printed]
    assert not other, "README.md quotes lines that no notebook prints, such as a cell's old number"


def test_the_pictures_in_the_readme_are_drawn_by_a_notebook() -> None:
    """The names and the cells: a timeline is another one after each build."""
    shown = re.findall(r"\]\(docs/pictures/(\w+)\.png\)", README)
    assert set(shown) == set(readme_pictures.CELLS)
    for cell in readme_pictures.CELLS.values():
        assert readme_pictures.picture(*cell).startswith(b"\x89PNG")


# --- benchmarks ----------------------------------------------------------------------------------


def rows_of(text: str) -> list[str]:
    """The rows of all tables of measurements."""
    head = re.escape("| what | against | measured | reach |\n|---|---|---|---|\n")
    return [
        row for table in re.findall(rf"{head}((?:\|.*\n)+)", text) for row in table.splitlines()
    ]


def test_the_times_in_the_readme_were_measured() -> None:
    section = README.partition("## Tested and measured")[2].partition("\n## ")[0]
    times = re.findall(r"[\d.]+ s\b", section)
    assert len(times) == 3
    for seconds in times:
        assert any(
            re.search(rf"(?<![\d.]){re.escape(seconds)}", row) for row in rows_of(BENCHMARKS)
        ), seconds


def test_the_readme_counts_the_rows_that_miss_their_reach() -> None:
    missed = sum("(missed" in row for row in rows_of(BENCHMARKS))
    words = ("none", "one", "two", "three", "four", "five")
    assert f"Of all rows there, {words[missed]} exceed" in " ".join(README.split())


def test_rows_that_were_measured_again_are_replaced_in_every_table() -> None:
    old, new = Row("a step", "DDP", 1.5, 2.0), Row("a step", "DDP", 2.5, 2.0, detail="5 s, 2 s")
    another = Row("a step of two", "DDP", 1.0, 2.0)
    page = (
        f"first\n{BEGIN}\nMeasured on a day.\n\n{cells(another)}\n{END}\n\n"
        f"Measured on another day.\n\n{cells(old)}\nlast\n"
    )
    replaced = page.replace(cells(old), "| a step | DDP | 2.50 (missed) (5 s, 2 s) | 2.00 |")
    assert with_rows(page, [new]) == replaced
    assert with_rows(page, [new], "Monday") == replaced.replace("a day.", "Monday.", 1)
    added = Row("a launch", "", 3.0, 4.0, "s")
    assert with_rows(page, [added]) == page.replace(END, f"{cells(added)}\n{END}")
    with pytest.raises(ValueError, match="no <!-- benchmarks: begin"):
        with_rows("a page", [new])


# --- versions and workflows ----------------------------------------------------------------------


def test_the_citation_is_of_this_version() -> None:
    """Valid by the schema of 1.2.0 as far as its required keys go; cffconvert validates the rest."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert (citation["cff-version"], citation["version"]) == ("1.2.0", PROJECT["version"])
    assert citation["license"] == PROJECT["license"]
    holders = re.findall(
        r"^Copyright \(c\) \d+ (.+)$", (ROOT / "LICENSE").read_text(), re.MULTILINE
    )
    assert [author["name"] for author in citation["authors"]] == holders
    assert README.startswith(f"# {citation['title']}\n")


def test_the_changelog_knows_the_version() -> None:
    assert "\n## [Unreleased]\n" in PAGES["CHANGELOG.md"]
    assert PROJECT["version"] in PAGES["CHANGELOG.md"]
    kinds = re.findall(r"^### (\w+)$", PAGES["CHANGELOG.md"], re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


WORKFLOWS = {
    file.name: file.read_text(encoding="utf-8")
    for file in sorted((ROOT / ".github" / "workflows").iterdir())
}


def test_the_workflow_runs_what_ci_runs() -> None:
    jobs = yaml.safe_load(WORKFLOWS["tests.yml"])["jobs"]
    commands = {name: [step.get("run") for step in job["steps"]] for name, job in jobs.items()}
    assert "make check" in commands["check"] and ".ci/run" in commands["test"]
    assert jobs["check"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_has_pinned_actions_and_no_secrets(name: str) -> None:
    text = WORKFLOWS[name]
    actions = re.findall(r"uses: (\S+)", text)
    assert actions and all(
        re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", action) for action in actions
    )
    assert "secrets" not in text
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    more = {job for job, steps in workflow["jobs"].items() if "permissions" in steps}
    assert more == ({"deploy"} if name == "site.yml" else set())


def test_the_site_is_built_for_every_change_and_published_from_main_alone() -> None:
    """The job with rights of its own runs no code of the repository."""
    jobs = yaml.safe_load(WORKFLOWS["site.yml"])["jobs"]
    commands = [step.get("run", "") for step in jobs["site"]["steps"]]
    assert "make site REPOSITORY=${{ github.repository }}" in commands
    deploy = jobs["deploy"]
    assert deploy["permissions"] == {"pages": "write", "id-token": "write"}
    assert "push" in deploy["if"] and "github.ref == 'refs/heads/main'" in deploy["if"]
    (step,) = deploy["steps"]
    assert set(step) == {"id", "uses"} and step["uses"].startswith("actions/deploy-pages@")


@pytest.mark.parametrize(
    "template", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md")), ids=lambda p: p.stem
)
def test_issue_templates_have_their_heads(template: Path) -> None:
    head = yaml.safe_load(template.read_text(encoding="utf-8").split("---\n")[1])
    assert set(head) == {"name", "about", "title", "labels"} and all(head.values())


# --- sentences -----------------------------------------------------------------------------------

HEADLESS = re.compile(
    r"(?:^|[.:;] )[*_]*(?:who|what|whoever|nobody)\b|\b(?:whoever|nobody)\b", re.IGNORECASE
)
IS_NO = re.compile(
    r"(?<!there )\b(?:is|are|was|were) no\b(?! (?:longer|more|fewer|less)\b)", re.IGNORECASE
)
SUBJECTS = (
    'Give each of these a noun as its subject, in place of a word such as "who" or "what", and write "is not '
    'a" for "is no" (CONTRIBUTING.md, Sentences).'
)


def sentences(text: str) -> Iterator[str]:
    """Sentences and cells of tables, without code, headings, heads of tables and examples of bad style."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^### Sentences\n.*?(?=^##)", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^\|.*\n(?=\|---)", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "`x`", text)
    for block in re.split(r"\n\s*\n|\n(?=\||[-*] |\d+\. |#)", text):
        if not block.lstrip().startswith("#"):
            for cell in " ".join(block.split()).split("|"):
                part = re.sub(r"^(?:\d+\.|[-*]) ", "", cell.strip())
                yield from re.split(r"(?<=[.!?]) +", part)


@pytest.mark.parametrize("page", NAMES)
def test_sentences_have_a_noun_as_their_subject(page: str) -> None:
    """The two patterns of CONTRIBUTING.md that are found without reading; questions are free."""
    found = [
        sentence
        for sentence in sentences(PAGES[page])
        if not sentence.endswith("?") and (HEADLESS.search(sentence) or IS_NO.search(sentence))
    ]
    assert not found, "\n".join([*found, SUBJECTS])


@pytest.mark.parametrize(
    "sentence",
    ["What has not left leaves.", "It grades. Who leaves it alone loses nothing.", "It costs nobody a grade.",
     "The file is no notebook.", "It is so for whoever imports it."],
)  # fmt: skip
def test_the_patterns_are_found(sentence: str) -> None:
    (*_, last) = sentences(f"Text.\n\n{sentence}")
    assert HEADLESS.search(last) or IS_NO.search(last)
