"""What of PyTorch a rank imports only when its code needs it, which takes it a second or two.

A rank tells which of these it has at its end, and the preloaded process imports them then, so that this
is paid once in a session and not in every rank of every launch (see `Preloaded.also_import`).
"""

import sys
from types import ModuleType

HEAVY = (
    "torch._dynamo",  # the first optimizer of a process imports it
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor",
    "torch.distributed.tensor.parallel",
    "torch.fx.experimental.symbolic_shapes",  # torch.autograd.grad with grad_outputs imports it
)


def imported() -> list[str]:
    """Those that this process has imported; one that waits for its first use (`wire`) is not."""
    return [name for name in HEAVY if type(sys.modules.get(name)) is ModuleType]
