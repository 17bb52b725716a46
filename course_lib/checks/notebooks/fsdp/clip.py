"""clip_grad_norm: one norm from the shards of all ranks, and every shard scaled alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.rank.harness import CallInstructions

ROUNDING = 1e-4  # of the norm, and of the largest element
HUGE = 1e300  # no norm
WEIGHT = 7.0  # each element of a shard
MANY = 10  # times the bytes of one number: then gradients travel
BY_OWN_NORM = (
    "Each rank scaled by another factor, so the shards of one weight no longer fit together. Take the "
    "norm over all shards of all ranks."
)
SQUARE = "You returned the square of the norm. Take its root."
SCALED = "You returned the norm after scaling. Return the norm the gradients had before."
REPLICAS = "The replicas hold the same shards, so add only over `group`, and count each shard once."
AGAIN = (
    "The ranks called all_reduce more than once. Add up all squares on the rank, then call it once, over "
    "`group`."
)
NARROW = "The squares were added in bfloat16. Cast each gradient to float32 before you square it."
STAYED_AWAY = "A rank has no gradients here, but it must also call the all-reduce, with a sum of zero."


@dataclass(frozen=True)
class Pieces:
    """grads[rank][i]: the rank's piece of the i-th gradient, in float64, or None; replicas: of each shard."""

    grads: Sequence[Sequence[Tensor | None]]
    max_norm: float
    replicas: int = 1
    dtype: torch.dtype = torch.float32

    @property
    def n(self) -> int:
        """Ranks of a group, which together hold each gradient once."""
        return len(self.grads) // self.replicas

    def group(self, rank: int) -> list[int]:
        return list(range(rank // self.n * self.n, (rank // self.n + 1) * self.n))

    def squares(self, rank: int) -> list[float]:
        return [float(grad.square().sum()) for grad in self.grads[rank] if grad is not None]

    @property
    def norm(self) -> float:
        return sum(sum(self.squares(rank)) for rank in self.group(0)) ** 0.5

    def is_right_by_chance(self) -> bool:
        """Whether squares in the gradients' bfloat16, or also their sum and its root, give the right norm."""
        if self.dtype != torch.bfloat16:
            return False
        squares = [
            torch.stack([grad.bfloat16().square().sum() for grad in self.grads[k] if grad is not None])
            for k in self.group(0)
        ]
        narrow = float(torch.stack(squares).double().sum()) ** 0.5
        narrower = float(torch.stack(squares).sum(0).sum().sqrt())
        return any(abs(norm / self.norm - 1) < 3 * ROUNDING for norm in (narrow, narrower))

    def norms(self, rank: int) -> dict[str, float]:
        """The sentence for each mistake, and the norm that the mistake gives."""
        over = [self.squares(member) for member in self.group(rank)]
        own, together = sum(self.squares(rank)), sum(map(sum, over))
        return {
            REPLICAS: (self.replicas * together) ** 0.5 if self.replicas > 1 else -1,
            BY_OWN_NORM: own**0.5,
            ("Norms do not add up, but their squares do. Add the squares of all ranks, then take the "
            "root."): sum(
                sum(squares) ** 0.5 for squares in over
            ),
            "Norms do not add up. Add the squares of all elements of all tensors, then take the root.": sum(
                square**0.5 for squares in over for square in squares
            ),
            "The norms of single tensors were added on a rank. Add squares instead.": sum(
                sum(square**0.5 for square in squares) ** 2 for squares in over
            ) ** 0.5,
            ("The squares were averaged over the ranks. Add them, because every rank holds other "
            "elements."): (
                together / self.n
            ) ** 0.5,
            SQUARE: together,
            SCALED: min(self.max_norm, together**0.5),
            "You returned the largest rank's norm. Add the squares of all ranks.": max(map(sum, over)) ** 0.5,
            "You returned the magnitude of the largest element. Take the root of the sum of squares.": max(
                float(grad.abs().max()) for k in self.group(rank) for grad in self.grads[k]
                if grad is not None and grad.numel()
            ),
        }  # fmt: skip

    def of_other_squares(self) -> dict[str, float]:
        """Mistakes in the sum on a rank: all ranks have one norm, for which one number is sent."""
        ranks = self.group(0)
        held = [[grad for grad in self.grads[rank] if grad is not None] for rank in ranks]
        grads = [grad for of_rank in held for grad in of_rank]
        weights = sum(3 if grad is None else grad.numel() for rank in ranks for grad in self.grads[rank])
        return {
            "The squares were divided by the number of all ranks. Add them, and divide by nothing.": (
                self.norm / len(self.grads) ** 0.5
            ),
            "Only the last gradient of each rank was counted. Add with += instead of =.": sum(
                float(of_rank[-1].square().sum()) for of_rank in held if of_rank
            ) ** 0.5,
            "The norms of single tensors were added before you took the root. Add squares instead.": sum(
                float(grad.norm()) for grad in grads
            ) ** 0.5,
            "The elements were added before they were squared. Square each element first.": sum(
                float(grad.sum()) ** 2 for grad in grads
            ) ** 0.5,
            "The magnitudes of the elements were added. Add their squares instead.": sum(
                float(grad.abs().sum()) for grad in grads
            ) ** 0.5,
            "You added the squares of the weights. Add the squares of the gradients.": WEIGHT * weights**0.5,
        }  # fmt: skip

    @property
    def tolerance(self) -> float:
        return 1e-2 if self.dtype == torch.bfloat16 else ROUNDING

    def side(self, rank: int) -> kit.RankSide:
        inputs, shards, outputs = {}, [], {}
        for i, gradient in enumerate(self.grads[rank]):
            name = f"shard{i}"
            size = 3 if gradient is None else gradient.numel()
            inputs[name] = torch.full((size,), WEIGHT, dtype=self.dtype)
            outputs[name] = kit.Spec.of(inputs[name])
            shards.append({"parameter": name, "grad": None if gradient is None else f"grad{i}"})
            if gradient is not None:
                inputs[f"grad{i}"] = gradient.to(self.dtype)
                outputs[f"{name}.grad"] = kit.Spec.of(inputs[f"grad{i}"])
        kwargs = {}
        if self.replicas > 1:  # the groups of the case: those of shards, then those of replicas
            kwargs = {
                "group": {"group": rank // self.n},
                "replica_group": {"group": self.replicas + rank % self.n},
            }
        args = [{"list": shards}, {"value": self.max_norm}]
        instructions = CallInstructions(args, [*outputs, "result"], kwargs, plain=True)
        return kit.RankSide(inputs, instructions, outputs)

    @property
    def groups(self) -> list[list[int]]:
        if self.replicas == 1:
            return []
        ranks = range(len(self.grads))
        shards = [self.group(self.n * k) for k in range(self.replicas)]
        return [*shards, *([r for r in ranks if r % self.n == k] for k in range(self.n))]


def near(result: float, norm: float) -> bool:
    return abs(result - norm) <= ROUNDING * norm


def norm_line(pieces: Pieces, title: str, weight: float = 1) -> kit.Line:
    others = pieces.of_other_squares()

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in range(observed.world_size):
            result = observed.values[rank].result
            if not isinstance(result, int | float) or isinstance(result, bool):
                return kit.wrong(
                    f"on rank {rank} no finite number was returned.",
                    "Return the norm before scaling, as a float.",
                )
            if near(result, pieces.norm):
                continue
            fits = (says for says, norm in pieces.norms(rank).items() if near(result, norm))
            got, want = words.apart(float(result), pieces.norm)
            said = f"rank {rank} did not return the norm of the whole gradient"
            why = next(fits, "")
            missed = bool(why) and why not in (SQUARE, SCALED, REPLICAS)
            why = why or next((says for says, norm in others.items() if near(result, norm)), "")
            if not why and [o.op for o in observed.operations[rank]].count("all_reduce") > 1:
                why = AGAIN
            if not why and pieces.dtype == torch.bfloat16 and abs(result - pieces.norm) < 0.1 * pieces.norm:
                why = NARROW
            sentence = kit.Sentence(f"{said}: {got} instead of {want}.", f"{said}.")
            return kit.wrong(sentence, why, misses_point=missed)
        return kit.RIGHT

    return kit.Line(f"the norm: {title}", judge, weight, trivial=pieces.norm == 0)


def scaled_line(pieces: Pieces, title: str, weight: float = 2) -> kit.Line:
    """The gradients are scaled by the right norm, or by another one that all ranks have returned."""
    factor = min(1.0, pieces.max_norm / (pieces.norm + 1e-6))

    def by_returned(observed: kit.Observed) -> bool:
        """Whether all ranks returned one norm, and scaled by it; another line judges the norm."""
        norms = [values.result for values in observed.values]
        norm = norms[0]
        if not isinstance(norm, int | float) or not 0 < norm < HUGE or norms.count(norm) < len(norms):
            return False
        scale = min(1.0, pieces.max_norm / norm)
        return all(
            kit.close(tensors[f"shard{i}.grad"].double(), scale * before, pieces.tolerance)
            for tensors, gradients in zip(observed.tensors, pieces.grads, strict=True)
            for i, before in enumerate(gradients)
            if before is not None and before.numel()
        )

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = by_right(observed)
        return kit.RIGHT if not finding.ok and finding.cause != "shard" and by_returned(observed) else finding

    def by_right(observed: kit.Observed) -> kit.Finding:
        for rank, gradients in enumerate(pieces.grads):
            for i, before in enumerate(gradients):
                tensors, name = observed.tensors[rank], f"shard{i}"
                if bool((tensors[name] != WEIGHT).any()):
                    return kit.wrong(
                        f"on rank {rank} a shard was changed. Scale its gradient instead.", cause="shard"
                    )
                if before is None or not before.numel():
                    continue
                gradient, wanted = tensors[f"{name}.grad"].double(), factor * before
                tolerance = pieces.tolerance
                if not kit.close(gradient, wanted, tolerance):
                    said = kit.difference(
                        f"on rank {rank} the gradient of shard {i} is wrong", gradient, wanted
                    )
                    got = float((gradient * before).sum() / before.square().sum())
                    if kit.close(gradient, got * before, tolerance):
                        return kit.wrong(said, why(rank, got, observed.values[rank].result))
                    return kit.wrong(said, "All elements are scaled by one factor, so the direction stays.")
        return kit.RIGHT

    def why(rank: int, got: float, returned: object) -> str:
        def is_it(other: float) -> bool:
            return abs(got - other) <= 0.02 * abs(other)

        if is_it(1) and factor < 1:
            if isinstance(returned, int | float) and returned <= pieces.max_norm:
                return "Nothing was scaled, since the norm you found is too small. Begin with the norm."
            return (
                "Nothing was scaled. Scale .grad itself, in place (mul_), before you return. `gradient = "
                "gradient * factor` makes a tensor that no parameter has."
            )
        if factor == 1 and is_it(pieces.max_norm / pieces.norm):
            return "A norm below max_norm stays, so the factor is min(1, max_norm / norm)."
        if is_it(1 / factor):
            return "The gradient was divided by the factor."
        if is_it(1 / pieces.norm):
            return "The gradient was scaled to the norm 1, not to max_norm."
        if is_it(factor**2) and isinstance(returned, int | float) and near(returned, pieces.norm):
            return "The gradients were scaled twice. The last lines of the stub already scale them."
        slips = pieces.norms(rank).items()
        return next((says for says, norm in slips if norm > 0 and is_it(pieces.max_norm / norm)), "")

    return kit.Line(f"gradients scaled: {title}", judge, weight, trivial=pieces.norm == 0)


def traffic_line(pieces: Pieces, title: str) -> kit.Line:
    tensors = len(pieces.grads[0])

    def hint(ratio: float, observed: kit.Observed) -> str:
        operations = observed.operations[0]
        count, kinds = len(operations), {operation.dtype for operation in operations}
        if any(set(operation.group) - {*pieces.group(0)} for operation in operations):
            return REPLICAS
        if ratio < 1:
            return "The norm of all shards needs a number from every rank."
        if count >= tensors:
            sent = words.counted(count, "message")
            return f"{sent}, one for each gradient. Add up on the rank, then send once."
        if count == 1 and "float64" in kinds and abs(ratio - 2) < 0.1:
            return "float64 travelled, but the 4 bytes of a float32 are enough."
        if count == 1 and abs(ratio - tensors) < 0.1:
            return "A number for each gradient travelled. Add them up on the rank, then send one number."
        return (
            "Add up the squares of all gradients on the rank first, so that one number travels "
            "instead of the gradients."
        )

    share = 2 * (pieces.n - 1) / pieces.n * 4
    return kit.volume_line(
        [share] * len(pieces.grads), hint=hint, title=f"bytes: one number, {title}", point=MANY
    )


def case(
    draw: kit.Draw, title: str, n: int, sizes: Sequence[int], share: float, *, replicas: int = 1,
    missing: bool = False, dtype: torch.dtype = torch.float32, traffic: bool = False, weight: float = 1,
) -> kit.Case:  # fmt: skip
    """share: max_norm over the norm; 0: all gradients are zeros.

    missing: one rank has no gradient at all, another an empty shard. weight: of the norm, and of the scaling.
    """

    def drawn(rank: int, i: int, size: int) -> Tensor | None:
        if missing and rank == n - 1:
            return None
        empty = missing and (rank, i) == (0, 0)
        # ranks differ, so that no rank's own norm is another's
        scale = 1 + rank if share else 0
        return scale * draw.normal(0 if empty else size).to(dtype).double()

    def shards() -> Pieces:
        whole = [[drawn(rank, i, size) for i, size in enumerate(sizes)] for rank in range(n)]
        return Pieces(whole * replicas, 1.0, replicas, dtype)

    bare = shards()
    while bare.is_right_by_chance():
        bare = shards()
    pieces = Pieces(bare.grads, round(share * bare.norm, 3) or 1.0, replicas, dtype)
    lines = [norm_line(pieces, title, weight), scaled_line(pieces, title, weight)]
    lines += [traffic_line(pieces, title)] if traffic else []
    sides = [pieces.side(rank) for rank in range(n * replicas)]
    return kit.Case(title, sides, lines, groups=pieces.groups)


def trouble(case: kit.Case, kind: str, text: str) -> str:
    return STAYED_AWAY if kind == "deadlock" and "without gradients" in case.title else ""


@kit.exercise(
    points=4, objects=("clip_grad_norm_",), hint=trouble, references=("course_lib.fsdp.clip",),
    point="one norm on all ranks, for which one number is sent", besides="clipping on each rank",
)  # fmt: skip
def clip_grad_norm(draw: kit.Draw) -> Iterator[kit.Case]:
    yield case(draw, "2 ranks, 5 gradients", 2, (40, 7, 1, 12, 30), 0.3, traffic=True)
    yield case(draw, "3 ranks, a norm below max_norm", 3, (5, 8), 1.7, weight=1.5)
    yield case(draw, "1 rank, all gradients are zeros", 1, (6,), 0, weight=0.25)
    yield case(draw, "2 x 2 ranks, two replicas", 2, (6, 20), 0.45, replicas=2, traffic=True)
    yield case(draw, "4 ranks, one without gradients", 4, (9, 4), 0.4, missing=True)
    yield case(draw, "2 ranks, gradients in bfloat16", 2, (3000, 50), 0.2, dtype=torch.bfloat16, weight=0.5)
    if draw.hidden:
        yield case(draw, "1 rank", 1, (11, 2), 0.6, weight=0.5)
