"""In operation: is it fast, is it healthy, and what when a rank dies? Begin with disk.py.

It dies:

    disk.py        Disk: a folder that forgets what was not synced, and every state after a power failure
    protocol.py    commit, newest: a save that may be cut off; a damaged file is named, and not used
    folder.py      Folder: a real folder, on which the same commit works
    crashes.py     power_failures, faults: every power failure of a save, tried

The folder imports torch and numpy only, and can be copied out with exports.py above it.

The names are imported when they are first used: so the others can be used while an exercise hides a module.
No module has the name of its function, which it would replace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exports import exports

if TYPE_CHECKING:
    from .crashes import Crash, Fault, faults, power_failures
    from .disk import Disk, PowerFailure
    from .folder import Folder
    from .protocol import (
        DamagedCheckpoint,
        commit,
        new_prefix,
        newest,
        newest_with,
        publish,
        read_manifest,
        read_part,
        steps,
        tidy,
        write_parts,
    )

__getattr__, __dir__, __all__ = exports(__name__)
