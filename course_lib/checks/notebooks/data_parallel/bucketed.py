"""BucketedDataParallel: gradients leave in buckets while backward still runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from course_lib.checks import kit, words
from course_lib.checks.judge import training_runs
from course_lib.checks.judge.training_runs.single import Training
from course_lib.checks.notebooks.data_parallel.early import during_backward_line
from course_lib.checks.notebooks.data_parallel.grouped import in_a_group
from course_lib.checks.notebooks.data_parallel.refused import REDUCER
from course_lib.checks.notebooks.data_parallel.replicas import (
    ADAMW,
    REFERENCE,
    SUMS,
    broken_off,
    by_step,
    gradients_sent,
    its_own_work,
    messages_in_step,
    right_values,
    same_buffers,
    same_start,
    some_ranks_only,
    trained,
    training,
    unused_parameter,
    wrapper_case,
)

DEPTH = 6
UNKNOWN = (
    "No usual mistake gives these values. If they differ from run to run, a bucket was written or read "
    "while it was in transit, so touch it only after its wait()."
)
QUIET = (
    "Under no_sync(), hooks must only let gradients add up, because anything you exchange or divide there "
    "is exchanged or divided again with the last microbatch."
)


def fill(sizes: Sequence[int], most: int) -> list[int]:
    """Bytes of the buckets that take tensors one after the other, and are closed before one is too much."""
    filled: list[int] = []
    for size in sizes:
        if filled and filled[-1] + size <= most:
            filled[-1] += size
        else:
            filled.append(size)
    return filled


def sizes(run: Training) -> list[int]:
    """Bytes of the gradients in order of registration."""
    return [p.numel() * run.dtype.itemsize for p in trained(run).values()]


def not_too_large(run: Training, most: int) -> kit.Line:
    """No bucket exceeds bucket_bytes, but one that holds a single larger parameter."""

    def judge(observed: kit.Observed) -> kit.Finding:
        if (largest := too_large(run, most, observed)) is None:
            return kit.RIGHT
        return kit.wrong(
            f"a message of {words.number(largest)} bytes was sent, but bucket_bytes is {words.number(most)}.",
            "Close a bucket before the next gradient would make it too large. A bucket's size is a sum of "
            "bytes, which are p.nbytes for a parameter.",
            cause="too large",
        )

    return kit.Line("no bucket above bucket_bytes", judge, 1, "communication")


def too_large(run: Training, most: int, observed: kit.Observed) -> int | None:
    """The bytes of the largest message, if no bucket may have as many."""
    ranks = range(observed.world_size)
    steps = (operations for rank in ranks for operations in by_step(observed, rank)[1])
    largest = max((operation.nbytes for operations in steps for operation in operations), default=0)
    return largest if largest > max(most, *sizes(run)) else None


def leave_early(
    run: Training, most: int, weight: float, title: str = "buckets leave while backward runs"
) -> kit.Line:
    """Whenever backward reaches a block, all buckets of later blocks have been begun.

    And no more bytes are sent than those of the gradients: messages sent early for show would add to them.
    """
    overlap_line, no_more = during_backward_line(), gradients_sent(run)
    whole = sizes(run)
    depth = len(run.built().blocks)  # pyright: ignore[reportArgumentType]

    def due(block: int) -> int:
        """Bytes that are complete when backward reaches a block, less the last bucket's, which may wait."""
        earlier = tuple(f"blocks.{k}." for k in range(block + 1))
        later = [size for name, size in zip(trained(run), whole, strict=True) if not name.startswith(earlier)]
        return sum(later) - most - max(whole)

    bounds = {block: due(block) for block in range(depth)}

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in range(observed.world_size):
            finding = one_rank(observed, rank)
            if not finding.ok:
                return filled_too_much(finding, observed)
        finding = filled_too_much(overlap_line.judge(observed), observed)
        if not finding.ok:
            return finding
        sent = no_more.judge(observed)
        return kit.RIGHT if sent.ok else sent

    def filled_too_much(finding: kit.Finding, observed: kit.Observed) -> kit.Finding:
        """The finding; where buckets of one step are too large and therefore leave late, it says so."""
        if finding.cause not in ("late", "after backward"):
            return finding
        if (largest := too_large(run, most, observed)) is None:
            return finding
        return kit.wrong(
            finding.sentences[0],
            f"A message has {words.number(largest)} bytes, although bucket_bytes is {words.number(most)}, "
            "and so large a bucket is complete only late. Add up bytes, which are p.nbytes for a parameter.",
            cause="too large, so late",
        )

    def one_rank(observed: kit.Observed, rank: int) -> kit.Finding:
        before, (start, ops) = 0, by_step(observed, rank)
        for step, backward in enumerate(training_runs.last_backwards(observed, rank)):
            since = len(start) if step == 0 else before
            at_first = left(observed, rank, since, backward.first_block.begun)
            if at_first < bounds[0] and forward_order(ops[step]):
                return kit.wrong(
                    f"on rank {rank} {nothing_or(at_first)} had left when backward reached the first block.",
                    "Your first bucket holds the first layers, whose gradients come last. Backward runs "
                    "from the last layer to the first, so fill buckets in reverse order of registration.",
                    cause="forward order",
                )
            for moment in backward.passes if at_first else ():
                done = left(observed, rank, since, moment.begun)
                if done < bounds.get(moment.block, 0):
                    where = f"block {moment.block}" if moment.block else "the first block"
                    return kit.wrong(
                        f"on rank {rank} {nothing_or(done)} had left when backward reached {where}, but "
                        f"buckets of {words.number(bounds[moment.block])} bytes and more were complete by "
                        "then.",
                        "Begin a bucket's all-reduce in the hook of its last gradient.",
                        cause="late",
                    )
            before = backward.ended
        return kit.RIGHT

    def left(observed: kit.Observed, rank: int, since: int, until: int) -> int:
        fresh = observed.operations[rank][since:until]
        return sum(operation.nbytes for operation in fresh if operation.op == "all_reduce")

    def forward_order(operations: Sequence) -> bool:
        sent = [operation.nbytes for operation in operations if operation.op == "all_reduce"]
        return len(sent) > 1 and sent == fill(whole, most) != fill(whole[::-1], most)

    return kit.Line(title, judge, weight, "communication")


def without_overlap(line: kit.Line) -> kit.Line:
    """The line, whose failure misses the point of the exercise."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        return finding if finding.ok else replace(finding, misses_point=True)

    return replace(line, judge=judge)


def after_no_sync(run: Training, most: int) -> kit.Line:
    """The hooks work again in the backward that follows no_sync()."""
    early_line = leave_early(run, most, 1.5, "and leave in the backward after no_sync()")

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = early_line.judge(observed)
        if finding.cause != "after backward":
            return finding
        return kit.wrong(
            "the last microbatch runs outside of no_sync(), but nothing had been sent when its backward "
            "reached the first block.",
            "If buckets leave in time in the run without no_sync(), it has to switch the exchange on again "
            "when it ends, so reset the flag after `yield`, in a `finally`.",
            cause="after backward",
        )

    return replace(early_line, judge=judge)


def one_each(run: Training) -> kit.Line:
    """With bucket_bytes=1 every gradient has a bucket; a gradient that no rank has need not be sent."""
    least = sum(not name.startswith("unused") for name in trained(run))
    count_line = messages_in_step(len(trained(run)), "bucket")

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in range(observed.world_size):
            for operations in by_step(observed, rank)[1]:
                count = sum(operation.op in SUMS for operation in operations)
                if count < least:
                    return kit.wrong(
                        f"with bucket_bytes=1 {words.counted(count, 'bucket')} left in a step, but each of "
                        f"the {words.number(least)} gradients must have its own.",
                        "Close a bucket before the next gradient would exceed bucket_bytes.",
                        cause="bucket_bytes",
                    )
        return count_line.judge(observed)

    return kit.Line(count_line.title, judge, count_line.weight, count_line.aspect)


def nothing_or(nbytes: int) -> str:
    return f"only {words.number(nbytes)} bytes" if nbytes else "nothing"


@kit.exercise(
    points=16, objects=("BucketedDataParallel",), references=REFERENCE, hint=broken_off, refused=REDUCER,
    point="gradients that leave in buckets while backward still runs",
)  # fmt: skip
def bucketed_data_parallel(draw: kit.Draw) -> Iterator[kit.Case]:
    most = 300
    model = {"name": "traps", "width": 5, "unused": False}
    run = training(draw, 3, model, kwargs={"bucket_bytes": most})
    yield wrapper_case("traps", run,
        [
            same_start(run, "all ranks start from rank 0's parameters"),
            right_values(
                run, "grad", "gradients are the mean, 3 ranks, SGD: frozen, tied, used twice", 3,
                otherwise=UNKNOWN, strict=True,
            ),
            right_values(run, "param", "and so are the parameters after each step"),
            its_own_work(),
            gradients_sent(run, weight=1.5),
        ],
    )  # fmt: skip
    # Before what follows: it tells more of why nothing overlaps.
    yield replace(overlapping(draw, 4), proves="overlap")
    kwargs = {"bucket_bytes": 200}
    plain = {"name": "plain", "width": 4, "depth": 3}
    run = training(draw, 2, plain, optimizer=ADAMW, micro=3, kwargs=kwargs, no_sync=True)
    yield wrapper_case(
        "accumulation",
        run,
        [
            right_values(
                run, "grad", "2 microbatches under no_sync(), a third outside, AdamW", 2, otherwise=QUIET
            ),
            right_values(run, "param", "and the parameters after each step", 0.5),
            gradients_sent(run, title="3 microbatches, sent once", weight=1.5),
            after_no_sync(run, kwargs["bucket_bytes"]),
        ],
    )
    yield unused_parameter(draw, kwargs={"bucket_bytes": 400})
    yield some_ranks_only(draw, kwargs={"bucket_bytes": 100})
    yield in_a_group(draw, kwargs={"bucket_bytes": 100})
    run = training(draw, 2, {"name": "shifted", "width": 3}, steps=1, tell=("buffers", "grads"))
    yield wrapper_case("buffers", run, [same_buffers(run, "rank 0's buffers, too", 0.5)])
    if draw.hidden:
        kwargs = {"bucket_bytes": 1}
        run = training(draw, 4, {"name": "traps", "width": 6, "dtype": "float32"}, kwargs=kwargs)
        yield wrapper_case("tiny buckets", run,
            [
                right_values(run, "grad", "4 ranks, float32, a bucket for each parameter", short=True),
                one_each(run),
            ],
        )  # fmt: skip
        run = training(draw, 2, {"name": "traps", "width": 4}, steps=3)
        yield wrapper_case(
            "one bucket", run, [right_values(run, "param", "one bucket for all, 3 steps", short=True)]
        )
        run = training(draw, 1, {"name": "traps", "width": 4})
        yield wrapper_case(
            "1 rank", run, [right_values(run, "param", "1 rank", 0.5, trivial=True, short=True)]
        )


def overlapping(draw: kit.Draw, n: int) -> kit.Case:
    """Six equal blocks; buckets of two weights and a bias are others from the front than from behind.

    In the hidden cases buckets of one or of three weights are as likely: bucket_bytes has to be looked at.
    """
    width = 8 * draw.integer(5, 9)
    weights = draw.choice([1, 2, 3]) if draw.hidden else 2
    most = (weights * width * width + width) * 4
    model = {"name": "plain", "width": width, "depth": DEPTH, "dtype": "float32"}
    run = training(draw, n, model, tell=("grads",), kwargs={"bucket_bytes": most})
    count = len(fill(sizes(run)[::-1], most))
    return wrapper_case("overlap", run,
        [
            right_values(run, "grad", f"gradients of {DEPTH} blocks, {n} ranks, float32"),
            kit.telling(without_overlap(leave_early(run, most, 3))),
            messages_in_step(
                count, "bucket",
                hint="Copy the gradients of a bucket into one flat tensor and all-reduce that.",
                fewer="Buckets were closed too early. A bucket can have exactly bucket_bytes, and the size "
                "of a new bucket begins with its first parameter's bytes.",
                weight=1,
                point=len(sizes(run)),
            ),
            not_too_large(run, most),
        ],
    )  # fmt: skip
