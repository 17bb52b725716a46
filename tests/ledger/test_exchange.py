"""An all-to-all with unequal parts is booked by them, and each two ranks agree on theirs."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_lib import RankError, device, launch
from course_lib.ledger.exchange import Exchange, parts

# [sender][receiver]: rows
ROWS = {
    2: [[5, 3], [0, 2]],
    3: [[1, 4, 0], [0, 0, 0], [7, 2, 3]],
    4: [[2, 3, 1, 0], [0, 0, 6, 2], [5, 1, 1, 1], [0, 0, 0, 4]],
}
WIDTH = 6


def exchange(rows: list[list[int]], group: Any = None) -> list[float]:
    """Each rank's rows hold its number; returns the first element of each row that came."""
    rank = dist.get_rank(group)
    send, receive = rows[rank], [row[rank] for row in rows]
    x = torch.full((sum(send), WIDTH), float(rank), dtype=torch.float64, device=device())
    y = x.new_full((sum(receive), WIDTH), -1.0)
    dist.all_to_all_single(y, x, receive, send, group=group)
    return y[:, 0].tolist()


@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_part_is_booked_where_it_goes(n: int, backend: str) -> None:
    rows, each = ROWS[n], WIDTH * 8
    run = launch(exchange, rows, world_size=n, backend=backend)
    for rank, came in enumerate(run):
        assert came == [float(k) for k in range(n) for _ in range(rows[k][rank])]
        others = sum(rows[rank]) - rows[rank][rank]
        assert run.ledger.bytes_sent(rank) == others * each
        (operation,) = run.ledger.operations(rank)
        assert operation.parts == tuple(count * each for count in rows[rank])
    matrix = [[0 if a == b else rows[a][b] * each for b in range(n)] for a in range(n)]
    assert run.ledger.matrix().tolist() == matrix


def test_a_sub_group_and_equal_parts(cpu_backend: str) -> None:
    def program() -> None:
        pair = dist.new_group([1, 3])
        if dist.get_rank() in (1, 3):
            exchange(ROWS[2], pair)
            dist.all_to_all_single(torch.empty(6), torch.ones(6), group=pair)

    run = launch(program, world_size=4, backend=cpu_backend)
    each = WIDTH * 8
    assert [run.ledger.bytes_sent(rank) for rank in range(4)] == [0, 3 * each + 12, 0, 12]
    assert run.ledger.matrix()[1].tolist() == [0, 0, 0, 3 * each + 12]


def test_one_rank_sends_nothing(cpu_backend: str) -> None:
    run = launch(exchange, [[4]], world_size=1, backend=cpu_backend)
    assert run[0] == [0.0] * 4 and run.ledger.bytes_sent(0) == 0


@pytest.mark.parametrize(
    ("more", "expects"), [(-2, "2 rows (96 bytes)"), (1, "5 rows (240 bytes)")]
)
def test_what_one_rank_sends_the_other_expects(more: int, expects: str, backend: str) -> None:
    """gloo ends the process in the first case, and leaves garbage in the second."""

    def program() -> None:
        rank, rows = dist.get_rank(), [[2, 3], [4, 1]]
        receive = [row[rank] for row in rows]
        receive[1] += more if rank == 0 else 0
        x = torch.ones(sum(rows[rank]), WIDTH, dtype=torch.float64, device=device())
        y = x.new_empty(sum(receive), WIDTH)
        dist.all_to_all_single(y, x, receive, rows[rank])

    says = f"rank 1 sends 4 rows (192 bytes) to rank 0, which expects {expects} from it."
    with pytest.raises(RankError, match=re.escape(says)):
        launch(program, world_size=2, backend=backend)


def test_rows_that_no_split_sizes_cut_are_told_as_a_fraction(cpu_backend: str) -> None:
    """Three rows between two ranks are one and a half each; as whole numbers both ends would look equal."""

    def program() -> None:
        rows = 3 if dist.get_rank() else 2
        dist.all_to_all_single(torch.empty(rows, 2), torch.ones(rows, 2))

    says = r"sends 1/2 of 3 rows \(12 bytes\)|expects 1/2 of 3 rows \(12 bytes\)"
    with pytest.raises(RankError, match=says):
        launch(program, world_size=2, backend=cpu_backend)


def test_rows_of_another_width_are_told(cpu_backend: str) -> None:
    def program() -> None:
        dist.all_to_all_single(torch.empty(2), torch.ones(2, WIDTH))

    with pytest.raises(RankError, match="The rows of the two ends differ in size"):
        launch(program, world_size=2, backend=cpu_backend)


def test_a_tensor_without_rows_is_told(cpu_backend: str) -> None:
    """torch compares the sizes with the rows only if there are any."""

    def program() -> None:
        sizes = [1, 1]
        rows = 2 if dist.get_rank() else 0
        dist.all_to_all_single(torch.empty(rows, WIDTH), torch.ones(2, WIDTH), sizes, sizes)

    with pytest.raises(RankError, match="holds no elements, although its split sizes ask for rows"):
        launch(program, world_size=2, backend=cpu_backend)


def test_rows_of_another_dtype_differ(cpu_backend: str) -> None:
    def program() -> None:
        kind = torch.float32 if dist.get_rank() else torch.float64
        dist.all_to_all_single(torch.empty(4, dtype=kind), torch.ones(4, dtype=kind))

    with pytest.raises(RankError, match=r"2 rows \(\d+ bytes\).* expects 2 rows \(\d+ bytes\)"):
        launch(program, world_size=2, backend=cpu_backend)


@pytest.mark.parametrize("of_output", [False, True])
def test_each_rank_of_the_group_has_a_split_size(of_output: bool, cpu_backend: str) -> None:
    """As where the group is forgotten: the lists are those of two ranks, and the world has three."""

    def program() -> None:
        x, two = torch.ones(3, WIDTH), [1, 2]
        splits = (two, [1, 1, 1]) if of_output else ([1, 1, 1], two)
        dist.all_to_all_single(torch.empty_like(x), x, *splits)

    with pytest.raises(RankError, match="here are 2, and the group has 3 ranks"):
        launch(program, world_size=3, backend=cpu_backend)


def test_lists_of_tensors() -> None:
    tensors = [torch.zeros(3), torch.zeros(0), torch.zeros(2, 2)]
    made = parts(tensors, [], 3)
    assert [part.nbytes for part in made] == [12, 0, 16]
    assert str(made[0]) == "3 elements (12 bytes)"
    both = Exchange(made, made)
    assert both.bytes_sent(0) == 16 and both.carried(0) == 16 * 3 / 2


def test_rows_without_elements_and_a_scalar_row() -> None:
    assert [part.nbytes for part in parts(torch.zeros(0, 5), [0, 0], 2)] == [0, 0]
    assert [str(part) for part in parts(torch.zeros(2), [], 2)] == ["1 row (4 bytes)"] * 2
