"""A run that did not end well, in the words of the table: the event, its place, and its usual cause."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from course_lib.checks import words
from course_lib.checks.judge.case import Case, Exercise, Finding, usual, wrong
from course_lib.checks.judge.unwritten import calls_a_stub
from course_lib.checks.sentence import Sentence, at, error_kind
from course_lib.ledger import rows
from course_lib.runtime.diagnosis import Failure, RankReport, deaths

SHOWN = 4  # ranks whose state the report tells
OPERATION = re.compile(rf"\b({'|'.join(sorted(rows.OPS, key=len, reverse=True))})\b")
EXIT = re.compile(r"os\._exit\(\d+\)")
NOT_WRITTEN, CALLS_A_STUB = "not written yet", "calls a function that is not written yet"  # titles
STOPS = ("deadlock", "timeout")  # kinds that cost seconds: two of them end a check

# Places of errors that did not come out of a line of the student's: our recipes, autograd's engine.
RECIPES = (Path(words.__file__).parent / "rank").rglob("*.py")
NOT_THEIRS = ("graph.py, ", *(f"{file.name}, " for file in RECIPES))
TO_ITSELF = re.compile(
    r"(?i)invalid (source|destination) rank|same as the rank of the current|Pair is not connected|"
    r"(send to|receive from) itself"
)
NOT_RUN = (
    "Run the cells above, including the one that defines the name. If you have done so, check that you "
    "spelled the name as it is spelled there."
)
NOT_HERE = (
    "In a check, a rank must not start processes, or open sockets, pipes or shared memory. It keeps its "
    "tensors to itself, and sends them only through the process group."
)
NO_NEW_GROUP = (
    "A new process group opens sockets, which a rank must not do in a check. Use the group of all ranks, or "
    "a group you are given."
)
NO_GROUP = re.compile(r"Group None is not registered")
WORLD = (
    "dist.get_group_rank and dist.get_global_rank do not take None for the group of all ranks, so give them "
    "`group or dist.group.WORLD`."
)
COPY = "A rank cannot send to itself, so copy what it keeps."
OUTSIDE = re.compile(r"not part of group|is not in group|not in the group")
WITHIN = re.compile(r"Group rank \d+ is not part of group")
BELOW = re.compile(r"Group rank -\d+ is not part of group")
MODULO = (
    "A rank's number within a group is one of 0 .. size - 1, so count modulo the number of ranks, as in "
    "(rank - 1) % n."
)
WORLD_RANKS = (
    "In torch.distributed, `src` and `dst` are ranks of the whole world, even within a group. Translate "
    "them with dist.get_global_rank(group, r), or pass group_src= and group_dst= (group_peer= for a "
    "dist.P2POp)."
)
GROUP_RANKS = (
    "A rank's number within a group is one of 0 .. size - 1. Take it from dist.get_rank(group) and the size "
    "from dist.get_world_size(group), which count the group's ranks, and count a neighbour modulo the size."
)
STAMPED = re.compile(r"\[rank\d+\]:\[F\d{4} [\d:.]+ [\w.]+:\d+\] ")  # PyTorch's stamp on a fatal error
TWO_KINDS = re.compile(r"different dtypes|invalid tensor type|Tensors\[i\]\.dtype\(\) ==")
TWO_DTYPES = (
    "All tensors of a collective have one dtype. Create the tensor that receives with the dtype of the "
    "tensor that is sent, as torch.empty_like(x) does, or cast the tensor that is sent, by x.to(dtype)."
)
RECORDED = (  # the recorder's own sentences in general words, for hidden cases, which do not show them
    (
        r"not contiguous",
        "Messages need contiguous memory, so send x.contiguous(), receive into a new tensor, then copy back "
        "with copy_().",
    ),
    (
        r"two ends of a message differ",
        "A message and the buffer it is received into must have the same size and dtype.",
    ),
    (
        r"number in this group is one of",
        "A peer must be a rank of the group, so count modulo the number of ranks, as in (rank - 1) % n.",
    ),
    (r"was changed before wait", "A tensor that is being sent must not change before its wait()."),
    (r"returned without waiting for", "Call wait() on every handle before the function returns."),
    (r"before Module\.__init__\(\) call", "Call super().__init__() first in __init__."),
    (
        r"collective number",
        "All ranks must call the same collectives, in the same order, with the same sizes.",
    ),
)


def not_written(failure: Failure) -> bool:
    """Some rank met a stub."""
    return any(report.error_type == "NotImplementedError" for report in failure.ranks.values())


def stub(exercise: Exercise, failure: Failure) -> Finding:
    """The stub that was met, and whether it is the exercise's own, be it behind a given function."""
    report = next(r for r in failure.ranks.values() if r.error_type == "NotImplementedError")
    own = (*exercise.objects, exercise.name.rpartition("/")[2])
    if report.stub and report.stub not in own:
        who = words.listing((f"`{name}`" for name in exercise.objects), "or")
        return wrong(calls_a_stub(who, report.stub), title=CALLS_A_STUB)
    return wrong(at(report.line, "NotImplementedError", glue=" at "), title=NOT_WRITTEN)


def finding(exercise: Exercise, case: Case, failure: Failure, hidden: bool) -> Finding:
    """The finding for every line of the case. `hidden`: exceptions by type and line only."""
    text = failure.message
    hint = group_hint(case, failure) or peer_hint(case, text)
    hint = hint or refused_hint(failure)
    hint = hint or usual(exercise.hint, case, failure.kind, text) or undefined_hint(failure)
    hint = hint or (TWO_DTYPES if TWO_KINDS.search(text) else "")
    if hidden and not hint:
        hint = next((said for pattern, said in RECORDED if re.search(pattern, text)), "")
    if failure.kind == "deadlock":
        advice = [hint or failure.message.splitlines()[-1]]
        if (held := failure.held) is not None:
            advice = [Sentence(held.said, held.general), held.advice]
        where = sorted({f"{r.operation.split('(')[0]}|{r.line}" for r in stuck(failure).values()})
        return wrong(failure.headline, *waiting(failure), *advice, cause=f"deadlock {where}")
    if failure.kind == "timeout":
        busy = {r.line for r in failure.ranks.values() if r.state == "running"}
        advice = hint or ("Does a loop there ever end?" if busy else "")
        return wrong(failure.late, *waiting(failure), advice, cause=f"timeout {sorted(busy)}")
    if failure.kind == "died":
        return wrong(ended(failure), *died(failure), hint, cause="died")
    refusal = next((said for said in exercise.refused.values() if said in text), "")
    return raised(failure, hint, hidden, refusal)


def used_up(failure: Failure) -> str:
    """The resource that had run out when a rank raised: "memory", "disk", "processes", "files", or ""."""
    for report in failure.ranks.values():
        kind, text = report.error_type, report.error_text
        if kind in ("MemoryError", "OutOfMemoryError") or "allocate memory" in text:
            return "memory"
        if kind == "OSError" and f"[Errno {errno.EMFILE}]" in text:
            return "files"
        if f"[Errno {errno.ENOSPC}]" in text or os.strerror(errno.ENOSPC) in text:
            return "disk"  # PyTorch and others raise errors of their own with the system's words
        if "start new thread" in text:
            return "processes"
    return ""


def by_chance(failure: Failure) -> bool:
    """Whether the clock ended the run, or a SIGKILL from outside."""
    killed = any("SIGKILL" in report.how for report in failure.ranks.values())
    return failure.kind == "timeout" or killed


def peer_hint(case: Case, text: str) -> str:
    """No group at all, a peer outside the group, or the rank itself: the last two come of the wrong count."""
    if NO_GROUP.search(text):
        return WORLD
    if BELOW.search(text):
        return MODULO
    if WITHIN.search(text):
        return GROUP_RANKS
    if OUTSIDE.search(text) or (case.groups and TO_ITSELF.search(text)):
        return WORLD_RANKS
    return COPY if TO_ITSELF.search(text) else ""


def unstamped(text: str) -> str:
    """An exception's text without PyTorch's stamp: the rank, the time, and the line of its C code."""
    return STAMPED.sub("", text)


def raised(failure: Failure, hint: str, hidden: bool, refusal: str = "") -> Finding:
    """refusal: our own sentence in the exception's text; hidden cases may show it, but not the text."""
    causes = {r: report for r, report in failure.ranks.items() if report.state == "raised"}
    first = next(iter(causes.values()), None)
    if first is None:
        return wrong(failure.headline, hint)
    head = re.sub(r"<[\w.]+ object at 0x[0-9a-f]+>", "given", unstamped(failure.headline))
    if hidden:
        who = words.ranks(list(causes))
        general = f"{who} raised {error_kind(first.error_type)}."
        head = refusal or Sentence(f"{who} raised {first.error_type}{missing_name(first)}.", general)
    ours = first.line.startswith(NOT_THEIRS)
    return wrong(head, at("" if ours else first.line), hint, cause=f"{first.error_type} {first.line}")


def undefined_hint(failure: Failure) -> str:
    """A name that no cell has made yet, or none ever does."""
    raised = [report for report in failure.ranks.values() if report.state == "raised"]
    return NOT_RUN if any(missing_name(report) for report in raised) else ""


def refused_hint(failure: Failure) -> str:
    """A system call that checks do without, see `course_lib.runtime.sandbox.calls`."""
    raised = [report for report in failure.ranks.values() if report.state == "raised"]
    refused = f"[Errno {errno.EPERM}]"
    if any("gloo" in r.error_text and os.strerror(errno.EPERM) in r.error_text for r in raised):
        return NO_NEW_GROUP
    return NOT_HERE if any(refused in report.error_text for report in raised) else ""


def missing_name(report: RankReport) -> str:
    """The undefined name, if the student's own line contains it, so that it tells nothing of the inputs."""
    match = re.match(r"name '(\w+)' is not defined", report.error_text)
    stands_there = match and re.search(rf"\b{match[1]}\b", report.line)
    return f": name '{match[1]}' is not defined" if match and stands_there else ""


def stuck(failure: Failure) -> dict[int, RankReport]:
    return {rank: r for rank, r in failure.ranks.items() if r.state in ("waiting", "running")}


def waiting(failure: Failure) -> list[str]:
    """The operation in which each rank is stuck, and its line; without the seconds, which vary."""
    some = dict(list(stuck(failure).items())[:SHOWN])
    lines = {report.line for report in some.values()}
    shared = lines.pop() if len(lines) == 1 else ""
    said = []
    for rank, report in some.items():
        what = f"rank {rank} computes"
        if report.state != "running":
            whom = f", waits for {words.ranks(report.waits_for)}" if report.waits_for else ""
            what = Sentence(
                f"rank {rank} is in {report.operation}{whom}", f"rank {rank} is in {operation(report)}{whom}"
            )
        said.append(at("" if shared else report.line, what))
    if (more := len(stuck(failure)) - SHOWN) > 0:
        said.append(f"and {words.counted(more, 'other rank')} likewise")
    return [*said, at(shared)] if shared else said


def operation(report: RankReport) -> str:
    """The operation by its name alone: its tag and its tensor's shape are the student's to choose."""
    match = OPERATION.search(report.operation)
    return match[0] if match else "an operation"


def ended(failure: Failure) -> Sentence:
    """Which ranks died and how; an exit code is the student's to choose."""
    dead = {rank: report for rank, report in failure.ranks.items() if report.state == "died"}
    hows = {rank: EXIT.sub("os._exit", report.how) for rank, report in dead.items()}
    return Sentence(failure.headline, deaths(hows))


def died(failure: Failure) -> list[Sentence]:
    """How far the ranks that died had come: "in recv(src=2)", "after send(dst=1)", "before ..."."""
    places: dict[tuple[str, str], list[int]] = {}
    for rank, report in failure.ranks.items():
        if report.state == "died" and report.operation:
            places.setdefault((report.operation, report.line), []).append(rank)
    said = []
    for (done, line), ranks in places.items():
        subject = f"{words.ranks(ranks)} {words.verb(ranks, 'was', 'were')}"
        when = done.partition(" ")[0]
        general = operation(failure.ranks[ranks[0]])
        if when == "before":
            general = f"{words.verb(ranks, 'its', 'their')} first communication"
            done = f"before {general}"
        said.append(at(line, Sentence(f"{subject} {done}", f"{subject} {when} {general}")))
    return said


def group_hint(case: Case, failure: Failure) -> str:
    """Members of a group that wait for a rank outside it."""
    if failure.kind != "deadlock" or not case.groups:
        return ""
    members = {rank for group in case.groups for rank in group}
    outside = {r for report in stuck(failure).values() for r in report.waits_for} - members
    if not outside:
        return ""
    who, group = words.ranks(sorted(outside)).capitalize(), ", ".join(map(str, case.groups[0]))
    return (
        f"{who} {words.verb(sorted(outside), 'is', 'are')} not in the group {{{group}}}, so count ranks "
        "within it (dist.get_rank(group), dist.get_world_size(group)), pass group= to every operation, and "
        "translate a neighbour with dist.get_global_rank(group, r)."
    )
