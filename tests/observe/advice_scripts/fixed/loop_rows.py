"""Each row is scored by a call of its own: corrected."""

import numpy as np

import anygpu as ag

rows = np.random.default_rng(0).random((2000, 64)).astype(np.float32)


@ag.offload(on="opencl")
def score(row):
    return np.tanh(row * 2.0) + row


print(np.sum(score(rows), dtype=np.float64).round(2))
