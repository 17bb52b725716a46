"""route: the k experts of each token, and the weights through which the router learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.kit import Slip, functions
from course_lib.checks.notebooks.experts.references import REFERENCES

POINT = "weights through which the router learns"
NEVER = (
    "No gradient reaches the logits, so the router never learns. Take the weights from the probabilities "
    "themselves, without detach, no_grad or item."
)
ALWAYS_ONE = (
    "With k = 1 this weight is 1 whatever the router says, so its gradient is 0 and the router never learns. "
    "Weight a single expert by its probability, undivided."
)
SUMS = "A token's weights do not sum to 1. Divide them by their sum over the chosen experts."
SUM_OF_TOKENS = (
    "The weights were divided by a sum over several tokens. A token's own weights sum to 1: "
    "weights.sum(-1, keepdim=True)."
)
OTHER_ROW = (
    "The weights are probabilities of other tokens. An expert is a column of the probabilities, so "
    "use gather(1, experts)."
)
BIAS_WEIGHTS = (
    "The bias is in the weights. It decides which experts are chosen, but the weights are the probabilities "
    "without it."
)
BIASED_LOGITS = (
    "The bias was added to the logits. Add it to the probabilities, softmax(logits) + bias, and choose the "
    "largest sums."
)
NO_BIAS = "The experts were chosen without the bias. Choose by probability + bias."
SUBTRACTED = "The bias was subtracted. An expert with a larger bias is chosen more often."
ORDER = (
    "A token's experts are the right ones in another order. Column 0 is the expert with the largest "
    "probability + bias, and column 1 is the next."
)
TWICE = (
    "A token goes to the same expert twice. Exclude a chosen expert from the next choice with -inf, since a "
    "score can be below 0, or use topk."
)
SMALLEST = "You chose the experts with the smallest scores. Choose the largest."
CONSTANT = "All tokens go to the same experts. Choose by the logits of each token."
OVER_TOKENS = (
    "The softmax is over the tokens. A token's probabilities sum to 1 over the experts, along dimension -1."
)
LOGITS = "The weights are made of logits. Take the probabilities, softmax(logits)."
SOFTMAX_TWICE = (
    "The weights are a softmax of probabilities. Divide the chosen probabilities by their sum instead."
)
SIGMOIDS = "The probabilities are sigmoids. Take softmax(logits)."
UNIFORM = "All weights are 1/k. The more probable expert has the larger weight."
DETACHED_SUM = (
    "The sum in the denominator was detached. But it also has a gradient, because if one weight of a "
    "token grows, the other weights shrink."
)
TOO_LARGE = (
    "exp(1000) is infinite, and exp(-1000) is 0. torch.softmax subtracts a token's largest logit before it "
    "takes exponentials."
)


def trouble(error: str, text: str) -> str:
    if "sort()" in text:
        return "Name all arguments of sort: scores.sort(dim=-1, descending=True, stable=True)."
    if "tuple indices must be integers" in text:
        return "sort and topk return values and indices, so take the experts from `.indices`."
    if "leaf Variable" in text:
        return "An argument was changed in place. It belongs to the caller, so make a new tensor."
    if "inplace operation" in text:
        return "A tensor that autograd needs was changed in place. Make a new one."
    if "unexpected keyword argument 'k'" in text:
        return "`k` is a keyword argument, as in def route(logits, bias=None, *, k)."
    return ""


def misfit(name: str, came: str) -> str:
    if name.startswith("grad."):
        return NEVER
    if name == "experts" and came.startswith(("float", "bfloat")):
        return "Return the experts first, as whole numbers, and their weights second: (experts, weights)."
    return "Return (experts, weights), as int64 and the dtype of the logits, both with k columns."


ABOUT = functions.About(
    "route",
    "a loop over the tokens",
    {
        "experts": "the chosen experts are",
        "weights": "the weights are",
        "grad.logits": "the gradient of the logits is",
    },
    error=trouble,
    misfit=misfit,
    misses=(NEVER,),
)


def over_sum(weights: Tensor, dims: int | tuple[int, int]) -> Tensor:
    return weights / weights.sum(dims, keepdim=True)


@dataclass(frozen=True)
class Routing:
    """Logits (tokens, experts) and a bias, in float64 and exact in `dtype`; grad: of the weights."""

    logits: Tensor
    bias: Tensor | None
    k: int
    grad: Tensor
    dtype: torch.dtype = torch.float64

    @classmethod
    def draw(
        cls, draw: kit.Draw, tokens: int, experts: int, k: int, dtype: torch.dtype = torch.float64
    ) -> Routing:
        """The logits of a token are 0.2 apart or more, so that no rounding changes their order."""
        while True:
            levels = draw.normal(tokens, experts).argsort(-1).double()
            logits = 0.4 * levels + 0.05 * draw.normal(tokens, experts).clamp(-2, 2)
            exact = [tensor.to(dtype).double() for tensor in (logits, draw.normal(tokens, k))]
            routing = cls(exact[0], None, k, exact[1], dtype)
            if routing.mistakes_show():
                return routing

    @classmethod
    def biased(cls, draw: kit.Draw, tokens: int, experts: int, k: int) -> Routing:
        """With a bias that changes choices, other ones than it would in the logits; all sums are below 0."""
        plain = cls.draw(draw, tokens, experts, k)
        while True:
            routing = replace(plain, bias=0.3 * draw.normal(experts).double() - 1.5)
            order = routing.scores.sort(-1, descending=True).values
            if bool(((order[:, :-1] - order[:, 1:]) > 1e-4).all()) and routing.mistakes_show():
                return routing

    def mistakes_show(self) -> bool:
        """Whether each usual mistake with the choice makes another one, so that nothing depends on luck."""
        choices = [self.right, *self.other_choices.values(), self.over_tokens]
        apart = len({tuple(choice.flatten().tolist()) for choice in choices}) == len(choices)
        in_order = self.k > 1 and torch.equal(self.right, self.right.sort(-1).values)
        all_of_them = self.k == self.logits.shape[1] or len(self.logits) == 0
        return all_of_them or (apart and not in_order)

    def large(self) -> Routing:
        """Logits near 1,000 and -1,000, of which the two largest of a token are near each other."""
        down = torch.arange(len(self.logits))[:, None] % 2 == 0
        low = self.logits < self.logits.sort(-1, descending=True).values[:, 1:2]
        return replace(self, logits=self.logits + torch.where(down | low, -1000.0, 1000.0))

    # ---- the choice

    @cached_property
    def probabilities(self) -> Tensor:
        return self.logits.softmax(-1)

    @cached_property
    def scores(self) -> Tensor:
        return self.probabilities if self.bias is None else self.probabilities + self.bias

    @cached_property
    def right(self) -> Tensor:
        return self.largest(self.scores)

    def largest(self, scores: Tensor) -> Tensor:
        return scores.topk(self.k, -1).indices

    @cached_property
    def other_choices(self) -> dict[str, Tensor]:
        """By another use of the bias."""
        if self.bias is None:
            return {}
        return {
            BIASED_LOGITS: self.largest(self.logits + self.bias),
            NO_BIAS: self.largest(self.probabilities),
            SIGMOIDS: self.largest(self.logits.sigmoid() + self.bias),
            SUBTRACTED: self.largest(self.probabilities - self.bias),
        }

    @property
    def over_tokens(self) -> Tensor:
        return self.largest(self.logits.softmax(0) + (0 if self.bias is None else self.bias))

    def choice_slips(self, came: Tensor) -> list[Slip]:
        everything = {
            **self.other_choices,
            SMALLEST: self.largest(-self.scores),
            OVER_TOKENS: self.over_tokens,
        }
        return [
            *(Slip(says, lambda e=e: {"experts": e}) for says, e in everything.items()),
            Slip(ORDER, lambda: self.only_order(came)),
            Slip(TWICE, lambda: self.same_again(came)),
            Slip(CONSTANT, lambda: torch.equal(came, came[:1].expand_as(came))),
        ]

    def only_order(self, came: Tensor) -> bool:
        return torch.equal(came.sort(-1).values, self.right.sort(-1).values.to(came.dtype))

    def same_again(self, came: Tensor) -> bool:
        """Whether some token has an expert twice, and each first choice is right."""
        ordered = came.sort(-1).values
        first = torch.equal(came[:, 0], self.right[:, 0].to(came.dtype))
        return first and bool((ordered[:, 1:] == ordered[:, :-1]).any())

    def chosen(self, came: functions.Tensors) -> Tensor:
        """The experts whose weights are asked for: those that came, if a usual mistake chose them."""
        experts = came["experts"]
        known = self.only_order(experts) or self.same_again(experts)
        known |= any(torch.equal(experts.long(), e) for e in self.other_choices.values())
        known &= not torch.equal(experts.long(), self.over_tokens)  # those are other probabilities
        return experts.clamp(0, self.logits.shape[1] - 1).long() if known else self.right

    # ---- the weights

    def weights(self, logits: Tensor, experts: Tensor) -> Tensor:
        return self.divided(logits.softmax(-1).gather(1, experts))

    def divided(self, weights: Tensor) -> Tensor:
        return weights / weights.sum(-1, keepdim=True) if self.k > 1 else weights

    def weight_slips(self) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
        """The sentence of each mistake, and the weights that it gives, of the logits and the experts."""
        slips: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            LOGITS: lambda logits, e: self.divided(logits.gather(1, e)),
            SIGMOIDS: lambda logits, e: self.divided(logits.sigmoid().gather(1, e)),
            OVER_TOKENS: lambda logits, e: self.divided(logits.softmax(0).gather(1, e)),
            OTHER_ROW: lambda logits, e: self.divided(logits.softmax(-1).gather(0, e % max(len(logits), 1))),
        }
        if self.k > 1:
            slips[SUM_OF_TOKENS] = lambda logits, e: over_sum(logits.softmax(-1).gather(1, e), 0)
            slips[f"{SUM_OF_TOKENS} "] = lambda logits, e: over_sum(logits.softmax(-1).gather(1, e), (0, 1))
            slips[SUMS] = lambda logits, e: logits.softmax(-1).gather(1, e)
            slips[SOFTMAX_TWICE] = lambda logits, e: logits.softmax(-1).gather(1, e).softmax(-1)
        if (bias := self.bias) is not None:
            slips[BIASED_LOGITS] = lambda logits, e: self.divided((logits + bias).softmax(-1).gather(1, e))
            slips[BIAS_WEIGHTS] = lambda logits, e: self.divided((logits.softmax(-1) + bias).gather(1, e))
        return slips

    def gradient(self, how: Callable[[Tensor, Tensor], Tensor], experts: Tensor) -> Tensor:
        with torch.enable_grad():
            logits = self.logits.clone().requires_grad_()
            return torch.autograd.grad(how(logits, experts), logits, self.grad)[0].to(self.dtype)

    def gradient_beside(self, came: functions.Tensors) -> Tensor:
        """Of the weights that came, if a usual mistake made them: a wrong weight is told once."""
        experts = self.chosen(came)
        for says, how in {"": self.weights, **self.weight_slips()}.items():
            if says != OVER_TOKENS and kit.close(came["weights"], how(self.logits, experts).to(self.dtype)):
                return self.gradient(how, experts)
        return self.gradient(self.weights, experts)

    def slips(self, name: str, came: functions.Tensors) -> list[Slip]:
        if name == "experts":
            return self.choice_slips(came["experts"])
        experts = self.chosen(came)
        if name == "weights":
            ones = torch.full_like(self.grad, 1 / self.k).to(self.dtype)
            uniform = ALWAYS_ONE if self.k == 1 else UNIFORM
            return [
                Slip(uniform, lambda: {name: ones}),
                *(
                    Slip(says, lambda how=how: {name: how(self.logits, experts).to(self.dtype)})
                    for says, how in self.weight_slips().items()
                ),
            ]
        still = self.probabilities.gather(1, experts).sum(-1, keepdim=True)
        return [
            Slip(ALWAYS_ONE if self.k == 1 else NEVER, lambda: {name: torch.zeros_like(self.logits)}),
            Slip(
                DETACHED_SUM,
                lambda: {name: self.gradient(lambda x, e: x.softmax(-1).gather(1, e) / still, experts)},
            ),
        ]

    def call(self, name: str) -> functions.Call:
        inputs = {"logits": self.logits} | ({} if self.bias is None else {"bias": self.bias})
        shape = tuple(self.grad.shape)
        return functions.Call(
            name, ABOUT, {label: tensor.to(self.dtype) for label, tensor in inputs.items()},
            {
                "experts": self.right,
                "weights": functions.Part(
                    lambda came: self.weights(self.logits, self.chosen(came)).to(self.dtype),
                    form=kit.Spec(self.dtype, shape),
                ),
                "grad.logits": functions.Part(
                    self.gradient_beside, form=kit.Spec(self.dtype, tuple(self.logits.shape))
                ),
            },
            gradients={"weights": self.grad.to(self.dtype)}, kwargs={"k": self.k},
            outputs=("experts", "weights"), slips=self.slips,
        )  # fmt: skip


def line(call: functions.Call, title: str, names: str = "", weight: float = 1.0, **more: object) -> kit.Line:
    """names: of results, all if left out; whether the arguments are left alone is judged in one line."""
    return functions.values_line(
        call, title, names.split() or None, weight=weight, **{"inputs": False, **more}
    )  # pyright: ignore[reportArgumentType]


def finite(call: functions.Call, title: str, weight: float) -> kit.Line:
    """The line on all results; if no token has finite weights, they have a cause of their own."""
    plain = line(call, title, weight=weight)

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = plain.judge(observed)
        if bool(functions.results(observed, call)["weights"].isfinite().all(-1).any()):
            return finding
        return kit.wrong(*finding.sentences[:1], TOO_LARGE, cause=TOO_LARGE)

    return replace(plain, judge=judge)


def learns(of_gradient: kit.Line) -> kit.Line:
    """The line; a solution whose weights have no graph misses the exercise's point."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = of_gradient.judge(observed)
        return replace(finding, misses_point=NEVER in finding.sentences)

    return replace(of_gradient, judge=judge)


@kit.exercise(points=8, objects=("route",), references=REFERENCES, point=POINT)
def route(draw: kit.Draw) -> Iterator[kit.Case]:
    two = Routing.draw(draw, 12, 4, 2).call("two")
    single = Routing.draw(draw, 10, 5, 1).call("single")
    biased = Routing.biased(draw, 12, 6, 3).call("biased")
    large = Routing.draw(draw, 6, 4, 2).large().call("large")
    yield functions.function_case(
        "tokens",
        [two, single, biased, large],
        [
            line(two, "12 tokens, 2 of 4 experts each", "experts", 1.5),
            line(two, "their weights", "weights"),
            learns(line(two, "the router's gradient", "grad.logits", 2)),
            line(single, "one expert each: experts and weights", "experts weights"),
            line(single, "its gradient", "grad.logits", 1.5),
            line(biased, "with a bias: the experts", "experts", 1.5, inputs=True),
            line(biased, "with a bias: weights and gradient", "weights grad.logits"),
            finite(large, "logits near 1,000 and -1,000", 0.5),
        ],
    )
    if draw.hidden:
        routings = {
            "all experts": Routing.draw(draw, 7, 3, 3),
            "float32": Routing.draw(draw, 9, 8, 2, torch.float32),
            "bfloat16": Routing.draw(draw, 9, 4, 2, torch.bfloat16),
            "no tokens": Routing.draw(draw, 0, 4, 2),
        }
        calls = {title: routing.call(title) for title, routing in routings.items()}
        lines = [line(call, title, weight=0.5, short=True) for title, call in calls.items()]
        lines[-1] = replace(lines[-1], trivial=True)
        yield functions.function_case("other sizes", list(calls.values()), lines, hidden=True)
