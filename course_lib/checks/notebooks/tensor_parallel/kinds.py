"""kinds: is this tensor a copy, a part or a term of a sum? Twelve answers about one block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from course_lib.checks import kit, words

KINDS = ("R", "P", "S(0)", "S(1)")
OWN_FEATURES = "A rank has some of the hidden features, one after the other along dimension 1."
SAME_LOSS = (
    "Every rank computes the same loss from the same output, so each has the whole gradient after the sum, "
    "and a sum hands its gradient on to every term."
)
LIKE_ITSELF = "The gradient of a part is the same part of the gradient."
SAME_OUTPUT = "On tp all ranks add b2 to the same output, and get the same gradient."
WEIGHT = "`weight` is (out, in)."


@dataclass(frozen=True)
class Asked:
    """A tensor, its kind, and the sentence for each usual mistake; otherwise: for the other kinds."""

    tensor: str
    right: str
    slips: Mapping[str, str] = field(default_factory=dict)
    otherwise: str = ""


ASKED = (
    Asked("w1", "S(0)", {"S(1)": f"{WEIGHT} The columns of A are its rows, dimension 0."},
          "A rank has the columns of A for some of the hidden features, and every rank has others."),
    Asked("h", "S(1)", {"S(0)": "Dimension 0 of h has the tokens, and every rank has all of them."},
          OWN_FEATURES),
    Asked("w2", "S(1)", {"S(0)": f"{WEIGHT} The rows of B are its columns, dimension 1."},
          "A rank multiplies its own hidden features by the weights that belong to them."),
    Asked("z", "P", {"R": "Each rank has multiplied other features, so their z differ.",
                     "S(1)": "z has all features of the output on every rank."},
          "Each rank has summed over its own hidden features only, but z needs the sum over all of them."),
    Asked("s", "R", {"P": "The terms were added up, so all ranks have the same sum."},
          "An all-reduce leaves the whole sum on every rank."),
    Asked("b2", "R", {"P": "A term would be added before the sum, but b2 is added after it."},
          "Every rank adds b2 to the same output, after the sum."),
    Asked("the gradient of z", "R", {"P": SAME_LOSS}, SAME_LOSS),
    Asked("the gradient of h", "S(1)",
          {"P": "A rank has h's gradient for its own features only, and all of it."},
          LIKE_ITSELF),
    Asked("the gradient of w2", "S(1)", {"P": f"{LIKE_ITSELF} No other rank has used this part of w2."},
          LIKE_ITSELF),
    Asked("the gradient of u", "P",
          {"R": "Each rank has the gradient of its own use of u, and the uses differ."},
          "N ranks have used u, so its gradient is a sum of N terms. A rank has one of them."),
    Asked("the gradient of b2", "R", {}, SAME_OUTPUT),
    Asked("the gradient of w1 on dp", "P",
          {"R": "The replicas read different tokens, so their gradients differ before the sum.",
           "S(0)": "Your answer is its kind on tp. On dp both replicas have the same part of w1."},
          "Each replica has the gradient of its own tokens, and the batch's gradient is their sum."),
)  # fmt: skip
NAMES = tuple(f"kind_{number}" for number in range(1, len(ASKED) + 1))


def read(answer: object) -> str:
    """ "S(1)" for " s( 1 ) "; a text that is none of KINDS is returned as it is."""
    return "".join(answer.split()).upper() if isinstance(answer, str) else ""


def judged(name: str, index: int, asked: Asked) -> Callable[[kit.Observed], kit.Finding]:
    def judge(observed: kit.Observed) -> kit.Finding:
        answer = observed.answer(index).value
        if answer in kit.UNANSWERED:
            return kit.wrong(f"{name}, {asked.tensor}, is not answered yet.")
        kind = read(answer)
        if kind == asked.right:
            return kit.RIGHT
        if kind not in KINDS:
            texts = words.listing([repr(kind) for kind in KINDS], "or")
            return kit.wrong(f"{name} must be {texts}, a text in quotes.")
        says = asked.slips.get(kind) or asked.otherwise
        return kit.wrong(f"{name} = {kind!r} is not the kind of {asked.tensor}.", says)

    return judge


@kit.exercise(points=3, objects=NAMES, references=("course_lib.tensor_parallel",), constants=True)
def kinds(draw: kit.Draw) -> Iterator[kit.Case]:
    lines = [
        kit.Line(name, judged(name, index, asked))
        for index, (name, asked) in enumerate(zip(NAMES, ASKED, strict=True))
    ]
    sides = [kit.evaluating([[index, None] for index in range(len(NAMES))])]
    yield kit.Case("answers", sides, lines, recipe=kit.EVALUATE, alone=True)
