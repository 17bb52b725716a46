"""shard_indices: which samples a rank sees in an epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from course_lib.checks import kit, words
from course_lib.checks.notebooks.data_parallel.refused import SAMPLER

REFERENCE = ("course_lib.data_parallel",)
NAME = "shard_indices"


@dataclass(frozen=True)
class Deal:
    """One question to all ranks: shard_indices(n, rank, world_size, epoch, **named)."""

    n: int
    world_size: int
    epoch: int = 0
    named: tuple[tuple[str, object], ...] = ()

    def calls(self) -> list[list]:
        return [
            [0, [self.n, rank, self.world_size, self.epoch], dict(self.named)]
            for rank in range(self.world_size)
        ]

    def __str__(self) -> str:
        named = "".join(f", {name}={value!r}" for name, value in self.named)
        return f"{NAME}({self.n}, rank, {self.world_size}, {self.epoch}{named})"

    @property
    def each(self) -> int:
        return -(-self.n // self.world_size)


Shards = list[list[int]]
NO_INTS = (
    "Return one list, of the samples of this rank, whose elements are int. From a tensor or an array, "
    "`.tolist()` makes such a list."
)
A_TENSOR = (
    "The result is a tensor, although a list of int is asked for. That costs nothing here, but the cell "
    "after the check counts the samples wrongly, so return `.tolist()`."
)


class Asked:
    """The deals of a case, and the ranks' shares."""

    def __init__(self) -> None:
        self.deals: list[Deal] = []
        self.starts: dict[Deal, int] = {}
        self.calls: list[list] = []

    def add(self, deal: Deal) -> Deal:
        if deal not in self.starts:
            self.starts[deal] = len(self.calls)
            self.calls += deal.calls()
        return deal

    def again(self, deal: Deal) -> int:
        """Ask an earlier question once more; returns the places of its answers."""
        start = len(self.calls)
        self.calls += deal.calls()
        return start

    def shards(self, observed: kit.Observed, deal: Deal, start: int | None = None) -> Shards | kit.Finding:
        """The lists of all ranks, or the finding about one of them."""
        start = self.starts[deal] if start is None else start
        shards: Shards = []
        for rank in range(deal.world_size):
            answer = observed.answer(start + rank)
            if answer.error is not None:
                return raised(deal, *answer.error)
            indices = numbers(answer.value)
            if answer.value is None:
                return kit.wrong(f"{NAME} returns None.", "Does it end in a `return`?", cause="none")
            if indices is None:
                return kit.wrong(f"{NAME} does not give a list of whole numbers.", NO_INTS, cause="no ints")
            outside = [index for index in indices if not 0 <= index < deal.n]
            if outside:
                return kit.wrong(
                    kit.Sentence(
                        f"{deal} gives rank {rank} the index {outside[0]}, but there are only samples 0 to "
                        f"{deal.n - 1}.",
                        f"{NAME} gives an index that no sample has.",
                    ),
                    "Fill up with samples that exist, starting again with the first of the order.",
                    cause="outside",
                )
            shards.append(indices)
        return shards


def numbers(value: object) -> list[int] | None:
    if isinstance(value, dict) and isinstance(value.get("tensor"), list):
        value = value["tensor"]
    whole = isinstance(value, list) and all(type(number) is int for number in value)
    return value if whole else None  # type: ignore[return-value]


def raised(deal: Deal, error: str = "", text: str = "", place: str = "") -> kit.Finding:
    if error == "NotImplementedError":
        return kit.unwritten(NAME, place)
    if text in SAMPLER.values():
        return kit.wrong(text, kit.at(place), cause="refused")
    said = kit.error_sentence(NAME, error, text, call=str(deal))
    return kit.wrong(said, kit.at(place), cause=f"raised {error}")


Look = Callable[[Deal, Shards], kit.Finding]


def everyone_sees(deal: Deal, shards: Shards) -> kit.Finding:
    missing = sorted(set(range(deal.n)) - {sample for shard in shards for sample in shard})
    if not missing:
        return kit.RIGHT
    verb = words.verb(missing, "is", "are")
    said = f"{deal}: {words.which('sample', missing)} {verb} on no rank."
    sentence = kit.Sentence(said, "some samples are on no rank.")
    own_orders = False
    if len(missing) == deal.n - deal.world_size * (deal.n // deal.world_size):
        hint = (
            "As many samples are missing as the division leaves over. Every rank gets ceil(n / "
            "world_size), not floor."
        )
    elif all(len(shard) == deal.each for shard in shards):
        own_orders = True
        hint = (
            "Ranks that each shuffle in their own order overlap and miss other samples. Draw one "
            "permutation, the same on every rank, from a generator seeded with seed + epoch."
        )
    else:
        hint = "Together the ranks must see every sample."
    return kit.wrong(sentence, hint, cause=f"missing {hint}", misses_point=own_orders)


def nobody_twice(deal: Deal, shards: Shards) -> kit.Finding:
    counts = Counter(sample for shard in shards for sample in shard)
    most = -(-deal.each * deal.world_size // deal.n)
    often = sorted(sample for sample, count in counts.items() if count > most)
    extra = sum(counts.values()) - len(counts)
    spare = deal.each * deal.world_size - deal.n
    if not often and extra <= spare:
        return kit.RIGHT
    repeated = [sample for sample, count in sorted(counts.items()) if count > 1]
    said = kit.Sentence(
        f"{deal}: {words.which('sample', repeated)} {words.verb(repeated, 'is', 'are')} seen more than "
        f"once, but {words.counted(spare, 'repetition')} {words.verb([0] * spare, 'is', 'are')} enough to "
        "fill up.",
        "samples are seen more often than is needed to fill up.",
    )
    return kit.wrong(
        said,
        "Two ranks must not see the same sample, because the gradient would count it twice. Rank r takes "
        "every world_size-th sample of one common order, from index r on.",
        cause="twice",
    )


def equally_many(deal: Deal, shards: Shards) -> kit.Finding:
    lengths = [len(shard) for shard in shards]
    if set(lengths) == {deal.each}:
        return kit.RIGHT
    said = kit.Sentence(
        f"{deal} gives {words.listing(lengths)} samples, but every rank must have {deal.each}.",
        "the ranks do not have ceil(n / world_size) samples each.",
    )
    hint = ""
    if len(set(lengths)) > 1:
        hint = (
            "A rank with one more batch waits forever in its all-reduce, because the other ranks have none "
            "left."
        )
    return kit.wrong(said, hint, cause="lengths")


def line(title: str, asked: Asked, deals: Sequence[Deal], look: Look, weight: float = 1) -> kit.Line:
    """A line that holds for each deal by itself."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for deal in deals:
            shards = asked.shards(observed, deal)
            finding = shards if isinstance(shards, kit.Finding) else look(deal, shards)
            if not finding.ok:
                return finding
        return kit.RIGHT

    return kit.Line(title, judge, weight)


def noting_tensors(asked: Asked, inner: kit.Line) -> kit.Line:
    """The line; where it is right, and the results are tensors, it says what does not work with these."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = inner.judge(observed)
        values = (observed.answer(k).value for k in range(len(asked.calls)))
        if finding.ok and any(isinstance(value, dict) for value in values):
            return replace(finding, sentences=(A_TENSOR,))
        return finding

    return replace(inner, judge=judge)


def every_epoch_anew(asked: Asked, first: Deal, second: Deal) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        shards, others = asked.shards(observed, first), asked.shards(observed, second)
        if isinstance(shards, kit.Finding) or isinstance(others, kit.Finding):
            return shards if isinstance(shards, kit.Finding) else others  # type: ignore[return-value]
        if shards[0] == sorted(shards[0]) and shards == others:
            return kit.wrong("the samples are in their original order, so shuffle them.")
        if shards == others:
            return kit.wrong(
                "epochs 0 and 1 have the same order.",
                "Make the epoch a part of the generator's seed, as in seed + epoch. (With "
                "DistributedSampler, the usual mistake is to forget set_epoch.)",
            )
        if [sorted(shard) for shard in shards] == [sorted(shard) for shard in others]:
            return kit.wrong(
                "every rank sees the same samples in epochs 0 and 1, only in another order.",
                "Shuffle all samples first, then deal them out.",
            )
        return kit.RIGHT

    return kit.Line("another order in each epoch", judge, 1.5)


def same_when_asked_again(asked: Asked, deal: Deal) -> kit.Line:
    start = asked.again(deal)

    def judge(observed: kit.Observed) -> kit.Finding:
        shards, others = asked.shards(observed, deal), asked.shards(observed, deal, start)
        if isinstance(shards, kit.Finding) or isinstance(others, kit.Finding):
            return shards if isinstance(shards, kit.Finding) else others  # type: ignore[return-value]
        if shards == others:
            return shared_generator(observed, asked)
        return kit.wrong(
            "two calls for the same epoch give two different orders.",
            "Every rank makes its own call, but all must get parts of one order. Draw from a generator of "
            "your own, torch.Generator().manual_seed(seed + epoch).",
        )

    return kit.Line("the same order for every rank that asks", judge, 1)


def shared_generator(observed: kit.Observed, asked: Asked) -> kit.Finding:
    """No call drew from the generators that the whole process shares, nor seeded them."""
    if not any(observed.answer(k).random for k in range(len(asked.calls))):
        return kit.RIGHT
    return kit.wrong(
        f"{NAME} seeded or used the random generator shared by the whole process.",
        "The numbers drawn next, for dropout or noise, would then be the same in every epoch. Draw from a "
        "generator of your own: torch.Generator().manual_seed(seed + epoch).",
        cause="shared generator",
    )


def other_seed(asked: Asked, deal: Deal, seeded: Deal) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        shards, others = asked.shards(observed, deal), asked.shards(observed, seeded)
        if isinstance(shards, kit.Finding) or isinstance(others, kit.Finding):
            return shards if isinstance(shards, kit.Finding) else others  # type: ignore[return-value]
        if shards != others:
            return kit.RIGHT
        return kit.wrong("seed 0 and another seed give the same order.", "Seed with seed + epoch.")

    return kit.Line("another order with another seed", judge, 0.5)


def in_order(asked: Asked, deal: Deal) -> kit.Line:
    def look(deal: Deal, shards: Shards) -> kit.Finding:
        places = range(deal.each * deal.world_size)
        right = [[k % deal.n for k in places[r :: deal.world_size]] for r in range(len(shards))]
        if shards == right:
            return kit.RIGHT
        rank = next(r for r in range(len(right)) if shards[r] != right[r])
        return kit.wrong(
            kit.Sentence(
                f"{deal} gives rank {rank} {shards[rank]}, but {right[rank]} is expected.",
                "with shuffle=False the ranks do not get the samples in order.",
            ),
            "Rank r takes the indices r, r + world_size, r + 2 world_size, ..., and after the last sample "
            "the first ones follow.",
        )

    return line("shuffle=False: dealt like cards", asked, [deal], look)


def dropped(asked: Asked, deal: Deal) -> kit.Line:
    def look(deal: Deal, shards: Shards) -> kit.Finding:
        lengths, each = {len(shard) for shard in shards}, deal.n // deal.world_size
        if lengths != {each}:
            return kit.wrong(
                kit.Sentence(
                    f"{deal}: ranks have {words.listing(sorted(lengths))} samples, but {each} are expected.",
                    "with drop_last=True the ranks do not have floor(n / world_size) samples each.",
                )
            )
        repeated = len({sample for shard in shards for sample in shard}) < each * deal.world_size
        return kit.wrong("with drop_last=True a sample is seen twice.") if repeated else kit.RIGHT

    return line("drop_last=True: nothing twice", asked, [deal], look, 0.5)


@kit.exercise(
    points=6, objects=(NAME,), references=REFERENCE, refused=SAMPLER,
    point="parts of one order, the same on all ranks",
)  # fmt: skip
def shard_indices(draw: kit.Draw) -> Iterator[kit.Case]:
    asked = Asked()
    many = 4 * draw.integer(6, 12) + draw.integer(1, 4)  # four ranks do not divide it
    uneven, even = asked.add(Deal(many, 4)), asked.add(Deal(3 * draw.integer(5, 9), 3))
    few, alone = asked.add(Deal(3, 8)), asked.add(Deal(draw.integer(5, 9), 1))
    later, seeded = asked.add(Deal(many, 4, 1)), asked.add(Deal(many, 4, 0, (("seed", 7),)))
    ordered = asked.add(Deal(many, 4, 2, (("shuffle", False),)))
    cut = asked.add(Deal(many, 4, 0, (("drop_last", True),)))
    deals = [uneven, even, few, alone, later]
    lines = [
        noting_tensors(asked, line("together the ranks see every sample", asked, deals, everyone_sees, 2)),
        line("no sample twice, but to fill up", asked, deals, nobody_twice, 1.5),
        line("equally many on every rank", asked, deals, equally_many, 1.5),
        every_epoch_anew(asked, uneven, later),
        same_when_asked_again(asked, uneven),
        other_seed(asked, uneven, seeded),
        in_order(asked, ordered),
        dropped(asked, cut),
    ]
    sides = [kit.evaluating(asked.calls)]
    yield kit.Case("samples", sides, lines, recipe=kit.EVALUATE, alone=True)
