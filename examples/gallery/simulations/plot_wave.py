"""
Waves through two slits
=======================

A wave comes from the left, passes two slits in a wall, and interferes with itself. The wall and the absorbing edges
are one array, by which each step is multiplied.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart


@ag.offload
def four_steps(
    now: np.ndarray, before: np.ndarray, passes: np.ndarray, source: np.ndarray, beats: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    for step in range(4):
        around = np.roll(now, 1, 0) + np.roll(now, -1, 0) + np.roll(now, 1, 1) + np.roll(now, -1, 1)
        moved = 2 * now - before + np.float32(0.3) * (around - 4 * now)
        now, before = passes * moved + source * beats[step], passes * now
    return now, before


# %%
# The wall is 0 and lets nothing through; near the edges waves are damped.

height, width = 220, 320
y, x = np.mgrid[0:height, 0:width].astype(np.float32)
edge = np.minimum.reduce([x, width - 1 - x, y, height - 1 - y])
passes = 1 - 0.1 * np.clip(1 - edge / 26, 0, 1).astype(np.float32) ** 2
slits = (np.abs(y - 85) < 7) | (np.abs(y - 135) < 7)
passes[(np.abs(x - 110) < 3) & ~slits] = 0
source = (np.abs(x - 26) < 1).astype(np.float32)

now = before = np.zeros((height, width), np.float32)
for first in range(0, 680, 4):
    beats = np.sin(0.24 * np.arange(first, first + 4, dtype=np.float32))
    now, before = four_steps(now, before, passes, source, beats)

figure, panel = plt.subplots(figsize=(5.4, 3.8))
limit = 3 * now[:, 125:].std()
panel.imshow(now, cmap="RdBu", vmin=-limit, vmax=limit)
panel.imshow(np.where(passes == 0, 1.0, np.nan), cmap="gray", vmin=0, vmax=4)
panel.axis("off")

# %%
# Where the last of these calls ran, and why:

print(ag.last_receipt())

# %%
# The same call on every engine:

figure = engines_chart(four_steps, now, before, passes, source, beats)

# sphinx_gallery_thumbnail_number = 1
