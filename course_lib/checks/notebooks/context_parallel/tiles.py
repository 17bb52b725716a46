"""tiled_attention: forward and backward, and nothing of the size of the scores at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.judge.layers.lines import subject
from course_lib.checks.kit import functions
from course_lib.checks.notebooks.context_parallel.references import (
    COMPILED,
    OPERATIONS,
    REFERENCES,
    REFUSED,
    THEIRS,
)
from course_lib.checks.notebooks.context_parallel.tiles_slips import gradient_slips, output_slips
from course_lib.checks.notebooks.context_parallel.whole import Whole

POINT = "never holding the N x N scores, in forward, in backward or between them"
GRADIENTS = ("grad.q", "grad.k", "grad.v")
DEFAULT = 256  # block, where it is left out
BYTES = 8  # of a number in float64
# The sequence in which bytes are counted, and its tiles: 16 x 16 of them
SEQ, HEADS, HEAD_DIM, BLOCK = 2048, 2, 4, 128
ONE = BYTES * SEQ * HEADS * HEAD_DIM  # q, k, v or the output
TILE = BYTES * HEADS * BLOCK**2
ROW = TILE * SEQ // BLOCK  # a tile of queries with all keys
SCORES = ROW * SEQ // BLOCK
TILES = SEQ // BLOCK
ON_OR_BELOW = TILES * (TILES + 1) // 2  # tiles of which anything is seen under a causal mask
# FLOPs of one of the products of all of these tiles; two of them forward, five backward, and some to spare
PRODUCT = 2 * HEADS * HEAD_DIM * BLOCK**2 * ON_OR_BELOW
FLOPS = {"forward": 2.5 * PRODUCT, "backward": 7 * PRODUCT}
MADE = {"forward": 1.5, "backward": 3}  # of them at least, in an attempt with wrong values
SKIP = (
    "A tile entirely above the diagonal is computed and masked, although no query sees a key of it. If "
    "queries[-1] < keys[0], go on to the next tile, in forward and in backward."
)
ROWS = 8 * SEQ * HEADS * BYTES  # a few numbers for each query, such as lse and delta
# Of a result in 16 bits: by how much the root mean square of its errors may exceed that of one rounding. The
# gradients are those of a rounded output, and probabilities may be in 16 bits, which makes up to 1.6.
ROUNDINGS = {"y": 1.5, "grad.q": 2.1, "grad.k": 2.1, "grad.v": 2.1}
REMAINDER = (
    "The last tile of queries or of keys can be shorter, because q[:, i : i + block] ends where the tensor "
    "ends."
)
STEP = (
    "For each tile, compute p = exp(s - lse), dv += p^T dout, ds = p (dout v^T - delta), dq += ds k, dk += "
    "ds^T q, with the factor of the scores in dq and dk."
)
MERGED = "Is each tile's part merged with the result of the tiles before it?"
LARGE = (
    "exp of such scores is infinite, so take differences first. Does the merge you call here pass its own "
    "check with large scores?"
)
ROUNDED = (
    "Sums over many tiles need more digits than the inputs have, so keep out, lse, scores and the sums of "
    "gradients in float32, and round the results only once."
)
LONG = "long"
SLOW = (
    "This case has many small tiles. Each of them costs time, and even more if autograd also records all "
    "of its operations for backward. Time a call with a long sequence and a small block in a cell of your "
    "own. If the call finishes there, run the check again when the machine is idle."
)
COARSE = 0.25  # of the root mean square: a larger error is not one of rounding
GRAPH = (
    "Return the result of a torch.autograd.Function's apply, whose backward returns the gradients of q, k "
    "and v, and then None for each other argument of forward."
)


def trouble(error: str, text: str) -> str:
    if "must match the size" in text or "is invalid for input" in text:
        return f"Are there tiles of another size? {REMAINDER} Also, kv_heads can be smaller than heads."
    if "backward or vjp" in text:
        return "The torch.autograd.Function has no backward yet. Write a staticmethod backward(ctx, grad)."
    if "Provided sizes" in text:
        return "by_head takes four dimensions, so pass lse and delta as lse[:, rows, :, None]."
    if "incorrect number of gradients" in text:
        return (
            "backward must return one value for each argument of forward, and None for each that is not a "
            "tensor."
        )
    if "in-place" in text or "inplace" in text or "leaf" in text:
        return (
            "A tensor that autograd needs was changed in place, but that is allowed only within a "
            "Function's forward."
        )
    return ""


def stopped(case: kit.Case, kind: str, text: str) -> str:
    """The usual cause of a time-out: tiles that are slow, and not a loop without an end."""
    return SLOW if kind == "timeout" and case.title == LONG else ""


def misfit(name: str, came: str) -> str:
    return GRAPH if name.startswith("grad.") else "The output must have q's shape and dtype."


ABOUT = functions.About(
    "tiled_attention",
    "full attention",
    {"y": "the output is", **{name: f"the gradient of {name[5:]} is" for name in GRADIENTS}},
    error=trouble,
    misfit=misfit,
    own_errors=(THEIRS, COMPILED),
)


def call_of(
    name: str, whole: Whole, block: int | None, causal: bool = False, measured: bool = False
) -> functions.Call:
    """block None: left out, as causal is where it is not set."""
    kwargs = {"causal": True} if causal else {}
    slips = {"y": output_slips, **dict.fromkeys(GRADIENTS, gradient_slips)}
    return functions.Call(
        name, ABOUT, whole.inputs,
        {key: functions.Part(t, otherwise=MERGED if key == "y" else STEP) for key, t in whole.wanted.items()},
        gradients={"y": whole.grad}, kwargs=kwargs if block is None else {"block": block, **kwargs},
        slips=lambda name, came: slips[name](whole, block or DEFAULT), measured=measured,
    )  # fmt: skip


def forward_of(call: functions.Call) -> functions.Call:
    """The same call without its backward: an error there costs the lines of forward nothing."""
    name = f"{call.name}, forward"
    return replace(call, name=name, wanted={"y": call.wanted["y"]}, gradients={}, asking=True)


# ---- 16 bits


def half_call(draw: kit.Draw) -> tuple[functions.Call, Whole]:
    """Inputs of bfloat16 in many tiles: each result is rounded once."""
    whole = Whole.draw(draw, 1, 128, 2, 1, 8, dtype=torch.bfloat16)
    halved = {name: tensor.bfloat16() for name, tensor in {**whole.inputs, **whole.wanted}.items()}
    call = functions.Call(
        "half", ABOUT, {name: halved[name] for name in "qkv"}, {n: halved[n] for n in whole.wanted},
        gradients={"y": whole.grad.bfloat16()}, kwargs={"block": 8},
    )  # fmt: skip
    return call, whole


def half_line(call: functions.Call, whole: Whole, title: str, weight: float) -> kit.Line:
    """Of bfloat16, rounded once: not after every tile."""
    near, far = (functions.values_line(call, title, otherwise=says) for says in (ROUNDED, ""))
    once = {name: error_of(exact.bfloat16(), exact) for name, exact in whole.wanted.items()}

    def judge(observed: kit.Observed) -> kit.Finding:
        errors = {
            name: error_of(observed.tensors[0][f"{call.name}.{name}"], exact)
            for name, exact in whole.wanted.items()
        }
        shares = [errors[name] / error_of(exact, 0 * exact) for name, exact in whole.wanted.items()]
        if not all(share <= COARSE for share in shares):
            finding = far.judge(observed)
            return finding if finding.cause not in whole.wanted else replace(finding, cause=kit.ANY)
        finding = near.judge(observed)
        often = [name for name in whole.wanted if errors[name] > ROUNDINGS[name] * once[name]]
        if not finding.ok or not often:
            return finding
        name = often[0]
        general = f"{subject(name)} in bfloat16 has larger errors than one rounding makes."
        times = kit.Sentence(f"{general[:-1]} ({errors[name] / once[name]:.1f} times as large).", general)
        return kit.wrong(times, ROUNDED, cause="roundings")

    return kit.Line(title, judge, weight)


def error_of(tensor: Tensor, exact: Tensor) -> float:
    """Root mean square."""
    return float((tensor.double() - exact).pow(2).mean().sqrt())


# ---- memory


def cause_of(direction: str) -> Callable[[int], tuple[str, bool]]:
    def says(nbytes: int) -> tuple[str, bool]:
        if nbytes >= SCORES // 2:  # of one head alone, or of half of the pairs
            return (
                f"The whole N x N matrix existed in {direction}, in one piece or as tiles that were all "
                "kept. Make one tile at a time, and let go of it before the next.",
                True,
            )
        return (
            "A tile of queries met all keys together, with block x N scores, or much of many tiles was "
            "held. Also go through the keys in tiles, and let go of each tile before the next.",
            False,
        )

    return says


def kept_says(nbytes: int) -> tuple[str, bool]:
    if nbytes >= SCORES // 2:  # under a causal mask autograd keeps half of the tiles
        return (
            "The scores of all tiles were kept, by autograd or by you. Without a torch.autograd.Function "
            "of your own, each operation keeps its result for backward. Instead, keep q, k, v, out and "
            "lse, and make the scores again.",
            True,
        )
    return "Backward needs only q, k, v, out and one lse for each query.", False


def memory_lines(call: functions.Call) -> list[kit.Line]:
    """The memory that forward keeps is linear in the sequence, and so is the peak of each direction."""
    lines = [
        functions.memory_line(
            call, "saved", "kept for backward: q, k, v, out and lse", 4 * ONE + ROWS // 4 + 4096,
            kept_says, 3, SCORES // 8,
        ),
        functions.memory_line(
            call, "forward", "alive at a moment of forward: no N x N matrix",
            10 * ONE + ROWS + 8 * TILE, cause_of("forward"), 1.5, SCORES // 8,
        ),
        functions.memory_line(
            call, "backward", "alive at a moment of backward: no N x N matrix",
            14 * ONE + ROWS + 12 * TILE, cause_of("backward"), 1.5, SCORES // 8,
        ),
    ]  # fmt: skip

    def shows(observed: kit.Observed) -> float:
        """Whether the products of the scores were made, and no moment had all of these."""
        made = functions.reply_about(observed, call).flops
        enough = all(made.get(way, 0) >= products * PRODUCT for way, products in MADE.items())
        return float(enough and all(line.judge(observed).ok for line in lines))

    return [replace(lines[0], shows=shows, part="memory"), *lines[1:]]


def attends(line: kit.Line) -> kit.Line:
    """The line on values; right ones, or those of a known mistake, show that a solution attends."""

    def shows(observed: kit.Observed) -> float:
        finding = line.judge(observed)
        known = finding.sentences[1:] and finding.sentences[1] not in ("", MERGED)
        return float(finding.ok or bool(known))

    return replace(line, shows=shows, part="values")


@kit.exercise(
    points=12, objects=("tiled_attention",), references=REFERENCES, refused=REFUSED, hint=stopped, point=POINT
)
def tiled_attention(draw: kit.Draw) -> Iterator[kit.Case]:
    plain, causal = Whole.draw(draw, 2, 13, 2, 2, 4), Whole.draw(draw, 2, 13, 2, 2, 4, causal=True)
    grouped = Whole.draw(draw, 1, 11, 6, 2, 5, causal=True)
    left_out = Whole.draw(draw, 1, 300, 2, 2, 4)
    fitting = Whole.draw(draw, 1, 8, 2, 2, 5, causal=True)
    large = Whole.draw(draw, 1, 12, 2, 2, 4, large=300.0, causal=True)
    calls = [
        call_of("plain", plain, 5), call_of("causal", causal, 4, True),
        call_of("grouped", grouped, 4, True), call_of("left out", left_out, None),
        call_of("fitting", fitting, 4, True), forward_of(call_of("large", large, 5, True)),
    ]  # fmt: skip
    forward = [forward_of(call) for call in calls[:3]]
    yield functions.function_case(
        "values",
        [*forward, *calls],
        [
            attends(functions.values_line(forward[0], "13 tokens in tiles of 5", weight=2)),
            functions.values_line(calls[0], "gradients", GRADIENTS, weight=2.5),
            attends(functions.values_line(forward[1], "under a causal mask, tiles of 4", weight=1.5)),
            functions.values_line(calls[1], "gradients under it", GRADIENTS, weight=1.5),
            functions.values_line(forward[2], "6 heads, 2 of keys and values"),
            functions.values_line(calls[2], "gradients of grouped queries", GRADIENTS, weight=1.5),
            functions.values_line(calls[3], "block left out", weight=0.5, short=True),
            functions.values_line(calls[4], "tiles that fit", weight=0.5, short=True),
            functions.values_line(calls[5], "scores in the hundreds", weight=0.5, otherwise=LARGE),
        ],
        OPERATIONS,
    )
    long = Whole.draw(draw, 1, SEQ, HEADS, HEADS, HEAD_DIM, causal=True)
    measured = call_of("long", long, BLOCK, True, measured=True)
    half, exact = half_call(draw)
    yield functions.function_case(
        LONG, [measured],
        [
            functions.values_line(measured, "a longer sequence", weight=0.5, short=True),
            *memory_lines(measured),
            functions.work_line(measured, "tiles that no query sees are skipped", FLOPS, SKIP, 1.5),
        ],
        OPERATIONS, timeout=30.0, proves="memory",
    )  # fmt: skip
    # apart: a student who rounds too often must still get the lines about memory
    yield functions.function_case(
        "half", [half], [half_line(half, exact, "bfloat16, rounded once", 1)], OPERATIONS
    )
    if draw.hidden:
        yield from more(draw)


def more(draw: kit.Draw) -> Iterator[kit.Case]:
    grouped = Whole.draw(draw, 2, 6, 4, 1, 3, causal=True)
    calls = [
        call_of("tiles of one token", grouped, 1, True),
        call_of("one tile for all", Whole.draw(draw, 1, 7, 3, 3, 4), 64),
        call_of("all heads with one of keys", grouped.but(mask=None), 4),
    ]
    lines = [functions.values_line(call, call.name, weight=0.5, short=True) for call in calls]
    yield functions.function_case("tiles of other sizes", calls, lines, OPERATIONS, hidden=True)
