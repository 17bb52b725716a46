# %% wrong: the tail is lost
# is: slip
# says: The size was rounded down
def flatten_and_shard(params, n):
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    size = flat.numel() // n
    return [flat[k * size : (k + 1) * size] for k in range(n)]


# %% wrong: shards of unequal size
# is: slip
# says: A collective needs equal shards
def flatten_and_shard(params, n):
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    return list(flat.tensor_split(n))


# %% wrong: whole parameters in turn
# is: idea
# says: Whole tensors were dealt out
def flatten_and_shard(params, n):
    empty = params[0].detach().new_zeros(0)
    return [torch.cat([empty, *(p.detach().reshape(-1) for p in params[k::n])]) for k in range(n)]


# %% wrong: every parameter is filled up by itself
# is: idea
# says: Each tensor was filled up separately
def flatten_and_shard(params, n):
    pieces = [[] for _ in range(n)]
    for p in params:
        flat = p.detach().reshape(-1)
        flat = torch.cat([flat, flat.new_zeros(-flat.numel() % n)])
        for k, piece in enumerate(flat.chunk(n)):
            pieces[k].append(piece)
    return [torch.cat(piece) for piece in pieces]


# %% wrong: the padding is whatever was there
# is: slip
# says: Fill the last shard
def flatten_and_shard(params, n):
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    whole = flat.new_full((-(-flat.numel() // n) * n,), 7)  # as torch.empty might
    whole[: flat.numel()] = flat
    return list(whole.chunk(n))


# %% wrong: zeros in front
# is: slip
# says: The zeros are in front
def flatten_and_shard(params, n):
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    return list(torch.cat([flat.new_zeros(-flat.numel() % n), flat]).chunk(n))


# %% wrong: every n-th element
# is: idea
# says: Every n-th element
def flatten_and_shard(params, n):
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    flat = torch.cat([flat, flat.new_zeros(-flat.numel() % n)])
    return [flat[k::n] for k in range(n)]


# %% wrong: in the order of the memory
# is: detail
# says: not as in its memory
def flatten_and_shard(params, n):
    flat = torch.cat([p.detach().as_strided((p.numel(),), (1,)) for p in params])
    flat = torch.cat([flat, flat.new_zeros(-flat.numel() % n)])
    return list(flat.chunk(n))


# %% wrong: always float32
# is: detail
# says: have another dtype|shards are torch.float32
def flatten_and_shard(params, n):
    total = sum(p.numel() for p in params)
    flat = torch.zeros(-(-total // n) * n)
    flat[:total] = torch.cat([p.detach().reshape(-1) for p in params])
    return list(flat.chunk(n))


# %% wrong: n more zeros when n divides
# is: detail
# says: There are more zeros than needed
def flatten_and_shard(params, n):
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    flat = torch.cat([flat, flat.new_zeros(n - flat.numel() % n)])
    return list(flat.chunk(n))


# %% wrong: nothing returned
# is: form
# says: Is there a `return`
def flatten_and_shard(params, n):
    torch.cat([p.detach().reshape(-1) for p in params])


# %% wrong: the shards remember where they come from
# is: detail
# says: have a gradient history
def flatten_and_shard(params, n):
    flat = torch.cat([p.reshape(-1) for p in params])
    return list(torch.nn.functional.pad(flat, (0, -flat.numel() % n)).chunk(n))


# %% wrong: rows of a matrix
# is: slip
# says: the shards are not flat
def flatten_and_shard(params, n):
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    whole = torch.nn.functional.pad(flat, (0, -flat.numel() % n))
    return list(whole.view(n, -1).chunk(n))


# %% wrong: each parameter cut by itself
# is: idea
# says: Each tensor was cut separately
def flatten_and_shard(params, n):
    rows = [p.detach().reshape(-1) for p in params]
    tables = [torch.nn.functional.pad(row, (0, -len(row) % n)).view(n, -1) for row in rows]
    return list(torch.cat(tables, dim=1))


# %% wrong: the parameters are detached in place
# is: detail
# says: no longer require a gradient
def flatten_and_shard(params, n):
    flat = torch.cat([p.detach_().reshape(-1) for p in params])
    return list(torch.nn.functional.pad(flat, (0, -flat.numel() % n)).chunk(n))


# %% wrong: split into shards of n elements
# is: slip
# says: split\(\) takes the size of a shard
def flatten_and_shard(params, n):
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    return list(torch.nn.functional.pad(flat, (0, -flat.numel() % n)).split(n))


# %% wrong: a matrix whose rows are the shards
# is: form
# says: One matrix came back
def flatten_and_shard(params, n):
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    return torch.nn.functional.pad(flat, (0, -flat.numel() % n)).view(n, -1)


# %% right: pad, then chunk
def flatten_and_shard(params, n):
    flat = torch.cat([p.reshape(-1) for p in params]).detach()
    return list(torch.nn.functional.pad(flat, (0, -flat.numel() % n)).chunk(n))


# %% right: shard by shard
def flatten_and_shard(params, n):
    with torch.no_grad():
        row = torch.cat([p.flatten() for p in params])
    size = -(-len(row) // n)
    shards = []
    for k in range(n):
        shard = row.new_zeros(size)
        own = row[k * size : (k + 1) * size]
        shard[: len(own)] = own
        shards.append(shard)
    return shards
