"""Number formats: a float from its bits, and a number rounded to a format.

A float has a sign, `exponent_bits` bits e and `mantissa_bits` bits m. With bias = 2^(exponent_bits - 1) - 1
its value is

    (1 + m / 2^mantissa_bits) * 2^(e - bias)      a normal number, e > 0
         m / 2^mantissa_bits  * 2^(1 - bias)      a subnormal number, e = 0: the steps of the first binade

Within a binade (from 2^k to 2^(k+1)) the numbers are equally spaced, 2^(k - mantissa_bits) apart. So the
exponent decides how far a format reaches, and the mantissa how fine it is. In the formats of IEEE 754, the
largest e stands for infinity and NaN. But e4m3 ("fn" for finite) gives only one code to NaN and so has one
more binade. This is why its largest number is 448 instead of 240. e2m1, one of OCP's MX formats, does not
have a NaN either.

`round_to` rounds as hardware does, to the nearest number of the format. If two numbers are equally near, it
takes the one whose last bit is 0.

Sources: IEEE 754-2019, sections 3.4 and 4.3.1. Micikevicius et al., FP8 Formats for Deep Learning, 2022,
section 3. OCP Microscaling Formats (MX) Specification 1.0, 2023, section 5.3. NVIDIA A100 whitepaper, 2020
(tf32).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Format:
    """The bits of a format. finite: it has no infinities. nan: whether a code stands for NaN."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    finite: bool = False
    nan: bool = True
    dtype: torch.dtype | None = None  # torch's dtype, if it has one

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def lowest(self) -> int:
        """The exponent of the smallest normal number, and of all subnormal numbers."""
        return 1 - self.bias

    @property
    def highest(self) -> int:
        """The exponent of the largest number."""
        return self.bias + 1 if self.finite else self.bias

    @property
    def largest(self) -> float:
        ones = 2 if self.finite and self.nan else 1  # steps below 2.0; e4m3's last code is NaN
        return (2 - ones * 2.0**-self.mantissa_bits) * 2.0**self.highest

    @property
    def smallest(self) -> float:
        """The smallest number above 0."""
        return 2.0 ** (self.lowest - self.mantissa_bits)

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number."""
        return 2.0**-self.mantissa_bits

    def value(self, code: int) -> float:
        """The number for which the bits of `code` stand, with the sign in front."""
        sign = -1.0 if code >> (self.bits - 1) else 1.0
        e = code >> self.mantissa_bits & (1 << self.exponent_bits) - 1
        m = code & (1 << self.mantissa_bits) - 1
        fraction = m * 2.0**-self.mantissa_bits
        top = e == (1 << self.exponent_bits) - 1
        if top and not self.finite:
            return float("nan") if m else sign * float("inf")
        if top and self.nan and m == (1 << self.mantissa_bits) - 1:
            return float("nan")
        return sign * (
            fraction * 2.0**self.lowest if e == 0 else (1 + fraction) * 2.0 ** (e - self.bias)
        )


FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format("fp32", 8, 23, dtype=torch.float32),
        Format(
            "tf32", 8, 10
        ),  # 19 bits of a float32 that a tensor core reads; nothing is stored in it
        Format("bf16", 8, 7, dtype=torch.bfloat16),
        Format("fp16", 5, 10, dtype=torch.float16),
        Format("e5m2", 5, 2, dtype=torch.float8_e5m2),
        Format("e4m3", 4, 3, finite=True, dtype=torch.float8_e4m3fn),
        Format("e2m1", 2, 1, finite=True, nan=False),
    )
}  # e8m0, the scale of MX blocks, has neither sign nor mantissa: 2^-127 to 2^127, and NaN


def round_to(
    x: Tensor, exponent_bits: int, mantissa_bits: int, *, finite: bool = False, nan: bool = True
) -> Tensor:
    """`x` rounded to the nearest number of a format, ties to even; a new float64 tensor of its shape.

    x: float64, any shape. finite: as for e4m3, which has one more binade and no infinities. Values beyond the
    largest number, infinity included, then become the largest number. nan=False: as for e2m1, whose last code
    is also a number (6 instead of NaN). Without `finite`, a value becomes infinite if it is nearer to the
    next power of two than to the largest number, or halfway. NaN and the sign of zero stay.
    """
    form = Format("", exponent_bits, mantissa_bits, finite, nan)
    binade = torch.frexp(x).exponent - 1  # x = 1.f * 2^binade
    exponent = binade.clamp(min=form.lowest) - mantissa_bits
    step = torch.exp2(exponent.double())
    rounded = (
        torch.round(x / step) * step
    )  # dividing by a power of two does not round; round: half to even
    if finite:
        return rounded.clamp(-form.largest, form.largest)
    infinity = torch.full_like(rounded, float("inf")).copysign(rounded)
    return torch.where(rounded.abs() > form.largest, infinity, rounded)
