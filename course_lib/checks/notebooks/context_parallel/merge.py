"""online_softmax_merge: two partial results of attention become one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.kit import Slip, functions
from course_lib.checks.notebooks.context_parallel.references import OPERATIONS, REFERENCES, REFUSED, THEIRS

NAMES = ("out", "lse", "block_out", "block_lse")
GRADIENTS = tuple(f"grad.{name}" for name in NAMES)
NOTHING_SEEN = (
    "If no key was seen, lse is -inf, and -inf - -inf is nan. So replace -inf with the lowest number, "
    "torch.finfo(lse.dtype).min, before you subtract."
)
TOO_LARGE = (
    "exp(1000) is infinite in every format. Instead, compute weights from differences, as exp(lse - "
    "merged) or sigmoid(lse - block_lse), and take the logarithm from torch.logaddexp."
)
NOT_LOW = (
    "The number that replaces -inf is too high. If lse is below it in both parts, their difference is "
    "lost, so both count the same. Clamp at torch.finfo(lse.dtype).min."
)
CANCELLED = (
    "lse is the difference of two huge numbers where one part saw no key, so lse of the other part is lost. "
    "torch.logaddexp(old, new) never subtracts the number that replaced -inf."
)
NEARLY = (
    "The result is nearly right, so a small number was added, as against a division by 0, or digits were "
    "lost in a conversion. Add nothing, and work in the dtype of the arguments."
)
GRAPH = (
    "The result does not pass gradients to all four arguments. Use PyTorch operations on the arguments "
    "themselves, without detach, no_grad or item()."
)
NAN_BEHIND = (
    "Forward is right, but torch.where and masked_fill only choose among results. Backward also goes "
    "through the values that were not chosen, and nan times 0 is nan. Change the inputs of the difference, "
    "not its result."
)


def expand(error: str, text: str) -> str:
    if "must match the size" in text or "shape" in text:
        return (
            "lse has one number per row of out, and no feature dimension. Use lse[..., None] together with "
            "out."
        )
    if "in-place" in text or "inplace" in text:
        return (
            "One of the arguments was changed in place. The arguments belong to the caller, and backward "
            "needs their original values, so return new tensors."
        )
    return ""


def misfit(name: str, came: str) -> str:
    if name.startswith("grad."):
        return GRAPH
    return "Return both, (out, lse), in the shapes and the dtype of the arguments."


ABOUT = functions.About(
    "online_softmax_merge",
    "attention to all keys",
    {
        "out": "the merged out is",
        "lse": "the merged lse is",
        **{f"grad.{name}": f"the gradient of {name} is" for name in NAMES},
    },
    error=expand,
    misfit=misfit,
    own_errors=(THEIRS,),
)


LOWEST = (
    torch.finfo(torch.float64).min, torch.finfo(torch.float32).min, -1e30, -1e20, -1e10, -1e9, -1e8, -1e6,
    -1e5, -1e4, -1e3,
)  # fmt: skip


@dataclass(frozen=True)
class Parts:
    """Scores (..., keys) and values (..., keys, head_dim) of two blocks; gradients of both results."""

    scores: tuple[Tensor, Tensor]
    values: tuple[Tensor, Tensor]
    grads: tuple[Tensor, Tensor]
    dtype: torch.dtype = torch.float64

    @classmethod
    def draw(
        cls, draw: kit.Draw, shape: tuple[int, ...], head_dim: int, dtype: torch.dtype = torch.float64
    ) -> Parts:
        scores = [draw.normal(*shape, keys).double() * 2 for keys in (5, 3)]
        values = [draw.normal(*shape, keys, head_dim).double() for keys in (5, 3)]
        grads = draw.normal(*shape, head_dim).double(), draw.normal(*shape).double()
        return cls((scores[0], scores[1]), (values[0], values[1]), grads, dtype)

    @cached_property
    def lse(self) -> list[Tensor]:
        return [block.logsumexp(-1) for block in self.scores]

    @cached_property
    def out(self) -> list[Tensor]:
        """For each block, softmax times values; 0 where nothing was seen."""
        return [
            (s.softmax(-1).nan_to_num(0.0)[..., None] * v).sum(-2)
            for s, v in zip(self.scores, self.values, strict=True)
        ]

    @cached_property
    def merged(self) -> tuple[Tensor, Tensor]:
        """Attention to all keys at once: (out, lse)."""
        scores, values = torch.cat(self.scores, -1), torch.cat(self.values, -2)
        weights = scores.softmax(-1).nan_to_num(0.0)
        return (weights[..., None] * values).sum(-2), scores.logsumexp(-1)

    @cached_property
    def nothing(self) -> Tensor:
        """Where neither block was seen."""
        return self.merged[1] == -torch.inf

    @cached_property
    def weights(self) -> list[Tensor]:
        return [(lse - self.merged[1]).exp().nan_to_num(0.0)[..., None] for lse in self.lse]

    def gradients(self) -> dict[str, Tensor]:
        """d out = w g; d lse = w (g_lse + g . (out - merged out)): w is exp(lse - merged lse)."""
        gradients, (g, g_lse) = {}, self.grads
        for which, w, out in zip(("", "block_"), self.weights, self.out, strict=True):
            gradients[f"grad.{which}out"] = w * g
            inner = (g * (out - self.merged[0])).sum(-1)
            gradients[f"grad.{which}lse"] = w[..., 0] * (g_lse + inner)
        return {name: gradients[name].to(self.dtype) for name in GRADIENTS}

    def call(self, name: str) -> functions.Call:
        inputs = [self.out[0], self.lse[0], self.out[1], self.lse[1]]
        gradients = {
            label: functions.Part(g, near=self.near_gradient) for label, g in self.gradients().items()
        }
        return functions.Call(
            name, ABOUT, {label: x.to(self.dtype) for label, x in zip(NAMES, inputs, strict=True)},
            {"out": self.merged[0].to(self.dtype), "lse": self.merged[1].to(self.dtype), **gradients},
            gradients={label: g.to(self.dtype) for label, g in zip(("out", "lse"), self.grads, strict=True)},
            outputs=("out", "lse"), slips=lambda name, came: self.slips(),
        )  # fmt: skip

    def near_gradient(self, actual: Tensor, wanted: Tensor, came: functions.Tensors) -> Tensor:
        """Any finite number is right where neither block was seen."""
        nothing = self.nothing if wanted.shape == self.nothing.shape else self.nothing[..., None]
        return kit.near(actual, wanted) | (nothing & actual.isfinite())

    def clamped(self, low: float = -100.0) -> tuple[Tensor, Tensor]:
        """(out, lse) if a number that real lse come below stands in for -inf."""
        old, new = (lse.clamp_min(low) for lse in self.lse)
        share = (new - old).sigmoid()[..., None]
        return torch.lerp(self.out[0], self.out[1], share), torch.logaddexp(old, new)

    def cancelled(self, low: float) -> Tensor:
        """lse as old - logsigmoid(old - new), where `low` stands in for -inf; -inf where nothing is seen."""
        old, new = (lse.clamp_min(low) for lse in self.lse)
        lse = old - torch.nn.functional.logsigmoid(old - new)
        return torch.where(self.nothing, -torch.inf, lse)

    def slips(self) -> list[Slip]:
        """Usual mistakes with out and lse."""
        (a, b), (la, lb), (wa, wb) = self.out, self.lse, self.weights
        pa, pb = ((lse - torch.maximum(*self.lse)).exp().nan_to_num(0.0)[..., None] for lse in self.lse)
        exact = [
            Slip("The old out still has its old denominator. It must also be rescaled, by exp(lse - merged "
                 "lse).",
                 lambda: {"out": a + wb * b}),
            Slip("The block's out was divided by its own sum, so its weight is exp(block_lse - merged lse).",
                 lambda: {"out": wa * a + b}),
            Slip("out is the sum of both parts, although each was divided only by the sum of its own keys.",
                 lambda: {"out": a + b}),
            Slip("out is the mean of both parts, but a part counts by its share of the sum, exp(lse - "
                 "merged lse).",
                 lambda: {"out": (a + b) / 2}),
            Slip("The weights of old and new are swapped.", lambda: {"out": wb * a + wa * b}),
            Slip("The weights are relative to the larger lse, so they do not add up to 1. Divide by their "
                 "sum.",
                 lambda: {"out": pa * a + pb * b}),
            Slip("lse is used as a weight, although it is a logarithm. The part was divided by exp(lse).",
                 lambda: {"out": (la[..., None] * a + lb[..., None] * b) / (la + lb)[..., None]}),
            Slip("The logarithms were added instead of the sums. Return log(exp(lse) + exp(block_lse)), "
                 "with torch.logaddexp.",
                 lambda: {"lse": la + lb}),
            Slip("lse is the larger of the two, but the sums must be added. Return log(exp(lse) + "
                 "exp(block_lse)), with torch.logaddexp.",
                 lambda: {"lse": torch.maximum(la, lb)}),
            Slip("lse is the old one, but the next merge needs lse of both parts together.",
                 lambda: {"lse": la}),
            Slip("lse is only the block's own, but the next merge needs lse of both parts together.",
                 lambda: {"lse": lb}),
            *(
                Slip("lse still contains the lowest number, which replaced -inf. If neither part saw a "
                     "key, lse must be -inf again at the end.", lambda make=make, low=low: {"lse": make(low)})
                for low in LOWEST
                for make in (self.merged[1].clamp_min, lambda low: self.clamped(low)[1])
            ),
            Slip(NOT_LOW, lambda: {"out": self.clamped()[0]}),
            Slip(NOT_LOW, lambda: {"lse": self.clamped()[1]}),
            *(Slip(CANCELLED, lambda low=low: {"lse": self.cancelled(low)}) for low in LOWEST),
            Slip("lse is the sum itself. Return its logarithm instead.",
                 lambda: {"lse": la.exp() + lb.exp()}),
            *wrong_ways(a, b, wa[..., 0], wb[..., 0]),
        ]  # fmt: skip
        return [Slip(slip.says, lambda slip=slip: rounded(slip.gives(), self.dtype)) for slip in exact]


def rounded(tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def wrong_ways(a: Tensor, b: Tensor, wa: Tensor, wb: Tensor) -> list[Slip]:
    """Weights that stand beside the wrong dimension, which only broadcasts where sizes are equal."""
    if len(set(a.shape)) > 1:
        return []
    says = (
        "The weights are aligned with the wrong dimension, which broadcasts only because all sizes are "
        "equal. Each row of out, along its last dimension, has one weight, so use w[..., None]."
    )
    places = range(a.dim() - 1)
    return [Slip(says, lambda i=i: {"out": wa.unsqueeze(i) * a + wb.unsqueeze(i) * b}) for i in places]


def hidden_in(scores: tuple[Tensor, Tensor], old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Nothing seen in the old part where `old`, in the block where `new`."""
    a, b = (
        block.masked_fill(mask[..., None], -torch.inf) for block, mask in zip(scores, (old, new), strict=True)
    )
    return a, b


def values_of(call: functions.Call, title: str, weight: float = 1.0, otherwise: str = "") -> kit.Line:
    """otherwise: the usual cause of a nan or an infinity where a number is wanted."""

    def judge(observed: kit.Observed) -> kit.Finding:
        came, names = functions.results(observed, call), ("out", "lse")
        broken = any(bool((came[n].isfinite() < call.part(n).beside(came).isfinite()).any()) for n in names)
        says = otherwise if broken else NEARLY if nearly(call, names, came) else ""
        return functions.judged(call, names, otherwise=says)(observed)

    return kit.Line(title, judge, weight)


def nearly(call: functions.Call, names: Sequence[str], came: functions.Tensors) -> bool:
    """Whether the results are off by less than a thousandth."""
    pairs = ((came[name], call.part(name).beside(came)) for name in names)
    return all(bool(kit.near(x, wanted.double(), 1e-3).all()) for x, wanted in pairs)


def gradients_of(call: functions.Call, title: str, weight: float = 1.0, otherwise: str = GRAPH) -> kit.Line:
    """otherwise: the usual cause where a gradient is nan or infinite."""

    def judge(observed: kit.Observed) -> kit.Finding:
        came = functions.results(observed, call)
        finite = all(bool(came[name].isfinite().all()) for name in GRADIENTS)
        says = GRAPH if finite and not nearly(call, GRADIENTS, came) else NEARLY if finite else otherwise
        finding = functions.judged(call, GRADIENTS, otherwise=says)(observed)
        return finding if finding.ok else functions.changed(observed, call) or finding

    return kit.Line(title, judge, weight)


def masked(draw: kit.Draw, dtype: torch.dtype = torch.float64) -> Parts:
    """Rows of which the first few see nothing in one part, the next in the other, the last in neither."""
    parts = Parts.draw(draw, (8, 3), 4, dtype)
    row = torch.arange(8)[:, None].expand(8, 3)
    old, new = (row < 2) | (row > 5), ((row >= 2) & (row < 4)) | (row > 5)
    return Parts(hidden_in(parts.scores, old, new), parts.values, parts.grads, dtype)


def large(draw: kit.Draw, dtype: torch.dtype = torch.float64) -> Parts:
    """Scores of 1,000 and -1,000, alike in both parts or far apart."""
    parts = Parts.draw(draw, (4, 3), 4, dtype)
    sign = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    a, b = (block + 1000 * sign[:, i, None, None] for i, block in enumerate(parts.scores))
    return Parts((a, b), parts.values, parts.grads, dtype)


@kit.exercise(points=7, objects=("online_softmax_merge",), references=REFERENCES, refused=REFUSED)
def online_softmax_merge(draw: kit.Draw) -> Iterator[kit.Case]:
    plain = Parts.draw(draw, (2, 5, 3), 4).call("plain")
    square = Parts.draw(draw, (4, 4, 4), 4).call("square")
    flat = Parts.draw(draw, (6,), 3).call("flat")
    hidden, extreme = masked(draw).call("masked"), large(draw).call("large")
    yield functions.function_case(
        "two parts",
        [plain, square, flat, hidden, extreme],
        [
            values_of(plain, "two parts are attention to all keys", 2),
            gradients_of(plain, "gradients", 1.5),
            values_of(square, "sizes that are all equal", 1),
            values_of(flat, "rows without batch and heads", 0.5),
            values_of(extreme, "scores of 1,000 and -1,000", 1.5, TOO_LARGE),
            gradients_of(extreme, "gradients there", 0.5, TOO_LARGE),
            values_of(hidden, "nothing seen in either part, or in both", 1.5, NOTHING_SEEN),
            gradients_of(hidden, "gradients there", 1.5, NAN_BEHIND),
        ],
        OPERATIONS,
    )
    if draw.hidden:
        kinds = [Parts.draw(draw, (3, 7), 5, torch.float32), masked(draw, torch.float32), large(draw)]
        plain, hidden, extreme = (parts.call(f"float32 {i}") for i, parts in enumerate(kinds))
        yield functions.function_case(
            "float32", [plain, hidden, extreme],
            [
                values_of(plain, "float32", 0.5),
                values_of(hidden, "float32, nothing seen", 0.5, NOTHING_SEEN),
                gradients_of(hidden, "gradients there, float32", 0.5, NAN_BEHIND),
                gradients_of(extreme, "gradients of large scores", 0.5, TOO_LARGE),
            ],
            OPERATIONS, hidden=True,
        )  # fmt: skip
