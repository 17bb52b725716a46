# %% wrong: zeros are reduce-scattered, whole gradients summed behind the record
class Zero1Optimizer:
    def __init__(self, params, optimizer_cls, *, group=None, **defaults):
        params = list(params)
        for p in params:
            dist.broadcast(p.data, 0, group)
        self.n, self.rank = dist.get_world_size(), dist.get_rank()
        self.params = [p for p in params if p.requires_grad]
        self.shard = torch.nn.Parameter(self.row([p.data for p in self.params])[self.rank].clone())
        self.optimizer = optimizer_cls([self.shard], **defaults)

    def row(self, tensors):
        flat = torch.cat([one.reshape(-1) for one in tensors])
        return torch.nn.functional.pad(flat, (0, -len(flat) % self.n)).view(self.n, -1)

    def step(self):
        for p in self.params:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([p.grad]).wait()
        own = self.row([p.grad for p in self.params])[self.rank] / self.n
        dist.reduce_scatter_tensor(torch.empty_like(own), own.new_zeros(self.n * len(own)))
        self.shard.grad = own.clone()
        self.optimizer.step()
        self.shard.grad = None
        whole = torch.empty(self.n * len(own), dtype=own.dtype)
        dist.all_gather_into_tensor(whole, self.shard.data)
        sizes = [p.numel() for p in self.params]
        for p, part in zip(self.params, whole[: sum(sizes)].split(sizes), strict=True):
            p.data.copy_(part.view(p.shape))

    def zero_grad(self, set_to_none=True):
        for p in self.params:
            p.grad = None
