"""Code that the exercises of notebook 08 may not use: the course's own solutions, and PyTorch's attention."""

from __future__ import annotations

REFERENCES = (
    "course_lib.context_parallel.balanced",
    "course_lib.context_parallel.combined",
    "course_lib.context_parallel.gpt",
    "course_lib.context_parallel.ring",
    "course_lib.context_parallel.softmax",
    "course_lib.context_parallel.tiles",
    "course_lib.context_parallel.ulysses",
    "course_lib.facts",
)
THEIRS = (
    "Do not use PyTorch's own attention here. Instead, write the algorithm inside it yourself, and make "
    "the scores with a product, q @ k.mT, tile by tile."
)
COMPILED = (
    "A function compiled by torch.compile uses memory in ways the check does not see, so write the "
    "operations out."
)
REFUSED = {"torch:compile": COMPILED} | {
    name: THEIRS
    for name in (
        "torch.nn.functional:scaled_dot_product_attention",
        "torch._C._nn:scaled_dot_product_attention",  # as whom the function is pickled
        "torch.nn.attention.flex_attention:flex_attention",
    )
}
OPERATIONS = {  # of PyTorch's dispatcher: all ways to these functions end in them
    part: THEIRS
    for part in (
        "scaled_dot_product",
        "flash_attention",
        "efficient_attention",
        "multi_head_attention",
        "transformer_encoder",
    )
}
