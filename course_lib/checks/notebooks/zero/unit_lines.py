"""A unit's run: the parameters and gradients that a right one gives, and the lines that demand them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from course_lib.checks import kit
from course_lib.checks.kit import ANY, RIGHT, Draw, Finding, Observed, words, wrong

TOLERANCE = 1e-12
ITEM = 8  # bytes of a float64
BACKWARDS = 2
USES = {"first": 1.0, "second": 2.0}  # of the parameters, and by what they are multiplied then
Row = torch.Tensor
# the error where None is added to, or is to receive
NO_GRADIENT_YET = re.compile(
    r"\+=?: 'NoneType' and|'NoneType' object has no attribute '(add|copy)_'|`output`[\s\S]*NoneType"
)
SHARD_WITHOUT_GRADIENT = (
    "The shard's .grad is None before the first gradient arrives, and again after zero_grad(). Set it to the "
    "mean then, and add only where there is a gradient already."
)


@dataclass(frozen=True)
class UnitRun:
    """Parameters and gradients of every rank, in float64, and the results of a right unit.

    params[rank][k], gradients[backward][rank][k]; a gradient that is None is missing on that rank.
    """

    params: list[list[torch.Tensor]]
    gradients: list[list[list[torch.Tensor | None]]]
    x: torch.Tensor
    trained: bool = True

    @property
    def n(self) -> int:
        return len(self.params)

    @property
    def total(self) -> int:
        return sum(p.numel() for p in self.params[0])

    @property
    def size(self) -> int:
        """Elements of a shard."""
        return -(-self.total // self.n)

    @property
    def gathered(self) -> int:
        """Bytes that a rank sends in a gather: its shard, N - 1 times."""
        return (self.n - 1) * self.size * ITEM

    def row(self, tensors: Sequence[torch.Tensor]) -> Row:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        return torch.nn.functional.pad(flat, (0, self.n * self.size - self.total))

    def part(self, row: Row, rank: int) -> Row:
        return row.view(self.n, -1)[rank]

    def mean(self, backward: int) -> Row:
        """Of the gradients, missing ones as zeros."""
        rows = [
            self.row(
                [torch.zeros_like(p) if g is None else g for g, p in zip(own, self.params[0], strict=True)]
            )
            for own in self.gradients[backward]
        ]
        return torch.stack(rows).mean(0)


def draw_run(draw: Draw, n: int, *, trained: bool = True, missing: bool = False) -> UnitRun:
    """Three parameters, one of them a single number; their elements are not a multiple of the ranks.

    missing: the last rank has no gradient for one of them in the first backward.
    """
    width = draw.choice((5, 7))
    shapes: list[tuple[int, ...]] = [(width, width), (width,), ()]
    while (sum(map(math.prod, shapes))) % n == 0 and n > 1:
        shapes[1] = (shapes[1][0] + 1,)
    params = [[normal(draw, shape) for shape in shapes] for _ in range(n)]
    gradients: list[list[list[torch.Tensor | None]]] = [
        [[normal(draw, shape) for shape in shapes] for _ in range(n)] for _ in range(BACKWARDS)
    ]
    if missing:
        gradients[0][n - 1][1] = None
    return UnitRun(params, gradients, normal(draw, (2, width)), trained)


def normal(draw: Draw, shape: tuple[int, ...]) -> torch.Tensor:
    return draw.normal(*(shape or (1,)), dtype=torch.float64).reshape(shape)


# ---- lines


def ranks(observed: Observed) -> list[int]:
    return list(observed.case.groups[0]) if observed.case.groups else list(range(observed.world_size))


def close(actual: torch.Tensor, wanted: torch.Tensor) -> bool:
    return kit.close(actual.to(torch.float64), wanted, TOLERANCE, least=1.0)


def own_shard(run: UnitRun) -> Callable[[Observed], Finding]:
    """The shard is this rank's part of the first rank's row, a parameter like the others."""

    def judge(observed: Observed) -> Finding:
        whole = run.row(run.params[0])
        for place, rank in enumerate(ranks(observed)):
            actual = observed.tensors[rank]["shard"]
            if observed.values[rank].shard != (True, run.trained):
                return wrong(
                    f"`shard` on rank {rank} is not an nn.Parameter with requires_grad={run.trained}.",
                    (
                        "The optimizer gets the shard, so make it an nn.Parameter(own, "
                        "requires_grad=params[0].requires_grad)."
                    ),
                    cause="kind of shard",
                )
            if not close(actual, run.part(whole, place)):
                return wrong(
                    f"`shard` on rank {rank} is not part {place} of the first rank's row.",
                    why_not_shard(run, place, actual),
                    cause="shard",
                )
        return RIGHT

    return judge


def why_not_shard(run: UnitRun, place: int, actual: torch.Tensor) -> str:
    if close(actual, run.part(run.row(run.params[place]), place)):
        return "All ranks begin with the first rank's values, so broadcast the row before you cut it."
    others = [k for k in range(run.n) if close(actual, run.part(run.row(run.params[0]), k))]
    if others:
        return "The shard is another rank's part. dist.get_rank(group) is the number of this rank's part."
    return "Lay the parameters in one row, in their order, with zeros at the end, and cut it into N parts."


def gathers(run: UnitRun) -> Callable[[Observed], Finding]:
    """After gather() every parameter is whole, in its shape, with the shards' present values."""

    def judge(observed: Observed) -> Finding:
        for rank in ranks(observed):
            for when, factor in USES.items():
                if not observed.values[rank].whole.get(when):
                    return wrong(
                        f"after gather() a parameter on rank {rank} does not have its shape, or has no "
                        "memory for it.",
                        "Give the storage its size again (untyped_storage().resize_) before the all-gather "
                        "writes into it. Outside the constructor leave param.data alone, because the "
                        "parameters must stay views of that storage.",
                        cause="not whole",
                    )
                for k, p in enumerate(run.params[0]):
                    actual = observed.tensors[rank][f"{when}.{k}"]
                    if not close(actual, factor * p):
                        if not (shards := own_shard(run)(observed)).ok:
                            return shards
                        return wrong(
                            f"after gather() parameter {k} on rank {rank} does not have the shards' values.",
                            why_not_gathered(run, when, actual, k),
                            cause=f"gathered {when}",
                        )
        return RIGHT

    return judge


def why_not_gathered(run: UnitRun, when: str, actual: torch.Tensor, k: int) -> str:
    if when == "second" and close(actual, run.params[0][k]):
        return (
            "The optimizer changes the shards between two uses, so gather() must bring their present "
            "values, not an earlier copy."
        )
    return (
        "gather() writes the shards of all ranks into the row, in the order of the ranks. Each parameter is "
        "a view of that row at its own offset, which is the sum of the sizes before it."
    )


MOMENTS = {"freed": "free()", "made": "the constructor", "end": "the last free()"}
ADVICE = {
    "made": (
        "Also free the unit at the end of the constructor, because between uses a rank has only its shard."
    ),
    "freed": (
        "free() must give back the memory itself, with flat.untyped_storage().resize_(0). The "
        "parameters stay views of it, and nothing else should hold a copy."
    ),
    "end": "After reduce(), free() gives back the memory again.",
}


def frees(run: UnitRun) -> Callable[[Observed], Finding]:
    """Outside of gather() and free() there is no memory behind the parameters, under any view."""

    def judge(observed: Observed) -> Finding:
        for rank in ranks(observed):
            held = observed.values[rank].bytes
            for when, moment in MOMENTS.items():
                if held.get(when) != 0:
                    finding = wrong(
                        f"after {moment} there is memory behind the parameters of rank {rank}.",
                        ADVICE[when],
                        cause=f"held {when}",
                    )
                    return replace(finding, misses_point=when == "freed")
            if run.trained and observed.values[rank].kept[:1] != [0]:
                finding = wrong(
                    f"after free() a view that was made before it still has its memory on rank {rank}.",
                    "Autograd keeps such views for backward. Another tensor in param.data, or del, "
                    "frees nothing then. Make the storage itself empty, "
                    "flat.untyped_storage().resize_(0).",
                    cause="views keep it",
                )
                return replace(finding, misses_point=True)
        return RIGHT

    return judge


def empty_and_whole(run: UnitRun) -> Callable[[Observed], float]:
    """For `Line.shows`: the parameters have no memory between uses, and in use they have all of it.

    Each shard has numbers of the parameters, each once, and at least half of what a gather sends was sent.
    """

    def shows(observed: Observed) -> float:
        in_use = all(observed.values[rank].whole.get(when) for rank in ranks(observed) for when in USES)
        enough = all(sent(observed, rank, "made", "first") >= run.gathered / 2 for rank in ranks(observed))
        return float(in_use and enough and of_parameters(run, observed) and frees(run)(observed).ok)

    return shows


def of_parameters(run: UnitRun, observed: Observed) -> bool:
    """Whether each rank's shard has different numbers of the parameters, those of one rank or another."""
    every = torch.cat([run.row(own) for own in run.params])
    for rank in ranks(observed):
        shard = observed.tensors[rank]["shard"].to(torch.float64)
        shard = shard[shard != 0]  # less the padding
        whole = len(shard) >= run.size - (run.n * run.size - run.total)
        if not (whole and len(shard.unique()) == len(shard) and bool(torch.isin(shard, every).all())):
            return False
    return True


def used_again(run: UnitRun) -> Callable[[Observed], Finding]:
    """Views that autograd kept before free() are right again after gather(): backward finds the weights."""

    def judge(observed: Observed) -> Finding:
        weight = (run.params[0][0]).clone().requires_grad_()
        torch.tanh(run.x @ weight).sum().backward()
        assert weight.grad is not None
        for rank in ranks(observed):
            kept, actual = observed.values[rank].kept, observed.tensors[rank]["back"]
            if kept[:1] != [0]:  # a stub whose free() does nothing finds the weights, too
                return wrong(
                    f"free() left memory behind the views that autograd keeps on rank {rank}.", cause=ANY
                )
            if len(kept) != 2 or not kept[1]:
                return wrong(
                    f"after free() and gather() the views that autograd keeps have no memory on rank {rank}.",
                    "Fill the same storage again. Resize it with resize_, and all-gather into it, "
                    "because a new tensor in param.data leaves autograd with the old, empty one.",
                    cause="another storage",
                )
            if not close(actual, weight.grad):
                if not (shards := own_shard(run)(observed)).ok:
                    return shards
                return wrong(
                    f"a backward after free() and gather() gives another gradient on rank {rank}.",
                    (
                        "The parameter's .grad belongs to its backward, so neither free() nor gather() "
                        "should change it."
                    ),
                    cause="backward",
                )
        return RIGHT

    return judge


def reduces(run: UnitRun) -> Callable[[Observed], Finding]:
    """shard.grad is the mean over the ranks, of two backwards their sum."""

    def judge(observed: Observed) -> Finding:
        for place, rank in enumerate(ranks(observed)):
            if not observed.values[rank].whole.get("second"):
                return wrong("the parameters are not whole, so no gradients fit them.", cause=ANY)
            first, both = run.mean(0), run.mean(0) + run.mean(1)
            for number, row in enumerate((first, both)):
                actual = observed.tensors[rank][f"mean.{number}"]
                if not close(actual, run.part(row, place)):
                    times = "once" if number == 0 else "twice"
                    return wrong(
                        f"after reduce() was called {times}, shard.grad on rank {rank} is not "
                        f"{'the mean over the ranks' if number == 0 else 'the sum of both means'}.",
                        why_not_reduced(run, place, number, actual),
                        cause=f"mean {number}",
                    )
        return RIGHT

    return judge


def why_not_reduced(run: UnitRun, place: int, number: int, actual: torch.Tensor) -> str:
    row = run.mean(0) + (run.mean(1) if number else 0)
    want = run.part(row, place)
    own = run.row(
        [
            torch.zeros_like(p) if g is None else g
            for g, p in zip(run.gradients[0][place], run.params[0], strict=True)
        ]
    )
    if number and close(actual, run.part(run.mean(1), place)):
        return "The gradients of the first backward were overwritten. Add to shard.grad instead."
    if number and close(actual, want + run.part(run.mean(0), place)):
        return "The first gradients counted twice. Set .grad of the parameters to None in reduce()."
    if close(actual, run.n * want):
        return f"shard.grad is the sum over the {run.n} ranks. Divide it by their number."
    if close(actual, want / run.n):
        return f"shard.grad is the mean divided by {run.n} once more. Average only once."
    if not number and close(actual, run.part(own, place)):
        return "shard.grad is this rank's own gradient, because nothing was exchanged."
    return (
        "Lay the gradients in one row as the parameters, zeros where there is none, reduce-scatter it, and "
        "divide by the number of ranks."
    )


def cleared(observed: Observed) -> Finding:
    """reduce() leaves no gradient in the parameters."""
    for rank in ranks(observed):
        left = observed.values[rank].left
        if len(left) != BACKWARDS:
            return wrong("the parameters are not whole, so no gradients fit them.", cause=ANY)
        if any(left):
            return wrong(
                f"after reduce() parameters of rank {rank} still have a .grad.",
                "Set it to None, because otherwise the next backward adds to it.",
                cause="left",
            )
    return RIGHT


def sent(observed: Observed, rank: int, first: str, last: str) -> float:
    """Bytes that a rank sent between two moments; -1 if it did not report them."""
    begun = observed.values[rank].begun
    if first not in begun or last not in begun:
        return -1
    return sum(operation.bytes_sent for operation in observed.operations[rank][begun[first] : begun[last]])


def bytes_of(run: UnitRun) -> Callable[[Observed], Finding]:
    """gather() sends this rank's shard (N - 1) times at most, a second one nothing; reduce() as much."""

    def judge(observed: Observed) -> Finding:
        enough = run.gathered
        for rank in ranks(observed):
            moments = (
                ("gather()", "made", "first", "all-gather the shards into the row, once."),
                ("reduce()", "second", "reduced 0", "A reduce-scatter of the row is enough."),
            )
            for what, first, last, advice in moments:
                got = sent(observed, rank, first, last)
                if abs(got - enough) > 1:
                    return wrong(
                        f"{what} sent {words.number(round(got))} bytes from rank {rank}; "
                        f"{words.number(enough)} are {'enough' if got > enough else 'needed'}.",
                        advice[0].upper() + advice[1:],
                        cause=f"bytes of {what}",
                    )
            if sent(observed, rank, "first", "again"):
                return wrong(
                    f"a second gather() without a free() between sent something from rank {rank}.",
                    "Remember whether the parameters are whole, because a block that is used twice in "
                    "one forward gathers once.",
                    cause="again",
                )
        return RIGHT

    return judge
