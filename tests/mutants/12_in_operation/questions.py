# %% wrong: the factor 2 is missing
# is: slip
# says: The factor 2 is missing
answer_1 = 818
answer_2 = 1
answer_3 = "a"
answer_4 = 2


# %% wrong: hours under the root
# is: slip
# says: get with hours under the root
answer_1 = (2 * 60 * 3.1) ** 0.5
answer_2 = 1
answer_3 = "a"
answer_4 = 2


# %% wrong: minutes
# is: slip
# says: the interval in minutes
answer_1 = 19.3
answer_2 = 1
answer_3 = "a"
answer_4 = 2


# %% wrong: failures of one GPU
# is: slip
# says: failures of one GPU
answer_1 = (2 * 60 * 3.1 * 3600 * 16384) ** 0.5
answer_2 = 1
answer_3 = "a"
answer_4 = 2


# %% wrong: failures divided among the GPUs
# is: slip
# says: failures of the whole run, so
answer_1 = (2 * 60 * 3.1 * 3600 / 16384) ** 0.5
answer_2 = 1
answer_3 = "a"
answer_4 = 2


# %% wrong: with the save
# is: slip
# says: Your answer includes the time of the save
answer_1 = 1217
answer_2 = 1
answer_3 = "a"
answer_4 = 2


# %% wrong: the rank that waits
# is: slip
# says: A rank that waits is early
answer_1 = 1157
answer_2 = 3
answer_3 = "a"
answer_4 = 2


# %% wrong: a flip before the average
# is: slip
# says: goes into the average
answer_1 = 1157
answer_2 = 1
answer_3 = "b"
answer_4 = 2


# %% wrong: odd rows
# is: slip
# says: whatever rows it came from
answer_1 = 1157
answer_2 = 1
answer_3 = "c"
answer_4 = 2


# %% wrong: all parts of a matrix
# is: slip
# says: only the saved parts that overlap
answer_1 = 1157
answer_2 = 1
answer_3 = "a"
answer_4 = 8


# %% wrong: pp cuts a matrix
# is: slip
# says: Only tp cuts it
answer_1 = 1157
answer_2 = 1
answer_3 = "a"
answer_4 = 4


# %% wrong: one file
# is: slip
# says: twice as wide
answer_1 = 1157
answer_2 = 1
answer_3 = "a"
answer_4 = 1


# %% wrong: all files
# is: slip
# says: all files of the checkpoint
answer_1 = 1157
answer_2 = 1
answer_3 = "a"
answer_4 = 64


# %% wrong: a word in place of a letter
# is: form
# says: must be 'a', 'b' or 'c'
answer_1 = 1157
answer_2 = 1
answer_3 = "a flip"
answer_4 = 2


# %% right: computed
answer_1 = math.sqrt(2 * 60 * 3.1 * 3600)
answer_2 = torch.tensor(1)
answer_3 = "A"
answer_4 = 8 / 4


# %% right: rounded
answer_1 = 1160
answer_2 = 1
answer_3 = "a "
answer_4 = 2
