# %% [markdown]
# # A small assignment for `python -m autograder selftest`
#
# Three exercises of notebook 00, of which one needs ranks.

# %%
import torch
import torch.distributed as dist

from course_lib import check


# %% nbgrader={"grade_id": "prediction", "solution": true}
def exchange_messages(n: int) -> int:
    """Messages that `n` ranks send together in one exchange with rank ^ 1."""
    ### BEGIN SOLUTION
    return 2 * (n // 2)
    ### END SOLUTION


def ring_shift_messages(n: int) -> int:
    """Messages that `n` ranks send together in one ring shift."""
    ### BEGIN SOLUTION
    return n if n > 1 else 0
    ### END SOLUTION


# %% nbgrader={"grade_id": "prediction_check", "points": 2}
report = check("00_first_ranks/message_prediction", exchange_messages, ring_shift_messages)
### BEGIN HIDDEN TESTS
report = check(
    "00_first_ranks/message_prediction", exchange_messages, ring_shift_messages, cases="hidden"
)
### END HIDDEN TESTS
report.points(2)


# %% nbgrader={"grade_id": "circle", "solution": true}
def neighbour_sum(tensor: torch.Tensor) -> torch.Tensor:
    """The left neighbour's values + `tensor` + the right neighbour's, on a circle of ranks."""
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % n, (rank + 1) % n
    from_left, from_right = torch.empty_like(tensor), torch.empty_like(tensor)
    handles = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, tensor, right),
            dist.P2POp(dist.isend, tensor, left),
            dist.P2POp(dist.irecv, from_left, left),
            dist.P2POp(dist.irecv, from_right, right),
        ]
    )
    for handle in handles:
        handle.wait()
    return from_left + tensor + from_right
    ### END SOLUTION


# %% nbgrader={"grade_id": "circle_check", "points": 3}
report = check("00_first_ranks/neighbour_sum", neighbour_sum)
### BEGIN HIDDEN TESTS
# CANARY
report = check("00_first_ranks/neighbour_sum", neighbour_sum, cases="hidden")
### END HIDDEN TESTS
report.points(3)

# %% nbgrader={"grade_id": "answers", "solution": true}
answer_1 = answer_2 = answer_3 = ...
### BEGIN SOLUTION
answer_1 = 20e-6 + 1e6 / 10e9
answer_2 = 20e-6 * 10e9
answer_3 = "wait"
### END SOLUTION

# %% nbgrader={"grade_id": "answers_check", "points": 1}
report = check("00_first_ranks/questions", answer_1, answer_2, answer_3)
### BEGIN HIDDEN TESTS
report = check("00_first_ranks/questions", answer_1, answer_2, answer_3, cases="hidden")
### END HIDDEN TESTS
report.points(1)
