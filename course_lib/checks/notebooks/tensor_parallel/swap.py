"""parallelize_mlps: a GPT whose MLPs are exchanged for parallel ones, with the weights that it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.checks import kit
from course_lib.checks.judge.layers.lines import (
    held_line,
    members,
    operations,
    same_everywhere_line,
    sent_line,
    values_line,
)
from course_lib.checks.judge.layers.runs import LayerRun, layer_case
from course_lib.checks.notebooks.tensor_parallel.linear import SUB_GROUP
from course_lib.checks.notebooks.tensor_parallel.shared import MANY
from course_lib.checks.notebooks.tensor_parallel.slips import linear_trouble
from course_lib.checks.notebooks.tensor_parallel.whole import FLOAT, REFERENCE
from course_lib.checks.rank import gpt
from course_lib.models import GPT

LR = 0.01
SWIGLU = "SwiGLU"
EMBEDDING = "grad.p.token_embedding.weight"
OTHER_WEIGHTS = (
    "Keep the model's own weights, with up.weight by rows, up.bias, down.weight by columns, down.bias "
    "whole. Overwrite the weights that the new layers' constructors drew."
)
MASKS = (
    "Outside the layers that are cut, every rank has the whole and drops the same elements, so the "
    "default generators of all ranks must agree. Seed nothing by the rank's number."
)
UNCHANGED = (
    "the model sends nothing, forward or backward, because none of its MLPs was exchanged. Put "
    "parallel layers in the place of every block's up and down."
)
STILL_WHOLE = (
    "A rank keeps 1/n of every block's up and down, and nothing of the old layers, not even a view of "
    "their weights."
)


GATE = (
    "A SwiGLU multiplies gate(x) with up(x), feature by feature, so cut `gate` by columns, like up, "
    "if it is not None."
)


def trouble(case_of_it: kit.Case, kind: str, text: str) -> str:
    if case_of_it.title == SWIGLU and "must match the size of tensor" in text:
        return GATE
    if "'NoneType' object is not callable" in text:
        return "Return the model."
    return linear_trouble(case_of_it, kind, text)


@dataclass(frozen=True)
class Swap:
    """A GPT on n ranks, and the tokens that it is run on."""

    n: int
    model: Mapping[str, Any]
    tokens: Tensor
    g: Tensor

    @classmethod
    def draw(cls, draw: kit.Draw, n: int, width: int, dropout: float = 0.0, mlp: str = "gelu") -> Swap:
        """Two blocks, heads of 4, as few tokens as tell something."""
        vocab, batch, seq = 13, 2, 5
        model = {
            "seed": draw.integer(1, 1 << 30), "vocab_size": vocab, "context": 8, "layers": 2,
            "heads": width // 4, "width": width, "dropout": dropout, "tied": False,
            "mlp": mlp,
        }  # fmt: skip
        tokens = torch.randint(vocab, (batch, seq), generator=draw.generator)
        return cls(n, model, tokens, draw.normal(batch, seq, vocab, dtype=torch.float64))

    def built(self) -> GPT:
        return gpt.build(dict(self.model))

    def run(self, name: str) -> LayerRun:
        model = self.built()
        y = model(self.tokens)
        y.backward(self.g)
        gradient = model.token_embedding.weight.grad
        assert gradient is not None
        with torch.no_grad():
            for p in model.parameters():
                p -= LR * (torch.zeros_like(p) if p.grad is None else p.grad)
            again = model(self.tokens)
        wanted = {"y": y.detach(), EMBEDDING: gradient, "again": again}
        return LayerRun(
            name, [{"tokens": self.tokens}] * self.n, [wanted] * self.n, [self.g] * self.n,
            make=([], {}), model=self.model, lr=LR,
        )  # fmt: skip

    @torch.no_grad()
    def changed(self, k: int, biases: float, whole: bool = True) -> Tensor:
        """The logits where down's bias counts so many times, of all hidden features or rank k's alone."""
        model = self.built()
        for block in model.blocks:
            mlp: Any = block.mlp
            mlp.down.bias *= biases
            if not whole:
                for linear in (mlp.up, mlp.gate):
                    if linear is not None:
                        linear.weight = nn.Parameter(linear.weight.tensor_split(self.n)[k])
                        linear.bias = nn.Parameter(linear.bias.tensor_split(self.n)[k])
                mlp.down.weight = nn.Parameter(mlp.down.weight.tensor_split(self.n, 1)[k])
        return model(self.tokens)

    @torch.no_grad()
    def ungated(self) -> Tensor:
        """The logits of a GELU in the place of the SwiGLU; the same where there is none."""
        model = self.built()
        for block in model.blocks:
            mlp: Any = block.mlp
            mlp.gate = None
        return model(self.tokens)

    def slips(self) -> list[kit.Slip]:
        return [
            *(
                kit.Slip(f"The output is a GELU without the gate. {GATE}", lambda k: {"y": self.ungated()})
                for _ in range(self.model["mlp"] == "swiglu")
            ),
            kit.Slip(
                f"down's bias counts {self.n} times. Add it once, after the sum.",
                lambda k: {"y": self.changed(k, self.n)},
            ),
            kit.Slip(
                "down's bias is missing, but it also belongs to the new layer.",
                lambda k: {"y": self.changed(k, 0)},
            ),
            kit.Slip(
                "Each rank goes on with its own hidden features' term, but down is row-parallel, so "
                "sum the terms.",
                lambda k: {"y": self.changed(k, 1, whole=False)},
            ),
        ]

    def held(self) -> float:
        """Bytes of the model, its MLPs' weights divided by the ranks."""
        sizes = {name: p.numel() for name, p in self.built().named_parameters()}
        cut = sum(size for name, size in sizes.items() if ".mlp." in name and not name.endswith("down.bias"))
        return FLOAT * (sum(sizes.values()) - cut * (self.n - 1) / self.n)

    def lines(self, run: LayerRun, title: str, weight: float) -> list[kit.Line]:
        share = (self.n - 1) / self.n
        stream = FLOAT * self.tokens.numel() * self.model["width"]
        volume = self.model["layers"] * 2 * share * stream
        entrances = 2 if self.model["mlp"] == "swiglu" else 1  # x enters gate and up, together or each
        rows = [
            ("y", "logits", 2.0, OTHER_WEIGHTS),
            (EMBEDDING, "gradient of the embedding", 1.0,
             ("An MLP's input is whole, but up is cut by columns, so sum the input's gradient over the "
             "ranks.")),
            ("again", "logits after a step", 1.0, "The gradients of the exchanged layers are not right."),
        ]  # fmt: skip
        values = [
            values_line(
                run, f"{title}: {what}", names=[name], slips=self.slips(), otherwise=otherwise,
                weight=weight * part,
            )
            for name, what, part, otherwise in rows
        ]  # fmt: skip
        sent = [
            sent_line(
                run, direction, [volume] * self.n, most=[times * volume] * self.n, weight=weight / 2,
                title=f"{title}: bytes {direction}", point=MANY,
                hint=lambda ratio, done: ("One all-reduce for each block is enough, with columns first "
                                         "and rows second."),
            )
            for direction, times in (("forward", 1), ("backward", entrances))
        ]  # fmt: skip
        held = held_line(
            run, [self.held()] * self.n, says=STILL_WHOLE, weight=2 * weight, title=f"{title}: parameters"
        )
        return [*(if_exchanged(line, run) for line in values), *sent, kit.essential(held)]


def if_exchanged(line: kit.Line, run: LayerRun) -> kit.Line:
    """The line, wrong where nothing is sent either way: a model left as it is has right values too."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        quiet = not any(
            operations(run, observed, rank, direction)
            for rank in members(observed)
            for direction in ("forward", "backward")
        )
        return kit.wrong(UNCHANGED, cause=UNCHANGED) if finding.ok and quiet else finding

    return replace(line, judge=judge)


@kit.exercise(
    points=3,
    objects=("parallelize_mlps",),
    references=REFERENCE,
    extra=True,
    hint=trouble,
    point="MLPs of which each rank holds only its part, with one sum behind them",
)
def swap(draw: kit.Draw) -> Iterator[kit.Case]:
    four = Swap.draw(draw, 4, 16)
    run = four.run("four")
    dropped = Swap.draw(draw, 4, 8, dropout=0.4).run("dropped")
    yield layer_case(
        "4 ranks",
        [run, dropped],
        [
            *four.lines(run, "4 ranks", 1),
            if_exchanged(
                same_everywhere_line(dropped, "y", "the same masks of dropout on every rank", MASKS), dropped
            ),
        ],
    )
    two = Swap.draw(draw, 2, 8)
    run = two.run("two")
    yield layer_case("sub-group", [run], two.lines(run, "group {1, 2}", 0.5), members=SUB_GROUP, world_size=3)
    gated = Swap.draw(draw, 2, 8, mlp="swiglu")
    run = gated.run("gated")
    yield layer_case(SWIGLU, [run], gated.lines(run, "SwiGLU, 2 ranks", 0.5))
    if draw.hidden:
        three = Swap.draw(draw, 3, 12)
        run = three.run("three")
        yield layer_case("3 ranks", [run], three.lines(run, "3 ranks", 0.5))
        single = Swap.draw(draw, 1, 8)
        run = single.run("one")
        yield layer_case("1 rank", [run], [values_line(run, "1 rank", weight=0.5, trivial=True)])
