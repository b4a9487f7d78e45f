"""A long array is given out in small slices."""

import numpy as np

import anygpu as ag

signal = np.random.default_rng(0).random(2_000_000).astype(np.float32)


@ag.offload(on="opencl")
def louder(x):
    return np.sqrt(np.abs(x)) * 2.0


out = []
for begin in range(0, len(signal), 1000):
    out.append(louder(signal[begin : begin + 1000]))  # finding: tiny-batch
print(np.concatenate(out).sum(dtype=np.float64).round(1))
