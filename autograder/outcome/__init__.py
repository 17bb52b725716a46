"""The grade of a submission as plain data, its statuses, limits and sentences."""
