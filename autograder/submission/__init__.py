"""One submission: from its folder to its result."""
