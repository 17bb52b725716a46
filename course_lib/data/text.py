"""The sources of Python's standard library as a training text, 7 MB of code and English.

Every machine that runs the course has these sources, so nothing is downloaded. MODULES lists the modules that
Python 3.11 to 3.14 all include, wherever they were installed from. It leaves out tests, tables and modules
that some distributions patch or omit. In alphabetical order, the modules are the same text on every machine
with the same Python.

Between versions, the text differs as much as the library. 3.11.2 and 3.11.7 have 99 % of their lines in
common, 3.11.7 and 3.12.1 have 97 %, and 3.11.7 and 3.13.0 have 92 %. The same batch then begins elsewhere, so
compare losses step by step only between machines with the same version.

VALIDATION names the modules that are held back, a tenth of the text. These are whole modules, so no model
has seen the beginning of a text on which it is tested.

This file imports only torch.
"""

from __future__ import annotations

import functools
import sysconfig
from pathlib import Path

import torch
from torch import Tensor

_NAMES = """
    _collections_abc _pydecimal _pyio _strptime argparse ast asyncio base64 bdb bz2 calendar cmd code codecs
    collections compileall concurrent configparser contextlib copy csv dataclasses difflib dis doctest email
    enum filecmp fileinput fnmatch fractions ftplib functools getopt getpass gettext glob graphlib gzip
    hashlib heapq hmac http imaplib importlib inspect ipaddress json linecache locale logging lzma mailbox
    mimetypes modulefinder multiprocessing netrc ntpath numbers operator optparse os pathlib pdb pickle
    pickletools pkgutil platform plistlib poplib posixpath pprint profile pstats pty pyclbr pydoc queue
    quopri random re reprlib runpy sched selectors shelve shlex shutil smtplib socket socketserver ssl
    statistics string stringprep subprocess symtable tabnanny tarfile tempfile textwrap threading timeit
    tokenize tomllib trace traceback tracemalloc types typing unittest urllib uuid warnings wave weakref
    wsgiref xml xmlrpc zipapp zipfile zipimport zoneinfo
"""
_HELD_BACK = """
    calendar configparser ftplib heapq json mailbox pickle shelve statistics tarfile textwrap urllib
"""
MODULES = tuple(_NAMES.split())
VALIDATION = frozenset(_HELD_BACK.split())
SPLITS = ("train", "validation")


@functools.cache
def library_text(split: str = "train") -> Tensor:
    """The bytes of one of SPLITS, a uint8 tensor on the CPU. All callers share it, so do not write to it.

    The files are read once per process, in some tens of milliseconds. Lines end as in Unix.

    Raises ValueError for another split, FileNotFoundError if Python came without its sources.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {' or '.join(SPLITS)}, not {split!r}")
    library = Path(sysconfig.get_path("stdlib"))
    chosen = [name for name in MODULES if (name in VALIDATION) == (split == "validation")]
    sources = [path.read_bytes() for name in chosen for path in _files(library, name)]
    return torch.frombuffer(bytearray(b"".join(sources).replace(b"\r\n", b"\n")), dtype=torch.uint8)


def decode(tokens: Tensor) -> str:
    """The text that a one-dimensional tensor of bytes spells; bytes that are not UTF-8 become U+FFFD."""
    return bytes(tokens.tolist()).decode("utf-8", errors="replace")


def _files(library: Path, name: str) -> list[Path]:
    """The sources of a module, or of a package with its modules, without its tests."""
    if (library / f"{name}.py").is_file():
        return [library / f"{name}.py"]
    inside = [path.relative_to(library) for path in (library / name).rglob("*.py")]
    kept = sorted(path.as_posix() for path in inside if not {"test", "tests"} & set(path.parts))
    if not kept:
        raise FileNotFoundError(
            f"there is no source of the module {name} in {library}: this Python came without its "
            "library's sources, which are the text; install it with them (python.org, conda, or the "
            "distribution's whole python3 package)"
        )
    return [library / path for path in kept]
