"""Talk less often: H steps on each rank separately, then one outer step of all ranks (DiLoCo).

Data parallelism sends the gradients in every step. Here each rank takes H steps with its own optimizer, so
its parameters drift away from those of the other ranks. Then the ranks average how far they have moved. The
movement, start - end, is the *outer gradient*. It points up the loss like a gradient, so an optimizer can
take it. Here this is SGD with Nesterov momentum. Its result, which is the same on all ranks, is the start of
the next period.

    start                theta                                    common
    H inner steps        theta_r = the rank's own end             apart
    outer gradient       g = mean over r of (theta - theta_r)     an all-reduce
    outer step           m = mu m + g
                         theta = theta - eta (g + mu m)           common again

With eta = 1 and mu = 0 the outer step is the average of the ends (local SGD). With H = 1 and plain SGD inside
it is data parallelism, because start - end is the learning rate times the gradient.

The movements of all ranks have equal weight. So the loss is the mean over all targets only if the ranks'
batches have equally many targets.

Cost: 2 (N-1)/N P elements every H steps, 1/H of data parallelism's bytes, in one all-reduce. Memory: two more
copies of the trained parameters, the start and m, and a third while the outer step is taken.

Whether the loss keeps up is another question. It depends on H, eta, mu and the length of the run, and short
runs lose (see notebook 12, section 15).

Sources: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023, algorithm
1 (eta 0.7, mu 0.9, H = 500); Stich, Local SGD Converges Fast and Communicates Little, 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

Group = dist.ProcessGroup | None


def local_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Any],
    steps_between: int,
    outer_lr: float,
    outer_momentum: float,
    group: Group = None,
) -> None:
    """Train `model` in place: a step on each of `batches`, and an outer step after every `steps_between`.

    model: `model(batch)` is the mean loss of a batch; its parameters are the same on all ranks of `group`,
        before and after the call, and of one dtype. Frozen ones are not sent. Each rank keeps its buffers.
    optimizer: this rank's, for the inner steps; its state is neither sent nor reset.
    batches: this rank's, equally many on all ranks. The last period is shorter if `steps_between` does not
        divide their number, and is also sent.
    outer_lr, outer_momentum: for SGD with Nesterov momentum.
    Sends one all-reduce of the trained parameters in each period, ceil(len(batches) / steps_between) in all.
    ValueError if `steps_between` is less than 1, or `outer_momentum` not in [0, 1).
    """
    if steps_between < 1:
        raise ValueError(
            f"steps_between is the number of inner steps, 1 or more, not {steps_between}"
        )
    if not 0 <= outer_momentum < 1:
        raise ValueError(f"outer_momentum is in [0, 1), not {outer_momentum}")
    ranks = dist.get_world_size(group)
    trained = [p for p in model.parameters() if p.requires_grad]
    start = parameters_to_vector(trained).detach()  # a copy
    momentum = torch.zeros_like(start)
    for step, batch in enumerate(batches, start=1):
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
        if step % steps_between == 0 or step == len(batches):
            gradient = start - parameters_to_vector(trained).detach()
            dist.all_reduce(gradient, group=group)
            gradient /= ranks
            momentum = outer_momentum * momentum + gradient
            start -= outer_lr * (gradient + outer_momentum * momentum)
            # a copy, because the parameters become views of it, which the inner steps change
            vector_to_parameters(start.clone(), trained)
