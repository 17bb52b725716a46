"""The page of a release: how a student installs the course, works, sees points, hands in and asks.

Every sentence holds with and without a repository. Without one the package in the folder is the only way to
the course; with one the first cell of each notebook fetches it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import nbformat

from autograder.course.place import Place

ADDRESS = re.compile(r"(?:https?://|mailto:)[^\s<>()\[\]|`]+")
TORCH_CPU = "https://download.pytorch.org/whl/cpu"


def page(
    texts: Mapping[str, bytes],
    package: str,
    place: Place | None,
    questions: str = "",
    self_study: bool = False,
) -> str:
    """The README.md of a release.

    texts: the notebooks by assignment; package: the wheel's name; questions: an address, or ""; self_study:
    for people without an instructor, whose notebooks have solutions.
    """
    first = next(iter(texts))
    sections = (
        START.format(table="\n".join(_table(texts, place))),
        INSTALL.format(package=package, torch=TORCH_CPU),
        FETCHED if place else UPLOADED.format(package=package),
        RENTED.format(package=package),
        WORK.format(first=_title(texts[first]) or first, notebook=f"{first}/{first}.ipynb"),
        STUCK if self_study else HAND_IN.format(notebook=f"{first}/{first}.ipynb"),
        ASK_AT.format(questions=questions) if questions else "" if self_study else ASK,
    )
    return "\n\n".join(filter(None, sections)) + "\n"


def _table(texts: Mapping[str, bytes], place: Place | None) -> list[str]:
    lines = ["| notebook | opens in |", "|---|---|"] if place else []
    for name, text in texts.items():
        here = f"[{_title(text) or name}]({name}/{name}.ipynb)"
        lines.append(f"| {here} | {place.badges(name)} |" if place else f"- {here}")
    return lines


def _title(text: bytes) -> str:
    """The notebook's first heading, without signs that would end a link's text."""
    for cell in nbformat.reads(text.decode("utf-8"), as_version=4).cells:
        heading = re.search(r"^# +(.+)$", cell.source, re.MULTILINE)
        if heading and cell.cell_type == "markdown":  # in code that is a comment
            return re.sub(r"[\[\]|]", "", heading[1]).strip()
    return ""


START = """\
# Distributed training, built by hand

In these notebooks you write the algorithms of distributed training yourself. Checks name your mistakes.

{table}"""

INSTALL = """\
## Install

The notebooks import the package `{package}`, which is in this folder.

**Your own laptop, with Linux or with WSL2 on Windows.** You need Python 3.11, 3.12, 3.13 or 3.14,
on Debian and Ubuntu with `sudo apt-get install python3 python3-venv`. Open a terminal in this folder and
type:

```
python3 -m venv .venv
. .venv/bin/activate
pip install torch --index-url {torch}
pip install "./{package}[lab]"
python -m jupyterlab
```

The third line installs the CPU build of PyTorch, about 200 MB. Leave it out on a machine with an NVIDIA
GPU, where the fourth line then downloads the CUDA build, about 3 GB. Later, the second and the fifth line
are enough. In VS Code, choose the kernel `.venv`. On a Mac, and on Windows without WSL2, use Colab.

If you are given a newer folder later, unpack it beside this one, so that it overwrites nothing of yours.
Install its package with `pip install --force-reinstall --no-deps ./{package}`,
because pip otherwise keeps the older one, with which a newer notebook can begin with an `ImportError`."""

FETCHED = """\
**Colab and Kaggle.** Click the notebook's button above. In Colab, a notebook opened from GitHub is not
yours until you choose *File → Save a copy in Drive*, so do that before you type. Changes you have not
saved are lost when the tab's machine ends. The first code cell installs the course if it is not there and
leaves PyTorch as it is, so run it again on each new machine. In Kaggle, turn on *Internet* in the
notebook's settings before that (it may ask for a telephone number), and choose *GPU T4 x2* or none."""

UPLOADED = """\
**Colab.** Choose *File → Upload notebook*, which puts a copy into your Drive. Changes you have not saved
there with *File → Save* are lost when the tab's machine ends. Drag the package into the pane *Files* at
the left and run this in a new first cell, both again on each new machine. PyTorch stays as it is.

```
%pip install -q ./{package}
```

**Kaggle.** Choose *File → Import Notebook*, then upload the package with *Add Input → Upload* as a data
set, in place of any older one. Choose the accelerator *GPU T4 x2* or none, and run this in a new first cell:

```
!pip install -q --no-deps --force-reinstall $(find /kaggle/input -name "course_lib-*.whl")
```"""

RENTED = """\
**Runpod, or any rented machine with Linux, PyTorch 2.6 or newer and Jupyter.** Upload `notebooks.zip`,
which holds this folder, open a terminal beside it, and type these lines, also after the machine was
stopped. Your answers in `course` stay as they are. The last line says what is wrong with the machine.

```
[ -d course ] || python -m zipfile -e notebooks.zip course
[ course/README.md -nt notebooks.zip ] || echo "Newer zip! In a new terminal: mv course before, then this."
cd course
pip uninstall -qqy course_lib; pip install -q ./{package}
python -m course_lib.doctor
```"""
WORK = """\
## Work

- Begin with [{first}]({notebook}), and run the cells of a notebook from top to bottom with Shift and
  Enter.
- Write your code below each `YOUR CODE HERE`, in place of `raise NotImplementedError()` if that line
  follows. You are free to add cells, but keep the cells that are there, and the notebook's name.
- The cell below an exercise checks your code as often as you run it. It prints your points and a sentence
  that names each mistake.
- If your program hangs, wait a moment, because the course finds a deadlock in seconds and explains it."""

HAND_IN = """\
## See your points, and hand in

On your laptop or a rented machine, save the notebook and type one of these lines in a terminal in this
folder. On Colab and Kaggle they do not see your notebook, so read your points below the checks.

| command | what it does |
|---|---|
| `python -m course_lib.progress` | adds up the points that the checks gave you |
| `python -m course_lib.submit {notebook}` | runs the notebook, says what is missing, makes `submission.zip` |

Hand in `submission.zip` or the saved notebook itself, where and when your instructor says. You get it by
*File → Download → Download .ipynb* from Colab, and by *File → Download Notebook* from Kaggle."""

STUCK = """\
## If you are stuck, and your points

Read what the check says, then open the hints above it, one after the other. If you have been stuck for 20
minutes, open the solution that is folded below the check, close it again, and write your own. A solution
that you have understood is worth more than an evening without one.

Save the notebook and type `python -m course_lib.progress` in a terminal in this folder. It adds up the
points that the checks gave you. If the machine seems to be at fault, type `python -m course_lib.doctor`."""

ASK = """\
## Ask

Ask your instructor if something is unclear or broken. Name the notebook and the cell, and add the output
of `python -m course_lib.doctor`."""

ASK_AT = """\
## Ask

If something is unclear or broken, ask at <{questions}>. Name the notebook and the cell, and add the
output of `python -m course_lib.doctor`."""
