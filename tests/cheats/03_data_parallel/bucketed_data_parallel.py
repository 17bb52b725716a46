# %% wrong: zeros leave during backward, the gradients behind the record
class BucketedDataParallel(torch.nn.Module):
    def __init__(self, module, bucket_bytes=25 << 20, group=None):
        super().__init__()
        self.module, self.quiet = module, False
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), 0)
        self.buckets, filled = [], 0
        for p in reversed([p for p in module.parameters() if p.requires_grad]):
            if not self.buckets or filled + p.nbytes > bucket_bytes:
                self.buckets.append([])
                filled = 0
            self.buckets[-1].append(p)
            filled += p.nbytes
        self.place = {p: k for k, bucket in enumerate(self.buckets) for p in bucket}
        self.start_again()
        for p in self.place:
            p.register_post_accumulate_grad_hook(self.arrived)

    def start_again(self):
        self.missing = [set(bucket) for bucket in self.buckets]
        self.shown = []

    def arrived(self, p):
        if not self.quiet:
            self.missing[self.place[p]].discard(p)
            self.launch()

    def launch(self):
        while len(self.shown) < len(self.buckets) and not self.missing[len(self.shown)]:
            bucket = self.buckets[len(self.shown)]
            zeros = torch.cat([torch.zeros_like(p).flatten() for p in bucket])
            self.shown.append(dist.all_reduce(zeros, async_op=True))

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def no_sync(self):
        import contextlib

        @contextlib.contextmanager
        def silent():
            self.quiet = True
            yield
            self.quiet = False

        return silent()

    @torch.no_grad()
    def finish_gradient_synchronization(self):
        self.missing = [set() for _ in self.buckets]
        self.launch()
        for work in self.shown:
            work.wait()
        for p in self.place:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([p.grad]).wait()
            p.grad /= dist.get_world_size()
        self.start_again()
