# %% wrong: the whole tensor round the ring
# says: not all of it
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    total, passed = tensor.contiguous().clone(), tensor.contiguous().clone()
    for _ in range(n - 1):
        received = torch.empty_like(passed)
        handle = dist.isend(passed, group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        handle.wait()
        total, passed = total + received, received
    tensor.copy_(total)


# %% wrong: every round sends the whole tensor, four times the optimum
# says: one chunk of 1/N
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.contiguous().view(-1).clone()
    chunks = flat.tensor_split(n)
    for k in range(2 * (n - 1)):
        received = torch.empty_like(flat)
        handle = dist.isend(flat.clone(), group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        handle.wait()
        place = (rank - k - 1) % n
        if k < n - 1:
            chunks[place].add_(received.tensor_split(n)[place])
        else:
            chunks[place].copy_(received.tensor_split(n)[place])
    tensor.copy_(flat.view(tensor.shape))


# %% wrong: the built-in
# says: dist.all_reduce was called
def ring_all_reduce(tensor, group=None):
    buffer = tensor.contiguous()
    dist.all_reduce(buffer, group=group)
    tensor.copy_(buffer)


# %% wrong: the real group behind the recorder
# says: cannot come about with fewer than
def ring_all_reduce(tensor, group=None):
    buffer = tensor.contiguous()
    (group or dist.group.WORLD).inner.allreduce([buffer]).wait()
    tensor.copy_(buffer)


# %% wrong: ours imported
# says: write your own
def ring_all_reduce(tensor, group=None):
    from course_lib.collectives import ring_all_reduce as solved

    solved(tensor, group)


# %% wrong: ours by reference
# says: write your own
from course_lib.collectives import ring_all_reduce


# %% wrong: a second process group hides the traffic
# says: process group of your own
def ring_all_reduce(tensor, group=None):
    hidden = dist.new_group(dist.get_process_group_ranks(group or dist.group.WORLD))
    buffer = tensor.contiguous()
    dist.all_reduce(buffer, group=hidden)
    tensor.copy_(buffer)


# %% wrong: chunks of equal length only
# says: remainder of 10 / 4: your chunks cover 8 elements
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.contiguous().reshape(-1).clone()
    size = len(flat) // n
    chunks = [flat[k * size : (k + 1) * size] for k in range(n)]
    for k in range(2 * (n - 1)):
        if size == 0:
            break
        second = k >= n - 1
        sent, got = chunks[(rank - k + second * n) % n], chunks[(rank - k - 1 + second * n) % n]
        received = torch.empty_like(got)
        handle = dist.isend(sent, group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        handle.wait()
        if second:
            got.copy_(received)
        else:
            got.add_(received)
    tensor.copy_(flat.view(tensor.shape))


# %% wrong: the second phase starts from the chunk that it began with
# says: the chunk that each rank began with
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.contiguous().reshape(-1).clone()
    chunks = flat.tensor_split(n)
    for phase in range(2):
        for k in range(n - 1):
            sent, got = chunks[(rank - k) % n], chunks[(rank - k - 1) % n]
            received = torch.empty_like(got)
            messages = []
            if sent.numel():
                messages.append(dist.isend(sent, group=group, group_dst=(rank + 1) % n))
            if got.numel():
                messages.append(dist.irecv(received, group=group, group_src=(rank - 1) % n))
            for handle in messages:
                handle.wait()
            if phase == 0:
                got.add_(received)
            else:
                got.copy_(received)
    tensor.copy_(flat.view(tensor.shape))


# %% wrong: the second phase is missing
# says: The second sends the complete chunks round
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.contiguous().reshape(-1).clone()
    chunks = flat.tensor_split(n)
    for k in range(n - 1):
        sent, got = chunks[(rank - k) % n], chunks[(rank - k - 1) % n]
        received = torch.empty_like(got)
        messages = []
        if sent.numel():
            messages.append(dist.isend(sent, group=group, group_dst=(rank + 1) % n))
        if got.numel():
            messages.append(dist.irecv(received, group=group, group_src=(rank - 1) % n))
        for handle in messages:
            handle.wait()
        got.add_(received)
    tensor.copy_(flat.view(tensor.shape))


# %% wrong: the second phase adds
# says: copied, not added
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.contiguous().reshape(-1).clone()
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
        got.add_(received)
    tensor.copy_(flat.view(tensor.shape))


# %% wrong: a mean
# says: An all-reduce sums
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.contiguous().reshape(-1).clone()
    chunks = flat.tensor_split(n)
    for k in range(2 * (n - 1)):
        second = k >= n - 1
        sent, got = chunks[(rank - k) % n], chunks[(rank - k - 1) % n]
        received = torch.empty_like(got)
        messages = []
        if sent.numel():
            messages.append(dist.isend(sent, group=group, group_dst=(rank + 1) % n))
        if got.numel():
            messages.append(dist.irecv(received, group=group, group_src=(rank - 1) % n))
        for handle in messages:
            handle.wait()
        got.copy_(received) if second else got.add_(received)
    tensor.copy_(flat.view(tensor.shape) / n)


# %% wrong: receives first
# says: post both together
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.contiguous().reshape(-1).clone()
    chunks = flat.tensor_split(n)
    for k in range(2 * (n - 1)):
        sent, got = chunks[(rank - k) % n], chunks[(rank - k - 1) % n]
        received = torch.empty_like(got)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        dist.send(sent, group=group, group_dst=(rank + 1) % n)
        got.copy_(received) if k >= n - 1 else got.add_(received)
    tensor.copy_(flat.view(tensor.shape))


# %% wrong: element by element
# says: more messages are more latencies
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.contiguous().reshape(-1).clone()
    chunks = flat.tensor_split(n)
    for k in range(2 * (n - 1)):
        sent, got = chunks[(rank - k) % n], chunks[(rank - k - 1) % n]
        for i in range(max(len(sent), len(got))):
            received = torch.empty(1, dtype=flat.dtype)
            messages = []
            if i < len(sent):
                messages.append(
                    dist.isend(sent[i : i + 1].clone(), group=group, group_dst=(rank + 1) % n)
                )
            if i < len(got):
                messages.append(dist.irecv(received, group=group, group_src=(rank - 1) % n))
            for handle in messages:
                handle.wait()
            if i < len(got):
                got[i : i + 1] = received if k >= n - 1 else got[i : i + 1] + received
    tensor.copy_(flat.view(tensor.shape))


# %% wrong: works on a copy of a strided tensor
# says: write it back
def ring_all_reduce(tensor, group=None):
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


# %% wrong: each rank adds in an order of its own
# says: different bits
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    total, passed = tensor.contiguous().clone(), tensor.contiguous().clone()
    for _ in range(n - 1):
        received = torch.empty_like(passed)
        handle = dist.isend(passed, group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        handle.wait()
        total, passed = total + received, received
    tensor.copy_(total)


# %% wrong: added before it has arrived
# says: wait\(\)
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.contiguous().reshape(-1).clone()
    chunks = flat.tensor_split(n)
    for k in range(2 * (n - 1)):
        sent, got = chunks[(rank - k) % n], chunks[(rank - k - 1) % n]
        received = torch.zeros_like(got)
        messages = []
        if sent.numel():
            messages.append(dist.isend(sent.clone(), group=group, group_dst=(rank + 1) % n))
        if got.numel():
            messages.append(dist.irecv(received, group=group, group_src=(rank - 1) % n))
        got.copy_(received) if k >= n - 1 else got.add_(received)
        for handle in messages:
            handle.wait()
    tensor.copy_(flat.view(tensor.shape))


# %% wrong: ranks of the world in a group
# says: count ranks within it
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(), dist.get_world_size()
    flat = tensor.contiguous().reshape(-1).clone()
    chunks = flat.tensor_split(n)
    for k in range(2 * (n - 1)):
        sent, got = chunks[(rank - k) % n], chunks[(rank - k - 1) % n]
        received = torch.empty_like(got)
        messages = []
        if sent.numel():
            messages.append(dist.isend(sent, (rank + 1) % n))
        if got.numel():
            messages.append(dist.irecv(received, (rank - 1) % n))
        for handle in messages:
            handle.wait()
        got.copy_(received) if k >= n - 1 else got.add_(received)
    tensor.copy_(flat.view(tensor.shape))


# %% wrong: buffers of the first chunk's length
# says: ends of a message differ|must match|Chunks differ in length
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.contiguous().reshape(-1).clone()
    chunks = flat.tensor_split(n)
    for k in range(2 * (n - 1)):
        sent, got = chunks[(rank - k) % n], chunks[(rank - k - 1) % n]
        received = torch.empty_like(chunks[0])
        handle = dist.isend(sent, group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        handle.wait()
        got.copy_(received) if k >= n - 1 else got.add_(received)
    tensor.copy_(flat.view(tensor.shape))


# %% right: padded to a multiple, indices the other way round
def ring_all_reduce(tensor, group=None):
    world = group or dist.group.WORLD
    rank, n = dist.get_rank(world), dist.get_world_size(world)
    if n == 1 or tensor.numel() == 0:
        return
    size = -(-tensor.numel() // n)
    padded = torch.zeros(n * size, dtype=tensor.dtype)
    padded[: tensor.numel()] = tensor.reshape(-1)
    chunks = padded.view(n, size)
    left = dist.get_global_rank(world, (rank - 1) % n)
    right = dist.get_global_rank(world, (rank + 1) % n)
    scratch = torch.empty(size, dtype=tensor.dtype)
    for k in range(2 * n - 2):  # to the left this time
        got = chunks[(rank + k + 1) % n]
        into = scratch if k < n - 1 else got
        messages = [
            dist.P2POp(dist.isend, chunks[(rank + k) % n], left, group),
            dist.P2POp(dist.irecv, into, right, group),
        ]
        for handle in dist.batch_isend_irecv(messages):
            handle.wait()
        if k < n - 1:
            got += scratch
    tensor.copy_(padded[: tensor.numel()].view(tensor.shape))


# %% right: a reduce-scatter and an all-gather by two helpers
# on NCCL: so this run can hang there
def pass_on(sent, shape_of, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    received = torch.empty_like(shape_of)
    receiving = (
        dist.irecv(received, group=group, group_src=(rank - 1) % n) if len(received) else None
    )
    if len(sent):
        dist.send(sent, group=group, group_dst=(rank + 1) % n)
    if receiving is not None:
        receiving.wait()
    return received


def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = [chunk.clone() for chunk in tensor.flatten().tensor_split(n)]
    for k in range(1, n):
        place = (rank - k) % n
        chunks[place] = chunks[place] + pass_on(chunks[(place + 1) % n], chunks[place], group)
    for k in range(n - 1):
        place = (rank - k) % n
        chunks[place] = pass_on(chunks[(place + 1) % n], chunks[place], group)
    tensor.copy_(torch.cat(chunks).view_as(tensor))
