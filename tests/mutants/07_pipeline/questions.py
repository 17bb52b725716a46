# %% wrong: the lecture's fraction
# is: slip
# says: over the \*ideal\* time
answer_1 = 7 / 32
answer_2 = 63
answer_3 = "the peak of activations"
answer_4 = 9
answer_5 = "no other rank waits for its result"

# %% wrong: the share that computes
# is: slip
# says: the share that computes
answer_1 = 32 / 39
answer_2 = 63
answer_3 = "the peak of activations"
answer_4 = 9
answer_5 = "no other rank waits for its result"

# %% wrong: p stages fill in p steps
# is: slip
# says: works from the start
answer_1 = 8 / 40
answer_2 = 63
answer_3 = "the peak of activations"
answer_4 = 9
answer_5 = "no other rank waits for its result"

# %% wrong: a tenth of the ideal time
# is: slip
# says: a tenth of the \*ideal\* time
answer_1 = 7 / 39
answer_2 = 70
answer_3 = "the peak of activations"
answer_4 = 9
answer_5 = "no other rank waits for its result"

# %% wrong: one too many
# is: slip
# says: One less is enough
answer_1 = 7 / 39
answer_2 = 64
answer_3 = "the peak of activations"
answer_4 = 9
answer_5 = "no other rank waits for its result"

# %% wrong: one too few
# is: slip
# says: more than a tenth
answer_1 = 7 / 39
answer_2 = 62
answer_3 = "the peak of activations"
answer_4 = 9
answer_5 = "no other rank waits for its result"

# %% wrong: 1F1B has a smaller bubble
# is: slip
# says: both take as long to fill and drain
answer_1 = 7 / 39
answer_2 = 63
answer_3 = "the bubble"
answer_4 = 9
answer_5 = "no other rank waits for its result"

# %% wrong: 1F1B sends less
# is: slip
# says: Each activation goes down
answer_1 = 7 / 39
answer_2 = 63
answer_3 = "the bytes sent"
answer_4 = 9
answer_5 = "no other rank waits for its result"

# %% wrong: GPipe's memory
# is: slip
# says: GPipe holds all 32
answer_1 = 7 / 39
answer_2 = 63
answer_3 = "the peak of activations"
answer_4 = 48
answer_5 = "no other rank waits for its result"

# %% wrong: stage 0's memory
# is: slip
# says: Stage 0 holds this much
answer_1 = 7 / 39
answer_2 = 63
answer_3 = "the peak of activations"
answer_4 = 12
answer_5 = "no other rank waits for its result"

# %% wrong: the warm-up alone
# is: slip
# says: one more comes before the first backward
answer_1 = 7 / 39
answer_2 = 63
answer_3 = "the peak of activations"
answer_4 = 7.5
answer_5 = "no other rank waits for its result"

# %% wrong: the other way round
# is: slip
# says: Your order is reversed
answer_1 = 7 / 39
answer_2 = 63
answer_3 = "the peak of activations"
answer_4 = 4.5
answer_5 = "no other rank waits for its result"

# %% wrong: a W without activations
# is: slip
# says: keeps these activations longer
answer_1 = 7 / 39
answer_2 = 63
answer_3 = "the peak of activations"
answer_4 = 9
answer_5 = "it needs no activations"

# %% wrong: a W that is shorter
# is: slip
# says: Even a longer W could wait
answer_1 = 7 / 39
answer_2 = 63
answer_3 = "the peak of activations"
answer_4 = 9
answer_5 = "it takes less time"

# %% right: computed
answer_1 = (lambda p, m: (p - 1) / (m + p - 1))(8, 32)
answer_2 = 9 * (8 - 1)
answer_3 = "the peak of activations"
answer_4 = min(32, 8 - 2) * 1.5
answer_5 = "no other rank waits for its result"

# %% right: rounded
answer_1 = 0.1795
answer_2 = 63.0
answer_3 = " The peak of activations "
answer_4 = 9.0
answer_5 = "no other rank waits for its result"
