"""Ranks on this machine: start, run, watch, explain, end."""

from course_lib.runtime.pools import spare

__all__ = ["spare"]
