"""
Spectrogram of birdsong
=======================

A second of sound is cut into a thousand overlapping frames, and the spectrum of each frame is a column of the
picture. All frames are transformed in one call.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart


@ag.offload
def spectrogram(frames: np.ndarray, window: np.ndarray) -> np.ndarray:
    power = np.abs(np.fft.rfft(frames * window, axis=1)) ** 2
    return 10 * np.log10(power + np.float32(1e-6))


# %%
# The bird: a few chirps with overtones, over the noise of wind.

RATE, FRAME, HOP = 16_000, 512, 24
time = np.arange(int(1.6 * RATE)) / RATE
random = np.random.default_rng(2)
sound = 0.02 * np.convolve(random.standard_normal(len(time)), np.ones(24) / 5, "same")
for begin, length, low, high in (
    (0.1, 0.28, 5200, 2600),
    (0.48, 0.16, 2500, 4700),
    (0.7, 0.5, 3300, 3300),
    (1.28, 0.2, 5600, 2200),
):
    at = (time - begin) / length
    there = np.where((at > 0) & (at < 1), np.sin(np.pi * at.clip(0, 1)) ** 0.5, 0)
    trill = 260 * np.sin(2 * np.pi * 28 * time) * (low == high)
    phase = 2 * np.pi * np.cumsum(low + (high - low) * at.clip(0, 1) ** 1.5 + trill) / RATE
    sound += there * (0.6 * np.sin(phase) + 0.05 * np.sin(1.5 * phase) + 0.12 * np.sin(2 * phase) * (low < 4000))
frames = np.lib.stride_tricks.sliding_window_view(sound.astype(np.float32), FRAME)[::HOP].copy()
window = np.hanning(FRAME).astype(np.float32)

decibels = spectrogram(frames, window)
figure, (above, below) = plt.subplots(2, 1, figsize=(5.4, 4.2), height_ratios=(1, 3), sharex=True)
above.plot(time, sound, linewidth=0.4)
above.axis("off")
extent = (0, time[-1], 0, RATE / 2000)
below.imshow(decibels.T, origin="lower", aspect="auto", extent=extent, cmap="magma", vmin=-25, vmax=35)
below.set(xlabel="seconds", ylabel="kHz")

# %%
# Where the call ran, and why:

print(ag.last_receipt())

# %%
# The same call on every engine:

figure = engines_chart(spectrogram, frames, window)

# sphinx_gallery_thumbnail_number = 1
