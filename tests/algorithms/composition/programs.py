"""Training programs that are put together of parts: that of one process, and the frame of those of ranks.

A `Plan` says which parts a program has. `alone` is the program of one process, by PyTorch's own functions.
All programs see the same batches, and end with the same weights.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from course_lib import fsdp
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.precision import LossScaler
from course_lib.recompute import checkpoint, lazy_checkpoint

CONFIG = GPTConfig(vocab_size=13, context=6, layers=2, heads=6, width=12, hidden=12)
STEPS, ROWS, RESUMED, OVERFLOWING = 3, 6, 2, 1  # the latter two are numbers of steps
MAX_NORM = 0.3
OPTIONS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
SCALE, INTERVAL = 2.0**10, 2


def reentrant(block: Callable[..., Any], x: Tensor, *args: Any) -> Any:
    """PyTorch's, which asks for an input with a gradient, and warns without one."""
    if not torch.is_grad_enabled():
        return block(x, *args)
    x = x if x.requires_grad else x.detach().requires_grad_()
    return torch_checkpoint(block, x, *args, use_reentrant=True)


CHECKPOINTS: dict[str, Callable[..., Any]] = {
    "": lambda block, *args: block(*args),
    "ours": checkpoint,
    "lazy": lazy_checkpoint,
    "reentrant": reentrant,
    "non-reentrant": partial(torch_checkpoint, use_reentrant=False),
}


@dataclass(frozen=True)
class Plan:
    """The parts of a program.

    scaler: a loss scaler, and an infinity on the last rank in one step. clip: to MAX_NORM. accumulate: two
    backwards a step; no_sync: the first of them under no_sync(). checkpoint: the kind; each block is one.
    frozen: the embeddings and the first block. tied: the head is the embedding, and (but for a mesh) the
    first block comes twice. masked: of some rows few targets count, and of others none. uneven: rows that no
    number of ranks divides. evaluate: the loss after each backward and after each step, without a graph.
    resume: from the saved state, in new objects.
    """

    scaler: bool = False
    clip: bool = False
    accumulate: bool = False
    no_sync: bool = False
    checkpoint: str = ""
    frozen: bool = False
    tied: bool = False
    masked: bool = False
    uneven: bool = False
    evaluate: bool = False
    resume: bool = False


FEATURES: dict[str, dict[str, Any]] = {
    "loss scaler": {"scaler": True},
    "clipping": {"clip": True},
    "accumulation": {"accumulate": True},
    "no_sync": {"accumulate": True, "no_sync": True},
    "our checkpoint": {"checkpoint": "ours"},
    "our lazy checkpoint": {"checkpoint": "lazy"},
    "torch's reentrant checkpoint": {"checkpoint": "reentrant"},
    "torch's checkpoint": {"checkpoint": "non-reentrant"},
    "frozen parameters": {"frozen": True},
    "tied weights": {"tied": True},
    "masked targets": {"masked": True},
    "uneven rows": {"uneven": True},
    "evaluation": {"evaluate": True},
    "resuming": {"resume": True},
}


def planned(*features: str) -> Plan:
    parts = [FEATURES[feature] for feature in features]
    return replace(Plan(), **{name: value for part in parts for name, value in part.items()})


@dataclass
class Result:
    """weights: by their names in the whole model; parts: of which of them the rank has a part, by (dimension,
    start, end). losses: of the steps, if the program returns them; evaluations: losses without a graph;
    norms: before clipping; scale: at the end."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    parts: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    scale: float = 0.0


# ---- the model and its batches


class Model(GPT):
    """A GPT whose blocks may be checkpoints."""

    run: Callable[..., Any]

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        positions = torch.arange(tokens.shape[1])
        x = self.embed(tokens, positions)
        for block in (*self.blocks, *([self.blocks[0]] if self.config.tied else [])):
            x = torch.tanh(self.run(block, x, positions))
        return self.logits(x)


def make(plan: Plan, seed: int, kind: type[GPT] = Model) -> GPT:
    torch.manual_seed(seed)
    model = kind(replace(CONFIG, tied=plan.tied)).double()
    model.run = CHECKPOINTS[plan.checkpoint]  # type: ignore[assignment]
    for name, param in model.named_parameters():
        nn.init.normal_(param, std=0.3)
        frozen = "embedding" in name or name.startswith("blocks.0.")
        param.requires_grad_(not (plan.frozen and frozen))
    return model


def a_batch(plan: Plan, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets (rows, context) of all ranks."""
    generator = torch.Generator().manual_seed(seed + step)
    rows = ROWS - plan.uneven
    inputs, targets = torch.randint(
        CONFIG.vocab_size, (2, rows, CONFIG.context), generator=generator
    )
    if plan.masked:
        targets[0, 1:] = -100
        targets[2, :3] = -100
        targets[4:] = -100  # on three ranks, the last has none
    return inputs, targets


def counted(targets: Tensor) -> int:
    return int((targets != -100).sum())


def halves(x: Tensor, y: Tensor, plan: Plan) -> list[tuple[Tensor, Tensor]]:
    count = 2 if plan.accumulate else 1
    return list(zip(x.tensor_split(count), y.tensor_split(count), strict=True))


# ---- one process


@cache
def alone(plan: Plan, seed: int, kind: type[GPT]) -> Result:
    """The same training in one process: no scaler, no checkpoint, no microbatches."""
    model = make(replace(plan, checkpoint=""), seed, kind)
    result = Result(scale=SCALE / 2 if plan.scaler else 0.0)
    params = [param for param in model.parameters() if param.requires_grad]
    optimizer = torch.optim.SGD(params, **OPTIONS)
    for step in range(STEPS):
        inputs, targets = a_batch(plan, seed, step)
        loss = next_token_loss(model(inputs), targets)
        loss.backward()
        result.losses.append(loss.item())
        if plan.evaluate:
            result.evaluations.append(evaluated(model, plan, seed))
        if not (plan.scaler and step == OVERFLOWING):
            if plan.clip:
                norm = nn.utils.clip_grad_norm_(params, MAX_NORM)
                result.norms.append(float(norm))
            optimizer.step()
        optimizer.zero_grad()
        if plan.evaluate:
            result.evaluations.append(evaluated(model, plan, seed))
    result.weights = {name: value.detach() for name, value in model.state_dict().items()}
    return result


@torch.no_grad()
def evaluated(model: nn.Module, plan: Plan, seed: int) -> float:
    """The loss on a batch that no step sees; each rank computes all of it."""
    inputs, targets = a_batch(replace(plan, masked=False), seed, STEPS)
    return next_token_loss(model(inputs), targets).item()


# ---- a rank


class Trainer:
    """The program of a rank. A subclass says how model and optimizer are made and saved."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    kind: type[GPT] = Model
    sums = False  # the rank's loss is a sum, which `finish` divides
    spread = 1  # each rank draws weights of its own; 0: all draw the same

    def __init__(self, plan: Plan, seed: int, initial: int | None = None):
        self.plan, self.seed = plan, seed
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.scaler = LossScaler(SCALE, interval=INTERVAL) if plan.scaler else None
        self.result = Result()
        self.build((seed if initial is None else initial) + self.spread * self.rank)

    def build(self, seed: int) -> None:
        """Make `model` and `optimizer`."""
        raise NotImplementedError("a subclass makes them")

    def train(self) -> Result:
        trainer = self
        for step in range(STEPS):
            if self.plan.resume and step == RESUMED:
                trainer = trainer.resumed()
            trainer.step(step)
        return trainer.report()

    def report(self) -> Result:
        self.result.weights = {name: v.detach().clone() for name, v in self.weights().items()}
        self.result.scale = self.scaler.scale if self.scaler else 0.0
        return self.result

    def resumed(self) -> Trainer:
        """New objects with other weights, which load what these have saved."""
        file = io.BytesIO()
        torch.save(self.saved(), file)
        file.seek(0)
        trainer = type(self)(self.plan, self.seed, self.seed + 77)
        trainer.load(torch.load(file))
        trainer.result = self.result
        if self.scaler and trainer.scaler:
            trainer.scaler.scale, trainer.scaler.good = self.scaler.scale, self.scaler.good
        return trainer

    def step(self, number: int) -> None:
        self.backward(number)
        if self.plan.evaluate:
            self.result.evaluations.append(self.evaluate())
        self.finish(number)
        self.update()
        if self.plan.evaluate:
            self.result.evaluations.append(self.evaluate())

    def backward(self, number: int) -> None:
        """The rank's loss is a sum; times the ranks over all targets, its mean over ranks is the batch's."""
        batch = a_batch(self.plan, self.seed, number)
        x, y = (whole.tensor_split(self.n)[self.rank] for whole in batch)
        factor = 1.0 if self.sums else self.n / counted(batch[1])
        parts = halves(x, y, self.plan)
        for place, (inputs, targets) in enumerate(parts):
            waits = self.plan.no_sync and place < len(parts) - 1
            with self.no_sync() if waits else nullcontext():
                logits = self.model(inputs)
                loss = next_token_loss(logits, targets, reduction="sum") * factor
                if self.plan.scaler and number == OVERFLOWING and self.rank == self.n - 1:
                    loss = loss + logits.sum() * torch.inf
                (self.scaler.scale_loss(loss) if self.scaler else loss).backward()

    def update(self) -> None:
        if self.plan.clip and self.scaler:
            self.scaler.unscale_(self.optimizer)
        if self.plan.clip:
            norm = self.clip()
            if not self.scaler or not self.scaler.overflow[self.optimizer]:
                self.result.norms.append(norm)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad()

    def no_sync(self) -> Any:
        return cast(Any, self.model).no_sync()

    def finish(self, number: int) -> None:
        """After backward, for wrappers that ask for it."""

    def clip(self) -> float:
        return fsdp.clip_grad_norm_(self.model.parameters(), MAX_NORM)

    def evaluate(self) -> float:
        return evaluated(self.model, self.plan, self.seed)

    def weights(self) -> dict[str, Tensor]:
        return self.model.state_dict()

    def saved(self) -> Any:
        return self.weights(), self.optimizer.state_dict()

    def load(self, state: Any) -> None:
        self.model.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])


def sgd(params: Any) -> torch.optim.SGD:
    return torch.optim.SGD(params, **OPTIONS)
