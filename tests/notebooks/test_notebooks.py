"""The solutions run again with the outputs that are kept, as far as these are compared."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from tests import drawn

HERE = Path(__file__).resolve().parent
SOLUTIONS = HERE.parents[1] / "solutions"
CELL_TIMEOUT = 300  # as in a build, since a cell may share two cores with the other tests

NOTEBOOKS = sorted(SOLUTIONS.glob("*/*.ipynb"))


def run_nbval(notebook: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """nbval, strictly, on one notebook, in a pytest of its own."""
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", str(notebook)]
    command += [f"--nbval-cell-timeout={CELL_TIMEOUT}", "-p", "nbval_watch", "-vv", "--color=no"]
    command += [f"--nbval-sanitize-with={HERE / 'nbval_sanitize.cfg'}", "-p", "no:cacheprovider"]
    command += ["--rootdir", str(notebook.parent), "-c", os.devnull, *options]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1100)


def test_there_are_notebooks() -> None:
    assert {path.stem for path in NOTEBOOKS} >= {"00_first_ranks", "02_collectives"}


@pytest.mark.parametrize("notebook", drawn.drawn_notebooks(NOTEBOOKS, 0.3))
def test_the_solution_gives_its_outputs_again(
    notebook: Path, tmp_path: Path, own_temporary_folder: Path
) -> None:
    """And leaves nothing behind but the folder that PyTorch keeps for compiled code, one for all.

    A copy runs, so files that it writes (the capstone's page) are not left in the course if it is cut off.
    """
    result = run_nbval(Path(shutil.copy(notebook, tmp_path)))
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert "passed" in result.stdout
    left = [path.name for path in own_temporary_folder.iterdir()]
    assert all(name.startswith("torchinductor_") for name in left), left


# The programs on which `launch` adds a note about NCCL on purpose; it has none on the notebooks' others.
NOTED = {
    "00_first_ranks": ["def swap_one_by_one"],
    "07_pipeline": ["def tokens_only"],
}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notes_on_nccl_stand_where_they_are_meant(notebook: Path) -> None:
    cells = [cell for cell in nbformat.read(notebook, 4).cells if cell.cell_type == "code"]
    noted = [cell for cell in cells if "NCCL does what a rank begins" in "".join(printed(cell))]
    wanted = NOTED.get(notebook.stem, [])
    assert len(noted) == len(wanted), [cell.source for cell in noted]
    for cell, source in zip(noted, wanted, strict=True):
        assert source in cell.source and "Note: " in "".join(printed(cell))


def printed(cell: nbformat.NotebookNode) -> list[str]:
    return [output.text for output in cell.outputs if output.output_type == "stream"]


# --- does nbval notice a difference? -------------------------------------------------------------


def write_notebook(path: Path, *cells: tuple[str, str], tags: tuple[str, ...] = ()) -> Path:
    """A notebook of (source, what it is said to have printed) cells."""
    notebook = nbformat.v4.new_notebook()
    for count, (source, printed) in enumerate(cells, 1):
        outputs = [nbformat.v4.new_output("stream", name="stdout", text=printed)] * bool(printed)
        cell = nbformat.v4.new_code_cell(source, outputs=outputs, execution_count=count)
        cell.metadata["tags"] = list(tags)
        notebook.cells.append(cell)
    nbformat.write(notebook, path)
    return path


def test_a_true_output_passes_and_a_forged_one_fails(tmp_path: Path) -> None:
    true = write_notebook(tmp_path / "true.ipynb", ("print(1 + 1)", "2\n"))
    assert run_nbval(true).returncode == 0
    forged = write_notebook(tmp_path / "forged.ipynb", ("print(1 + 1)", "3\n"))
    result = run_nbval(forged)
    assert result.returncode == 1
    assert "Cell outputs differ" in result.stdout


def test_the_tag_frees_an_output_that_varies(tmp_path: Path) -> None:
    cell = ("import os; print(os.getpid())", "1\n")
    path = write_notebook(tmp_path / "varies.ipynb", cell, tags=("nbval-ignore-output",))
    assert run_nbval(path).returncode == 0


def test_a_failing_cell_fails_even_when_its_output_is_free(tmp_path: Path) -> None:
    path = write_notebook(tmp_path / "raises.ipynb", ("1 / 0", ""), tags=("nbval-ignore-output",))
    result = run_nbval(path)
    assert result.returncode == 1
    assert "ZeroDivisionError" in result.stdout


def test_cell_numbers_and_addresses_may_differ(tmp_path: Path) -> None:
    source = "print('Cell In[7], line 3: recv of a tensor at', hex(id(object())))"
    printed = "Cell In[5], line 3: recv of a tensor at 0x7f0011223344\n"
    assert run_nbval(write_notebook(tmp_path / "same.ipynb", (source, printed))).returncode == 0
    other = printed.replace("line 3", "line 4")
    assert run_nbval(write_notebook(tmp_path / "other.ipynb", (source, other))).returncode == 1


def test_a_dead_kernel_fails_at_once(tmp_path: Path) -> None:
    cells = [("import os; os._exit(1)", ""), ("print(1)", "1\n")]
    path = write_notebook(tmp_path / "dies.ipynb", *cells)
    began = time.monotonic()
    result = run_nbval(path)
    assert time.monotonic() - began < CELL_TIMEOUT / 4
    assert result.returncode == 1
    assert "the kernel died while it ran this cell" in result.stdout
    assert "2 failed" in result.stdout


def test_a_cell_that_hangs_fails_at_its_time_out(tmp_path: Path) -> None:
    path = write_notebook(tmp_path / "hangs.ipynb", ("while True: pass", ""))
    result = run_nbval(path, "--nbval-cell-timeout=2")
    assert result.returncode == 1
    assert "Timeout of 2 seconds exceeded" in result.stdout
