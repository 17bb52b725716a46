"""A layer that several ranks hold together: its runs (`runs`), and lines about their replies (`lines`)."""

from course_lib.checks.judge.layers import lines, runs

__all__ = ["lines", "runs"]
