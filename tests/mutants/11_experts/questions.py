# %% wrong: parameters in use
# is: slip
# says: But all experts are held
answer_1 = (16 * 12.88, 77.3)
answer_2 = 235
answer_3 = (4, "AdamW")
answer_4 = (list(range(12)), [2, 6, 10])
answer_5 = 3.66


# %% wrong: 8 models of 7 billion
# is: slip
# says: they share attention
answer_1 = (896, 77.3)
answer_2 = 235
answer_3 = (4, "AdamW")
answer_4 = (list(range(12)), [2, 6, 10])
answer_5 = 3.66


# %% wrong: weights alone
# is: slip
# says: the weights in 16 bits, but
answer_1 = (93.4, 77.3)
answer_2 = 235
answer_3 = (4, "AdamW")
answer_4 = (list(range(12)), [2, 6, 10])
answer_5 = 3.66


# %% wrong: FLOPs of all experts
# is: slip
# says: only the parameters it uses cost FLOPs
answer_1 = (747, 6 * 46.7)
answer_2 = 235
answer_3 = (4, "AdamW")
answer_4 = (list(range(12)), [2, 6, 10])
answer_5 = 3.66


# %% wrong: FLOPs of forward
# is: slip
# says: only forward
answer_1 = (747, 25.8)
answer_2 = 235
answer_3 = (4, "AdamW")
answer_4 = (list(range(12)), [2, 6, 10])
answer_5 = 3.66


# %% wrong: one number in place of two
# is: form
# says: answer_1 must be a pair
answer_1 = 747
answer_2 = 235
answer_3 = (4, "AdamW")
answer_4 = (list(range(12)), [2, 6, 10])
answer_5 = 3.66


# %% wrong: half of the bytes
# is: slip
# says: backward sends as many bytes as forward
answer_1 = (747, 77.3)
answer_2 = 117.4
answer_3 = (4, "AdamW")
answer_4 = (list(range(12)), [2, 6, 10])
answer_5 = 3.66


# %% wrong: one all-to-all
# is: slip
# says: A layer has four
answer_1 = (747, 77.3)
answer_2 = 58.7
answer_3 = (4, "AdamW")
answer_4 = (list(range(12)), [2, 6, 10])
answer_5 = 3.66


# %% wrong: the own rows are sent
# is: slip
# says: is not sent
answer_1 = (747, 77.3)
answer_2 = 268.4
answer_3 = (4, "AdamW")
answer_4 = (list(range(12)), [2, 6, 10])
answer_5 = 3.66


# %% wrong: float32
# is: slip
# says: bfloat16 has two bytes
answer_1 = (747, 77.3)
answer_2 = 470
answer_3 = (4, "AdamW")
answer_4 = (list(range(12)), [2, 6, 10])
answer_5 = 3.66


# %% wrong: the divisor that was used
# is: slip
# says: the divisor that was used
answer_1 = (747, 77.3)
answer_2 = 235
answer_3 = (3, "AdamW")
answer_4 = (list(range(12)), [2, 6, 10])
answer_5 = 3.66


# %% wrong: the divisor of dense gradients
# is: slip
# says: the divisor of a dense gradient
answer_1 = (747, 77.3)
answer_2 = 235
answer_3 = (12, "AdamW")
answer_4 = (list(range(12)), [2, 6, 10])
answer_5 = 3.66


# %% wrong: SGD
# is: slip
# says: a factor in the gradient is one in the step
answer_1 = (747, 77.3)
answer_2 = 235
answer_3 = (4, "SGD")
answer_4 = (list(range(12)), [2, 6, 10])
answer_5 = 3.66


# %% wrong: another optimizer
# is: form
# says: must be 'sgd'
answer_1 = (747, 77.3)
answer_2 = 235
answer_3 = (4, "Muon")
answer_4 = (list(range(12)), [2, 6, 10])
answer_5 = 3.66


# %% wrong: dense over dp
# is: slip
# says: and the same dense parameters
answer_1 = (747, 77.3)
answer_2 = 235
answer_3 = (4, "AdamW")
answer_4 = ([2, 6, 10], [2, 6, 10])
answer_5 = 3.66


# %% wrong: experts over all
# is: slip
# says: Ranks of ep hold other experts
answer_1 = (747, 77.3)
answer_2 = 235
answer_3 = (4, "AdamW")
answer_4 = (list(range(12)), list(range(12)))
answer_5 = 3.66


# %% wrong: experts over ep
# is: slip
# says: the rank's group of ep
answer_1 = (747, 77.3)
answer_2 = 235
answer_3 = (4, "AdamW")
answer_4 = (list(range(12)), [4, 5, 6, 7])
answer_5 = 3.66


# %% wrong: ep is outside
# is: slip
# says: ep is the inner axis
answer_1 = (747, 77.3)
answer_2 = 235
answer_3 = (4, "AdamW")
answer_4 = (list(range(12)), [6, 7, 8])
answer_5 = 3.66


# %% wrong: the rank itself is left out
# is: slip
# says: Rank 6 itself takes part
answer_1 = (747, 77.3)
answer_2 = 235
answer_3 = (4, "AdamW")
answer_4 = (list(range(12)), [2, 10])
answer_5 = 3.66


# %% wrong: one GPU
# is: slip
# says: how long one GPU would take
answer_1 = (747, 77.3)
answer_2 = 235
answer_3 = (4, "AdamW")
answer_4 = (list(range(12)), [2, 6, 10])
answer_5 = 7500


# %% wrong: hours
# is: slip
# says: Your answer is in hours
answer_1 = (747, 77.3)
answer_2 = 235
answer_3 = (4, "AdamW")
answer_4 = (list(range(12)), [2, 6, 10])
answer_5 = 87.9


# %% wrong: all tokens
# is: slip
# says: for all 14.8
answer_1 = (747, 77.3)
answer_2 = 235
answer_3 = (4, "AdamW")
answer_4 = (list(range(12)), [2, 6, 10])
answer_5 = 54.2


# %% right: computed
answer_1 = (16 * 46.70, 6 * 12.88)
answer_2 = 4 * (4096 * 2 * 7 / 8) * 4096 * 2 / 1e6
answer_3 = (12 / 3, " adamw")
answer_4 = (range(12), range(2, 12, 4))
answer_5 = 180_000 / 2048 / 24


# %% right: rounded, and in other containers
answer_1 = [750, 77]
answer_2 = 235.0
answer_3 = [4, "AdamW"]
answer_4 = ({*range(12)}, torch.arange(2, 12, 4))
answer_5 = 3.7
