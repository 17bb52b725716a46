# %% right: by a sum over ones
import torch
import torch.nn.functional as F


def queue(experts, count, places):
    tokens, k = experts.shape
    one_hot = F.one_hot(experts.T.flatten(), count)
    before = one_hot.cumsum(0) - one_hot
    place = (before * one_hot).sum(1).view(k, tokens).T
    return place, place < places


# %% right: by sorting
import torch


def queue(experts, count, places):
    tokens, k = experts.shape
    flat = experts.T.flatten()
    order = flat.argsort(stable=True)
    starts = flat.bincount(minlength=count).cumsum(0) - flat.bincount(minlength=count)
    ranked = torch.arange(len(flat)) - starts[flat[order]]
    place = torch.empty_like(flat)
    place[order] = ranked
    place = place.view(k, tokens).T
    return place, place < places


# %% right: by loops
import torch


def queue(experts, count, places):
    tokens, k = experts.shape
    place, taken = torch.zeros_like(experts), [0] * count
    for choice in range(k):
        for token in range(tokens):
            expert = int(experts[token, choice])
            place[token, choice] = taken[expert]
            taken[expert] += 1
    return place, place < places


# %% wrong: by token, both choices
# is: idea
# says: All first choices queue first
# base: by a sum over ones
-    one_hot = F.one_hot(experts.T.flatten(), count)
+    one_hot = F.one_hot(experts.flatten(), count)
@@
-    place = (before * one_hot).sum(1).view(k, tokens).T
+    place = (before * one_hot).sum(1).view(tokens, k)


# %% wrong: each choice has a queue of its own
# is: idea
# says: The second choices begin at place 0 again
# base: by a sum over ones
-    one_hot = F.one_hot(experts.T.flatten(), count)
-    before = one_hot.cumsum(0) - one_hot
-    place = (before * one_hot).sum(1).view(k, tokens).T
+    one_hot = F.one_hot(experts, count)
+    before = one_hot.cumsum(0) - one_hot
+    place = (before * one_hot).sum(2)


# %% wrong: places from 1
# is: slip
# says: The first place is 0
# base: by a sum over ones
-    before = one_hot.cumsum(0) - one_hot
+    before = one_hot.cumsum(0)


# %% wrong: one place too many
# is: slip
# says: the place C was kept as well
# base: by a sum over ones
-    return place, place < places
+    return place, place <= places


# %% wrong: the dropped ones are marked
# is: slip
# says: True and False are exchanged
# base: by a sum over ones
-    return place, place < places
+    return place, place >= places


# %% wrong: one queue for all
# is: idea
# says: Each expert has its own
# base: by a sum over ones
-    place = (before * one_hot).sum(1).view(k, tokens).T
+    place = torch.arange(tokens * k).view(k, tokens).T


# %% wrong: turned back without T
# is: slip
# says: they belong to other assignments
# base: by a sum over ones
-    place = (before * one_hot).sum(1).view(k, tokens).T
+    place = (before * one_hot).sum(1).view(tokens, k)


# %% wrong: the dropped ones do not count
# is: slip
# says: Assignments that found no place were not counted
import torch


def queue(experts, count, places):
    tokens, k = experts.shape
    place, taken = torch.zeros_like(experts), [0] * count
    for choice in range(k):
        for token in range(tokens):
            expert = int(experts[token, choice])
            place[token, choice] = taken[expert]
            taken[expert] += taken[expert] < places
    return place, place < places


# %% wrong: the place alone
# is: form
# says: Return \(place, keep\)
# base: by a sum over ones
-    return place, place < places
+    return place


# %% wrong: places that rise, whatever the experts
# is: idea
# says: not what a loop over the choices and the tokens gives
# base: by a sum over ones
-    place = (before * one_hot).sum(1).view(k, tokens).T
+    place = torch.arange(tokens * k).view(k, tokens).T - 1000
