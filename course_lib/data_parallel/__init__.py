"""Data parallelism: every rank holds the whole model, sees its own part of the batch, and steps alike.

One file for each idea. The files import only torch and each other, so they can be copied out together:

    sampling.py   which samples a rank sees: shard_indices
    naive.py      gradients averaged after backward: NaiveDataParallel (one all-reduce for each parameter),
                  FlatDataParallel (one in all)
    bucketed.py   gradients averaged while backward still runs: BucketedDataParallel
    replicas.py   the shared part: equal replicas, no_sync, options, arguments that are refused

All three wrappers send the same number of bytes, 2 (N-1)/N of the gradients' bytes per rank and step. But
they differ in how many messages this takes, and in how much of the time is hidden behind the computation.
`course_lib.facts` provides the formulas.

    model = BucketedDataParallel(model)
    for inputs, targets in batches:
        loss(model(inputs), targets).backward()
        model.finish_gradient_synchronization()
        optimizer.step()
        optimizer.zero_grad()
"""

from course_lib.data_parallel.bucketed import BucketedDataParallel
from course_lib.data_parallel.naive import FlatDataParallel, NaiveDataParallel
from course_lib.data_parallel.sampling import shard_indices

__all__ = ["BucketedDataParallel", "FlatDataParallel", "NaiveDataParallel", "shard_indices"]
