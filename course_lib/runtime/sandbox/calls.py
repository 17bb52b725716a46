"""The system calls no process of a sandbox may make, and all the calls a rank under a check needs.

`forbid_everywhere` forbids every process of a sandbox the calls that lead out of it or let the kernel keep
memory for it: namespaces, mounts, keys, other processes.

`forbid` is for a rank of a check, once the ranks have met. It allows only the calls for computing, for
messages on existing connections, and for the rank's own files. A namespace hides files, processes and memory
of others, but the ranks share the network and the files of Python. A socket's name, a lock on a file or an
attribute would be a message that no ledger counts. The memory of a rank is counted as the pages of this one
process (`course_lib.runtime.held`). So no other process, no pipe and no segment of shared memory is allowed,
since it could hold data instead, and no set of descriptors (epoll), since each of its entries holds eight
bytes chosen by the caller.

These calls fail with EPERM, in all threads and for good. Sources: seccomp(2), the kernel's
userspace-api/seccomp_filter; numbers: its asm/unistd_64.h and asm-generic/unistd.h.

The filter cannot forbid what every program has to do, such as taking time. A rank that can wait can signal,
although slowly.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import struct
from collections.abc import Iterable

from course_lib.runtime.sandbox.kernel import check, libc

Numbers = tuple[int | None, int | None]  # on x86_64 and aarch64; None: no such call there

# All that a rank of a check may call as it likes.
ALLOWED: dict[str, Numbers] = {
    # memory, threads, time, and facts about the process itself
    "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233), "brk": (12, 214),
    "msync": (26, 227), "mincore": (27, 232), "membarrier": (324, 283), "get_mempolicy": (239, 236),
    "futex": (202, 98), "futex_waitv": (449, 449), "set_robust_list": (273, 99),
    "get_robust_list": (274, 100), "rseq": (334, 293), "set_tid_address": (218, 96),
    "arch_prctl": (158, None), "exit": (60, 93), "exit_group": (231, 94), "gettid": (186, 178),
    "getpid": (39, 172), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getgroups": (115, 158), "getresuid": (118, 148),
    "getresgid": (120, 150), "getpgrp": (111, None), "getpgid": (121, 155), "getsid": (124, 156),
    "capget": (125, 90), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "sched_getparam": (143, 121), "sched_getscheduler": (145, 120), "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126), "getcpu": (309, 168), "getpriority": (140, 141),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136), "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137),
    "sigaltstack": (131, 132), "pause": (34, None), "restart_syscall": (219, 128), "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getrusage": (98, 165),
    "sysinfo": (99, 179), "uname": (63, 160), "getrandom": (318, 278), "getitimer": (36, 102),
    "setitimer": (38, 103), "alarm": (37, None), "getrlimit": (97, 163),
    "wait4": (61, 260), "waitid": (247, 95),
    # files: those of Python, and the rank's own in its private folders, which count as its memory
    "read": (0, 63), "write": (1, 64), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65),
    "writev": (20, 66), "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286),
    "pwritev2": (328, 287), "lseek": (8, 62), "open": (2, None), "openat": (257, 56), "openat2": (437, 437),
    "creat": (85, None), "close": (3, 57), "close_range": (436, 436), "dup": (32, 23), "dup2": (33, None),
    "dup3": (292, 24), "ftruncate": (77, 46), "truncate": (76, 45), "fallocate": (285, 47), "fsync": (74, 82),
    "fdatasync": (75, 83), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None), "newfstatat": (262, 79),
    "statx": (332, 291), "statfs": (137, 43), "fstatfs": (138, 44), "access": (21, None),
    "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None), "readlinkat": (267, 78),
    "getdents": (78, None), "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49),
    "fchdir": (81, 50), "umask": (95, 166), "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None),
    "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38),
    "renameat2": (316, 276), "ioctl": (16, 29),
    # the connections that there are
    "sendto": (44, 206), "sendmsg": (46, 211), "recvfrom": (45, 207), "recvmsg": (47, 212),
    "sendmmsg": (307, 269), "recvmmsg": (299, 243), "shutdown": (48, 210), "getsockname": (51, 204),
    "getpeername": (52, 205), "getsockopt": (55, 209), "epoll_ctl": (233, 21),
    "epoll_wait": (232, None), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441),
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
}  # fmt: skip
# No process of a sandbox may make these calls.
NOWHERE: dict[str, Numbers] = {
    # namespaces and mounts: in a namespace of its own a process has all capabilities
    "unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41),
    "mount": (165, 40), "umount2": (166, 39), "move_mount": (429, 429), "open_tree": (428, 428),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    # contents that the kernel keeps on request: keys, programs, memory that is not counted
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "userfaultfd": (323, 282), "perf_event_open": (298, 241), "memfd_secret": (447, 447),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
}  # fmt: skip
# Judged by an argument.
CLONE: Numbers = (56, 220)
CLONE3: Numbers = (435, 435)  # its flags lie in memory, which a filter does not read
FCNTL: Numbers = (72, 25)
MMAP: Numbers = (9, 222)
LIMITS: Numbers = (302, 261)  # prlimit64
PRCTL: Numbers = (157, 167)
KILL: tuple[Numbers, ...] = ((62, 129), (234, 131))  # and tgkill

NEW_NAMESPACES = 0x7E020000  # flags of clone
THREAD = 0x00010000
SHARED_WITHOUT_FILE = 0x21  # flags of mmap: memory that stays when its pages are given up
MARKS_BY_FCNTL = (
    fcntl.F_GETLK, fcntl.F_SETLK, fcntl.F_SETLKW, 36, 37, 38,  # the last three: of an open file
    fcntl.F_SETLEASE, fcntl.F_NOTIFY, 1031, 1033,  # a pipe's size, a seal
)  # fmt: skip
OWN_NAME = (15, 16)  # options of prctl: set and get the thread's name
ANY_RANK = 0x7FFFFFFF  # a number that no process has
KNOWN = 462  # calls with a higher number are newer than these tables
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # place above, AUDIT_ARCH
X32 = 0x40000000  # bit of the numbers by which x86_64 has every call a second time

SYS_SECCOMP: Numbers = (317, 277)
SET_MODE_FILTER, ALL_THREADS, IS_THERE = 1, 1, 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
UNKNOWN = 0x00050000 | errno.ENOSYS  # the C library then makes the request in an older way
LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER_AT, ARCHITECTURE_AT = 0, 4  # in struct seccomp_data

Step = tuple[int, int, int, int]  # code, steps to leap when true, when false, operand


def forbid_everywhere() -> None:
    """In any process of a sandbox: calls that lead out of it fail from here on.

    Needs `no_new_privileges`. OSError or KeyError if the kernel has no filters, or no known ones.
    """
    set_filter(packed(program_everywhere()))


def forbid() -> None:
    """In a rank under a check: all calls except those a check needs fail from here on. Else as above."""
    set_filter(program_of_ranks().replace(packed([own(ANY_RANK)]), packed([own(os.getpid())])))


@functools.cache
def program_of_ranks() -> bytes:
    """The filter of a rank ANY_RANK, packed. The process that forks ranks makes it once for all of them."""
    return packed(program(ANY_RANK))


def packed(steps: Iterable[Step]) -> bytes:
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def set_filter(packed: bytes) -> None:
    kept = ctypes.create_string_buffer(packed, len(packed))
    header = struct.pack("HxxxxxxP", len(packed) // 8, ctypes.addressof(kept))
    result = libc.syscall(
        here(SYS_SECCOMP), ctypes.c_uint(SET_MODE_FILTER), ctypes.c_uint(ALL_THREADS), header
    )
    if check(result, "seccomp"):
        raise OSError(errno.EBUSY, f"seccomp: thread {result} has a filter of its own")


def here(numbers: Numbers) -> int | None:
    """The number of a call on this machine. KeyError on a machine of another kind."""
    return numbers[ARCHITECTURES[os.uname().machine][0]]


def known() -> bool:
    """Whether this kernel has filters, and this machine's calls are known here. Sets none."""
    action = ctypes.byref(ctypes.c_uint32(REFUSE & 0xFFFF0000))
    try:
        return (
            libc.syscall(here(SYS_SECCOMP), ctypes.c_uint(IS_THERE), ctypes.c_uint(0), action) == 0
        )
    except KeyError:
        return False


def can_forbid() -> bool:
    """Whether this machine has such filters. It sets one, so this process is of no use afterwards."""
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


# ---- the filters, for a machine that runs one instruction after the other and leaps forward alone


def program_everywhere() -> list[Step]:
    steps = beginning()
    steps += when(CLONE3, [(RETURN, 0, 0, UNKNOWN)])
    steps += when(CLONE, unless_bits(NEW_NAMESPACES))
    for numbers in NOWHERE.values():
        steps += when(numbers, [(RETURN, 0, 0, REFUSE)])
    return [*steps, (RETURN, 0, 0, ALLOW)]


def program(pid: int) -> list[Step]:
    """pid: of the rank, which may send signals to itself."""
    steps = beginning()
    steps += when(
        MMAP, [argument(3), (AND, 0, 0, SHARED_WITHOUT_FILE), *unless([SHARED_WITHOUT_FILE])]
    )
    for numbers in ALLOWED.values():
        steps += when(numbers, [(RETURN, 0, 0, ALLOW)])
    steps += when(CLONE3, [(RETURN, 0, 0, UNKNOWN)])
    steps += when(CLONE, [argument(0), (ANY_BIT, 0, 1, THREAD), *answers(ALLOW, REFUSE)])
    steps += when(FCNTL, [argument(1), *unless(MARKS_BY_FCNTL)])
    steps += when(LIMITS, [argument(0), (EQUAL, 0, 1, 0), *answers(ALLOW, REFUSE)])
    steps += when(PRCTL, [argument(0), *only(OWN_NAME)])
    for numbers in KILL:
        steps += when(numbers, [argument(0), own(pid), *answers(ALLOW, REFUSE)])
    return [*steps, (AT_LEAST, 0, 1, KNOWN + 1), *answers(UNKNOWN, REFUSE)]


def own(pid: int) -> Step:
    return (EQUAL, 0, 1, pid)


def beginning() -> list[Step]:
    """Refuse calls of another architecture, which have other numbers; then load the call's number."""
    return [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (EQUAL, 1, 0, ARCHITECTURES[os.uname().machine][1]),
        (RETURN, 0, 0, REFUSE),
        (LOAD, 0, 0, NUMBER_AT),
        (AT_LEAST, 0, 1, X32),
        (RETURN, 0, 0, REFUSE),
    ]


def when(numbers: Numbers, steps: list[Step]) -> list[Step]:
    """These steps for this call, and past them for the others."""
    number = here(numbers)
    return [] if number is None else [(EQUAL, 0, len(steps), number), *steps]


def argument(place: int) -> Step:
    return (LOAD, 0, 0, 16 + 8 * place)  # its low half


def answers(*all_of_them: int) -> list[Step]:
    return [(RETURN, 0, 0, answer) for answer in all_of_them]


def unless(values: Iterable[int]) -> list[Step]:
    """Refuse the call if the loaded value is one of these."""
    refused = [step for number in values for step in ((EQUAL, 0, 1, number), *answers(REFUSE))]
    return [*refused, *answers(ALLOW)]


def only(values: Iterable[int]) -> list[Step]:
    """Refuse the call if the loaded value is none of these."""
    allowed = [step for number in values for step in ((EQUAL, 0, 1, number), *answers(ALLOW))]
    return [*allowed, *answers(REFUSE)]


def unless_bits(bits: int) -> list[Step]:
    """Refuse the call if the first argument has one of these bits."""
    return [argument(0), (ANY_BIT, 0, 1, bits), *answers(REFUSE, ALLOW)]
