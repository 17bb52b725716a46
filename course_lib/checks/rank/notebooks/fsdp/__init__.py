"""In the ranks: calls with a dtype, calls that must be refused, and steps of a master."""
