"""Steps of Muon on several ranks, as the text has them and as the usual mistakes go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.notebooks.zero.dealing import Dealing
from course_lib.checks.rank.notebooks.zero.muon import MuonInstructions, orthogonalized

LR, BETA = 0.02, 0.95  # the defaults
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}  # far below what any mistake changes

OWN_GRADIENT = (
    "Each owner used the gradient of its own samples. The reduce-scatter gives it the sum over all ranks."
)
HALVES = (
    "Each rank orthogonalized the rows it holds of every matrix. But part of a matrix has other "
    "singular vectors, so an owner needs the whole matrix."
)
FIRST = (
    "The ranks' gradients were orthogonalized before their sum. The mean of orthogonalized matrices "
    "is not the orthogonalized mean, and each rank does the work of all ranks."
)
AFTER = (
    "The momentum is made of orthogonalized gradients. It collects gradients, and the orthogonalization "
    "comes last."
)
PLAIN = (
    "The update is m alone, without Nesterov's look ahead. It has to be g + beta m, with m after it has got "
    "g."
)
NO_MOMENTUM = "There is no momentum, so each step begins from nothing. Keep m in `momenta` from step to step."
TURNED = "The scale is inverted. sqrt(max(1, rows / columns)) makes the steps of tall matrices longer."
NO_SCALE = "The scale sqrt(max(1, rows / columns)) is missing, so tall matrices move too little."
NO_MAX = "Wide matrices move too little. The scale has max(1, ...) under the root, so theirs is 1."
NO_ROOT = "The scale is rows / columns without its square root."
UPHILL = "The update was added. A step goes against the gradient."
NOT_GATHERED = (
    "A rank's matrices of other owners stayed as they were. The all-gather brings the owners' weights to all."
)
OWN_LR = "The step has the default's size, because `lr` was not used."
OWN_BETA = "The momentum decays as by default, because `beta` was not used."


@dataclass(frozen=True)
class Way:
    """How the steps are taken. gradient: "mean", "own", "halves" or "first"; momentum: "nesterov", "after",
    "plain" or "none"; scale: "rows", "columns", "none", "no max" or "no root".
    """

    gradient: str = "mean"
    momentum: str = "nesterov"
    scale: str = "rows"
    sign: int = 1
    gathered: bool = True
    lr: float | None = None
    beta: float | None = None


RIGHT = Way()
MISTAKES = {
    OWN_GRADIENT: Way(gradient="own"),
    HALVES: Way(gradient="halves"),
    FIRST: Way(gradient="first"),
    AFTER: Way(momentum="after"),
    PLAIN: Way(momentum="plain"),
    NO_MOMENTUM: Way(momentum="none"),
    TURNED: Way(scale="columns"),
    NO_SCALE: Way(scale="none"),
    NO_MAX: Way(scale="no max"),
    NO_ROOT: Way(scale="no root"),
    UPHILL: Way(sign=-1),
    NOT_GATHERED: Way(gathered=False),
    OWN_LR: Way(lr=LR),
    OWN_BETA: Way(beta=BETA),
}
IDEAS = (HALVES, FIRST)


def scale_of(shape: Sequence[int], kind: str) -> float:
    rows, columns = shape
    return {
        "rows": max(1, rows / columns) ** 0.5,
        "columns": max(1, columns / rows) ** 0.5,
        "none": 1.0,
        "no max": (rows / columns) ** 0.5,
        "no root": max(1, rows / columns),
    }[kind]


@dataclass(frozen=True)
class MuonRun:
    """params: the same on all members. gradients[step][place][k], by the members' places in their group.

    members: the ranks that take part, of n.
    """

    params: Sequence[Tensor]
    gradients: Sequence[Sequence[Sequence[Tensor]]]
    members: Sequence[int]
    n: int
    lr: float = LR
    beta: float = BETA
    made: dict[Way, list[list[list[Tensor]]]] = field(default_factory=dict, compare=False)

    @classmethod
    def draw(
        cls,
        draw: kit.Draw,
        shapes: Sequence[tuple[int, int]],
        steps: int,
        members: Sequence[int],
        n: int = 0,
        dtype: torch.dtype = torch.float64,
        lr: float = LR,
        beta: float = BETA,
    ) -> MuonRun:
        def matrices() -> list[Tensor]:
            return [draw.normal(*shape, dtype=torch.float64).to(dtype) for shape in shapes]

        gradients = [[matrices() for _ in members] for _ in range(steps)]
        return cls(matrices(), gradients, members, n or len(members), lr, beta)

    @property
    def steps(self) -> range:
        return range(len(self.gradients))

    @property
    def item(self) -> int:
        return self.params[0].dtype.itemsize

    @cached_property
    def owned(self) -> list[list[int]]:
        dealing = Dealing([tuple(p.shape) for p in self.params], len(self.members))
        return dealing.dealt(dealing.largest_first)

    @property
    def elements(self) -> list[int]:
        """Of each member's own matrices."""
        return [sum(self.params[k].numel() for k in own) for own in self.owned]

    def side(self, place: int) -> kit.RankSide:
        inputs = {f"param.{k}": p for k, p in enumerate(self.params)}
        for step in self.steps:
            inputs |= {f"grad.{step}.{k}": g for k, g in enumerate(self.gradients[step][place])}
        used = {} if (self.lr, self.beta) == (LR, BETA) else {"lr": self.lr, "beta": self.beta}
        group = 0 if len(self.members) < self.n else None
        instructions = MuonInstructions(len(self.params), len(self.steps), self.owned, used, group)
        outputs = {f"{step}.{k}": kit.Spec.of(p) for step in self.steps for k, p in enumerate(self.params)}
        return kit.RankSide(inputs, instructions, outputs)

    def after(self, way: Way = RIGHT) -> list[list[list[Tensor]]]:
        """The matrices after each step, of each member, in float64."""
        if way not in self.made:
            self.made[way] = list(self.trajectory(way))
        return self.made[way]

    def trajectory(self, way: Way):
        weights = [p.double() for p in self.params]
        states = [torch.zeros_like(w) for w in weights]
        for step in self.steps:
            for k in range(len(weights)):
                weights[k] = weights[k] - self.update(way, step, k, states)
            if way.gathered:
                yield [list(weights) for _ in self.members]
            else:
                yield [
                    [weights[k] if k in own else p.double() for k, p in enumerate(self.params)]
                    for own in self.owned
                ]

    def update(self, way: Way, step: int, k: int, states: list[Tensor]) -> Tensor:
        """The step that matrix k takes, to be subtracted; states[k], its momentum, is replaced."""
        beta = self.beta if way.beta is None else way.beta
        lr = self.lr if way.lr is None else way.lr
        gradients = [own[k].double() for own in self.gradients[step]]
        gradient = torch.stack(gradients).mean(0)
        before = states[k]
        if way.gradient == "own":
            gradient = gradients[next(place for place, own in enumerate(self.owned) if k in own)]
        if way.gradient == "first":
            gradient = torch.stack([orthogonalized(own) for own in gradients]).mean(0)
        if way.momentum == "after":
            gradient = orthogonalized(gradient)
        states[k] = torch.zeros_like(before) if way.momentum == "none" else beta * before + gradient
        ahead = states[k] if way.momentum == "plain" else gradient + beta * states[k]
        if way.gradient == "halves":
            ahead = torch.cat([orthogonalized(part) for part in ahead.chunk(len(self.members)) if len(part)])
        elif way.gradient != "first" and way.momentum != "after":
            ahead = orthogonalized(ahead)
        return way.sign * lr * scale_of(ahead.shape, way.scale) * ahead

    def near(self, actual: Tensor, wanted: Tensor) -> bool:
        return kit.close(actual.double(), wanted, TOLERANCE[self.params[0].dtype])


def variants(run: MuonRun) -> dict[str, list[Way]]:
    """The ways of each mistake; those that are right in this run are left out."""
    ways = {says: [way] for says, way in MISTAKES.items()}
    ways[FIRST] += [replace(RIGHT, gradient="first", momentum=kind) for kind in ("plain", "none")]
    if run.lr == LR:
        del ways[OWN_LR]
    if run.beta == BETA:
        del ways[OWN_BETA]
    return ways
