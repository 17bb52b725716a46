"""Lines about a schedule that was run: its order, its messages and its memory. Values: `running_values`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.checks import kit, words
from course_lib.checks.judge.training_runs.memory import megabytes
from course_lib.checks.notebooks.pipeline.recognising import recognised
from course_lib.checks.notebooks.pipeline.running_whole import ScheduleRun
from course_lib.checks.rank.notebooks.pipeline.running import END, ScheduleReply
from course_lib.ledger.operation import Operation
from course_lib.pipeline import KINDS

NOT_TOLD = "rank {} did not report its stage's actions."
FREE = (
    "After a microbatch's backward, neither its graph (retain_graph) nor its input nor its output is needed. "
    "Drop them from every list and dict (pop) when the schedule says B. Also detach an output you send or "
    "return (output.detach())."
)
ALL_FORWARDS = (
    "All forwards came first, so this is GPipe, whichever schedule was asked for. If one backward goes "
    "through a sum of losses, it does all microbatches at once."
)
ONE_BY_ONE = "Do the actions of `actions[rank]` in their order, whichever schedule it is."
NO_BARRIER = "In a barrier every rank waits for the slowest, but no message needs it. Wait only for handles."
STEP = 7  # activations: the memory of one forward or backward, with the messages meanwhile
PAGES = 2_000_000  # bytes of libraries and of the heap
COPIES = " Copies of inputs, of outputs and of gradients also count."


@dataclass(frozen=True)
class Done:
    """A pass through a stage: "F" or "B", of which microbatch (None: of no known one), bytes kept then."""

    kind: str
    microbatch: int | None
    kept: int

    def __str__(self) -> str:
        which = "something else" if self.microbatch is None else f"microbatch {self.microbatch}"
        return f"{KINDS[self.kind]} of {which}"


def members(observed: kit.Observed) -> list[int]:
    """The ranks that take part, in order: stage i is the i-th one's."""
    groups = observed.case.groups
    return list(groups[0]) if groups else list(range(observed.world_size))


def reply(run: ScheduleRun, observed: kit.Observed, stage: int) -> ScheduleReply:
    """The recipe's reply about the run, from the rank of this stage."""
    return observed.values[members(observed)[stage]][run.name]


def done(run: ScheduleRun, observed: kit.Observed, stage: int) -> list[Done] | None:
    """The passes through a stage as they came; None where they tell of a forward that there was not."""
    came = reply(run, observed, stage)
    which = [recognised(fingerprint, run.incoming(stage)) for fingerprint in came.inputs]
    if any(number >= len(which) for _, number, _ in came.events):
        return None
    return [Done(kind, which[number], kept) for kind, number, kept in came.events]


# ---- order


def order_line(run: ScheduleRun, title: str, weight: float = 1.0) -> kit.Line:
    """Every rank did the actions of its row, in their order, each once."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for stage, rank in enumerate(members(observed)):
            passes = done(run, observed, stage)
            if passes is None:
                return kit.wrong(NOT_TOLD.format(rank))
            did = [(passed.kind, passed.microbatch) for passed in passes]
            wanted = [(action.kind, action.microbatch) for action in run.actions[stage]]
            if did != wanted:
                return misordered(rank, passes, wanted)
        return kit.RIGHT

    return kit.Line(title, judge, weight)


def misordered(rank: int, passes: Sequence[Done], wanted: Sequence[tuple[str, int]]) -> kit.Finding:
    did = [(passed.kind, passed.microbatch) for passed in passes]
    first = next(
        (i for i, (a, b) in enumerate(zip(did, wanted, strict=False)) if a != b), min(len(did), len(wanted))
    )
    here = str(passes[first]) if first < len(passes) else "nothing more"
    there = str(Done(*wanted[first], kept=0)) if first < len(wanted) else "nothing more"
    says = why_misordered(did, wanted)
    return kit.wrong(
        kit.Sentence(
            f"as its action {first} rank {rank} did the {here}, but its list says the {there}.".replace(
                "the nothing", "nothing"
            ),
            f"rank {rank} did other actions than its list says.",
        ),
        says,
        cause=says,
        misses_point=True,
    )


def why_misordered(did: Sequence[tuple[str, int | None]], wanted: Sequence[tuple[str, int]]) -> str:
    """The usual cause of another order."""
    often = Counter(did)
    forwards = [action for action in did if action[0] == "F"]
    if not did:
        return "The stage was never called. Call stage.module(x) for its forward."
    if len(forwards) == len(did):
        return (
            "No gradient ever came through the stage. Call backward on its output, with the gradient that "
            "came back."
        )
    if any(count > 1 for (kind, _), count in often.items() if kind == "F"):
        return "A microbatch goes forward once, because its graph is kept for the backward, not made again."
    if any(count > 1 for (kind, _), count in often.items() if kind == "B"):
        return "A microbatch goes backward once, so retain_graph is not needed, and costs memory."
    all_of_it = sorted(map(str, did)) == sorted(map(str, wanted))
    if all_of_it and forwards == list(did[: len(forwards)]):
        return ALL_FORWARDS
    if any(microbatch is None for _, microbatch in did):
        return "The stage's input is not an output of the stage before."
    if set(did) < set(wanted):
        return "Some actions were left out."
    return ONE_BY_ONE


# ---- messages


def operations(run: ScheduleRun, observed: kit.Observed, stage: int) -> list[Operation]:
    """Those of a stage's rank in this run."""
    first, last = reply(run, observed, stage).begun
    return observed.operations[members(observed)[stage]][first:last]


def messages_line(run: ScheduleRun, title: str, weight: float = 1.0) -> kit.Line:
    """Each activation once to the next rank, each gradient once to the one before, and nothing else."""

    def judge(observed: kit.Observed) -> kit.Finding:
        ranks, total = members(observed), 0
        sizes = sorted(run.nbytes(k) for k in range(len(run.batch)))
        for stage, rank in enumerate(ranks):
            done = operations(run, observed, stage)
            if "barrier" in [
                operation.op for operation in done[1:]
            ]:  # at first NCCL may make its connections in it
                return kit.wrong(f"rank {rank} called dist.barrier among its messages.", NO_BARRIER)
            sent = [operation for operation in done if operation.op == "send"]
            total += len(sent)
            beside = {ranks[i] for i in (stage - 1, stage + 1) if 0 <= i < len(ranks)}
            for peer in sorted({message.peer for message in sent if message.peer is not None} | beside):
                to_peer = sorted(message.nbytes for message in sent if message.peer == peer)
                if to_peer != (sizes if peer in beside else []):
                    return too_many(rank, peer, to_peer, sizes if peer in beside else [])
        return kit.Finding(True, title=f"{title}: {words.number(total)} by all ranks together")

    return kit.Line(title, judge, weight, "communication")


def too_many(rank: int, peer: int, sizes: list[int], wanted: list[int]) -> kit.Finding:
    general = f"rank {rank} sent other messages to rank {peer} than it should"
    said = kit.Sentence(
        f"rank {rank} sent {words.counted(len(sizes), 'message')} of {words.number(sum(sizes))} bytes to "
        f"rank {peer}, but {words.counted(len(wanted), 'message')} of {words.number(sum(wanted))} bytes "
        f"{words.verb([0] * len(wanted), 'is', 'are')} enough.",
        f"{general}.",
    )
    if not wanted:
        why = "They are not neighbours. Send activations to the next stage, gradients to the previous one."
        return kit.wrong(said, why, cause=why, misses_point=True)
    why = "Send one activation, or one gradient of its size, for each microbatch."
    if len(sizes) > len(wanted):
        why = (
            "Send only activations and gradients, because the rest is already known. Take shapes from "
            "stage.shape(inputs), and targets and their number from the microbatches."
        )
    return kit.wrong(said, why, cause=why)


# ---- memory


def kept_line(run: ScheduleRun, title: str, weight: float = 1.0) -> kit.Line:
    """After no forward a rank keeps more than the microbatches that its row has under way, and one more."""

    def judge(observed: kit.Observed) -> kit.Finding:
        most = 0
        for stage, rank in enumerate(members(observed)):
            passes = done(run, observed, stage)
            if passes is None:
                return kit.wrong(NOT_TOLD.format(rank))
            under_way: set[int] = set()
            one_more = max(run.kept(k, stage) for k in range(len(run.batch)))
            for passed, planned in zip(passes, run.actions[stage], strict=False):
                if planned.kind == "B":
                    under_way.discard(planned.microbatch)
                    continue
                under_way.add(planned.microbatch)
                allowed = sum(run.kept(k, stage) for k in under_way)
                most = max(most, len(under_way))
                if passed.kept > allowed + one_more:
                    return kept_too_much(run, stage, rank, passed, len(under_way))
        held = words.counted(most, "microbatch")
        return kit.Finding(True, title=f"{title}: {held} at most, of {len(run.batch)}")

    in_order = order_line(run, title)

    def shows(observed: kit.Observed) -> float:
        return float(in_order.judge(observed).ok and judge(observed).ok)

    return kit.Line(title, judge, weight, "memory", shows=shows)


def kept_too_much(run: ScheduleRun, stage: int, rank: int, passed: Done, under_way: int) -> kit.Finding:
    mean = sum(run.kept(k, stage) for k in range(len(run.batch))) / len(run.batch)
    about = max(round(passed.kept / mean), under_way + 1)
    are = "microbatch is" if under_way == 1 else "microbatches are"
    return kit.wrong(
        kit.Sentence(
            f"after the {passed} rank {rank} keeps {words.number(passed.kept)} bytes for backward, about "
            f"{about} microbatches' worth; {under_way} {are} under way.",
            f"rank {rank} keeps more for backward than the microbatches that are under way.",
        ),
        FREE,
        cause=FREE,
        misses_point=True,
    )


# ---- memory by the pages of each rank's process: wherever a tensor is held


def pages_line(run: ScheduleRun, title: str, weight: float = 1.0) -> kit.Line:
    """At no moment of the run does a rank hold more than `enough`, above its memory before."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for stage, rank in enumerate(members(observed)):
            moment = f"{run.name}.pages.{END}"
            rose = observed.rose[rank].get(moment)
            if not rose:
                return kit.wrong(f"rank {rank} was not measured.")
            begun = observed.values[rank][run.name].begun[-1]
            sent = min(run.sent_by_the_end(stage), sent_by_all(observed))
            if finding := kit.asked_early(observed, rank, moment, begun=begun, sent=sent):
                return finding
            if rose[0] > enough(run, stage):
                return held_too_much(run, stage, rank, rose[0])
        return kit.RIGHT

    return kit.Line(title, judge, weight, "memory")


def sent_by_all(observed: kit.Observed) -> float:
    """Bytes, by the ranks' own records."""
    return sum(operation.bytes_sent for of_rank in observed.operations for operation in of_rank)


def enough(run: ScheduleRun, stage: int) -> float:
    """Bytes: of the microbatches under way, of each message that is sent or waited for, and of one step.

    A rank may keep its sent messages until the end, or post all receives at the beginning. The sent messages
    that it keeps and the receives still to come are together one message of each microbatch, to or from a
    neighbour.
    """
    counts = range(len(run.batch))
    neighbours = (stage > 0) + (stage < run.size - 1)
    largest = max(map(run.nbytes, counts))
    microbatch_bytes = max(run.kept(k, stage) for k in counts) + largest  # and its output
    messages = neighbours * sum(map(run.nbytes, counts))
    return under_way(run, stage) * microbatch_bytes + messages + STEP * largest + PAGES


def under_way(run: ScheduleRun, stage: int) -> int:
    """Microbatches, at most."""
    most = now = 0
    for action in run.actions[stage]:
        now += 1 if action.kind == "F" else -1
        most = max(most, now)
    return most


def held_too_much(run: ScheduleRun, stage: int, rank: int, rose: int) -> kit.Finding:
    return kit.wrong(
        kit.Sentence(
            f"rank {rank} takes up to {megabytes(rose)} during a run of {len(run.batch)} microbatches, as "
            f"the kernel counts its pages; {megabytes(enough(run, stage))} are enough for those under way "
            f"({under_way(run, stage)} at most), one message for each, and what is computed at the moment.",
            f"rank {rank} takes more memory, as the kernel counts its pages, than the microbatches under "
            "way, their messages and what is computed at the moment need.",
        ),
        FREE + COPIES,
        cause=FREE,
        misses_point=True,
    )
