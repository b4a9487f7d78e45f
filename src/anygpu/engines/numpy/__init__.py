"""NumPy: the reference and the floor."""
