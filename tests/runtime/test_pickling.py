"""Objects that can be sent to ranks, and errors that say whose fault it is if one cannot."""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.runtime import heavy, pools, wire
from course_lib.runtime.pickling import explain

SOURCE = """
import functools, threading, torch

log = open({path!r}, "w")
numbers = (i for i in range(3))
state = {{"lock": threading.Lock(), "n": 1}}

class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        log.write("forward")
        return x

def by_way_of_others(x):
    return [Ring.apply(one) for one in x]

def within(x):
    return (lambda: next(numbers))()

def from_a_dict(x):
    return state["n"]

def by_default(x, numbers=numbers):
    return x

class Pool:
    size = 3

    def __init__(self):
        self.lock = threading.Lock()

    def attend(self, x):
        return x

of_an_object = Pool().attend
in_a_partial = functools.partial(lambda lock, x: x, threading.Lock())

def operators(x):
    return torch.ops.aten.mm(x, x), torch.backends.cudnn.enabled

mm = torch.ops.aten.mm

def an_operator(x):
    return mm(x, x), mm.default(x, x)
"""


@pytest.fixture
def typed(tmp_path: Path) -> dict[str, Any]:
    """The names that a notebook's cells define."""
    main = ModuleType("__main__")
    exec(SOURCE.format(path=str(tmp_path / "log")), vars(main))
    return vars(main)


@pytest.mark.parametrize(("name", "says"), [
    ("by_way_of_others", "the global variable 'log' that Ring.forward uses is a TextIOWrapper"),
    ("by_way_of_others", "Open the file inside the function"),
    ("within", "the global variable 'numbers' that it uses is a generator"),
    ("within", "or pass a list"),
    ("from_a_dict", "['lock'] of the global variable 'state' that it uses is a lock"),
    ("by_default", "a default argument of by_default is a generator"),
    ("of_an_object", "the attribute 'lock' of the object of the method attend is a lock"),
    ("in_a_partial", "the partial's argument 0 is a lock"),
])  # fmt: skip
def test_the_variable_at_fault_is_named(name: str, says: str, typed: dict[str, Any]) -> None:
    function = typed[name]
    with pytest.raises(Exception) as raised:  # any error that the object's own class raises
        wire.dumps(function)
    assert says in explain(function, (), {}, raised.value)


def test_an_argument_is_named_and_what_is_in_it() -> None:
    lock = threading.Lock()
    with pytest.raises(TypeError) as raised:
        wire.dumps([lock])
    said = explain(print, (1, [lock]), {}, raised.value)
    assert "[0] of argument 1 is a lock" in said and "Make it inside the function" in said


def test_what_holds_itself_ends() -> None:
    state: dict[str, Any] = {"lock": threading.Lock()}
    state["itself"] = state
    said = explain(lambda: state, (), {}, TypeError("no"))
    assert "the captured variable 'state'" in said and "lock" in said


def there_and_back(value: Any) -> Any:
    return wire.loads([bytes(buffer) for buffer in wire.dumps(value)])


@pytest.mark.parametrize("name", ["operators", "an_operator"])
def test_operators_of_pytorch_travel_by_name(name: str, typed: dict[str, Any], seed: int) -> None:
    """cloudpickle takes torch.ops and torch.backends.cudnn along if a function mentions them."""
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed))
    back: Callable = there_and_back(typed[name])
    one, other = back(x)
    assert torch.equal(one, x @ x)
    assert (
        torch.equal(other, x @ x)
        if name == "an_operator"
        else other is torch.backends.cudnn.enabled
    )


def files_of(code: CodeType) -> list[str]:
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    return [code.co_filename, *(file for part in inner for file in files_of(part))]


@pytest.mark.parametrize("leaves_out", [False, True], ids=["this cloudpickle", "as 3.1.3 does"])
def test_code_keeps_the_name_of_its_cell(leaves_out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, main = "/tmp/ipykernel_1/2755120846.py", ModuleType("__main__")
    exec(compile("def ring(x):\n    return [1 / y for y in x]", cell, "exec"), vars(main))
    table = wire._Pickler.dispatch_table

    def reduced(code: CodeType) -> tuple:
        kind, parts, *_ = table[CodeType](code)
        return kind, tuple("<dynamic-code>" if part == cell else part for part in parts)

    if leaves_out:
        monkeypatch.setattr(wire._Pickler, "dispatch_table", {**table, CodeType: reduced})
    back: Callable = there_and_back(vars(main)["ring"])
    assert files_of(back.__code__) == [cell] * len(files_of(vars(main)["ring"].__code__))
    with pytest.raises(ZeroDivisionError) as raised:
        back([0])
    last = raised.traceback[-1]
    assert (str(last.path), last.lineno) == (cell, 1)


@pytest.mark.parametrize("value", [
    torch.ops, torch.ops.aten, torch.ops.aten.mm, torch.ops.aten.mm.default, torch.backends.cudnn,
    torch._C._functions, functools, torch,
], ids=str)  # fmt: skip
def test_it_is_the_same_one(value: Any) -> None:
    assert there_and_back(value) is value


def test_a_module_made_by_hand_travels_by_value() -> None:
    module = ModuleType("made_by_hand")
    module.__dict__["number"] = 7
    assert there_and_back(module).number == 7


def test_a_module_of_a_students_own_kind_is_no_name() -> None:
    """A module that cannot be found by its name is not sent by its name."""

    class Strange(ModuleType):
        pass

    with pytest.raises(TypeError, match="Strange"):
        wire.dumps(Strange("nowhere.to.be.found"))
    assert "nowhere" not in sys.modules


def mentions(x: torch.Tensor) -> tuple[float, list[str]]:
    """This function names `torch.distributed` and "tensor", but not torch.distributed.tensor."""
    return float(torch.tensor(1.0) + x.sum() + dist.get_rank()), heavy.imported()


def uses(x: torch.Tensor) -> tuple[str, bool]:
    before = "torch.distributed.tensor" in heavy.imported()
    return dist.tensor.Replicate.__module__, before  # pyright: ignore[reportAttributeAccessIssue]


def test_a_heavy_module_is_imported_when_it_is_used() -> None:
    """cloudpickle takes torch.distributed.tensor along if a function names `dist` and `tensor`."""
    importlib.import_module("torch.distributed.tensor")
    assert "torch.distributed.tensor" in heavy.imported()
    pools.close()  # another test may have had it preloaded
    mentions.__module__ = uses.__module__ = "__main__"  # as in a notebook: sent by value
    assert list(launch(mentions, torch.zeros(2), world_size=2)) == [(1.0, []), (2.0, [])]
    for name, loaded in launch(uses, torch.zeros(2), world_size=2):
        assert name.startswith("torch.distributed.tensor") and not loaded
    used_before = launch(uses, torch.zeros(2), world_size=2)
    assert all(loaded for _, loaded in used_before), "preloaded from then on"


@pytest.mark.parametrize(
    "sent",
    [torch.tensor(2.5).expand(1), torch.arange(6.0).view(2, 3).T, torch.ones(3).conj(), torch.empty(0, 2)],
    ids=["one element, expanded", "transposed", "conjugate", "empty"],
)  # fmt: skip
def test_tensors_of_any_strides_arrive(sent: torch.Tensor) -> None:
    meta, buffers = wire.pack_tensors({"sent": sent})
    assert torch.equal(wire.unpack_tensors(meta, buffers)["sent"], sent)


def test_a_cached_function_travels_by_value() -> None:
    main = ModuleType("__main__")
    vars(main)["functools"] = functools
    code = (
        "@functools.lru_cache(maxsize=None)\n"
        "def count(n):\n"
        "    return n if n < 2 else count(n - 1) + count(n - 2)\n"
        "def solve(n):\n"
        "    return count(n)\n"
    )
    exec(code, vars(main))
    solve = wire.loads(wire.dumps(vars(main)["solve"]))
    assert solve(30) == 832_040
    assert solve.__globals__["count"].cache_parameters() == {"maxsize": None, "typed": False}


def test_what_torch_compile_made_is_named() -> None:
    compiled = torch.compile(lambda x: x)
    with pytest.raises(TypeError) as caught:
        wire.dumps(compiled)
    assert "torch.compile made it" in explain(compiled, (), {}, caught.value)


WAITING = """
import torch
import torch.distributed as dist
import torch.distributed.optim
from course_lib import launch

def job():
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    return dist.get_rank()

print(list(launch(job, world_size=2, backend="gloo")))
"""


def test_a_module_that_waits_for_its_use_is_in_nobodys_way(tmp_path: Path) -> None:
    """The first optimizer imports torch._dynamo, which looks for torch.distributed.optim."""
    program = tmp_path / "waiting.py"
    program.write_text(WAITING, encoding="utf-8")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert done.stdout == "[0, 1]\n", done.stderr
