"""One bit per element: signs with a scale, and Adam built on them.

Signs keep the direction of each element, and a single magnitude, the mean, for all of them. They take 32
times fewer bytes than float32, and with error feedback SGD with momentum still converges. But Adam does not.
It divides by the root of the variance, which is not linear in the gradient, so the errors do not cancel.
1-bit Adam makes use of the fact that the variance soon settles, as follows:

    warm-up      Adam as usual, with gradients averaged in full precision
    afterwards   the variance is frozen; each rank adds its own gradient to the momentum, and the
                 *momentum* is averaged, as signs

Signs cannot be added on the way, so rank r is the server for the r-th shard. It gets all ranks' signs of
this shard (all-to-all), averages them, takes signs again, and hands them out (all-gather). Both sides keep
the errors of their signs, the worker for the whole tensor and the server for its shard.

The code differs from the paper in three points. Each shard of each tensor has its own scale, the mean
magnitude, so that signs never enlarge the error (Karimireddy et al. 2019). Momentum and variance keep Adam's
bias correction, so that every step of the warm-up equals torch.optim.Adam. And an element without variance
is not changed, because no scale for it was ever seen.

Sources: Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
Speed", ICML 2021, algorithm 1; Seide et al., "1-Bit Stochastic Gradient Descent and its Application to
Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014, for signs with error feedback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from .common import Group, Tensors, all_gather, check_pair, keep, mean_over_ranks, rank_and_size

SCALE_BYTES = 4


class OneBitAdam(torch.optim.Optimizer):
    """Adam that averages gradients over the ranks itself, with one bit per element after `warmup_steps`.

    params: as for any optimizer; float32 or float64, of one device; the same values on every rank. Their
        `.grad` holds this rank's own gradient, not the average, and is not changed; None counts as zeros.
    lr, betas, eps: as in Adam.
    warmup_steps: steps in full precision, at least 1; the paper takes 15 to 25 % of the run. An element
        without a gradient in all of them is not changed afterwards.

    In the warm-up, a step sends 2 (N-1)/N times the parameters' bytes per rank. Afterwards, it sends
    2 (N-1) (s + 4) bytes for each tensor, with s = ceil(size / 8N). Memory: Adam's two states and the
    worker's error, each as large as the parameter, and the server's error, which is 1/N as large. The errors
    differ between ranks, so each rank saves its own state_dict, and equally many ranks have to load them.
    All ranks end with the same bits.

    Raises ValueError for arguments and parameters that do not fit.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        warmup_steps: int,
        group: Group = None,
    ):
        if isinstance(warmup_steps, bool) or not isinstance(warmup_steps, int) or warmup_steps < 1:
            raise ValueError(
                f"warmup_steps={warmup_steps!r}: at least one step in full precision must come first, "
                "since the variance that it leaves is used ever after"
            )
        if not (lr >= 0 and eps >= 0 and all(0 <= beta < 1 for beta in betas)):
            raise ValueError(
                f"lr={lr}, betas={betas}, eps={eps}: lr and eps are 0 or more, betas in [0, 1)"
            )
        self.group, self.warmup_steps = group, warmup_steps
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        _check_parameters([p for group in self.param_groups for p in group["params"]])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of all parameters that require a gradient; returns what `closure` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        places = [(p, group) for group in self.param_groups for p in group["params"]]
        places = [(p, group) for p, group in places if p.requires_grad]
        if not places:
            return loss
        states = [self._state(p) for p, _ in places]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p, _ in places]
        for state in states:
            state["step"] += 1
        if states[0]["step"] <= self.warmup_steps:
            self._full_precision(places, states, gradients)
        else:
            self._one_bit(places, states, gradients)
        for (p, group), state in zip(places, states, strict=True):
            beta1, beta2 = group["betas"]
            variance = state["exp_avg_sq"] / (1 - beta2 ** min(state["step"], self.warmup_steps))
            lr = group["lr"] / (1 - beta1 ** state["step"])
            p.addcdiv_(state["exp_avg"], variance.sqrt_().add_(group["eps"]), value=-lr)
        return loss

    def _full_precision(self, places: list, states: list[dict], gradients: Tensors) -> None:
        means = mean_over_ranks(gradients, self.group)
        for (_, group), state, mean in zip(places, states, means, strict=True):
            beta1, beta2 = group["betas"]
            state["exp_avg"].lerp_(mean, 1 - beta1)
            state["exp_avg_sq"].mul_(beta2).addcmul_(mean, mean, value=1 - beta2)

    def _one_bit(self, places: list, states: list[dict], gradients: Tensors) -> None:
        for (_, group), state, gradient in zip(places, states, gradients, strict=True):
            state["exp_avg"].lerp_(gradient, 1 - group["betas"][0])
        sign_all_reduce(
            [state["exp_avg"] for state in states],
            [state["error"] for state in states],
            [state["server_error"] for state in states],
            group=self.group,
        )
        for state in states:
            unknown = state["exp_avg_sq"] == 0
            state["exp_avg"].masked_fill_(unknown, 0)
            state["error"].masked_fill_(unknown, 0)

    def _state(self, p: torch.Tensor) -> dict:
        state = self.state[p]
        if not state:
            state["step"] = 0
            for name in ("exp_avg", "exp_avg_sq", "error"):
                state[name] = torch.zeros_like(p, memory_format=torch.contiguous_format)
            state["server_error"] = p.new_zeros(shard_size(p.numel(), rank_and_size(self.group)[1]))
        return state


@torch.no_grad()
def sign_all_reduce(
    tensors: Tensors, errors: Tensors, server_errors: Tensors, group: Group = None
) -> None:
    """Replace each tensor by the mean over the ranks of `tensor + error`, sent as signs with a scale.

    tensors: any shapes, floating point, of one device; the same shapes on every rank. Overwritten.
    errors: the sums of this rank's errors so far, one tensor of the same shape for each tensor. Overwritten.
    server_errors: the same for the shard this rank serves. For each tensor, this is a flat tensor of
        `shard_size(tensor.numel(), world_size)` elements. Overwritten.
    Sends 2 (N-1) (s + 4) bytes per rank for each tensor, with s = ceil(size / 8N), in one all-to-all and one
    all-gather for all tensors together, scales included. All ranks end with the same bits.

    Raises ValueError if errors do not fit their tensors; TypeError if an argument is not a tensor.
    """
    rank, n = rank_and_size(group)
    _check_errors(tensors, errors, server_errors, n)
    if not tensors:
        return
    real = [_real(t, n) for t in tensors]
    asked = [_rows(t + e, n) for t, e in zip(tensors, errors, strict=True)]
    sent = _pack(asked, real)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)

    mine = [mask[rank : rank + 1] for mask in real]
    arrived = _unpack(received, [mask.expand(n, -1) for mask in mine], asked)
    means = [
        signs.mean(0, keepdim=True) + e for signs, e in zip(arrived, server_errors, strict=True)
    ]
    own = _pack(means, mine)
    everything = all_gather(own, group)

    said, agreed = _unpack(sent, real, asked), _unpack(own, mine, asked)
    results = _unpack(everything, real, asked)
    for i, tensor in enumerate(tensors):
        keep(errors[i], (asked[i] - said[i]).view(-1)[: tensor.numel()])
        keep(server_errors[i], means[i] - agreed[i])
        tensor.copy_(results[i].view(-1)[: tensor.numel()].view(tensor.shape))


def shard_size(numel: int, n: int) -> int:
    """Elements of each rank's shard: ceil(numel / n), rounded up to whole bytes of signs."""
    return 8 * -(-numel // (8 * n))


def _pack(rows: Tensors, real: Tensors) -> torch.Tensor:
    """(n, bytes): for each tensor the signs of its (n, shard), eight to a byte, and a float32 scale.

    real: True where the rows hold elements of the tensor, False for padding.
    """
    parts = []
    for row, mask in zip(rows, real, strict=True):
        scale = row.abs().sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        bits = (row >= 0).view(len(row), -1, 8).to(torch.uint8)
        packed = (bits << _eight(row)).sum(-1, dtype=torch.uint8)
        parts += [packed, scale.float().view(torch.uint8)]
    return torch.cat(parts, dim=1)


def _unpack(packed: torch.Tensor, real: Tensors, like: Tensors) -> list[torch.Tensor]:
    """For each tensor (n, shard) of plus or minus its scale, zero for padding."""
    rows = []
    widths = [mask.shape[1] // 8 + SCALE_BYTES for mask in real]
    for part, mask, model in zip(packed.split(widths, dim=1), real, like, strict=True):
        bits = part[:, :-SCALE_BYTES].unsqueeze(-1) >> _eight(part) & 1
        scale = (
            part[:, -SCALE_BYTES:]
            .clone(memory_format=torch.contiguous_format)
            .view(torch.float32)
            .to(model.dtype)
        )
        rows.append(torch.where(bits.flatten(1).bool(), scale, -scale) * mask)
    return rows


def _eight(like: torch.Tensor) -> torch.Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)


def _rows(tensor: torch.Tensor, n: int) -> torch.Tensor:
    """(n, shard): the elements, shard after shard, with zeros at the end."""
    shard = shard_size(tensor.numel(), n)
    return F.pad(tensor.reshape(-1), (0, n * shard - tensor.numel())).view(n, shard)


def _real(tensor: torch.Tensor, n: int) -> torch.Tensor:
    """(n, shard): True where `_rows` holds elements, False for padding."""
    shard = shard_size(tensor.numel(), n)
    return (torch.arange(n * shard, device=tensor.device) < tensor.numel()).view(n, shard)


def _check_parameters(params: Tensors) -> None:
    kinds = {(p.dtype, p.device) for p in params}
    wrong = [dtype for dtype, _ in kinds if dtype not in (torch.float32, torch.float64)]
    if len(kinds) > 1 or wrong:
        raise ValueError(
            f"the parameters are {sorted(f'{d} on {where}' for d, where in kinds)}: they must share one "
            "device and be all float32 or all float64. Keep a float32 copy of narrower ones, or make one "
            "OneBitAdam for each kind."
        )


def _check_errors(tensors: Tensors, errors: Tensors, server_errors: Tensors, n: int) -> None:
    for tensor, error, server in zip(tensors, errors, server_errors, strict=True):
        check_pair(tensor, error, ("a tensor", "its error"))
        if server.shape != (shard_size(tensor.numel(), n),):
            raise ValueError(
                f"a server error is {tuple(server.shape)}, but {n} ranks serve shards of "
                f"{shard_size(tensor.numel(), n)} elements of a tensor of {tensor.numel()}: make it once, "
                "with tensor.new_zeros(shard_size(tensor.numel(), world_size))"
            )
