"""Tasks are submitted, and each is awaited before the next."""

import numpy as np

import anygpu as ag

rng = np.random.default_rng(0)
items = [rng.random(500).astype(np.float32) for _ in range(900)]


def energy(x):
    return np.sqrt(x * x + 1.0)


total = 0.0
for item in items:
    total += float(ag.submit(energy, item, on="opencl").result().sum())  # finding: tiny-batch
print(round(total))
