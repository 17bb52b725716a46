"""In the ranks: what averages gradients and remembers something from step to step."""
