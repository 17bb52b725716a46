"""Does this PyTorch hold code for these GPUs?

A wheel of PyTorch holds machine code for some compute capabilities ("sm_80" is 8.0), which also runs on later
ones of the same major number. Sometimes it also holds an intermediate code ("compute_90") that the driver
translates for any later GPU. If neither fits a GPU, tensors fail with "no kernel image is available".
Source: NVIDIA's CUDA C++ Programming Guide, "Application Compatibility".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from course_lib.doctor.finding import Finding
from course_lib.doctor.nvidia import ask_nvidia


def gpu_code() -> Finding | None:
    """GPUs for which this PyTorch was not built; None if it was built for all, or uses none."""
    compiled = torch.cuda.get_arch_list()
    query = ("--query-gpu=name,compute_cap", "--format=csv,noheader")
    listed = [line.rpartition(",") for line in ask_nvidia(*query).splitlines()]
    without = [
        f"{name.strip()} (compute capability {capability.strip()})"
        for name, _, capability in listed
        if re.fullmatch(r"\d+\.\d+", capability.strip()) and not runs_on(compiled, capability)
    ]
    if not compiled or not without:
        return None
    text = (
        f"PyTorch {torch.__version__} holds no code for {', '.join(without)}, only for "
        f'{" ".join(compiled)}, so tensors on it fail with "no kernel image is available"'
    )
    advice = (
        "Choose another GPU (on Kaggle: Settings, Accelerator, GPU T4 x2 instead of P100), or install an "
        "older PyTorch, from 2.6 on, that was built for this GPU."
    )
    return Finding("note", "GPU code", text, advice)


def runs_on(compiled: Sequence[str], capability: str) -> bool:
    """Whether a GPU of this compute capability ("8.6") runs code for one of these ("sm_80", "compute_90")."""
    gpu = tuple(int(number) for number in capability.split("."))
    for target in compiled:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", target)
        if match is None:
            continue
        kind, major, minor, special = match.groups()
        built = (int(major), int(minor))
        if special:  # "sm_90a": for this GPU alone
            fits = gpu == built
        elif kind == "sm":
            fits = gpu[0] == built[0] and gpu >= built
        else:
            fits = gpu >= built
        if fits:
            return True
    return False
