"""Memory that grows, and a copy of all of it each time."""

import numpy as np

parts = np.zeros(0)
for number in range(120):
    parts = np.concatenate([parts, np.full(100_000, float(number))])  # hot
    newest = float(parts[-1])
