"""Tests, in folders as the packages: see docs/testing.md."""
