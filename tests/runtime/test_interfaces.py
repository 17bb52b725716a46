"""The interface over which ranks meet is of this machine, whatever the environment says."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from course_lib.runtime.interfaces import GLOO, NCCL, of_ranks

MEET = """
import torch, torch.distributed as dist
from course_lib import launch

def add_up():
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item()

print(launch(add_up, world_size=2, backend="gloo"))
"""


def test_loopback_unless_another_is_asked_for() -> None:
    assert of_ranks({}) == {GLOO: "lo", NCCL: "lo"}


@pytest.mark.parametrize(
    ("value", "gloo", "nccl"),
    [
        ("eth0", "eth0", "eth0"),
        ("lo,eth0", "lo,eth0", "lo,eth0"),
        ("eth9", "lo", "lo"),
        ("eth0,eth9", "lo", "lo"),
        ("", "lo", "lo"),
        ("eth", "lo", "eth"),  # only NCCL takes the beginning of a name
        ("=eth0", "lo", "=eth0"),
        ("=eth9", "lo", "lo"),
        ("^docker0", "lo", "^docker0"),
    ],
)
def test_a_name_that_the_machine_lacks_is_not_passed_on(
    monkeypatch: pytest.MonkeyPatch, value: str, gloo: str, nccl: str
) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    assert of_ranks({GLOO: value, NCCL: value}) == {GLOO: gloo, NCCL: nccl}


def test_ranks_meet_although_the_image_names_an_interface_of_another_machine() -> None:
    environment = {**os.environ, GLOO: "absent9"}
    done = subprocess.run(
        [sys.executable, "-c", MEET], env=environment, capture_output=True, text=True, timeout=300
    )
    assert "[2.0, 2.0]" in done.stdout, done.stderr[-3000:]
