"""What became of a submission: plain data, its statuses, limits and sentences."""
