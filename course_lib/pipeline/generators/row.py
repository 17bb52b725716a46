"""One rank's list of actions while it is being written."""

from __future__ import annotations

from collections import Counter, deque

from ..actions import Action, Pair


class Row:
    """It counts microbatches, so that the passes of one kind on a stage take them in order.

    microbatches: the microbatches of each stage of the rank, in order. A pass after the last of them is left
    out, so a schedule for many microbatches also serves for few.
    """

    def __init__(self, microbatches: dict[int, range]):
        self.actions: list[Action | Pair] = []
        self._microbatches = microbatches
        self._next: Counter[tuple[int, str]] = Counter()
        self._awaiting_weight: deque[Action] = deque()

    def do(self, kind: str, *stages: int) -> None:
        """Add one action of this kind on each of the stages, in this order."""
        for stage in stages:
            self.actions += self._take(stage, kind)

    def pair(self, forward: int, backward: int) -> None:
        """Add a forward of one stage overlapped with a backward of another."""
        forwards, backwards = self._take(forward, "F"), self._take(backward, "B")
        if forwards and backwards:
            self.actions.append(Pair(forwards[0], backwards[0]))
        else:
            self.actions += forwards + backwards

    def weight(self) -> None:
        """Add the oldest W that is still to be done."""
        if self._awaiting_weight:
            self.actions.append(self._awaiting_weight.popleft())

    def weights(self) -> None:
        """Add every W that is still to be done."""
        while self._awaiting_weight:
            self.weight()

    def _take(self, stage: int, kind: str) -> list[Action]:
        counted = "B" if kind == "I" else kind
        place = self._next[stage, counted]
        self._next[stage, counted] += 1
        if place >= len(self._microbatches[stage]):
            return []
        action = Action(stage, kind, self._microbatches[stage][place])
        if kind == "I":
            self._awaiting_weight.append(action._replace(kind="W"))
        return [action]


def counted(stages: int, microbatches: int, least: int = 1, unit: int = 1) -> None:
    """Raise ValueError unless there are stages, and enough microbatches, a multiple of `unit`."""
    if stages < 1:
        raise ValueError(f"stages={stages}: a pipeline has at least one stage")
    if microbatches < least or microbatches % unit:
        kind = "" if unit == 1 else f", a multiple of {unit}"
        raise ValueError(
            f"microbatches={microbatches}: with {stages} stages this schedule needs at least {least}{kind}"
        )
