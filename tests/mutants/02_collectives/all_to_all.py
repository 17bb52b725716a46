# %% wrong: the own chunk is not copied
# is: slip
# says: A rank copies its own chunk
def all_to_all(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    outgoing, incoming = [c.contiguous() for c in input.chunk(n)], output.chunk(n)
    for k in range(1, n):
        handle = dist.isend(outgoing[(rank + k) % n], group=group, group_dst=(rank + k) % n)
        dist.recv(incoming[(rank - k) % n], group=group, group_src=(rank - k) % n)
        handle.wait()


# %% wrong: a single rank returns at once
# is: detail
# says: even a single rank copies its own part
def all_to_all(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return
    outgoing, incoming = [c.contiguous() for c in input.chunk(n)], output.chunk(n)
    incoming[rank].copy_(outgoing[rank])
    for k in range(1, n):
        handle = dist.isend(outgoing[(rank + k) % n], group=group, group_dst=(rank + k) % n)
        dist.recv(incoming[(rank - k) % n], group=group, group_src=(rank - k) % n)
        handle.wait()


# %% wrong: chunk r to everybody
# is: slip
# says: Chunk d of the input goes to rank d
def all_to_all(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    outgoing, incoming = [c.contiguous() for c in input.chunk(n)], output.chunk(n)
    incoming[rank].copy_(outgoing[rank])
    for k in range(1, n):
        handle = dist.isend(outgoing[rank], group=group, group_dst=(rank + k) % n)
        dist.recv(incoming[(rank - k) % n], group=group, group_src=(rank - k) % n)
        handle.wait()


# %% wrong: chunks in the order of arrival
# is: slip
# says: belongs at index s
def all_to_all(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    outgoing, incoming = [c.contiguous() for c in input.chunk(n)], output.chunk(n)
    incoming[0].copy_(outgoing[rank])
    for k in range(1, n):
        handle = dist.isend(outgoing[(rank + k) % n], group=group, group_dst=(rank + k) % n)
        dist.recv(incoming[k], group=group, group_src=(rank - k) % n)
        handle.wait()


# %% wrong: pairs by exclusive or
# is: slip
# says: only for powers of two|unless N is a power of two
def all_to_all(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    outgoing, incoming = [c.contiguous() for c in input.chunk(n)], output.chunk(n)
    incoming[rank].copy_(outgoing[rank])
    for k in range(1, n):
        peer = rank ^ k
        handle = dist.isend(outgoing[peer % n], group=group, group_dst=peer)
        dist.recv(incoming[peer % n], group=group, group_src=peer)
        handle.wait()


# %% wrong: the whole input to everybody
# is: idea
# says: not the whole input\. Without that, at most half
def all_to_all(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    whole, incoming = input.contiguous(), output.chunk(n)
    incoming[rank].copy_(whole.chunk(n)[rank])
    for k in range(1, n):
        received = torch.empty_like(whole)
        handle = dist.isend(whole, group=group, group_dst=(rank + k) % n)
        dist.recv(received, group=group, group_src=(rank - k) % n)
        handle.wait()
        incoming[(rank - k) % n].copy_(received.chunk(n)[rank])


# %% wrong: receives first
# is: form
# says: Post send and receive together
def all_to_all(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    outgoing, incoming = [c.contiguous() for c in input.chunk(n)], output.chunk(n)
    incoming[rank].copy_(outgoing[rank])
    for k in range(1, n):
        dist.recv(incoming[(rank - k) % n], group=group, group_src=(rank - k) % n)
        dist.send(outgoing[(rank + k) % n], group=group, group_dst=(rank + k) % n)


# %% wrong: the built-in
# is: idea
# says: dist.all_to_all was called
def all_to_all(output, input, group=None):
    dist.all_to_all_single(output, input.contiguous(), group=group)


# %% wrong: sent to itself as well
# is: form
# says: cannot send to itself|none to itself
def all_to_all(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    outgoing, incoming = [c.contiguous() for c in input.chunk(n)], output.chunk(n)
    for k in range(n):
        handle = dist.isend(outgoing[(rank + k) % n], group=group, group_dst=(rank + k) % n)
        dist.recv(incoming[(rank - k) % n], group=group, group_src=(rank - k) % n)
        handle.wait()


# %% wrong: elements dealt out one by one
# is: slip
# says: Chunk d of the input goes to rank d
def all_to_all(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    outgoing, incoming = [input[d::n].contiguous() for d in range(n)], output.chunk(n)
    incoming[rank].copy_(outgoing[rank])
    for k in range(1, n):
        handle = dist.isend(outgoing[(rank + k) % n], group=group, group_dst=(rank + k) % n)
        dist.recv(incoming[(rank - k) % n], group=group, group_src=(rank - k) % n)
        handle.wait()


# %% right: everything posted at once
def all_to_all(output, input, group=None):
    world = group or dist.group.WORLD
    rank, ranks = dist.get_rank(world), dist.get_process_group_ranks(world)
    outgoing, incoming = input.contiguous().chunk(len(ranks)), output.chunk(len(ranks))
    messages = []
    for place, peer in enumerate(ranks):
        if place == rank or not input.numel():
            continue
        messages.append(dist.P2POp(dist.isend, outgoing[place], peer, group))
        messages.append(dist.P2POp(dist.irecv, incoming[place], peer, group))
    for handle in dist.batch_isend_irecv(messages) if messages else []:
        handle.wait()
    if input.numel():
        incoming[rank].copy_(outgoing[rank])


# %% right: the lower rank of a pair sends first
def all_to_all(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    width = len(input) // n
    output[rank * width : (rank + 1) * width] = input[rank * width : (rank + 1) * width]
    for total in range(2 * n - 1):  # in round `total` the ranks a and total - a meet
        peer = total - rank
        if peer == rank or not 0 <= peer < n:
            continue
        mine = input[peer * width : (peer + 1) * width].contiguous()
        theirs = torch.empty_like(mine)
        if rank < peer:
            dist.send(mine, group=group, group_dst=peer)
            dist.recv(theirs, group=group, group_src=peer)
        else:
            dist.recv(theirs, group=group, group_src=peer)
            dist.send(mine, group=group, group_dst=peer)
        output[peer * width : (peer + 1) * width] = theirs


# %% wrong: a view of the input, which need not be contiguous
# is: detail
# says: might not be contiguous
def all_to_all(output, input, group=None):
    n, me = dist.get_world_size(group), dist.get_rank(group)
    leaving = input.view(n, -1)
    landing = output.view(n, -1)
    landing[me] = leaving[me]
    for shift in range(1, n):
        to, source = (me + shift) % n, (me - shift) % n
        for work in dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, leaving[to], group=group, group_peer=to),
                dist.P2POp(dist.irecv, landing[source], group=group, group_peer=source),
            ]
        ):
            work.wait()


# %% wrong: buffers of the default dtype
# is: detail
# says: Give a buffer the dtype of the tensor that is sent
def all_to_all(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    outgoing = [chunk.contiguous() for chunk in input.chunk(n)]
    chunks = {rank: outgoing[rank]}
    for k in range(1, n):
        chunks[(rank - k) % n] = torch.zeros(outgoing[0].shape, device=input.device)
        handle = dist.isend(outgoing[(rank + k) % n], group=group, group_dst=(rank + k) % n)
        dist.recv(chunks[(rank - k) % n], group=group, group_src=(rank - k) % n)
        handle.wait()
    output.copy_(torch.cat([chunks[r] for r in range(n)]))


# %% wrong: receives from the rank that it sends to
# is: form
# says: Both ends of a message must name each other
def all_to_all(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    outgoing, incoming = [c.contiguous() for c in input.chunk(n)], output.chunk(n)
    incoming[rank].copy_(outgoing[rank])
    for k in range(1, n):
        peer = (rank + k) % n
        there = dist.P2POp(dist.isend, outgoing[peer], group=group, group_peer=peer)
        here = dist.P2POp(dist.irecv, incoming[peer], group=group, group_peer=peer)
        for handle in dist.batch_isend_irecv([there, here]):
            handle.wait()


# %% wrong: rank r + k without the modulus
# is: form
# says: Ranks and chunks end at N - 1, so count mod N
def all_to_all(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    outgoing, incoming = [c.contiguous() for c in input.chunk(n)], output.chunk(n)
    incoming[rank].copy_(outgoing[rank])
    for k in range(1, n):
        handle = dist.isend(outgoing[rank + k], group=group, group_dst=rank + k)
        dist.recv(incoming[rank - k], group=group, group_src=rank - k)
        handle.wait()


# %% wrong: added to what the output held
# is: slip
# says: write into it instead of adding to it
def all_to_all(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    outgoing, incoming = [c.contiguous() for c in input.chunk(n)], output.chunk(n)
    incoming[rank].add_(outgoing[rank])
    for k in range(1, n):
        received = torch.empty_like(outgoing[0])
        handle = dist.isend(outgoing[(rank + k) % n], group=group, group_dst=(rank + k) % n)
        dist.recv(received, group=group, group_src=(rank - k) % n)
        handle.wait()
        incoming[(rank - k) % n].add_(received)
