"""The training text of the course's models: real text that every machine has, and batches of it.

    text.py       the sources of Python's standard library, as bytes: library_text, decode
    batches.py    batch: the part of it that a rank sees in a step

Nothing is downloaded and nothing written. A token is a byte; the vocabulary has 256 tokens.
"""

from course_lib.data.batches import batch
from course_lib.data.text import decode, library_text

__all__ = ["batch", "decode", "library_text"]
