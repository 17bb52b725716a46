"""Clusters and layouts of exercises 6 to 8, under names that a message can print."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from course_lib.checks import kit
from course_lib.planning.by_hand import A100, LEAN, SELENE

Formula = Callable[..., float]
GPT3_SIZES = (51_200, 2048, 96, 96, 12_288)
# The layout of section 6, with which a message compares.
LAYOUT = {
    "pp": 8, "dp": 16, "cp": 1, "tp": 8, "microbatch": 1, "chunks": 1, "zero": 1, "recompute": "none",
    "sequence": True,
}  # fmt: skip


class Shape(kit.Model):
    """A GPT with GPT-2's parts; a message prints its sizes as one would type them, and GPT3 by its name."""

    def __repr__(self) -> str:
        sizes = (self.vocab_size, self.context, self.layers, self.heads, self.width)
        return "GPT3" if sizes == GPT3_SIZES else f"GPTConfig({', '.join(f'{size:_}' for size in sizes)})"


class Named(dict[str, Any]):
    """A dict that a message names."""

    def __init__(self, name: str, values: Mapping[str, Any]):
        super().__init__(values)
        self.name = name

    def __repr__(self) -> str:
        return self.name


class Plan(dict[str, Any]):
    """A layout; a message prints it as a change of the notebook's LAYOUT, so that it can be typed in."""

    def __repr__(self) -> str:
        changed = [f"{name!r}: {value!r}" for name, value in self.items() if LAYOUT.get(name) != value]
        return f"{{**LAYOUT, {', '.join(changed)}}}" if changed else "LAYOUT"


GPU = Named("A100", A100)
LINKS = Named("SELENE", SELENE)


def gpt(layers: int, heads: int, width: int, context: int = 2048, vocab: int = 51_200) -> Shape:
    return Shape(vocab, context, layers, heads, width)


GPT3 = gpt(96, 96, 12_288)


def plan(pp: int, dp: int, tp: int, **more: Any) -> Plan:
    return Plan({"pp": pp, "dp": dp, "tp": tp, **LEAN, **more})


def drawn(draw: kit.Draw, **more: Any) -> tuple[Shape, Plan, int]:
    """A model, a layout and a batch that divide each other, with a pipeline and unequal axes."""
    pp, tp, dp, chunks = (draw.choice(each) for each in ([2, 4, 8], [2, 4, 8], [3, 6, 12, 24], [1, 2, 4]))
    heads = tp * draw.integer(4, 9)
    shape = gpt(pp * chunks * draw.integer(2, 5), heads, 128 * heads, vocab=1024 * draw.integer(30, 90))
    microbatch = draw.choice([1, 2])
    options = {"chunks": chunks, "microbatch": microbatch, **more}
    return shape, plan(pp, dp, tp, **options), dp * microbatch * pp * draw.integer(3, 7)
