"""Functions of a sequence that is spread over ranks: what they give and send, and what is done meanwhile.

recipes.py   in the rank: calls the function forward and backward, and watches its work
watching.py  in the rank: products, bytes alive, and messages under way
runs.py      in the judge: what to call, and lines about work, memory and overlap
"""
