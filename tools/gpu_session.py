"""Prove that the course works on this machine's GPUs, in one command: `make gpu`.

The parts run one after the other, each in processes of its own, with a time limit and a log, and the next
one begins whatever the outcome of the last. They share `--limit`, so that the report is there in time where a
machine is lent for ten minutes. Each part ends in a line of JSON, and so does each notebook.

    facts         the doctor's findings: driver, GPUs, PyTorch, NCCL, shared memory
    record        the experiments of "On your GPUs", with nothing beside them: record.json
    over NCCL     all notebooks and their checks, over NCCL; runs that fell back to the CPU are counted
    grading       the grader's own selftest on a machine with GPUs
    one rank      every test that needs a GPU, one rank to a GPU
    several       the same tests with several ranks on each GPU (needs NCCL 2.30 or newer)
    as it comes   all notebooks, with the backend that the session chooses by itself

After every part there are report.md, results.jsonl and logs.tar.gz. Without a GPU only the first part has a
result; the exit code is 0 all the same. It is 1 if a part failed. `--rehearse` runs the same parts in the
same order on the CPU, with one notebook and small experiments. A newer NCCL than PyTorch's own is loaded with
`--nccl path/to/libnccl.so.2`, and `tools/gpu_wheels.txt` lists what a bare machine needs besides PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import xml.etree.ElementTree
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import gpu_mps
from gpu_notebook import carried

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = ROOT / "solutions"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
ALONE = "tests/runtime/test_gpu.py"  # it reads how much GPU memory is taken: nothing else may run beside it
ENOUGH = 4  # GPUs with which most cells of the notebooks have a GPU for each rank
SHARING_RANKS = 8  # ranks that most of the notebooks' worlds have at most
LAST_CHANCE = 15  # seconds in which a part that ran past its limit may write its results
LIMIT = 560  # seconds: machines are lent for commands of ten minutes
# Notebooks that no GPU has seen come first, then the longest; a new one is before all of them.
ORDER = ("10", "05", "09", "01", "03", "08", "02", "06", "07", "04", "00")
REHEARSED = ("00",)  # the notebook of a rehearsal
REHEARSAL = "A rehearsal on the CPU: the same parts in the same order, and nothing about GPUs."
LAST_WORDS = 12  # lines of a failed part's log that the report shows


@dataclass
class Result:
    """The outcome of a part. status: "passed", "failed", "timed out" or "left out"."""

    part: str
    status: str
    seconds: float
    said: str
    details: list[str] = field(default_factory=list)

    def as_line(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Session:
    """The arguments of all parts."""

    out: Path
    gpus: int
    nccl_library: str = ""
    shares: bool = False  # this machine's NCCL lets ranks share a GPU
    notebooks: tuple[str, ...] = ()  # only those whose names begin so; all if empty
    lean: bool = False  # notebooks without the visible checks that hidden ones follow
    rehearsal: bool = False  # on the CPU
    mps: tuple[tuple[str, str], ...] = ()  # variables with which ranks find an MPS server

    def environment(self, **variables: str) -> dict[str, str]:
        """The parts' environment: nothing of the course's own variables but these."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("COURSE_")}
        if self.nccl_library:
            own["LD_PRELOAD"] = self.nccl_library
        paths = [str(ROOT), own.get("PYTHONPATH", "")]
        own["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        return {**own, **variables}

    def sharing(self) -> dict[str, str]:
        """Variables with which a world of eight finds room on the GPUs; larger ones run on the CPU."""
        if not self.shares:
            return {}
        share = max(1, -(-SHARING_RANKS // max(1, self.gpus)))
        return {"COURSE_RANKS_PER_GPU": str(share), **dict(self.mps)}


@dataclass(frozen=True)
class Part:
    name: str
    limit: float  # seconds
    run: Callable[[Session, float], Result]
    needs_gpu: bool = True
    needs_sharing: bool = False
    rehearsed: bool = False  # a part of the rehearsal without a GPU


def run_logged(
    command: Sequence[str], log: Path, limit: float, environment: dict[str, str]
) -> tuple[int | None, float]:
    """Exit code (None: it ran past the limit, and was ended with all that it started), and seconds."""
    began = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
            process.send_signal(signal.SIGINT)  # pytest then still writes down its results
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LAST_CHANCE)
        finally:
            end_session(process.pid)
            process.wait()
    return code, time.monotonic() - began


def end_session(leader: int) -> None:
    """Kill every process of the session that `leader` began; ranks end with their launching process."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                os.kill(int(folder.name), signal.SIGKILL)
        except (OSError, IndexError, ValueError):
            continue  # it ended meanwhile, or belongs to another user


def last_words(log: Path, count: int = LAST_WORDS) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-count:]


# ---- the parts


def facts(session: Session, limit: float) -> Result:
    """The doctor's report is the part's text; its problems are findings, and not failures of the part."""
    log = session.out / "facts.log"
    code, seconds = run_logged(
        [sys.executable, "-m", "course_lib.doctor"], log, limit, session.environment()
    )
    text = log.read_text(errors="replace").splitlines()
    status = "timed out" if code is None else "passed" if code in (0, 1) and text else "failed"
    return Result("facts", status, seconds, text[-1] if text else "it said nothing", text)


def one_rank(session: Session, limit: float) -> Result:
    return run_tests("one rank", session, limit, session.environment())


def several(session: Session, limit: float) -> Result:
    """A few ranks to a GPU; with several GPUs also across them."""
    share = max(1, -(-4 // max(1, session.gpus)))
    return run_tests(
        "several", session, limit, session.environment(COURSE_RANKS_PER_GPU=str(share))
    )


def run_tests(name: str, session: Session, limit: float, environment: dict[str, str]) -> Result:
    """The GPU's own tests alone, then the others in a few workers."""
    began, cases, broken = time.monotonic(), [], []
    workers = str(max(1, min(6, (os.cpu_count() or 2) // 2)))
    for label, selection in (
        ("alone", [ALONE]),
        ("beside", ["tests", f"--ignore={ALONE}", "-n", workers]),
    ):
        stem = f"{name.replace(' ', '_')}_{label}"
        xml_file, log = session.out / f"{stem}.xml", session.out / f"{stem}.log"
        rest = limit - (time.monotonic() - began)
        code, _ = run_logged(
            [*PYTEST, f"--junit-xml={xml_file}", *selection], log, max(1.0, rest), environment
        )
        if xml_file.exists():
            cases += list(read_cases(xml_file))
        if code is None or code > 1:
            why = "ran past the limit" if code is None else f"ended with code {code}"
            broken += [f"pytest of {label} {why}:", *last_words(log)]
    failed = [f"{case}: {why}" for case, outcome, why in cases if outcome == "failed"]
    count = {
        kind: sum(outcome == kind for _, outcome, _ in cases) for kind in ("passed", "skipped")
    }
    said = f"{count['passed']} passed, {len(failed)} failed, {count['skipped']} skipped"
    good = not failed and not broken and count["passed"] > 0
    status = "passed" if good else "failed"
    return Result(name, status, time.monotonic() - began, said, [*failed, *broken])


def read_cases(path: Path) -> Iterator[tuple[str, str, str]]:
    """(name, "passed", "failed" or "skipped", first line of why) of each test in a JUnit file."""
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        for tag, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            element = case.find(tag)
            if element is not None:
                yield name, outcome, (element.get("message") or "").splitlines()[0][:300]
                break
        else:
            yield name, "passed", ""


def notebooks_as_they_come(session: Session, limit: float) -> Result:
    return run_notebooks("as it comes", session, limit, session.environment())


def notebooks_over_nccl(session: Session, limit: float) -> Result:
    backend = "gloo" if session.rehearsal else "nccl"
    variables = {"COURSE_BACKEND": backend, **session.sharing()}
    return run_notebooks("over NCCL", session, limit, session.environment(**variables))


def run_notebooks(name: str, session: Session, limit: float, environment: dict[str, str]) -> Result:
    """Every solution notebook in a process of its own, as many side by side as there are cores for."""
    began = time.monotonic()
    assignments = in_order(session.notebooks)
    side_by_side = max(1, min(len(assignments), (os.cpu_count() or 2) // 2))
    if (
        "COURSE_RANKS_PER_GPU" in environment
    ):  # kernels of one GPU take turns: more side by side do not end sooner
        side_by_side = min(side_by_side, 2)

    def run_one(assignment: str) -> tuple[str, list[str]]:
        stem = session.out / f"{name.replace(' ', '_')}_{assignment}"
        command = [sys.executable, str(ROOT / "tools" / "gpu_notebook.py"), assignment, str(stem)]
        command += ["--lean"] if session.lean else []
        rest, runs = limit - (time.monotonic() - began), stem.with_suffix(".launches")
        runs.write_text("")  # without those of an earlier session
        _, seconds = run_logged(
            command, stem.with_suffix(".log"), max(1.0, rest),
            {**environment, "COURSE_LAUNCHES": str(runs)},
        )  # fmt: skip
        if not stem.with_suffix(".json").exists():
            return notebook_outcome(
                name, assignment, "ended early", last_words(stem.with_suffix(".log")), seconds
            )
        wrong = json.loads(stem.with_suffix(".json").read_text())
        over_nccl, on_cpu = carried(runs)
        if environment.get("COURSE_BACKEND") == "nccl" and not over_nccl:
            wrong.append("nothing ran over NCCL")
        said = f"{len(wrong)} cells went wrong; {over_nccl} runs over NCCL, {on_cpu} on the CPU"
        return notebook_outcome(name, assignment, said, wrong, seconds)

    with ThreadPoolExecutor(side_by_side) as pool:
        reports = list(pool.map(run_one, assignments))
    bad = [line for line, wrong in reports if wrong]
    details = [text for line, wrong in reports for text in (line, *(f"    {w}" for w in wrong))]
    said = f"{len(reports) - len(bad)} of {len(reports)} notebooks without a fault"
    status = "failed" if bad else "passed"
    return Result(name, status, time.monotonic() - began, said, details)


def in_order(beginnings: Sequence[str]) -> list[str]:
    """The notebooks whose names begin so, or all: new ones, then ORDER."""
    names = [path.name for path in sorted(SOLUTIONS.iterdir()) if path.is_dir()]
    place = {number: k for k, number in enumerate(ORDER)}
    chosen = [name for name in names if name.startswith(tuple(beginnings) or "")]
    return sorted(chosen, key=lambda name: place.get(name[:2], -1))


def notebook_outcome(
    part: str, assignment: str, said: str, wrong: list[str], seconds: float
) -> tuple[str, list[str]]:
    """A notebook's outcome, printed at once, since the session may be ended before its part is over."""
    status = "failed" if wrong else "passed"
    print(Result(f"{part}: {assignment}", status, seconds, said, wrong).as_line(), flush=True)
    return f"{assignment}: {said}, {seconds:.0f} s", wrong


def record(session: Session, limit: float) -> Result:
    """The experiments, one after the other; each is in record.json as soon as it has ended."""
    log, path = session.out / "record.log", session.out / "record.json"
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "course_lib.gpu", "--out", str(path)]
    command += ["--rehearse"] if session.rehearsal else ["--limit", str(max(1.0, limit - 20))]
    code, seconds = run_logged(command, log, limit, session.environment())
    count = len(json.loads(path.read_text())) if path.exists() else 0
    text = log.read_text(errors="replace")
    late = text.count("no time was left")
    said = f"{count} experiments are in record.json" if not session.rehearsal else "rehearsed"
    said += f", {late} had no time" if late else ""
    status = "timed out" if code is None or late else "failed" if code else "passed"
    return Result("record", status, seconds, said, text.splitlines())


def grading(session: Session, limit: float) -> Result:
    log = session.out / "grading.log"
    command = [sys.executable, "-m", "autograder", "selftest", "--quick"]
    code, seconds = run_logged(command, log, limit, session.environment())
    text = log.read_text(errors="replace")
    warned = re.findall(r".*CUDA initialization.*", text)
    status = "timed out" if code is None else "passed" if code == 0 and not warned else "failed"
    words = last_words(log)
    return Result("grading", status, seconds, words[-1] if words else "", [*words, *warned])


PARTS = [
    Part("facts", 60, facts, needs_gpu=False),
    Part("record", 180, record, rehearsed=True),
    Part("over NCCL", 400, notebooks_over_nccl, needs_sharing=True, rehearsed=True),
    Part("grading", 180, grading, rehearsed=True),
    Part("one rank", 240, one_rank),
    Part("several", 300, several, needs_sharing=True),
    Part("as it comes", 300, notebooks_as_they_come),
]


# ---- the session


def look_round(
    nccl_library: str, out: Path, notebooks: tuple[str, ...] = ()
) -> tuple[Session, str]:
    """How many GPUs there are and whether ranks can share one; a sentence on it."""
    if nccl_library and not Path(nccl_library).is_file():
        raise SystemExit(f"--nccl: there is no file {nccl_library}")
    session = Session(out, 0, nccl_library, notebooks=notebooks)
    code = (
        "import json; from course_lib.runtime import gpus; t = gpus.run_trial(); "
        "print(json.dumps([gpus.gpu_count(), t.error, t.nccl, t.nccl_text, gpus.SHARING]))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT,
        env=session.environment(COURSE_ROLE="gpu session"),
    )  # fmt: skip
    if answer.returncode:
        raise SystemExit(f"the GPUs could not be counted:\n{answer.stderr}")
    count, error, nccl, text, least = json.loads(answer.stdout.strip().splitlines()[-1])
    if not count:
        return session, "No GPU: only the parts that need none were run."
    if error:
        return session, f"{count} GPUs were counted, and CUDA cannot use them: {error}"
    said = f"{count} GPU{'s' * (count > 1)}, NCCL {text}"
    return replace(session, gpus=count, shares=nccl >= least), said


def left_out(part: Part, session: Session) -> str:
    """Why the part cannot be run here; "" if it can."""
    if session.rehearsal:
        return "" if part.rehearsed or not part.needs_gpu else "needs a GPU"
    if part.needs_gpu and not session.gpus:
        return "needs a GPU"
    if part.needs_sharing and not session.shares and session.gpus < ENOUGH:
        return (
            "needs four GPUs, or NCCL 2.30 or newer (--nccl libnccl.so.2) for several ranks on each"
        )
    return ""


def write_down(out: Path, said: str, results: Sequence[Result]) -> None:
    """The report, the lines, and all logs in one file, as far as the session has come."""
    (out / "report.md").write_text(report(said, results))
    (out / "results.jsonl").write_text("".join(f"{result.as_line()}\n" for result in results))
    with tarfile.open(out / "logs.tar.gz", "w:gz") as archive:
        for log in sorted(out.glob("*.log")):
            archive.add(log, log.name)


def report(said: str, results: Sequence[Result]) -> str:
    lines = [
        f"# The course on GPUs, {time.strftime('%Y-%m-%d')}", "", said, "",
        "| part | outcome | seconds | |", "|---|---|---|---|",
    ]  # fmt: skip
    lines += [f"| {r.part} | {r.status} | {r.seconds:.0f} | {r.said} |" for r in results]
    for result in results:
        if result.details:
            lines += ["", f"## {result.part}", "", "```", *result.details, "```"]
    return "\n".join(lines) + "\n"


def keep_last_report(out: Path) -> None:
    """Rename the report of the last session, which may be of a machine that is gone, to its date."""
    last = out / "report.md"
    if last.exists():
        date = time.strftime("%Y-%m-%d-%H%M%S", time.localtime(last.stat().st_mtime))
        last.rename(out / f"report-{date}.md")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "make gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "gpu", help="logs, and report.md"
    )
    parser.add_argument(
        "--nccl", default="", metavar="FILE", help="an NCCL to load before PyTorch's"
    )
    parser.add_argument("--parts", default="", help="only these, separated by commas")
    parser.add_argument(
        "--notebooks", default="", metavar="NUMBERS", help="only these notebooks, as in 00,07"
    )
    parser.add_argument(
        "--limit", type=float, default=LIMIT, help="seconds for all parts together; 0: no limit"
    )
    parser.add_argument(
        "--lean", action="store_true", help="notebooks without checks that a second one repeats"
    )
    parser.add_argument("--rehearse", action="store_true", help="the same order on the CPU")
    options = parser.parse_args(arguments)
    # Started in the background of a shell, programs ignore SIGINT, and so would all that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = [name.strip() for name in options.parts.split(",") if name.strip()]
    if unknown := set(chosen) - {part.name for part in PARTS}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    keep_last_report(out)
    began = time.monotonic()
    notebooks = tuple(name.strip() for name in options.notebooks.split(",") if name.strip())
    library = options.nccl and str(Path(options.nccl).resolve())
    if options.rehearse:
        session, said = Session(out, 0, notebooks=notebooks or REHEARSED, rehearsal=True), REHEARSAL
    else:
        session, said = look_round(library, out, notebooks)
    session = replace(session, lean=options.lean)
    with contextlib.ExitStack() as stack:
        if session.gpus and session.shares:
            environment = session.environment()
            server = stack.enter_context(gpu_mps.server(out / "mps", environment))
            chosen_variables, words = gpu_mps.faster(environment, server)
            session, said = (
                replace(session, mps=tuple(chosen_variables.items())),
                f"{said}; {words}",
            )
        print(said, flush=True)
        results = run_parts(session, said, chosen, options.limit, began)
    print(f"The report is in {out / 'report.md'}")
    return int(any(result.status in ("failed", "timed out") for result in results))


def run_parts(
    session: Session, said: str, chosen: Sequence[str], limit: float, began: float
) -> list[Result]:
    """The chosen parts, or all, in their order, until the time is over."""
    results: list[Result] = []
    for part in PARTS:
        if chosen and part.name not in chosen:
            continue
        rest = limit - (time.monotonic() - began) - LAST_CHANCE if limit else part.limit
        why = left_out(part, session) or ("no time was left" if rest < 5 else "")
        result = (
            Result(part.name, "left out", 0.0, why)
            if why
            else part.run(session, min(part.limit, rest))
        )
        print(result.as_line(), flush=True)
        results.append(result)
        write_down(session.out, said, results)
    return results


if __name__ == "__main__":
    sys.exit(main())
