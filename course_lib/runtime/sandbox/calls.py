"""System calls that ranks of one case do without once they have met: the ways past their messages.

A namespace hides files, processes and memory of others, but the network is common to the ranks, and so are
the files of Python, which each of them sees. What one does there another can notice: a socket's name or
address stands in /proc/net, a lock on a file stops whoever wants it too, a small datagram is less than the
spare bytes that a record is allowed. From `forbid` on, these calls fail with EPERM, in all threads and for
good; the sockets over which gloo has connected go on. Source: seccomp(2), the kernel's
userspace-api/seccomp_filter.

Beyond it are what every program has to do, such as taking time: whoever can wait can signal, slowly.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct

from course_lib.runtime.sandbox.kernel import check, libc

# numbers on x86_64 and aarch64; None where an architecture has no such call
FORBIDDEN: dict[str, tuple[int | None, int | None]] = {
    # sockets of one's own, and settings of those that there are
    "socket": (41, 198), "bind": (49, 200), "listen": (50, 201), "connect": (42, 203),
    "setsockopt": (54, 208),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    # marks on files that others see: locks, attributes, times, modes; and seeing who opens one
    "flock": (73, 32), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "setxattrat": (463, 463), "utime": (132, None), "utimes": (235, None), "futimesat": (261, None),
    "utimensat": (280, 88), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "inotify_init": (253, None), "inotify_init1": (294, 26), "fanotify_init": (300, 262),
    # keys, and other processes
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
}  # fmt: skip
FCNTL = (72, 25)
MARKS_BY_FCNTL = (
    fcntl.F_GETLK, fcntl.F_SETLK, fcntl.F_SETLKW, 36, 37, 38,  # the last three: of an open file
    fcntl.F_SETLEASE, fcntl.F_NOTIFY, 1033,  # a seal
)  # fmt: skip
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # place above, AUDIT_ARCH
X32 = 0x40000000  # bit of the numbers by which x86_64 has every call a second time

SYS_SECCOMP = (317, 277)
SET_MODE_FILTER, ALL_THREADS = 1, 1
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENT_AT = (
    0,
    4,
    24,
)  # in struct seccomp_data: the second argument's low half

Step = tuple[int, int, int, int]  # code, steps to leap when true, when false, operand


def forbid() -> None:
    """Have these calls fail from here on. Needs `no_new_privileges`.

    OSError or KeyError where the kernel has no filters, or none that are known here.
    """
    place, _ = ARCHITECTURES[os.uname().machine]
    steps = b"".join(struct.pack("HBBI", *step) for step in program())
    kept = ctypes.create_string_buffer(steps, len(steps))
    header = struct.pack("HxxxxxxP", len(steps) // 8, ctypes.addressof(kept))
    found = libc.syscall(
        SYS_SECCOMP[place], ctypes.c_uint(SET_MODE_FILTER), ctypes.c_uint(ALL_THREADS), header
    )
    if check(found, "seccomp"):
        raise OSError(errno.EBUSY, f"seccomp: thread {found} has a filter of its own")


def can_forbid() -> bool:
    """Whether this machine has such filters: seen by setting one, in a process that is then of no use."""
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        fcntl.flock(null, fcntl.LOCK_UN)
        forbid()
    except (KeyError, OSError):
        return False
    try:
        fcntl.flock(null, fcntl.LOCK_UN)
    except PermissionError:
        return True
    return False


def program() -> list[Step]:
    """The filter, for a machine that runs one instruction after the other and leaps forward alone."""
    place, architecture = ARCHITECTURES[os.uname().machine]
    numbers = [pair[place] for pair in FORBIDDEN.values()]
    known = [number for number in numbers if number is not None]
    refused = len(known) + len(MARKS_BY_FCNTL) + 3  # steps from the first comparison of a number
    steps: list[Step] = [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, REFUSE),  # of another architecture all numbers are others
        (LOAD, 0, 0, NUMBER_AT),
        (AT_LEAST, refused, 0, X32),
    ]
    for done, number in enumerate(known):
        steps.append((EQUAL, refused - done - 1, 0, number))
    steps.append((EQUAL, 0, len(MARKS_BY_FCNTL) + 1, FCNTL[place]))
    steps.append((LOAD, 0, 0, ARGUMENT_AT))
    for done, command in enumerate(MARKS_BY_FCNTL):
        steps.append((EQUAL, len(MARKS_BY_FCNTL) - done, 0, command))
    return [*steps, (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]
