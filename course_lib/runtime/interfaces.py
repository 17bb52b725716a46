"""The network interface over which the ranks of this machine meet: loopback, unless another is asked for.

An image can bring GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME along from the machine on which it was made, and
a launch fails over an interface that is not there. So a name that this machine lacks is not passed on.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
LOOPBACK = "lo"


def of_ranks(environment: Mapping[str, str]) -> dict[str, str]:
    """Both variables as ranks get them: as they are if this machine has all of their names, or loopback."""
    here = {name for _, name in socket.if_nameindex()}
    gloo, nccl = environment.get(GLOO, ""), environment.get(NCCL, "")
    return {
        GLOO: gloo if here.issuperset(gloo.split(",")) else LOOPBACK,
        NCCL: nccl if _nccl_finds(nccl, here) else LOOPBACK,
    }


def _nccl_finds(value: str, here: set[str]) -> bool:
    """NCCL takes "eth" for every name that begins so, "=eth0" for this name, and "^eth0" for all others.

    Source: docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    if value.startswith("^"):
        return True
    if value.startswith("="):
        return here.issuperset(value[1:].split(","))
    return all(name and any(own.startswith(name) for own in here) for name in value.split(","))
