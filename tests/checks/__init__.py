"""Exercises, judge and recipes: right answers lose nothing, wrong ones are named."""
