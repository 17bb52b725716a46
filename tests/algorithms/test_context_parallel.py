"""Attention over spread sequences against full attention in float64: values, gradients, layouts, refusals."""

from __future__ import annotations

import ast
import inspect
import itertools
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib import context_parallel, device, launch
from course_lib.context_parallel.balanced import LAYOUTS, zigzag
from course_lib.context_parallel.combined import two_groups, ulysses_ring_attention
from course_lib.context_parallel.ring import ring_attention
from course_lib.context_parallel.softmax import online_softmax_merge
from course_lib.context_parallel.tiles import span_attention, tiled_attention
from course_lib.context_parallel.ulysses import ulysses_attention


def test_ring_attention_is_attention_to_the_whole_sequence() -> None:
    torch.manual_seed(0)
    qkv = torch.randn(3, 1, 12, 2, 4, dtype=torch.float64)  # 12 tokens, of which each rank has 4

    def job() -> Tensor:
        q, k, v = qkv.chunk(3, dim=2)[dist.get_rank()]
        return ring_attention(q, k, v, causal=True)

    parts = launch(job, world_size=3, backend="gloo")
    q, k, v = qkv.transpose(2, 3)
    whole = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(torch.cat(list(parts), dim=1), whole)


RequireRanks = Callable[[int], None]
WORLDS = [1, 2, 3, 4, 8]
FOLDER = Path(inspect.getfile(context_parallel)).parent
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def full_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """The textbook's, with the whole matrix; the oracle in float64."""
    shared = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(shared, dim=2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def draw(
    seed: int, seq: int, heads: int, kv_heads: int, d: int = 8, batch: int = 2
) -> list[Tensor]:
    """q, k, v and the gradient of the output, float64, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, seq, count, d) for count in (heads, kv_heads, kv_heads, heads)]
    drawn = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]
    return [x.to(device()) for x in drawn]


def with_gradients(attend: Attend, q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> list[Tensor]:
    """The output and the gradients of q, k and v."""
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = attend(*inputs)
    (out * grad).sum().backward()
    return [out.detach(), *(x.grad for x in inputs if x.grad is not None)]


def same(
    found: list[Tensor], wanted: list[Tensor], *case: object, tolerance: float = 1e-10
) -> None:
    """Compared by hand: to import `torch.testing` takes a second in every rank."""
    names = ("out", "gradient of q", "gradient of k", "gradient of v")
    for name, one, other in zip(names, found, wanted, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype, (*case, name)
        if one.numel():
            difference = float((one - other).abs().max())
            assert difference <= tolerance * (1 + float(other.abs().max())), (*case, name)


def errors(found: list[Tensor], wanted: list[Tensor]) -> list[float]:
    """Root mean square: the largest of many rounding errors differs from draw to draw."""
    pairs = zip(found, wanted, strict=True)
    return [float((one.double() - other).square().mean().sqrt()) for one, other in pairs]


# ---- the merge


def partial_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """(out, lse) by the definition; seen: (keys,) of bool. Sums of exponentials, so scores must be small."""
    weights = torch.einsum("bqhd,bkhd->bqhk", q, k).exp() * seen
    total = weights.sum(-1)
    out = torch.einsum("bqhk,bkhd->bqhd", weights, v) / total.clamp_min(1e-300)[..., None]
    return out, total.log()


def test_merged_parts_are_the_whole_in_any_order(seed: int):
    q, k, v, _ = draw(seed, 7, 2, 2, d=3)
    wanted = partial_attention(q, k, v, torch.ones(7))
    parts = [partial_attention(q, k, v, (torch.arange(7) % 3 == i).double()) for i in range(3)]
    for order in itertools.permutations(parts):
        out, lse = torch.zeros_like(q), torch.full(q.shape[:-1], -torch.inf, dtype=q.dtype)
        for part in order:
            out, lse = online_softmax_merge(out, lse, *part)
        torch.testing.assert_close((out, lse), wanted, rtol=1e-12, atol=1e-12)


def test_gradients_pass_through_the_merge(seed: int):
    q, k, v, grad = draw(seed, 6, 2, 2, d=3)
    first = torch.arange(6) < 2

    def merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = [partial_attention(q, k, v, seen.double()) for seen in (first, ~first)]
        out, lse = online_softmax_merge(*parts[0], *parts[1])
        return out + lse[..., None]

    def whole(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = partial_attention(q, k, v, torch.ones(6))
        return out + lse[..., None]

    same(with_gradients(merged, q, k, v, grad), with_gradients(whole, q, k, v, grad))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("old", "new"), [(None, 3.0), (3.0, None), (None, None), (2.0, 3.0)])
def test_parts_in_which_nothing_is_seen(old: float | None, new: float | None, dtype: torch.dtype):
    """-inf in one part or in both: the merge returns the other part, and all gradients are finite."""
    lses = [torch.tensor([-torch.inf if one is None else one], dtype=dtype) for one in (old, new)]
    outs = [torch.full((1, 2), 0.0 if one is None else one, dtype=dtype) for one in (old, new)]
    inputs = [x.requires_grad_() for x in (outs[0], lses[0], outs[1], lses[1])]
    out, lse = online_softmax_merge(*inputs)
    seen = torch.stack([x.detach() for x in lses])
    torch.testing.assert_close(lse.detach(), seen.logsumexp(0))
    if None in (old, new):
        assert torch.equal(out.detach(), outs[0].detach() + outs[1].detach())
    seen_something = not torch.isinf(lse)
    (out.sum() + lse[seen_something].sum()).backward()
    for x in inputs:
        assert x.grad is not None and x.grad.isfinite().all()
    for x, one in zip(lses, (old, new), strict=True):
        assert x.grad is not None and (one is not None or float(x.grad) == 0)


def test_large_scores_do_not_overflow():
    """exp(2000) overflows in every format; only the difference of the scores counts."""
    outs, lse = [torch.full((2, 1), one) for one in (1.0, 5.0)], torch.tensor([2000.0, -2000.0])
    out, merged = online_softmax_merge(outs[0], lse, outs[1], lse + 1)
    torch.testing.assert_close(merged, lse + 1.3132617)
    torch.testing.assert_close(out, torch.full((2, 1), 1 + 4 * 0.73105858))
    out, merged = online_softmax_merge(outs[0], lse, outs[1], -lse)
    assert out.flatten().tolist() == [1, 5] and merged.tolist() == [2000, 2000]


# ---- tiles


@pytest.mark.parametrize("causal", [False, True])
def test_tiles_are_full_attention(causal: bool, seed: int):
    """Tiles that divide the sequence or not, of one score and larger than the sequence; grouped heads."""
    for seq, block, (heads, kv_heads) in itertools.product(
        (1, 9, 26), (2, 7, 64), ((2, 2), (6, 2), (3, 1))
    ):
        given = draw(seed + seq, seq, heads, kv_heads)
        wanted = with_gradients(partial(full_attention, causal=causal), *given)
        found = with_gradients(partial(tiled_attention, block=block, causal=causal), *given)
        same(found, wanted, seq, block, heads, kv_heads)


def test_tiles_are_scaled_dot_product_attention(seed: int):
    """Against PyTorch's, in float32, for inputs that are not contiguous, and for keys of another length."""

    def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)

    given = [x.float().transpose(0, 1) for x in draw(seed, 3, 4, 4, batch=50)]
    for causal in (False, True):
        found = with_gradients(partial(tiled_attention, block=16, causal=causal), *given)
        same(found, with_gradients(partial(sdpa, causal=causal), *given), causal, tolerance=2e-5)
    q, _, _, grad = draw(seed, 5, 4, 4)
    _, k, v, _ = draw(seed + 1, 11, 4, 4)
    found = with_gradients(partial(tiled_attention, block=4), q, k, v, grad)
    same(found, with_gradients(partial(sdpa, causal=False), q, k, v, grad))


def test_queries_before_all_keys_see_nothing(seed: int):
    """Out 0 and gradients 0, not nan, for queries whose keys all come later; the others are right."""
    q, k, v, grad = draw(seed, 8, 2, 2)
    attend = partial(
        span_attention, q_spans=[range(0, 16, 2)], k_spans=[range(6, 14)], causal=True, block=3
    )
    out, dq, dk, dv = with_gradients(attend, q, k, v, grad)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 8**-0.5
    seen = torch.arange(0, 16, 2)[:, None] >= torch.arange(6, 14)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0)
    torch.testing.assert_close(out, torch.einsum("bhqk,bkhd->bqhd", weights, v))
    assert not out[:, :3].any() and not dq[:, :3].any()
    assert all(x.isfinite().all() for x in (dq, dk, dv))


def test_float32_is_as_good_as_full_attention_in_float32(seed: int):
    """At most twice its error against float64, in the output and all gradients."""
    for causal in (False, True):
        given = draw(seed, 300, 4, 2, d=16)
        exact = with_gradients(partial(full_attention, causal=causal), *given)
        single = [x.float() for x in given]
        full = errors(with_gradients(partial(full_attention, causal=causal), *single), exact)
        tiled = with_gradients(partial(tiled_attention, block=32, causal=causal), *single)
        for ours, theirs in zip(errors(tiled, exact), full, strict=True):
            assert ours <= 2 * theirs, (causal, ours, theirs)


def test_under_autocast_scores_stay_in_float32(seed: int):
    given = [x.float() for x in draw(seed, 40, 2, 2)]
    wanted = with_gradients(partial(tiled_attention, block=8), *given)
    with torch.autocast("cpu", torch.bfloat16):
        found = with_gradients(partial(tiled_attention, block=8), *given)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


# ---- layouts


@pytest.mark.parametrize("n", WORLDS)
@pytest.mark.parametrize("seq", [1, 5, 16, 37])
def test_layouts_deal_every_token_once(seq: int, n: int):
    for make in (*LAYOUTS.values(), lambda seq, n: context_parallel.subdivided(zigzag(seq, 2), n)):
        layout = make(seq, n)
        held = [context_parallel.positions(spans).tolist() for spans in layout]
        assert sorted(itertools.chain(*held)) == list(range(seq))
        sizes = [len(one) for one in held]
        assert (
            sizes == [context_parallel.tokens_in(spans) for spans in layout]
            and max(sizes) - min(sizes) <= 2
        )
        assert all(span for spans in layout for span in spans)
        together = context_parallel.positions(context_parallel.joined(layout)).tolist()
        assert together == list(itertools.chain(*held))


def test_layouts_are_those_of_the_table():
    """16 tokens on 4 ranks: the rank that holds each token."""
    table = {
        "contiguous": "0000111122223333",
        "striped": "0123012301230123",
        "zigzag": "0011223333221100",
    }
    for name, owners in table.items():
        layout = LAYOUTS[name](16, 4)
        for rank, spans in enumerate(layout):
            assert context_parallel.positions(spans).tolist() == [
                place for place, owner in enumerate(owners) if owner == str(rank)
            ]
    assert context_parallel.joined(context_parallel.contiguous(16, 4)) == [range(16)]
    assert context_parallel.subdivided(zigzag(16, 2), 2)[1] == [range(12, 16)]


@pytest.mark.parametrize("world_size", [1, 3, 8])
def test_what_was_dealt_is_collected(world_size: int, seed: int):
    def body() -> None:
        x = draw(seed, 13, 2, 2)[0]
        for make in LAYOUTS.values():
            layout = make(13, world_size)
            mine = context_parallel.deal(x, layout)
            assert torch.equal(mine, x[:, context_parallel.positions(layout[dist.get_rank()])])
            assert torch.equal(context_parallel.collect(mine, layout), x)
            last = context_parallel.collect(
                context_parallel.deal(x.movedim(1, -1), layout, dim=-1), layout, dim=-1
            )
            assert torch.equal(last, x.movedim(1, -1))

    launch(body, world_size=world_size, backend="gloo")


# ---- many ranks


def compare(
    attend: Callable[..., Tensor],
    layout: context_parallel.Layout,
    causal: bool,
    given: list[Tensor],
    *case: object,
) -> None:
    """Compare with this rank's part of full attention's output and gradients; `given` is whole."""
    where = context_parallel.positions(layout[dist.get_rank()])
    wanted = [x[:, where] for x in with_gradients(partial(full_attention, causal=causal), *given)]
    mine = [x[:, where] for x in given]
    found = with_gradients(partial(attend, causal=causal, layout=layout), *mine)
    same(found, wanted, *case, causal, dist.get_rank())


def ring_cases(n: int, seed: int) -> None:
    """Parts that differ in length, and parts without a token."""
    for (name, make), causal in itertools.product(LAYOUTS.items(), (False, True)):
        for seq, heads, kv_heads in ((29, 4, 2), (5, 3, 1)):
            given = draw(seed, seq, heads, kv_heads)
            compare(partial(ring_attention, block=4), make(seq, n), causal, given, "ring", name)


def ulysses_cases(n: int, seed: int) -> None:
    for (name, make), causal in itertools.product(LAYOUTS.items(), (False, True)):
        attend = partial(ulysses_attention, block=8)
        for seq, shared in ((29, 2), (5, 1)):
            given = draw(seed, seq, shared * n, n)
            compare(attend, make(seq, n), causal, given, "Ulysses", name, seq)


def combined_cases(n: int, seed: int) -> None:
    for u in (u for u in (1, 2, 4) if n % u == 0):
        inside, outside = two_groups(u)
        attend = partial(ulysses_ring_attention, ulysses_group=inside, ring_group=outside, block=8)
        for (name, make), causal in itertools.product(LAYOUTS.items(), (False, True)):
            layout = context_parallel.subdivided(make(29, n // u), u)
            compare(attend, layout, causal, draw(seed, 29, 2 * u, u), "both", u, name)
        in_succession(partial(attend, causal=True), seed, u)


def in_succession(attend: Attend, seed: int, heads: int) -> None:
    """Without a layout: equal parts."""
    n, rank = dist.get_world_size(), dist.get_rank()
    given = draw(seed, 24, heads, heads)
    whole = with_gradients(partial(full_attention, causal=True), *given)
    found = with_gradients(attend, *(x.chunk(n, 1)[rank] for x in given))
    same(found, [x.chunk(n, 1)[rank] for x in whole], "by default")


@pytest.mark.parametrize("world_size", WORLDS)
def test_spread_attention_is_full_attention(
    world_size: int, seed: int, backend: str, require_ranks: RequireRanks
):
    """A ring, Ulysses, and both: each layout, causal or not, the output and all gradients."""
    require_ranks(world_size)

    def body() -> None:
        ring_cases(world_size, seed)
        ulysses_cases(world_size, seed)
        combined_cases(world_size, seed)
        in_succession(partial(ring_attention, causal=True), seed, 2)
        in_succession(partial(ulysses_attention, causal=True), seed, world_size)

    launch(body, world_size=world_size, backend=backend, timeout=240)


def test_attention_in_groups_of_their_own(seed: int, backend: str, require_ranks: RequireRanks):
    """Two rings of two side by side, on different sequences; a rank outside a group gets an error."""
    require_ranks(4)

    def body() -> str:
        pairs: list[Any] = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        mine, place = dist.get_rank() % 2, dist.get_rank() // 2
        given = draw(seed + mine, 10, 2, 2)
        wanted = with_gradients(partial(full_attention, causal=True), *given)
        for attend in (ring_attention, ulysses_attention):
            layout = zigzag(10, 2)
            where = context_parallel.positions(layout[place])
            attend = partial(attend, causal=True, group=pairs[mine], layout=layout)
            found = with_gradients(attend, *(x[:, where] for x in given))
            same(found, [x[:, where] for x in wanted])
        with pytest.raises(ValueError) as told:
            q, k, v, _ = given
            ring_attention(q, k, v, group=pairs[1 - mine])
        return str(told.value)

    for rank, told in enumerate(launch(body, world_size=4, backend=backend)):
        assert told.startswith(f"rank {rank} is not in the group")


def test_the_error_does_not_grow_with_the_ring(seed: int):
    """float32 as good as full attention's on 8 ranks; bf16 on 8 ranks as good as on one."""

    dtypes = (torch.float32, torch.bfloat16)

    def on_this_rank() -> list[float]:
        found = []
        for dtype in dtypes:
            given = [x.to(dtype) for x in draw(seed, 128, 4, 2, d=16)]
            exact = with_gradients(
                partial(full_attention, causal=True), *(x.double() for x in given)
            )
            layout = zigzag(128, dist.get_world_size())
            where = context_parallel.positions(layout[dist.get_rank()])
            attend = partial(ring_attention, causal=True, layout=layout)
            ours = with_gradients(attend, *(x[:, where] for x in given))
            assert all(x.dtype == dtype for x in ours)
            found += errors(ours, [x[:, where] for x in exact])
        return found

    def on_all(world_size: int) -> tuple[list[float], list[float]]:
        by_rank = launch(on_this_rank, world_size=world_size, backend="gloo")
        means = [
            (sum(x * x for x in each) / world_size) ** 0.5 for each in zip(*by_rank, strict=True)
        ]
        return means[:4], means[4:]

    single = [x.float() for x in draw(seed, 128, 4, 2, d=16)]
    exact = with_gradients(partial(full_attention, causal=True), *(x.double() for x in single))
    full = errors(with_gradients(partial(full_attention, causal=True), *single), exact)
    (_, alone), (ring, rough) = on_all(1), on_all(8)
    assert all(ours <= 2 * theirs for ours, theirs in zip(ring, full, strict=True))
    assert all(ours <= 1.1 * theirs for ours, theirs in zip(rough, alone, strict=True))


# ---- PyTorch's own


def test_the_values_are_those_of_pytorchs_context_parallel(seed: int):
    """On a CPU it runs by gathering keys, without a causal mask; it deals the sequence out as zigzag."""

    def body() -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import experimental
        from torch.nn.attention import SDPBackend, sdpa_kernel

        warnings.simplefilter("ignore")
        given = [x.float() for x in draw(seed, 16, 2, 2)]
        layout = zigzag(16, 2)
        ours = with_gradients(
            partial(ring_attention, layout=layout),
            *(context_parallel.deal(x, layout) for x in given),
        )
        *inputs, grad = (x.transpose(1, 2).contiguous() for x in given)
        mesh = init_device_mesh("cpu", (2,))
        with (
            sdpa_kernel(SDPBackend.MATH),
            experimental.context_parallel(mesh, buffers=[*inputs, grad], buffer_seq_dims=[2] * 4),
        ):
            for x in inputs:
                x.requires_grad_()
            q, k, v = inputs
            out = F.scaled_dot_product_attention(q, k, v)
            (out * grad).sum().backward()
            theirs = [x.clone() for x in (out.detach(), *(x.grad for x in inputs))]
            for x in inputs:
                x.requires_grad_(False)  # its context makes them whole again on leaving
        same([x.transpose(1, 2) for x in theirs], ours, tolerance=2e-5)

    launch(body, world_size=2, backend="gloo")


# ---- what is refused


def test_refusals_are_sentences(seed: int):
    def body() -> dict[str, str]:
        q, k, v, _ = draw(seed, 4, 4, 2)
        layout = context_parallel.contiguous(8, 2)
        attempts: dict[str, Callable[[], object]] = {
            "each must be (batch, seq, heads, head_dim)": lambda: tiled_attention(q[0], k, v),
            "keys and values must have the same shape": lambda: tiled_attention(q, k, v[:, :3]),
            "batch and head_dim of queries and keys": lambda: ring_attention(q[:1], k, v),
            "kv_heads=4 must divide heads=2": lambda: ring_attention(k, q, q),
            "one floating-point dtype": lambda: ulysses_attention(q.float(), k, v),
            "block=0: a tile needs": lambda: ring_attention(q, k, v, block=0),
            "the layout is for 3 ranks, the group has 2": lambda: ring_attention(
                q, k, v, layout=zigzag(8, 3)
            ),
            "q has 4 tokens, the layout gives rank": lambda: ulysses_attention(
                q, k, v, layout=zigzag(12, 2)
            ),
            "k has 4 tokens, the layout gives rank": lambda: ring_attention(
                torch.cat((q, q), 1), k, v
            ),
            "heads=3 cannot be shared equally by 2 ranks": lambda: ulysses_attention(
                q[:, :, :3], k[:, :, :1], v[:, :, :1]
            ),
            "kv_heads=1 cannot be shared equally by 2 ranks": lambda: ulysses_attention(
                q, k[:, :, :1], v[:, :, :1]
            ),
            "x has 9 tokens": lambda: context_parallel.deal(torch.ones(1, 9), layout),
            "x has 3 tokens, the layout gives rank": lambda: context_parallel.collect(
                torch.ones(1, 3), layout
            ),
            "2 ranks cannot be cut into groups of 3": lambda: two_groups(3),
        }
        told = {}
        for words, attempt in attempts.items():
            with pytest.raises(ValueError) as error:
                attempt()
            told[words] = str(error.value)
        return told

    run = launch(body, world_size=2, backend="gloo")
    for told in run:
        for words, sentence in told.items():
            assert words in sentence
    assert not run.ledger.operations()  # nothing is sent before a refusal


def test_the_folder_can_be_copied_out_alone(tmp_path: Path):
    """With exports.py above it. It imports torch and itself only, and modules that students are given need
    none that they build.
    """
    built = {"softmax", "tiles", "balanced", "ring", "ulysses", "combined", "gpt"}
    for path in FOLDER.glob("*.py"):
        source = path.read_text()
        assert len(source.splitlines()) < 300, path.name
        for node in ast.walk(ast.parse(source)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            elif isinstance(node, ast.ImportFrom):  # the package's own are for type checkers alone
                assert path.stem in {"__init__", *built} or node.module not in built, path.name
                assert node.level == 1 or node.module == "exports", path.name
            top = {name.partition(".")[0] for name in names}
            assert top <= {"torch", *sys.stdlib_module_names}, (path.name, top)
    shutil.copytree(FOLDER, tmp_path / "above" / "lifted")
    shutil.copy(FOLDER.parent / "exports.py", tmp_path / "above")
    program = "import sys; sys.path[:0] = ['.']; from above import lifted"
    program += f"; assert not any('above.lifted.' + m in sys.modules for m in {built})"
    program += "; lifted.ulysses_ring_attention"
    program += "; assert not any('course_lib' in m for m in sys.modules)"
    subprocess.run([sys.executable, "-I", "-c", program], cwd=tmp_path, check=True)
