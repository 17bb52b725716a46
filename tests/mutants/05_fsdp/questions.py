# %% wrong: replicas, and no wire
# is: slip
# says: the gather brings 15/16
answer_1 = 0.4 * 989e12 / 50e9
answer_2 = "the next gather queues behind them"
answer_3 = 809.53344
answer_4 = 17
answer_5 = "hybrid"
answer_6 = "rank 0 prefetches two units, rank 1 one"

# %% wrong: gradients that are late
# is: slip
# says: begins after its backward, when they are ready
answer_1 = 7418
answer_2 = "gradients are not ready"
answer_3 = 809.53344
answer_4 = 17
answer_5 = "hybrid"
answer_6 = "rank 0 prefetches two units, rank 1 one"

# %% wrong: one block
# is: slip
# says: One unit ahead makes two
answer_1 = 7418
answer_2 = "the next gather queues behind them"
answer_3 = 2 * 202_383_360 / 1e6
answer_4 = 17
answer_5 = "hybrid"
answer_6 = "rank 0 prefetches two units, rank 1 one"

# %% wrong: mebibytes
# is: detail
# says: MiB, of 1,048,576 bytes
answer_1 = 7418
answer_2 = "the next gather queues behind them"
answer_3 = 4 * 202_383_360 / 2**20
answer_4 = 17
answer_5 = "hybrid"
answer_6 = "rank 0 prefetches two units, rank 1 one"

# %% wrong: a reduce in each microbatch
# is: slip
# says: only the last one reduces
answer_1 = 7418
answer_2 = "the next gather queues behind them"
answer_3 = 809.53344
answer_4 = 24
answer_5 = "hybrid"
answer_6 = "rank 0 prefetches two units, rank 1 one"

# %% wrong: full sharding between nodes
# is: slip
# says: only an eighth of the gradients crosses
answer_1 = 7418
answer_2 = "the next gather queues behind them"
answer_3 = 809.53344
answer_4 = 17
answer_5 = "full"
answer_6 = "rank 0 prefetches two units, rank 1 one"

# %% wrong: nothing ahead deadlocks
# is: slip
# says: slow, but all ranks call the same collectives
answer_1 = 7418
answer_2 = "the next gather queues behind them"
answer_3 = 809.53344
answer_4 = 17
answer_5 = "hybrid"
answer_6 = "all ranks prefetch nothing"

# %% wrong: every rank waits
# is: slip
# says: no rank waits for the reduce
answer_1 = 7418
answer_2 = "every rank waits in backward"
answer_3 = 809.53344
answer_4 = 17
answer_5 = "hybrid"
answer_6 = "rank 0 prefetches two units, rank 1 one"

# %% wrong: the first answer is missing
# is: form
# says: answer_1 is not answered yet
answer_1 = ...
answer_2 = "the next gather queues behind them"
answer_3 = 809.53344
answer_4 = 17
answer_5 = "hybrid"
answer_6 = "rank 0 prefetches two units, rank 1 one"

# %% right: as arithmetic
answer_1 = 15 / 16 * 0.4 * 989e12 / 50e9
answer_2 = "the next gather queues behind them"
answer_3 = 2 * 2 * 202_383_360 / 1e6
answer_4 = 2 * 8 + 1
answer_5 = "hybrid"
answer_6 = "rank 0 prefetches two units, rank 1 one"

# %% right: rounded, and in capitals
answer_1 = 7_400
answer_2 = "The next gather queues behind them"
answer_3 = 810
answer_4 = 17.0
answer_5 = "Hybrid"
answer_6 = "rank 0 prefetches two units, rank 1 one "
