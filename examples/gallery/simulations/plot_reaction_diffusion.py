"""
Patterns that grow by themselves
================================

Two substances spread and react, as Gray and Scott described: one feeds the other, and spots divide until they fill
the plane. Nothing in the four lines of the reaction says what the pattern will be.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart


def spread(field: np.ndarray) -> np.ndarray:
    around = np.roll(field, 1, 0) + np.roll(field, -1, 0) + np.roll(field, 1, 1) + np.roll(field, -1, 1)
    return around - 4 * field


@ag.offload
def four_steps(
    food: np.ndarray, eater: np.ndarray, feed: np.ndarray, kill: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    for _ in range(4):
        eaten = food * eater * eater
        food = food + np.float32(0.2) * spread(food) - eaten + feed * (1 - food)
        eater = eater + np.float32(0.1) * spread(eater) + eaten - (feed + kill) * eater
    return food, eater


# %%
# From left to right more is fed, and from top to bottom less is removed: spots become worms, and worms become a maze.

height, width = 160, 224
feed = np.linspace(0.025, 0.05, width, dtype=np.float32) * np.ones((height, 1), np.float32)
kill = np.linspace(0.0635, 0.0605, height, dtype=np.float32)[:, None] * np.ones(width, np.float32)
random = np.random.default_rng(3)
food = np.ones((height, width), np.float32)
eater = np.zeros_like(food)
for row, column in random.integers((0, 0), (height - 6, width - 6), (60, 2)):
    food[row : row + 6, column : column + 6] = 0.5
    eater[row : row + 6, column : column + 6] = 0.25

for _ in range(900):
    food, eater = four_steps(food, eater, feed, kill)

figure, panel = plt.subplots(figsize=(5.4, 3.9))
panel.imshow(eater, cmap="magma", interpolation="bicubic", vmin=0, vmax=0.36)
panel.axis("off")

# %%
# Where the last of these calls ran, and why:

print(ag.last_receipt())

# %%
# The same call on every engine:

figure = engines_chart(four_steps, food, eater, feed, kill)

# sphinx_gallery_thumbnail_number = 1
