"""saved_bytes: a class that counts what autograd keeps for backward, and says which module kept it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.random import fork_rng

from course_lib import facts
from course_lib.checks import kit, words
from course_lib.checks.notebooks.why_distribute.names import entries, named_right
from course_lib.checks.notebooks.why_distribute.references import REFERENCES
from course_lib.checks.rank.notebooks.why_distribute.meter import (
    MeterInstructions,
    MeterRun,
    leaves_of,
    model_and_input,
)
from course_lib.models import GPTConfig

RECIPE = "course_lib.checks.rank.notebooks.why_distribute.meter:meters"
FLOAT = 4  # bytes
PASSES = 4
ONCE = "A storage kept by two operations is still one. Count a storage once, whichever view of it is kept."
WEIGHTS = (
    "Weights take memory anyway, so the module's parameters do not count. A layer might keep weight.t(), "
    "so compare storages, not tensors."
)
VIEW = "Autograd keeps the storage, 4 times the slice. Count the bytes of the storage, not of the tensor."
WITHOUT_GRADIENT = (
    "Results without a gradient are also kept, such as the statistics of a norm and attention's logarithms."
)
PLACES = (
    "Two storages had one address, one after the other. Keep the storage object itself in the dict, so that "
    "no other storage can take its address."
)
NOTHING = "`pack` counts nothing. Call `count` with the bytes of each storage that is new."
NUMBERS = "A number in float32 has 4 bytes, so count the bytes of a storage instead of its numbers."
RETURNED = "Autograd hands the result of `pack` to `unpack`, so end `pack` with `return tensor`."
FORWARD_HOOK = "A forward hook that returns something replaces the output, so return None."


@dataclass(frozen=True)
class Expected:
    """A run of the recipe, and what is right: bytes by the name of the module.

    slips: total bytes that usual mistakes give, with their sentences.
    """

    name: str
    model: dict[str, Any]
    rows: int
    by_module: Mapping[str, float]
    slips: Mapping[float, str]
    passes: int = 1
    fails: bool = False
    returned: bool = False

    @property
    def total(self) -> float:
        return sum(self.by_module.values())

    @property
    def entries(self) -> dict[str, float]:
        return {name: nbytes for name, nbytes in self.by_module.items() if nbytes}

    def instructions(self, seed: int) -> MeterRun:
        return MeterRun(self.name, self.model, self.rows, seed, self.passes, self.fails, self.returned)

    def gradients(self, seed: int) -> dict[str, Tensor]:
        """Those that go back, from a backward without a meter."""
        with fork_rng(devices=[]):
            model, x = model_and_input(self.instructions(seed))
        model(x).square().sum().backward()
        return {f"{self.name}.{k}": gradient(leaf) for k, leaf in enumerate(leaves_of(model, x))}


def gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad


def runs(draw: kit.Draw) -> dict[str, Expected]:
    """Sizes by which a wrong number of bytes has one cause: three primes times 8, and a prime of rows."""
    primes = [11, 13, 17, 19, 23, 29]
    drawn = [8 * primes.pop(draw.integer(0, len(primes))) for _ in range(3)]
    # The last layer is the narrowest: after a wide one, backward takes more bytes with hooks than without,
    # even if they copy nothing.
    end = min(drawn)
    width, part = (size for size in drawn if size != end)
    rows = (97, 101, 103, 107)[draw.integer(0, 4)]
    sizes = {"width": width, "part": part, "end": end}
    x, y, z = (FLOAT * rows * columns for columns in (width, part, end))
    first, second = FLOAT * width * part, FLOAT * part * end
    layers = {"0": x, "1": y, "2.0": 0, "2.1": z}
    whole = sum(layers.values())
    views = {"wide": x, "": 4 * y, "tail": y}
    of_views = sum(views.values())
    own = {"": x, "tail": y}
    many = 1031  # rows: a storage of a megabyte, whose place is free for the next of that size
    big, bigger = FLOAT * many * 256, FLOAT * many * 264
    heads, wide = 4, 8 * (13, 17, 19)[draw.integer(0, 3)]
    block = facts.saved_layer_bytes(GPTConfig(layers=1, heads=heads, width=wide), 1, rows)
    numbers = FLOAT * (12 * wide * wide)
    parameters = {first + second, first + second + FLOAT * (part + end)}
    return {
        "layers": Expected(
            "layers", {"kind": "layers", **sizes}, rows, layers,
            {whole + y: ONCE, **{whole + extra: WEIGHTS for extra in parameters},
             whole + second: WEIGHTS, whole + y + first + second: f"{ONCE} {WEIGHTS}",
             whole - x: "The input is also kept, as the first weight's gradient is a product with it."},
            returned=True,
        ),
        "views": Expected(
            "views", {"kind": "views", **sizes}, rows, views,
            {of_views + 4 * y: ONCE, of_views - 2 * y: VIEW, of_views - 3 * y: VIEW,
             of_views + FLOAT * (4 * width * part + part * end): WEIGHTS},
        ),
        "own": Expected(
            "own", {"kind": "own", **sizes}, rows, own,
            {x + y + first + second: WEIGHTS, x + y + first: WEIGHTS, x + y + second: WEIGHTS,
             x + y + FLOAT * part: "The module's buffers do not count either, since they take memory anyway.",
             x + y + first + second + FLOAT * part: f"{WEIGHTS} Its buffers do not count either."},
        ),
        "repeated": Expected(
            "repeated", {"kind": "repeated", "width": 256, "part": 264, "end": 8}, many,
            {"0": big, "1": PASSES * bigger, "2": PASSES * bigger},
            {big + k * bigger: PLACES for k in range(2 * PASSES)}, passes=PASSES,
        ),
        "block": Expected(
            "block", {"kind": "block", "heads": heads, "width": wide}, rows, {"": block},
            {block + numbers: WEIGHTS, block - FLOAT * rows * (4 + heads): WITHOUT_GRADIENT},
        ),
        "error": Expected(
            "error", {"kind": "layers", **sizes}, rows, layers, {}, fails=True,
        ),
    }  # fmt: skip


def line(
    title: str, run: Expected, judge: Callable[[Expected, Any], kit.Finding], weight: float = 1.0
) -> kit.Line:
    """judge: of (what is right, the reply), if no error was raised."""
    return kit.Line(
        title, judged_reply(run, lambda observed: judge(run, observed.values[0][run.name])), weight
    )


def judged_reply(
    run: Expected, judge: Callable[[kit.Observed], kit.Finding]
) -> Callable[[kit.Observed], kit.Finding]:
    """judge: looks at the run, if no error was raised there."""

    def judge_reply(observed: kit.Observed) -> kit.Finding:
        reply = observed.values[0][run.name]
        if reply.error is None:
            return judge(observed)
        error, text, where = reply.error
        if error == "NotImplementedError":
            return kit.unwritten("SavedBytes", where)
        said = kit.error_sentence("SavedBytes", error, text, call="with SavedBytes(model): ...")
        cause = RETURNED if "unpack_hook" in text else FORWARD_HOOK
        return kit.wrong(said, kit.at(where) if where else cause, cause="raised")

    return judge_reply


def total(run: Expected, reply: Any) -> kit.Finding:
    number = kit.numeric(reply.total)
    if number is None:
        return kit.wrong("total is not a number.", "It counts bytes.", cause="no number")
    if number == run.total:
        return kit.RIGHT
    said = kit.Sentence(
        f"total is {words.number(number)} bytes, but {words.number(run.total)} are kept.",
        "total is another number of bytes than is kept.",
    )
    cause = run.slips.get(number) or {0: NOTHING, run.total / FLOAT: NUMBERS}.get(number, "")
    return kit.wrong(said, cause, cause=cause)


def modules(title: str, run: Expected, both_runs: Sequence[Expected]) -> kit.Line:
    """by_module, if total is right: names, and bytes. both_runs: those that have a line about it."""

    def judge(observed: kit.Observed) -> kit.Finding:
        replies = observed.values[0]
        if kit.numeric(replies[run.name].total) != run.total:
            return kit.wrong("by_module is judged when total is right.", cause=kit.ANY)
        pairs = [
            (entries(replies[other.name].by_module) or {}, other.entries)
            for other in both_runs
            if kit.numeric(replies[other.name].total) == other.total
        ]
        return named_right(entries(replies[run.name].by_module), run.entries, pairs)

    return kit.Line(title, judged_reply(run, judge), 1.5)


def memory(run: Expected, reply: Any) -> kit.Finding:
    """No copies, and nothing held after backward."""
    if kit.numeric(reply.total) is None:
        return kit.wrong("memory is judged when total is a number.", cause=kit.ANY)
    if reply.copied > 0:
        return kit.wrong(
            kit.Sentence(
                f"forward inside takes {words.number(reply.copied)} bytes more than outside.",
                "forward inside takes more bytes than outside.",
            ),
            "Usually the hook returns a copy, with twice the memory and gradients of another graph. Return "
            "the tensor itself, or a view of it.",
        )
    if reply.held > 0:
        return kit.wrong(
            kit.Sentence(
                f"your meter holds {words.number(reply.held)} bytes after backward that would be free.",
                "your meter holds memory after backward that would be free.",
            ),
            "Keep numbers and weak references, or drop the tensors in __exit__.",
        )
    if reply.unpacked > 0:
        return kit.wrong(
            kit.Sentence(
                f"backward inside takes {words.number(reply.unpacked)} bytes more than outside.",
                "backward inside takes more bytes than outside.",
            ),
            "Usually unpack returns a copy. Hand back the tensor that was kept.",
        )
    return kit.RIGHT


def over(run: Expected, reply: Any) -> kit.Finding:
    """A forward after the block does not count, the modules have no hooks, and an error has passed."""
    if kit.numeric(reply.total) is None:
        return kit.wrong("hooks are judged when total is a number.", cause=kit.ANY)
    if run.fails and not reply.passed:
        return kit.wrong(
            "an error inside does not come out of the block.",
            "A true result of __exit__ makes Python drop the error, so return None or False.",
        )
    counted = kit.numeric(reply.later) != kit.numeric(reply.total)
    if not counted and reply.left == 0:
        return kit.RIGHT
    if not counted:
        return kit.wrong(
            f"after {'an error inside' if run.fails else 'the block'}, hooks of the modules are left.",
            "register_forward_hook returns a handle. Keep all handles, and call their remove() in "
            "__exit__, even after an error.",
        )
    if run.fails:
        return kit.wrong(
            "after an error inside, the next forward is still counted.",
            "__exit__ is also called after an error, so take the hooks away there, whatever happened.",
        )
    return kit.wrong(
        "after the block, the next forward is still counted.",
        "In __exit__, exit the context of the saved-tensor hooks and remove the hooks on the modules.",
    )


def itself(run: Expected, reply: Any) -> kit.Finding:
    """`with ... as meter` gives the meter."""
    if reply.entered:
        return kit.RIGHT
    return kit.wrong(
        "`meter` is not the SavedBytes in `with SavedBytes(model) as meter`.",
        "`as` takes the result of __enter__, so return self there.",
    )


def untouched(wanted: Mapping[str, Tensor]) -> Callable[[kit.Observed], kit.Finding]:
    """The gradients that backward has computed from what was kept."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for name, right in wanted.items():
            if not kit.close(observed.tensors[0][name], right):
                said = kit.difference("backward gives other gradients", observed.tensors[0][name], right)
                return kit.wrong(said, "Hand back the tensor that was kept, unchanged.")
        return kit.RIGHT

    return judge


@kit.exercise(points=8, objects=("SavedBytes",), references=REFERENCES)
def saved_bytes(draw: kit.Draw) -> Iterator[kit.Case]:
    """Small modules in which each mistake has a number of its own, and a block of the GPT."""
    made = runs(draw)
    gradients = made["layers"].gradients(0)  # the first run
    named = [made["layers"], made["views"]]
    held = line("nothing copied, nothing held", made["layers"], memory, 1.5)
    lines = [
        line("total: layers", made["layers"], total),
        line("total: two parts of one result", made["views"], total, 1.5),
        line("total: a weight transposed, a buffer", made["own"], total),
        line("total: memory that is used again", made["repeated"], total, 2),
        line("total: a block of the GPT", made["block"], total, 0.5),
        modules("by_module: layers", made["layers"], named),
        modules("by_module: a module's own operations", made["views"], named),
        replace(held, judge=kit.both(held.judge, untouched(gradients))),
        line("with ... as meter", made["layers"], itself, 0.5),
        line("after the block", made["views"], over),
        line("after an error inside", made["error"], over),
    ]
    instructions = MeterInstructions([run.instructions(seed) for seed, run in enumerate(made.values())])
    returned = {name: kit.Spec.of(right) for name, right in gradients.items()}
    yield kit.Case("meter", [kit.RankSide({}, instructions, returned)], lines, recipe=RECIPE, alone=True)
