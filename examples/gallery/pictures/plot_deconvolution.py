"""
A shaken picture, restored
==========================

A camera moved while it took a picture. If the movement is known, Wiener's filter undoes it: a division of spectra
that leaves alone what is lost in the noise.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart


@ag.offload
def restored(picture: np.ndarray, movement: np.ndarray, noise: float) -> np.ndarray:
    seen = np.fft.rfft2(movement)
    filtered = np.fft.rfft2(picture) * np.conj(seen) / (np.abs(seen) ** 2 + noise)
    return np.fft.irfft2(filtered, s=picture.shape)


# %%
# The picture is a page of letters and rings, moved along an arc of 25 pixels.

side = 256
y, x = np.mgrid[0:side, 0:side].astype(np.float32)
page = figure = plt.figure(figsize=(2.56, 2.56), dpi=100, layout="none")
figure.text(0.5, 0.72, "anygpu", ha="center", va="center", fontsize=38, weight="bold")
figure.text(0.5, 0.42, "right answers first", ha="center", va="center", fontsize=15)
figure.text(0.5, 0.27, "and the reasons with them", ha="center", va="center", fontsize=11)
figure.canvas.draw()
sharp = np.asarray(figure.canvas.buffer_rgba())[..., 0].astype(np.float32) / 255  # type: ignore[attr-defined]
plt.close(figure)
sharp = np.minimum(sharp, 0.75 + 0.25 * np.sign(np.sin(np.hypot(x - 128, y - 300) / 5)))

movement = np.zeros((side, side), np.float32)
for angle in np.linspace(0, 1.2, 200):
    movement[round(20 * np.sin(angle)), round(22 * np.cos(angle)) - 12] += 1 / 200
noise = 0.004 * np.random.default_rng(0).standard_normal(sharp.shape).astype(np.float32)
shaken = np.fft.irfft2(np.fft.rfft2(sharp) * np.fft.rfft2(movement)).astype(np.float32) + noise
clear = restored(shaken, movement, 5e-4)

figure, panels = plt.subplots(1, 2, figsize=(5.4, 3.0))
for panel, (name, image) in zip(panels, {"shaken": shaken, "restored": clear}.items(), strict=True):
    panel.imshow(image, cmap="gray", vmin=0, vmax=1)
    panel.set_title(name)
    panel.axis("off")

# %%
# Where the call ran, and why:

print(ag.last_receipt())

# %%
# The same call on every engine:

figure = engines_chart(restored, shaken, movement, 5e-4)

# sphinx_gallery_thumbnail_number = 1
