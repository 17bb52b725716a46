"""Bytes that tensor-parallel layers send, and bytes that they keep for backward, against the closed forms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import facts, launch, tensor_parallel
from course_lib.models import GPT, GPTConfig
from course_lib.models.gpt import Block


def test_an_mlp_sends_one_all_reduce_forward_and_one_backward() -> None:
    """Of 5 tokens of 4 numbers in float32; each of two ranks sends 2 (n-1)/n = 1 times their bytes."""

    def job() -> None:
        tensor_parallel.ParallelMLP(4, 8)(torch.randn(5, 4, requires_grad=True)).sum().backward()

    ledger = launch(job, world_size=2, backend="gloo").ledger
    for rank in range(2):
        sums = ledger.operations(rank, "all_reduce")
        assert [operation.bytes_sent for operation in sums] == [5 * 4 * 4, 5 * 4 * 4]


SEQUENCES = (None, "keep", "regather")
TOKENS, SEQ = 48, 24
SMALL = {"layers": 1, "heads": 8, "width": 32, "context": SEQ}
CONFIGS = {
    "GPT-2": GPTConfig(**SMALL),
    "LLaMA": GPTConfig(
        **SMALL, kv_heads=2, mlp="swiglu", norm="rms", positions="rotary", bias=False
    ),
    "dropout, a norm without bias": GPTConfig(**SMALL, kv_heads=4, bias=False, dropout=0.1),
}


def marked(run: object) -> Iterator[tuple[float, float]]:
    """(forward, backward) bytes that each rank sent, for each three barriers of a run, in order."""
    for rank in range(run.ledger.world_size):  # type: ignore[attr-defined]
        sent, between = [], 0.0
        for one in run.ledger.operations(rank):  # type: ignore[attr-defined]
            if one.op == "barrier":
                sent.append(between)
                between = 0.0
            between += one.bytes_sent
        yield from zip(sent[1::3], sent[2::3], strict=True)


def forward_and_backward(layer: nn.Module, *inputs: Tensor) -> None:
    dist.barrier()
    y = layer(*inputs)
    dist.barrier()
    y.square().sum().backward()
    dist.barrier()


def regions() -> Iterator[tuple[nn.Module, tuple[Tensor, ...], float, float]]:
    """Layers, their inputs, and the bytes that they send forward and backward (float32, width 36)."""
    n = dist.get_world_size()
    whole, hidden = torch.randn(2, SEQ, 36), 48
    half = facts.least_bytes(n, TOKENS * 36 * 4) / 2
    bias = facts.least_bytes(n, 36 * 4)
    for sequence in SEQUENCES:
        x = (whole.tensor_split(n, 1)[dist.get_rank()] if sequence else whole).requires_grad_()
        sent = [
            facts.tensor_parallel_bytes(n, TOKENS, 36, 4, direction, sequence)
            for direction in ("forward", "backward")
        ]
        sent[1] += bias if sequence else 0
        yield tensor_parallel.ParallelMLP(36, hidden, sequence=sequence), (x,), *sent
        yield tensor_parallel.ParallelMLP(36, hidden, "swiglu", sequence=sequence), (x,), *sent
        yield tensor_parallel.ParallelSelfAttention(36, n, n, sequence=sequence), (x,), *sent
        column = {None: (0, 2), "keep": (1, 1), "regather": (1, 2)}[sequence]
        sent = [times * half for times in column]
        yield (
            tensor_parallel.ColumnParallelLinear(36, hidden, True, False, sequence=sequence),
            (x,),
            *sent,
        )
        output = facts.least_bytes(n, TOKENS * hidden * 4) / 2
        sent[0] += output
        yield (
            tensor_parallel.ColumnParallelLinear(36, hidden, True, True, sequence=sequence),
            (x,),
            *sent,
        )
        row = (half, half + bias) if sequence else (2 * half, 0)
        part = torch.randn(2, SEQ, hidden // n, requires_grad=True)
        yield (
            tensor_parallel.RowParallelLinear(hidden, 36, True, True, sequence=sequence),
            (part,),
            *row,
        )
        entered = torch.randn(2, SEQ, hidden, requires_grad=True)
        row = (row[0], row[1] + output)
        yield (
            tensor_parallel.RowParallelLinear(hidden, 36, True, False, sequence=sequence),
            (entered,),
            *row,
        )
        sent = [
            facts.vocab_parallel_embedding_bytes(n, TOKENS, 36, 4, direction, sequence)
            for direction in ("forward", "backward")
        ]
        tokens = torch.zeros(2, SEQ, dtype=torch.long)
        yield tensor_parallel.VocabParallelEmbedding(7, 36, sequence=sequence), (tokens,), *sent
    wrong = nn.Sequential(
        tensor_parallel.RowParallelLinear(36, 4 * 36),
        nn.GELU(),
        tensor_parallel.ColumnParallelLinear(4 * 36, 36),
    )
    both = facts.row_then_column_bytes(n, TOKENS, 36, 4 * 36, 4)
    assert both == facts.row_then_column_bytes(n, TOKENS, 36, 4 * 36, 4, "backward")
    assert both == pytest.approx(4.5 * facts.tensor_parallel_bytes(n, TOKENS, 36, 4))
    yield wrong, (whole,), both, both


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_layer_sends_what_the_formula_says(world_size: int):
    def body() -> list[tuple[float, float]]:
        wanted = []
        for layer, inputs, forward, backward in regions():
            forward_and_backward(layer, *inputs)
            wanted.append((forward, backward))
        return wanted

    run = launch(body, world_size=world_size, backend="gloo", timeout=120)
    found = list(marked(run))
    assert found == [pytest.approx(pair, abs=1e-6) for wanted in run for pair in wanted]


def parallel_block(config: GPTConfig, sequence: str | None) -> nn.Module:
    """The only block of a GPT whose layers were exchanged."""
    return tensor_parallel.parallelize_gpt(GPT(config), sequence=sequence).blocks[0]


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_block_sends_what_the_formula_says(world_size: int):
    """Four all-reduces, or eight halves of one, or ten; and the gradients of what is whole on all ranks."""

    def body() -> None:
        for config in CONFIGS.values():
            for sequence in SEQUENCES:
                seq = SEQ // world_size if sequence else SEQ
                x = torch.randn(2, seq, 32, requires_grad=True)
                forward_and_backward(parallel_block(config, sequence), x, torch.arange(SEQ))

    run = launch(body, world_size=world_size, backend="gloo", timeout=120)
    wanted = [
        tuple(
            facts.tensor_parallel_layer_bytes(config, world_size, TOKENS, 4, direction, sequence)
            for direction in ("forward", "backward")
        )
        for config in CONFIGS.values()
        for sequence in SEQUENCES
    ]
    assert list(marked(run)) == [pytest.approx(pair) for pair in wanted * world_size]


def test_the_loss_sends_three_numbers_a_token():
    def body() -> None:
        logits = torch.randn(2, SEQ, 20 - dist.get_rank(), requires_grad=True)
        target = torch.ones(2, SEQ, dtype=torch.long)
        dist.barrier()
        loss = tensor_parallel.vocab_parallel_cross_entropy(logits, target, vocab_size=39)
        dist.barrier()
        loss.backward()
        dist.barrier()

    run = launch(body, world_size=2, backend="gloo")
    wanted = facts.vocab_parallel_loss_bytes(2, TOKENS)
    assert facts.vocab_parallel_loss_bytes(2, TOKENS, direction="backward") == 0
    assert list(marked(run)) == [pytest.approx((wanted, 0))] * 2
    assert {one.op for one in run.ledger.operations()} == {"all_reduce", "barrier"}


def test_parts_that_are_not_equal_are_padded():
    """Gathering 7 features on 3 ranks sends what gathering 9 does."""

    def body() -> None:
        dist.barrier()
        tensor_parallel.ColumnParallelLinear(2, 7)(torch.ones(5, 2))
        dist.barrier()

    run = launch(body, world_size=3, backend="gloo")
    gathered = [one.bytes_sent for one in run.ledger.operations(op="all_gather")]
    assert gathered == [pytest.approx(2 / 3 * 5 * 9 * 4)] * 3


# ---- what is kept for backward


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_block_keeps_what_the_formula_says(world_size: int):
    """Within 2 %, by hooks on what is saved: float32, and bf16 where no operation computes in float32."""
    cases = [
        (name, sequence, dtype)
        for name in CONFIGS
        for sequence in SEQUENCES
        for dtype in (torch.float32, torch.bfloat16)
        if dtype == torch.float32 or name == "GPT-2"
    ]

    def body() -> list[int]:
        kept = []
        for name, sequence, dtype in cases:
            block = parallel_block(CONFIGS[name], sequence).to(dtype)
            seq = SEQ // world_size if sequence else SEQ
            x = torch.randn(2, seq, 32, dtype=dtype, requires_grad=True)
            with tensor_parallel.saved_for_backward(block.parameters()) as saved:
                y = block(x, torch.arange(SEQ))
            y.sum().backward()
            kept.append(saved.total)
        return kept

    wanted = [
        facts.saved_layer_bytes(
            CONFIGS[name], 2, SEQ, world_size, sequence, dtype.itemsize, CONFIGS[name].dropout > 0
        )
        for name, sequence, dtype in cases
    ]
    for kept in launch(body, world_size=world_size, backend="gloo", timeout=120):
        for case, found, expected in zip(cases, kept, wanted, strict=True):
            assert found == pytest.approx(expected, rel=0.02), case


def test_saved_for_backward_counts_memory_once():
    block = Block(GPTConfig(**SMALL))
    x = torch.randn(2, SEQ, 32, requires_grad=True)
    with tensor_parallel.saved_for_backward(block.parameters()) as saved:
        y = block(x, torch.arange(SEQ))
    with tensor_parallel.saved_for_backward() as more:
        block(x, torch.arange(SEQ))
    y.sum().backward()
    assert x.grad is not None
    assert saved.total == facts.saved_layer_bytes(GPTConfig(**SMALL), 2, SEQ)
    needed = [
        p.nbytes for name, p in block.named_parameters() if "weight" in name or "norm" in name
    ]
    assert more.total == saved.total + sum(needed)  # a linear layer's bias is not needed again
    with tensor_parallel.saved_for_backward() as twice:
        x * x
        x.view(-1).sin()
    assert twice.sizes == [x.nbytes]


# ---- the formulas' own figures


def test_figures_that_are_printed_elsewhere():
    """Korthikanti et al.: GPT-3 keeps 275 GB; table 2's coefficients at t = 8; full recomputation 2 s b h."""
    gpt3 = {"tokens": 2048, "seq": 2048, "width": 12288, "heads": 96}
    unit = 2048 * 12288
    assert 96 * facts.korthikanti_activations(**gpt3) == pytest.approx(275.4e9, rel=1e-3)
    assert facts.korthikanti_activations(**gpt3, recompute="selective") == 34 * unit
    assert facts.korthikanti_activations(**gpt3, recompute="full") == 2 * unit
    by_form = [facts.korthikanti_activations(**gpt3, n=8, sequence=one) for one in SEQUENCES]
    assert [one / unit for one in by_form] == [
        pytest.approx(10 + 24 / 8 + 10), pytest.approx(4 + 30 / 8 + 10), pytest.approx(34 / 8 + 10)
    ]  # fmt: skip
    assert facts.tensor_parallel_bytes(8, 4096, 8192) == pytest.approx(117.44e6, rel=1e-3)
    assert facts.tensor_parallel_intensity(8, 32768) == pytest.approx(4681, rel=1e-3)
    assert facts.gathered_logits_bytes(8, 8192, 50257) == pytest.approx(720.6e6, rel=1e-3)
    assert facts.vocab_parallel_loss_bytes(8, 8192) == 172032


def test_seconds_are_those_of_the_ring():
    flops, nbytes = 1e12, 4096 * 8192 * 2
    alone = facts.tensor_parallel_seconds(1, flops, nbytes, 2, 1e14, 1e-5, 1e-10)
    assert alone == (0.01, 0)
    computing, talking = facts.tensor_parallel_seconds(4, flops, nbytes, 2, 1e14, 1e-5, 1e-10)
    assert computing == 0.0025
    assert talking == pytest.approx(2 * (6 * 1e-5 + 1.5 * nbytes * 1e-10))


def test_unknown_words_are_refused():
    with pytest.raises(ValueError, match="direction"):
        facts.tensor_parallel_bytes(2, 8, 8, direction="sideways")
    with pytest.raises(ValueError, match="sequence"):
        facts.tensor_parallel_bytes(2, 8, 8, sequence="some")
    with pytest.raises(ValueError, match="recompute"):
        facts.korthikanti_activations(8, 8, 8, 1, recompute="half")
