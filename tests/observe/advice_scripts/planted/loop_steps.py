"""A simulation whose every step is a call."""

import numpy as np

import anygpu as ag


@ag.offload(on="opencl")
def step(x):
    return x + 0.01 * (1.0 - x * x)


x = np.zeros(100, np.float32)
for _ in range(4000):
    x = step(x)  # finding: python-loop
print(x.sum().round(2))
