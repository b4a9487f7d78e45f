"""Many calls of a few microseconds, and as much Python between them."""

import numpy as np

import anygpu as ag


@ag.offload
def step(values: np.ndarray) -> np.ndarray:
    return values * 0.5 + 1.0


values = np.ones(16)
seen: list[float] = []
for _ in range(60_000):
    values = step(values)
    seen.append(sum(float(each) for each in values.tolist() + values.tolist() + values.tolist()))  # hot
