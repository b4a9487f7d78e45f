"""A function that looks at its values and one that prints: neither can be traced."""

import numpy as np


def limited(x):
    if x.max() > 0.5:
        x = x / x.max()
    return np.tanh(x) * np.exp(-x)


def shown(x):
    y = np.sin(x) * np.cos(x)
    print(f"{y.mean():.5f}")
    return y


x = np.random.default_rng(6).random((1000, 1000)).astype(np.float32)
for _ in range(5):
    x = limited(x)
    shown(x)
print(f"{x.sum():.2f}")
