"""A function of the standard library that holds the interpreter, called from a list comprehension."""

import random

random.seed(0)
numbers = [random.random() for _ in range(300_000)]
for _ in range(10):
    ordered = sorted(numbers)  # hot
    least = ordered[0]
