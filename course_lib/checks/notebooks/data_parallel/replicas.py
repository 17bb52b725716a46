"""Shared by the checks of all wrappers: trainings, and lines about the messages of each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import torch

from course_lib.checks import kit, words
from course_lib.checks.judge import training_runs
from course_lib.checks.judge.training_runs.single import Gradient, Training, train
from course_lib.checks.notebooks.data_parallel.early import LEFT_EARLY, left_early
from course_lib.ledger.operation import Operation

REFERENCE = ("course_lib.data_parallel",)
SGD = ("SGD", {"lr": 0.1, "momentum": 0.9})
ADAMW = ("AdamW", {"lr": 0.05})
NOTHING = "Each rank went on with the gradients of its own data"
SUMS = ("all_reduce", "reduce_scatter")
NARROW = {  # dtypes with fewer digits, of a run's dtype
    torch.float64: {"float32", "bfloat16", "float16"},
    torch.float32: {"bfloat16", "float16"},
}
SECONDS = 20.0  # four ranks on two busy cores import their optimizers first

Hint = Callable[[float, kit.Observed], str]


def training(
    draw: kit.Draw,
    n: int,
    model: dict,
    *,
    optimizer: tuple[str, dict] = SGD,
    steps: int = 2,
    micro: int = 1,
    signs: Sequence[Sequence[int]] = (),
    tell: tuple[str, ...] = ("start", "grads", "params"),
    **more: Any,
) -> Training:
    """Own data for every rank, step and microbatch; signs[rank][step] fixes that of the first input."""

    def batch(rank: int, step: int) -> dict:
        described = {"seed": draw.integer(0, 1 << 30), "samples": 3, "width": model["width"]}
        return {**described, "sign": signs[rank][step]} if signs else described

    batches = [[[batch(r, s) for _ in range(micro)] for s in range(steps)] for r in range(n)]
    seeded = {"seed": draw.integer(0, 1 << 31), **model}
    return Training(seeded, optimizer, batches, tell, more)


def wrapper_case(title: str, run: Training, case_lines: Sequence[kit.Line]) -> kit.Case:
    """A run of the student's wrapper."""
    return training_runs.training_case("replicas", title, run, case_lines, timeout=SECONDS)


def trained(run: Training) -> dict[str, torch.Tensor]:
    """The parameters that get a gradient, by name; a tied one stands once."""
    return {name: p for name, p in run.built().named_parameters() if p.requires_grad}


def numel(run: Training, everything: bool = False) -> int:
    held = run.built().parameters() if everything else trained(run).values()
    return sum(p.numel() for p in held)


# ---- values


def right_values(
    run: Training,
    what: str,
    title: str,
    weight: float = 1.0,
    otherwise: str = "",
    sum_of: str = "bucket",
    strict: bool = False,
    **more: Any,
) -> kit.Line:
    """`same_as_one_process`; if the ranks exchanged something that is not a gradient, it says so.

    otherwise: the hint if no known mistake explains the values; sum_of: a word for each sum over the ranks;
    strict: gradients in float64 that went through float32 are wrong, which one line of an exercise says.
    """
    n = run.world_size
    mistakes = [*training_runs.common(n), read_too_early(n, sum_of), left_under_no_sync()]
    line = training_runs.same_as_one_process(what, run, title, mistakes=mistakes, weight=weight, **more)

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        if finding.ok:
            return finding
        if "start" in run.tell and not (start := same_start(run, title).judge(observed)).ok:
            return start
        if to_float32(run, what, observed):
            return kit.wrong(finding.sentences[0], LESS_EXACT, cause=LESS_EXACT) if strict else kit.RIGHT
        if not_stored(run, observed):
            return kit.wrong(finding.sentences[0], NOT_STORED, cause=NOT_STORED)
        if only_later(run, what, observed):
            return kit.wrong(finding.sentences[0], AGAIN, cause="only later")
        if left_early(run, observed):
            return kit.wrong(finding.sentences[0], LEFT_EARLY, cause=LEFT_EARLY)
        if any(NOTHING in said for said in finding.sentences) and summed_something(observed):
            return kit.wrong(
                finding.sentences[0],
                "The ranks summed something that is not a gradient. register_post_accumulate_grad_hook "
                "gives the hook the *parameter*, so reduce `p.grad`, not `p`. A sum made in a copy must "
                f"come back into `p.grad`, and a {sum_of} read before its wait() still holds this rank's "
                "own values.",
                cause="not the gradients",
            )
        if otherwise and len(finding.sentences) == 1:
            return kit.wrong(finding.sentences[0], otherwise)
        return finding

    return kit.Line(title, judge, line.weight, trivial=line.trivial, short=line.short)


AGAIN = (
    "Step 1 is right, but a later step is not. Reset the state of a step (handles, flat tensors, which "
    "gradients have arrived) at the end of finish_gradient_synchronization()."
)


def only_later(run: Training, what: str, observed: kit.Observed) -> bool:
    """The first step's tensors are right on every rank."""
    if what not in ("grad", "param"):
        return False
    expected = training_runs.kind(f"{what}.0", train(run))
    ranks = (observed.tensors[rank] for rank in training_runs.members(observed))
    return not any(training_runs.differing(tensors, expected, run.dtype) for tensors in ranks)


LESS_EXACT = (
    "The values are right to the digits of float32, but these gradients are float64. Give a tensor of your "
    "own the gradients' dtype, as torch.zeros_like(p) and torch.zeros(size, dtype=p.dtype) do."
)


def to_float32(run: Training, what: str, observed: kit.Observed) -> bool:
    """A run in float64 has one process's values on every rank, but only as exactly as float32 has them."""
    if run.dtype != torch.float64:
        return False
    everything = train(run)
    starts = training_runs.kind("start", everything)
    return not any(
        training_runs.differing(
            observed.tensors[rank],
            training_runs.kind(of, everything),
            torch.float32,
            starts if of == "param" else {},
        )
        for rank in training_runs.members(observed)
        for of in {"grad", what}  # the gradients, too, since AdamW's steps do not show a factor
    )


NOT_STORED = (
    "All ranks took part in the sums, but a rank without a gradient still has none afterwards. It sends "
    "zeros, and gets the mean as well, so store the mean in its `.grad`."
)


def not_stored(run: Training, observed: kit.Observed) -> bool:
    """Every rank summed as much in the first step, but one has no gradient where the mean is not zero."""
    expected = training_runs.kind("grad.0", train(run))
    due = {name for name, tensor in expected.items() if tensor.count_nonzero()}
    ranks = training_runs.members(observed)
    summed = {
        sum(operation.nbytes for operation in by_step(observed, rank)[1][0] if operation.op in SUMS)
        for rank in ranks
    }
    return len(summed) == 1 and any(due.intersection(observed.values[rank].without) for rank in ranks)


def read_too_early(n: int, sum_of: str) -> training_runs.Mistake:
    def own_share(rank: int) -> Gradient:
        alone = training_runs.only(lambda rank_gradients: [rank_gradients[rank]])
        return lambda step, rank_gradients: {
            name: gradient / n for name, gradient in alone(step, rank_gradients).items()
        }

    return training_runs.Mistake(
        f"The result is this rank's own gradient over {n}. Either the {sum_of} was read before its wait(), "
        "when the sum had not arrived, or it is not where the sum was written.",
        own_share,
    )


def left_under_no_sync() -> training_runs.Mistake:
    return training_runs.Mistake(
        "Only the first microbatch was exchanged, since its buckets left although it ran under no_sync(). "
        "Hooks are also called there but must do nothing, so let no_sync() set a flag they check.",
        lambda rank: training_runs.only(
            lambda rank_gradients: [microbatches[:1] for microbatches in rank_gradients]
        ),
    )


def summed_something(observed: kit.Observed) -> bool:
    return any(
        operation.op in SUMS and operation.bytes_sent for rank in observed.operations for operation in rank
    )


def same_start(run: Training, title: str, weight: float = 1.0, **more: Any) -> kit.Line:
    line = training_runs.same_as_one_process(
        "start", run, title, mistakes=[training_runs.common(run.world_size)[-1]], weight=weight, **more
    )
    fixed = [f"start.{name}" for name, p in run.built().named_parameters() if not p.requires_grad]

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        if finding.ok:
            return finding
        expected = training_runs.kind("start", train(run))
        ranks = (observed.tensors[rank] for rank in training_runs.members(observed))
        off = {name for tensors in ranks for name in training_runs.differing(tensors, expected, run.dtype)}
        hints = finding.sentences[1:]
        if off <= set(fixed):
            hints = (FROZEN_TOO,)
        return kit.wrong(finding.sentences[0], *hints, cause="start")

    return replace(line, judge=judge)


FROZEN_TOO = (
    "Only frozen parameters differ. They have no gradient, but forward uses them, so broadcast all of "
    "module.parameters(), whether they require a gradient or not."
)


def same_buffers(run: Training, title: str, weight: float = 1.0) -> kit.Line:
    """Buffers are those of the first rank's model; of a model whose forward does not write them."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in range(observed.world_size):
            for name, buffer in run.built().named_buffers():
                if not torch.equal(observed.tensors[rank][f"buffer.{name}"].to(buffer.dtype), buffer):
                    return kit.wrong(
                        f"after the model was wrapped, buffer {name} on rank {rank} differs from the first "
                        "rank's buffer.",
                        "Buffers (running statistics, masks, position tables) belong to the model, so also "
                        "broadcast module.buffers().",
                        cause="buffers",
                    )
        return kit.RIGHT

    return kit.Line(title, judge, weight)


NEVER_LEFT = (
    "A bucket that waits for a gradient which never arrives is never sent. An unused parameter has no "
    "gradient, so after backward, send the buckets that are left, with zeros for missing gradients."
)


def unused_parameter(draw: kit.Draw, title: str = "a parameter that nothing uses", **more: Any) -> kit.Case:
    """In a case of its own: a student who overlooks p.grad is None loses only this."""
    run = training(draw, 2, {"name": "traps", "width": 4}, steps=1, **more)
    return wrapper_case(title, run, [all_leave(run, right_values(run, "grad", title, 1.5))])


def all_leave(run: Training, line: kit.Line) -> kit.Line:
    """The line; if it is wrong because too few gradients were summed, it says so."""
    due = sum(p.numel() for name, p in trained(run).items() if not name.startswith("unused"))

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        for rank in range(observed.world_size) if not finding.ok else ():
            summed = sum(
                prod(operation.shape) for operation in by_step(observed, rank)[1][0] if operation.op in SUMS
            )
            if 0 < summed < due:
                return kit.wrong(
                    f"rank {rank} summed only {words.number(summed)} of the {words.number(due)} elements of "
                    "its gradients.",
                    NEVER_LEFT,
                    cause=NEVER_LEFT,
                )
        return finding

    return kit.Line(line.title, judge, line.weight)


SOME_RANKS = (
    "Here a parameter has a gradient on only some ranks. All ranks must start the same all-reduces in the "
    "same order, so a rank without a gradient sends zeros."
)


def some_ranks_only(
    draw: kit.Draw,
    title: str = "a parameter with a gradient on some ranks only",
    sum_of: str = "bucket",
    **more: Any,
) -> kit.Case:
    """In each step the middle block is used by one of two ranks."""
    turns = [[1, -1], [-1, 1]]
    run = training(draw, 2, {"name": "sometimes", "width": 3}, signs=turns, **more)
    otherwise = f"If the other runs are right, note the difference: {SOME_RANKS[0].lower()}{SOME_RANKS[1:]}"
    line = right_values(run, "grad", title, 1.5, otherwise=otherwise, sum_of=sum_of)
    return wrapper_case(title, run, [line])


def broken_off(case: kit.Case, kind: str, text: str) -> str:
    """The usual cause when a run of a wrapper ends early."""
    if case.groups:
        return training_runs.group_trouble(case, text)
    if "some ranks" in case.title and kind in ("deadlock", "error", "timeout"):
        return SOME_RANKS
    if "not an iterator" in text or "context manager protocol" in text:
        return (
            "`with model.no_sync():` needs a generator below @contextlib.contextmanager. Keep that line, and "
            "write one `yield` where the body of the `with` runs."
        )
    if "Boolean value of Tensor" in text:
        return (
            "`in` a list and `==` compare the elements of tensors. Keep parameters in a set or a dict, which "
            "tell them apart as objects, or compare them with `is`."
        )
    if "NoneType" in text:
        return (
            "Some parameters have no gradient, so p.grad is None. Skip frozen parameters, and send zeros "
            "for a parameter that was not used."
        )
    if "was changed before wait" in text:
        return "A bucket was written to while it was in transit. Touch it only after its wait()."
    if "returned without waiting for" in text:
        return "Keep every handle, and wait for all of them in finish_gradient_synchronization()."
    return ""


# ---- what is sent


def by_step(observed: kit.Observed, rank: int) -> tuple[list[Operation], list[list[Operation]]]:
    """This rank's operations: those before the first backward, and those of each step."""
    steps = observed.case.sides[rank].instructions.steps
    passes = observed.values[rank].passes
    firsts, number = [], 0
    for step in steps:
        entries = passes[number] if number < len(passes) else []
        firsts.append(entries[0].begun if entries else 0)
        number += len(step)
    ops = observed.operations[rank]
    return ops[: firsts[0]], [ops[a:b] for a, b in pairwise([*firsts, len(ops)])]


def gradients_sent(
    run: Training, *, hint: Hint | None = None, title: str = "bytes sent in each step", weight: float = 1.0
) -> kit.Line:
    """2 (N-1)/N of the gradients' bytes by every rank in every step; a byte each may ask who has one, and it
    may be filled up to a multiple of N, as a reduce-scatter needs it."""
    n, held = run.world_size, trained(run)
    share = 2 * (n - 1) / n * run.dtype.itemsize
    exact = share * sum(p.numel() for p in held.values())
    least = exact - share * sum(p.numel() for name, p in held.items() if name.startswith("unused"))
    most = share * sum(-(-p.numel() // n) * n for p in held.values()) + 2 * len(held)

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in range(n):
            for step, operations in enumerate(by_step(observed, rank)[1]):
                sent = sum(operation.bytes_sent for operation in operations)
                if least - 1 <= sent <= most + 1:
                    continue
                many = sent > most
                bound = words.number(round(exact))
                return kit.wrong(
                    f"in step {step + 1} rank {rank} sent {words.number(round(sent))} bytes, but {bound} "
                    f"are {'enough' if many else 'needed'}, 2 (N-1)/N of its gradients.",
                    kit.usual(hint or more_than_gradients, sent / exact, observed),
                    cause=f"bytes {sent / exact:.2f}",
                )
        return kit.Finding(True, title=f"{title}: {words.number(round(exact))} by every rank")

    def more_than_gradients(ratio: float, observed: kit.Observed) -> str:
        micro = len(observed.case.sides[0].instructions.steps[0])
        if micro > 1 and abs(ratio - micro) < 0.01:
            return (
                f"Each of the {micro} microbatches was sent. Under no_sync(), backward only adds to "
                "`.grad`, then the last microbatch, outside, sends the total once."
            )
        if abs(ratio - numel(run, everything=True) / numel(run)) < 0.01:
            return (
                "The bytes count all parameters, but frozen ones have no gradient. Skip parameters with "
                "requires_grad=False."
            )
        gathered = any(operation.op == "all_gather" for operation in observed.operations[0])
        if gathered and abs(ratio - n / 2) < 0.01:
            return (
                "Every rank got every other rank's gradients and added them up itself, which costs (N-1) M "
                "and grows with N. An all-reduce adds on the way, so it sends only 2 (N-1)/N M."
            )
        if abs(ratio - 2) < 0.01:
            return "Every gradient was sent twice. A hook that is registered twice fires twice."
        if narrow := sorted({o.dtype for o in observed.operations[0] if o.op in SUMS} & NARROW[run.dtype]):
            return (
                f"The gradients are {str(run.dtype)[6:]}, but they travelled as {narrow[0]}. A sum in fewer "
                "digits is less exact, so give a tensor of your own the gradients' dtype."
            )
        if ratio < 1 and any(o.op in ("reduce", "broadcast") for o in by_step(observed, 0)[1][0]):
            return (
                "The gradients are summed on one rank and sent from there to the others. One all-reduce "
                "does both, with the same bytes on every rank."
            )
        if ratio < 1:
            return "The gradients came another way than by the group, or not at all."
        return (
            "Send every gradient once. A weight that is used twice, or tied, is one parameter, so "
            "module.parameters() gives it once."
        )

    return kit.Line(title, judge, weight, "communication")


def messages_in_step(
    most: int, what: str, *, hint: str = "", fewer: str = "", weight: float = 0.5, point: float = float("inf")
) -> kit.Line:
    """At most so many collectives in each step.

    point: from so many on, the exercise's point is missed; fewer: the hint below that, else `hint`.
    """

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in range(observed.world_size):
            for step, operations in enumerate(by_step(observed, rank)[1]):
                count = sum(bool(operation.nbytes) for operation in operations)
                if count > most:
                    return kit.wrong(
                        f"in step {step + 1} rank {rank} started {words.counted(count, 'operation')}, but "
                        f"{words.counted(most, what)} need {words.number(most)}. Each costs a latency.",
                        fewer if fewer and count < point else hint,
                        cause="operations",
                        misses_point=count >= point,
                    )
        return kit.RIGHT

    return kit.Line(
        f"at most {words.counted(most, 'all-reduce')} in each step", judge, weight, "communication"
    )


def its_own_work() -> kit.Line:
    """Every operation was begun in a line of the student's, and not by machinery of PyTorch's.

    Machinery that reduces without Python, as DistributedDataParallel's does, has no such line. (A reducer
    cannot be made in the first place, see `refused`.)
    """

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank, operations in enumerate(observed.operations):
            strange = [operation for operation in operations if not operation.line]
            if strange:
                return kit.wrong(
                    f"on rank {rank} no line of yours began the {strange[0].op}, so PyTorch did.",
                    "Build that part yourself. Broadcast the first rank's parameters and buffers, and "
                    "reduce the gradients.",
                    cause="PyTorch's",
                )
        return kit.RIGHT

    return kit.Line("built from collectives", judge, 0.5, trivial=True)
