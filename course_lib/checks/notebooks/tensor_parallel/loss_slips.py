"""The results of mistakes in a loss over a cut vocabulary, and in its gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.notebooks.tensor_parallel.losses import UPSTREAM, Loss
from course_lib.checks.notebooks.tensor_parallel.shared import FACTOR_N
from course_lib.facts import chunk_sizes

OWN_LENGTH = 0  # a rank's first token is counted by as many logits as it has itself
Choice = Callable[[int], Tensor]  # rank -> for each target the place where its logit is looked for

LOCAL_SOFTMAX = (
    "The softmax is only over the rank's own logits, but the sum of exponentials goes over all ranks."
)
OWN_LARGEST = (
    "Each rank took off its own largest logit, and the sums of exponentials were added as if it had "
    "been the same. Agree on the largest first, by an all-reduce with MAX."
)


TARGETS_TURNED = (
    "A rank took 0 for the logit of a target that it has, and some other logit for a target that it does not "
    "have. Turn the mask around."
)


def by_ranks(loss: Loss) -> str:
    return f"Your result is the loss divided by {loss.n} ranks."


def elsewheres_logits(loss: Loss) -> Tensor:
    """The loss where every rank adds its first logit for the targets of others, and 0 for its own.

    All of these logits are counted from the largest.
    """
    largest = loss.logits.amax(-1)
    summed = torch.zeros(())
    for k in range(loss.n):
        local, elsewhere = loss.first(k), loss.local(k)[1]
        at = loss.part(k, loss.logits).gather(-1, local[..., None])[..., 0] - largest
        summed = summed + at.where(elsewhere, 0)
    return loss.y((loss.lse - largest - summed) * loss.counts)


def first_token(loss: Loss) -> str:
    return (
        f"The rank's first token is counted wrong: {loss.n} ranks do not divide {loss.vocab}. "
        "torch.tensor_split makes the first parts one longer."
    )


def _own_sums(loss: Loss) -> Tensor:
    """Of all exponentials, where each rank took off its own largest logit."""
    parts = (loss.part(k, loss.logits) for k in range(loss.n))
    sums = ((part - part.amax(-1, keepdim=True)).exp().sum(-1) for part in parts)
    return sum(sums, torch.zeros(()))


def of_value(loss: Loss) -> list[kit.Slip]:
    n, counted, everything = loss.n, loss.counts.sum(), loss.target.numel()

    def summed(at: Choice) -> Tensor:
        """The target's logit if each rank adds one that it looked up, whether it has the target or not."""
        parts = (loss.part(k, loss.logits).gather(-1, at(k)[..., None])[..., 0] for k in range(n))
        return loss.y((loss.lse - sum(parts, torch.zeros(()))) * loss.counts)

    def alone(k: int, of_target: Tensor) -> Tensor:
        """With the softmax over the rank's own logits."""
        local = loss.part(k, loss.logits).logsumexp(-1)
        return loss.y((local - of_target) * loss.counts)

    def own(k: int) -> Tensor:
        return loss.of_target.masked_fill(loss.local(k)[1], 0)

    def own_largest(k: int) -> Tensor:
        largest = loss.part(k, loss.logits).amax(-1)
        return loss.y((_own_sums(loss).log() + largest - loss.of_target) * loss.counts)

    def owners_largest() -> Tensor:
        """The same, with the largest of the rank that has the target."""
        largest = torch.zeros(())
        for k in range(n):
            largest = largest + loss.part(k, loss.logits).amax(-1).masked_fill(loss.local(k)[1], 0)
        return loss.y((_own_sums(loss).log() + largest - loss.of_target) * loss.counts)

    def owners_softmax() -> Tensor:
        """The loss of each target over the logits of the rank that has it, and 0 from the others."""
        own_sums = torch.zeros(())
        for k in range(n):
            local = loss.part(k, loss.logits).logsumexp(-1)
            own_sums = own_sums + local.masked_fill(loss.local(k)[1], 0)
        return loss.y((own_sums - loss.of_target) * loss.counts)

    def counted_from(each: int, taken_off: Tensor) -> Tensor:
        """Where every rank counts from rank * each, or OWN_LENGTH; taken_off: of all logits before that."""
        target_logit = taken_off
        for k in range(n):
            logits = loss.part(k, loss.logits)
            local = loss.target - k * (each or logits.shape[-1])
            here = (local >= 0) & (local < logits.shape[-1])
            at_target = logits.gather(-1, local.where(here, 0)[..., None])[..., 0] - taken_off
            target_logit = target_logit + at_target.where(here, 0)
        return loss.y((loss.lse - target_logit) * loss.counts)

    wrong_shard = (
        "The target's logit was taken on ranks that do not have it. Only one rank has it, at an index "
        "counted from its first token, so the other ranks add 0."
    )
    ignored = (
        "Ignored targets were counted, but they add nothing, and the mean is over the remaining "
        f"{int(counted)}, not over {everything}."
    )
    some_ignored = int(counted) < everything
    rest = (loss.lse * ~loss.counts).sum()
    first_logit = (loss.logits[..., 0] * ~loss.counts).sum()
    largest = (loss.logits.amax(-1) * ~loss.counts).sum()
    at_index = (loss.logits[..., max(loss.ignored, 0)] * ~loss.counts).sum()
    counted_too = [
        loss.each.sum() / everything,
        *(
            (loss.each.sum() + more) / by
            for more in (rest, rest - first_logit, rest - largest, rest - at_index)
            for by in (everything, counted)
        ),
    ]
    return [
        kit.Slip(LOCAL_SOFTMAX, lambda k: {"y": alone(k, loss.of_target)}),
        kit.Slip(LOCAL_SOFTMAX, lambda k: {"y": alone(k, own(k))}),
        kit.Slip(LOCAL_SOFTMAX, lambda k: {"y": owners_softmax()}),
        *(
            kit.Slip(wrong_shard, lambda k, at=at: {"y": summed(at)})
            for at in (loss.first, loss.nearest, loss.modulo)
        ),
        *(
            kit.Slip(
                first_token(loss),
                lambda k, each=each, taken_off=taken_off: {"y": counted_from(each, taken_off)},
            )
            for taken_off in (torch.zeros(()), loss.logits.amax(-1))
            for each in (loss.vocab // n, -(-loss.vocab // n), OWN_LENGTH)
            if loss.vocab % n
        ),
        *(
            kit.Slip(
                wrong_shard,
                lambda k, at=at: {"y": summed(at) + loss.y((n - 1) * loss.logits.amax(-1) * loss.counts)},
            )
            for at in (loss.first, loss.nearest, loss.modulo)
        ),
        kit.Slip(
            "The largest logit was added to the log of the sum, but the target's logit is also counted from "
            "it, so it has cancelled already.",
            lambda k: {"y": loss.y(loss.each + loss.logits.amax(-1) * loss.counts)},
        ),
        kit.Slip(
            "The target's logit is on one rank, but the other ranks went on with 0. Sum it over the ranks.",
            lambda k: {"y": loss.y(loss.lse * loss.counts - own(k))},
        ),
        kit.Slip(OWN_LARGEST, lambda k: {"y": own_largest(k)}),
        kit.Slip(OWN_LARGEST, lambda k: {"y": owners_largest()}),
        kit.Slip(
            (
                "The largest logit was taken off the exponents, but not put back. Add it to the log of "
                "the sum."
            ),
            lambda k: {"y": loss.y(loss.each - loss.logits.amax(-1) * loss.counts)},
        ),
        *(kit.Slip(ignored, lambda k, mean=mean: {"y": mean}) for mean in counted_too if some_ignored),
        kit.Slip(
            "Your result is the sum over the targets. Return their mean.", lambda k: {"y": loss.each.sum()}
        ),
        kit.Slip(
            f"Your result is {n} times the loss, because it was summed over ranks that all had it already.",
            lambda k: {"y": n * loss.y()},
        ),
        kit.Slip(by_ranks(loss), lambda k: {"y": loss.y() / n}),
        kit.Slip(TARGETS_TURNED, lambda k: {"y": elsewheres_logits(loss)}),
    ]


def of_gradient(loss: Loss) -> list[kit.Slip]:
    soft = loss.logits.softmax(-1)

    def scaled(factor: float) -> Callable[[int], dict[str, Tensor]]:
        return lambda k: {"grad.logits": factor * loss.grad(k)}

    def one_hot_at(k: int, at: Choice) -> Tensor:
        """With 1 taken off in a column of the rank for every target, its own or another rank's."""
        size = chunk_sizes(loss.vocab, loss.n)[k]
        rows = loss.part(k, soft) - F.one_hot(at(k), size)
        return UPSTREAM / loss.counts.sum() * rows * loss.counts[..., None]

    def local(k: int) -> Tensor:
        rows = loss.part(k, loss.logits).softmax(-1) - loss.part(k, loss.one_hot)
        return UPSTREAM / loss.counts.sum() * rows * loss.counts[..., None]

    def own_largest(k: int) -> Tensor:
        own = loss.part(k, loss.logits)
        soft = (own - own.amax(-1, keepdim=True)).exp() / _own_sums(loss)[..., None]
        rows = soft - loss.part(k, loss.one_hot)
        return UPSTREAM / loss.counts.sum() * rows * loss.counts[..., None]

    def through_largest(k: int) -> Tensor:
        """With the gradient that also went back to the rank's own largest logit, as if that had been taken
        off."""
        own, rows = loss.part(k, loss.logits), loss.grad(k)
        places = own.argmax(-1, keepdim=True)
        return rows.scatter_add(-1, places, -rows.sum(-1, keepdim=True))

    def owners_local(k: int) -> Tensor:
        """The gradient of a softmax over the own logits, for targets that are here."""
        return local(k) * ~loss.local(k)[1][..., None]

    def ignored(k: int, by: int, one_hot: Tensor) -> Tensor:
        return UPSTREAM / by * loss.part(k, soft - one_hot)

    def one_hot_elsewhere(k: int) -> Tensor:
        """With 1 taken off in the rank's first column for the targets of other ranks alone."""
        elsewhere = loss.local(k)[1]
        rows = (
            loss.part(k, soft)
            - F.one_hot(loss.first(k), chunk_sizes(loss.vocab, loss.n)[k]) * (elsewhere[..., None])
        )
        return UPSTREAM / loss.counts.sum() * rows * loss.counts[..., None]

    def counted_from(k: int, each: int) -> Tensor:
        """With 1 taken off where a rank finds the target that counts from rank * each."""
        size = chunk_sizes(loss.vocab, loss.n)[k]
        at = loss.target - k * (each or size)
        here = loss.counts & (at >= 0) & (at < size)
        rows = loss.part(k, soft) - F.one_hot(at.where(here, 0), size) * here[..., None]
        return UPSTREAM / loss.counts.sum() * rows * loss.counts[..., None]

    counted, everything = int(loss.counts.sum()), loss.target.numel()
    every_rank = (
        "Every rank took 1 off for every target, but softmax - 1 is only for the rank that has the target."
    )
    slips = [
        kit.Slip(FACTOR_N, scaled(loss.n)),
        kit.Slip(by_ranks(loss), lambda k: {"y": loss.y() / loss.n, "grad.logits": loss.grad(k) / loss.n}),
        kit.Slip(
            TARGETS_TURNED, lambda k: {"y": elsewheres_logits(loss), "grad.logits": one_hot_elsewhere(k)}
        ),
        kit.Slip("The gradient given to backward was left out. Multiply by it.", scaled(1 / UPSTREAM)),
        kit.Slip("The mean also divides the gradient, by the number of targets that count.", scaled(counted)),
        *(
            kit.Slip(every_rank, lambda k, at=at: {"grad.logits": one_hot_at(k, at)})
            for at in (loss.first, loss.nearest, loss.modulo)
        ),
        kit.Slip(LOCAL_SOFTMAX, lambda k: {"grad.logits": local(k)}),
        kit.Slip(LOCAL_SOFTMAX, lambda k: {"grad.logits": owners_local(k)}),
        *(
            kit.Slip(first_token(loss), lambda k, each=each: {"grad.logits": counted_from(k, each)})
            for each in (loss.vocab // loss.n, -(-loss.vocab // loss.n), OWN_LENGTH)
            if loss.vocab % loss.n
        ),
        kit.Slip(OWN_LARGEST, lambda k: {"grad.logits": own_largest(k)}),
        kit.Slip(
            "A gradient went back through the largest logit. The loss does not depend on the value "
            "taken off, so use logits.detach() before the maximum.",
            lambda k: {"grad.logits": through_largest(k)},
        ),
        kit.Slip(
            "Your gradient is the softmax without 1 taken off at the target.",
            lambda k: {"grad.logits": loss.grad(k, soft)},
        ),
    ]
    if counted < everything:
        slips += [
            *(
                kit.Slip(
                    (
                        "Ignored targets have a gradient here, but they add nothing to the loss, so their "
                        "gradient is 0."
                    ),
                    lambda k, by=by, one_hot=one_hot: {"grad.logits": ignored(k, by, one_hot)},
                )
                for by in (counted, everything)
                for one_hot in (loss.one_hot, loss.one_hot_of_all)
            ),
            kit.Slip(
                f"The gradient was divided by all targets, but the mean is over the {counted} that count.",
                scaled(counted / everything),
            ),
        ]
    return slips
