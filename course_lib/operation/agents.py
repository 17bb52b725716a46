"""Two machines on one: two elastic agents, which are started as by `torchrun`, and ranks that really die.

An agent is the process on each machine that starts its ranks and watches them. Agents meet at a store and
agree which of them take part, which is called the rendezvous. If a rank dies, its agent ends its other ranks
and asks for a new rendezvous. The other agents notice this and do the same. So *all* ranks start again, and
everything they had in memory is lost, which is why they continue from the newest checkpoint. If an agent
dies, the others wait for its signs of life in vain. They continue without it, on fewer ranks, if that leaves
the minimum number of nodes (`nodes=(1, 2)`).

    run_agents(worker, folder, nodes=(2, 2))                               # undisturbed
    run_agents(worker, folder, nodes=(1, 2), kills=[Kill(1, "saved 5")])   # an agent dies

It is up to you to keep the batch and the learning rate. Here the rows of a step are fixed, and are dealt out
to any number of ranks. Each agent has its own `TORCHELASTIC_RESTART_COUNT`, so do not name files by it.

All settings are chosen for speed: forked ranks, and signs of life every second, of which three can fail. The
store is in the starter, so that any agent can die; `torchrun` has it in the first agent. Without
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 the ranks would meet at the agents' store, and with two nodes a killed
rank was never replaced (0 of 3 within 60 s, PyTorch 2.13; compare pytorch issue 135712).

Sources: PyTorch's pages on torchrun and torch.distributed.elastic; `LaunchConfig` and
`DynamicRendezvousHandler` of PyTorch 2.13.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .journal import Journal, Line
from .starter import Deadline, end_with, fork, run_below

STATE = {"last_call_timeout": 1, "keep_alive_interval": 1, "keep_alive_max_attempt": 3}


@dataclass(frozen=True)
class Kill:
    """Kill agent number `agent` with SIGKILL as soon as the journal has a line `after`."""

    agent: int
    after: str


@dataclass(frozen=True)
class AgentsRun:
    """codes: exit codes of the agents, negative for a signal; lines: the journal's, timed from the start."""

    seconds: float
    codes: list[int]
    lines: list[Line]


def run_agents(
    worker: Callable[..., object],
    folder: str | Path,
    *arguments: Any,
    nodes: tuple[int, int] = (2, 2),
    ranks: int = 2,
    restarts: int = 3,
    kills: Sequence[Kill] = (),
    timeout: float = 90.0,
) -> AgentsRun:
    """worker(folder, *arguments) on the ranks of two agents; returns when both have ended.

    worker: a function of a notebook or of a module, which calls `dist.init_process_group` itself. It finds
        RANK, WORLD_SIZE and the rest in its environment, and notes its steps in
        `Journal(f"{folder}/journal")`.
    folder: for the worker's files; it is created. nodes: minimum and maximum number of agents that take part.
    ranks: of each agent. restarts: how often an agent starts its ranks again after one of them failed.
    kills: agents to be killed.

    No process is left, however the run ends. Raises RuntimeError, with everything the processes printed, if
    the run does not end within `timeout` seconds.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = str(Path(folder).absolute())
    config = {"nodes": nodes, "ranks": ranks, "restarts": restarts}
    return run_below(partial(_start, worker, path, arguments, config, list(kills)), timeout)


def _start(
    worker: Callable,
    folder: str,
    arguments: tuple,
    config: dict,
    kills: list[Kill],
    deadline: Deadline,
) -> AgentsRun:
    """In the starter: the store, two agents, and the kills."""
    from torch.distributed import TCPStore

    store = TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )  # the system chooses the port
    journal = Journal(f"{folder}/journal")
    journal.note("start")
    agents = [
        fork(partial(_agent, store.port, config, worker, folder, arguments)) for _ in range(2)
    ]
    codes: dict[int, int] = {}
    while len(codes) < len(agents):
        deadline.pause(0.02)
        for agent in agents:
            ended, status = (0, 0) if agent in codes else os.waitpid(agent, os.WNOHANG)
            if ended:
                codes[agent] = os.waitstatus_to_exitcode(status)
        written = {line.text for line in journal.lines()} if kills else set()
        for kill in [kill for kill in kills if kill.after in written]:
            kills.remove(kill)
            journal.note(f"agent {kill.agent} is killed")
            os.kill(agents[kill.agent], signal.SIGKILL)
    journal.note("end")
    lines = journal.lines()
    began = next(line.time for line in lines if line.text == "start" and line.pid == os.getpid())
    lines = [line._replace(time=line.time - began) for line in lines if line.time >= began]
    return AgentsRun(lines[-1].time, [codes[agent] for agent in agents], lines)


def _agent(port: int, config: dict, worker: Callable, folder: str, arguments: tuple) -> None:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    least, most = config["nodes"]
    launch = elastic_launch(
        LaunchConfig(
            min_nodes=least,
            max_nodes=most,
            nproc_per_node=config["ranks"],
            run_id="lab",
            rdzv_backend="c10d",
            rdzv_endpoint=f"127.0.0.1:{port}",
            rdzv_configs={**STATE, "is_host": False},
            local_addr="127.0.0.1",
            max_restarts=config["restarts"],
            monitor_interval=0.1,
            start_method="fork",
        ),
        _rank,
    )
    launch(worker, os.getpid(), folder, arguments)


def _rank(worker: Callable, agent: int, folder: str, arguments: tuple) -> None:
    import torch

    end_with(agent)
    torch.set_num_threads(1)
    worker(folder, *arguments)
