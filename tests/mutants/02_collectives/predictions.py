# %% base: what the wrong ones change
def bytes_sent_per_rank(algorithm, n, nbytes):
    log, power = n.bit_length() - 1, n & (n - 1) == 0
    if algorithm == "broadcast":
        return math.ceil(math.log2(n)) * nbytes
    if algorithm == "recursive_doubling_all_reduce":
        return (log if power else log + 1) * nbytes
    return (2 if algorithm == "ring_all_reduce" else 1) * (n - 1) / n * nbytes


def rounds(algorithm, n):
    log, power = n.bit_length() - 1, n & (n - 1) == 0
    if algorithm == "broadcast":
        return math.ceil(math.log2(n))
    if algorithm == "recursive_doubling_all_reduce":
        return log if power else log + 2
    return (2 if algorithm == "ring_all_reduce" else 1) * (n - 1)


def seconds(algorithm, n, nbytes, alpha, beta):
    return rounds(algorithm, n) * alpha + bytes_sent_per_rank(algorithm, n, nbytes) * beta


def crossover(n, alpha, beta):
    log, power = n.bit_length() - 1, n & (n - 1) == 0
    saved = (log if power else log + 1) - 2 * (n - 1) / n
    later = 2 * (n - 1) - (log if power else log + 2)
    return later * alpha / (saved * beta) if saved > 0 else math.inf


# %% wrong: one phase for the ring
# is: slip
# says: one of the two phases
# base: what the wrong ones change
-    return (2 if algorithm == "ring_all_reduce" else 1) * (n - 1) / n * nbytes
+    return (n - 1) / n * nbytes


# %% wrong: powers of two only
# is: slip
# says: folded in and out
def bytes_sent_per_rank(algorithm, n, nbytes):
    if algorithm == "broadcast":
        return math.ceil(math.log2(n)) * nbytes
    if algorithm == "recursive_doubling_all_reduce":
        return math.log2(n) * nbytes
    return (2 if algorithm == "ring_all_reduce" else 1) * (n - 1) / n * nbytes


def rounds(algorithm, n):
    if algorithm == "broadcast":
        return math.ceil(math.log2(n))
    if algorithm == "recursive_doubling_all_reduce":
        return math.ceil(math.log2(n))
    return (2 if algorithm == "ring_all_reduce" else 1) * (n - 1)


def seconds(algorithm, n, nbytes, alpha, beta):
    return rounds(algorithm, n) * alpha + bytes_sent_per_rank(algorithm, n, nbytes) * beta


def crossover(n, alpha, beta):
    saved = math.log2(n) - 2 * (n - 1) / n
    return (2 * (n - 1) - math.log2(n)) * alpha / (saved * beta) if saved > 0 else math.inf


# %% wrong: the latency is paid once
# is: slip
# says: alpha is paid in every round
# base: what the wrong ones change
-    return rounds(algorithm, n) * alpha + bytes_sent_per_rank(algorithm, n, nbytes) * beta
+    return alpha + bytes_sent_per_rank(algorithm, n, nbytes) * beta
@@
-    log, power = n.bit_length() - 1, n & (n - 1) == 0
-    saved = (log if power else log + 1) - 2 * (n - 1) / n
-    later = 2 * (n - 1) - (log if power else log + 2)
-    return later * alpha / (saved * beta) if saved > 0 else math.inf
+    return alpha / beta


# %% wrong: beta taken for a bandwidth
# is: slip
# says: seconds per byte
# base: what the wrong ones change
-    return rounds(algorithm, n) * alpha + bytes_sent_per_rank(algorithm, n, nbytes) * beta
+    return rounds(algorithm, n) * alpha + bytes_sent_per_rank(algorithm, n, nbytes) / beta


# %% wrong: with two ranks the ring wins at once
# is: detail
# says: it never wins
# base: what the wrong ones change
-    return later * alpha / (saved * beta) if saved > 0 else math.inf
+    return later * alpha / (saved * beta) if saved > 0 else 0.0


# %% wrong: the ring's bytes are taken for the larger ones
# is: slip
# says: The sign is wrong
# base: what the wrong ones change
-    return later * alpha / (saved * beta) if saved > 0 else math.inf
+    return later * alpha / (-saved * beta) if saved > 0 else math.inf


# %% wrong: one round more than log2 N, also for a power of two
# is: slip
# says: log2 N is whole, and there is no round more
# base: what the wrong ones change
-        return math.ceil(math.log2(n))
+        return int(math.log2(n)) + 1


# %% wrong: a broadcast's source sends to everybody
# is: slip
# says: the sum over all ranks
# base: what the wrong ones change
-        return math.ceil(math.log2(n)) * nbytes
+        return (n - 1) * nbytes
@@
-        return math.ceil(math.log2(n))
+        return n - 1


# %% wrong: an algorithm forgotten
# is: form
# says: raised KeyError
BYTES = {
    "broadcast": lambda n: math.ceil(math.log2(n)),
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "ring_all_reduce": lambda n: 2 * (n - 1) / n,
    "recursive_doubling_all_reduce": lambda n: n.bit_length() - 1 + (n & (n - 1) != 0),
}


def bytes_sent_per_rank(algorithm, n, nbytes):
    return BYTES[algorithm](n) * nbytes


def rounds(algorithm, n):
    log, power = n.bit_length() - 1, n & (n - 1) == 0
    if algorithm == "broadcast":
        return math.ceil(math.log2(n))
    if algorithm == "recursive_doubling_all_reduce":
        return log if power else log + 2
    return (2 if algorithm == "ring_all_reduce" else 1) * (n - 1)


def seconds(algorithm, n, nbytes, alpha, beta):
    return rounds(algorithm, n) * alpha + bytes_sent_per_rank(algorithm, n, nbytes) * beta


def crossover(n, alpha, beta):
    raise NotImplementedError


# %% wrong: looked up in the library
# is: form
# says: write your own
def bytes_sent_per_rank(algorithm, n, nbytes):
    from course_lib import facts

    return facts.bytes_sent_per_rank(algorithm, n, nbytes)


def rounds(algorithm, n):
    from course_lib import facts

    return facts.rounds(algorithm, n)


def seconds(algorithm, n, nbytes, alpha, beta):
    return rounds(algorithm, n) * alpha + bytes_sent_per_rank(algorithm, n, nbytes) * beta


def crossover(n, alpha, beta):
    return math.inf


# %% right: tables
def floor_log(n):
    return int(math.log2(n))


def fold(n):
    return 0 if 2 ** floor_log(n) == n else 1


TABLE = {
    "broadcast": (lambda n: -int(-math.log2(n) // 1), lambda n: math.ceil(math.log2(n))),
    "reduce_scatter": (lambda n: 1 - 1 / n, lambda n: n - 1),
    "all_gather": (lambda n: 1 - 1 / n, lambda n: n - 1),
    "ring_all_reduce": (lambda n: 2 - 2 / n, lambda n: 2 * n - 2),
    "recursive_doubling_all_reduce": (
        lambda n: floor_log(n) + fold(n),
        lambda n: floor_log(n) + 2 * fold(n),
    ),
    "all_to_all": (lambda n: 1 - 1 / n, lambda n: n - 1),
}


def bytes_sent_per_rank(algorithm, n, nbytes):
    return TABLE[algorithm][0](n) * nbytes


def rounds(algorithm, n):
    return TABLE[algorithm][1](n)


def seconds(algorithm, n, nbytes, alpha, beta):
    return rounds(algorithm, n) * alpha + bytes_sent_per_rank(algorithm, n, nbytes) * beta


def crossover(n, alpha, beta):
    def slope(algorithm):
        return bytes_sent_per_rank(algorithm, n, 1) * beta

    gained = slope("recursive_doubling_all_reduce") - slope("ring_all_reduce")
    lost = (rounds("ring_all_reduce", n) - rounds("recursive_doubling_all_reduce", n)) * alpha
    return lost / gained if gained > 0 else float("inf")


# %% right: match, and tensors for answers
def bytes_sent_per_rank(algorithm, n, nbytes):
    match algorithm:
        case "broadcast":
            return torch.tensor((n - 1).bit_length() * float(nbytes), dtype=torch.float64)
        case "recursive_doubling_all_reduce":
            return nbytes * ((n - 1).bit_length() if n in (1, 2, 4, 8, 16, 32) else n.bit_length())
        case "ring_all_reduce":
            return 2 * (nbytes - nbytes / n)
        case _:
            return nbytes - nbytes / n


def rounds(algorithm, n):
    match algorithm:
        case "broadcast":
            return (n - 1).bit_length()
        case "recursive_doubling_all_reduce":
            return (n - 1).bit_length() if n in (1, 2, 4, 8, 16, 32) else n.bit_length() + 1
        case "ring_all_reduce":
            return 2 * (n - 1)
        case _:
            return n - 1


def seconds(algorithm, n, nbytes, alpha, beta):
    return alpha * rounds(algorithm, n) + beta * float(bytes_sent_per_rank(algorithm, n, nbytes))


def crossover(n, alpha, beta):
    if n == 2:
        return math.inf
    ring, doubling = "ring_all_reduce", "recursive_doubling_all_reduce"
    difference = seconds(doubling, n, 1, 0, beta) - seconds(ring, n, 1, 0, beta)
    return (seconds(ring, n, 0, alpha, 0) - seconds(doubling, n, 0, alpha, 0)) / difference
