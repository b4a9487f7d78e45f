"""An array on a device is worked on row by row."""

import numpy as np

import anygpu as ag

table = ag.asarray(np.random.default_rng(0).random((40, 32)).astype(np.float32), device="jax")
norms = []
for i in range(40):
    norms.append(np.asarray(np.sqrt((table[i] * table[i]).sum(keepdims=True))))  # finding: recompile
print(np.concatenate(norms).sum().round(2))
