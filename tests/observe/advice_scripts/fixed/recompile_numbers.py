"""A number decides the shape, and changes with every call: corrected."""

import numpy as np

import anygpu as ag

x = np.random.default_rng(0).random(20_000).astype(np.float32)


@ag.offload(on="jax")
def roots(x):
    return np.sqrt(x) * 2.0


total = 0.0
for count in range(1, 11):
    total += float(roots(x)[: 1000 * count].sum())
print(round(total, 2))
