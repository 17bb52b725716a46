"""moe: each token through its own experts and no other, and the results back at their tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.kit import Slip, functions
from course_lib.checks.notebooks.experts.references import REFERENCES

POINT = "sending each token through its own experts alone"
EVERY_EXPERT = (
    "Every expert computed every token, or rows of padding. Give an expert the rows of its own tokens only."
)
UNSORTED = (
    "A token has another token's output. The rows are in the order of their experts, so add each "
    "result to the token from which its row was taken, with index_add."
)
UNSORTED_WEIGHTS = (
    "A row has another row's weight. The rows are in the order of their experts, so sort the weights in the "
    "same way: weights.flatten()[order]."
)
LAST = (
    "Only one of a token's k results is left. `y[token] = ...` and `y[token] += ...` keep the last of "
    "several rows of one token, but index_add adds them all."
)
ONE_CHOICE = "Only one column of `experts` is used. A token's output is the sum over all k of them."
BEFORE = (
    "The weight scales the expert's input, and an expert is not linear. Multiply the expert's output by it."
)
UNWEIGHTED = "The outputs were added without their weights."
WEIGHT_ONE = (
    "Every output counts with the weight 1. Even with k = 1, a result is multiplied by its weight as it is."
)
TWICE = "The outputs were multiplied by their weights twice."
SOFTENED = "A softmax was taken of the weights. Take them as they are, since `route` has divided them."
AVERAGED = "The sum was divided by k. The weights are all that scales it."
ZEROS = (
    "The output is zeros. If you used index_add, note that it returns a new tensor, y = "
    "y.index_add(...), and leaves the old tensor as it is."
)
OTHER_ROWS = (
    "Rows went through other experts than their own. The parts are cut in the order of the experts, "
    "so the rows must be in that order: x[token], with order = experts.flatten().argsort() and token "
    "= order // k."
)
OTHER_TOKENS = "Assignment a belongs to token a // k. Rows were taken from other tokens."
NO_SUCH_TOKEN = "Assignment a belongs to token a // k, so take the rows from x[order // k]."
RENORMALISED = "The weights were divided by their sum. Take them as they are, since `route` has divided them."
SWAPPED = "w1 and w3 are swapped. An expert is w2 (silu(w1 x) * w3 x)."
NO_SILU = "silu is missing. An expert is w2 (silu(w1 x) * w3 x)."
NO_GATE = "w3 is missing. An expert is w2 (silu(w1 x) * w3 x)."
ANOTHER = (
    "The expert computes another formula. The right one is w2 (silu(w1 x) * w3 x), with silu only of "
    "w1 x, then times w3 x, element by element."
)
RESIDUAL = "x was added to the output. The residual connection is outside of the layer."
FIRST_EXPERT = "Every token went through expert 0. Use the experts of its row of `experts`."
RENUMBERED = (
    "An expert without rows lost its number, so the experts after it took its matrices. "
    "bincount(minlength=E) counts it as 0."
)
NO_GRAPH = (
    "A gradient is missing. Use operations of PyTorch on the arguments themselves, without detach, no_grad "
    "or item."
)


def trouble(error: str, text: str) -> str:
    if "Expected mat_a" in text or "grouped_mm" in text:
        return (
            "F.grouped_mm does not take float64, which the check uses. Make one product for each expert in a "
            "loop."
        )
    if "split_with_sizes" in text or "split_sizes" in text:
        return (
            "The sizes of the parts must sum to the T k rows, as in "
            "experts.flatten().bincount(minlength=E).tolist(). Flatten the experts before argsort as well, "
            "so that x[token] has T k rows."
        )
    size = re.search(r"out of bounds for dimension 0 with size (\d+)", text)
    if size and int(size[1]) >= EXPERTS:  # more than there are experts, in all cases but one
        return NO_SUCH_TOKEN
    if "mat1 and mat2 shapes" in text or "size mismatch" in text or "must match the size" in text:
        return (
            "Shapes: x (T, h), w1 and w3 (E, f, h), w2 (E, h, f). A row goes through w1[e] as row @ w1[e].T."
        )
    if "leaf Variable" in text:
        return "An argument was changed in place. It belongs to the caller, so make a new tensor."
    if "inplace operation" in text:
        return "A tensor that autograd needs was changed in place. Make a new one."
    if "same dtype" in text or "Float and" in text or "Double" in text:
        return "All tensors of a product must have one dtype, the dtype of x. An index is int64."
    return ""


def misfit(name: str, came: str) -> str:
    return NO_GRAPH if name.startswith("grad.") else "The output has x's shape and dtype."


MATRICES = ("w1", "w3", "w2")
ABOUT = functions.About(
    "moe",
    "a loop over the tokens",
    {
        "y": "the output is",
        **{f"grad.{name}": f"the gradient of {name} is" for name in ("x", "weights", *MATRICES)},
    },
    error=trouble,
    misfit=misfit,
)
GRADIENTS = tuple(ABOUT.subjects)[1:]
Expert = Callable[[Tensor, Tensor, Tensor], Tensor]  # (w1 x, w3 x, weight) -> what w2 is given


def inside(gate: Tensor, up: Tensor, weight: Tensor) -> Tensor:
    return F.silu(gate) * up


OTHER_FORMULAS: tuple[Expert, ...] = (
    lambda gate, up, weight: F.silu(gate * up),
    lambda gate, up, weight: F.silu(gate) * F.silu(up),
    lambda gate, up, weight: F.silu(gate) + up,
    lambda gate, up, weight: gate.sigmoid() * up,
    lambda gate, up, weight: F.gelu(gate) * up,
    lambda gate, up, weight: gate.relu() * up,
)


@dataclass(frozen=True)
class Mixture:
    """Arguments in float64, exact in `dtype`, and the output's gradient.

    experts (T, k); w1 and w3 (E, f, h), w2 (E, h, f).
    """

    x: Tensor
    experts: Tensor
    weights: Tensor
    w1: Tensor
    w3: Tensor
    w2: Tensor
    grad: Tensor
    dtype: torch.dtype = torch.float64

    @classmethod
    def draw(
        cls, draw: kit.Draw, experts: Tensor, count: int, width: int = 5, hidden: int = 6,
        dtype: torch.dtype = torch.float64,
    ) -> Mixture:  # fmt: skip
        """Weights do not sum to 1, so that a second division shows."""
        tokens, k = experts.shape
        x, grad = draw.normal(tokens, width), draw.normal(tokens, width)
        w1, w3, w2 = (draw.normal(count, *s) for s in ((hidden, width), (hidden, width), (width, hidden)))
        weights = 0.2 + 0.6 * draw.normal(tokens, k).sigmoid()
        floats = [tensor.to(dtype).double() for tensor in (x, weights, w1, w3, w2, grad)]
        return cls(floats[0], experts, *floats[1:], dtype=dtype)

    @property
    def inputs(self) -> dict[str, Tensor]:
        floats = {name: getattr(self, name).to(self.dtype) for name in ("x", "weights", *MATRICES)}
        return {"x": floats.pop("x"), "experts": self.experts, **floats}

    def outputs(self, expert: Expert = inside, experts: Tensor | None = None) -> Tensor:
        """(T, k, h): of each token and choice, without its weight."""
        e = self.experts if experts is None else experts
        gate, up = (torch.einsum("th,tkfh->tkf", self.x, w[e]) for w in (self.w1, self.w3))
        return torch.einsum("tkf,tkhf->tkh", expert(gate, up, self.weights[..., None]), self.w2[e])

    @cached_property
    def wanted(self) -> dict[str, Tensor]:
        leaves = {name: getattr(self, name).clone().requires_grad_() for name in ("x", "weights", *MATRICES)}
        with torch.enable_grad():
            copy = replace(self, **leaves)
            y = (copy.weights[..., None] * copy.outputs()).sum(1)
            gradients = torch.autograd.grad(y, list(leaves.values()), self.grad)
        named = dict(zip(GRADIENTS, gradients, strict=True))
        return {name: tensor.to(self.dtype) for name, tensor in {"y": y.detach(), **named}.items()}

    def summed(self, outputs: Tensor, weights: Tensor | float | None = None) -> Tensor:
        factor = self.weights[..., None] if weights is None else weights
        return (factor * outputs).sum(1)

    # ---- usual mistakes

    @cached_property
    def order(self) -> Tensor:
        """The assignments, by expert."""
        return self.experts.flatten().argsort(stable=True)

    def by_expert(self, tensor: Tensor) -> Tensor:
        """(T, k, ...) in the order of the experts, which is taken for the order of the assignments."""
        return tensor.flatten(0, 1)[self.order].view_as(tensor)

    @cached_property
    def renumbered(self) -> Tensor:
        """Experts counted among those that have rows."""
        return self.experts.unique(return_inverse=True)[1]

    def through_others(self, order: Tensor) -> Tensor:
        """(T, k): the experts of the assignments, if they stand in this order and not by expert."""
        return (
            torch.empty_like(self.experts.flatten())
            .index_copy_(0, order, self.experts.flatten()[self.order])
            .view_as(self.experts)
        )

    def of_tokens(self, token: Tensor) -> Tensor:
        """The output, if each assignment's row is taken from one of these tokens and added to it."""
        moved = replace(
            self,
            x=self.x[token],
            experts=self.experts.flatten()[:, None],
            weights=self.weights.flatten()[:, None],
        )
        return torch.zeros_like(self.x).index_add(0, token, moved.summed(moved.outputs()))

    def slips(self) -> list[Slip]:
        out, w = self.outputs(), self.weights[..., None]
        total = self.weights.sum(-1, keepdim=True)[..., None]
        last = self.experts.argmax(-1)[:, None, None]
        back = torch.empty_like(w).flatten(0, 1).index_copy_(0, self.order, w.flatten(0, 1)).view_as(w)
        number = torch.arange(self.experts.numel())

        def order_too_late() -> Tensor:
            """Rows as they stand, and results and weights as if they were in the order of the experts."""
            others = self.outputs(experts=self.through_others(number)).flatten(0, 1)
            token = self.order // w.shape[1]
            return torch.zeros_like(self.x).index_add(0, token, others * w.flatten(0, 1)[self.order])

        orders = (
            number, self.order.argsort(), self.experts.flatten().argsort(descending=True, stable=True),
        )  # fmt: skip
        tokens = [number % max(len(self.x), 1), number % w.shape[1]]
        if w.shape[1] == 1:
            tokens.append(number // 2)  # k as in the notebook's example
        everything = [
            (UNSORTED, lambda: self.summed(self.by_expert(out))),
            (UNSORTED, lambda: self.summed(self.by_expert(w * out), 1.0)),
            (UNSORTED_WEIGHTS, lambda: self.summed(out, back)),
            (LAST, lambda: (w * out).take_along_dim(last, 1)[:, 0]),
            *((ONE_CHOICE, lambda i=i: (w * out)[:, i]) for i in range(w.shape[1])),
            (BEFORE, lambda: self.summed(self.outputs(lambda a, b, w: inside(w * a, w * b, w)), 1.0)),
            (UNWEIGHTED if w.shape[1] > 1 else WEIGHT_ONE, lambda: self.summed(out, 1.0)),
            (TWICE, lambda: self.summed(out, w**2)),
            (SOFTENED, lambda: self.summed(out, w.softmax(1))),
            (AVERAGED, lambda: self.summed(out) / w.shape[1]),
            (ZEROS, lambda: torch.zeros_like(self.x)),
            (RENORMALISED, lambda: self.summed(out, w / total)),
            (SWAPPED, lambda: self.summed(self.outputs(lambda a, b, w: F.silu(b) * a))),
            (NO_SILU, lambda: self.summed(self.outputs(lambda a, b, w: a * b))),
            (NO_GATE, lambda: self.summed(self.outputs(lambda a, b, w: F.silu(a)))),
            *((ANOTHER, lambda inner=inner: self.summed(self.outputs(inner))) for inner in OTHER_FORMULAS),
            *(
                (OTHER_ROWS, lambda o=o: self.summed(self.outputs(experts=self.through_others(o))))
                for o in orders
            ),
            (OTHER_ROWS, order_too_late),
            *((OTHER_TOKENS, lambda t=t: self.of_tokens(t)) for t in tokens),
            (RESIDUAL, lambda: self.x + self.summed(out)),
            (FIRST_EXPERT, lambda: self.summed(self.outputs(experts=torch.zeros_like(self.experts)))),
            (RENUMBERED, lambda: self.summed(self.outputs(experts=self.renumbered))),
        ]
        return [Slip(says, lambda gives=gives: {"y": gives().to(self.dtype)}) for says, gives in everything]

    def call(self, name: str, measured: bool = False) -> functions.Call:
        return functions.Call(
            name, ABOUT, self.inputs, self.wanted, gradients={"y": self.grad.to(self.dtype)},
            slips=lambda name, came: self.slips(), measured=measured,
        )  # fmt: skip


# ---- assignments


def chosen(draw: kit.Draw, tokens: int, count: int, k: int, spared: int = -1) -> Tensor:
    """k different experts of each token, in any order. All are used but the one that is `spared`."""
    while True:
        scores = draw.normal(tokens, count)
        if spared >= 0:
            scores[:, spared] = -100
        experts = scores.topk(k, -1).indices
        if not tokens or len(experts.unique()) == count - (spared >= 0):
            return experts


def balanced(draw: kit.Draw, count: int) -> Tensor:
    """Two experts of each of 4 x count tokens; all experts have as many rows, so that padding is free."""
    token = torch.arange(4 * count)
    second = token % count + 1 + token // count % (count - 1)
    labels = draw.normal(count).argsort()
    return labels[torch.stack([token % count, second % count], 1)]


# ---- FLOPs

EXPERTS, WIDTH, HIDDEN = 8, 8, 64
DUE = 2 * 3 * (2 * 4 * EXPERTS) * WIDTH * HIDDEN  # forward: three products for each of the T k rows
MOST = {"forward": 1.6 * DUE, "backward": 3.2 * DUE}  # a quarter of the experts is asked for
LEAST = 0.6 * DUE  # forward
ELSEWHERE = (
    "Products of other libraries, and sums of products element by element, are not counted. Use PyTorch's "
    "products of matrices, such as rows @ w1[e].T."
)


def computes(of_work: kit.Line, call: functions.Call) -> kit.Line:
    """The line on FLOPs. Too many miss the exercise's point, and as many as are due show it."""

    def judge(observed: kit.Observed) -> kit.Finding:
        made = functions.reply_about(observed, call).flops.get("forward", 0)
        if made >= LEAST:
            return of_work.judge(observed)
        said = (
            f"PyTorch's products took {words.number(made)} FLOPs in forward, but "
            f"{words.number(DUE)} are enough."
        )
        return kit.wrong(said, ELSEWHERE, cause=ELSEWHERE)

    def shown(finding: kit.Finding) -> bool:
        """Without a graph there is no backward, but forward's FLOPs, which are looked at first, are right."""
        return finding.ok or NO_GRAPH in finding.sentences

    def essential(observed: kit.Observed) -> kit.Finding:
        finding = judge(observed)
        return replace(finding, misses_point=not shown(finding))

    return replace(
        of_work, judge=essential, shows=lambda observed: float(shown(judge(observed))), part="work"
    )


def of_experts(line: kit.Line) -> kit.Line:
    """The line on values; those of a known mistake are an expert's, too."""
    known = {
        UNSORTED, UNSORTED_WEIGHTS, LAST, BEFORE, UNWEIGHTED, TWICE, RENORMALISED, SOFTENED, AVERAGED,
        SWAPPED, NO_SILU, NO_GATE, ANOTHER, RESIDUAL,
    }  # fmt: skip

    def shows(observed: kit.Observed) -> float:
        finding = line.judge(observed)
        return float(finding.ok or bool(known & set(finding.sentences)))

    return replace(line, shows=shows, part="values")


def weighted(single: kit.Line, plain: kit.Line) -> kit.Line:
    """The line on k = 1, where several mistakes make the weight 1: the plain line says which one it is."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = single.judge(observed)
        same = {UNWEIGHTED, RENORMALISED, SOFTENED} & set(plain.judge(observed).sentences)
        if WEIGHT_ONE in finding.sentences and same:
            says = same.pop()
            return kit.wrong(*finding.sentences[:1], says, cause=says)
        return finding

    return replace(single, judge=judge)


def line(
    call: functions.Call, title: str, names: tuple[str, ...] = (), weight: float = 1.0, **more: object
) -> kit.Line:
    """names: of results, all if left out; whether the arguments are left alone is judged in one line."""
    return functions.values_line(call, title, names or None, weight=weight, **{"inputs": False, **more})  # pyright: ignore[reportArgumentType]


@kit.exercise(points=9, objects=("moe",), references=REFERENCES, point=POINT)
def moe(draw: kit.Draw) -> Iterator[kit.Case]:
    plain = Mixture.draw(draw, chosen(draw, 10, 4, 2), 4).call("plain")
    single = Mixture.draw(draw, chosen(draw, 9, 3, 1), 3).call("single")
    spared = Mixture.draw(draw, chosen(draw, 8, 5, 3, spared=draw.integer(0, 4)), 5).call("spared")
    output = line(plain, "10 tokens, 2 of 4 experts each", ("y",), 2)
    yield functions.function_case(
        "values",
        [plain, single, spared],
        [
            of_experts(output),
            line(plain, "gradients of the experts", GRADIENTS[2:], 1.5),
            line(plain, "gradients of tokens and weights", GRADIENTS[:2], 1.5),
            weighted(line(single, "one expert each, and arguments left alone", inputs=True), output),
            line(spared, "an expert without tokens", ("y",)),
            line(spared, "its gradient is zeros", GRADIENTS[2:], 0.5),
        ],
    )
    many = Mixture.draw(draw, balanced(draw, EXPERTS), EXPERTS, WIDTH, HIDDEN).call("many", measured=True)
    work = functions.work_line(many, "FLOPs: k of the E experts for each token", MOST, EVERY_EXPERT, 2.5)
    yield functions.function_case(
        "work", [many], [line(many, "32 tokens, 2 of 8 experts each", ("y",), 0.5), computes(work, many)],
        proves="work",
    )  # fmt: skip
    if draw.hidden:
        mixtures = {
            "all experts": Mixture.draw(draw, chosen(draw, 5, 3, 3), 3),
            "float32": Mixture.draw(draw, chosen(draw, 12, 4, 2), 4, dtype=torch.float32),
            "bfloat16": Mixture.draw(draw, chosen(draw, 12, 4, 2), 4, dtype=torch.bfloat16),
            "no tokens": Mixture.draw(draw, chosen(draw, 0, 4, 2), 4),
        }
        calls = {title: mixture.call(title) for title, mixture in mixtures.items()}
        lines = [line(call, title, weight=0.5, short=True) for title, call in calls.items()]
        lines[-1] = replace(lines[-1], trivial=True)
        yield functions.function_case("other sizes", list(calls.values()), lines, hidden=True)
