"""anygpu runs ordinary NumPy-style functions on whatever GPU the machine has, or on none, and says why."""
