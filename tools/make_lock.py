"""Remake the lock files from pyproject.toml, and environment.yml from requirements.lock: `make lock`.

    make lock                                           keep the versions that still fit
    make lock ARGS=--upgrade                            take the newest versions
    make lock ARGS="--upgrade-package matplotlib"       take a newer version of this package only

uv, which chooses the versions, is installed into .venv. The section [tool.uv] of pyproject.toml leaves
PyTorch's CUDA packages out, and no registry is named in any file. requirements-site.lock has the packages of
`make site`, requirements-browser.lock those of `make test-browser`. A package in several files has the same
version in all.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
SITE_LOCK = ROOT / "requirements-site.lock"
BROWSER_LOCK = ROOT / "requirements-browser.lock"
CONDA = ROOT / "environment.yml"
CONDA_PYTHON = "3.11"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

COMPILE = [
    *("pip", "compile", "--quiet"),
    *("--universal", "--python-version", "3.11"),
    *("--no-emit-index-url", "--no-emit-find-links"),
    *("--custom-compile-command", "make lock"),
]
COURSE = ["pyproject.toml", "--all-extras", "--output-file", LOCK.name]
SITE = ["--group", "site", "--constraints", LOCK.name, "--output-file", SITE_LOCK.name]
BROWSER = ["--group", "browser", "--constraints", LOCK.name, "--output-file", BROWSER_LOCK.name]

CONDA_TEXT = """\
# The versions of requirements.lock for conda, made by `make lock`: do not edit.
#     conda env create -f environment.yml && conda activate distributed-course
# On a machine with NVIDIA GPUs remove the line with the CPU index first.
name: distributed-course
channels:
  - conda-forge
dependencies:
  - python={python}
  - pip
  - pip:
      - --extra-index-url {index}
{packages}
      - --editable .
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("make lock", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    parser.add_argument(
        "--upgrade-package",
        action="append",
        default=[],
        metavar="NAME",
        help="only of this package",
    )
    chosen = parser.parse_args(arguments)
    upgrades = ["--upgrade"] * chosen.upgrade
    for name in chosen.upgrade_package:
        upgrades += ["--upgrade-package", name]
    python = [sys.executable, "-m"]
    subprocess.run([*python, "pip", "install", "--quiet", "uv"], check=True)
    for file in (LOCK, SITE_LOCK, BROWSER_LOCK, CONDA):
        keep_changed(file)
    for lock in (COURSE, SITE, BROWSER):
        subprocess.run([*python, "uv", *COMPILE, *lock, *upgrades], check=True, cwd=ROOT)
    CONDA.write_text(environment_yml(LOCK.read_text()))
    sizes = [
        f"{lock.name} ({len(pins(lock.read_text()))} packages)"
        for lock in (LOCK, SITE_LOCK, BROWSER_LOCK)
    ]
    print(f"wrote {', '.join(sizes)} and {CONDA.name}")
    return 0


def keep_changed(file: Path) -> None:
    """Copy a file that differs from the last commit, since somebody may have typed in it."""
    git = ["git", "diff", "--quiet", "HEAD", "--", file.name]
    if not file.exists() or subprocess.run(git, cwd=ROOT, capture_output=True).returncode == 0:
        return
    copies = [file.with_name(f"{file.name}.before_{number}") for number in range(1, 1000)]
    if any(copy.exists() and copy.read_bytes() == file.read_bytes() for copy in copies):
        return
    copy = next(copy for copy in copies if not copy.exists())
    shutil.copy2(file, copy)
    print(f"{file.name} differs from the last commit: a copy is kept as {copy.name}.")


def pins(lock: str) -> list[str]:
    """The requirements of a lock file, such as "colorama==0.4.6 ; sys_platform == 'win32'"."""
    return re.findall(r"^[a-zA-Z0-9][^\s#].*$", lock, flags=re.MULTILINE)


def environment_yml(lock: str) -> str:
    """The conda environment with the lock's packages, markers included."""
    packages = "\n".join(f"      - {pin}" for pin in pins(lock))
    return CONDA_TEXT.format(python=CONDA_PYTHON, index=TORCH_CPU_INDEX, packages=packages)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
