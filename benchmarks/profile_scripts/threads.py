"""Threads that compute while the main thread waits for them."""

import threading

import numpy as np

import anygpu as ag


@ag.offload(on="numpy")
def smooth(x: np.ndarray) -> np.ndarray:
    return np.sort(x)


def work() -> None:
    for _ in range(20):
        smooth(np.random.default_rng(0).random(300_000))


threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()  # hot
