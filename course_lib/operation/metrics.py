"""The numbers of a dashboard: the loss of the batch, tokens per second, MFU.

Each of them can go wrong in its own way. A rank's loss covers only its own rows. If ranks have unequally many
targets, the mean of the ranks' means differs from the batch's loss. A step lasts as long as its slowest rank.
If you divide the tokens since the start by the seconds since then, you hide that a run has become slow. And
FLOPs carried out a second time, for recomputation, do not belong to the model.

Cost of `step_metrics`: two all-reduces, of 16 bytes and of 8.

Source of MFU: Chowdhery et al., PaLM, 2022, appendix B (46.2 % from 238.3K tokens/s on 6,144 TPU v4).
"""

from __future__ import annotations

from math import nan

import torch
import torch.distributed as dist

Group = dist.ProcessGroup | None


def step_metrics(
    loss_sum: float, tokens: int, seconds: float, group: Group = None
) -> dict[str, float]:
    """The step's "loss", "tokens_per_second" and "seconds", the same on every rank of `group`.

    loss_sum: over this rank's targets; tokens: their number, which can be 0; seconds: this rank's. The loss
    is the mean over all targets (nan without any), and the seconds are the slowest rank's.
    """
    sums = torch.tensor([loss_sum, tokens], dtype=torch.float64)
    slowest = torch.tensor(seconds, dtype=torch.float64)
    if dist.is_initialized():
        where = "cuda" if "nccl" in dist.get_backend(group) else "cpu"
        sums, slowest = sums.to(where), slowest.to(where)
        dist.all_reduce(sums, group=group)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    (total, count), seconds = sums.tolist(), slowest.item()
    loss = total / count if count else nan
    return {"loss": loss, "tokens_per_second": count / seconds, "seconds": seconds}


def mfu(flops_per_step: float, seconds: float, gpus: int, peak: float) -> float:
    """The model's FLOPs of a step, as a share of the FLOPs the GPUs could have carried out in that time.

    flops_per_step: of the model, forward and backward, as in `course_lib.facts.transformer_flops`. It
    excludes recomputation, which would make it HFU. peak: FLOP/s of one GPU, dense, in the dtype of the
    matrices.
    """
    return flops_per_step / (seconds * gpus * peak)
