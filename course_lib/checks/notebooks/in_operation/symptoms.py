"""symptoms: the cause of six runs, from a step's seconds by rank. The runs are always the same six."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from statistics import mean

from course_lib.checks import kit, words
from course_lib.checks.notebooks.in_operation.references import REFERENCES
from course_lib.operation.profiles import draw_profiles
from course_lib.operation.symptoms import Profile

SEED = 1
PICKED = {"run_a": 6, "run_b": 7, "run_c": 10, "run_d": 5, "run_e": 2, "run_f": 9}
HEALTHY = "healthy"
KINDS = (
    "straggler", "unequal work", "data", "checkpoint", "bubble", "latency", "bandwidth", "memory", HEALTHY
)  # fmt: skip

WAITING = (
    "Bytes move here as fast as in a healthy run. The ranks wait for another rank, so no faster network "
    "would help."
)
NO_BUBBLE = "`bubble` is 0 in this run, because the ranks wait in collectives instead of for a microbatch."
NOT_HEALTHY = "Something costs at least 5 % of this step, so compare the rows, rank by rank."
SAYS: Mapping[str, Mapping[str, str]] = {
    "unequal work": {
        "straggler": "Two ranks compute longer, but `late` is None, because neither is last in its own "
        "group more often than chance explains.",
        "bandwidth": WAITING, "latency": WAITING, "bubble": NO_BUBBLE,
        HEALTHY: "The busiest ranks compute for more than 1.1 times the mean.",
    },
    "latency": {
        "bandwidth": "alpha * messages is more than half of `moving`, so most of the time goes into "
        "starting messages and little of it into bytes.",
        "straggler": "No rank waits for long, and `late` is None.",
        HEALTHY: "`moving` is more than 5 % of the step.",
    },
    "data": {
        "straggler": "The rank is late because its input is late, so look at `data`. It computes no longer "
        "than the other ranks, so its chip is healthy.",
        "unequal work": "All ranks compute equally long, so look at `data`.",
        "bandwidth": WAITING, "latency": WAITING, "bubble": NO_BUBBLE,
    },
    HEALTHY: {},
    "straggler": {
        "bandwidth": WAITING, "latency": WAITING, "bubble": NO_BUBBLE,
        "unequal work": "Only one rank computes longer, and `late` names it, because it is last among ranks "
        "that do the same work.",
        "data": "The input arrives after a few milliseconds on all ranks, so look at `computing`.",
    },
    "memory": {
        HEALTHY: "The step is fast, but one rank holds more than twice as much as the other ranks, so it is "
        "the first to run out of memory.",
        "unequal work": "All ranks compute equally long, so look at `peak_memory`.",
    },
}  # fmt: skip
CAUSE_OF_NOTHING = (
    "Nothing costs 5 % of this step, and no rank is short of memory. Some share is always the largest, but "
    "this does not make it a cause."
)


def runs() -> dict[str, tuple[Profile, tuple[str, int | None]]]:
    drawn = draw_profiles(SEED)
    return {
        name: (drawn[place][0], (drawn[place][1] or [(HEALTHY, None)])[0]) for name, place in PICKED.items()
    }


def why_kind(profile: Profile, right: str, said: str) -> str:
    if right == HEALTHY:
        return CAUSE_OF_NOTHING
    return SAYS[right].get(said) or (NOT_HEALTHY if said == HEALTHY else against(profile, said))


def against(profile: Profile, said: str) -> str:
    """The row in which a kind would show, and what this run has there."""
    if said == "straggler":
        return "`late` is None, so no rank is last more often than chance explains."
    if said == "unequal work":
        times = max(profile.computing) / mean(profile.computing)
        return f"The busiest rank computes for only {times:.2f} times the mean."
    if said == "bubble":
        return "`bubble` is 0 in this run, so no stage waits for a microbatch."
    if said == "memory":
        peak, limit = max(profile.peak_memory) / 1e9, profile.memory / 1e9
        return f"The fullest rank has {peak:.0f} of {limit:.0f} GB, and no rank has twice the others' peak."
    row = "moving" if said in ("latency", "bandwidth") else said
    share = max(getattr(profile, row)) / profile.step()
    return f"`{row}` is at most {share:.1%} of the step on every rank.".replace("%", " %")


def why_rank(profile: Profile, right: int | None, said: int | None) -> str:
    if right is None:
        return "The cause is on several ranks or on none, so write None as the rank."
    if said is None:
        return "The cause is on a single rank. Name it."
    if profile.waiting[right] < 0.01 * profile.step() < profile.waiting[said]:
        return "A rank that waits is early, so it is not the cause. Name the rank the others wait for."
    return "Ranks are counted from 0. Name the rank whose row differs from all other rows."


def judge_run(name: str, index: int, profile: Profile, right: tuple) -> Callable[[kit.Observed], kit.Finding]:
    def judge(observed: kit.Observed) -> kit.Finding:
        answer = observed.answer(index).value
        if answer in kit.UNANSWERED:
            return kit.wrong(f"{name} is not answered yet.")
        if not isinstance(answer, list) or len(answer) != 2:
            return kit.wrong(f"{name} must be a pair.", "Write it as (kind, rank).", cause=f"{name} form")
        kind = answer[0].strip().lower() if isinstance(answer[0], str) else ""
        if kind not in KINDS:
            return kit.wrong(f"the kind of {name} must be {words.listing(map(repr, KINDS), 'or')}.")
        rank = kit.numeric(answer[1])
        ranks = range(len(profile.waiting))
        if answer[1] is not None and rank not in ranks:
            return kit.wrong(f"the rank of {name} must be None or a number from 0 to {len(ranks) - 1}.")
        if kind != right[0]:
            return kit.wrong(f"{name}: {kind!r} is not right.", why_kind(profile, right[0], kind))
        if rank != right[1]:
            said = "None" if rank is None else f"rank {rank:.0f}"
            place = None if rank is None else int(rank)
            return kit.wrong(
                f"{name}: {kind!r} is right, but {said} is not.", why_rank(profile, right[1], place)
            )
        return kit.RIGHT

    return judge


@kit.exercise(points=4, objects=tuple(PICKED), references=REFERENCES, constants=True)
def symptoms(draw: kit.Draw) -> Iterator[kit.Case]:
    lines = [
        kit.Line(name, judge_run(name, index, profile, right))
        for index, (name, (profile, right)) in enumerate(runs().items())
    ]
    sides = [kit.evaluating([[index, None] for index in range(len(PICKED))])]
    yield kit.Case("answers", sides, lines, recipe=kit.EVALUATE, alone=True)
