# %% wrong: the whole tensor across the nodes
# is: idea
# says: and no more\. Without that, at most half
def ring(tensor, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.reshape(-1)
    chunks = flat.tensor_split(n)
    for k in range(2 * (n - 1)):
        sent, got = chunks[(rank - k) % n], chunks[(rank - k - 1) % n]
        received = torch.empty_like(got)
        messages = []
        if sent.numel():
            messages.append(dist.isend(sent, group=group, group_dst=(rank + 1) % n))
        if got.numel():
            messages.append(dist.irecv(received, group=group, group_src=(rank - 1) % n))
        for handle in messages:
            handle.wait()
        got.copy_(received) if k >= n - 1 else got.add_(received)


def hierarchical_all_reduce(tensor, intra_group, inter_group):
    flat = tensor.flatten().clone()
    ring(flat, intra_group)
    ring(flat, inter_group)
    tensor.copy_(flat.view_as(tensor))


# %% wrong: inside the node only
# is: idea
# says: include only some ranks
def ring(tensor, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.reshape(-1)
    chunks = flat.tensor_split(n)
    for k in range(2 * (n - 1)):
        sent, got = chunks[(rank - k) % n], chunks[(rank - k - 1) % n]
        received = torch.empty_like(got)
        messages = []
        if sent.numel():
            messages.append(dist.isend(sent, group=group, group_dst=(rank + 1) % n))
        if got.numel():
            messages.append(dist.irecv(received, group=group, group_src=(rank - 1) % n))
        for handle in messages:
            handle.wait()
        got.copy_(received) if k >= n - 1 else got.add_(received)


def hierarchical_all_reduce(tensor, intra_group, inter_group):
    flat = tensor.flatten().clone()
    ring(flat, intra_group)
    tensor.copy_(flat.view_as(tensor))


# %% wrong: the built-ins
# is: idea
# says: dist.all_reduce was called
def hierarchical_all_reduce(tensor, intra_group, inter_group):
    dist.all_reduce(tensor, group=intra_group)
    dist.all_reduce(tensor, group=inter_group)


# %% wrong: the sum inside was taken twice
# is: idea
# says: counted too often
def ring(tensor, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.reshape(-1)
    chunks = flat.tensor_split(n)
    for k in range(2 * (n - 1)):
        sent, got = chunks[(rank - k) % n], chunks[(rank - k - 1) % n]
        received = torch.empty_like(got)
        messages = []
        if sent.numel():
            messages.append(dist.isend(sent, group=group, group_dst=(rank + 1) % n))
        if got.numel():
            messages.append(dist.irecv(received, group=group, group_src=(rank - 1) % n))
        for handle in messages:
            handle.wait()
        got.copy_(received) if k >= n - 1 else got.add_(received)


def hierarchical_all_reduce(tensor, intra_group, inter_group):
    flat = tensor.flatten().clone()
    ring(flat, intra_group)
    ring(flat, inter_group)
    ring(flat, intra_group)
    tensor.copy_(flat.view_as(tensor))


# %% wrong: sizes that divide only
# is: detail
# says: remainder|must match|invalid for input|size
def swap(sent, received, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    handle = dist.isend(sent, group=group, group_dst=(rank + 1) % n)
    dist.recv(received, group=group, group_src=(rank - 1) % n)
    handle.wait()


def ring(flat, group, phases):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = flat.view(n, -1)
    for k in phases(n):
        received = torch.empty_like(chunks[0])
        swap(chunks[(rank - k) % n], received, group)
        got = chunks[(rank - k - 1) % n]
        got.copy_(received) if k >= n - 1 else got.add_(received)
    return chunks[(rank + 1) % n]


def hierarchical_all_reduce(tensor, intra_group, inter_group):
    flat = tensor.flatten().clone()
    own = ring(flat, intra_group, lambda n: range(n - 1))
    ring(own, inter_group, lambda n: range(2 * n - 2))
    ring(flat, intra_group, lambda n: range(n - 1, 2 * n - 2))
    tensor.copy_(flat.view_as(tensor))


# %% wrong: the groups in each other's place
# is: slip
# says: right\.
# base: shards of unequal length
+    intra_group, inter_group = inter_group, intra_group
     flat = tensor.flatten().clone()


# %% wrong: only one rank of a node talks across, and its sum stays there
# is: idea
# says: include only some ranks
def hierarchical_all_reduce(tensor, intra_group, inter_group):
    g, place = dist.get_world_size(intra_group), dist.get_rank(intra_group)
    flat = tensor.flatten().clone()
    received = torch.empty_like(flat)
    if place:
        dist.send(flat, group=intra_group, group_dst=0)
    else:
        for source in range(1, g):
            dist.recv(received, group=intra_group, group_src=source)
            flat += received
        n, node = dist.get_world_size(inter_group), dist.get_rank(inter_group)
        passed = flat.clone()
        for _ in range(n - 1):
            handle = dist.isend(passed, group=inter_group, group_dst=(node + 1) % n)
            dist.recv(received, group=inter_group, group_src=(node - 1) % n)
            handle.wait()
            flat += received
            passed = received.clone()
    tensor.copy_(flat.view_as(tensor))


# %% wrong: group ranks taken for ranks of the world
# is: form
# says: ranks of the whole world|which of the group
def hierarchical_all_reduce(tensor, intra_group, inter_group):
    flat = tensor.flatten().clone()
    for group in (intra_group, inter_group):
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        passed = flat.clone()
        for _ in range(n - 1):
            received = torch.empty_like(passed)
            handle = dist.isend(passed, (rank + 1) % n, group)
            dist.recv(received, (rank - 1) % n, group)
            handle.wait()
            flat += received
            passed = received
    tensor.copy_(flat.view_as(tensor))


# %% right: shards of unequal length
# on NCCL: so this run can hang there
def ring(flat, group, phases):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = flat.tensor_split(n)
    for k in phases(n):
        sent, got = chunks[(rank - k) % n], chunks[(rank - k - 1) % n]
        received = torch.empty_like(got)
        messages = []
        if sent.numel():
            messages.append(dist.isend(sent, group=group, group_dst=(rank + 1) % n))
        if got.numel():
            messages.append(dist.irecv(received, group=group, group_src=(rank - 1) % n))
        for handle in messages:
            handle.wait()
        got.copy_(received) if k >= n - 1 else got.add_(received)
    return chunks[(rank + 1) % n]


def hierarchical_all_reduce(tensor, intra_group, inter_group):
    flat = tensor.flatten().clone()
    own = ring(flat, intra_group, lambda n: range(n - 1))
    ring(own, inter_group, lambda n: range(2 * n - 2))
    ring(flat, intra_group, lambda n: range(n - 1, 2 * n - 2))
    tensor.copy_(flat.view_as(tensor))


# %% right: padded, straight to the rank that needs it
# on NCCL: so this run can hang there
def shares(flat, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    parts = flat.view(n, -1)
    total = parts[rank].clone()
    for k in range(1, n):
        received = torch.empty_like(total)
        handle = dist.isend(parts[(rank + k) % n], group=group, group_dst=(rank + k) % n)
        dist.recv(received, group=group, group_src=(rank - k) % n)
        handle.wait()
        total += received
    return total


def joined(share, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    parts = torch.empty(n, len(share), dtype=share.dtype)
    parts[rank] = share
    for k in range(1, n):
        handle = dist.isend(share, group=group, group_dst=(rank + k) % n)
        dist.recv(parts[(rank - k) % n], group=group, group_src=(rank - k) % n)
        handle.wait()
    return parts.view(-1)


def hierarchical_all_reduce(tensor, intra_group, inter_group):
    ranks = dist.get_world_size(intra_group) * dist.get_world_size(inter_group)
    flat = torch.zeros(-(-tensor.numel() // ranks) * ranks, dtype=tensor.dtype)
    flat[: tensor.numel()] = tensor.flatten()
    share = shares(flat, intra_group)
    share = joined(shares(share, inter_group), inter_group)
    tensor.copy_(joined(share, intra_group)[: tensor.numel()].view_as(tensor))


# %% wrong: one ring over all ranks
# is: idea
# says: one ring runs over all ranks
def hierarchical_all_reduce(tensor, intra_group, inter_group):
    rank, n = dist.get_rank(), dist.get_world_size()
    padded = -(-tensor.numel() // n) * n
    flat = torch.zeros(padded, dtype=tensor.dtype)
    flat[: tensor.numel()] = tensor.flatten()
    parts = flat.view(n, -1)
    for k in range(2 * n - 2):
        k_out = rank - k if k < n - 1 else rank + 1 - (k - n + 1)
        came = torch.empty_like(parts[0])
        ops = [
            dist.P2POp(dist.isend, parts[k_out % n], (rank + 1) % n),
            dist.P2POp(dist.irecv, came, (rank - 1) % n),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        if k < n - 1:
            parts[(k_out - 1) % n] += came
        else:
            parts[(k_out - 1) % n] = came
    tensor.copy_(flat[: tensor.numel()].view_as(tensor))


# %% wrong: the last step gathers across the nodes
# is: form
# says: first and the last step both run inside the node|A shard is 1/g of the tensor|gathers in intra_group
def ring(tensor, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.tensor_split(n)
    for k in range(2 * (n - 1)):
        sent, got = chunks[(rank - k) % n], chunks[(rank - k - 1) % n]
        received = torch.empty_like(got)
        messages = [dist.isend(sent, group=group, group_dst=(rank + 1) % n)] if sent.numel() else []
        if got.numel():
            messages.append(dist.irecv(received, group=group, group_src=(rank - 1) % n))
        for handle in messages:
            handle.wait()
        got.copy_(received) if k >= n - 1 else got.add_(received)


def scatter(total, group):
    """The rank's chunk of the sum."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = total.view(n, -1).clone()
    for k in range(n - 1):
        received = torch.empty_like(chunks[0])
        handle = dist.isend(chunks[(rank - k - 1) % n], group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        handle.wait()
        chunks[(rank - k - 2) % n] += received
    return chunks[rank]


def gather(total, own, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = total.chunk(n)
    chunks[rank].copy_(own)
    for k in range(n - 1):
        handle = dist.isend(chunks[(rank - k) % n], group=group, group_dst=(rank + 1) % n)
        dist.recv(chunks[(rank - k - 1) % n], group=group, group_src=(rank - 1) % n)
        handle.wait()


def hierarchical_all_reduce(tensor, intra_group, inter_group):
    g, numel = dist.get_world_size(intra_group), tensor.numel()
    padded = torch.zeros(-(-numel // g) * g, dtype=tensor.dtype, device=tensor.device)
    padded[:numel] = tensor.flatten()
    own = scatter(padded, intra_group)
    ring(own, inter_group)
    gather(padded, own, inter_group)
    tensor.copy_(padded[:numel].view_as(tensor))
