"""Into the sandbox, in three steps, each in the process that it concerns.

    keeper   leave_host()    new namespaces; its next child is process 1 of the new pid namespace
    init     build()         a root folder that holds only what may be seen; the loopback interface
    child    give_up_rights()   limits, another user, no capabilities: the last step before student code

The keeper and init run only this library. A child runs a student's code, and no call gives it back
the rights it has given up. Sources: the manual pages namespaces(7), user_namespaces(7),
mount_namespaces(7), capabilities(7), landlock(7).
"""

from __future__ import annotations

import os
import resource
import tempfile

from course_lib.runtime.sandbox import calls, kernel, spec
from course_lib.runtime.sandbox.spec import Sandbox

ROOT = "/proc"  # where the new root is put together: no path that may be seen lies in there
TEMPORARY, SHARED_MEMORY = "/tmp", "/dev/shm"
PRIVATE = (TEMPORARY + "/", SHARED_MEMORY + "/")
HOME = "/tmp/home"
PRIVATE_SHARED_MEMORY = 64 << 20
FILES_OF_A_RANK = 1_000
FLAGS = {
    spec.MOUNT: kernel.NEWNS,
    spec.PID: kernel.NEWPID,
    spec.NETWORK: kernel.NEWNET,
    spec.IPC: kernel.NEWIPC,
}
MACHINE = ("/dev", "/proc", "/sys")  # beside `visible` under Landlock
KEPT_ENVIRONMENT = ("LANG", "LC_ALL", "LC_CTYPE", "PATH", "TZ")
KEPT_PREFIXES = (
    "COURSE_ROLE", "CUDA_", "GLOO_", "MKL_", "MPL", "NCCL_", "OMP_", "OPENBLAS_", "PYTORCH_", "TORCH_",
)  # fmt: skip


def leave_host(sandbox: Sandbox) -> None:
    """New namespaces for this process and its children. Its own pid stays in the old namespace."""
    flags = sum(flag for layer, flag in FLAGS.items() if sandbox.has(layer))
    if not flags:
        return
    if kernel.may_administer():
        kernel.unshare(
            flags
        )  # each child gets a user namespace of its own, without rights in this one
    else:
        user, group = os.geteuid(), os.getegid()
        kernel.unshare(flags | kernel.NEWUSER)
        map_to_itself(user, group)
    if sandbox.has(spec.MOUNT):
        kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    if sandbox.has(spec.NETWORK):
        kernel.loopback_up()
        kernel.no_loss_probes()


def map_to_itself(user: int, group: int) -> None:
    """In a new user namespace there is this user and no other."""
    maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    for name, text in maps.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def build(sandbox: Sandbox) -> None:
    """The root folder of the sandbox, in its own mount namespace. It contains only the folders put there."""
    os.umask(0o022)
    if sandbox.has(spec.MOUNT):
        kernel.mount(
            "sandbox", ROOT, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=4m,mode=755"
        )
        for path in spec.outermost(sandbox.visible):
            show(path)
        devices()
        private_folders(sandbox)
        mask(sandbox)
        process_folder(sandbox)
        kernel.become_root_folder(ROOT)
    else:
        os.chdir(tempfile.mkdtemp(prefix=f"sandbox-{os.getpid()}-"))  # removed by init at its end


def show(path: str) -> None:
    """Make `path` of the machine readable at the same place in the new root."""
    target = ROOT + path
    if os.path.islink(path):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(os.readlink(path), target)
        return
    point(target, is_folder=os.path.isdir(path))
    kernel.mount(path, target, None, kernel.MS_BIND | kernel.MS_REC)
    kernel.make_read_only(target)


def point(target: str, *, is_folder: bool) -> None:
    """An empty folder or file to mount on."""
    os.makedirs(target if is_folder else os.path.dirname(target), exist_ok=True)
    if not is_folder:
        with open(target, "wb"):
            pass


def devices() -> None:
    os.makedirs(f"{ROOT}/dev", exist_ok=True)
    kernel.mount("devices", f"{ROOT}/dev", "tmpfs", kernel.MS_NOSUID, "size=64k,mode=755")
    gpus = [name for name in os.listdir("/dev") if name.startswith("nvidia")]
    for name in (*spec.DEVICES, *gpus):
        target = f"{ROOT}/dev/{name}"
        if os.path.isdir(f"/dev/{name}"):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o666))
        kernel.mount(f"/dev/{name}", target, None, kernel.MS_BIND | kernel.MS_REC)
    for name, descriptor in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        os.symlink(f"/proc/self/fd/{descriptor}", f"{ROOT}/dev/{name}")
    os.symlink("/proc/self/fd", f"{ROOT}/dev/fd")


def private_folders(sandbox: Sandbox) -> None:
    """/tmp and /dev/shm, which are bounded and in memory, so that nothing is left of them."""
    for path, size in ((TEMPORARY, sandbox.disk), (SHARED_MEMORY, PRIVATE_SHARED_MEMORY)):
        os.makedirs(ROOT + path, exist_ok=True)
        private_folder(ROOT + path, size)
    for path in spec.outermost(sandbox.visible):
        # a Python below /tmp would be hidden by the private folder: shown there once more
        if path.startswith(PRIVATE):
            show(path)


def private_folder(target: str, size: int, files: int = 20_000) -> None:
    options = f"size={size},nr_inodes={files},mode=1777"
    kernel.mount("private", target, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)


def mask(sandbox: Sandbox) -> None:
    """Put an empty folder, or /dev/null, in the place of each masked path."""
    for path in sandbox.masked:
        target = ROOT + path
        if os.path.isdir(target):
            options = "size=4k,mode=755"
            kernel.mount("masked", target, "tmpfs", kernel.MS_RDONLY | kernel.MS_NOSUID, options)
        elif os.path.exists(target):
            kernel.mount(f"{ROOT}/dev/null", target, None, kernel.MS_BIND)


def process_folder(sandbox: Sandbox) -> None:
    """/proc of the new pid namespace. The machine's own would show every process, and stays hidden."""
    os.makedirs(f"{ROOT}/proc", exist_ok=True)
    if sandbox.has(spec.PID):
        flags = kernel.MS_NOSUID | kernel.MS_NODEV
        # hidepid=2: a process does not see those that it may not trace
        kernel.mount("proc", f"{ROOT}/proc", "proc", flags, "hidepid=2")
        # the kernel's settings belong to user 0, whatever its capabilities
        settings = f"{ROOT}/proc/sys"
        kernel.mount(settings, settings, None, kernel.MS_BIND | kernel.MS_REC)
        kernel.make_read_only(settings)


def leave_siblings(sandbox: Sandbox) -> None:
    """In the child: temporary folders and shared memory that the other children of the sandbox do not have.

    Ranks that could hand over their tensors in a file could send a ring's messages only for show.
    """
    if not sandbox.has(spec.MOUNT):
        return  # `place` makes a folder for each, and Landlock allows no other
    kernel.unshare(kernel.NEWNS | (kernel.NEWIPC if sandbox.has(spec.IPC) else 0))
    below = [path for path in spec.outermost(sandbox.visible) if path.startswith(PRIVATE)]
    kept = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in below}
    for path, size in ((TEMPORARY, sandbox.disk), (SHARED_MEMORY, PRIVATE_SHARED_MEMORY)):
        private_folder(path, size, FILES_OF_A_RANK)
    for path, fd in kept.items():
        point(path, is_folder=os.path.isdir(f"/proc/self/fd/{fd}"))
        kernel.mount(f"/proc/self/fd/{fd}", path, None, kernel.MS_BIND | kernel.MS_REC)
        kernel.make_read_only(path)
        os.close(fd)


def give_up_rights(sandbox: Sandbox, number: int) -> None:
    """In child `number`: make impossible, from here on, everything that it may not do."""
    if sandbox.has(spec.APART):
        leave_siblings(sandbox)
    place(sandbox, number)
    limit(sandbox)
    if sandbox.has(spec.LOW_PRIVILEGE) and sandbox.user is not None:
        os.setgroups([])
        os.setresgid(sandbox.user, sandbox.user, sandbox.user)
        os.setresuid(sandbox.user, sandbox.user, sandbox.user)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # changing the user ends it, and with it /proc/self
    if sandbox.has(spec.USER) and (sandbox.has(spec.APART) or in_initial_user_namespace()):
        # of its own: it could read and write the memory of a process that it could trace
        user, group = os.geteuid(), os.getegid()
        kernel.unshare(kernel.NEWUSER)
        map_to_itself(user, group)
        if sandbox.has(spec.APART) and sandbox.has(spec.MOUNT) and sandbox.has(spec.PID):
            only_read_processes()
    kernel.drop_all_capabilities()
    kernel.no_new_privileges()
    if sandbox.has(spec.LANDLOCK):
        kernel.landlock([*sandbox.visible, *MACHINE], [os.getcwd(), "/dev/null"])
    if sandbox.has(spec.APART):
        kernel.landlock_scope()
    # late: until here the user was another, or the limit another namespace's
    resource.setrlimit(resource.RLIMIT_NPROC, (sandbox.processes, sandbox.processes))
    if sandbox.has(spec.CALLS):
        calls.forbid_everywhere()
    os.environ.update(HOME=os.getcwd(), TMPDIR=os.getcwd())


def only_read_processes() -> None:
    """In a rank: /proc is read-only. By `clear_refs` a process resets the peak of memory that init reads."""
    kernel.unshare(kernel.NEWNS)
    kernel.mount("/proc", "/proc", None, kernel.MS_BIND | kernel.MS_REC)
    kernel.make_read_only("/proc")


def in_initial_user_namespace() -> bool:
    """Whether this process has left the machine's namespaces without a new user namespace."""
    with open("/proc/self/uid_map") as file:
        return file.read().split()[2] == str((1 << 32) - 1)


def harmless_environment() -> dict[str, str]:
    """The part of this process's environment that a sandbox may know: no token, no name, no personal path.

    The preloaded process of a grader is started with it, because the environment of its start stays readable
    in /proc/self/environ, even in its forks.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_ENVIRONMENT or name.startswith(KEPT_PREFIXES)
    }


def place(sandbox: Sandbox, number: int) -> None:
    """A private working folder, and nothing of the grader's environment."""
    kept = harmless_environment()
    os.environ.clear()
    os.environ.update(kept)
    folder = HOME if sandbox.has(spec.MOUNT) else os.getcwd()
    if sandbox.has(spec.APART) and not sandbox.has(spec.MOUNT):
        os.chmod(folder, 0o711)  # others may pass through it, and not list it
        folder = f"{folder}/{number}"
    os.makedirs(folder, mode=0o777, exist_ok=True)
    os.chdir(folder)
    tempfile.tempdir = None  # it may remember the machine's
    if sandbox.user is not None and sandbox.has(spec.LOW_PRIVILEGE):
        os.chown(folder, sandbox.user, sandbox.user)


def limit(sandbox: Sandbox) -> None:
    """Limits of one process; init watches the limits of all together."""
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    limits = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, sandbox.disk),
        (resource.RLIMIT_NOFILE, sandbox.descriptors),
    ]
    if not os.path.exists("/dev/nvidiactl"):  # CUDA reserves addresses by the terabyte
        limits.append((resource.RLIMIT_AS, size + sandbox.memory))
    for kind, most in limits:
        hard = resource.getrlimit(kind)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bound, bound))
