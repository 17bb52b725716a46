# %% wrong: the whole tensor round the ring
# is: idea
# says: never the whole tensor\. Without that, at most half
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
# is: idea
# says: never the whole tensor\. Without that, at most half
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
# is: idea
# says: dist.all_reduce was called
def ring_all_reduce(tensor, group=None):
    buffer = tensor.contiguous()
    dist.all_reduce(buffer, group=group)
    tensor.copy_(buffer)


# %% wrong: the real group behind the recorder
# is: idea
# says: bytes in messages; the result needs at least
def ring_all_reduce(tensor, group=None):
    buffer = tensor.contiguous()
    (group or dist.group.WORLD)._get_backend(torch.device("cpu")).allreduce([buffer]).wait()
    tensor.copy_(buffer)


# %% wrong: ours imported
# is: form
# says: write your own
def ring_all_reduce(tensor, group=None):
    from course_lib.collectives import ring_all_reduce as solved

    solved(tensor, group)


# %% wrong: ours by reference
# is: form
# says: write your own
from course_lib.collectives import ring_all_reduce


# %% wrong: a second process group hides the traffic
# is: form
# says: process group of your own
def ring_all_reduce(tensor, group=None):
    hidden = dist.new_group(dist.get_process_group_ranks(group or dist.group.WORLD))
    buffer = tensor.contiguous()
    dist.all_reduce(buffer, group=hidden)
    tensor.copy_(buffer)


# %% wrong: chunks of equal length only
# is: slip
# says: remainder of 10 / 4, because your chunks cover 8 elements
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
# is: slip
# says: the chunk each rank began with
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
# is: slip
# says: The second sends the complete chunks around
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
# is: slip
# says: copy the complete chunks, not add them
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
# is: slip
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
# is: form
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
# is: slip
# says: every message costs another latency
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
# is: slip
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
# is: slip
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
# is: slip
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
# is: slip
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
# is: slip
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
    padded = tensor.new_zeros(n * size)
    padded[: tensor.numel()] = tensor.reshape(-1)
    chunks = padded.view(n, size)
    left = dist.get_global_rank(world, (rank - 1) % n)
    right = dist.get_global_rank(world, (rank + 1) % n)
    scratch = tensor.new_empty(size)
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


# %% wrong: the ring turns to the left, with the indices of one to the right
# is: slip
# says: sent to its left neighbour
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.contiguous().view(-1)
    parts = flat.tensor_split(n)

    def turn(k_out, k_in):
        out, into = parts[k_out % n].clone(), torch.empty_like(parts[k_in % n])
        messages = []
        if out.numel():
            messages.append(dist.P2POp(dist.isend, out, group=group, group_peer=(rank - 1) % n))
        if into.numel():
            messages.append(dist.P2POp(dist.irecv, into, group=group, group_peer=(rank + 1) % n))
        for work in dist.batch_isend_irecv(messages) if messages else ():
            work.wait()
        return into

    for k in range(n - 1):
        parts[(rank - k - 1) % n].add_(turn(rank - k, rank - k - 1))
    for k in range(n - 1):
        parts[(rank - k) % n].copy_(turn(rank - k + 1, rank - k))
    tensor.copy_(flat.view_as(tensor))


# %% wrong: the second phase begins with the chunk before the complete one
# is: slip
# says: Which chunk did rank r finish
def ring_all_reduce(tensor, group=None):
    n = dist.get_world_size(group)
    me = dist.get_rank(group)
    whole = tensor.flatten()
    pieces = list(whole.tensor_split(n))
    for phase, first in (("add", 0), ("copy", 2)):
        for k in range(n - 1):
            leaves, lands = pieces[(me + first - k) % n], pieces[(me + first - k - 1) % n]
            buffer = torch.empty_like(lands)
            ops = [
                dist.P2POp(kind, t, group=group, group_peer=(me + side) % n)
                for kind, t, side in ((dist.isend, leaves.clone(), 1), (dist.irecv, buffer, -1))
                if t.numel()
            ]
            if ops:
                for one in dist.batch_isend_irecv(ops):
                    one.wait()
            if phase == "add":
                lands += buffer
            else:
                lands.copy_(buffer)
    tensor.copy_(whole.view_as(tensor))


# %% wrong: chunk cuts into fewer pieces than there are ranks
# is: slip
# says: torch\.chunk can return fewer
def ring_all_reduce(tensor, group=None):
    n, r = dist.get_world_size(group), dist.get_rank(group)
    work = tensor.clone().contiguous().view(-1)
    slices = work.chunk(n)
    right, left = (r + 1) % n, (r - 1) % n
    for k in range(2 * n - 2):
        shift = k if k < n - 1 else k - n
        sent = slices[(r - shift) % n]
        got = torch.empty_like(slices[(r - shift - 1) % n])
        for h in dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, sent, group=group, group_peer=right),
                dist.P2POp(dist.irecv, got, group=group, group_peer=left),
            ]
        ):
            h.wait()
        target = slices[(r - shift - 1) % n]
        target.copy_(got if k >= n - 1 else target + got)
    tensor.copy_(work.view(tensor.shape))


# %% right: half of each chunk to the left, half to the right
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.reshape(-1).clone()
    middle = (flat.numel() + 1) // 2
    ways = [(flat[:middle].tensor_split(n), 1), (flat[middle:].tensor_split(n), -1)]
    for k in range(2 * (n - 1)):
        adding = k < n - 1
        messages, landing = [], []
        for parts, way in ways:
            # counted from the rank on, against the direction of travel
            ahead = k if adding else k - n
            out, place = parts[(way * (rank * way - ahead)) % n], (rank * way - ahead - 1) * way % n
            into = torch.empty_like(parts[place])
            landing.append((parts[place], into))
            if out.numel():
                messages.append(
                    dist.P2POp(dist.isend, out.clone(), group=group, group_peer=(rank + way) % n)
                )
            if into.numel():
                messages.append(
                    dist.P2POp(dist.irecv, into, group=group, group_peer=(rank - way) % n)
                )
        for work in dist.batch_isend_irecv(messages) if messages else []:
            work.wait()
        for place, came in landing:
            place.copy_(place + came if adding else came)
    tensor.copy_(flat.view_as(tensor))


# %% wrong: one round too many in the first phase
# is: slip
# says: Every rank sent 2N - 1 messages, although two phases
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.contiguous().view(-1)
    chunks = flat.tensor_split(n)
    for k in range(2 * n - 1):
        last = k % n
        sent, changed = chunks[(rank - last) % n], chunks[(rank - last - 1) % n]
        received = torch.empty_like(changed)
        messages = []
        if sent.numel():
            messages.append(dist.P2POp(dist.isend, sent, group=group, group_peer=(rank + 1) % n))
        if changed.numel():
            messages.append(dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % n))
        for handle in dist.batch_isend_irecv(messages) if messages else ():
            handle.wait()
        changed.copy_(received) if k >= n else changed.add_(received)
    tensor.copy_(flat.view_as(tensor))


# %% wrong: what arrives in the first phase is never added
# is: slip
# says: It also happens if the first phase never adds what arrives
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.contiguous().view(-1)
    chunks = flat.tensor_split(n)
    for k in range(2 * (n - 1)):
        sent, changed = chunks[(rank - k) % n], chunks[(rank - k - 1) % n]
        messages = []
        if sent.numel():
            messages.append(dist.P2POp(dist.isend, sent, group=group, group_peer=(rank + 1) % n))
        if changed.numel():
            messages.append(dist.P2POp(dist.irecv, changed, group=group, group_peer=(rank - 1) % n))
        for handle in dist.batch_isend_irecv(messages) if messages else ():
            handle.wait()
    tensor.copy_(flat.view_as(tensor))


# %% wrong: a buffer of the default dtype
# is: detail
# says: Give a buffer the dtype of the tensor that is sent
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.contiguous().view(-1)
    chunks = flat.tensor_split(n)
    for k in range(2 * (n - 1)):
        sent, changed = chunks[(rank - k) % n], chunks[(rank - k - 1) % n]
        received = torch.empty(changed.shape, device=tensor.device)
        messages = []
        if sent.numel():
            messages.append(dist.P2POp(dist.isend, sent, group=group, group_peer=(rank + 1) % n))
        if changed.numel():
            messages.append(dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % n))
        for handle in dist.batch_isend_irecv(messages) if messages else ():
            handle.wait()
        changed.copy_(received) if k >= n - 1 else changed.add_(received)
    tensor.copy_(flat.view_as(tensor))
