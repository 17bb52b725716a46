"""Train a GPT on one machine or on several, with the classes of this course.

One machine:

    torchrun --standalone --nproc-per-node 2 examples/train.py --parallel zero1

Two machines, the same command on both (`first` is the name of one of them):

    torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint first:29400 --rdzv-id run1 \
        examples/train.py --parallel zero3 --checkpoints /shared/run1

On one GPU, in 16 bits, with tokens a second, MFU and peak memory at the end:

    torchrun --standalone --nproc-per-node 1 examples/train.py --parallel none --model 124M --dtype bf16 \
        --report

Over several axes, here with two stages, two replicas and layers cut in two, on two machines with four ranks:

    torchrun --nnodes 2 --nproc-per-node 4 ... examples/train.py --mesh pp=2,dp=2,tp=2

Started again, an interrupted run goes on from its newest checkpoint. README.md in this folder describes the
other differences between one machine and several.

Copy this file as the start of your own trainer. Its functions stand in the order in which they run.
"""

import os
import re
import socket
import threading
import time
import zlib
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.optim import AdamW, Optimizer

from course_lib.data import batch, library_text
from course_lib.data_parallel import BucketedDataParallel
from course_lib.facts import transformer_flops
from course_lib.facts.hardware import data_sheet
from course_lib.mesh import Mesh, held_boxes, mesh_stages, parameters, train_step
from course_lib.models import GPT, PRESETS, next_token_loss
from course_lib.operation import (
    DamagedCheckpoint,
    Folder,
    from_bytes,
    load_step,
    new_prefix,
    publish,
    read_manifest,
    read_part,
    save_shards,
    steps,
    tidy,
    to_bytes,
    write_parts,
)
from course_lib.pipeline import Stage, one_f_one_b
from course_lib.precision import LossScaler
from course_lib.runtime.torchrun import Recording
from course_lib.zero import Zero1Optimizer, Zero3Module, merge_state_dicts

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WARM_UP = 3  # steps that a report leaves out


@record  # torchrun's report then shows the exception of the rank that failed first
def main() -> None:
    args = parse_arguments()
    end_with_the_agent()

    # The ranks meet at a store, agree on a backend, and make their process group.
    store, rank, world_size = next(dist.rendezvous("env://"))
    backend, reason = choose_backend(args.backend, store, rank, world_size)
    device, own_gpu = torch.device("cpu"), None
    if backend == "nccl":
        device = own_gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    recording = Recording(backend) if args.ledger else None
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, device_id=own_gpu
    )

    # Data, model and, after an interruption, the state in which the run was.
    text = library_text()  # (7 million,) bytes, on the CPU
    hosts = compare_machines(text)
    torch.manual_seed(args.seed)
    config = PRESETS[args.model]
    model, stages, step_on_mesh = GPT(config).to(device), None, None
    if args.mesh:
        stages, step_on_mesh, optimizer = spread_over_mesh(model, args, device)
    else:
        model, optimizer = parallelize(model, args)
    scaler = make_scaler(args, device)
    trained = model if stages is None else stages
    start = load_checkpoint(args, trained, optimizer) if args.checkpoints else 0
    if rank == 0:
        machines = ", ".join(f"{host} ({hosts.count(host)})" for host in dict.fromkeys(hosts))
        print(f"{world_size} ranks on {machines}; backend {backend}: {reason}")
        layout = f"mesh {args.mesh}" if args.mesh else args.parallel
        print(f"GPT {args.model}, {layout}, steps {start} to {args.steps - 1}", flush=True)

    recorded_step = min(start + 1, args.steps - 1)  # connections are made in the first
    reported_from = 0.0
    for step in range(start, args.steps):
        if step == start + WARM_UP:
            reported_from = finished(device)
        began = time.perf_counter()
        torch.manual_seed(args.seed + step * world_size + rank)  # dropout repeats after a resume
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1, (step + 1) / args.warmup)
        rows = batch(
            text, step, batch_size=args.batch_size, length=config.context, seed=args.seed,
            rank=0 if args.mesh else rank, world_size=1 if args.mesh else world_size,
        )  # fmt: skip
        # (batch_size / world_size, context); on a mesh the whole batch, of which each replica takes its rows
        inputs, targets = (part.to(device) for part in rows)
        with recording if recording and step == recorded_step else nullcontext():
            if step_on_mesh:
                loss = step_on_mesh(inputs, targets)  # (), the mean over all targets
            else:
                with cast(args, device):
                    logits = model(inputs)  # (batch_size / world_size, context, vocab_size)
                    loss = share_of_loss(
                        logits, targets
                    )  # (), N times this rank's term of the mean
                (scaler.scale_loss(loss) if scaler else loss).backward()
                if isinstance(model, BucketedDataParallel):
                    model.finish_gradient_synchronization()
                if scaler:
                    before = current_scale(scaler)
                    scaler.step(optimizer)  # on all ranks or on none
                    scaler.update()
                    now = current_scale(scaler)
                    if now < before and rank == 0:
                        print(f"step {step}  skipped: gradients overflowed, loss scale {now:g}")
                else:
                    optimizer.step()
                optimizer.zero_grad()
        if (step + 1) % args.log_every == 0 or step + 1 == args.steps:
            mean = loss.detach() / world_size
            dist.all_reduce(mean)  # (), over all targets
            value = mean.item()  # waits for the GPU, which has only been asked for the step so far
            if rank == 0:
                seconds = time.perf_counter() - began
                print(f"step {step}  loss {value:.6f}  {seconds:.3f} s", flush=True)
        if recording and step == recorded_step and rank == 0:
            print(f"Sent by the ranks in step {step}:\n{recording.ledger.table()}", flush=True)
        if args.checkpoints and ((step + 1) % args.checkpoint_every == 0 or step + 1 == args.steps):
            save_checkpoint(args, step + 1, trained, optimizer)
    if args.report:
        seconds = (finished(device) - reported_from) / (args.steps - start - WARM_UP)
        if rank == 0:
            print(report(args, seconds, world_size, device), flush=True)
    dist.destroy_process_group()
    # A thread of gloo may still be letting go of the last tensor. A Python that shuts down meanwhile would be
    # ended by "terminate called without an active exception", and the whole run would count as failed.
    os._exit(0)


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description="Train a GPT with the classes of the course.")
    add = parser.add_argument
    add(
        "--parallel",
        choices=("none", "ddp", "zero1", "zero3", "fsdp"),
        default="ddp",
        help="the class to use; none: one rank alone; fsdp: PyTorch's fully_shard",
    )
    add("--dtype", choices=tuple(DTYPES), default="float32", help="of the arithmetic")
    add("--report", action="store_true", help="tokens a second, MFU and peak memory at the end")
    add(
        "--mesh",
        type=mesh_sizes,
        help="pp=2,dp=2,tp=2: axes, outermost first; in place of --parallel",
    )
    add("--microbatches", type=int, default=4, help="of each replica's rows, with --mesh")
    add("--backend", choices=("nccl", "gloo"), help="default: nccl if every rank has its own GPU")
    add("--model", choices=tuple(PRESETS), default="0.8M", help="preset, by its parameters")
    add("--steps", type=int, default=200, help="of the whole run, those before a resume included")
    add("--batch-size", type=int, default=16, help="rows of all ranks together")
    add("--lr", type=float, default=1e-3, help="learning rate after the warm-up")
    add("--warmup", type=int, default=10, help="steps in which the learning rate rises")
    add("--clip", type=float, default=1.0, help="largest norm of the gradient; inf: any")
    add("--seed", type=int, default=0, help="of weights and batches")
    add("--log-every", type=int, default=1, help="steps between two losses in the log")
    add("--checkpoints", type=Path, help="folder, seen by all machines; resumes from its newest")
    add("--checkpoint-every", type=int, default=100, help="steps between two checkpoints")
    add("--ledger", action="store_true", help="show what the ranks send in the second step")
    args = parser.parse_args()
    for name in ("steps", "batch_size", "microbatches", "warmup", "log_every", "checkpoint_every"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is at least 1, not {getattr(args, name)}")
    for name in ("lr", "clip"):
        if not getattr(args, name) > 0:  # neither is nan
            parser.error(f"--{name} is above 0, not {getattr(args, name)}")
    if args.mesh:
        replicas = args.mesh.get("dp", 1)
        if args.batch_size // replicas < args.microbatches:
            parser.error(
                f"--batch-size {args.batch_size} cannot be cut into {replicas} x {args.microbatches} "
                "microbatches, of dp and --microbatches"
            )
    refuse(parser, args)
    if "LOCAL_RANK" not in os.environ:
        parser.error("start this file with torchrun: torchrun --standalone --nproc-per-node 2 ...")
    return args


def refuse(parser: ArgumentParser, args: Namespace) -> None:
    """End with a sentence where two options do not go together."""
    if args.parallel == "none" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        parser.error("--parallel none is for one rank: start it with --nproc-per-node 1")
    if args.mesh and args.dtype != "float32":
        parser.error("--mesh trains in float32: leave --dtype out")
    if args.checkpoints and args.parallel == "fsdp":
        parser.error(
            "--parallel fsdp saves no checkpoints here: torch.distributed.checkpoint does, see notebook 05"
        )
    if args.checkpoints and args.dtype == "fp16":
        parser.error("a checkpoint does not hold the loss scale: use --dtype bf16, or save nothing")
    if args.report and (args.checkpoints or args.steps <= WARM_UP):
        parser.error(
            f"--report times steps without checkpoints, after {WARM_UP} to warm up: leave --checkpoints out, "
            f"and take more than {WARM_UP} --steps"
        )


def mesh_sizes(text: str) -> dict[str, int]:
    """ "pp=2,dp=2,tp=2" as sizes of axes, outermost first."""
    pairs = [part.partition("=") for part in text.split(",")]
    if any(axis not in ("pp", "dp", "cp", "tp") or not n.isdecimal() for axis, _, n in pairs):
        raise ArgumentTypeError(f"{text!r} is not a list such as pp=2,dp=2,cp=1,tp=2")
    sizes = {axis: int(n) for axis, _, n in pairs}
    world_size = int(os.environ.get("WORLD_SIZE", prod(sizes.values())))
    if len(sizes) < len(pairs) or prod(sizes.values()) != world_size:
        raise ArgumentTypeError(f"{text} does not make {world_size} ranks, each axis named once")
    return sizes


def end_with_the_agent() -> None:
    """End this rank when its torchrun is gone: a torchrun that is killed cannot end its ranks."""
    agent = os.getppid()

    def watch() -> None:
        while os.getppid() == agent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def choose_backend(asked: str | None, store: dist.Store, rank: int, n: int) -> tuple[str, str]:
    """The backend and the reason for it. The ranks exchange what they have, and decide alike."""
    own_gpu = dist.is_nccl_available() and int(os.environ["LOCAL_RANK"]) < torch.cuda.device_count()
    store.set(f"lacks a GPU/{rank}", "" if own_gpu else socket.gethostname())
    lacking = [store.get(f"lacks a GPU/{other}").decode() for other in range(n)]
    if asked == "gloo":
        return "gloo", "asked for"
    if not any(lacking):
        return "nccl", "every rank has a GPU of its own"
    first = next(other for other in range(n) if lacking[other])
    reason = f"rank {first} on {lacking[first]} has no GPU of its own"
    if asked == "nccl":
        raise SystemExit(f"--backend nccl: {reason}. Start fewer ranks there, or use gloo.")
    return "gloo", reason


def compare_machines(text: Tensor) -> list[str]:
    """The host of every rank. RuntimeError if their texts differ."""
    machines = from_all((socket.gethostname(), zlib.crc32(text.numpy().tobytes())))
    for rank, (host, checksum) in enumerate(machines):
        if checksum != machines[0][1]:
            raise RuntimeError(
                f"rank {rank} on {host} has another training text than rank 0 on {machines[0][0]}: the text "
                "is Python's own library. Use the same version of Python on all machines"
            )
    return [host for host, _ in machines]


def parallelize(model: nn.Module, args: Namespace) -> tuple[nn.Module, Optimizer]:
    """The model as the ranks share it, with its optimizer. The weights become rank 0's."""
    if args.parallel == "fsdp":
        return fully_sharded(model, args)
    if args.parallel == "none":
        optimizer = AdamW(model.parameters(), lr=args.lr)
        clip_before_step(optimizer, args.clip, sharded=False)
        return model, optimizer
    if args.parallel == "zero1":
        optimizer = Zero1Optimizer(model.parameters(), AdamW, lr=args.lr)
        clip_before_step(optimizer.optimizer, args.clip, sharded=True)
        return model, optimizer
    model = Zero3Module(model) if args.parallel == "zero3" else BucketedDataParallel(model)
    optimizer = AdamW(model.parameters(), lr=args.lr)
    clip_before_step(optimizer, args.clip, sharded=args.parallel == "zero3")
    return model, optimizer


def fully_sharded(model: nn.Module, args: Namespace) -> tuple[nn.Module, Optimizer]:
    """PyTorch's `fully_shard`, with a unit for each block and one for the rest; weights travel in --dtype."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    where = next(
        model.parameters()
    ).device.type  # without a mesh, FSDP would take a GPU that is there
    mesh = init_device_mesh(where, (dist.get_world_size(),))
    for param in model.parameters():
        dist.broadcast(param.detach(), src=0)
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[args.dtype], reduce_dtype=torch.float32)
    blocks: nn.ModuleList = model.get_submodule("blocks")  # type: ignore[assignment]
    for unit in (*blocks, model):
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    optimizer = AdamW(model.parameters(), lr=args.lr)

    def clip(*_: object) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)  # of all shards together

    optimizer.register_step_pre_hook(clip)
    return model, optimizer


def cast(args: Namespace, device: torch.device) -> AbstractContextManager:
    """Arithmetic in --dtype. FSDP's units have their own policy, and a mesh trains in float32 alone."""
    if args.dtype == "float32" or args.parallel == "fsdp":
        return nullcontext()
    return torch.autocast(device.type, DTYPES[args.dtype])


class ShardScaler(torch.amp.GradScaler):
    """PyTorch's scaler under the name of the course's. It agrees over the ranks about FSDP's shards."""

    def scale_loss(self, loss: Tensor) -> Tensor:
        return self.scale(loss)


def current_scale(scaler: LossScaler | ShardScaler) -> float:
    return scaler.get_scale() if isinstance(scaler, ShardScaler) else scaler.scale


def make_scaler(args: Namespace, device: torch.device) -> LossScaler | ShardScaler | None:
    if args.dtype != "fp16":
        return None
    return ShardScaler(device.type) if args.parallel == "fsdp" else LossScaler()


def spread_over_mesh(
    model: nn.Module, args: Namespace, device: torch.device
) -> tuple[list[Stage], Callable[[Tensor, Tensor], Tensor], Optimizer]:
    """This rank's stages, their step on the whole batch, and the optimizer of what the rank holds."""
    mesh = Mesh(args.mesh, device)
    schedule = one_f_one_b(mesh.size("pp"), args.microbatches)
    stages = mesh_stages(model, mesh, schedule)
    optimizer = AdamW([param for _, param in parameters(stages)], lr=args.lr)

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        batch = (inputs, targets)
        loss, _ = train_step(stages, schedule, batch, args.microbatches, mesh, optimizer, args.clip)
        return torch.tensor(loss, device=device)

    return stages, step, optimizer


def finished(device: torch.device) -> float:
    """The time at which all ranks have done what they were asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()
    return time.perf_counter()


def report(args: Namespace, seconds: float, n: int, device: torch.device) -> str:
    """A line on a step of `seconds`: tokens a second, MFU by the card's data sheet, peak of a GPU's tensors.

    They are model FLOPs: masked scores count, and a second computation of the same does not.
    """
    config = PRESETS[args.model]
    speed = args.batch_size * config.context / seconds
    line = f"report: {speed:,.0f} tokens/s of {n} rank{'s' * (n > 1)}, {seconds:.3f} s a step"
    if device.type != "cuda":
        return f"{line}; MFU and peak memory need a GPU"
    flops = transformer_flops(config, args.batch_size, config.context) / seconds / n
    line += (
        f", {flops / 1e12:.1f} TFLOP/s and {torch.cuda.max_memory_allocated() / 1e9:.2f} GB a GPU"
    )
    name = torch.cuda.get_device_name()
    card = data_sheet(name)
    if card is None:
        return f"{line}; no data sheet of {name}, so no MFU"
    return f"{line}; MFU {flops / card.flops:.1%} of {card.flops / 1e12:g} TFLOP/s ({card.source})"


def share_of_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """This rank's term of the mean over the targets of all ranks, times the number of ranks N.

    The classes take the mean over the ranks, so that the factor goes. The mean of the ranks' own means would
    be another loss if ranks have unequal numbers of targets, and nan if one has none.
    """
    count = (targets != -100).sum()
    dist.all_reduce(count)
    total = next_token_loss(logits.float(), targets, "sum")  # in 16 bits the sum would overflow
    return total * (dist.get_world_size() / count.clamp(min=1))


def clip_before_step(optimizer: Optimizer, most: float, sharded: bool) -> None:
    """Make each step scale the gradients, means over the ranks, to a norm of `most` at most."""
    params = [param for group in optimizer.param_groups for param in group["params"]]

    def clip(*_: object) -> None:
        gradients = [param.grad for param in params if param.grad is not None]
        square = torch.zeros((), device=params[0].device)
        for gradient in gradients:
            square += gradient.square().sum()
        if sharded:
            dist.all_reduce(square)  # each rank has the sum of its own part
        scale = (most / (square.sqrt() + 1e-6)).clamp(max=1)
        for gradient in gradients:
            gradient.mul_(scale)

    optimizer.register_step_pre_hook(clip)


def save_checkpoint(
    args: Namespace, step: int, model: nn.Module | list[Stage], optimizer: Optimizer
) -> None:
    """Every rank writes its parts; when all have, rank 0 makes a checkpoint of them.

    Whenever the run is interrupted, the newest checkpoint is this one or the one before it, as a whole:
    course_lib/operation/protocol.py says why. The two newest are kept. model: on a mesh, the rank's stages.
    """
    disk, rank = Folder(args.checkpoints), dist.get_rank()
    if isinstance(model, list):
        save_shards(disk, step, boxes(args, step, model, optimizer))
    else:
        prefix = from_all(new_prefix(disk, step) if rank == 0 else "")[0]
        written = from_all(write_parts(disk, prefix, parts_to_save(args, model, optimizer)))
        if rank == 0:
            publish(disk, step, {name: entry for part in written for name, entry in part.items()})
        dist.barrier()
    check_shared(args.checkpoints, [manifest(step)])
    if rank == 0:
        print(f"saved {args.checkpoints / manifest(step)}", flush=True)
        tidy(disk, keep=2)


def parts_to_save(args: Namespace, model: nn.Module, optimizer: Optimizer) -> dict[str, bytes]:
    """The parts that this rank writes: its optimizer state, and on rank 0 the weights.

    No generator is saved, since every step seeds its own.
    """
    rank, parts = dist.get_rank(), {}
    if isinstance(model, Zero3Module):
        weights, state = model.full_state_dict(), model.optimizer_state_dict(optimizer)
    else:
        weights, state = getattr(model, "module", model).state_dict(), optimizer.state_dict()
    if rank == 0:
        parts["model.pt"] = to_bytes(
            {"weights": weights, "model": args.model, "layout": optimizer_layout(args)}
        )
    if rank == 0 or args.parallel != "ddp":  # with ddp all ranks hold the same state
        parts[f"optimizer-{rank:05d}.pt"] = to_bytes(state)
    return parts


def boxes(args: Namespace, step: int, stages: list[Stage], optimizer: Optimizer) -> dict:
    """A mesh rank's part of each tensor, to save or to load, and an empty tensor that names the model.

    Before the first step an optimizer has no state.
    """
    held = held_boxes(stages, optimizer if step else None)
    return {f"GPT {args.model}": (torch.empty(0), [(0, 0)]), **held}


def load_checkpoint(args: Namespace, model: nn.Module | list[Stage], optimizer: Optimizer) -> int:
    """Load the newest checkpoint, of any class and any number of ranks; returns the steps behind it.

    On a mesh, one of any mesh. All ranks pass over a checkpoint of which one of them finds a file damaged. If
    there is none at all, one is saved: a folder that cannot be used is an error now, not after hours.
    """
    refuse_earlier_format(args.checkpoints)
    disk, damages = Folder(args.checkpoints), list[str]()
    saved, parts_of = from_all((steps(disk), begun(disk)))[0]  # rank 0's, for all
    check_shared(args.checkpoints, [manifest(step) for step in saved])
    for step in sorted({*saved, *parts_of}, reverse=True):
        try:
            if step not in saved:
                raise DamagedCheckpoint(f"{manifest(step)} is lost, or its save was interrupted")
            if isinstance(model, list):
                load_boxes(args, disk, step, model, optimizer)
            else:
                load_parts(args, disk, step, model, optimizer)
            return step
        except DamagedCheckpoint as error:  # on all ranks
            damages.append(f"{args.checkpoints}/{error}")  # it begins with the file's name
            if dist.get_rank() == 0:
                print(f"{damages[-1]}. The checkpoint of step {step} is not used", flush=True)
    if damages:
        raise ValueError(
            f"no checkpoint in {args.checkpoints} is whole: {'; '.join(damages)}. Nothing was deleted. "
            "Restore the files of one of them, or start again with a new folder"
        )
    save_checkpoint(args, 0, model, optimizer)
    return 0


def load_boxes(
    args: Namespace, disk: Folder, step: int, stages: list[Stage], optimizer: Optimizer
) -> None:
    """Load what this rank of a mesh holds. DamagedCheckpoint, on all ranks, if a file is damaged."""
    optimizer.state.clear()  # of a damaged checkpoint before this one
    try:
        load_step(disk, step, boxes(args, step, stages, optimizer))
    except DamagedCheckpoint:
        raise
    except ValueError as error:
        raise ValueError(
            f"{error}. {disk.path / manifest(step)} is not of a GPT {args.model} on a mesh: give the run "
            "another folder"
        ) from error


def load_parts(
    args: Namespace, disk: Folder, step: int, model: nn.Module, optimizer: Optimizer
) -> None:
    """Load weights and this rank's optimizer state. DamagedCheckpoint, on all ranks, if a file is damaged."""
    weights, state, damage = {}, {}, ""
    try:
        weights, state = read_parts(args, disk, step)
    except DamagedCheckpoint as error:
        damage = str(error)
    if any(damages := from_all(damage)):
        raise DamagedCheckpoint(max(damages))
    if isinstance(model, Zero3Module):
        model.load_full_state_dict(weights)
        model.load_optimizer_state_dict(optimizer, state)
    else:
        getattr(model, "module", model).load_state_dict(weights)
        optimizer.load_state_dict(state)


def read_parts(args: Namespace, disk: Folder, step: int) -> tuple[dict, dict]:
    """The weights, and the optimizer state that this rank loads. Together the ranks read every part."""
    entries = read_manifest(disk, step)
    if "model.pt" not in entries:
        raise ValueError(
            f"{disk.path / manifest(step)} was saved on a mesh or by another program: it has no model.pt. "
            "Give the run another folder"
        )
    saved = from_bytes(read_part(disk, entries.pop("model.pt")))
    if saved["model"] != args.model:
        raise ValueError(
            f"{disk.path / manifest(step)} holds a GPT {saved['model']}, but --model is {args.model}"
        )
    names = sorted(entries)
    if args.parallel != "ddp" and saved["layout"] == optimizer_layout(args):
        return saved["weights"], from_bytes(read_part(disk, entries[names[dist.get_rank()]]))
    # The state was cut otherwise, or not at all.
    states = [from_bytes(read_part(disk, entries[name])) for name in names]
    return saved["weights"], merge_state_dicts(states) if "world_size" in states[0] else states[0]


def optimizer_layout(args: Namespace) -> str:
    """How the optimizer state is cut."""
    return f"{args.parallel} of {dist.get_world_size()}"


def manifest(step: int) -> str:
    """The file that makes a checkpoint of its parts."""
    return f"step-{step:08d}"


def begun(disk: Folder) -> set[int]:
    """The steps after 0 of which there are parts. A save that a kill interrupted has no manifest yet.

    Interrupted at step 0, a run has nothing to lose, and begins again.
    """
    first = (re.match(r"([1-9]\d*)\.\d+\.", name) for name in disk.names())
    return {int(match[1]) for match in first if match}


def check_shared(folder: Path, files: list[str]) -> None:
    """FileNotFoundError, on all ranks, if one of them does not see one of the files, which rank 0 sees."""
    lacking, fault = sorted({*files} - {*Folder(folder).names()}), ""
    if lacking:
        fault = (
            f"rank {dist.get_rank()} on {socket.gethostname()} does not see {folder / lacking[0]}"
        )
    if any(faults := from_all(fault)):
        raise FileNotFoundError(
            f"{max(faults)}, which rank 0 sees: --checkpoints must be a folder that all machines share, such "
            "as one on a network file system"
        )


def refuse_earlier_format(folder: Path) -> None:
    """A checkpoint was a folder until 2026-11-28."""
    for old in sorted(folder.glob("step-*")):
        if old.is_dir() and old.suffix != ".partial":
            raise ValueError(
                f"{old} is a checkpoint of an earlier train.py, in a format that this one does not read. "
                "Finish the run with that train.py, or start again with a new folder"
            )


def from_all(value: Any) -> list:
    """The values of all ranks. After it every rank has come as far as this line."""
    values: list = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


if __name__ == "__main__":
    main()
