"""Losses and gradients of a schedule that was run, and the parts that a wrong one consists of.

A gradient is a sum over microbatches. How often each counts in a wrong one is solved for: the microbatches'
own gradients are known, and there are more elements than microbatches.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from course_lib.checks import kit, words
from course_lib.checks.notebooks.pipeline.running_lines import members, reply
from course_lib.checks.notebooks.pipeline.running_whole import ScheduleRun
from course_lib.checks.rank.notebooks.pipeline.running import ScheduleReply

SAME = 1e-5  # of a share, when it is compared with that of a mistake
NOTHING_CAME = (
    "No gradient came back to this stage. The output a stage passes on is cut off from its graph, so the "
    "next stage sends the gradient of its input back (x.grad, after x.requires_grad_()). Then call "
    "output.backward(that)."
)
NOT_RUN = "Did backward run from this stage's loss, for every microbatch?"
MIXED = (
    "Is each gradient given to backward, and for the output it belongs to? Between two ranks, messages "
    "come in the order in which they were sent, whatever their microbatches are called."
)
DIVIDE = "Divide each microbatch's sum by the number of targets of all microbatches together"


# ---- gradients


def gradients_line(run: ScheduleRun, title: str, weight: float = 1.0, trivial: bool = False) -> kit.Line:
    """The gradients of one process, on every rank."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for stage, rank in enumerate(members(observed)):
            missing = reply(run, observed, stage).misfits
            for name, wanted in run.gradients(stage).items():
                key = f"grad.{name}"
                if key in missing:
                    none = missing[key] == "None"
                    what = "has no gradient" if none else "has a gradient of another shape"
                    said = f"on rank {rank} {name} {what}."
                    came = NOTHING_CAME if stage < run.size - 1 else NOT_RUN
                    return kit.wrong(said, came if none else "", cause=came)
                gradient = observed.tensors[rank][f"{run.name}.{key}"]
                if not kit.close(gradient, wanted) and not misdivided(run, observed, stage):
                    return differs(run, observed, stage, rank, name)
        return kit.RIGHT

    return kit.Line(title, judge, weight, trivial=trivial)


def misdivided(run: ScheduleRun, observed: kit.Observed, stage: int) -> str:
    """The mistake in the division that the gradients of a stage show; "" where they show none, or another."""
    shares = counted(run, observed, stage, members(observed)[stage])
    if shares is None or (run.earlier and not alike(shares[-1:], [1])):
        return ""
    own = shares[: len(run.batch)]
    return "" if alike(own, [1] * len(own)) or alike(own, [0] * len(own)) else divided(run, own)


def division_line(run: ScheduleRun, title: str, weight: float) -> kit.Line:
    """The losses' sum is divided as it should be. It costs this line alone: the others pass by the factor."""
    gradients = gradients_line(run, title)

    def judge(observed: kit.Observed) -> kit.Finding:
        for stage in range(run.size):
            if misdivided(run, observed, stage):
                return differs(run, observed, stage, members(observed)[stage], next(iter(run.term(0, stage))))
        finding = gradients.judge(observed)
        return finding if finding.ok else kit.wrong(cause=finding.cause)

    return kit.Line(title, judge, weight)


def differs(run: ScheduleRun, observed: kit.Observed, stage: int, rank: int, name: str) -> kit.Finding:
    gradient = observed.tensors[rank][f"{run.name}.grad.{name}"]
    wanted = run.gradients(stage)[name]
    general = f"on rank {rank} the gradient of {name} is not what one process gets"
    says = why(run, counted(run, observed, stage, rank), stage)
    return kit.wrong(kit.difference(general, gradient, wanted, what=""), says, cause=says)


def counted(run: ScheduleRun, observed: kit.Observed, stage: int, rank: int) -> list[float] | None:
    """How often each microbatch, and last the earlier gradient, counts in the result: right is once."""
    total, names = sum(run.counts), list(run.term(0, stage))
    columns = [
        torch.cat([run.term(k, stage)[name].flatten() for name in names]) / total
        for k in range(len(run.batch))
    ]
    if run.earlier:
        columns.append(torch.cat([run.earlier[stage][name].flatten() for name in names]))
    gradient = torch.cat([observed.tensors[rank][f"{run.name}.grad.{name}"].flatten() for name in names])
    if not bool(gradient.isfinite().all()):
        return None
    matrix = torch.stack(columns, 1)
    shares = torch.linalg.lstsq(matrix, gradient[:, None], driver="gelsd").solution[:, 0]
    if not bool(((matrix @ shares - gradient).abs() <= 1e-7 * matrix.abs().max()).all()):
        return None
    return shares.tolist()


def why(run: ScheduleRun, shares: list[float] | None, stage: int) -> str:
    """The usual cause of these shares."""
    if shares is None:
        return MIXED
    own = shares[: len(run.batch)]
    if run.earlier and not alike(shares[-1:], [1]):
        return before(shares[-1])
    if alike(own, [0] * len(own)):
        return NOTHING_CAME if stage < run.size - 1 else "The gradients are zeros."
    return divided(run, own) or often(own)


def alike(shares: Sequence[float], wanted: Sequence[float]) -> bool:
    return all(abs(a - b) <= SAME * max(1, abs(b)) for a, b in zip(shares, wanted, strict=True))


def before(share: float) -> str:
    if alike([share], [0]):
        return "The gradients that were there before are gone. Add to param.grad instead, as backward does."
    general = "The gradients that were there before must count once"
    return kit.Sentence(f"{general}, not {words.number(round(share, 4))} times.", f"{general}.")


def divided(run: ScheduleRun, shares: Sequence[float]) -> str:
    """The mistake in the division that gives these shares; "" where it is none."""
    m, total, counts = len(run.batch), sum(run.counts), run.counts
    elements = sum(targets.numel() for _, targets in run.batch)
    for wanted, says in (
        ([total / count for count in counts],
         f"Each microbatch was divided by its own number of targets, so the result is the sum of {m} means, "
         f"{m} times too large. {DIVIDE}."),
        ([total / count / m for count in counts],
         "Your result is the mean of the microbatches' means. But they have different numbers of targets, "
         f"so a target of a small microbatch counts more. {DIVIDE}."),
        ([total] * m, f"The losses were summed up, not averaged. {DIVIDE} (stage.count(targets))."),
        ([total / m] * m,
         f"The sum of the losses was divided by the number of microbatches. {DIVIDE} "
         "(stage.count(targets))."),
        ([total / elements] * m,
         "Targets that do not count (-100) were counted, but stage.count says how many do."),
        ([m] * m, f"The result is {m} times too large, once for each microbatch, but the sum is already "
                  "over all."),
        ([1 / m] * m, f"The result is {m} times too small. If you divide by the number of all targets, do "
                      "not also divide by the number of microbatches."),
        ([run.size] * m, f"The result is {run.size} times too large, once for each stage."),
        ([1 / run.size] * m, f"The result is {run.size} times too small. Stages are not replicas, so "
                             "nothing is averaged over them."),
    ):  # fmt: skip
        if alike(shares, wanted):
            return says
    if alike(shares, [shares[0]] * m):
        general = "The whole gradient is a multiple of the right one"
        return kit.Sentence(f"{general}: {words.number(shares[0])} times.", f"{general}.")
    return ""


def often(shares: Sequence[float]) -> str:
    """Microbatches that do not count, or not once."""
    never = [k for k, share in enumerate(shares) if alike([share], [0])]
    other = [k for k in range(len(shares)) if k not in never and not alike([shares[k]], [1])]
    if never and len(never) == len(shares) - 1:
        (only,) = (k for k in range(len(shares)) if k not in never)
        return (
            f"Only microbatch {only} counts, because the other gradients were overwritten or cleared. But "
            "they must add up in param.grad."
        )
    told_of = [f"{which(never)} never"] if never else []
    for k in other[:3]:
        told_of.append(f"microbatch {k} counts {words.number(round(shares[k], 4))} times")
    if not told_of:
        return ""
    general = "Each microbatch must count once."
    return kit.Sentence(f"In it {words.listing(told_of)}. {general}", general)


def which(numbers: Sequence[int]) -> str:
    several = len(numbers) > 1
    return f"microbatch{'es' * several} {words.listing(words.spans(numbers))} count{'' if several else 's'}"


# ---- losses


def losses_line(run: ScheduleRun, title: str, weight: float = 1.0, trivial: bool = False) -> kit.Line:
    """The parts of the loss that the last stage's rank returned."""

    def judge(observed: kit.Observed) -> kit.Finding:
        last = run.size - 1
        rank, came = members(observed)[last], reply(run, observed, last)
        said = unlike_a_dict(rank, came, len(run.batch))
        if said:
            return kit.wrong(said, "Return {microbatch: its part of the loss} there.", cause="returned")
        if "losses" in came.misfits:
            return kit.wrong(
                f"the parts of the loss that rank {rank} returned are not all numbers.", cause="returned"
            )
        losses = observed.tensors[rank][f"{run.name}.losses"]
        if kit.close(losses, run.losses):
            return kit.RIGHT
        (k,), got, want = kit.worst(losses, run.losses)
        says = divided(run, (losses / run.losses).tolist())
        if says and any(misdivided(run, observed, stage) for stage in range(run.size)):
            return kit.RIGHT
        general = "the parts of the loss are not what one process gets"
        return kit.wrong(
            kit.Sentence(f"{general}: microbatch {k}'s is {got} instead of {want}.", f"{general}."),
            says,
            cause=says or kit.ANY,
        )

    return kit.Line(title, judge, weight, trivial=trivial, short=True)


def unlike_a_dict(rank: int, came: ScheduleReply, count: int) -> str:
    """The fault in the form of the last rank's result; "" if it is a dict of all parts."""
    if came.returned is None:
        kind = "None" if came.other == "NoneType" else came.other
        return kit.Sentence(
            f"rank {rank}, which has the last stage, returned {kind}.",
            f"rank {rank}, which has the last stage, returned no dict.",
        )
    keys = came.returned
    if len(keys) != count or any(k not in keys for k in range(count)):
        return kit.Sentence(
            f"rank {rank}, which has the last stage, returned {words.counted(len(keys), 'part')} of the "
            f"loss, for {keys[:4]}{' ...' if len(keys) > 4 else ''}, but there are {count} microbatches, "
            "from 0.",
            f"rank {rank}, which has the last stage, did not return one part of the loss for each "
            "microbatch.",
        )
    return ""


def elsewhere_line(run: ScheduleRun, title: str = "{} on the other ranks", weight: float = 0.5) -> kit.Line:
    """The ranks of other stages returned an empty dict."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for stage, rank in list(enumerate(members(observed)))[:-1]:
            if reply(run, observed, stage).returned != []:
                return kit.wrong(
                    f"rank {rank} has no part of the loss, so it must return an empty dict.",
                    "Only the last stage knows the loss.",
                    cause="elsewhere",
                )
        return kit.RIGHT

    return kit.Line(title, judge, weight, trivial=True, short=True)
