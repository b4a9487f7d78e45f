"""
A mosaic by nearest neighbours
==============================

A picture is cut into 1,536 small squares, and for each the most similar of 3,000 tiles is found: all distances at
once, by one matrix product. The same function finds the vectors nearest to a question.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart


@ag.offload
def nearest(questions: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """For each row of the one the nearest row of the other."""
    return ((answers * answers).sum(axis=1) - 2 * questions @ answers.T).argmin(axis=1)


# %%
# Tiles are two colours with a line, a disc or a slope between them. The picture is a parrot's eye, more or less.

SIDE = 8
random = np.random.default_rng(0)
v, u = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
angle, offset = random.uniform(0, 2 * np.pi, (3000, 1, 1)), random.uniform(-0.7, 0.7, (3000, 1, 1))
lines = 1 / (1 + np.exp(-random.uniform(2, 30, (3000, 1, 1)) * (u * np.cos(angle) + v * np.sin(angle) - offset)))
discs = (np.hypot(u, v) < np.abs(offset) + 0.3).astype(float)
share = np.where(random.random((3000, 1, 1)) < 0.8, lines, discs)[..., None]
first = random.random((3000, 1, 1, 3)) ** np.array([0.8, 1.2, 1.4])
second = (first + random.normal(scale=0.35, size=(3000, 1, 1, 3))).clip(0, 1)
tiles = (share * first + (1 - share) * second).astype(np.float32)

y, x = np.mgrid[-1:1:256j, -1.5:1.5:384j]
radius, turn = np.hypot(x + 0.15, y), np.arctan2(y, x + 0.15)
feathers = 0.5 + 0.5 * np.sin(9 * turn + 14 * radius + 2 * np.sin(5 * radius))
picture = np.stack([0.95 - 0.35 * feathers, 0.25 + 0.5 * radius * (1 - feathers), 0.1 + 0.3 * feathers * radius], -1)
picture[radius < 0.62] = (0.96, 0.9, 0.78)
iris = (radius < 0.42)[..., None] * (0.75 + 0.25 * np.sin(30 * turn))[..., None] * np.array([0.98, 0.7, 0.12])
picture = np.where((radius < 0.42)[..., None], iris, picture)
picture[radius < 0.2] = (0.05, 0.05, 0.08)
picture[np.hypot(x + 0.24, y + 0.1) < 0.06] = 1
picture = picture.clip(0, 1).astype(np.float32)


def squares(image: np.ndarray) -> np.ndarray:
    rows, columns = image.shape[0] // SIDE, image.shape[1] // SIDE
    return image.reshape(rows, SIDE, columns, SIDE, 3).swapaxes(1, 2).reshape(rows * columns, -1)


questions, answers = squares(picture), tiles.reshape(len(tiles), -1)
found = nearest(questions, answers)
mosaic = tiles[found].reshape(32, 48, SIDE, SIDE, 3).swapaxes(1, 2).reshape(picture.shape)

figure, panel = plt.subplots(figsize=(5.4, 3.7))
panel.imshow(mosaic, interpolation="nearest")
panel.axis("off")
small = panel.inset_axes((0.7, 0.02, 0.29, 0.29))
small.imshow(picture)
small.set(xticks=[], yticks=[])
small.spines[:].set(visible=True, color="white", linewidth=2)

# %%
# Where the call ran, and why:

print(ag.last_receipt())

# %%
# The same call on every engine:

figure = engines_chart(nearest, questions, answers)

# sphinx_gallery_thumbnail_number = 1
