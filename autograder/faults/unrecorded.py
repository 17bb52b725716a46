"""Values that do not come by the messages that the ranks' record shows.

These answers get the right numbers by a built-in collective or by files and sockets of the ranks, and they
send, or only note, the messages that the exercise is about.
"""

from __future__ import annotations

from autograder.faults.row import APART, CHEATING, LOST, NAMED, POINTS_TELL, Row, instead

BEHIND_THE_RECORDER = """
def neighbour_sum(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    everybody = [torch.empty_like(tensor) for _ in range(n)]
    dist.group.WORLD._get_backend(torch.device("cpu")).allgather([everybody], [tensor]).wait()
    return everybody[(rank - 1) % n] + tensor + everybody[(rank + 1) % n]
"""

FOR_SHOW = """
def neighbour_sum(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % n, (rank + 1) % n
    unread = torch.empty_like(tensor)
    handles = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, tensor, to) for to in (right, left)]
        + [dist.P2POp(dist.irecv, unread.clone(), other) for other in (left, right)]
    )
    for handle in handles:
        handle.wait()
    everybody = [torch.empty_like(tensor) for _ in range(n)]
    dist.group.WORLD._get_backend(torch.device("cpu")).allgather([everybody], [tensor]).wait()
    return everybody[left] + tensor + everybody[right]
"""

ANOTHER_WAY = """
import os, pickle, socket, tempfile, time


def neighbour_sum(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % n, (rank + 1) % n
    shown = torch.zeros_like(tensor)
    handles = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, shown, to) for to in (right, left)]
        + [dist.P2POp(dist.irecv, shown.clone(), other) for other in (left, right)]
    )
    for handle in handles:
        handle.wait()
    give(rank, tensor.numpy().tobytes())
    return take(left, tensor) + tensor + take(right, tensor)


def take(rank, tensor):
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        try:
            return torch.frombuffer(bytearray(fetch(rank)), dtype=tensor.dtype).view_as(tensor)
        except (OSError, KeyError, ValueError, RuntimeError):
            time.sleep(0.01)
    return torch.zeros_like(tensor)


"""
BY_FILE = """
def give(rank, data):
    for folder in ("/tmp", "/dev/shm", tempfile.gettempdir()):
        with open(f"{folder}/half-{rank}", "wb") as file:
            file.write(data)
        os.rename(f"{folder}/half-{rank}", f"{folder}/part-{rank}")


def fetch(rank):
    for folder in ("/tmp", "/dev/shm", tempfile.gettempdir()):
        if os.path.exists(f"{folder}/part-{rank}"):
            return open(f"{folder}/part-{rank}", "rb").read()
    raise OSError
"""
BY_SOCKET = """
def give(rank, data):
    global kept
    kept = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    kept.bind(f"\\0rank-{rank}")
    for other in range(dist.get_world_size()):
        try:
            until = time.monotonic() + 1
            while other != rank and time.monotonic() < until:
                try:
                    kept.sendto(pickle.dumps((rank, data)), f"\\0rank-{other}")
                    break
                except ConnectionRefusedError:
                    time.sleep(0.01)
        except OSError:
            continue


parts = {}


def fetch(rank):
    kept.setblocking(False)
    if rank not in parts:
        parts.update([pickle.loads(kept.recv(1 << 16))])
    return parts[rank]
"""
BY_STORE = """
def give(rank, data):
    dist.distributed_c10d._get_default_store().set(f"part-{rank}", data)


def fetch(rank):
    return dist.distributed_c10d._get_default_store().get(f"part-{rank}")
"""

BY_NAME = """
kept = []


def give(rank, data):
    for at in range(0, len(data), 40):
        kept.append(socket.socket(socket.AF_UNIX))
        kept[-1].bind(f"\\0part-{rank}-{at:05}-{data[at : at + 40].hex()}")


def fetch(rank):
    names = sorted(open("/proc/self/net/unix").read().split(f"@part-{rank}-")[1:])
    return b"".join(bytes.fromhex(name.split()[0].strip("@")[6:]) for name in names)
"""
BY_DATAGRAM = """
def give(rank, data):
    global kept
    kept = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    kept.bind(("127.0.0.1", 30_000 + rank))
    time.sleep(0.2)
    for other in range(dist.get_world_size()):
        kept.sendto(bytes([rank]) + data, ("127.0.0.1", 30_000 + other))


parts = {}


def fetch(rank):
    kept.setblocking(False)
    if rank not in parts:
        data = kept.recv(1 << 16)
        parts[data[0]] = data[1:]
    return parts[rank]
"""

UNSENT = """
from torch.distributed import ProcessGroup, Work


class Done(Work):
    def wait(self, timeout=None):
        return True


def neighbour_sum(tensor):
    rank, n, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    left, right = (rank - 1) % n, (rank + 1) % n
    unread = torch.empty_like(tensor)
    ProcessGroup.send = ProcessGroup.recv = lambda *_: Done()
    handles = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, tensor, to) for to in (right, left)]
        + [dist.P2POp(dist.irecv, unread.clone(), other) for other in (left, right)]
    )
    for handle in handles:
        handle.wait()
    everybody = [torch.empty_like(tensor) for _ in range(n)]
    group._get_backend(torch.device("cpu")).allgather([everybody], [tensor]).wait()
    return everybody[left] + tensor + everybody[right]
"""

WAYS = {
    "file": BY_FILE, "socket": BY_SOCKET, "store": BY_STORE, "name": BY_NAME, "datagram": BY_DATAGRAM,
}  # fmt: skip

ROWS = [
    Row(
        "built-in-behind-the-recorder", CHEATING, instead(BEHIND_THE_RECORDER), "graded", LOST,
        "a built-in collective earns the points of one made from messages", POINTS_TELL, NAMED,
        quick=True,
    ),
    Row(
        "messages-for-show", CHEATING, instead(FOR_SHOW), "graded", LOST,
        "messages that carry nothing of the result earn the points of those that do", POINTS_TELL,
        NAMED,
    ),
    *(
        Row(
            f"values-by-{way}", CHEATING, instead(ANOTHER_WAY + code), "graded", LOST,
            "ranks hand their values over unseen, and messages of zeros earn the points",
            POINTS_TELL, NAMED, needs=(APART,), quick=way == "file",
        )
        for way, code in WAYS.items()
    ),
    Row(
        "messages-that-pytorchs-class-does-not-send", CHEATING, instead(UNSENT), "graded", LOST,
        "rows of the ledger that no rank sent earn the points of messages", POINTS_TELL, NAMED,
    ),
]  # fmt: skip
