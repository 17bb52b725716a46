"""A note for a cell that calls a function of the ranks in the notebook itself.

PyTorch then asks for `init_process_group`, which `launch` calls, and which would fail in a notebook.
"""

from __future__ import annotations

import sys
from typing import Any

NO_GROUP = "Default process group has not been initialized"
NOTE = """\
Note: this cell called torch.distributed in the notebook itself, which is not a rank. Run the function
      on ranks instead, as in launch(function, its arguments, world_size=2). `launch` makes the group
      that PyTorch misses."""


def watch_cells() -> None:
    """In a notebook, print the note below such an error."""
    if "IPython" not in sys.modules:
        return
    from IPython.core.getipython import get_ipython

    if (shell := get_ipython()) is not None:
        shell.events.register("post_run_cell", explain)


def explain(result: Any) -> None:
    """result: IPython's own, of a cell that has run."""
    if NO_GROUP in str(result.error_in_exec or ""):
        print(NOTE)
