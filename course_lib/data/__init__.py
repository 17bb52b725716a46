"""The training text of the course's models, which every machine already has, and batches of it.

    text.py       the sources of Python's standard library, as bytes: library_text, decode
    batches.py    batch: the part of the text a rank sees in a step

Nothing is downloaded, and nothing is written. A token is a byte, so the vocabulary has 256 tokens.
"""

from course_lib.data.batches import batch
from course_lib.data.text import decode, library_text

__all__ = ["batch", "decode", "library_text"]
