"""
Heat in a plate
===============

Five flames heat a plate whose edges stay cold. A step of the heat equation is one line of NumPy; eight steps are one
call, so that a device has something to do before the result travels back.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart


@ag.offload
def eight_steps(heat: np.ndarray, flames: np.ndarray) -> np.ndarray:
    for _ in range(8):
        middle = heat[1:-1, 1:-1]
        around = heat[:-2, 1:-1] + heat[2:, 1:-1] + heat[1:-1, :-2] + heat[1:-1, 2:]
        heat = np.pad(middle + np.float32(0.24) * (around - 4 * middle), 1) + flames
    return heat


# %%
# The flames stand on a ring. The plate is looked at four times.

y, x = np.mgrid[0:150, 0:200].astype(np.float32)
flames = np.zeros_like(x)
for angle in np.arange(5) * 2 * np.pi / 5 + 0.3:
    flames += np.exp(-((x - 100 - 58 * np.cos(angle)) ** 2 + (y - 75 - 42 * np.sin(angle)) ** 2) / 12)
heat = np.zeros_like(flames)

figure, panels = plt.subplots(2, 2, figsize=(5.4, 4.3))
done = 0
for panel, steps in zip(panels.flat, (16, 160, 800, 3200), strict=True):
    while done < steps:
        heat = eight_steps(heat, flames)
        done += 8
    panel.imshow(np.sqrt(heat), cmap="inferno")
    panel.set_title(f"{steps:,} steps")
    panel.axis("off")

# %%
# Where the last of these calls ran, and why:

print(ag.last_receipt())

# %%
# The same call on every engine:

figure = engines_chart(eight_steps, heat, flames)

# sphinx_gallery_thumbnail_number = 1
