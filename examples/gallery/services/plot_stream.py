"""
A file larger than memory allows
================================

An antenna wrote a file of 48 MB, and there are 12 MB for it. ``ag.stream`` reads, computes and writes chunk by chunk,
all three at once; the function is written for the whole file, and anygpu proves that it may be cut.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart


def power(samples: np.ndarray) -> np.ndarray:
    """Of each row its spectrum, in decibels."""
    window = np.float32(0.5) - np.float32(0.5) * np.cos(np.arange(512, dtype=np.float32) * np.float32(2 * np.pi / 511))
    return 10 * np.log10(np.abs(np.fft.rfft(samples * window, axis=1)) ** 2 + np.float32(1e-3))


# %%
# The file: noise, a station that fades, a satellite whose frequency falls as it passes, and a beacon.

folder = tempfile.TemporaryDirectory()
recording, spectra = Path(folder.name, "antenna.npy"), Path(folder.name, "spectra.npy")
rows = 24_000
samples = np.lib.format.open_memmap(recording, "w+", np.float32, (rows, 512))
random = np.random.default_rng(0)
at = np.arange(512, dtype=np.float32)
for first in range(0, rows, 2000):
    row = np.arange(first, first + 2000, dtype=np.float32)[:, None] / rows
    samples[first : first + 2000] = random.standard_normal((2000, 512), dtype=np.float32)
    falling = 0.32 - 0.2 / (1 + np.exp(-14 * (row - 0.55)))
    samples[first : first + 2000] += 0.5 * np.sin(2 * np.pi * falling * at)
    samples[first : first + 2000] += 0.5 * np.abs(np.sin(9 * row)) * np.sin(2 * np.pi * 0.41 * at)
    samples[first : first + 2000] += 0.6 * (np.sin(150 * row) > 0.8) * np.sin(2 * np.pi * 0.07 * at)
samples.flush()

streamed = ag.stream(power, recording, spectra, memory="12MB", on="numpy")
print(streamed)

# %%
# What came out, with every 60 rows as one line:

waterfall = np.load(spectra).reshape(rows // 60, 60, 257).mean(axis=1)
figure, panel = plt.subplots(figsize=(5.4, 3.9))
panel.imshow(
    waterfall, aspect="auto", cmap="magma", vmin=19, vmax=34, extent=(0, 0.5, rows, 0), interpolation="bilinear"
)
panel.set(xlabel="frequency", ylabel="row of the file")

# %%
# A stream has one receipt for all of its chunks:

print(streamed.receipt)

# %%
# One chunk on every engine:

figure = engines_chart(power, np.array(samples[:4000]))

# sphinx_gallery_thumbnail_number = 1
