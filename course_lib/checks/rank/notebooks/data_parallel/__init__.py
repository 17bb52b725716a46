"""In the ranks: recipes for objects that average gradients and remember something from step to step."""
