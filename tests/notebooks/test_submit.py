"""Ready to be handed in? And the zip, which the grader takes."""

from __future__ import annotations

import errno
import os
import shlex
import time
import zipfile
from pathlib import Path

import nbclient
import nbformat
import pytest
from nbclient import NotebookClient

from course_lib import progress, rerun, saved, submit
from course_lib.checks.colour import plain
from tests.notebooks import made

LAST = made.code("print('the end')")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(saved, "of_assignment", lambda assignment: {})  # these notebooks are parts
    return tmp_path


def members(path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def test_a_notebook_that_is_ready(here, capsys):
    path = made.hello(here / "mine.ipynb", made.HELLO, made.FULL)
    before = path.read_bytes()
    assert submit.main(["mine.ipynb"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "✓ all 1 exercise tried" in said
    assert "✓ runs from the top without an error" in said
    assert "✓ 1.0 of 1 points in this run's visible cases" in said
    assert f"{here}/submission.zip holds 00_first_ranks." in said
    assert path.read_bytes() == before, "the student's file stays as it is"
    assert members(here / "submission.zip") == {"00_first_ranks/00_first_ranks.ipynb": before}
    assert sorted(here.iterdir()) == [path, here / "submission.zip"]


def test_a_byte_order_mark_of_an_editor_does_no_harm(here, capsys):
    ready = made.hello(here / "00_first_ranks.ipynb", made.HELLO, made.FULL)
    ready.write_text(ready.read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert submit.main([]) == 0
    assert "1.0 of 1" in capsys.readouterr().out


def test_a_stub_and_an_old_table_are_named_and_packed_all_the_same(here, capsys):
    made.hello(here / "mine.ipynb", made.STUB, made.FULL)
    assert submit.main(["mine.ipynb", "--to", "kim.zip"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "✗ 0 of 1 exercise tried; open: hello (not written yet)" in said
    assert (
        "0.0 of 1 points in this run's visible cases, and 1.0 in the tables that you have saved"
        in said
    )
    assert "Not ready: 00_first_ranks." in said
    assert len(members(here / "kim.zip")) == 1


def test_the_first_error_from_the_top_is_named(here, capsys):
    answer, table = made.code(made.HELLO), made.checked(made.FULL)
    bad = made.code("\nmissing_name + 1\n1")
    wanted = made.code("1 / 0")
    wanted["metadata"] = {"tags": ["raises-exception"]}
    made.save(here / "mine.ipynb", made.code(made.IMPORTS), wanted, bad, answer, table)
    assert submit.main(["mine.ipynb"]) == 1
    said = " ".join(plain(capsys.readouterr().out).split())
    assert (
        "1 cell ended in an error. The first: NameError: name 'missing_name' is not defined" in said
    )
    assert "in the cell that begins with 'missing_name + 1'" in said


@pytest.mark.parametrize("path", sorted(made.STUDENT.glob("*/*.ipynb")), ids=lambda path: path.stem)
def test_no_cell_of_the_course_ends_in_an_error(path):
    """Colab and VS Code stop a "Run all" at an error, and a host may lose the tag that expects one."""
    for cell in nbformat.read(path, as_version=4).cells:
        assert "raises-exception" not in cell.metadata.get("tags", []), cell.source


def test_an_error_that_is_a_sentence_goes_on_without_its_full_stop():
    raised = {"output_type": "error", "ename": "ValueError", "evalue": "It is wrong."}
    cell = {"source": "f()", "outputs": [raised]}
    said = "ValueError: It is wrong, in the cell that begins with 'f()'"
    assert rerun.error_of(cell) == said


def test_an_error_names_its_kind_once():
    cell = made.code("f()")
    cell["outputs"] = [{"output_type": "error", "ename": "Deadlock", "evalue": "deadlock: rank 0"}]
    assert rerun.error_of(cell) == "deadlock: rank 0, in the cell that begins with 'f()'"


def test_an_exercise_that_was_not_checked_is_named_and_no_change_is_blamed(here, capsys):
    text = 'report = check("00_first_ranks/message_prediction", exchange_messages, ring_shift_messages)'
    answers = (
        "def exchange_messages(n): return n - n % 2\ndef ring_shift_messages(n): return n * (n > 1)"
    )
    cells = [made.code(made.IMPORTS), made.code(made.HELLO), made.checked()]
    printed = "message_prediction                                            1.0 of 1\n"
    cells += [made.code(answers), made.checked(printed, text)]
    made.save(here / "x.ipynb", *cells)
    assert submit.main(["x.ipynb"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "✓ 2.0 of 2 points in this run's visible cases; the file that you saved has no table of "
        in said
    )
    assert "no table of hello yet" in said and "was changed" not in said


def test_a_cell_that_never_ends_is_ended(here, capsys):
    made.save(
        here / "x.ipynb", made.code("while True: pass"), made.code(made.HELLO), made.checked()
    )
    assert submit.main(["x.ipynb", "--minutes", "0.05"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "a cell ran for more than 0.05 minutes, in the cell that begins with '" in said


def test_the_time_limit_is_a_whole_number_for_the_versions_of_colab(here, monkeypatch):
    limits = []

    class Client(NotebookClient):
        def __init__(self, *arguments, timeout, **options):
            limits.append(timeout)
            super().__init__(*arguments, timeout=timeout, **options)

    monkeypatch.setattr(nbclient, "NotebookClient", Client)
    made.hello(here / "x.ipynb", made.HELLO, made.FULL)
    assert submit.main(["x.ipynb", "--minutes", "1.501"]) == 0
    assert limits == [91] and type(limits[0]) is int, "traitlets 5.7 refuses a float"


def test_a_cell_that_takes_long_is_named_once_while_it_runs(here, capsys, monkeypatch):
    monkeypatch.setattr(rerun, "LONG", 0.5)
    slow = made.code("import time\ntime.sleep(1.5)")
    made.save(here / "x.ipynb", slow, made.code("1"), made.code(made.HELLO), made.checked())
    submit.main(["x.ipynb"])
    said = capsys.readouterr().out
    assert said.count("0.5 seconds so far in the cell that begins with 'import time'\n") == 1
    assert said.count("(a cell may run for 5 minutes; Ctrl-C ends the whole command)\n") == 1
    assert said.index("so far") < said.rindex("from the top")


def test_a_kernel_that_dies_is_said(here, capsys):
    dies = made.code("import os; os._exit(1)")
    made.save(here / "x.ipynb", dies, made.code(made.HELLO), made.checked())
    assert submit.main(["x.ipynb"]) == 1
    assert "its kernel died" in capsys.readouterr().out


def test_all_notebooks_of_a_folder_and_two_files_of_one(here, capsys):
    made.hello(here / "work" / "00" / "a.ipynb", made.HELLO, made.FULL)
    made.save(
        here / "work" / "02" / "b.ipynb",
        made.code("a, b, c, d = 1, 2, 3, 4"),
        made.checked("", 'check("02_collectives/questions", a, b, c, d)'),
    )
    assert submit.main(["--no-run"]) == 0
    assert "it was not run from the top, because you said so" in capsys.readouterr().out
    names = {"00_first_ranks/00_first_ranks.ipynb", "02_collectives/02_collectives.ipynb"}
    assert set(members(here / "work" / "submission.zip")) == names
    made.hello(here / "work" / "00" / "my copy.ipynb", made.HELLO)
    os.utime(here / "work" / "00" / "a.ipynb", (1, 1))
    packed = time.strftime("%Y-%m-%d", time.localtime())
    assert submit.main(["--no-run"]) == 2
    said = capsys.readouterr().err
    assert "are the same notebook, 00_first_ranks.\nSo nothing was packed." in said
    assert f"{here}/work/submission.zip is the file of {packed}" in said
    line = "python -m course_lib.submit 'work/00/my copy.ipynb' work/02/b.ipynb"
    assert said.splitlines()[-1].strip() == line
    assert submit.main(["--no-run", *shlex.split(line)[3:]]) == 0
    assert set(members(here / "work" / "submission.zip")) == names


def test_an_exercise_whose_check_was_deleted_is_open(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made.hello(tmp_path / "mine.ipynb", made.HELLO, made.FULL)
    assert submit.main(["--no-run"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "✗ 1 of 9 exercises tried; open: message_prediction (its check is missing here; a grader"
        in said
    )
    assert progress.main([]) == 0
    assert "1.0 of 10" in capsys.readouterr().out


def test_an_untouched_file_does_not_stand_in_the_way_of_a_renamed_one(here, capsys):
    released = (made.STUDENT / "00_first_ranks" / "00_first_ranks.ipynb").read_bytes()
    made.hello(here / "work" / "00" / "kim.ipynb", made.HELLO, made.FULL)
    (here / "work" / "00" / "00_first_ranks.ipynb").write_bytes(released)
    assert submit.main(["--no-run"]) == 0
    assert "kim.ipynb" in capsys.readouterr().out
    assert progress.main([]) == 0
    assert "1.0 of 1" in capsys.readouterr().out


def test_notebooks_without_a_word_of_the_student_are_left_out_unless_they_are_named(here, capsys):
    begun = made.hello(here / "work" / "00" / "a.ipynb", made.HELLO, made.FULL)
    fresh = here / "work" / "02" / "02.ipynb"
    fresh.parent.mkdir()
    fresh.write_bytes((made.STUDENT / "02_collectives" / "02_collectives.ipynb").read_bytes())
    assert submit.main(["--no-run"]) == 0
    assert "Nothing is written in 02 yet: left out." in capsys.readouterr().out
    assert set(members(here / "work" / "submission.zip")) == {"00_first_ranks/00_first_ranks.ipynb"}
    assert submit.main(["--no-run", str(begun), str(fresh)]) == 1
    assert len(members(here / "work" / "submission.zip")) == 2


def test_a_folder_in_which_nothing_is_written_is_not_run(here, capsys):
    for name in ("00_first_ranks", "02_collectives"):
        (here / f"{name}.ipynb").write_bytes((made.STUDENT / name / f"{name}.ipynb").read_bytes())
    assert submit.main([]) == 2
    said = capsys.readouterr().err
    assert (
        "Nothing is written yet in any of the 2 notebooks" in said
        and "course_lib.submit 00" in said
    )
    assert not (here / "submission.zip").exists()


def test_a_scratch_file_and_a_damaged_one_are_left_out_and_named(here, capsys):
    made.hello(here / "mine.ipynb", made.HELLO, made.FULL)
    made.save(here / "Untitled.ipynb", made.code("1 + 1"))
    assert submit.main(["--no-run"]) == 0
    assert "Left out: Untitled.ipynb has no check" in capsys.readouterr().out
    (here / "damaged.ipynb").write_text("{")
    assert submit.main(["--no-run"]) == 1, "it might be one that counts"
    assert "Left out: damaged.ipynb is not a notebook" in capsys.readouterr().out
    assert list(members(here / "submission.zip")) == ["00_first_ranks/00_first_ranks.ipynb"]


def test_the_zip_is_in_one_place_wherever_the_command_is_typed(here, capsys, monkeypatch):
    work = here / "work"
    folder = work / "00_first_ranks"
    made.hello(folder / "00_first_ranks.ipynb", made.HELLO, made.FULL)
    for where, words in (
        (here, []),
        (here, ["00"]),
        (work, []),
        (folder, ["00_first_ranks.ipynb"]),
    ):
        monkeypatch.chdir(where)
        assert submit.main(["--no-run", *words]) == 0
        assert f"\n{work}/submission.zip holds 00_first_ranks." in capsys.readouterr().out
        assert list(here.rglob("*.zip")) == [work / "submission.zip"]
        (work / "submission.zip").unlink()


def test_another_zip_that_could_be_handed_in_by_mistake_is_named(here, capsys, monkeypatch):
    made.hello(here / "work" / "00" / "mine.ipynb", made.HELLO, made.FULL)
    for where in (here, here / "work"):
        monkeypatch.chdir(where)
        assert submit.main(["--no-run", "--to", str(here / "submission.zip")]) == 0
        assert "another file" not in capsys.readouterr().out
        before = (here / "submission.zip").read_bytes()
        assert submit.main(["--no-run"]) == 0
        assert f"{here}/submission.zip is another file, packed 20" in capsys.readouterr().out
        assert (here / "submission.zip").read_bytes() == before
        (here / "work" / "submission.zip").unlink()


def test_an_interrupt_packs_nothing_and_says_so(here, capsys, monkeypatch):
    made.hello(here / "mine.ipynb", made.HELLO, made.FULL)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(rerun, "run", interrupted)
    assert submit.main(["mine.ipynb"]) == 130
    said = capsys.readouterr()
    assert "1 notebook to be run from the top" in said.out
    assert "Interrupted: nothing was packed." in said.err
    assert not (here / "submission.zip").exists()


def test_a_file_of_somebody_else_is_not_written_over(here, capsys):
    made.hello(here / "x.ipynb", made.HELLO, made.FULL)
    with zipfile.ZipFile(here / "photos.zip", "w") as packed:
        packed.writestr("a.png", b"1")
    (here / "text.zip").write_text("no zip")
    for name in ("photos.zip", "text.zip"):
        before = (here / name).read_bytes()
        assert submit.main(["x.ipynb", "--no-run", "--to", name]) == 2
        assert "stays as it is" in capsys.readouterr().err
        assert (here / name).read_bytes() == before
    for name, said in (("x.tar", "does not end in .zip"), ("no/x.zip", "there is no folder no")):
        assert submit.main(["x.ipynb", "--to", name]) == 2
        assert said in capsys.readouterr().err
    for _ in range(2):  # its own zip is replaced
        assert submit.main(["x.ipynb", "--no-run"]) == 0


def test_a_notebook_from_a_machine_with_another_kernel_runs_in_pythons_own(here, capsys):
    path = made.hello(here / "x.ipynb", made.HELLO, made.FULL)
    path.write_text(path.read_text().replace('"python3"', '"conda-env-course-py"'))
    assert submit.main(["x.ipynb"]) == 0
    assert "runs from the top without an error" in capsys.readouterr().out


def test_a_machine_without_any_kernel_still_packs(here, capsys, monkeypatch):
    made.hello(here / "x.ipynb", made.HELLO, made.FULL)
    monkeypatch.setattr(rerun, "kernel_of", lambda notebook: "none-of-this-name")
    assert submit.main(["x.ipynb"]) == 1
    assert "no kernel for it (pip install ipykernel)" in capsys.readouterr().out
    assert len(members(here / "submission.zip")) == 1


def test_a_kernel_that_does_not_start_is_said_and_the_notebook_packed(here, capsys, monkeypatch):
    def full(path, minutes):
        raise RuntimeError("Kernel died before replying to kernel_info")

    monkeypatch.setattr(rerun, "run", full)
    made.hello(here / "x.ipynb", made.HELLO, made.FULL)
    assert submit.main(["x.ipynb"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "could not be run from the top: Kernel died before replying to kernel_info. python -m "
        "course_lib.doctor may say why" in said
    )
    assert len(members(here / "submission.zip")) == 1


@pytest.mark.parametrize("year", [1970, 1979, 2031, 2150])
def test_a_wrong_clock_is_no_reason_to_pack_nothing(here, year):
    path = made.hello(here / "x.ipynb", made.HELLO, made.FULL)
    os.utime(path, (time.mktime((year, 6, 1, 0, 0, 0, 0, 0, 0)),) * 2)
    assert submit.main(["x.ipynb", "--no-run"]) == 0
    assert list(members(here / "submission.zip").values()) == [path.read_bytes()]


def test_a_folder_that_cannot_be_written_to_is_said_before_anything_runs(here, capsys, monkeypatch):
    monkeypatch.setattr(rerun, "run", None)
    made.hello(here / "x.ipynb", made.HELLO, made.FULL)
    target = Path("/proc/self/submission.zip")  # not even root can make a file there
    assert submit.main(["x.ipynb", "--to", str(target)]) == 2
    said = capsys.readouterr()
    assert f"{target} cannot be written: " in said.err and "--to FOLDER/submission.zip" in said.err
    assert "to be run from the top" not in said.out


def test_a_disk_that_fills_up_leaves_the_zip_that_was_there(here, capsys, monkeypatch):
    made.hello(here / "x.ipynb", made.HELLO, made.FULL)
    assert submit.main(["x.ipynb", "--no-run"]) == 0
    before = (here / "submission.zip").read_bytes()
    written = Path.write_bytes

    def full(path, data):
        written(path, data[:100])
        if len(data) > 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert submit.main(["x.ipynb", "--no-run"]) == 2
    assert "submission.zip cannot be written: No space left on device." in capsys.readouterr().err
    assert (here / "submission.zip").read_bytes() == before
    assert sorted(path.name for path in here.iterdir()) == ["submission.zip", "x.ipynb"]


def test_without_nbclient_it_says_so(here, capsys, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "nbclient.exceptions", None)
    made.hello(here / "x.ipynb", made.HELLO, made.FULL)
    assert submit.main(["x.ipynb"]) == 1
    assert "nbclient is missing (pip install nbclient)" in capsys.readouterr().out


def test_extra_credit_is_counted_apart():
    exercises = [
        saved.Exercise("a", "1", saved.DONE, 6.0, False, 5.0),
        saved.Exercise("b", "2", saved.DONE, 3.0, True, 3.0),
    ]
    notebook = saved.Notebook(Path("x.ipynb"), "04_zero", "04", tuple(exercises))
    ready, said = submit._points(notebook, notebook)
    assert ready and said == "5.0 of 6 points, and 3.0 of extra credit, in this run's visible cases"


@pytest.mark.parametrize("minutes", ["-1", "0", "nan", "soon", "1e300"])
def test_minutes_are_a_number_above_zero(minutes, capsys):
    with pytest.raises(SystemExit):
        submit.main(["x.ipynb", f"--minutes={minutes}"])
    assert f"'{minutes}' is not a number of minutes" in capsys.readouterr().err
