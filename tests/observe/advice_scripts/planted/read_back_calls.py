"""What one call returns comes back to the host, only to go to the next."""

import numpy as np

import anygpu as ag


@ag.offload(on="opencl")
def blurred(x):
    return 0.25 * (x[:-2] + 2.0 * x[1:-1] + x[2:])


@ag.offload(on="opencl")
def padded(x):
    return np.concatenate([x[:1], x, x[-1:]])


x = np.random.default_rng(0).random(3_000_000).astype(np.float32)
for _ in range(30):
    y = blurred(x)
    x = padded(y)  # finding: read-back
print(x.mean(dtype=np.float64).round(4))
