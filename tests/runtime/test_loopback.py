"""Ranks meet over loopback, also if an image or a cluster's profile names another interface."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MEET = """
import sys, torch, torch.distributed as dist
from course_lib.runtime import pools, wire
from course_lib.runtime.run import run_ranks
from course_lib.runtime.sandbox import probe

def add_up():
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item()

sandbox = probe.probe(pools.preloaded()) if sys.argv[1] == "sandbox" else None
body = wire.dumps((add_up, (), {}))
outcome = run_ranks(
    "course_lib.runtime.call:call", {}, body, world_size=2, timeout=60, sandbox=sandbox
)
print(outcome.failure or [wire.loads(reply[1]) for reply in outcome.replies])
"""


@pytest.mark.parametrize("where", ["machine", "sandbox"])
def test_ranks_meet_although_the_environment_names_an_interface_that_is_not_there(
    where: str,
) -> None:
    """A sandbox has only loopback, so for it every other interface is missing."""
    done = subprocess.run(
        [sys.executable, "-c", MEET, where],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "absent9"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "[2.0, 2.0]" in done.stdout, done.stdout + done.stderr[-3000:]
