"""Lines about the values of `hybrid_step`: gradients and losses, and the mistakes that explain them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from course_lib.checks import words
from course_lib.checks.kit import RIGHT, Finding, Line, Observed, Sentence, difference, wrong
from course_lib.checks.notebooks.four_dimensions.groups import SMALL
from course_lib.checks.notebooks.four_dimensions.steps import TIED, Held, Steps, Whole

ROUNDING = 1e-10  # of the model's largest gradient
FLOAT32 = 1e-6  # of the loss: a number to print may be added up in float32
TERMS = "ranks of cp hold terms of one sum, not samples of a mean. Divide by the size of dp alone."
SAMPLES = "Replicas read different rows: the batch's loss is the mean of theirs. Divide by the size of dp."
WORLD = (
    "They were divided by the number of ranks: tp and pp ranks hold different parameters, or terms that are "
    "already summed. Divide by the size of dp alone."
)
OVER_WORLD = (
    "The gradients of all ranks were added: tp and pp ranks hold different parameters, or terms that are "
    "already summed. Reduce over dp and cp alone."
)
ONE_CALL = "The gradients of the call before are gone: a call adds its own to `grad`."
AGAIN = (
    "The gradients of the call before were summed over cp once more: they are complete already. Put them "
    "aside, reduce this call's alone, then add them."
)
OF_MICROBATCHES = (
    "That is the mean of the microbatches' means: they have unequal numbers of targets. Give `run_schedule` "
    "all microbatches at once, which divides by the targets of all."
)
OF_PARTS = (
    "That is a mean of means over cp: its ranks have unequal numbers of targets, and each divided by its "
    "own. The stages divide by the targets of the whole rows: leave `count` alone, and sum."
)
OF_TARGETS = (
    "That is the mean over all targets of the batch: replicas have unequal numbers of them, and the loss "
    "that is asked for is the mean of the replicas' means."
)
MICROBATCHES = "`run_schedule` has divided by the targets of all microbatches: divide by dp alone."
ONLY_LAST = "only the last stage knows the loss. Sum over pp, so that all ranks return it."
Candidate = Callable[[int, str], Tensor]


def factor(value: float) -> str:
    """0.5 -> "1/2", 2.0 -> "2 times"."""
    share = Fraction(value).limit_denominator(4096)
    return f"{share}" if share < 1 else f"{share} times"


class Gradients:
    """The gradients that all ranks returned, beside the right ones."""

    def __init__(self, steps: Steps, observed: Observed):
        self.steps, self.observed, self.mesh = steps, observed, steps.mesh
        self.wanted = steps.held(steps.right.gradients)
        self.returned: Held = {(rank, name): observed.tensors[rank][name] for rank, name in self.wanted}

    def near(self, gradient: Tensor, wanted: Tensor, often: float = 1) -> bool:
        off = (gradient - wanted).abs().max()
        return bool(off <= often * ROUNDING * self.steps.largest)

    def are(self, candidate: Candidate) -> bool:
        """Whether the mistake gives every gradient."""
        pairs = self.returned.items()
        return all(self.near(gradient, candidate(*key), self.mesh.n) for key, gradient in pairs)

    def times(self, often: float) -> Candidate:
        return lambda rank, name: often * self.wanted[rank, name]

    def together(self, *axes: str) -> bool:
        """Whether the ranks along the axes have terms (over cp), or samples (over dp), of what is right."""
        dp = self.mesh.size("dp") if "dp" in axes else 1
        for rank, name in self.returned:
            group = self.mesh.ranks(rank, *axes)
            total = torch.stack([self.returned[other, name] for other in group]).sum(0) / dp
            if not self.near(total, self.wanted[rank, name], self.mesh.n):
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

    @property
    def untied_are_right(self) -> bool:
        return all(
            self.near(self.returned[k], w, self.mesh.n) for k, w in self.wanted.items() if k[1] != TIED
        )

    # ---- causes

    def causes(self) -> Iterator[str]:
        """The sentence for each mistake that gives these gradients, the likeliest first."""
        size, n = self.mesh.size, self.mesh.n
        dp, cp, tp = size("dp"), size("cp"), size("tp")
        if all(not gradient.any() for gradient in self.returned.values()):
            yield "All gradients are zero or None: has backward run? `run_schedule` does both passes."
        if cp > 1 and self.are(self.times(1 / cp)):
            yield f"The gradients are 1/{cp} of one process', on every parameter: {TERMS}"
        if n > dp and self.are(self.times(dp / n)):
            yield f"The gradients are {factor(dp / n)} of one process', on every parameter. {WORLD}"
        if dp > 1 and self.are(self.times(dp)):
            yield f"The gradients are {dp} times one process', on every parameter. {SAMPLES}"
        if dp > 1 and self.are(self.times(1 / dp)):
            yield f"The gradients are 1/{dp} of one process': they were divided by the size of dp twice."
        if self.are(self.times(1 / self.steps.count)):
            yield MICROBATCHES
        yield from self.of_the_tie()
        yield from self.unreduced(dp, cp)
        if tp > 1:
            yield from self.over_tp(tp)
        yield from self.of_calls(cp)
        yield from self.of_means(cp, dp)

    def unreduced(self, dp: int, cp: int) -> Iterator[str]:
        if cp > 1 and self.together("cp"):
            yield f"The terms of cp were not added: {TERMS}"
        if dp > 1 and self.together("dp"):
            yield "Replicas have gradients of their own rows: average over dp."
        if dp > 1 and cp > 1 and self.together("dp", "cp"):
            yield "Each rank has its own gradients: sum them over cp, and average over dp."

    def over_tp(self, tp: int) -> Iterator[str]:
        """The ranks of tp were added, as a mean or as a sum."""
        dp = self.mesh.size("dp")
        for share, whole in ((1 / tp, 1.0), (1.0, tp), (dp, tp * dp), (1 / tp / dp, 1 / dp)):
            if self.are(self.mixed(share, whole)):
                yield self.halves(whole == 1.0)

    def halves(self, mean: bool) -> str:
        name = "blocks.0.attention.query.weight"
        rows = len(self.wanted[0, name])
        how = "mean" if mean else "sum"
        fault = (
            f"Cut matrices are right parts mixed: rows 0-{rows - 1} of {name} hold the {how} of "
            f"{words.counted(self.mesh.size('tp'), 'rank')}' different rows"
        )
        norms = "; norms are right" if mean else ""
        tp_alone = "Leave tp out: its layers have summed."
        return f"{fault}{norms}. {OVER_WORLD if self.over_the_world() else tp_alone}"

    def over_the_world(self) -> bool:
        everyone = tuple(range(self.mesh.n))
        return any(o.group == everyone and o.nbytes > SMALL for o in self.observed.operations[0])

    def of_calls(self, cp: int) -> Iterator[str]:
        """Only if there are two calls."""
        if len(self.steps.batches) == 1:
            return
        first, second = (
            self.steps.held(Steps(self.mesh, self.steps.config, self.steps.seed, [batch]).right.gradients)
            for batch in self.steps.batches
        )
        if self.are(lambda rank, name: second[rank, name]):
            yield ONE_CALL
        if self.are(lambda rank, name: cp * first[rank, name] + second[rank, name]):
            yield AGAIN

    def of_means(self, cp: int, dp: int) -> Iterator[str]:
        if self.are(self.of(self.steps.mean_of_microbatches())):
            yield OF_MICROBATCHES
        if cp > 1 and self.are(self.of(self.steps.mean_of_parts())):
            yield OF_PARTS
        if dp > 1 and self.are(self.of(self.steps.mean_of_all_targets())):
            yield OF_TARGETS

    def of_the_tie(self) -> Iterator[str]:
        """Only if the embedding is tied to a head on another rank, and nothing else is wrong."""
        if not self.steps.config.tied or self.mesh.size("pp") == 1 or not self.untied_are_right:
            return
        tied = {key: tensor for key, tensor in self.returned.items() if key[1] == TIED}
        alone = f"{TIED} alone is wrong: "
        if all(self.near(tensor, 2 * self.wanted[key], self.mesh.n) for key, tensor in tied.items()):
            yield f"{alone}its two terms were added twice. `run_schedule` adds them already."
            return
        sums = (
            torch.stack([tied[other, TIED] for other in self.mesh.ranks(rank, "pp") if (other, TIED) in tied])
            for rank, _ in tied
        )
        if all(self.near(s.sum(0), self.wanted[key], self.mesh.n) for s, key in zip(sums, tied, strict=True)):
            yield f"{alone}its two terms, of the first stage and of the last, have not met."
        yield (
            f"{alone}it has a term on the first stage and one on the last. Reduce over the replicas once "
            "both have met, when `run_schedule` returns."
        )


def gradients_line(steps: Steps, title: str, weight: float = 2) -> Line:
    def judge(observed: Observed) -> Finding:
        for rank in range(observed.world_size):
            if misfits := observed.values[rank].misfits:
                name, text = next(iter(misfits.items()))
                if text != "None":
                    return wrong(
                        f"on rank {rank} the gradient of {name} has another shape, or is not float64."
                    )
                if len(misfits) < len(observed.tensors[rank]):
                    return wrong(f"on rank {rank} {name} has no gradient: `grad` is None.")
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
            return RIGHT
        rank, name = off
        said = difference(
            f"on rank {rank} the gradient of {name} is wrong", gradients.returned[off], gradients.wanted[off]
        )
        why = next(gradients.causes(), "")
        return wrong(said, why, cause=why or "gradients")

    return Line(f"gradients: {title}", judge, weight)


# ---- the loss


def loss_line(steps: Steps, title: str, weight: float = 1) -> Line:
    def judge(observed: Observed) -> Finding:
        for call, wanted in enumerate(steps.right.losses):
            returned = [observed.values[rank].returned[call] for rank in range(observed.world_size)]
            if (form := not_a_number(returned)) is not None:
                return form
            off = [abs(value - wanted) > FLOAT32 * wanted for value in returned]
            if any(off):
                rank = off.index(True)
                got, want = words.apart(float(returned[rank]), wanted)
                fault = f"rank {rank} returned another loss than one process has"
                why = next(loss_causes(steps, returned, wanted, rank, call), "")
                return wrong(Sentence(f"{fault}: {got} instead of {want}.", f"{fault}."), why, cause=why)
        return RIGHT

    return Line(f"loss: {title}", judge, weight)


def not_a_number(returned: list[Any]) -> Finding | None:
    for rank, value in enumerate(returned):
        if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
            continue
        said = f"on rank {rank} no finite number was returned."
        if value is None:
            return wrong(said, "Is there a `return` at the end?")
        return wrong(said, "Return the loss as a float, the same on all ranks.")
    return None


def loss_causes(steps: Steps, returned: list[float], wanted: float, rank: int, call: int) -> Iterator[str]:
    mesh = steps.mesh
    dp, cp, tp, pp = (mesh.size(axis) for axis in ("dp", "cp", "tp", "pp"))

    def near(value: float, other: float) -> bool:
        return abs(value - other) <= 2 * FLOAT32 * max(abs(other), 1)

    def are(often: float) -> bool:
        return all(near(value, often * wanted) for value in returned)

    def together(*axes: str) -> bool:
        """Sums over cp and pp, and means over dp, are right."""
        share = dp if "dp" in axes else 1
        return all(
            near(sum(returned[other] for other in mesh.ranks(k, *axes)) / share, wanted)
            for k in range(mesh.n)
        )

    last = [mesh.place(k, "pp") == pp - 1 for k in range(mesh.n)]
    if pp > 1 and not any(value for value, is_last in zip(returned, last, strict=True) if not is_last):
        yield f"Rank {rank} returns {returned[rank]}: {ONLY_LAST}"
    if tp > 1 and (are(tp) or are(tp / dp)):
        yield "Each rank of tp has the loss already: sum over pp and cp, and average over dp."
    if dp > 1 and are(dp):
        yield f"That is the sum over the replicas: {SAMPLES}"
    if cp > 1 and (are(1 / cp) or are(1 / cp / pp)):
        yield f"The loss is 1/{cp} of one process': ranks of cp hold terms of one sum, not samples of a mean."
    if pp > 1 and are(1 / pp):
        yield "That is a mean over the stages: all of them but the last add nothing."
    if are(1 / steps.count):
        yield MICROBATCHES
    if dp > 1 and together("dp"):
        yield f"That is the loss of a rank's own replica. {SAMPLES}"
    if cp > 1 and together("cp"):
        yield "That is the term of a rank's own tokens: sum over cp."
    if cp > 1 and dp > 1 and together("dp", "cp"):
        yield "That is the term of a rank's own tokens and rows: sum over cp, and average over dp."
    if are(steps.mean_of_microbatches().losses[call] / wanted):
        yield OF_MICROBATCHES
    if cp > 1 and are(steps.mean_of_parts().losses[call] / wanted):
        yield OF_PARTS
    if dp > 1 and are(steps.mean_of_all_targets().losses[call] / wanted):
        yield OF_TARGETS
