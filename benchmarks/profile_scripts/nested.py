"""An offloaded function that calls another one."""

import numpy as np

import anygpu as ag


@ag.offload(on="numpy")
def inner(x: np.ndarray) -> np.ndarray:
    return np.linalg.svd(x, compute_uv=False)  # hot


@ag.offload(on="numpy")
def outer(x: np.ndarray) -> float:
    return float(inner(x).sum() + inner(x.T).sum())


x = np.random.default_rng(0).random((200, 200))
for _ in range(40):
    outer(x)
