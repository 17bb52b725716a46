"""The files of mutants: whole cells and patches, and an error that names a cell that is not as agreed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autograder.sample.mutants import MUTANTS, read_mutants, wrong_answers

ROOT = Path(__file__).resolve().parents[2]
FILE = """# %% base: the ring
def ring(n):
    total = 0

    for step in range(n):
        total += step
    return total


# %% wrong: twice
# says: twice|again
# base: the ring
-    return total
+    return 2 * total


# %% wrong: one step less, from one on
# says: too few
# base: the ring
-    total = 0
+    total = 1

-    for step in range(n):
+    for step in range(n - 1):
@@
     return total
+    print(n)

# %% right: by a formula
# on NCCL: tags
# base: the ring
-    for step in range(n):
-        total += step
+    total += n * (n - 1) // 2

# %% wrong: whole
# says: nothing
ring = 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "02_toy/ring.py"
    path.parent.mkdir()
    path.write_text(FILE)
    return path


def test_patches_are_read_as_whole_answers(file: Path) -> None:
    twice, less, formula, whole = read_mutants(file)
    assert (twice.exercise, twice.right, twice.title, twice.says) == (
        "ring", False, "twice", "twice|again",
    )  # fmt: skip
    head = "def ring(n):\n    total = 0\n\n"
    steps = "    for step in range(n):\n        total += step\n"
    assert twice.text == f"{head}{steps}    return 2 * total"
    assert less.text == (
        "def ring(n):\n    total = 1\n\n    for step in range(n - 1):\n        total += step\n"
        "    return total\n    print(n)"
    )
    assert (formula.right, formula.on_nccl) == (True, "tags")
    assert formula.text == f"{head}    total += n * (n - 1) // 2\n    return total"
    assert whole.text == "ring = 1"


def test_a_base_is_no_answer(file: Path) -> None:
    assert next(one.title for one in read_mutants(file)) == "twice"
    base = read_mutants(file, bases=True)[0]
    assert (base.title, base.right) == ("the ring", True)
    file.write_text(FILE.replace("base: the ring\ndef", "base: the ring\n# says: a group\ndef"))
    base = read_mutants(file, bases=True)[0]
    assert (base.right, base.says, base.text[:3]) == (False, "a group", "def")
    assert [one.title for one in wrong_answers("02_toy", "ring", file.parent.parent)] == [
        "twice", "one step less, from one on", "whole",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("-    return total\n", "-    return totals\n", "'twice': a hunk's lines stand 0 times"),
        ("-    return total\n", "     total\n", "stand 0 times"),
        ("-    return total\n+    return 2", "+    return 2", "stand .* times in the base"),
        (
            "# base: the ring\n-    return",
            "# base: the rings\n-    return",
            "no whole cell 'the rings'",
        ),
        ("# on NCCL: tags", "# says: tags", "'by a formula': a right cell has no `# says:`"),
        ("# says: too few", "# says: too few\n# on NCCL: tags", "only right cells"),
        ("# %% wrong: whole", "# %% other: whole", "every cell begins with"),
    ],
)
def test_what_is_not_as_agreed_is_an_error_that_names_the_cell(
    file: Path, old: str, new: str, said: str
) -> None:
    assert FILE.count(old) >= 1
    file.write_text(FILE.replace(old, new, 1))
    with pytest.raises(ValueError, match=said):
        read_mutants(file)


def test_the_command_prints_the_whole_answer() -> None:
    path = next(path for path in sorted(MUTANTS.glob("*/*.py")) if "# base:" in path.read_text())
    one = next(one for one in read_mutants(path) if not one.right)

    def run(*asked: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "autograder", "mutant", *asked]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)

    assert run(str(path), one.title).stdout == one.text + "\n"
    other = run(str(path), one.title + "?")
    assert other.returncode == 2
    assert one.title in other.stderr
    assert run(str(path.with_name("nowhere.py")), one.title).returncode == 2
