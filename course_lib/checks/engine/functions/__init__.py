"""Functions that need no other rank: called forward and backward, with the memory that each direction takes.

recipes.py    in the rank: calls them, and tells what came
peak.py       in the rank: bytes alive after each operation of PyTorch's
objects.py    in the rank: bytes of what is no tensor
operators.py  in the rank: operators of PyTorch's that are not to be called
calls.py      in the judge: what is called with what, and lines about what came back
"""
