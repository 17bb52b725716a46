"""round_to against torch's casts and against tables of all values, to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from course_lib.pictures.format_explorer import Formats, code_of, gradients, neighbours, rounded
from course_lib.precision import FORMATS, Format, round_to


def test_five_bits_and_ten_round_as_fp16() -> None:
    x = torch.tensor([1 + 2.0**-11, 1 / 3, -70_000.0, 5e-8], dtype=torch.float64)
    assert torch.equal(round_to(x, 5, 10), x.to(torch.float16).double())


IEEE = ("fp16", "bf16", "e5m2")
DRAWN = 500_000


def values(form: Format) -> Tensor:
    """All finite numbers from 0 up, in order."""
    codes = [form.value(code) for code in range(1 << (form.bits - 1))]
    return torch.tensor([v for v in codes if abs(v) < float("inf")], dtype=torch.float64)


def inputs(form: Format, seed: int) -> Tensor:
    """Of all magnitudes; all numbers, the places halfway between them, and the neighbours of both."""
    generator = torch.Generator().manual_seed(seed)
    low, high = form.lowest - form.mantissa_bits - 4, form.highest + 3
    exponents = torch.rand(DRAWN, generator=generator, dtype=torch.float64) * (high - low) + low
    numbers = values(form)
    ties = (numbers[1:] + numbers[:-1]) / 2
    beyond = torch.tensor([form.largest + 2.0 ** (form.highest - form.mantissa_bits - 1)])
    exact = torch.cat([numbers, ties, beyond.double()])
    infinity = torch.full_like(exact, float("inf"))
    near = [exact, exact.nextafter(infinity), exact.nextafter(-infinity)]
    whole = torch.cat([torch.exp2(exponents), *near, torch.tensor([1e300, 5e-324, float("inf")])])
    return torch.cat([whole, -whole, torch.tensor([float("nan")]).double()])


def same(actual: Tensor, wanted: Tensor) -> bool:
    """To the bit, the sign of zero included; NaN is NaN."""
    nan = wanted.isnan()
    bits = actual.view(torch.int64) == wanted.view(torch.int64)
    return bool(torch.where(nan, actual.isnan(), bits).all())


@pytest.mark.parametrize("name", IEEE)
def test_it_rounds_as_torchs_cast(name: str, seed: int) -> None:
    form = FORMATS[name]
    assert form.dtype is not None
    x = inputs(form, seed)
    # a float64 goes through float32 on its way, which rounds once more: take values that float32 has
    x = x.float().double()
    wanted = x.float().to(form.dtype).double()
    assert same(round_to(x, form.exponent_bits, form.mantissa_bits), wanted)


@pytest.mark.parametrize("name", [*IEEE, "e4m3", "e2m1"])
def test_it_rounds_to_the_nearest_value_of_a_table(name: str, seed: int) -> None:
    form = FORMATS[name]
    x, table = inputs(form, seed), values(form)
    ties = (table[1:] + table[:-1]) / 2
    magnitude = x.abs().nan_to_num(nan=0.0)
    place = torch.searchsorted(ties, magnitude)  # a tie belongs to the lower of its neighbours
    up = (
        (place < len(ties)) & (ties[place.clamp(max=len(ties) - 1)] == magnitude) & (place % 2 == 1)
    )
    wanted = table[place + up]
    if not form.finite:
        halfway = form.largest + 2.0 ** (form.highest - form.mantissa_bits - 1)
        wanted = torch.where(magnitude >= halfway, float("inf"), wanted)
    wanted = torch.where(x.isnan(), x, wanted.copysign(x))
    bits = form.exponent_bits, form.mantissa_bits
    actual = round_to(x, *bits, finite=form.finite, nan=form.nan)
    assert same(actual, wanted)


def test_e4m3_has_254_finite_values_and_they_are_torchs() -> None:
    form = FORMATS["e4m3"]
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    ours = torch.tensor([form.value(code) for code in range(256)], dtype=torch.float64)
    assert same(ours, every)
    assert int(every.isfinite().sum()) == 254 and form.largest == 448


@pytest.mark.parametrize("name", [*IEEE, "fp32", "e4m3"])
def test_the_figures_of_a_format_are_torchs(name: str) -> None:
    form = FORMATS[name]
    assert form.dtype is not None
    info = torch.finfo(form.dtype)
    assert (form.largest, form.epsilon, form.bits) == (info.max, info.eps, info.bits)
    assert form.smallest == info.smallest_normal * info.eps


def test_the_largest_e2m1_is_6() -> None:
    form = FORMATS["e2m1"]
    assert [form.value(code) for code in range(8)] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert form.largest == 6
    assert [rounded(x, form) for x in (5.0, 5.1, 100.0, -0.3, 0.74)] == [4, 6, 6, -0.5, 0.5]


@pytest.mark.parametrize("name", FORMATS)
def test_a_number_has_the_bits_that_give_it(name: str) -> None:
    form = FORMATS[name]
    top = 1 << (form.bits - 1)
    for code in {1, 2, 3, top // 3, top // 2, top | min(5, top - 1)}:
        value = form.value(code)
        if abs(value) <= form.largest:
            assert code_of(value, form) == code
            below, above = neighbours(value, form)
            assert below < value < above or above != above


def test_the_boxes_say_what_is_lost() -> None:
    rows = {name: (got, error) for name, _, got, error in Formats(1e-6).table(1e-6)}
    assert rows["fp16"][1] == pytest.approx(0.0133, abs=1e-4)
    assert rows["bf16"][1] == pytest.approx(0.0016, abs=1e-4)
    assert rows["e8m0"][0] == 2.0**-20
    box = gradients(torch.tensor([2.0**-25, 2.0**-24, 1.0, 70000.0]))
    assert box.shares(0) == (0.25, 0.25) and box.shares(1) == (0, 0.25)
    assert box.chart(3) is not None and "image/png" in box._repr_mimebundle_()


def test_the_bits_of_the_box_can_be_switched() -> None:
    box = Formats(1.0, "fp16").widget()
    (_, number), bits = box.children[0].children, box.children[1]
    assert [button.value for button in bits.children] == [bit == "1" for bit in "0011110000000000"]
    bits.children[-1].value = True
    assert number.value == 1 + 2**-10 and "0.0977%" not in box.children[2].value
    number.value = -2.0
    assert [button.value for button in bits.children] == [bit == "1" for bit in "1100000000000000"]
