"""
A Julia set
===========

Each pixel is a number ``z``, which becomes ``z² + c`` again and again; the picture shows how soon it escapes. Ten
rounds are one call, and on a device one kernel.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart

C = (-0.7269, 0.1889)


@ag.offload
def ten_rounds(re: np.ndarray, im: np.ndarray, rounds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    for _ in range(10):
        inside = re * re + im * im < 64
        re, im = np.where(inside, re * re - im * im + C[0], re), np.where(inside, 2 * re * im + C[1], im)
        rounds = rounds + inside
    return re, im, rounds


# %%
# Between two rounds the size of ``z`` says how far it has come, which makes the colours smooth.

im, re = np.mgrid[-0.95:0.95:320j, -1.5:1.5:496j].astype(np.float32)
start = re, im, np.zeros(re.shape, np.float32)
re, im, rounds = start
for _ in range(16):
    re, im, rounds = ten_rounds(re, im, rounds)
smooth = rounds + 1 - np.log2(np.log(np.maximum(re * re + im * im, 2)) / np.log(64))

figure, panel = plt.subplots(figsize=(5.4, 3.5))
panel.imshow(np.log(smooth.clip(8, 150)), cmap="twilight_shifted", interpolation="bilinear")
panel.axis("off")

# %%
# Where the last of these calls ran, and why:

print(ag.last_receipt())

# %%
# The first ten rounds on every engine:

figure = engines_chart(ten_rounds, *start)

# sphinx_gallery_thumbnail_number = 1
