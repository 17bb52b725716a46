"""chunked_loss: cross entropy of a linear head, in chunks of tokens, without the matrix of all logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.kit import functions
from course_lib.checks.notebooks.precision_and_memory.references import REFERENCES

IGNORED = -100
FLOAT, SMALL = 4, 65_536  # bytes
MEANS = (
    "You took the mean of the chunks' means, but chunks have different numbers of targets. Add up sums, "
    "and divide by the number of all targets."
)
COUNTED = "Targets of -100 were counted. Divide only by the number of targets that are not -100."
EACH = (
    "You divided by the number of tokens, which is also the number of chunks here. Divide only by the "
    "number of targets that are not -100."
)
ZERO = "Targets of -100 were taken for token 0 and counted. Leave them out of both the sum and the number."
EMPTY = (
    "A chunk without a target has no mean, because 0 / 0 is NaN. Add up sums, and divide by the "
    "number of all targets."
)
SUM = "You return the sum of the losses, but the exercise asks for the mean over all targets."
OVERWRITTEN = "Only the last chunk's gradient of the weight is left, but every chunk must add its own."
UPSTREAM = (
    "The gradients are right only for an upstream gradient of 1. Multiply them by the gradient passed to "
    "backward."
)
SLOPES = "Tokens whose target is -100 have a gradient. Set their rows of the logits' gradient to 0."
NARROW = "Sums over chunks need float32, because a sum in bfloat16 stops growing after a few hundred terms."
LOGITS = (
    "The logits of all tokens exist at the same time, or each chunk's logits are kept until backward. Free a "
    "chunk's logits as soon as its loss and its share of the gradients are computed."
)
ABOUT = functions.About(
    "chunked_loss",
    "one process with all logits",
    {
        "loss": "the loss is",
        "grad.hidden": "the gradient of hidden is",
        "grad.weight": "the gradient of weight is",
    },
    error=lambda error, text: (
        "-100 is not a row of the logits, so leave these targets out before you look them up."
        if "index" in text and ("-100" in text or "out of bounds" in text)
        else ""
    ),
    misfit=lambda name, came: (
        "The loss is a float32 without dimensions, whatever dtype the inputs have." if name == "loss" else ""
    ),
)


def gradients(
    hidden: Tensor, weight: Tensor, targets: Tensor, over: Tensor | float, upstream: float
) -> tuple:
    """(sum of the losses / over, gradient of hidden, of weight), in float64; over may be a number a token."""
    valid = targets != IGNORED
    logits = hidden.double() @ weight.double().t()
    index = targets.clamp(min=0)[:, None]
    losses = (logits.logsumexp(1) - logits.gather(1, index)[:, 0]) * valid / over
    slope = logits.softmax(1).scatter_add(1, index, -torch.ones_like(logits[:, :1]))
    slope = slope * (valid / over)[:, None] * upstream
    return losses.sum(), slope @ weight.double(), slope.t() @ hidden.double()


def named(results: tuple, like: Tensor) -> dict[str, Tensor]:
    loss, of_hidden, of_weight = results
    gradients = {"grad.hidden": of_hidden, "grad.weight": of_weight}
    return {"loss": loss.float(), **{name: tensor.to(like.dtype) for name, tensor in gradients.items()}}


def chunk_counts(targets: Tensor, chunks: int) -> Tensor:
    """For each token: its chunk's number of targets, times the number of chunks."""
    parts = targets.tensor_split(chunks)
    return torch.cat([((p != IGNORED).sum().clamp(min=1) * chunks).expand(len(p)).double() for p in parts])


def slips(hidden: Tensor, weight: Tensor, targets: Tensor, chunks: int, upstream: float) -> list[kit.Slip]:
    count = float((targets != IGNORED).sum())
    made = partial(gradients, hidden, weight, targets)

    def of(says: str, results: Callable[[], tuple], *keys: str) -> kit.Slip:
        return kit.Slip(
            says, lambda: {k: t for k, t in named(results(), hidden).items() if not keys or k in keys}
        )

    def last() -> tuple:
        alone = targets.clone()
        begin = len(targets) - len(targets.tensor_split(chunks)[-1])
        alone[:begin] = IGNORED
        return gradients(hidden, weight, alone, count, upstream)

    if chunks == len(targets):  # two mistakes give the same
        counted = [of(EACH, lambda: made(float(len(targets)), upstream))]
    else:
        counted = [
            of(MEANS, lambda: made(chunk_counts(targets, chunks), upstream)),
            of(COUNTED, lambda: made(float(len(targets)), upstream)),
        ]
    return [
        *counted,
        of(ZERO, lambda: gradients(hidden, weight, targets.clamp(min=0), float(len(targets)), upstream)),
        of(SUM, lambda: made(1.0, upstream)),
        of(UPSTREAM, lambda: made(count, 1.0), "grad.hidden", "grad.weight"),
        of(OVERWRITTEN, last, "grad.weight"),
    ]


def call(
    draw: kit.Draw,
    name: str,
    tokens: int,
    vocab: int,
    width: int,
    chunks: int,
    lost: float = 0.3,
    measured: bool = False,
    upstream: float = 0.0,
) -> functions.Call:
    hidden, weight = draw.normal(tokens, width), draw.normal(vocab, width)
    targets = torch.randint(vocab, (tokens,), generator=draw.generator)
    # all of a chunk may be lost, and the last one has targets
    targets[:-2][torch.rand(tokens - 2, generator=draw.generator) < lost] = IGNORED
    upstream = upstream or float(draw.integer(3, 9)) / 2
    count = float((targets != IGNORED).sum())
    return functions.Call(
        name, ABOUT, {"hidden": hidden, "weight": weight, "targets": targets},
        named(gradients(hidden, weight, targets, count, upstream), hidden),
        gradients={"loss": torch.tensor(upstream)}, kwargs={"chunks": chunks}, outputs=("loss",),
        slips=lambda name, came: [
            kit.Slip(EMPTY, lambda: bool(came["loss"].isnan())),
            *slips(hidden, weight, targets, chunks, upstream),
            kit.Slip(SLOPES, lambda: name != "loss" and bool(came["grad.hidden"][targets == IGNORED].any())),
        ],
        measured=measured,
    )  # fmt: skip


def stalled(came: Tensor, wanted: Tensor) -> bool:
    """Whether a sum is a part of the right one, which it is if it stops growing."""
    came, wanted = came.double(), wanted.double()
    return 0.1 < float((came * wanted).sum() / (wanted * wanted).sum()) < 0.9


def narrow_call(draw: kit.Draw) -> functions.Call:
    """bfloat16, a token to a chunk: 1,024 terms of one sign for one row of the weight.

    The logits are quarters below 64, which bfloat16 holds: the products are exact in every order.
    """
    tokens, vocab, width = 1024, 8, 8
    hidden = torch.randint(1, 3, (tokens, width), generator=draw.generator).bfloat16()
    weight = (torch.randint(-2, 3, (vocab, width), generator=draw.generator) / 4).bfloat16()
    targets = torch.zeros(tokens, dtype=torch.int64)
    results = gradients(hidden, weight, targets, float(tokens), 1.0)
    wanted, keys = named(results, hidden), ("loss", "grad.weight")
    return functions.Call(
        "narrow", ABOUT, {"hidden": hidden, "weight": weight, "targets": targets},
        {key: wanted[key] for key in keys},
        gradients={"loss": torch.tensor(1.0)}, kwargs={"chunks": tokens}, outputs=("loss",),
        slips=lambda name, came: [
            kit.Slip(slip.says, lambda slip=slip: {k: t for k, t in slip.gives().items() if k in keys})
            for slip in slips(hidden, weight, targets, tokens, 1.0)
        ]
        + [kit.Slip(NARROW, lambda: any(stalled(came[key], wanted[key]) for key in keys))],
    )  # fmt: skip


def but_for_the_sum(line: kit.Line) -> kit.Line:
    """The line; gradients of a sum are right if the loss is one, which the line about the loss tells."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        return kit.RIGHT if finding.cause == SUM else finding

    return replace(line, judge=judge)


GRADIENTS = ("grad.hidden", "grad.weight")


@kit.exercise(
    points=4, objects=("chunked_loss",), references=REFERENCES, extra=True,
    point="never holding all logits", besides="the loss and its gradients",
)  # fmt: skip
def chunked_loss(draw: kit.Draw) -> Iterator[kit.Case]:
    """Chunks of different lengths, lost targets, an upstream gradient, bfloat16; the bytes of 32 chunks."""
    lines = []
    calls = [
        (call(draw, "3 chunks of 50 tokens, lost targets", 50, 37, 16, 3), 0.75, 1.25),
        (call(draw, "1 chunk", 24, 19, 8, 1, lost=0.0, upstream=1.0), 0.5, 1.0),
        (call(draw, "a token to a chunk", 23, 17, 8, 23), 0.5, 0.5),
    ]
    for made, of_loss, of_gradients in calls:
        slopes = functions.values_line(made, f"{made.name}: gradients", GRADIENTS, weight=of_gradients)
        lines += [functions.values_line(made, made.name, ["loss"], weight=of_loss), but_for_the_sum(slopes)]
    tokens, vocab, width, chunks = 512, 4096, 16, 32
    large = call(draw, "large", tokens, vocab, width, chunks, measured=True)
    part, of_hidden, of_weight = (
        FLOAT * size for size in (tokens // chunks * vocab, tokens * width, vocab * width)
    )

    def too_many(nbytes: int) -> tuple[str, bool]:
        return LOGITS, True

    product, logits = 2.0 * tokens * vocab * width, FLOAT * tokens * vocab
    most = 8 * part + 2 * of_hidden + 4 * of_weight + SMALL
    lines += [
        functions.values_line(large, f"{chunks} chunks", weight=0.25),
        functions.work_line(
            large, "FLOPs: four products at most", {"forward": 3 * product, "backward": 3 * product},
            "The logits and both gradients take one product each, and a second run of forward takes a "
            "fourth. One of them is computed more than once.", 0.5,
        ),
        functions.memory_line(
            large, "saved", "kept for backward", 2 * (of_hidden + of_weight) + SMALL, too_many, 1.5
        ),
        functions.memory_line(large, "forward", "the peak of forward", most, too_many, 0.75, logits),
        functions.memory_line(large, "backward", "the peak of backward", most, too_many, 0.75, logits),
    ]  # fmt: skip
    yield functions.function_case("loss", [*(made for made, *_ in calls), large], lines)
    narrow = narrow_call(draw)
    title = "bfloat16: sums over chunks in float32"
    yield functions.function_case("bfloat16", [narrow], [functions.values_line(narrow, title)])
