"""The losses that come back, and the mistakes that explain them.

The loss before the first step shows how it was made: of which rows, over which ranks, divided by what. All
later ones show how the parameters moved. A loss that is wrong by one number says that just as well, so it is
put right before it is compared.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from course_lib.checks import kit, words
from course_lib.checks.notebooks.capstone.layout_numbers import FLOAT32, all_near, all_right, near, share
from course_lib.checks.notebooks.capstone.layout_record import OTHERS, ROWS_BY_RANK, TWICE, Record
from course_lib.checks.notebooks.capstone.layout_run import RATE, STEPS, LayoutRun, Way
from course_lib.checks.rank.notebooks.capstone.stepping import BEFORE

ONLY_LAST = "Only the last stage has losses, so also sum over pp. Then all ranks return the loss."
OWN = "Ranks return only the losses of their own tokens, so sum these over {}."
AFTER = "The loss was computed after the optimizer's step, but a step returns the loss it began with."
UNSEEDED = "The model was not drawn after `torch.manual_seed(0)`."
OF_REPLICAS = (
    "Each replica has divided by its own targets, although replicas have unequal numbers of them. Divide "
    "by the targets of the whole batch."
)
OF_MICROBATCHES = (
    "The loss is the mean of the microbatches' means, although they have unequal numbers of targets. "
    "Divide by the targets of the whole batch."
)
ALL_COUNTED = "Targets of -100 were counted, although they have no loss."
NOT_BACK = (
    "Terms that are n times as large have the right mean in ZeRO, but they also make the loss n times as "
    "large. Divide what you return by n."
)
DIVIDED = "The losses of `run_schedule` are divided by `count` already, so just add them up."
OVER_TP = "Ranks of tp all have the loss, so sum only over pp, dp and cp."
SUM_ALONE = "The loss is a sum over pp, dp and cp of losses divided by the targets of the batch."
STOOD_STILL = (
    "No parameter has moved. The optimizer needs the parameters of the stages, so cut the model first, "
    "then shard it, then make the optimizer. Step before you clear the gradients."
)
CUT_STOOD_STILL = (
    "The matrices cut by tp have not moved, because `mesh_stages` turns them into new parameters. Make the "
    "optimizer after this call."
)
ADD_UP = "Gradients of earlier steps were added, so clear them in each step."
ADD_UP_2 = (
    "Gradients of earlier steps were added, so clear them in each step. ZeRO-2 keeps its sum outside "
    "`.grad`, so call the optimizer's `zero_grad`."
)
KEYS = "`losses` is a dict, so sum(losses) adds up its keys. Add up its values instead."
OTHER_RATE = "The optimizer's rate is the argument `lr`."
UNKNOWN_FIRST = (
    "No parameter has moved yet, so look at the model's seed, at the rows you read, and at the number by "
    "which you divide losses."
)
UNKNOWN = (
    "The first loss is right, so forward is right as well. Look at the sum of the gradients over dp x cp, "
    "and at the optimizer."
)
SEVEN_DIGITS = "Gradients were added or sent in float32, so give the buffer the dtype of the gradients."
MOMENTUM = "The optimizer is SGD with momentum 0.9."
TERMS = "Ranks of dp and cp hold terms of one sum, so divide them only by the targets of the batch."
COUNTED_AGAIN = (
    "Each term counts once, so divide by the targets of the whole batch, and make one sum over dp x cp."
)
ZERO_MEAN = (
    "ZeRO takes the mean over the n ranks of its group, but they hold terms of a sum. Divide by n times "
    "fewer targets, for n = dp x cp."
)
GONE = (
    "With ZeRO-2 the gradients leave during backward, so `grad` is None after it. Make the terms larger "
    "before backward by dividing by n times fewer targets."
)
OTHER_WAY = (
    "ZeRO takes the mean over the n ranks of its group, so the terms must be n times as large. Divide by n "
    "times fewer targets, count / n, instead of n times more."
)
PART_OF_N = (
    "ZeRO takes the mean over dp x cp together, {} ranks here, so divide by as many times fewer targets."
)
ZERO_TWICE = "ZeRO's mean divides by n = dp x cp once, so make the terms n times as large once, not twice."
UNSYNCED = "Each replica trains with the gradients of its own terms, so sum them over dp and cp."
NO_ZERO = (
    "Each replica trains with the gradients of its own terms. ZeRO sums them over the group it is given, "
    'so give it mesh.group(("dp", "cp")).'
)
OVER_ALL = (
    "Ranks of tp and pp hold other parameters, or complete sums, so sum gradients only over "
    'mesh.group(("dp", "cp")).'
)
WITHOUT = "Ranks of dp and of cp hold terms of one sum, so sum over dp and cp, not only over {}."
SHARDS_ADDED = "ZeRO's own sum was added up once more, so leave out your sum if layout.zero > 0."
TP_TOO = "Gradients were also summed over tp, although the layers have made their sums already."


class Cause(NamedTuple):
    """says: the usual cause. sees: the observation, in place of two losses. misses: the exercise's point."""

    says: str = ""
    sees: str = ""
    misses: bool = False


class Losses:
    """returned: of each rank, of each step."""

    def __init__(self, run: LayoutRun, observed: kit.Observed):
        self.run, self.mesh, self.observed = run, run.mesh, observed
        self.returned = [reply.returned for reply in observed.values]

    @cached_property
    def record(self) -> Record:
        return Record(self.run, self.observed)

    def of_step(self, step: int) -> list[float]:
        return [losses[step] for losses in self.returned]

    @cached_property
    def alike(self) -> bool:
        return all(near(value, self.of_step(k)[0]) for k in range(STEPS) for value in self.of_step(k))

    @cached_property
    def times(self) -> float:
        """By which number the first loss is wrong; 0 if the ranks differ."""
        return self.returned[0][0] / self.run.right[0] if self.alike else 0.0

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """The axes over which the ranks' first losses still have to be added; () if there are none."""
        for axes in self.run.sets_of_axes():
            if "tp" not in axes and all(near(total, self.run.right[0]) for total in self.added(0, axes)):
                return axes
        return ()

    def added(self, step: int, axes: tuple[str, ...]) -> list[float]:
        values = self.of_step(step)
        return [sum(values[other] for other in self.mesh.ranks(rank, *axes)) for rank in range(self.mesh.n)]

    @cached_property
    def after(self) -> bool:
        return self.alike and all_near(self.returned[0], self.run.way(Way()).after)

    @cached_property
    def healed(self) -> list[float]:
        """The losses of the steps, put right by the mistake of the first."""
        if self.after:
            return self.run.right
        if self.alike and self.times:
            return [loss / self.times for loss in self.returned[0]]
        if self.missing:
            return [self.added(step, self.missing)[0] for step in range(STEPS)]
        return self.returned[0]

    @cached_property
    def trained(self) -> bool:
        """Whether the parameters moved as they should."""
        if all(all_right(losses, self.run.right) for losses in self.returned):
            return True
        if not self.alike and self.missing:
            each = (self.added(step, self.missing) for step in range(STEPS))
            pairs = zip(each, self.run.right, strict=True)
            return all(near(total, wanted) for totals, wanted in pairs for total in totals)
        return (self.alike or self.after) and all_near(self.healed, self.run.right)

    # ---- the loss before the first step

    def of_the_loss(self) -> Cause:
        run, layout = self.run, self.run.layout
        if self.missing and not self.alike:
            only_last = self.missing == ("pp",)
            axes = words.listing(self.missing)
            return Cause(ONLY_LAST if only_last else OWN.format(axes))
        if not self.alike:
            return Cause(ROWS_BY_RANK, sees) if (sees := self.record.rows_by_rank()) else Cause()
        if self.after:
            return Cause(AFTER)
        keys = sum(range(run.m)) * (run.n if self.run.layout.pp == 1 else 1)
        if all(first in (keys, keys / run.n) for first in self.of_step(0)):
            return Cause(KEYS)
        if (cause := self.of_weights()).says:
            return cause
        if all_near(self.returned[0][:1], run.way(Way(seed=BEFORE)).losses[:1]):
            return Cause(UNSEEDED)
        if sees := self.record.rows_by_rank():
            return Cause(ROWS_BY_RANK, sees)
        number = run.named(self.times) if self.times > 0 else ""
        if not number:
            return self.over_all()
        sees = f"the loss is {share(self.times)}, on all ranks, and {number}."
        if near(self.times * run.targets, 1):
            return Cause(DIVIDED, sees)
        if layout.zero and near(self.times, run.n):
            return Cause(NOT_BACK, sees)
        return Cause(OVER_TP if near(self.times, layout.tp) else SUM_ALONE, sees)

    def of_weights(self) -> Cause:
        """Means of means, and targets that are none."""
        run = self.run
        kinds = (
            ("all", ALL_COUNTED, True),
            ("replicas", OF_REPLICAS, run.layout.dp > 1),
            ("microbatches", OF_MICROBATCHES, run.m > 1),
        )
        for weights, says, there in kinds:
            first = run.way(Way(weights=weights)).losses[0]
            for times in (1.0, *run.factors()) if there else ():
                if near(self.returned[0][0], times * first) and not near(times * first, run.right[0]):
                    return Cause(says)
        return Cause()

    def over_all(self) -> Cause:
        for rank, amounts in enumerate(self.record.sent):
            if amounts[OTHERS]:
                sees = (
                    f"rank {rank} sent {words.number(round(amounts[OTHERS]))} bytes per step over ranks that "
                )
                return Cause(OVER_ALL, f"{sees}hold other parameters.")
        return Cause()

    # ---- how the parameters moved

    def of_training(self) -> Cause:
        run, way = self.run, self.run.way

        def went(*ways: Way) -> bool:
            return any(all_near(self.healed, way(each).losses) for each in ways)

        if went(Way(still="all")):
            return Cause(STOOD_STILL)
        squared = [run.n**-2.0] if run.layout.zero and run.n > 1 else []
        for times in (*squared, *run.factors()):
            if went(Way(times=times)):
                return self.of_factor(times)
        if run.layout.tp > 1 and went(Way(still="cut")):
            return Cause(CUT_STOOD_STILL)
        if went(Way(again=1.0), Way(again=float(run.n)), Way(again=1 / run.n)):
            return Cause(ADD_UP_2 if run.layout.zero == 2 else ADD_UP)
        if went(Way(momentum=0.0)):
            return Cause(MOMENTUM)
        if went(*(Way(times=rate / RATE) for rate in (1.0, 0.1, 0.01, 1e-3))):
            return Cause(OTHER_RATE)
        if all(abs(a - b) <= FLOAT32 * b for a, b in zip(self.healed, run.right, strict=True)):
            return Cause(SEVEN_DIGITS, "the losses are right to only about seven digits.")
        return self.of_record()

    def of_factor(self, times: float) -> Cause:
        run, zero = self.run, self.run.layout.zero
        sees = f"the gradients were {share(times)}, and {run.named(times)}."
        if not zero:
            return Cause(TERMS if times < 1 else COUNTED_AGAIN, sees)
        if near(max(times, 1 / times), run.n):
            sees = f"the gradients were {share(times)}, and dp x cp has {run.n} ranks."
        if near(times * run.n**2, 1):
            return Cause(OTHER_WAY, f"the gradients were {share(times)}, and dp x cp has {run.n} ranks.")
        if near(times * run.n, 1):
            return Cause(GONE if zero == 2 else ZERO_MEAN, sees)
        if times < 1 and any(near(times * size, 1) for size in (run.layout.dp, run.layout.cp)):
            return Cause(PART_OF_N.format(run.n), sees)
        if not near(times, run.n):
            return Cause(TERMS, sees)
        # Either ZeRO has divided a sum that the student made, or the terms are n^2 times as large.
        return Cause(TWICE if self.record.summed_twice else ZERO_TWICE, sees)

    def of_record(self) -> Cause:
        """The cause that the messages show, if no number explains the losses."""
        run, layout, record = self.run, self.run.layout, self.record
        if (cause := self.over_all()).says:
            return cause
        for rank in range(self.mesh.n):
            over = record.over_replicas(rank)
            kinds, groups = {o.op for o in over}, {o.group for o in over}
            if run.n > 1 and not over:
                return Cause(
                    UNSYNCED, f"rank {rank} sent no gradients to its replicas.", misses=not layout.zero
                )
            for axis in ("dp", "cp"):
                alone = {tuple(self.mesh.ranks(rank, axis))}
                if 1 < self.mesh.size(axis) < run.n and groups == alone:
                    return Cause(WITHOUT.format(axis), f"rank {rank} sent gradients only over {axis}.")
            if layout.zero and {"all_reduce", "reduce_scatter"} <= kinds:
                return Cause(SHARDS_ADDED)
            due = record.due(rank)["tp"]
            if layout.tp > 1 and record.sent[rank]["tp"] > due + 1:
                sent, needed = (words.number(round(n)) for n in (record.sent[rank]["tp"], due))
                sees = f"rank {rank} sent {sent} bytes per step along tp, but {needed} are due."
                return Cause(TP_TOO, sees)
        return Cause()
