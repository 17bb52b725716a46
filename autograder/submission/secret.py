"""The course's secret, and the seeds that follow from it.

Hidden cases are drawn from a seed. It is the same when a submission is graded again, it differs between
students and between exercises, and without the secret it cannot be computed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

VARIABLE = "COURSE_SECRET"
SHORTEST = 16  # bytes


class SecretError(Exception):
    """The secret cannot be used; the text says why and what to do."""


def course_secret(out: Path, file: Path | None = None) -> bytes:
    """The secret from `file`, else from COURSE_SECRET, else from `out/secret`, which is made once.

    Raises SecretError if `file` cannot be read or the secret is too short.
    """
    if file is not None:
        return _read(file)
    if text := os.environ.get(VARIABLE, "").strip():
        return _long_enough(text.encode(), VARIABLE)
    own = out / "secret"
    if not own.exists():
        _make(own)
    return _read(own)


def _read(path: Path) -> bytes:
    try:
        return _long_enough(path.read_bytes().strip(), str(path))
    except OSError as error:
        raise SecretError(
            f"the course's secret cannot be read from {path}: {error.strerror}"
        ) from None


def _long_enough(secret: bytes, origin: str) -> bytes:
    if len(secret) < SHORTEST:
        raise SecretError(
            f"the course's secret in {origin} has {len(secret)} characters; it needs {SHORTEST} or "
            "more. Make one: python -c 'import secrets; print(secrets.token_hex(32))'"
        )
    return secret


def _make(path: Path) -> None:
    """Write a new secret that only its owner can read; if another run was first, its secret stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".secret.{secrets.token_hex(8)}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32) + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(new, path)
    except FileExistsError:
        pass  # another run has just made one: that one is the course's
    finally:
        new.unlink()


def seed(secret: bytes, student: str, exercise: str) -> int:
    """The seed of one exercise's hidden cases for one student: 63 bits of an HMAC-SHA256."""
    message = "\0".join((student, exercise)).encode()  # no name holds a zero byte
    digest = hmac.new(secret, message, hashlib.sha256).digest()
    return int.from_bytes(digest[:8], "big") >> 1
