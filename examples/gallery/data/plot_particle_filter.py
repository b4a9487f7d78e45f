"""
A boat between two lighthouses
==============================

A boat hears only how far two lighthouses are, and not exactly. Twenty thousand guesses of where it may be sail along;
those that do not fit what is heard are dropped, and the others are doubled.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart

LIGHTHOUSES = np.array([[0.5, 7.4], [8.7, 7.4]], np.float32)
HEARING = np.float32(0.4)


@ag.offload
def weighed(guesses: np.ndarray, gusts: np.ndarray, heard: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Guesses (x, y and their speeds) one step later, how likely each is, and the best estimate."""
    speeds = guesses[:, 2:] + np.float32(0.05) * gusts
    places = guesses[:, :2] + speeds
    away = places[:, None, :] - LIGHTHOUSES
    distances = np.sqrt((away * away).sum(axis=2))
    doubt = (((distances - heard) / HEARING) ** 2).sum(axis=1) / 2
    weights = np.exp(doubt.min() - doubt)
    weights = weights / weights.sum()
    return np.concatenate([places, speeds], axis=1), weights, (weights[:, None] * places).sum(axis=0)


# %%
# The boat sails a curve, and the filter follows.

random = np.random.default_rng(3)
step = np.arange(40)[:, None]
course = np.hstack([0.6 + 0.21 * step, 2.4 + 1.5 * np.sin(step / 8) + 0.05 * step])
true_distances = np.linalg.norm(course[:, None] - LIGHTHOUSES, axis=2)
heard = (true_distances + HEARING * random.standard_normal((40, 2))).astype(np.float32)

count = 20_000
start = np.hstack([random.normal(course[0], 0.8, (count, 2)), random.normal((0.2, 0.1), 0.1, (count, 2))])
guesses = start.astype(np.float32)
clouds, track = [], []
for now in heard:
    gusts = random.standard_normal((count, 2), dtype=np.float32)
    guesses, weights, best = weighed(guesses, gusts, now)
    kept = np.searchsorted(np.cumsum(weights), (random.random() + np.arange(count)) / count).clip(0, count - 1)
    guesses = guesses[kept]
    clouds.append(guesses[:150, :2])
    track.append(best)

figure, panel = plt.subplots(figsize=(5.4, 4.0))
cloud = np.concatenate(clouds)
panel.scatter(cloud[:, 0], cloud[:, 1], s=2, c="#9ec9e6", linewidths=0)
panel.plot(*course.T, color="#1f1f1f", linestyle="--", label="the boat")
panel.plot(*np.array(track).T, color="#D55E00", label="the best estimate")
panel.scatter(LIGHTHOUSES[:, 0], LIGHTHOUSES[:, 1], marker="*", s=190, color="#9C6A00", label="lighthouses", zorder=3)
panel.set(xlabel="km", ylabel="km", ylim=(0, 8.2))
panel.legend(loc="lower right")
away = np.linalg.norm(np.array(track) - course, axis=1)
print(f"off by {away[5:].mean():.2f} km on average; each distance that is heard is off by {HEARING:.2f} km")

# %%
# Where the last of these calls ran, and why:

print(ag.last_receipt())

# %%
# The same call on every engine:

figure = engines_chart(weighed, guesses, gusts, now)

# sphinx_gallery_thumbnail_number = 1
