"""The mesh: coordinates, groups, and what a rank of it knows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_lib import RankError, device, launch
from course_lib.context_parallel import zigzag
from course_lib.mesh import Mesh, my_part
from course_lib.mesh.coordinates import axis_ranks, coordinates

RequireRanks = Callable[[int], None]
SIZES = [
    {"pp": 2, "dp": 2, "tp": 2},
    {"pp": 3, "dp": 2, "tp": 4},
    {"pp": 1, "dp": 5, "tp": 1},
    {"pp": 16, "dp": 8, "tp": 8},
    {"pp": 2, "dp": 2, "cp": 2, "tp": 2},
    {"tp": 7},
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_coordinates_are_the_places_in_an_array(sizes: dict[str, int]) -> None:
    grid = torch.arange(prod(sizes.values())).view(*sizes.values())
    for place in product(*map(range, sizes.values())):
        assert coordinates(int(grid[place]), sizes) == dict(zip(sizes, place, strict=True))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_ranks_of_an_axis_differ_in_it_alone(sizes: dict[str, int]) -> None:
    for rank in range(prod(sizes.values())):
        own = coordinates(rank, sizes)
        for axis in sizes:
            ranks = axis_ranks(rank, sizes, axis)
            places = [coordinates(other, sizes) for other in ranks]
            assert places == [{**own, axis: i} for i in range(sizes[axis])]


def test_a_flattened_groups_first_axis_varies_slowest() -> None:
    sizes = {"pp": 2, "dp": 2, "tp": 2}
    assert axis_ranks(5, sizes, ("pp", "dp")) == [1, 3, 5, 7]
    assert axis_ranks(5, sizes, ("dp", "pp")) == [1, 5, 3, 7]
    assert axis_ranks(5, sizes, ()) == [5]
    assert axis_ranks(6, sizes, tuple(sizes)) == list(range(8))


def test_refusals() -> None:
    sizes = {"dp": 2, "tp": 2}
    with pytest.raises(ValueError, match="no axis 'pp': its axes are dp, tp"):
        axis_ranks(0, sizes, "pp")
    with pytest.raises(ValueError, match="named twice"):
        axis_ranks(0, sizes, ("tp", "tp"))
    with pytest.raises(ValueError, match="rank 4 is outside"):
        coordinates(4, sizes)
    with pytest.raises(ValueError, match="tp=0: an axis has a whole number"):
        coordinates(0, {"dp": 2, "tp": 0})


def test_the_mesh_is_that_of_init_device_mesh(backend: str, require_ranks: RequireRanks) -> None:
    """Every axis and every flattened pair: the ranks of PyTorch's mesh, and a sum over them."""
    require_ranks(8)
    sizes = {"pp": 2, "dp": 2, "tp": 2}

    def job() -> list[tuple[Any, ...]]:
        from torch.distributed.device_mesh import init_device_mesh

        mesh = Mesh(sizes)
        theirs = init_device_mesh(device().type, (2, 2, 2), mesh_dim_names=tuple(sizes))
        found = []
        for axis in ("pp", "dp", "tp", ("pp", "dp"), ("pp", "tp"), ("dp", "tp")):
            ranks = theirs[axis].mesh.flatten().tolist()
            total = torch.tensor(1 << dist.get_rank(), device=device())
            dist.all_reduce(total, group=mesh.group(axis))
            found.append((mesh.ranks(axis), ranks, int(total), mesh.size(axis)))
        return found

    for rank in launch(job, world_size=8, backend=backend):
        for ours, theirs, total, size in rank:
            assert ours == theirs and size == len(ours)
            assert total == sum(1 << other for other in ours)


def test_axes_with_the_same_ranks_share_a_group(backend: str, require_ranks: RequireRanks) -> None:
    require_ranks(4)

    def job() -> list[bool]:
        mesh = Mesh({"dp": 2, "cp": 1, "tp": 2})
        same = mesh.group(("dp", "cp")) is mesh.group("dp")
        return [same, mesh.group("pp") is mesh.group("cp"), mesh.size("pp") == 1]

    assert launch(job, world_size=4, backend=backend) == [[True] * 3] * 4


def test_sizes_have_to_multiply_to_the_number_of_ranks(
    backend: str, require_ranks: RequireRanks
) -> None:
    require_ranks(3)
    with pytest.raises(RankError, match="has 4 places and there are 3 ranks"):
        launch(lambda: Mesh({"dp": 2, "tp": 2}).sizes, world_size=3, backend=backend)


def test_names_that_a_step_does_not_know_are_refused_with_those_it_knows(
    backend: str, require_ranks: RequireRanks
) -> None:
    """Over "sp" or "ddp" nothing would be summed, and the run would look like one that trains."""
    require_ranks(2)

    def job() -> list[str]:
        said = []
        mesh = Mesh({"dp": 2})
        for ask in (
            lambda: Mesh({"ddp": 2}),
            lambda: Mesh({"dp": 2, "sp": 1}),
            lambda: mesh.size("data"),
            lambda: mesh.size(("dp", "sp")),
            lambda: mesh.group("DP"),
            lambda: mesh.ranks(("pp", "data")),
        ):
            with pytest.raises(ValueError, match="the axes are pp, dp, ep, cp, tp") as error:
                ask()
            said.append(str(error.value).split()[0])
        assert mesh.size("cp") == 1 and mesh.ranks(("pp", "tp")) == [dist.get_rank()]
        return said

    wanted = ["'ddp'", "'sp'", "'data'", "'sp'", "'DP'", "'data'"]
    assert list(launch(job, world_size=2, backend=backend)) == [wanted] * 2


# ---- which rows and places a rank reads


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_parts_cover_the_sheet_once(sizes: dict[str, int]) -> None:
    """Over dp x cp each cell is read once; ranks of tp and pp read the same cells."""
    batch_size, seq = 11, 21
    read: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for rank in range(prod(sizes.values())):
        place = coordinates(rank, sizes)
        rows, spans = my_part(rank, sizes, batch_size, seq)
        cells = {(row, at) for row in rows for span in spans for at in span}
        replica = place.get("dp", 0), place.get("cp", 0)
        assert read.setdefault(replica, cells) == cells
    assert sum(map(len, read.values())) == batch_size * seq
    assert set().union(*read.values()) == set(product(range(batch_size), range(seq)))


def test_places_are_those_of_the_zigzag() -> None:
    for n, seq in product((1, 2, 3, 4), (7, 16, 24)):
        dealt = zigzag(seq, n)
        for rank in range(n):
            spans = my_part(rank, {"cp": n}, 1, seq)[1]
            wanted = [place for span in dealt[rank] for place in span]
            assert [place for span in spans for place in span] == wanted
