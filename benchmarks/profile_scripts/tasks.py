"""Tasks: the main thread waits for their results."""

import numpy as np

import anygpu as ag


def work(x: np.ndarray) -> np.ndarray:
    return np.sort(x, axis=None)


x = np.random.default_rng(0).random(1_000_000)
futures = [ag.submit(work, x) for _ in range(20)]
for future in futures:
    future.result()  # hot
