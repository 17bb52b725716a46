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
}
IDLE = """
class Zero1Optimizer:
    def __init__(self, params, optimizer_cls, group=None, **defaults):
        self.params = [p for p in params if p.requires_grad]
        self.group = group

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def step(self):
        row = torch.cat([torch.zeros(p.numel(), dtype=p.dtype) for p in self.params])
        dist.all_reduce(row, group=self.group)
"""
NOTHING = {
    "04_zero/zero1_optimizer": [
        IDLE,
        IDLE + "        for p in self.params:\n            p.data.add_(1)\n",
    ],
    "04_zero/zero3_unit": [
        """
class Unit:
    def __init__(self, params, *, group=None):
        self.params = params
        self.sizes = [p.untyped_storage().nbytes() for p in params]
        size = -(-sum(p.numel() for p in params) // dist.get_world_size(group))
        shard = torch.zeros(size, dtype=params[0].dtype)
        self.shard = torch.nn.Parameter(shard, params[0].requires_grad)
        self.free()

    def gather(self):
        for p, size in zip(self.params, self.sizes):
            p.untyped_storage().resize_(size)

    def free(self):
        for p in self.params:
            p.untyped_storage().resize_(0)

    def reduce(self):
        for p in self.params:
            p.grad = None
"""
    ],
    "06_tensor_parallel/column_parallel_linear": [
        """
class ColumnParallelLinear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, gather_output=False, group=None):
        super().__init__()
        whole = torch.nn.Linear(in_features, out_features, bias).weight.detach()
        rows = out_features // dist.get_world_size(group)
        self.weight = torch.nn.Parameter(whole[:1].repeat(rows, 1))

    def forward(self, x):
        return x
"""
    ],
    "06_tensor_parallel/vocab_parallel_embedding": [
        """
class VocabParallelEmbedding(torch.nn.Module):
    def __init__(self, num_embeddings, embedding_dim, group=None):
        super().__init__()
        whole = torch.nn.Embedding(num_embeddings, embedding_dim).weight.detach()
        parts = torch.arange(num_embeddings).tensor_split(dist.get_world_size(group))
        self.weight = torch.nn.Parameter(whole[:1].repeat(len(parts[dist.get_rank(group)]), 1))

    def forward(self, tokens):
        return tokens
"""
    ],
    "06_tensor_parallel/vocab_parallel_cross_entropy": [
        """
def vocab_parallel_cross_entropy(
    logits, target, vocab_size=None, ignore_index=-100, group=None
):
    dist.all_reduce(torch.zeros(target.numel(), dtype=torch.float64), group=group)
"""
    ],
    "08_context_parallel/tiled_attention": [
        """
class Busy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        busy(18)
        return torch.zeros_like(q)

    @staticmethod
    def backward(ctx, grad):
        busy(36)
        return grad * 0, *(2 * [torch.zeros(grad.shape)])


def busy(often):
    square = torch.zeros(256, 256)
    for _ in range(often):
        square @ square


def tiled_attention(q, k, v, block=256, causal=False):
    return Busy.apply(q, k, v)
"""
    ],
}


@pytest.mark.parametrize("name", ZEROS)
def test_messages_of_zeros_keep_half_at_most(name: str, seed: int) -> None:
    answer = Mutant(name, right=False, title="zeros", text=TURN + ZEROS[name])
    report, printed = judged(name, answer, seed, whole=True)
    assert report.score <= HALF, printed
    assert report.score < HALF or "Half of the points are earned all the same" in printed


@pytest.mark.parametrize(
    ("name", "text"), [(n, text) for n, texts in NOTHING.items() for text in texts]
)
def test_who_does_nothing_has_no_half_for_holding_or_sending_little(
    name: str, text: str, seed: int
) -> None:
    report, printed = judged(
        name, Mutant(name, right=False, title="nothing", text=text), seed, whole=True
    )
    assert report.score < 0.2, printed
