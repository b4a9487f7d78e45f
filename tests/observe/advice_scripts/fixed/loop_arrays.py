"""An array on a device is worked on row by row: corrected."""

import numpy as np

import anygpu as ag

table = ag.asarray(np.random.default_rng(0).random((40, 32)).astype(np.float32), device="jax")
norms = np.asarray(np.sqrt((table * table).sum(axis=1)))
print(norms.sum().round(2))
