"""A limit of nodes: a token's experts are on few nodes, however many experts it has.

Between nodes, a row is sent once for each node it has to reach, if the node's ranks pass it on inside. So the
number of nodes per token decides what the network carries. DeepSeek-V3 keeps this number at 4 of 8.

Source: DeepSeek-V3, 2024, section 2.1.2 (node-limited routing).
"""

from __future__ import annotations

import torch
from torch import Tensor


def node_limited(scores: Tensor, *, k: int, nodes: int, limit: int) -> Tensor:
    """The experts of each token, (T, k) int64, on `limit` nodes at most, best first.

    scores: (T, E), of which each node holds E / nodes in succession. A node counts as much as its k / limit
    best scores together. The `limit` nodes that count most are kept, and the lower of equal ones.

    Raises ValueError if nodes do not divide the experts, limit does not divide k, or k experts do not fit.
    """
    tokens, experts = scores.shape
    held, each = experts // nodes, k // limit
    if experts % nodes or k % limit or not 1 <= limit <= nodes or k > limit * held:
        raise ValueError(
            f"{k} of {experts} experts cannot be chosen on {limit} of {nodes} nodes: nodes must divide the "
            "experts, limit must divide k, and k experts must fit on limit nodes"
        )
    by_node = scores.view(tokens, nodes, held)
    worth = by_node.topk(min(each, held), -1).values.sum(-1)
    kept = worth.sort(dim=-1, descending=True, stable=True).indices[:, :limit]
    open_to = torch.zeros_like(worth, dtype=torch.bool).scatter(1, kept, True)
    reachable = by_node.where(open_to[..., None], -torch.inf).flatten(1)
    return reachable.sort(dim=-1, descending=True, stable=True).indices[:, :k]
