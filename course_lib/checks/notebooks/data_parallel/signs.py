"""The results of sign compression and 1-bit Adam, for all ranks at once, and the results of mistakes."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from course_lib.checks import kit
from course_lib.checks.judge.training_runs.single import Tensors, Training, gradients

TOLERANCE = 1e-4  # of the mean magnitude


def shard_size(n: int, numel: int) -> int:
    """Elements of a rank's shard: whole bytes of signs."""
    return 8 * math.ceil(numel / (8 * n))


def places(n: int, numel: int) -> torch.Tensor:
    """(n, shard): 1 where a shard holds an element, 0 where it is padded."""
    shard = shard_size(n, numel)
    return (torch.arange(n * shard) < numel).view(n, shard).double()


@dataclass(frozen=True)
class Rules:
    """The rules by which signs are averaged; any value but the default is a mistake."""

    feedback: float = 1.0  # how often `error` is added
    served: float = 1.0  # how often `server_error` is added
    divide: bool = True  # by the number of ranks
    padding: bool = False  # counts in the scales
    one_scale: bool = False  # for all shards of a tensor
    bare: bool = False  # no scales
    own_scale: bool = False  # the server multiplies all ranks' signs by its own


@dataclass(frozen=True)
class Outcome:
    """tensor (numel), error (n, numel), server_error (n, shard); margin: the least |x| / scale of a sign."""

    tensor: torch.Tensor
    error: torch.Tensor
    server_error: torch.Tensor
    margin: float


def average(
    tensors: torch.Tensor, errors: torch.Tensor, server: torch.Tensor, rules: Rules | None = None
) -> Outcome:
    """The mean over the ranks of (n, numel) tensors by signs with a scale, and the errors of the signs."""
    rules = rules or Rules()
    n, numel = tensors.shape
    shard = shard_size(n, numel)
    real = places(n, numel)
    asked = F.pad(tensors + rules.feedback * errors, (0, n * shard - numel)).view(n, n, shard)
    said = signs(asked, real, rules)
    if rules.own_scale:
        scales = said.abs().amax(-1, keepdim=True)
        arrived = (asked.sign() * scales.diagonal().T[None]).sum(0)
    else:
        arrived = said.sum(0)
    mean = arrived / (n if rules.divide else 1) + rules.served * server
    agreed = signs(mean[None], real, replace(rules, one_scale=False))[0]
    margin = min(least(asked, real), least(mean[None], real))
    left = (asked - said).view(n, -1)[:, :numel]
    return Outcome(agreed.flatten()[:numel], left, mean - agreed, margin)


def signs(rows: torch.Tensor, real: torch.Tensor, rules: Rules) -> torch.Tensor:
    """(..., n, shard): each element as its sign times its shard's scale, padding as zero."""
    size = torch.full_like(real, real.shape[-1]).mean(-1) if rules.padding else real.sum(-1)
    scale = (rows.abs() * real).sum(-1) / size.clamp(min=1)
    if rules.one_scale:
        whole = (rows.abs() * real).sum((-2, -1)) / real.sum()
        scale = whole[..., None].expand_as(scale)
    scale = torch.ones_like(scale) if rules.bare else scale
    return torch.where(rows >= 0, 1.0, -1.0) * scale[..., None] * real


def least(rows: torch.Tensor, real: torch.Tensor) -> float:
    counted = real.bool().expand_as(rows)
    sizes = rows.abs()[counted]
    return float(sizes.min() / sizes.mean()) if len(sizes) else 1.0


# ---- one call


@dataclass(frozen=True)
class Signs:
    """A call's arguments on all ranks, in float64."""

    tensor: torch.Tensor
    error: torch.Tensor
    server: torch.Tensor

    @functools.cached_property
    def outcome(self) -> Outcome:
        return self.under(Rules())

    def under(self, rules: Rules) -> Outcome:
        return average(self.tensor, self.error, self.server, rules)

    @property
    def margin(self) -> float:
        return self.outcome.margin

    def right(self, name: str, place: int) -> torch.Tensor:
        return of(self.outcome, name, place)

    def close(self, actual: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Where `actual` is `wanted` to rounding."""
        return (actual - wanted).abs() <= TOLERANCE * float(self.tensor.abs().mean())


def of(outcome: Outcome, name: str, place: int) -> torch.Tensor:
    tensor = getattr(outcome, name)
    return tensor if name == "tensor" else tensor[place]


def sign_slips(arguments: Signs, name: str, place: int) -> dict[str, torch.Tensor]:
    """{hint for a mistake: the value that it leaves in the argument `name` of the member `place`}."""
    n, right = len(arguments.tensor), arguments.outcome
    slips: dict[str, torch.Tensor] = {}
    if name == "tensor":
        slips["`tensor` was left as it was. Write the mean into it."] = arguments.tensor[place]
        mean = (arguments.tensor + arguments.error).mean(0)
        slips["`tensor` holds the mean itself, but only signs and scales should travel."] = mean
    rules = {
        "The error of earlier signs was not added. Take the signs of tensor + error.": Rules(0.0),
        "`error` was added twice.": Rules(2.0),
        "The error of the server's own earlier signs was not added. Use mean + server_error.": Rules(
            served=0.0
        ),
        f"The server has the sum over the {n} ranks. Divide it by their number.": Rules(divide=False),
        "Padding was counted in a scale. Take the mean over the shard's own elements.": Rules(padding=True),
        "One scale was used for the whole tensor, but each shard has its own.": Rules(one_scale=True),
        "Signs came without their scales.": Rules(bare=True),
        "The server used its own scale for all signs, but each sign comes with its sender's scale.": Rules(
            own_scale=True
        ),
    }
    slips |= {says: of(arguments.under(slip), name, place) for says, slip in rules.items()}
    if name == "error":
        before = arguments.error[place]
        asked = arguments.tensor[place] + before
        slips |= {
            "`error` was left as it was, so the signs' error is lost.": before,
            "`error` was set to zero, so the signs' error is lost.": 0 * asked,
            "The sign is wrong: error = tensor + error, less the values of the signs and scales.": (
                -right.error[place]
            ),
            "A rank keeps the part its *own* signs miss, not its distance from the mean.": (
                asked - right.tensor
            ),
        }
    if name == "server_error":
        before = arguments.server[place]
        slips |= {
            "`server_error` was left as it was, so the second signs' error is lost.": before,
            "`server_error` was set to zero, so the second signs' error is lost.": 0 * before,
            "The sign is wrong: server_error = mean + server_error, less the values of the signs and "
            "scale.": -right.server_error[place],
        }
    return slips


# ---- 1-bit Adam


@dataclass(frozen=True)
class Adam:
    """The rules of the optimizer's step; any value but the default is a mistake. own: of this rank alone."""

    rules: Rules = Rules()
    longer: int = 0  # steps of warm-up more than asked for
    asked: int = 0  # by how many it mistakes what was asked for, in the bias correction, too
    frozen: bool = True
    corrected: bool = True  # bias of the variance as after the warm-up
    momentum: bool = True  # and not the gradient is what is compressed
    own: int | None = None  # the rank whose gradient counts in the warm-up

    @staticmethod
    def slips(n: int, rank: int) -> list[kit.Slip]:
        """Each gives the Adam that makes the mistake."""
        slips = [
            kit.Slip(
                "In the warm-up each rank went on with its own gradient. Average it in full precision.",
                lambda: Adam(own=rank),
            )
        ]
        for more, how in ((1, "long"), (-1, "short")):
            says = f"The warm-up is one step too {how}. Run it for `warmup_steps` steps."
            slips.append(kit.Slip(says, lambda more=more: Adam(longer=more)))
            slips.append(kit.Slip(says, lambda more=more: Adam(asked=more)))
        return [
            *slips,
            kit.Slip(
                "The optimizer stayed in full precision after the warm-up.", lambda: Adam(longer=1 << 20)
            ),
            kit.Slip(
                "The gradients were compressed, but the *momentum* has to be averaged as signs.",
                lambda: Adam(momentum=False),
            ),
            kit.Slip(
                "The variance changed after the warm-up. Freeze it, since signs say nothing about it.",
                lambda: Adam(frozen=False),
            ),
            kit.Slip(
                "The variance is frozen, so its bias correction stays at 1 - beta2 ** warmup_steps.",
                lambda: Adam(corrected=False),
            ),
            kit.Slip(
                "The signs' errors were not kept from step to step, but `error` and `server_error` belong "
                "to the parameter's state.",
                lambda: Adam(rules=Rules(0.0, 0.0)),
            ),
        ]


def expected_parameters(training: Training, how: Adam) -> tuple[Tensors, float]:
    """(parameters after each step, named as in `rank.training`; the least margin of a sign), in float64."""
    kwargs = training.more["kwargs"]
    beta1, beta2 = kwargs["betas"]
    model = training.built()
    named = {name: p.data for name, p in model.named_parameters()}
    n, parameters, margin = training.world_size, {}, math.inf
    state = {name: State(p, n) for name, p in named.items()}
    for step in range(len(training.steps[0])):
        ranks = [gradients(model, rank[step][0], 1) for rank in training.steps]
        warmup = kwargs["warmup_steps"] + how.asked
        warm = step < warmup + how.longer
        for name, p in named.items():
            own = torch.stack([tensors[name].flatten() for tensors in ranks])
            kept = state[name]
            mean = own.mean(0) if how.own is None else own[how.own]
            if warm:
                kept.momentum = beta1 * kept.momentum + (1 - beta1) * mean
                kept.variance = beta2 * kept.variance + (1 - beta2) * mean**2
            else:
                margin = min(margin, kept.compress(own, beta1, how))
                if not how.frozen:
                    kept.variance = beta2 * kept.variance + (1 - beta2) * mean**2
            still = how.frozen and how.corrected
            counted = min(step + 1, warmup) if still else step + 1
            root = (kept.variance / (1 - beta2**counted)).sqrt() + 1e-8
            change = kept.momentum / (1 - beta1 ** (step + 1)) / root
            p -= kwargs["lr"] * change.view_as(p)
            parameters[f"param.{step}.{name}"] = p.clone()
    return parameters, margin


class State:
    """Of one parameter: momentum and variance, the same on all ranks, and the errors of the signs."""

    def __init__(self, p: torch.Tensor, n: int):
        self.momentum = torch.zeros(p.numel(), dtype=torch.float64)
        self.variance = torch.zeros_like(self.momentum)
        self.error = torch.zeros(n, p.numel(), dtype=torch.float64)
        self.server = torch.zeros(n, shard_size(n, p.numel()), dtype=torch.float64)

    def compress(self, own: torch.Tensor, beta1: float, how: Adam) -> float:
        """One step's momentum by signs; returns the least margin."""
        asked = beta1 * self.momentum + (1 - beta1) * own if how.momentum else own
        got = average(asked, self.error, self.server, how.rules)
        self.error, self.server = got.error, got.server_error
        if how.momentum:
            self.momentum = got.tensor
        else:
            self.momentum = beta1 * self.momentum + (1 - beta1) * got.tensor
        return got.margin
