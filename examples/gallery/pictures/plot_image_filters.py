"""
Blur, sharpen, find edges
=========================

Three filters of one picture in one call: a blur of 5 × 5 pixels, the picture with twice its details, and the strength
of its edges. Each is a sum of shifted slices.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart

WEIGHTS = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)


@ag.offload
def filtered(image: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    height, width = image.shape
    padded = np.pad(image, 2, mode="edge")
    rows: np.ndarray = np.zeros((height, width + 4), np.float32)
    for k, weight in enumerate(WEIGHTS):
        rows = rows + weight * padded[k : k + height, :]
    blurred: np.ndarray = np.zeros((height, width), np.float32)
    for k, weight in enumerate(WEIGHTS):
        blurred = blurred + weight * rows[:, k : k + width]
    sharp = np.clip(2 * image - blurred, 0, 1)
    down = blurred[2:, 1:-1] - blurred[:-2, 1:-1]
    across = blurred[1:-1, 2:] - blurred[1:-1, :-2]
    return blurred, sharp, np.hypot(down, across)


# %%
# The picture is a moon over hills, with some noise.

y, x = np.mgrid[0:360, 0:480].astype(np.float32)
picture = 0.25 + 0.35 * y / 360
moon = np.hypot(x - 340, y - 90)
picture[moon < 42] = 0.95 - 0.1 * np.sin(x / 7)[moon < 42] * np.cos(y / 9)[moon < 42]
for nearness, shade in enumerate((0.5, 0.36, 0.22)):
    hills = 190 + 45 * nearness + 26 * np.sin(x / (52 - 9 * nearness) + 2 * nearness) + 9 * np.sin(x / 17 + nearness)
    picture[y > hills] = shade + 0.04 * np.sin((y - hills) / 5)[y > hills]
picture = (picture + 0.03 * np.random.default_rng(0).standard_normal(picture.shape)).astype(np.float32).clip(0, 1)

blurred, sharp, edges = filtered(picture)
figure, panels = plt.subplots(2, 2, figsize=(5.4, 4.4))
shown = {"the picture": picture, "blurred": blurred, "sharpened": sharp, "edges": -np.sqrt(edges)}
for panel, (name, image) in zip(panels.flat, shown.items(), strict=True):
    panel.imshow(image, cmap="gray" if name == "edges" else "bone")
    panel.set_title(name)
    panel.axis("off")

# %%
# Where the call ran, and why:

print(ag.last_receipt())

# %%
# The same call on every engine:

figure = engines_chart(filtered, picture)

# sphinx_gallery_thumbnail_number = 1
