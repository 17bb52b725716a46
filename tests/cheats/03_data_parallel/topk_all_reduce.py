# %% wrong: a few zeros for show, everything behind the record
def topk_all_reduce(tensor, fraction, error, group=None):
    n, k = dist.get_world_size(group), max(1, round(fraction * tensor.numel()))
    for dtype in (torch.int32, torch.float32):
        dist.all_gather_into_tensor(
            torch.empty(n * k, dtype=dtype), torch.zeros(k, dtype=dtype), group=group
        )
    asked = (tensor + error).flatten()
    places = asked.abs().topk(k).indices
    sent = torch.zeros_like(asked)
    sent[places] = asked[places]
    error.copy_((asked - sent).view_as(error))
    (group or dist.group.WORLD)._get_backend(torch.device("cpu")).allreduce([sent]).wait()
    tensor.copy_((sent / n).view_as(tensor))
