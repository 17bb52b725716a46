# %% wrong: in succession
# is: idea
# says: one contiguous part
def zigzag(seq, n):
    ends = [seq * r // n for r in range(n + 1)]
    return [[range(ends[r], ends[r + 1])] for r in range(n)]


# %% wrong: striped
# is: idea
# says: has every n-th token
def zigzag(seq, n):
    return [[range(first, seq, n)] for first in range(n)]


# %% wrong: neighbours are paired
# is: idea
# says: one contiguous part|part is contiguous again
def zigzag(seq, n):
    parts = torch.arange(seq).tensor_split(2 * n)
    spans = [range(int(p[0]), int(p[-1]) + 1) for p in parts if len(p)]
    return [spans[2 * r : 2 * r + 2] for r in range(n)]


# %% wrong: the second from the middle
# is: slip
# says: The second must come from the end
def zigzag(seq, n):
    small, longer = divmod(seq, 2 * n)
    starts = [i * small + min(i, longer) for i in range(2 * n + 1)]
    layout = []
    for rank in range(n):
        layout.append([range(starts[i], starts[i + 1]) for i in (rank, rank + n)])
    return layout


# %% wrong: n chunks
# is: slip
# says: You cut only n chunks
def zigzag(seq, n):
    step = seq // n
    one = lambda i: range(i * step, i * step + step)
    return [[one(i), one(n - 1 - i)] for i in range(n)]


# %% wrong: off by one at the end
# is: slip
# says: on no rank|not exist
def zigzag(seq, n):
    c = seq // (2 * n)
    return [
        [range(r * c, r * c + c), range((2 * n - r) * c, (2 * n - r + 1) * c)] for r in range(n)
    ]


# %% wrong: the rest is dropped
# is: detail
# says: Tokens at the end are on no rank
def zigzag(seq, n):
    width = seq // 2 // n
    chunks = (
        [range(k, k + width) for k in range(0, 2 * n * width, width)]
        if width
        else [range(0)] * 2 * n
    )
    return [[a, b] for a, b in zip(chunks[:n], reversed(chunks[n:]))]


# %% wrong: the rest on the last chunk
# is: detail
# says: last chunk has all remaining tokens
def zigzag(seq, n):
    size = seq // (2 * n)
    borders = [*range(0, 2 * n * size, size), seq] if size else [0] * (2 * n) + [seq]
    found = {}
    for number in range(2 * n):
        owner = min(number, 2 * n - 1 - number)
        found.setdefault(owner, []).append(range(borders[number], borders[number + 1]))
    return [found[owner] for owner in sorted(found)]


# %% wrong: rounded up
# is: detail
# says: rounded up, so the last chunks are short
def zigzag(seq, n):
    size = math.ceil(seq / (2 * n))
    everything = range(seq)
    pieces = [everything[i * size : (i + 1) * size] for i in range(2 * n)]
    layout = []
    while pieces:
        layout.append([piece for piece in (pieces.pop(0), pieces.pop()) if piece])
    return layout


# %% wrong: chunks without tokens are kept
# is: detail
# says: some ranges have no tokens
def zigzag(seq, n):
    count = 2 * n
    sizes = [seq // count + int(i < seq % count) for i in range(count)]
    begin = [sum(sizes[:i]) for i in range(count)]
    return [
        [range(begin[r], begin[r] + sizes[r]), range(begin[-1 - r], begin[-1 - r] + sizes[-1 - r])]
        for r in range(n)
    ]


# %% wrong: this rank's tokens alone
# is: form
# says: a list of ranges of positions for each rank
def zigzag(seq, n):
    half = seq // (2 * n)
    return [range(0, half), range(seq - half, seq)]


# %% right: by tensor_split
def zigzag(seq, n):
    chunks = torch.arange(seq).tensor_split(2 * n)
    layout = []
    for r in range(n):
        mine = (chunks[r], chunks[2 * n - 1 - r])
        layout.append([range(int(c[0]), int(c[0]) + len(c)) for c in mine if len(c)])
    return layout


# %% right: the later chunk first, neighbours joined
def zigzag(seq, n):
    short, extra = divmod(seq, 2 * n)

    def start(chunk):
        return chunk * short + min(chunk, extra)

    def spans(rank):
        last = 2 * n - 1 - rank
        if rank == n - 1:
            return [range(start(rank), start(last + 1))]
        return [range(start(last), start(last + 1)), range(start(rank), start(rank + 1))]

    return [[one for one in spans(rank) if len(one) > 0] for rank in range(n)]
