"""
Order and chaos of one formula
==============================

A population follows ``x → r x (1 − x)``. For some growth rates it settles, for others it alternates between two,
four, eight values, and beyond that it is chaotic. All growth rates are computed at once.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart


@ag.offload
def sixteen_seasons(population: np.ndarray, growth: np.ndarray) -> np.ndarray:
    for _ in range(16):
        population = growth * population * (1 - population)
    return population


# %%
# 200,000 populations, of which every one is looked at after 320 seasons. In chaos two engines differ after so many,
# as any two ways to round do; a single call agrees.

random = np.random.default_rng(0)
growth = np.sort(random.uniform(2.8, 4.0, 200_000)).astype(np.float32)
population = random.random(200_000, dtype=np.float32)
for _ in range(20):
    population = sixteen_seasons(population, growth)

figure, panel = plt.subplots(figsize=(5.4, 3.7))
density = np.histogram2d(population, growth, bins=(360, 540), range=((0, 1), (2.8, 4.0)))[0]
panel.imshow(np.log1p(density), origin="lower", extent=(2.8, 4.0, 0, 1), aspect="auto", cmap="Blues", vmax=3)
panel.set(xlabel="growth rate r", ylabel="population")

# %%
# Where the last of these calls ran, and why:

print(ag.last_receipt())

# %%
# The same call on every engine. Sixteen seasons are one kernel, which reads and writes each number once:

figure = engines_chart(sixteen_seasons, np.full_like(growth, 0.5), growth * np.float32(0.85))

# sphinx_gallery_thumbnail_number = 1
