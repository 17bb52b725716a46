"""The scorecard counts exactly: FLOPs, bytes of live tensors, bytes sent."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from course_lib import facts, launch
from course_lib.models import GPT, PRESETS, next_token_loss
from course_lib.scorecard import Costs, costs, scorecard


def test_flops_of_products_and_sums_forward_and_backward(seed: int) -> None:
    draw = random.Random(seed)
    m, n, k = (draw.randint(1, 40) for _ in range(3))
    weight = torch.randn(k, n, requires_grad=True)
    with costs(weight) as spent:
        (torch.ones(m, k) @ weight).sum().backward()
    # the product, its sum, and the product for the weight's gradient
    assert spent.flops == 2 * m * n * k + m * n + 2 * m * n * k


def test_elementwise_work_counts_one_for_each_element(seed: int) -> None:
    n = random.Random(seed).randint(1, 1000)
    with costs() as spent:
        x = torch.ones(n)
        x += 1
        x = x * 2 + x
        x[: n // 2].clone()  # a copy computes nothing
    assert spent.flops == 3 * n


IN_PLACE: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "addmm_": lambda out, x, y: out[0].addmm_(x[0], y[0]),
    "baddbmm_": lambda out, x, y: out.baddbmm_(x, y),
    "addbmm_": lambda out, x, y: out[0].addbmm_(x, y),
    "addmv_": lambda out, x, y: out[0, :, 0].addmv_(x[0], y[0, :, 0]),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_products_in_place_count_as_much_as_others(name: str, seed: int) -> None:
    draw = random.Random(seed)
    b, m, n, k = (draw.randint(2, 20) for _ in range(4))
    out, x, y = torch.zeros(b, m, n), torch.ones(b, m, k), torch.ones(b, k, n)
    with costs() as spent:
        IN_PLACE[name](out, x, y)
    whole = 2 * m * n * k
    wanted = {"addmm_": whole, "baddbmm_": b * whole, "addbmm_": b * whole, "addmv_": 2 * m * k}
    assert spent.flops == wanted[name]


def test_products_with_vectors_count(seed: int) -> None:
    draw = random.Random(seed)
    m, k = draw.randint(2, 40), draw.randint(2, 40)
    x, y = torch.ones(m, k), torch.ones(k)
    with costs() as spent:
        torch.mv(x, y)
        torch.addmv(torch.zeros(m), x, y)
        torch.dot(y, y)
        torch.vdot(y, y)
    assert spent.flops == 2 * (2 * m * k) + 2 * (2 * k)


def test_a_gpt_has_the_same_products_with_every_kernel_of_attention() -> None:
    """PyTorch's registry does not know the CPU's kernel: 2.517 of 2.919 GFLOP, without attention's."""
    config = PRESETS["0.8M"]
    tokens = torch.randint(config.vocab_size, (4, 128))
    wanted = facts.transformer_flops(config, 4, 128)
    assert wanted == 2_919_235_584
    elementwise = {}
    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        model = GPT(config)
        with sdpa_kernel(kernel), costs() as spent:
            next_token_loss(model(tokens), tokens).backward()
        elementwise[kernel] = spent.flops - wanted
    # attention is 14 % of the products; the MATH kernel also scales, masks and normalises, one by one
    flash, math = elementwise[SDPBackend.FLASH_ATTENTION], elementwise[SDPBackend.MATH]
    assert 0 < flash < math < 0.003 * wanted


@pytest.mark.parametrize("kv_heads", [6, 2])
def test_attention_counts_two_products_forward_and_four_backward(kv_heads: int) -> None:
    q = torch.randn(3, 6, 20, 8, requires_grad=True)
    k = torch.randn(3, kv_heads, 20, 8)
    product = 2 * 3 * 6 * 20 * 20 * 8
    with costs() as spent:
        out = scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
        forward = spent.flops
        out.backward(torch.ones_like(out))
    assert (forward, spent.flops - forward) == (2 * product, 4 * product)


def test_a_gpus_kernels_count_as_the_cpus() -> None:
    """On the meta device: the operations are those of a GPU, and nothing is computed."""
    shape = (2, 4, 32, 16)
    q, k, v, out = (torch.empty(shape, device="meta") for _ in range(4))
    lse = torch.empty(shape[:3], device="meta")
    zero = torch.empty((), dtype=torch.int64)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_backward
    with costs() as spent:
        flash(out, q, k, v, out, lse, None, None, 32, 32, 0.0, True, zero, zero)
    assert spent.flops == 4 * (2 * 2 * 4 * 32 * 32 * 16)


def test_the_peak_is_what_is_alive_at_once(seed: int) -> None:
    n = random.Random(seed).randint(1, 1000)
    own = torch.ones(n)
    with costs(own) as spent:
        for _ in range(5):
            scratch = torch.empty(3 * n)
            del scratch
        assert spent.peak_bytes == 4 * 4 * n
        kept = [torch.empty(n) for _ in range(6)]
        assert spent.peak_bytes == 7 * 4 * n
        del kept
    assert spent.peak_bytes == 7 * 4 * n


def test_views_of_a_tensor_are_counted_once() -> None:
    own = torch.ones(4, 6)
    with costs(own) as spent:
        views = [own.t(), own[:, ::2], own.view(-1), own.t()[1:]]
        own.add_(1)
    assert spent.peak_bytes == 4 * 24
    assert len(views) == 4


def test_a_storage_that_was_resized_counts_with_its_bytes_of_now() -> None:
    """ZeRO-3 frees a gathered row by resizing its storage to nothing, and keeps the tensor."""
    n = 1000
    with costs() as spent:
        row = torch.empty(n)
        row.untyped_storage().resize_(0)
        kept = torch.empty(n)
        assert spent.peak_bytes == 4 * n
        row.untyped_storage().resize_(4 * n)
        kept.add_(1)
        assert spent.peak_bytes == 8 * n
        del row
        assert torch.empty(n).nbytes == kept.nbytes
    assert spent.peak_bytes == 8 * n


def test_the_scorecard_of_real_runs(seed: int) -> None:
    numel = random.Random(seed).randint(1, 2000)

    def pass_on(tensor: torch.Tensor) -> torch.Tensor:
        rank, n = dist.get_rank(), dist.get_world_size()
        received = torch.empty_like(tensor)
        request = dist.isend(tensor, (rank + 1) % n)
        dist.recv(received, (rank - 1) % n)
        request.wait()
        return received

    def job(algorithm) -> Costs:
        own = torch.ones(numel)
        with costs(own) as spent:
            algorithm(own)
        return spent

    def twice(tensor: torch.Tensor) -> torch.Tensor:
        return pass_on(pass_on(tensor) + tensor)

    runs = {name.__name__: launch(job, name, world_size=3) for name in (pass_on, twice)}
    card = scorecard(runs, unit=4 * numel, flops_alone=2 * numel)
    one, two = card.rows
    assert (one.flops, one.peak_bytes, one.bytes_sent) == (0, 8 * numel, 4 * numel)
    # at the worst moment: own, received, their sum; then own, the sum, what is received
    assert (two.flops, two.peak_bytes, two.bytes_sent) == (3 * numel, 12 * numel, 8 * numel)
    assert card.cells(two)[2] == "1.5 x one process"
    assert card.cells(two)[4].startswith("2 M (")
    assert "twice" in str(card) and "<td" in card._repr_html_()


def test_a_job_that_returns_no_costs_is_named() -> None:
    run = launch(dist.get_rank, world_size=1)
    with pytest.raises(ValueError, match="rank 0 of 'mine' returned 0; the job must return"):
        scorecard({"mine": run}, unit=4)
