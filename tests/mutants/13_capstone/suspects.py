# %% wrong: nothing wrong with any of them
# is: idea
# says: look at the rows about memory
verdict_a = ("nothing", 1)
verdict_b = ("nothing", 1)
verdict_c = ("nothing", 1)


# %% wrong: an unusual program is taken for a wrong one
# is: slip
# says: are the two halves of an all-reduce
verdict_a = ("activations", 4)
verdict_b = ("bytes over dp", 2)
verdict_c = ("bytes over dp", 8)


# %% wrong: the factor on two replicas
# is: slip
# says: here dp has 16 ranks
verdict_a = ("activations", 4)
verdict_b = ("nothing", 1)
verdict_c = ("bytes over dp", 1)


# %% wrong: the number of replicas
# is: slip
# says: / n M, not M
verdict_a = ("activations", 4)
verdict_b = ("nothing", 1)
verdict_c = ("bytes over dp", 16)


# %% wrong: 15 times
# is: slip
# says: The program sends 15 M
verdict_a = ("activations", 4)
verdict_b = ("nothing", 1)
verdict_c = ("bytes over dp", 15)


# %% wrong: stage 0 in place of stage 4
# is: slip
# says: rank 517 is on stage 4
verdict_a = ("activations", 2)
verdict_b = ("nothing", 1)
verdict_c = ("bytes over dp", 8)


# %% wrong: all microbatches in place of their share
# is: slip
# says: but 1 would not do
verdict_a = ("activations", 16)
verdict_b = ("nothing", 1)
verdict_c = ("bytes over dp", 8)


# %% wrong: factors upside down
# is: slip
# says: upside down
verdict_a = ("activations", 1 / 4)
verdict_b = ("nothing", 1)
verdict_c = ("bytes over dp", 1 / 8)


# %% wrong: two programs are taken for each other
# is: idea
# says: One row of the table has a mark
verdict_a = ("bytes over dp", 8)
verdict_b = ("nothing", 1)
verdict_c = ("activations", 4)


# %% wrong: weights for activations
# is: slip
# says: kept for backward
verdict_a = ("parameters", 4)
verdict_b = ("nothing", 1)
verdict_c = ("bytes over dp", 8)


# %% wrong: a word that is none of the kinds
# is: form
# says: must be a pair
verdict_a = ("memory", 4)
verdict_b = ("nothing", 1)
verdict_c = ("bytes over dp", 8)


# %% wrong: a kind without a factor
# is: form
# says: must be a number
verdict_a = ("activations", None)
verdict_b = "nothing"
verdict_c = ("bytes over dp", 8)


# %% wrong: a factor for nothing
# is: slip
# says: but then the factor is 1
verdict_a = ("activations", 4)
verdict_b = ("nothing", 2)
verdict_c = ("bytes over dp", 8)


# %% right: as the text has it
verdict_a = ("activations", 4)
verdict_b = ("nothing", 1)
verdict_c = ("bytes over dp", 8)


# %% right: lists, capitals, arithmetic, and no factor for nothing
verdict_a = ["Activations ", 16 / 4]
verdict_b = ["nothing", None]
verdict_c = ("Bytes over dp", torch.tensor(8))
