# %% wrong: the columns of A are columns of the weight
# is: slip
# says: The columns of A are its rows
kind_1 = "S(1)"
kind_2 = "S(1)"
kind_3 = "S(0)"
kind_4 = "P"
kind_5 = "R"
kind_6 = "R"
kind_7 = "R"
kind_8 = "S(1)"
kind_9 = "S(1)"
kind_10 = "P"
kind_11 = "R"
kind_12 = "P"


# %% wrong: every rank has all of A
# is: slip
# says: has the columns of A for some of the hidden features
kind_1 = "R"
kind_2 = "S(1)"
kind_3 = "S(0)"
kind_4 = "P"
kind_5 = "R"
kind_6 = "R"
kind_7 = "R"
kind_8 = "S(1)"
kind_9 = "S(1)"
kind_10 = "P"
kind_11 = "R"
kind_12 = "P"


# %% wrong: hidden features lie along the tokens
# is: slip
# says: Dimension 0 of h has the tokens
kind_1 = "S(0)"
kind_2 = "S(0)"
kind_3 = "S(1)"
kind_4 = "P"
kind_5 = "R"
kind_6 = "R"
kind_7 = "R"
kind_8 = "S(1)"
kind_9 = "S(1)"
kind_10 = "P"
kind_11 = "R"
kind_12 = "P"


# %% wrong: the product by rows is whole
# is: idea
# says: their z differ
kind_1 = "S(0)"
kind_2 = "S(1)"
kind_3 = "S(1)"
kind_4 = "R"
kind_5 = "R"
kind_6 = "R"
kind_7 = "P"
kind_8 = "P"
kind_9 = "P"
kind_10 = "R"
kind_11 = "P"
kind_12 = "R"


# %% wrong: a sum that is still a term
# is: slip
# says: all ranks have the same sum
kind_1 = "S(0)"
kind_2 = "S(1)"
kind_3 = "S(1)"
kind_4 = "P"
kind_5 = "P"
kind_6 = "R"
kind_7 = "R"
kind_8 = "S(1)"
kind_9 = "S(1)"
kind_10 = "P"
kind_11 = "R"
kind_12 = "P"


# %% wrong: a bias in terms
# is: slip
# says: but b2 is added after it
kind_1 = "S(0)"
kind_2 = "S(1)"
kind_3 = "S(1)"
kind_4 = "P"
kind_5 = "R"
kind_6 = "P"
kind_7 = "R"
kind_8 = "S(1)"
kind_9 = "S(1)"
kind_10 = "P"
kind_11 = "R"
kind_12 = "P"


# %% wrong: the gradient of a term is a term
# is: slip
# says: a sum hands its gradient on to every term
kind_1 = "S(0)"
kind_2 = "S(1)"
kind_3 = "S(1)"
kind_4 = "P"
kind_5 = "R"
kind_6 = "R"
kind_7 = "P"
kind_8 = "S(1)"
kind_9 = "S(1)"
kind_10 = "P"
kind_11 = "R"
kind_12 = "P"


# %% wrong: the gradient of an input is whole already
# is: slip
# says: Each rank has the gradient of its own use of u
kind_1 = "S(0)"
kind_2 = "S(1)"
kind_3 = "S(1)"
kind_4 = "P"
kind_5 = "R"
kind_6 = "R"
kind_7 = "R"
kind_8 = "S(1)"
kind_9 = "S(1)"
kind_10 = "R"
kind_11 = "R"
kind_12 = "P"


# %% wrong: gradients of parts are terms
# is: slip
# says: No other rank has used this part of w2
kind_1 = "S(0)"
kind_2 = "S(1)"
kind_3 = "S(1)"
kind_4 = "P"
kind_5 = "R"
kind_6 = "R"
kind_7 = "R"
kind_8 = "P"
kind_9 = "P"
kind_10 = "P"
kind_11 = "R"
kind_12 = "P"


# %% wrong: replicas have equal gradients
# is: slip
# says: The replicas read different tokens
kind_1 = "S(0)"
kind_2 = "S(1)"
kind_3 = "S(1)"
kind_4 = "P"
kind_5 = "R"
kind_6 = "R"
kind_7 = "R"
kind_8 = "S(1)"
kind_9 = "S(1)"
kind_10 = "P"
kind_11 = "R"
kind_12 = "R"


# %% wrong: the kind on the other axis
# is: slip
# says: Your answer is its kind on tp
kind_1 = "S(0)"
kind_2 = "S(1)"
kind_3 = "S(1)"
kind_4 = "P"
kind_5 = "R"
kind_6 = "R"
kind_7 = "R"
kind_8 = "S(1)"
kind_9 = "S(1)"
kind_10 = "P"
kind_11 = "R"
kind_12 = "S(0)"


# %% wrong: the bias's gradient is a term
# is: slip
# says: all ranks add b2 to the same output
kind_1 = "S(0)"
kind_2 = "S(1)"
kind_3 = "S(1)"
kind_4 = "P"
kind_5 = "R"
kind_6 = "R"
kind_7 = "R"
kind_8 = "S(1)"
kind_9 = "S(1)"
kind_10 = "P"
kind_11 = "P"
kind_12 = "P"


# %% wrong: words for letters
# is: slip
# says: must be .R., .P., .S.0.. or .S.1..
kind_1 = "S(0)"
kind_2 = "S(1)"
kind_3 = "S(1)"
kind_4 = "partial"
kind_5 = "R"
kind_6 = "R"
kind_7 = "R"
kind_8 = "S(1)"
kind_9 = "S(1)"
kind_10 = "P"
kind_11 = "R"
kind_12 = "P"


# %% right: letters
kind_1 = "S(0)"
kind_2 = "S(1)"
kind_3 = "S(1)"
kind_4 = "P"
kind_5 = "R"
kind_6 = "R"
kind_7 = "R"
kind_8 = "S(1)"
kind_9 = "S(1)"
kind_10 = "P"
kind_11 = "R"
kind_12 = "P"


# %% right: small letters and spaces
kind_1 = "s( 0)"
kind_2 = "s( 1)"
kind_3 = "s( 1)"
kind_4 = " p"
kind_5 = "r"
kind_6 = "r"
kind_7 = "r"
kind_8 = "s( 1)"
kind_9 = "s( 1)"
kind_10 = " p"
kind_11 = "r"
kind_12 = " p"
