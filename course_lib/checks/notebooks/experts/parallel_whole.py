"""The results of one process that holds all tokens and all experts, and those of usual mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.judge.layers.runs import LayerRun

MATRICES = ("w1", "w3", "w2")
OF_TOKENS, OF_EXPERTS = ("grad.x", "grad.weights"), tuple(f"grad.{name}" for name in MATRICES)
HIDDEN = 8  # numbers inside an expert


@dataclass(frozen=True)
class Mixture:
    """Tokens of all ranks, one rank after the other, and experts of all ranks.

    sizes: how many tokens each rank has. x (T, h); experts, weights (T, k); w1, w3 (E, f, h); w2 (E, h, f);
    grad: of the result.
    """

    sizes: Sequence[int]
    x: Tensor
    experts: Tensor
    weights: Tensor
    w1: Tensor
    w3: Tensor
    w2: Tensor
    grad: Tensor

    @classmethod
    def draw(
        cls, draw: kit.Draw, sizes: Sequence[int], experts: Tensor, count: int, width: int = 32,
        dtype: torch.dtype = torch.float64,
    ) -> Mixture:  # fmt: skip
        """Drawn numbers, exact in `dtype`; experts: (T, k), of which there are `count`."""
        x, grad = (draw.normal(sum(sizes), width) for _ in range(2))
        weights = draw.normal(*experts.shape).sigmoid() + 0.2
        w1, w3 = (draw.normal(count, HIDDEN, width) / width**0.5 for _ in range(2))
        w2 = draw.normal(count, width, HIDDEN)
        made = [tensor.to(dtype).double() for tensor in (x, weights, w1, w3, w2, grad)]
        return cls(sizes, made[0], experts, *made[1:])

    @property
    def n(self) -> int:
        return len(self.sizes)

    @property
    def held(self) -> int:
        """Experts of a rank."""
        return len(self.w1) // self.n

    def of_rank(self, whole: Tensor, k: int) -> Tensor:
        """The k-th rank's tokens."""
        return whole.split(list(self.sizes))[k]

    @cached_property
    def counts(self) -> list[list[int]]:
        """Rows of each rank for each expert."""
        parts = self.experts.split(list(self.sizes))
        return [part.flatten().bincount(minlength=len(self.w1)).tolist() for part in parts]

    @cached_property
    def between(self) -> list[list[int]]:
        """Rows that go from each rank to each."""
        return [[sum(row[self.held * s : self.held * (s + 1)]) for s in range(self.n)] for row in self.counts]

    def leaving(self, k: int) -> int:
        """Rows that the k-th rank sends to others forward: its own, and the results of the others'."""
        goes, comes = sum(self.between[k]), sum(row[k] for row in self.between)
        return goes + comes - 2 * self.between[k][k]

    # ---- the right results

    def through(self, experts: Tensor, x: Tensor) -> Tensor:
        """Each row of x through its expert."""
        gate = torch.einsum("rh,rfh->rf", x, self.w1[experts])
        up = torch.einsum("rh,rfh->rf", x, self.w3[experts])
        return torch.einsum("rf,rhf->rh", F.silu(gate) * up, self.w2[experts])

    @cached_property
    def out(self) -> Tensor:
        """Of each assignment: (T k, h)."""
        k = self.experts.shape[1]
        return self.through(self.experts.flatten(), self.x.repeat_interleave(k, 0))

    @cached_property
    def token(self) -> Tensor:
        """Of each assignment."""
        return torch.arange(self.experts.numel()) // self.experts.shape[1]

    def added(self, token: Tensor, weights: Tensor, out: Tensor) -> Tensor:
        return torch.zeros_like(self.x).index_add(0, token, weights[:, None] * out)

    @cached_property
    def y(self) -> Tensor:
        return self.added(self.token, self.weights.flatten(), self.out)

    def gradients(self, grad: Tensor) -> dict[str, Tensor]:
        """Of all inputs, if `grad` is that of the result."""
        names = ("x", "weights", *MATRICES)
        leaves = {name: getattr(self, name).clone().requires_grad_() for name in names}
        copy = Mixture(self.sizes, experts=self.experts, grad=grad, **leaves)
        copy.y.backward(grad)
        return {f"grad.{name}": leaf.grad for name, leaf in leaves.items()}

    @cached_property
    def wanted(self) -> list[dict[str, Tensor]]:
        """Of each rank: the result, the gradients, and x as it was."""
        whole, made = self.gradients(self.grad), []
        for k in range(self.n):
            of_tokens = {name: self.of_rank(whole[name], k) for name in OF_TOKENS}
            of_experts = {name: whole[name].chunk(self.n)[k] for name in OF_EXPERTS}
            of_all = {"y": self.of_rank(self.y, k), "after.x": self.of_rank(self.x, k)}
            made.append({**of_all, **of_tokens, **of_experts})
        return made

    def run(self, name: str, backward: bool, dtype: torch.dtype = torch.float64) -> LayerRun:
        inputs = []
        for k in range(self.n):
            tokens = {"x": self.x, "experts": self.experts, "weights": self.weights}
            own = {called: self.of_rank(whole, k) for called, whole in tokens.items()}
            own |= {called: getattr(self, called).chunk(self.n)[k] for called in MATRICES}
            inputs.append({called: to(tensor, dtype) for called, tensor in own.items()})
        wanted = [{called: to(tensor, dtype) for called, tensor in own.items()} for own in self.wanted]
        if not backward:
            wanted = [{called: own[called] for called in ("y", "after.x")} for own in wanted]
        gradient = [to(self.of_rank(self.grad, k), dtype) for k in range(self.n)]
        return LayerRun(name, inputs, wanted, gradient if backward else None)

    # ---- where rows go

    @cached_property
    def order(self) -> Tensor:
        """The order in which assignments are sent: by rank, and those of a rank by expert."""
        k, start, parts = self.experts.shape[1], 0, []
        for part in self.experts.split(list(self.sizes)):
            parts.append(start + part.flatten().argsort(stable=True))
            start += len(part) * k
        return torch.cat(parts)

    @cached_property
    def by_expert(self) -> Tensor:
        """For each place in `order` the place whose row takes its place on the expert's rank, once sorted."""
        expert = self.experts.flatten()[self.order].tolist()
        taken = list(range(len(expert)))
        for rank in range(self.n):
            came = [place for place, e in enumerate(expert) if e // self.held == rank]
            for place, other in zip(came, sorted(came, key=lambda place: expert[place]), strict=True):
                taken[place] = other
        return torch.tensor(taken)

    # ---- usual mistakes

    def results_of_mistakes(self) -> Iterator[tuple[str, Tensor]]:
        """The sentence and the result of each, for all ranks' tokens."""
        token, weights, order = self.token, self.weights.flatten(), self.order
        expert, x = self.experts.flatten(), self.x[self.token]
        if bool((self.by_expert != torch.arange(len(order))).any()):
            yield REPLY, self.added(token[order], weights[order], self.out[order[self.by_expert]])
            other = self.through(expert[order[self.by_expert]], x[order])
            yield ARRIVED, self.added(token[order], weights[order], other)
            rows = x[order[self.by_expert.argsort()]]
            yield ARRIVED, self.added(token[order], weights[order], self.through(expert[order], rows))
            if bool((self.by_expert[self.by_expert] != torch.arange(len(order))).any()):
                back = self.out[order[self.by_expert[self.by_expert]]]
                yield SORTED_AGAIN, self.added(token[order], weights[order], back)
        if bool((order != torch.arange(len(order))).any()):
            yield UNORDERED, self.added(token, weights, self.through(expert[order], x))
        yield HOME, self.added(token, weights, self.out[order])
        yield WEIGHTS, self.added(token[order], weights, self.out[order])
        yield UNWEIGHTED, self.added(token, torch.ones_like(weights), self.out)
        yield TWICE, self.added(token, weights**2, self.out)
        yield INSIDE, self.added(token, torch.ones_like(weights), self.through(expert, weights[:, None] * x))
        striped = expert % self.n * self.held + expert // self.n
        yield STRIPED, self.added(token, weights, self.through(striped, x))
        rank_of_token = torch.arange(self.n).repeat_interleave(torch.tensor(self.sizes))
        own = (rank_of_token[token] == expert // self.held).double()
        yield OWN_EXPERTS, self.added(token, weights * own, self.out)
        yield RESIDUAL, self.x + self.y
        yield DIVIDED, self.y / self.n
        last = expert.view(-1, self.experts.shape[1]).argmax(1, keepdim=True)
        written = (last == torch.arange(self.experts.shape[1])).flatten()
        if self.experts.shape[1] > 1:
            yield ONE_CHOICE, self.added(token, weights * written, self.out)
        for choice in range(self.experts.shape[1] if self.experts.shape[1] > 1 else 0):
            chosen = torch.arange(len(token)) % self.experts.shape[1] == choice
            yield ONE_CHOICE, self.added(token, weights * chosen, self.out)

    def forward_slips(self) -> list[kit.Slip]:
        def slip(says: str, y: Tensor) -> kit.Slip:
            return kit.Slip(says, lambda k: {"y": self.of_rank(y, k)})

        return [slip(says, y) for says, y in self.results_of_mistakes()]

    def backward_slips(self) -> list[kit.Slip]:
        if self.n == 1:
            return []
        slips = []
        for name in OF_EXPERTS:
            summed = sum(own[name] for own in self.wanted)
            slips += [
                kit.Slip(MEAN, lambda k, name=name: {name: self.wanted[k][name] / self.n}),
                kit.Slip(ONCE_MORE, lambda k, name=name, summed=summed: {name: summed}),
                kit.Slip(ONCE_MORE, lambda k, name=name, summed=summed: {name: summed / self.n}),
                kit.Slip(OWN_TOKENS, lambda k, name=name: {name: self.of_own_tokens(name, k)}),
            ]
        for name in OF_TOKENS:
            slips.append(kit.Slip(MEAN, lambda k, name=name: {name: self.wanted[k][name] / self.n}))
        return slips

    def of_own_tokens(self, name: str, k: int) -> Tensor:
        """The gradient of the k-th rank's experts from that rank's loss alone."""
        return self.own_gradients[k][name].chunk(self.n)[k]

    @cached_property
    def own_gradients(self) -> list[dict[str, Tensor]]:
        """Gradients of each rank's own loss alone."""
        ranks = torch.arange(self.n).repeat_interleave(torch.tensor(self.sizes))
        return [self.gradients(self.grad * (ranks == k)[:, None]) for k in range(self.n)]


REPLY = (
    "Tokens got the results of other tokens. Rows arrived in the order of the ranks that sent them, "
    "so bring the results back into that order before they return."
)
ARRIVED = (
    "Rows went through the experts of other rows. They arrive in the order of the ranks that sent "
    "them, and each rank's part by expert, so sort all of them by expert before you cut them."
)
SORTED_AGAIN = (
    "Tokens got the results of other tokens. The results were sorted once more, as in out[sort], but "
    "out[sort.argsort()] sorts them back into the order in which the rows arrived."
)
UNORDERED = (
    "Rows went to the ranks of other rows, because they were sent in the order of the tokens. Sort them by "
    "expert first, with order = experts.flatten().argsort(stable=True), so that they are x[order // k]."
)
HOME = (
    "The results belong to other tokens. They come back in the order in which the rows were sent, by "
    "expert, so add each to the token from which its row was taken."
)
WEIGHTS = (
    "The results are multiplied by the weights of other tokens. They come back in the order in which "
    "the rows were sent, by expert, so bring the weights into that order as well."
)
UNWEIGHTED = "The results are added without their weights. Multiply each result by its own weight first."
TWICE = "The results are multiplied by their weights twice, but once is enough, on the rank of the token."
INSIDE = (
    "The rows were multiplied by their weights before the expert. An expert is not linear, so "
    "multiply its results."
)
STRIPED = (
    "The rows did not go to the ranks of their experts. Rank r of the group holds E / n consecutive "
    "experts, from r E / n on, not every n-th."
)
OWN_EXPERTS = (
    "A token has only the results of its own rank's experts. Send its rows to the ranks of its other "
    "experts, and add the results that come back."
)
ONE_CHOICE = (
    "Only one of a token's k results is there. `out[token] = ...` would overwrite the other results, "
    "so add with index_add."
)
RESIDUAL = "x was added to the result. The residual connection is outside of the layer."
DIVIDED = "The result was divided by the number of ranks. A token's result is a sum over its experts."
ONCE_MORE = (
    "The experts' gradients were summed over the ranks once more. Each rank holds other experts, and the "
    "gradients of all ranks' rows have come to it already."
)
MEAN = (
    "The gradient was divided by the number of ranks. But it is a sum over the rows, so divide it by nothing."
)
OWN_TOKENS = (
    "The experts' gradient comes only from the rank's own tokens. Gradients of the results that went "
    "to other ranks come back from there."
)


def to(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
