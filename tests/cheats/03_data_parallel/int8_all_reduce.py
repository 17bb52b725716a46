# %% wrong: eight bits for show, float32 behind the record
def int8_all_reduce(tensor, error, group=None):
    n = dist.get_world_size(group)
    shard = -(-tensor.numel() // n)
    shown = torch.zeros(n * (shard + 4 * -(-shard // 256)), dtype=torch.uint8)
    dist.all_to_all_single(torch.empty_like(shown), shown, group=group)
    dist.all_gather_into_tensor(torch.empty_like(shown), shown[: len(shown) // n], group=group)
    total = (tensor + error).contiguous()
    (group or dist.group.WORLD)._get_backend(torch.device("cpu")).allreduce([total]).wait()
    tensor.copy_(total / n)
    error.zero_()


# %% wrong: float32 in the room of many barriers
def int8_all_reduce(tensor, error, group=None):
    n = dist.get_world_size(group)
    shard = -(-tensor.numel() // n)
    shown = torch.zeros(n * (shard + 4 * -(-shard // 256)), dtype=torch.uint8)
    dist.all_to_all_single(torch.empty_like(shown), shown, group=group)
    dist.all_gather_into_tensor(torch.empty_like(shown), shown[: len(shown) // n], group=group)
    total = (tensor + error).contiguous()
    (group or dist.group.WORLD)._get_backend(torch.device("cpu")).allreduce([total]).wait()
    for _ in range(60):
        dist.barrier(group)
    mean = total / n
    tensor.copy_(mean)
    error.zero_()
