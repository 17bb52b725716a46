"""The trainer of examples/."""
