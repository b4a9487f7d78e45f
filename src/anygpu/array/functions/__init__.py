"""NumPy's functions for arrays, a family a file."""
