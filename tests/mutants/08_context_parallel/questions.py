# %% wrong: the limit
# is: slip
# says: the limit for many ranks
answer_1 = 2
answer_2 = 15
answer_3 = 24_960
answer_4 = 8
answer_5 = "the time of the slowest rank"

# %% wrong: zigzag's
# is: slip
# says: Your answer is for zigzag
answer_1 = 1.0
answer_2 = 15
answer_3 = 24_960
answer_4 = 8
answer_5 = "the time of the slowest rank"

# %% wrong: all of the work
# is: slip
# says: Each rank computes some
answer_1 = 8
answer_2 = 15
answer_3 = 24_960
answer_4 = 8
answer_5 = "the time of the slowest rank"

# %% wrong: N transfers
# is: slip
# says: nothing is sent after the last
answer_1 = 1.875
answer_2 = 16
answer_3 = 24_960
answer_4 = 8
answer_5 = "the time of the slowest rank"

# %% wrong: the paper's number
# is: slip
# says: paper's table prints this number
answer_1 = 1.875
answer_2 = 15
answer_3 = 24_500
answer_4 = 8
answer_5 = "the time of the slowest rank"

# %% wrong: six blocks
# is: slip
# says: Your answer is six blocks
answer_1 = 1.875
answer_2 = 15
answer_3 = 149_760
answer_4 = 8
answer_5 = "the time of the slowest rank"

# %% wrong: bits
# is: slip
# says: 100 Gb/s are bits
answer_1 = 1.875
answer_2 = 15
answer_3 = 312e12 / 100e9
answer_4 = 8
answer_5 = "the time of the slowest rank"

# %% wrong: half of the scores
# is: slip
# says: Without a mask
answer_1 = 1.875
answer_2 = 15
answer_3 = 49_920
answer_4 = 8
answer_5 = "the time of the slowest rank"

# %% wrong: heads of queries
# is: slip
# says: there are fewer of them
answer_1 = 1.875
answer_2 = 15
answer_3 = 24_960
answer_4 = 32
answer_5 = "the time of the slowest rank"

# %% wrong: heads that share
# is: slip
# says: how many heads share one
answer_1 = 1.875
answer_2 = 15
answer_3 = 24_960
answer_4 = 4
answer_5 = "the time of the slowest rank"

# %% wrong: fewer bytes
# is: slip
# says: All keys pass all ranks
answer_1 = 1.875
answer_2 = 15
answer_3 = 24_960
answer_4 = 8
answer_5 = "the bytes sent"

# %% wrong: fewer scores
# is: slip
# says: The mask leaves the same scores
answer_1 = 1.875
answer_2 = 15
answer_3 = 24_960
answer_4 = 8
answer_5 = "the number of scores that all ranks compute"

# %% right: computed
answer_1 = 2 - 1 / 8
answer_2 = 16 - 1
answer_3 = 312e12 / 12.5e9
answer_4 = min(32, 8)
answer_5 = "the time of the slowest rank"

# %% right: rounded
answer_1 = 1.88
answer_2 = 15.0
answer_3 = 25_000
answer_4 = 8.0
answer_5 = " The time of the slowest rank "
