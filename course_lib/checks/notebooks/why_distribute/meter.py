"""saved_bytes: a class that counts what autograd keeps for backward, and says which module kept it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from course_lib import facts
from course_lib.checks.kit import (
    ANY,
    RIGHT,
    Case,
    Draw,
    Finding,
    Line,
    Observed,
    RankSide,
    Sentence,
    at,
    error_kind,
    exercise,
    numeric,
    words,
    wrong,
)
from course_lib.checks.notebooks.why_distribute.references import REFERENCES
from course_lib.models import GPTConfig

RECIPE = "course_lib.checks.rank.notebooks.why_distribute.meter:meters"
FLOAT = 4  # bytes
PASSES = 4
ONCE = "One storage, kept by two operations, is one: count a storage once, whichever view of it is kept."
WEIGHTS = (
    "Weights are there anyway: the module's parameters do not count. A layer may keep weight.t(): compare "
    "storages, not tensors."
)
VIEW = "Kept is the storage: 4 times the slice. Count the storage's bytes, and not the tensor's."
PLACES = (
    "Two tensors lived at one address, one after the other: hold it, or use the storage's own key and look "
    "whether it is still there."
)


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

    @property
    def total(self) -> float:
        return sum(self.by_module.values())

    def instructions(self, seed: int) -> dict[str, Any]:
        return {
            "name": self.name, "model": self.model, "rows": self.rows, "seed": seed,
            "passes": self.passes, "fails": self.fails,
        }  # fmt: skip


def runs(draw: Draw) -> dict[str, Expected]:
    """Sizes by which a wrong number of bytes has one cause: three primes times 8, and a prime of rows."""
    primes = [11, 13, 17, 19, 23, 29]
    width, part, end = (8 * primes.pop(draw.integer(0, len(primes))) for _ in range(3))
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
             whole - x: "The input is kept as well: the gradient of the first weight is a product with it."},
        ),
        "views": Expected(
            "views", {"kind": "views", **sizes}, rows, views,
            {of_views + 4 * y: ONCE, of_views - 2 * y: VIEW, of_views - 3 * y: VIEW,
             of_views + FLOAT * (4 * width * part + part * end): WEIGHTS},
        ),
        "own": Expected(
            "own", {"kind": "own", **sizes}, rows, own,
            {x + y + first + second: WEIGHTS, x + y + first: WEIGHTS, x + y + second: WEIGHTS,
             x + y + FLOAT * part: "The module's buffers do not count either: they are there anyway.",
             x + y + first + second + FLOAT * part: f"{WEIGHTS} Nor do its buffers."},
        ),
        "repeated": Expected(
            "repeated", {"kind": "repeated", "width": 256, "part": 264, "end": 8}, many,
            {"0": big, "1": PASSES * bigger, "2": PASSES * bigger},
            {big + k * bigger: PLACES for k in range(2 * PASSES)}, passes=PASSES,
        ),
        "block": Expected(
            "block", {"kind": "block", "heads": heads, "width": wide}, rows, {"": block},
            {block + numbers: WEIGHTS},
        ),
        "error": Expected(
            "error", {"kind": "layers", **sizes}, rows, layers, {}, fails=True,
        ),
    }  # fmt: skip


def line(title: str, run: Expected, judge: Callable[[Expected, Any], Finding], weight: float = 1.0) -> Line:
    """judge: of (what is right, the reply), if no error was raised."""

    def judge_reply(observed: Observed) -> Finding:
        reply = observed.values[0][run.name]
        if reply.error is not None:
            error, text, where = reply.error
            if error == "NotImplementedError":
                return wrong("SavedBytes is not written yet.", cause="SavedBytes not written")
            said = Sentence(
                f"with SavedBytes(model): ... raised {error}: {text}",
                f"SavedBytes raised {error_kind(error)}.",
            )
            output = "A forward hook that returns something takes the output's place: return None."
            return wrong(said, at(where) if where else output, cause="raised")
        return judge(run, reply)

    return Line(title, judge_reply, weight)


def total(run: Expected, reply: Any) -> Finding:
    number = numeric(reply.total)
    if number is None:
        return wrong("total is not a number.", "It counts bytes.", cause="no number")
    if number == run.total:
        return RIGHT
    said = Sentence(
        f"total is {words.number(number)} bytes; {words.number(run.total)} are kept.",
        "total is another number of bytes than is kept.",
    )
    return wrong(said, run.slips.get(number, ""), cause=run.slips.get(number, ""))


def modules(run: Expected, reply: Any) -> Finding:
    """by_module, if total is right: names, and bytes."""
    if numeric(reply.total) != run.total:
        return wrong("by_module is judged when total is right.", cause=ANY)
    pairs = reply.by_module.get("dict") if isinstance(reply.by_module, dict) else None
    if pairs is None:
        return wrong("by_module is not a dict.", "It has bytes by the names of modules.")
    named = {name: numeric(value) for name, value in pairs if isinstance(name, str) and value}
    wanted = {name: nbytes for name, nbytes in run.by_module.items() if nbytes}
    if named == wanted:
        return RIGHT
    names = words.listing([repr(name) for name in named] or ["no name"])
    said = Sentence(f"by_module has bytes for {names}.", "by_module has other bytes than were kept.")
    return wrong(said, why(named, wanted))


def why(named: Mapping[str, float | None], wanted: Mapping[str, float]) -> str:
    outermost: dict[str, float] = {}
    for name, nbytes in wanted.items():
        top = name.partition(".")[0]
        outermost[top] = outermost.get(top, 0) + nbytes
    if named == outermost:
        return "The innermost submodule was asked for, such as '2.1': the one that runs."
    if sum(value or 0 for value in named.values()) != sum(wanted.values()):
        return "Its entries do not add up to total: a storage belongs to the first module that kept it."
    if "" not in named and "" in wanted:
        return (
            "When a submodule's forward is over, its parent runs on: '' for the module itself. Keep a stack "
            "of names, and take the last one off again."
        )
    if set(named) == {""}:
        return "All is under ''; a forward hook and a forward pre-hook on every submodule say which runs."
    return "The name is the innermost submodule's that runs as a storage is first kept, see named_modules()."


def memory(run: Expected, reply: Any) -> Finding:
    """No copies in forward, the gradients of the same graph, and nothing held after backward."""
    if reply.copied > 0:
        return wrong(
            Sentence(
                f"forward inside takes {words.number(reply.copied)} bytes more than outside.",
                "forward inside takes more bytes than outside.",
            ),
            "The hook returns a copy: twice the memory, and gradients of another graph. Return the tensor "
            "itself, or a view of it.",
        )
    if not reply.same:
        return wrong("backward gives other gradients.", "Hand back the tensor that was kept, unchanged.")
    if reply.held > 0:
        return wrong(
            Sentence(
                f"memory that would be free is held by your meter: +{words.number(reply.held)} bytes after "
                "backward.",
                "memory that would be free is held by your meter after backward.",
            ),
            "Keep numbers and weak references, or let go of the tensors in __exit__.",
        )
    return RIGHT


def over(run: Expected, reply: Any) -> Finding:
    """A forward after the block does not count."""
    if numeric(reply.later) == numeric(reply.total):
        return RIGHT
    if run.fails:
        return wrong(
            "after an error inside, the next forward is still counted.",
            "__exit__ is called then, too: take the hooks away there, whatever happened.",
        )
    return wrong(
        "after the block, the next forward is still counted.",
        "Leave the hooks in __exit__, and remove those of the modules.",
    )


def itself(run: Expected, reply: Any) -> Finding:
    """`with ... as meter` gives the meter."""
    if reply.entered:
        return RIGHT
    return wrong(
        "with SavedBytes(model) as meter: ... gives `meter` something else than the SavedBytes.",
        "`as` takes the result of __enter__: return self there.",
    )


@exercise(points=8, objects=("SavedBytes",), references=REFERENCES)
def saved_bytes(draw: Draw) -> Iterator[Case]:
    """Small modules in which each mistake has a number of its own, and a block of the GPT."""
    made = runs(draw)
    lines = [
        line("total: layers", made["layers"], total),
        line("total: two parts of one result", made["views"], total, 1.5),
        line("total: a weight transposed, a buffer", made["own"], total),
        line("total: memory that is used again", made["repeated"], total),
        line("total: a block of the GPT", made["block"], total),
        line("by_module: layers", made["layers"], modules),
        line("by_module: a module's own operations", made["views"], modules),
        line("nothing copied, nothing held", made["layers"], memory, 1.5),
        line("with ... as meter", made["layers"], itself, 0.5),
        line("after the block", made["views"], over, 0.5),
        line("after an error inside", made["error"], over, 0.5),
    ]
    instructions = {"runs": [run.instructions(seed) for seed, run in enumerate(made.values())]}
    yield Case("meter", [RankSide({}, instructions, {})], lines, recipe=RECIPE, alone=True)
