"""The record held against the network: gloo's bytes are known, cheats are seen, no honest code is accused.

`tests/cheats/<assignment>/<exercise>.py` holds solutions whose record is right and whose values came
another way. Unless the ranks have a network of their own, no bytes are counted and cheats are not seen.
"""

from __future__ import annotations

import linecache
import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from autograder.sample.mutants import Mutant, read_mutants
from course_lib.checks.judge import judge, witness
from course_lib.checks.judge.find import find
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.operation import Operation
from course_lib.runtime import pools, wire
from course_lib.runtime.run import Outcome, run_ranks
from course_lib.runtime.sandbox import probe, spec
from course_lib.runtime.sandbox.spec import Sandbox

cloudpickle.register_pickle_by_value(sys.modules[__name__])
HERE = Path(__file__).parents[1]
RING = HERE / "mutants" / "02_collectives" / "ring_all_reduce.py"
CHEATS = [(file, cell) for file in sorted((HERE / "cheats").glob("*/*.py"))
          for cell in read_mutants(file)]  # fmt: skip
TIMES = 3
PROBES = "/proc/sys/net/ipv4/tcp_early_retrans"


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    strongest = probe.probe(pools.preloaded())
    if not strongest.has(spec.NETWORK):
        pytest.skip("this machine allows no network namespace: the ranks' bytes are not counted")
    return strongest


def inside(sandbox: Sandbox, body: Callable, *args: object, world_size: int) -> Outcome:
    outcome = run_ranks(
        "course_lib.runtime.call:call", {}, wire.dumps((body, args, {})), world_size=world_size,
        timeout=60, sandbox=sandbox, spare=False,
    )  # fmt: skip
    assert outcome.failure is None, outcome.failure.message
    return outcome


def parts(numel: int) -> list[torch.Tensor]:
    return [torch.ones(-(-numel // dist.get_world_size())) for _ in range(dist.get_world_size())]


def at_root(numel: int) -> list[torch.Tensor] | None:
    return parts(numel) if dist.get_rank() == 0 else None


def to_the_right(numel: int) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    sent = dist.isend(torch.ones(numel), (rank + 1) % n)
    dist.recv(torch.empty(numel), (rank - 1) % n)
    sent.wait()


def several(numel: int) -> None:
    """Tensors of several sizes in one call, of which the record names the first."""
    n = dist.get_world_size()
    with dist._coalescing_manager():
        for size in (1, numel, 3):
            dist.all_gather_into_tensor(torch.empty(n * size), torch.ones(size))


def sparse_sum(numel: int) -> None:
    indices = torch.arange(numel)[None]
    dist.all_reduce(
        torch.sparse_coo_tensor(indices, torch.ones(numel), (3 * numel,), check_invariants=False)
    )


def unequal(numel: int) -> None:
    """Rank r sends k * numel elements to rank k, and nothing to itself."""
    rank, n = dist.get_rank(), dist.get_world_size()
    goes = [k * numel if k != rank else 0 for k in range(n)]
    comes = [rank * numel if k != rank else 0 for k in range(n)]
    dist.all_to_all_single(torch.empty(sum(comes)), torch.ones(sum(goes)), comes, goes)


CALLS: dict[str, Callable[[int], object]] = {
    "all_reduce": lambda numel: dist.all_reduce(torch.ones(numel)),
    "broadcast": lambda numel: dist.broadcast(torch.ones(numel), 0),
    "reduce": lambda numel: dist.reduce(torch.ones(numel), 0),
    "all_gather": lambda numel: dist.all_gather(parts(numel), parts(numel)[0]),
    "reduce_scatter": lambda numel: dist.reduce_scatter(parts(numel)[0], parts(numel)),
    "reduce_scatter, tensor": lambda numel: dist.reduce_scatter_tensor(
        parts(numel)[0], torch.cat(parts(numel))
    ),
    "all_to_all": lambda numel: dist.all_to_all_single(
        torch.cat(parts(numel)), torch.cat(parts(numel))
    ),
    "all_to_all, unequal parts": unequal,
    "gather": lambda numel: dist.gather(parts(numel)[0], at_root(numel)),
    "scatter": lambda numel: dist.scatter(parts(numel)[0], at_root(numel)),
    "barrier": lambda numel: dist.barrier(),
    "send": to_the_right,
    "several at once": several,
    "a sparse sum": sparse_sum,
}  # fmt: skip


@pytest.mark.parametrize(("name", "n"), [*((name, 3) for name in CALLS), ("all_reduce", 4)])
def test_gloo_sends_what_is_expected_of_it(name: str, n: int, sandbox: Sandbox) -> None:
    """Small messages and large ones; the bounds that are allowed to a record are wider still."""

    def body(call: Callable[[int], object], numel: int) -> None:
        for _ in range(TIMES):
            call(numel)

    for numel in (37, 1 << 16):
        outcome = inside(sandbox, body, CALLS[name], numel, world_size=n)
        assert witness.contradicted(outcome.ledger, outcome.wire_bytes) is None
        sent = [witness.of_one_rank(one) for one in outcome.ledger.operations()]
        least, most, messages = (math.fsum(column) for column in zip(*sent, strict=True))
        counted = outcome.wire_bytes
        assert counted is not None and least <= counted <= 1.05 * most + 160 * messages + 100, numel


def typed(cell: Mutant) -> dict:
    """The names that a cell defines, as in the notebook."""
    main = ModuleType("__main__")
    vars(main).update(torch=torch, dist=dist, math=math)
    source = f"<cheat {cell.title}>"
    linecache.cache[source] = (len(cell.text), None, cell.text.splitlines(True), source)
    exec(compile(cell.text, source, "exec"), vars(main))
    return vars(main)


@pytest.mark.parametrize(("file", "cell"), CHEATS, ids=lambda one: getattr(one, "title", None))
def test_what_is_sent_behind_the_record_earns_nothing(
    file: Path, cell: Mutant, sandbox: Sandbox, seed: int
) -> None:
    name = f"{file.parent.name}/{file.stem}"
    objects = tuple(typed(cell)[wanted] for wanted in find(name).objects)
    report = judge.judge(name, wire.dumps(objects), seed, "hidden", sandbox=sandbox)
    assert report["tampered"] and report["score"] == 0.0
    said = " ".join(sentence for line in report["lines"] for sentence in line["sentences"])
    assert "Something else was sent besides" in said


SPARSE = """
def topk_all_reduce(tensor, fraction, error, group=None):
    asked = (tensor + error).flatten()
    places = asked.abs().topk(max(1, round(fraction * asked.numel()))).indices
    sent = torch.sparse_coo_tensor(
        places[None], asked[places], asked.shape, check_invariants=False
    ).coalesce()
    error.copy_((asked - sent.to_dense()).view_as(error))
    dist.all_reduce(sent, group=group)
    tensor.copy_((sent.to_dense() / dist.get_world_size(group)).view_as(tensor))
"""


def test_who_sums_sparse_tensors_is_not_accused(sandbox: Sandbox, seed: int) -> None:
    """The record books them as dense tensors; only the points for bytes suffer."""
    objects = (typed(Mutant("topk_all_reduce", True, "sparse", SPARSE))["topk_all_reduce"],)
    report = judge.judge(
        "03_data_parallel/topk_all_reduce", wire.dumps(objects), seed, sandbox=sandbox
    )
    assert not report["tampered"] and report["score"] > 0
    assert all(line["passed"] for line in report["lines"] if line["aspect"] == "value")


@pytest.mark.parametrize(("again", "tampered"), [(1, False), (judge.TRIES, True)])
def test_what_is_sent_twice_by_chance_accuses_nobody(
    again: int, tampered: bool, sandbox: Sandbox, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A case with extra bytes on the network is run again: extra bytes in every run are not chance."""
    cell = next(cell for cell in read_mutants(RING) if cell.right)
    run, left = judge.run_ranks, [again]

    def more(*args: Any, **kwargs: Any) -> Outcome:
        outcome = run(*args, **kwargs)
        if not left[0] or outcome.wire_bytes is None or kwargs["world_size"] < 3:
            return outcome
        left[0] -= 1
        return replace(outcome, wire_bytes=outcome.wire_bytes + 1_000_000)

    monkeypatch.setattr(judge, "run_ranks", more)
    report = judge.judge(
        "02_collectives/ring_all_reduce", wire.dumps((typed(cell)["ring_all_reduce"],)), seed,
        sandbox=sandbox,
    )  # fmt: skip
    assert left == [0]
    assert report["tampered"] is tampered and report["score"] == (0 if tampered else 1)


def test_the_kernel_sends_nothing_twice_of_its_own(sandbox: Sandbox) -> None:
    if not os.access(PROBES, os.W_OK):
        pytest.skip("this machine does not let the grader say when TCP sends again")
    outcome = inside(sandbox, lambda: Path(PROBES).read_text(), world_size=2)
    assert [int(wire.loads(reply[1])) for reply in outcome.replies if reply] == [0, 0]


def operation(rank: int, op: str, nbytes: int, *, waited: bool = True) -> Operation:
    return Operation(
        rank=rank, index=0, op=op, peer=None, group=(0, 1), tag=0, dtype="uint8", shape=(nbytes,),
        nbytes=nbytes, bytes_sent=0.0, issued=0.0, blocked=0.0, completed=0.0, waited=waited, line="",
        source="",
    )  # fmt: skip


@pytest.mark.parametrize(("waited", "on_the_wire", "said"), [
    (True, 2_000_000, ""), (True, 1_500_000, "The record of the operations was changed"),
    (True, 2_300_000, "Something else was sent besides"), (False, 1_500_000, ""),
])  # fmt: skip
def test_an_operation_that_nobody_waited_for_may_not_be_over(
    waited: bool, on_the_wire: int, said: str
) -> None:
    both = [[operation(rank, "all_reduce", 1_000_000, waited=waited)] for rank in (0, 1)]
    found = witness.contradicted(Ledger(2, both), on_the_wire)
    assert (found is None) == (not said)
    assert found is None or said in " ".join(found.sentences)


def test_what_the_recipe_sums_by_itself_is_counted() -> None:
    idle = Ledger(2, [[], []])
    assert witness.contradicted(idle, 2_000_000, (1_000_000,)) is None
    assert witness.contradicted(idle, 2_000_000) is not None
    assert witness.contradicted(idle, None) is None


def test_an_unknown_built_in_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing is known"):
        witness.gloo("all_sorts", 2, 8)
