"""An IPython shell without a kernel: cells run as in a notebook, their outputs become messages.

It runs in the sandbox, in one process with the student's code, so nothing that it says is proof of
anything: the grader checks its messages (see `autograder.sandbox.messages`).
"""

from __future__ import annotations

import base64
import builtins
import errno
import importlib
import json
import os
import random
import signal
import sys
import time
import types
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import cloudpickle
import matplotlib
import numpy
import torch
from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.pylabtools import find_gui_and_backend
from IPython.core.ultratb import AutoFormattedTB
from matplotlib import pyplot
from matplotlib_inline import backend_inline  # noqa: F401
from traitlets import Type
from traitlets.config import Config

import course_lib
from autograder.outcome import sentences, statuses
from autograder.sandbox import messages

Send = Callable[[dict], None]

LONGEST = 2 << 20  # characters of one shown object
LONGEST_ERROR = 20_000  # characters of an error's text, and of each part of its traceback
LATE = (
    "IPython.core.application", "IPython.core.completer", "IPython.core.completerlib",
    "IPython.core.logger", "IPython.core.magics.execution", "PIL.PngImagePlugin",
)  # fmt: skip
LINGER = 2.0  # seconds
NO_INPUT = (
    "input() gets no answer: no person sits at the keyboard while a notebook is graded; write the answer "
    "into the code"
)


class CellCompiler(CachingCompiler):
    """Names a cell's code "Cell In[5]", here, in the ranks and in the grader."""

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        return cell_name(number)


def cell_name(number: int) -> str:
    return f"Cell In[{number}]"


class Shown(DisplayHook):
    """The value of a cell's last expression."""

    def write_output_prompt(self) -> None:
        """Nothing is printed: the number stands in the message."""

    def write_format_data(self, format_dict: dict, md_dict: dict | None = None) -> None:
        self.shell.tell(
            {
                "output_type": "execute_result",
                "data": texts(format_dict),
                "execution_count": self.prompt_count,
            }
        )

    def finish_displayhook(self) -> None:
        self._is_active = False


class Displayed(DisplayPublisher):
    """The arguments of `display`, and figures."""

    def publish(
        self, data: dict, metadata: Any = None, *_: Any, transient: Any = None, update: bool = False,
        **others: Any,
    ) -> None:  # fmt: skip
        name = (transient or {}).get("display_id")
        self.shell.tell(
            {"output_type": "display_data", "data": texts(data)},
            **({"display_id": str(name), "update": bool(update)} if name is not None else {}),
        )

    def clear_output(self, wait: bool = False) -> None:
        self.shell.send({"clear": bool(wait)})


def texts(data: dict) -> dict[str, str]:
    """A display's representations as texts, images in base64, as notebooks keep them.

    If nothing but a text is left, a sentence says which were too large.
    """
    kept, room, large = {}, LONGEST, []
    for kind, value in data.items():
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode()
        elif not isinstance(value, str):
            value = json.dumps(value, default=str)
        most = min(room, messages.IMAGE if kind in messages.IMAGES else messages.TEXT)
        if len(value) > most:
            large.append(sentences.of_large(len(value), str(kind)[: messages.NAME], most))
            if kind != "text/plain":
                continue
            value = f"{value[:1000]}\n..."
        kept[str(kind)] = value
        room -= len(value)
    if large and kept.keys() <= {"text/plain"}:
        said = f"({'; '.join(large)})"
        kept["text/plain"] = "\n".join(filter(None, [kept.get("text/plain", ""), said]))
    return kept


class Shell(InteractiveShell):
    """A fresh shell: no history file, no user's configuration, no colours.

    send: passes one message on.
    """

    compiler_class = Type(CellCompiler)
    displayhook_class = Type(Shown)
    display_pub_class = Type(Displayed)
    system = InteractiveShell.system_raw  # a command's output goes where the cell's goes

    def __init__(self, send: Send):
        self.send, self.owner = send, os.getpid()
        # Nothing that a cell wrote lies in these folders.
        folders = (*sys.path, sys.prefix, sys.base_prefix, os.path.dirname(course_lib.__path__[0]))
        self.installed = tuple(f"{os.path.abspath(folder)}/" for folder in folders if folder)
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "nocolor"
        super().__init__(config=config)

    def tell(self, output: dict, **about: Any) -> None:
        """Send an output, behind everything that was printed before it."""
        flush()
        self.send({"output": output, **about})

    def showtraceback(self, *about: Any, **options: Any) -> None:
        """Show the error; also the end of a child that a cell forked and that raised.

        It writes nothing, and stays for a moment: the place of a fork bomb's child that ends at once is
        taken by the next one, and the bomb never comes to its limit.
        """
        if os.getpid() != self.owner:
            time.sleep(LINGER)
            os._exit(1)
        super().showtraceback(*about, **options)

    def _format_exception_for_storage(self, exception: BaseException, *_: Any, **__: Any) -> dict:
        """Nothing: IPython would make the whole traceback once more, for a history that is not kept."""
        return {}

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        more = [f"({sentences.EXITS})"] if issubclass(etype, SystemExit) else []
        self.tell(
            {
                "output_type": "error",
                "ename": etype.__name__,
                "evalue": text_of(evalue),
                "traceback": [*(str(part)[:LONGEST_ERROR] for part in stb), *more],
            }
        )

    def enable_gui(self, gui: str | None = None) -> None:
        """Figures are shown inline: there is no window, and no loop to run for one."""

    def enable_matplotlib(self, gui: str | None = None) -> tuple[str | None, str]:
        """Inline, whatever a cell asks for: there are no windows or widgets to draw into."""
        return super().enable_matplotlib("inline")

    def ask_exit(self) -> NoReturn:
        raise SystemExit("a cell called exit()")

    def send_own_modules(self) -> None:
        """From here on, modules that a cell wrote as files go with the objects that need them.

        Ranks of a check have a folder of their own, in which such a file is not there.
        """
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and not os.path.abspath(file).startswith(self.installed):
                cloudpickle.register_pickle_by_value(module)

    def run(self, source: str, number: int) -> BaseException | None:
        """Run a cell; returns its exception, which was shown already."""
        self.execution_count = number
        result = self.run_cell(source, store_history=True)
        flush()
        return result.error_before_exec or result.error_in_exec


def make(send: Send) -> Shell:
    """The shell of this process, with `__main__` as its module, figures inline, and no input."""
    shell = Shell.instance(send)
    sys.argv = ["notebook"]
    sys.path.insert(0, "")  # as in a kernel: a file of `%%writefile` can be imported
    builtins.input = refuse_input
    shell.enable_matplotlib()
    pyplot.switch_backend = inline_else(pyplot.switch_backend, matplotlib.get_backend())
    warnings.filterwarnings("ignore", "To exit: use")  # IPython's remark on SystemExit
    # The same submission must do the same each time that it is graded.
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    return shell


def warm() -> None:
    """Do the imports and reads before the fork that IPython would do anew in each notebook."""
    for module in LATE:
        importlib.import_module(module)
    find_gui_and_backend("inline")
    try:
        raise LookupError
    except LookupError as error:
        AutoFormattedTB(mode="Context").structured_traceback(
            type(error), error, error.__traceback__
        )


def inline_else(switch: Callable[[str], None], inline: str) -> Callable[[str], None]:
    """For a cell that says `matplotlib.use("TkAgg")`: without a screen its figures are shown inline."""

    def switch_backend(newbackend: str) -> None:
        try:
            switch(newbackend)
        except ImportError:
            switch(inline)

    return switch_backend


def refuse_input(prompt: object = "", /) -> str:
    __tracebackhide__ = True
    raise EOFError(NO_INPUT)


def inert_client() -> types.ModuleType:
    """A stand-in for the checks' client, whose reports say that grading judges elsewhere."""
    from course_lib.checks.report import Report

    class Elsewhere(Report):
        def __str__(self) -> str:
            return f"{self.name}: judged outside the notebook when it is graded."

    def submit(name: str, objects: tuple, seed: int, cases: str) -> Report:
        return Elsewhere(str(name), 0.0, [], seed=-1)

    client = types.ModuleType("course_lib.checks.client")
    vars(client)["submit"] = submit
    return client


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue  # the cell closed it, or replaced it by something of its own


def text_of(error: BaseException) -> str:
    try:
        return str(error)[:LONGEST_ERROR]
    except Exception as second:  # a student's __str__ may raise
        return f"(its text could not be made: {type(second).__name__})"


def limit_of(error: BaseException | None) -> str:
    """The status of the limit that made a cell raise `error`, or ""."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        number = error.errno if isinstance(error, OSError) else None
        said = text_of(error) if isinstance(error, RuntimeError) else ""
        if isinstance(error, MemoryError) or number == errno.ENOMEM or "allocate memory" in said:
            return statuses.OUT_OF_MEMORY
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return statuses.DISK_FULL
        if number in (errno.EMFILE, errno.ENFILE):
            return statuses.TOO_MANY_FILES
        if "start new thread" in said:
            return statuses.TOO_MANY_PROCESSES
        if number == errno.EAGAIN and begins_process(error):
            return statuses.TOO_MANY_PROCESSES
        error = error.__cause__ or error.__context__
    return ""


def begins_process(error: BaseException) -> bool:
    """Whether a call for a new process raised the error: a socket without data raises the same number."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code
    return bool({"fork", "forkpty", "fork_exec", "_fork_exec", "posix_spawn"} & set(code.co_names))


def interruptible(yes: bool) -> None:
    """Set whether an interrupt from outside ends the running code: a cell, never the loop around it."""
    signal.signal(signal.SIGINT, signal.default_int_handler if yes else signal.SIG_IGN)
