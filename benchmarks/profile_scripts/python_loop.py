"""A loop in Python, and a little NumPy."""

import numpy as np


def count(limit: int) -> int:
    total = 0
    for number in range(limit):
        total += (number * number) % 7 + (number * number) % 11 + (number * number) % 13  # hot
    return total


count(4_000_000)
np.sort(np.random.default_rng(0).random(500_000))
