# %% wrong: turned round
# is: slip
# says: is turned around
waits_for = {"neighbour_sum": {2: 0, 0: 1, 1: 2}, "collect": {2: 0}, "global_mean": {0: 1, 2: 1}}
remedies = {
    "average": "the same collective on every rank",
    "hand_over": "the same size and dtype at both ends",
    "columns": "contiguous()",
    "relay": "wait before writing",
    "farewell": "wait for the handle",
}

# %% wrong: the rank that has finished is said to wait
# is: slip
# says: Rank 2 does not wait
waits_for = {
    "neighbour_sum": {0: 2, 1: 0, 2: 1},
    "collect": {0: 2, 2: 0},
    "global_mean": {0: 1, 2: 1},
}
remedies = {
    "average": "the same collective on every rank",
    "hand_over": "the same size and dtype at both ends",
    "columns": "contiguous()",
    "relay": "wait before writing",
    "farewell": "wait for the handle",
}

# %% wrong: one of those that wait is missing
# is: slip
# says: Rank 2 also waits
waits_for = {"neighbour_sum": {0: 2, 1: 0, 2: 1}, "collect": {0: 2}, "global_mean": {0: 1}}
remedies = {
    "average": "the same collective on every rank",
    "hand_over": "the same size and dtype at both ends",
    "columns": "contiguous()",
    "relay": "wait before writing",
    "farewell": "wait for the handle",
}

# %% wrong: the ranks in a collective wait for each other
# is: slip
# says: Read again in which operation rank 0 is
waits_for = {"neighbour_sum": {0: 2, 1: 0, 2: 1}, "collect": {0: 2}, "global_mean": {0: 2, 2: 0}}
remedies = {
    "average": "the same collective on every rank",
    "hand_over": "the same size and dtype at both ends",
    "columns": "contiguous()",
    "relay": "wait before writing",
    "farewell": "wait for the handle",
}

# %% wrong: remedies in each other's place
# is: slip
# says: shape and strides
waits_for = {"neighbour_sum": {0: 2, 1: 0, 2: 1}, "collect": {0: 2}, "global_mean": {0: 1, 2: 1}}
remedies = {
    "average": "the same collective on every rank",
    "hand_over": "contiguous()",
    "columns": "the same size and dtype at both ends",
    "relay": "wait before writing",
    "farewell": "wait for the handle",
}

# %% wrong: writing before and never waiting confused
# is: slip
# says: when the tensor was changed
waits_for = {"neighbour_sum": {0: 2, 1: 0, 2: 1}, "collect": {0: 2}, "global_mean": {0: 1, 2: 1}}
remedies = {
    "average": "the same collective on every rank",
    "hand_over": "the same size and dtype at both ends",
    "columns": "contiguous()",
    "relay": "wait for the handle",
    "farewell": "wait before writing",
}

# %% wrong: a remedy that is not on the list
# is: form
# says: must be one of
waits_for = {"neighbour_sum": {0: 2, 1: 0, 2: 1}, "collect": {0: 2}, "global_mean": {0: 1, 2: 1}}
remedies = {
    "average": "restart the kernel",
    "hand_over": "the same size and dtype at both ends",
    "columns": "contiguous()",
    "relay": "wait before writing",
    "farewell": "wait for the handle",
}

# %% wrong: more time
# is: slip
# says: 'a longer time limit' would not cure 'relay'
waits_for = {"neighbour_sum": {0: 2, 1: 0, 2: 1}, "collect": {0: 2}, "global_mean": {0: 1, 2: 1}}
remedies = {
    "average": "the same collective on every rank",
    "hand_over": "the same size and dtype at both ends",
    "columns": "contiguous()",
    "relay": "a longer time limit",
    "farewell": "wait for the handle",
}

# %% wrong: nothing filled in
# is: form
# says: is not answered yet
waits_for = {
    "neighbour_sum": {0: ..., 1: ..., 2: ...},
    "collect": {0: ...},
    "global_mean": {0: ..., 2: ...},
}
remedies = {"average": "", "hand_over": "", "columns": "", "relay": "", "farewell": ""}

# %% wrong: texts for ranks
# is: form
# says: The keys are ranks
waits_for = {
    "neighbour_sum": {"0": "2", "1": "0", "2": "1"},
    "collect": {0: 2},
    "global_mean": {0: 1, 2: 1},
}
remedies = {
    "average": "the same collective on every rank",
    "hand_over": "the same size and dtype at both ends",
    "columns": "contiguous()",
    "relay": "wait before writing",
    "farewell": "wait for the handle",
}

# %% wrong: a rank in place of a dict
# is: form
# says: must be a dict
waits_for = {
    "neighbour_sum": {0: 2, 1: 0, 2: 1},
    "collect": 2,
    "global_mean": {0: 1, 2: 1},
}
remedies = {
    "average": "the same collective on every rank",
    "hand_over": "the same size and dtype at both ends",
    "columns": "contiguous()",
    "relay": "wait before writing",
    "farewell": "wait for the handle",
}

# %% wrong: all other ranks are waited for
# is: slip
# says: in one call at a time
waits_for = {
    "neighbour_sum": {0: 2, 1: 0, 2: 1},
    "collect": {0: [1, 2]},
    "global_mean": {0: 1, 2: 1},
}
remedies = {
    "average": "the same collective on every rank",
    "hand_over": "the same size and dtype at both ends",
    "columns": "contiguous()",
    "relay": "wait before writing",
    "farewell": "wait for the handle",
}

# %% right: capitals and spaces
waits_for = {
    "neighbour_sum": {0: 2, 1: 0, 2: 1},
    "collect": {0: 2},
    "global_mean": {0: 1, 2: 1},
}
remedies = {
    "average": "The same collective on every rank",
    "hand_over": "the same size and dtype at both ends ",
    "columns": " Contiguous()",
    "relay": "Wait before writing",
    "farewell": "wait for the handle",
}


# %% right: the ranks in lists
waits_for = {
    "neighbour_sum": {0: [2], 1: [0], 2: [1]},
    "collect": {0: [2]},
    "global_mean": {0: [1], 2: [1]},
}
remedies = dict(
    average="the same collective on every rank",
    hand_over="the same size and dtype at both ends",
    columns="contiguous()",
    relay="wait before writing",
    farewell="wait for the handle",
)

# %% right: built up
waits_for = {"collect": {0: 2}, "global_mean": dict.fromkeys((2, 0), 1)}
waits_for["neighbour_sum"] = {rank: (rank - 1) % 3 for rank in range(3)}
remedies = {
    "farewell": "wait for the handle",
    "relay": "wait before writing",
    "columns": "contiguous()",
    "hand_over": "the same size and dtype at both ends",
    "average": "the same collective on every rank",
}
