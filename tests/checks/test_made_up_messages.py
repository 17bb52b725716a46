"""Answers that send what is due and compute nothing: they keep what the messages are worth, and no more.

A check sees how many bytes go where, and not what is in them (see SECURITY.md).
"""

from __future__ import annotations

import pytest

from autograder.sample.mutants import Mutant
from course_lib.checks.judge.conclude import HALF
from tests.checks.test_mutants import judged

# Each needs `turn`: zeros as large as `piece` go once to the next rank of the group.
TURN = """
def turn(piece, group, rounds):
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    n, rank = len(ranks), dist.get_rank(group)
    nothing, came = torch.zeros_like(piece), torch.empty_like(piece)
    for _ in range(rounds if piece.numel() else 0):
        sending = dist.isend(nothing, ranks[(rank + 1) % n], group)
        dist.recv(came, ranks[(rank - 1) % n], group)
        sending.wait()
"""
ZEROS = {
    "02_collectives/reduce_scatter": """
def reduce_scatter(output, input, group=None):
    turn(output, group, dist.get_world_size(group) - 1)
    output.zero_()
""",
    "02_collectives/all_gather": """
def all_gather(output, input, group=None):
    turn(input, group, dist.get_world_size(group) - 1)
    output.zero_()
""",
    "02_collectives/ring_all_reduce": """
def ring_all_reduce(tensor, group=None):
    n = dist.get_world_size(group)
    turn(tensor.flatten()[: tensor.numel() // n], group, 2 * n - 2)
    tensor.zero_()
""",
    "02_collectives/all_to_all": """
def all_to_all(output, input, group=None):
    n = dist.get_world_size(group)
    turn(input.chunk(n)[0].contiguous(), group, n - 1)
    output.zero_()
""",
    "04_zero/zero1_optimizer": """
class Zero1Optimizer:
    def __init__(self, params, optimizer_cls, group=None, **defaults):
        self.params = [p for p in params if p.requires_grad]
        self.group = group

    def step(self):
        row = torch.cat([torch.zeros(p.numel(), dtype=p.dtype) for p in self.params])
        dist.all_reduce(row, group=self.group)

    def zero_grad(self):
        for p in self.params:
            p.grad = None
""",
    "04_zero/zero3_unit": """
class Unit:
    def __init__(self, params, *, group=None):
        self.params, self.group = params, group
        self.sizes = [p.untyped_storage().nbytes() for p in params]
        n = dist.get_world_size(group)
        total = sum(p.numel() for p in params)
        self.shard = torch.nn.Parameter(
            torch.zeros(-(-total // n), dtype=params[0].dtype), params[0].requires_grad
        )
        self.free()

    def gather(self):
        turn(self.shard.detach(), self.group, dist.get_world_size(self.group) - 1)
        for p, size in zip(self.params, self.sizes):
            p.untyped_storage().resize_(size)

    def free(self):
        for p in self.params:
            p.untyped_storage().resize_(0)

    def reduce(self):
        turn(self.shard.detach(), self.group, dist.get_world_size(self.group) - 1)
        self.shard.grad = torch.zeros_like(self.shard)
        for p in self.params:
            p.grad = None
""",
}


@pytest.mark.parametrize("name", ZEROS)
def test_messages_of_zeros_keep_half_at_most(name: str, seed: int) -> None:
    answer = Mutant(name, right=False, title="zeros", text=TURN + ZEROS[name])
    report, printed = judged(name, answer, seed, whole=True)
    assert report.score <= HALF, printed
    assert report.score < HALF or "Half of the points are earned all the same" in printed


def test_an_optimizer_that_changes_nothing_has_no_half_for_what_it_does_not_hold(seed: int) -> None:
    name = "04_zero/zero1_optimizer"
    answer = Mutant(name, right=False, title="zeros", text=TURN + ZEROS[name])
    report, printed = judged(name, answer, seed, whole=True)
    assert report.score < 0.1, printed
