"""Recomputation, offload and the loss in chunks, against one process without them and PyTorch's own."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    create_selective_checkpoint_contexts,
)
from torch.utils.checkpoint import checkpoint as of_pytorch

from course_lib import facts
from course_lib.checks.rank.peak import Peak
from course_lib.models import GPT, GPTConfig
from course_lib.planning import SavedBytes
from course_lib.recompute import (
    best_segment,
    checkpoint,
    chunked_loss,
    lazy_checkpoint,
    offload_saved,
    run_segments,
    step_in_backward,
)
from course_lib.scorecard import costs


def test_a_checkpoint_changes_no_gradient() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
    x, again = (torch.ones(2, 4).requires_grad_() for _ in range(2))
    block(x).square().sum().backward()
    weight = block[0].weight.grad
    block.zero_grad()
    checkpoint(block, again).square().sum().backward()
    torch.testing.assert_close((again.grad, block[0].weight.grad), (x.grad, weight))


OURS = {"checkpoint": checkpoint, "lazy_checkpoint": lazy_checkpoint}
THEIRS = {
    "checkpoint": partial(of_pytorch, use_reentrant=True),
    "lazy_checkpoint": partial(of_pytorch, use_reentrant=False),
}
both = pytest.mark.parametrize("name", OURS)
CONFIG = GPTConfig(layers=4, heads=4, width=64, context=64)


def gradients(
    run: Callable[[Tensor], Tensor], x: Tensor, params: list[nn.Parameter]
) -> list[Tensor | None]:
    """Of x and of the parameters, which have none afterwards."""
    x = x.clone().requires_grad_()
    run(x).square().sum().backward()
    found = [x.grad, *(param.grad for param in params)]
    for param in params:
        param.grad = None
    return found


def equal(ours: list[Tensor | None], theirs: list[Tensor | None]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all((a is None and b is None) or torch.equal(a, b) for a, b in pairs)  # type: ignore[arg-type]


def gpt(seed: int, **more: Any) -> tuple[GPT, Tensor, Tensor]:
    torch.manual_seed(seed)
    model = GPT(GPTConfig(**{**vars(CONFIG), **more}))
    return model, torch.randn(2, 64, 64), torch.arange(64)


def through(model: GPT, x: Tensor, positions: Tensor) -> Tensor:
    for block in model.blocks:
        x = block(x, positions)
    return x


# ---- checkpoints


@both
@pytest.mark.parametrize("every", [1, 2, 3, 4])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_those_without_checkpoints_to_the_bit(
    name: str, every: int, dropout: float, seed: int
) -> None:
    model, x, positions = gpt(seed, dropout=dropout)
    params, ends = list(model.parameters()), []
    found = []
    for run in (
        lambda x: through(model, x, positions),
        lambda x: run_segments(model.blocks, x, positions, every=every, checkpoint=OURS[name]),
    ):
        torch.manual_seed(seed + 1)
        found.append(gradients(run, x, params))
        ends.append(torch.rand(4))  # the caller's stream goes on as if nothing had been drawn twice
    assert equal(*found)
    assert torch.equal(*ends)


@both
def test_kept_bytes_and_work_are_those_of_pytorchs_own(name: str, seed: int) -> None:
    model, x, positions = gpt(seed)
    counts = {}
    for who, kind in {"ours": OURS[name], "theirs": THEIRS[name]}.items():
        x = x.detach().clone().requires_grad_()
        with SavedBytes(model) as saved, sdpa_kernel(SDPBackend.MATH), costs() as spent:
            y = run_segments(model.blocks, x, positions, every=1, checkpoint=kind)
            kept = saved.total
            y.sum().backward()
        counts[who] = kept, spent.flops
        model.zero_grad()
    assert counts["ours"][1] == counts["theirs"][1]
    assert counts["ours"][0] == counts["theirs"][0] == 4 * x.nbytes + positions.nbytes


def flops(model: GPT, run: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Of products of matrices, forward and backward."""
    model.zero_grad()
    with sdpa_kernel(SDPBackend.MATH), Peak([]) as counted:
        run(x.clone().requires_grad_()).sum().backward()
    return counted.flops


def test_work_is_one_more_forward_and_an_early_stop_leaves_out_the_last_product(seed: int) -> None:
    model, x, positions = gpt(seed)
    plain = flops(model, lambda x: through(model, x, positions), x)
    run = partial(run_segments, model.blocks, every=1)
    full = flops(model, lambda x: run(x, positions, checkpoint=checkpoint), x)
    early = flops(model, lambda x: run(x, positions, checkpoint=lazy_checkpoint), x)
    late = partial(lazy_checkpoint, early_stop=False)
    assert full == flops(model, lambda x: run(x, positions, checkpoint=late), x)
    assert full * 3 == plain * 4
    last = CONFIG.layers * 2 * 2 * 64 * CONFIG.mlp_width * CONFIG.width  # the MLP's second product
    assert early == full - last
    head = 2 * 2 * 64 * CONFIG.width * CONFIG.vocab_size
    assert full == facts.transformer_flops(CONFIG, 2, 64, recompute=True) - 3 * head


@both
def test_a_first_block_gets_gradients_without_an_argument_that_needs_one(
    name: str, seed: int
) -> None:
    torch.manual_seed(seed)
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)
    OURS[name](layer, x).sum().backward()
    assert torch.equal(layer.weight.grad, x.sum(0).expand(8, 8))  # type: ignore[arg-type]
    assert x.grad is None
    assert not OURS[name](lambda x: x * 2, x).grad_fn or name == "checkpoint"


def test_pytorchs_reentrant_checkpoint_gives_a_first_block_none(seed: int) -> None:
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = of_pytorch(layer, x, use_reentrant=True)
    assert not y.requires_grad


@both
def test_arguments_and_outputs_of_all_kinds(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    layer = nn.Linear(8, 8)
    index, fixed = torch.tensor([2, 0, 1]), torch.randn(3, 8)

    def function(x: Tensor, index: Tensor, factor: float, mask: None, fixed: Tensor) -> Any:
        y = layer(x)[index] * factor
        return y + fixed, y.square(), (y > 0).sum()

    found = []
    for run in (function, partial(OURS[name], function)):
        x = torch.ones(3, 8).requires_grad_()
        first, _unused, count = run(x, index, 0.5, None, fixed)
        first.square().sum().backward()
        found.append([x.grad, layer.weight.grad, count])
        layer.zero_grad()
    assert equal(*found)
    assert fixed.grad is None


@both
@pytest.mark.parametrize("inside", [False, True], ids=["backward outside", "backward inside"])
def test_autocast_is_that_of_forward(name: str, inside: bool, seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    x, found = torch.randn(8, 16), []
    for run in (model, partial(OURS[name], model)):
        mine = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            loss = run(mine).float().square().sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        found.append([mine.grad, *(param.grad for param in model.parameters())])
        model.zero_grad()
    assert equal(*found)


@both
def test_nested_and_repeated(name: str, seed: int) -> None:
    model, x, positions = gpt(seed, dropout=0.2)
    params, kind, found = list(model.parameters()), OURS[name], []

    def inner(x: Tensor) -> Tensor:
        return run_segments(model.blocks, x, positions, every=1, checkpoint=kind)

    for run in (
        lambda x: through(model, through(model, x, positions), positions),
        lambda x: kind(inner, kind(inner, x)),
    ):
        torch.manual_seed(seed)
        found.append(gradients(run, x, params))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_lazy_one_knows_autograd_grad_and_a_second_backward(seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
    x = torch.randn(4, 8)
    wanted = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    loss = lazy_checkpoint(model, x).sum()
    for keep in (True, False):
        found = torch.autograd.grad(loss, list(model.parameters()), retain_graph=keep)
        assert equal(list(found), list(wanted))


def test_the_lazy_one_refuses_a_second_run_that_differs(seed: int) -> None:
    calls: list[int] = []

    def fickle(x: Tensor) -> Tensor:
        calls.append(1)
        return x.sin() if len(calls) > 1 else x.sin().cos().exp()

    y = lazy_checkpoint(fickle, torch.ones(3, requires_grad=True))
    with pytest.raises(RuntimeError, match="kept 1 tensors and the first one 3"):
        y.sum().backward()


@both
def test_without_a_graph_nothing_is_kept(name: str) -> None:
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        assert not OURS[name](layer, torch.ones(2, 4)).requires_grad


# ---- segments


def brute_force(layers: int, kept: float, inside: float) -> int:
    """Walks through backward and looks at what is there."""
    best, least = 0, float("inf")
    for every in range(1, layers + 1):
        waiting = len(range(0, layers, every))
        most = waiting * kept + min(every, layers) * inside
        if most <= least:
            best, least = every, most
    return best


def test_the_best_segment_is_that_of_trying_all(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(50):
        layers, kept, inside = torch.randint(1, 60, (3,), generator=generator).tolist()
        wanted = brute_force(layers, kept, inside)
        assert best_segment(layers, kept, inside) == wanted
        assert facts.best_segment(layers, kept, inside) == wanted
    assert [facts.checkpointed_most(80, k, 2, 34) for k in (1, 2, 3, 4, 9)] == [
        194, 148, 156, 176, 324,
    ]  # fmt: skip
    assert best_segment(80) == 2
    assert best_segment(81, 1, 1) == 9  # Chen et al.'s square root
    assert best_segment(126, 2, 34) == 3
    with pytest.raises(ValueError, match="at least one"):
        best_segment(0)


def test_the_peak_follows_the_formula(seed: int) -> None:
    """A segment more costs the inside of `every` blocks and saves inputs: measured on 8 blocks."""
    torch.manual_seed(seed)
    config = GPTConfig(layers=8, heads=2, width=32, context=512)
    model, positions = GPT(config), torch.arange(512)
    x = torch.randn(2, 512, 32)
    peaks = {}
    for every in (1, 2, 4, 8):
        model.zero_grad()
        gc.collect()
        with costs(*model.parameters()) as spent:
            y = run_segments(model.blocks, x, positions, every=every, checkpoint=checkpoint)
            y.sum().backward()
        peaks[every] = spent.peak_bytes
    inside = facts.saved_layer_bytes(config, 2, 512)
    for few, many in ((1, 2), (2, 4), (4, 8)):
        # more of a segment's inside, less of the inputs that wait
        predicted = (many - few) * inside - (8 // few - 8 // many) * x.nbytes
        assert abs(peaks[many] - peaks[few] - predicted) < 0.08 * predicted + x.nbytes
    assert min(peaks, key=peaks.__getitem__) == 1


def test_run_segments_refuses_segments_without_blocks() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        run_segments([], torch.ones(1), every=0, checkpoint=checkpoint)


# ---- selective


def products_kept(ctx: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
    return (
        CheckpointPolicy.MUST_SAVE if operation in products else CheckpointPolicy.PREFER_RECOMPUTE
    )


def test_selective_recomputation_multiplies_nothing_twice(seed: int) -> None:
    model, x, positions = gpt(seed)
    contexts = partial(create_selective_checkpoint_contexts, products_kept)
    kind = partial(of_pytorch, use_reentrant=False, context_fn=contexts)
    plain = flops(model, lambda x: through(model, x, positions), x)
    run = partial(run_segments, model.blocks, every=1, checkpoint=kind)
    assert flops(model, lambda x: run(x, positions), x) == plain


@pytest.mark.parametrize("early_stop", [True, False])
def test_attention_alone_again_takes_the_share_of_the_formula(early_stop: bool, seed: int) -> None:
    """Of 72 b s h^2 a layer, s / 18h, and with an early stop s / 36h."""
    model, x, positions = gpt(seed)
    plain = flops(model, lambda x: through(model, x, positions), x)
    for block in model.blocks:
        attention: Any = block.attention
        attention.attend = partial(
            of_pytorch, attention.attend, use_reentrant=False, early_stop=early_stop
        )
    again = flops(model, lambda x: through(model, x, positions), x) - plain
    assert again == facts.selective_share(64, 64, early_stop) * 72 * CONFIG.layers * 2 * 64 * 64**2
    if not early_stop:
        whole = facts.transformer_flops(CONFIG, 2, 64, recompute="selective")
        assert again == whole - facts.transformer_flops(CONFIG, 2, 64)


def test_korthikantis_printed_shares_are_three_times_their_own_words() -> None:
    for claim in facts.KORTHIKANTI_SELECTIVE:
        assert claim.printed == pytest.approx(3 * claim.right, rel=0.05)
        assert claim.printed == pytest.approx(claim.seq / (6 * claim.width), rel=0.05)
    assert facts.KORTHIKANTI_SELECTIVE[0].right == pytest.approx(0.00926, rel=1e-3)


# ---- offload, and the optimizer in backward


def test_offloaded_tensors_come_back(seed: int, tmp_path: Any) -> None:
    model, x, positions = gpt(seed)
    params = list(model.parameters())
    wanted = gradients(lambda x: through(model, x, positions), x, params)
    with SavedBytes(model) as saved:
        through(model, x, positions)
    with offload_saved(model, at_least=0, folder=str(tmp_path)) as moved:
        found = gradients(lambda x: through(model, x, positions), x, params)
    assert equal(found, wanted)
    assert moved.nbytes >= saved.total  # a tensor that two operations keep moves twice
    assert moved.returned == moved.tensors > 0
    assert not list(tmp_path.iterdir())


def test_offloaded_tensors_are_let_go(seed: int) -> None:
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)))
    x = torch.randn(1024, 64)
    with costs() as kept:
        y = layers(x)
    del y
    with costs() as moved, offload_saved(layers) as counts:
        layers(x)
    assert counts.nbytes == 8 * x.nbytes  # 4 inputs of linears, 4 results of tanh
    assert moved.peak_bytes < kept.peak_bytes + counts.nbytes  # mapped files are tensors, too


def test_small_tensors_and_parameters_stay(seed: int) -> None:
    layer = nn.Linear(256, 256)
    with offload_saved(layer, at_least=256 * 256 * 4) as counts:
        layer(torch.randn(8, 256, requires_grad=True)).sum().backward()
    assert counts.tensors == 0


@pytest.mark.parametrize(
    "make", [partial(torch.optim.SGD, lr=0.1), partial(torch.optim.AdamW, lr=0.1)]
)
def test_steps_in_backward_are_those_after_it_to_the_bit(make: Any, seed: int) -> None:
    torch.manual_seed(seed)
    after = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))
    during = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))
    during.load_state_dict(after.state_dict())
    optimizer, handles = make(after.parameters()), step_in_backward(during.parameters(), make)
    for _ in range(3):
        x = torch.randn(4, 16)
        after(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        during(x).square().sum().backward()
        assert all(param.grad is None for param in during.parameters())
    assert equal(list(after.parameters()), list(during.parameters()))
    for handle in handles:
        handle.remove()
    during(x).sum().backward()
    assert all(param.grad is not None for param in during.parameters())


def test_steps_in_backward_hold_one_gradient_at_a_time(seed: int) -> None:
    peaks = []
    for in_backward in (False, True):
        layers = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8)))
        size = sum(param.nbytes for param in layers.parameters())
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, foreach=False)
        if in_backward:
            step_in_backward(layers.parameters(), partial(torch.optim.SGD, lr=0.1, foreach=False))
        with costs(*layers.parameters()) as spent:
            layers(torch.ones(1, 256)).sum().backward()
            if not in_backward:
                optimizer.step()
        peaks.append(spent.peak_bytes / size)
    assert peaks[0] == pytest.approx(2, abs=0.05)
    assert peaks[1] == pytest.approx(1 + 1 / 8, abs=0.05)


# ---- the loss in chunks


def plain_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(hidden @ weight.t(), targets)


def of_loss(run: Any, *tensors: Tensor, factor: float = 1.0) -> list[Tensor]:
    hidden, weight = (tensor.clone().requires_grad_() for tensor in tensors[:2])
    loss = run(hidden, weight, tensors[2])
    (loss * factor).backward()
    return [loss.detach(), hidden.grad, weight.grad]  # type: ignore[list-item]


@pytest.mark.parametrize("chunks", [1, 3, 8, 100])
def test_the_loss_in_chunks_is_pytorchs(chunks: int, seed: int) -> None:
    torch.manual_seed(seed)
    hidden, weight = torch.randn(50, 16), torch.randn(37, 16)
    targets = torch.randint(37, (50,))
    targets[torch.rand(50) < 0.3] = -100
    wanted = of_loss(plain_loss, hidden, weight, targets, factor=0.3)
    run = partial(chunked_loss, chunks=chunks)
    for ours, theirs in zip(of_loss(run, hidden, weight, targets, factor=0.3), wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_batch_without_targets_gives_nan_as_pytorchs() -> None:
    targets = torch.full((4,), -100)
    hidden, weight = torch.randn(4, 8), torch.randn(5, 8)
    assert plain_loss(hidden, weight, targets).isnan()
    assert chunked_loss(hidden, weight, targets, 2).isnan()


@pytest.mark.parametrize("target", [-1, -2, 5])
def test_a_target_outside_the_vocabulary_is_refused(target: int) -> None:
    targets = torch.tensor([1, 2, target, -100])
    with pytest.raises(ValueError, match=f"target {target} lies outside the vocabulary, 0 .. 4"):
        chunked_loss(torch.randn(4, 8), torch.randn(5, 8), targets, 2)


def test_sums_over_chunks_are_in_float32(seed: int) -> None:
    torch.manual_seed(seed)
    hidden, weight = torch.randn(512, 16) + 1, torch.randn(37, 16)
    targets = torch.zeros(512, dtype=torch.long)
    exact = of_loss(plain_loss, hidden, weight, targets)
    narrow = [tensor.bfloat16() for tensor in (hidden, weight)]
    found = of_loss(partial(chunked_loss, chunks=64), *narrow, targets)
    assert found[2].dtype == torch.bfloat16
    assert (found[2].float() - exact[2]).norm() / exact[2].norm() < 0.02


def test_the_loss_in_chunks_takes_the_memory_of_a_chunk_and_no_more_work(seed: int) -> None:
    torch.manual_seed(seed)
    tensors = torch.randn(512, 32), torch.randn(4096, 32), torch.randint(4096, (512,))
    spent = {}
    for name, run in {"plain": plain_loss, "chunks": partial(chunked_loss, chunks=16)}.items():
        with costs(*tensors) as counted, Peak(tensors) as work:
            of_loss(run, *tensors)
        spent[name] = counted.peak_bytes, work.flops
    assert spent["chunks"][1] == spent["plain"][1] == 6 * 512 * 4096 * 32
    logits = facts.loss_bytes(512, 4096)
    assert spent["plain"][0] > 2.9 * logits
    assert spent["chunks"][0] < 0.5 * logits
