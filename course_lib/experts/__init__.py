"""Experts: what is sent, and to whom? Begin with routing.py.

    routing.py     route: which experts a token goes to, and with which weights
    mixture.py     moe: a mixture of experts on one rank
    all_to_all.py  exchange: rows to other ranks, as many as each pair agrees on, with its backward
    parallel.py    expert_parallel_moe: experts on many ranks
    balance.py     load_balancing_loss, update_bias, and AddLoss, which gives a layer's loss to backward
    queues.py      queue, capacity: the tokens that are dropped if an expert has so many places
    nodes.py       node_limited: a token's experts on few nodes
    modules.py     MoE: the layer, with its router, on one rank or on many
    gpt.py         expert_gpt: a GPT whose MLPs are mixtures

    experts, weights = route(x @ router.T, k=2)                         # (T, k), (T, k)
    y = moe(x, experts, weights, w1, w3, w2)                            # all experts here
    y = expert_parallel_moe(x, experts, weights, w1, w3, w2, group)     # E / n of them on each of n ranks

There are T tokens, E experts, k experts per token, h numbers per token (width), f inside an expert (hidden),
and n ranks. An expert is w2 (silu(w1 x) * w3 x), with the names used in Mixtral: w1, w3 (E, f, h) and w2
(E, h, f). The folder imports torch only, and can be copied out with exports.py above it.
`course_lib.facts.experts` computes its costs.

The names are imported when they are first used, so the other names can be used while an exercise hides a
module. No module has the name of its function, because it would replace the function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exports import exports

if TYPE_CHECKING:
    from .all_to_all import exchange
    from .balance import AddLoss, load_balancing_loss, max_violation, update_bias
    from .gpt import expert_gpt
    from .mixture import moe
    from .modules import MoE
    from .nodes import node_limited
    from .parallel import expert_parallel_moe
    from .queues import capacity, queue
    from .routing import route

__getattr__, __dir__, __all__ = exports(__name__)
