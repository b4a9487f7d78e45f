"""
Option pricing by Monte Carlo
=============================

An Asian option pays the mean price of a share over a year, as far as it exceeds 100. There is no formula for that, so
16,000 years are simulated, and the mean of what they pay is the price.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart

RATE, VOLATILITY, WEEKS = 0.03, 0.25, 52


@ag.offload
def simulated(normals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The share's price in every week of every simulated year, and what the option pays at the end of each."""
    drift = np.float32((RATE - VOLATILITY**2 / 2) / WEEKS)
    moves = drift + np.float32(VOLATILITY / WEEKS**0.5) * normals
    prices = 100 * np.exp(np.cumsum(moves, axis=1))
    return prices, np.maximum(prices.mean(axis=1) - 100, 0)


normals = np.random.default_rng(0).standard_normal((16_000, WEEKS), dtype=np.float32)
prices, payments = simulated(normals)
worth = payments * np.exp(-RATE)
error = worth.std() / len(worth) ** 0.5
print(f"the price is {worth.mean():.2f} ± {error:.2f}")

# %%
# Sixty of the years, and where all of them end:

figure, (paths, ends) = plt.subplots(1, 2, figsize=(5.4, 3.4), width_ratios=(3, 1), sharey=True)
colours = plt.colormaps["viridis"](np.clip((prices[:60, -1] - 60) / 100, 0, 0.92))
for path, colour in zip(prices[:60], colours, strict=True):
    paths.plot(path, color=colour, linewidth=0.9)
paths.axhline(100, color="#1f1f1f", linewidth=1)
paths.set(xlabel="week", ylabel="price of the share", ylim=(40, 200), xlim=(0, WEEKS - 1))
ends.hist(prices[:, -1], bins=80, range=(40, 200), orientation="horizontal", color="#0072B2")
ends.set(xticks=[], xlabel="years")

# %%
# Where the call ran, and why:

print(ag.last_receipt())

# %%
# The same call on every engine:

figure = engines_chart(simulated, normals)

# sphinx_gallery_thumbnail_number = 1
