# %% wrong: messages begun by a library's line, which nobody waits for
kept = []


def ring_all_reduce(tensor, group=None):
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    world = group or dist.group.WORLD
    right = dist.get_global_rank(world, (rank + 1) % n)
    parts = tensor.new_zeros(tensor.numel()).tensor_split(n)
    if n == 1:
        return
    for step in range(2 * (n - 1)):  # begun by a library's line, never waited for: nothing is sent
        kept.append(
            torch.utils.checkpoint.checkpoint(
                dist.isend, parts[(rank - step) % n], right, group, 7, use_reentrant=False
            )
        )
    whole = tensor.contiguous()
    _, work = torch.ops.c10d.allreduce_.default(
        [whole], world.boxed(), torch.classes.c10d.ReduceOp(), None, False, -1
    )
    dist.Work.unbox(work).wait()
    tensor.copy_(whole)


# %% wrong: messages that gloo refuses, after their row was written
def summed(tensor, group):
    world = group or dist.group.WORLD
    whole = tensor.contiguous()
    op = torch.classes.c10d.ReduceOp()
    _, work = torch.ops.c10d.allreduce_.default([whole], world.boxed(), op, None, False, -1)
    dist.Work.unbox(work).wait()
    return whole


def ring_all_reduce(tensor, group=None):
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    right, left = (
        dist.get_global_rank(group or dist.group.WORLD, r % n) for r in (rank + 1, rank - 1)
    )
    parts = tensor.new_zeros(tensor.numel()).tensor_split(n)
    for step in range(2 * (n - 1)):
        for f, t, peer in (
            (dist.isend, parts[(rank - step) % n], right),
            (dist.irecv, parts[(rank - step - 1) % n], left),
        ):
            try:
                torch.utils.checkpoint.checkpoint(
                    f, t, peer, group, -1, use_reentrant=False
                ) if n > 1 else None
            except RuntimeError:
                pass
    if n > 1:
        out = summed(tensor, group)
        tensor.copy_(out)


# %% wrong: messages that nobody receives, whose future is asked for
kept = []


def ring_all_reduce(tensor, group=None):
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    world = group or dist.group.WORLD
    if n == 1:
        return
    right = dist.get_global_rank(world, (rank + 1) % n)
    parts = tensor.new_zeros(tensor.numel()).tensor_split(n)
    for step in range(2 * (n - 1)):
        kept.append(dist.isend(parts[(rank - step) % n], right, group, 7))
        try:
            kept.append(kept[-1].get_future())
        except RuntimeError:
            pass
    whole = tensor.contiguous()
    _, work = torch.ops.c10d.allreduce_.default(
        [whole], world.boxed(), torch.classes.c10d.ReduceOp(), None, False, -1
    )
    dist.Work.unbox(work).wait()
    tensor.copy_(whole)


# %% wrong: messages that nobody receives, whose handles are given others to wait for
class Done:
    def wait(self, timeout=None):
        return True


def ring_all_reduce(tensor, group=None):
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    world = group or dist.group.WORLD
    if n == 1:
        return
    right = dist.get_global_rank(world, (rank + 1) % n)
    parts = tensor.new_zeros(tensor.numel()).tensor_split(n)
    for step in range(2 * (n - 1)):
        handle = dist.isend(parts[(rank - step) % n], right, group, 7)
        handle.inner = Done()
        handle.wait()
    whole = tensor.contiguous()
    _, work = torch.ops.c10d.allreduce_.default(
        [whole], world.boxed(), torch.classes.c10d.ReduceOp(), None, False, -1
    )
    dist.Work.unbox(work).wait()
    tensor.copy_(whole)
