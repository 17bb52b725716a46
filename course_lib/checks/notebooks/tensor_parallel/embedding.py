"""VocabParallelEmbedding: a table whose rows are cut over the ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.checks import kit, words
from course_lib.checks.judge.layers import runs
from course_lib.checks.judge.layers.lines import (
    held_line,
    members,
    operations,
    saved_line,
    sent_line,
    values_line,
)
from course_lib.checks.judge.layers.runs import LayerRun
from course_lib.checks.notebooks.tensor_parallel.prediction import REFERENCE
from course_lib.checks.notebooks.tensor_parallel.shared import (
    FACTOR_N,
    interface,
    other_sizes,
    own_work,
    shows_its_part,
)
from course_lib.facts import chunk_sizes, least_bytes
from course_lib.ledger.operation import Operation

FLOAT = 8  # bytes
INDICES = 32  # bytes of indices and masks that a token may leave for backward
WHOLE_TABLE = (
    "Every rank holds the whole table. Keep a copy of the rank's rows (.detach().clone()), because a "
    "slice is a view and keeps the rest alive."
)


@dataclass(frozen=True)
class Table:
    """A table of vocab x width from a seed, its rows cut over n ranks; tokens, and the output's gradient."""

    n: int
    seed: int
    weight: Tensor
    tokens: Tensor
    g: Tensor

    @classmethod
    def draw(cls, draw: kit.Draw, n: int, vocab: int, width: int, *shape: int) -> Table:
        """Every row of the table occurs among the tokens, as far as there are enough."""
        seed, count = draw.integer(1, 1 << 30), torch.Size(shape).numel()
        order = torch.randperm(count, generator=draw.generator)
        extra = torch.randint(vocab, (count,), generator=draw.generator)
        tokens = torch.cat([torch.arange(vocab), extra])[:count][order].view(shape)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            weight = nn.Embedding(vocab, width, dtype=torch.float64).weight.detach()
        return cls(n, seed, weight, tokens, draw.normal(*shape, width, dtype=torch.float64))

    @property
    def y(self) -> Tensor:
        return self.weight[self.tokens]

    @property
    def for_weight(self) -> Tensor:
        summed = torch.zeros_like(self.weight)
        return summed.index_add(0, self.tokens.flatten(), self.g.flatten(0, -2))

    def part(self, k: int, tensor: Tensor) -> Tensor:
        return tensor.tensor_split(self.n)[k].clone()

    def local(self, k: int) -> tuple[Tensor, Tensor]:
        """The tokens counted from the rank's first row, and which of them are elsewhere."""
        sizes = chunk_sizes(len(self.weight), self.n)
        local = self.tokens - sum(sizes[:k])
        return local, (local < 0) | (local >= sizes[k])

    def counted_from(self, each: Callable[[int], int]) -> Tensor:
        """The sum over the ranks where rank k takes row k * each(k) of the table for its first."""
        summed = torch.zeros(())
        for k in range(self.n):
            rows, local = self.part(k, self.weight), self.tokens - k * each(k)
            here = (local >= 0) & (local < len(rows))
            summed = summed + rows[local.where(here, 0)].where(here[..., None], 0)
        return summed

    def own_rows(self, k: int) -> Tensor:
        """The rows of the tokens that rank k has, zeros for the others."""
        return self.y.masked_fill(self.local(k)[1][..., None], 0)

    def unmasked(self, at: Callable[[int], Tensor]) -> Tensor:
        """The sum over the ranks where each adds a row for every token; at: k -> which of its own."""
        return sum((self.part(k, self.weight)[at(k)] for k in range(self.n)), torch.zeros(()))

    def first_row(self, k: int) -> Tensor:
        local, elsewhere = self.local(k)
        return local.masked_fill(elsewhere, 0)

    def nearest_row(self, k: int) -> Tensor:
        return self.local(k)[0].clamp(0, chunk_sizes(len(self.weight), self.n)[k] - 1)

    def row_modulo(self, k: int) -> Tensor:
        return self.tokens % chunk_sizes(len(self.weight), self.n)[k]

    def turned_around(self) -> Tensor:
        """The sum over the ranks where each sets its own tokens' rows to zero, not the others'."""
        summed = torch.zeros(())
        for k in range(self.n):
            rows, elsewhere = self.part(k, self.weight)[self.first_row(k)], self.local(k)[1]
            summed = summed + rows.where(elsewhere[..., None], 0)
        return summed

    def stray(self, k: int, at: Callable[[int], Tensor]) -> Tensor:
        """The gradient of the rank's rows where tokens of others leave theirs there, too."""
        summed = torch.zeros_like(self.part(k, self.weight))
        return summed.index_add(0, at(k).flatten(), self.g.flatten(0, -2))

    def stray_alone(self, k: int) -> Tensor:
        """The gradient of the rank's rows where only tokens of others leave theirs, all in the first."""
        summed, (_, elsewhere) = torch.zeros_like(self.part(k, self.weight)), self.local(k)
        summed[0] = self.g.masked_fill(~elsewhere[..., None], 0).flatten(0, -2).sum(0)
        return summed

    def rows_added_up(self, k: int) -> Tensor:
        """The sum of the gradients of all ranks' rows; without elements if they have other numbers."""
        parts = self.for_weight.tensor_split(self.n)
        if len({len(rows) for rows in parts}) > 1:
            return self.for_weight.new_empty(0)  # the ranks do not agree on their collective
        return sum(parts, torch.zeros(()))


def run_of(table: Table, name: str = "table") -> LayerRun:
    wanted = [
        {
            "p.weight": table.part(k, table.weight),
            "y": table.y,
            "grad.p.weight": table.part(k, table.for_weight),
        }
        for k in range(table.n)
    ]
    return LayerRun(
        name, [{"tokens": table.tokens}] * table.n, wanted, [table.g] * table.n, seed=table.seed,
        make=(list(table.weight.shape), {}),
    )  # fmt: skip


def slips(table: Table) -> list[kit.Slip]:
    n, (vocab, width) = table.n, table.weight.shape
    choices = (table.first_row, table.nearest_row, table.row_modulo)
    unmasked = (
        "Every rank added a row for every token. For a token that another rank has, this rank must add zeros."
    )
    turned_around = (
        "The rows of the rank's own tokens were set to zero, and those looked up for other ranks' tokens "
        "were kept. Turn the mask around."
    )
    added_up = (
        "The gradients of all ranks' rows were added up, although each rank has rows of other tokens. Every "
        "rank's own gradient is right already, so nothing is sent backward."
    )
    stray = (
        "Tokens of other ranks left their gradient in rows here, because their rows were set to zero "
        "without autograd (.data, no_grad). masked_fill, or a product with a mask, also stops the "
        "gradient."
    )

    def of_own_size(k: int) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(table.seed)
            rows = len(table.part(k, table.weight))
            return nn.Embedding(rows, width, dtype=torch.float64).weight.detach()

    return [
        kit.Slip(
            "Each rank drew a table of the size of its part, so from one seed all ranks have the same "
            "rows. Make the whole table, as nn.Embedding does, and keep the rank's rows.",
            lambda k: {"p.weight": of_own_size(k)},
        ),
        *(kit.Slip(unmasked, lambda k, at=at: {"y": table.unmasked(at)}) for at in choices),
        *(  # nothing was set to zero, so the gradient has the same cause as the output
            kit.Slip(
                unmasked, lambda k, at=at: {"y": table.unmasked(at), "grad.p.weight": table.stray(k, at)}
            )
            for at in choices
        ),
        kit.Slip(turned_around, lambda k: {"y": table.turned_around()}),
        kit.Slip(
            turned_around, lambda k: {"y": table.turned_around(), "grad.p.weight": table.stray_alone(k)}
        ),
        kit.Slip(
            (
                "The ranks' rows were not summed. One rank has the row of a token, but the other ranks "
                "have zeros."
            ),
            lambda k: {"y": table.own_rows(k)},
        ),
        *(
            kit.Slip(
                f"The rank's first token is counted wrong: {n} ranks do not divide {vocab}. "
                "torch.tensor_split makes the first parts one longer.",
                lambda k, each=each: {"y": table.counted_from(each)},
            )
            for each in (
                lambda k: vocab // n,
                lambda k: -(-vocab // n),
                lambda k: len(table.part(k, table.weight)),
            )
            if vocab % n
        ),
        kit.Slip(FACTOR_N, lambda k: {"grad.p.weight": n * table.part(k, table.for_weight)}),
        kit.Slip(added_up, lambda k: {"y": table.y, "grad.p.weight": table.rows_added_up(k)}),
        *(kit.Slip(stray, lambda k, at=at: {"grad.p.weight": table.stray(k, at)}) for at in choices),
    ]


def misfit(table: Table) -> Callable[[str, str, int], str]:
    vocab, width = table.weight.shape

    def hint(name: str, came: str, k: int) -> str:
        shape = [int(size) for size in re.findall(r"\d+", came.partition("[")[2])]
        if came == "None" and name == "y":
            return "Is there a `return` at its end?"
        if came == "None" and name == "p.weight":
            return "The rank's rows are to be its parameter, of the name weight."
        if not name.endswith("p.weight") or len(shape) != 2:
            return ""
        if shape == [vocab, width]:
            return WHOLE_TABLE
        if shape[0] == vocab:
            return "The table is cut by features, dimension 1, but the vocabulary is dimension 0."
        return (
            f"Cut {vocab} rows over {table.n} ranks as torch.tensor_split does, so that the first "
            "ranks have one row more."
        )

    return hint


def line(
    run: LayerRun, table: Table, title: str, names: Sequence[str] = (), weight: float = 1.0, **more: Any
) -> kit.Line:
    return values_line(
        run, title, names=names, slips=slips(table), misfit=misfit(table), weight=weight, **more
    )


def first_lines(run: LayerRun, table: Table, title: str) -> list[kit.Line]:
    return [
        line(run, table, f"{title}: the rank's rows", ["p.weight"]),
        line(run, table, f"{title}: output", ["y"], 2),
        line(run, table, f"{title}: gradient", ["grad.p.weight"], 2),
    ]


def forward_hint(ratio: float, done: list[Operation]) -> str:
    if any(operation.op == "all_gather" for operation in done) and ratio > 1:
        return "Gathering the table, or the rows that the ranks looked up, sends more than summing the rows."
    if any(operation.op == "all_gather" for operation in done):
        return (
            "A gather brought the whole table to every rank. Here that is fewer bytes than the sum of "
            "the rows, but a real vocabulary has far more rows than a microbatch has tokens. Look up "
            "the rank's own rows, and sum."
        )
    return "One all-reduce of the rows that were looked up, tokens x embedding_dim, and nothing else."


def held(run: LayerRun, table: Table) -> kit.Line:
    rows = [len(table.part(k, table.weight)) for k in range(table.n)]
    most = [FLOAT * table.weight.shape[1] * count for count in rows]
    return shows_its_part(kit.essential(held_line(run, most, says=WHOLE_TABLE)), run, table.weight)


def costs(run: LayerRun, table: Table) -> list[kit.Line]:
    n, tokens = table.n, table.tokens.numel()
    width = table.weight.shape[1]
    return [
        without_a_gather(
            sent_line(run, "forward", [least_bytes(n, FLOAT * tokens * width)] * n, hint=forward_hint), run
        ),
        sent_line(
            run, "backward", [0.0] * n, weight=0.5,
            hint=lambda ratio, done: ("The gradient of a sum is the gradient of each term, so nothing "
                                     "is sent backward."),
        ),
        own_work(run),
        saved_line(
            run, [INDICES * tokens] * n, weight=0.5,
            says="Backward needs to know which rows were looked up, not their values, nor a row of zeros and "
            "ones for each token.",
        ),
    ]  # fmt: skip


def without_a_gather(line: kit.Line, run: LayerRun) -> kit.Line:
    """The line; a solution that gathers the table misses the exercise's point, however few bytes that are."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        kinds = {done.op for rank in members(observed) for done in operations(run, observed, rank, "forward")}
        return replace(finding, misses_point=True) if not finding.ok and "all_gather" in kinds else finding

    return replace(line, judge=judge)


def trouble(case_of_it: kit.Case, kind: str, text: str) -> str:
    """The usual cause of a run that broke off."""
    if said := interface(text):
        return said
    if "out of range" in text or "out of bounds" in text:
        return (
            "A token that another rank has is not an index into the rows here. Count from the rank's "
            "first row. If the token is elsewhere, look up any row, such as 0, and set the result to "
            "zero."
        )
    if "must match the size of tensor" in text:
        return (
            "`here` has an element for each token, but the rows have one dimension more, the features. Give "
            "the mask that dimension, too: here[..., None]."
        )
    if other_sizes(text):
        return (
            "The ranks send tensors of different sizes. Cut the table by rows, dimension 0, and sum the rows "
            "that were looked up. They are tokens x embedding_dim on every rank. The weight and its gradient "
            "are the rank's own, and are not sent."
        )
    if kind == "deadlock" or "collective number" in text:
        return "All ranks must sum, even a rank that has none of the tokens."
    return ""


@kit.exercise(
    points=4,
    objects=("VocabParallelEmbedding",),
    references=REFERENCE,
    hint=trouble,
    point="a table of which each rank holds only its rows",
)
def vocab_parallel_embedding(draw: kit.Draw) -> Iterator[kit.Case]:
    table = Table.draw(draw, 3, 31, 16, 4, 10)
    run, title = run_of(table), "3 ranks, 31 tokens"
    broad = Table.draw(draw, 3, 1031, 1024, 4, 10)  # 8.4 MB: seen among the pages of a process
    large = replace(run_of(broad, "broad"), pages=True)
    yield runs.layer_case(
        title, [run, large], [*first_lines(run, table, title), *costs(run, table), held(large, broad)]
    )
    table = Table.draw(draw, 2, 8, 3, 9)
    run, title = run_of(table), "group {1, 3}"
    yield runs.layer_case(title, [run], [line(run, table, title)], members=(1, 3), world_size=4)
    if draw.hidden:
        for n, vocab in ((4, 18), (2, 7), (1, 6)):
            table = Table.draw(draw, n, vocab, 4, 3, 8)
            run, title = run_of(table), f"{words.counted(n, 'rank')}, {vocab} tokens"
            yield runs.layer_case(title, [run], [line(run, table, title, short=True, trivial=n == 1)])
