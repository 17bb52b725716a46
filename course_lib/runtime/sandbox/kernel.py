"""The Linux calls that make a sandbox, by ctypes: Python's `os` does not offer them (before 3.12).

Each raises OSError with the name of the call and its arguments.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1, 2, 4, 32, 4096, 16384, 1 << 18,
)  # fmt: skip
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 1, 4, 24, 36
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
LAST_CAPABILITY = 63
CAP_SYS_ADMIN = 21
SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40
# numbers of system calls without a wrapper: the same on all architectures since Linux 5.0
SYS_MOUNT_SETATTR = 442
SYS_LANDLOCK = (444, 445, 446)  # create_ruleset, add_rule, restrict_self
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 1, 2

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    check(libc.unshare(flags), f"unshare({flags:#x})")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    check(
        libc.mount(
            source and os.fsencode(source), os.fsencode(target), kind and kind.encode(),
            ctypes.c_ulong(flags), data.encode() or None,
        ),
        f"mount {kind or source} on {target}",
    )  # fmt: skip


def unmount(target: str) -> None:
    check(libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def make_read_only(target: str) -> None:
    """The mount at `target` and all mounts below it, where no file gives another user's rights."""

    class MountAttributes(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]

    attributes = MountAttributes(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, 0, 0, 0)
    check(
        libc.syscall(
            SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(target), AT_RECURSIVE,
            ctypes.byref(attributes), ctypes.sizeof(attributes),
        ),
        f"mount_setattr {target}",
    )  # fmt: skip


def become_root_folder(folder: str) -> None:
    """Make the mount at `folder` this namespace's root, and let go of the old one."""
    os.chdir(folder)
    check(libc.syscall(pivot_root_number(), b".", b"."), f"pivot_root {folder}")
    unmount(".")
    os.chdir("/")


def pivot_root_number() -> int:
    return {"x86_64": 155, "aarch64": 41}[os.uname().machine]


def prctl(option: int, *arguments: int) -> None:
    numbers = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    check(libc.prctl(option, *numbers), f"prctl({option})")


def loopback_up() -> None:
    """A new network namespace has one interface, and that is down."""
    with socket.socket() as sock:
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP | IFF_RUNNING))


def no_loss_probes() -> None:
    """Turn off TCP's loss probes, because they would count as bytes that no program sent.

    TCP sends a probe when an answer takes long, as on a busy machine. Nothing is lost on a loopback
    interface. If this setting may not be changed, it stays as it is. Each packet has a time stamp, so that
    all headers have one size.
    """
    for name, value in (("tcp_early_retrans", "0"), ("tcp_timestamps", "1")):
        with contextlib.suppress(OSError), open(f"/proc/sys/net/ipv4/{name}", "w") as file:
            file.write(value)


def may_administer() -> bool:
    """Whether this process holds CAP_SYS_ADMIN where it runs."""
    with open("/proc/self/status") as file:
        held = next(line for line in file if line.startswith("CapEff:"))
    return bool(int(held.split()[1], 16) >> CAP_SYS_ADMIN & 1)


def drop_all_capabilities() -> None:
    """From all five sets, for good; needs CAP_SETPCAP for the bounding set and goes on without."""
    for capability in range(LAST_CAPABILITY + 1):
        if libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break  # the last one that this kernel knows, or no right to: no_new_privs holds instead
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("<Ii", 0x20080522, 0)
    check(libc.capset(header, bytes(24)), "capset")


def no_new_privileges() -> None:
    prctl(PR_SET_NO_NEW_PRIVS, 1)


# ---- Landlock: files, for a process without any rights of its own

READ = 0b1101  # execute, read a file, read a folder: bits 0, 2, 3
KNOWN_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
FILE_RIGHTS = (
    0b1100000000000111  # execute, write, read, truncate, ioctl: the rights that apply to a file
)


SCOPED_SINCE, SCOPES = 6, 0b11  # abstract sockets, signals


def landlock_version() -> int:
    """Landlock's version; 0 if the kernel has none."""
    return max(0, libc.syscall(SYS_LANDLOCK[0], None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def landlock(readable: list[str], writable: list[str]) -> None:
    """From here on, only `readable` can be read, and only `writable` can be written.

    Needs `no_new_privileges`. Paths that do not exist are left out.
    """
    bits = KNOWN_BY_VERSION.get(landlock_version(), 16)
    everything = (1 << bits) - 1
    attributes = struct.pack("<Q", everything)
    rules = check(
        libc.syscall(
            SYS_LANDLOCK[0], attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)
        ),
        "landlock_create_ruleset",
    )
    for paths, allowed in ((readable, READ), (writable, everything)):
        for path in paths:
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            on_files = allowed if os.path.isdir(path) else allowed & FILE_RIGHTS
            rule = struct.pack("<Qi", on_files & everything, fd)
            try:
                added = libc.syscall(SYS_LANDLOCK[1], rules, 1, rule, ctypes.c_uint32(0))
                check(added, f"landlock_add_rule {path}")
            finally:
                os.close(fd)
    check(libc.syscall(SYS_LANDLOCK[2], rules, ctypes.c_uint32(0)), "landlock_restrict_self")
    os.close(rules)


def landlock_scope() -> None:
    """From here on only processes that this one starts can be signalled, or reached by abstract sockets.

    Needs `no_new_privileges`, and does nothing if the kernel is older (`SCOPED_SINCE`).
    """
    if landlock_version() < SCOPED_SINCE:
        return
    attributes = struct.pack("<QQQ", 0, 0, SCOPES)  # files, network: not handled by this ruleset
    rules = check(
        libc.syscall(
            SYS_LANDLOCK[0], attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)
        ),
        "landlock_create_ruleset",
    )
    check(libc.syscall(SYS_LANDLOCK[2], rules, ctypes.c_uint32(0)), "landlock_restrict_self")
    os.close(rules)
