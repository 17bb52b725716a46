# %% [markdown]
# # A toy assignment
#
# Two exercises whose answers say themselves which cases of the check they fail.

# %%
import time


class Report:
    """Prints like a real check's report."""

    CASES = ("value", "odd size", "bytes", "order")

    def __init__(self, failing):
        self.score = 1 - len(failing) / len(self.CASES)
        for case in self.CASES:
            print(f"  {'✗' if case in failing else '✓'} {case}")
            if case in failing:
                print(f"      the {case} is wrong")

    def points(self, maximum):
        return round(self.score * maximum, 1)


def check(answer, cases="visible"):
    try:
        return Report(answer())
    except NotImplementedError:
        return Report(Report.CASES)


# %% tags=["nbval-ignore-output", "skip-in-grading"]
print(time.time())

# %% [markdown]
# ## One


# %% nbgrader={"grade_id": "one", "solution": true}
def one():
    """The names of the cases that fail."""
    ### BEGIN SOLUTION
    nothing_fails_in_one = []
    return nothing_fails_in_one
    ### END SOLUTION


# %% nbgrader={"grade_id": "one_check", "points": 4}
report = check(one)
### BEGIN HIDDEN TESTS
report = check(one, cases="hidden")
### END HIDDEN TESTS
report.points(4)

# %% tags=["raises-exception"]
raise KeyError("on purpose")

# %% [markdown]
# ## Two


# %% nbgrader={"grade_id": "two", "solution": true}
def two():
    ### BEGIN SOLUTION
    nothing_fails_in_two = []
    return nothing_fails_in_two
    ### END SOLUTION


# %% nbgrader={"grade_id": "two_check", "points": 6}
report = check(two)
### BEGIN HIDDEN TESTS
report = check(two, cases="hidden")
### END HIDDEN TESTS
report.points(6)
