"""Cells run outside of the grader's process: their outputs come back, their side effects stay there."""

from __future__ import annotations

import base64
import random
import signal
import textwrap
from collections.abc import Callable, Iterator

import pytest
import torch

from autograder.outcome import statuses
from autograder.outcome.limits import Limits
from autograder.sandbox import execution, messages
from autograder.sandbox.child import spawner
from autograder.sandbox.execution import ERROR, OK, CellRun, Executor, Refusal
from autograder.sandbox.transcript import SHOWN, Transcript
from course_lib.runtime import wire
from course_lib.runtime.errors import LaunchError
from course_lib.runtime.preloaded import Preloaded

SECONDS = 60  # within this time no cell that ends by itself should be interrupted
LIMITS = Limits(output=2000, payload=1 << 20)

Fresh = Callable[[], Executor]


@pytest.fixture(scope="module")
def preloaded() -> Iterator[Preloaded]:
    process = Preloaded(("autograder.sandbox.executor",))
    yield process
    process.close()


@pytest.fixture
def fresh(preloaded: Preloaded, tmp_path, monkeypatch) -> Iterator[Fresh]:
    """fresh() is an executor of its own."""
    made: list[Executor] = []

    def make() -> Executor:
        made.append(Executor(spawner(preloaded, None), LIMITS))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


@pytest.fixture(scope="module")
def shared(preloaded: Preloaded) -> Iterator[Executor]:
    """One executor for cells that leave it as they found it."""
    executor = Executor(spawner(preloaded, None), LIMITS)
    yield executor
    executor.close()


def run(executor: Executor, source: str, number: int = 1, seconds: float = SECONDS) -> CellRun:
    return executor.run(textwrap.dedent(source).strip(), number, seconds)


def printed(ran: CellRun, stream: str = "stdout") -> str:
    texts = [o["text"] for o in ran.outputs if o.get("name") == stream]
    return "".join(texts)


def error_of(ran: CellRun) -> dict:
    return next(output for output in ran.outputs if output["output_type"] == "error")


# --- what a cell shows ---------------------------------------------------------------------------


def test_a_value_is_shown_with_its_number(shared: Executor) -> None:
    ran = run(shared, "21 * 2", number=7)
    assert (ran.kind, ran.finished, ran.alive) == (OK, True, True)
    assert ran.outputs == [
        {
            "output_type": "execute_result",
            "data": {"text/plain": "42"},
            "metadata": {},
            "execution_count": 7,
        }
    ]
    assert run(shared, "21 * 2;").outputs == []


def test_outputs_stand_in_the_order_in_which_they_were_made(shared: Executor) -> None:
    ran = run(
        shared,
        """
        print("one")
        display("two")
        print("three", flush=True)
        raise KeyError("four")
        """,
    )
    kinds = [output["output_type"] for output in ran.outputs]
    assert kinds == ["stream", "display_data", "stream", "error"]
    assert (ran.outputs[0]["text"], ran.outputs[2]["text"]) == ("one\n", "three\n")
    assert (ran.kind, ran.error) == (ERROR, "KeyError")


def test_the_order_holds_for_many(shared: Executor) -> None:
    ran = run(shared, "for i in range(100):\n    print(i)\n    display(i)")
    shown = [o.get("text") or o["data"]["text/plain"] for o in ran.outputs]
    assert shown == [text for i in range(100) for text in (f"{i}\n", f"{i}")]


def test_an_error_names_the_cell_and_the_line(shared: Executor) -> None:
    run(shared, "def divide(a):\n    return a / 0", number=4)
    told = error_of(run(shared, "\ndivide(3)", number=5))
    assert told["ename"] == "ZeroDivisionError"
    text = "\n".join(told["traceback"])
    assert "Cell In[5], line 1" in text and "Cell In[4], line 2, in divide" in text
    assert "return a / 0" in text
    assert "\x1b" not in text
    told = error_of(run(shared, "def broken(:", number=6))
    assert told["ename"] == "SyntaxError" and "Cell In[6], line 1" in told["traceback"][0]


def test_figures_are_shown_as_pictures(shared: Executor) -> None:
    ran = run(
        shared,
        """
        import matplotlib.pyplot as plt
        plt.plot([1, 2, 3])
        print("drawn")
        """,
    )
    (figure,) = [o for o in ran.outputs if "image/png" in o.get("data", {})]
    assert base64.b64decode(figure["data"]["image/png"]).startswith(b"\x89PNG")
    assert run(shared, "1").outputs[0]["data"] == {"text/plain": "1"}, "a figure is shown once"


@pytest.mark.parametrize(
    "asked",
    [
        "%matplotlib widget", "%matplotlib qt", "%matplotlib notebook",
        "import matplotlib; matplotlib.use('TkAgg')",
        "import matplotlib.pyplot as plt; plt.switch_backend('qtagg')",
    ],
)  # fmt: skip
def test_who_asks_for_windows_gets_pictures(asked: str, shared: Executor) -> None:
    """A notebook that was worked in windows or widgets is graded on a machine that has neither."""
    ran = run(shared, f"{asked}\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
    assert ran.kind == OK, ran.outputs
    assert any("image/png" in output.get("data", {}) for output in ran.outputs)


def test_whatever_writes_to_the_descriptors_is_caught(shared: Executor) -> None:
    ran = run(
        shared,
        """
        import ctypes, os, subprocess, threading
        print("cell")
        ctypes.CDLL(None).puts(b"from C")
        ctypes.CDLL(None).fflush(None)
        subprocess.run(["sh", "-c", "echo from a child; echo to stderr >&2"])
        worker = threading.Thread(target=print, args=("from a thread",))
        worker.start(); worker.join()
        !echo from a command
        """,
    )
    assert ran.kind == OK
    for said in ("cell", "from C", "from a child", "from a thread", "from a command"):
        assert said in printed(ran)
    assert printed(ran, "stderr") == "to stderr\n"


def test_outputs_can_be_cleared_and_replaced(shared: Executor) -> None:
    ran = run(
        shared,
        """
        from IPython.display import clear_output
        print("old")
        clear_output()
        handle = display("first", display_id=True)
        handle.update("second")
        """,
    )
    assert [output.get("data") for output in ran.outputs] == [{"text/plain": "'second'"}]


@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        ("input('your name? ')", "EOFError", "no person sits at the keyboard"),
        ("import sys; sys.exit(3)", "SystemExit", "3"),
        ("exit()", "SystemExit", "exit()"),
        ("raise ValueError", "ValueError", ""),
        ("raise EOFError", "EOFError", ""),
    ],
)
def test_an_end_of_the_cell_is_not_the_end_of_the_notebook(
    shared: Executor, source: str, name: str, said: str
) -> None:
    ran = run(shared, source)
    assert (ran.kind, ran.error, ran.alive) == (ERROR, name, True)
    assert said in error_of(ran)["evalue"]
    assert printed(ran, "stderr") == ""
    assert run(shared, "'goes on'").kind == OK


def test_input_and_exit_are_answered_with_what_to_do(shared: Executor) -> None:
    asked, left = run(shared, "input()"), run(shared, "import sys\nsys.exit()")
    assert "gets no answer" in asked.sentence and "write the answer" in asked.sentence
    assert "ends only this cell" in left.sentence and "take it out" in left.sentence
    assert left.sentence in "".join(error_of(left)["traceback"])
    assert run(shared, "raise EOFError").sentence == run(shared, "1 / 0").sentence == ""


def test_a_forked_child_that_comes_back_has_no_voice(fresh: Fresh) -> None:
    executor = fresh()
    ran = run(executor, "import os\nos.fork()\nos.getpid()\nprint('here')")
    assert ran.kind == OK
    assert printed(ran).count("here") <= 2
    values = [o for o in run(executor, "'still ' + 'one'").outputs if "data" in o]
    assert [value["data"]["text/plain"] for value in values] == ["'still one'"]


def test_launch_finds_ranks(shared: Executor) -> None:
    ran = run(
        shared,
        """
        import torch.distributed as dist
        from course_lib import launch
        def body():
            print("hello")
            return dist.get_rank()
        list(launch(body, world_size=2))
        """,
    )
    assert ran.kind == OK, ran
    assert ran.outputs[-1]["data"]["text/plain"] == "[0, 1]"
    assert "[rank 1] hello" in printed(ran)


def test_check_judges_nothing_here(shared: Executor) -> None:
    ran = run(
        shared,
        """
        from course_lib import check
        report = check("00_first_ranks/hello", lambda: None)
        (report.score, report.points(5), report.passed)
        """,
    )
    assert "judged outside" in printed(ran)
    assert ran.outputs[-1]["data"]["text/plain"] == "(0.0, 0.0, False)"


# --- time, death, limits -------------------------------------------------------------------------

STUBBORN = """
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
"""


def test_a_cell_that_takes_too_long_is_interrupted(fresh: Fresh) -> None:
    executor = fresh()
    run(executor, "kept = 5")
    ran = run(executor, "print('begun')\nwhile True: pass", seconds=0.5)
    assert (ran.kind, ran.finished, ran.alive) == (statuses.TIMED_OUT, False, True)
    assert ran.sentence == "the cell ran longer than its time limit of 0.5 s"
    assert printed(ran) == "begun\n"
    assert error_of(ran)["ename"] == "KeyboardInterrupt"
    assert run(executor, "kept").outputs[0]["data"]["text/plain"] == "5"


def test_a_cell_that_cannot_be_interrupted_is_killed(fresh: Fresh, monkeypatch) -> None:
    monkeypatch.setattr(execution, "GRACE", 0.5)
    executor = fresh()
    ran = run(executor, f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{STUBBORN}",
              seconds=0.5)  # fmt: skip
    assert (ran.kind, ran.finished, ran.alive) == (statuses.TIMED_OUT, False, False)
    assert ran.sentence.endswith("and could not be interrupted")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os; os._exit(3)", "ended itself (exit code 3)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", "ended by SIGSEGV"),
    ],
)
def test_a_death_is_noticed_and_said(fresh: Fresh, source: str, said: str) -> None:
    ran = run(fresh(), f"print('last words')\n{source}")
    assert (ran.kind, ran.finished, ran.alive) == (statuses.KERNEL_DIED, False, False)
    assert said in ran.sentence
    assert "last words\n" in printed(ran)


def test_a_death_is_noticed_though_a_child_holds_the_channel(fresh: Fresh) -> None:
    ran = run(fresh(), "import os, time\nif os.fork() == 0: time.sleep(100)\nos._exit(4)")
    assert (ran.kind, ran.alive) == (statuses.KERNEL_DIED, False)
    assert "exit code 4" in ran.sentence


def test_a_process_that_closes_its_channel_is_ended(fresh: Fresh, monkeypatch) -> None:
    monkeypatch.setattr(execution, "LAST_WORDS", 0.3)
    ran = run(fresh(), "import os, time\nos.closerange(3, 200)\ntime.sleep(100)")
    assert (ran.kind, ran.alive) == (statuses.KERNEL_DIED, False)
    assert "closed its channel" in ran.sentence


RAISES = "import errno\nraise OSError(errno.{}, 'text')"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raise MemoryError", statuses.OUT_OF_MEMORY),
        ("bytearray(1 << 60)", statuses.OUT_OF_MEMORY),
        ("import torch; torch.empty(1 << 58, dtype=torch.uint8)", statuses.OUT_OF_MEMORY),
        (RAISES.format("ENOSPC"), statuses.DISK_FULL),
        (RAISES.format("EMFILE"), statuses.TOO_MANY_FILES),
        ("raise RuntimeError(\"can't start new thread\")", statuses.TOO_MANY_PROCESSES),
        ("try:\n    raise MemoryError\nexcept MemoryError:\n    raise ValueError", statuses.OUT_OF_MEMORY),
        (RAISES.format("ENOENT"), ERROR),
        # the same number as a fork that is refused, from a socket that has nothing to read
        ("import socket\na, b = socket.socketpair()\na.setblocking(False)\na.recv(1)", ERROR),
    ],
)  # fmt: skip
def test_errors_that_come_from_a_limit_are_told_apart(
    shared: Executor, source: str, expected: str
) -> None:
    ran = run(shared, source)
    assert ran.kind == expected
    assert ran.finished and ran.alive
    assert bool(ran.sentence) == (expected != ERROR)


def test_a_fork_bomb_comes_to_its_limit(fresh: Fresh) -> None:
    ran = run(
        fresh(),
        """
        import os, resource
        if os.getuid() == 0:  # whom the limit does not bind
            os.setgid(60000); os.setuid(60000)
        resource.setrlimit(resource.RLIMIT_NPROC, (20, 20))
        while True:
            os.fork()
        """,
    )
    assert (ran.kind, ran.error) == (statuses.TOO_MANY_PROCESSES, "BlockingIOError")


def test_files_without_end_are_a_limit(fresh: Fresh) -> None:
    ran = run(
        fresh(),
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        files = [open("/dev/null") for _ in range(100)]
        """,
    )
    assert ran.kind == statuses.TOO_MANY_FILES
    assert f"more files at a time than it may ({LIMITS.descriptors})" in ran.sentence


# --- output without end --------------------------------------------------------------------------


def test_of_long_output_the_ends_are_kept(shared: Executor) -> None:
    ran = run(shared, "for i in range(20_000): print(i)")
    assert (ran.kind, ran.finished) == (statuses.TOO_MUCH_OUTPUT, True)
    whole = "".join(f"{i}\n" for i in range(20_000))
    assert f"printed {len(whole):,} bytes" in ran.sentence
    first, sentence, last = (output["text"] for output in ran.outputs)
    assert first == whole[:1000] and last == whole[-1000:]
    assert f"{len(whole) - 2000:,} bytes were left out" in sentence


def test_one_long_line_costs_nothing_but_itself(shared: Executor) -> None:
    ran = run(shared, "print('x' * (5 << 20))\n'and goes on'")
    assert ran.kind == statuses.TOO_MUCH_OUTPUT
    assert ran.outputs[-1]["data"]["text/plain"] == "'and goes on'"
    assert sum(messages.size_of(o) if "data" in o else len(o["text"]) for o in ran.outputs) < 3000


def test_printing_without_end_is_stopped(fresh: Fresh, monkeypatch) -> None:
    monkeypatch.setattr(execution, "FLOOD", 100)
    executor = fresh()
    ran = run(executor, "while True: print('again')")
    assert (ran.kind, ran.finished, ran.alive) == (statuses.TOO_MUCH_OUTPUT, False, True)
    assert "was stopped" in ran.sentence


def test_a_thread_that_goes_on_printing_holds_nobody(fresh: Fresh) -> None:
    executor = fresh()
    run(
        executor,
        """
        import threading
        def forever():
            while True: print("more")
        threading.Thread(target=forever, daemon=True).start()
        """,
    )
    ran = run(executor, "40 + 2")
    assert ran.finished
    assert any(o.get("data") == {"text/plain": "42"} for o in ran.outputs)
    assert isinstance(executor.submit(["40 + 2"], SECONDS), list)


def test_of_many_pictures_the_first_are_kept(shared: Executor) -> None:
    ran = run(shared, f"for i in range({SHOWN + 50}): display(i)")
    assert ran.kind == statuses.TOO_MUCH_OUTPUT
    assert "50 more outputs" in ran.outputs[-1]["text"]
    assert len(ran.outputs) == SHOWN + 1


def test_an_output_that_is_too_large_leaves_a_sentence(shared: Executor, seed: int) -> None:
    megabytes = random.Random(seed).randrange(3, 60)
    ran = run(shared, f"from IPython.display import HTML\ndisplay(HTML('x' * ({megabytes} << 20)))")
    (output,) = ran.outputs
    assert list(output["data"]) == ["text/plain"] and "HTML object" in output["data"]["text/plain"]
    assert f"{megabytes} MB (text/html) was left out" in output["data"]["text/plain"]
    ran = run(shared, f"display({{'image/png': b'x' * ({megabytes} << 20)}}, raw=True)")
    assert "MB (image/png) was left out; at most 2 MB" in ran.outputs[0]["data"]["text/plain"]
    text = run(shared, f"'x' * ({megabytes} << 20)").outputs[0]["data"]["text/plain"]
    assert text.startswith("'xxx") and "MB (text/plain) was left out" in text and len(text) < 2000
    both = "{'text/html': '<b>small</b>', 'text/latex': 'x' * (3 << 20)}"
    (output,) = run(shared, f"display({both}, raw=True)").outputs
    assert output["data"] == {"text/html": "<b>small</b>"}, "a shown output needs no sentence"


def test_a_little_too_much_is_too_much(shared: Executor) -> None:
    ran = run(shared, f"print('x' * {LIMITS.output})")
    assert ran.kind == statuses.TOO_MUCH_OUTPUT
    assert run(shared, f"print('x' * {LIMITS.output - 1})").kind == OK


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_a_transcript_keeps_the_ends_whatever_the_pieces(seed: int, chunk: int) -> None:
    source = random.Random(seed + chunk)
    limit = source.randrange(2, 300)
    whole = bytes(source.randrange(97, 123) for _ in range(source.randrange(0, 3 * limit)))
    said = Transcript(limit)
    for start in range(0, len(whole), chunk):
        said.write("stdout", whole[start : start + chunk])
    texts = [output["text"] for output in said.outputs()]
    half = limit // 2
    if len(whole) <= 2 * half:
        assert "".join(texts).encode() == whole and not said.cut
    else:
        assert (texts[0].encode(), texts[-1].encode()) == (whole[:half], whole[-half:])
        assert said.dropped == len(whole) - 2 * half and f"{said.dropped:,}" in texts[1]


# --- a notebook that talks to its grader ----------------------------------------------------------

SHOWS = "get_ipython().send({'output': %r})"


@pytest.mark.parametrize(
    "message",
    [
        3,
        {"output_type": "verdict"},
        {"output_type": "execute_result", "data": [1]},
        {"output_type": "error", "ename": "E", "evalue": "e", "traceback": "no list"},
        {"output_type": "error", "ename": 5, "evalue": "e", "traceback": []},
    ],
)
def test_what_is_no_output_ends_the_process(fresh: Fresh, message: object) -> None:
    ran = run(fresh(), SHOWS % (message,))
    assert (ran.kind, ran.alive) == (statuses.KERNEL_DIED, False)
    assert "wrote into its channel" in ran.sentence


RAW = "import os, socket, stat\nfor fd in range(3, 50):\n    try:\n        if stat.S_ISSOCK(os.fstat(fd).st_mode): socket.socket(fileno=os.dup(fd)).sendall({})\n    except OSError: pass"  # noqa: E501


@pytest.mark.parametrize(
    "data",
    [
        "b'GET / HTTP/1.1' * 100",
        "(1).to_bytes(4, 'little') + (1 << 40).to_bytes(8, 'little')",
        "(1).to_bytes(4, 'little') + (100_000).to_bytes(8, 'little') + b'[' * 100_000",
        "(1).to_bytes(4, 'little') + (4).to_bytes(8, 'little') + b'null'",
    ],
    ids=["no message", "a huge message", "deep JSON", "no object"],
)
def test_bytes_that_are_no_message_end_the_process(fresh: Fresh, data: str) -> None:
    ran = run(fresh(), RAW.format(data))
    assert (ran.kind, ran.alive) == (statuses.KERNEL_DIED, False), ran


def test_an_answer_to_no_question_is_none(fresh: Fresh) -> None:
    executor = fresh()
    run(executor, "1")
    ran = run(
        executor, "get_ipython().send({'done': '', 'answers': 99, 'output': {'output_type': 'x'}})"
    )
    assert ran.kind == statuses.KERNEL_DIED


def test_only_known_kinds_of_data_are_passed_on() -> None:
    shown = messages.output_of(
        {
            "output_type": "display_data",
            "data": {
                "text/plain": "half a character: \ud800",
                "application/javascript": "alert(1)",
                "image/png": "no base64!",
                "image/jpeg": "aGVsbG8=",
                "text/html": 5,
            },
            "metadata": {"text/html": {"isolated": False}},
        }
    )
    assert shown == {
        "output_type": "display_data",
        "data": {"text/plain": "half a character: \ufffd", "image/jpeg": "aGVsbG8="},
        "metadata": {},
    }
    assert messages.output_of({"output_type": "display_data", "data": {"text/x": "a"}}) is None
    assert messages.limit_of("out of memory") == statuses.OUT_OF_MEMORY
    assert messages.limit_of("graded") == messages.limit_of(5) == ""


def test_pictures_are_read_in_no_time_whatever_they_are() -> None:
    hostile = " " * (messages.IMAGE - 1) + "!"
    assert (
        messages.output_of({"output_type": "display_data", "data": {"image/png": hostile}}) is None
    )
    lines = {"image/png": "aGVs\nbG8=\n"}
    shown = messages.output_of({"output_type": "display_data", "data": lines})
    assert shown is not None and shown["data"] == lines


def test_long_texts_are_cut() -> None:
    long = "x" * (messages.TEXT + 10)
    shown = messages.output_of({"output_type": "display_data", "data": {"text/plain": long}})
    assert shown is not None and len(shown["data"]["text/plain"]) < len(long)
    told = {"output_type": "error", "ename": long, "evalue": long, "traceback": [long] * 300}
    error = messages.output_of(told)
    assert error is not None
    assert len(error["traceback"]) == messages.LINES
    assert messages.size_of(error) < (messages.LINES + 2) * (messages.ERROR_TEXT + 10)


# --- handing in ----------------------------------------------------------------------------------


def test_what_is_handed_in_arrives(shared: Executor, seed: int) -> None:
    values = torch.randn(5, generator=torch.Generator().manual_seed(seed)).tolist()
    run(
        shared, f"import torch\nkept = torch.tensor({values})\ndef twice(x):\n    return helper(x)\n"
        "def helper(x):\n    return 2 * x + kept", number=3,
    )  # fmt: skip
    payload = shared.submit(["twice", "kept"], SECONDS)
    assert isinstance(payload, list)
    twice, kept = wire.loads(payload)
    assert torch.equal(kept, torch.tensor(values))
    assert torch.equal(twice(kept), 3 * kept)
    assert twice.__code__.co_filename == "Cell In[3]", "by value, and the ranks can name the place"


def test_a_module_that_a_cell_wrote_goes_with_what_is_handed_in(fresh: Fresh, tmp_path) -> None:
    """It can be imported as in a kernel, and a check's ranks have no such file."""
    executor = fresh()
    run(executor, f"%cd -q {tmp_path}")
    run(executor, "%%writefile own_helpers.py\nMORE = 3\n\ndef add(x):\n    return x + MORE")
    assert (
        run(executor, "import own_helpers\ndef ahead(x):\n    return own_helpers.add(x)").kind == OK
    )
    payload = executor.submit(["ahead", "own_helpers.add"], SECONDS)
    assert isinstance(payload, list)
    ahead, add = wire.loads(payload)
    assert (ahead(4), add(5)) == (7, 8)


@pytest.mark.parametrize(
    ("expressions", "functions", "said"),
    [
        (["nowhere"], True, "nowhere is not defined."),
        (["1 / 0"], False, "1 / 0 has no value: ZeroDivisionError: division by zero"),
        (["5"], True, "5 must be a function that you write; it is of type int."),
        (["iter([]).__next__", "(i for i in ())"], False, "is a generator, which cannot be copied"),
        (["b'x' * (2 << 20)"], False, "takes at most 1,048,576"),
    ],
)
def test_what_cannot_be_handed_in_is_said(
    shared: Executor, expressions: list[str], functions: bool, said: str
) -> None:
    refusal = shared.submit(expressions, SECONDS, functions)
    assert isinstance(refusal, Refusal)
    assert refusal.kind == ERROR and said in refusal.sentence


def test_a_function_that_holds_a_lock_is_explained(shared: Executor) -> None:
    run(shared, "import threading\nlock = threading.Lock()\ndef locked():\n    return lock")
    refusal = shared.submit(["locked"], SECONDS, True)
    assert isinstance(refusal, Refusal)
    assert "the global variable 'lock' that it uses is a lock" in refusal.sentence


def test_pickling_is_student_code_too(fresh: Fresh, monkeypatch) -> None:
    monkeypatch.setattr(execution, "GRACE", 0.5)
    executor = fresh()
    run(
        executor,
        """
        import os
        class Prints:
            def __reduce__(self):
                print("nobody sees this")
                return int, (5,)
        class Hangs:
            def __reduce__(self):
                while True: pass
        class Dies:
            def __reduce__(self):
                os._exit(9)
        """,
    )
    payload = executor.submit(["Prints()"], SECONDS)
    assert isinstance(payload, list) and wire.loads(payload) == (5,)
    refusal = executor.submit(["Hangs()"], 0.5)
    assert isinstance(refusal, Refusal) and refusal.kind == statuses.TIMED_OUT
    refusal = executor.submit(["Dies()"], SECONDS)
    assert isinstance(refusal, Refusal) and refusal.kind == statuses.KERNEL_DIED
    assert not executor.alive
    after = run(executor, "1")
    assert (after.kind, after.alive) == (statuses.KERNEL_DIED, False)


# --- starting and ending ---------------------------------------------------------------------------


def test_everything_that_a_cell_started_ends_with_it(fresh: Fresh, assert_no_orphans) -> None:
    executor = fresh()
    ran = run(
        executor,
        """
        import os, subprocess
        child = subprocess.Popen(["sleep", "1000"])
        print(os.getpid(), child.pid)
        """,
    )
    pids = [int(word) for word in printed(ran).split()]
    executor.close()
    assert_no_orphans(pids)


def test_a_process_that_does_not_start_says_why(preloaded: Preloaded) -> None:
    def start(fds):
        child = spawner(preloaded, None)(fds)
        child.children.signal(0, signal.SIGKILL)  # pyright: ignore[reportAttributeAccessIssue]
        return child

    with pytest.raises(
        LaunchError, match="did not start: the notebook's process was ended by SIGKILL"
    ):
        for _ in range(50):  # a quick one has reported that it is ready before it was killed
            Executor(start, LIMITS).close()
