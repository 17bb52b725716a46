"""Every collective against a computation in one process and against torch's own, on every kind of input."""

from __future__ import annotations

import ast
import inspect
import random
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
import torch.distributed as dist

import course_lib
from course_lib import collectives, facts, launch
from course_lib.ledger.ledger import Ledger


def test_a_ring_gives_every_rank_the_sum() -> None:
    inputs = [torch.arange(10.0) + 100 * rank for rank in range(3)]

    def job() -> torch.Tensor:
        tensor = inputs[dist.get_rank()].clone()
        collectives.ring_all_reduce(tensor)
        return tensor

    results = launch(job, world_size=3, backend="gloo")
    assert all(torch.equal(result, inputs[0] + inputs[1] + inputs[2]) for result in results)


WORLDS = [1, 2, 3, 4, 5, 8]
ALL_REDUCES = [
    collectives.ring_all_reduce,
    collectives.recursive_doubling_all_reduce,
    collectives.rabenseifner_all_reduce,
    collectives.double_binary_tree_all_reduce,
]
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16,
    torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
MOVED_ONLY = [torch.float8_e4m3fn, torch.float8_e5m2]  # torch cannot add these
NOT_NCCL = [torch.int16, torch.complex64, torch.complex128]
NOT_TORCH_GLOO = [torch.int16]  # dist.all_reduce has no 16-bit integers

RequireRanks = Callable[[int], None]


def values(seed: int, rank: int, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rank's random input: small whole numbers, so that sums are exact in every dtype."""
    generator = torch.Generator().manual_seed(seed * 1000 + rank * 37 + numel)
    drawn = torch.randint(0, 8, (numel,), generator=generator)
    made = (drawn % 2 if dtype == torch.bool else drawn).to(dtype)
    return made.to(course_lib.device())


def total(seed: int, ranks: range | list[int], numel: int, dtype=torch.float32) -> torch.Tensor:
    """The sum over `ranks`, computed here in float64 (complex128 for complex, `or` for bool)."""
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return sum(values(seed, r, numel, dtype).to(wide) for r in ranks).to(dtype)  # type: ignore[union-attr]


def new_group(ranks: list[int]) -> dist.ProcessGroup:
    """On ranks outside it torch gives a placeholder, which `rank_and_size` recognises."""
    return cast(dist.ProcessGroup, dist.new_group(ranks))


class Problems(list):
    """A rank's failed comparisons, by name and case; the rank returns them to the test."""

    def expect(self, found: torch.Tensor, wanted: torch.Tensor, *case: object) -> None:
        same = found.shape == wanted.shape and found.dtype == wanted.dtype
        if not (same and torch.equal(found.cpu(), wanted.cpu())):
            self.append(
                f"{' '.join(map(str, case))}: {found.tolist()} instead of {wanted.tolist()}"
            )


def run(body: Callable, *args: object, world_size: int, backend: str) -> list:
    found = launch(body, *args, world_size=world_size, backend=backend, timeout=120)
    problems = [f"rank {r}: {p}" for r, result in enumerate(found) for p in result]
    assert not problems, "\n".join(problems[:10])
    return found


def sizes(seed: int, n: int) -> list[int]:
    return sorted({0, 1, n - 1, n, n + 1, 2 * n, 13, random.Random(seed).randrange(14, 200)})


def dtypes(backend: str) -> list[torch.dtype]:
    return [d for d in DTYPES if backend != "nccl" or d not in NOT_NCCL]


# ---- all-reduces


@pytest.mark.parametrize("world_size", WORLDS)
def test_all_reduces(world_size: int, seed: int, backend: str, require_ranks: RequireRanks):
    def body() -> list[str]:
        problems, rank = Problems(), dist.get_rank()
        cases = [(numel, torch.float32) for numel in sizes(seed, world_size)]
        cases += [(13, dtype) for dtype in dtypes(backend)]
        for numel, dtype in cases:
            wanted = total(seed, range(world_size), numel, dtype)
            if numel and dtype not in NOT_TORCH_GLOO:
                builtin = values(seed, rank, numel, dtype)
                dist.all_reduce(builtin)
                problems.expect(builtin, wanted, "dist.all_reduce", numel, dtype)
            for all_reduce in ALL_REDUCES:
                tensor = values(seed, rank, numel, dtype)
                assert all_reduce(tensor) is None
                problems.expect(tensor, wanted, all_reduce.__name__, numel, dtype)
        return problems

    require_ranks(world_size)
    run(body, world_size=world_size, backend=backend)


@pytest.mark.parametrize("world_size", [3, 4, 7])
def test_floats_are_rounded_alike_on_every_rank(
    world_size: int, seed: int, backend: str, require_ranks: RequireRanks
):
    def draw(rank: int, dtype: torch.dtype) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed + rank)
        return torch.randn(1003, generator=generator).to(dtype).to(course_lib.device())

    def body() -> list[torch.Tensor]:
        results = []
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for all_reduce in ALL_REDUCES:
                tensor = draw(dist.get_rank(), dtype)
                all_reduce(tensor)
                results.append(tensor.cpu())
        return results

    require_ranks(world_size)
    found = launch(body, world_size=world_size, backend=backend)
    for results in zip(*found, strict=True):
        first, dtype = results[0], results[0].dtype
        assert all(torch.equal(first.view(torch.uint8), r.view(torch.uint8)) for r in results), (
            "the ranks' results differ in bits"
        )
        inputs = [draw(r, dtype).cpu().double() for r in range(world_size)]
        bound = world_size * torch.finfo(dtype).eps * sum(x.abs() for x in inputs)
        assert ((first.double() - sum(inputs)).abs() <= bound).all()


def layouts(seed: int, rank: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """name: (memory, a view of it): every kind of view that may be written."""
    flat = values(seed, rank, 24)
    scalar = flat.clone()
    complex_flat = values(seed, rank, 24, torch.complex64) + 1j
    return {
        "transposed": (a := flat.clone(), a.view(4, 6).t()),
        "every other column": (b := flat.clone(), b.view(4, 6)[:, ::2]),
        "permuted": (c := flat.clone(), c.view(2, 3, 4).permute(2, 0, 1)),
        "a slice": (d := flat.clone(), d[5:18]),
        "0-dimensional": (scalar, scalar[3]),
        "a leaf that requires grad": (e := flat.clone(), e.requires_grad_()),
        "conjugated": (complex_flat, complex_flat.conj()),
    }


@pytest.mark.parametrize("world_size", [3, 4])
def test_views_are_read_and_written_in_their_own_memory(
    world_size: int, seed: int, backend: str, require_ranks: RequireRanks
):
    """The result is written into the view's own elements; the memory between them keeps its values."""

    def body() -> list[str]:
        problems, rank, n = Problems(), dist.get_rank(), dist.get_world_size()
        for name in layouts(seed, rank):
            if "conj" in name and backend == "nccl":
                continue
            everybody = [layouts(seed, r)[name][1].detach() for r in range(n)]
            wanted = torch.stack(everybody).sum(0)
            calls = {one.__name__: (one, wanted) for one in ALL_REDUCES}
            calls["broadcast"] = (lambda t: collectives.broadcast(t, n - 1), everybody[-1])
            calls["reduce"] = (
                lambda t: collectives.reduce(t, 1),
                wanted if rank == 1 else everybody[rank],
            )
            for function, (call, result) in calls.items():
                memory, view = layouts(seed, rank)[name]
                expected, target = layouts(seed, rank)[name]
                target.detach().copy_(result)
                call(view)
                problems.expect(memory.detach(), expected.detach(), function, name)
        return problems

    require_ranks(world_size)
    run(body, world_size=world_size, backend=backend)


def test_trees_take_any_number_of_blocks(seed: int, backend: str, require_ranks: RequireRanks):
    def body() -> list[str]:
        problems, rank = Problems(), dist.get_rank()
        for blocks in (1, 2, 3, 9):
            for numel in (1, 2, 17, 40):
                tensor = values(seed, rank, numel)
                collectives.double_binary_tree_all_reduce(tensor, blocks=blocks)
                problems.expect(tensor, total(seed, range(5), numel), blocks, "blocks", numel)
        return problems

    require_ranks(5)
    run(body, world_size=5, backend=backend)


# ---- one rank to all, all to one


@pytest.mark.parametrize("world_size", WORLDS)
def test_rooted_collectives(world_size: int, seed: int, backend: str, require_ranks: RequireRanks):
    roots = sorted({0, world_size - 1, seed % world_size})

    def check(problems: Problems, root: int, numel: int, dtype: torch.dtype) -> None:
        rank, n = dist.get_rank(), dist.get_world_size()
        own, case = values(seed, rank, numel, dtype), (root, numel, dtype)
        one = own.clone()
        collectives.broadcast(one, root)
        problems.expect(one, values(seed, root, numel, dtype), "broadcast", *case)
        if dtype not in MOVED_ONLY:
            two = own.clone()
            collectives.reduce(two, root)
            wanted = total(seed, range(n), numel, dtype) if rank == root else own
            problems.expect(two, wanted, "reduce", *case)
        pieces = [values(seed + 1, r, numel, dtype) for r in range(n)]
        got = torch.zeros_like(own)
        collectives.scatter(got, pieces if rank == root else None, root)
        problems.expect(got, pieces[rank], "scatter", *case)
        into = [torch.zeros_like(own) for _ in range(n)] if rank == root else None
        collectives.gather(own, into, root)
        for r, piece in enumerate(into or []):
            problems.expect(piece, values(seed, r, numel, dtype), "gather", r, *case)

    def body() -> list[str]:
        problems = Problems()
        for root in roots:
            for numel in (0, 1, world_size, 13):
                check(problems, root, numel, torch.float32)
        for dtype in [*dtypes(backend), *MOVED_ONLY]:
            check(problems, roots[-1], 5, dtype)
        return problems

    require_ranks(world_size)
    run(body, world_size=world_size, backend=backend)


def test_rooted_collectives_agree_with_torch(seed: int, backend: str, require_ranks: RequireRanks):
    def body() -> list[str]:
        problems, rank, n, root = Problems(), dist.get_rank(), dist.get_world_size(), 2
        for shape in [(5,), (2, 3)]:
            numel = 5 if shape == (5,) else 6
            own = values(seed, rank, numel).view(shape)
            for name in ("broadcast", "reduce"):
                one, two = own.clone(), own.clone()
                getattr(collectives, name)(one, root)
                getattr(dist, name)(two, root)
                if name == "broadcast" or rank == root:  # dist.reduce leaves the others undefined
                    problems.expect(one, two, name, shape)
            pieces = [values(seed + 1, r, numel).view(shape) for r in range(n)]
            one, two = torch.zeros_like(own), torch.zeros_like(own)
            collectives.scatter(one, pieces if rank == root else None, root)
            dist.scatter(two, pieces if rank == root else None, root)
            problems.expect(one, two, "scatter", shape)
            here, there = ([torch.zeros_like(own) for _ in range(n)] for _ in range(2))
            collectives.gather(own, here if rank == root else None, root)
            dist.gather(own, there if rank == root else None, root)
            problems.expect(torch.stack(here), torch.stack(there), "gather", shape)
        return problems

    require_ranks(4)
    run(body, world_size=4, backend=backend)


# ---- shards


@pytest.mark.parametrize("world_size", WORLDS)
def test_shards(world_size: int, seed: int, backend: str, require_ranks: RequireRanks):
    shapes = [(0,), (1,), (5,), (2, 3), (3, 0, 2)]

    def body() -> list[str]:
        warnings.simplefilter("ignore", FutureWarning)  # 2.13 has new names for the two built-ins
        problems, rank, n = Problems(), dist.get_rank(), dist.get_world_size()
        cases = [(shape, torch.float32) for shape in shapes]
        cases += [((3,), dtype) for dtype in dtypes(backend)]
        for (first, *rest), dtype in cases:
            shard, whole = (first, *rest), (n * first, *rest)
            numel = torch.Size(shard).numel()
            case = (tuple(shard), dtype)
            full = values(seed, rank, n * numel, dtype).view(whole)
            kept = full.clone()
            summed = total(seed, range(n), n * numel, dtype).view(whole)
            one, two = (torch.zeros(shard, dtype=dtype, device=full.device) for _ in range(2))
            collectives.reduce_scatter(one, full)
            problems.expect(one, summed[rank * first : (rank + 1) * first], "reduce_scatter", *case)
            own = values(seed, rank, numel, dtype).view(shard)
            all_of_it, builtin = torch.zeros_like(full), torch.zeros_like(full)
            collectives.all_gather(all_of_it, own)
            joined = torch.cat([values(seed, r, numel, dtype).view(shard) for r in range(n)])
            problems.expect(all_of_it, joined, "all_gather", *case)
            mixed, mixed_builtin = torch.zeros_like(full), torch.zeros_like(full)
            collectives.all_to_all(mixed, full)
            parts = [values(seed, r, n * numel, dtype).view(n, *shard)[rank] for r in range(n)]
            problems.expect(mixed, torch.cat(parts), "all_to_all", *case)
            problems.expect(full, kept, "the input is left alone", *case)
            if numel and dtype not in NOT_TORCH_GLOO:
                dist.all_gather_into_tensor(builtin, own)
                problems.expect(all_of_it, builtin, "dist.all_gather_into_tensor", *case)
                dist.all_to_all_single(mixed_builtin, full)
                problems.expect(mixed, mixed_builtin, "dist.all_to_all_single", *case)
                dist.reduce_scatter_tensor(two, full)
                problems.expect(one, two, "dist.reduce_scatter_tensor", *case)
        return problems

    require_ranks(world_size)
    run(body, world_size=world_size, backend=backend)


def test_shards_move_in_dtypes_that_cannot_be_added(
    seed: int, backend: str, require_ranks: RequireRanks
):
    def body() -> list[str]:
        problems, rank, n = Problems(), dist.get_rank(), dist.get_world_size()
        for dtype in MOVED_ONLY:
            full = torch.zeros(n * 3, dtype=dtype, device=course_lib.device())
            collectives.all_gather(full, values(seed, rank, 3, dtype))
            wanted = torch.cat([values(seed, r, 3).cpu() for r in range(n)])
            problems.expect(full.float(), wanted, "all_gather", dtype)
            mixed = torch.zeros_like(full)
            collectives.all_to_all(mixed, full)
            problems.expect(
                mixed.float(), full.float().view(n, 3)[rank].repeat(n), "all_to_all", dtype
            )
        return problems

    require_ranks(3)
    run(body, world_size=3, backend=backend)


@pytest.mark.parametrize("world_size", [3, 4])
def test_shards_in_views_and_in_shared_memory(
    world_size: int, seed: int, backend: str, require_ranks: RequireRanks
):
    def body() -> list[str]:
        problems, rank, n = Problems(), dist.get_rank(), dist.get_world_size()
        full = values(seed, rank, 6 * n).view(2 * n, 3)
        summed = total(seed, range(n), 6 * n).view(2 * n, 3)[2 * rank : 2 * rank + 2]
        joined = torch.cat([values(seed, r, 6).view(2, 3) for r in range(n)])
        parts = [values(seed, r, 6 * n).view(n, 2, 3)[rank] for r in range(n)]

        strided = torch.full((2, 6), 9.0, device=full.device)
        collectives.reduce_scatter(strided[:, ::2], full.t().contiguous().t())
        problems.expect(strided[:, ::2], summed, "reduce_scatter, strided")
        problems.expect(strided[:, 1::2], torch.full((2, 3), 9.0), "reduce_scatter, the gaps")
        tall = torch.full((2 * n, 6), 9.0, device=full.device)
        collectives.all_gather(tall[:, ::2], values(seed, rank, 6).view(2, 3).t().contiguous().t())
        problems.expect(tall[:, ::2], joined, "all_gather, strided")
        collectives.all_to_all(tall[:, ::2], full.t().contiguous().t())
        problems.expect(tall[:, ::2], torch.cat(parts), "all_to_all, strided")
        problems.expect(tall[:, 1::2], torch.full((2 * n, 3), 9.0), "the gaps")

        inside = full.clone()
        collectives.reduce_scatter(inside[2 * rank : 2 * rank + 2], inside)
        problems.expect(inside[2 * rank : 2 * rank + 2], summed, "reduce_scatter into its input")
        inside = torch.zeros_like(full)
        inside[:2] = values(seed, rank, 6).view(2, 3)
        collectives.all_gather(inside, inside[:2])
        problems.expect(inside, joined, "all_gather from its output")
        inside = torch.zeros_like(full)
        inside.view(-1)[3:9] = values(seed, rank, 6)  # across shards 0 and 1
        collectives.all_gather(inside, inside.view(-1)[3:9])
        problems.expect(inside, joined, "all_gather from between two shards of its output")
        inside = full.clone()
        collectives.all_to_all(inside, inside)
        problems.expect(inside, torch.cat(parts), "all_to_all in place")
        return problems

    require_ranks(world_size)
    run(body, world_size=world_size, backend=backend)


# ---- groups


def test_sub_groups_and_their_two_ways_of_counting(
    seed: int, backend: str, require_ranks: RequireRanks
):
    """Roots are global ranks, shards are counted in the group; a rank outside it gets a ValueError."""

    def body() -> list[str]:
        problems, rank, members = Problems(), dist.get_rank(), [1, 3]
        group = new_group(members)
        others = new_group([0, 2, 4])
        if rank not in members:
            try:
                collectives.ring_all_reduce(values(seed, rank, 3), group)
            except ValueError as error:
                if "is not in the group" not in str(error):
                    problems.append(str(error))
            else:
                problems.append("a rank outside the group was not refused")
            group, members = others, [0, 2, 4]
        place, n = members.index(rank), len(members)
        for all_reduce in ALL_REDUCES:
            tensor = values(seed, rank, 7)
            all_reduce(tensor, group)
            problems.expect(tensor, total(seed, members, 7), all_reduce.__name__)
        for root in members:
            tensor = values(seed, rank, 7)
            collectives.broadcast(tensor, root, group)
            problems.expect(tensor, values(seed, root, 7), "broadcast", root)
            tensor = values(seed, rank, 7)
            collectives.reduce(tensor, root, group)
            wanted = total(seed, members, 7) if rank == root else values(seed, rank, 7)
            problems.expect(tensor, wanted, "reduce", root)
            pieces = [values(seed, r, 4) for r in members]
            tensor = torch.zeros_like(pieces[0])
            collectives.scatter(tensor, pieces if rank == root else None, root, group)
            problems.expect(tensor, values(seed, rank, 4), "scatter", root)
            into = [torch.zeros_like(p) for p in pieces] if rank == root else None
            collectives.gather(values(seed, rank, 4), into, root, group)
            for piece, wanted in zip(into or [], pieces, strict=False):
                problems.expect(piece, wanted, "gather", root)
        whole = values(seed, rank, 4 * n)
        shard, full = torch.zeros_like(whole[:4]), torch.zeros_like(whole)
        collectives.reduce_scatter(shard, whole, group)
        problems.expect(
            shard, total(seed, members, 4 * n)[4 * place : 4 * place + 4], "reduce_scatter"
        )
        collectives.all_gather(full, values(seed, rank, 4), group)
        problems.expect(full, torch.cat([values(seed, r, 4) for r in members]), "all_gather")
        collectives.all_to_all(full, whole, group)
        parts = [values(seed, r, 4 * n).view(n, 4)[place] for r in members]
        problems.expect(full, torch.cat(parts), "all_to_all")
        collectives.barrier(group)
        return problems

    require_ranks(5)
    run(body, world_size=5, backend=backend)


@pytest.mark.parametrize(("per_node", "nodes"), [(1, 3), (3, 1), (2, 2), (2, 3), (3, 2), (4, 2)])
def test_hierarchical_all_reduce(
    per_node: int, nodes: int, seed: int, backend: str, require_ranks: RequireRanks
):
    n = per_node * nodes

    def body() -> tuple[list[str], list[torch.Tensor]]:
        problems, rank, results = Problems(), dist.get_rank(), []
        intra, inter = grid(per_node, nodes)
        for numel in (0, 1, per_node + 1, n, 29):
            tensor = values(seed, rank, numel)
            collectives.hierarchical_all_reduce(tensor, intra, inter)
            problems.expect(tensor, total(seed, range(n), numel), "elements:", numel)
        view = values(seed, rank, 24).view(4, 6)[:, ::2]
        collectives.hierarchical_all_reduce(view, intra, inter)
        problems.expect(view, total(seed, range(n), 24).view(4, 6)[:, ::2], "strided")
        for dtype in (torch.float32, torch.bfloat16):
            generator = torch.Generator().manual_seed(seed + rank)
            tensor = torch.randn(101, generator=generator).to(dtype).to(course_lib.device())
            collectives.hierarchical_all_reduce(tensor, intra, inter)
            results.append(tensor.cpu())
        return problems, results

    require_ranks(n)
    found = launch(body, world_size=n, backend=backend)
    assert not [p for problems, _ in found for p in problems]
    for _, results in found:
        assert all(torch.equal(a, b) for a, b in zip(results, found[0][1], strict=True))


def grid(per_node: int, nodes: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """This rank's node, and the ranks with its place in their nodes."""
    rank = dist.get_rank()
    intra = [new_group(list(range(k * per_node, (k + 1) * per_node))) for k in range(nodes)]
    inter = [new_group(list(range(p, per_node * nodes, per_node))) for p in range(per_node)]
    return intra[rank // per_node], inter[rank % per_node]


@pytest.mark.parametrize("world_size", WORLDS)
def test_barrier_lets_nobody_out_before_all_are_in(
    world_size: int, backend: str, require_ranks: RequireRanks
):
    def body() -> tuple[float, float]:
        collectives.barrier()
        time.sleep(0.03 * ((dist.get_rank() * 2 + 1) % world_size))
        came = time.monotonic()
        collectives.barrier()
        return came, time.monotonic()

    require_ranks(world_size)
    found = launch(body, world_size=world_size, backend=backend)
    assert max(came for came, _ in found) <= min(left for _, left in found)


# ---- what is sent


def exact_calls(numel: int) -> list[tuple[str, int, Callable[[], None]]]:
    """(algorithm, elements of its full tensor, the call) for this world, roots at the last rank."""
    rank, n = dist.get_rank(), dist.get_world_size()
    root = n - 1

    def ones(count: int) -> torch.Tensor:
        return torch.ones(count, device=course_lib.device())

    tensor, piece, full = ones(numel), ones(numel), ones(numel * n)
    pieces = [ones(numel) for _ in range(n)] if rank == root else None
    calls: list[tuple[str, int, Callable[[], None]]] = [
        (one.__name__, numel, lambda one=one: one(tensor)) for one in ALL_REDUCES
    ]
    return [
        *calls,
        ("broadcast", numel, lambda: collectives.broadcast(tensor, root)),
        ("reduce", numel, lambda: collectives.reduce(tensor, root)),
        ("scatter", numel * n, lambda: collectives.scatter(piece, pieces, root)),
        ("gather", numel * n, lambda: collectives.gather(piece, pieces, root)),
        ("reduce_scatter", numel * n, lambda: collectives.reduce_scatter(piece, full)),
        ("all_gather", numel * n, lambda: collectives.all_gather(full, piece)),
        ("all_to_all", numel * n, lambda: collectives.all_to_all(full, full.clone())),
        ("barrier", numel, lambda: collectives.barrier()),
    ]


def segments(ledger: Ledger, world_size: int) -> list[Ledger]:
    """The messages between one built-in barrier and the next."""
    cut: list[list[list]] = []
    for rank in range(world_size):
        parts: list[list] = [[]]
        for operation in ledger.operations(rank):
            parts[-1].append(operation)
            if operation.op == "barrier":
                parts[-1].pop()
                parts.append([])
        cut.append(parts[:-1])
    return [Ledger(world_size, list(part)) for part in zip(*cut, strict=True)]


@pytest.mark.parametrize("world_size", range(1, 10))
def test_bytes_and_rounds_are_those_of_the_closed_forms(
    world_size: int, seed: int, backend: str, require_ranks: RequireRanks
):
    """To the byte on every rank, for sizes that do not divide and smaller than the world."""
    some = random.Random(seed).randrange(20, 300)
    counts = [0, 1, 2, world_size, some, 8 * world_size * 9]

    def body() -> list[tuple[str, int]]:
        done = []
        for numel in counts:
            for name, elements, call in exact_calls(numel):
                call()
                dist.barrier()
                done.append((name, elements))
        return done

    require_ranks(world_size)
    found = launch(body, world_size=world_size, backend=backend, timeout=120)
    parts = segments(found.ledger, world_size)
    assert len(parts) == len(found[0])
    for (name, numel), part in zip(found[0], parts, strict=True):
        assert {one.op for one in part.operations()} <= {"send", "recv"}
        for rank in range(world_size):
            wanted = facts.exact_bytes(name, world_size, numel, 4, rank, root=world_size - 1)
            assert part.bytes_sent(rank) == wanted, (name, numel, rank)
        if numel >= 8 * world_size * 9:  # no chunk and no block is empty
            assert len(part.rounds()) == facts.rounds(name, world_size), (name, numel)


@pytest.mark.parametrize(("per_node", "nodes"), [(1, 2), (2, 1), (2, 2), (3, 2), (2, 4), (3, 3)])
def test_hierarchical_bytes_are_those_of_the_closed_form(
    per_node: int, nodes: int, seed: int, backend: str, require_ranks: RequireRanks
):
    n, numel = per_node * nodes, random.Random(seed).randrange(1, 300)

    def body() -> None:
        groups = grid(per_node, nodes)
        dist.barrier()
        collectives.hierarchical_all_reduce(torch.ones(numel, device=course_lib.device()), *groups)
        dist.barrier()

    require_ranks(n)
    _, part = segments(launch(body, world_size=n, backend=backend).ledger, n)
    for rank in range(n):
        wanted = facts.exact_bytes("hierarchical_all_reduce", n, numel, 4, rank, per_node=per_node)
        assert part.bytes_sent(rank) == wanted
        across = sum(
            one.nbytes
            for one in part.operations(rank, "send")
            if one.peer is not None and one.peer // per_node != rank // per_node
        )
        ideal = facts.hierarchical_bytes(per_node, nodes, numel * 4)[1]
        assert abs(across - ideal) <= 2 * 4 * nodes, "up to a chunk's rounding in each phase"


# ---- wrong calls


def wrong_calls() -> dict[str, tuple[Callable[[], object], type[Exception], str]]:
    """name: (call, error, part of the sentence), on two ranks."""
    one, two, three = torch.zeros(1), torch.zeros(2), torch.zeros(3)
    doubles = torch.zeros(2, dtype=torch.float64)
    expanded = torch.zeros(1).expand(4)
    windows = torch.zeros(6).as_strided((4, 3), (1, 1))
    root = dist.get_rank() == 0
    lists = [one, one] if root else None
    calls: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
        "src": (
            lambda: collectives.broadcast(two, 7),
            ValueError,
            r"src=7 is not in the group.*\[0, 1\]",
        ),
        "dst": (lambda: collectives.reduce(two, -1), ValueError, "dst=-1 is not in the group"),
        "scatter src": (lambda: collectives.scatter(one, lists, 5), ValueError, "src=5"),
        "gather dst": (lambda: collectives.gather(one, lists, 5), ValueError, "dst=5"),
        "no tensor": (lambda: collectives.ring_all_reduce([1, 2]), TypeError, "tensor is a list"),  # type: ignore[arg-type]
        "sparse": (
            lambda: collectives.broadcast(two.to_sparse(), 0),
            TypeError,
            "is a torch.sparse.* dense",
        ),
        "expanded": (
            lambda: collectives.rabenseifner_all_reduce(expanded),
            ValueError,
            "share one place",
        ),
        "windows": (lambda: collectives.ring_all_reduce(windows), ValueError, "share one place"),
        "blocks": (
            lambda: collectives.double_binary_tree_all_reduce(two, blocks=0),
            ValueError,
            "blocks=0",
        ),
        "input too long": (
            lambda: collectives.reduce_scatter(one, three),
            ValueError,
            "input has 3 .* 2 x 1",
        ),
        "does not divide": (
            lambda: collectives.reduce_scatter(two, three),
            ValueError,
            "Pad a size",
        ),
        "output too small": (
            lambda: collectives.all_gather(three, two),
            ValueError,
            "output has 3 .* 2 x 2",
        ),
        "gather dtype": (
            lambda: collectives.all_gather(doubles, one),
            ValueError,
            "output has 2 elements of torch.float64.* same dtype",
        ),
        "scatter dtype": (
            lambda: collectives.reduce_scatter(one, doubles),
            ValueError,
            "same dtype",
        ),
        "expanded output": (
            lambda: collectives.all_gather(expanded, two),
            ValueError,
            "output cannot",
        ),
        "unlike": (
            lambda: collectives.all_to_all(two, torch.zeros(4)),
            ValueError,
            "output has 2 .* 1 x 4",
        ),
        "rows": (lambda: collectives.all_to_all(three, three), ValueError, "first dimension is 3"),
        "too few": (
            lambda: collectives.scatter(one, [one] if root else None),
            ValueError,
            "has 1 tensors and should have 2",
        ),
        "no list": (
            lambda: collectives.gather(one, None if root else [one]),
            ValueError,
            "has 0 tensors and should have 2" if root else "has 1 tensors and should have 0",
        ),
        "uneven": (
            lambda: collectives.gather(one, [two, two] if root else [one]),
            ValueError,
            r"gather_list\[0\] has 2 .* 1 x 1" if root else "has 1 tensors and should have 0",
        ),
        "same groups": (
            lambda: collectives.hierarchical_all_reduce(two, dist.group.WORLD, dist.group.WORLD),
            ValueError,
            "they must share this rank alone",
        ),
    }
    if not root:  # the root refuses its list; the other rank's right call would wait for it
        calls.pop("too few")
    return calls


def test_wrong_calls_are_told_what_is_wrong_before_anything_is_sent():
    def body() -> list[str]:
        problems = []
        for name, (call, kind, sentence) in wrong_calls().items():
            try:
                call()
            except kind as error:
                if not re.search(sentence, str(error)):
                    problems.append(f"{name}: {error}")
            else:
                problems.append(f"{name}: not refused")
        return problems

    found = launch(body, world_size=2, backend="gloo")
    assert [p for problems in found for p in problems] == []
    assert not found.ledger.operations()


def test_reading_is_allowed_where_writing_is_not():
    """An expanded tensor can be sent, though nothing can be received into it."""

    def body() -> list[float]:
        expanded = torch.full((1,), float(dist.get_rank())).expand(2)
        full = torch.zeros(4)
        collectives.all_gather(full, expanded)
        mixed = torch.zeros(2)
        collectives.all_to_all(mixed, expanded)
        return [*full.tolist(), *mixed.tolist()]

    assert list(launch(body, world_size=2, backend="gloo")) == [[0, 0, 1, 1, 0, 1]] * 2


# ---- the files


FILES = sorted(
    path
    for path in Path(inspect.getfile(collectives)).parent.glob("*.py")
    if path.stem not in ("__init__", "messages")
)


def test_all_that_is_taught_is_exported_with_torch_habits():
    assert {name for path in FILES for name in public(path)} == set(collectives.__all__)
    signatures = {
        name: str(inspect.signature(getattr(collectives, name))) for name in collectives.__all__
    }
    for name, start in {
        "broadcast": "(tensor: 'Tensor', src: 'int', group:",
        "reduce_scatter": "(output: 'Tensor', input: 'Tensor', group:",
        "all_gather": "(output: 'Tensor', input: 'Tensor', group:",
        "ring_all_reduce": "(tensor: 'Tensor', group:",
        "all_to_all": "(output: 'Tensor', input: 'Tensor', group:",
        "hierarchical_all_reduce": "(tensor: 'Tensor', intra_group: 'Group', inter_group:",
    }.items():
        assert signatures[name].startswith(start)


def public(path: Path) -> list[str]:
    nodes = ast.parse(path.read_text()).body
    return [n.name for n in nodes if isinstance(n, ast.FunctionDef) and n.name[0] != "_"]
