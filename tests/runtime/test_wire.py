"""Objects on their way to ranks: pickles, and the bytes of tensors beside them."""

from __future__ import annotations

import pytest
import torch

from course_lib.runtime import wire

TENSORS = {
    "contiguous": torch.arange(5.0),
    "transposed": torch.arange(24.0).reshape(4, 6).T,
    "expanded": torch.ones(1).expand(3),
    "one element": torch.tensor(2, dtype=torch.bfloat16),
    "empty": torch.empty(0),
}


@pytest.mark.parametrize("name", TENSORS)
def test_no_buffer_of_a_pickle_is_a_view_of_a_view(name: str) -> None:
    """Python 3.11 ends by a segmentation fault if a failed launch leaves both in one cycle of garbage."""
    pickled, *buffers = wire.dumps(TENSORS[name])
    for buffer in buffers:
        assert not isinstance(memoryview(buffer).obj, memoryview)
    assert torch.equal(wire.loads([pickled, *buffers]), TENSORS[name])
