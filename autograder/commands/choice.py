"""Names, numbers and files on a command's line: the same words mean the same to every command."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path

SHOWN = 20  # names in a sentence
LARGEST = 1_000_000


def add_command(
    commands: argparse._SubParsersAction, name: str, does: str, example: str = ""
) -> argparse.ArgumentParser:
    """Add a command. does: the words for the list of commands and for its own --help."""
    return commands.add_parser(
        name,
        help=does,
        description=f"{does[0].upper()}{does[1:]}.",
        # An example that is wrapped over two lines cannot be copied.
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"example: python -m autograder {example}" if example else None,
    )


def add_assignments(parser: argparse.ArgumentParser) -> None:
    """Add assignments as words and as --assignment, which other commands have; `named` reads them."""
    parser.add_argument("words", nargs="*", metavar="ASSIGNMENT", help="such as 02 (default: all)")
    parser.add_argument(
        "--assignment",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="the same as ASSIGNMENT",
    )


def named(options: argparse.Namespace, known: Sequence[str]) -> list[str]:
    """The assignments of `add_assignments`, in the order of `known`. Raises ChoiceError."""
    return chosen([*options.words, *options.assignment], known)


def add_to(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --to and --overwrite, for a command that writes one file. default: words for its usual name."""
    parser.add_argument(
        "--to", type=Path, metavar="FILE", help=f"the file to write (default: {default})"
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a file of this name that has other content; without it, such a file stays",
    )


def named_after(names: Sequence[str]) -> str:
    """A file's name for assignments: the whole name of one, or the numbers of several, as in "00-02"."""
    if len(names) == 1:
        return names[0]
    short = [name.partition("_")[0] for name in names]
    return "-".join(short if len(set(short)) == len(names) else names)


class ChoiceError(Exception):
    """A word on the line names nothing that there is; the text says what there is."""


def chosen(words: Sequence[str], known: Sequence[str]) -> list[str]:
    """The assignments that the words begin, such as "02", in the order of `known`; all without words.

    Raises ChoiceError.
    """
    unknown = [word for word in words if not any(begins(word, name) for name in known)]
    if unknown:
        raise ChoiceError(f"There is no assignment {listed(unknown)}; there are {listed(known)}.")
    return [name for name in known if not words or any(begins(word, name) for word in words)]


def begins(word: str, name: str) -> bool:
    """Whether a word on the line means the assignment. A number does as a whole: 1 is 01, and not 10."""
    if re.fullmatch("[0-9]+", word):
        return (number := re.match("[0-9]+", name)) is not None and int(number[0]) == int(word)
    return name.startswith(word)


def only_one(word: str, known: Sequence[str]) -> str:
    """The one assignment that the word begins. Raises ChoiceError."""
    names = [word] if word in known else chosen([word], known)
    if len(names) > 1:
        raise ChoiceError(f"{word} begins several assignments: {listed(names)}. Name one.")
    return names[0]


def listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "") or "none"


def text_of(path: Path) -> str:
    """A file's text, with its own line ends. Raises ChoiceError with the file's name and the reason."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except OSError as error:
        raise ChoiceError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ChoiceError(f"{path} is not UTF-8 text.") from None


def check_writable(path: Path) -> None:
    """Make the folder of a file that will be written. Raises ChoiceError with the path and the reason."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ChoiceError(f"{path} cannot be written: {path.parent} is a file.") from None
    except OSError as error:
        raise ChoiceError(f"{path} cannot be written: {error.strerror}.") from None
    if path.is_dir():
        raise ChoiceError(f"{path} cannot be written: it is a folder.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ChoiceError(f"{path} cannot be written: it is not yours to write.")


def check_empty(folder: Path) -> None:
    """Make a folder that will be filled. Raises ChoiceError if it is not empty or cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = sorted(path.name for path in folder.iterdir())
    except FileExistsError:
        raise ChoiceError(f"{folder} cannot be written: it is a file.") from None
    except OSError as error:
        raise ChoiceError(f"{folder} cannot be written: {error.strerror}.") from None
    if held:
        raise ChoiceError(
            f"{folder} is not empty: it holds {held[0]}. Name a new folder; this one stays as it is."
        )
    if not os.access(folder, os.W_OK):
        raise ChoiceError(f"{folder} cannot be written: it is not yours to write.")


def above_zero(word: str) -> float:
    """For argparse: a number above 0, and not so large that a clock or the system could not count it."""
    try:
        number = float(word)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number above 0")
    if number > LARGEST:
        raise argparse.ArgumentTypeError(f"{word!r} is more than {LARGEST:,}")
    return number


def server_address(word: str) -> str:
    """For argparse: the address of a web server."""
    if not re.fullmatch(r"https?://[^\s/]\S*", word):
        raise argparse.ArgumentTypeError(
            f"{word!r} is not the address of a server, such as http://localhost:8890"
        )
    return word


def page_address(word: str) -> str:
    """For argparse: the address of a web page, or one to which mail is sent."""
    if not re.fullmatch(r"https?://[^\s/]\S*|mailto:\S+@\S+", word):
        raise argparse.ArgumentTypeError(
            f"{word!r} is not an address, such as https://forum.example.org or mailto:you@example.org"
        )
    return word


def scheduler_address(word: str) -> str:
    """For argparse: the address of a Dask scheduler."""
    if not re.fullmatch(r"[a-z]+://[^\s/]+:\d+", word):
        raise argparse.ArgumentTypeError(
            f"{word!r} is not the address of a scheduler, such as tcp://10.0.0.5:8786"
        )
    return word


def at_least_one(word: str) -> int:
    """For argparse: a whole number from 1 on."""
    try:
        number = int(word)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number from 1 on")
    return number
