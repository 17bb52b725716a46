"""Bytes sent and kept by a transformer layer that n ranks share: formulas that the student writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from course_lib import facts
from course_lib.checks import kit

REFERENCE = ("course_lib.tensor_parallel",)
FORMULAS = (*REFERENCE, "course_lib.facts")
SEQUENCES = (None, "keep", "regather")
REGIONS = 2  # in a layer: attention and MLP
NUMBERS = 3  # of each token: largest logit, sum of exponentials, logit of the target


def layer_bytes(n: int, nbytes: float, direction: str, sequence: str | None = None) -> float:
    return REGIONS * facts.tensor_parallel_bytes(n, 1, 1, nbytes, direction, sequence)  # pyright: ignore


def layer_saved(n: int, nbytes: float, sequence: str | None = None) -> float:
    """Bytes of all that one layer keeps, in units of nbytes: one activation of the whole sequence.

    Two inputs of norms, two of regions, in attention q, k, v and the output, in the MLP four activations
    before GELU and four after. See `facts.saved_layer_bytes`, which counts the few numbers a token as well.
    """
    norms = 2 / (n if sequence else 1)
    regions = 2 / (n if sequence == "regather" else 1)
    return nbytes * (norms + regions + 12 / n)


def loss_bytes(n: int, tokens: int) -> float:
    return facts.vocab_parallel_loss_bytes(n, tokens)


def halves(forward: float, backward: float, regather: float) -> kit.Formula:
    """So many halves of an all-reduce, (N-1)/N M each; regather: backward, with sequence="regather"."""

    def formula(n: int, nbytes: float, direction: str, sequence: str | None = None) -> float:
        count = backward if direction == "backward" else forward
        if sequence == "regather" and direction == "backward":
            count = regather
        return count * (n - 1) / n * nbytes

    return formula


SENT: dict[str, kit.Formula] = {
    "You counted one all-reduce per layer. Attention ends with a sum, and so does the MLP, which "
    "makes two in each direction.": halves(2, 2, 3),
    "An all-reduce has two phases: 2 (N-1)/N M each, and a layer has two of them.": halves(2, 2, 2),
    "Two all-reduces send 4 (N-1)/N M: with N ranks, a rank's own part does not have to travel.": (
        lambda n, m, direction, sequence=None: (
            m * (6 if sequence == "regather" and direction == "backward" else 4)
        )
    ),
    'With "regather" backward gathers the input of each region once more, so another (N-1)/N M for '
    "attention, and for the MLP.": halves(4, 4, 4),
    'The second gather of "regather" comes for both regions, attention and MLP.': halves(4, 4, 5),
    'With "regather" both regions gather once more, by half an all-reduce each: 6 (N-1)/N M.': (
        halves(4, 4, 8)
    ),
    "Forward gathers once, whatever is kept, because only backward needs the input again.": (
        lambda n, m, direction, sequence=None: (n - 1) / n * m * (6 if sequence == "regather" else 4)
    ),
    "Backward has the conjugate of each sum, so it sums gradients where forward does nothing. It "
    "sends as much as forward.": halves(4, 0, 2),
    "Backward computes twice as much as forward, but it sends as much as forward, because each "
    "activation has one gradient.": halves(4, 8, 12),
    "With sequence parallelism an all-reduce becomes a gather and a reduce-scatter, which are its two "
    "halves, so the bytes stay the same.": (
        lambda n, m, direction, sequence=None: (n - 1) / n * m * (8 if sequence else 4)
    ),
    "A gather *and* a reduce-scatter replace each all-reduce, so the bytes stay the same.": (
        lambda n, m, direction, sequence=None: (n - 1) / n * m * (2 if sequence else 4)
    ),
    "Your result is the sum over all ranks. Return the bytes of one rank.": (
        lambda n, m, direction, sequence=None: n * layer_bytes(n, m, direction, sequence)
    ),
    "Your result is forward and backward together. Return one direction.": (
        lambda n, m, direction, sequence=None: (
            layer_bytes(n, m, "forward", sequence) + layer_bytes(n, m, "backward", sequence)
        )
    ),
}


def kept(
    whole: tuple[float, float, float], cut: tuple[float, float, float]
) -> Callable[[int, float, str | None], float]:
    """So many activations whole, and so many divided by the ranks, for each of SEQUENCES."""

    def formula(n: int, nbytes: float, sequence: str | None = None) -> float:
        which = SEQUENCES.index(sequence)
        return nbytes * (whole[which] + cut[which] / n)

    return formula


SAVED: dict[str, kit.Formula] = {
    'Norms work on a part of the sequence, and their inputs are divided; with "keep" the two gathered inputs '
    "of the regions are whole.": kept((4, 4, 0), (12, 12, 16)),
    'With "keep" the gathered inputs of attention and MLP are kept whole: 2 M; only the norms\' inputs are '
    "divided.": kept((4, 0, 0), (12, 16, 16)),
    ('With "regather" nothing whole is kept, because the regions\' inputs are gathered again in backward.'): (
        kept((4, 2, 2), (12, 14, 14))
    ),
    'The two modes are exchanged. "regather" keeps only parts, but "keep" keeps the gathered inputs.': (
        kept((4, 0, 2), (12, 16, 14))
    ),
    "The inputs of the two norms are also kept, because the norm's backward needs them.": (
        kept((2, 2, 0), (12, 12, 14))
    ),
    (
        "The inputs of the two regions are also kept, because the gradient of a weight is a product with "
        "its input."
    ): (kept((2, 0, 0), (12, 14, 14))),
    "4 M / N are missing. Attention keeps q, k, v and its output. The MLP keeps its 4h features "
    "twice, before GELU for its derivative, and after it for the second matrix.": (
        kept((4, 2, 0), (8, 10, 12))
    ),
    "Attention also keeps its output, because the output projection's gradient needs it.": (
        kept((4, 2, 0), (11, 13, 15))
    ),
    (
        "Your result is the layer on one rank, but activations cut by heads or hidden features are "
        "divided by N."
    ): (kept((16, 16, 16), (0, 0, 0))),
    "Your result divides everything. Without sequence parallelism the inputs of norms and regions are "
    "whole on every rank.": kept((0, 0, 0), (16, 16, 16)),
    "Your result is the bytes of all ranks together. Return the bytes of one rank.": (
        lambda n, m, sequence=None: n * layer_saved(n, m, sequence)
    ),
    "Your result is half. Did you count both attention and MLP?": (
        lambda n, m, sequence=None: layer_saved(n, m, sequence) / 2
    ),
    "These are the paper's coefficients, 34 in all, which are bytes per element in 16 bits with masks "
    "of dropout. Count activations here.": kept((10, 4, 0), (24, 30, 34)),
}
LOSS: dict[str, kit.Formula] = {
    "An all-reduce has two phases, 2 (N-1)/N, and a float32 number has 4 bytes. You left out a factor "
    "of 2 in one of these.": lambda n, t: (n - 1) / n * 12 * t,
    "You counted one number per token, but there are three, the largest logit, the sum of "
    "exponentials and the target's logit.": lambda n, t: 2 * (n - 1) / n * 4 * t,
    "You counted two numbers per token, but the ranks must also agree on the largest logit first.": (
        lambda n, t: 2 * (n - 1) / n * 8 * t
    ),
    "A float32 number has 4 bytes.": lambda n, t: 2 * (n - 1) / n * 3 * t,
    "The numbers are float32, 4 bytes each, whatever the logits are.": lambda n, t: 2 * (n - 1) / n * 6 * t,
    (
        "You counted forward and backward, but nothing is sent backward, because each rank has the "
        "softmax of its own part."
    ): (lambda n, t: 4 * (n - 1) / n * 12 * t),
    "Your result is the sum over all ranks. Return the bytes of one rank.": lambda n, t: 2 * (n - 1) * 12 * t,
    "With N ranks it is 2 (N-1)/N; 2 is the limit for many.": lambda n, t: 24 * t,
}


@kit.exercise(
    points=3, objects=("layer_bytes_sent", "layer_saved_bytes", "loss_bytes_sent"), references=FORMULAS
)
def predictions(draw: kit.Draw) -> Iterator[kit.Case]:
    nbytes = 840_000 * draw.integer(10, 100)
    tokens = 1_024 * draw.integer(2, 20)
    yield from kit.evaluated(
        [
            kit.Prediction(
                "layer_bytes_sent",
                index=0,
                arguments=[
                    (8, nbytes, "forward"), (8, nbytes, "backward"), (3, nbytes, "forward", "keep"),
                    (5, nbytes, "backward", "keep"), (4, nbytes, "forward", "regather"),
                    (8, nbytes, "backward", "regather"), (1, nbytes, "forward"),
                ],
                formula=layer_bytes,
                slips=SENT,
                weight=2,
                otherwise="Count the collectives of a layer, with (N-1)/N M for each gather and "
                          "reduce-scatter, and twice as much for an all-reduce.",
            ),
            kit.Prediction(
                "layer_saved_bytes",
                index=1,
                arguments=[
                    (8, nbytes), (8, nbytes, "keep"), (8, nbytes, "regather"), (3, nbytes),
                    (3, nbytes, "keep"), (5, nbytes, "regather"), (1, nbytes),
                ],
                formula=layer_saved,
                slips=SAVED,
                weight=2,
                otherwise="Go through the layer, and ask of each of its 16 activations whether a rank keeps "
                "it whole, or its part.",
            ),
            kit.Prediction(
                "loss_bytes_sent",
                index=2,
                arguments=[(8, tokens), (3, tokens), (2, 1_000), (1, tokens)],
                formula=loss_bytes,
                slips=LOSS,
                otherwise=("An all-reduce of three float32 numbers for each token sends 2 (N-1)/N * 12 "
                          "* tokens."),
            ),
        ]
    )  # fmt: skip
