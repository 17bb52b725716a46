"""Is a notebook ready to be handed in? And the file to hand in.

    python -m course_lib.submit 05_fsdp.ipynb       one notebook
    python -m course_lib.submit                     those of this folder in which something is written

Each notebook is run from the top, in a kernel and a folder of its own, so your file stays as you saved it.
Then it goes into a zip as `05_fsdp/05_fsdp.ipynb`, which is how the grader looks for it. The zip is in the
folder where you work, in whichever folder of the course you type the command. Nothing is refused.
A notebook that is not ready is packed as well, and you are told what is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import platform
import re
import shlex
import sys
import tempfile
import textwrap
import time
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from course_lib import rerun
from course_lib.checks.colour import coloured
from course_lib.checks.words import counted, listing, number
from course_lib.program import run_program
from course_lib.progress import add_places, earned
from course_lib.saved import (
    BROKEN,
    PARTLY,
    UNDEFINED,
    UNJUDGED,
    UNWRITTEN,
    Exercise,
    Notebook,
    StrangeNotebook,
    UnreadableNotebook,
    begun_of_each,
    default_folder,
    is_begun,
    read,
    read_all,
)

ZIP = "submission.zip"
MINUTES = 5.0
OF_ONE = re.compile(r"\d\d_\w+")  # the name of the folder of one notebook
DAY = 24 * 60  # minutes
NO_KERNEL = "it was not run from the top, because there is no kernel for it (pip install ipykernel)"
NO_NBCLIENT = "it was not run from the top, because nbclient is missing (pip install nbclient)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: everything is ready; 1: packed, but something is missing; 2: nothing was packed."""
    options = _parser().parse_args(arguments)
    options.to = options.to or default_zip()
    try:
        notebooks, left_out = read_all(options.places or [default_folder()])
        notebooks = begun_of_each(notebooks)
        refuse_two_of_one(notebooks, options.to)
        if not options.places:
            notebooks = _begun(notebooks)
        refuse_to_overwrite(options.to)
        refuse_where_nothing_can_be_written(options.to)
    except UnreadableNotebook as error:
        print(error, file=sys.stderr)
        return 2
    for error in left_out:
        print(f"Left out: {error}\n", flush=True)
    damaged = [error for error in left_out if not isinstance(error, StrangeNotebook)]
    try:
        return max(_look_and_pack(notebooks, options), 1 if damaged else 0)
    except UnreadableNotebook as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted: nothing was packed.", file=sys.stderr)
        return 130


def _begun(notebooks: list[Notebook]) -> list[Notebook]:
    """The notebooks in which an exercise is written. A line says what was left out.

    UnreadableNotebook if there is none of several, since each would run for a minute or two for nothing.
    """
    begun = [notebook for notebook in notebooks if is_begun(notebook)]
    if len(begun) == len(notebooks) or len(notebooks) == 1:
        return notebooks
    if not begun:
        raise UnreadableNotebook(
            f"Nothing is written yet in any of the {len(notebooks)} notebooks, so nothing was packed. Name "
            "those that you want to hand in all the same, such as "
            f"python -m course_lib.submit {notebooks[0].assignment[:2]}"
        )
    others = listing(notebook.assignment[:2] for notebook in notebooks if notebook not in begun)
    print(f"Nothing is written in {others} yet: left out.\n", flush=True)
    return begun


def _look_and_pack(notebooks: Sequence[Notebook], options: argparse.Namespace) -> int:
    if not options.no_run:
        print(
            f"{counted(len(notebooks), 'notebook')} to be run from the top, a minute or two each "
            "(--no-run leaves that out).\n",
            flush=True,
        )
    missing = []
    for notebook in notebooks:
        print(
            coloured(notebook.title, "bold") + f"   {notebook.path}, saved {_when(notebook.path)}"
        )
        for ready, sentence in findings(notebook, None if options.no_run else options.minutes):
            print(_line(ready, sentence), flush=True)
            missing += [] if ready else [notebook.assignment]
    print(f"\n{here()}")
    pack(notebooks, options.to)
    names = listing(notebook.assignment for notebook in notebooks)
    print(
        f"{options.to.resolve()} holds {names}. Hand it in where your instructor has told you to."
    )
    for other in _other_zips(options.to):
        print(f"{other} is another file, packed {_when(other)}, and has not changed.")
    if missing:
        print(f"Not ready: {listing(dict.fromkeys(missing))}. You can hand it in all the same.")
    return 1 if missing else 0


def _line(ready: bool, sentence: str) -> str:
    sign = coloured("✓", "green") if ready else coloured("✗", "red")
    lines = textwrap.wrap(sentence, 92, break_long_words=False, break_on_hyphens=False)
    return f"  {sign} " + "\n      ".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m course_lib.submit",
        description="Say whether notebooks are ready to be handed in, and pack them into a zip.",
        epilog="example: python -m course_lib.submit 05_fsdp.ipynb --to kim.zip",
    )
    add_places(parser)
    parser.add_argument(
        "--to",
        type=Path,
        metavar="ZIP",
        help=f"the file (default: {ZIP} in the folder where you work)",
    )
    parser.add_argument(
        "--no-run", action="store_true", help="do not run the notebooks from the top"
    )
    parser.add_argument(
        "--minutes",
        type=_minutes,
        default=MINUTES,
        help="the longest that a cell may run (%(default)g)",
    )
    return parser


def _minutes(word: str) -> float:
    try:
        minutes = float(word)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes <= DAY:
        raise argparse.ArgumentTypeError(
            f"{word!r} is not a number of minutes from above 0 to {DAY:,}"
        )
    return minutes


def refuse_two_of_one(notebooks: Sequence[Notebook], target: Path) -> None:
    """UnreadableNotebook if two files are the same notebook, as only the student knows which file counts."""
    files: dict[str, list[Notebook]] = {}
    for notebook in notebooks:
        files.setdefault(notebook.assignment, []).append(notebook)
    lines = [
        f"{listing(notebook.path for notebook in same)} are the same notebook, {name}."
        for name, same in files.items()
        if len(same) > 1
    ]
    if not lines:
        return
    newest = [max(same, key=lambda each: each.path.stat().st_mtime) for same in files.values()]
    due = [notebook.path for notebook in newest if is_begun(notebook)]
    words = [*map(str, due or [notebook.path for notebook in newest])]
    words += [] if target == default_zip() else ["--to", str(target)]
    old = f" {target.resolve()} is the file of {_when(target)}." if target.is_file() else ""
    lines += [
        f"So nothing was packed.{old} This line packs the files saved last. Change it if another one counts:",
        f"    python -m course_lib.submit {shlex.join(words)}",
    ]
    raise UnreadableNotebook("\n".join(lines))


# ---- is it ready?


def findings(notebook: Notebook, minutes: float | None) -> Iterator[tuple[bool, str]]:
    """(whether a part is ready, a sentence), one after the other. minutes: None leaves out the run."""
    yield _tried(notebook.exercises)
    if minutes is None:
        yield True, "it was not run from the top, because you said so"
        return
    yield from _from_the_top(notebook, minutes)


OPEN = (UNWRITTEN, PARTLY, BROKEN, UNDEFINED, UNJUDGED)


def _tried(exercises: Sequence[Exercise]) -> tuple[bool, str]:
    """Extra credit does not have to be tried."""
    due = [exercise for exercise in exercises if not exercise.extra]
    left = [exercise for exercise in due if exercise.state in OPEN]
    if not left:
        return True, f"all {counted(len(due), 'exercise')} tried"
    names = listing(f"{exercise.name} ({exercise.words})" for exercise in left)
    return False, f"{len(due) - len(left)} of {counted(len(due), 'exercise')} tried; open: {names}"


def _from_the_top(notebook: Notebook, minutes: float) -> Iterator[tuple[bool, str]]:
    try:
        from jupyter_client.kernelspec import NoSuchKernel
        from nbclient.exceptions import DeadKernelError
    except ImportError:
        yield False, NO_NBCLIENT
        return
    began = time.monotonic()
    try:
        cells = rerun.run(notebook.path, minutes)
    except rerun.CellTooLong as error:
        limit = rerun.minutes_in_words(minutes)
        which = rerun.where(error.cell)
        yield False, f"run from the top, a cell ran for more than {limit}, {which}"
        return
    except DeadKernelError:
        yield False, "run from the top, its kernel died; was the machine's memory full?"
        return
    except (OSError, RuntimeError) as error:  # jupyter_client has no class of its own for these
        words = str(error).removesuffix(".")
        why = f"{words}. python -m course_lib.doctor may say why"
        yield False, f"it could not be run from the top: {why}"
        return
    except NoSuchKernel:
        yield False, NO_KERNEL
        return
    took = f"{time.monotonic() - began:.0f} seconds"
    errors = [text for text in map(rerun.error_of, cells) if text]
    if errors:
        many = counted(len(errors), "cell")
        yield False, f"run from the top, {many} ended in an error. The first: {errors[0]}"
    else:
        yield True, f"runs from the top without an error, in {took}"
    yield _points(notebook, _read_again(notebook, cells))


def _read_again(notebook: Notebook, cells: list[dict[str, Any]]) -> Notebook:
    """The notebook after the run, with the tables printed there by the checks."""
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder) / notebook.path.name
        again.write_text(json.dumps({"cells": cells}), encoding="utf-8")
        return read(again)


def _points(saved: Notebook, again: Notebook) -> tuple[bool, str]:
    """Whether the run earned what the saved tables say. A grader sees the result of a run."""
    due = [exercise for exercise in again.exercises if not exercise.extra]
    extra = earned(exercise for exercise in again.exercises if exercise.extra)
    points = (
        f"{earned(due):.1f} of {number(sum(exercise.possible for exercise in due))} points"
        f"{f', and {extra:.1f} of extra credit,' if extra else ''} in this run's visible cases"
    )
    tables = [exercise for exercise in saved.exercises if exercise.points is not None]
    if abs(earned(saved.exercises) - earned(again.exercises)) < 0.05 or not tables:
        return True, points
    absent = {exercise.name for exercise in saved.exercises if exercise.points is None}
    gained = [
        exercise for exercise in again.exercises if exercise.points and exercise.name in absent
    ]
    if abs(earned(tables) + earned(gained) - earned(again.exercises)) < 0.05:
        names = listing(exercise.name for exercise in gained)
        return True, f"{points}; the file that you saved has no table of {names} yet"
    return False, (
        f"{points}, and {earned(tables):.1f} in the tables that you have saved: a cell was changed or run in "
        "another order, after its check"
    )


def here() -> str:
    """Python and PyTorch of this machine, compared with the versions the course runs on."""
    try:
        needs = metadata.metadata("course-lib")["Requires-Python"]
    except metadata.PackageNotFoundError:  # run from a clone, without an installation
        needs = ""
    course = f"; the course needs Python {needs} and PyTorch >=2.6" if needs else ""
    return f"Here are Python {platform.python_version()} and PyTorch {metadata.version('torch')}{course}."


def _when(path: Path) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))


# ---- the zip


def default_zip() -> Path:
    """The same file from the folder above the notebooks, from theirs, and from the folder of one of them."""
    here = Path.cwd()
    return (here.parent if OF_ONE.fullmatch(here.name) else default_folder()) / ZIP


def _other_zips(target: Path) -> list[Path]:
    """Older files of that name, in this folder or above the target's, which could be taken for it."""
    places = dict.fromkeys(
        folder / target.name for folder in (Path.cwd(), target.resolve().parent.parent)
    )
    return [
        path for path in places if path != target.resolve() and path.is_file() and _is_ours(path)
    ]


def refuse_to_overwrite(target: Path) -> None:
    """UnreadableNotebook if `target` is something that this program has not packed."""
    if target.suffix != ".zip":
        raise UnreadableNotebook(f"{target} does not end in .zip.")
    if not target.parent.is_dir():
        raise UnreadableNotebook(f"there is no folder {target.parent}.")
    if not target.exists():
        return
    if not _is_ours(target):
        raise UnreadableNotebook(
            f"{target} holds something else and stays as it is. Name another: --to FILE.zip"
        )


def refuse_where_nothing_can_be_written(target: Path) -> None:
    """UnreadableNotebook before the notebooks are run, which takes minutes."""
    draft = _draft(target)
    try:
        draft.write_bytes(b"x")
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        _forget(draft)


def _draft(target: Path) -> Path:
    return target.with_name(f".{target.name}.new")


def _forget(draft: Path) -> None:
    with contextlib.suppress(OSError):
        draft.unlink()


def _unwritable(target: Path, error: OSError) -> UnreadableNotebook:
    return UnreadableNotebook(
        f"{target.absolute()} cannot be written: {error.strerror}. Nothing was packed. Pack the zip into "
        "another folder with --to FOLDER/submission.zip, or hand in the saved notebook itself."
    )


def _is_ours(target: Path) -> bool:
    try:
        with zipfile.ZipFile(target) as packed:
            return all(_ours(name) for name in packed.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def _ours(name: str) -> bool:
    folder, _, file = name.partition("/")
    return file == f"{folder}.ipynb"


def pack(notebooks: Sequence[Notebook], target: Path) -> None:
    """Write the zip, whole or not at all. UnreadableNotebook if there is no room for it."""
    whole, draft = io.BytesIO(), _draft(target)
    # A wrong clock can date a file before 1980, which no zip can hold. Not strict, the zip says 1980.
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as packed:
        for notebook in notebooks:
            packed.write(notebook.path, f"{notebook.assignment}/{notebook.assignment}.ipynb")
    try:
        draft.write_bytes(whole.getvalue())
        draft.replace(target)
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        _forget(draft)


if __name__ == "__main__":
    run_program(main)
