"""From an exercise's name and the student's bytes to a verdict. The bytes are never unpickled here.

Everything that decides is made in this process: inputs, expectations, lines, weights. The ranks get one
case's inputs and answer with JSON and raw tensors of agreed names, dtypes and shapes; anything else is
refused. So this module can run in another process than the student's without a change to any check.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from course_lib.checks.judge import faults, remarks, replies, traffic, witness
from course_lib.checks.judge.case import Case, Draw, Exercise, Finding, Observed, wrong
from course_lib.checks.judge.conclude import BROKEN, NOT_BEGUN, Judged, conclude, is_value
from course_lib.checks.judge.find import find
from course_lib.checks.judge.guarded import UNREADABLE, guarded
from course_lib.checks.judge.printed import printed
from course_lib.checks.rank import refusing
from course_lib.checks.report import WAITS, WAITS_FOR_OTHERS, Report, refusal
from course_lib.checks.wire import Task, plain_message
from course_lib.ledger.ledger import Ledger
from course_lib.runtime import pools, wire
from course_lib.runtime.backend import ALONE, choose
from course_lib.runtime.moments import START
from course_lib.runtime.run import MOST_REPLY, Outcome, run_ranks
from course_lib.runtime.sandbox.spec import Sandbox

ENTRY = "course_lib.checks.rank.harness:run_recipe"
TRIES = 2  # of a case whose record and network disagree
STRIKES = 2  # deadlocks or time-outs after which the rest is "the same cause"
HEADER = 4 << 20  # bytes of an answer beside its tensors
OVER_TIME = wrong("the time for this check was over before this case.", cause="over time")


@dataclass
class Session:
    """One check: its settings, which are the same for all cases, and its failures so far.

    failures: the traceback of each judge that failed, see `course_lib.checks.judge.guarded`.
    """

    exercise: Exercise
    payload: Sequence[wire.Buffer]
    hidden: bool
    sandbox: Sandbox | None = None
    deadline: float = math.inf
    following: Case | None = None
    strikes: int = 0
    last: Finding | None = None
    stub: Finding | None = None
    limit: str = ""
    by_chance: bool = False
    remarked: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)


def judge(
    name: str,
    payload: Sequence[wire.Buffer],
    seed: int,
    cases: str = "visible",
    *,
    sandbox: Sandbox | None = None,
    seconds: float = math.inf,
) -> dict:
    """Judge the objects pickled in `payload` (see `course_lib.runtime.wire.dumps`) as exercise `name`.

    cases: "visible" or "hidden" (the visible ones on other values, and more). sandbox: where the ranks
    run, and whose network counts what they send. seconds: after which no more cases are run. Returns the
    data of a `Report`, JSON-able. UnknownExercise when there is no such exercise.
    """
    exercise = find(name)
    hidden = cases == "hidden"
    standing = sandbox and replace(sandbox, stands=True)
    session = Session(exercise, payload, hidden, standing, time.monotonic() + seconds)
    judged: list[Judged] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning on stderr would cost the student the cell
            cases_of_it = list(exercise.cases(Draw(seed, hidden)))
            for case, following in zip_longest(cases_of_it, cases_of_it[1:]):
                session.following = following
                judged += judge_case(session, case, first=not judged)
                if session.stub is not None:
                    return not_written(exercise, session.stub, name, cases).to_json()
    finally:
        pools.end_kept(ALONE)  # its sandbox holds what this exercise wrote there
        pools.end_standing()
    report = conclude(name, exercise, judged, seed, cases)
    report.limit, report.by_chance, report.failures = session.limit, session.by_chance, session.failures
    return report.to_json()


def not_written(own: Exercise, stub: Finding, name: str, cases: str) -> Report:
    return refusal(name, *stub.sentences, possible=own.points, title=stub.title, cases=cases, extra=own.extra)


def judge_case(session: Session, case: Case, first: bool) -> list[Judged]:
    if session.strikes >= STRIKES and session.last is not None:
        return unjudged(case, session.last, NOT_BEGUN)
    if time.monotonic() >= session.deadline:
        session.by_chance = True
        return unjudged(case, OVER_TIME)
    outcome = agreed(session, case)
    return guarded(session.failures, unjudged(case, UNREADABLE), judge_outcome, session, case, outcome, first)


def judge_outcome(session: Session, case: Case, outcome: Outcome, first: bool) -> list[Judged]:
    shown = [] if session.hidden else printed(outcome)
    stop = whole_case(session, case, outcome, first)
    if stop is not None:
        session.last = stop
        if stop.cause == witness.TAMPERED:
            session.strikes = STRIKES  # no other case can earn anything now, see `conclude`
        return unjudged(case, stop, shown=shown)
    observed = replies.read(session.exercise, case, outcome)
    if isinstance(observed, Finding):
        return unjudged(case, observed, shown=shown)
    judged = judge_lines(session, case, observed, shown)
    if outcome.backend == "gloo" and all(row.finding.ok for row in judged):
        judged += guarded(session.failures, [], remarks.on_nccl, observed, session.remarked)
    return judged


def unjudged(case: Case, finding: Finding, why: str = BROKEN, shown: Sequence[str] = ()) -> list[Judged]:
    """The lines of a run that was not looked at; `shown` stands below the first."""
    output = [list(shown), *([] for _ in case.lines[1:])]
    return [
        Judged(case, line, finding, texts, unjudged=why)
        for line, texts in zip(case.lines, output, strict=False)
    ]


def agreed(session: Session, case: Case) -> Outcome:
    """The case's run; once more if its network contradicts its record, which must not happen by chance.

    TCP may send a packet again by itself on a busy machine. The case also runs once more if memory is
    measured and a rank has imported a large part of PyTorch, which is not a solution's memory: the second
    time that is there from the start. Only the last run is judged.
    """
    outcome = run(session, case)
    for _ in range(TRIES - 1):
        more = outcome.imported if case.moments else ()
        if not more and contradicted(case, outcome) is None:
            break
        outcome = run(session, case, more)
    return outcome


def run(session: Session, case: Case, imports: Sequence[str] = ()) -> Outcome:
    """Run one case; the ranks of the next one are forked meanwhile."""
    headers, buffers = [], []
    among = ALONE if case.alone else "gloo" if case.on_cpu else backend(case.world_size)
    for rank, side in enumerate(case.sides):
        meta, raw = wire.pack_tensors(side.inputs)
        task = Task(
            recipe=case.recipe,
            payload=len(session.payload),
            tensors=meta,
            groups=case.groups,
            references=list(session.exercise.references),
            refused=session.exercise.refused,
            filtered=among != "nccl",  # NCCL needs these system calls
            instructions=instructions_of(case, rank),
        )
        headers.append(vars(task))
        buffers.append([*session.payload, *raw])
    following, left = session.following, max(1.0, session.deadline - time.monotonic())
    return run_ranks(
        ENTRY,
        headers,
        buffers,
        world_size=case.world_size,
        moments=(START, *case.moments) if case.moments else (),
        room=case.room - sum(map(len, session.payload)),  # which is there at the start, too
        enough=[case.enough(rank) for rank in range(case.world_size)],
        timeout=min(case.timeout, left),
        longest=left,
        backend=among,
        spare=following is None and session.sandbox is None,
        ahead=following.world_size if following and not following.alone else None,
        sandbox=session.sandbox,
        imports=(
            *(entry.partition(":")[0] for entry in (ENTRY, case.recipe)),
            *case.imports,
            *imports,
            *refusing.modules(session.exercise.refused),
        ),
        reply_limit=MOST_REPLY if session.sandbox is None else expected_reply(case),
    )


def instructions_of(case: Case, rank: int) -> Any:
    """A rank's instructions as they are sent, with the bytes that are enough."""
    instructions = case.sides[rank].instructions
    return instructions and plain_message(replace(instructions, enough=case.enough(rank)))


def expected_reply(case: Case) -> int:
    """Bytes that a rank's answer can have: the agreed tensors, and a header."""
    largest = max(
        sum(spec.nbytes for spec in side.outputs.values()) if side.outputs else 0 for side in case.sides
    )
    return largest + HEADER


def backend(world_size: int) -> str:
    """Checks run on the CPU, in fresh ranks for each case, unless COURSE_BACKEND asks for GPUs."""
    return choose(world_size) if os.environ.get("COURSE_BACKEND") == "nccl" else "gloo"


def whole_case(session: Session, case: Case, outcome: Outcome, first: bool) -> Finding | None:
    """A finding that holds for every line: something forbidden was called, or the run broke."""
    failure = outcome.failure
    if failure is not None and first and faults.not_written(failure):
        session.stub = faults.stub(session.exercise, failure)
        return session.stub
    if failure is not None:
        session.strikes += failure.kind in faults.STOPS
        session.limit = session.limit or outcome.limit or faults.used_up(failure)
        session.by_chance |= faults.by_chance(failure)
    called = traffic.used(operations_of(outcome.ledger), case.forbidden)
    if called is not None:
        return called
    if failure is None:
        return contradicted(case, outcome)
    return faults.finding(session.exercise, case, failure, session.hidden)


def contradicted(case: Case, outcome: Outcome) -> Finding | None:
    """The network's evidence against the record of a run that ended well; None if there is none."""
    if outcome.failure is not None or outcome.backend != "gloo":
        return None  # between GPUs NCCL has ways beside the network
    return witness.contradicted(outcome.ledger, outcome.wire_bytes, case.unrecorded)


def operations_of(ledger: Ledger) -> list[list]:
    return [ledger.operations(rank) for rank in range(ledger.world_size)]


def judge_lines(session: Session, case: Case, observed: Observed, shown: list[str]) -> list[Judged]:
    judged: list[Judged] = []
    for line in sorted(case.lines, key=lambda line: line.aspect in ("communication", "memory")):
        values_right = [row.finding.ok for row in judged if is_value(row)]
        point = guarded(session.failures, 0.0, line.shows, observed) if line.shows else None
        if line.aspect in ("communication", "memory") and not all(values_right):
            note = WAITS_FOR_OTHERS if any(values_right) else WAITS
            judged.append(Judged(case, line, wrong(cause="values"), note=note, shown=point))
            continue
        finding = guarded(session.failures, UNREADABLE, line.judge, observed)
        if line.aspect == "value":
            finding = traffic.raced(finding, observed)
        judged.append(Judged(case, line, finding, [] if finding.ok else shown, shown=point))
        shown = shown if finding.ok else []
    elsewhere = traffic.too_little(observed.operations, case.needed)
    if elsewhere is not None and all(row.finding.ok for row in judged if is_value(row)):
        return unjudged(case, elsewhere)
    return judged
