# %% base: the ratio is a power
def crossover(law1, law2):
    def power(law):
        E, A, B, alpha, beta = law
        return math.log(alpha * A / (beta * B)) / (alpha + beta), beta / (alpha + beta)

    (g1, a1), (g2, a2) = power(law1), power(law2)
    slope, level = a1 - a2, g1 - g2
    if slope < 0:
        slope, level = -slope, -level
    return 6 * math.exp((math.log(2) - level) / slope)


# %% wrong: where the laws agree
# is: idea
# says: the laws are equal
# base: the ratio is a power
-    return 6 * math.exp((math.log(2) - level) / slope)
+    return 6 * math.exp(-level / slope)


# %% wrong: the other crossing
# is: slip
# says: closer again above it
# base: the ratio is a power
-    return 6 * math.exp((math.log(2) - level) / slope)
+    return 6 * math.exp((-math.log(2) - level) / slope)


# %% wrong: the first law's model is the larger one always
# is: slip
# says: The order of the laws does not matter
# base: the ratio is a power
-    if slope < 0:
-        slope, level = -slope, -level


# %% wrong: N D
# is: slip
# says: Your budget is N D
# base: the ratio is a power
-    return 6 * math.exp((math.log(2) - level) / slope)
+    return math.exp((math.log(2) - level) / slope)


# %% wrong: a factor of 4
# is: slip
# says: a factor of 4
# base: the ratio is a power
-    return 6 * math.exp((math.log(2) - level) / slope)
+    return 6 * math.exp((2 * math.log(2) - level) / slope)


# %% wrong: tokens a parameter
# is: slip
# says: tokens per parameter differ
# base: the ratio is a power
-    return 6 * math.exp((math.log(2) - level) / slope)
+    return 6 * math.exp((math.log(2) / 2 - level) / slope)


# %% wrong: its logarithm
# is: form
# says: Each law's N is a power of C
# base: the ratio is a power
-    return 6 * math.exp((math.log(2) - level) / slope)
+    return math.log10(6) + (math.log(2) - level) / slope / math.log(10)


# %% right: from above, by steps of 1 %
def crossover(law1, law2):
    def params(budget, law):
        _, a, b, alpha, beta = law
        return (alpha * a / beta / b * (budget / 6) ** beta) ** (1 / (alpha + beta))

    budget = 1e45
    while not 0.5 < params(budget, law1) / params(budget, law2) < 2:
        budget /= 1.01
    return budget


# %% right: bisection from above
def crossover(law1, law2):
    def params(budget, law):
        _, a, b, alpha, beta = law
        return (alpha * a / beta / b * (budget / 6) ** beta) ** (1 / (alpha + beta))

    def apart(exponent):
        return abs(math.log2(params(10**exponent, law1) / params(10**exponent, law2)))

    equal = min((k / 10 for k in range(-1000, 2000)), key=apart)
    low, high = equal, 290.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if apart(middle) < 1 else (low, middle)
    return 10**high


# %% right: from two budgets
def crossover(law1, law2):
    def ratio(budget):
        n = []
        for _, a, b, alpha, beta in (law1, law2):
            n.append((alpha * a / (beta * b)) ** (1 / (alpha + beta))
                     * (budget / 6) ** (beta / (alpha + beta)))
        return math.log(n[0] / n[1])

    at_low, at_high = ratio(1e18), ratio(1e24)
    slope = (at_high - at_low) / math.log(1e6)
    target = math.copysign(math.log(2), slope)
    return 1e18 * math.exp((target - at_low) / slope)
