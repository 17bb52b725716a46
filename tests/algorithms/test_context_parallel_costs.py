"""Bytes sent, FLOPs and bytes kept by context parallelism: the ledger and meters against closed forms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import context_parallel, facts, launch
from course_lib.context_parallel import ring
from course_lib.context_parallel.balanced import LAYOUTS, zigzag
from course_lib.context_parallel.combined import two_groups, ulysses_ring_attention
from course_lib.context_parallel.ring import ring_attention
from course_lib.context_parallel.tiles import tiled_attention
from course_lib.context_parallel.ulysses import ulysses_attention
from course_lib.ledger.operation import Operation
from course_lib.runtime.launch import Run
from course_lib.scorecard import costs
from course_lib.tensor_parallel import saved_for_backward


def test_a_rank_of_a_ring_sends_the_keys_and_values_of_two_ranks() -> None:
    """Its own, and those that came from its neighbour: 4 keys and 4 values each, 2 heads of 5 numbers."""

    def job() -> None:
        q, k, v = torch.randn(3, 1, 4, 2, 5)
        ring_attention(q, k, v)

    ledger = launch(job, world_size=3, backend="gloo").ledger
    for rank in range(3):
        nbytes = sum(operation.bytes_sent for operation in ledger.operations(rank))
        assert nbytes == 2 * (4 + 4) * 2 * 5 * 4


HEADS, KV_HEADS, HEAD_DIM = 8, 4, 6
WIDTH, KV_WIDTH = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
SEQ, BATCH = 24, 2
TOKENS = BATCH * SEQ
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def draw(tokens: int, dtype: torch.dtype = torch.float32, batch: int = BATCH) -> list[Tensor]:
    shapes = [(batch, tokens, count, HEAD_DIM) for count in (HEADS, KV_HEADS, KV_HEADS)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def between_barriers(attend: Attend, tokens: int, dtype: torch.dtype = torch.float32) -> None:
    inputs = draw(tokens, dtype)
    dist.barrier()
    out = attend(*inputs)
    dist.barrier()
    out.sum().backward()
    dist.barrier()


def parts(run: Run, rank: int) -> list[list[Operation]]:
    """The operations of `rank` between its barriers: forward, backward, forward, backward, ..."""
    found: list[list[Operation]] = [[]]
    for one in run.ledger.operations(rank):
        if one.op == "barrier":
            found.append([])
        else:
            found[-1].append(one)
    return [part for i, part in enumerate(found) if i % 3]


def sent(operations: list[Operation]) -> float:
    return sum(one.bytes_sent for one in operations)


# ---- bytes and messages


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_each_attention_sends_what_the_formula_says(world_size: int):
    """A ring: keys and values in one message a step, their gradients in float32, nothing in the last step."""

    def body() -> None:
        for dtype in DTYPES:
            between_barriers(ring_attention, SEQ // world_size, dtype)
        if KV_HEADS % world_size == 0:
            between_barriers(ulysses_attention, SEQ // world_size)

    run = launch(body, world_size=world_size, backend="gloo")
    assert not run.ledger.unmatched() and all(one.waited for one in run.ledger.operations())
    for rank in range(world_size):
        found = parts(run, rank)
        for i, dtype in enumerate(DTYPES):
            check_ring(found[2 * i], rank, world_size, dtype, "forward")
            check_ring(found[2 * i + 1], rank, world_size, dtype, "backward")
        wanted = facts.ulysses_bytes(world_size, TOKENS, WIDTH, KV_WIDTH, 4)
        for operations in found[2 * len(DTYPES) :]:
            assert sent(operations) == pytest.approx(wanted)
            assert [one.op for one in operations] == ["all_to_all"] * len(operations)


def check_ring(
    operations: list[Operation], rank: int, n: int, dtype: torch.dtype, direction: str
) -> None:
    wanted = facts.ring_attention_bytes(n, TOKENS, KV_WIDTH, dtype.itemsize, direction)
    assert sent(operations) == wanted, (rank, dtype, direction)
    messages = [one for one in operations if one.op == "send"]
    assert len(messages) == facts.ring_attention_messages(n, direction)
    assert len(operations) == 2 * len(messages)  # and as many receives
    assert {one.peer for one in messages} <= {(rank + 1) % n}


def test_parts_that_differ_are_sent_as_they_are():
    """13 tokens on 3 ranks: no padding; two tokens on 3 ranks: the rank without any passes the others' on."""

    def body() -> None:
        for seq in (13, 2):
            layout = context_parallel.contiguous(seq, 3)
            attend = partial(ring_attention, layout=layout)
            between_barriers(attend, context_parallel.tokens_in(layout[dist.get_rank()]))

    run = launch(body, world_size=3, backend="gloo")
    token = BATCH * 2 * KV_WIDTH * 4
    for rank in range(3):
        for i, sizes in enumerate(([5, 4, 4], [1, 1, 0])):
            passed = [sizes[rank], sizes[rank - 1], sizes[rank - 2]]
            forward, backward = parts(run, rank)[2 * i : 2 * i + 2]
            assert sent(forward) == sum(passed[:2]) * token
            assert sent(backward) == (sum(passed[:2]) + sum(passed)) * token
            assert all(one.nbytes for one in (*forward, *backward))


def test_both_together_send_what_the_formula_says():
    def body() -> None:
        inside, outside = two_groups(2)
        attend = partial(ulysses_ring_attention, ulysses_group=inside, ring_group=outside)
        between_barriers(attend, SEQ // 4)

    run = launch(body, world_size=4, backend="gloo")
    for rank in range(4):
        for operations, direction in zip(parts(run, rank), ("forward", "backward"), strict=True):
            inside, outside = facts.ulysses_ring_bytes(2, 2, TOKENS, WIDTH, KV_WIDTH, 4, direction)
            exchanged = [one for one in operations if one.op == "all_to_all"]
            passed = [one for one in operations if one.op == "send"]
            assert sent(exchanged) == pytest.approx(inside) and sent(passed) == outside
            assert {one.peer for one in passed} == {(rank + 2) % 4}


# ---- what is in flight, and what is skipped


class Watched:
    """The ring's own functions, writing down when they are called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.calls: list[str] = []
        for name, word in (
            ("pass_on", "post"), ("wait", "wait"),
            ("forward_tiles", "compute"), ("backward_tiles", "compute"),
        ):  # fmt: skip
            monkeypatch.setattr(ring, name, self.noting(word, getattr(ring, name)))

    def noting(self, word: str, function: Callable) -> Callable:
        def noted(*args: object, **kwargs: object) -> object:
            self.calls.append(word)
            return function(*args, **kwargs)

        return noted


def test_messages_are_in_flight_while_the_block_computes():
    """Posted before a step's work and awaited after it; so are, in backward, the sums of the step before."""

    def body() -> tuple[list[str], list[str]]:
        with pytest.MonkeyPatch.context() as patch:
            watched = Watched(patch)
            q, k, v = draw(8)
            out = ring_attention(q, k, v, causal=True, layout=zigzag(24, 3))
            forward = list(watched.calls)
            out.sum().backward()
            return forward, watched.calls[len(forward) :]

    step, last = ["post", "compute", "wait"], ["compute", "wait"]
    # keys posted; work; last step's sums awaited, this step's posted; keys awaited
    back, back_last = (
        ["post", "compute", "wait", "post", "wait"],
        ["compute", "wait", "post", "wait"],
    )
    for forward, backward in launch(body, world_size=3, backend="gloo"):
        assert forward == [*step, *step, *last]
        assert backward == [*back, *back, *back_last, "wait"]


def test_masked_blocks_are_skipped_and_zigzag_shares_the_rest():
    """FLOPs: contiguous 1, 3, 5, 7 parts of 16 but for the diagonal; zigzag the same on every rank."""
    seq, n = 256, 4

    def body() -> dict[str, int]:
        """FLOPs of this rank in a causal forward; tiles on the diagonal count whole."""
        found = {}
        for name, make in LAYOUTS.items():
            q, k, v = draw(seq // n)
            with torch.no_grad(), costs() as spent:
                ring_attention(q, k, v, causal=True, layout=make(seq, n), block=8)
            found[name] = spent.flops
        return found

    run = launch(body, world_size=n, backend="gloo")
    contiguous, striped, paired = (
        [one[name] for one in run] for name in ("contiguous", "striped", "zigzag")
    )
    scores = [sum(step) for step in zip(*facts.causal_scores("contiguous", n, seq), strict=True)]
    mean = sum(contiguous) / n
    assert [one / mean for one in contiguous] == pytest.approx(
        [one / (sum(scores) / n) for one in scores], rel=0.15
    )
    assert max(contiguous) / mean == pytest.approx(2 - 1 / n, rel=0.03)
    assert max(paired) <= 1.001 * min(paired)
    assert sum(paired) == pytest.approx(sum(contiguous), rel=0.01)
    assert max(striped) <= 1.1 * min(striped)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_scores_of_each_step_are_counted_rightly(layout: str):
    """The closed form against positions, compared one by one."""
    for n in (1, 2, 3, 4):
        made = LAYOUTS[layout](24, n)
        held = [context_parallel.positions(spans) for spans in made]
        counted = [
            [int((held[r][:, None] >= held[(r - step) % n]).sum()) for r in range(n)]
            for step in range(n)
        ]
        assert counted == facts.causal_scores(layout, n, 24)


# ---- memory


def peak(attend: Attend, tokens: int) -> tuple[int, int]:
    """Bytes alive at the worst moment of forward and backward, beside the input; bytes kept between."""
    inputs = draw(tokens, batch=1)
    with costs() as spent:
        with saved_for_backward() as saved:
            out = attend(*inputs)
        out.sum().backward()
    return spent.peak_bytes, saved.total


def test_the_memory_of_tiles_is_linear_in_the_sequence():
    """Kept: q, k, v, out and lse to the byte. At the worst: doubled with the tokens, and far from N x N."""

    def body() -> list[tuple[int, int]]:
        attend = partial(tiled_attention, block=64, causal=True)
        return [peak(attend, tokens) for tokens in (256, 512, 1024)]

    ((first, *others),) = launch(body, world_size=1, backend="gloo")
    assert others[-1][0] < HEADS * 1024**2 * 4 / 4  # a quarter of one matrix of scores
    for times, (worst, kept) in zip((2, 4), others, strict=True):
        assert worst <= 1.05 * times * first[0] and kept == times * first[1]
    assert first[1] == facts.attention_saved_bytes(256, HEADS, KV_HEADS, HEAD_DIM, itemsize=4)


def test_a_rank_of_a_ring_holds_its_part_and_one_other():
    """The same part on more ranks takes no more; a rank with a quarter of a sequence keeps a quarter."""

    def body(tokens: int) -> tuple[int, int]:
        return peak(partial(ring_attention, block=64), tokens)

    (alone,) = launch(body, 512, world_size=1, backend="gloo")
    three, five = (launch(body, 128, world_size=n, backend="gloo")[0] for n in (3, 5))
    assert five[0] <= 1.01 * three[0] and five[1] == three[1] == alone[1] / 4
    assert three[1] == facts.attention_saved_bytes(512, HEADS, KV_HEADS, HEAD_DIM, 4, 4)


# ---- the formulas' own figures


def test_the_papers_table_but_for_one_row():
    """Minimal block and sequence in thousands; InfiniBand's row does not follow from the paper's formula."""
    differing = []
    for host in facts.RING_HOSTS:
        found = (
            facts.hiding_block(host.flops, host.each_way), facts.minimal_sequence(host.flops, host.each_way)
        )  # fmt: skip
        if [round(one / 1e3, 1) for one in found] != [
            host.printed_block / 1e3,
            host.printed_sequence / 1e3,
        ]:
            differing.append((host.name, *(round(one) for one in found)))
    assert differing == [("A100, InfiniBand", 24960, 149760)]


def test_at_the_hiding_block_sending_takes_as_long_as_computing():
    flops, speed, alpha = 2e11, 3e9, 1e-4
    for itemsize, direction in ((2, "forward"), (4, "backward")):
        c = facts.hiding_block(flops, speed, WIDTH, KV_WIDTH, itemsize, direction, True, alpha)
        work = {"forward": 4, "backward": 10}[direction] * c**2 * WIDTH / 2
        n = 2
        messages = {"forward": 1, "backward": 2}[direction]
        nbytes = facts.ring_attention_bytes(n, n * c, KV_WIDTH, itemsize, "forward")
        if direction == "backward":  # a step's share: keys once, gradients once
            nbytes += 2 * c * KV_WIDTH * max(4, itemsize)
        assert work / flops == pytest.approx(messages * alpha + nbytes / speed)
    assert facts.hiding_block(1e12, 1e9, direction="backward") == pytest.approx(1200)


def test_idle_shares():
    for n in (1, 2, 4, 8):
        shares = facts.causal_idle_shares(n)
        assert sum(shares) / n == pytest.approx(1 - 1 / facts.causal_slowdown("contiguous", n))
        assert sum(shares) / n == pytest.approx((n - 1) / (2 * n - 1))
        assert facts.causal_slowdown("contiguous", n, 10**6 * n) == pytest.approx(
            2 - 1 / n, abs=1e-5
        )
        assert facts.causal_slowdown("zigzag", n, 16 * n) == 1
        c = 16
        assert facts.causal_slowdown("striped", n, c * n) == pytest.approx(
            n * (c + 1) / (n * c + 1)
        )
        assert facts.causal_slowdown("contiguous", n, c * n) == pytest.approx(
            ((2 * n - 1) * c + 1) / (n * c + 1)
        )


def test_figures_that_are_printed_elsewhere():
    assert facts.ring_attention_bytes(8, 131072, 1024) == pytest.approx(469.8e6, rel=1e-3)
    assert facts.ring_attention_bytes(8, 131072, 1024, 2, "backward") == pytest.approx(
        1.5435e9, rel=1e-3
    )
    assert facts.attention_saved_bytes(131072, 32, 8, 128, 8) == pytest.approx(337.6e6, rel=1e-3)
    assert facts.hiding_block(312e12, 300e9) == pytest.approx(1040)
    gpt3: dict[str, Any] = {"width": 12288, "heads": 96, "layers": 96}
    assert facts.longest_sequence(275.4e9, **gpt3, flash=False) == pytest.approx(2048, rel=1e-3)
    assert facts.longest_sequence(82.1e9, **gpt3) == pytest.approx(2048, rel=1e-3)
    one, four = (facts.longest_sequence(80e9, **gpt3, n=n) for n in (1, 4))
    assert four == pytest.approx(4 * one)
    one, four = (facts.longest_sequence(80e9, **gpt3, n=n, flash=False) for n in (1, 4))
    assert four < 2.5 * one
    assert facts.longest_sequence(80e9, **gpt3, recompute=True) > 10 * facts.longest_sequence(
        80e9, **gpt3
    )


def test_wrong_questions_are_told_so():
    with pytest.raises(ValueError, match="direction"):
        facts.ring_attention_bytes(2, 8, 8, direction="sideways")
    with pytest.raises(ValueError, match="8 equal parts"):
        facts.causal_scores("zigzag", 4, 12)
    with pytest.raises(ValueError, match="'contiguous', 'striped' or 'zigzag', not 'spiral'"):
        facts.causal_scores("spiral", 2, 4)
