"""The algorithms against one process, PyTorch and the closed forms."""
