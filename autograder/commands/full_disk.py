"""A full disk ends a command with a sentence."""

from __future__ import annotations

import errno


def of_full_disk(error: BaseException | None) -> bool:
    """Whether a full disk was the cause; SQLite and SQLAlchemy have errors of their own for it."""
    while error is not None:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or "database or disk is full" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
