"""Messages: activations and gradients on their way from stage to stage."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import Tensor

from .actions import Action
from .plan import Step
from .shared import Group

AT_ONCE = 2  # messages of a kind that a stage has under way before it waits for the oldest


class Messages:
    """The outputs that this rank's actions send and receive, by the action that made them.

    Posting never waits; `take` waits only for the message that is needed now. With gloo, a send is done when
    the receiver has the message, and until then its tensor must be kept, so only a few messages of a step are
    under way at a time.
    """

    def __init__(self, group: Group, empty: Callable[[Action], Tensor]):
        """empty: a tensor of the shape and dtype of an action's output."""
        self._group, self._empty = group, empty
        self._here: dict[Action, tuple[Tensor, dist.Work | None]] = {}
        self._sent: dict[tuple[int, str], deque[tuple[Tensor, dist.Work]]] = defaultdict(deque)

    def put(self, action: Action, output: Tensor) -> None:
        """Keep the output of `action`, until a later stage of this rank takes it or `post` sends it."""
        self._here[action] = output, None

    def take(self, action: Action) -> Tensor:
        """The output of `action`, made on this rank or another; it can be taken once."""
        output, work = self._here.pop(action)
        if work is not None:
            work.wait()
        return output

    def post(self, steps: Sequence[Step]) -> None:
        """Begin the sends and receives of these steps, all in one batch."""
        tensors, operations = [], []
        for what, action, peer in steps:
            sends = what == "send"
            tensor = self._here.pop(action)[0] if sends else self._empty(action)
            tensors.append(tensor)
            call = dist.isend if sends else dist.irecv
            operations.append(dist.P2POp(call, tensor, group=self._group, group_peer=peer))
        works = dist.batch_isend_irecv(operations)
        if len(works) < len(steps):  # NCCL returns one handle for all of them
            works = works * len(steps)
        for (what, action, _), tensor, work in zip(steps, tensors, works, strict=True):
            if what == "receive":
                self._here[action] = tensor, work
            else:
                self._sent[action.stage, action.kind].append((tensor, work))

    def settle(self, left: int = AT_ONCE) -> None:
        """Wait until no more than `left` messages of each stage and kind are under way."""
        for sent in self._sent.values():
            while len(sent) > left:
                sent.popleft()[1].wait()
