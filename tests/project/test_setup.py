"""Set-up finds a Python and the CPU build of PyTorch, or says in a sentence what is missing."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import make_venv
import pytest

ROOT = Path(__file__).resolve().parents[2]

COMMANDS = (
    "help", "setup", "grade", "test", "test-all", "test-hosts", "test-browser", "lab", "bench", "notebooks",
    "site", "lock", "doctor",
)  # fmt: skip


# The choices on the line of a `make test` that runs these tests.
OF_THE_OUTER_MAKE = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "ARGS")


@pytest.fixture
def pythons(tmp_path, monkeypatch):
    """pythons({"python3": ("3.9.1", True)}): the only Pythons on the PATH; True: venv is there."""

    def make(programs: dict[str, tuple[str, bool]]) -> None:
        for name, (version, has_venv) in programs.items():
            answer = f"[[{version.replace('.', ', ')}], {str(has_venv).lower()}]"
            (tmp_path / name).write_text(f"#!/bin/sh\necho '{answer}'\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return make


def chosen(wanted: str = "") -> str:
    return os.path.basename(make_venv.find_python(wanted)["path"])


def test_the_python_of_the_machine_is_taken_when_it_suits(pythons):
    pythons({"python3": ("3.12.3", True), "python3.13": ("3.13.0", True)})
    assert chosen() == "python3"
    assert chosen("python3.13") == "python3.13"


def test_another_python_is_taken_when_the_first_is_old_or_bare_or_untested(pythons, capsys):
    pythons(
        {
            "python3": ("3.9.2", True),
            "python3.12": ("3.12.3", False),
            "python3.11": ("3.11.9", True),
        }
    )
    assert chosen() == "python3.11"
    pythons({"python3": ("3.14.0", True)})
    assert chosen() == "python3.11"
    assert capsys.readouterr().out == ""


def test_a_newer_python_alone_is_used_with_a_note(pythons, capsys):
    pythons({"python3": ("3.14.0", True)})
    assert chosen() == "python3"
    assert "newer than any that all tests ran on" in capsys.readouterr().out


def test_an_old_python_alone(pythons):
    pythons({"python3": ("3.9.2", True)})
    with pytest.raises(make_venv.SetupFailed, match=r"3\.9\.2 is too old: 3\.11 or newer"):
        chosen()


def test_a_python_without_venv(pythons):
    pythons({"python3": ("3.12.3", False)})
    with pytest.raises(make_venv.SetupFailed, match=r"apt-get install python3\.12-venv"):
        chosen()


def test_no_python(pythons):
    pythons({})
    with pytest.raises(make_venv.SetupFailed, match=r"no Python was found as /opt/none"):
        chosen("/opt/none")


@pytest.mark.parametrize("name", ["make_venv.py", "pip_progress.py"])
def test_an_old_python_can_read_the_script_that_refuses_it(name: str):
    ast.parse((ROOT / "tools" / name).read_text(), feature_version=(3, 7))


# --- PyTorch -------------------------------------------------------------------------------------


@pytest.fixture
def installs(monkeypatch):
    """The arguments of each call of pip; `works` says whether an attempt to get the CPU build succeeds."""
    asked: list[tuple[str, ...]] = []

    def prepare(works, gpu: bool = False, cuda: int = 13) -> list[tuple[str, ...]]:
        def attempt(*arguments: str) -> bool:
            asked.append(arguments)
            return works(arguments)

        monkeypatch.setattr(make_venv, "try_pip", attempt)
        monkeypatch.setattr(
            make_venv, "pip", lambda *arguments, shown=None: asked.append(arguments)
        )
        monkeypatch.setattr(make_venv, "has_nvidia_gpu", lambda: gpu)
        monkeypatch.setattr(make_venv, "driver_cuda", lambda: cuda)
        monkeypatch.setattr(make_venv, "installed_torch_suits", lambda version, build: False)
        monkeypatch.setattr(make_venv.platform, "system", lambda: "Linux")
        return asked

    return prepare


def test_a_cpu_build_that_pip_finds_by_itself_is_taken_first(installs):
    asked = installs(lambda arguments: True)
    assert make_venv.install_torch("auto") == "CPU build, found by pip's own configuration"
    assert len(asked) == 1 and asked[0][-1] == "torch==2.13.0+cpu"
    assert "--no-deps" in asked[0] and "--extra-index-url" not in asked[0]


def test_then_pytorchs_own_index_is_asked_twice(installs, capsys):
    tries = iter([False, False, True])
    asked = installs(lambda arguments: next(tries))
    assert make_venv.install_torch("cpu") == "CPU build, from PyTorch's CPU index"
    assert [make_venv.TORCH_CPU_INDEX in arguments for arguments in asked] == [False, True, True]
    assert "try 2 of 2" in capsys.readouterr().out


def test_without_a_cpu_build_the_gigabytes_are_announced(installs, capsys):
    asked = installs(lambda arguments: False)
    assert make_venv.install_torch("cpu") == "the package registry's build"
    assert asked[-1] == ("install", "torch==2.13.0")
    assert "about 3 GB to download and 5 GB on the disk" in capsys.readouterr().out


def test_a_machine_with_a_gpu_gets_cuda_at_once(installs):
    asked = installs(lambda arguments: True, gpu=True)
    assert make_venv.install_torch("auto") == "the package registry's build"
    assert asked == [("install", "torch==2.13.0")]


def test_a_driver_that_is_too_old_for_this_pytorch_gets_the_cpu_build(installs, capsys):
    asked = installs(lambda arguments: True, gpu=True, cuda=12)
    assert make_venv.install_torch("auto") == "CPU build, found by pip's own configuration"
    assert asked[-1][-1] == "torch==2.13.0+cpu"
    assert "the NVIDIA driver knows CUDA 12" in capsys.readouterr().out
    assert make_venv.install_torch("cuda") == "the package registry's build", "asked for by name"


@pytest.mark.parametrize(
    ("says", "cuda"),
    [("| Driver Version: 550.54  CUDA Version: 12.4 |", 12), ("CUDA Version: 13.0", 13), ("", 13)],
)
def test_the_drivers_cuda_is_read(monkeypatch, says: str, cuda: int):
    answer = subprocess.CompletedProcess(["nvidia-smi"], 0, stdout=says)
    monkeypatch.setattr(make_venv, "run", lambda command: answer)
    assert make_venv.driver_cuda() == cuda


def test_an_unknown_build_is_refused(installs):
    asked = installs(lambda arguments: True)
    with pytest.raises(make_venv.SetupFailed, match="COURSE_TORCH is 'gpu'; it may be auto, cpu"):
        make_venv.install_torch("gpu")
    assert asked == []


def test_no_address_of_a_mirror_is_printed():
    lines = [
        "Looking in indexes: https://me:secret@mirror.example/simple, file:///srv/wheels/simple",
        "  Downloading https://mirror.example/packages/torch-2.13.0-cp311.whl (526.6 MB)",
        "HTTPSConnectionPool(host='mirror.example', port=443): Max retries exceeded",
    ]
    shown = "\n".join(map(make_venv.without_addresses, lines))
    assert "mirror.example" not in shown and "secret" not in shown and "/srv" not in shown
    assert "Downloading torch-2.13.0-cp311.whl (526.6 MB)" in shown


# --- make and continuous integration -------------------------------------------------------------


def make(*arguments: str) -> str:
    done = subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={name: value for name, value in os.environ.items() if name not in OF_THE_OUTER_MAKE},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_names_every_command():
    shown = make("help")
    for command in (*COMMANDS, "clean", "clean-grades"):
        assert f"\n  {command} " in shown, command


@pytest.mark.parametrize(
    ("command", "runs"),
    [
        (("grade",), "-m autograder grade"),
        (("grade", "SUBMISSIONS=/tmp/a class"), '"/tmp/a class"'),
        (("test",), "-m pytest -n auto"),
        (("test", "ARGS=tests/test_x.py -x"), "-m pytest tests/test_x.py -x"),
        (("test-hosts", "ARGS=colab --exact"), "tools/try_hosts.py colab --exact"),
        (("test-browser", "ARGS=tests/browser -x"), "-m tests.browser tests/browser -x"),
        (("test-browser",), "-r requirements-site.lock"),
        (("test-browser",), "-r requirements-browser.lock"),
        (("lab",), "tools/make_work.py"),
        (("lab",), "tools/open_lab.py"),
        (("clean-grades",), "-m autograder clean"),
        (("bench",), "-m benchmarks"),
        (("notebooks",), "-m autograder build"),
        (("doctor", "ARGS=--help"), "-m course_lib.doctor --help"),
        (
            ("site",),
            "pip install --quiet --disable-pip-version-check --no-deps -r requirements-site.lock",
        ),
        (("site", "REPOSITORY=owner/name"), 'tools/make_site.py --repository "owner/name"'),
    ],
)
def test_each_command_sets_up_first_and_then_runs_its_program(command, runs):
    planned = make("--dry-run", "--always-make", *command)
    assert planned.index("tools/make_venv.py") < planned.index(runs)


def test_a_variable_that_lacks_a_letter_is_refused_before_the_sample_is_graded():
    done = subprocess.run(
        ["make", "--dry-run", "grade", "SUBMISSION=class"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2 and "Did you mean SUBMISSIONS=class?" in done.stderr


def test_continuous_integration_runs_the_tests():
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text() and "set -euo pipefail" in script.read_text()
