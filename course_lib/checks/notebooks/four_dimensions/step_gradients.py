"""Lines about the gradients of `hybrid_step`, and the mistakes that explain them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from itertools import chain, combinations
from operator import ge
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.judge.meshes import SMALL
from course_lib.checks.notebooks.four_dimensions.steps import TIED, Held, Steps, Whole

ROUNDING = 1e-10  # of the model's largest gradient
FLOAT32 = 1e-6  # of the loss, or of a gradient: a sum in float32 may be off by so much
OVER_CP = (
    "Ranks of cp hold terms of one sum, and they are given the same targets. So count the targets only over "
    "dp, and do not divide by the size of cp."
)
OF_REPLICAS = (
    "Each replica has divided by its own targets, but they have unequal numbers of them. Sum the numbers "
    "over dp first, then give `run_schedule` the number of all."
)
OVER_WORLD = (
    "The gradients of all ranks were added, but tp and pp ranks hold different parameters, or terms that are "
    "already summed. Reduce only over dp and cp."
)
ONE_CALL = "The gradients of the previous call are gone, but a call adds its own to `grad`."
AGAIN = (
    "The gradients of the previous call were added once more on each replica, although they are complete "
    "already. Put them aside, reduce only this call's gradients, then add them once."
)
OF_MICROBATCHES = (
    "Your result is the mean of the microbatches' means, but they have unequal numbers of targets. Give "
    "`run_schedule` all microbatches together, and the targets of all."
)
OF_PARTS = (
    "Your result is the mean of the ranks' means, but ranks of cp have unequal numbers of targets, and each "
    "divided by its own. Leave the stages' `count` as it is, and sum."
)
ALL_TARGETS = "Targets of -100 were counted, but they have no loss. Count those that differ from -100."
NUMBERS = {
    "microbatches": "Microbatches or rows were counted instead of targets.",
    "nothing": "No loss was divided, but `run_schedule` takes the number of targets of the whole batch.",
    "first": "The first microbatch's targets were counted for each one, but others have other numbers.",
}
ONCE_TOO_OFTEN = (
    "The number of all targets was multiplied by the number of microbatches. But `count` is for the whole "
    "batch, because `run_schedule` divides every microbatch's sum by it."
)
DIVIDED_TWICE = (
    "The gradients were divided by the targets twice, because `run_schedule` has divided by `count` already."
)
COUNT_OVER_DP = (
    "Sum the targets of the replicas only over dp, because ranks of cp are given the same ones, and divide "
    "by nothing else."
)
IN_FLOAT64 = "The gradients travelled in float32, or were added there, so give the buffer their dtype."
NOT_KEPT = (
    "The sum over the replicas was made, but `grad` does not have it, because torch.cat copies. Write each "
    "part of the buffer back."
)
SOME_UNREDUCED = "Sum the gradients of all parameters, on all stages, over dp and cp."
FIRST_ALONE = (
    "Only the first rank of each group of replicas has the sum. Use all_reduce, so that all ranks have it."
)
WHOLE_OVER_TP = (
    "Parameters that are whole on tp were also summed over tp, but its ranks hold equal gradients."
)
Candidate = Callable[[int, str], Tensor]


def factor(value: float) -> str:
    """0.5 -> "1/2", 2.0 -> "2 times"."""
    share = Fraction(value).limit_denominator(4096)
    return f"{share}" if share < 1 else f"{share} times"


def of_one_process(value: float) -> str:
    """0.5 -> "1/2 of one process'", 2.0 -> "2 times one process'"."""
    return f"{factor(value)} {'of ' if value < 1 else ''}one process'"


def other_count(steps: Steps, often: float) -> str:
    """Another number than that of targets was given to `run_schedule`: all is `often` times right."""
    counted = steps.batches[0][1] != -100
    replicas, microbatches = counted.shape[:2]
    numbers = [
        (counted.numel(), ALL_TARGETS),
        (microbatches * int(counted[:, 0].sum()), NUMBERS["first"]),
        (microbatches * replicas, NUMBERS["microbatches"]),
        (microbatches, NUMBERS["microbatches"]),
        (1, NUMBERS["nothing"]),
    ]
    return next((says for number, says in numbers if abs(often * number / steps.targets - 1) < 1e-6), "")


class Cause(NamedTuple):
    """says: the usual cause; sees: the observation, in place of the first wrong element.

    slip: the terms are those of one sum, which was made once.
    """

    says: str
    sees: str = ""
    slip: bool = False


class Gradients:
    """The gradients that all ranks returned, beside the right ones."""

    def __init__(self, steps: Steps, observed: kit.Observed):
        self.steps, self.observed, self.mesh = steps, observed, steps.mesh
        self.wanted = steps.held(steps.right.gradients)
        self.returned: Held = {(rank, name): observed.tensors[rank][name] for rank, name in self.wanted}

    @cached_property
    def of_replicas(self) -> Held:
        """The mean of the replicas' means."""
        return self.steps.held(self.steps.mean_of_replicas.gradients)

    def near(self, gradient: Tensor, wanted: Tensor, often: float = 1) -> bool:
        off = (gradient - wanted).abs().max()
        return bool(off <= often * ROUNDING * self.steps.largest)

    def are(self, candidate: Candidate) -> bool:
        """Whether the mistake gives every gradient."""
        pairs = self.returned.items()
        return all(self.near(gradient, candidate(*key), self.mesh.n) for key, gradient in pairs)

    def often(self, gradients: Held) -> float:
        """By which number all of `gradients` have to be multiplied to be those that came back; 0: by none."""
        key = max(gradients, key=lambda key: float(gradients[key].abs().max()))
        place = gradients[key].abs().argmax()
        factor = float(self.returned[key].flatten()[place] / gradients[key].flatten()[place])
        return factor if self.are(lambda *key: factor * gradients[key]) else 0.0

    def together(self, gradients: Held, share: float, *axes: str) -> bool:
        """Whether the sums of what the ranks along the axes hold are `share` times `gradients`."""
        for rank, name in self.returned:
            group = self.mesh.ranks(rank, *axes)
            total = torch.stack([self.returned[other, name] for other in group]).sum(0)
            if not self.near(total, share * gradients[rank, name], self.mesh.n):
                return False
        return True

    def mixed(self, share: float, whole: float) -> Candidate:
        """Cut parts of all ranks of tp were added, times `share`; others are `whole` times right."""

        def candidate(rank: int, name: str) -> Tensor:
            if self.steps.cut_along(name) is None:
                return whole * self.wanted[rank, name]
            group = self.mesh.ranks(rank, "tp")
            return share * torch.stack([self.wanted[other, name] for other in group]).sum(0)

        return candidate

    def of(self, whole: Whole) -> Candidate:
        held = self.steps.held(whole.gradients)
        return lambda rank, name: held[rank, name]

    def of_float32(self) -> bool:
        """Whether all gradients are right, to the digits of float32."""
        often = FLOAT32 / ROUNDING
        return all(self.near(self.returned[key], wanted, often) for key, wanted in self.wanted.items())

    @property
    def untied_are_right(self) -> bool:
        return all(
            self.near(self.returned[k], w, self.mesh.n) for k, w in self.wanted.items() if k[1] != TIED
        )

    # ---- causes

    def ideas(self) -> Iterator[Cause]:
        """The mistakes of what is a term and what a sample that give these gradients, the likeliest first."""
        if all(not gradient.any() for gradient in self.returned.values()):
            return
        if often := self.often(self.wanted):
            yield self.of_factor(often)
        if self.mesh.size("dp") > 1 and (often := self.often(self.of_replicas)):
            share = "" if abs(often - 1) < ROUNDING else f"{factor(often)} "
            yield Cause(OF_REPLICAS, f"the gradients are {share}the mean of the replicas' means.")
        yield from self.unreduced()
        if self.mesh.size("tp") > 1:
            yield from self.over_tp(self.mesh.size("tp"))
        yield from self.in_part()

    def of_factor(self, often: float) -> Cause:
        sees = f"the gradients are {of_one_process(often)}, on every parameter."
        of_count = self.miscounted(often) if self.losses_are(often) else ""
        if not of_count and abs(often * self.steps.count - 1) < 1e-6 and self.losses_are(often):
            return Cause(ONCE_TOO_OFTEN, sees, slip=True)
        if why := other_count(self.steps, often):
            return Cause(why, sees, slip=True)
        if of_count:
            return Cause(of_count, sees, slip=True)
        labels = [label for label, divisor in self.divisors() if abs(often * divisor - 1) < 1e-6]
        if labels == ["the size of cp"]:
            return Cause(OVER_CP, sees)
        if not labels:
            return self.of_multiple(often, sees)
        by = labels[0] if len(labels) == 1 else f"{round(1 / often)}, which is {' or '.join(labels)},"
        terms = "But ranks hold terms of one sum, which are divided only by the targets."
        return Cause(f"The gradients were divided by {by} as well. {terms}", sees)

    def losses_are(self, often: float) -> bool:
        """Whether each rank's losses, too, are `often` times right, as with another `count`."""
        pairs = (
            (value, often * wanted)
            for values in self.observed.values
            for value, wanted in zip(values.returned, self.steps.right.losses, strict=True)
        )
        return all(isinstance(v, float) and abs(v - wanted) <= FLOAT32 * wanted for v, wanted in pairs)

    def miscounted(self, often: float) -> str:
        """Why gradients and losses are off by one number, if a `count` gives it; or "".

        A mean over dp in place of a sum also divides both, and is another mistake.
        """
        times = max(often, 1 / often)
        axes = [names for names in self.sets_of_axes() if abs(self.mesh.size(*names) / times - 1) < 1e-6]
        if not axes or (often < 1 and all("dp" in names for names in axes)):
            return ""
        labels = [self.label(names) for names in axes]
        if abs(often * self.steps.count - 1) < 1e-6:
            labels.append("the number of microbatches")
        by = f"{'divided' if often > 1 else 'multiplied'} by {' or '.join(labels)}"
        return f"The loss is off by the same factor, as if `count` were {by}. {COUNT_OVER_DP}"

    def of_multiple(self, often: float, sees: str) -> Cause:
        if abs(often * self.steps.targets - 1) < 1e-6 and not self.losses_are(often):
            return Cause(DIVIDED_TWICE, sees, slip=True)
        labels = [
            label
            for label, number in self.divisors()
            if abs(often / number - 1) < 1e-6 and not label.endswith("microbatches")
        ]
        if labels:
            return Cause(
                f"{' or '.join(labels).capitalize()} is {round(often)}, but each term counts only once.", sees
            )
        counted = self.steps.targets / often
        if abs(counted - round(counted)) > 1e-3:
            return Cause("", sees)
        targets = words.counted(self.steps.targets, "target")
        says = (
            f"The factor fits if {round(counted)} was given as `count` instead of the {targets} of the batch."
        )
        return Cause(says, sees, slip=True)

    def divisors(self) -> Iterator[tuple[str, int]]:
        """Numbers of ranks along all sets of axes, and times the number of microbatches."""
        for names in self.sets_of_axes():
            label = self.label(names)
            yield label, self.mesh.size(*names)
            yield f"{label} and the number of microbatches", self.mesh.size(*names) * self.steps.count
        yield "the number of microbatches", self.steps.count

    def sets_of_axes(self) -> Iterator[tuple[str, ...]]:
        """Every set of axes that have several ranks."""
        axes = [axis for axis in self.mesh.sizes if self.mesh.size(axis) > 1]
        return chain.from_iterable(combinations(axes, k) for k in range(1, len(axes) + 1))

    def label(self, names: tuple[str, ...]) -> str:
        if len(names) == 1:
            return f"the size of {names[0]}"
        everyone = self.mesh.size(*names) == self.mesh.n
        return "the number of ranks" if everyone else f"the number of ranks of {words.listing(names)}"

    def in_part(self) -> Iterator[Cause]:
        """The terms of some parameters were not added, or those of others were added over tp."""
        off = [key for key, wanted in self.wanted.items() if not self.near(self.returned[key], wanted)]
        for axes in (("dp", "cp"), ("dp",), ("cp",)):
            if self.mesh.size(*axes) > 1 and off and all(self.adds_up(*key, *axes) for key in off):
                rank, name = off[0]
                sees = f"on rank {rank} the gradient of {name} covers only its own tokens."
                yield Cause(SOME_UNREDUCED, sees)
        firsts = {self.mesh.ranks(rank, "dp", "cp")[0] for rank in range(self.mesh.n)}
        wrong_ranks = {rank for rank, _ in off}
        if wrong_ranks == set(range(self.mesh.n)) - firsts:
            yield Cause(FIRST_ALONE, f"{words.ranks(sorted(wrong_ranks))} have other gradients.")
        tp = self.mesh.size("tp")
        if tp > 1 and all(
            self.steps.cut_along(name) is None
            and self.near(self.returned[rank, name], tp * self.wanted[rank, name], self.mesh.n)
            for rank, name in off
        ):
            yield Cause(WHOLE_OVER_TP)

    def adds_up(self, rank: int, name: str, *axes: str) -> bool:
        """Whether the ranks along the axes hold terms of the right gradient, and not equal shares of it."""
        terms = torch.stack([self.returned[other, name] for other in self.mesh.ranks(rank, *axes)])
        if all(self.near(term, terms[0]) for term in terms):
            return False
        return self.near(terms.sum(0), self.wanted[rank, name], self.mesh.n)

    def of_another_count(self) -> tuple[float, str]:
        """By which number all gradients are off, and the sentence, if another `count` gives them; or 0."""
        often = self.often(self.wanted)
        if not often or abs(often - 1) <= 1e-6 or not (cause := self.of_factor(often)).slip:
            return 0.0, ""
        return often, cause.says

    def summed_in_vain(self) -> bool:
        """Whether the ranks have terms of their own, though as many bytes went to the replicas as are due."""
        own = {
            rank: sum(tensor.nbytes for (k, _), tensor in self.returned.items() if k == rank)
            for rank, _ in self.wanted
        }
        sent = [
            sum(o.nbytes for o in self.mesh.over(self.mesh.called(self.observed, rank), rank, "dp", "cp"))
            for rank in own
        ]
        return all(map(ge, sent, own.values())) and self.together(self.wanted, 1, "dp", "cp")

    def unreduced(self) -> Iterator[Cause]:
        dp, cp = self.mesh.size("dp"), self.mesh.size("cp")

        def together(*axes: str) -> bool:
            own = dp if "dp" in axes else 1  # replicas that divided by their own targets
            return self.together(self.wanted, 1, *axes) or self.together(self.of_replicas, own, *axes)

        if cp > 1 and together("cp"):
            yield Cause("The terms of cp were not added, so sum gradients over dp and cp.")
        if self.summed_in_vain():
            yield Cause(NOT_KEPT, slip=True)
        if dp > 1 and together("dp"):
            yield Cause("Replicas have the gradients of their own rows, so sum gradients over dp and cp.")
        if dp > 1 and cp > 1 and together("dp", "cp"):
            yield Cause("Each rank has its own gradients, so sum them over dp and cp.")

    def over_tp(self, tp: int) -> Iterator[Cause]:
        """The ranks of tp were added, as a mean or as a sum."""
        dp = self.mesh.size("dp")
        for share in (1 / tp, 1.0, 1 / tp / dp, 1 / dp):
            if self.are(self.mixed(share, share * tp)):
                yield Cause(self.halves(share))

    def slips(self) -> Iterator[Cause]:
        """The sentence for each other mistake that gives these gradients."""
        if all(not gradient.any() for gradient in self.returned.values()):
            yield Cause(
                "All gradients are zero or None at the end. `run_schedule` does both passes, so nothing may "
                "reset `grad` after it."
            )
        yield from map(Cause, self.of_the_tie())
        yield from map(Cause, self.of_calls())
        yield from map(Cause, self.of_means())

    def halves(self, share: float) -> str:
        """The parts of tp were added, times `share`."""
        name = "blocks.0.attention.query.weight"
        rows = len(self.wanted[0, name])
        mean = share == 1 / self.mesh.size("tp")
        how = "the mean" if mean else "the sum" if share == 1 else f"{factor(share)} of the sum"
        fault = (
            f"Cut matrices are right parts mixed, because rows 0-{rows - 1} of {name} hold {how} of "
            f"{words.counted(self.mesh.size('tp'), 'rank')}' different rows"
        )
        norms = ", while norms are right" if mean else ""
        tp_alone = "Leave tp out, because its layers have already summed."
        return f"{fault}{norms}. {OVER_WORLD if self.over_the_world() else tp_alone}"

    def over_the_world(self) -> bool:
        everyone = tuple(range(self.mesh.n))
        return any(o.group == everyone and o.nbytes > SMALL for o in self.observed.operations[0])

    def of_each_call(self) -> list[Held]:
        return [
            self.steps.held(replace(self.steps, batches=[batch]).right.gradients)
            for batch in self.steps.batches
        ]

    def of_calls(self) -> Iterator[str]:
        """Only if there are two calls."""
        if len(self.steps.batches) == 1:
            return
        replicas = self.mesh.size("dp", "cp")
        first, second = self.of_each_call()
        if self.are(lambda rank, name: second[rank, name]):
            yield ONE_CALL
        if self.are(lambda rank, name: replicas * first[rank, name] + second[rank, name]):
            yield AGAIN
        for often in (2, 3, replicas + 1):
            if self.are(lambda rank, name, often=often: often * first[rank, name] + second[rank, name]):
                yield (
                    f"The gradients of the previous call count {often} times, so add them only once, after "
                    "the sum."
                )

    def of_means(self) -> Iterator[str]:
        if self.are(self.of(self.steps.mean_of_microbatches())):
            yield OF_MICROBATCHES
        if self.mesh.size("cp") > 1 and self.are(self.of(self.steps.mean_of_parts())):
            yield OF_PARTS

    def of_the_tie(self) -> Iterator[str]:
        """Only if the embedding is tied to a head on another rank, and nothing else is wrong."""
        if not self.steps.config.tied or self.mesh.size("pp") == 1 or not self.untied_are_right:
            return
        tied = {key: tensor for key, tensor in self.returned.items() if key[1] == TIED}
        alone = f"Only {TIED} is wrong, "
        twice = [{key: 2 * self.wanted[key] for key in tied}]
        if len(self.steps.batches) == 2:  # and the first call's once more with the second's
            first, second = self.of_each_call()
            twice.append({key: 4 * first[key] + 2 * second[key] for key in tied})
        if any(all(self.near(tied[key], added[key], self.mesh.n) for key in tied) for added in twice):
            yield f"{alone}because its two terms were added twice. But `run_schedule` adds them already."
            return
        ratios = [
            float((tensor * self.wanted[k]).sum() / self.wanted[k].square().sum())
            for k, tensor in tied.items()
        ]
        if all(self.near(tensor, ratios[0] * self.wanted[k], self.mesh.n) for k, tensor in tied.items()):
            share = of_one_process(ratios[0])
            yield f"{alone}because it is {share}. But `run_schedule` adds its two terms already."
            return
        right = [k for k, tensor in tied.items() if self.near(tensor, self.wanted[k], self.mesh.n)]
        if right:
            others = words.ranks([rank for rank, name in tied if (rank, name) not in right])
            yield (
                f"{alone}because {others} hold another gradient of it. Both stages need the sum of its two "
                "terms."
            )
            return
        sums = (
            torch.stack([tied[other, TIED] for other in self.mesh.ranks(rank, "pp") if (other, TIED) in tied])
            for rank, _ in tied
        )
        if all(self.near(s.sum(0), self.wanted[key], self.mesh.n) for s, key in zip(sums, tied, strict=True)):
            yield f"{alone}because its two terms, from the first stage and from the last, have not met."
            return
        yield (
            f"{alone}because it has a term on the first stage and one on the last. Reduce over the replicas "
            "only when both have met, after `run_schedule` returns."
        )


def gradients_line(
    steps: Steps, title: str, weight: float, *, essential: bool = False, exact: bool = False
) -> kit.Line:
    """essential: wrong gradients here miss the point, whatever their cause; exact: in float64."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in range(observed.world_size):
            if misfits := observed.values[rank].misfits:
                name, text = next(iter(misfits.items()))
                if text != "None":
                    return kit.wrong(
                        f"on rank {rank} the gradient of {name} has another shape, or is not float64."
                    )
                if len(misfits) < len(observed.tensors[rank]):
                    return kit.wrong(f"on rank {rank} {name} has no gradient, since `grad` is None.")
        gradients = Gradients(steps, observed)
        off = next(
            (
                k
                for k, wanted in gradients.wanted.items()
                if not gradients.near(gradients.returned[k], wanted)
            ),
            None,
        )
        if off is None:
            return kit.RIGHT
        if gradients.of_float32():
            return (
                kit.wrong("the gradients are right to about seven digits.", IN_FLOAT64)
                if exact
                else kit.RIGHT
            )
        rank, name = off
        said = kit.difference(
            f"on rank {rank} the gradient of {name} is wrong", gradients.returned[off], gradients.wanted[off]
        )
        idea = next(gradients.ideas(), None)
        why = idea or next(gradients.slips(), Cause(""))
        cause = why.says or "gradients"
        missed = (essential or idea is not None) and not why.slip
        return kit.wrong(why.sees or said, why.says, cause=cause, misses_point=missed)

    return kit.Line(f"gradients: {title}", judge, weight)
