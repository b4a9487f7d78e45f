"""
Eight colours for a sunset
==========================

k-means finds the eight colours that come closest to all pixels of a picture. One call assigns every pixel to its
nearest colour and moves the colours to the middle of their pixels.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart


@ag.offload
def improved(pixels: np.ndarray, colours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    distances = (colours * colours).sum(axis=1) - 2 * pixels @ colours.T
    nearest = distances.argmin(axis=1)
    member = (nearest[:, None] == np.arange(len(colours))).astype(np.float32)
    counts = np.maximum(member.sum(axis=0), 1)
    return member.T @ pixels / counts[:, None], nearest


# %%
# A sunset over the sea, painted with a few formulas:

height, width = 160, 240
y, x = np.mgrid[0:1:160j, 0:1.5:240j]
sky = np.stack([0.25 + 0.85 * y, 0.12 + 0.62 * y**1.6, 0.45 - 0.25 * y], axis=-1)
sun = np.hypot(x - 0.85, y - 0.55)
sky += (0.6 * np.exp(-5 * sun))[..., None] * np.array([1.0, 0.7, 0.3])
sky[sun < 0.11] = (1.0, 0.93, 0.62)
sea = y > 0.62
glitter = np.exp(-30 * (x - 0.85) ** 2) * (np.sin(160 * y**2 + 9 * np.sin(11 * x)) > 0.25)
water = np.stack([0.1 + 0.9 * glitter, 0.16 + 0.55 * glitter, 0.32 + 0.1 * glitter], axis=-1)
picture = np.where(sea[..., None], water, sky).clip(0, 1).astype(np.float32)
pixels = picture.reshape(-1, 3)

colours = pixels[np.argsort(pixels.sum(axis=1), kind="stable")][2000::4800]
for _ in range(20):
    colours, nearest = improved(pixels, colours)

figure, (above, below) = plt.subplots(2, 2, figsize=(5.4, 2.6), height_ratios=(8, 1))
above[0].imshow(picture)
above[0].set_title(f"{len(np.unique(pixels, axis=0)):,} colours")
above[1].imshow(colours[nearest].reshape(picture.shape).clip(0, 1))
above[1].set_title(f"{len(colours)} colours")
below[1].imshow(colours[np.argsort(colours.sum(axis=1))][None].clip(0, 1), aspect="auto")
for panel in (*above, *below):
    panel.axis("off")

# %%
# Where the last of these calls ran, and why:

print(ag.last_receipt())

# %%
# The same call on every engine:

figure = engines_chart(improved, pixels, colours)

# sphinx_gallery_thumbnail_number = 1
