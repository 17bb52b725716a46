"""The bars and curves of notebook 01, drawn from functions that the notebook hands over.

A function of the notebook, such as `step_flops`, comes as an argument, so each picture shows the reader's own
answers. Colours are those of the ranks for parts of a bar, and three hues of the course for models and cards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from course_lib import facts
from course_lib.facts.transformer import Shape
from course_lib.pictures.colours import (
    ALARM,
    BACKWARD,
    FORWARD,
    INK,
    QUIET,
    RANKS,
    WEIGHT_GRADIENT,
    Picture,
    picture,
)
from course_lib.pictures.memory_figures import bill_axes

HATCHES = ("", "///", "...", "\\\\\\", "xx")
LENGTHS = tuple(2**k for k in range(7, 18))
TOKENS = tuple(2**k for k in range(13))
WIDTH = 4096  # of the weight under a roofline
RECIPE_PARTS = ("weights", "gradients", "master copy", "moments")


def bars(
    rows: Mapping[str, Mapping[str, float]], unit: str = "", line: tuple[float, str] | None = None
) -> Picture:
    """Horizontal bars in several parts. rows: by name, the parts' numbers by theirs.

    line: the number and the label of a vertical line.
    """
    figure = picture(8.6, 0.5 + 0.34 * len(rows))
    axes = figure.subplots()
    names = list(dict.fromkeys(part for parts in rows.values() for part in parts))
    for place, parts in enumerate(rows.values()):
        left = 0.0
        for part, number in parts.items():
            index = names.index(part)
            axes.barh(
                place, number, left=left, height=0.72, color=RANKS[index], hatch=HATCHES[index],
                edgecolor="white", linewidth=0, label=part if place == 0 else None,
            )  # fmt: skip
            left += number
    if line:
        axes.axvline(line[0], color=ALARM, linewidth=1.4)
        axes.text(line[0], -0.62, f" {line[1]}", fontsize=8, color=ALARM, va="bottom")
    axes.set_yticks(range(len(rows)), list(rows), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(unit, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def in_percent(parts: Mapping[str, float]) -> dict[str, float]:
    whole = sum(parts.values())
    return {part: 100 * number / whole for part, number in parts.items()}


def parameter_shares(configs: Mapping[str, Shape]) -> Picture:
    """The share of each part of a model in its parameters, the smallest model at the top."""
    parts = {name: facts.parameters_by_part(config) for name, config in configs.items()}
    rows = {
        f"{name}: {sum(parts[name].values()) / 1e9:.3g}B": in_percent(parts[name])
        for name in sorted(parts, key=lambda name: sum(parts[name].values()))
    }
    return bars(rows, "% of all parameters")


def forward_shares(configs: Mapping[str, Shape], lengths: Sequence[tuple[str, int]]) -> Picture:
    """The share of each product in the FLOPs of a forward. lengths: pairs (model, tokens in a sequence).

    (With the biases, 0.1 %, which a picture can bear.)
    """
    rows = {}
    for name, seq in lengths:
        config = configs[name]
        parts = facts.parameters_by_part(config)
        rows[f"{name}, {seq:,} tokens"] = in_percent(
            {
                "projections": 2 * seq * parts["attention"],
                "scores": 4 * seq**2 * config.width * config.layers,
                "mlp": 2 * seq * parts["mlp"],
                "head": 2 * seq * config.vocab_size * config.width,
            }
        )
    return bars(rows, "% of forward's FLOPs")


def rule_of_thumb(
    step_flops: Callable[..., int], multiplied: Callable[[Shape], int], configs: Mapping[str, Shape]
) -> Picture:
    """6ND over the FLOPs of a step, against the tokens of a sequence; a dot at a model's own context.

    multiplied: N, the elements of all matrices that a token is multiplied by. Dashed lines leave out masked
    scores. Prints the ratio at each dot.
    """
    figure = picture(7.2, 2.9)
    axes = figure.subplots()
    for (name, config), colour in zip(configs.items(), (FORWARD, BACKWARD, INK), strict=True):
        n, usual = multiplied(config), config.context
        for causal, style in ((False, "-"), (True, "--")):
            ratios = [6 * n * s / step_flops(config, 1, s, causal=causal) for s in LENGTHS]
            label = None if causal else f"{name}, h = {config.width:,}"
            axes.plot(LENGTHS, ratios, style, color=colour, label=label)
        ratio = 6 * n * usual / step_flops(config, 1, usual)
        axes.plot(usual, ratio, "o", color=colour)
        print(f"{name:12} {usual:6,} tokens: 6ND is {ratio:.3f} of the step")
    axes.set_xscale("log", base=2)
    axes.set_xticks(LENGTHS, [f"{each:,}" for each in LENGTHS], fontsize=7, rotation=30)
    axes.set(ylim=(0, 1.05), ylabel="6ND / FLOPs", xlabel="tokens in a sequence")
    axes.grid(True, alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    return figure


def recipe_bars(
    recipe_bytes: Callable[[str], tuple[float, ...]], billions: float, room: float
) -> Picture:
    """GB of model states by recipe, for so many billions of parameters, and a line at `room` GB."""
    rows = {}
    for recipe in facts.RECIPES:
        of_parts = [billions * nbytes for nbytes in recipe_bytes(recipe.name)]
        rows[f"{recipe.name}: {sum(of_parts):.0f} GB"] = dict(
            zip(RECIPE_PARTS, of_parts, strict=True)
        )
    return bars(rows, "GB of model states, LLaMA-7B", (room, f"{room:g} GB"))


def reach(cards: Sequence[Any]) -> Picture:
    """The most TFLOP/s of a product with a weight of 4,096 x 4,096, against its tokens; dotted: the peak."""
    figure = picture(7.2, 2.7)
    axes = figure.subplots()
    for card, colour in zip(cards, (FORWARD, BACKWARD), strict=True):
        work = [2 * m * WIDTH**2 for m in TOKENS]
        seconds = [
            facts.matmul_seconds(m, WIDTH, WIDTH, card.flops, card.bandwidth) for m in TOKENS
        ]
        at_best = [w / s / 1e12 for w, s in zip(work, seconds, strict=True)]
        axes.plot(TOKENS, at_best, color=colour, label=card.name)
        axes.axhline(card.flops / 1e12, color=colour, linestyle=":", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="tokens m", ylabel="TFLOP/s at best")
    axes.set_xticks(TOKENS, [f"{m:,}" for m in TOKENS], fontsize=8)
    return finished(figure)


def under_the_roof(
    matmul_seconds: Callable[..., float],
    peak: float,
    bandwidth: float,
    seconds: Mapping[int, float],
) -> Picture:
    """Measured products with a weight of 4,096 x 4,096 in float32, under the roof. seconds: by tokens."""
    figure = picture(7.2, 2.9)
    axes = figure.subplots()
    roof = [2 * m * WIDTH**2 / matmul_seconds(m, WIDTH, WIDTH, peak, bandwidth, 4) for m in seconds]
    reached = [2 * m * WIDTH**2 / taken for m, taken in seconds.items()]
    axes.plot(list(seconds), [each / 1e9 for each in roof], color=INK, label="your roof")
    axes.plot(list(seconds), [each / 1e9 for each in reached], "o", color=FORWARD, label="measured")
    axes.set(xscale="log", yscale="log", xlabel="tokens m", ylabel="GFLOP/s")
    axes.set_xticks(list(seconds), list(map(str, seconds)), fontsize=8)
    return finished(figure)


def along_the_budget() -> Picture:
    """The loss of two laws along 6 N D = C, for Chinchilla's budget, each with its lowest point."""
    sizes = [10 ** (9.5 + 0.05 * k) for k in range(51)]
    figure = picture(7.2, 2.9)
    axes = figure.subplots()
    for name, colour, style in (("printed", BACKWARD, "--"), ("replication", FORWARD, "-")):
        law = facts.LAWS[name]
        losses = [facts.law_loss(n, facts.CHINCHILLA / 6 / n, law) for n in sizes]
        best = min(range(len(sizes)), key=losses.__getitem__)
        axes.plot([n / 1e9 for n in sizes], losses, style, color=colour, label=name)
        axes.plot(sizes[best] / 1e9, losses[best], "v", color=colour)
    axes.axvline(70, color=QUIET, linestyle=":", linewidth=1)
    axes.text(73, 2.06, "Chinchilla, 70B", fontsize=8, color=QUIET)
    axes.set(xscale="log", xlabel="parameters, in billions", ylabel="loss that the law predicts")
    axes.set_xticks([5, 10, 20, 50, 100, 200, 500], ["5", "10", "20", "50", "100", "200", "500"])
    return finished(figure)


def laws_and_models(compute_optimal: Callable[..., tuple[float, float]]) -> Picture:
    """The best size of a model against the budget, by three laws; dots: the models of published runs."""
    budgets = [10 ** (21 + 0.1 * k) for k in range(56)]
    figure = picture(7.2, 3.0)
    axes = figure.subplots()
    looks = ((BACKWARD, "--"), (WEIGHT_GRADIENT, ":"), (FORWARD, "-"))
    for (name, law), (colour, style) in zip(facts.LAWS.items(), looks, strict=True):
        best = [compute_optimal(budget, law)[0] / 1e9 for budget in budgets]
        axes.plot(budgets, best, style, color=colour, label=name)
    runs = [(run.name, run.params, run.tokens) for run in facts.RUNS if "DeepSeek" not in run.name]
    offsets = {"Chinchilla": (-50, 4), "LLaMA-65B": (8, -14), "Llama-3-405B": (-64, -12)}
    for name, n, d in [*runs, ("Llama-3-8B", 8e9, 15e12), ("Gopher", 280e9, 300e9)]:
        at, offset = (6 * n * d, n / 1e9), offsets.get(name, (6, -3))
        axes.plot(*at, "o", color=INK, ms=4)
        axes.annotate(name, at, offset, textcoords="offset points", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="budget in FLOPs", ylabel="billions of parameters")
    axes.grid(True, alpha=0.3)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def layout_bars(config: Shape, gpus: int, batch: int, seq: int, room: float) -> Picture:
    """The bill of a GPU in each of the eight layouts, and a line at its room."""
    figure = picture(8.6, 2.9)
    axes = figure.subplots()
    bills = {
        f"stage {stage}{', checkpointed' if checkpoint else ''}": facts.layout_bytes(
            config, gpus, batch, seq, stage, checkpoint
        )
        for stage, checkpoint in facts.LAYOUTS
    }
    bill_axes(axes, bills, room)
    above = axes.get_xaxis_transform()  # x in GB, y as a share of the height
    axes.text(
        room / 1e9,
        1.01,
        f"{room / 1e9:g} GB",
        transform=above,
        fontsize=8,
        color=ALARM,
        ha="center",
    )
    return figure


def finished(figure: Picture) -> Picture:
    """Without minor ticks, with a faint grid and a legend."""
    axes = figure.axes[0]
    axes.minorticks_off()
    axes.grid(True, alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    return figure
