"""Local steps on all ranks, in one process and in float64: the right way, and ways to go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from course_lib.checks.judge.training_runs.single import Training
from course_lib.checks.rank import toys

ALONE, EVERY, LAST = "alone", "every step", "last step"


@dataclass(frozen=True)
class Way:
    """How local steps are taken: the defaults are right, and each other value is a mistake.

    factor: of the mean; gradients: averaged in place of the movement, in every step or in the last of a
    period, or ALONE; momentum, lr: other numbers of the outer optimizer; heavy_ball: the outer step is the
    momentum alone; damped: a gradient enters the momentum with the share 1 - mu; forgets: the momentum begins
    anew in each period; own_end: the step goes from the rank's end; first_start: movements count from the
    very first start; moves_along: the start is the parameters themselves, from the first period's end on;
    resets: the inner optimizer begins anew; states: the ranks' inner states are averaged; adds: gradients are
    never set to zero; last: the last, shorter period is sent; counts_from: of the steps.
    """

    factor: float = 1.0
    gradients: str = ""
    momentum: float | None = None
    lr: float | None = None
    heavy_ball: bool = False
    damped: bool = False
    forgets: bool = False
    own_end: bool = False
    first_start: bool = False
    moves_along: bool = False
    resets: bool = False
    states: bool = False
    adds: bool = False
    last: bool = True
    counts_from: int = 1


RIGHT_WAY = Way()


@dataclass
class LocalRun:
    """A training whose ranks begin with rank 0's model; one microbatch in each step.

    ranks: of the world, of which those of the training are a group.
    """

    training: Training
    steps_between: int
    outer: tuple[float, float]
    ranks: int
    known: dict[Way, list[dict[str, Tensor]]] = field(default_factory=dict, repr=False)

    @property
    def steps(self) -> int:
        return len(self.training.steps[0])

    @property
    def periods(self) -> int:
        return -(-self.steps // self.steps_between)

    def numel(self, frozen: bool = False) -> int:
        parameters = self.training.built().parameters()
        return sum(p.numel() for p in parameters if p.requires_grad or frozen)

    def ends(self, way: Way = RIGHT_WAY) -> list[dict[str, Tensor]]:
        """The parameters at the end, of each rank, by name. Computed once: they are only to be read."""
        if way not in self.known:
            self.known[way] = Replicas(self, way).trained()
        return self.known[way]


class Replicas:
    """All ranks of a run, in one process."""

    def __init__(self, run: LocalRun, way: Way):
        self.run, self.way = run, way
        kind, self.defaults = run.training.optimizer
        self.make = getattr(torch.optim, kind)
        self.models = [run.training.built() for _ in run.training.steps]
        self.optimizers = [self.make(self.parameters(k), **self.defaults) for k in range(self.n)]
        self.starts = [self.vector(k) for k in range(self.n)]
        self.moved = False  # whether an outer step was taken
        self.momenta = [torch.zeros_like(start) for start in self.starts]

    @property
    def n(self) -> int:
        return len(self.models)

    def parameters(self, k: int) -> list[nn.Parameter]:
        return [p for p in self.models[k].parameters() if p.requires_grad]

    def vector(self, k: int) -> Tensor:
        return parameters_to_vector(self.parameters(k)).detach().clone()

    def trained(self) -> list[dict[str, Tensor]]:
        for step, due in enumerate(self.due()):
            self.inner_steps(step, due)
            if due and not self.way.gradients:
                self.outer_step()
        named = (model.named_parameters() for model in self.models)
        return [{name: p.detach() for name, p in parameters} for parameters in named]

    def due(self) -> Iterator[bool]:
        """For each step, whether a period ends with it."""
        for step in range(self.run.steps):
            ends = (step + self.way.counts_from) % self.run.steps_between == 0
            yield ends or (self.way.last and step == self.run.steps - 1)

    def inner_steps(self, step: int, due: bool) -> None:
        for model, ranks_steps in zip(self.models, self.run.training.steps, strict=True):
            if not self.way.adds:
                model.zero_grad(set_to_none=True)
            x, y = toys.batch(ranks_steps[step][0], torch.float64)
            nn.functional.mse_loss(model(x), y).backward()
        if self.way.gradients == EVERY or (self.way.gradients == LAST and due):
            for replicas in zip(*(self.parameters(k) for k in range(self.n)), strict=True):
                total = sum((p.grad for p in replicas if p.grad is not None), torch.zeros_like(replicas[0]))
                for p in replicas:
                    p.grad = total / self.n
        for optimizer in self.optimizers:
            optimizer.step()

    def outer_step(self) -> None:
        way = self.way
        lr, momentum = self.run.outer
        lr, momentum = lr if way.lr is None else way.lr, momentum if way.momentum is None else way.momentum
        ends = [self.vector(k) for k in range(self.n)]
        if way.moves_along and self.moved:
            self.starts = [end.clone() for end in ends]
        self.moved = True
        moved = [start - end for start, end in zip(self.starts, ends, strict=True)]
        gradient = way.factor * sum(moved, torch.zeros_like(ends[0])) / self.n
        for k in range(self.n):
            before = torch.zeros_like(gradient) if way.forgets else self.momenta[k]
            self.momenta[k] = momentum * before + (1 - momentum if way.damped else 1) * gradient
            step = self.momenta[k] if way.heavy_ball else gradient + momentum * self.momenta[k]
            new = (ends[k] if way.own_end else self.starts[k]) - lr * step
            if not way.first_start:
                self.starts[k] = new
            vector_to_parameters(new.clone(), self.parameters(k))
            if way.resets:
                self.optimizers[k] = self.make(self.parameters(k), **self.defaults)
        if way.states:
            self.average_states()

    def average_states(self) -> None:
        for replicas in zip(*(self.parameters(k) for k in range(self.n)), strict=True):
            held = [optimizer.state[p] for optimizer, p in zip(self.optimizers, replicas, strict=True)]
            for name in held[0].keys() & held[-1].keys():
                values = [state[name] for state in held if isinstance(state.get(name), Tensor)]
                mean = sum(values, torch.zeros_like(replicas[0])) / self.n if values else None
                for value in values if mean is not None and values[0].dim() else ():
                    value.copy_(mean)


@dataclass(frozen=True)
class Mistake:
    """The sentence for a way to go wrong. idea: it is without what the exercise is about."""

    says: str
    way: Way
    idea: bool = False


def mistakes(run: LocalRun, sent: bool) -> Iterator[Mistake]:
    """The ways to go wrong, each with its sentence. sent: whether anything was sent at all."""
    n = len(run.training.steps)
    if n > 1:
        yield Mistake(NOT_BACK if sent else NOTHING, Way(gradients=ALONE), idea=not sent)
        yield Mistake(GRADIENTS, Way(gradients=EVERY), idea=True)
        yield Mistake(LAST_GRADIENT, Way(gradients=LAST), idea=True)
        yield Mistake(
            f"The outer gradient is the sum over the {n} ranks. Divide it by their number.", Way(factor=n)
        )
        yield Mistake(
            f"The outer gradient is the mean, divided by {n} once more. Divide the sum only once.",
            Way(factor=1 / n),
        )
        yield Mistake(OWN_END, Way(own_end=True))
    if run.ranks > n:
        says = (
            f"The sum was divided by {run.ranks}, the number of all ranks, but dist.get_world_size(group) is "
            f"{n}."
        )
        yield Mistake(says, Way(factor=n / run.ranks))
    yield Mistake(SIGN, Way(factor=-1))
    yield Mistake(MOVES_ALONG, Way(moves_along=True))
    yield Mistake(LAST_PERIOD, Way(last=False))
    for says, ways in MISCOUNTED.items():
        yield from (Mistake(says, way) for way in ways)
    yield Mistake(FIRST_START, Way(first_start=True))
    yield Mistake(NO_MOMENTUM, Way(momentum=0.0))
    yield Mistake(HEAVY_BALL, Way(heavy_ball=True))
    yield Mistake(DAMPED, Way(damped=True))
    yield Mistake(FORGETS, Way(forgets=True))
    yield Mistake("The outer learning rate was left out.", Way(lr=1.0))
    yield Mistake(AVERAGED, Way(lr=1.0, momentum=0.0))
    yield Mistake(RESETS, Way(resets=True))
    yield Mistake(STATES, Way(states=True), idea=True)
    yield Mistake(UNMOVED if sent else UNTRAINED, Way(lr=0.0))
    yield Mistake(
        "Gradients of earlier steps were added as well. Call optimizer.zero_grad() in each step.",
        Way(adds=True),
    )


NOTHING = "Each rank has trained its own model, because nothing was exchanged."
NOT_BACK = (
    "Each rank has ended where it would have ended without the other ranks, although something was sent. "
    "Either the new start was not copied into the parameters, or the start is a view of them, so that start "
    "- end is zero. Keep a clone of the start."
)
MOVES_ALONG = (
    "The start moved along with the parameters, so start - end is zero. Views of parameters and "
    "vector_to_parameters share memory with them, so keep a clone."
)
GRADIENTS = (
    "The ranks averaged in every step, which is data parallelism. Instead, let each rank take "
    "`steps_between` steps with its own gradients, then average how far the parameters have moved."
)
LAST_GRADIENT = (
    "Only the gradients of each period's last step were averaged. Instead, average how far the parameters "
    "have moved, start - end."
)
OWN_END = (
    "The outer step went from the rank's own end. Take it from the start, because the start is the same on "
    "all ranks."
)
SIGN = (
    "The outer gradient has the wrong sign. Like a gradient, start - end points up the loss, so the outer "
    "step subtracts it. With end - start, the parameters go back to where the loss was higher."
)
LAST_PERIOD = (
    "The last, shorter period was not sent, so the ranks end with different parameters. Also take an outer "
    "step after the last batch."
)
COUNTED = "The first period has only one step, because the count did not begin with 1. Count finished steps."
AHEAD = (
    "The first period is one step too short, because the count was already ahead by one. Count finished "
    "steps."
)
MISCOUNTED = {
    COUNTED: (Way(counts_from=0), Way(counts_from=0, last=False)),
    AHEAD: (Way(counts_from=2), Way(counts_from=2, last=False)),
}
FIRST_START = (
    "The movement was counted from the very first start, but each period begins where the previous outer "
    "step ended."
)
NO_MOMENTUM = (
    "The outer step has no momentum. Compute m = outer_momentum * m + g, with an m that all periods share."
)
HEAVY_BALL = (
    "The outer step is momentum without Nesterov's part. Instead, take the step outer_lr * (g + "
    "outer_momentum * m), with an m that already includes g."
)
DAMPED = (
    "The gradient enters the momentum with a factor 1 - outer_momentum, but SGD computes m = outer_momentum "
    "* m + g."
)
FORGETS = "The outer momentum starts from zero in each period. Create it only once, before the first period."
AVERAGED = "The result is the average of the ranks' ends, without outer_lr and outer_momentum."
UNTRAINED = "The parameters have not changed since the start. Train the model's own parameters, in place."
UNMOVED = (
    "The parameters have not changed since the start, although something was sent. Train the model's own "
    "parameters, in place, and take the outer step with outer_lr."
)
STATES = (
    "The inner optimizers' states travelled as well, but they stay on their ranks. Average only start - end."
)
RESETS = (
    "The inner optimizer started again after an outer step, but its state must stay as it is, on its rank."
)
