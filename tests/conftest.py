"""Fixtures of all tests: random seeds that can be repeated, backends, and no process left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import autograder  # noqa: F401  (before nbformat: see there)

MARK = "COURSE_TEST_SESSION"
# Every process that the tests start inherits this, wherever it ends up in the process tree.
os.environ[MARK] = f"{os.getpid()}-{time.time_ns()}"
# Counts GPUs without starting CUDA in this process, so that it may still fork.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
# Tests compare plain text; the colours have tests of their own.
os.environ["NO_COLOR"] = "1"

# Tests run side by side, and threads of theirs would only wait for each other: up to ten times as long.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

SEED = int(os.environ.get("COURSE_TEST_SEED") or random.SystemRandom().randrange(2**31))
os.environ["COURSE_TEST_SEED"] = str(SEED)  # the workers of `pytest -n` draw from the same


def pytest_configure(config: pytest.Config) -> None:
    from tests import drawn

    # In the background of a shell a program ignores SIGINT, and so does all that it starts. Tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # the workers inherit it
        named = config.args_source is pytest.Config.ArgsSource.ARGS
        os.environ[drawn.NAMED] = "1" if named else ""
        if named and not config.option.pyargs:
            require_files(config.args, config.invocation_params.dir)


def require_files(arguments: Iterable[str], folder: Path) -> None:
    """UsageError if a file is not there. Several workers would end without tests and without a reason."""
    for argument in arguments:
        file = argument.partition("::")[0]
        if not (folder / file).exists():
            raise pytest.UsageError(f"file or directory not found: {file}")


def pytest_report_header(config: pytest.Config) -> list[str]:
    from tests import drawn

    lines = [f"COURSE_TEST_SEED={SEED} (set it to repeat this run's random inputs)", drawn.header()]
    if getattr(config.option, "numprocesses", None) and not os.environ[drawn.NAMED]:
        lines.append("each worker first collects all tests, which takes minutes on a busy machine")
    return lines


@pytest.fixture
def seed() -> int:
    """The run's seed: random, or COURSE_TEST_SEED; shown with a test that fails."""
    print(f"COURSE_TEST_SEED={SEED}")
    return SEED


# --- several workers: pytest -n auto -------------------------------------------------------------

# Files whose tests take minutes come first, so that no worker is left alone with one at the end. Those that
# one worker runs from end to end come before those that all workers share (APART).
LONG = (
    "test_autograder.py",
    "test_faults.py",
    "test_outside.py",
    "test_hosts.py",
    "test_collectives.py",
    "test_style.py",
    "test_nothing_is_lost.py",
    "test_notebooks.py",
    "test_mutants.py",
)
# Every test of these may run in another worker: they share nothing that is slow to make.
APART = (
    "test_imitated_devices.py",
    "test_mutants.py",
    "test_notebook_solutions.py",
    "test_notebooks.py",
    "test_seeds.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: one more than grading would take, at most four: most tests start ranks of their own.

    With one worker for each core, two cores idled a fifth of the time: a test waits for its ranks, and
    these for each other. With two more than cores nothing is won: the cores are busy with three workers.
    """
    from autograder.sandbox.capacity import default_jobs

    return min(4, default_jobs() + 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of a file stay in one worker, which makes the file's fixtures once; but for APART."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return nodeid if Path(file).name in APART else file

    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from tests import drawn

    first: dict[Path, str] = {}  # of each file's tests the name: it always runs
    for item in items:
        mark, name = item.get_closest_marker("drawn"), getattr(item, "originalname", item.name)
        share = mark.args[0] if mark else drawn.share_of(item.path)
        is_first = first.setdefault(item.path, name) == name and not mark
        if not (is_first or drawn.is_drawn(item.nodeid, share, SEED)):
            item.add_marker(
                pytest.mark.skip(reason="not drawn in this run: make test-all runs all")
            )
    if hasattr(config, "workerinput"):
        order = {name: place for place, name in enumerate(LONG)}
        items.sort(key=lambda item: order.get(item.path.name, len(order)))


def pytest_collection_finish() -> None:
    """The collector leaves alone what was imported: it took a fifth of a worker's time to walk through it."""
    gc.collect()
    gc.freeze()


# --- make check: tests without ranks -------------------------------------------------------------

QUICK = bool(os.environ.get("COURSE_QUICK"))
# Of these no test starts ranks, a kernel or a grader.
WITHOUT_RANKS = (
    "test_build.py", "test_class.py", "test_code.py", "test_data.py", "test_docs.py", "test_drawn.py",
    "test_exports.py", "test_facts.py", "test_figures.py", "test_first_tests.py", "test_gpt.py",
    "test_heads.py", "test_imports.py", "test_intake.py", "test_lab.py", "test_layer_checks.py",
    "test_ledger_tables.py", "test_make_work.py", "test_mutant_files.py", "test_notebook_prose.py",
    "test_packages.py", "test_pages.py", "test_pipeline_schedules.py",
    "test_places.py", "test_provenance.py", "test_release_stubs.py", "test_reports.py", "test_sentences.py",
    "test_setup.py", "test_setup_progress.py", "test_site.py", "test_start.py", "test_style.py",
)  # fmt: skip


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """With COURSE_QUICK the other files are not even read."""
    name = collection_path.name
    return True if QUICK and name.startswith("test_") and name not in WITHOUT_RANKS else None


@pytest.fixture(scope="session", autouse=QUICK)
def no_ranks() -> Iterator[None]:
    """A test that starts the process that forks ranks does not belong here."""
    from course_lib.runtime.preloaded import Preloaded

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("`make check` starts no ranks: this file is not in WITHOUT_RANKS (conftest.py)")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Preloaded, "__init__", refuse)
        yield


IMITATED_RANKS = 3  # of tests that run on several numbers of ranks

# --- backends ------------------------------------------------------------------------------------


def gpu_count() -> int:
    import torch

    return torch.cuda.device_count()


def places() -> int:
    """The number of ranks that find room over NCCL on this machine."""
    from course_lib.runtime.gpus import places

    return places()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and gpu_count() == 0:
        pytest.skip("no NVIDIA GPU on this machine")


@pytest.fixture(
    params=["gloo", pytest.param("nccl", marks=pytest.mark.gpu), "nccl-like", "gpu-like"]
)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each backend in turn; NCCL is skipped, and says so, where there is no GPU; its order is imitated."""
    yield from carried(request)


@pytest.fixture(params=["gloo", "nccl-like"])
def cpu_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The same for tests whose tensors lie on the CPU."""
    yield from carried(request)


def carried(request: pytest.FixtureRequest) -> Iterator[str]:
    """On gloo no note on NCCL may appear, since the runs of these tests go through on NCCL too."""
    from course_lib.runtime import notes
    from tests import gpu_like, nccl_like

    if request.param in (nccl_like.NAME, gpu_like.NAME):
        imitated = nccl_like if request.param == nccl_like.NAME else gpu_like
        world_size = request.node.callspec.params.get("world_size", IMITATED_RANKS)
        if not os.environ.get("COURSE_ALL_TESTS"):
            if world_size != IMITATED_RANKS:
                pytest.skip(
                    f"NCCL and GPUs are imitated on {IMITATED_RANKS} ranks; on others by make test-all"
                )
            if request.node.get_closest_marker("many_steps"):
                pytest.skip("it takes many steps of one order: make test-all")
        with imitated.offered():
            yield request.param
        return
    notes._told.clear()
    yield request.param
    assert not notes._told


@pytest.fixture
def require_ranks(backend: str) -> Callable[[int], None]:
    """require_ranks(4) skips the test when the backend cannot have four ranks on this machine."""

    def require(world_size: int) -> None:
        if backend == "nccl" and places() < world_size:
            pytest.skip(
                f"{world_size} ranks over NCCL need as many GPUs, or COURSE_RANKS_PER_GPU; here: {places()}"
            )

    return require


# --- a temporary folder of a test's own


@pytest.fixture
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of a test's programs, apart from those of all others."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


# --- no process left behind ----------------------------------------------------------------------


def alive(pid: int) -> bool:
    """Whether `pid` runs; a zombie, whose parent has only to read its exit code, does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def describe(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        command = "gone meanwhile"
    return f"{pid}: {command.strip()[:200]}"


def wait_until_gone(pids: Iterable[int], seconds: float) -> list[int]:
    """Those of `pids` that still run after at most `seconds`."""
    deadline = time.monotonic() + seconds
    left = [pid for pid in pids if alive(pid)]
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [pid for pid in left if alive(pid)]
    return left


@pytest.fixture
def assert_no_orphans() -> Callable[..., None]:
    """assert_no_orphans(pids): all of them must have ended within five seconds."""

    def check(pids: Iterable[int], seconds: float = 5.0) -> None:
        left = wait_until_gone(pids, seconds)
        assert not left, "still running: " + "; ".join(map(describe, left))

    return check


def started_by_these_tests() -> list[int]:
    """Processes that inherited MARK from this one, orphans and their children included."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            inherited = mark in (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile, or belongs to another user
            continue
        if inherited and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


@pytest.fixture(autouse=True)
def the_environment_is_as_it_was() -> Iterator[None]:
    """A variable that a test leaves behind changes the ranks of all tests after it in this process."""

    def environment() -> dict[str, str]:
        return {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "TORCHINDUCTOR_"))
        }

    before = environment()
    yield
    assert environment() == before, "os.environ is not as it was before this test"


@pytest.fixture(autouse=True)
def the_interrupt_is_as_it_was() -> Iterator[None]:
    """After a test that leaves another handler behind, the interrupts of the tests after it go astray."""
    yield
    handler = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert handler is signal.default_int_handler, f"this test leaves {handler!r} for SIGINT"


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """After the last test: end the preloaded process as an exiting kernel does, then look round."""
    yield
    if not Path("/proc/self/environ").exists():  # not Linux
        return
    pool = sys.modules.get("course_lib.runtime.pools")
    if pool is not None:
        pool.close()
    left = wait_until_gone(started_by_these_tests(), 10.0)
    told = "\n  ".join(map(describe, left))
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"processes that the tests started were still running at the end:\n  {told}"
