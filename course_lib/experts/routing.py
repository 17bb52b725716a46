"""Routing: the k experts a token goes to, and the weights with which their outputs are added.

A router is one matrix (E, h), and a token's scores are its products with each expert's row. The k experts
with the largest probabilities are chosen, but the choice itself has no gradient. The router learns only
through the weights, which are the probabilities of the chosen experts, divided by their sum.

    logits (T, E)  ->  probabilities (T, E)  ->  experts (T, k), weights (T, k)

With k = 1, this quotient would be 1 whatever the router says, and its gradient 0, so the router would never
learn. This is why a single expert is weighted by its probability itself.

A bias (`balance.update_bias`) makes an expert more or less likely to be chosen, but it weights no output.

Sources: Shazeer et al., Outrageously Large Neural Networks, 2017 (the gate); Fedus, Zoph, Shazeer, Switch
Transformers, 2021, section 2.1 (k = 1); Jiang et al., Mixtral of Experts, 2024, section 2.1 (softmax over the
k, which is the same quotient); Wang et al., Auxiliary-Loss-Free Load Balancing, 2024 (the bias).
"""

from __future__ import annotations

from torch import Tensor


def route(logits: Tensor, bias: Tensor | None = None, *, k: int) -> tuple[Tensor, Tensor]:
    """(experts, weights) of each token: (T, k) int64, and (T, k) in the dtype of `logits`.

    logits: (T, E). bias: (E,), added to the probabilities only for the choice, without a gradient. Column 0
    of `experts` is the expert with the largest probability + bias, column 1 is the next, and of equal ones
    the lower comes first. `weights` has the same order, and sums to 1 if k > 1.

    Raises ValueError for other shapes, and unless 1 <= k <= E.
    """
    check_router(logits, bias, k)
    probabilities = logits.softmax(-1)
    scores = probabilities.detach() if bias is None else probabilities.detach() + bias
    experts = scores.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    weights = probabilities.gather(1, experts)
    return experts, weights / weights.sum(-1, keepdim=True) if k > 1 else weights


def check_router(logits: Tensor, bias: Tensor | None, k: int) -> None:
    if logits.dim() != 2:
        raise ValueError(f"logits must be (tokens, experts), not {tuple(logits.shape)}")
    experts = logits.shape[1]
    if bias is not None and bias.shape != (experts,):
        raise ValueError(
            f"bias must be ({experts},), a number for each expert, not {tuple(bias.shape)}"
        )
    if not 1 <= k <= experts:
        raise ValueError(f"k={k}: a token goes to one expert at least, and to {experts} at most")
