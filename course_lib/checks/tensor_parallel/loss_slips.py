"""What mistakes make of a loss over a cut vocabulary, and of its gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.checks.engine.layers.lines import Mistake
from course_lib.checks.tensor_parallel.losses import UPSTREAM, Loss
from course_lib.checks.tensor_parallel.shared import FACTOR_N
from course_lib.facts import chunk_sizes

Choice = Callable[[int], Tensor]  # rank -> for each target the place where its logit is looked for

OWN_LARGEST = (
    "Each rank took off its own largest logit, and the sums of exponentials were added as if it had "
    "been the same: agree on the largest first, by an all-reduce with MAX."
)


def _own_sums(loss: Loss) -> Tensor:
    """Of all exponentials, where each rank took off its own largest logit."""
    parts = (loss.part(k, loss.logits) for k in range(loss.n))
    sums = ((part - part.amax(-1, keepdim=True)).exp().sum(-1) for part in parts)
    return sum(sums, torch.zeros(()))


def of_value(loss: Loss) -> list[Mistake]:
    n, counted, everything = loss.n, loss.counts.sum(), loss.target.numel()

    def summed(at: Choice) -> Tensor:
        """The target's logit where each rank adds one that it looked up, whoever has the target."""
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

    def counted_from(each: int) -> Tensor:
        """Where every rank counts from rank * each."""
        found = torch.zeros(())
        for k in range(n):
            logits, local = loss.part(k, loss.logits), loss.target - k * each
            here = (local >= 0) & (local < logits.shape[-1])
            found = found + logits.gather(-1, local.where(here, 0)[..., None])[..., 0].where(
                here, 0
            )
        return loss.y((loss.lse - found) * loss.counts)

    local_softmax = (
        "The softmax is over the rank's own logits: the sum of exponentials goes over all ranks."
    )
    wrong_shard = (
        "The target's logit was taken on ranks that do not have it: it is on one rank alone, counted from "
        "its first token; the others add 0."
    )
    ignored = (
        "Ignored targets were counted: they add nothing, and the mean is over the others, "
        f"{int(counted)} here and not {everything}."
    )
    some_ignored = int(counted) < everything
    rest = (loss.lse * ~loss.counts).sum()
    first_logit = (loss.logits[..., 0] * ~loss.counts).sum()
    counted_too = [
        loss.each.sum() / everything,
        *(
            (loss.each.sum() + more) / by
            for more in (rest, rest - first_logit)
            for by in (everything, counted)
        ),
    ]
    return [
        Mistake(local_softmax, lambda k: {"y": alone(k, loss.of_target)}),
        Mistake(local_softmax, lambda k: {"y": alone(k, own(k))}),
        *(
            Mistake(wrong_shard, lambda k, at=at: {"y": summed(at)})
            for at in (loss.first, loss.nearest, loss.modulo)
        ),
        *(
            Mistake(
                f"The rank's first token is counted wrong: {n} ranks do not divide {loss.vocab}. Of parts as "
                "torch.tensor_split cuts them the first ones are one longer.",
                lambda k, each=each: {"y": counted_from(each)},
            )
            for each in (loss.vocab // n, -(-loss.vocab // n))
            if loss.vocab % n
        ),
        Mistake(
            "The target's logit is on one rank, and the others went on with 0: sum it over the ranks.",
            lambda k: {"y": loss.y(loss.lse * loss.counts - own(k))},
        ),
        Mistake(OWN_LARGEST, lambda k: {"y": own_largest(k)}),
        Mistake(OWN_LARGEST, lambda k: {"y": owners_largest()}),
        Mistake(
            "The largest logit was taken off the exponents, and not put back: log of the sum, plus it.",
            lambda k: {"y": loss.y(loss.each - loss.logits.amax(-1) * loss.counts)},
        ),
        *(
            Mistake(ignored, lambda k, one=one: {"y": one})
            for one in counted_too
            if some_ignored
        ),
        Mistake(
            "That is the sum over the targets; their mean is asked for.",
            lambda k: {"y": loss.each.sum()},
        ),
        Mistake(
            f"That is {n} times the loss: it was summed over ranks that all had it already.",
            lambda k: {"y": n * loss.y()},
        ),
        Mistake(f"That is the loss divided by {n} ranks.", lambda k: {"y": loss.y() / n}),
    ]  # fmt: skip


def of_gradient(loss: Loss) -> list[Mistake]:
    soft = loss.logits.softmax(-1)

    def scaled(factor: float) -> Callable[[int], dict[str, Tensor]]:
        return lambda k: {"grad.logits": factor * loss.grad(k)}

    def one_hot_at(k: int, at: Choice) -> Tensor:
        """With 1 taken off in a column of the rank for every target, whoever has it."""
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
        """With what also went back to the rank's own largest logit, as if it alone had been taken off."""
        own, rows = loss.part(k, loss.logits), loss.grad(k)
        places = own.argmax(-1, keepdim=True)
        return rows.scatter_add(-1, places, -rows.sum(-1, keepdim=True))

    def ignored(k: int) -> Tensor:
        return UPSTREAM / loss.counts.sum() * loss.part(k, soft - loss.one_hot)

    counted, everything = int(loss.counts.sum()), loss.target.numel()
    every_rank = (
        "Every rank took 1 off for every target; softmax - 1 at the target is for the rank alone "
        "that has it."
    )
    found = [
        Mistake(FACTOR_N, scaled(loss.n)),
        Mistake(
            "The gradient that backward was given was left out: multiply by it.",
            scaled(1 / UPSTREAM),
        ),
        Mistake(
            "The mean divides the gradient, too: by the number of targets that count.", scaled(counted)
        ),
        *(
            Mistake(every_rank, lambda k, at=at: {"grad.logits": one_hot_at(k, at)})
            for at in (loss.first, loss.nearest, loss.modulo)
        ),
        Mistake(
            "The softmax is over the rank's own logits: divide by the sum of exponentials of all ranks.",
            lambda k: {"grad.logits": local(k)},
        ),
        Mistake(OWN_LARGEST, lambda k: {"grad.logits": own_largest(k)}),
        Mistake(
            "A gradient went back through the largest logit. The loss does not depend on what is taken off: "
            "logits.detach() before the maximum.",
            lambda k: {"grad.logits": through_largest(k)},
        ),
        Mistake(
            "That is the softmax without 1 taken off at the target.",
            lambda k: {"grad.logits": loss.grad(k, soft)},
        ),
    ]  # fmt: skip
    if counted < everything:
        found += [
            Mistake(
                "Ignored targets have a gradient here: they add nothing to the loss, and leave nothing.",
                lambda k: {"grad.logits": ignored(k)},
            ),
            Mistake(
                f"Divided by all targets: the mean is over the {counted} that count.",
                scaled(counted / everything),
            ),
        ]
    return found
