"""Run the solutions in an environment made from each host's versions: `make test-hosts`.

    make test-hosts                                  every host, every notebook; two hours on two cores
    make test-hosts ARGS="colab --notebooks 00 02"   some of them
    make test-hosts ARGS="colab --exact"             with the host's own Python and PyTorch

A host's Python and PyTorch are replaced by those of this environment: others come with gigabytes of CUDA.
`--exact` takes them as they are. The package is installed as a student does it, and must change nothing else.
The results of all notebooks are kept in tests/hosts/tried.json, of which the table in docs/tested.md is made.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import distributions, requires, version
from pathlib import Path

from host_kernel import Kernel, try_notebook
from hosts import FOLDER, ROOT, WANTED, Host, hosts, stale
from make_venv import without_addresses
from packaging.requirements import Requirement

from autograder.course.config import SOLUTIONS
from autograder.course.package import build_wheel

SHOWN = ("ipython", "ipykernel", "ipywidgets", "numpy", "matplotlib", "torch")
LENT = re.compile(
    r"torch|triton|(nvidia|cuda)-.*"
)  # PyTorch, and the packages that its build with CUDA brings along
NOTEBOOKS = sorted(SOLUTIONS.glob("*/*.ipynb"))
TRIED, PAGE = FOLDER / "tried.json", ROOT / "docs" / "tested.md"
BEGIN, END = "<!-- HOSTS: begin -->\n", "<!-- HOSTS: end -->\n"


class NotMade(Exception):
    """An environment that cannot be made, with the end of pip's output."""


def main() -> int:
    parser = argparse.ArgumentParser(
        "make test-hosts", description="Run the solutions in each host's environment."
    )
    known = {host.name: host for host in hosts()}
    parser.add_argument("hosts", nargs="*", help=f"of: {', '.join(known)}")
    parser.add_argument("--notebooks", nargs="+", default=[], help="such as 00 02")
    parser.add_argument("--exact", action="store_true", help="the host's own Python and PyTorch")
    options = parser.parse_args()
    if unknown := set(options.hosts) - set(known):
        parser.error(f"no such host: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and remove the environment
    chosen = [p for p in NOTEBOOKS if not options.notebooks or p.name[:2] in options.notebooks]
    failed = []
    names = options.hosts or list(known)
    name_old([known[name] for name in names])
    with tempfile.TemporaryDirectory(prefix="course-hosts-") as folder:
        wheel = build_wheel(Path(folder))
        for name in names:
            try:
                good = try_host(known[name], Path(folder) / name, wheel, chosen, options.exact)
            except NotMade as problem:
                print(f"{name}: the environment could not be made: {problem}", flush=True)
                good = False
            finally:
                shutil.rmtree(Path(folder) / name, ignore_errors=True)
            if not good:
                failed.append(name)
    print(f"\nNot as it should be: {', '.join(failed)}." if failed else "\nAll as it should be.")
    return 1 if failed else 0


def name_old(chosen: Iterable[Host]) -> None:
    """Print a line on each host's file that has to be looked at again."""
    for host in chosen:
        if line := stale(host, datetime.date.today()):
            print(line, flush=True)


def try_host(host: Host, folder: Path, wheel: Path, notebooks: Iterable[Path], exact: bool) -> bool:
    """Whether all was as it should be; each notebook's result is kept as soon as it is there."""
    python = make_environment(host, folder, wheel, exact)
    versions = installed(python)
    # The list of fonts that Matplotlib keeps would name those of another environment that is gone.
    os.environ["MPLCONFIGDIR"] = str(folder / "matplotlib")
    run(str(python), "-c", "import matplotlib.pyplot")
    versions_text = ", ".join(f"{name} {versions[name]}" for name in SHOWN)
    print(f"{host.name}: Python {versions['python']}, {versions_text}", flush=True)
    good = True
    for path in notebooks:
        began = time.monotonic()
        points, maximum, wrong = try_notebook(path, Kernel(str(python), host.cells))
        seconds = time.monotonic() - began
        print(f"    {path.stem}: {points:g} of {maximum:g} points, {seconds:.0f} s", flush=True)
        for sentence in wrong:
            print(f"        {sentence}", flush=True)
        result = {
            "date": str(datetime.date.today()), "points": points, "maximum": maximum,
            "wrong": len(wrong),
        }  # fmt: skip
        record(host, exact, versions, path.stem, result)
        good &= not wrong and points == maximum
    return good


# --- environments --------------------------------------------------------------------------------


def make_environment(host: Host, folder: Path, wheel: Path, exact: bool) -> Path:
    """An environment with the host's versions and the package; returns its Python."""
    run(host_python(host.python) if exact else sys.executable, "-m", "venv", str(folder))
    python = folder / "bin" / "python"
    if not exact:
        lend_torch(folder)
    pip = (str(python), "-m", "pip", "--disable-pip-version-check")
    torch = f"torch=={host.torch if exact else version('torch')}"
    pins = folder / "pins.txt"
    pins.write_text(host.path.read_text() if exact else without_refused(host.path.read_text()))
    run(*pip, "install", "--constraint", str(pins), torch, *WANTED)
    before = frozen(pip)
    run(*pip, "install", str(wheel))
    added = frozen(pip) ^ before
    if {line.partition(" ")[0] for line in added} != {"course-lib"}:
        raise NotMade(
            f"installing the package changed more than itself: {', '.join(sorted(added))}"
        )
    return python


def without_refused(pins: str) -> str:
    """The host's versions without those that the PyTorch of this environment does not take (sympy's)."""
    wanted = [Requirement(text) for text in requires("torch") or []]
    ranges = {
        requirement.name: requirement.specifier
        for requirement in wanted
        if not requirement.marker or requirement.marker.evaluate()
    }
    kept = []
    for line in pins.splitlines():
        name, _, version = line.partition("==")
        if version and name in ranges and version.strip() not in ranges[name]:
            print(f"{line}: PyTorch here wants {ranges[name]}", flush=True)
            continue
        kept.append(line)
    return "\n".join(kept) + "\n"


def lend_torch(environment: Path) -> None:
    """Have the environment import the PyTorch of this one: some hundred MB are not installed again."""
    lent = environment / "lent"
    lent.mkdir()
    for package in distributions():
        if LENT.fullmatch(package.name):
            for name in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
                if not (lent / name).exists():  # several packages share the folder nvidia/
                    (lent / name).symlink_to(Path(str(package.locate_file(name))))
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "lent.pth").write_text(f"{lent}\n")


def host_python(version: str) -> str:
    """A Python of this minor version: on the PATH, or one of pyenv's."""
    name = f"python{version}"
    paths = [
        shutil.which(name),
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}")),
    ]
    for path in filter(None, paths):
        if subprocess.run([path, "-c", "import venv"], capture_output=True).returncode == 0:
            return path
    raise NotMade(f"there is no Python {version} on this machine")


def frozen(pip: tuple[str, ...]) -> set[str]:
    lines = run(*pip, "list", "--format", "freeze").splitlines()
    return {line.replace("==", " ") for line in lines if "==" in line}


def installed(python: Path) -> dict[str, str]:
    code = (
        "import json, platform, sys; from importlib.metadata import version; "
        "print(json.dumps({name: version(name) for name in sys.argv[1:]} "
        "| {'python': platform.python_version()}))"
    )
    return json.loads(run(str(python), "-c", code, *SHOWN))


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).splitlines()[-20:]
        text = "\n".join(map(without_addresses, lines))
        raise NotMade(f"`{' '.join(command[1:4])} ...` failed. The end of what it said:\n{text}")
    return done.stdout


# --- the results ---------------------------------------------------------------------------------


def record(host: Host, exact: bool, versions: dict, notebook: str, result: dict) -> None:
    """Keep the result of a notebook, and the page's table of all results.

    Results of other versions than these are forgotten.
    """
    tried = json.loads(TRIED.read_text()) if TRIED.exists() else {}
    name = f"{host.name}, exact" if exact else host.name
    entry = tried.get(name)
    if entry is None or (entry["pins"], entry["versions"]) != (host.digest(), versions):
        entry = {"pins": host.digest(), "versions": versions, "notebooks": {}}
    entry["notebooks"] = dict(sorted({**entry["notebooks"], notebook: result}.items()))
    TRIED.write_text(json.dumps(dict(sorted({**tried, name: entry}.items())), indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), json.loads(TRIED.read_text())))


def with_table(page: str, tried: dict) -> str:
    """The page with the table of results between its two marks."""
    rows = [
        "| host | it has | known up to | tried with | result |",
        "|---|---|---|---|---|",
        *(row(host, tried.get(name)) for host in hosts() for name in names(host, tried)),
    ]
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + "\n".join(rows) + "\n" + END + rest.partition(END)[2]


def names(host: Host, tried: dict) -> list[str]:
    """The host, tried or not, and its trial with the very versions, if there was one."""
    exact = f"{host.name}, exact"
    return [host.name, *([exact] if exact in tried else [])]


def row(host: Host, entry: dict | None) -> str:
    there = f"Python {host.python}, PyTorch {host.torch}"
    begin = f"| {host.host} (`{host.name}`) | {there} | {host.date} |"
    if entry is None:
        return f"{begin} | not tried with all notebooks yet |"
    versions, results = entry["versions"], entry["notebooks"].values()
    points, maximum, wrong = (
        sum(each[key] for each in results) for key in ("points", "maximum", "wrong")
    )
    tried = ", ".join(
        f"{title} {versions[name]}"
        for title, name in [("Python", "python"), ("PyTorch", "torch"), ("IPython", "ipython"),
                            *((name, name) for name in ("ipykernel", "ipywidgets", "numpy", "matplotlib"))]
    )  # fmt: skip
    result = f"{len(results)} notebooks, {points:g} of {maximum:g} points, "
    result += f"{wrong or 'no'} fault{'s' * (wrong > 1)}"
    since = min(each["date"] for each in results)
    return f"{begin} {tried} | {since}: {result} |"


if __name__ == "__main__":
    sys.exit(main())
