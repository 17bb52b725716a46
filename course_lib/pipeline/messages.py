"""Activations and gradients on their way from stage to stage."""

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
    """What this rank's actions leave for others, and what others leave for it, by the action that made it.

    Posting never waits; `take` waits for the one message that is needed now. With gloo a send is done when
    the receiver has the message, and so long its tensor must live: a few at a time, not all of a step.
    """

    def __init__(self, group: Group, empty: Callable[[Action], Tensor]):
        """empty: a tensor of the shape and dtype of an action's output."""
        self._group, self._empty = group, empty
        self._here: dict[Action, tuple[Tensor, dist.Work | None]] = {}
        self._sent: dict[tuple[int, str], deque[tuple[Tensor, dist.Work]]] = defaultdict(deque)

    def put(self, action: Action, output: Tensor) -> None:
        """What `action` made: for a later stage of this rank to take, or to be sent by `post`."""
        self._here[action] = output, None

    def take(self, action: Action) -> Tensor:
        """What `action` made, here or elsewhere; once."""
        output, work = self._here.pop(action)
        if work is not None:
            work.wait()
        return output

    def post(self, steps: Sequence[Step]) -> None:
        """Begin to send and receive what the steps name, all in one batch."""
        tensors, operations = [], []
        for what, action, peer in steps:
            sends = what == "send"
            tensor = self._here.pop(action)[0] if sends else self._empty(action)
            tensors.append(tensor)
            call = dist.isend if sends else dist.irecv
            operations.append(dist.P2POp(call, tensor, group=self._group, group_peer=peer))
        works = dist.batch_isend_irecv(operations)
        if len(works) < len(steps):  # NCCL has one for all of them
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
