"""Places in code, as a student knows them, with notebook cells by number and files by their last part."""

from __future__ import annotations

import linecache
import os
import re
import sys
from typing import Any

LONGEST = 9  # digits of a line's number
# Cells' files end so: ipykernel's ("/tmp/ipykernel_31/2755120846.py"), and Colab's in two forms
# ("/tmp/ipython-input-2755120846.py", "/tmp/ipython-input-4-2084266668.py").
CELL = re.compile(r"(?:^|/)(?:ipykernel_\d+/\d+|ipython-input-[\d-]+)\.py$")


def where(place: str) -> tuple[str, str]:
    """ "file|line" -> ("Cell In[5], line 3", the text of the line); ("", "") for any other text.

    The text comes from a rank's record, into which the rank can write anything.
    """
    file, _, number = place.rpartition("|")
    if not file or "\0" in file or not number.isdecimal() or len(number) > LONGEST:
        return "", ""
    line = int(number)
    return f"{file_name(file)}, line {line}", source_line(file, line)


read_files = True  # False if the code that names a file must not see its contents


def source_line(file: str, line: int) -> str:
    if not read_files and file not in linecache.cache:
        return ""
    return linecache.getline(file, line).strip()


def file_name(file: str) -> str:
    """A notebook cell by its number, a file by its last part."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    cell = cell_name(shell, file) if shell is not None else None
    if cell is not None:
        return cell
    if is_cell(file):  # of another session, or of a history that was emptied
        return "a notebook cell"
    return os.path.basename(file) if not file.startswith("<") else file


def is_cell(file: str) -> bool:
    return CELL.search(file) is not None


def cell_name(shell: Any, file: str) -> str | None:
    """ "Cell In[5]" for the file of a cell that was run in IPython's `shell`; None for another file.

    IPython knows the number of a cell's file since 8.8. In older versions (Colab has 7.34) the history is
    searched for the file's text. Since the file's name is a hash of the text, the newest of equal cells is
    meant, as it is since 8.8.
    """
    if hasattr(shell.compile, "format_code_name"):
        words = shell.compile.format_code_name(file)
        return " ".join(words) if words is not None else None
    if not is_cell(file) or file not in linecache.cache:
        return None
    text = "".join(linecache.getlines(file)).rstrip("\n")
    history = shell.history_manager.input_hist_parsed  # its number 0 is empty
    for number in range(len(history) - 1, 0, -1):
        if history[number].rstrip("\n") == text:
            return f"Cell In[{number}]"
    return None
