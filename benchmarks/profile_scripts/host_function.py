"""An offloaded function that stays on the host: its time belongs to the line inside of it."""

import numpy as np

import anygpu as ag


@ag.offload(on="numpy")
def spread(values: np.ndarray) -> float:
    ordered = np.sort(values)  # hot
    return float(ordered[-1] - ordered[0])


data = np.random.default_rng(0).random(400_000)
for _ in range(50):
    spread(data)
