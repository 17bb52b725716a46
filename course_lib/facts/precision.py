"""Recipes of training: the bytes each of them needs per parameter.

A recipe keeps up to four things for each parameter: the weight that is multiplied, its gradient, a float32
copy of the weight (the master copy, which the optimizer changes), and the optimizer's moments. The numbers
apply between the steps, when the gradient is complete. If a format needs scales in addition to its values,
they are counted, with 4 bytes per block.

Sources: Micikevicius et al., Mixed Precision Training, 2018, section 3.1 (the master copy). Rajbhandari et
al., ZeRO, 2020, section 3.1 (2 + 2 + 12). Megatron Core's developer guide, distributed optimizer (18 and 20
bytes). DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, section 3.3 and figure 6 (float32 master and
gradients, moments in bf16, the linear layers' weights cast to fp8 in blocks of 128 x 128). Dettmers et al.,
8-bit Optimizers via Block-wise Quantization, 2022 (one byte per moment, one float32 scale per block;
bitsandbytes uses blocks of 256). Autocast: PyTorch's documentation of `torch.amp`, and measured.
"""

from __future__ import annotations

from dataclasses import dataclass

SCALE = 4  # bytes of a block's scale, in float32
BLOCK = 256  # elements of a moment that share a scale in 8-bit Adam


# The sum of an fp8 product on an H800, as measured by DeepSeek. It keeps about 14 bits, so a sum of 4,096
# terms is off by nearly 2 % at most. Their kernel moves it to float32 after 128 terms. (DeepSeek-V3, section
# 3.3.2.)
ACCUMULATOR_BITS = 14
ACCUMULATOR_TERMS, ACCUMULATOR_ERROR = 4096, 0.02
PROMOTED_AFTER = 128


def scaled_bytes(rows: int, columns: int, scale: int = SCALE) -> float:
    """Bytes per 8-bit value, with its share of the scale of a block of rows x columns values.

    scale: bytes of a scale; 1 in MX, whose scales are powers of two. Tiles of 1 x 128 with a float32 scale
    cost the same as MX's blocks of 32: 1.03125.
    """
    return 1 + scale / (rows * columns)


def eight_bit_states(block: int = BLOCK) -> float:
    """Bytes per parameter for Adam's two moments in 8 bits: 2 + 8 / block; 2.03 with blocks of 256."""
    return 2 * scaled_bytes(1, block)


@dataclass(frozen=True)
class Recipe:
    """Bytes per parameter, by what they hold. code: four lines that say so; source: where it is described."""

    name: str
    weights: float
    gradients: float
    master: float
    moments: float
    code: str
    source: str

    @property
    def parts(self) -> tuple[float, float, float, float]:
        return self.weights, self.gradients, self.master, self.moments

    @property
    def total(self) -> float:
        return sum(self.parts)


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "float32", 4, 4, 0, 8,
        """model = GPT(config)
optimizer = torch.optim.AdamW(model.parameters())
loss_of(model, batch).backward()
optimizer.step()""",
        "PyTorch's documentation of torch.optim.AdamW",
    ),
    Recipe(
        "autocast", 4, 4, 0, 8,
        """model, optimizer = GPT(config), torch.optim.AdamW(model.parameters())
with torch.autocast("cuda", torch.bfloat16):
    loss = loss_of(model, batch)
loss.backward(); optimizer.step()""",
        "PyTorch's documentation of torch.amp",
    ),
    Recipe(
        "zero", 2, 2, 4, 8,
        """model = GPT(config).half()
master = [p.detach().float() for p in model.parameters()]
optimizer = torch.optim.Adam(master)
# backward leaves gradients in fp16; the step reads them, changes master, and copies it into the model""",
        "ZeRO, section 3.1",
    ),
    Recipe(
        "megatron bf16", 2, 4, 4, 8,
        """model = GPT(config).bfloat16()
main_grad = [torch.zeros_like(p, dtype=torch.float32) for p in model.parameters()]
master = [p.detach().float() for p in model.parameters()]
# each gradient is added to main_grad and freed; Adam has the master copy""",
        "Megatron Core, distributed optimizer",
    ),
    Recipe(
        "megatron fp16", 2, 6, 4, 8,
        """model = GPT(config).half()
master = [p.detach().float() for p in model.parameters()]
# backward leaves gradients in fp16, which stay
for m, p in zip(master, model.parameters()): m.grad = p.grad.float()""",
        "Megatron Core, distributed optimizer",
    ),
    Recipe(
        "pure bf16", 2, 2, 0, 4,
        """model = GPT(config).bfloat16()
optimizer = torch.optim.AdamW(model.parameters())
loss_of(model, batch).backward()
optimizer.step()""",
        "PyTorch's documentation of torch.optim.AdamW",
    ),
    Recipe(
        "deepseek-v3", scaled_bytes(128, 128), 4, 4, 4,
        """master = [p.detach().float() for p in linear_weights]
weights = [to_fp8(m, block=(128, 128)) for m in master]  # one float32 scale per block
main_grad = [torch.zeros_like(m) for m in master]
exp_avg, exp_avg_sq = ([m.bfloat16() for m in main_grad] for _ in range(2))""",
        "DeepSeek-V3, section 3.3 and figure 6",
    ),
    Recipe(
        "adam 8 bits", 2, 2, 4, eight_bit_states(),
        """model = GPT(config).bfloat16()
master = [p.detach().float() for p in model.parameters()]
optimizer = Adam8bit(master, block=256)  # both moments in uint8, one float32 scale for 256 of them
# backward leaves gradients in bf16; the step reads them and copies the master into the model""",
        "8-bit Optimizers, section 2; bitsandbytes",
    ),
    Recipe(
        "sgd", 4, 4, 0, 4,
        """model = GPT(config)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loss_of(model, batch).backward()
optimizer.step()""",
        "PyTorch's documentation of torch.optim.SGD",
    ),
)  # fmt: skip


def recipe(name: str) -> Recipe:
    """The recipe of that name. ValueError names the others."""
    for candidate in RECIPES:
        if candidate.name == name:
            return candidate
    names = ", ".join(candidate.name for candidate in RECIPES)
    raise ValueError(f"{name!r} is not one of the recipes: {names}")


def recipe_bytes(name: str) -> tuple[float, float, float, float]:
    """Bytes per parameter of a recipe: (weights, gradients, master copy, moments). "zero": (2, 2, 4, 8)."""
    return recipe(name).parts
