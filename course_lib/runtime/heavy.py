"""Parts of PyTorch that a rank imports only when its code needs them, which takes a second or two.

At its end a rank reports which of these it has, and the preloaded process then imports them, so that the time
is spent once in a session instead of in every rank of every launch (see `Preloaded.also_import`).
"""

import sys
from types import ModuleType

HEAVY = (
    "torch._dynamo",  # the first optimizer of a process imports it
    "torch.distributed.fsdp",
    "torch.distributed.nn",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor",
    "torch.distributed.tensor.parallel",
    "torch.fx.experimental.symbolic_shapes",  # torch.autograd.grad with grad_outputs imports it
)


def imported() -> list[str]:
    """The parts this process has imported. A part that waits for its first use (`wire`) does not count."""
    return [name for name in HEAVY if type(sys.modules.get(name)) is ModuleType]
