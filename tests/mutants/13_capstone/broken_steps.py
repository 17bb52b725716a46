# %% wrong: one axis too many
# is: slip
# says: still fails without pp
broken_a = ({"pp", "tp"}, "norms")
broken_b = ({"pp", "cp"}, "positions")
broken_c = ({"dp", "tp"}, "groups")


# %% wrong: the whole layout
# is: slip
# says: still fails without pp and dp
broken_a = ({"pp", "dp", "tp"}, "norms")
broken_b = ({"pp", "cp"}, "positions")
broken_c = ({"dp", "tp"}, "groups")


# %% wrong: an axis that is not needed
# is: slip
# says: is right on layouts with dp and nothing else
broken_a = ({"dp"}, "norms")
broken_b = ({"pp", "cp"}, "positions")
broken_c = ({"dp", "tp"}, "groups")


# %% wrong: a bias in place of a norm
# is: slip
# says: in the first loss, because a bias is added
broken_a = ({"tp"}, "bias")
broken_b = ({"pp", "cp"}, "positions")
broken_c = ({"dp", "tp"}, "groups")


# %% wrong: the mean over cp
# is: slip
# says: with cp and no other axis, from the second loss on
broken_a = ({"tp"}, "mean")
broken_b = ({"pp", "cp"}, "positions")
broken_c = ({"dp", "tp"}, "groups")


# %% wrong: pp alone
# is: slip
# says: is right on layouts with pp and nothing else
broken_a = ({"tp"}, "norms")
broken_b = ({"pp"}, "positions")
broken_c = ({"dp", "tp"}, "groups")


# %% wrong: the tied head
# is: slip
# says: if the head were tied
broken_a = ({"tp"}, "norms")
broken_b = ({"pp", "cp"}, "head")
broken_c = ({"dp", "tp"}, "groups")


# %% wrong: both axes, and tp
# is: slip
# says: step_b fails with pp, cp and tp, but still fails without tp
broken_a = ({"tp"}, "norms")
broken_b = ({"pp", "cp", "tp"}, "positions")
broken_c = ({"dp", "tp"}, "groups")


# %% wrong: tp alone
# is: slip
# says: is right on layouts with tp and nothing else
broken_a = ({"tp"}, "norms")
broken_b = ({"pp", "cp"}, "positions")
broken_c = ({"tp"}, "groups")


# %% wrong: the rows of the batch
# is: slip
# says: leaves the rows to .make_step.
broken_a = ({"tp"}, "norms")
broken_b = ({"pp", "cp"}, "positions")
broken_c = ({"dp", "tp"}, "rows")


# %% wrong: two causes exchanged
# is: slip
# says: only if tp meets replicas
broken_a = ({"tp"}, "groups")
broken_b = ({"pp", "cp"}, "positions")
broken_c = ({"dp", "tp"}, "norms")


# %% wrong: no axis
# is: slip
# says: right on layouts with no axis
broken_a = ({"tp"}, "norms")
broken_b = ({"pp", "cp"}, "positions")
broken_c = (set(), "groups")


# %% wrong: axes without causes
# is: slip
# says: must be .mean., .bias.
broken_a = ({"tp"}, None)
broken_b = ({"pp", "cp"}, None)
broken_c = ({"dp", "tp"}, None)


# %% wrong: causes without axes
# is: slip
# says: must be among .pp., .dp.
broken_a = (None, "norms")
broken_b = (None, "positions")
broken_c = (None, "groups")


# %% wrong: the axes and no pair
# is: form
# says: must be a pair
broken_a = ({"tp"}, "norms")
broken_b = {"pp": 2, "cp": 2}
broken_c = ({"dp", "tp"}, "groups")


# %% wrong: a cause in own words
# is: form
# says: must be .mean., .bias.
broken_a = ({"tp"}, "norms")
broken_b = ({"pp", "cp"}, "positions")
broken_c = ({"dp", "tp"}, "wrong group")


# %% wrong: an axis of another mesh
# is: form
# says: must be among .pp., .dp.
broken_a = ({"tp"}, "norms")
broken_b = ({"pp", "cp"}, "positions")
broken_c = ({"ep", "tp"}, "groups")


# %% right: sets, as the text has them
broken_a = ({"tp"}, "norms")
broken_b = ({"pp", "cp"}, "positions")
broken_c = ({"dp", "tp"}, "groups")


# %% right: what smallest_failing returns
broken_a = ({"tp": 2}, "norms")
broken_b = ({"pp": 2, "cp": 2}, "positions")
broken_c = ({"dp": 2, "tp": 2}, "groups")


# %% right: lists, a text, capitals, and the other replicas
broken_a = ["TP", "Norms"]
broken_b = ["cp, pp", "positions "]
broken_c = (("tp", "cp"), "groups")
