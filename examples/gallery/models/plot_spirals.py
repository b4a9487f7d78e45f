"""
A small network learns three spirals
====================================

A network with one hidden layer learns to tell three spirals apart. The forward pass, the gradients and the update are
a dozen lines of NumPy, and one call is one step of training.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart

RATE = np.float32(1.2)


def scores(points: np.ndarray, weights: np.ndarray, bias: np.ndarray, out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    hidden = np.tanh(points @ weights + bias)
    raw = hidden @ out
    likely = np.exp(raw - raw.max(axis=1, keepdims=True))
    return hidden, likely / likely.sum(axis=1, keepdims=True)


@ag.offload
def trained(
    points: np.ndarray, kinds: np.ndarray, weights: np.ndarray, bias: np.ndarray, out: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    hidden, likely = scores(points, weights, bias, out)
    wrong = (likely - (kinds[:, None] == np.arange(3))) / np.float32(len(points))
    back = (wrong @ out.T) * (1 - hidden * hidden)
    return weights - RATE * (points.T @ back), bias - RATE * back.sum(axis=0), out - RATE * (hidden.T @ wrong)


# %%
# Six hundred points on three spirals; the network sees each with its distance and its angle.

random = np.random.default_rng(0)
kinds = np.arange(600) % 3
radius = np.sqrt(random.random(600)) * 0.9 + 0.08
turn = 2 * np.pi * kinds / 3 + 4.2 * radius + 0.16 * random.standard_normal(600)
places = np.stack([radius * np.cos(turn), radius * np.sin(turn)], axis=1)


def features(places: np.ndarray) -> np.ndarray:
    x, y = 2.5 * places[:, 0], 2.5 * places[:, 1]
    return np.stack([x, y, x * y, x * x - y * y, np.hypot(x, y), np.ones_like(x)], axis=1).astype(np.float32)


state = (
    random.normal(scale=0.8, size=(6, 48)).astype(np.float32),
    np.zeros(48, np.float32),
    random.normal(scale=0.2, size=(48, 3)).astype(np.float32),
)
points = features(places)
for _ in range(700):
    state = trained(points, kinds, *state)
right = (scores(points, *state)[1].argmax(axis=1) == kinds).mean()
print(f"{right:.0%} of the points are told apart")

y, x = np.mgrid[-1:1:220j, -1:1:220j]
likely = scores(features(np.stack([x.ravel(), y.ravel()], axis=1)), *state)[1]
colours = np.array([[0.0, 0.45, 0.7], [0.84, 0.37, 0.0], [0.0, 0.5, 0.37]])
figure, panel = plt.subplots(figsize=(4.4, 4.2))
panel.imshow(1 - 0.6 * (likely @ (1 - colours)).reshape(220, 220, 3), extent=(-1, 1, 1, -1))
panel.scatter(places[:, 0], places[:, 1], s=11, c=colours[kinds], edgecolors="white", linewidths=0.4)
panel.axis("off")

# %%
# Where the last step ran, and why:

print(ag.last_receipt())

# %%
# One step on every engine. It is so small that what a call costs beside computing decides:

figure = engines_chart(trained, points, kinds, *state)

# sphinx_gallery_thumbnail_number = 1
