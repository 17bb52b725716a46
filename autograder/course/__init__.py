"""What an assignment is, and what students get of it."""
