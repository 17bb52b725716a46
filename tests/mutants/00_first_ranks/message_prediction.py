# %% wrong: everybody has a partner
# is: slip
# says: last one has no partner and sends nothing
def exchange_messages(n):
    return n


def ring_shift_messages(n):
    return n if n > 1 else 0


# %% wrong: a swap is one message
# is: slip
# says: A swap is two messages
def exchange_messages(n):
    return n // 2


def ring_shift_messages(n):
    return n if n > 1 else 0


# %% wrong: those of one rank
# is: idea
# says: of all ranks together
def exchange_messages(n):
    return 1


def ring_shift_messages(n):
    return 1


# %% wrong: the ring is open
# is: slip
# says: The ring is closed
def exchange_messages(n):
    return n - n % 2


def ring_shift_messages(n):
    return n - 1


# %% wrong: counted at both ends
# is: slip
# says: counted at both ends
def exchange_messages(n):
    return 2 * (n // 2)


def ring_shift_messages(n):
    return 2 * n if n > 1 else 0


# %% wrong: one rank sends to itself
# is: slip
# says: its own neighbour and sends nothing
def exchange_messages(n):
    return 2 * (n // 2)


def ring_shift_messages(n):
    return n


# %% wrong: everybody writes to everybody
# is: idea
# says: does not send to all ranks
def exchange_messages(n):
    return n * (n - 1)


def ring_shift_messages(n):
    return n if n > 1 else 0


# %% wrong: one of the two not written
# is: form
# says: ring_shift_messages is not written yet
def exchange_messages(n):
    return 2 * (n // 2)


def ring_shift_messages(n):
    raise NotImplementedError


# %% right: counted rank by rank
def exchange_messages(n):
    return sum(1 for rank in range(n) if rank ^ 1 < n)


def ring_shift_messages(n):
    return sum((rank + 1) % n != rank for rank in range(n))


# %% right: formulas
def exchange_messages(n: int) -> int:
    return n - n % 2


def ring_shift_messages(n: int) -> int:
    return 0 if n == 1 else n
