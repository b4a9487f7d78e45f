"""Functions to compare, one subject a file."""
