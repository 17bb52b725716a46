"""What the course's models learn from: real text that every machine has, and batches of it.

    text.py       the sources of Python's standard library, as bytes: library_text, decode
    batches.py    which part of it a rank sees in a step: batch

Nothing is downloaded and nothing written. A token is a byte, the vocabulary 256.
"""

from course_lib.data.batches import batch
from course_lib.data.text import decode, library_text

__all__ = ["batch", "decode", "library_text"]
