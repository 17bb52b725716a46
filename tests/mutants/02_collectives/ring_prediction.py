# %% wrong: one phase
# is: idea
# says: You count one phase
def ring_bytes_sent(n, nbytes):
    return (n - 1) / n * nbytes


def ring_rounds(n):
    return n - 1


# %% wrong: the whole tensor in every round
# is: idea
# says: not the whole tensor
def ring_bytes_sent(n, nbytes):
    return 2 * (n - 1) * nbytes


def ring_rounds(n):
    return 2 * (n - 1)


# %% wrong: the limit for many ranks
# is: slip
# says: limit for many ranks
def ring_bytes_sent(n, nbytes):
    return 2 * nbytes


def ring_rounds(n):
    return 2 * (n - 1)


# %% wrong: N rounds in each phase
# is: slip
# says: Each phase has N - 1 rounds
def ring_bytes_sent(n, nbytes):
    return 2 * (n - 1) / n * nbytes


def ring_rounds(n):
    return 2 * n


# %% wrong: a tree's rounds
# is: slip
# says: A tree takes that many rounds
def ring_bytes_sent(n, nbytes):
    return 2 * (n - 1) / n * nbytes


def ring_rounds(n):
    return 2 * math.ceil(math.log2(n))


# %% wrong: what all ranks send
# is: slip
# says: the sum over all ranks|not the whole tensor
def ring_bytes_sent(n, nbytes):
    return n * 2 * (n - 1) / n * nbytes


def ring_rounds(n):
    return 2 * (n - 1)


# %% wrong: sent and received
# is: slip
# says: Count only the bytes sent
def ring_bytes_sent(n, nbytes):
    return 4 * (n - 1) / n * nbytes


def ring_rounds(n):
    return 2 * (n - 1)


# %% wrong: nothing returned
# is: form
# says: not a number
def ring_bytes_sent(n, nbytes):
    print(2 * (n - 1) / n * nbytes)


def ring_rounds(n):
    return 2 * (n - 1)


# %% right: chunk by chunk
def ring_bytes_sent(n, nbytes):
    chunk = nbytes / n
    return sum(chunk for phase in range(2) for round in range(n - 1))


def ring_rounds(n):
    return len(range(n - 1)) + len(range(n - 1))


# %% right: twice the tensor but for its own chunk
def ring_bytes_sent(n: int, nbytes: int) -> float:
    return 2 * nbytes - 2 * nbytes / n


def ring_rounds(n: int) -> int:
    return 2 * n - 2
