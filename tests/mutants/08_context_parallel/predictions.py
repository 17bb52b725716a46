# %% wrong: sends in the last step
# says: Nothing is sent in the last of N steps
def ring_bytes_sent(n, kv_bytes, direction):
    if n == 1:
        return 0
    if direction == "forward":
        return n * kv_bytes
    return (n - 1) * kv_bytes + 2 * n * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
    return here * (n - 1) / n


def causal_idle_share(rank, n):
    return (n - 1 - rank) / (n - 0.5)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    block = flops_per_second / bytes_per_second * kv_width / width
    return 2 * block if causal else block


# %% wrong: gradients stay
# says: gradients of keys and values travel as well
def ring_bytes_sent(n, kv_bytes, direction):
    return (n - 1) * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
    return here * (n - 1) / n


def causal_idle_share(rank, n):
    return (n - 1 - rank) / (n - 0.5)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    block = flops_per_second / bytes_per_second * kv_width / width
    return 2 * block if causal else block


# %% wrong: gradients in 16 bits
# says: Gradients travel in float32
def ring_bytes_sent(n, kv_bytes, direction):
    transfers = n - 1 + (n if direction == "backward" and n > 1 else 0)
    return transfers * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
    return here * (n - 1) / n


def causal_idle_share(rank, n):
    return (n - 1 - rank) / (n - 0.5)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    block = flops_per_second / bytes_per_second * kv_width / width
    return 2 * block if causal else block


# %% wrong: gradients one short of home
# says: one rank short of home
def ring_bytes_sent(n, kv_bytes, direction):
    factor = {"forward": 1, "backward": 3}[direction]
    return factor * (n - 1) * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
    return here * (n - 1) / n


def causal_idle_share(rank, n):
    return (n - 1 - rank) / (n - 0.5)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    block = flops_per_second / bytes_per_second * kv_width / width
    return 2 * block if causal else block


# %% wrong: one rank sends
# says: One rank has nobody to send to
def ring_bytes_sent(n, kv_bytes, direction):
    return (n - 1) * kv_bytes + (2 * n * kv_bytes if direction == "backward" else 0)


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
    return here * (n - 1) / n


def causal_idle_share(rank, n):
    return (n - 1 - rank) / (n - 0.5)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    block = flops_per_second / bytes_per_second * kv_width / width
    return 2 * block if causal else block


# %% wrong: a collective's share
# says: a collective's share
def ring_bytes_sent(n, kv_bytes, direction):
    share = (n - 1) / n * kv_bytes
    return share if direction == "forward" or n == 1 else share + 2 * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
    return here * (n - 1) / n


def causal_idle_share(rank, n):
    return (n - 1 - rank) / (n - 0.5)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    block = flops_per_second / bytes_per_second * kv_width / width
    return 2 * block if causal else block


# %% wrong: the output is forgotten
# says: a fourth all-to-all
def ring_bytes_sent(n, kv_bytes, direction):
    if n == 1:
        return 0
    keys = (n - 1) * kv_bytes
    return keys if direction == "forward" else keys + n * 2 * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    return (n - 1) / n * tokens / n * (width + 2 * kv_width) * itemsize


def causal_idle_share(rank, n):
    return (n - 1 - rank) / (n - 0.5)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    block = flops_per_second / bytes_per_second * kv_width / width
    return 2 * block if causal else block


# %% wrong: all of the same width
# says: with fewer heads of keys
def ring_bytes_sent(n, kv_bytes, direction):
    if n == 1:
        return 0
    keys = (n - 1) * kv_bytes
    return keys if direction == "forward" else keys + n * 2 * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    return 4 * width * itemsize * tokens * (n - 1) / n**2


def causal_idle_share(rank, n):
    return (n - 1 - rank) / (n - 0.5)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    block = flops_per_second / bytes_per_second * kv_width / width
    return 2 * block if causal else block


# %% wrong: the own part is sent
# says: is not sent: \(N-1\)/N
def ring_bytes_sent(n, kv_bytes, direction):
    if n == 1:
        return 0
    keys = (n - 1) * kv_bytes
    return keys if direction == "forward" else keys + n * 2 * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    return tokens // n * 2 * (width + kv_width) * itemsize


def causal_idle_share(rank, n):
    return (n - 1 - rank) / (n - 0.5)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    block = flops_per_second / bytes_per_second * kv_width / width
    return 2 * block if causal else block


# %% wrong: the whole sequence
# says: Each rank holds tokens / N|what all ranks send
def ring_bytes_sent(n, kv_bytes, direction):
    if n == 1:
        return 0
    keys = (n - 1) * kv_bytes
    return keys if direction == "forward" else keys + n * 2 * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    return (n - 1) / n * tokens * 2 * (width + kv_width) * itemsize


def causal_idle_share(rank, n):
    return (n - 1 - rank) / (n - 0.5)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    block = flops_per_second / bytes_per_second * kv_width / width
    return 2 * block if causal else block


# %% wrong: whole steps
# says: diagonal alone, half a block
def ring_bytes_sent(n, kv_bytes, direction):
    if n == 1:
        return 0
    keys = (n - 1) * kv_bytes
    return keys if direction == "forward" else keys + n * 2 * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
    return here * (n - 1) / n


def causal_idle_share(rank, n):
    return (n - 1 - rank) / n


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    block = flops_per_second / bytes_per_second * kv_width / width
    return 2 * block if causal else block


# %% wrong: the other way round
# says: the wrong way round: the first rank
def ring_bytes_sent(n, kv_bytes, direction):
    if n == 1:
        return 0
    keys = (n - 1) * kv_bytes
    return keys if direction == "forward" else keys + n * 2 * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
    return here * (n - 1) / n


def causal_idle_share(rank, n):
    return 2 * rank / (2 * n - 1)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    block = flops_per_second / bytes_per_second * kv_width / width
    return 2 * block if causal else block


# %% wrong: the mean
# says: the mean of all ranks
def ring_bytes_sent(n, kv_bytes, direction):
    if n == 1:
        return 0
    keys = (n - 1) * kv_bytes
    return keys if direction == "forward" else keys + n * 2 * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
    return here * (n - 1) / n


def causal_idle_share(rank, n):
    return (n - 1) / (2 * n - 1)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    block = flops_per_second / bytes_per_second * kv_width / width
    return 2 * block if causal else block


# %% wrong: who works
# says: share in which it works
def ring_bytes_sent(n, kv_bytes, direction):
    if n == 1:
        return 0
    keys = (n - 1) * kv_bytes
    return keys if direction == "forward" else keys + n * 2 * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
    return here * (n - 1) / n


def causal_idle_share(rank, n):
    return (rank + 0.5) / (n - 0.5)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    block = flops_per_second / bytes_per_second * kv_width / width
    return 2 * block if causal else block


# %% wrong: causal is not looked at
# says: half of the scores are computed
def ring_bytes_sent(n, kv_bytes, direction):
    if n == 1:
        return 0
    keys = (n - 1) * kv_bytes
    return keys if direction == "forward" else keys + n * 2 * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
    return here * (n - 1) / n


def causal_idle_share(rank, n):
    return (n - 1 - rank) / (n - 0.5)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    return flops_per_second * kv_width / (bytes_per_second * width)


# %% wrong: causal needs fewer
# says: more tokens are needed, not fewer
def ring_bytes_sent(n, kv_bytes, direction):
    if n == 1:
        return 0
    keys = (n - 1) * kv_bytes
    return keys if direction == "forward" else keys + n * 2 * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
    return here * (n - 1) / n


def causal_idle_share(rank, n):
    return (n - 1 - rank) / (n - 0.5)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    ratio = flops_per_second / bytes_per_second
    return ratio * kv_width / width * (0.5 if causal else 1)


# %% wrong: widths are not looked at
# says: the block shrinks by their ratio
def ring_bytes_sent(n, kv_bytes, direction):
    if n == 1:
        return 0
    keys = (n - 1) * kv_bytes
    return keys if direction == "forward" else keys + n * 2 * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
    return here * (n - 1) / n


def causal_idle_share(rank, n):
    return (n - 1 - rank) / (n - 0.5)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    return (1 + causal) * flops_per_second / bytes_per_second


# %% wrong: the paper's sequence
# says: six blocks
def ring_bytes_sent(n, kv_bytes, direction):
    if n == 1:
        return 0
    keys = (n - 1) * kv_bytes
    return keys if direction == "forward" else keys + n * 2 * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
    return here * (n - 1) / n


def causal_idle_share(rank, n):
    return (n - 1 - rank) / (n - 0.5)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    return 6 * (1 + causal) * flops_per_second * kv_width / width / bytes_per_second


# %% right: from the closed forms
def ring_bytes_sent(n, kv_bytes, direction):
    if n == 1:
        return 0
    keys = (n - 1) * kv_bytes
    return keys if direction == "forward" else keys + n * 2 * kv_bytes


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    here = tokens / n * (2 * width + 2 * kv_width) * itemsize
    return here * (n - 1) / n


def causal_idle_share(rank, n):
    return (n - 1 - rank) / (n - 0.5)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    block = flops_per_second / bytes_per_second * kv_width / width
    return 2 * block if causal else block


# %% right: step by step
def ring_bytes_sent(n, kv_bytes, direction):
    sent = 0
    for step in range(n):
        if step < n - 1:
            sent += kv_bytes
        if direction == "backward" and n > 1:
            sent += kv_bytes * 4 // 2
    return sent


def ulysses_bytes_sent(n, tokens, width, kv_width, itemsize):
    total = 0.0
    for features in (width, kv_width, kv_width, width):
        part = tokens / n * features * itemsize
        total += part - part / n
    return total


def causal_idle_share(rank, n):
    steps = [0.5] + [1.0] * (n - 1)
    works = steps[: rank + 1]
    return 1 - sum(works) / sum(steps)


def hiding_block(flops_per_second, bytes_per_second, width, kv_width, causal=False):
    seconds_a_token = 2 * kv_width * 2 / bytes_per_second
    seconds_a_pair = 4 * width / flops_per_second
    if causal:
        seconds_a_pair /= 2
    return seconds_a_token / seconds_a_pair
