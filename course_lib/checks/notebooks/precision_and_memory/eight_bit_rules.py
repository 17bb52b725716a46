"""An emulation of `Adam8bit`, by the right rule and by the usual mistakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.precision.codes import DYNAMIC_SIGNED, DYNAMIC_UNSIGNED, linear_map

SMALL = 4096  # elements: parameters below it keep float32
TIE = 1e-5  # of a block's largest magnitude's share: closer to a tie, either code is right
ROUNDING = 1e-3  # of a learning rate
SLACK = 16_384  # bytes: code tables, counters
BLOCK = 256
SIGNED, UNSIGNED = DYNAMIC_SIGNED.double(), DYNAMIC_UNSIGNED.double()
LOST = (
    "After load_state_dict, the optimizer takes other steps. self.state[param] must hold everything a "
    "step reads: the codes and scales of both moments, and the count of steps."
)
NAN = "Something was divided by 0. Add eps to the root of v, and begin with t = 1, because 1 - beta^0 is 0."
CAST = (
    "load_state_dict of torch.optim.Optimizer casts every state to the parameter's dtype, so the codes "
    "came back as float32. Derive from ByteStates, which leaves dtypes unchanged."
)


@dataclass(frozen=True)
class Rule:
    """AdamW with moments in 8 bits; each field is a place for a mistake.

    numbers: the codes of m and v; None: nothing is rounded. whole: one scale for a tensor. before: rounded
    before the parameter takes its step. floor: to the number towards 0. small: elements from which on a
    parameter has 8 bits. stored: the moment that is kept is the one with its bias corrected. corrected:
    whether bias is corrected at all. decay: as AdamW has it, or added to the gradient, or without the
    learning rate, or not at all. inside: eps stands in the root. eps: another than was asked for. counted:
    parameter `index` of `count` goes on from the step of the one before it.
    """

    numbers: tuple[Tensor, Tensor] | None = (SIGNED, UNSIGNED)
    block: int = BLOCK
    whole: bool = False
    before: bool = False
    floor: bool = False
    small: int = SMALL
    stored: bool = False
    corrected: bool = True
    decay: Literal["decoupled", "coupled", "without lr", "none"] = "decoupled"
    inside: bool = False
    eps: float | None = None
    counted: bool = False
    index: int = 0
    count: int = 1

    def round(self, x: Tensor, which: int) -> tuple[Tensor, Tensor]:
        """(x as it comes back, which elements lie near a tie)."""
        near = torch.zeros_like(x, dtype=torch.bool)
        if self.numbers is None or x.numel() < self.small:
            return x, near
        numbers = self.numbers[which]
        middles = (numbers[1:] + numbers[:-1]) / 2
        flat, block = x.flatten(), x.numel() if self.whole else self.block
        parts = torch.nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)
        scales = parts.abs().amax(1, keepdim=True)
        share = parts / scales.where(scales > 0, 1.0)
        place = torch.searchsorted(middles, share)
        gaps = [(share - middles[(place + k).clamp(0, len(middles) - 1)]).abs() for k in (-1, 0)]
        near = torch.minimum(*gaps) < TIE * share.abs()
        back = numbers[place]
        if self.floor:
            back = numbers[torch.searchsorted(numbers, share.abs(), right=True) - 1].copysign(share)
            back = back.clamp(min=float(numbers[0]))
        both = (torch.where(scales > 0, back * scales, 0.0), near)
        rounded, near = (values.flatten()[: len(flat)].view_as(x) for values in both)
        return rounded, near

    def run(
        self, start: Tensor, gradients: Sequence[Tensor | None], settings: Mapping[str, Any]
    ) -> JudgedSteps:
        """The parameter after each step, in float64, and which elements are judged there."""
        (beta1, beta2), lr = settings["betas"], settings["lr"]
        eps = settings["eps"] if self.eps is None else self.eps
        decay = settings["weight_decay"]
        shrink = {"decoupled": lr * decay, "without lr": decay}.get(self.decay, 0.0)
        w = start.double()
        m, v, unsure = torch.zeros_like(w), torch.zeros_like(w), torch.zeros_like(w, dtype=torch.bool)
        taken, after, sure = 0, [], []
        for gradient in gradients:
            if gradient is not None:
                taken += 1
                step = (taken - 1) * self.count + self.index + 1 if self.counted else taken
                g = gradient.double() + (decay * w if self.decay == "coupled" else 0.0)
                m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
                first, second = (1 - beta1**step, 1 - beta2**step) if self.corrected else (1.0, 1.0)
                if self.stored:
                    m, v, first, second = m / first, v / second, 1.0, 1.0
                rounded = [self.round(x, which) for which, x in enumerate((m, v))]
                if self.before:
                    (m, v), known = (back for back, _ in rounded), unsure | rounded[0][1] | rounded[1][1]
                    unsure = known
                root = ((v / second) + (eps if self.inside else 0)).sqrt() + (0 if self.inside else eps)
                w = w * (1 - shrink) - lr * (m / first) / root
                after.append(w)
                sure.append(~unsure)
                m, v = (back for back, _ in rounded)
                unsure = unsure | rounded[0][1] | rounded[1][1]
            else:
                after.append(w)
                sure.append(~unsure)
        return JudgedSteps(after, sure)


@dataclass(frozen=True)
class JudgedSteps:
    """The parameter after each step, and which of its elements are judged."""

    after: list[Tensor]
    sure: list[Tensor]


FLOAT32 = "The moments are not rounded at all between the steps. Keep codes instead of float32."
LINEAR_M = "m has linear codes. Use DYNAMIC_SIGNED instead, which has numbers in seven decades."
LINEAR_BOTH = (
    "Both moments have linear codes. Use DYNAMIC_SIGNED and DYNAMIC_UNSIGNED instead, which have numbers "
    "in seven decades."
)
LINEAR = linear_map(True).double(), torch.linspace(-1, 1, 256, dtype=torch.float64)  # two ways to make it
UNSIGNED_LINEAR = linear_map(False).double()
# In what is kept between the steps. A slip gives the rule that is followed in place of the right one.
OF_STATES = (
    kit.Slip(FLOAT32, lambda rule: replace(rule, numbers=None)),
    kit.Slip(
        "v has linear codes, so every v below 1/510 of the block's largest becomes 0, and m is divided "
        "by eps. Use DYNAMIC_UNSIGNED instead, which has numbers in seven decades.",
        lambda rule: replace(rule, numbers=(SIGNED, UNSIGNED_LINEAR)),
    ),
    *(kit.Slip(LINEAR_M, lambda rule, m=m: replace(rule, numbers=(m, UNSIGNED))) for m in LINEAR),
    *(kit.Slip(LINEAR_BOTH, lambda rule, m=m: replace(rule, numbers=(m, UNSIGNED_LINEAR))) for m in LINEAR),
    kit.Slip(
        "The whole tensor has one scale, so one outlier turns 99 % of v into 0. Give each block of 256 "
        "elements its own scale.",
        lambda rule: replace(rule, whole=True),
    ),
    kit.Slip(
        "v has signed codes but uses only half of them. DYNAMIC_UNSIGNED is twice as fine.",
        lambda rule: replace(rule, numbers=(SIGNED, SIGNED)),
    ),
    kit.Slip(
        "The moments were rounded before the step was taken. Update the parameter from the float32 "
        "moments instead.",
        lambda rule: replace(rule, before=True),
    ),
    kit.Slip(
        "Codes were rounded towards 0, so the moments drift. Take the nearest number instead.",
        lambda rule: replace(rule, floor=True),
    ),
    kit.Slip(
        f"A parameter of fewer than {SMALL:,} elements has 8 bits, but it should keep float32.",
        lambda rule: replace(rule, small=0),
    ),
    kit.Slip(
        f"`block` was not used, so the blocks had {BLOCK} elements.", lambda rule: replace(rule, block=BLOCK)
    ),
)
# In AdamW itself. They cost the line on a parameter in float32, and not those on 8 bits.
OF_ADAMW = (
    kit.Slip(
        "Bias was corrected twice. Store the moments as they are, and correct them only for the step.",
        lambda rule: replace(rule, stored=True),
    ),
    kit.Slip(
        "Bias was not corrected. Use m / (1 - beta1^t) and v / (1 - beta2^t).",
        lambda rule: replace(rule, corrected=False),
    ),
    kit.Slip(
        "Weight decay went into the gradient, and so into the moments. Decoupled weight decay is w *= 1 "
        "- lr * weight_decay.",
        lambda rule: replace(rule, decay="coupled"),
    ),
    kit.Slip(
        "Weight decay ignores the learning rate. Use w *= 1 - lr * weight_decay instead.",
        lambda rule: replace(rule, decay="without lr"),
    ),
    kit.Slip(
        "weight_decay was not used. Add w *= 1 - lr * weight_decay.", lambda rule: replace(rule, decay="none")
    ),
    kit.Slip("eps is inside the root. Use sqrt(v) + eps instead.", lambda rule: replace(rule, inside=True)),
    *(
        kit.Slip(
            "eps was not used. Divide by sqrt(v) + group['eps'].",
            lambda rule, eps=eps: replace(rule, eps=eps),
        )
        for eps in (1e-8, 0.0)
    ),
    kit.Slip(
        "All parameters share one count of steps, but each needs its own in self.state[param]['step'].",
        lambda rule: replace(rule, counted=True),
    ),
)
SLIPS = (*OF_STATES, *OF_ADAMW)
