"""first_that_fits: the cheapest layout whose bill fits the room on every GPU, or None."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.why_distribute.references import REFERENCES

Layout = tuple[int, bool]
Bill = Mapping[str, float]
LAYOUTS = facts.LAYOUTS
CASES = 60
NONE = "None"
CHEAPEST = (
    "All of your layouts fit, but some are not the cheapest. Try them from the cheapest on. If you already "
    "do, your bill is too large, so compare it with the table above the exercise, line by line."
)
HIDDEN_BYTES = (
    "Checkpointing comes too early. It costs a third of the FLOPs, but the bytes of stage 3 can be hidden."
)
NO_BLOCK = "Stage 3 also holds one block's full weights and gradients while it runs."
HALF_A_BLOCK = "Stage 3 also holds one block's full gradients, not only its weights."
SHARE_OF_ALL = "The gathered block has no embedding and no head, so it is less than P divided by the layers."
NO_MASTER_COPY = "The optimizer has 12 bytes per parameter, for m, v, and the float32 copy of the weights."
OTHERWISE = (
    "Compare your bill with the table above the exercise, line by line. The bill builds on `parameters` "
    "and `activation_bytes`, so if one of them is wrong, correct it first."
)


@dataclass(frozen=True)
class Plan:
    """The arguments of a call."""

    model: kit.Model
    gpus: int
    room: float
    batch: int
    seq: int

    @property
    def args(self) -> tuple[Any, ...]:
        return self.model, self.gpus, self.room, self.batch, self.seq

    def bill(self, layout: Layout) -> dict[str, float]:
        return facts.layout_bytes(self.model, self.gpus, self.batch, self.seq, *layout)

    @property
    def right(self) -> Layout | None:
        return facts.first_that_fits(*self.args)

    def __str__(self) -> str:
        room = f"{self.room / 1e9:.6g}e9"
        return f"first_that_fits({self.model!r}, {self.gpus}, {room}, {self.batch}, {self.seq})"


def first(
    plan: Plan,
    bill: Callable[[Plan, Layout], Bill] = Plan.bill,
    order: Sequence[Layout] = LAYOUTS,
    room: Callable[[Plan], float] = lambda plan: plan.room,
) -> Layout | None:
    for layout in order:
        if sum(bill(plan, layout).values()) <= room(plan):
            return layout
    return None


def changed(change: Callable[[Plan, Layout, dict[str, float]], Bill]) -> Callable[[Plan], Layout | None]:
    """The answer with a bill that is changed: some parts are, by their names."""
    return lambda plan: first(plan, lambda p, layout: {**(bill := p.bill(layout)), **change(p, layout, bill)})


def divided(plan: Plan, layout: Layout, bill: Bill) -> Bill:
    share = plan.gpus if layout[0] else 1
    return {"activations": bill["activations"] / share}


def always_divided(plan: Plan, layout: Layout, bill: Bill) -> Bill:
    return {"activations": bill["activations"] / plan.gpus, "logits": bill["logits"] / plan.gpus}


def in_float32(plan: Plan, layout: Layout, bill: Bill) -> Bill:
    return {"activations": facts.activation_bytes(plan.model, plan.batch, plan.seq, 4, checkpoint=layout[1])}


def share_of_all(plan: Plan, layout: Layout, bill: Bill) -> Bill:
    whole = sum(facts.parameters_by_part(plan.model).values())
    return {"gathered block": 4 * whole / plan.model.layers if layout[0] == 3 else 0.0}


def only_its_own(plan: Plan, layout: Layout, bill: Bill) -> Bill:
    """Each stage divides one part, as by `stage == 2` for the gradients."""
    parts = {"optimizer": 1, "gradients": 2}
    return {part: bill[part] * (plan.gpus if layout[0] > least else 1) for part, least in parts.items()}


def of_all(plan: Plan, layout: Layout, bill: Bill) -> Bill:
    return {"activations": bill["activations"] * plan.gpus}


def of_all_with_logits(plan: Plan, layout: Layout, bill: Bill) -> Bill:
    return {part: bill[part] * plan.gpus for part in ("activations", "logits")}


def fitting(plan: Plan) -> list[Layout]:
    return [layout for layout in LAYOUTS if sum(plan.bill(layout).values()) <= plan.room]


def in_order(key: Callable[[Layout], Any]) -> Callable[[Plan], Layout | None]:
    order = sorted(LAYOUTS, key=key)
    return lambda plan: first(plan, order=order)


def never_alone(plan: Plan) -> Layout | None:
    """Sharding by stage 1 always, on one GPU too."""
    return first(plan, order=[layout for layout in LAYOUTS if layout[0]])


SLIPS: dict[str, Callable[[Plan], Layout | None]] = {
    "room is the room on one GPU, so each has to hold its own bill.": (
        lambda plan: first(plan, room=lambda p: p.room * p.gpus)
    ),
    HIDDEN_BYTES: (
        in_order(lambda layout: (layout[0] == 3, layout[1], layout[0]))
    ),
    "Checkpointing comes too early. It costs a third of the FLOPs, but sharding saves bytes for little or "
    "nothing.": in_order(lambda layout: (layout[0], layout[1])),
    "Checkpointing comes too early, because it costs a third of the FLOPs, and sharding less.": (
        in_order(lambda layout: (not layout[1], layout[0]))
    ),
    "Your function takes the layout that saves most. Take the cheapest that fits.": (
        in_order(lambda layout: (not layout[1], -layout[0]))
    ),
    "Your function begins at the highest stage, which sends most. Take the cheapest layout that fits.": (
        in_order(lambda layout: (layout[1], -layout[0]))
    ),
    "Your function takes the layout with the smallest bill. Take the cheapest that fits.": (
        lambda plan: min(fitting(plan), key=lambda layout: sum(plan.bill(layout).values()), default=None)
    ),
    "Your function returns one layout for every plan. Add up each bill, and take the first that fits.": (
        lambda plan: LAYOUTS[-1]
    ),
    "A bill that is exactly as large as the room fits, so compare with <=.": (
        lambda plan: next(
            (layout for layout in LAYOUTS if sum(plan.bill(layout).values()) < plan.room), None
        )
    ),
    "Sharding over one rank saves nothing, so take 0. Replicas that fit also need no stage.": never_alone,
    "batch is already the batch of one GPU, so do not multiply it by the number of GPUs.": changed(of_all),
    "batch is already the batch of one GPU, so do not multiply it by the number of GPUs, neither for the "
    "activations nor for the logits.": changed(of_all_with_logits),
    "batch is already the batch of one GPU, so do not divide it by the number of GPUs.": (
        changed(lambda plan, layout, bill: {"activations": bill["activations"] / plan.gpus})
    ),
    "Activations are in 16 bits here, so call `activation_bytes` with itemsize 2.": changed(in_float32),
    "No stage divides the activations, because every GPU has its own sequences.": changed(divided),
    "No stage divides activations or logits, because every GPU has its own sequences.": (
        changed(always_divided)
    ),
    "No stage divides the logits, because every GPU has its own sequences.": (
        changed(lambda plan, layout, bill: {"logits": bill["logits"] / plan.gpus})
    ),
    "No stage divides the logits, since every GPU has its own sequences.": (
        changed(lambda plan, layout, bill: {"logits": bill["logits"] / (plan.gpus if layout[0] else 1)})
    ),
    "A checkpointed layout keeps less, so call `activation_bytes` with its `checkpoint`.": (
        changed(lambda plan, layout, bill: {"activations": plan.bill((0, False))["activations"]})
    ),
    NO_BLOCK: (
        changed(lambda plan, layout, bill: {"gathered block": 0.0})
    ),
    SHARE_OF_ALL: (
        changed(share_of_all)
    ),
    HALF_A_BLOCK: (
        changed(lambda plan, layout, bill: {"gathered block": bill["gathered block"] / 2})
    ),
    "The logits are missing. A sequence of 8,192 tokens of Llama 3 has 1.05e9 logits x 6 bytes, so 6.3 GB.": (
        changed(lambda plan, layout, bill: {"logits": 0.0})
    ),
    "The logits exist in float32 and in 16 bits, so each takes 6 bytes.": (
        changed(lambda plan, layout, bill: {"logits": bill["logits"] * 2 / 3})
    ),
    "The logits exist in float32 as well as in 16 bits, so each takes 6 bytes.": (
        changed(lambda plan, layout, bill: {"logits": bill["logits"] / 3})
    ),
    NO_MASTER_COPY: (
        changed(lambda plan, layout, bill: {"optimizer": bill["optimizer"] * 2 / 3})
    ),
    "Stages 2 and 3 also divide the optimizer's part. A stage divides everything the stage before it "
    "divides.": changed(only_its_own),
    "Stages 2 and 3 also divide the optimizer's part, because a stage divides everything the stage before it "
    "divides.": changed(
        lambda plan, layout, bill: {
            "optimizer": bill["optimizer"] * (plan.gpus if layout[0] > 1 else 1)
        }
    ),
    "Stage 2 also divides the gradients, and stage 3 the weights. A stage divides everything the stage "
    "before it divides.": changed(
        lambda plan, layout, bill: {
            "gradients": bill["gradients"] * (plan.gpus if layout[0] == 2 else 1)
        }
    ),
    "Stage 2 keeps 2 bytes per parameter on every GPU, the weights, so 140 GB for 70B.": changed(
        lambda plan, layout, bill: {"weights": bill["weights"] / (plan.gpus if layout[0] == 2 else 1)}
    ),
}  # fmt: skip


def bill_of(plan: Plan, layout: Layout) -> str:
    """A layout's bill in words: "(2, False) needs 187.2 GB: weights 141.1, ..."."""
    parts = {part: nbytes for part, nbytes in plan.bill(layout).items() if nbytes}
    listed = ", ".join(f"{part} {nbytes / 1e9:.4g}" for part, nbytes in parts.items())
    return f"{layout} needs {in_gb(sum(parts.values()))} GB ({listed})"


def in_gb(nbytes: float) -> str:
    """Digits down to the byte, because a bill may be larger than the room by one byte."""
    return f"{nbytes / 1e9:.14g}"


def read(value: Any) -> Layout | str:
    """The layout of an answer, NONE, or words for something else."""
    if value is None:
        return NONE
    if isinstance(value, list) and len(value) == 2:
        stage, checkpoint = value
        if checkpoint in (0, 1) and isinstance(stage, int) and not isinstance(stage, bool):
            return stage, bool(checkpoint)
    return "something else"


def judge(
    plans: Sequence[Plan], start: int, everything: Sequence[Plan]
) -> Callable[[kit.Observed], kit.Finding]:
    """everything: the plans of all lines; a mistake is named if it gives all of their answers."""

    def judge_answers(observed: kit.Observed) -> kit.Finding:
        off: list[tuple[Plan, Layout | None]] = []
        for index, plan in enumerate(plans, start=start):
            answer = observed.answer(index)
            if answer.error is not None:
                return raised(plan, *answer.error)
            layout = read(answer.value)
            if isinstance(layout, str) and layout != NONE:
                return kit.wrong(
                    kit.Sentence(
                        f"{plan} gives neither None nor a layout.",
                        "first_that_fits gives neither None nor a layout for some arguments.",
                    ),
                    "Return (stage, checkpoint), such as (3, False), or None.",
                    cause="form",
                )
            chosen = layout if isinstance(layout, tuple) else None
            if chosen != plan.right:
                off.append((plan, chosen))
        return explained(off[0], answers(everything, observed)) if off else kit.RIGHT

    return judge_answers


def answers(plans: Sequence[Plan], observed: kit.Observed) -> list[tuple[Plan, Layout | None]]:
    """Those that are a layout or None."""
    read_so_far = ((plan, read(observed.answer(index).value)) for index, plan in enumerate(plans))
    layouts = [(plan, None if layout == NONE else layout) for plan, layout in read_so_far]
    return [(plan, layout) for plan, layout in layouts if not isinstance(layout, str)]


def raised(plan: Plan, error: str = "", text: str = "", where: str = "") -> kit.Finding:
    if error == "NotImplementedError":
        return kit.unwritten("first_that_fits", where)
    said = kit.error_sentence("first_that_fits", error, text, call=str(plan))
    if plan.right is None:
        return kit.wrong(said, "No layout fits there, so return None instead of raising.", cause="raised")
    return kit.wrong(said, kit.at(where), cause="raised")


def explained(
    first_off: tuple[Plan, Layout | None], all_answers: Sequence[tuple[Plan, Layout | None]]
) -> kit.Finding:
    """A wrong answer with its own bill, and the mistake that gives all answers, the right ones as well."""
    plan, chosen = first_off
    right = plan.right
    room = f"the room is {in_gb(plan.room)} GB"
    if chosen is None:
        said = f"{plan} gives None, but {bill_of(plan, right or LAYOUTS[0])}, and {room}."
        general = "first_that_fits gives None although a layout fits."
    elif chosen not in LAYOUTS:
        said = f"{plan} gives {chosen}, but stages are 0 to 3."
        general = "first_that_fits gives a stage that does not exist."
    elif sum(plan.bill(chosen).values()) > plan.room:
        said = f"{plan} gives {chosen}, but {bill_of(plan, chosen)}, and {room}."
        general = "first_that_fits gives a layout that does not fit."
    else:
        said = f"{plan} gives {chosen}, which fits, but {right} also fits and costs less."
        general = "first_that_fits gives a layout that fits, but a cheaper one also fits."
    slip = next(
        (says for says, answer in SLIPS.items() if all(answer(p) == layout for p, layout in all_answers)),
        OTHERWISE,
    )
    if slip == OTHERWISE and all(layout in fitting(p) for p, layout in all_answers if layout != p.right):
        slip = CHEAPEST
    return kit.wrong(kit.Sentence(said, general), slip, cause=general if slip == OTHERWISE else slip)


def drawn(draw: kit.Draw, number: int) -> kit.Model:
    """Published models with GPT-2's parts, and others of their kind."""
    names = ("GPT-2 small", "GPT-2 XL", "GPT-3")
    if number % 5 < 2:
        return kit.published(names[number % len(names)])
    heads = 4 * draw.integer(2, 17)
    return kit.Model(
        vocab_size=1000 * draw.integer(30, 260) + 7, context=65_536, layers=8 * draw.integer(2, 13),
        heads=heads, width=64 * heads,
    )  # fmt: skip


def on_the_border(draw: kit.Draw, number: int, inside: bool) -> Plan:
    """A room in which a layout just fits, or just does not: by a byte if it is checkpointed, else by 0.4 %.

    (The few numbers beside the activations, a byte or two for each thousand, do not decide these.)
    """
    model = drawn(draw, number)
    gpus = 1 if number % 9 == 0 else 2 ** draw.integer(1, 10)
    plan = Plan(model, gpus, 0.0, draw.integer(1, 5), 512 * draw.integer(1, 9))
    bills = {layout: sum(plan.bill(layout).values()) for layout in LAYOUTS}
    # layouts for which no cheaper one needs less: one byte decides between them and the next
    deciding = [
        layout for k, layout in enumerate(LAYOUTS) if all(bills[layout] < bills[c] for c in LAYOUTS[:k])
    ]
    layout = deciding[number % len(deciding)]
    spare = 1.0 if layout[1] else 0.004 * bills[layout]
    room = bills[layout] + (spare if inside else -spare)
    return Plan(model, gpus, room, plan.batch, plan.seq)


def on_borders(draw: kit.Draw, inside: bool) -> list[Plan]:
    """Half of CASES, drawn again until they decide on the same mistakes as with every other seed.

    The gathered block is small beside the rest of most bills, so a mistake in it costs the plans that just
    do not fit, and the others never.
    """
    costs = (HIDDEN_BYTES, SHARE_OF_ALL, NO_MASTER_COPY) if inside else (NO_BLOCK, HALF_A_BLOCK)
    spares = (NO_BLOCK, HALF_A_BLOCK) if inside else ()

    def misled(says: str, plans: Sequence[Plan]) -> bool:
        return any(SLIPS[says](plan) != plan.right for plan in plans)

    for _ in range(100):  # four draws in five do
        plans = [on_the_border(draw, number, inside) for number in range(CASES // 2)]
        if all(misled(says, plans) for says in costs) and not any(misled(says, plans) for says in spares):
            return plans
    raise AssertionError("of a hundred draws one decides on these mistakes")


def with_large_logits(draw: kit.Draw) -> Plan:
    """A room in which stage 1 just fits, whatever is drawn, and stage 0 would if logits took a third less."""
    plan = Plan(kit.published("GPT-2 small"), 2, 0.0, 4, 512 * draw.integer(7, 9))
    bill = sum(plan.bill((1, False)).values())
    return Plan(plan.model, plan.gpus, 1.004 * bill, plan.batch, plan.seq)


def exactly(draw: kit.Draw, number: int) -> Plan:
    """A room that is exactly a checkpointed layout's bill, also if its parts are added up in GB.

    The activations are larger than all states, so that no layout fits which keeps them.
    """
    heads = draw.integer(8, 16)
    model = kit.Model(
        vocab_size=1000 * draw.integer(30, 260) + 7, context=65_536, layers=8 * draw.integer(1, 4),
        heads=heads, width=64 * heads,
    )  # fmt: skip
    gpus, layout = 2 ** draw.integer(1, 7), (number % 4, True)
    if layout[0] == 3:
        gpus = 2  # a bill without the master copy is wrong here with every seed
    for seq in range(8192, 16_384, 64):
        bill = Plan(model, gpus, 0.0, 8, seq).bill(layout)
        plan, parts = Plan(model, gpus, sum(bill.values()), 8, seq), list(bill.values())
        sums = (sum(part / 1e9 for part in order) for order in (parts, parts[::-1], sorted(parts)))
        if plan.right == layout and all(added <= plan.room / 1e9 for added in sums):
            return plan
    raise AssertionError("of a hundred bills one is as large in GB")


@kit.exercise(points=8, objects=("first_that_fits",), references=REFERENCES)
def first_that_fits(draw: kit.Draw) -> Iterator[kit.Case]:
    """Sixty plans on the borders of layouts, and some that are wide of them."""
    fits = [*on_borders(draw, inside=True), with_large_logits(draw)]
    misses = on_borders(draw, inside=False)
    wide = [
        Plan(kit.published(name), gpus, 80e9, 1, seq)
        for name, gpus, seq in (
            ("GPT-2 small", 1, 1024), ("GPT-2 small", 8, 1024), ("GPT-2 XL", 1, 1024),
            ("GPT-2 XL", 4, 1024), ("GPT-3", 8, 2048), ("GPT-3", 64, 2048), ("GPT-3", 1024, 2048),
        )
    ]  # fmt: skip
    groups = {
        "published models, 80 GB": (wide, 1.0),
        "a layout just fits": (fits, 1.5),
        "a layout just does not fit": (misses, 1.5),
        "exactly as large as the room": ([exactly(draw, number) for number in range(6)], 0.5),
    }
    lines: list[kit.Line] = []
    everything = [plan for plans, _ in groups.values() for plan in plans]
    calls = [kit.call(0, plan.args) for plan in everything]
    start = 0
    for title, (plans, weight) in groups.items():
        lines.append(kit.Line(title, judge(plans, start, everything), weight))
        start += len(plans)
    yield kit.Case("plans", [kit.evaluating(calls)], lines, recipe=kit.SIZES, alone=True)
