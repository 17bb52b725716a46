"""Places in code are named as students know them, on every host's version of IPython."""

from __future__ import annotations

import linecache
import random
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from course_lib.runtime.places import file_name, is_cell, where
from course_lib.runtime.run import cell_sources

COLAB, OLDER_COLAB = "/tmp/ipython-input-2755120846.py", "/tmp/ipython-input-4-2084266668.py"
JUPYTER = "/tmp/ipykernel_31/2755120846.py"

Shell = Callable[..., SimpleNamespace]


@pytest.fixture
def keep_text(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """keep_text(file, text): keep the text for tracebacks, as IPython does for a cell."""

    def keep(file: str, text: str) -> None:
        entry = (len(text), None, [line + "\n" for line in text.splitlines()], file)
        monkeypatch.setitem(linecache.cache, file, entry)

    return keep


@pytest.fixture
def use_shell(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """use_shell(shell): makes `IPython.get_ipython()` return this shell."""

    def use(shell: Any) -> None:
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))

    return use


def old_shell(*cells: str) -> SimpleNamespace:
    """IPython's shell before 8.8: its compiler knows no numbers; the history begins with an empty cell 0."""
    history = SimpleNamespace(input_hist_parsed=["", *cells])
    return SimpleNamespace(compile=SimpleNamespace(), history_manager=history)


def new_shell(numbers: dict[str, int]) -> SimpleNamespace:
    """IPython's shell from 8.8 on."""

    def format_code_name(file: str) -> tuple[str, str] | None:
        return ("Cell", f"In[{numbers[file]}]") if file in numbers else None

    return SimpleNamespace(compile=SimpleNamespace(format_code_name=format_code_name))


@pytest.mark.parametrize("file", [JUPYTER, COLAB, OLDER_COLAB, "/var/tmp/x/ipykernel_7/1.py"])
def test_names_that_kernels_give_to_cells(file: str) -> None:
    assert is_cell(file)


@pytest.mark.parametrize(
    "file",
    ["/home/me/train.py", "/home/me/ipykernel_notes/train.py", "/opt/ipykernel_31/kernel.py", "",
     "/tmp/my-ipython-input-4.py", "/tmp/ipython-input-4.py.txt", "<string>", "Cell In[5]"],
)  # fmt: skip
def test_names_of_other_files(file: str) -> None:
    assert not is_cell(file)


@pytest.mark.parametrize("file", [JUPYTER, COLAB, OLDER_COLAB])
def test_a_cell_has_its_number_with_every_ipython(
    file: str, keep_text: Callable, use_shell: Callable, seed: int
) -> None:
    number, line = random.Random(seed).randint(1, 40), 2
    cells = [f"x = {k}\nprint(x)\n" for k in range(1, 41)]
    keep_text(file, cells[number - 1])
    for shell in (old_shell(*cells), new_shell({file: number})):
        use_shell(shell)
        assert where(f"{file}|{line}") == (f"Cell In[{number}], line {line}", "print(x)")


def test_of_two_cells_with_the_same_text_the_newest_is_meant(
    keep_text: Callable, use_shell: Callable
) -> None:
    """A file is named by a hash of its text, so that both cells have the same file."""
    keep_text(COLAB, "launch(body, world_size=2)")
    use_shell(old_shell("launch(body, world_size=2)", "body = 1", "launch(body, world_size=2)", ""))
    assert file_name(COLAB) == "Cell In[3]"


def test_a_cell_that_no_history_has_is_named_without_a_number(
    keep_text: Callable, use_shell: Callable
) -> None:
    keep_text(COLAB, "gone = 1")
    for shell in (old_shell("here = 2"), new_shell({}), None):
        use_shell(shell)
        assert file_name(COLAB) == "a notebook cell"
        assert file_name("/tmp/ipykernel_31/1234567.py") == "a notebook cell", "of another kernel"


@pytest.mark.parametrize("shell", [old_shell("x = 1"), new_shell({}), None])
def test_a_file_has_its_last_part(shell: Any, use_shell: Callable) -> None:
    use_shell(shell)
    assert file_name("/home/me/train.py") == "train.py"
    assert file_name("<string>") == "<string>"


def test_the_ranks_get_the_text_of_every_hosts_cells(keep_text: Callable) -> None:
    for number, file in enumerate((JUPYTER, COLAB, OLDER_COLAB, "<stdin>", "Cell In[3]")):
        keep_text(file, f"a = {number}\nb = a")
    keep_text("/home/me/train.py", "secret = 1")
    sources = cell_sources()
    assert sources[COLAB] == "a = 1\nb = a\n" and sources[OLDER_COLAB] == "a = 2\nb = a\n"
    assert {JUPYTER, "<stdin>", "Cell In[3]"} <= set(sources)
    assert "/home/me/train.py" not in sources
