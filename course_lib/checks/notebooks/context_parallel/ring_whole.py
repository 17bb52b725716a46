"""Full attention dealt out to ranks: the tensors that each must have, and those that mistakes would give."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.notebooks.context_parallel.spread import SpreadRun
from course_lib.checks.notebooks.context_parallel.whole import Mask, Whole, later_hidden
from course_lib.context_parallel import Layout, contiguous, positions
from course_lib.facts.context_parallel import FORWARD

WORTH = 0.3  # of a block's FLOPs, during which a message must be under way to hide behind it
GRADS = ("grad.q", "grad.k", "grad.v")


@dataclass(frozen=True)
class Spread:
    """Attention of a whole sequence, of which rank k of n holds the tokens of layout[k].

    passed: whether the layout is an argument, or the one in succession is meant. forward_only: without
    backward, whose errors then cost forward nothing.
    """

    whole: Whole
    layout: Layout
    causal: bool = False
    passed: bool = False
    name: str = "ring"
    settings: Mapping[str, bool] = field(default_factory=dict)
    forward_only: bool = False

    @classmethod
    def draw(
        cls, draw: kit.Draw, n: int, seq: int, *, batch: int = 1, heads: int = 2, kv_heads: int = 2,
        head_dim: int = 8, causal: bool = False, layout: Layout | None = None,
        name: str = "ring", dtype: torch.dtype = torch.float64, **settings: bool,
    ) -> Spread:  # fmt: skip
        whole = Whole.draw(draw, batch, seq, heads, kv_heads, head_dim, causal, dtype=dtype)
        passed = layout is not None
        return cls(whole, layout or contiguous(seq, n), causal, passed, name, settings)

    @property
    def n(self) -> int:
        return len(self.layout)

    @cached_property
    def places(self) -> list[Tensor]:
        """The positions of each rank's tokens, in the order in which it holds them."""
        return [positions(spans) for spans in self.layout]

    @cached_property
    def wanted(self) -> Mapping[str, Tensor]:
        """Output and gradients of the whole: every line asks for its ranks' parts."""
        return self.whole.wanted

    @cached_property
    def owner(self) -> Tensor:
        """The rank that holds the token at each position."""
        return self.marks([torch.full_like(at, k) for k, at in enumerate(self.places)])

    @cached_property
    def local(self) -> Tensor:
        """Where in its rank's part the token at each position lies."""
        return self.marks([torch.arange(len(at)) for at in self.places])

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        """The first and the last position of the span that holds the token at each position."""
        first, last = (
            self.marks([torch.tensor([span[at] for span in spans for _ in span]) for spans in self.layout])
            for at in (0, -1)
        )
        return first, last

    def marks(self, of_ranks: Sequence[Tensor]) -> Tensor:
        by_position = torch.empty(self.whole.q.shape[1], dtype=torch.long)
        for at, marks in zip(self.places, of_ranks, strict=True):
            by_position[at] = marks
        return by_position

    def part(self, x: Tensor, k: int) -> Tensor:
        return x[:, self.places[k]]

    def parts(self, tensors: Mapping[str, Tensor], k: int) -> dict[str, Tensor]:
        return {name: self.part(x, k) for name, x in tensors.items()}

    def run(self, dtype: torch.dtype = torch.float64) -> SpreadRun:
        """The call: q, k, v and the output's gradient of each rank, and what it must have."""
        inputs = [self.parts(self.whole.inputs, k) for k in range(self.n)]
        results = {"y": self.wanted["y"]} if self.forward_only else self.wanted
        wanted = [
            self.parts(results, k) | {f"after.{name}": x for name, x in inputs[k].items()}
            for k in range(self.n)
        ]
        # of another shape than the output's: then the recipe leaves backward out
        nothing = torch.empty(0)
        return SpreadRun(
            self.name,
            [{name: x.to(dtype) for name, x in tensors.items()} for tensors in inputs],
            [{name: x.to(dtype) for name, x in tensors.items()} for tensors in wanted],
            [
                nothing if self.forward_only else self.part(self.whole.grad, k).to(dtype)
                for k in range(self.n)
            ],
            kwargs={"causal": self.causal},
            layout=self.layout if self.passed else None,
            worth=WORTH * self.block_flops,
            **self.settings,  # pyright: ignore[reportArgumentType]
        )

    def run_of_lse(self, function: int) -> SpreadRun:
        """The same call of the exercise's object of that number, which returns lse."""
        run = self.run()
        lse = [{"y": self.part(self.whole.lse, k)} for k in range(self.n)]
        wanted = [{**tensors, **part} for tensors, part in zip(run.wanted, lse, strict=True)]
        return replace(run, name=f"{self.name}, lse", object=function, wanted=wanted)

    @property
    def block_flops(self) -> float:
        """Of the products of forward with the keys of one other rank, all of them seen."""
        batch, _, heads, head_dim = self.whole.q.shape
        fewest = min(map(len, self.places))
        return float(FORWARD * batch * heads * head_dim * fewest**2)

    # ---- what mistakes would give

    def otherwise(self, says: str, **changed: object) -> kit.Slip:
        """The output that other settings of the whole would give; computed once, if it is asked for."""
        output = functools.cache(lambda: self.whole.but(**changed).y)
        return kit.Slip(says, lambda k: {"y": self.part(output(), k)})

    def masked(self, says: str, mask: Mask) -> kit.Slip:
        return self.otherwise(says, mask=mask)

    def from_marks(self, rule: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Mask:
        """A mask from (rank of the query, its place there, rank of the key, its place there)."""
        owner, local = self.owner, self.local
        return lambda q, k: rule(owner[q], local[q], owner[k], local[k])

    def blocks(self, k: int) -> tuple[list[Tensor], list[Tensor]]:
        """(outs, lses) of rank k's queries with each rank's keys, in the order of a ring."""
        outs, lses = [], []
        for step in range(self.n):
            scores = self.whole.scores[:, :, self.places[k]][..., self.places[(k - step) % self.n]]
            if bool(scores.isinf().all()):
                continue
            lse = scores.logsumexp(-1)
            p = (scores - lse[..., None]).exp().nan_to_num(0.0)
            values = self.whole.values[:, self.places[(k - step) % self.n]]
            outs.append(torch.einsum("bhij,bjhd->bihd", p, values))
            lses.append(lse.transpose(1, 2)[..., None])
        return outs, lses

    def summed(self, k: int) -> Tensor:
        return torch.stack(self.blocks(k)[0]).sum(0)

    def averaged(self, k: int) -> Tensor:
        return torch.stack(self.blocks(k)[0]).mean(0)

    def not_rescaled(self, k: int) -> Tensor:
        """Each block has its weight when it comes, and keeps it."""
        outs, lses = self.blocks(k)
        total, out = lses[0], outs[0]
        for block, lse in zip(outs[1:], lses[1:], strict=True):
            total = torch.logaddexp(total, lse)
            out = out + (lse - total).exp() * block
        return out

    def by_own_queries(self, k: int) -> dict[str, Tensor]:
        """Gradients of the rank's keys and values from its own queries alone."""
        own = self.part(self.whole.grad, k)
        grad = torch.zeros_like(self.whole.grad).index_copy_(1, self.places[k], own)
        return self.parts(self.whole.but(grad=grad).gradients(), k)


def attention_slips(spread: Spread) -> list[kit.Slip]:
    """Those of attention itself, whatever sends the keys."""
    heads, head_dim = spread.whole.q.shape[2:]
    kv_heads = spread.whole.k.shape[2]
    by = "The scores are q k^T / sqrt(head_dim), but here they were"
    slips = [
        spread.otherwise(f"{by} not divided.", scale=1.0),
        spread.otherwise(f"{by} divided by head_dim, not by its root.", scale=1 / head_dim),
        spread.otherwise(f"{by} divided by the root of heads x head_dim.", scale=(heads * head_dim) ** -0.5),
        spread.otherwise(f"{by} divided by the root of heads.", scale=heads**-0.5),
        spread.otherwise(
            f"{by} divided by the root of the sequence's length.", scale=spread.whole.q.shape[1] ** -0.5
        ),
    ]
    if 1 < kv_heads < heads:
        says = (
            "Head h of q was paired with head h % kv_heads of k and v, as `repeat` orders them. Instead, "
            "pair it with head h // (heads / kv_heads), as repeat_interleave does."
        )
        slips.append(spread.otherwise(says, head_of=lambda h: h % kv_heads))
    if spread.causal:
        slips += mask_slips(spread)
    else:
        slips.append(spread.masked("A mask was applied, although causal is False.", later_hidden))
    return slips


def mask_slips(spread: Spread) -> list[kit.Slip]:
    """The results of a causal mask by anything but the tokens' positions."""
    n, whole = spread.n, contiguous(spread.whole.q.shape[1], spread.n)
    starts = torch.tensor([spans[0].start for spans in whole])
    table = torch.nn.utils.rnn.pad_sequence(spread.places, batch_first=True)

    begins, ends = spread.ends

    def backwards(r: Tensor, i: Tensor, o: Tensor, j: Tensor) -> Tensor:
        other = (2 * r - o) % n
        return table[r, i] >= table[other, j]

    slips = [
        spread.otherwise("Later keys were seen, although causal=True hides them.", mask=None),
        spread.masked(
            "The mask uses positions within the parts, so the query at index i of its part saw the keys at "
            "indices 0 .. i of every part. Use the tokens' positions in the whole sequence instead.",
            spread.from_marks(lambda r, i, o, j: i >= j),
        ),
        spread.masked(
            "Blocks were skipped by the tokens' positions, but within a block the mask uses positions "
            "within the parts. Mask with the same ranges, which tiles(...) takes from the layout.",
            lambda q, k: (spread.local[q] >= spread.local[k]) & (ends[q] >= begins[k]),
        ),
        spread.masked(
            "The keys of step i were taken for the keys of rank r + i, but in step i rank r - 1 sends on "
            "the keys of rank r - i. So visible blocks were masked or skipped, while hidden blocks were "
            "used.",
            spread.from_marks(backwards),
        ),
    ]
    if spread.passed:
        says = (
            "The tokens were treated as contiguous, rank after rank, although the layout says otherwise. "
            "Mask by the positions in the layout."
        )
        succession = spread.from_marks(lambda r, i, o, j: starts[r] + i >= starts[o] + j)
        slips.insert(0, spread.masked(says, succession))
    return slips
