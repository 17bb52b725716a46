"""vocab_parallel_cross_entropy: the loss of logits that no rank holds in full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.judge.layers import runs
from course_lib.checks.judge.layers.lines import members, reply_about, saved_line, sent_line, values_line
from course_lib.checks.judge.layers.runs import LayerRun
from course_lib.checks.notebooks.tensor_parallel.loss_slips import of_gradient, of_value
from course_lib.checks.notebooks.tensor_parallel.losses import Loss, run_of
from course_lib.checks.notebooks.tensor_parallel.prediction import REFERENCE
from course_lib.checks.notebooks.tensor_parallel.shared import and_unwritten, interface, own_work
from course_lib.facts import chunk_sizes, vocab_parallel_loss_bytes
from course_lib.ledger.operation import Operation

FLOAT = 4  # bytes
BESIDE = 32  # bytes of numbers, indices and masks that a target may leave for backward
OVERFLOW = (
    "exp(1,000) is infinite, and exp(-1,000) is 0, so first take off the largest logit of all ranks "
    "(an all-reduce with MAX). It cancels: log(sum of exp(logits - largest)) + largest."
)
NO_TERMS = (
    "The log of 0 is -inf, because all of the rank's own exponentials are 0 here. The sum of exponentials "
    "goes over all ranks, and at least one of its terms is then 1."
)


KEPT_WHOLE = (
    "No rank holds the logits of the whole vocabulary, because backward needs only its own part and some "
    "numbers per token."
)
KEPT = (
    "Forward keeps several tensors as large as the rank's own logits, but backward needs only one of them, "
    "the exponentials, and some numbers per token."
)
LARGEST_GRAPH = (
    "The largest logit of all ranks was written into a tensor with a graph. So backward looks for it among "
    "the rank's own logits, and divides 0 by 0 where it is not there. Take logits.detach() before the "
    "maximum, because the largest logit needs no gradient."
)


def cast(slips: list[kit.Slip], run: LayerRun) -> list[kit.Slip]:
    """Their values, in the dtypes in which they come back."""

    def in_dtypes(slip: kit.Slip, k: int) -> dict[str, Tensor]:
        return {name: t.to(run.wanted[k][name].dtype) for name, t in slip.gives(k).items()}

    return [kit.Slip(slip.says, lambda k, slip=slip: in_dtypes(slip, k)) for slip in slips]


def misfit(name: str, came: str, k: int) -> str:
    if name == "y" and "[" in came and not came.endswith("[]"):
        return "Return one number, the mean over the targets that count."
    if name == "y" and came.startswith(("bfloat16", "float64")):
        return "Compute in float32, with logits.float() if they have 16 bits."
    if name == "y" and came in ("float", "int"):
        return "A number has no graph. Return the tensor without dimensions, without .item()."
    return ""


def value(run: LayerRun, loss: Loss, title: str, weight: float = 1.0) -> kit.Line:
    slips = cast(of_value(loss), run)
    return values_line(run, title, names=["y"], slips=slips, misfit=misfit, weight=weight)


def stable(run: LayerRun, loss: Loss, title: str, weight: float) -> kit.Line:
    """The value, where an exponential of the logits themselves is infinite, or 0."""
    line = value(run, loss, title)

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in members(observed):
            y = observed.tensors[rank][f"{run.name}.y"]
            if not bool(y.isfinite()):
                says = NO_TERMS if float(y) == -torch.inf else OVERFLOW
                return kit.wrong(f"on rank {rank} the loss is {float(y):g}.", says)
        return line.judge(observed)

    return kit.Line(title, judge, weight)


def gradient(run: LayerRun, loss: Loss, title: str, weight: float = 1.0) -> kit.Line:
    slips = cast(of_gradient(loss), run)
    line = values_line(run, title, names=["grad.logits"], slips=slips, weight=weight)

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        for k, rank in enumerate(members(observed)):
            came = observed.tensors[rank].get(f"{run.name}.grad.logits")
            if not finding.ok and came is not None and through_a_maximum(came, loss, k):
                said = (
                    f"on rank {rank} the gradient of logits is nan where another rank has the largest logit."
                )
                return kit.wrong(said, LARGEST_GRAPH, cause=LARGEST_GRAPH)
        return finding

    return replace(line, judge=judge)


def through_a_maximum(grad: Tensor, loss: Loss, k: int) -> bool:
    """Whether it is NaN for just those targets whose largest logit rank k does not have."""
    elsewhere = loss.part(k, loss.logits).amax(-1) < loss.logits.amax(-1)
    rows = grad.isnan()
    return bool(elsewhere.any()) and torch.equal(rows, elsewhere[..., None].expand_as(rows))


def in_one(run: LayerRun, loss: Loss, title: str, weight: float = 1.0, **more: Any) -> kit.Line:
    """Value and gradient in one line."""
    judge = kit.both(value(run, loss, title).judge, gradient(run, loss, title).judge)
    return kit.Line(title, judge, weight, **more)


def gradient_and_logits(run: LayerRun, loss: Loss, title: str, weight: float) -> kit.Line:
    """The gradient; then, that the logits are unchanged."""
    says = "The caller still needs them, so subtract into a new tensor."
    return and_unwritten(gradient(run, loss, title, weight), run, {"after.logits": "`logits`"}, says)


# ---- what it costs


def costs(run: LayerRun, loss: Loss) -> list[kit.Line]:
    n, tokens = loss.n, loss.target.numel()
    exact = vocab_parallel_loss_bytes(n, tokens)
    parts = [FLOAT * tokens * size for size in chunk_sizes(loss.vocab, n)]

    def forward(ratio: float, done: list[Operation]) -> str:
        if ratio < 1:
            return "Every rank needs the largest logit and the sum of exponentials of all."
        if any(operation.op == "all_gather" for operation in done):
            return "Do not gather the logits, because three numbers per token are enough."
        return (
            "Send three numbers per token: the largest logit, the sum of exponentials, and the "
            "target's logit."
        )

    def backward(ratio: float, done: list[Operation]) -> str:
        return "Each rank has all numbers for the gradient of its own logits, so backward sends nothing."

    return [
        sent_line(
            run, "forward", [exact / 3] * n, most=[exact] * n, hint=forward, weight=2, tells_the_point=True
        ),
        sent_line(run, "backward", [0.0] * n, hint=backward),
        own_work(run),
        kept(run, FLOAT * tokens * loss.vocab, [2 * part + BESIDE * tokens for part in parts]),
    ]


def kept(run: LayerRun, whole: int, most: list[int]) -> kit.Line:
    """The bytes kept for backward; a solution that keeps as many as the whole logits misses the point."""
    line = saved_line(run, most, says=KEPT)

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        kept = [reply_about(observed, rank, run).saved or 0 for rank in members(observed)]
        if finding.ok or max(kept) < whole:
            return finding
        return replace(finding, sentences=(*finding.sentences[:1], KEPT_WHOLE), misses_point=True)

    return replace(line, judge=judge)


def trouble(case_of_it: kit.Case, kind: str, text: str) -> str:
    """The usual cause of a run that broke off."""
    if said := interface(text):
        return said
    if "out of bounds" in text or "out of range" in text:
        return (
            "A target that another rank has, or that is ignored (-100), is not an index into the "
            "logits here. Count from the rank's first token. For such a target look up any index, "
            "such as 0, and set the result to zero."
        )
    if "in-place operation" in text:
        return "The caller still needs the logits, so write into a new tensor: logits = logits - ..."
    if kind == "deadlock" or "collective number" in text:
        return "All ranks must call the same collectives, even a rank that has none of the targets."
    return ""


@kit.exercise(
    points=8,
    objects=("vocab_parallel_cross_entropy",),
    references=REFERENCE,
    hint=trouble,
    point="logits that no rank holds in full",
)
def vocab_parallel_cross_entropy(draw: kit.Draw) -> Iterator[kit.Case]:
    loss = Loss.draw(draw, 4, 62, 3, 8)
    run, title = run_of(loss), "4 ranks, 62 tokens"
    yield runs.layer_case(title, [run],
        [value(run, loss, f"{title}: loss", 2), gradient_and_logits(run, loss, f"{title}: gradient", 2),
         *costs(run, loss)],
        dtype="float32",
    )  # fmt: skip
    loss = Loss.draw(draw, 3, 11, 2, 6).ignoring(draw)
    large = Loss.large(draw, 3, 11, 8)
    first, second = run_of(loss), run_of(large, "large")
    title = "logits around 1,000 and -1,000"
    yield runs.layer_case("ignored targets", [first],
        [value(first, loss, "some targets ignored: loss"),
         gradient(first, loss, "some targets ignored: gradient")],
        dtype="float32",
    )  # fmt: skip
    yield runs.layer_case(
        title,
        [second],
        [stable(second, large, f"{title}: loss", 2), gradient(second, large, f"{title}: gradient")],
        dtype="float32",
    )
    loss = Loss.draw(draw, 2, 6, 7).ignoring(draw, 2)
    run, title = run_of(loss, ignore_index=2), "group {1, 3}, ignore_index=2"
    yield runs.layer_case(
        title, [run], [in_one(run, loss, title, 0.5)], members=(1, 3), world_size=4, dtype="float32"
    )
    if draw.hidden:
        yield from more(draw)


def more(draw: kit.Draw) -> Iterator[kit.Case]:
    half = Loss.draw(draw, 3, 12, 9, kind=torch.bfloat16)
    run = run_of(half)
    yield runs.layer_case("bfloat16", [run], [in_one(run, half, "logits in bfloat16", 0.5)], dtype="float32")
    for n, vocab in ((2, 9), (1, 5)):
        loss = Loss.draw(draw, n, vocab, 4, 3).ignoring(draw)
        run, title = run_of(loss), f"{words.counted(n, 'rank')}, {vocab} tokens"
        line = in_one(run, loss, title, 0.5, short=True, trivial=n == 1)
        yield runs.layer_case(title, [run], [line], dtype="float32")
