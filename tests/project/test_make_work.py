"""`make lab` opens copies. A text that a student typed stays, and newer versions arrive beside it."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path

import make_work
import pytest

ROOT = Path(__file__).resolve().parents[2]
ONE, TWO = "00_one/00_one.ipynb", "01_two/01_two.ipynb"


@pytest.fixture
def notebooks(tmp_path: Path) -> Path:
    folder = tmp_path / "notebooks"
    for name in (ONE, TWO):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(f"{name}, version 1")
    return folder


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return tmp_path / "work"


def update(notebooks: Path, work: Path) -> list[str]:
    return list(make_work.Work(work).update(notebooks))


def texts(work: Path) -> dict[str, str]:
    return {path.relative_to(work).as_posix(): path.read_text() for path in work.glob("*/*")}


def test_the_first_call_copies_all_and_the_second_nothing(notebooks: Path, work: Path) -> None:
    (said,) = update(notebooks, work)
    assert "2 notebooks copied" in said
    assert texts(work) == {name: f"{name}, version 1" for name in (ONE, TWO)}
    assert update(notebooks, work) == []


def test_what_was_typed_stays_and_a_newer_version_lies_beside_it(
    notebooks: Path, work: Path
) -> None:
    update(notebooks, work)
    (work / ONE).write_text("my answers")
    assert update(notebooks, work) == []
    (notebooks / ONE).write_text("version 2")
    (said,) = update(notebooks, work)
    assert "00_one_newer.ipynb" in said
    assert texts(work)[ONE] == "my answers"
    assert texts(work)["00_one/00_one_newer.ipynb"] == "version 2"
    assert update(notebooks, work) == [], "it is said once"


def test_a_newer_version_that_was_worked_in_stays_as_well(notebooks: Path, work: Path) -> None:
    update(notebooks, work)
    (work / ONE).write_text("my answers")
    (notebooks / ONE).write_text("version 2")
    update(notebooks, work)
    (work / "00_one/00_one_newer.ipynb").write_text("my answers to version 2")
    (notebooks / ONE).write_text("version 3")
    (said,) = update(notebooks, work)
    assert "00_one_newer_2.ipynb" in said
    assert sorted(texts(work).values())[-3:] == [
        "my answers",
        "my answers to version 2",
        "version 3",
    ]


def test_an_untouched_copy_is_replaced(notebooks: Path, work: Path) -> None:
    update(notebooks, work)
    (notebooks / TWO).write_text("version 2")
    (said,) = update(notebooks, work)
    assert said.startswith(TWO)
    assert texts(work)[TWO] == "version 2"
    assert len(texts(work)) == 2


def cells(*sources: str) -> str:
    return json.dumps({"cells": [{"cell_type": "code", "source": text} for text in sources]})


@pytest.mark.parametrize("newer", [("text 2", "stub"), ("text", "stub", "added")])
def test_an_old_version_that_a_tab_brought_back_gets_the_newer_one_beside_it(
    notebooks: Path, work: Path, newer: tuple[str, ...]
) -> None:
    (notebooks / ONE).write_text(cells("text", "stub"))
    update(notebooks, work)
    (notebooks / ONE).write_text(cells(*newer))
    update(notebooks, work)
    (work / ONE).write_text(cells("text", "my answer"))  # typed in a tab, then "Overwrite"
    (said,) = update(notebooks, work)
    assert "00_one_newer.ipynb" in said
    assert texts(work)[ONE] == cells("text", "my answer")
    assert texts(work)["00_one/00_one_newer.ipynb"] == cells(*newer)
    assert update(notebooks, work) == [], "it is said once"


def test_a_newer_file_that_a_tab_brought_back_does_not_bury_the_newest(
    notebooks: Path, work: Path
) -> None:
    (notebooks / ONE).write_text(cells("text", "stub"))
    update(notebooks, work)
    (work / ONE).write_text(cells("text", "my answer"))
    for text in ("text 2", "text 3"):  # the first is open in a tab when the second comes
        (notebooks / ONE).write_text(cells(text, "stub"))
        (said,) = update(notebooks, work)
        assert "00_one_newer.ipynb" in said
    (work / "00_one/00_one_newer.ipynb").write_text(cells("text 2", "my answer"))  # "Overwrite"
    (said,) = update(notebooks, work)
    assert "00_one_newer_2.ipynb" in said
    assert texts(work)["00_one/00_one_newer_2.ipynb"] == cells("text 3", "stub")
    assert texts(work)["00_one/00_one_newer.ipynb"] == cells("text 2", "my answer")
    assert update(notebooks, work) == [], "it is said once"


def test_answers_in_the_version_that_replaced_another_are_answers(
    notebooks: Path, work: Path
) -> None:
    for sources in (("text", "stub"), ("text 2", "stub 2")):
        (notebooks / ONE).write_text(cells(*sources))
        update(notebooks, work)
    for mine in (("text 2", "my answer"), ("my words", "my answer"), ("text 2", "stub 2", "mine")):
        (work / ONE).write_text(cells(*mine))
        assert update(notebooks, work) == []


@pytest.mark.parametrize("record", ["", "{", "[]", None])
def test_without_its_record_every_file_counts_as_worked_in(
    notebooks: Path, work: Path, record: str | None
) -> None:
    update(notebooks, work)
    (work / ONE).write_text("my answers")
    (work / make_work.RECORD).unlink() if record is None else (work / make_work.RECORD).write_text(
        record
    )
    (notebooks / ONE).write_text("version 2")
    (notebooks / TWO).write_text("version 2")
    assert len(update(notebooks, work)) == 2
    assert texts(work)[ONE] == "my answers"
    assert texts(work)[TWO] == f"{TWO}, version 1"


def test_files_of_the_students_own_stay(notebooks: Path, work: Path) -> None:
    update(notebooks, work)
    (work / "00_one/notes.txt").write_text("mine")
    (work / ONE).unlink()
    assert "1 notebook copied" in update(notebooks, work)[0]
    assert texts(work)["00_one/notes.txt"] == "mine"


def test_a_copy_has_the_metadata_of_the_kernel_that_will_open_it(
    notebooks: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JupyterLab would otherwise mark it as changed, and save it, when it is merely opened."""

    def source(cells: list[str]) -> None:
        text = {"cells": cells, "metadata": {"kernelspec": {"display_name": "Python 3"}, "mine": 1}}
        (notebooks / ONE).write_text(json.dumps(text))

    source([])
    update(notebooks, work)
    made = json.loads(texts(work)[ONE])["metadata"]
    assert made["kernelspec"]["name"] == "python3" and made["mine"] == 1
    assert made["language_info"]["version"] == platform.python_version()
    monkeypatch.setattr(make_work.kernel_metadata, "of_this_kernel", lambda: {"another": "kernel"})
    assert update(notebooks, work) == [], "another Python is not a newer version"
    source(["new"])
    (said,) = update(notebooks, work)
    assert "newer version" in said and json.loads(texts(work)[ONE])["metadata"]["another"]
    (work / ONE).write_text("my answers")
    assert update(notebooks, work) == []


def test_a_folder_that_was_made_before_is_gone_on_with(notebooks: Path, work: Path) -> None:
    update(notebooks, work)
    record = json.loads((work / make_work.RECORD).read_text())
    old = {name: kept for name, kept in record.items() if not name.startswith("seen ")}
    (work / make_work.RECORD).write_text(json.dumps(old))
    assert update(notebooks, work) == []
    (notebooks / ONE).write_text("version 2")
    assert len(update(notebooks, work)) == 1 and texts(work)[ONE] == "version 2"


def first_page(work: Path) -> str:
    return (work / make_work.PAGE).read_text()


def test_the_page_is_written_again_only_if_nobody_changed_it(
    notebooks: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(title: str) -> str:
        for name in (ONE, TWO):
            cell = {"cell_type": "markdown", "source": [f"# {title}"]}
            (notebooks / name).write_text(json.dumps({"cells": [cell]}))
        assert make_work.main(["--notebooks", str(notebooks), "--work", str(work)]) == 0
        return capsys.readouterr().out

    make("One")
    assert "[One](00_one/00_one.ipynb)" in first_page(work)
    make("Two")
    assert "[Two](00_one/00_one.ipynb)" in first_page(work)
    (work / make_work.PAGE).write_text("my notes")
    assert "start_here_newer.md" in make("Three")
    assert first_page(work) == "my notes"
    assert "[Three](00_one/00_one.ipynb)" in (work / "start_here_newer.md").read_text()
    assert make("Three") == "", "it is said once"


def test_a_folder_that_cannot_be_made_is_said(
    notebooks: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work.write_text("a file")
    assert make_work.main(["--notebooks", str(notebooks), "--work", str(work)]) == 2
    assert str(work) in capsys.readouterr().err


def test_git_does_not_see_the_copies() -> None:
    done = subprocess.run(
        ["git", "check-ignore", "work/a.ipynb"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode == 128:
        pytest.skip("not a clone of git")
    assert done.returncode == 0


@pytest.mark.parametrize("name", [".venv", "work", "build", "autograder/out"])
def test_git_does_not_see_a_link_with_the_name_of_an_ignored_folder(
    name: str, tmp_path: Path
) -> None:
    """If git tracked the link, a pull would put it in the place of the folder, with all that is in it."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text((ROOT / ".gitignore").read_text())
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(ROOT)
    done = subprocess.run(["git", "check-ignore", "-q", name], cwd=tmp_path)
    assert done.returncode == 0


def test_nothing_that_is_ignored_is_tracked() -> None:
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode == 128:
        pytest.skip("not a clone of git")
    assert done.stdout == ""


def test_make_lab_opens_the_copies_and_make_clean_leaves_them_and_the_grades_alone() -> None:
    makefile = (ROOT / "Makefile").read_text()
    lab = makefile.partition("\nlab:")[2].partition("\n\n")[0]
    assert lab.index("tools/make_work.py") < lab.index("tools/open_lab.py")
    removed = makefile.partition("\nclean:")[2].partition("\n\n")[0].partition("\n")[2]
    assert "rm -rf build/site" in removed
    assert "autograder" not in removed and "work" not in removed
