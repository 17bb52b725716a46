"""From the state of the ranks to a message for the student, with tracebacks cut to the student's lines."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass, field, replace

from course_lib.ledger import on_nccl, rows
from course_lib.ledger.on_nccl import Remark
from course_lib.ledger.wording import listed
from course_lib.runtime.places import where
from course_lib.runtime.waiting import Snapshot, waits_for
from course_lib.runtime.watch import Watch

# texts of PyTorch that mean something else here, and what they mean
REMEDIES = (
    (
        "initialize the default process group twice",
        "launch() already makes the process group and takes it down, so leave out init_process_group and "
        "destroy_process_group.",
    ),
)
FIRST_CALLS, LAST_CALLS = 10, 5  # of a traceback, if there are more
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OPEN_WORK = "returned without waiting for"  # see `rank.refuse_open_work`
# errors of gloo and NCCL on a rank whose peer was lost: a consequence, never the cause
DISAGREE = ("do not agree on their collective", "the two ends of ")
CONSEQUENCE = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|remote process exited|socket|ncclRemoteError|"
    r"unhandled system error|Socket Timeout|pair\.cc"
)
USED_UP = {  # see `Children.limit`
    "memory": "its processes held too much memory",
    "processes": "it kept starting processes after it had reached their limit",
}
ADVICE = {
    "circle": "Each of these ranks waits before it does what the next rank needs. {}, or post the send and "
    "the receive together with dist.batch_isend_irecv.",
    "tags": "A message is received only with the tag it was sent with, but these two ends differ.",
    "finished": "Once a rank's function has returned, the rank sends and receives nothing more. Do all "
    "ranks run the same number of operations, even in the last round?",
    "skipped": "All ranks of a group must call each of its collectives, in the same order. Look for an "
    "`if rank == ...` around the call, or a `return` or `break` before it.",
}


@dataclass
class RankReport:
    """The state of one rank when it ended."""

    state: str  # "returned", "raised", "died", "waiting", "running"
    operation: str = ""  # "recv(src=2) float32[4]"
    line: str = ""  # "Cell In[5], line 3: dist.recv(x, src=2)"
    waits_for: list[int] = field(default_factory=list)
    seconds: float = 0.0
    error_type: str = ""
    error_text: str = ""
    traceback: str = ""
    unwritten: str = ""  # the function whose stub was met
    stub: str = ""  # the same, if another function of the user's called it
    how: str = ""  # of a death: "killed by SIGKILL"


@dataclass
class Failure:
    """Why a task did not end well."""

    # "deadlock", "error", "unwritten", "died", "timeout", "unfinished", "damaged" or "interrupted"
    kind: str
    headline: str
    message: str
    ranks: dict[int, RankReport]
    held: Remark | None = (
        None  # of a deadlock: the order in which the ranks began the operations that wait
    )
    late: str = ""  # of a timeout: the sentence on the time that has passed


def diagnose(watch: Watch, interrupted: bool = False) -> Failure | None:
    """None if every rank returned; else the failure, causes first."""
    raised = watch.raised()
    if not watch.running and not raised and not watch.exits and not interrupted:
        return None
    reports = report_ranks(watch)
    world_size = watch.pool.world_size
    causes = [r for r in sorted(raised) if not is_consequence(reports[r])]
    if watch.exits:
        causes = [r for r in causes if r not in watch.exits]
    if interrupted:
        return failure("interrupted", "interrupted, so the ranks were ended", "", reports)
    if causes:
        return error_failure(watch, causes, reports, world_size)
    if watch.exits:
        head = deaths({rank: reports[rank].how for rank in sorted(watch.exits)})
        return failure("died", head, "", reports)
    if watch.verdict == "deadlock":
        return deadlock_failure(watch, reports)
    if raised:
        return error_failure(watch, sorted(raised), reports, world_size)
    busy = [r for r in reports if reports[r].state == "running"]
    late = head = f"not finished after {watch.late}, so the ranks were ended."
    if busy and len(busy) < len([r for r in reports.values() if r.state != "returned"]):
        head += (
            f" Rank{'s' * (len(busy) > 1)} {listed(busy)} still computed, while the others waited."
        )
    error = failure(
        "timeout", head, "If it only needs more time, use launch(..., timeout=seconds).", reports
    )
    return replace(error, late=late)


def damaged_failure(watch: Watch, ranks: list[int]) -> Failure:
    """Ranks that overwrote the record of their own operations."""
    head = (
        f"{ranks_text(ranks)} overwrote the memory in which {'its' if len(ranks) == 1 else 'their'} "
        "operations are recorded."
    )
    advice = "Code in a rank must not write to file descriptors or memory that it did not make."
    return failure("damaged", head, advice, report_ranks(watch))


def failure(
    kind: str, headline: str, advice: str, reports: dict[int, RankReport], more: str = ""
) -> Failure:
    lines = [headline, *describe(reports)]
    if advice:
        lines.append(advice)
    if more:
        lines.append(more)
    return Failure(kind, headline, "\n".join(lines), reports)


def error_failure(
    watch: Watch, causes: list[int], reports: dict[int, RankReport], world_size: int
) -> Failure:
    """Ranks that raised, each with its own traceback; identical tracebacks are merged."""
    ours = all(watch.replies[r][0]["error"].get("ours") for r in causes)
    # gloo can fail on one rank before another has seen that they disagree, which is the explanation.
    disagree = [r for r in causes if any(text in reports[r].error_text for text in DISAGREE)]
    first = reports[[*disagree, *causes][0]]
    if first.unwritten:
        said = f"`{first.unwritten}` is not written yet."
        return Failure("unwritten", said, said, reports)
    open_work = [r for r in causes if OPEN_WORK in reports[r].error_text]
    unfinished = OPEN_WORK in first.error_text and ours
    alike = [r for r in causes if reports[r].error_type == first.error_type]
    if unfinished:  # a rank's text names only the messages of this rank
        alike = [r for r in open_work if reports[r].error_text == first.error_text]
    who = "all ranks" if len(alike) == world_size else ranks_text(alike)
    others = [r for r in open_work if unfinished and r not in alike]
    if unfinished:
        headline = f"{who}: {first.error_text}"
    elif ours or disagree:
        headline = first.error_text
    else:
        headline = f"{who} raised {first.error_type}: {first.error_text}".removesuffix(": ")
    merged: dict[str, list[int]] = {}
    for r in causes:
        text = reports[r].traceback
        merged.setdefault(text.rpartition("\n")[0] if ours else text, []).append(r)
    blocks = [
        f"--- rank{'s' * (len(ranks) > 1)} {listed(ranks)} ---\n{text.rstrip()}"
        for text, ranks in merged.items()
        if text
    ]
    rest = {r: report for r, report in reports.items() if r not in causes}
    remedy = next((says for text, says in REMEDIES if text in first.error_text), None)
    lines = [headline, *([remedy] if remedy else []), *describe(rest), *blocks]
    if others:
        lines.insert(1, f"{ranks_text(others).capitalize()} did not wait for every handle either.")
    return Failure("unfinished" if unfinished else "error", headline, "\n".join(lines), reports)


def deadlock_failure(watch: Watch, reports: dict[int, RankReport]) -> Failure:
    waiting = watch.waiting
    circle = find_circle(waiting)
    returned = {r for r in reports if reports[r].state == "returned"}
    collective = any(
        "send" not in reports[r].operation and "recv" not in reports[r].operation for r in waiting
    )
    if circle:
        arrows = " -> ".join(f"rank {r}" for r in [*circle, circle[0]])
        head = f"deadlock: {arrows}, each waiting for the next."
        operations = [reports[r].operation for r in circle]
        advice = ADVICE["skipped"] if collective else circle_advice(operations)
        if len(circle) == 2 and all(" tag=" in operation for operation in operations):
            advice = ADVICE["tags"]
    else:
        gone = sorted(returned & {m for missing in waiting.values() for m in missing})
        wait = "wait" if len(waiting) > 1 else "waits"
        have = "have" if len(gone) > 1 else "has"
        head = f"deadlock: {ranks_text(list(waiting))} {wait} for {ranks_text(gone)}, which {have} finished."
        advice = ADVICE["skipped"] if collective else ADVICE["finished"]
    snap = Snapshot.of(watch.pool)
    order = snap.order(taken_in=watch.taken_in)
    held = order.circle(in_lanes=False) if snap.in_order else []
    if not held:
        return failure("deadlock", head, advice, reports)
    remark = on_nccl.stopped(held)
    error = failure("deadlock", head, f"{remark.said} {remark.advice}", reports)
    return replace(error, held=remark)


def circle_advice(operations: list[str]) -> str:
    """The remedy for a circle whose ranks wait in `operations`."""
    if all("recv" in operation for operation in operations):
        return ADVICE["circle"].format("Let one of them send first")
    if all("send" in operation for operation in operations):
        return ADVICE["circle"].format("Let one of them receive first")
    return ADVICE["circle"].format("Change the order in one of them")


def find_circle(waiting: dict[int, set[int]]) -> list[int]:
    """Ranks r0 -> r1 -> ... -> r0, each waiting for the next; [] if there are none."""
    for start in waiting:
        path, rank = [], start
        while rank in waiting and rank not in path:
            path.append(rank)
            rank = min((m for m in waiting[rank] if m in waiting), default=-1)
        if rank in path:
            return path[path.index(rank) :]
    return []


def report_ranks(watch: Watch) -> dict[int, RankReport]:
    snap, now = Snapshot.of(watch.pool), time.monotonic()
    missing = waits_for(snap) | watch.waiting
    reports = {}
    for rank in range(watch.pool.world_size):
        if rank in watch.exits:
            reports[rank] = report_death(watch, rank, snap)
        elif rank in watch.replies:
            reply = watch.replies[rank][0]
            reports[rank] = RankReport("returned") if reply["ok"] else report_error(reply["error"])
        elif (row := snap.blocked_in(rank)) is not None:
            line, since = snap.blocked_at(rank)
            reports[rank] = RankReport(
                "waiting", operation_text(snap, rank, row),
                line_text(snap.texts[rank].get(line, "")) or stack_line(watch, rank),
                sorted(missing.get(rank, ())), now - since,
            )  # fmt: skip
        elif snap.states[rank].state == rows.MEETING:
            reports[rank] = RankReport("returned")
        else:
            reports[rank] = RankReport(
                "running", line=stack_line(watch, rank), seconds=now - snap.states[rank].since
            )
    return reports


def report_death(watch: Watch, rank: int, snap: Snapshot) -> RankReport:
    code = watch.exits[rank]
    how = (
        f"it called os._exit({code}), or a library did"
        if code >= 0
        else f"killed by {signal_name(-code)}"
    )
    if watch.pool.children.limit:
        how = f"ended by the sandbox: {USED_UP[watch.pool.children.limit]}"
    elif code == -signal.SIGKILL:
        how += " (usually by the system, which is out of memory, or from outside)"
    if code in (-signal.SIGSEGV, -signal.SIGABRT):
        how += " (C code crashed, and its own words are in the ranks' output)"
    row = snap.blocked_in(rank)
    log = snap.logs[rank]
    last = row or (log[-1] if log else None)
    report = RankReport("died", how=how)
    if last is None:
        report.operation = "before its first communication"
    else:
        report.operation = ("in " if row else "after ") + operation_text(snap, rank, last)
        report.line = line_text(snap.texts[rank].get(last.line, ""))
    return report


def deaths(hows: dict[int, str]) -> str:
    """Which ranks died and how, with a sentence for each cause that names the ranks it ended."""
    sentences = []
    for how in dict.fromkeys(hows.values()):
        ranks = [rank for rank in hows if hows[rank] == how]
        if len(ranks) > 1:
            how = how.replace("it called", "each called")
        sentences.append(f"rank{'s' * (len(ranks) > 1)} {listed(ranks)} died: {how}.")
    return " ".join(sentences)


def signal_name(number: int) -> str:
    """ "SIGKILL"; real-time signals have no name in `signal.Signals`."""
    known = {sent.value: sent.name for sent in signal.Signals}
    return known.get(number, f"signal {number}")


def report_error(error: dict) -> RankReport:
    chain = error["chain"]
    first = chain[0]
    lines = []
    for link in reversed(chain):
        lines += without_the_middle([frame_text(*frame) for frame in users_frames(link["frames"])])
        lines.append(f"{link['type']}: {name_lines(link['text'])}".removesuffix(": "))
    frames = users_frames(first["frames"])
    names = [name for _, _, name in frames]
    unwritten = stub_met(first) if first["frames"] and first["frames"][-1] in frames else ""
    return RankReport(
        "raised", error_type=first["type"], error_text=name_lines(first["text"]),
        traceback="\n".join(lines), line=line_text("|".join(map(str, frames[-1][:2]))) if frames else "",
        unwritten=unwritten, stub=names[-1] if unwritten and len(set(names)) > 1 else "",
    )  # fmt: skip


def without_the_middle(calls: list[str]) -> list[str]:
    """The first and the last calls: a function that calls itself without end has a thousand."""
    if len(calls) <= FIRST_CALLS + LAST_CALLS + 1:
        return calls
    between = f"    ... {len(calls) - FIRST_CALLS - LAST_CALLS:,} more calls ..."
    return [*calls[:FIRST_CALLS], between, *calls[-LAST_CALLS:]]


def stub_met(error: dict) -> str:
    """The function that raised, if its `raise NotImplementedError()` has no text, as in a stub; else ""."""
    bare = error["type"] == "NotImplementedError" and not error["text"]
    name = error["within"]
    return name if bare and name.replace(".", "_").isidentifier() else ""


def name_lines(text: str) -> str:
    """Places a rank could only write as {{file|line}} become cells and lines."""
    return re.sub(r"\{\{([^{}]*\|\d+)\}\}", lambda m: f"at {line_text(m[1])}", text)


def users_frames(frames: list) -> list:
    """Without torch and this library, unless nothing else is left."""
    own = [
        f
        for f in frames
        if "/site-packages/" not in f[0] and not f[0].startswith((PACKAGE, "<frozen"))
    ]
    return [f for f in own if "/lib/python3" not in f[0]] or own or frames[-1:]


def is_consequence(report: RankReport) -> bool:
    kinds = ("RuntimeError", "DistBackendError", "DistNetworkError")
    return report.error_type in kinds and bool(CONSEQUENCE.search(report.error_text))


def operation_text(snap: Snapshot, rank: int, row: rows.Row) -> str:
    dtype, _, shape = snap.texts[rank].get(row.tensor, "|").partition("|")
    tensor = f" {dtype}[{shape.replace(',', ', ')}]" if dtype else ""
    op = rows.OPS[row.op]
    if op in ("send", "recv"):
        peer = f"{'dst' if op == 'send' else 'src'}={row.peer if row.peer >= 0 else 'any'}"
        peer += f", tag={row.tag}" if row.tag else ""
        return f"{op}({peer}){tensor}"
    _, members = snap.group(rank, row)
    of = "" if len(members) == len(snap.states) else f" of group {list(members)}"
    return f"{op}{tensor} (its collective number {row.turn}{of})"


def ranks_text(ranks: list[int]) -> str:
    """[2] -> "rank 2", [0, 1] -> "ranks 0 and 1"."""
    return f"rank{'s' * (len(ranks) > 1)} {listed(ranks)}"


def describe(reports: dict[int, RankReport]) -> list[str]:
    return [f"  rank {rank}: {sentence(report)}" for rank, report in sorted(reports.items())]


def sentence(report: RankReport) -> str:
    at = f"\n      at {report.line}" if report.line else ""
    if report.state == "returned":
        return "has finished"
    if report.state == "raised":
        if is_consequence(report):
            return "lost its connection to another rank (a consequence)"
        text = f": {report.error_text}" if report.error_text else ""
        return f"raised {report.error_type}{text}{at}"
    if report.state == "died":
        return f"died {report.operation}: {report.how}{at}"
    if report.state == "running":
        return f"computes, in no communication{at}"
    waits = f", waits for {ranks_text(report.waits_for)}" if report.waits_for else ""
    return f"in {report.operation} since {report.seconds:.1f} s{waits}{at}"


def stack_line(watch: Watch, rank: int) -> str:
    """The line a rank's Python code is at, from the stack it dumps on a signal."""
    dump = watch.pool.stack(rank)
    blocks = [b for b in re.split(r"(?m)^(?=(?:Current thread|Thread) )", dump) if PACKAGE in b]
    frames = re.findall(r'File "([^"]+)", line (\d+) in (\S*)', blocks[-1] if blocks else dump)
    # the own methods of a dataclass and of a named tuple have no source to show
    shown = [
        frame
        for frame in frames
        if frame[0] != "<string>" or not frame[2].startswith(("__", "<lambda>"))
    ]
    own = users_frames([[file, int(line), name] for file, line, name in shown][::-1])
    return line_text(f"{own[-1][0]}|{own[-1][1]}") if own else ""


def line_text(place: str) -> str:
    line, source = where(place)
    return f"{line}: {source}" if source else line


def frame_text(file: str, line: int, function: str) -> str:
    place, source = where(f"{file}|{line}")
    return f"{place}, in {function}" + (f"\n    {source}" if source else "")
