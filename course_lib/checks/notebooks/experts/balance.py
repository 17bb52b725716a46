"""load_balancing_loss: balance by a loss, from the counts of all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.judge.layers.lines import in_form, members, operations, sent_line, values_line
from course_lib.checks.judge.layers.runs import LayerRun, layer_case
from course_lib.checks.kit import Slip
from course_lib.checks.notebooks.experts.references import REFERENCES
from course_lib.facts import least_bytes
from course_lib.ledger.operation import Operation

POINT = "the counts of all ranks, in one small message"
COPY = "all_reduce works in place. Give it a copy."
EMPTY_CASE = "empty"
LARGEST, SMALLEST = 8, 4  # bytes of a count: int64 or float64, and int32 or float32
UPSTREAM = 0.5  # the gradient of the loss: its coefficient

OWN = (
    "Your loss covers only this rank's tokens. But f is the share of the assignments of all ranks, "
    "since few tokens are uneven even if the batch is balanced."
)
OWN_F = (
    "f was counted only over this rank's tokens. Count the assignments of all ranks with an "
    "all_reduce of the counts."
)
MEANS = (
    "Your result is the mean of the ranks' own losses. f is the share of the assignments of all "
    "ranks, so add the counts first."
)
TIMES_N = (
    "The gradient is as many times too large as there are ranks. A rank's logits are in its own share only, "
    "so backward sums nothing over the ranks."
)
OWN_MEAN = (
    "p is the mean over this rank's tokens. Divide the sum of its own probabilities by the tokens of all "
    "ranks, so that the shares of the ranks add up to the loss."
)
WHOLE = (
    "Your result is the loss of the whole batch, so the sum over the ranks counts it once per rank. "
    "Return this rank's share, which has the probabilities of its own tokens only."
)
NTH = (
    "The loss of the batch was divided by the number of ranks. A rank's share has the probabilities of its "
    "own tokens only, and ranks have unequally many."
)
NO_E = "The factor E is missing, so a uniform router has the loss 1/E and not 1."
TIMES_K = (
    "The loss is k times too large. f sums to 1, so divide the counts by all k T assignments and not by the "
    "T tokens."
)
K_TOO_SMALL = (
    "The share is k times too small. f sums to 1, and p is divided by the number of tokens, which is the sum "
    "of the counts divided by k. Nothing else is divided by k."
)
NEGATIVE = (
    "The sign is reversed, so training would send more tokens to the popular experts. The loss is positive."
)
N_TIMES = (
    "The share is n times too large, as if counts had been averaged over the n ranks. The tokens of all "
    "ranks are the sum of all counts, divided by k."
)
UNEQUAL = (
    "p is the mean over this rank's tokens, divided by the number of ranks. Ranks have unequally many "
    "tokens, so divide the sum of its own probabilities by the tokens of all ranks."
)
UNDIVIDED = "The sum of the probabilities was not divided by the tokens of all ranks."
SOFT = "f is made of probabilities. But it counts choices, which have no gradient, so take it from `experts`."
SOFT_OWN = (
    "f is made of the probabilities of this rank's tokens. But it counts the choices of all ranks, so take "
    "it from `experts`, and all_reduce the counts."
)
CHOSEN_AGAIN = (
    "f counts the largest logits. A bias may have chosen other experts, so count `experts` as they are."
)
FIRST = "f counts the first choice of each token only. Count all k columns of `experts`."
LOGITS = "p is made of logits. Take probabilities, logits.softmax(-1)."
OVER_TOKENS = "The softmax is over the tokens. A token's probabilities sum to 1 over the experts."
NO_GRAPH = (
    "No gradient reaches the logits, so the router would not change. Only f has no gradient, so take "
    "p from logits.softmax(-1), without detach, no_grad or item."
)
EMPTY = (
    "A rank without tokens has the share 0, and still takes part in the all-reduce. The mean of no tokens is "
    "nan, so take a sum and divide it by the tokens of all ranks."
)
TOO_LARGE = (
    "exp(1000) is infinite. torch.softmax subtracts a token's largest logit before it takes exponentials."
)


def trouble(case: kit.Case, kind: str, text: str) -> str:
    """The usual cause of a run that broke off."""
    if "unexpected keyword argument 'group'" in text:
        return "Take `group=None` as the last argument, and hand it to every collective."
    if kind == "deadlock":
        also = " A rank without tokens takes part as well." if case.title == EMPTY_CASE else ""
        return f"All ranks call the same collectives.{also}"
    sizes = re.search(r"tensor a \((\d+)\) must match the size of tensor b \((\d+)\)", text)
    one_short = sizes is not None and abs(int(sizes[1]) - int(sizes[2])) == 1
    if "do not agree on their collective" in text or one_short:
        return (
            "The counts of all ranks have one length, E. bincount without minlength=E ends at the largest "
            "number that it meets."
        )
    if "infer output dtype" in text:
        return "Counts are whole numbers, but their mean does not have to be one. Use counts.double().mean()."
    if "leaf Variable" in text:
        return "An argument was changed in place. It belongs to the caller, so make a new tensor."
    return ""


@dataclass(frozen=True)
class Batch:
    """Logits (T, E) and experts (T, k) of all ranks; sizes: tokens of each rank."""

    sizes: Sequence[int]
    logits: Tensor
    experts: Tensor
    dtype: torch.dtype = torch.float64

    @classmethod
    def draw(
        cls, draw: kit.Draw, sizes: Sequence[int], count: int, k: int, dtype: torch.dtype = torch.float64
    ) -> Batch:
        """The experts are not those of the largest logits, as if a bias had chosen some of them.

        The last expert gets no token of the first rank, and no usual mistake gives the right counts by luck.
        """
        tokens = sum(sizes)
        while True:
            logits = draw.normal(tokens, count).to(dtype).double()
            scores = draw.normal(tokens, count)
            scores[: sizes[0], -1] = -100
            batch = cls(sizes, logits, scores.topk(k, -1).indices, dtype)
            others = [batch.own_f(rank) for rank in range(batch.n)] if batch.n > 1 else []
            others += [batch.f_again, batch.f_first] if k > 1 else [batch.f_again]
            if not any(kit.close(f, batch.f) for f in others):
                return batch

    @property
    def n(self) -> int:
        return len(self.sizes)

    @property
    def count(self) -> int:
        return self.logits.shape[1]

    @property
    def k(self) -> int:
        return self.experts.shape[1]

    @property
    def tokens(self) -> int:
        return sum(self.sizes)

    def own(self, tensor: Tensor, rank: int) -> Tensor:
        return tensor.split(list(self.sizes))[rank]

    def counted(self, experts: Tensor) -> Tensor:
        return experts.flatten().bincount(minlength=self.count).double()

    @cached_property
    def f(self) -> Tensor:
        return self.counted(self.experts) / (self.k * self.tokens)

    def own_f(self, rank: int) -> Tensor:
        """Of the rank's tokens alone."""
        return self.counted(self.own(self.experts, rank)) / (self.k * max(self.sizes[rank], 1))

    @property
    def f_again(self) -> Tensor:
        """Of the largest logits, whichever experts were chosen."""
        return self.counted(self.logits.topk(self.k, -1).indices) / (self.k * self.tokens)

    @property
    def f_first(self) -> Tensor:
        return self.counted(self.experts[:, :1]) / self.tokens

    def mean(self, rank: int, over: int = 0) -> Tensor:
        """The sum of the rank's probabilities, divided by the tokens of all ranks or `over` as many."""
        return self.own(self.logits, rank).softmax(-1).sum(0) / (over or self.tokens)

    def loss(self, f: Tensor, p: Tensor) -> Tensor:
        return self.count * (f * p).sum()

    def gradient(self, rank: int, f: Tensor, over: int = 0) -> Tensor:
        """Of the rank's logits: p (f - sum f p) of each token, times UPSTREAM E over the tokens."""
        p = self.own(self.logits, rank).softmax(-1)
        inner = p * (f - (f * p).sum(-1, keepdim=True))
        return UPSTREAM * self.count * inner / (over or self.tokens)

    def wanted(self, rank: int) -> dict[str, Tensor]:
        values = {
            "y": self.loss(self.f, self.mean(rank)),
            "grad.logits": self.gradient(rank, self.f),
            "after.logits": self.own(self.logits, rank),
        }
        return {
            **{name: tensor.to(self.dtype) for name, tensor in values.items()},
            "after.experts": self.own(self.experts, rank),
        }

    def slips(self) -> list[Slip]:
        def whole(k: int) -> Tensor:
            return self.loss(self.f, sum((self.mean(r) for r in range(self.n)), torch.zeros(())))

        def with_f(f: Tensor) -> Any:
            return lambda k: self.loss(f, self.mean(k))

        def with_p(p: Any) -> Any:
            return lambda k: self.loss(self.f, p(self.own(self.logits, k)).sum(0) / self.tokens)

        mean = self.logits.softmax(-1).mean(0)

        def own(k: int) -> Tensor:
            return self.loss(self.own_f(k), self.mean(k, max(self.sizes[k], 1)))

        values = [
            (OWN, own),
            (MEANS, lambda k: torch.stack([own(rank) for rank in range(self.n)]).mean()),
            (OWN_F, lambda k: self.loss(self.own_f(k), self.mean(k))),
            (OWN_MEAN, lambda k: self.loss(self.f, self.mean(k, max(self.sizes[k], 1)))),
            (WHOLE, whole),
            (NTH, lambda k: whole(k) / self.n),
            (UNEQUAL, lambda k: self.loss(self.f, self.mean(k, self.n * max(self.sizes[k], 1)))),
            (NO_E, lambda k: self.loss(self.f, self.mean(k)) / self.count),
            (NEGATIVE, lambda k: -self.loss(self.f, self.mean(k))),
            (UNDIVIDED, lambda k: self.loss(self.f, self.mean(k, 1))),
            (SOFT, with_f(mean)),
            (SOFT, with_f(mean * self.k)),
            (SOFT, lambda k: self.loss(self.mean(k, max(self.sizes[k], 1)), self.mean(k))),
            (SOFT_OWN, lambda k: self.loss(*[self.mean(k, max(self.sizes[k], 1))] * 2)),
            (CHOSEN_AGAIN, with_f(self.f_again)),
            (LOGITS, with_p(lambda own: own)),
            (OVER_TOKENS, with_p(lambda own: own.softmax(0))),
        ]
        if self.k > 1:
            values += [
                (TIMES_K, lambda k: self.k * self.loss(self.f, self.mean(k))),
                (FIRST, with_f(self.f_first)),
                (FIRST, with_f(self.f_first / self.k)),
                (FIRST, with_f(self.f_first * self.k)),
                (K_TOO_SMALL, lambda k: self.loss(self.f, self.mean(k)) / self.k),
            ]
        gradients = [
            (OWN, lambda k: self.gradient(k, self.own_f(k), max(self.sizes[k], 1))),
            (OWN_F, lambda k: self.gradient(k, self.own_f(k))),
            (OWN_MEAN, lambda k: self.gradient(k, self.f, max(self.sizes[k], 1))),
            (UNEQUAL, lambda k: self.gradient(k, self.f, self.n * max(self.sizes[k], 1))),
            (NTH, lambda k: self.gradient(k, self.f) / self.n),
            (NO_E, lambda k: self.gradient(k, self.f) / self.count),
            (NEGATIVE, lambda k: -self.gradient(k, self.f)),
            (UNDIVIDED, lambda k: self.gradient(k, self.f, 1)),
            (SOFT, lambda k: self.gradient(k, mean)),
            (SOFT, lambda k: self.gradient(k, mean * self.k)),
            (CHOSEN_AGAIN, lambda k: self.gradient(k, self.f_again)),
        ]
        if self.n > 1:
            values.append((N_TIMES, lambda k: self.n * self.loss(self.f, self.mean(k))))
            gradients.append((TIMES_N, lambda k: self.n * self.gradient(k, self.f)))
        if self.k > 1:
            gradients += [
                (TIMES_K, lambda k: self.k * self.gradient(k, self.f)),
                (K_TOO_SMALL, lambda k: self.gradient(k, self.f) / self.k),
                (FIRST, lambda k: self.gradient(k, self.f_first * self.k)),
            ]
        return [
            Slip(says, lambda k, name=name, gives=gives: {name: gives(k).to(self.dtype)})
            for name, several in (("y", values), ("grad.logits", gradients))
            for says, gives in several
        ]

    def run(self, name: str) -> LayerRun:
        ranks = range(self.n)
        logits = [self.own(self.logits, k).to(self.dtype) for k in ranks]
        return LayerRun(
            name,
            inputs=[{"logits": logits[k], "experts": self.own(self.experts, k)} for k in ranks],
            wanted=[self.wanted(k) for k in ranks],
            gradient=[torch.tensor(UPSTREAM, dtype=self.dtype)] * self.n,
        )


def no_graph(name: str, came: str, k: int) -> str:
    if name == "grad.logits":
        return NO_GRAPH
    return "Return one number, without dimensions, in the dtype of the logits."


def loss_lines(
    batch: Batch, run: LayerRun, title: str, weight: float, nan: str = "", *, apart: bool = False,
    trivial: bool = False,
) -> list[kit.Line]:  # fmt: skip
    """nan: the usual cause of a share that is nan; apart: gradient and arguments have their own lines."""
    more: dict[str, Any] = {"slips": batch.slips(), "misfit": no_graph, "trivial": trivial}
    if not apart:
        return [
            nan_told(values_line(run, title, names=("y", "grad.logits"), weight=weight, **more), run, nan)
        ]
    share = values_line(run, f"{title}: the share of the loss", names=("y",), weight=weight, **more)
    return [
        of_all_ranks(share),
        of_the_share(
            values_line(run, f"{title}: its gradient", names=("grad.logits",), weight=weight, **more), share
        ),
        left_alone(run, "logits", "experts"),
    ]


def nan_told(line: kit.Line, run: LayerRun, says: str) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        for rank in members(observed) if says and not finding.ok else ():
            if bool(observed.tensors[rank][f"{run.name}.y"].isnan().any()):
                return kit.wrong(f"on rank {rank} the share is nan.", says, cause=says)
        return finding

    return replace(line, judge=judge)


def of_the_share(gradient: kit.Line, share: kit.Line) -> kit.Line:
    """The line on the gradient; if the share itself is n times too large, that is why the gradient is."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = gradient.judge(observed)
        if TIMES_N in finding.sentences and N_TIMES in share.judge(observed).sentences:
            return kit.wrong(*finding.sentences[:1], N_TIMES, cause=N_TIMES)
        return finding

    return replace(gradient, judge=judge)


def of_all_ranks(line: kit.Line, local: Sequence[str] = (OWN, OWN_F, MEANS, SOFT_OWN)) -> kit.Line:
    """The line; counts of the rank's own tokens miss the exercise's point."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        return replace(finding, misses_point=bool(set(local) & set(finding.sentences)))

    return replace(line, judge=judge)


def left_alone(run: LayerRun, *names: str) -> kit.Line:
    """The arguments of these names are as they were, on every rank that takes part."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for k, rank in enumerate(members(observed)):
            for name in names:
                if not torch.equal(observed.tensors[rank][f"{run.name}.after.{name}"], run.inputs[k][name]):
                    why = COPY if name == "counts" else "Make a new tensor and return it."
                    return kit.wrong(f"on rank {rank} {name} was changed.", why, cause=f"changed {name}")
        return kit.RIGHT

    return kit.Line("the arguments are left alone", judge, 0.5, trivial=True, short=True)


def forward_line(run: LayerRun, count: int, weight: float) -> kit.Line:
    """Bytes of one all-reduce of E counts; an all-gather of them is allowed, and a number for the tokens."""
    n = run.size
    least = least_bytes(n, SMALLEST * count)
    most = max((n - 1) * LARGEST * (count + 1), least_bytes(n, LARGEST * (count + 1)))

    def hint(ratio: float, done: list[Operation]) -> str:
        if ratio < 1:
            return "Each rank needs the counts of all ranks, so all_reduce E numbers."
        return "The E counts of each rank are enough, so no logits or experts have to be sent."

    def shows(observed: kit.Observed) -> float:
        """Whether each rank sent its counts; probabilities besides are another mistake."""
        done = [operations(run, observed, rank, "forward") for rank in members(observed)]
        sent = [sum(operation.bytes_sent for operation in of_rank) for of_rank in done]
        return float(in_form(run, observed) and not kit.beyond(sent, [3 * most] * n, [least] * n))

    line = sent_line(
        run, "forward", [least] * n, most=[most] * n, hint=hint, weight=weight,
        title="bytes: one number per expert",
    )  # fmt: skip
    return replace(line, shows=shows)


def nothing_back(run: LayerRun) -> kit.Line:
    says = "A share depends on this rank's logits only, so backward sends nothing."
    return sent_line(
        run, "backward", [0.0] * run.size, hint=lambda *_: says, title="nothing is sent backward", weight=0.5
    )


@kit.exercise(points=6, objects=("load_balancing_loss",), references=REFERENCES, hint=trouble, point=POINT)
def load_balancing_loss(draw: kit.Draw) -> Iterator[kit.Case]:
    two = Batch.draw(draw, [7, 4], 6, 3)
    run = two.run("two")
    lines = loss_lines(two, run, "2 ranks", 2, apart=True)
    yield layer_case("2 ranks", [run], [*lines, forward_line(run, two.count, 1.5), nothing_back(run)])
    three = Batch.draw(draw, [5, 0, 3], 4, 1)
    run = three.run("three")
    yield layer_case(EMPTY_CASE, [run], loss_lines(three, run, "3 ranks, one without tokens", 1, EMPTY))
    # k, the number of ranks, and all tokens over a rank's own differ, since each can be a factor too many.
    group = Batch.draw(draw, [4, 6], 5, 3)
    run = group.run("group")
    yield layer_case(
        "group", [run], loss_lines(group, run, "group {1, 3}", 0.5), members=(1, 3), world_size=4
    )
    if draw.hidden:
        four = Batch.draw(draw, [4, 2, 6, 3], 8, 3)
        yield layer_case("4 ranks", [four.run("four")], loss_lines(four, four.run("four"), "4 ranks", 0.5))
        narrow = Batch.draw(draw, [5, 6], 4, 2, torch.float32)
        large = Batch.draw(draw, [5, 6], 4, 2)
        large = replace(large, logits=large.logits + 1000 * large.logits.sign())
        runs = [narrow.run("narrow"), large.run("large")]
        yield layer_case(
            "numbers", runs,
            [
                *loss_lines(narrow, runs[0], "float32", 0.5),
                *loss_lines(large, runs[1], "logits near 1,000 and -1,000", 0.5, TOO_LARGE),
            ],
        )  # fmt: skip
        alone = Batch.draw(draw, [6], 4, 2)
        run = alone.run("alone")
        yield layer_case("1 rank", [run], loss_lines(alone, run, "1 rank", 0.5, trivial=True))
